//! Files without a name (O_TMPFILE). One is an orphan from the first moment: a crash, or the last close, deletes it. A link gives it
//! its first name, once; a flag in its record tells it from files that lost their names, which get no new one.

use super::Filesystem;
use super::inode::Inode;
use super::names::{NewInode, check_alive};
use super::protection::may_add;
use super::types::{Attributes, Caller};
use crate::cache::CachedFile;
use crate::clock::now;
use crate::error::Result;
use crate::extent::FileExtents;
use crate::meta::records::{FileKind, INODE_NEVER_NAMED, InodeRecord, OrphanRecord};
use crate::meta::{Batch, schema};
use crate::units::InodeNumber;
use std::sync::Arc;

impl Filesystem {
    /// Creates a file without a name, as if it were in `parent`; the kernel's count of lookups of it is one.
    pub fn tmpfile(&self, caller: &Caller, parent: InodeNumber, mode: u32, umask: u32) -> Result<Attributes> {
        self.begin_creating()?;
        let directory = self.directory(parent)?;
        let mode = FileKind::Regular.mode_bits() | (mode & 0o7777);
        let new = NewInode { mode, umask: umask & 0o777, rdev: 0, target: None };
        let (mut record, inherited) = {
            let state = directory.state.lock();
            check_alive(&state)?;
            may_add(&state.record)?;
            self.new_record(caller, parent, &state, &new, now())?
        };
        record.links = 0;
        record.flags |= INODE_NEVER_NAMED;
        let number = self.meta.new_inode_number();
        let mut batch = Batch::new();
        inherited.put(&mut batch, number, &mut record);
        batch.put(schema::inode(number), record.encode());
        batch.put(schema::orphan(number), OrphanRecord::Unlinked.encode());
        let sequence = self.meta.append(batch)?;
        let file = Arc::new(CachedFile::new(FileExtents::empty(number)));
        let inode = Arc::new(Inode::new(number, record, Some(file), sequence));
        self.table.add_lookup(number);
        self.table.insert(inode.clone());
        Ok(inode.attributes())
    }
}

/// Could a link give this inode its first name?
pub(super) fn is_never_named(record: &InodeRecord) -> bool {
    record.links == 0 && record.flags & INODE_NEVER_NAMED != 0
}

/// The link with this cookie in `parent` is its first.
pub(super) fn name_first(batch: &mut Batch, number: InodeNumber, record: &mut InodeRecord, parent: InodeNumber, cookie: u64) {
    record.flags &= !INODE_NEVER_NAMED;
    (record.parent, record.cookie) = (parent, cookie);
    batch.delete(schema::orphan(number));
}
