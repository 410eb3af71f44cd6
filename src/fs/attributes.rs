//! Attributes: getattr, setattr, readlink; the rules of suid and sgid; access times.

use super::Filesystem;
use super::inode::{Inode, InodeState};
use super::protection::may_set;
use super::types::{AccessTimes, Attributes, Caller, SetAttributes, SetTime};
use crate::clock::now;
use crate::error::{Error, Result};
use crate::meta::records::{FileKind, INODE_NO_ATIME, InodeRecord};
use crate::meta::{Batch, schema};
use crate::units::{InodeNumber, Timestamp};
use std::sync::Arc;

const SUID: u32 = 0o4000;
const SGID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;
const DAY_SECONDS: i64 = 86_400;

/// Clears suid, and sgid where it means a set group id, or where the caller is not of the group.
pub(super) fn kill_suid(caller: &Caller, record: &mut InodeRecord) {
    record.mode &= !SUID;
    if record.mode & SGID != 0 && (record.mode & GROUP_EXECUTE != 0 || !caller.may_keep_sgid(record.gid)) {
        record.mode &= !SGID;
    }
}

impl SetTime {
    fn at(self, time: Timestamp) -> Timestamp {
        match self {
            SetTime::Now => time,
            SetTime::To(time) => time,
        }
    }
}

impl Filesystem {
    /// Must every read be seen here, however little it changes otherwise?
    pub fn counts_every_access(&self) -> bool {
        self.options.access_times == AccessTimes::Strictatime
    }

    /// The attributes of an inode.
    pub fn getattr(&self, inode: InodeNumber) -> Result<Attributes> {
        Ok(self.inode(inode)?.attributes())
    }

    /// Sets attributes; a size first, so that a failed truncate changes nothing else. No field at all only asks.
    pub fn setattr(&self, caller: &Caller, inode: InodeNumber, change: &SetAttributes) -> Result<Attributes> {
        let inode = self.inode(inode)?;
        if *change == SetAttributes::default() {
            return Ok(inode.attributes());
        }
        self.begin_changing()?;
        let kernel_keeps_times = self.options.kernel_caches && inode.file.is_some();
        may_set(&inode.state.lock().record, change, kernel_keeps_times)?;
        if let Some(size) = change.size {
            self.truncate(caller, &inode, size)?;
        }
        {
            // Times too at once: in memory they would be missing in a commit that has what was done after them (D8).
            let mut state = inode.state.lock();
            let changed = state.record.changed;
            apply(caller, &mut state.record, change);
            let only_kills = *change == SetAttributes { kill_suid: true, ..SetAttributes::default() };
            if only_kills && kernel_keeps_times {
                // A write that begins: its times come from the kernel.
                state.record.changed = changed;
            }
            let mut batch = Batch::new();
            if change.mode.is_some() {
                self.follow_mode(&mut batch, inode.number, &state)?;
            }
            self.append_with_inode(batch, &inode, &mut state)?;
        }
        if change.size.is_some() || change.uid.is_some() || change.gid.is_some() {
            self.drop_capability(&inode)?;
        }
        Ok(inode.attributes())
    }

    /// Appends the inode's record as it is.
    pub(super) fn append_inode(&self, inode: &Inode, state: &mut InodeState) -> Result<()> {
        self.append_with_inode(Batch::new(), inode, state)
    }

    fn append_with_inode(&self, mut batch: Batch, inode: &Inode, state: &mut InodeState) -> Result<()> {
        if state.is_gone {
            return Ok(());
        }
        batch.put(schema::inode(inode.number), state.record.encode());
        state.sequence = self.meta.append(batch)?;
        state.is_dirty = false;
        Ok(())
    }

    /// Where a symbolic link points.
    pub fn readlink(&self, inode: InodeNumber) -> Result<Vec<u8>> {
        let found = self.inode(inode)?;
        if found.kind() != FileKind::Symlink {
            return Err(Error::Invalid("not a symbolic link"));
        }
        self.meta.get(&schema::symlink(inode))?.ok_or_else(|| Error::corrupt(format!("symbolic link {inode} has no target")))
    }

    /// A read happened: the access time, as the mount option wants it. In memory; the next commit takes it along.
    pub(super) fn note_access(&self, inode: &Arc<Inode>) {
        if self.options.read_only || self.options.access_times == AccessTimes::Noatime {
            return;
        }
        let time = now();
        {
            let mut state = inode.state.lock();
            let record = &mut state.record;
            let is_left = record.kind() == FileKind::Directory && self.options.nodiratime;
            if is_left || record.flags & INODE_NO_ATIME != 0 {
                return;
            }
            let is_due = self.options.access_times == AccessTimes::Strictatime
                || record.accessed <= record.modified
                || record.accessed <= record.changed
                || record.accessed.seconds.saturating_add(DAY_SECONDS) <= time.seconds;
            if !is_due || record.accessed == time {
                return;
            }
            record.accessed = time;
            state.is_dirty = true;
        }
        self.list(inode);
    }
}

fn apply(caller: &Caller, record: &mut InodeRecord, change: &SetAttributes) {
    let time = now();
    let is_given_away = change.uid.is_some() || change.gid.is_some();
    if (is_given_away || change.kill_suid) && record.kind() != FileKind::Directory {
        kill_suid(caller, record);
    }
    record.uid = change.uid.unwrap_or(record.uid);
    record.gid = change.gid.unwrap_or(record.gid);
    if let Some(mode) = change.mode {
        record.mode = (record.mode & 0o170_000) | (mode & 0o7777);
    }
    if let Some(accessed) = change.accessed {
        record.accessed = accessed.at(time);
    }
    if let Some(modified) = change.modified {
        record.modified = modified.at(time);
    }
    record.changed = change.changed.unwrap_or(time);
}
