//! The check of a store in use: it sees one consistent state whatever happens meanwhile, and nobody waits for it.

use crate::memory_store::MemoryStore;
use crate::operations::pattern;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sumfs::fs::{Caller, FallocateMode, Filesystem, RenameMode, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::InodeNumber;

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0 };
const CHECKS: usize = 12;

/// One round of everything that changes metadata, in a directory of its own.
fn churn(fs: &Filesystem, directory: InodeNumber, round: u64) {
    let name = format!("file-{}", round % 7);
    let created = fs.mknod(&CALLER, directory, name.as_bytes(), 0o100_644, 0, 0);
    if let Ok(file) = created {
        let bytes = pattern(round, 30_000 + (round % 5) as usize * 9_000);
        fs.write(&CALLER, file.inode, 0, &bytes, WriteFlags::default(), Wait::Allowed).unwrap();
        fs.fallocate(&CALLER, file.inode, 1 << 20, 50_000, FallocateMode::AllocateKeepSize).unwrap();
        fs.link(file.inode, directory, format!("link-{round}").as_bytes()).unwrap();
        fs.forget(file.inode, 2);
    }
    fs.sync().unwrap();
    let (old, new) = (format!("link-{round}"), format!("moved-{}", round % 3));
    fs.rename(directory, old.as_bytes(), directory, new.as_bytes(), RenameMode::Replace).ok();
    fs.unlink(directory, name.as_bytes()).ok();
}

#[test]
fn a_check_under_load_sees_a_consistent_state() {
    let store = MemoryStore::new(256 << 20);
    let fs = store.open_with(sumfs::fs::Options::default());
    let is_over = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for number in 0..2 {
            let (fs, is_over, rounds) = (&fs, &is_over, &rounds);
            let directory = fs.mkdir(&CALLER, InodeNumber::ROOT, format!("dir-{number}").as_bytes(), 0o755, 0).unwrap().inode;
            scope.spawn(move || {
                for round in 0.. {
                    churn(fs, directory, round);
                    rounds.fetch_add(1, Ordering::Release);
                    if is_over.load(Ordering::Acquire) {
                        break;
                    }
                }
            });
        }
        let mut wrong = Vec::new();
        for _ in 0..CHECKS {
            let before = rounds.load(Ordering::Acquire);
            let report = fs.check(&mut |_, _| {}).unwrap();
            wrong.extend(report.issues.iter().map(ToString::to_string));
            assert_eq!(report.directories, 3);
            // Something else is there each time.
            while rounds.load(Ordering::Acquire) < before + 2 {
                std::thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Release);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
    store.close(&fs);
}

#[test]
fn writers_go_on_while_a_check_walks() {
    let store = MemoryStore::new(64 << 20);
    let fs = store.open();
    let directory = fs.mkdir(&CALLER, InodeNumber::ROOT, b"dir", 0o755, 0).unwrap().inode;
    let mut calls = 0;
    // Were any lock held over the walk, this would never end.
    let report = fs.check(&mut |_, _| {
        churn(&fs, directory, calls);
        calls += 1;
    });
    let report = report.unwrap();
    assert_eq!(report.issues, []);
    assert!(calls > 2, "only {calls} steps");
    assert_eq!((report.files, report.directories), (0, 2), "what was made after the beginning is not seen");
    store.close(&fs);
}

#[test]
fn what_is_wrong_is_found() {
    let store = MemoryStore::new(64 << 20);
    let fs = store.open();
    churn(&fs, InodeNumber::ROOT, 0);
    fs.shutdown().unwrap();
    let key = sumfs::meta::schema::inode(InodeNumber(2));
    {
        use sumfs::meta::index::{Change, Index};
        let index = sumfs::meta::redb_index::RedbIndex::open(store.disks.index.clone(), 4 << 20, false).unwrap();
        let mut damage = std::iter::once::<Change<'_>>((key.as_slice(), Some(&b"damaged"[..])));
        index.apply(&mut damage, true).unwrap();
    }
    let fs = store.open();
    let report = fs.check(&mut |_, _| {}).unwrap();
    assert!(matches!(report.issues.as_slice(), [sumfs::verify::issue::Issue::DamagedValue { .. }]), "{:?}", report.issues);
}
