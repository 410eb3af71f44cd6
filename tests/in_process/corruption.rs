//! Damaged bytes. A data block that does not match its checksum costs that block and nothing else; index pages, journal records,
//! superblocks and labels have a second copy, so that nobody notices. And whatever is damaged: an error, never wrong data, never
//! a panic.
//!
//! `CORRUPTION=all` damages every block in use instead of a sample; `SEED=n` draws another sample.

use crate::execution::Runner;
use crate::memory_store::{MemoryStore, PORTS};
use crate::operations::{Mix, Operation, draw, pattern};
use crate::reference_model::{Model, Node};
use crate::simulated_disk::{
    Fault, Images, Operation as DiskOperation, Random, SimulatedPower, Survivors, seed_from_environment,
};
use crate::tree::{Walk, read_bytes};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use sumfs::disk::label;
use sumfs::error::Error;
use sumfs::fs::{Caller, FallocateMode, Filesystem, Options, ReadFlags, RenameMode, SetAttributes, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::{BLOCK, BLOCK_SIZE, InodeNumber};
use sumfs::verify::check::{CheckOptions, Report, check};
use sumfs::verify::issue::Severity;

const ROOT: InodeNumber = InodeNumber::ROOT;
const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const STORE_BYTES: u64 = 48 << 20;
/// Blocks damaged per port, unless all are.
const SAMPLE: usize = 120;

fn open(store: &MemoryStore) -> Result<Arc<Filesystem>, Error> {
    Filesystem::open(store.disks.clone(), Options { background: false, ..Options::default() })
}

fn reopened(images: &Images) -> (SimulatedPower, MemoryStore) {
    let power = SimulatedPower::reopen(1, images);
    let store = MemoryStore::found_on(&power);
    (power, store)
}

fn report(store: &MemoryStore) -> Report {
    check(&store.disks, &CheckOptions { verify_data: true }, &mut |_, _| {}).expect("check")
}

const DAMAGED_BYTES: usize = 100 * BLOCK + 777;
const DAMAGED_SEED: u64 = 77;

/// A store with the files `damaged` and `other`, closed.
fn two_files() -> Images {
    let power = SimulatedPower::new(1);
    let store = MemoryStore::on(&power, STORE_BYTES);
    let fs = open(&store).unwrap();
    for (name, seed) in [("damaged", DAMAGED_SEED), ("other", 78)] {
        let file = fs.mknod(&CALLER, ROOT, name.as_bytes(), 0o100_644, 0, 0).unwrap().inode;
        fs.write(&CALLER, file, 0, &pattern(seed, DAMAGED_BYTES), WriteFlags::default(), Wait::Allowed).unwrap();
    }
    store.close(&fs);
    power.cut_with(1, Survivors::Everything, false)
}

/// The store of `two_files` with one byte of block `block` of `damaged` inverted, mounted.
struct Damaged {
    store: MemoryStore,
    fs: Arc<Filesystem>,
    file: InodeNumber,
    data: Vec<u8>,
    block: usize,
    device_offset: u64,
}

impl Damaged {
    fn new(images: &Images, block: usize) -> Damaged {
        let data = pattern(DAMAGED_SEED, DAMAGED_BYTES);
        let wanted = &data[block * BLOCK..data.len().min((block + 1) * BLOCK)];
        let device = &images["device"];
        let places: Vec<u64> =
            device.block_indexes().filter(|index| device.block(*index).is_some_and(|found| found.starts_with(wanted))).collect();
        assert_eq!(places.len(), 1, "block {block} lies on the device once");
        let (power, store) = reopened(images);
        power.flip_byte("device", places[0] * BLOCK_SIZE + (block as u64 * 31) % wanted.len() as u64);
        let fs = open(&store).unwrap();
        let file = fs.lookup(ROOT, b"damaged").unwrap().inode;
        Damaged { store, fs, file, data, block, device_offset: places[0] * BLOCK_SIZE }
    }

    fn offset(&self) -> u64 {
        (self.block * BLOCK) as u64
    }

    fn assert_integrity_error<T>(&self, result: Result<T, Error>, what: &str) {
        match result {
            Err(Error::Integrity { inode, offset, device, device_offset, expected, found, .. }) => {
                let place = (inode, offset, device, device_offset);
                assert_eq!(place, (self.file, self.offset(), 0, self.device_offset), "{what}");
                assert_ne!(expected, found, "{what}");
            }
            Err(error) => panic!("{what}: {error:?} instead of a checksum error"),
            Ok(_) => panic!("{what}: no error"),
        }
    }

    /// Everything but the damaged block reads as it was written.
    fn assert_rest_is_whole(&self) {
        for (number, wanted) in self.data.chunks(BLOCK).enumerate().filter(|(number, _)| *number != self.block) {
            let found = read_bytes(&self.fs, self.file, (number * BLOCK) as u64, BLOCK).unwrap();
            assert!(found == wanted, "block {number}, with block {} damaged", self.block);
        }
        let other = self.fs.lookup(ROOT, b"other").unwrap().inode;
        assert!(read_bytes(&self.fs, other, 0, DAMAGED_BYTES).unwrap() == pattern(78, DAMAGED_BYTES));
    }
}

/// The first, the last (partly used), and some between.
fn blocks_to_damage() -> Vec<usize> {
    vec![0, 1, 33, 63, 64, 99, 100]
}

#[test]
fn a_damaged_block_is_an_error_for_exactly_its_reads() {
    let images = two_files();
    for block in blocks_to_damage() {
        let damaged = Damaged::new(&images, block);
        for direct in [false, true, false] {
            let flags = ReadFlags { direct, no_atime: false };
            let read = |offset, len| {
                damaged.fs.read(damaged.file, offset, len, flags, Wait::Allowed).map(|data| data.as_slice().to_vec())
            };
            damaged.assert_integrity_error(read(damaged.offset(), BLOCK), "the block");
            damaged.assert_integrity_error(read(damaged.offset() + 5, 1), "one byte of it");
            // A long read stops there: an error, or what comes before.
            match read(0, DAMAGED_BYTES) {
                Ok(data) => {
                    assert!(block > 0 && data.len() as u64 == damaged.offset(), "{} bytes, block {block}", data.len());
                    assert!(data == damaged.data[..data.len()]);
                }
                result => damaged.assert_integrity_error(result, "a long read"),
            }
        }
        damaged.assert_rest_is_whole();
        assert_eq!(damaged.fs.read_only_reason(), None);
        let report = report(&damaged.store);
        assert_eq!((report.issues.len(), report.issues_not_listed), (1, 0), "{:?}", report.issues);
        assert_eq!(report.issues[0].severity(), Severity::Damage);
        // Closing works, and the damage is neither hidden nor spread.
        damaged.fs.shutdown().unwrap();
        let again = self::report(&damaged.store);
        assert_eq!(again.issues, report.issues);
    }
}

#[test]
fn a_damaged_block_can_be_replaced_or_removed() {
    type Act = fn(&Damaged) -> Result<(), Error>;
    let acts: [(&str, Act); 7] = [
        ("overwritten", |damaged| overwrite(damaged, false)),
        ("overwritten directly", |damaged| overwrite(damaged, true)),
        ("punched", |damaged| {
            damaged.fs.fallocate(&CALLER, damaged.file, damaged.offset(), BLOCK_SIZE, FallocateMode::PunchHole)
        }),
        ("cut off", |damaged| {
            let change = SetAttributes { size: Some(damaged.offset()), ..SetAttributes::default() };
            damaged.fs.setattr(&CALLER, damaged.file, &change).map(|_| ())
        }),
        ("emptied", |damaged| {
            let change = SetAttributes { size: Some(0), ..SetAttributes::default() };
            damaged.fs.setattr(&CALLER, damaged.file, &change).map(|_| ())
        }),
        ("unlinked", |damaged| {
            damaged.fs.unlink(ROOT, b"damaged")?;
            damaged.fs.forget(damaged.file, 1);
            Ok(())
        }),
        ("renamed over", |damaged| {
            damaged.fs.rename(ROOT, b"other", ROOT, b"damaged", RenameMode::Replace)?;
            damaged.fs.forget(damaged.file, 1);
            Ok(())
        }),
    ];
    let images = two_files();
    for block in blocks_to_damage() {
        for (name, act) in acts {
            let damaged = Damaged::new(&images, block);
            // Half of the cases find the block as damaged first.
            if block % 2 == 0 {
                damaged.assert_integrity_error(read_bytes(&damaged.fs, damaged.file, damaged.offset(), 10), name);
            }
            act(&damaged).unwrap_or_else(|error| panic!("block {block} {name}: {error}"));
            if name.starts_with("overwritten") {
                let found = read_bytes(&damaged.fs, damaged.file, damaged.offset(), BLOCK).unwrap();
                assert!(found.iter().all(|byte| *byte == b'n') && !found.is_empty(), "block {block} {name}");
            }
            if ["overwritten", "overwritten directly", "punched"].contains(&name) {
                damaged.assert_rest_is_whole();
            }
            damaged.fs.shutdown().unwrap_or_else(|error| panic!("block {block} {name}: {error}"));
            assert_eq!(report(&damaged.store).issues, [], "block {block} {name}");
        }
    }
}

fn overwrite(damaged: &Damaged, direct: bool) -> Result<(), Error> {
    let flags = WriteFlags { direct, ..WriteFlags::default() };
    damaged.fs.write(&CALLER, damaged.file, damaged.offset(), &[b'n'; BLOCK], flags, Wait::Allowed).map(|_| ())
}

#[test]
fn a_failed_writeback_does_not_take_the_space_of_others() {
    let power = SimulatedPower::new(1);
    let store = MemoryStore::on(&power, STORE_BYTES);
    let fs = open(&store).unwrap();
    let file = |name: &[u8]| {
        let inode = fs.mknod(&CALLER, ROOT, name, 0o100_644, 0, 0).unwrap().inode;
        fs.write(&CALLER, inode, 0, &pattern(5, 40 * BLOCK), WriteFlags::default(), Wait::Allowed).unwrap();
        inode
    };
    let (failing, other) = (file(b"failing"), file(b"other"));
    let port = Some("device".to_owned());
    power.fail(Fault { port, operation: Some(DiskOperation::Write), nth: 1, for_good: true });
    let reserved = || fs.status()["space"]["reserved_blocks"].as_u64().unwrap();
    fs.fsync(failing, false, Box::new(|result| assert!(result.is_err())));
    assert!(fs.read_only_reason().is_some());
    let (before, free) = (reserved(), fs.status()["space"]["free_blocks"].clone());
    assert_eq!(before, 80, "both files keep what they were promised");
    for inode in [failing, other, failing] {
        fs.fsync(inode, false, Box::new(|result| assert!(result.is_err())));
    }
    assert_eq!((reserved(), &fs.status()["space"]["free_blocks"]), (before, &free));
    assert!(read_bytes(&fs, failing, 0, 40 * BLOCK).unwrap() == pattern(5, 40 * BLOCK), "what was written can still be read");
}

#[test]
fn a_part_of_a_damaged_block_cannot_be_written() {
    let images = two_files();
    let damaged = Damaged::new(&images, 33);
    let result = damaged.fs.write(&CALLER, damaged.file, damaged.offset() + 100, b"part", WriteFlags::default(), Wait::Allowed);
    damaged.assert_integrity_error(result, "a write of a part");
    damaged.assert_integrity_error(read_bytes(&damaged.fs, damaged.file, damaged.offset(), BLOCK), "the block afterwards");
    damaged.assert_rest_is_whole();
    damaged.fs.shutdown().unwrap();
    assert_eq!(report(&damaged.store).issues.len(), 1);
}

/// A store with a bit of everything: closed, or as a power cut leaves it with records in the journal.
fn varied_store(is_closed: bool, seed: u64) -> (Images, Model) {
    let mix =
        Mix { names: 50, data: 25, attributes: 20, durability: 3, memory: 2, write_bytes_max: 30_000, has_far_offsets: true };
    let power = SimulatedPower::new(seed);
    let store = MemoryStore::on(&power, STORE_BYTES);
    let mut runner = Runner::new(open(&store).unwrap(), Model::new());
    for operation in draw(&mut Random::new(seed), &mix, 500) {
        runner.run(&operation).unwrap();
    }
    if is_closed {
        store.close(&runner.fs);
    } else {
        runner.run(&Operation::Sync).unwrap();
    }
    (power.cut_with(seed, Survivors::Flushed, false), runner.model.without_nameless())
}

fn read_tree(fs: &Filesystem, model: &Model) -> Result<Model, String> {
    let interesting = |id| model.node(id).and_then(Node::file).map(|bytes| bytes.block_indexes().collect()).unwrap_or_default();
    Walk { fs, root: model.root(), nameless: &[], interesting: &interesting, direct: false }.read()
}

/// Damages one byte of each of the places in turn; everything must read right, and be whole again after a mount. How many
/// were noticed by the check before the mount, and how many index pages the mounts healed.
fn assert_healed(images: &Images, model: &Model, port: &str, places: &[u64]) -> (u64, u64) {
    let (mut noticed, mut healed_pages) = (0, 0);
    for place in places {
        let at = format!("byte {place} of {port}");
        let (power, store) = reopened(images);
        power.flip_byte(port, *place);
        let before = report(&store);
        let worst = before.issues.iter().map(|issue| issue.severity()).max().unwrap_or(Severity::Harmless);
        assert_eq!(worst, Severity::Harmless, "{at}: {:?}", before.issues);
        noticed += u64::from(before.healed > 0 || !before.issues.is_empty());
        // As opening a store's directory does.
        label::read(&*store.disks.devices[0], true).unwrap_or_else(|error| panic!("{at}: {error}"));
        let fs = open(&store).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!(fs.read_only_reason(), None, "{at}");
        let found = read_tree(&fs, model).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!(model.differences(&found, true), Vec::<String>::new(), "{at}");
        fs.shutdown().unwrap_or_else(|error| panic!("{at}: {error}"));
        healed_pages += fs.status()["metadata"]["index_healed_pages"].as_u64().expect("a counter of healed pages");
        let after = report(&store);
        assert_eq!(after.issues, [], "{at}: after a mount");
    }
    (noticed, healed_pages)
}

/// A byte in each block of the port that is not all zeros, or in a sample of them.
fn places_in_use(images: &Images, port: &str, random: &mut Random) -> Vec<u64> {
    let image = &images[port];
    let mut blocks: Vec<u64> = image
        .block_indexes()
        .filter(|index| image.block(*index).is_some_and(|block| block.iter().any(|byte| *byte != 0)))
        .collect();
    blocks.sort_unstable();
    if std::env::var("CORRUPTION").as_deref() != Ok("all") {
        while blocks.len() > SAMPLE {
            blocks.swap_remove(random.below(blocks.len() as u64) as usize);
        }
    }
    blocks.into_iter().map(|block| block * BLOCK_SIZE + random.below(BLOCK_SIZE)).collect()
}

#[test]
fn a_damaged_index_page_is_healed_from_its_copy() {
    let seed = seed_from_environment(5);
    let mut random = Random::new(seed);
    for is_closed in [true, false] {
        let (images, model) = varied_store(is_closed, seed);
        let places = places_in_use(&images, "index", &mut random);
        let (noticed, healed_pages) = assert_healed(&images, &model, "index", &places);
        println!("index, closed {is_closed}: {} blocks damaged, {noticed} noticed, {healed_pages} pages healed", places.len());
        assert!(noticed > 0 && healed_pages > 0);
    }
}

#[test]
fn a_damaged_journal_record_is_healed_from_its_copy() {
    let seed = seed_from_environment(6);
    let (images, model) = varied_store(false, seed);
    let places = places_in_use(&images, "journal", &mut Random::new(seed));
    let (noticed, _) = assert_healed(&images, &model, "journal", &places);
    println!("journal: {} blocks damaged, {noticed} noticed", places.len());
    assert!(noticed > 0);
}

#[test]
fn a_damaged_superblock_or_label_is_healed_from_its_copy() {
    for is_closed in [true, false] {
        let (images, model) = varied_store(is_closed, 7);
        let mut random = Random::new(7);
        let superblocks = places_in_use(&images, "superblock", &mut random);
        assert_eq!(superblocks.len(), 2);
        assert_eq!(assert_healed(&images, &model, "superblock", &superblocks).0, 2);
        let device = &images["device"];
        let is_label = |index: &u64| [0, device.len() / BLOCK_SIZE - 1].contains(index);
        let labels: Vec<u64> = device.block_indexes().filter(is_label).map(|index| index * BLOCK_SIZE + 100).collect();
        assert_eq!(labels.len(), 2);
        assert_eq!(assert_healed(&images, &model, "device", &labels).0, 2);
    }
}

/// What reads is right; what is damaged is an error. Anything but that is returned.
fn read_what_can_be_read(store: &MemoryStore, model: &Model) -> Result<(), String> {
    // Check may find anything, or refuse; it must end.
    let _ = check(&store.disks, &CheckOptions { verify_data: true }, &mut |_, _| {});
    let Ok(fs) = open(store) else { return Ok(()) };
    for (directory, name, id) in model.entries() {
        let Ok(found) = fs.lookup(InodeNumber(directory), &name) else { continue };
        if found.inode.0 != id {
            return Err(format!("{} in {directory} is {}, not {id}", name.escape_ascii(), found.inode));
        }
        let Some(bytes) = model.node(id).and_then(Node::file) else { continue };
        for block in bytes.block_indexes() {
            match read_bytes(&fs, found.inode, block * BLOCK_SIZE, BLOCK) {
                Ok(data) if data != bytes.read(block * BLOCK_SIZE, BLOCK) => {
                    return Err(format!("wrong data in block {block} of inode {id}"));
                }
                _ => {}
            }
        }
    }
    // Changes are refused or work; what they say is of no interest here.
    for (directory, name, _) in model.entries().into_iter().take(20) {
        let _ = fs.unlink(InodeNumber(directory), &name);
    }
    let _ = fs.mknod(&CALLER, ROOT, b"new", 0o100_644, 0, 0);
    let _ = fs.shutdown();
    Ok(())
}

/// Rounds of random flips in blocks in use of the ports.
fn damage_at_random(is_closed: bool, ports: &[&str], seed: u64) {
    let (images, model) = varied_store(is_closed, seed);
    let mut random = Random::new(seed);
    let places: Vec<(&str, Vec<u64>)> = ports.iter().map(|port| (*port, places_in_use(&images, port, &mut random))).collect();
    for round in 0..40 {
        let (power, store) = reopened(&images);
        let flips = 1 << random.below(9);
        for _ in 0..flips {
            let (port, places) = &places[random.below(places.len() as u64) as usize];
            let block = places[random.below(places.len() as u64) as usize] / BLOCK_SIZE * BLOCK_SIZE;
            power.flip_byte(port, block + random.below(BLOCK_SIZE));
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| read_what_can_be_read(&store, &model)));
        match outcome {
            Ok(result) => result.unwrap_or_else(|wrong| panic!("SEED={seed}, round {round}, {flips} flips: {wrong}")),
            Err(_) => panic!("SEED={seed}, round {round}, {flips} flips: a panic"),
        }
    }
}

#[test]
fn any_damage_gives_errors_but_never_wrong_data_or_a_panic() {
    let seed = seed_from_environment(8);
    damage_at_random(true, &PORTS, seed);
    // Not the journal: when both copies of its last record are bad, nothing tells that from a record that was never finished.
    damage_at_random(false, &["superblock", "index", "device"], seed);
}
