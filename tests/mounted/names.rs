//! Operations on names, attributes and extended attributes, each on a fresh mount; run by [`smoke`](crate::smoke).

use rustix::fs::{AtFlags, CWD, FileType, Mode, RenameFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

/// All extended attributes of a file (of a link itself, not of its target).
pub fn xattrs(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0; 65_536];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &str| {
        let mut value = vec![0; 65_536];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        value.truncate(length);
        value
    };
    names.map(|name| std::str::from_utf8(name).unwrap()).map(|name| (name.to_owned(), value(name))).collect()
}

fn names(directory: &Path) -> BTreeSet<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[track_caller]
fn assert_errno<T: std::fmt::Debug>(result: std::io::Result<T>, expected: Errno) {
    let error = result.expect_err("an error was expected");
    assert_eq!(error.raw_os_error(), Some(expected.raw_os_error()), "{error}");
}

/// Files and directories come and go; link counts of directories follow.
pub fn create_and_remove(root: &Path) {
    let links = |path: &Path| fs::metadata(path).unwrap().nlink();
    assert_eq!(links(root), 2);
    fs::create_dir(root.join("a")).unwrap();
    fs::create_dir_all(root.join("a/b/c/d/e")).unwrap();
    assert_eq!((links(root), links(&root.join("a")), links(&root.join("a/b/c/d/e"))), (3, 3, 2));
    for name in ["one", "two", "a/three", "a/b/c/four"] {
        fs::write(root.join(name), name).unwrap();
    }
    fs::remove_file(root.join("two")).unwrap();
    fs::remove_dir(root.join("a/b/c/d/e")).unwrap();
    fs::remove_dir(root.join("a/b/c/d")).unwrap();
    assert_eq!(names(root), ["a", "one"].map(str::to_owned).into());
    assert_eq!(names(&root.join("a/b/c")), ["four"].map(str::to_owned).into());
    fs::create_dir(root.join("gone")).unwrap();
    fs::write(root.join("gone/file"), "x").unwrap();
    fs::remove_dir_all(root.join("gone")).unwrap();
    assert!(!root.join("gone").exists());
}

/// What POSIX says when something cannot be.
pub fn errors(root: &Path) {
    let (file, directory) = (root.join("file"), root.join("directory"));
    fs::write(&file, "x").unwrap();
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("inside"), "x").unwrap();
    assert_errno(File::open(root.join("missing")), Errno::NOENT);
    assert_errno(fs::create_dir(&directory), Errno::EXIST);
    assert_errno(File::create_new(&file), Errno::EXIST);
    assert_errno(fs::remove_dir(&directory), Errno::NOTEMPTY);
    assert_errno(fs::remove_dir(&file), Errno::NOTDIR);
    assert_errno(fs::remove_file(&directory), Errno::ISDIR);
    assert_errno(fs::write(&directory, "x"), Errno::ISDIR);
    assert_errno(File::open(file.join("below")), Errno::NOTDIR);
    assert_errno(fs::remove_file(root.join("missing")), Errno::NOENT);
    assert_errno(fs::rename(root.join("missing"), root.join("b")), Errno::NOENT);
    assert_errno(fs::rename(&directory, directory.join("inside/too")), Errno::NOTDIR);
    fs::create_dir(directory.join("sub")).unwrap();
    assert_errno(fs::rename(&directory, directory.join("sub/self")), Errno::INVAL);
    assert_errno(fs::rename(&file, &directory), Errno::ISDIR);
    assert_errno(fs::rename(&directory, &file), Errno::NOTDIR);
    fs::create_dir(root.join("empty")).unwrap();
    assert_errno(fs::rename(root.join("empty"), &directory), Errno::NOTEMPTY);
    assert_errno(fs::hard_link(&directory, root.join("link")), Errno::PERM);
    assert_errno(fs::read_link(&file), Errno::INVAL);
}

