//! The scrub, step by step and in its thread: it finds what is damaged and nothing else, repairs what has a good copy, goes on where it
//! was after a power cut, and leaves the files, ranges and places.

use crate::memory_store::{MemoryStore, Shape};
use crate::operations::pattern;
use crate::simulated_disk::{Fault, Images, Operation, Random, SimulatedPower, Survivors, seed_from_environment};
use crate::tree::read_bytes;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use sumfs::disk::superblock::COPIES;
use sumfs::error::Error;
use sumfs::fs::{Caller, Filesystem, Options, SetAttributes, WriteFlags};
use sumfs::lock::Wait;
use sumfs::meta::index::Index;
use sumfs::meta::records::seal;
use sumfs::meta::redb_index::RedbIndex;
use sumfs::meta::schema;
use sumfs::units::{BLOCK, BLOCK_SIZE, InodeNumber};

const ROOT: InodeNumber = InodeNumber::ROOT;
const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const STORE_BYTES: u64 = 48 << 20;
/// Files and their blocks.
const FILES: usize = 12;
const FILE_BLOCKS: usize = 40;

fn create(fs: &Filesystem, directory: InodeNumber, name: &str, content: &[u8]) -> InodeNumber {
    let file = fs.mknod(&CALLER, directory, name.as_bytes(), 0o100_644, 0, 0).unwrap().inode;
    fs.write(&CALLER, file, 0, content, WriteFlags::default(), Wait::Allowed).unwrap();
    file
}

fn content(number: usize) -> Vec<u8> {
    pattern(number as u64 + 100, FILE_BLOCKS * BLOCK)
}

/// A closed store with the files 0, 1, ... in a directory.
fn some_files(shape: Shape) -> Images {
    let power = SimulatedPower::new(1);
    let store = MemoryStore::shaped_on(&power, STORE_BYTES, shape);
    let fs = store.open();
    let directory = fs.mkdir(&CALLER, ROOT, b"directory", 0o755, 0).unwrap().inode;
    for number in 0..FILES {
        create(&fs, directory, &number.to_string(), &content(number));
    }
    store.close(&fs);
    power.cut_with(1, Survivors::Everything, false)
}

struct Opened {
    power: SimulatedPower,
    store: MemoryStore,
    fs: Arc<Filesystem>,
}

impl Opened {
    fn new(images: &Images) -> Opened {
        let power = SimulatedPower::reopen(1, images);
        let store = MemoryStore::found_on(&power);
        let fs = store.open();
        Opened { power, store, fs }
    }

    fn file(&self, number: usize) -> InodeNumber {
        let directory = self.fs.lookup(ROOT, b"directory").unwrap().inode;
        self.fs.lookup(directory, number.to_string().as_bytes()).unwrap().inode
    }

    /// Device number and offset of the first copy of a block of a file.
    fn place(&self, number: usize, block: usize) -> (u64, u64) {
        let layout = self.fs.file_layout(self.file(number)).unwrap();
        let at = (block * BLOCK) as u64;
        let ranges = layout["ranges"].as_array().unwrap();
        let number_of = |range: &Value, name: &str| range[name].as_u64().unwrap();
        let holds =
            |range: &&Value| (number_of(range, "offset")..number_of(range, "offset") + number_of(range, "length")).contains(&at);
        let range = ranges.iter().find(holds).unwrap();
        (number_of(range, "device"), number_of(range, "device_offset") + at - number_of(range, "offset"))
    }

    fn damage(&self, shape: Shape, number: usize, block: usize) -> (u64, u64) {
        let (device, offset) = self.place(number, block);
        self.power.flip_byte(shape.ports()[device as usize], offset + 17);
        (device, offset)
    }

    fn scrub(&self) -> Value {
        self.fs.scrub_start(0).unwrap();
        self.finish()
    }

    fn finish(&self) -> Value {
        while self.fs.scrub_step().unwrap() {}
        self.fs.scrub_status(true).unwrap()
    }
}

