//! Names: errors of each misuse, link counts, renames, nodes without a name, listings that go on while entries come and go.

use super::{CALLER, Failing, REGULAR, Tree, assert_failures, no_value};
use std::collections::BTreeMap;
use sumfs::error::Error;
use sumfs::fs::{Caller, RenameMode, SetAttributes};
use sumfs::units::InodeNumber;

const ROOT: InodeNumber = InodeNumber::ROOT;

#[test]
fn misuse_of_names_has_the_right_error() {
    let tree = Tree::new();
    let fs = &tree.fs;
    let (file, full) = (tree.file(ROOT, "file"), tree.directory(ROOT, "full"));
    tree.directory(full, "inner");
    tree.directory(ROOT, "empty");
    let long = [b'x'; 256];
    let made = |parent, name: &[u8]| no_value(fs.mknod(&CALLER, parent, name, REGULAR | 0o644, 0, 0));
    let dir = |parent, name: &[u8]| no_value(fs.mkdir(&CALLER, parent, name, 0o755, 0));
    let table: Vec<Failing> = vec![
        ("lookup of a missing name", no_value(fs.lookup(ROOT, b"none")), Error::NotFound),
        ("lookup of a long name", no_value(fs.lookup(ROOT, &long)), Error::NameTooLong),
        ("create over a file", made(ROOT, b"file"), Error::Exists),
        ("create over a directory", made(ROOT, b"full"), Error::Exists),
        ("create in a file", made(file, b"a"), Error::NotDirectory),
        ("create of a long name", made(ROOT, &long), Error::NameTooLong),
        ("mkdir over a file", dir(ROOT, b"file"), Error::Exists),
        ("mkdir in a file", dir(file, b"a"), Error::NotDirectory),
        ("mkdir of a long name", dir(ROOT, &long), Error::NameTooLong),
        ("symlink over a file", no_value(fs.symlink(&CALLER, ROOT, b"file", b"t")), Error::Exists),
        ("symlink with a long target", no_value(fs.symlink(&CALLER, ROOT, b"s", &[b't'; 4096])), Error::NameTooLong),
        ("link of a directory", no_value(fs.link(full, ROOT, b"l")), Error::NotPermitted),
        ("link over a file", no_value(fs.link(file, ROOT, b"file")), Error::Exists),
        ("link into a file", no_value(fs.link(file, file, b"l")), Error::NotDirectory),
        ("link with a long name", no_value(fs.link(file, ROOT, &long)), Error::NameTooLong),
        ("unlink of a missing name", fs.unlink(ROOT, b"none"), Error::NotFound),
        ("unlink of a directory", fs.unlink(ROOT, b"empty"), Error::IsDirectory),
        ("unlink in a file", fs.unlink(file, b"a"), Error::NotDirectory),
        ("rmdir of a missing name", fs.rmdir(ROOT, b"none"), Error::NotFound),
        ("rmdir of a file", fs.rmdir(ROOT, b"file"), Error::NotDirectory),
        ("rmdir of a full directory", fs.rmdir(ROOT, b"full"), Error::NotEmpty),
        ("readlink of a file", no_value(fs.readlink(file)), Error::Invalid("")),
        ("readdir of a file", fs.readdir(file, 0, &mut |_| true), Error::NotDirectory),
        ("read of a directory", no_value(tree.read(full, 0, 10)), Error::IsDirectory),
        ("write to a directory", no_value(tree.write(full, 0, b"x")), Error::IsDirectory),
        ("getattr of a dead number", no_value(fs.getattr(InodeNumber(1 << 40))), Error::Stale),
    ];
    assert_failures(table);
    tree.close();
}

