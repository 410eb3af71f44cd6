//! Several devices: stripes, mirrors, parity. Nothing is read in order to write; one device may fail at any moment, and any block of any
//! device may be bad, and nobody who reads notices; a scrub makes all whole again.

use crate::memory_store::{MemoryStore, Shape};
use crate::operations::pattern;
use crate::simulated_disk::{Fault, Images, Operation, Random, SimulatedPower, Survivors, seed_from_environment};
use crate::tree::read_bytes;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use sumfs::cache::PlugOptions;
use sumfs::error::Error;
use sumfs::fs::{Caller, Filesystem, Options, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::{BLOCK, BLOCK_SIZE, InodeNumber};

const ROOT: InodeNumber = InodeNumber::ROOT;
const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const STORE_BYTES: u64 = 48 << 20;
const REDUNDANT: [Shape; 3] = [Shape::RAID1, Shape::RAID5, Shape::RAID5_OF_THREE];
/// Data bytes of a full stripe of `Shape::RAID5`: three units of 32 KiB.
const STRIPE_BYTES: usize = 96 << 10;
const DIRECT: WriteFlags = WriteFlags { direct: true, sync: false, from_cache: false, kill_suid: false };

struct Opened {
    power: SimulatedPower,
    store: MemoryStore,
    fs: Arc<Filesystem>,
}

impl Opened {
    fn empty(shape: Shape) -> Opened {
        let power = SimulatedPower::new(1);
        let store = MemoryStore::shaped_on(&power, STORE_BYTES, shape);
        let fs = store.open();
        Opened { power, store, fs }
    }

    fn of(images: &Images) -> Opened {
        let power = SimulatedPower::reopen(1, images);
        let store = MemoryStore::found_on(&power);
        let fs = store.open();
        Opened { power, store, fs }
    }

    fn create(&self, name: &str) -> InodeNumber {
        self.fs.mknod(&CALLER, ROOT, name.as_bytes(), 0o100_644, 0, 0).unwrap().inode
    }

    fn write(&self, file: InodeNumber, offset: usize, bytes: &[u8], flags: WriteFlags) -> Result<usize, Error> {
        self.fs.write(&CALLER, file, offset as u64, bytes, flags, Wait::Allowed)
    }

    fn file(&self, name: &str) -> InodeNumber {
        self.fs.lookup(ROOT, name.as_bytes()).unwrap().inode
    }

    fn stripes(&self, name: &str) -> u64 {
        self.fs.status()["stripes"][name].as_u64().unwrap()
    }

    fn reads(&self, shape: Shape) -> u64 {
        shape.ports().iter().map(|port| self.power.counts(port).reads).sum()
    }

    fn scrub(&self) -> Value {
        self.fs.scrub_start(0).unwrap();
        while self.fs.scrub_step().unwrap() {}
        self.fs.scrub_status(true).unwrap()
    }

    fn closed(self) -> Images {
        self.store.close(&self.fs);
        self.power.cut_with(1, Survivors::Everything, false)
    }
}

fn content(number: u64) -> Vec<u8> {
    pattern(number, 10 * STRIPE_BYTES + 5 * BLOCK + 77)
}

const FILES: u64 = 6;

/// A store with files written whole, and some written over here and there, so that stripes are full, narrow and partly dead.
fn some_files(shape: Shape) -> (Images, Vec<Vec<u8>>) {
    let opened = Opened::empty(shape);
    let mut random = Random::new(7);
    let mut contents = Vec::new();
    for number in 0..FILES {
        let (file, mut bytes) = (opened.create(&number.to_string()), content(number));
        opened.write(file, 0, &bytes, WriteFlags::default()).unwrap();
        opened.fs.sync().unwrap();
        for _ in 0..number * 4 {
            let at = random.below(bytes.len() as u64 - 20_000) as usize;
            let new = pattern(random.below(1000), 1 + random.below(20_000) as usize);
            bytes[at..at + new.len()].copy_from_slice(&new);
            opened.write(file, at, &new, WriteFlags::default()).unwrap();
            opened.fs.sync().unwrap();
        }
        contents.push(bytes);
    }
    (opened.closed(), contents)
}

fn assert_whole(opened: &Opened, contents: &[Vec<u8>], when: &str) {
    for (number, content) in contents.iter().enumerate() {
        let file = opened.file(&number.to_string());
        let read = read_bytes(&opened.fs, file, 0, content.len());
        assert!(read.as_ref().is_ok_and(|read| read == content), "{when}: file {number} reads otherwise: {:?}", read.err());
    }
}

#[test]
fn what_is_written_together_fills_stripes_and_nothing_is_read_for_it() {
    let opened = Opened::empty(Shape::RAID5);
    let file = opened.create("file");
    // A mount reads the labels.
    let reads = opened.reads(Shape::RAID5);
    let bytes = pattern(3, 40 * STRIPE_BYTES);
    opened.write(file, 0, &bytes, WriteFlags::default()).unwrap();
    opened.fs.sync().unwrap();
    assert_eq!((opened.stripes("full"), opened.stripes("narrow")), (40, 0));
    // Blocks here and there, with and without the cache, and the same once more: all narrow, all without a read.
    for flags in [WriteFlags::default(), DIRECT, DIRECT] {
        for at in [0, 5, 6, 7, 100, 333] {
            opened.write(file, at * BLOCK, &bytes[..BLOCK], flags).unwrap();
        }
        opened.fs.sync().unwrap();
    }
    assert_eq!(opened.stripes("full"), 40);
    assert!(opened.stripes("narrow") >= 3 && opened.stripes("padded_bytes") > 0, "{}", opened.fs.status());
    assert_eq!((opened.reads(Shape::RAID5), opened.stripes("read_to_write_bytes")), (reads, 0));
    opened.closed();
}

#[test]
fn a_direct_write_in_two_requests_fills_one_stripe_after_the_other() {
    for (is_gathered, hold) in [(true, Duration::from_secs(600)), (false, Duration::ZERO)] {
        let power = SimulatedPower::new(1);
        let store = MemoryStore::shaped_on(&power, STORE_BYTES, Shape::RAID5);
        let plug = PlugOptions { hold, ..PlugOptions::default() };
        let fs = store.open_with(Options { background: false, plug, ..Options::default() });
        let opened = Opened { power, store, fs };
        let file = opened.create("file");
        // As the kernel cuts it: one MiB, which ends inside a stripe, and the rest of that stripe.
        let bytes = pattern(3, 11 * STRIPE_BYTES);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| opened.write(file, 0, &bytes[..1 << 20], DIRECT));
            if !is_gathered {
                first.join().unwrap().unwrap();
                opened.write(file, 1 << 20, &bytes[1 << 20..], DIRECT).unwrap();
            } else {
                while opened.fs.status()["plug"]["held_bytes"] != 1 << 20 {
                    std::thread::yield_now();
                }
                opened.write(file, 1 << 20, &bytes[1 << 20..], DIRECT).unwrap();
                first.join().unwrap().unwrap();
            }
        });
        let narrow = opened.stripes("narrow");
        assert_eq!(opened.stripes("full") == 11 && narrow == 0, is_gathered, "{}", opened.fs.status());
        assert!(read_bytes(&opened.fs, file, 0, bytes.len()).unwrap() == bytes);
        opened.closed();
    }
}

