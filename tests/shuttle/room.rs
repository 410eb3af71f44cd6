//! A store with a handful of free blocks: writers, truncate, unlink, holes and promises against each other. ENOSPC is an answer; a
//! reservation without space behind it is not, nor a promise that is not kept (D5), and at the end every block is accounted for.

use crate::machine::{BLOCK, Machine, create, fsync, truncate};
use crate::{below, model, one_of, together};
use std::sync::Arc;
use sumfs::error::{Error, Result};
use sumfs::fs::{Caller, FallocateMode, Filesystem, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::InodeNumber;

/// Room for one group, the smallest there is.
const DEVICE_BYTES: u64 = (2 << 20) + (512 << 10);
const PIECE: u64 = 64 << 10;
const PROMISED_BLOCKS: u64 = 3;

fn write(fs: &Filesystem, file: InodeNumber, offset: u64, len: u64, direct: bool) -> Result<usize> {
    let data = vec![7; len as usize];
    let flags = WriteFlags { direct, ..WriteFlags::default() };
    let write = |wait| fs.write(&Caller::ROOT, file, offset, &data, flags, wait);
    match write(Wait::Never) {
        Err(Error::WouldBlock(_)) => write(Wait::Allowed),
        result => result,
    }
}

fn may_be_full<T: std::fmt::Debug>(result: Result<T>) {
    assert!(matches!(result, Ok(_) | Err(Error::NoSpace)), "{result:?}");
}

/// Fills the store but for some blocks; the file that does.
fn fill(fs: &Filesystem) -> InodeNumber {
    let big = create(fs, "big");
    let mut end = 0;
    let mut piece = PIECE;
    while piece >= BLOCK {
        match write(fs, big, end, piece, true) {
            Ok(_) => end += piece,
            Err(Error::NoSpace) => piece /= 2,
            Err(error) => panic!("filling: {error}"),
        }
    }
    truncate(fs, big, end - (2 + below(4)) * BLOCK).unwrap();
    fs.sync().unwrap();
    big
}

fn disturb(fs: &Filesystem, number: u64, big: InodeNumber) {
    let own = create(fs, &format!("own{number}"));
    for _ in 0..3 {
        let (offset, len) = (below(3) * BLOCK, (1 + below(3)) * BLOCK);
        match below(8) {
            0 | 1 => may_be_full(write(fs, own, offset, len, below(2) == 0)),
            2 => may_be_full(write(fs, big, offset, len, below(2) == 0)),
            3 => may_be_full(truncate(fs, own, offset)),
            4 => may_be_full(truncate(fs, big, 64 * BLOCK + offset)),
            5 => {
                let mode = one_of(&[FallocateMode::PunchHole, FallocateMode::Allocate, FallocateMode::ZeroRange]);
                may_be_full(fs.fallocate(&Caller::ROOT, one_of(&[own, big]), offset, len, mode));
            }
            6 => fsync(fs, one_of(&[own, big])).unwrap(),
            _ => fs.sync().unwrap(),
        }
    }
    if below(2) == 0 {
        fs.unlink(InodeNumber::ROOT, format!("own{number}").as_bytes()).unwrap();
    }
    fs.forget(own, 1);
}

/// The first write of each promised block finds space, whatever the others do.
fn claim(fs: &Filesystem, promised: InodeNumber) {
    for block in 0..PROMISED_BLOCKS {
        let direct = below(2) == 0;
        let written = write(fs, promised, block * BLOCK, BLOCK, direct);
        assert!(written.is_ok(), "promised block {block}: {written:?}");
    }
}

#[test]
fn a_nearly_full_store_keeps_its_promises_and_its_accounts() {
    model(|| {
        let machine = Machine::new(DEVICE_BYTES);
        let fs = machine.open(false);
        let promised = create(&fs, "promised");
        fs.fallocate(&Caller::ROOT, promised, 0, PROMISED_BLOCKS * BLOCK, FallocateMode::Allocate).unwrap();
        let big = fill(&fs);
        let thread = |body: Box<dyn Fn(&Filesystem) + Send>| {
            let fs: Arc<Filesystem> = fs.clone();
            Box::new(move || body(&fs)) as Box<dyn FnOnce() + Send>
        };
        together(vec![
            thread(Box::new(move |fs| disturb(fs, 1, big))),
            thread(Box::new(move |fs| disturb(fs, 2, big))),
            thread(Box::new(move |fs| claim(fs, promised))),
        ]);
        fs.sync().unwrap();
        assert_eq!(fs.read_only_reason(), None);
        machine.close(&fs);
    });
}