#[test]
fn misuse_of_rename_has_the_right_error_and_changes_nothing() {
    let tree = Tree::new();
    let fs = &tree.fs;
    let (file, full) = (tree.file(ROOT, "file"), tree.directory(ROOT, "full"));
    let inner = tree.directory(full, "inner");
    tree.directory(ROOT, "empty");
    let long = [b'x'; 256];
    let rename = |from, name: &[u8], to, new_name: &[u8]| fs.rename(from, name, to, new_name, RenameMode::Replace);
    let with = |name: &[u8], new_name: &[u8], mode| fs.rename(ROOT, name, ROOT, new_name, mode);
    let table: Vec<Failing> = vec![
        ("a missing name", rename(ROOT, b"none", ROOT, b"b"), Error::NotFound),
        ("to a long name", rename(ROOT, b"file", ROOT, &long), Error::NameTooLong),
        ("into a file", rename(ROOT, b"empty", file, b"a"), Error::NotDirectory),
        ("out of a file", rename(file, b"a", ROOT, b"b"), Error::NotDirectory),
        ("a directory into itself", rename(ROOT, b"full", full, b"a"), Error::Invalid("")),
        ("a directory into one below it", rename(ROOT, b"full", inner, b"a"), Error::Invalid("")),
        ("a directory over a file", rename(ROOT, b"empty", ROOT, b"file"), Error::NotDirectory),
        ("a file over a directory", rename(ROOT, b"file", ROOT, b"empty"), Error::IsDirectory),
        ("a directory over a full one", rename(ROOT, b"empty", ROOT, b"full"), Error::NotEmpty),
        ("NOREPLACE over a file", with(b"empty", b"file", RenameMode::NoReplace), Error::Exists),
        ("NOREPLACE onto itself", with(b"file", b"file", RenameMode::NoReplace), Error::Exists),
        ("EXCHANGE with a missing name", with(b"file", b"none", RenameMode::Exchange), Error::NotFound),
        ("EXCHANGE with one below", fs.rename(ROOT, b"full", full, b"inner", RenameMode::Exchange), Error::Invalid("")),
        ("EXCHANGE with one above", fs.rename(full, b"inner", ROOT, b"full", RenameMode::Exchange), Error::Invalid("")),
    ];
    assert_failures(table);
    assert_eq!(tree.names(ROOT), ["file", "full", "empty"]);
    assert_eq!(tree.names(full), ["inner"]);
    assert_eq!((tree.links(ROOT), tree.links(full), tree.links(file)), (4, 3, 1));
    tree.close();
}

#[test]
fn link_counts_follow_names() {
    let mut tree = Tree::new();
    let (a, b) = (tree.directory(ROOT, "a"), tree.directory(ROOT, "b"));
    let file = tree.file(a, "file");
    assert_eq!((tree.links(ROOT), tree.links(a), tree.links(b), tree.links(file)), (4, 2, 2, 1));
    let inner = tree.directory(a, "inner");
    assert_eq!((tree.links(a), tree.links(inner)), (3, 2));
    let linked = tree.fs.link(file, b, b"other").unwrap();
    assert_eq!((linked.inode, linked.links), (file, 2));
    tree.fs.rename(a, b"inner", b, b"moved", RenameMode::Replace).unwrap();
    assert_eq!((tree.links(a), tree.links(b), tree.links(inner)), (2, 3, 2));
    tree.fs.unlink(a, b"file").unwrap();
    assert_eq!(tree.links(file), 1);
    tree.fs.rename(ROOT, b"a", b, b"moved", RenameMode::Replace).unwrap();
    assert_eq!((tree.links(ROOT), tree.links(b), tree.links(a)), (3, 3, 2));
    tree.fs.rename(b, b"moved", b, b"other", RenameMode::Exchange).unwrap();
    assert_eq!(tree.fs.lookup(b, b"other").unwrap().inode, a);
    assert_eq!(tree.fs.lookup(b, b"moved").unwrap().inode, file);
    tree.remount();
    let b = tree.fs.lookup(ROOT, b"b").unwrap();
    assert_eq!((tree.links(ROOT), b.links), (3, 3));
    assert_eq!(tree.fs.lookup(b.inode, b"other").unwrap().links, 2);
    assert_eq!(tree.fs.lookup(b.inode, b"moved").unwrap().links, 1);
    tree.fs.rmdir(b.inode, b"other").unwrap();
    assert_eq!(tree.links(b.inode), 2);
    tree.close();
}

