//! Extended attributes: namespaces, modes, sizes, lists, after a remount.

use super::{CALLER, Failing, Tree, assert_failures, no_value};
use std::collections::BTreeSet;
use sumfs::error::Error;
use sumfs::fs::XattrMode;
use sumfs::units::InodeNumber;

const ROOT: InodeNumber = InodeNumber::ROOT;

fn list(tree: &Tree, inode: InodeNumber) -> BTreeSet<String> {
    let list = tree.fs.listxattr(inode).unwrap();
    assert!(list.is_empty() || list.ends_with(b"\0"), "{list:?}");
    list.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(|name| String::from_utf8(name.to_vec()).unwrap()).collect()
}

#[test]
fn misuse_has_the_right_error() {
    let tree = Tree::new();
    let fs = &tree.fs;
    let file = tree.file(ROOT, "f");
    let set = |name: &[u8], value: &[u8], mode| fs.setxattr(&CALLER, file, name, value, mode);
    set(b"user.a", b"1", XattrMode::Create).unwrap();
    let long = [b"user.".as_slice(), &[b'x'; 251]].concat();
    let table: Vec<Failing> = vec![
        ("get of a missing one", no_value(fs.getxattr(file, b"user.b")), Error::NoXattr),
        ("remove of a missing one", fs.removexattr(&CALLER, file, b"user.b"), Error::NoXattr),
        ("create of an existing one", set(b"user.a", b"2", XattrMode::Create), Error::Exists),
        ("replace of a missing one", set(b"user.b", b"2", XattrMode::Replace), Error::NoXattr),
        ("a value of 64 KiB and a byte", set(b"user.b", &[0; 65_537], XattrMode::Any), Error::ValueTooLarge),
        ("a foreign namespace", set(b"system.nfs4_acl", b"", XattrMode::Any), Error::Unsupported),
        ("no namespace", set(b"plain", b"", XattrMode::Any), Error::Unsupported),
        ("get in a foreign namespace", no_value(fs.getxattr(file, b"system.nfs4_acl")), Error::Unsupported),
    ];
    assert_failures(table);
    // Names longer than 255 bytes are ERANGE in the kernel and never come here.
    assert!(set(&long, b"", XattrMode::Any).is_err());
    assert!(set(b"user.", b"", XattrMode::Any).is_err());
    assert_eq!(fs.getxattr(file, b"user.a").unwrap(), b"1");
    assert_eq!(list(&tree, file).len(), 1);
    tree.close();
}

#[test]
fn values_of_all_sizes_and_many_names_survive() {
    let mut tree = Tree::new();
    let file = tree.file(ROOT, "f");
    let value = |number: usize| vec![number as u8; number * 13 % 900];
    for number in 0..100 {
        let name = format!("user.{number}");
        tree.fs.setxattr(&CALLER, file, name.as_bytes(), &value(number), XattrMode::Any).unwrap();
    }
    tree.fs.setxattr(&CALLER, file, b"trusted.big", &[9; 65_536], XattrMode::Create).unwrap();
    tree.fs.setxattr(&CALLER, file, b"user.50", b"", XattrMode::Replace).unwrap();
    tree.fs.removexattr(&CALLER, file, b"user.51").unwrap();
    tree.remount();
    let file = tree.fs.lookup(ROOT, b"f").unwrap().inode;
    let names = list(&tree, file);
    assert_eq!(names.len(), 100);
    assert!(names.contains("trusted.big") && !names.contains("user.51"));
    for number in (0..100).filter(|number| ![50, 51].contains(number)) {
        assert_eq!(tree.fs.getxattr(file, format!("user.{number}").as_bytes()).unwrap(), value(number));
    }
    assert_eq!(tree.fs.getxattr(file, b"user.50").unwrap(), b"");
    assert_eq!(tree.fs.getxattr(file, b"trusted.big").unwrap(), [9; 65_536]);
    for name in &names {
        tree.fs.removexattr(&CALLER, file, name.as_bytes()).unwrap();
    }
    assert!(list(&tree, file).is_empty());
    tree.close();
}

#[test]
fn they_belong_to_the_inode_and_go_with_it() {
    let mut tree = Tree::new();
    let (file, directory) = (tree.file(ROOT, "f"), tree.directory(ROOT, "d"));
    let symlink = tree.fs.symlink(&CALLER, ROOT, b"s", b"t").unwrap().inode;
    tree.fs.link(file, ROOT, b"other").unwrap();
    for inode in [file, directory, symlink] {
        tree.fs.setxattr(&CALLER, inode, b"trusted.t", b"value", XattrMode::Any).unwrap();
    }
    tree.fs.unlink(ROOT, b"f").unwrap();
    let other = tree.fs.lookup(ROOT, b"other").unwrap().inode;
    assert_eq!(tree.fs.getxattr(other, b"trusted.t").unwrap(), b"value");
    tree.fs.unlink(ROOT, b"other").unwrap();
    tree.fs.rmdir(ROOT, b"d").unwrap();
    tree.fs.unlink(ROOT, b"s").unwrap();
    // The check at the end finds attributes without an inode.
    tree.remount();
    let again = tree.file(ROOT, "f");
    assert!(list(&tree, again).is_empty());
    tree.close();
}
