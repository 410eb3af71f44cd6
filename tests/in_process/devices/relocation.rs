//! Adding, replacing and removing devices of a store in use: with the old device there or not, under writes, over mounts and power cuts.

use super::{CALLER, Opened, REDUNDANT, ROOT, STORE_BYTES};
use crate::memory_store::Shape;
use crate::operations::pattern;
use crate::simulated_disk::{Fault, Operation, Random, SimulatedPower, Survivors, seed_from_environment};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use sumfs::fs::{Options, WriteFlags};
use sumfs::lock::Wait;

const ALL: [Shape; 7] =
    [Shape::SINGLE, Shape::DUP_ONE, Shape::DUP_TWO, Shape::RAID0, Shape::RAID1, Shape::RAID5, Shape::RAID5_OF_THREE];

fn device_bytes(shape: Shape) -> u64 {
    if shape == Shape::DUP_ONE { 2 * STORE_BYTES } else { STORE_BYTES }
}

#[test]
fn any_device_of_any_profile_is_replaced_and_the_new_one_has_everything() {
    for shape in ALL {
        let (images, contents) = Opened::filled(shape).closed();
        for old in 0..shape.devices {
            let what = format!("{shape:?}, device {old}");
            let mut opened = Opened::without(&images, &[], &contents).unwrap();
            let before = opened.device(old);
            let new = opened.fs.device_replace(old as u32, opened.new_device("new", device_bytes(shape))).unwrap();
            assert_eq!(new as usize, shape.devices, "{what}: a new id");
            let mut steps = 0;
            while opened.fs.relocation_step().unwrap() {
                opened.write_file(steps % 8);
                opened.assert_whole(&what);
                steps += 1;
            }
            assert_eq!(opened.fs.relocation_status()["state"], "finished", "{what}");
            assert!(opened.device(old).is_null() && !opened.ids().contains(&(old as u32)), "{what}");
            let after = opened.device(new as usize);
            assert!(after["used_bytes"].as_u64() > Some(0), "{what}: {after}");
            assert!(after["allocated_bytes"].as_u64() >= before["allocated_bytes"].as_u64(), "{what}: {before} {after}");
            let status = opened.scrub();
            assert_eq!(status["bad_blocks"], 0, "{what}: {status}");
            // The old one is gone for good, and nobody misses it.
            let (images, contents) = opened.closed();
            let port = if old == 0 { "device".to_owned() } else { format!("device.{old}") };
            assert!(images[&port].block(0).is_none_or(|label| label.iter().all(|byte| *byte == 0)), "{what}: its label is wiped");
            let opened = Opened::without(&images, &[], &contents).unwrap();
            opened.assert_whole(&what);
            assert_eq!(opened.ids().len(), shape.devices, "{what}");
        }
    }
}

#[test]
fn a_missing_device_is_replaced_by_what_the_others_have() {
    for shape in REDUNDANT {
        let (images, contents) = Opened::filled(shape).closed();
        for old in 0..shape.devices {
            let what = format!("{shape:?} without {old}");
            let mut opened = Opened::without(&images, &[old], &contents).unwrap();
            (3..9).for_each(|number| opened.write_file(number));
            opened.fs.device_replace(old as u32, opened.new_device("new", STORE_BYTES)).unwrap();
            let mut steps = 0;
            while opened.fs.relocation_step().unwrap() {
                opened.write_file(steps % 4);
                steps += 1;
            }
            opened.assert_whole(&what);
            let status = opened.scrub();
            assert_eq!(status["bad_blocks"], 0, "{what}: {status}");
            let (images, contents) = opened.closed();
            // It is whole again: any other one may go.
            for next in (0..=shape.devices).filter(|id| *id != old) {
                Opened::without(&images, &[next], &contents).unwrap().assert_whole(&format!("{what}, then without {next}"));
            }
        }
    }
}

