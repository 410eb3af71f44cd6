//! Names and directories that many look at while they change, as public bug reports tell of them (C..: the number of the report's
//! case); each on a fresh mount, run by [`smoke`](crate::smoke).

use crate::content::{assert_same, pattern};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, RenameFlags, SeekFrom, StatxFlags, seek, statx};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const READERS: usize = 8;

/// A name that is replaced all the time is always there, and is always one whole version (C02).
pub fn a_replaced_name_is_always_there(root: &Path) {
    const ROUNDS: usize = 1500;
    let version = |number: usize| vec![number as u8; 3000 + number % 5000];
    let target = root.join("target");
    fs::write(&target, version(0)).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let found = fs::read(&target).expect("the name is always there");
                    assert!(found.len() >= 3000 && found.iter().all(|byte| *byte == found[0]), "a mixture of versions");
                }
            });
        }
        for number in 1..=ROUNDS {
            let temporary = root.join("temporary");
            fs::write(&temporary, version(number)).unwrap();
            if number % 3 == 0 {
                rustix::fs::renameat_with(CWD, &temporary, CWD, &target, RenameFlags::EXCHANGE).unwrap();
                // Readers may still have it open: the next version is another file.
                fs::remove_file(&temporary).unwrap();
            } else {
                fs::rename(&temporary, &target).unwrap();
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_same(&fs::read(&target).unwrap(), &version(ROUNDS), "the last version");
}

/// Both names of a file show the same at once (C52), also of one that was being written when it was linked (C53).
pub fn two_names_show_the_same(root: &Path) {
    let (one, two) = (root.join("one"), root.join("two"));
    let file = File::create(&one).unwrap();
    file.write_all_at(&pattern(12_345, 1), 0).unwrap();
    fs::hard_link(&one, &two).unwrap();
    let seen = |path: &Path| {
        let metadata = fs::symlink_metadata(path).unwrap();
        (metadata.ino(), metadata.nlink(), metadata.len(), metadata.mode(), metadata.mtime_nsec(), metadata.ctime_nsec())
    };
    assert_eq!((seen(&two).1, seen(&two).2), (2, 12_345), "right after the link");
    for round in 0..50_u64 {
        let (writing, looking) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        File::options().write(true).open(writing).unwrap().write_all_at(b"more", 12_345 + round * 1000).unwrap();
        assert_eq!(seen(looking), seen(writing));
        assert_eq!(seen(looking).2, 12_349 + round * 1000);
        fs::set_permissions(looking, fs::Permissions::from_mode(0o600 + round as u32 % 64)).unwrap();
        assert_eq!(seen(looking), seen(writing));
    }
    fs::remove_file(&one).unwrap();
    assert_eq!((seen(&two).1, seen(&two).2), (1, 12_349 + 49_000));
}

/// The size of a symbolic link is the length of its target, however it is asked for (C50).
pub fn the_size_of_a_link(root: &Path) {
    for length in [1, 31, 32, 33, 127, 128, 1000, 4095] {
        let path = root.join(format!("link-{length}"));
        symlink("t".repeat(length), &path).unwrap();
        assert_eq!(fs::symlink_metadata(&path).unwrap().len(), length as u64);
        let asked = statx(CWD, &path, AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).unwrap();
        assert_eq!(asked.stx_size, length as u64, "asked of the daemon");
    }
    for entry in fs::read_dir(root).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().len(), entry.path().read_link().unwrap().as_os_str().len() as u64);
    }
}

/// Unlinked while others close it: nothing is left over, and the directory can go (C56).
pub fn unlinked_while_others_close(root: &Path) {
    for round in 0..60 {
        let directory = root.join(format!("directory-{round}"));
        fs::create_dir(&directory).unwrap();
        std::thread::scope(|scope| {
            for number in 0..4 {
                let path = directory.join(format!("file-{number}"));
                let file = File::create(&path).unwrap();
                file.write_all_at(&pattern(9000, number), 0).unwrap();
                scope.spawn(move || drop(file));
                scope.spawn(move || fs::remove_file(path).unwrap());
            }
        });
        let left: Vec<_> = fs::read_dir(&directory).unwrap().collect();
        assert!(left.is_empty(), "left over: {left:?}");
        fs::remove_dir(&directory).unwrap();
    }
    assert_eq!(fs::metadata(root).unwrap().nlink(), 2);
}

