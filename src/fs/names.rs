//! Names: lookup, create, link, unlink, rename. Changes of the tree happen one at a time (lock rank Names) and are one batch
//! each. An entry has two records, by name and by cookie; an inode knows its first link, further ones have records.

use super::acl::Inherited;
use super::inode::{Inode, InodeState, lock_states};
use super::protection::{may_add, may_change, may_remove};
use super::tmpfile::{is_never_named, name_first};
use super::types::{Attributes, Caller};
use super::{Filesystem, NAME_BYTES_MAX};
use crate::cache::CachedFile;
use crate::clock::now;
use crate::error::{Error, Result};
use crate::extent::FileExtents;
use crate::lock::assert_may_wait;
use crate::meta::records::{CookieRecord, EntryRecord, FileKind, INODE_NO_ATIME, InodeRecord, OrphanRecord};
use crate::meta::{Batch, schema};
use crate::units::{InodeNumber, Timestamp};
use std::sync::Arc;

/// Most links of one file.
pub const LINKS_MAX: u32 = 65_000;
const SETGID: u32 = 0o2000;

/// What a new inode is to be.
#[derive(Clone, Copy)]
pub(super) struct NewInode<'a> {
    pub(super) mode: u32,
    /// Bits that its mode loses, unless its directory has a list for what is made in it.
    pub(super) umask: u32,
    pub(super) rdev: u32,
    pub(super) target: Option<&'a [u8]>,
}

impl Filesystem {
    /// Finds `name` in `parent`; the kernel's count of lookups of what is found rises by one.
    pub fn lookup(&self, parent: InodeNumber, name: &[u8]) -> Result<Attributes> {
        check_name(name)?;
        let entry = match name {
            b"." | b".." => self.by_number(parent, name)?,
            _ => self.entry(parent, name)?.ok_or(Error::NotFound)?.inode,
        };
        // Unlinked between the two reads.
        self.meet(entry).map_err(|error| if matches!(error, Error::Stale) { Error::NotFound } else { error })
    }

    /// For file handles, which outlive what the kernel remembers: an inode itself, or the directory that it is in. One without a name is
    /// not found, even while it is being deleted.
    fn by_number(&self, number: InodeNumber, name: &[u8]) -> Result<InodeNumber> {
        let inode = self.inode(number)?;
        let state = inode.state.lock();
        check_alive(&state)?;
        Ok(if name == b"." { number } else { state.record.parent })
    }

    pub(super) fn entry(&self, parent: InodeNumber, name: &[u8]) -> Result<Option<EntryRecord>> {
        self.meta.get(&schema::entry_by_name(parent, name))?.map(|record| EntryRecord::decode(&record)).transpose()
    }

    /// Creates a file, a device node, a fifo or a socket. `mode` has the type bits.
    pub fn mknod(
        &self,
        caller: &Caller,
        parent: InodeNumber,
        name: &[u8],
        mode: u32,
        umask: u32,
        rdev: u32,
    ) -> Result<Attributes> {
        if matches!(FileKind::from_mode(mode), None | Some(FileKind::Directory | FileKind::Symlink)) {
            return Err(Error::Invalid("no such kind of node"));
        }
        self.create(caller, parent, name, &NewInode { mode, umask: umask & 0o777, rdev, target: None })
    }

    /// Creates a directory.
    pub fn mkdir(&self, caller: &Caller, parent: InodeNumber, name: &[u8], mode: u32, umask: u32) -> Result<Attributes> {
        let mode = FileKind::Directory.mode_bits() | (mode & 0o7777);
        self.create(caller, parent, name, &NewInode { mode, umask: umask & 0o777, rdev: 0, target: None })
    }

