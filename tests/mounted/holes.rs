//! Holes, preallocation and the ends of files, as public bug reports tell of them (C..: the number of the report's case); each on a
//! fresh mount, run by [`smoke`](crate::smoke).

use crate::content::{aligned, assert_same, bytes_taken, open, pattern};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, copy_file_range, fallocate, seek};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
const BLOCK: usize = 4096;

#[track_caller]
fn assert_holds(path: &Path, expected: &[u8], what: &str) {
    assert_same(&fs::read(path).unwrap(), expected, what);
    assert_eq!(fs::metadata(path).unwrap().len(), expected.len() as u64, "{what}: size");
}

/// A gap between two writes through one file reads as zeros at once, to its full length (C05).
pub fn a_gap_between_writes(root: &Path) {
    for (number, (first, at, second)) in
        [(10, 100, 10), (4096, 12_288, 4096), (5000, 9_000_000, 3), (1, 4095, 2), (70_000, 70_001, 1)].into_iter().enumerate()
    {
        let path = root.join(format!("file-{number}"));
        let file = open(&path);
        let mut expected = pattern(first, 1);
        file.write_all_at(&expected, 0).unwrap();
        let mut found = vec![1; first];
        file.read_exact_at(&mut found, 0).unwrap();
        let end = pattern(second, 2);
        file.write_all_at(&end, at as u64).unwrap();
        expected.resize(at, 0);
        expected.extend_from_slice(&end);
        let mut found = vec![1; expected.len() + 100];
        let count = file.read_at(&mut found, 0).unwrap();
        assert_same(&found[..count], &expected, "read through the same file");
        assert_eq!(file.metadata().unwrap().len(), expected.len() as u64);
        assert_holds(&path, &expected, "read anew");
    }
}

/// What was cut off does not come back when a later write makes the file longer (C07), with and without a writeback between.
pub fn a_write_beyond_a_truncation(root: &Path) {
    for (number, (length, cut, at)) in
        [(5, 2, 5), (5000, 4096, 4999), (5000, 4097, 8192), (2 << 20, (1 << 20) + 1, (2 << 20) - 1), (100_000, 1, 99_999)]
            .into_iter()
            .enumerate()
    {
        for synced in [false, true] {
            let path = root.join(format!("file-{number}-{synced}"));
            let file = open(&path);
            let mut expected = pattern(length, 3);
            file.write_all_at(&expected, 0).unwrap();
            if synced {
                file.sync_all().unwrap();
            }
            file.set_len(cut as u64).unwrap();
            file.write_all_at(b"X", at as u64).unwrap();
            expected.truncate(cut);
            expected.resize(at, 0);
            expected.push(b'X');
            assert_holds(&path, &expected, &format!("{length} bytes cut to {cut}, one written at {at}, synced {synced}"));
        }
    }
}

/// Zeroing or punching some bytes changes those bytes only, not their block (C08), nor their neighbours (C13).
pub fn only_the_bytes_asked_for(root: &Path) {
    let ranges = [(0, 1), (1, 1), (2047, 1), (4095, 2), (4091, 12_298), (3, 4093), (8192, 1), (12_287, 4097)];
    for (name, flags) in [
        ("zeroed", FallocateFlags::ZERO_RANGE),
        ("kept", FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE),
        ("punched", PUNCH),
    ] {
        for length in [2048, 4 * BLOCK, 6 * BLOCK + 7] {
            for (number, (at, count)) in ranges.into_iter().filter(|(at, count)| at + count <= length).enumerate() {
                for synced in [false, true] {
                    let path = root.join(format!("{name}-{length}-{number}-{synced}"));
                    let file = open(&path);
                    let mut expected = pattern(length, 4);
                    file.write_all_at(&expected, 0).unwrap();
                    if synced {
                        file.sync_data().unwrap();
                    }
                    fallocate(&file, flags, at as u64, count as u64).unwrap();
                    expected[at..at + count].fill(0);
                    assert_holds(&path, &expected, &format!("{name} {count} bytes at {at} of {length}, synced {synced}"));
                }
            }
        }
    }
    let path = root.join("given-back");
    let file = open(&path);
    file.write_all_at(&pattern(4 * BLOCK, 4), 0).unwrap();
    file.sync_all().unwrap();
    fallocate(&file, PUNCH, BLOCK as u64 - 5, 2 * BLOCK as u64 + 11).unwrap();
    file.sync_all().unwrap();
    assert_eq!(bytes_taken(&file), 2 * BLOCK as u64, "the middle takes no space");
}

