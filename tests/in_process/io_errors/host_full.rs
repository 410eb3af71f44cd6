//! A host with less space than the store may fill (D5): the missing space is ENOSPC at the write that finds none. What a write accepted
//! the host has really set aside, so that writeback, commits and checkpoints never meet its end.

use super::workload::{CALLER, MODE, ROOT};
use crate::memory_store::MemoryStore;
use crate::operations::pattern;
use crate::simulated_disk::SimulatedPower;
use crate::tree::read_bytes;
use sumfs::error::Error;
use sumfs::fs::{Filesystem, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::{BLOCK_SIZE, InodeNumber};

const STORE_BYTES: u64 = 64 << 20;
const HOST_BYTES: u64 = 20 << 20;
const PIECE: usize = 64 << 10;

fn create(fs: &Filesystem, name: &str) -> InodeNumber {
    fs.mknod(&CALLER, ROOT, name.as_bytes(), MODE, 0, 0).unwrap().inode
}

/// Writes until ENOSPC; the bytes that were accepted.
fn fill(fs: &Filesystem, file: InodeNumber, flags: WriteFlags) -> u64 {
    for number in 0.. {
        let offset = number * PIECE as u64;
        match fs.write(&CALLER, file, offset, &pattern(number, PIECE), flags, Wait::Allowed) {
            Ok(count) => assert_eq!(count, PIECE),
            Err(Error::NoSpace) => return offset,
            Err(error) => panic!("piece {number}: {error}"),
        }
    }
    unreachable!("the store is endless")
}

#[test]
fn what_a_write_accepted_the_host_has_room_for() {
    for direct in [false, true] {
        let power = SimulatedPower::new(1);
        let store = MemoryStore::on(&power, STORE_BYTES);
        power.limit_host_space("device", HOST_BYTES);
        let fs = store.open();
        let promised = fs.statfs().available * BLOCK_SIZE;
        let flags = WriteFlags { direct, ..WriteFlags::default() };
        for round in 0..3 {
            let file = create(&fs, &format!("fill{round}"));
            let accepted = fill(&fs, file, flags);
            assert!(accepted > HOST_BYTES / 2 && accepted <= HOST_BYTES, "round {round}: {accepted} bytes");
            assert!(accepted.abs_diff(promised) <= promised / 100 + PIECE as u64, "{promised} promised, {accepted} accepted");
            fs.sync().unwrap();
            assert_eq!(fs.read_only_reason(), None);
            for number in 0..accepted / PIECE as u64 {
                let found = read_bytes(&fs, file, number * PIECE as u64, PIECE).unwrap();
                assert!(found == pattern(number, PIECE), "round {round}: piece {number}");
            }
            fs.unlink(ROOT, format!("fill{round}").as_bytes()).unwrap();
            fs.forget(file, 1);
            fs.sync().unwrap();
        }
        store.close(&fs);
    }
}