#[test]
fn a_sync_does_not_wait_for_the_plug() {
    let power = SimulatedPower::new(1);
    let store = MemoryStore::shaped_on(&power, STORE_BYTES, Shape::RAID5);
    let plug = PlugOptions { hold: Duration::from_secs(600), ..PlugOptions::default() };
    let fs = store.open_with(Options { background: false, plug, ..Options::default() });
    let opened = Opened { power, store, fs };
    let (file, other) = (opened.create("file"), opened.create("other"));
    let bytes = pattern(3, 1 << 20);
    std::thread::scope(|scope| {
        let held = scope.spawn(|| opened.write(file, 0, &bytes, DIRECT));
        while !held.is_finished() {
            opened.write(other, 0, b"data", WriteFlags::default()).unwrap();
            opened.fs.sync().unwrap();
        }
        held.join().unwrap().unwrap();
    });
    assert_eq!(opened.fs.status()["plug"]["sync"], 1);
}

#[test]
fn any_device_can_be_lost_to_reads() {
    for shape in REDUNDANT {
        let (images, contents) = some_files(shape);
        for port in shape.ports() {
            let opened = Opened::of(&images);
            opened.power.fail(Fault { port: Some((*port).to_owned()), operation: Some(Operation::Read), nth: 1, for_good: true });
            assert_whole(&opened, &contents, &format!("{shape:?} without {port}"));
        }
    }
}

#[test]
fn without_a_second_device_it_is_an_error_and_never_other_bytes() {
    for shape in REDUNDANT {
        let (images, contents) = some_files(shape);
        let opened = Opened::of(&images);
        for port in &shape.ports()[..2] {
            opened.power.fail(Fault { port: Some((*port).to_owned()), operation: Some(Operation::Read), nth: 1, for_good: true });
        }
        let mut failed = 0;
        for (number, content) in contents.iter().enumerate() {
            let file = opened.file(&number.to_string());
            for at in (0..content.len()).step_by(BLOCK) {
                let len = BLOCK.min(content.len() - at);
                match read_bytes(&opened.fs, file, at as u64, len) {
                    Ok(read) => assert!(read == content[at..at + len], "{shape:?}: file {number} at {at}"),
                    Err(_) => failed += 1,
                }
            }
        }
        assert!(failed > 0, "{shape:?}");
    }
}