fn parent_in_listing(tree: &Tree, directory: InodeNumber) -> InodeNumber {
    let mut parent = None;
    let visit = &mut |entry: sumfs::fs::DirectoryEntry<'_>| {
        if entry.name == b".." {
            parent = Some(entry.inode);
        }
        true
    };
    tree.fs.readdir(directory, 0, visit).unwrap();
    parent.expect("a directory lists ..")
}

#[test]
fn a_moved_directory_knows_its_new_parent() {
    let mut tree = Tree::new();
    let (a, b) = (tree.directory(ROOT, "a"), tree.directory(ROOT, "b"));
    let (x, y) = (tree.directory(a, "x"), tree.directory(b, "y"));
    tree.file(b, "file");
    assert_eq!(parent_in_listing(&tree, x), a);
    tree.fs.rename(a, b"x", b, b"x", RenameMode::Replace).unwrap();
    assert_eq!(parent_in_listing(&tree, x), b);
    tree.fs.rename(b, b"x", a, b"x", RenameMode::NoReplace).unwrap();
    tree.fs.rename(a, b"x", b, b"y", RenameMode::Exchange).unwrap();
    assert_eq!((parent_in_listing(&tree, x), parent_in_listing(&tree, y)), (b, a));
    // With a file, whose directory has nothing to count.
    tree.fs.rename(a, b"x", b, b"file", RenameMode::Exchange).unwrap();
    assert_eq!(parent_in_listing(&tree, y), b);
    assert_eq!((tree.links(a), tree.links(b)), (2, 4));
    tree.remount();
    let b = tree.fs.lookup(ROOT, b"b").unwrap().inode;
    let y = tree.fs.lookup(b, b"file").unwrap().inode;
    assert_eq!(parent_in_listing(&tree, y), b);
    tree.close();
}

#[test]
fn a_rename_that_leaves_a_whiteout_is_one_step() {
    let mut tree = Tree::new();
    let (a, b) = (tree.directory(ROOT, "a"), tree.directory(ROOT, "b"));
    let owner = Caller { uid: 7, gid: 8, pid: 9 };
    let whiteout = |replaces| RenameMode::Whiteout { owner, replaces };
    let (file, sub) = (tree.file(a, "file"), tree.directory(a, "sub"));
    let replaced = tree.file(b, "moved");
    let refused = tree.fs.rename(a, b"file", b, b"moved", whiteout(false));
    assert!(matches!(refused, Err(Error::Exists)), "{refused:?}");
    tree.fs.rename(a, b"file", b, b"moved", whiteout(true)).unwrap();
    tree.fs.rename(a, b"sub", b, b"sub", whiteout(false)).unwrap();
    // Inside a directory too, where the moved name keeps its cookie.
    tree.fs.rename(b, b"moved", b, b"again", whiteout(false)).unwrap();
    assert_eq!((tree.links(a), tree.links(b), tree.links(replaced)), (2, 3, 0));
    for is_remounted in [false, true] {
        let (a, b) = (tree.fs.lookup(ROOT, b"a").unwrap().inode, tree.fs.lookup(ROOT, b"b").unwrap().inode);
        for (directory, name) in [(a, "file"), (a, "sub"), (b, "moved")] {
            let found = tree.fs.lookup(directory, name.as_bytes()).unwrap();
            assert_eq!((found.mode, found.rdev, found.links), (0o020_000, 0, 1), "{name}, remounted: {is_remounted}");
            assert_eq!((found.uid, found.gid), (7, 8), "{name}");
        }
        assert_eq!(tree.fs.lookup(b, b"again").unwrap().inode, file);
        assert_eq!(tree.fs.lookup(b, b"sub").unwrap().inode, sub);
        assert_eq!((tree.names(a).len(), tree.names(b).len()), (2, 3));
        if !is_remounted {
            tree.remount();
        }
    }
    tree.close();
}