/// Preallocation behind the end, with and without a new size, and inside the file (C10).
pub fn preallocation_and_the_size(root: &Path) {
    let cases = [
        (FallocateFlags::empty(), 4096, 4096, 8192),
        (FallocateFlags::KEEP_SIZE, 4096, 4096, 4096),
        (FallocateFlags::empty(), 100, 1000, 4096),
        (FallocateFlags::empty(), 4000, 97, 4097),
        (FallocateFlags::KEEP_SIZE, 100_000, 1, 4096),
    ];
    for (number, (flags, at, length, size)) in cases.into_iter().enumerate() {
        let path = root.join(format!("file-{number}"));
        let file = open(&path);
        let mut expected = pattern(4096, 5);
        file.write_all_at(&expected, 0).unwrap();
        fallocate(&file, flags, at, length).unwrap();
        expected.resize(size, 0);
        assert_holds(&path, &expected, &format!("{flags:?} of {length} bytes at {at}"));
    }
    let file = open(&root.join("wrong"));
    assert_eq!(fallocate(&file, FallocateFlags::empty(), 0, 0), Err(Errno::INVAL));
    assert_eq!(fallocate(&file, FallocateFlags::PUNCH_HOLE, 0, 1), Err(Errno::OPNOTSUPP), "a hole keeps the size");
    let reading = File::open(root.join("wrong")).unwrap();
    assert_eq!(fallocate(&reading, FallocateFlags::empty(), 0, 1), Err(Errno::BADF));
}

/// A hole that begins inside the file and ends behind it, or lies behind it, leaves the size alone (C11).
pub fn a_hole_over_the_end(root: &Path) {
    for (number, (at, length)) in
        [(4000, 10_000), (4999, 1 << 30), (0, 1 << 40), (5000, 5000), (1 << 20, 4096)].into_iter().enumerate()
    {
        for synced in [false, true] {
            let path = root.join(format!("file-{number}-{synced}"));
            let file = open(&path);
            let mut expected = pattern(5000, 6);
            file.write_all_at(&expected, 0).unwrap();
            if synced {
                file.sync_all().unwrap();
            }
            fallocate(&file, PUNCH, at, length).unwrap();
            expected[(at as usize).min(5000)..].fill(0);
            assert_holds(&path, &expected, &format!("a hole of {length} bytes at {at}, synced {synced}"));
        }
    }
}

/// Preallocation behind the end and a copy into it: the size is where the copy ended, and stays (C14).
pub fn a_copy_into_preallocation(root: &Path) {
    let expected = pattern(300_001, 7);
    fs::write(root.join("source"), &expected).unwrap();
    for (name, flags) in [("kept", FallocateFlags::KEEP_SIZE), ("grown", FallocateFlags::empty())] {
        let (path, source) = (root.join(name), File::open(root.join("source")).unwrap());
        let file = open(&path);
        fallocate(&file, flags, 0, 200_000).unwrap();
        let (mut from, mut to) = (0, 100_000);
        while from < expected.len() as u64 {
            assert!(copy_file_range(&source, Some(&mut from), &file, Some(&mut to), 1 << 20).unwrap() > 0);
        }
        file.sync_all().unwrap();
        drop(file);
        assert_holds(&path, &[&[0; 100_000][..], &expected].concat(), name);
    }
}

/// There is no data at the end of a file or behind it (C17), and what is written is data before it is flushed (C01).
pub fn seeking_for_data(root: &Path) {
    let file = open(&root.join("file"));
    file.write_all_at(&pattern(100_000, 8), 0).unwrap();
    for at in [0, 1, 4096, 99_999] {
        assert_eq!(seek(&file, SeekFrom::Data(at)), Ok(at), "data that is not flushed");
    }
    for at in [100_000, 100_001, 1 << 40] {
        assert_eq!(seek(&file, SeekFrom::Data(at)), Err(Errno::NXIO), "data at {at}");
        assert_eq!(seek(&file, SeekFrom::Hole(at)), Err(Errno::NXIO), "a hole at {at}");
    }
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(100_000), "the end is a hole");
    let empty = open(&root.join("empty"));
    assert_eq!(seek(&empty, SeekFrom::Data(0)), Err(Errno::NXIO));
    // Whatever the kernel lets be seen of holes, following it to the end finds all data and ends.
    let sparse = open(&root.join("sparse"));
    sparse.write_all_at(b"one", 1 << 20).unwrap();
    sparse.write_all_at(b"two", 3 << 20).unwrap();
    sparse.set_len(5 << 20).unwrap();
    sparse.sync_all().unwrap();
    let (mut at, mut found, mut rounds) = (0, vec![0; 5 << 20], 0);
    while let Ok(begin) = seek(&sparse, SeekFrom::Data(at)) {
        let end = seek(&sparse, SeekFrom::Hole(begin)).unwrap();
        assert!(at <= begin && begin < end, "data from {begin} to {end}, asked from {at}");
        sparse.read_exact_at(&mut found[begin as usize..end as usize], begin).unwrap();
        (at, rounds) = (end, rounds + 1);
        assert!(rounds < 10, "it does not end");
    }
    assert_holds(&root.join("sparse"), &found, "by its data");
}