    /// Creates a symbolic link.
    pub fn symlink(&self, caller: &Caller, parent: InodeNumber, name: &[u8], target: &[u8]) -> Result<Attributes> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        if target.len() > 4095 {
            return Err(Error::NameTooLong);
        }
        let mode = FileKind::Symlink.mode_bits() | 0o777;
        self.create(caller, parent, name, &NewInode { mode, umask: 0, rdev: 0, target: Some(target) })
    }

    fn create(&self, caller: &Caller, parent: InodeNumber, name: &[u8], new: &NewInode<'_>) -> Result<Attributes> {
        check_new_name(name)?;
        self.begin_creating()?;
        let directory = self.directory(parent)?;
        let _names = self.names.lock();
        if self.entry(parent, name)?.is_some() {
            return Err(Error::Exists);
        }
        let number = self.meta.new_inode_number();
        let kind = FileKind::from_mode(new.mode).unwrap_or(FileKind::Regular);
        let mut state = directory.state.lock();
        check_alive(&state)?;
        may_add(&state.record)?;
        let (mut record, inherited) = self.new_record(caller, parent, &state, new, now())?;
        let mut batch = Batch::new();
        inherited.put(&mut batch, number, &mut record);
        add_entry(&mut batch, parent, &mut state.record, name, number, kind, record.cookie);
        if kind == FileKind::Directory {
            state.record.links += 1;
        }
        touch(&mut state.record, record.created);
        batch.put(schema::inode(parent), state.record.encode());
        batch.put(schema::inode(number), record.encode());
        if let Some(target) = new.target {
            batch.put(schema::symlink(number), target.to_vec());
        }
        state.sequence = self.meta.append(batch)?;
        state.is_dirty = false;
        let file = (kind == FileKind::Regular).then(|| Arc::new(CachedFile::new(FileExtents::empty(number))));
        let inode = Arc::new(Inode::new(number, record, file, state.sequence));
        drop(state);
        self.table.add_lookup(number);
        self.table.insert(inode.clone());
        Ok(inode.attributes())
    }

    /// The record of something new in a directory, and the lists that go with it.
    pub(super) fn new_record(
        &self,
        caller: &Caller,
        parent: InodeNumber,
        directory: &InodeState,
        new: &NewInode<'_>,
        time: Timestamp,
    ) -> Result<(InodeRecord, Inherited)> {
        let mut new = *new;
        let inherited = self.inherit(parent, directory, &mut new.mode, new.umask)?;
        new.umask = 0;
        Ok((bare_record(caller, parent, &directory.record, &new, time), inherited))
    }

    /// Gives `inode` one more name; its count of lookups rises by one.
    pub fn link(&self, inode: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<Attributes> {
        check_new_name(name)?;
        self.begin_creating()?;
        let directory = self.directory(parent)?;
        let inode = self.inode(inode)?;
        let _names = self.names.lock();
        if self.entry(parent, name)?.is_some() {
            return Err(Error::Exists);
        }
        // A truncation of a file without a name leaves no record that it is under way: it must be over before there is one.
        let is_nameless = inode.state.lock().record.links == 0;
        let _range = is_nameless.then(|| inode.ranges.lock(0..u64::MAX, false));
        {
            if inode.kind() == FileKind::Directory {
                return Err(Error::NotPermitted);
            }
            let [mut to, mut of] = lock_states([&*directory, &*inode])?;
            check_alive(&to)?;
            may_add(&to.record)?;
            may_change(&of.record)?;
            let is_first = is_never_named(&of.record);
            if !is_first {
                check_alive(&of)?;
            }
            if of.record.links >= LINKS_MAX {
                return Err(Error::TooManyLinks);
            }
            let time = now();
            let mut batch = Batch::new();
            let cookie = to.record.next_cookie;
            add_entry(&mut batch, parent, &mut to.record, name, inode.number, of.record.kind(), cookie);
            if is_first {
                name_first(&mut batch, inode.number, &mut of.record, parent, cookie);
            } else {
                batch.put(schema::link(inode.number, parent, cookie), Vec::new());
            }
            touch(&mut to.record, time);
            of.record.links += 1;
            of.record.changed = time;
            self.append_states(batch, [(parent, &mut to), (inode.number, &mut of)])?;
        }
        self.table.add_lookup(inode.number);
        Ok(inode.attributes())
    }

    /// Removes a name that is not a directory's.
    pub fn unlink(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.begin_changing()?;
        let directory = self.directory(parent)?;
        let names = self.names.lock();
        let entry = self.entry(parent, name)?.ok_or(Error::NotFound)?;
        if entry.kind == FileKind::Directory {
            return Err(Error::IsDirectory);
        }
        let inode = self.inode_of(&entry)?;
        {
            let [mut from, mut of] = lock_states([&*directory, &*inode])?;
            may_remove(&from.record, &of.record)?;
            let time = now();
            let mut batch = Batch::new();
            remove_entry(&mut batch, parent, &mut from.record, name, entry.cookie);
            touch(&mut from.record, time);
            self.remove_link(&mut batch, &inode, &mut of, parent, entry.cookie, time)?;
            self.append_states(batch, [(parent, &mut from), (inode.number, &mut of)])?;
        }
        drop(names);
        self.reap_if_unused(&inode);
        Ok(())
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        check_name(name)?;
        match name {
            b"." => return Err(Error::Invalid("cannot remove .")),
            b".." => return Err(Error::NotEmpty),
            _ => {}
        }
        self.begin_changing()?;
        let directory = self.directory(parent)?;
        let names = self.names.lock();
        let entry = self.entry(parent, name)?.ok_or(Error::NotFound)?;
        if entry.kind != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        let inode = self.inode_of(&entry)?;
        {
            let [mut from, mut of] = lock_states([&*directory, &*inode])?;
            may_remove(&from.record, &of.record)?;
            if of.record.size != 0 {
                return Err(Error::NotEmpty);
            }
            let time = now();
            let mut batch = Batch::new();
            remove_entry(&mut batch, parent, &mut from.record, name, entry.cookie);
            lose_subdirectory(parent, &mut from.record)?;
            touch(&mut from.record, time);
            orphan(&mut batch, inode.number, &mut of, time);
            self.append_states(batch, [(parent, &mut from), (inode.number, &mut of)])?;
        }
        drop(names);
        self.reap_if_unused(&inode);
        Ok(())
    }

    /// One name less: promotes another link to be the first, or makes an orphan of the inode.
    pub(super) fn remove_link(
        &self,
        batch: &mut Batch,
        inode: &Inode,
        state: &mut InodeState,
        parent: InodeNumber,
        cookie: u64,
        time: Timestamp,
    ) -> Result<()> {
        if state.record.links <= 1 {
            orphan(batch, inode.number, state, time);
            return Ok(());
        }
        state.record.links -= 1;
        state.record.changed = time;
        if (state.record.parent, state.record.cookie) != (parent, cookie) {
            batch.delete(schema::link(inode.number, parent, cookie));
            return Ok(());
        }
        let (begin, end) = (schema::items(inode.number, schema::Item::Link), schema::items_end(inode.number, schema::Item::Link));
        let first = self.meta.first_key(&begin, &end)?;
        let Some(schema::Parsed::Link { parent, cookie, .. }) = first.as_deref().and_then(schema::parse) else {
            return Err(Error::corrupt(format!(
                "inode {} has {} links but no record of a further one",
                inode.number,
                state.record.links + 1
            )));
        };
        batch.delete(schema::link(inode.number, parent, cookie));
        (state.record.parent, state.record.cookie) = (parent, cookie);
        Ok(())
    }

    /// Appends the batch with the records of the inodes it changed.
    pub(super) fn append_states<const N: usize>(
        &self,
        mut batch: Batch,
        mut states: [(InodeNumber, &mut InodeState); N],
    ) -> Result<()> {
        for (number, state) in &states {
            batch.put(schema::inode(*number), state.record.encode());
        }
        let sequence = self.meta.append(batch)?;
        for (_, state) in &mut states {
            state.sequence = sequence;
            state.is_dirty = false;
        }
        Ok(())
    }

    /// The inode that an entry names. Its kind, which decides what may be done with the name, must be the entry's.
    pub(super) fn inode_of(&self, entry: &EntryRecord) -> Result<Arc<Inode>> {
        let inode = self.inode(entry.inode)?;
        if inode.kind() == entry.kind {
            return Ok(inode);
        }
        Err(Error::corrupt(format!("inode {} is a {:?}, its entry says {:?}", entry.inode, inode.kind(), entry.kind)))
    }

    /// The inode of a directory.
    pub(super) fn directory(&self, number: InodeNumber) -> Result<Arc<Inode>> {
        assert_may_wait("a name operation");
        let inode = self.inode(number)?;
        if inode.kind() != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        Ok(inode)
    }
}

