//! What must not grow with the number of files, names and extents, counted and not timed: looks into the index, inodes in memory,
//! overlays that a reader has to look through.

use crate::memory_store::MemoryStore;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use sumfs::disk::Disk;
use sumfs::disk::memory::MemoryDisk;
use sumfs::disk::superblock::SUPERBLOCK_BYTES;
use sumfs::fs::{Caller, Filesystem, WriteFlags};
use sumfs::lock::Wait;
use sumfs::store::{Disks, FormatOptions, format};
use sumfs::units::InodeNumber;

const BLOCK: usize = 4096;

fn index_reads(fs: &Filesystem) -> u64 {
    fs.stats().index_reads.load(Relaxed)
}

/// Looks into the index that `run` takes.
fn looks(fs: &Filesystem, run: impl FnOnce()) -> u64 {
    let before = index_reads(fs);
    run();
    index_reads(fs) - before
}

fn create(fs: &Filesystem, parent: InodeNumber, number: u64) -> InodeNumber {
    fs.mknod(&Caller::ROOT, parent, format!("f{number}").as_bytes(), 0o100_644, 0, 0).unwrap().inode
}

fn write(fs: &Filesystem, inode: InodeNumber, offset: u64, value: u8) {
    fs.write(&Caller::ROOT, inode, offset, &[value; BLOCK], WriteFlags::default(), Wait::Allowed).unwrap();
}

#[test]
fn the_last_creates_look_into_the_index_as_seldom_as_the_first() {
    let store = MemoryStore::new(512 << 20);
    let fs = store.open();
    for round in 0..10u64 {
        let taken = looks(&fs, || {
            for number in round * 2000..(round + 1) * 2000 {
                let inode = create(&fs, InodeNumber::ROOT, number);
                write(&fs, inode, 0, number as u8);
            }
        });
        // Is the name taken? Nothing else has to be asked.
        assert!(taken <= 2000 + 200, "{taken} looks for 2000 new files in round {round}");
        fs.sync().unwrap();
    }
    store.close(&fs);
}

#[test]
fn deleting_a_file_of_many_extents_does_not_look_at_what_is_deleted_already() {
    const EXTENTS: u64 = 4000;
    let store = MemoryStore::new(512 << 20);
    let fs = store.open();
    let inode = create(&fs, InodeNumber::ROOT, 0);
    (0..EXTENTS).for_each(|number| write(&fs, inode, number << 20, number as u8));
    fs.sync().unwrap();
    fs.shutdown().unwrap();
    let fs = store.open();
    let inode = fs.lookup(InodeNumber::ROOT, b"f0").unwrap().inode;
    let taken = looks(&fs, || {
        fs.unlink(InodeNumber::ROOT, b"f0").unwrap();
        fs.forget(inode, 1);
    });
    assert!(fs.getattr(inode).is_err(), "the inode is still there");
    // Sixteen extents a step; a step asks where the map ends, and for what it loads.
    assert!(taken <= EXTENTS / 4, "{taken} looks to delete {EXTENTS} extents");
    store.close(&fs);
}

#[test]
fn deleting_a_small_file_takes_few_looks() {
    const FILES: u64 = 1000;
    let store = MemoryStore::new(256 << 20);
    let fs = store.open();
    (0..FILES).for_each(|number| write(&fs, create(&fs, InodeNumber::ROOT, number), 0, 1));
    fs.shutdown().unwrap();
    let fs = store.open();
    let taken = looks(&fs, || {
        for number in 0..FILES {
            let name = format!("f{number}").into_bytes();
            let inode = fs.lookup(InodeNumber::ROOT, &name).unwrap().inode;
            fs.unlink(InodeNumber::ROOT, &name).unwrap();
            fs.forget(inode, 1);
        }
    });
    // Its name, its inode, its map.
    assert!(taken <= FILES * 9 / 2, "{taken} looks to delete {FILES} files");
    store.close(&fs);
}