/// Blocks of a file that has just been written are counted, so that tar -S does not take it for a hole (C19).
pub fn blocks_of_a_full_file(root: &Path) {
    let expected = pattern(20 << 20, 9);
    fs::write(root.join("full"), &expected).unwrap();
    fs::write(root.join("small"), "x").unwrap();
    let archive = root.join("archive.tar");
    let arguments = ["-C", root.to_str().unwrap(), "-cSf", archive.to_str().unwrap(), "full", "small"];
    crate::mount::run("tar", &arguments).expect_success();
    fs::create_dir(root.join("out")).unwrap();
    crate::mount::run("tar", &["-C", root.join("out").to_str().unwrap(), "-xf", archive.to_str().unwrap()]).expect_success();
    assert_holds(&root.join("out/full"), &expected, "through tar");
    assert_holds(&root.join("out/small"), b"x", "through tar");
    let file = File::open(root.join("full")).unwrap();
    file.sync_all().unwrap();
    let taken = bytes_taken(&file);
    assert!((20 << 20..=21 << 20).contains(&taken), "{taken} bytes");
}

/// Truncation to the size that a file has gives back what was preallocated behind it (C20).
pub fn truncation_frees_preallocation(root: &Path) {
    let path = root.join("file");
    let file = open(&path);
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 13 << 20).unwrap();
    file.write_all_at(&pattern(9 << 20, 10), 0).unwrap();
    file.set_len(9 << 20).unwrap();
    file.sync_all().unwrap();
    assert_eq!(bytes_taken(&file), 9 << 20);
    drop(file);
    let file = open(&path);
    assert_eq!(bytes_taken(&file), 9 << 20, "after close");
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 13 << 20).unwrap();
    assert_eq!(bytes_taken(&file), 13 << 20, "preallocated again");
    file.set_len(1).unwrap();
    file.sync_all().unwrap();
    assert_eq!(bytes_taken(&file), 4096);
    file.set_len(20 << 20).unwrap();
    assert_eq!(bytes_taken(&file), 4096, "growing takes nothing");
}

/// copy_file_range: nothing at the end and behind it, no overlap, not across file systems, the rest of a short copy goes on (C16).
pub fn copies_that_end_early(root: &Path) {
    let expected = pattern(100_000, 11);
    let path = root.join("source");
    let (source, target) = (open(&path), open(&root.join("target")));
    source.write_all_at(&expected, 0).unwrap();
    for at in [100_000, 100_001, 1 << 30] {
        let copied = copy_file_range(&source, Some(&mut { at }), &target, Some(&mut 0), 4096);
        assert_eq!(copied, Ok(0), "from {at}");
    }
    assert_eq!(target.metadata().unwrap().len(), 0);
    for (from, to) in [(0, 0), (0, 4096), (4096, 0), (10, 500)] {
        let copied = copy_file_range(&source, Some(&mut { from }), &source, Some(&mut { to }), 8192);
        assert_eq!(copied, Err(Errno::INVAL), "from {from} to {to}");
    }
    let (mut from, mut to, mut total) = (50_000, 7, 0);
    loop {
        let copied = copy_file_range(&source, Some(&mut from), &target, Some(&mut to), 1 << 20).unwrap();
        total += copied;
        if copied == 0 {
            break;
        }
    }
    assert_eq!(total, 50_000);
    assert_holds(&root.join("target"), &[&[0; 7][..], &expected[50_000..]].concat(), "copied");
    let appending = File::options().append(true).open(root.join("target")).unwrap();
    assert_eq!(copy_file_range(&source, Some(&mut 0), &appending, None, 10), Err(Errno::BADF), "O_APPEND");
    // Another file system: the kernel does it or says so, and cp goes on either way.
    let outside = crate::mount::scratch();
    let elsewhere = outside.path().join("copy");
    let copied = copy_file_range(&source, Some(&mut 0), open(&elsewhere), Some(&mut 0), 100_000);
    assert!(matches!(copied, Ok(1..) | Err(Errno::XDEV | Errno::OPNOTSUPP)), "{copied:?}");
    let back = root.join("back");
    crate::mount::run("cp", &[&path, &elsewhere]).expect_success();
    crate::mount::run("cp", &[&elsewhere, &back]).expect_success();
    assert_holds(&back, &expected, "there and back");
}

/// Appending through one file and truncation while opening (C88): O_APPEND with O_TRUNC is allowed, the size 0, the times new.
pub fn truncation_while_opening(root: &Path) {
    let path = root.join("file");
    for flags in [OFlags::TRUNC, OFlags::TRUNC | OFlags::APPEND, OFlags::TRUNC | OFlags::DIRECT] {
        fs::write(&path, pattern(10_000, 12)).unwrap();
        let old = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
        File::options().write(true).open(&path).unwrap().set_times(old).unwrap();
        let file = File::options().write(true).custom_flags(flags.bits() as i32).open(&path).unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.len(), 0, "{flags:?}");
        assert!(metadata.mtime() > 1_000_000, "{flags:?}: mtime {}", metadata.mtime());
        let mut buffer = vec![0; 3 * BLOCK];
        let part = aligned(&mut buffer, BLOCK);
        part.copy_from_slice(&pattern(BLOCK, 13));
        file.write_all_at(part, 0).unwrap();
        assert_holds(&path, part, &format!("{flags:?}"));
    }
}