#[test]
fn a_rename_between_links_of_one_file_does_nothing() {
    let tree = Tree::new();
    let file = tree.file(ROOT, "a");
    tree.fs.link(file, ROOT, b"b").unwrap();
    tree.fs.rename(ROOT, b"a", ROOT, b"b", RenameMode::Replace).unwrap();
    tree.fs.rename(ROOT, b"a", ROOT, b"a", RenameMode::Replace).unwrap();
    tree.fs.rename(ROOT, b"a", ROOT, b"b", RenameMode::Exchange).unwrap();
    assert_eq!((tree.names(ROOT), tree.links(file)), (vec!["a".to_owned(), "b".to_owned()], 2));
    tree.close();
}

#[test]
fn what_is_open_lives_on_without_a_name() {
    let mut tree = Tree::new();
    let (unlinked, replaced) = (tree.file(ROOT, "unlinked"), tree.file(ROOT, "replaced"));
    for file in [unlinked, replaced] {
        tree.write(file, 0, &[b'1'; 10_000]).unwrap();
    }
    let removed = tree.directory(ROOT, "removed");
    tree.file(ROOT, "new");
    tree.fs.unlink(ROOT, b"unlinked").unwrap();
    tree.fs.rename(ROOT, b"new", ROOT, b"replaced", RenameMode::Replace).unwrap();
    tree.fs.rmdir(ROOT, b"removed").unwrap();
    for file in [unlinked, replaced] {
        assert_eq!(tree.links(file), 0);
        tree.write(file, 9_000, &[b'2'; 4000]).unwrap();
        tree.fsync(file).unwrap();
        tree.fs.setxattr(&CALLER, file, b"user.a", b"b", sumfs::fs::XattrMode::Any).unwrap();
        let mut expected = vec![b'1'; 9000];
        expected.extend([b'2'; 4000]);
        assert!(tree.read(file, 0, 20_000).unwrap() == expected);
        assert!(matches!(tree.fs.link(file, ROOT, b"back"), Err(Error::NotFound | Error::Stale)));
    }
    let made = tree.fs.mknod(&CALLER, removed, b"a", REGULAR | 0o644, 0, 0);
    assert!(matches!(made, Err(Error::NotFound | Error::Stale)), "{made:?}");
    assert!(matches!(tree.fs.mkdir(&CALLER, removed, b"a", 0o755, 0), Err(Error::NotFound | Error::Stale)));
    let moved = tree.fs.rename(ROOT, b"replaced", removed, b"a", RenameMode::Replace);
    assert!(matches!(moved, Err(Error::NotFound | Error::Stale)), "{moved:?}");
    for (file, is_alive) in [(unlinked, true), (unlinked, false), (replaced, false), (removed, false)] {
        // One lookup each from making it; the first is kept for a moment.
        tree.fs.forget(file, u64::from(!is_alive));
        assert_eq!(tree.fs.getattr(file).is_ok(), is_alive);
    }
    assert!(matches!(tree.read(unlinked, 0, 10), Err(Error::Stale)));
    tree.remount();
    assert_eq!(tree.names(ROOT), ["replaced"]);
    tree.close();
}

#[test]
fn what_is_open_at_unmount_is_gone_afterwards() {
    let mut tree = Tree::new();
    let free = tree.fs.statfs().available;
    let file = tree.file(ROOT, "file");
    tree.write(file, 0, &vec![7; 3 << 20]).unwrap();
    tree.fsync(file).unwrap();
    tree.fs.unlink(ROOT, b"file").unwrap();
    tree.remount();
    assert!(matches!(tree.fs.getattr(file), Err(Error::Stale)));
    tree.remount();
    assert_eq!(tree.fs.statfs().available, free);
    tree.close();
}