#[test]
fn a_listing_with_attributes_reads_neighbours_together() {
    const FILES: u64 = 3000;
    let store = MemoryStore::new(256 << 20);
    let fs = store.open();
    let mut expected = BTreeMap::new();
    for number in 0..FILES {
        let inode = create(&fs, InodeNumber::ROOT, number);
        if number % 3 == 0 {
            write(&fs, inode, 0, 1);
        }
        expected.insert(format!("f{number}").into_bytes(), (inode, if number % 3 == 0 { BLOCK as u64 } else { 0 }));
    }
    fs.shutdown().unwrap();
    let fs = store.open();
    let mut found = BTreeMap::new();
    let taken = looks(&fs, || {
        fs.readdirplus(InodeNumber::ROOT, 0, &mut |entry, attributes| {
            if entry.next > 2 {
                found.insert(entry.name.to_vec(), (attributes.inode, attributes.size));
            }
            true
        })
        .unwrap();
    });
    assert_eq!(found, expected);
    assert!(taken <= FILES / 16, "{taken} looks to list {FILES} files");
    store.close(&fs);
}

/// A listing that reads ahead while inodes change must not enter what it read before the change.
#[test]
fn a_listing_enters_no_older_attributes_than_others_have_set() {
    const FILES: u64 = 200;
    let store = MemoryStore::new(256 << 20);
    let fs = store.open();
    let inodes: Vec<InodeNumber> = (0..FILES).map(|number| create(&fs, InodeNumber::ROOT, number)).collect();
    fs.shutdown().unwrap();
    for _ in 0..20 {
        let fs = store.open();
        std::thread::scope(|scope| {
            let lister = scope.spawn(|| fs.readdirplus(InodeNumber::ROOT, 0, &mut |_, _| true).unwrap());
            for inode in &inodes {
                write(&fs, *inode, 0, 7);
                fs.fsync(*inode, false, Box::new(|result| result.unwrap()));
            }
            lister.join().unwrap();
        });
        let sizes = inodes.iter().map(|inode| fs.getattr(*inode).unwrap().size);
        assert!(sizes.into_iter().all(|size| size == BLOCK as u64), "an older size came back");
        for inode in &inodes {
            let change = sumfs::fs::SetAttributes { size: Some(0), ..Default::default() };
            fs.setattr(&Caller::ROOT, *inode, &change).unwrap();
        }
        store.close(&fs);
    }
}

#[test]
fn inodes_in_memory_have_a_bound_that_the_kernel_does_not_raise() {
    const FILES: u64 = 50_000;
    let store = MemoryStore::new(256 << 20);
    let fs = store.open();
    for number in 0..FILES {
        create(&fs, InodeNumber::ROOT, number);
    }
    fs.sync().unwrap();
    let cache = &fs.status()["cache"];
    assert_eq!(cache["inodes_known_to_kernel"], FILES);
    assert!(cache["inodes_cached"].as_u64().unwrap() <= 33_000, "{cache}");
    store.close(&fs);
}

/// As many blocks of free space as a group has would be needed for each commit's worth of what is overwritten, or the next group.
#[test]
fn a_file_overwritten_again_and_again_takes_no_more_groups() {
    const BLOCKS: u64 = 12_000;
    let disk = |name: &str, len| -> Arc<dyn Disk> { Arc::new(MemoryDisk::new(name, len)) };
    let disks = Disks {
        superblock: disk("superblock", SUPERBLOCK_BYTES),
        // So large that commits are rare.
        journal: disk("journal", 64 << 20),
        index: disk("index", 0),
        sled: None,
        devices: vec![disk("device", 512 << 20)],
        images: None,
    };
    let options = FormatOptions { group_bytes: Some(64 << 20), ..FormatOptions::default() };
    format(&disks, &options, &["device".to_owned()], None).unwrap();
    let store = MemoryStore { disks };
    let fs = store.open();
    let inode = create(&fs, InodeNumber::ROOT, 0);
    let flags = WriteFlags { direct: true, ..WriteFlags::default() };
    for pass in 0..5u64 {
        for at in 0..BLOCKS {
            let offset = at * 7 % BLOCKS * BLOCK as u64;
            fs.write(&Caller::ROOT, inode, offset, &[pass as u8; BLOCK], flags, Wait::Allowed).unwrap();
        }
    }
    let space = &fs.status()["space"];
    assert_eq!(space["open_groups"], 2, "one holds the file, one what replaces parts of it: {space}");
    store.close(&fs);
}