/// The promise: one device fails at any moment, in any way, and nothing is lost; replacing it and a scrub make all whole.
#[test]
fn a_hundred_random_failures_of_one_device_lose_nothing() {
    let mut random = Random::new(seed_from_environment(11));
    let filled: Vec<_> = REDUNDANT.iter().map(|shape| (*shape, Opened::filled(*shape).closed())).collect();
    for round in 0..100 {
        let (shape, (images, contents)) = &filled[round % filled.len()];
        let mut opened = Opened::without(images, &[], contents).unwrap();
        let victim = random.below(shape.devices as u64) as usize;
        let port = shape.ports()[victim].to_owned();
        // Everything, or one kind of operation; at once, or after a while.
        let kinds = [Operation::Read, Operation::Write, Operation::Flush];
        let failing = if random.once_in(2) { &kinds[..] } else { &kinds[random.below(3) as usize..][..1] };
        let what = format!("round {round}: {shape:?}, {failing:?} of {port} fail");
        for operation in failing {
            let nth = 1 + random.below(60);
            opened.power.fail(Fault { port: Some(port.clone()), operation: Some(*operation), nth, for_good: true });
        }
        for _ in 0..6 {
            opened.write_file(random.below(9) as usize);
        }
        opened.assert_whole(&what);
        opened.fs.device_replace(victim as u32, opened.new_device("new", STORE_BYTES)).unwrap();
        while opened.fs.relocation_step().unwrap_or_else(|error| panic!("{what}: {error}")) {
            opened.write_file(random.below(9) as usize);
        }
        opened.assert_whole(&what);
        let status = opened.scrub();
        assert_eq!(status["bad_blocks"], status["repaired_blocks"], "{what}: {status}");
        let (images, contents) = opened.closed();
        let next = *[0, 1, 2, shape.devices].iter().find(|id| **id != victim).unwrap();
        Opened::without(&images, &[next], &contents).unwrap().assert_whole(&format!("{what}, then without {next}"));
    }
}

#[test]
fn a_device_is_removed_if_the_others_have_room_and_refused_if_not() {
    for shape in [Shape::DUP_TWO, Shape::RAID1, Shape::RAID5, Shape::RAID0] {
        let (images, contents) = Opened::filled(shape).closed();
        let opened = Opened::without(&images, &[], &contents).unwrap();
        if shape != Shape::RAID1 {
            // Every group is on all of them.
            let error = opened.fs.device_remove(1).unwrap_err().to_string();
            assert!(error.contains("device 1 holds") && error.contains("add a device first"), "{shape:?}: {error}");
            assert_eq!(opened.fs.relocation_status()["state"], "never", "{shape:?}");
            let added = opened.fs.device_add(opened.new_device("new", STORE_BYTES)).unwrap();
            assert_eq!(added as usize, shape.devices);
        }
        opened.fs.device_remove(1).unwrap();
        opened.relocate();
        assert!(!opened.ids().contains(&1), "{shape:?}");
        opened.assert_whole(&format!("{shape:?} after device 1 was removed"));
        assert_eq!(opened.scrub()["bad_blocks"], 0, "{shape:?}");
        let (images, contents) = opened.closed();
        Opened::without(&images, &[], &contents).unwrap().assert_whole(&format!("{shape:?} after a mount"));
    }
    let opened = Opened::filled(Shape::SINGLE);
    let error = opened.fs.device_remove(0).unwrap_err().to_string();
    assert!(error.contains("the only one"), "{error}");
    let error = opened.fs.device_remove(7).unwrap_err().to_string();
    assert!(error.contains("no device 7"), "{error}");
}

#[test]
fn new_groups_go_to_a_device_that_was_added() {
    for shape in [Shape::SINGLE, Shape::RAID5] {
        let mut opened = Opened::filled(shape);
        let before = opened.fs.statfs().blocks;
        let added = opened.fs.device_add(opened.new_device("new", 2 * STORE_BYTES)).unwrap() as usize;
        if shape == Shape::SINGLE {
            assert!(opened.fs.statfs().blocks > 2 * before, "{shape:?}: it has room for more");
        }
        (5..30).for_each(|number| opened.write_file(number));
        assert!(opened.device(added)["allocated_bytes"].as_u64() > Some(0), "{shape:?}");
        opened.assert_whole(&format!("{shape:?}"));
        let (images, contents) = opened.closed();
        Opened::without(&images, &[], &contents).unwrap().assert_whole(&format!("{shape:?} after a mount"));
    }
}

#[test]
fn a_device_that_is_too_small_is_refused_before_anything_changes() {
    let opened = Opened::filled(Shape::RAID5);
    let error = opened.fs.device_replace(2, opened.new_device("new", 3 << 20)).unwrap_err().to_string();
    assert!(error.contains("device 2 holds") && error.contains("use a larger one"), "{error}");
    assert_eq!((opened.ids(), opened.fs.relocation_status()["state"].as_str()), (vec![0, 1, 2, 3], Some("never")));
    opened.closed();
}