/// Goes on behind `cookie` for at most `count` entries; the new cookie.
fn list_on(tree: &Tree, directory: InodeNumber, mut cookie: u64, count: usize, seen: &mut BTreeMap<String, usize>) -> u64 {
    let mut taken = 0;
    let listed = tree.fs.readdir(directory, cookie, &mut |entry| {
        if taken == count {
            return false;
        }
        taken += 1;
        cookie = entry.next;
        *seen.entry(String::from_utf8_lossy(entry.name).into_owned()).or_default() += 1;
        true
    });
    listed.unwrap();
    cookie
}

#[test]
fn a_listing_goes_on_while_entries_come_and_go() {
    let mut tree = Tree::new();
    let directory = tree.directory(ROOT, "d");
    for number in 0..60 {
        tree.file(directory, &format!("f{number}"));
    }
    let mut seen = BTreeMap::new();
    let cookie = list_on(&tree, directory, 0, 30, &mut seen);
    // Some that were listed and some that were not; the one that the cookie names too.
    for number in [0, 27, 28, 40, 41] {
        tree.fs.unlink(directory, format!("f{number}").as_bytes()).unwrap();
    }
    // A rename inside the directory keeps its place: listed once, under one of the names.
    tree.fs.rename(directory, b"f5", directory, b"renamed-listed", RenameMode::Replace).unwrap();
    tree.fs.rename(directory, b"f50", directory, b"renamed-waiting", RenameMode::Replace).unwrap();
    tree.file(directory, "late");
    // Cookies mean the same after a remount.
    tree.remount();
    let directory = tree.fs.lookup(ROOT, b"d").unwrap().inode;
    let cookie = list_on(&tree, directory, cookie, 10, &mut seen);
    list_on(&tree, directory, cookie, 1000, &mut seen);
    for number in (0..60).filter(|number| ![0, 27, 28, 40, 41, 5, 50].contains(number)) {
        assert_eq!(seen.get(&format!("f{number}")), Some(&1), "f{number}");
    }
    assert_eq!((seen.get("f5"), seen.get("renamed-listed")), (Some(&1), None));
    assert_eq!((seen.get("f50"), seen.get("renamed-waiting")), (None, Some(&1)));
    assert_eq!((seen.get("f40"), seen.get(".")), (None, Some(&1)));
    tree.close();
}

#[test]
fn a_listing_ends_although_entries_keep_coming() {
    let tree = Tree::new();
    let directory = tree.directory(ROOT, "d");
    for number in 0..10 {
        tree.file(directory, &format!("f{number}"));
    }
    let (mut cookie, mut seen) = (0, BTreeMap::new());
    for round in 0..100 {
        let before = cookie;
        cookie = list_on(&tree, directory, cookie, 2, &mut seen);
        if before == cookie {
            assert!(round > 5);
            tree.close();
            return;
        }
        for number in 0..3 {
            tree.file(directory, &format!("new{round}-{number}"));
        }
    }
    panic!("the listing did not end: {} names", seen.len());
}

#[test]
fn a_listing_that_is_full_repeats_the_refused_entry() {
    let tree = Tree::new();
    for name in ["a", "b", "c"] {
        tree.file(ROOT, name);
    }
    let mut found = Vec::new();
    let cookie = std::cell::Cell::new(0);
    for _ in 0..20 {
        let mut is_first = true;
        let visit = &mut |entry: sumfs::fs::DirectoryEntry<'_>, attributes: &sumfs::fs::Attributes| {
            assert_eq!(attributes.inode, entry.inode);
            if !std::mem::take(&mut is_first) {
                return false;
            }
            cookie.set(entry.next);
            found.push(String::from_utf8(entry.name.to_vec()).unwrap());
            true
        };
        tree.fs.readdirplus(ROOT, cookie.get(), visit).unwrap();
    }
    assert_eq!(found, [".", "..", "a", "b", "c"]);
    // One lookup from making it, one from the listing, none from the entries that were refused.
    let a = tree.fs.lookup(ROOT, b"a").unwrap().inode;
    tree.fs.unlink(ROOT, b"a").unwrap();
    tree.fs.forget(a, 2);
    assert!(tree.fs.getattr(a).is_ok());
    tree.fs.forget(a, 1);
    assert!(matches!(tree.fs.getattr(a), Err(Error::Stale)));
    tree.close();
}

