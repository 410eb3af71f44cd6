//! Attributes: which call changes which times, modes of new nodes, what clears setuid, relatime, what setattr answers.

use super::{CALLER, Failing, REGULAR, Tree, assert_failures, no_value};
use sumfs::error::Error;
use sumfs::fs::{
    AccessTimes, Attributes, Caller, FallocateMode, Options, ReadFlags, RenameMode, SetAttributes, SetTime, WriteFlags, XattrMode,
};
use sumfs::lock::Wait;
use sumfs::units::{FILE_SIZE_MAX, InodeNumber, Timestamp};

const ROOT: InodeNumber = InodeNumber::ROOT;
const LONG_AGO: Timestamp = Timestamp { seconds: 1000, nanoseconds: 1 };

/// Which of accessed, modified, changed are not LONG_AGO, as letters.
fn touched(attributes: &Attributes) -> String {
    let times = [('a', attributes.accessed), ('m', attributes.modified), ('c', attributes.changed)];
    times.into_iter().filter(|(_, time)| *time != LONG_AGO).map(|(letter, _)| letter).collect()
}

fn age(tree: &Tree, inode: InodeNumber) {
    let change = SetAttributes {
        accessed: Some(SetTime::To(LONG_AGO)),
        modified: Some(SetTime::To(LONG_AGO)),
        changed: Some(LONG_AGO),
        ..SetAttributes::default()
    };
    let answered = tree.fs.setattr(&CALLER, inode, &change).unwrap();
    assert_eq!((touched(&answered), touched(&tree.attributes(inode))), (String::new(), String::new()));
}

/// A call on a file, its directory and another directory.
type Call = Box<dyn Fn(&Tree, [InodeNumber; 3])>;
/// A call, and the times that it sets of the three.
type Row = (&'static str, Call, [&'static str; 3]);

fn set(change: SetAttributes) -> Call {
    Box::new(move |tree, [file, ..]| {
        let SetAttributes { mode, uid, gid, size, .. } = change;
        tree.fs.setattr(&CALLER, file, &SetAttributes { mode, uid, gid, size, ..SetAttributes::default() }).unwrap();
    })
}

fn rows_of_names() -> Vec<Row> {
    vec![
        ("getattr", Box::new(|tree, [file, ..]| no_value(tree.fs.getattr(file)).unwrap()), ["", "", ""]),
        ("lookup", Box::new(|tree, [_, dir, _]| no_value(tree.fs.lookup(dir, b"f")).unwrap()), ["", "", ""]),
        ("link", Box::new(|tree, [file, _, other]| no_value(tree.fs.link(file, other, b"g")).unwrap()), ["c", "", "mc"]),
        ("unlink", Box::new(|tree, [_, dir, _]| tree.fs.unlink(dir, b"f").unwrap()), ["c", "mc", ""]),
        (
            "rename",
            Box::new(|tree, [_, dir, other]| tree.fs.rename(dir, b"f", other, b"g", RenameMode::Replace).unwrap()),
            ["c", "mc", "mc"],
        ),
        (
            "rename in a directory",
            Box::new(|tree, [_, dir, _]| tree.fs.rename(dir, b"f", dir, b"g", RenameMode::Replace).unwrap()),
            ["c", "mc", ""],
        ),
        (
            "rename over it",
            Box::new(|tree, [_, dir, other]| {
                tree.file(other, "new");
                age(tree, other);
                tree.fs.rename(other, b"new", dir, b"f", RenameMode::Replace).unwrap();
            }),
            ["c", "mc", "mc"],
        ),
        (
            "exchange",
            Box::new(|tree, [_, dir, other]| {
                tree.file(other, "new");
                age(tree, other);
                tree.fs.rename(other, b"new", dir, b"f", RenameMode::Exchange).unwrap();
            }),
            ["c", "mc", "mc"],
        ),
        ("create", Box::new(|tree, [_, dir, _]| no_value(Ok(tree.file(dir, "new"))).unwrap()), ["", "mc", ""]),
        ("mkdir", Box::new(|tree, [_, dir, _]| no_value(Ok(tree.directory(dir, "new"))).unwrap()), ["", "mc", ""]),
        ("symlink", Box::new(|tree, [_, dir, _]| no_value(tree.fs.symlink(&CALLER, dir, b"s", b"t")).unwrap()), ["", "mc", ""]),
    ]
}