/// An entry: name, and the place behind it.
type Entry = (String, u64);

fn list(directory: &OwnedFd, from: u64) -> Vec<Entry> {
    seek(directory, SeekFrom::Start(from)).unwrap();
    let mut buffer = [MaybeUninit::uninit(); 2000];
    let mut listing = RawDir::new(directory, &mut buffer);
    let mut entries = Vec::new();
    while let Some(entry) = listing.next() {
        let entry = entry.unwrap();
        assert!(entry.ino() < 1 << 32, "an inode number that 32-bit programs cannot take (C59)");
        assert!(entry.next_entry_cookie() < 1 << 31, "a place that 32-bit programs cannot take (C59)");
        entries.push((entry.file_name().to_str().unwrap().to_owned(), entry.next_entry_cookie()));
        assert!(entries.len() < 20_000, "the listing does not end");
    }
    entries
}

/// Going back to any place of a listing, also after entries came and went, gives once and in order what is behind it and still there
/// (what is not may show, says POSIX, and the kernel's cache of a listing does); from the start also what is new (C58). Places and
/// inode numbers fit 32-bit programs (C59).
pub fn going_back_in_a_listing(root: &Path) {
    let path = root.join("directory");
    fs::create_dir(&path).unwrap();
    for number in 0..300 {
        File::create(path.join(format!("file-{number}"))).unwrap();
    }
    let directory = rustix::fs::open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let first = list(&directory, 0);
    assert_eq!(first.len(), 302);
    for at in (0..first.len()).rev().step_by(7) {
        assert_eq!(list(&directory, first[at].1), first[at + 1..], "behind {at}");
    }
    for number in (0..300).step_by(3) {
        fs::remove_file(path.join(format!("file-{number}"))).unwrap();
        File::create(path.join(format!("new-{number}"))).unwrap();
    }
    let is_there = |entry: &Entry| path.join(&entry.0).exists();
    for at in (0..first.len()).step_by(7) {
        let expected: Vec<&Entry> = first[at + 1..].iter().filter(|entry| is_there(entry)).collect();
        let found = list(&directory, first[at].1);
        let stayed: Vec<&Entry> = found.iter().filter(|entry| is_there(entry) && !entry.0.starts_with("new-")).collect();
        assert_eq!(stayed, expected, "behind {at}");
    }
    let again: BTreeSet<String> = list(&directory, 0).into_iter().map(|entry| entry.0).collect();
    assert_eq!(again.len(), 302);
    assert_eq!(again.iter().filter(|name| name.starts_with("new-")).count(), 100, "new entries from the start");
}

/// Threads that create, write, read back and unlink a few names never see what another one's file holds (C64).
pub fn the_same_few_names(root: &Path) {
    std::thread::scope(|scope| {
        for worker in 0..16_usize {
            scope.spawn(move || {
                for round in 0..60 {
                    let path = root.join(format!("name-{}", (worker + round) % 5));
                    let Ok(file) = File::options().read(true).write(true).create_new(true).open(&path) else { continue };
                    let expected = pattern(1 + (worker * 997 + round * 131) % 20_000, (worker * 1000 + round) as u64);
                    file.write_all_at(&expected, 0).unwrap();
                    let mut found = vec![0; expected.len() + 1];
                    let count = file.read_at(&mut found, 0).unwrap();
                    assert_same(&found[..count], &expected, "read back");
                    // Nobody else unlinks what he did not create.
                    assert_same(&fs::read(&path).unwrap(), &expected, "by its name");
                    fs::remove_file(&path).unwrap();
                    let count = file.read_at(&mut found, 0).unwrap();
                    assert_same(&found[..count], &expected, "without a name");
                }
            });
        }
    });
    assert_eq!(fs::read_dir(root).unwrap().count(), 0);
}