#[test]
fn a_file_made_without_a_name_can_get_one_once() {
    let mut tree = Tree::new();
    let shared = tree.directory(ROOT, "shared");
    let change = SetAttributes { mode: Some(0o2775), gid: Some(77), ..SetAttributes::default() };
    tree.fs.setattr(&CALLER, shared, &change).unwrap();
    let caller = Caller { uid: 10, gid: 20, pid: 1 };
    let made = tree.fs.tmpfile(&caller, shared, 0o666, 0o027).unwrap();
    assert_eq!((made.mode, made.uid, made.gid, made.links), (REGULAR | 0o640, 10, 77, 0));
    assert!(tree.names(shared).is_empty());
    tree.write(made.inode, 0, b"kept").unwrap();
    let gone = tree.fs.tmpfile(&caller, shared, 0o600, 0).unwrap().inode;
    tree.write(gone, 0, &[1; 100_000]).unwrap();
    let linked = tree.fs.link(made.inode, ROOT, b"f").unwrap();
    assert_eq!((linked.links, tree.attributes(made.inode).links), (1, 1));
    tree.fs.link(made.inode, shared, b"g").unwrap();
    tree.fs.unlink(ROOT, b"f").unwrap();
    // Not linked: gone with the last lookup, and after a remount.
    tree.fs.forget(gone, 1);
    assert!(matches!(tree.fs.getattr(gone), Err(Error::Stale)));
    let left = tree.fs.tmpfile(&CALLER, ROOT, 0o600, 0).unwrap().inode;
    tree.write(left, 0, &[1; 100_000]).unwrap();
    tree.remount();
    assert!(matches!(tree.fs.getattr(left), Err(Error::Stale)));
    let shared = tree.fs.lookup(ROOT, b"shared").unwrap().inode;
    let found = tree.fs.lookup(shared, b"g").unwrap();
    assert_eq!((found.inode, found.links), (made.inode, 1));
    assert_eq!(tree.read(found.inode, 0, 10).unwrap(), b"kept");
    // It had a name: no second first one.
    tree.fs.unlink(shared, b"g").unwrap();
    assert!(matches!(tree.fs.link(found.inode, ROOT, b"again"), Err(Error::NotFound)));
    tree.close();
}

/// What the kernel asks about a file handle whose inode it does not remember.
#[test]
fn inodes_are_found_by_number_as_long_as_they_have_a_name() {
    let mut tree = Tree::new();
    let directory = tree.directory(ROOT, "d");
    let (file, inner) = (tree.file(directory, "f"), tree.directory(directory, "inner"));
    tree.remount();
    for (inode, name, found) in [(file, &b"."[..], file), (inner, b".", inner), (inner, b"..", directory), (ROOT, b"..", ROOT)] {
        assert_eq!(tree.fs.lookup(inode, name).unwrap().inode, found);
    }
    // The kernel knows both still, so they are there; but no handle leads to them any more.
    tree.fs.unlink(directory, b"f").unwrap();
    tree.fs.rmdir(directory, b"inner").unwrap();
    for (inode, name) in [(file, &b"."[..]), (inner, b"."), (inner, b"..")] {
        assert_eq!(tree.attributes(inode).links, 0);
        assert!(matches!(tree.fs.lookup(inode, name), Err(Error::NotFound)));
    }
    for (inode, lookups) in [(file, 1), (inner, 1)] {
        tree.fs.forget(inode, lookups);
        assert!(matches!(tree.fs.lookup(inode, b"."), Err(Error::Stale | Error::NotFound)));
    }
    tree.close();
}