fn rows_of_data() -> Vec<Row> {
    let fallocate = |mode: fn() -> FallocateMode| -> Call {
        Box::new(move |tree, [file, ..]| tree.fs.fallocate(&CALLER, file, 100, 9000, mode()).unwrap())
    };
    vec![
        ("write", Box::new(|tree, [file, ..]| no_value(tree.write(file, 5, b"data")).unwrap()), ["mc", "", ""]),
        (
            "O_DIRECT write",
            Box::new(|tree, [file, ..]| {
                let flags = WriteFlags { direct: true, ..WriteFlags::default() };
                tree.fs.write(&CALLER, file, 0, &[1; 8192], flags, Wait::Allowed).unwrap();
            }),
            ["mc", "", ""],
        ),
        ("read", Box::new(|tree, [file, ..]| no_value(tree.read(file, 0, 10)).unwrap()), ["a", "", ""]),
        ("readdir", Box::new(|tree, [_, dir, _]| drop(tree.names(dir))), ["", "a", ""]),
        ("truncate", set(SetAttributes { size: Some(3), ..SetAttributes::default() }), ["mc", "", ""]),
        ("fallocate", fallocate(|| FallocateMode::Allocate), ["mc", "", ""]),
        ("punch", fallocate(|| FallocateMode::PunchHole), ["mc", "", ""]),
        ("zero range", fallocate(|| FallocateMode::ZeroRange), ["mc", "", ""]),
        ("fsync", Box::new(|tree, [file, ..]| tree.fsync(file).unwrap()), ["", "", ""]),
        ("sync", Box::new(|tree, _| tree.fs.sync().unwrap()), ["", "", ""]),
        ("setattr of nothing", set(SetAttributes::default()), ["", "", ""]),
        ("chmod", set(SetAttributes { mode: Some(0o600), ..SetAttributes::default() }), ["c", "", ""]),
        ("chown", set(SetAttributes { uid: Some(5), ..SetAttributes::default() }), ["c", "", ""]),
        (
            "setxattr",
            Box::new(|tree, [file, ..]| tree.fs.setxattr(&CALLER, file, b"user.n", b"v", XattrMode::Any).unwrap()),
            ["c", "", ""],
        ),
        ("removexattr", Box::new(|tree, [file, ..]| tree.fs.removexattr(&CALLER, file, b"user.old").unwrap()), ["c", "", ""]),
        ("getxattr", Box::new(|tree, [file, ..]| no_value(tree.fs.getxattr(file, b"user.old")).unwrap()), ["", "", ""]),
    ]
}