/// Many links in one directory and across two; whatever is refused is EMLINK, and the count is right (C65). `LINKS=70000` for more.
pub fn as_many_links_as_there_may_be(root: &Path) {
    const LINKS_FEW: u64 = 2000;
    let links = std::env::var("LINKS").map_or(LINKS_FEW, |text| text.parse().expect("LINKS is a number"));
    let first = root.join("first");
    fs::write(&first, "x").unwrap();
    for name in ["one", "two"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    let mut made = 1;
    while made < links {
        let directory = if made % 3 == 0 { "two" } else { "one" };
        match fs::hard_link(&first, root.join(directory).join(made.to_string())) {
            Ok(()) => made += 1,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(Errno::MLINK.raw_os_error()), "{error}");
                break;
            }
        }
    }
    assert!(made >= links.min(65_000), "{made} links");
    assert_eq!(fs::metadata(&first).unwrap().nlink(), made);
    fs::remove_file(&first).unwrap();
    fs::remove_dir_all(root.join("two")).unwrap();
    let left = fs::read_dir(root.join("one")).unwrap().count() as u64;
    assert_eq!(fs::metadata(root.join("one/1")).unwrap().nlink(), left);
    fs::remove_dir_all(root.join("one")).unwrap();
}

/// renameat2 with flags that nobody knows, or that exclude each other, is refused and renames nothing (C61).
pub fn renames_that_cannot_be(root: &Path) {
    let at = |name: &str| root.join(name);
    fs::write(at("a"), "a").unwrap();
    fs::write(at("b"), "b").unwrap();
    let rename = |from: &str, to: &str, flags| rustix::fs::renameat_with(CWD, at(from), CWD, at(to), flags);
    for flags in
        [RenameFlags::from_bits_retain(8), RenameFlags::from_bits_retain(1 << 31), RenameFlags::NOREPLACE | RenameFlags::EXCHANGE]
    {
        assert_eq!(rename("a", "b", flags), Err(Errno::INVAL), "{flags:?}");
        assert_eq!(rename("a", "c", flags), Err(Errno::INVAL), "{flags:?}");
    }
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    assert_eq!(rename("a", "c", RenameFlags::EXCHANGE), Err(Errno::NOENT));
    assert_eq!((fs::read_to_string(at("a")).unwrap(), fs::read_to_string(at("b")).unwrap()), ("a".into(), "b".into()));
    assert_eq!(fs::read_dir(root).unwrap().count(), 2);
}

/// Any bytes but / and NUL are a name, up to 255 of them; names that differ in case or in what Unicode takes for equal are two.
pub fn names_of_any_bytes(root: &Path) {
    let mut names: Vec<Vec<u8>> = (1..=255).filter(|byte| *byte != b'/' && *byte != b'.').map(|byte| vec![byte]).collect();
    names.extend((128..=255).map(|byte| vec![byte; 255]));
    let others = ["trailing. ", " leading", "...", ". .", "CASE", "case", "e\u{301}", "\u{e9}", "con", "a\\b", "a:b"];
    names.extend(others.map(|name| name.as_bytes().to_vec()));
    for name in &names {
        fs::write(root.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let listed: BTreeSet<Vec<u8>> =
        fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().as_bytes().to_vec()).collect();
    assert_eq!(listed, names.iter().cloned().collect());
    for name in &names {
        assert_eq!(&fs::read(root.join(OsStr::from_bytes(name))).unwrap(), name);
    }
}

/// The mode that mkdir and open ask for is the mode that there is, when the umask is 0 (C88).
pub fn modes_without_a_umask(root: &Path) {
    let script = r#"import os, sys
os.umask(0)
os.chdir(sys.argv[1])
os.mkdir("directory", 0o777)
os.mkdir("sticky", 0o1777)
os.close(os.open("file", os.O_CREAT | os.O_WRONLY, 0o666))
os.close(os.open("odd", os.O_CREAT | os.O_WRONLY, 0o7712))
os.mkfifo("fifo", 0o622)
os.umask(0o027)
os.mkdir("masked", 0o777)
os.close(os.open("masked-file", os.O_CREAT | os.O_WRONLY, 0o666))
os.symlink("x", "link")
"#;
    crate::mount::run("python3", &["-c", script, root.to_str().unwrap()]).expect_success();
    let expected = [
        ("directory", 0o777),
        ("sticky", 0o1777),
        ("file", 0o666),
        ("odd", 0o7712),
        ("fifo", 0o622),
        ("masked", 0o750),
        ("masked-file", 0o640),
        ("link", 0o777),
    ];
    for (name, mode) in expected {
        assert_eq!(fs::symlink_metadata(root.join(name)).unwrap().mode() & 0o7777, mode, "{name}");
    }
}
