//! POSIX at the level of [`Filesystem`], without the kernel: what each call answers and changes. Tables where there is a table.
//! Permissions are not here: the kernel checks them (`default_permissions`).

mod acl;
mod attributes;
mod copies;
mod names;
mod protection;
mod space;
mod xattrs;

use crate::memory_store::MemoryStore;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use sumfs::error::{Error, Result};
use sumfs::fs::{Attributes, Caller, Filesystem, ReadFlags, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::InodeNumber;

/// The superuser.
pub const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
/// Mode bits of the kinds.
pub const REGULAR: u32 = 0o100_000;

/// A mounted store in memory with shorthands. `close` must be called: it checks the store.
pub struct Tree {
    pub fs: Arc<Filesystem>,
    pub store: MemoryStore,
}

impl Tree {
    pub fn new() -> Tree {
        Tree::with_size(1 << 30)
    }

    /// A store for `bytes` of data.
    pub fn with_size(bytes: u64) -> Tree {
        let store = MemoryStore::new(bytes);
        Tree { fs: store.open(), store }
    }

    /// Shutdown, check, open again.
    pub fn remount(&mut self) {
        self.store.close(&self.fs);
        self.fs = self.store.open();
    }

    /// Shutdown and check.
    pub fn close(self) {
        self.store.close(&self.fs);
    }

    pub fn file(&self, parent: InodeNumber, name: &str) -> InodeNumber {
        self.fs.mknod(&CALLER, parent, name.as_bytes(), REGULAR | 0o644, 0, 0).unwrap().inode
    }

    pub fn directory(&self, parent: InodeNumber, name: &str) -> InodeNumber {
        self.fs.mkdir(&CALLER, parent, name.as_bytes(), 0o755, 0).unwrap().inode
    }

    pub fn write(&self, inode: InodeNumber, offset: u64, data: &[u8]) -> Result<usize> {
        self.fs.write(&CALLER, inode, offset, data, WriteFlags::default(), Wait::Allowed)
    }

    pub fn read(&self, inode: InodeNumber, offset: u64, len: usize) -> Result<Vec<u8>> {
        Ok(self.fs.read(inode, offset, len, ReadFlags::default(), Wait::Allowed)?.as_slice().to_vec())
    }

    pub fn attributes(&self, inode: InodeNumber) -> Attributes {
        self.fs.getattr(inode).unwrap()
    }

    pub fn links(&self, inode: InodeNumber) -> u32 {
        self.attributes(inode).links
    }

    /// fsync, and its answer.
    pub fn fsync(&self, inode: InodeNumber) -> Result<()> {
        let (answer, answered) = mpsc::channel();
        self.fs.fsync(inode, false, Box::new(move |result| drop(answer.send(result))));
        answered.recv_timeout(Duration::from_secs(30)).expect("fsync is not answered")
    }

    /// Names in a directory, in the order of the listing.
    pub fn names(&self, inode: InodeNumber) -> Vec<String> {
        let mut names = Vec::new();
        let mut note = |name: &[u8]| names.push(String::from_utf8(name.to_vec()).unwrap());
        self.fs
            .readdir(inode, 0, &mut |entry| {
                note(entry.name);
                true
            })
            .unwrap();
        names.retain(|name| name != "." && name != "..");
        names
    }
}

/// What a call is expected to fail with.
pub type Failing = (&'static str, Result<()>, Error);

/// Asserts each row of a table of failing calls; shows all that are wrong.
pub fn assert_failures(table: Vec<Failing>) {
    let kind = std::mem::discriminant::<Error>;
    let wrong: Vec<String> = table
        .into_iter()
        .filter(|(_, found, expected)| found.as_ref().err().map(kind) != Some(kind(expected)))
        .map(|(call, found, expected)| format!("{call}: {found:?}, expected {expected:?}"))
        .collect();
    assert!(wrong.is_empty(), "wrong answers:\n  {}", wrong.join("\n  "));
}

/// Forgets the value of a result.
pub fn no_value<T>(result: Result<T>) -> Result<()> {
    result.map(|_| ())
}
