//! What chattr(1) sets, and what it forbids.

use super::{CALLER, REGULAR, Tree, no_value};
use sumfs::error::{Error, Result};
use sumfs::fs::{FallocateMode, InodeFlags, Options, RenameMode, SetAttributes, SetTime, WriteFlags, XattrMode};
use sumfs::lock::Wait;
use sumfs::units::{InodeNumber, Timestamp};

const ROOT: InodeNumber = InodeNumber::ROOT;
const NONE: InodeFlags = InodeFlags { immutable: false, append_only: false, no_atime: false };
const IMMUTABLE: InodeFlags = InodeFlags { immutable: true, ..NONE };
const APPEND_ONLY: InodeFlags = InodeFlags { append_only: true, ..NONE };
const THEN: Timestamp = Timestamp { seconds: 1000, nanoseconds: 0 };

fn options() -> Options {
    Options { chattr: true, background: false, ..Options::default() }
}

fn tree() -> Tree {
    let mut tree = Tree::new();
    tree.store.close(&tree.fs);
    tree.fs = tree.store.open_with(options());
    tree
}

/// A call, and whether it is refused of something immutable and of something append-only.
type Row<'a> = (&'static str, Box<dyn Fn() -> Result<()> + 'a>, [bool; 2]);

/// Runs every row with the flag set: refused as it says. Then without: done.
fn assert_rows(tree: &Tree, inode: InodeNumber, rows: &[Row<'_>]) {
    for (column, flags) in [IMMUTABLE, APPEND_ONLY].into_iter().enumerate() {
        tree.fs.set_inode_flags(inode, flags).unwrap();
        for (call, run, refused) in rows.iter().filter(|(_, _, refused)| refused[column]) {
            assert!(matches!(run(), Err(Error::NotPermitted)), "{call} with {flags:?}, refused: {refused:?}");
        }
        for (call, run, _) in rows.iter().filter(|(_, _, refused)| !refused[column]) {
            run().unwrap_or_else(|error| panic!("{call} with {flags:?}: {error}"));
        }
        tree.fs.set_inode_flags(inode, NONE).unwrap();
    }
    for (call, run, _) in rows {
        run().unwrap_or_else(|error| panic!("{call} without a flag: {error}"));
    }
}

/// Renames `f` and renames it back.
fn there_and_back(tree: &Tree, name: &'static [u8], mode: RenameMode) -> impl Fn() -> Result<()> {
    move || {
        tree.fs.rename(ROOT, b"f", ROOT, name, mode)?;
        tree.fs.rename(ROOT, name, ROOT, b"f", mode)
    }
}

#[test]
fn a_protected_file() {
    let tree = tree();
    let (file, other) = (tree.file(ROOT, "f"), tree.file(ROOT, "other"));
    tree.write(file, 0, &[1; 8192]).unwrap();
    tree.write(other, 0, &[2; 8192]).unwrap();
    tree.fs.setxattr(&CALLER, file, b"user.a", b"v", XattrMode::Any).unwrap();
    let fs = &tree.fs;
    let set = |change: SetAttributes| move || no_value(fs.setattr(&CALLER, file, &change));
    let nothing = SetAttributes::default();
    let allocate = |mode: fn() -> FallocateMode| move || fs.fallocate(&CALLER, file, 0, 4096, mode());
    let cached = WriteFlags { from_cache: true, ..WriteFlags::default() };
    let rows: Vec<Row<'_>> = vec![
        ("read", Box::new(|| no_value(tree.read(file, 0, 10))), [false, false]),
        ("open to read", Box::new(|| fs.open_file(file, false, false)), [false, false]),
        ("open to write", Box::new(|| fs.open_file(file, true, false)), [true, true]),
        ("open to append", Box::new(|| fs.open_file(file, true, true)), [true, false]),
        ("write", Box::new(|| no_value(tree.write(file, 0, b"data"))), [true, false]),
        (
            "write of what the kernel took before",
            Box::new(|| no_value(fs.write(&CALLER, file, 0, b"data", cached, Wait::Allowed))),
            [false, false],
        ),
        ("truncate", Box::new(set(SetAttributes { size: Some(100), ..nothing })), [true, true]),
        ("chmod", Box::new(set(SetAttributes { mode: Some(0o600), ..nothing })), [true, true]),
        ("chown", Box::new(set(SetAttributes { uid: Some(5), ..nothing })), [true, true]),
        (
            "touch",
            Box::new(set(SetAttributes { accessed: Some(SetTime::Now), modified: Some(SetTime::Now), ..nothing })),
            [true, false],
        ),
        ("touch back", Box::new(set(SetAttributes { accessed: Some(SetTime::To(THEN)), ..nothing })), [true, true]),
        ("setxattr", Box::new(|| fs.setxattr(&CALLER, file, b"user.a", b"w", XattrMode::Any)), [true, true]),
        ("preallocate", Box::new(allocate(|| FallocateMode::Allocate)), [true, false]),
        ("punch", Box::new(allocate(|| FallocateMode::PunchHole)), [true, true]),
        ("copy into it", Box::new(|| no_value(fs.copy_range(&CALLER, (other, 0), (file, 0), 4096))), [true, false]),
        (
            "link",
            Box::new(|| {
                no_value(fs.link(file, ROOT, b"g"))?;
                fs.unlink(ROOT, b"g")
            }),
            [true, true],
        ),
        ("rename", Box::new(there_and_back(&tree, b"f2", RenameMode::Replace)), [true, true]),
        ("exchange", Box::new(there_and_back(&tree, b"other", RenameMode::Exchange)), [true, true]),
        ("setting an access list", Box::new(|| fs.removexattr(&CALLER, file, b"system.posix_acl_access")), [true, true]),
        ("removexattr", Box::new(|| fs.removexattr(&CALLER, file, b"user.a")), [true, true]),
        ("unlink", Box::new(|| fs.unlink(ROOT, b"f")), [true, true]),
    ];
    assert_rows(&tree, file, &rows);
    drop(rows);
    tree.fs.forget(file, 100);
    tree.close();
}

