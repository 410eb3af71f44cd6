//! Two copies of data: a bad one is never noticed by who reads, is written anew from the other one, and counted for its device.

use crate::memory_store::{MemoryStore, Shape};
use crate::operations::pattern;
use crate::simulated_disk::{Fault, Images, Operation, SimulatedPower, Survivors};
use crate::tree::read_bytes;
use serde_json::Value;
use std::sync::Arc;
use sumfs::error::Error;
use sumfs::fs::{Caller, Filesystem, Options, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::{BLOCK, BLOCK_SIZE, InodeNumber};

const ROOT: InodeNumber = InodeNumber::ROOT;
const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const STORE_BYTES: u64 = 48 << 20;
const FILE_BYTES: usize = 90 * BLOCK + 99;
const SHAPES: [Shape; 2] = [Shape::DUP_ONE, Shape::DUP_TWO];

fn content() -> Vec<u8> {
    pattern(321, FILE_BYTES)
}

/// A closed store with one file.
fn one_file(shape: Shape) -> Images {
    let power = SimulatedPower::new(1);
    let store = MemoryStore::shaped_on(&power, STORE_BYTES, shape);
    let fs = store.open();
    let file = fs.mknod(&CALLER, ROOT, b"file", 0o100_644, 0, 0).unwrap().inode;
    fs.write(&CALLER, file, 0, &content(), WriteFlags::default(), Wait::Allowed).unwrap();
    store.close(&fs);
    power.cut_with(1, Survivors::Everything, false)
}

/// Ports and offsets of the copies of a block of the file.
fn places_of(images: &Images, shape: Shape, block: usize) -> Vec<(&'static str, u64)> {
    let content = content();
    let wanted = &content[block * BLOCK..content.len().min((block + 1) * BLOCK)];
    let mut places = Vec::new();
    for port in shape.ports() {
        let image = &images[*port];
        let matches = |index: &u64| image.block(*index).is_some_and(|found| found.starts_with(wanted));
        places.extend(image.block_indexes().filter(matches).map(|index| (*port, index * BLOCK_SIZE)));
    }
    places.sort_unstable();
    places
}

fn opened(images: &Images) -> (SimulatedPower, MemoryStore, Arc<Filesystem>, InodeNumber) {
    let power = SimulatedPower::reopen(1, images);
    let store = MemoryStore::found_on(&power);
    let fs = store.open();
    let file = fs.lookup(ROOT, b"file").unwrap().inode;
    (power, store, fs, file)
}

/// A counter over all devices.
fn count(fs: &Filesystem, name: &str) -> u64 {
    let status = fs.status();
    status["devices"].as_array().unwrap().iter().map(|device| device[name].as_u64().unwrap()).sum()
}

fn block_at(power: &SimulatedPower, (port, offset): (&str, u64)) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    power.port(port, 0).read_at(offset, &mut bytes).unwrap();
    bytes
}

#[test]
fn every_block_has_two_copies_on_two_devices_or_far_apart() {
    for shape in SHAPES {
        let images = one_file(shape);
        for block in [0, 1, 45, 90] {
            let places = places_of(&images, shape, block);
            let [one, two] = places.as_slice() else { panic!("{shape:?}: {places:?}") };
            let is_apart = if shape.devices == 2 { one.0 != two.0 } else { two.1 - one.1 >= STORE_BYTES / 2 };
            assert!(is_apart, "{shape:?}: {places:?}");
        }
    }
}

#[test]
fn a_bad_copy_is_not_noticed_and_is_repaired() {
    for shape in SHAPES {
        let images = one_file(shape);
        for block in [0, 44, 90] {
            let places = places_of(&images, shape, block);
            for bad in &places {
                let (power, store, fs, file) = opened(&images);
                power.flip_byte(bad.0, bad.1 + 5);
                assert!(read_bytes(&fs, file, 0, FILE_BYTES).unwrap() == content(), "{shape:?} {bad:?}");
                // The second copy is read by a scrub only.
                let is_first = count(&fs, "checksum_errors") == 1;
                assert_eq!(is_first, count(&fs, "repaired_blocks") == 1);
                if is_first {
                    assert_eq!(block_at(&power, places[0]), block_at(&power, places[1]), "{shape:?} {bad:?}");
                    store.close(&fs);
                }
            }
        }
    }
}

