//! A damaged metadata value costs its own item only: for every record of the small store, damaged alone, what else is there lists and
//! reads as before, and what can be removed without the value can be removed.

use super::contents::Contents;
use std::collections::BTreeMap;
use std::sync::Arc;
use sumfs::fs::{Filesystem, Options, ReadFlags};
use sumfs::lock::Wait;
use sumfs::meta::schema::{self, Key, Parsed};
use sumfs::store::Disks;
use sumfs::units::InodeNumber;

/// What a path is: its inode, and its contents or that they cannot be read.
type Tree = BTreeMap<String, Option<Vec<u8>>>;

fn open(disks: &Disks) -> Arc<Filesystem> {
    Filesystem::open(disks.clone(), Options { background: false, ..Options::default() }).unwrap()
}

fn names(fs: &Filesystem, directory: InodeNumber, with_attributes: bool) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut take = |name: &[u8]| {
        names.extend((name != b"." && name != b"..").then(|| name.to_vec()));
        true
    };
    if with_attributes {
        fs.readdirplus(directory, 0, &mut |entry, _| take(entry.name)).unwrap();
    } else {
        fs.readdir(directory, 0, &mut |entry| take(entry.name)).unwrap();
    }
    names
}

/// Everything that is listed, with what it reads as.
fn tree(fs: &Filesystem) -> Tree {
    let mut found = Tree::new();
    let mut todo = vec![(InodeNumber::ROOT, String::new())];
    while let Some((directory, path)) = todo.pop() {
        let listed = names(fs, directory, false);
        assert_eq!(listed, names(fs, directory, true), "{path}");
        for name in listed {
            let path = format!("{path}/{}", String::from_utf8_lossy(&name));
            let bytes = fs.lookup(directory, &name).ok().and_then(|attributes| match attributes.mode & 0o170_000 {
                0o040_000 => {
                    todo.push((attributes.inode, path.clone()));
                    Some(Vec::new())
                }
                0o120_000 => fs.readlink(attributes.inode).ok(),
                _ => {
                    let read = fs.read(attributes.inode, 0, attributes.size as usize, ReadFlags::default(), Wait::Allowed);
                    read.ok().map(|data| data.as_slice().to_vec())
                }
            });
            found.insert(path, bytes);
        }
    }
    found
}

/// The paths that may be an error, and those that may be missing, when the value of the key is damaged.
fn costs(key: &Key) -> (&'static [&'static str], &'static [&'static str]) {
    let path = |inode: u64| -> &'static [&'static str] {
        match inode {
            2 => &["/dir"],
            3 => &["/file", "/dir/hard"],
            4 => &["/link"],
            5 => &["/dir/sub"],
            6 => &["/shared"],
            8 => &["/cut"],
            _ => &[],
        }
    };
    match schema::parse(key) {
        Some(Parsed::Inode(inode)) if inode.0 == 2 => (path(2), &["/dir/hard", "/dir/sub"]),
        Some(Parsed::Inode(inode) | Parsed::Symlink(inode) | Parsed::Map { inode, .. }) => (path(inode.0), &[]),
        Some(Parsed::EntryByName { name: b"dir", .. }) => (path(2), &["/dir/hard", "/dir/sub"]),
        Some(Parsed::EntryByName { name: b"file", .. }) => (&["/file"], &[]),
        Some(Parsed::EntryByName { name: b"hard", .. }) => (&["/dir/hard"], &[]),
        Some(Parsed::EntryByName { name: b"link", .. }) => (path(4), &[]),
        Some(Parsed::EntryByName { name: b"sub", .. }) => (path(5), &[]),
        Some(Parsed::EntryByName { name: b"shared", .. }) => (path(6), &[]),
        Some(Parsed::EntryByName { name: b"cut", .. }) => (path(8), &[]),
        Some(Parsed::Extent(address)) => match address.0 {
            0 => (path(3), &[]),
            8 => (path(6), &[]),
            257 => (path(8), &[]),
            _ => (&[], &[]),
        },
        _ => (&[], &[]),
    }
}

/// Without these there is no mount at all.
fn is_needed(key: &Key) -> bool {
    matches!(
        schema::parse(key),
        Some(Parsed::Inode(InodeNumber::ROOT) | Parsed::Group(_) | Parsed::Counters | Parsed::Checkpoint | Parsed::Bitmap(_))
    )
}

#[test]
fn a_damaged_value_costs_its_item_only() {
    let good = tree(&open(&Contents::good().write().unwrap()));
    assert_eq!(good.len(), 7, "{good:?}");
    assert!(good.values().all(Option::is_some), "{good:?}");
    let keys: Vec<Key> = Contents::good().records.keys().filter(|key| !is_needed(key)).cloned().collect();
    assert!(keys.len() > 30);
    for key in keys {
        let about = format!("{:?}", schema::parse(&key));
        let mut contents = Contents::good();
        contents.damage(key.clone());
        let disks = contents.write().unwrap();
        let fs = open(&disks);
        let now = tree(&fs);
        let (broken, gone) = costs(&key);
        for (path, was) in &good {
            match now.get(path) {
                None => assert!(gone.contains(&path.as_str()), "{about}: {path} is not listed any more"),
                Some(None) => assert!(broken.contains(&path.as_str()), "{about}: {path} cannot be read any more"),
                Some(found) => assert_eq!(found, was, "{about}: {path} reads as something else"),
            }
        }
        remove_all(&fs, &key, &about);
        assert_eq!(fs.read_only_reason(), None, "{about}");
    }
}

/// Files go whatever of theirs is damaged, but for the name and the inode themselves.
fn remove_all(fs: &Filesystem, key: &Key, about: &str) {
    let broken = costs(key).0;
    let needs_it = matches!(schema::parse(key), Some(Parsed::Inode(_) | Parsed::EntryByName { .. }));
    for name in ["file", "link", "shared", "cut"] {
        let path = format!("/{name}");
        if needs_it && broken.contains(&path.as_str()) {
            continue;
        }
        fs.unlink(InodeNumber::ROOT, name.as_bytes()).unwrap_or_else(|error| panic!("{about}: unlink of {name}: {error}"));
    }
    fs.sync().unwrap_or_else(|error| panic!("{about}: {error}"));
}
