//! copy_file_range: data is shared, not copied, and each file goes its own way afterwards.

use super::{CALLER, Failing, Tree, assert_failures, no_value};
use crate::operations::pattern;
use sumfs::error::Error;
use sumfs::fs::{FallocateMode, SetAttributes};
use sumfs::units::InodeNumber;

const ROOT: InodeNumber = InodeNumber::ROOT;
const LEN: usize = 3 << 20;

fn free(tree: &Tree) -> u64 {
    tree.fs.sync().unwrap();
    tree.fs.statfs().free
}

/// A file with `LEN` bytes of a pattern, written in pieces so that it has several extents, and a copy of it.
fn two(tree: &Tree) -> (InodeNumber, InodeNumber, Vec<u8>) {
    let (source, target) = (tree.file(ROOT, "source"), tree.file(ROOT, "target"));
    let bytes = pattern(1, LEN - 1000);
    for (number, piece) in bytes.chunks(700_000).enumerate() {
        tree.write(source, number as u64 * 700_000, piece).unwrap();
        tree.fsync(source).unwrap();
    }
    // The last of it is dirty when it is copied.
    tree.write(source, 0, &bytes[..5000]).unwrap();
    assert_eq!(tree.fs.copy_range(&CALLER, (source, 0), (target, 0), 1 << 40).unwrap(), bytes.len() as u64);
    (source, target, bytes)
}

#[test]
fn a_copy_takes_no_space_and_is_equal() {
    let mut tree = Tree::new();
    let (source, target, bytes) = two(&tree);
    let before = free(&tree);
    let third = tree.file(ROOT, "third");
    assert_eq!(tree.fs.copy_range(&CALLER, (target, 0), (third, 0), 1 << 40).unwrap(), bytes.len() as u64);
    assert_eq!(free(&tree), before, "the copy took blocks");
    let (found, original) = (tree.attributes(third), tree.attributes(source));
    assert_eq!((found.size, found.blocks_512), (original.size, original.blocks_512));
    tree.remount();
    for name in ["source", "target", "third"] {
        let file = tree.fs.lookup(ROOT, name.as_bytes()).unwrap().inode;
        assert!(tree.read(file, 0, LEN).unwrap() == bytes, "{name}");
    }
    tree.close();
}

#[test]
fn what_happens_to_one_file_does_not_happen_to_the_other() {
    type Act = fn(&Tree, InodeNumber);
    let table: [(&str, Act); 5] = [
        ("overwritten", |tree, file| no_value(tree.write(file, 100, &[9; 2 << 20])).unwrap()),
        ("truncated", |tree, file| {
            let change = SetAttributes { size: Some(70_001), ..SetAttributes::default() };
            no_value(tree.fs.setattr(&CALLER, file, &change)).unwrap();
        }),
        ("punched", |tree, file| tree.fs.fallocate(&CALLER, file, 5000, 1 << 20, FallocateMode::PunchHole).unwrap()),
        ("copied over", |tree, file| {
            let other = tree.file(ROOT, "other");
            tree.write(other, 0, &[5; 1 << 20]).unwrap();
            assert_eq!(tree.fs.copy_range(&CALLER, (other, 0), (file, 8192), 1 << 20).unwrap(), 1 << 20);
        }),
        ("removed", |tree, file| {
            let name: &[u8] =
                if tree.fs.lookup(ROOT, b"source").is_ok_and(|found| found.inode == file) { b"source" } else { b"target" };
            tree.fs.unlink(ROOT, name).unwrap();
            // Making it and looking it up.
            tree.fs.forget(file, 3);
        }),
    ];
    for (what, act) in table {
        for is_source in [true, false] {
            let mut tree = Tree::new();
            let (source, target, bytes) = two(&tree);
            let (changed, kept, name) = if is_source { (source, target, "target") } else { (target, source, "source") };
            act(&tree, changed);
            assert!(tree.read(kept, 0, LEN).unwrap() == bytes, "{what}, source: {is_source}");
            // What was freed is written over, if it was freed too early.
            tree.fs.sync().unwrap();
            let filler = tree.file(ROOT, "filler");
            tree.write(filler, 0, &pattern(7, 8 << 20)).unwrap();
            tree.remount();
            let kept = tree.fs.lookup(ROOT, name.as_bytes()).unwrap().inode;
            assert!(tree.read(kept, 0, LEN).unwrap() == bytes, "{what}, source: {is_source}, after a remount");
            tree.close();
        }
    }
}

#[test]
fn holes_and_preallocation_are_holes_of_the_copy() {
    let tree = Tree::new();
    let (source, target) = (tree.file(ROOT, "source"), tree.file(ROOT, "target"));
    tree.write(source, 4096, &[1; 4096]).unwrap();
    tree.fs.fallocate(&CALLER, source, 8192, 8192, FallocateMode::Allocate).unwrap();
    tree.write(target, 0, &[2; 40_960]).unwrap();
    tree.fsync(target).unwrap();
    assert_eq!(tree.fs.copy_range(&CALLER, (source, 0), (target, 4096), 16_384).unwrap(), 16_384);
    let expected = [vec![2; 4096], vec![0; 4096], vec![1; 4096], vec![0; 8192], vec![2; 20_480]].concat();
    assert!(tree.read(target, 0, 40_960).unwrap() == expected);
    tree.fsync(target).unwrap();
    assert_eq!(tree.attributes(target).blocks_512 / 8, 7, "three of ten blocks are holes now");
    tree.close();
}

#[test]
fn what_cannot_be_shared_is_left_to_the_caller() {
    let tree = Tree::new();
    let (source, target, directory) = (tree.file(ROOT, "source"), tree.file(ROOT, "target"), tree.directory(ROOT, "directory"));
    tree.write(source, 0, &[1; 20_000]).unwrap();
    tree.write(target, 0, &[2; 20_000]).unwrap();
    let copy = |from, to, len| no_value(tree.fs.copy_range(&CALLER, from, to, len));
    let table: Vec<Failing> = vec![
        ("from inside a block", copy((source, 1), (target, 0), 4096), Error::Unsupported),
        ("to inside a block", copy((source, 0), (target, 4095), 4096), Error::Unsupported),
        ("a part of a block", copy((source, 0), (target, 0), 4095), Error::Unsupported),
        ("onto itself", copy((source, 0), (source, 4096), 4097), Error::Invalid("")),
        ("too far", copy((source, 0), (target, i64::MAX as u64 - 4095), 8192), Error::FileTooLarge),
        ("from a directory", copy((directory, 0), (target, 0), 1), Error::IsDirectory),
        ("to a directory", copy((source, 0), (directory, 0), 1), Error::IsDirectory),
    ];
    assert_failures(table);
    assert!(tree.read(target, 0, 30_000).unwrap() == [2; 20_000]);
    let copied = |from, to, len| tree.fs.copy_range(&CALLER, from, to, len).unwrap();
    assert_eq!(copied((source, 20_000), (target, 0), 100), 0, "at the end of the source");
    assert_eq!(copied((source, 0), (target, 0), 10_000), 8192, "whole blocks only, the target goes on");
    assert_eq!(copied((source, 16_384), (target, 16_384), 10_000), 3616, "up to both ends");
    assert_eq!(copied((source, 0), (source, 20_480), 20_480), 20_000, "inside one file");
    assert_eq!(tree.attributes(source).size, 40_480);
    let expected = [vec![1; 8192], vec![2; 8192], vec![1; 3616]].concat();
    assert!(tree.read(target, 0, 30_000).unwrap() == expected);
    tree.close();
}