#[test]
fn each_call_sets_the_times_that_it_should() {
    let tree = Tree::new();
    let mut wrong = Vec::new();
    for (number, (call, run, expected)) in rows_of_names().into_iter().chain(rows_of_data()).enumerate() {
        let (dir, other) = (tree.directory(ROOT, &format!("d{number}")), tree.directory(ROOT, &format!("o{number}")));
        let file = tree.file(dir, "f");
        tree.write(file, 0, &[1; 10_000]).unwrap();
        tree.fs.setxattr(&CALLER, file, b"user.old", b"v", XattrMode::Any).unwrap();
        for inode in [file, dir, other] {
            age(&tree, inode);
        }
        run(&tree, [file, dir, other]);
        let found = [file, dir, other].map(|inode| touched(&tree.attributes(inode)));
        if found != expected {
            wrong.push(format!("{call}: sets {found:?} of file, directory, other directory; expected {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "times:\n  {}", wrong.join("\n  "));
    tree.close();
}

#[test]
fn times_survive_a_remount_to_the_nanosecond() {
    let mut tree = Tree::new();
    let file = tree.file(ROOT, "f");
    let times = [(-1, 999_999_999), (-(1 << 40), 0), (1 << 40, 123_456_789)];
    let [accessed, modified, _] = times.map(|(seconds, nanoseconds)| Timestamp { seconds, nanoseconds });
    let change = SetAttributes {
        accessed: Some(SetTime::To(accessed)),
        modified: Some(SetTime::To(modified)),
        ..SetAttributes::default()
    };
    tree.fs.setattr(&CALLER, file, &change).unwrap();
    let before = tree.attributes(file);
    tree.remount();
    let after = tree.fs.lookup(ROOT, b"f").unwrap();
    assert_eq!((after.accessed, after.modified), (accessed, modified));
    assert_eq!((after.changed, after.created), (before.changed, before.created));
    tree.close();
}

#[test]
fn access_times_follow_the_option() {
    let stamp = |seconds| Timestamp { seconds, nanoseconds: 0 };
    let now = sumfs::clock::now();
    let recent = stamp(now.seconds - 3600);
    // accessed, modified and changed before the read; is accessed new afterwards, for each option?
    let rows = [
        (LONG_AGO, LONG_AGO, LONG_AGO, [true, false, true]),
        (recent, LONG_AGO, LONG_AGO, [false, false, true]),
        (recent, stamp(recent.seconds + 1), LONG_AGO, [true, false, true]),
        (recent, LONG_AGO, stamp(recent.seconds + 1), [true, false, true]),
    ];
    let options = [AccessTimes::Relatime, AccessTimes::Noatime, AccessTimes::Strictatime];
    for (column, access_times) in options.into_iter().enumerate() {
        let mut tree = Tree::new();
        let file = tree.file(ROOT, "f");
        tree.write(file, 0, b"data").unwrap();
        tree.store.close(&tree.fs);
        let label = format!("{access_times:?}");
        tree.fs = tree.store.open_with(Options { access_times, background: false, ..Options::default() });
        tree.fs.lookup(ROOT, b"f").unwrap();
        for (row, (accessed, modified, changed, expected)) in rows.iter().enumerate() {
            let change = SetAttributes {
                accessed: Some(SetTime::To(*accessed)),
                modified: Some(SetTime::To(*modified)),
                changed: Some(*changed),
                ..SetAttributes::default()
            };
            tree.fs.setattr(&CALLER, file, &change).unwrap();
            tree.fs.read(file, 0, 4, ReadFlags { no_atime: true, direct: false }, Wait::Allowed).unwrap();
            assert_eq!(tree.attributes(file).accessed, *accessed, "{label}, row {row}: O_NOATIME");
            tree.read(file, 0, 4).unwrap();
            assert_eq!(tree.attributes(file).accessed != *accessed, expected[column], "{label}, row {row}");
        }
        tree.close();
    }
}

#[test]
fn new_nodes_have_the_mode_and_owner_that_they_should() {
    let tree = Tree::new();
    let caller = Caller { uid: 10, gid: 20, pid: 1 };
    let made = tree.fs.mknod(&caller, ROOT, b"f", REGULAR | 0o6666, 0o027, 0).unwrap();
    assert_eq!((made.mode, made.uid, made.gid, made.links, made.size), (REGULAR | 0o6640, 10, 20, 1, 0));
    let plain = tree.fs.mkdir(&caller, ROOT, b"d", 0o777, 0o022).unwrap();
    assert_eq!((plain.mode, plain.uid, plain.gid, plain.links), (0o040_755, 10, 20, 2));
    let link = tree.fs.symlink(&caller, ROOT, b"s", b"target").unwrap();
    assert_eq!((link.mode, link.uid, link.size, link.links), (0o120_777, 10, 6, 1));
    let kinds = [(0o010_000, 0, 0), (0o140_000, 0, 0), (0o020_000, 0x0501, 0x0501), (0o060_000, 0x0801, 0x0801)];
    for (number, (kind, rdev, expected)) in kinds.into_iter().enumerate() {
        let special = tree.fs.mknod(&caller, ROOT, format!("k{number}").as_bytes(), kind | 0o600, 0, rdev).unwrap();
        assert_eq!((special.mode, special.rdev), (kind | 0o600, expected));
    }
    // A setgid directory gives its group on, and to directories the bit.
    let change = SetAttributes { mode: Some(0o2775), gid: Some(77), ..SetAttributes::default() };
    let shared = tree.fs.mkdir(&CALLER, ROOT, b"shared", 0o777, 0).unwrap().inode;
    tree.fs.setattr(&CALLER, shared, &change).unwrap();
    let changed = tree.attributes(shared);
    // One call may give the mode and the group; the mode wins over what the change of group would clear.
    assert_eq!((changed.mode & 0o7777, changed.gid), (0o2775, 77));
    let file = tree.fs.mknod(&caller, shared, b"f", REGULAR | 0o664, 0, 0).unwrap();
    assert_eq!((file.mode & 0o7777, file.uid, file.gid), (0o664, 10, 77));
    let inner = tree.fs.mkdir(&caller, shared, b"d", 0o755, 0).unwrap();
    assert_eq!((inner.mode & 0o7777, inner.gid), (0o2755, 77));
    assert_eq!(tree.fs.symlink(&caller, shared, b"s", b"t").unwrap().gid, 77);
    tree.close();
}

#[test]
fn writes_and_owners_clear_setuid() {
    let tree = Tree::new();
    let kill = WriteFlags { kill_suid: true, ..WriteFlags::default() };
    type Act = Box<dyn Fn(InodeNumber)>;
    let fs = &tree.fs;
    let write = |flags: WriteFlags| -> Act {
        let fs = fs.clone();
        Box::new(move |file| no_value(fs.write(&CALLER, file, 0, b"data", flags, Wait::Allowed)).unwrap())
    };
    let own = |uid, gid| -> Act {
        let fs = fs.clone();
        Box::new(move |inode| {
            let change = SetAttributes { uid, gid, ..SetAttributes::default() };
            no_value(fs.setattr(&CALLER, inode, &change)).unwrap();
        })
    };
    // No process has the number 0, so neither has further groups.
    let stranger = Caller { uid: 9, gid: 9, pid: 0 };
    let member = Caller { gid: 0, ..stranger };
    let by = |caller: Caller, change: SetAttributes| -> Act {
        let fs = fs.clone();
        Box::new(move |file| no_value(fs.setattr(&caller, file, &change)).unwrap())
    };
    let kills = SetAttributes { kill_suid: true, ..SetAttributes::default() };
    let cuts = SetAttributes { size: Some(0), ..kills };
    let rows: Vec<(&str, u32, Act, u32)> = vec![
        ("a write that must", 0o6755, write(kill), 0o755),
        ("a write that need not", 0o6755, write(WriteFlags::default()), 0o6755),
        ("a write that must; setgid without group execute is no setgid", 0o6744, write(kill), 0o2744),
        ("chown", 0o6755, own(Some(3), None), 0o755),
        ("chgrp", 0o6755, own(None, Some(3)), 0o755),
        ("chown; setgid without group execute", 0o6744, own(Some(4), None), 0o2744),
        ("chown to nobody else", 0o6755, by(stranger, kills), 0o755),
        ("chown to nobody else; setgid without group execute", 0o6744, by(CALLER, kills), 0o2744),
        ("the same by a member", 0o6744, by(member, kills), 0o2744),
        ("the same by a stranger", 0o6744, by(stranger, kills), 0o744),
        ("a truncation that must", 0o6755, by(stranger, cuts), 0o755),
        ("a truncation that need not", 0o6755, by(CALLER, SetAttributes { size: Some(0), ..SetAttributes::default() }), 0o6755),
    ];
    for (call, mode, act, expected) in rows {
        let file = tree.fs.mknod(&CALLER, ROOT, call.as_bytes(), REGULAR | mode, 0, 0).unwrap().inode;
        act(file);
        assert_eq!(tree.attributes(file).mode & 0o7777, expected, "{call}");
    }
    let directory = tree.fs.mkdir(&CALLER, ROOT, b"d", 0o2755, 0).unwrap().inode;
    tree.fs.setattr(&CALLER, directory, &SetAttributes { mode: Some(0o6755), ..SetAttributes::default() }).unwrap();
    own(Some(3), Some(3))(directory);
    by(CALLER, kills)(directory);
    assert_eq!(tree.attributes(directory).mode & 0o7777, 0o6755, "a directory keeps them");
    tree.close();
}

#[test]
fn writes_truncation_and_owners_remove_capabilities() {
    let tree = Tree::new();
    let fs = &tree.fs;
    let set = |change: SetAttributes| no_value(fs.setattr(&CALLER, fs.lookup(ROOT, b"f").unwrap().inode, &change));
    let write = |flags| no_value(fs.write(&CALLER, fs.lookup(ROOT, b"f").unwrap().inode, 0, b"data", flags, Wait::Allowed));
    let file = tree.file(ROOT, "f");
    type Act<'a> = Box<dyn Fn() -> sumfs::error::Result<()> + 'a>;
    let rows: Vec<(&str, Act<'_>, bool)> = vec![
        ("write", Box::new(|| write(WriteFlags::default())), false),
        ("write of the kernel's cache", Box::new(|| write(WriteFlags { from_cache: true, ..WriteFlags::default() })), false),
        ("truncate", Box::new(|| set(SetAttributes { size: Some(1), ..SetAttributes::default() })), false),
        ("chown", Box::new(|| set(SetAttributes { uid: Some(1), ..SetAttributes::default() })), false),
        ("chmod", Box::new(|| set(SetAttributes { mode: Some(0o711), ..SetAttributes::default() })), true),
        ("read", Box::new(|| no_value(tree.read(file, 0, 10))), true),
    ];
    for (call, act, stays) in rows {
        fs.setxattr(&CALLER, file, b"security.capability", &[1; 20], XattrMode::Any).unwrap();
        act().unwrap();
        assert_eq!(fs.getxattr(file, b"security.capability").is_ok(), stays, "{call}");
    }
    tree.close();
}

#[test]
fn sizes_have_limits() {
    let tree = Tree::new();
    let (file, directory) = (tree.file(ROOT, "f"), tree.directory(ROOT, "d"));
    let fs = &tree.fs;
    let size =
        |inode, size| no_value(fs.setattr(&CALLER, inode, &SetAttributes { size: Some(size), ..SetAttributes::default() }));
    let allocate = |inode, offset, len| fs.fallocate(&CALLER, inode, offset, len, FallocateMode::Allocate);
    let fifo = fs.mknod(&CALLER, ROOT, b"p", 0o010_600, 0, 0).unwrap().inode;
    let table: Vec<Failing> = vec![
        ("write past the largest size", no_value(tree.write(file, FILE_SIZE_MAX - 1, b"ab")), Error::FileTooLarge),
        ("write at the end of numbers", no_value(tree.write(file, u64::MAX, b"ab")), Error::FileTooLarge),
        ("truncate past the largest size", size(file, FILE_SIZE_MAX + 1), Error::FileTooLarge),
        ("fallocate past the largest size", allocate(file, FILE_SIZE_MAX, 1), Error::FileTooLarge),
        ("fallocate at the end of numbers", allocate(file, u64::MAX - 1, 100), Error::FileTooLarge),
        ("fallocate of nothing", allocate(file, 0, 0), Error::Invalid("")),
        ("fallocate of a directory", allocate(directory, 0, 1), Error::IsDirectory),
        ("truncate of a directory", size(directory, 0), Error::IsDirectory),
        ("truncate of a fifo", size(fifo, 0), Error::Invalid("")),
    ];
    assert_failures(table);
    assert_eq!(tree.attributes(file).size, 0);
    size(file, FILE_SIZE_MAX).unwrap();
    tree.write(file, FILE_SIZE_MAX - 3, b"end").unwrap();
    assert_eq!(tree.read(file, FILE_SIZE_MAX - 5, 100).unwrap(), b"\0\0end");
    assert_eq!(tree.read(file, FILE_SIZE_MAX, 100).unwrap(), b"");
    size(file, 0).unwrap();
    tree.close();
}

/// The kernel with its writeback cache keeps the times itself: what it did not ask for must not change them behind its back.
#[test]
fn the_kernel_keeps_the_times_of_what_it_caches() {
    let mut tree = Tree::new();
    tree.store.close(&tree.fs);
    tree.fs = tree.store.open_with(Options { kernel_caches: true, background: false, ..Options::default() });
    let (file, copy) = (tree.file(ROOT, "f"), tree.file(ROOT, "g"));
    tree.write(file, 0, &[7; 8192]).unwrap();
    tree.fs.fsync(file, false, Box::new(|result| result.unwrap()));
    age(&tree, file);
    age(&tree, copy);
    tree.fs.fallocate(&CALLER, file, 0, 4096, FallocateMode::PunchHole).unwrap();
    assert_eq!(tree.fs.copy_range(&CALLER, (file, 0), (copy, 0), 8192).unwrap(), 8192);
    assert!(!touched(&tree.attributes(file)).contains(['m', 'c']) && touched(&tree.attributes(copy)).is_empty());
    tree.close();
}