/// Replace, no-replace, exchange; inside a directory and across; of directories.
pub fn rename(root: &Path) {
    let at = |name: &str| root.join(name);
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap();
    for name in ["a", "b", "c", "d"] {
        fs::write(at(name), name).unwrap();
    }
    fs::create_dir_all(at("from/deep")).unwrap();
    fs::create_dir(at("to")).unwrap();
    fs::rename(at("a"), at("b")).unwrap();
    assert_eq!(read("b"), "a");
    assert!(!at("a").exists());
    let no_replace = |from: &str, to: &str| rustix::fs::renameat_with(CWD, at(from), CWD, at(to), RenameFlags::NOREPLACE);
    assert_eq!(no_replace("c", "d"), Err(Errno::EXIST));
    no_replace("c", "to/c").unwrap();
    rustix::fs::renameat_with(CWD, at("to/c"), CWD, at("d"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!((read("to/c").as_str(), read("d").as_str()), ("d", "c"));
    // A file and a directory may change places.
    rustix::fs::renameat_with(CWD, at("d"), CWD, at("from"), RenameFlags::EXCHANGE).unwrap();
    assert!(at("from").is_file() && at("d/deep").is_dir());
    let links = |name: &str| fs::metadata(root.join(name)).unwrap().nlink();
    assert_eq!((links(""), links("to"), links("d")), (4, 2, 3));
    fs::create_dir(at("to/empty")).unwrap();
    fs::rename(at("d/deep"), at("to/empty")).unwrap();
    assert_eq!((links("to"), links("d")), (3, 2));
    assert_eq!(fs::canonicalize(at("to/empty/..")).unwrap(), fs::canonicalize(at("to")).unwrap());
    // Two names of one file: POSIX says that nothing happens.
    fs::hard_link(at("b"), at("b2")).unwrap();
    fs::rename(at("b"), at("b2")).unwrap();
    assert!(at("b").exists() && at("b2").exists());
}

/// A rename that leaves a whiteout: a character device 0/0 where the source was (C61).
pub fn whiteout(root: &Path) {
    let at = |name: &str| root.join(name);
    let rename = |from: &str, to: &str, flags: RenameFlags| rustix::fs::renameat_with(CWD, at(from), CWD, at(to), flags);
    fs::create_dir(at("to")).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(at(name), name).unwrap();
    }
    rename("a", "to/a", RenameFlags::WHITEOUT).unwrap();
    rename("b", "to/a", RenameFlags::WHITEOUT).unwrap();
    assert_eq!(rename("c", "to/a", RenameFlags::WHITEOUT | RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("c", "to/c", RenameFlags::WHITEOUT | RenameFlags::NOREPLACE).unwrap();
    assert_eq!(rename("to/c", "to/a", RenameFlags::WHITEOUT | RenameFlags::EXCHANGE), Err(Errno::INVAL));
    for name in ["a", "b", "c"] {
        let metadata = fs::symlink_metadata(at(name)).unwrap();
        assert!(metadata.file_type().is_char_device() && metadata.rdev() == 0, "{name}: {metadata:?}");
    }
    assert_eq!(fs::read_to_string(at("to/a")).unwrap(), "b");
    assert_eq!(fs::read_to_string(at("to/c")).unwrap(), "c");
    fs::remove_file(at("a")).unwrap();
    fs::write(at("a"), "new").unwrap();
}

/// One file with many names.
pub fn hard_links(root: &Path) {
    fs::create_dir(root.join("other")).unwrap();
    fs::write(root.join("first"), "same").unwrap();
    for index in 0..200 {
        fs::hard_link(root.join("first"), root.join(format!("other/link-{index}"))).unwrap();
    }
    let inode = fs::metadata(root.join("first")).unwrap().ino();
    fs::remove_file(root.join("first")).unwrap();
    for index in (0..200).step_by(2) {
        fs::remove_file(root.join(format!("other/link-{index}"))).unwrap();
    }
    let metadata = fs::metadata(root.join("other/link-7")).unwrap();
    assert_eq!((metadata.nlink(), metadata.ino()), (100, inode));
    fs::write(root.join("other/link-7"), "changed").unwrap();
    assert_eq!(fs::read_to_string(root.join("other/link-9")).unwrap(), "changed");
}

/// Targets short and as long as the kernel allows.
pub fn symbolic_links(root: &Path) {
    for length in [1, 59, 60, 255, 4000, 4095] {
        let target = "t".repeat(length);
        symlink(&target, root.join(format!("link-{length}"))).unwrap();
        let link = root.join(format!("link-{length}"));
        assert_eq!(link.read_link().unwrap().to_str().unwrap(), target);
        assert_eq!(link.symlink_metadata().unwrap().size(), length as u64);
    }
    fs::create_dir(root.join("directory")).unwrap();
    fs::write(root.join("directory/file"), "found").unwrap();
    symlink("directory", root.join("way")).unwrap();
    assert_eq!(fs::read_to_string(root.join("way/file")).unwrap(), "found");
    symlink("loop", root.join("loop")).unwrap();
    assert_errno(File::open(root.join("loop")), Errno::LOOP);
}

/// A directory that does not fit one reply of the kernel's.
pub fn ten_thousand_entries(root: &Path) {
    let directory = root.join("large");
    fs::create_dir(&directory).unwrap();
    let expected: BTreeSet<String> = (0..10_000).map(|index| format!("entry-{index}-{}", "n".repeat(index % 60))).collect();
    for name in &expected {
        File::create(directory.join(name)).unwrap();
    }
    let listed: Vec<String> =
        fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(listed.len(), 10_000, "each entry once");
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected);
    assert!(directory.join("entry-5000-nnnnnnnnnnnnnnnnnnnn").exists());
}

/// What stays is listed exactly once while other entries go and come.
pub fn listing_while_removing(root: &Path) {
    let directory = root.join("changing");
    fs::create_dir(&directory).unwrap();
    for index in 0..3000 {
        File::create(directory.join(format!("{index:05}"))).unwrap();
    }
    let mut stayed = Vec::new();
    for (count, entry) in fs::read_dir(&directory).unwrap().enumerate() {
        assert!(count < 10_000, "the listing does not end");
        let name = entry.unwrap().file_name().into_string().unwrap();
        match name.parse::<u32>() {
            Ok(number) if number % 3 == 0 => fs::remove_file(directory.join(&name)).unwrap(),
            Ok(_) => {
                stayed.push(name.clone());
                File::create(directory.join(format!("new-{name}"))).unwrap();
            }
            Err(_) => {}
        }
    }
    stayed.sort();
    let expected: Vec<String> = (0..3000).filter(|index| index % 3 != 0).map(|index| format!("{index:05}")).collect();
    assert_eq!(stayed, expected);
    assert_eq!(names(&directory).len(), 4000);
}

/// Fifo, socket, device nodes.
pub fn special_files(root: &Path) {
    let make = |name: &str, kind: FileType, device: u64| {
        rustix::fs::mknodat(CWD, root.join(name), kind, Mode::from_raw_mode(0o640), device).unwrap();
        fs::symlink_metadata(root.join(name)).unwrap()
    };
    assert!(make("fifo", FileType::Fifo, 0).file_type().is_fifo());
    assert!(make("socket", FileType::Socket, 0).file_type().is_socket());
    let null = make("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    assert!(null.file_type().is_char_device());
    assert_eq!(null.rdev(), rustix::fs::makedev(1, 3));
    assert_eq!(fs::read(root.join("null")).unwrap(), b"");
    let high = make("high", FileType::BlockDevice, rustix::fs::makedev(4000, 70_000));
    assert_eq!((high.file_type().is_block_device(), high.rdev()), (true, rustix::fs::makedev(4000, 70_000)));
    let (reader, writer) = (root.join("fifo"), root.join("fifo"));
    std::thread::scope(|scope| {
        scope.spawn(move || fs::write(writer, "through the fifo").unwrap());
        assert_eq!(fs::read_to_string(reader).unwrap(), "through the fifo");
    });
}

/// Names of three classes, values from empty to 64 KiB, create and replace.
pub fn extended_attributes(root: &Path) {
    let path = root.join("file");
    fs::write(&path, "x").unwrap();
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    for (name, length) in
        [("user.empty", 0), ("user.small", 10), ("user.medium", 5000), ("trusted.mine", 300), ("security.mine", 20)]
    {
        set(name, &crate::content::pattern(length, 1), XattrFlags::empty()).unwrap();
    }
    assert_eq!(set("user.small", b"again", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.absent", b"", XattrFlags::REPLACE), Err(Errno::NODATA));
    set("user.small", b"replaced", XattrFlags::REPLACE).unwrap();
    set("user.large", &crate::content::pattern(65_536, 2), XattrFlags::empty()).unwrap();
    let found = xattrs(&path);
    assert_eq!(found.len(), 6, "{:?}", found.keys());
    assert_eq!((found["user.small"].as_slice(), found["user.empty"].len()), (&b"replaced"[..], 0));
    assert_eq!(found["user.large"], crate::content::pattern(65_536, 2));
    rustix::fs::removexattr(&path, "user.large").unwrap();
    assert_eq!(rustix::fs::removexattr(&path, "user.large"), Err(Errno::NODATA));
    let mut value = [0; 4];
    assert_eq!(rustix::fs::getxattr(&path, "user.small", &mut value[..]), Err(Errno::RANGE));
    assert_eq!(rustix::fs::getxattr(&path, "user.none", &mut value[..]), Err(Errno::NODATA));
    fs::create_dir(root.join("directory")).unwrap();
    rustix::fs::setxattr(root.join("directory"), "user.on-a-directory", b"yes", XattrFlags::empty()).unwrap();
    assert!(xattrs(root).is_empty());
}

/// chmod, chown, utimensat with the extremes, and what changes by itself.
pub fn owner_mode_times(root: &Path) {
    let path = root.join("file");
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o1751)).unwrap();
    std::os::unix::fs::chown(&path, Some(70_000), Some(1234)).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.uid(), metadata.gid()), (0o1751, 70_000, 1234));
    let set = |name: &str, seconds, nanoseconds| {
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        File::create(root.join(name)).unwrap();
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, root.join(name), &times, AtFlags::empty()).unwrap();
        let metadata = fs::metadata(root.join(name)).unwrap();
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (seconds, nanoseconds), "{name}");
        assert_eq!((metadata.atime(), metadata.atime_nsec()), (seconds, nanoseconds), "{name}");
    };
    set("nanoseconds", 1_000_000_000, 123_456_789);
    set("before-the-epoch", -1_000_000, 0);
    set("far", 1 << 33, 999_999_999);
    let before = fs::metadata(root).unwrap();
    let (modified, changed) = (before.mtime_nsec(), before.ctime_nsec());
    // Until the clock has moved on, equal times prove nothing.
    let mut count = 0;
    while fs::metadata(root).unwrap().mtime_nsec() == modified {
        count += 1;
        fs::write(root.join(format!("new-{count}")), "").unwrap();
        assert!(count < 100_000, "creating a file does not change its directory's times");
    }
    assert_ne!(fs::metadata(root).unwrap().ctime_nsec(), changed);
    for index in 1..=count {
        fs::remove_file(root.join(format!("new-{index}"))).unwrap();
    }
}