#[test]
fn a_protected_directory() {
    let tree = tree();
    let directory = tree.directory(ROOT, "d");
    let file = tree.file(ROOT, "f");
    for name in ["old", "older"] {
        tree.file(directory, name);
    }
    tree.directory(directory, "inner");
    let fs = &tree.fs;
    let make = |name: &'static [u8]| move || no_value(fs.mknod(&CALLER, directory, name, REGULAR | 0o644, 0, 0));
    let rows: Vec<Row<'_>> = vec![
        ("list", Box::new(|| drop_names(&tree, directory)), [false, false]),
        ("rmdir of it", Box::new(|| fs.rmdir(ROOT, b"d").or_else(not_empty)), [true, true]),
        ("rmdir in it", Box::new(|| fs.rmdir(directory, b"inner")), [true, true]),
        ("unlink in it", Box::new(|| fs.unlink(directory, b"old")), [true, true]),
        ("rename out of it", Box::new(|| fs.rename(directory, b"older", ROOT, b"out", RenameMode::Replace)), [true, true]),
        (
            "chmod",
            Box::new(|| no_value(fs.setattr(&CALLER, directory, &SetAttributes { mode: Some(0o700), ..Default::default() }))),
            [true, true],
        ),
    ];
    assert_rows(&tree, directory, &rows);
    drop(rows);
    tree.fs.set_inode_flags(directory, APPEND_ONLY).unwrap();
    make(b"new")().unwrap();
    no_value(fs.link(file, directory, b"link")).unwrap();
    fs.rename(ROOT, b"out", directory, b"in", RenameMode::Replace).unwrap();
    assert!(
        matches!(fs.rename(ROOT, b"f", directory, b"new", RenameMode::Replace), Err(Error::NotPermitted)),
        "it would lose one"
    );
    tree.fs.set_inode_flags(directory, IMMUTABLE).unwrap();
    for (call, refused) in [
        ("create", make(b"newer")()),
        ("mkdir", no_value(fs.mkdir(&CALLER, directory, b"sub", 0o755, 0))),
        ("symlink", no_value(fs.symlink(&CALLER, directory, b"s", b"t"))),
        ("link", no_value(fs.link(file, directory, b"link2"))),
        ("tmpfile", no_value(fs.tmpfile(&CALLER, directory, 0o600, 0))),
        ("rename into it", fs.rename(ROOT, b"f", directory, b"f", RenameMode::Replace)),
    ] {
        assert!(matches!(refused, Err(Error::NotPermitted)), "{call}: {refused:?}");
    }
    assert_eq!(tree.write(fs.lookup(directory, b"new").unwrap().inode, 0, b"data").unwrap(), 4, "only the names are protected");
    tree.close();
}

