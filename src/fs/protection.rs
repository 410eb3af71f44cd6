//! What chattr(1) sets: an immutable inode changes in no way, an append-only one only grows, and reading may leave the access time.
//! The kernel asks who may set them (CAP_LINUX_IMMUTABLE) and otherwise knows nothing of them, so whatever they forbid is refused
//! here, with EPERM as in other file systems.
//!
//! A file must not be opened for writing, but a kernel that was told once that files need no handles opens without asking. So the
//! first of these flags needs the mount option `chattr`, with which it is not told. The superblock then says that the store has such
//! inodes, and every later mount of it sees opens too, with or without the option.
//!
//! What the kernel's page cache took before the flag was set is let in afterwards, with the times that go with it.

use super::Filesystem;
use super::types::{FallocateMode, InodeFlags, SetAttributes, SetTime};
use crate::clock::now;
use crate::disk::superblock::RO_COMPAT_PROTECTED;
use crate::error::{Error, Result};
use crate::meta::Batch;
use crate::meta::records::{INODE_APPEND_ONLY, INODE_IMMUTABLE, INODE_NO_ATIME, InodeRecord};
use crate::units::InodeNumber;

const PROTECTED: u32 = INODE_IMMUTABLE | INODE_APPEND_ONLY;

fn refuse_if(record: &InodeRecord, flags: u32) -> Result<()> {
    if record.flags & flags == 0 { Ok(()) } else { Err(Error::NotPermitted) }
}

/// May its attributes and links change?
pub(super) fn may_change(record: &InodeRecord) -> Result<()> {
    refuse_if(record, PROTECTED)
}

/// May its contents change? Those of an append-only file may, at the end; that nothing else is tried is seen to when it is opened.
pub(super) fn may_write(record: &InodeRecord) -> Result<()> {
    refuse_if(record, INODE_IMMUTABLE)
}

/// May this directory get a new name?
pub(super) fn may_add(directory: &InodeRecord) -> Result<()> {
    refuse_if(directory, INODE_IMMUTABLE)
}

/// May this directory lose the name of this inode?
pub(super) fn may_remove(directory: &InodeRecord, inode: &InodeRecord) -> Result<()> {
    refuse_if(directory, PROTECTED)?;
    refuse_if(inode, PROTECTED)
}

/// May space be asked for so?
pub(super) fn may_allocate(record: &InodeRecord, mode: FallocateMode) -> Result<()> {
    match mode {
        FallocateMode::Allocate | FallocateMode::AllocateKeepSize => may_write(record),
        _ => may_change(record),
    }
}

/// May it be opened so? `appends`: only at the end.
fn may_open(record: &InodeRecord, writes: bool, appends: bool) -> Result<()> {
    refuse_if(record, if writes { INODE_IMMUTABLE } else { 0 })?;
    refuse_if(record, if writes && !appends { INODE_APPEND_ONLY } else { 0 })
}

/// May these attributes be set? `kernel_keeps_times`: times come with the data out of the kernel's cache, too.
pub(super) fn may_set(record: &InodeRecord, change: &SetAttributes, kernel_keeps_times: bool) -> Result<()> {
    let is_of_cache = kernel_keeps_times
        && matches!(change.modified, Some(SetTime::To(_)))
        && *change == SetAttributes { modified: change.modified, changed: change.changed, ..SetAttributes::default() };
    if record.flags & PROTECTED == 0 || is_of_cache {
        return Ok(());
    }
    let is_told = |time: Option<SetTime>| matches!(time, Some(SetTime::To(_)));
    let sets_times = is_told(change.accessed) || is_told(change.modified) && !kernel_keeps_times;
    let touches_only =
        change.mode.is_none() && change.uid.is_none() && change.gid.is_none() && change.size.is_none() && !sets_times;
    refuse_if(record, if touches_only { INODE_IMMUTABLE } else { PROTECTED })
}

impl Filesystem {
    /// Must every open be seen here?
    pub fn sees_opens(&self) -> bool {
        self.counts_every_access() || self.may_protect()
    }

    fn may_protect(&self) -> bool {
        self.options.chattr || self.superblock.lock().ro_compat & RO_COMPAT_PROTECTED != 0
    }

    /// May the file be opened so?
    pub fn open_file(&self, inode: InodeNumber, writes: bool, appends: bool) -> Result<()> {
        may_open(&self.inode(inode)?.state.lock().record, writes, appends)
    }

    /// What chattr(1) has set.
    pub fn inode_flags(&self, inode: InodeNumber) -> Result<InodeFlags> {
        let inode = self.inode(inode)?;
        let flags = inode.state.lock().record.flags;
        let has = |flag| flags & flag != 0;
        Ok(InodeFlags { immutable: has(INODE_IMMUTABLE), append_only: has(INODE_APPEND_ONLY), no_atime: has(INODE_NO_ATIME) })
    }

    /// Sets what chattr(1) sets. The kernel has asked whether the caller may.
    pub fn set_inode_flags(&self, inode: InodeNumber, wanted: InodeFlags) -> Result<()> {
        self.begin_changing()?;
        let inode = self.inode(inode)?;
        let is_protected = wanted.immutable || wanted.append_only;
        if is_protected {
            self.note_protection()?;
        }
        let mut state = inode.state.lock();
        let record = &mut state.record;
        let flags =
            [(wanted.immutable, INODE_IMMUTABLE), (wanted.append_only, INODE_APPEND_ONLY), (wanted.no_atime, INODE_NO_ATIME)];
        for (is_wanted, flag) in flags {
            record.flags = if is_wanted { record.flags | flag } else { record.flags & !flag };
        }
        record.changed = now();
        self.append_states(Batch::new(), [(inode.number, &mut state)])
    }

    /// Before the first protected inode: programs that know nothing of them must not write to the store.
    fn note_protection(&self) -> Result<()> {
        if !self.may_protect() {
            return Err(Error::Unsupported);
        }
        let mut superblock = self.superblock.lock();
        if superblock.ro_compat & RO_COMPAT_PROTECTED == 0 {
            superblock.ro_compat |= RO_COMPAT_PROTECTED;
            superblock.write(&*self.superblock_disk)?;
        }
        Ok(())
    }
}