/// Files and directories in a set-group-id directory take its group; directories the bit as well (C41).
pub fn set_group_id_is_inherited(root: &Path) {
    let directory = root.join("shared");
    fs::create_dir(&directory).unwrap();
    std::os::unix::fs::chown(&directory, None, Some(4321)).unwrap();
    fs::set_permissions(&directory, Permissions::from_mode(0o2775)).unwrap();
    fs::create_dir(directory.join("sub")).unwrap();
    fs::write(directory.join("sub/file"), "x").unwrap();
    let of = |name: &str| fs::metadata(directory.join(name)).unwrap();
    assert_eq!((of("sub").gid(), of("sub").mode() & 0o2000), (4321, 0o2000));
    assert_eq!((of("sub/file").gid(), of("sub/file").mode() & 0o7000), (4321, 0));
}

/// 255 bytes are a name, 256 are not; any bytes but / and NUL will do.
pub fn long_names(root: &Path) {
    fs::write(root.join("n".repeat(255)), "long").unwrap();
    assert_errno(File::create(root.join("n".repeat(256))), Errno::NAMETOOLONG);
    let odd = ["with space", "new\nline", "quote\"'", "ünïcödé 文件", "-dash", "*?[", "\u{1}\u{7f}"];
    for name in odd {
        fs::write(root.join(name), name).unwrap();
    }
    let listed = names(root);
    for name in odd {
        assert!(listed.contains(name), "{name:?}");
        assert_eq!(fs::read_to_string(root.join(name)).unwrap(), name);
    }
    let mut deep = root.to_owned();
    for level in 0..60 {
        deep.push(format!("level-{level}-{}", "d".repeat(40)));
        fs::create_dir(&deep).unwrap();
    }
    fs::write(deep.join("bottom"), "here").unwrap();
    assert_eq!(fs::read_to_string(deep.join("bottom")).unwrap(), "here");
}