#[test]
fn pausing_cancelling_and_mounting_keep_what_was_moved() {
    let (images, contents) = Opened::filled(Shape::RAID5).closed();
    let mut opened = Opened::without(&images, &[], &contents).unwrap();
    opened.fs.device_replace(1, opened.new_device("new", STORE_BYTES)).unwrap();
    assert!(opened.fs.device_replace(2, opened.new_device("other", STORE_BYTES)).is_err(), "one at a time");
    assert!(opened.fs.relocation_step().unwrap());
    opened.fs.relocation_pause().unwrap();
    assert!(!opened.fs.relocation_step().unwrap(), "paused");
    opened.write_file(9);
    // Paused over a mount, then resumed; and a mount in the middle.
    let (images, contents) = opened.closed();
    let opened = Opened::without(&images, &[], &contents).unwrap();
    assert_eq!(opened.fs.relocation_status()["state"], "paused");
    assert!(!opened.fs.relocation_step().unwrap());
    opened.fs.relocation_resume().unwrap();
    assert!(opened.fs.relocation_step().unwrap());
    let (images, contents) = opened.closed();
    let mut opened = Opened::without(&images, &[], &contents).unwrap();
    assert_eq!(opened.fs.relocation_status()["state"], "running");
    assert!(opened.fs.relocation_step().unwrap());
    opened.fs.relocation_cancel().unwrap();
    assert_eq!((opened.ids(), opened.fs.relocation_status()["state"].as_str()), (vec![0, 1, 2, 3, 4], Some("cancelled")));
    (0..20).for_each(|number| opened.write_file(number));
    opened.assert_whole("after it was cancelled");
    // Begun again in the other direction: what was added goes.
    opened.fs.device_remove(4).unwrap();
    opened.relocate();
    opened.assert_whole("after the new one was removed");
    let (images, contents) = opened.closed();
    Opened::without(&images, &[], &contents).unwrap().assert_whole("after a mount");
}

#[test]
fn a_new_device_that_fails_ends_it_and_nothing_else() {
    let (images, contents) = Opened::filled(Shape::RAID5).closed();
    let mut random = Random::new(seed_from_environment(3));
    for _ in 0..12 {
        let mut opened = Opened::without(&images, &[], &contents).unwrap();
        opened.fs.device_replace(1, opened.new_device("new", STORE_BYTES)).unwrap();
        let nth = 1 + random.below(12);
        opened.power.fail(Fault { port: Some("new".to_owned()), operation: Some(Operation::Write), nth, for_good: true });
        let mut number = 0;
        while opened.fs.relocation_step().unwrap_or(false) {
            opened.write_file(number % 7);
            number += 1;
        }
        let status = opened.fs.relocation_status();
        assert!(status["state"] == "failed" || status["state"] == "finished", "{status}");
        opened.write_file(2);
        opened.assert_whole("after the new device failed");
        assert_eq!(opened.fs.read_only_reason(), None);
    }
}

#[test]
fn a_device_that_was_replaced_is_not_taken_for_another() {
    let (images, contents) = Opened::filled(Shape::RAID5).closed();
    let opened = Opened::without(&images, &[], &contents).unwrap();
    // Added and removed: the next one has the same number.
    opened.fs.device_add(opened.new_device("first", STORE_BYTES)).unwrap();
    let old = opened.power.cut_with(1, Survivors::Everything, false)["first"].clone();
    opened.fs.device_remove(4).unwrap();
    opened.relocate();
    assert_eq!(opened.fs.device_add(opened.new_device("second", STORE_BYTES)).unwrap(), 4);
    let (mut images, contents) = opened.closed();
    images.insert("second".to_owned(), old);
    let error = Opened::without(&images, &[], &contents).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("second") && error.contains("another UUID"), "{error}");
}

