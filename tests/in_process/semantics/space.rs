//! Space: holes, st_blocks, preallocation, what statfs promises, a full store and its recovery.

use super::{CALLER, REGULAR, Tree, no_value};
use crate::operations::pattern;
use sumfs::error::Error;
use sumfs::fs::{FallocateMode, Options, RenameMode, SetAttributes, WriteFlags, XattrMode};
use sumfs::lock::Wait;
use sumfs::units::{BLOCK_SIZE, InodeNumber};

const ROOT: InodeNumber = InodeNumber::ROOT;

fn set_size(tree: &Tree, file: InodeNumber, size: u64) {
    tree.fs.setattr(&CALLER, file, &SetAttributes { size: Some(size), ..SetAttributes::default() }).unwrap();
}

/// Blocks of 4 KiB that the file takes, written back or not.
fn blocks(tree: &Tree, file: InodeNumber) -> u64 {
    tree.attributes(file).blocks_512 / 8
}

#[test]
fn blocks_are_counted() {
    let mut tree = Tree::new();
    let file = tree.file(ROOT, "f");
    type Act = fn(&Tree, InodeNumber);
    // Dirty blocks over ones that are mapped may count twice until they are written back.
    let rows: [(&str, Act, u64); 8] = [
        ("one byte", |tree, file| no_value(tree.write(file, 0, b"x")).unwrap(), 1),
        ("far behind", |tree, file| no_value(tree.write(file, 1 << 40, &[1; 8192])).unwrap(), 3),
        ("over it", |tree, file| no_value(tree.write(file, (1 << 40) + 4096, &[2; 8192])).unwrap(), 4),
        ("a hole at the end", |tree, file| set_size(tree, file, 1 << 41), 4),
        ("punch", |tree, file| tree.fs.fallocate(&CALLER, file, 1 << 40, 4096, FallocateMode::PunchHole).unwrap(), 3),
        ("preallocated", |tree, file| tree.fs.fallocate(&CALLER, file, 8192, 40_960, FallocateMode::Allocate).unwrap(), 13),
        ("filled", |tree, file| no_value(tree.write(file, 8192, &[3; 4096])).unwrap(), 13),
        ("truncated", |tree, file| set_size(tree, file, 1), 1),
    ];
    for (step, act, expected) in rows {
        act(&tree, file);
        assert!((expected..=expected + 2).contains(&blocks(&tree, file)), "{step}, dirty: {}", blocks(&tree, file));
        tree.fsync(file).unwrap();
        assert_eq!(blocks(&tree, file), expected, "{step}, written back");
    }
    tree.fs.fallocate(&CALLER, file, 0, 1 << 20, FallocateMode::AllocateKeepSize).unwrap();
    assert_eq!((blocks(&tree, file), tree.attributes(file).size), (256, 1));
    tree.remount();
    let file = tree.fs.lookup(ROOT, b"f").unwrap().inode;
    assert_eq!((blocks(&tree, file), tree.attributes(file).size), (256, 1));
    set_size(&tree, file, 1);
    assert_eq!(blocks(&tree, file), 1, "truncation takes what was preallocated behind the end");
    tree.close();
}

#[test]
fn what_was_cut_off_never_comes_back() {
    let mut tree = Tree::new();
    for (number, cut) in [1, 4095, 4096, 5000, 8191].into_iter().enumerate() {
        for is_written_back in [false, true] {
            let name = format!("f{number}{is_written_back}");
            let file = tree.file(ROOT, &name);
            tree.write(file, 0, &[7; 12_288]).unwrap();
            if is_written_back {
                tree.fsync(file).unwrap();
            }
            set_size(&tree, file, cut);
            set_size(&tree, file, 20_000);
            let mut expected = vec![7; cut as usize];
            expected.resize(20_000, 0);
            assert!(tree.read(file, 0, 30_000).unwrap() == expected, "{name}, at once");
            tree.remount();
            let file = tree.fs.lookup(ROOT, name.as_bytes()).unwrap().inode;
            assert!(tree.read(file, 0, 30_000).unwrap() == expected, "{name}, after a remount");
            // And not by a write behind it, into the same block.
            tree.write(file, 8190, b"x").unwrap();
            expected[8190] = b'x';
            assert!(tree.read(file, 0, 30_000).unwrap() == expected, "{name}, after a write");
        }
    }
    tree.close();
}

/// Writes into new files until the store is full; the bytes that were accepted.
fn fill(tree: &Tree, round: usize, chunk: usize, flags: WriteFlags) -> u64 {
    let file = tree.fs.mknod(&CALLER, ROOT, format!("fill{round}").as_bytes(), REGULAR | 0o644, 0, 0).unwrap().inode;
    let mut written = 0;
    loop {
        let data = pattern(written, chunk);
        match tree.fs.write(&CALLER, file, written, &data, flags, Wait::Allowed) {
            Ok(count) => written += count as u64,
            Err(Error::NoSpace) => return written,
            Err(error) => panic!("filling: {error}"),
        }
    }
}