fn drop_names(tree: &Tree, directory: InodeNumber) -> Result<()> {
    tree.names(directory);
    Ok(())
}

/// What is not removed because it is not empty was not refused.
fn not_empty(error: Error) -> Result<()> {
    if matches!(error, Error::NotEmpty) { Ok(()) } else { Err(error) }
}

#[test]
fn flags_need_the_option_once_and_survive() {
    let mut tree = Tree::new();
    let file = tree.file(ROOT, "f");
    assert!(!tree.fs.sees_opens());
    assert!(matches!(tree.fs.set_inode_flags(file, IMMUTABLE), Err(Error::Unsupported)));
    tree.fs.set_inode_flags(file, InodeFlags { no_atime: true, ..NONE }).unwrap();
    tree.store.close(&tree.fs);
    tree.fs = tree.store.open_with(options());
    let file = tree.fs.lookup(ROOT, b"f").unwrap().inode;
    let before = tree.attributes(file).accessed;
    assert!(tree.fs.sees_opens());
    tree.fs.set_inode_flags(file, InodeFlags { no_atime: true, ..APPEND_ONLY }).unwrap();
    // Without the option again: what is protected stays so, and more may be.
    tree.remount();
    let file = tree.fs.lookup(ROOT, b"f").unwrap().inode;
    assert!(tree.fs.sees_opens());
    assert_eq!(tree.fs.inode_flags(file).unwrap(), InodeFlags { no_atime: true, ..APPEND_ONLY });
    assert!(matches!(tree.fs.unlink(ROOT, b"f"), Err(Error::NotPermitted)));
    tree.fs.set_inode_flags(ROOT, IMMUTABLE).unwrap();
    assert_eq!(tree.attributes(file).accessed, before);
    tree.close();
}

#[test]
fn access_times_that_a_flag_or_an_option_leaves() {
    let mut tree = Tree::new();
    let (directory, file) = (tree.directory(ROOT, "d"), tree.file(ROOT, "f"));
    tree.write(file, 0, b"data").unwrap();
    let look = |tree: &Tree| {
        let age = SetAttributes { accessed: Some(SetTime::To(THEN)), ..SetAttributes::default() };
        for inode in [file, directory] {
            tree.fs.setattr(&CALLER, inode, &age).unwrap();
        }
        tree.read(file, 0, 4).unwrap();
        tree.names(directory);
        [file, directory].map(|inode| tree.attributes(inode).accessed != THEN)
    };
    assert_eq!(look(&tree), [true, true]);
    for inode in [file, directory] {
        tree.fs.set_inode_flags(inode, InodeFlags { no_atime: true, ..NONE }).unwrap();
    }
    assert_eq!(look(&tree), [false, false]);
    let inherits = tree.file(directory, "g");
    assert!(tree.fs.inode_flags(inherits).unwrap().no_atime);
    for inode in [file, directory] {
        tree.fs.set_inode_flags(inode, NONE).unwrap();
    }
    tree.store.close(&tree.fs);
    tree.fs = tree.store.open_with(Options { nodiratime: true, background: false, ..Options::default() });
    assert_eq!(look(&tree), [true, false]);
    tree.close();
}