/// A directory that was removed takes no new names; a file without names gets no new one.
pub(super) fn check_alive(state: &InodeState) -> Result<()> {
    if state.record.links == 0 { Err(Error::NotFound) } else { Ok(()) }
}

pub(super) fn check_name(name: &[u8]) -> Result<()> {
    match name.len() {
        0 => Err(Error::NotFound),
        1..=NAME_BYTES_MAX => Ok(()),
        _ => Err(Error::NameTooLong),
    }
}

pub(super) fn check_new_name(name: &[u8]) -> Result<()> {
    check_name(name)?;
    match name {
        b"." | b".." => Err(Error::Exists),
        name if name.iter().any(|byte| matches!(byte, 0 | b'/')) => Err(Error::Invalid("a name with / or NUL")),
        _ => Ok(()),
    }
}

/// The record of a new inode; what it inherits is not in it.
pub(super) fn bare_record(
    caller: &Caller,
    parent: InodeNumber,
    directory: &InodeRecord,
    new: &NewInode<'_>,
    time: Timestamp,
) -> InodeRecord {
    let is_directory = FileKind::from_mode(new.mode) == Some(FileKind::Directory);
    let inherits = directory.mode & SETGID != 0;
    let mode = new.mode & !new.umask;
    InodeRecord {
        mode: if inherits && is_directory { mode | SETGID } else { mode },
        uid: caller.uid,
        gid: if inherits { directory.gid } else { caller.gid },
        links: if is_directory { 2 } else { 1 },
        size: new.target.map_or(0, |target| target.len() as u64),
        blocks: 0,
        accessed: time,
        modified: time,
        changed: time,
        created: time,
        rdev: new.rdev,
        flags: directory.flags & INODE_NO_ATIME,
        parent,
        cookie: directory.next_cookie,
        next_cookie: 3,
    }
}