#[test]
fn a_full_store_keeps_its_promise_and_recovers() {
    let tree = Tree::with_size(64 << 20);
    tree.fs.sync().unwrap();
    for (round, (chunk, direct)) in
        [(1 << 20, false), (4096, false), (65_536, true), (1 << 20, true), (10_000, false)].into_iter().enumerate()
    {
        let promised = tree.fs.statfs().available * BLOCK_SIZE;
        assert!(promised > 32 << 20, "round {round}: only {promised} bytes");
        let written = fill(&tree, round, chunk, WriteFlags { direct, ..WriteFlags::default() });
        assert!(
            written.abs_diff(promised) <= promised / 100 + 2 * chunk as u64,
            "round {round}: {promised} promised, {written} written"
        );
        // Everything that was accepted can be made durable and read.
        tree.fs.sync().unwrap();
        let name = format!("fill{round}");
        let file = tree.fs.lookup(ROOT, name.as_bytes()).unwrap().inode;
        assert_eq!(tree.attributes(file).size, written);
        for offset in (0..written).step_by(chunk) {
            let len = (chunk as u64).min(written - offset) as usize;
            assert!(tree.read(file, offset, len).unwrap() == pattern(offset, chunk)[..len], "round {round} at {offset}");
        }
        // At 100 % these still work.
        tree.fs.setattr(&CALLER, file, &SetAttributes { mode: Some(0o600), ..SetAttributes::default() }).unwrap();
        tree.fs.rename(ROOT, name.as_bytes(), ROOT, b"renamed", RenameMode::Replace).unwrap();
        tree.fsync(file).unwrap();
        set_size(&tree, file, written / 2 + 1);
        tree.fs.unlink(ROOT, b"renamed").unwrap();
        tree.fs.forget(file, 2);
        tree.fs.sync().unwrap();
        let left = tree.fs.statfs().available * BLOCK_SIZE;
        assert!(left + (1 << 20) >= promised, "round {round}: {promised} bytes before, {left} after deletion");
    }
    tree.close();
}

#[test]
fn preallocation_is_a_promise_of_space() {
    let tree = Tree::with_size(64 << 20);
    let file = tree.file(ROOT, "f");
    tree.fs.fallocate(&CALLER, file, 0, 8 << 20, FallocateMode::Allocate).unwrap();
    assert!(tree.read(file, 0, 8 << 20).unwrap().iter().all(|byte| *byte == 0));
    let too_much = tree.fs.fallocate(&CALLER, file, 0, 1 << 40, FallocateMode::AllocateKeepSize);
    assert!(matches!(too_much, Err(Error::NoSpace)), "{too_much:?}");
    assert_eq!(tree.attributes(file).size, 8 << 20);
    fill(&tree, 0, 1 << 20, WriteFlags::default());
    fill(&tree, 1, 4096, WriteFlags::default());
    for number in 0..8 {
        let data = pattern(number, 1 << 20);
        assert_eq!(tree.write(file, number << 20, &data).unwrap(), data.len(), "MiB {number}");
    }
    tree.fsync(file).unwrap();
    for number in 0..8 {
        assert!(tree.read(file, number << 20, 1 << 20).unwrap() == pattern(number, 1 << 20));
    }
    tree.close();
}

#[test]
fn read_only_means_that_not_a_byte_changes() {
    let tree = Tree::new();
    let file = tree.file(ROOT, "f");
    tree.write(file, 0, &[5; 10_000]).unwrap();
    tree.fs.setxattr(&CALLER, file, b"user.a", b"1", XattrMode::Any).unwrap();
    tree.store.close(&tree.fs);
    let before = tree.store.fingerprint();
    let fs = tree.store.open_with(Options { read_only: true, background: false, ..Options::default() });
    assert!(fs.read_only_reason().is_some());
    let file = fs.lookup(ROOT, b"f").unwrap().inode;
    assert_eq!(fs.read(file, 0, 3, Default::default(), Wait::Allowed).unwrap().as_slice(), [5; 3]);
    assert_eq!(fs.getxattr(file, b"user.a").unwrap(), b"1");
    let change = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    let table = vec![
        ("create", no_value(fs.mknod(&CALLER, ROOT, b"n", REGULAR, 0, 0)), Error::ReadOnly("".into())),
        ("unlink", fs.unlink(ROOT, b"f"), Error::ReadOnly("".into())),
        ("chmod", no_value(fs.setattr(&CALLER, file, &change)), Error::ReadOnly("".into())),
        ("write", no_value(fs.write(&CALLER, file, 0, b"x", WriteFlags::default(), Wait::Allowed)), Error::ReadOnly("".into())),
        ("setxattr", fs.setxattr(&CALLER, file, b"user.b", b"1", XattrMode::Any), Error::ReadOnly("".into())),
        ("fallocate", fs.fallocate(&CALLER, file, 0, 1, FallocateMode::Allocate), Error::ReadOnly("".into())),
    ];
    super::assert_failures(table);
    fs.shutdown().unwrap();
    assert_eq!(tree.store.fingerprint(), before);
}
