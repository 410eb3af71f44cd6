//! Invariants at the moments that random power cuts seldom reach, each moment made on purpose.

use crate::memory_store::MemoryStore;
use crate::operations::pattern;
use crate::simulated_disk::{Images, SimulatedPower, Survivors};
use crate::tree::read_bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use sumfs::error::Error;
use sumfs::fs::{Caller, Filesystem, Options, SetAttributes, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::{BLOCK, BLOCK_SIZE, InodeNumber};
use sumfs::verify::check::{CheckOptions, check};
use sumfs::verify::issue::Severity;

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const ROOT: InodeNumber = InodeNumber::ROOT;
const TIMEOUT: Duration = Duration::from_secs(30);
const OLD_BYTES: usize = 2 << 20;
const CUTS: u64 = 40;

fn create(fs: &Filesystem, name: &str) -> InodeNumber {
    fs.mknod(&CALLER, ROOT, name.as_bytes(), 0o100_644, 0, 0).unwrap().inode
}

fn write(fs: &Filesystem, file: InodeNumber, offset: u64, data: &[u8], direct: bool) -> Result<(), Error> {
    let flags = WriteFlags { direct, ..WriteFlags::default() };
    fs.write(&CALLER, file, offset, data, flags, Wait::Allowed).map(|_| ())
}

fn fsync(fs: &Filesystem, inode: InodeNumber) {
    let (answer, answered) = mpsc::channel();
    fs.fsync(inode, false, Box::new(move |result| drop(answer.send(result))));
    answered.recv_timeout(TIMEOUT).expect("fsync is answered").unwrap();
}

fn free_blocks(fs: &Filesystem) -> u64 {
    fs.status()["space"]["free_blocks"].as_u64().unwrap()
}

/// Mounts what a cut left; it must be sound.
fn recover(images: &Images, at: &str) -> Arc<Filesystem> {
    let store = MemoryStore::found_on(&SimulatedPower::reopen(1, images));
    let report = check(&store.disks, &CheckOptions { verify_data: true }, &mut |_, _| {}).expect("check");
    let wrong = report.issues.iter().find(|issue| issue.severity() != Severity::Harmless);
    assert!(wrong.is_none(), "{at}: {wrong:?}");
    Filesystem::open(store.disks, Options { background: false, ..Options::default() }).unwrap()
}

/// A store without a free block, whose file `old` fills `OLD_BYTES` of it; `old` and an empty file.
fn full_store(power: &SimulatedPower) -> (MemoryStore, Arc<Filesystem>, InodeNumber, InodeNumber) {
    let store = MemoryStore::on(power, 32 << 20);
    let fs = store.open();
    let (old, other, filling) = (create(&fs, "old"), create(&fs, "other"), create(&fs, "filling"));
    write(&fs, old, 0, &pattern(1, OLD_BYTES), false).unwrap();
    let mut offset = 0;
    for len in [1 << 20, BLOCK] {
        while write(&fs, filling, offset, &vec![7; len], true).is_ok() {
            offset += len as u64;
        }
    }
    fs.sync().unwrap();
    assert_eq!(free_blocks(&fs), 0);
    (store, fs, old, other)
}

/// D3: while the record of the transaction that frees blocks is not durable, they are not free; the old data is there if that record
/// gets lost.
#[test]
fn freed_blocks_are_not_used_before_their_transaction_is_durable() {
    let power = SimulatedPower::new(1);
    let (store, fs, old, other) = full_store(&power);
    fs.setattr(&CALLER, old, &SetAttributes { size: Some(0), ..SetAttributes::default() }).unwrap();
    let cuts: Arc<Mutex<Vec<Images>>> = Arc::default();
    let (hook_cuts, hook_fs) = (cuts.clone(), fs.clone());
    power.on_flush(Some(Box::new(move |power, port| {
        if port == "journal" && hook_cuts.lock().is_empty() {
            // Whoever writes now may take what is free.
            let free = free_blocks(&hook_fs) * BLOCK_SIZE;
            if free > 0 {
                write(&hook_fs, other, 0, &vec![9; free as usize], true).unwrap();
            }
            hook_cuts.lock().extend((0..CUTS).map(|seed| power.cut(seed)));
        }
    })));
    fsync(&fs, old);
    power.on_flush(None);
    assert!(free_blocks(&fs) * BLOCK_SIZE >= OLD_BYTES as u64, "what was freed is free afterwards");
    let (mut lost, mut kept) = (0, 0);
    for (seed, images) in cuts.lock().iter().enumerate() {
        let at = format!("cut {seed}");
        let fs = recover(images, &at);
        let size = fs.lookup(ROOT, b"old").unwrap().size as usize;
        match size {
            0 => kept += 1,
            OLD_BYTES => lost += 1,
            _ => panic!("{at}: size {size}"),
        }
        assert!(read_bytes(&fs, old, 0, size).unwrap() == pattern(1, OLD_BYTES)[..size], "{at}: wrong bytes");
    }
    println!("the record was lost in {lost} cuts, kept in {kept}");
    assert!(lost > 0 && kept > 0);
    store.close(&fs);
}

/// D6: the size that is recorded is that of the data that is recorded with it, whatever else of the inode is: no file full of zeros.
#[test]
fn a_recorded_size_never_runs_ahead_of_the_data() {
    let power = SimulatedPower::new(1);
    let store = MemoryStore::on(&power, 32 << 20);
    let fs = store.open();
    let (grown, other) = (create(&fs, "grown"), create(&fs, "other"));
    write(&fs, grown, 0, &pattern(1, 5000), false).unwrap();
    fsync(&fs, grown);
    fs.setattr(&CALLER, grown, &SetAttributes { mode: Some(0o600), ..SetAttributes::default() }).unwrap();
    // Its times change as well, so the commit has to look at it.
    write(&fs, grown, 5000, &pattern(2, 20_000), false).unwrap();
    write(&fs, other, 0, b"other", false).unwrap();
    fsync(&fs, other);
    assert_eq!(fs.getattr(grown).unwrap().size, 25_000);
    let found = recover(&power.cut_with(1, Survivors::Flushed, false), "after a commit of something else");
    let attributes = found.getattr(grown).unwrap();
    assert_eq!((attributes.size, attributes.mode & 0o777), (5000, 0o600), "the mode went along, the data did not");
    assert!(read_bytes(&found, grown, 0, 5000).unwrap() == pattern(1, 5000));
    fsync(&fs, grown);
    let found = recover(&power.cut_with(1, Survivors::Flushed, false), "after its own fsync");
    assert!(read_bytes(&found, grown, 0, 25_000).unwrap() == [pattern(1, 5000), pattern(2, 20_000)].concat());
    store.close(&fs);
}