/// Puts both records of an entry. A cookie that is the directory's next one moves that on.
pub(super) fn add_entry(
    batch: &mut Batch,
    parent: InodeNumber,
    directory: &mut InodeRecord,
    name: &[u8],
    inode: InodeNumber,
    kind: FileKind,
    cookie: u64,
) {
    batch.put(schema::entry_by_name(parent, name), EntryRecord { inode, cookie, kind }.encode());
    batch.put(schema::entry_by_cookie(parent, cookie), CookieRecord { inode, kind, name: name.to_vec() }.encode());
    directory.next_cookie = directory.next_cookie.max(cookie + 1);
    directory.size += 1;
}

/// Deletes both records of an entry.
pub(super) fn remove_entry(batch: &mut Batch, parent: InodeNumber, directory: &mut InodeRecord, name: &[u8], cookie: u64) {
    batch.delete(schema::entry_by_name(parent, name));
    batch.delete(schema::entry_by_cookie(parent, cookie));
    directory.size = directory.size.saturating_sub(1);
}

/// A directory has one link for each subdirectory; this one is about to have one less.
pub(super) fn lose_subdirectory(directory: InodeNumber, record: &mut InodeRecord) -> Result<()> {
    let links = record.links.checked_sub(1);
    record.links = links.ok_or_else(|| Error::corrupt(format!("directory {directory} has a subdirectory and no links")))?;
    Ok(())
}

pub(super) fn touch(record: &mut InodeRecord, time: Timestamp) {
    record.modified = time;
    record.changed = time;
}

pub(super) fn orphan(batch: &mut Batch, number: InodeNumber, state: &mut InodeState, time: Timestamp) {
    state.record.links = 0;
    state.record.changed = time;
    batch.put(schema::orphan(number), OrphanRecord::Unlinked.encode());
}