#[test]
fn writes_go_on_without_a_device_and_a_scrub_mends_it() {
    for shape in REDUNDANT {
        let (images, mut contents) = some_files(shape);
        for (number, port) in shape.ports().iter().enumerate() {
            let opened = Opened::of(&images);
            opened.power.fail(Fault {
                port: Some((*port).to_owned()),
                operation: Some(Operation::Write),
                nth: 1,
                for_good: true,
            });
            for at in 0..40 {
                let new = pattern(at, 9000);
                contents[0][at as usize * 9000..][..9000].copy_from_slice(&new);
                opened.write(opened.file("0"), at as usize * 9000, &new, WriteFlags::default()).unwrap();
                opened.fs.sync().unwrap();
            }
            assert_whole(&opened, &contents, &format!("{shape:?} without writes to {port}"));
            assert_eq!(opened.fs.status()["devices"][number]["is_set_aside"], true, "{shape:?} {port}");
            // The same device back, with what it missed.
            let images = opened.power.cut_with(1, Survivors::Everything, false);
            let opened = Opened::of(&images);
            let status = opened.scrub();
            assert!(status["bad_blocks"].as_u64().unwrap() > 0, "{shape:?} {port}: {status}");
            assert_eq!(status["bad_blocks"], status["repaired_blocks"], "{shape:?} {port}: {status}");
            assert_whole(&opened, &contents, &format!("{shape:?} after {port} was mended"));
            opened.closed();
        }
    }
}

#[test]
fn a_flush_that_fails_sets_the_device_aside_and_the_sync_holds() {
    for shape in REDUNDANT {
        for port in shape.ports() {
            let opened = Opened::empty(shape);
            let file = opened.create("file");
            let bytes = pattern(5, 3 * STRIPE_BYTES);
            opened.write(file, 0, &bytes, WriteFlags::default()).unwrap();
            opened.power.fail(Fault {
                port: Some((*port).to_owned()),
                operation: Some(Operation::Flush),
                nth: 1,
                for_good: true,
            });
            opened.fs.sync().unwrap();
            // Nothing of what that device has not flushed is needed.
            let images = opened.power.cut_with(1, Survivors::Flushed, false);
            let opened = Opened::of(&images);
            assert!(read_bytes(&opened.fs, opened.file("file"), 0, bytes.len()).unwrap() == bytes, "{shape:?} {port}");
        }
    }
}

/// Every block of a device that is not its label, once each, in a random order of a few at a time.
#[test]
fn any_bad_block_of_any_device_is_found_and_mended() {
    let mut random = Random::new(seed_from_environment(5));
    for shape in REDUNDANT {
        let (images, contents) = some_files(shape);
        for port in shape.ports() {
            let image = &images[*port];
            let used: Vec<u64> = image.block_indexes().filter(|index| (256..images_end(image)).contains(index)).collect();
            for _ in 0..3 {
                let opened = Opened::of(&images);
                let damaged: Vec<u64> = (0..40).map(|_| used[random.below(used.len() as u64) as usize]).collect();
                for index in &damaged {
                    opened.power.flip_byte(port, index * BLOCK_SIZE + random.below(BLOCK_SIZE));
                }
                assert_whole(&opened, &contents, &format!("{shape:?} with bad blocks {damaged:?} of {port}"));
                let status = opened.scrub();
                assert_eq!(status["bad_blocks"], status["repaired_blocks"], "{shape:?} {port}: {status}");
                // All of it is good now: the other devices can go.
                opened.closed();
            }
        }
    }
}

fn images_end(image: &sumfs::disk::memory::MemoryImage) -> u64 {
    image.block_indexes().max().unwrap_or(0).saturating_sub(1)
}

#[test]
fn filling_and_deleting_leaks_no_rows() {
    let opened = Opened::empty(Shape::RAID5);
    let free = || opened.fs.statfs().free;
    opened.fs.sync().unwrap();
    let before = free();
    let bytes = pattern(9, 1 << 20);
    for round in 0..8 {
        let file = opened.create("file");
        let mut offset = 0;
        while opened.write(file, offset, &bytes[..(1 << 20) - round * 5000], WriteFlags::default()).is_ok() {
            offset += 1 << 20;
        }
        assert!(
            offset as u64 > before * BLOCK_SIZE * 9 / 10,
            "round {round}: full after {offset} bytes of {}",
            before * BLOCK_SIZE
        );
        opened.fs.sync().unwrap();
        opened.fs.unlink(ROOT, b"file").unwrap();
        opened.fs.forget(file, u64::MAX);
        opened.fs.sync().unwrap();
        opened.fs.sync().unwrap();
        assert_eq!(free(), before, "round {round}");
    }
    opened.closed();
}