#[test]
fn a_sound_store_is_clean_and_everything_is_looked_at() {
    for shape in [Shape::SINGLE, Shape::DUP_ONE, Shape::DUP_TWO] {
        let opened = Opened::new(&some_files(shape));
        let status = opened.scrub();
        let copies = if shape == Shape::SINGLE { 1 } else { 2 };
        assert_eq!(status["state"], "finished", "{status}");
        assert_eq!(status["bytes_done"], json!(copies * (FILES * FILE_BLOCKS * BLOCK) as u64), "{status}");
        assert!(status["values_done"].as_u64().unwrap() > FILES as u64, "{status}");
        for name in ["bad_blocks", "repaired_blocks", "damaged_values", "healed_copies"] {
            assert_eq!(status[name], 0, "{shape:?}: {status}");
        }
        assert_eq!(status["damage"], json!({ "ranges": [], "values": [] }));
        opened.store.close(&opened.fs);
    }
}

#[test]
fn damage_is_named_by_path_range_and_place() {
    let opened = Opened::new(&some_files(Shape::SINGLE));
    let (_, first) = opened.damage(Shape::SINGLE, 3, 7);
    let (_, second) = opened.damage(Shape::SINGLE, 3, 8);
    let (_, other) = opened.damage(Shape::SINGLE, 9, 39);
    assert_eq!(second, first + BLOCK_SIZE, "written in one run");
    let status = opened.scrub();
    assert_eq!((&status["bad_blocks"], &status["repaired_blocks"]), (&json!(3), &json!(0)), "{status}");
    let ranges = status["damage"]["ranges"].as_array().unwrap();
    let told: Vec<Value> = ranges
        .iter()
        .map(|range| json!([range["file"]["path"], range["offset"], range["length"], range["device"], range["device_offset"]]))
        .collect();
    let expected =
        [json!(["/directory/3", 7 * BLOCK, 2 * BLOCK, 0, first]), json!(["/directory/9", 39 * BLOCK, BLOCK, 0, other])];
    assert_eq!(told, expected);
    assert!(ranges.iter().all(|range| range["repaired"] == false && range["unreadable"] == false), "{status}");
    // Every file that shares the block is named.
    let (from, into) = (opened.file(9), create(&opened.fs, ROOT, "copy", b""));
    opened.fs.copy_range(&CALLER, (from, 0), (into, 0), (FILE_BLOCKS * BLOCK) as u64).unwrap();
    opened.fs.sync().unwrap();
    let paths: BTreeSet<String> = opened.scrub()["damage"]["ranges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|range| range["file"]["path"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(paths, ["/copy", "/directory/3", "/directory/9"].map(str::to_owned).into());
}

#[test]
fn what_is_cured_leaves_the_list() {
    let opened = Opened::new(&some_files(Shape::SINGLE));
    opened.damage(Shape::SINGLE, 1, 1);
    opened.damage(Shape::SINGLE, 2, 2);
    opened.damage(Shape::SINGLE, 3, 3);
    let listed = |opened: &Opened| opened.fs.damage_list().unwrap()["ranges"].as_array().unwrap().len();
    // A read finds it as well as a scrub.
    assert!(matches!(read_bytes(&opened.fs, opened.file(1), BLOCK_SIZE, 1), Err(Error::Integrity { .. })));
    assert_eq!(listed(&opened), 1);
    opened.scrub();
    assert_eq!(listed(&opened), 3);
    opened.fs.write(&CALLER, opened.file(1), BLOCK_SIZE, &[1; BLOCK], WriteFlags::default(), Wait::Allowed).unwrap();
    let change = SetAttributes { size: Some(BLOCK_SIZE), ..SetAttributes::default() };
    opened.fs.setattr(&CALLER, opened.file(2), &change).unwrap();
    opened.fs.sync().unwrap();
    assert_eq!(listed(&opened), 1);
    let status = opened.scrub();
    assert_eq!((status["bad_blocks"].as_u64(), listed(&opened)), (Some(1), 1));
    // It outlives the mount, and is forgotten when asked.
    opened.fs.shutdown().unwrap();
    let fs = opened.store.open();
    assert_eq!(fs.damage_list().unwrap()["ranges"].as_array().unwrap().len(), 1);
    fs.damage_clear().unwrap();
    assert_eq!(fs.damage_list().unwrap()["ranges"], json!([]));
}

#[test]
fn each_bad_copy_is_repaired_from_the_other_one() {
    for shape in [Shape::DUP_ONE, Shape::DUP_TWO] {
        let images = some_files(shape);
        let sound = Opened::new(&images);
        let wanted = content(4);
        let wanted = &wanted[5 * BLOCK..6 * BLOCK];
        for port in shape.ports() {
            let image = &images[*port];
            let places: Vec<u64> =
                image.block_indexes().filter(|index| image.block(*index).is_some_and(|found| found[..] == *wanted)).collect();
            for place in places {
                let opened = Opened::new(&images);
                opened.power.flip_byte(port, place * BLOCK_SIZE + 2000);
                let status = opened.scrub();
                assert_eq!((&status["bad_blocks"], &status["repaired_blocks"]), (&json!(1), &json!(1)), "{status}");
                let range = &status["damage"]["ranges"][0];
                assert_eq!((&range["file"]["path"], &range["repaired"]), (&json!("/directory/4"), &json!(true)), "{status}");
                opened.store.close(&opened.fs);
                let after = opened.power.cut_with(1, Survivors::Everything, false);
                assert_eq!(after[*port].block(place), images[*port].block(place), "{shape:?} {port} {place}");
            }
        }
        drop(sound);
    }
}

#[test]
fn a_block_without_a_good_copy_is_left_as_it_is() {
    let shape = Shape::DUP_TWO;
    let images = some_files(shape);
    let opened = Opened::new(&images);
    let wanted = content(4);
    let mut damaged = 0;
    for port in shape.ports() {
        let image = &images[*port];
        for index in image.block_indexes().filter(|index| image.block(*index).is_some_and(|found| found[..] == wanted[..BLOCK])) {
            opened.power.flip_byte(port, index * BLOCK_SIZE + 1);
            damaged += 1;
        }
    }
    assert_eq!(damaged, 2);
    let status = opened.scrub();
    assert_eq!((&status["bad_blocks"], &status["repaired_blocks"]), (&json!(2), &json!(0)), "{status}");
    assert!(read_bytes(&opened.fs, opened.file(4), 0, 1).is_err());
}

#[test]
fn superblock_labels_and_index_are_healed() {
    let images = some_files(Shape::SINGLE);
    let places = [("superblock", COPIES[0] + 90), ("superblock", COPIES[1] + 90), ("device", 50), ("device", STORE_BYTES - 4000)];
    for (port, place) in places {
        let opened = Opened::new(&images);
        opened.power.flip_byte(port, place);
        let status = opened.scrub();
        assert_eq!(status["healed_copies"], 1, "{port} {place}: {status}");
        opened.store.close(&opened.fs);
    }
    let mut healed = 0;
    for index in images["index"].block_indexes() {
        let opened = Opened::new(&images);
        opened.power.flip_byte("index", index * BLOCK_SIZE + 100);
        opened.fs.scrub_start(0).unwrap();
        let status = opened.finish();
        healed += status["healed_copies"].as_u64().unwrap();
        assert_eq!(status["bad_blocks"], 0, "index block {index}: {status}");
        opened.store.close(&opened.fs);
    }
    assert!(healed > 0);
}

#[test]
fn a_damaged_value_is_found_and_named() {
    let images = some_files(Shape::SINGLE);
    let opened = Opened::new(&images);
    let inode = opened.file(6);
    opened.fs.shutdown().unwrap();
    let index = RedbIndex::open(opened.store.disks.index.clone(), 4 << 20, false).unwrap();
    let key = schema::xattr(inode, b"user.bad");
    let mut value = seal(&key, b"value".to_vec());
    value[2] ^= 1;
    let mut changes = [(key.as_slice(), Some(value.as_slice()))].into_iter();
    index.apply(&mut changes, true).unwrap();
    drop(index);
    let fs = opened.store.open();
    fs.scrub_start(0).unwrap();
    while fs.scrub_step().unwrap() {}
    let status = fs.scrub_status(true).unwrap();
    assert_eq!(status["damaged_values"], 1, "{status}");
    let told = status["damage"]["values"][0].as_str().unwrap();
    assert!(told.contains("user.bad") && told.contains("/directory/6"), "{told}");
}

#[test]
fn what_is_freed_or_written_meanwhile_is_no_damage() {
    let seed = seed_from_environment(3);
    let mut random = Random::new(seed);
    let opened = Opened::new(&some_files(Shape::DUP_TWO));
    for round in 0..20 {
        opened.fs.scrub_start(4 * BLOCK_SIZE * 8).unwrap();
        loop {
            let number = random.below(FILES as u64) as usize;
            let offset = random.below(FILE_BLOCKS as u64) * BLOCK_SIZE;
            let bytes = pattern(random.next(), 3 * BLOCK);
            opened.fs.write(&CALLER, opened.file(number), offset, &bytes, WriteFlags::default(), Wait::Allowed).unwrap();
            opened.fs.sync().unwrap();
            if !opened.fs.scrub_step().unwrap() {
                break;
            }
        }
        let status = opened.fs.scrub_status(true).unwrap();
        assert_eq!(status["bad_blocks"], 0, "round {round}: {status}");
    }
    opened.store.close(&opened.fs);
}

#[test]
fn pausing_resuming_and_cancelling() {
    let opened = Opened::new(&some_files(Shape::SINGLE));
    let fs = &opened.fs;
    let state = || fs.scrub_status(false).unwrap()["state"].as_str().unwrap().to_owned();
    assert_eq!(state(), "never");
    assert!(fs.scrub_pause().is_err() && fs.scrub_resume(None).is_err() && fs.scrub_cancel().is_err());
    assert!(!fs.scrub_step().unwrap());
    fs.scrub_start(64 * BLOCK_SIZE).unwrap();
    assert!(fs.scrub_start(0).is_err());
    (0..4).for_each(|_| assert!(fs.scrub_step().unwrap()));
    fs.scrub_pause().unwrap();
    let before = fs.scrub_status(false).unwrap();
    assert!(!fs.scrub_step().unwrap());
    assert_eq!(fs.scrub_status(false).unwrap()["bytes_done"], before["bytes_done"]);
    assert!(fs.scrub_start(0).is_err());
    // A pause outlives the mount.
    fs.shutdown().unwrap();
    let fs = opened.store.open();
    assert_eq!(fs.scrub_status(false).unwrap()["state"], "paused");
    fs.scrub_resume(Some(0)).unwrap();
    while fs.scrub_step().unwrap() {}
    let status = fs.scrub_status(false).unwrap();
    assert_eq!((&status["state"], &status["bytes_done"]), (&json!("finished"), &json!(FILES * FILE_BLOCKS * BLOCK)), "{status}");
    fs.scrub_start(0).unwrap();
    fs.scrub_step().unwrap();
    fs.scrub_cancel().unwrap();
    let status = fs.scrub_status(false).unwrap();
    assert_eq!((&status["state"], &status["number"]), (&json!("cancelled"), &json!(2)));
    fs.scrub_start(0).unwrap();
    fs.scrub_cancel().unwrap();
    opened.store.close(&fs);
}

/// The power goes off twenty times; in the end all damage has been found, and all of it counted once or more.
#[test]
fn a_scrub_that_is_killed_again_and_again_has_seen_everything_in_the_end() {
    let seed = seed_from_environment(11);
    let mut random = Random::new(seed);
    for shape in [Shape::SINGLE, Shape::DUP_TWO] {
        let opened = Opened::new(&some_files(shape));
        let damaged: Vec<(usize, usize)> = (0..FILES).map(|number| (number, random.below(FILE_BLOCKS as u64) as usize)).collect();
        for (number, block) in &damaged {
            opened.damage(shape, *number, *block);
        }
        opened.fs.scrub_start(16 * BLOCK_SIZE).unwrap();
        opened.fs.sync().unwrap();
        let mut images = opened.power.cut(random.next());
        drop(opened);
        let mut kills = 0;
        let last = loop {
            let opened = Opened::new(&images);
            let steps = if kills < 20 { random.below(3) } else { u64::MAX };
            let mut goes_on = opened.fs.is_scrubbing();
            for _ in 0..steps {
                if !goes_on {
                    break;
                }
                goes_on = opened.fs.scrub_step().unwrap();
                if random.once_in(2) {
                    opened.fs.sync().unwrap();
                }
            }
            if !goes_on {
                break opened;
            }
            kills += 1;
            images = opened.power.cut(random.next());
        };
        assert_eq!(kills, 20, "SEED={seed}: it was over too soon");
        let status = last.fs.scrub_status(true).unwrap();
        assert_eq!(status["state"], "finished", "SEED={seed}: {status}");
        let copies = if shape == Shape::SINGLE { 1 } else { 2 };
        assert!(status["bytes_done"].as_u64().unwrap() >= copies * (FILES * FILE_BLOCKS * BLOCK) as u64, "{status}");
        let found: BTreeSet<(String, u64)> = status["damage"]["ranges"]
            .as_array()
            .unwrap()
            .iter()
            .map(|range| (range["file"]["path"].as_str().unwrap().to_owned(), range["offset"].as_u64().unwrap()))
            .collect();
        let expected = damaged.iter().map(|(number, block)| (format!("/directory/{number}"), *block as u64 * BLOCK_SIZE));
        if shape == Shape::SINGLE {
            assert_eq!(found, expected.collect(), "SEED={seed}");
        } else {
            // What was repaired before a cut is sound afterwards and need not be found twice.
            last.store.close(&last.fs);
        }
    }
}

#[test]
fn the_thread_goes_on_after_a_mount_and_ends_with_it() {
    let images = some_files(Shape::SINGLE);
    let opened = Opened::new(&images);
    opened.damage(Shape::SINGLE, 5, 5);
    opened.fs.scrub_start(20 << 20).unwrap();
    opened.fs.scrub_step().unwrap();
    opened.fs.shutdown().unwrap();
    let fs = opened.store.open_with(Options::default());
    while fs.is_scrubbing() {
        std::thread::yield_now();
    }
    let status = fs.scrub_status(true).unwrap();
    assert_eq!((&status["state"], &status["bad_blocks"]), (&json!("finished"), &json!(1)), "{status}");
    // A slow one does not hold up the unmount, and says where it was.
    fs.scrub_start(8 * BLOCK_SIZE).unwrap();
    let looked_at_data = || fs.scrub_status(false).unwrap()["bytes_done"].as_u64().unwrap() > 0;
    while !looked_at_data() {
        std::thread::yield_now();
    }
    let begin = std::time::Instant::now();
    fs.shutdown().unwrap();
    assert!(begin.elapsed() < std::time::Duration::from_secs(20), "{:?}", begin.elapsed());
    let fs = opened.store.open();
    let status = fs.scrub_status(false).unwrap();
    assert_eq!(status["state"], "running");
    let done = status["bytes_done"].as_u64().unwrap();
    assert!(done > 0 && done < (FILES * FILE_BLOCKS * BLOCK) as u64, "{status}");
}

/// The range, when there is one.
fn only(ranges: &[Range<u64>]) -> Option<Range<u64>> {
    ranges.first().filter(|_| ranges.len() == 1).cloned()
}

#[test]
fn what_is_left_of_a_damaged_file_can_be_salvaged_and_stays_out_of_the_cache() {
    let opened = Opened::new(&some_files(Shape::SINGLE));
    opened.damage(Shape::SINGLE, 2, 3);
    opened.damage(Shape::SINGLE, 2, 4);
    let file = opened.file(2);
    let mut expected = content(2);
    expected[3 * BLOCK + 17] = !expected[3 * BLOCK + 17];
    expected[4 * BLOCK + 17] = !expected[4 * BLOCK + 17];
    let (begin, end) = (3 * BLOCK_SIZE, 5 * BLOCK_SIZE);
    for _ in 0..2 {
        let salvaged = opened.fs.salvage(file, 0, u64::MAX).unwrap();
        assert!(salvaged.bytes == expected);
        assert_eq!(only(&salvaged.unverified), Some(begin..end));
        assert!(salvaged.unreadable.is_empty());
        // Nobody else gets these bytes.
        assert!(matches!(read_bytes(&opened.fs, file, begin, BLOCK), Err(Error::Integrity { .. })));
        assert!(read_bytes(&opened.fs, file, 0, 3 * BLOCK).unwrap() == content(2)[..3 * BLOCK]);
    }
    let part = opened.fs.salvage(file, begin + 10, 20).unwrap();
    assert!(part.bytes == expected[3 * BLOCK + 10..3 * BLOCK + 30]);
    assert_eq!(only(&part.unverified), Some(begin + 10..begin + 30));
    assert!(opened.fs.salvage(file, u64::MAX, 5).unwrap().bytes.is_empty());
    // What cannot be read at all is zeros.
    let fault = Fault { port: Some("device".to_owned()), operation: Some(Operation::Read), nth: 1, for_good: true };
    opened.power.fail(fault);
    let salvaged = opened.fs.salvage(file, begin, 2 * BLOCK_SIZE).unwrap();
    assert!(salvaged.bytes == vec![0; 2 * BLOCK] && only(&salvaged.unreadable) == Some(begin..end));
}
