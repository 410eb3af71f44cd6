//! Access control lists: what is stored, what the mode says, what is inherited, what a mount without them does with those that are there.

use super::{CALLER, Failing, REGULAR, Tree, assert_failures, no_value};
use sumfs::error::Error;
use sumfs::fs::{Options, SetAttributes, XattrMode};
use sumfs::units::InodeNumber;

const ROOT: InodeNumber = InodeNumber::ROOT;
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const NOBODY: u32 = u32::MAX;

/// A list as the kernel hands it over: owner, a user, group, mask, others; without the user and the mask if there is no mask.
fn list(owner: u16, user: u16, group: u16, mask: Option<u16>, others: u16) -> Vec<u8> {
    let mut entries = vec![(1, owner, NOBODY)];
    if mask.is_some() {
        entries.push((2, user, 1000));
    }
    entries.push((4, group, NOBODY));
    entries.extend(mask.map(|mask| (16, mask, NOBODY)));
    entries.push((32, others, NOBODY));
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        let (tag, permissions): (u16, u16) = (tag, permissions);
        bytes.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        bytes.extend(u32::to_le_bytes(id));
    }
    bytes
}

impl Tree {
    fn acl(&self, inode: InodeNumber, name: &[u8]) -> Option<Vec<u8>> {
        match self.fs.getxattr(inode, name) {
            Ok(list) => Some(list),
            Err(Error::NoXattr) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn set_acl(&self, inode: InodeNumber, name: &[u8], list: &[u8]) {
        self.fs.setxattr(&CALLER, inode, name, list, XattrMode::Any).unwrap();
    }

    fn mode(&self, inode: InodeNumber) -> u32 {
        self.attributes(inode).mode & 0o7777
    }

    fn chmod(&self, inode: InodeNumber, mode: u32) {
        self.fs.setattr(&CALLER, inode, &SetAttributes { mode: Some(mode), ..SetAttributes::default() }).unwrap();
    }
}

#[test]
fn a_list_and_the_mode_say_the_same() {
    let mut tree = Tree::new();
    let file = tree.file(ROOT, "f");
    tree.set_acl(file, ACCESS, &list(7, 6, 5, Some(4), 1));
    assert_eq!(tree.mode(file), 0o741, "the group bits are the mask");
    tree.chmod(file, 0o4620);
    assert_eq!(tree.acl(file, ACCESS), Some(list(6, 6, 5, Some(2), 0)));
    tree.remount();
    let file = tree.fs.lookup(ROOT, b"f").unwrap().inode;
    assert_eq!((tree.acl(file, ACCESS), tree.mode(file)), (Some(list(6, 6, 5, Some(2), 0)), 0o4620));
    assert_eq!(tree.fs.listxattr(file).unwrap(), b"system.posix_acl_access\0");
    // One that says no more than a mode is none.
    tree.set_acl(file, ACCESS, &list(6, 0, 4, None, 4));
    assert_eq!((tree.acl(file, ACCESS), tree.mode(file)), (None, 0o4644));
    assert!(tree.fs.listxattr(file).unwrap().is_empty());
    // Removing one leaves the mode; removing none is no error.
    tree.set_acl(file, ACCESS, &list(7, 6, 5, Some(4), 1));
    tree.fs.setxattr(&CALLER, file, b"user.a", b"v", XattrMode::Any).unwrap();
    tree.fs.removexattr(&CALLER, file, ACCESS).unwrap();
    tree.fs.removexattr(&CALLER, file, ACCESS).unwrap();
    assert_eq!((tree.acl(file, ACCESS), tree.mode(file)), (None, 0o4741));
    assert_eq!(tree.fs.listxattr(file).unwrap(), b"user.a\0");
    tree.close();
}

#[test]
fn set_group_id_goes_when_a_stranger_sets_a_list() {
    let tree = Tree::new();
    let file = tree.file(ROOT, "f");
    tree.chmod(file, 0o2755);
    tree.set_acl(file, ACCESS, &list(7, 7, 7, Some(5), 5));
    assert_eq!(tree.mode(file), 0o2755);
    let directory = tree.directory(ROOT, "d");
    tree.chmod(directory, 0o2755);
    tree.fs.setxattr(&CALLER, directory, DEFAULT, &list(7, 7, 7, Some(5), 5), XattrMode::ClearSgid).unwrap();
    assert_eq!(tree.mode(directory), 0o2755, "only a list for access is about the mode");
    tree.fs.setxattr(&CALLER, file, ACCESS, &list(7, 7, 7, Some(5), 5), XattrMode::ClearSgid).unwrap();
    assert_eq!(tree.mode(file), 0o755);
    tree.close();
}

#[test]
fn what_is_made_inherits() {
    let tree = Tree::new();
    let directory = tree.directory(ROOT, "d");
    let default = list(7, 6, 5, Some(6), 4);
    tree.set_acl(directory, DEFAULT, &default);
    assert_eq!((tree.mode(directory), tree.acl(directory, ACCESS)), (0o755, None));
    // The list takes the place of the umask; what was asked for limits it.
    let file = tree.fs.mknod(&CALLER, directory, b"f", REGULAR | 0o4642, 0o777, 0).unwrap().inode;
    assert_eq!((tree.mode(file), tree.acl(file, ACCESS)), (0o4640, Some(list(6, 6, 5, Some(4), 0))));
    assert_eq!(tree.acl(file, DEFAULT), None);
    let inner = tree.fs.mkdir(&CALLER, directory, b"i", 0o777, 0o22).unwrap().inode;
    assert_eq!((tree.mode(inner), tree.acl(inner, ACCESS)), (0o764, Some(default.clone())));
    assert_eq!(tree.acl(inner, DEFAULT), Some(default));
    let nameless = tree.fs.tmpfile(&CALLER, directory, 0o666, 0o777).unwrap().inode;
    assert_eq!((tree.mode(nameless), tree.acl(nameless, ACCESS)), (0o664, Some(list(6, 6, 5, Some(6), 4))));
    let link = tree.fs.symlink(&CALLER, directory, b"s", b"f").unwrap().inode;
    assert_eq!((tree.mode(link), tree.fs.listxattr(link).unwrap()), (0o777, Vec::new()));
    // One that says no more than a mode gives its bits only.
    tree.set_acl(directory, DEFAULT, &list(7, 0, 7, None, 0));
    let plain = tree.fs.mknod(&CALLER, directory, b"p", REGULAR | 0o666, 0o777, 0).unwrap().inode;
    assert_eq!((tree.mode(plain), tree.acl(plain, ACCESS)), (0o660, None));
    tree.fs.removexattr(&CALLER, directory, DEFAULT).unwrap();
    let bare = tree.fs.mknod(&CALLER, directory, b"b", REGULAR | 0o666, 0o22, 0).unwrap().inode;
    assert_eq!(tree.mode(bare), 0o644);
    tree.fs.forget(nameless, 1);
    tree.close();
}

#[test]
fn lists_where_there_can_be_none() {
    let tree = Tree::new();
    let (file, link) = (tree.file(ROOT, "f"), tree.fs.symlink(&CALLER, ROOT, b"s", b"f").unwrap().inode);
    let set = |inode, name: &[u8], list: &[u8]| tree.fs.setxattr(&CALLER, inode, name, list, XattrMode::Any);
    let good = list(7, 6, 5, Some(4), 1);
    let table: Vec<Failing> = vec![
        ("half an entry", set(file, ACCESS, &good[..good.len() - 3]), Error::Invalid("")),
        ("permissions that there are not", set(file, ACCESS, &list(8, 0, 0, None, 0)), Error::Invalid("")),
        ("a list to inherit from a file", set(file, DEFAULT, &good), Error::AccessDenied),
        ("a symbolic link", set(link, ACCESS, &good), Error::Unsupported),
        ("another attribute of the system", no_value(tree.fs.getxattr(file, b"system.other")), Error::Unsupported),
    ];
    assert_failures(table);
    assert_eq!(tree.mode(file), 0o644);
    tree.close();
}

#[test]
fn a_mount_without_lists_keeps_them_in_step() {
    let mut tree = Tree::new();
    let (file, directory) = (tree.file(ROOT, "f"), tree.directory(ROOT, "d"));
    tree.set_acl(file, ACCESS, &list(7, 6, 5, Some(4), 1));
    tree.set_acl(directory, DEFAULT, &list(7, 6, 5, Some(4), 1));
    tree.store.close(&tree.fs);
    tree.fs = tree.store.open_with(Options { acl: false, background: false, ..Options::default() });
    let (file, directory) = (tree.fs.lookup(ROOT, b"f").unwrap().inode, tree.fs.lookup(ROOT, b"d").unwrap().inode);
    let good = list(7, 6, 5, Some(4), 1);
    let table: Vec<Failing> = vec![
        ("get", no_value(tree.fs.getxattr(file, ACCESS)), Error::Unsupported),
        ("set", tree.fs.setxattr(&CALLER, file, ACCESS, &good, XattrMode::Any), Error::Unsupported),
        ("remove", tree.fs.removexattr(&CALLER, file, ACCESS), Error::Unsupported),
        ("get of what is inherited", no_value(tree.fs.getxattr(directory, DEFAULT)), Error::Unsupported),
    ];
    assert_failures(table);
    assert_eq!(tree.fs.listxattr(file).unwrap(), b"");
    let new = tree.fs.mknod(&CALLER, directory, b"n", REGULAR | 0o666, 0o22, 0).unwrap().inode;
    assert_eq!(tree.mode(new), 0o644);
    tree.chmod(file, 0o600);
    tree.remount();
    let file = tree.fs.lookup(ROOT, b"f").unwrap().inode;
    assert_eq!(tree.acl(file, ACCESS), Some(list(6, 6, 5, Some(0), 0)));
    tree.close();
}
