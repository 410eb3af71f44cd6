//! Errors of writeback: a place that cannot be written is relocated and nobody notices; what can be written nowhere is reported by fsync,
//! and nothing is acknowledged any more (D7).
//!
//! Files are opened without a request to the daemon (NO_OPEN), so it cannot tell two descriptors of one file apart: an error is kept
//! with the inode and given to the first fsync that asks. The data stays undurable, so that later ones are refused as well.

use super::workload::{CALLER, How, Run, Step, fsync};
use crate::simulated_disk::{Fault, Operation};
use std::sync::atomic::Ordering;
use sumfs::error::Error;
use sumfs::fs::{FallocateMode, Options, ReadFlags, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::{BLOCK, InodeNumber};

const SIZE: usize = 300_000;

fn mounted() -> Run {
    let mut run = Run::new(1, Options { background: false, ..Options::default() });
    run.step(Step::Mount).unwrap();
    run
}

fn write(name: &'static str, how: How) -> Step {
    Step::Write { name, offset: 0, len: SIZE, how }
}

/// The `nth` write to the device from now on fails.
fn fail_write(run: &Run, nth: u64, for_good: bool) {
    run.power.fail(Fault { port: Some("device".to_owned()), operation: Some(Operation::Write), nth, for_good });
}

fn reserved_blocks(run: &Run) -> u64 {
    run.fs().status()["space"]["reserved_blocks"].as_u64().unwrap()
}

#[test]
fn a_place_that_cannot_be_written_is_another_ones_turn() {
    for how in [How::Cached, How::Direct, How::Sync] {
        for errors in 1..=3 {
            let mut run = mounted();
            run.step(Step::Create("a")).unwrap();
            for number in 1..=errors {
                fail_write(&run, number, false);
            }
            run.all(&[write("a", how), Step::Fsync("a")]).unwrap();
            assert_eq!(run.power.failures(), errors, "{how:?}");
            assert_eq!(run.fs().stats().io_errors.load(Ordering::Relaxed), errors, "{how:?}");
            assert_eq!((run.fs().read_only_reason(), reserved_blocks(&run)), (None, 0), "{how:?}");
            run.all(&[Step::Shutdown, Step::Mount, Step::Read("a"), Step::Shutdown]).unwrap();
            // What was left unused is free again after a mount, and in no file's map.
            run.store.check().unwrap();
        }
    }
}

/// Fills the store with one file; its inode.
fn fill(run: &mut Run) -> InodeNumber {
    run.step(Step::Create("fill")).unwrap();
    let file = InodeNumber(run.id("fill").unwrap());
    let mut offset = 0;
    for len in [1 << 20, BLOCK] {
        while run.fs().write(&CALLER, file, offset, &vec![7; len], WriteFlags::default(), Wait::Allowed).is_ok() {
            offset += len as u64;
        }
    }
    run.fs().sync().unwrap();
    file
}

#[test]
fn a_write_is_relocated_in_pieces_where_there_is_no_other_room() {
    const BLOCKS: u64 = 8;
    let mut run = mounted();
    let filled = fill(&mut run);
    let punch = |block: u64, blocks: u64| {
        let (offset, length) = ((2 << 20) + block * BLOCK as u64, blocks * BLOCK as u64);
        run.fs().fallocate(&CALLER, filled, offset, length, FallocateMode::PunchHole).unwrap();
    };
    punch(16, BLOCKS);
    (0..BLOCKS).for_each(|number| punch(40 + 2 * number, 1));
    run.fs().sync().unwrap();
    run.step(Step::Create("a")).unwrap();
    fail_write(&run, 1, false);
    let before = run.fs().stats().extents_written.load(Ordering::Relaxed);
    run.all(&[Step::Write { name: "a", offset: 0, len: BLOCKS as usize * BLOCK, how: How::Cached }, Step::Fsync("a")]).unwrap();
    assert_eq!(run.power.failures(), 1);
    assert_eq!(run.fs().stats().extents_written.load(Ordering::Relaxed) - before, BLOCKS);
    assert_eq!((run.fs().read_only_reason(), reserved_blocks(&run)), (None, 0));
    run.all(&[Step::Shutdown, Step::Mount, Step::Read("a"), Step::Shutdown]).unwrap();
    run.store.check().unwrap();
}

#[test]
fn what_can_be_written_nowhere_is_told_once_and_refused_from_then_on() {
    let mut run = mounted();
    run.all(&[Step::Create("a"), write("a", How::Cached), Step::Create("b"), write("b", How::Cached), Step::Create("c")])
        .unwrap();
    run.all(&[Step::Fsync("c")]).unwrap();
    fail_write(&run, 1, true);
    let a = run.id("a").unwrap();
    let file = InodeNumber(a);
    assert!(matches!(fsync(run.fs(), file), Err(Error::Io { .. })), "the first fsync has the device's error");
    let reason = run.fs().read_only_reason().expect("latched");
    assert!(reason.contains(&format!("writing back inode {a}")) && reason.contains("device"), "{reason}");
    let tries = run.power.counts("device").writes;
    for _ in 0..2 {
        assert!(matches!(fsync(run.fs(), file), Err(Error::ReadOnly(_))), "undurable data is never acknowledged");
    }
    for name in ["b", "c"] {
        let result = fsync(run.fs(), InodeNumber(run.id(name).unwrap()));
        assert_eq!(result.is_ok(), name == "c", "fsync of {name}: {result:?}");
    }
    assert_eq!(run.power.counts("device").writes, tries, "a device that failed for good is left alone");
    assert_eq!(reserved_blocks(&run), 2 * (SIZE as u64).div_ceil(4096), "what is dirty has its space");
    // What was written is still there to be read.
    for name in ["a", "b"] {
        run.step(Step::Read(name)).unwrap();
    }
}

#[test]
fn a_direct_write_that_fails_has_its_own_error_and_leaves_no_reservation() {
    let mut run = mounted();
    run.all(&[Step::Create("a"), Step::Fsync("a")]).unwrap();
    fail_write(&run, 1, true);
    let aligned = Step::Write { name: "a", offset: 0, len: 8192, how: How::Direct };
    assert!(matches!(run.step(aligned), Err(Error::Io { .. })));
    assert!(run.fs().read_only_reason().is_some_and(|reason| reason.contains("writing inode")));
    assert_eq!(reserved_blocks(&run), 0);
    assert!(matches!(run.step(aligned), Err(Error::ReadOnly(_))));
}

#[test]
fn a_read_that_fails_twice_is_an_error_once() {
    let mut run = mounted();
    run.all(&[Step::Create("a"), write("a", How::Cached), Step::Shutdown, Step::Mount]).unwrap();
    let file = InodeNumber(run.id("a").unwrap());
    run.fs().getattr(file).unwrap();
    let fail = |nth| {
        run.power.fail(Fault { port: Some("device".to_owned()), operation: Some(Operation::Read), nth, for_good: false });
    };
    let direct = ReadFlags { direct: true, no_atime: false };
    let read = || run.fs().read(file, 0, SIZE, direct, Wait::Allowed);
    fail(1);
    assert_eq!(read().unwrap().as_slice().len(), SIZE, "each block gets a second chance");
    (1..3).for_each(fail);
    assert!(matches!(read(), Err(Error::Io { .. })));
    assert_eq!(read().unwrap().as_slice().len(), SIZE);
    assert_eq!(run.fs().read_only_reason(), None, "a read breaks nothing");
    run.step(Step::Read("a")).unwrap();
}