#[test]
fn exactly_one_of_the_copies_is_read() {
    for shape in SHAPES {
        let images = one_file(shape);
        let places = places_of(&images, shape, 3);
        let repaired = places.iter().map(|bad| {
            let (power, _, fs, file) = opened(&images);
            power.flip_byte(bad.0, bad.1 + 5);
            read_bytes(&fs, file, 0, FILE_BYTES).unwrap();
            count(&fs, "repaired_blocks")
        });
        assert_eq!(repaired.sum::<u64>(), 1);
    }
}

#[test]
fn without_a_good_copy_it_is_an_error_and_nothing_is_written() {
    for shape in SHAPES {
        let images = one_file(shape);
        let places = places_of(&images, shape, 7);
        let (power, _, fs, file) = opened(&images);
        places.iter().for_each(|(port, offset)| power.flip_byte(port, offset + 9));
        let before: Vec<_> = places.iter().map(|place| block_at(&power, *place)).collect();
        let read = read_bytes(&fs, file, 7 * BLOCK_SIZE, BLOCK);
        assert!(matches!(read, Err(Error::Integrity { offset, .. }) if offset == 7 * BLOCK_SIZE), "{read:?}");
        assert_eq!((count(&fs, "checksum_errors"), count(&fs, "repaired_blocks")), (2, 0));
        assert_eq!(before, places.iter().map(|place| block_at(&power, *place)).collect::<Vec<_>>());
        assert!(read_bytes(&fs, file, 0, 7 * BLOCK).unwrap() == content()[..7 * BLOCK]);
        // A whole block written over it cures it.
        fs.write(&CALLER, file, 7 * BLOCK_SIZE, &content()[7 * BLOCK..8 * BLOCK], WriteFlags::default(), Wait::Allowed).unwrap();
        fs.sync().unwrap();
        assert!(read_bytes(&fs, file, 0, FILE_BYTES).unwrap() == content());
    }
}

#[test]
fn a_device_that_cannot_be_read_is_not_noticed() {
    let images = one_file(Shape::DUP_TWO);
    for port in Shape::DUP_TWO.ports() {
        let (power, _, fs, file) = opened(&images);
        let operation = Some(Operation::Read);
        power.fail(Fault { port: Some((*port).to_owned()), operation, nth: 1, for_good: true });
        assert!(read_bytes(&fs, file, 0, FILE_BYTES).unwrap() == content(), "without {port}");
    }
}

#[test]
fn a_store_that_is_only_read_is_not_repaired() {
    let images = one_file(Shape::DUP_TWO);
    let places = places_of(&images, Shape::DUP_TWO, 3);
    for (port, offset) in &places {
        let power = SimulatedPower::reopen(1, &images);
        power.flip_byte(port, offset + 5);
        let store = MemoryStore::found_on(&power);
        let fs = store.open_with(Options { read_only: true, background: false, ..Options::default() });
        let file = fs.lookup(ROOT, b"file").unwrap().inode;
        let before = store.fingerprint();
        assert!(read_bytes(&fs, file, 0, FILE_BYTES).unwrap() == content());
        assert_eq!(store.fingerprint(), before);
    }
}

#[test]
fn two_copies_take_twice_the_space() {
    let size = |shape| MemoryStore::shaped(STORE_BYTES, shape).open().statfs().blocks;
    let (single, two_devices) = (size(Shape::SINGLE), size(Shape::DUP_TWO));
    assert_eq!(single, two_devices, "two devices hold as much as one did");
    assert!(size(Shape::DUP_ONE).abs_diff(single) <= single / 10, "and so does one of twice the size");
    let status = |shape| -> Value { MemoryStore::shaped(STORE_BYTES, shape).open().status() };
    assert_eq!(status(Shape::DUP_TWO)["devices"].as_array().unwrap().len(), 2);
}