/// Power cuts while a device is replaced, at every flush and at random moments: what is left mounts, has all that was acknowledged, and
/// goes on to the end.
#[test]
fn a_power_cut_while_a_device_is_replaced_loses_nothing() {
    let mut random = Random::new(seed_from_environment(21));
    for (shape, missing) in
        [(Shape::RAID5, None), (Shape::RAID5, Some(2)), (Shape::RAID1, None), (Shape::RAID1, Some(0)), (Shape::SINGLE, None)]
    {
        let (images, contents) = Opened::filled(shape).closed();
        let missing: Vec<usize> = missing.into_iter().collect();
        let old = missing.first().copied().unwrap_or(0);
        let mut opened = Opened::without(&images, &missing, &contents).unwrap();
        let cuts = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let (taken, mut seed) = (cuts.clone(), random.next());
        opened.power.on_flush(Some(Box::new(move |power: &SimulatedPower, _: &str| {
            seed += 1;
            taken.lock().push(power.cut(seed));
        })));
        let mut verified = 0;
        let mut verify = |opened: &Opened, what: &str| {
            let found = std::mem::take(&mut *cuts.lock());
            for images in found {
                let again = Opened::without(&images, &missing, &opened.contents)
                    .unwrap_or_else(|error| panic!("{shape:?}, cut while {what}: {error}"));
                again.assert_whole(&format!("{shape:?}, cut while {what}"));
                while again.fs.relocation_step().unwrap() {}
                again.assert_whole(&format!("{shape:?}, cut while {what}, and moved to the end"));
                let state = again.fs.relocation_status()["state"].clone();
                assert!(state == "finished" || state == "cancelled" || state == "never", "{shape:?}: {state}");
                again.closed();
                verified += 1;
            }
        };
        opened.fs.device_replace(old as u32, opened.new_device("new", STORE_BYTES)).unwrap();
        verify(&opened, "it begins");
        let mut step = 0;
        while opened.fs.relocation_step().unwrap() {
            verify(&opened, "it moves");
            if step < 6 {
                cuts.lock().clear();
                opened.write_file(step % 3);
                // Cut in the middle of a write other files must still be whole; of this one either version may be there.
                cuts.lock().clear();
                cuts.lock().push(opened.power.cut(random.next()));
                verify(&opened, "it was written to");
            }
            step += 1;
        }
        verify(&opened, "it ends");
        assert!(verified > 12, "{shape:?}: only {verified} cuts");
    }
}

#[test]
fn writers_and_readers_go_on_while_the_thread_moves() {
    for shape in [Shape::RAID5, Shape::RAID1, Shape::SINGLE] {
        let (images, contents) = Opened::filled(shape).closed();
        let mut opened = Opened::without(&images, &[], &contents).unwrap();
        opened.fs.shutdown().unwrap();
        opened.fs = sumfs::fs::Filesystem::open(opened.store.disks.clone(), Options::default()).unwrap();
        let files: Vec<_> = (20..24)
            .map(|number| opened.fs.mknod(&CALLER, ROOT, format!("{number}").as_bytes(), 0o100_644, 0, 0).unwrap().inode)
            .collect();
        opened.contents.resize(24, Vec::new());
        let is_over = AtomicBool::new(false);
        let written = std::thread::scope(|scope| {
            let writers: Vec<_> = files
                .iter()
                .map(|file| {
                    let (fs, is_over, file) = (&opened.fs, &is_over, *file);
                    scope.spawn(move || {
                        let mut bytes = vec![0; 1 << 20];
                        let mut round = file.0;
                        loop {
                            let ends = is_over.load(Ordering::SeqCst);
                            let new = pattern(round, 70_000);
                            let at = (round as usize * 12_345) % (bytes.len() - new.len());
                            bytes[at..at + new.len()].copy_from_slice(&new);
                            fs.write(&CALLER, file, at as u64, &new, WriteFlags::default(), Wait::Allowed).unwrap();
                            fs.sync().unwrap();
                            round += 1;
                            if ends {
                                let end = fs.getattr(file).unwrap().size as usize;
                                bytes.truncate(end);
                                return bytes;
                            }
                        }
                    })
                })
                .collect();
            opened.fs.device_replace(0, opened.new_device("new", STORE_BYTES)).unwrap();
            while opened.fs.is_relocating() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            is_over.store(true, Ordering::SeqCst);
            writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(opened.fs.relocation_status()["state"], "finished", "{}", opened.fs.relocation_status());
        for (number, bytes) in (20..24).zip(written) {
            opened.contents[number] = bytes;
        }
        opened.assert_whole(&format!("{shape:?}"));
        let (images, contents) = opened.closed();
        let opened = Opened::without(&images, &[], &contents).unwrap();
        opened.assert_whole(&format!("{shape:?} after a mount"));
        assert_eq!(opened.scrub()["bad_blocks"], 0, "{shape:?}");
    }
}
