//! Writing files: range lock, space, partial blocks, dirty limit, then the cache (design 5). With `Wait::Never` every refusal
//! comes before the first effect and has its reason.

use super::Filesystem;
use super::attributes::kill_suid;
use super::inode::Inode;
use super::protection::may_write;
use super::types::{Caller, WriteFlags};
use crate::clock::now;
use crate::error::{Error, Reason, Result};
use crate::extent::load::whole_blocks;
use crate::lock::{NoWaiting, Wait};
use crate::meta::Pressure;
use crate::meta::records::InodeRecord;
use crate::units::{BLOCK_SIZE, FILE_SIZE_MAX, InodeNumber};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Times that others may take the space that a write has found before it gets ENOSPC.
const SPACE_ATTEMPTS: u32 = 64;
/// Changes of a map that are worth collecting without waiting for the commit.
const UNCOLLECTED_MAX: usize = 4096;

impl Filesystem {
    /// Writes all of `data` at `offset`.
    pub fn write(
        &self,
        caller: &Caller,
        inode: InodeNumber,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        wait: Wait,
    ) -> Result<usize> {
        self.meta.latch().check()?;
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Error::FileTooLarge)?;
        self.may_begin_write(flags, wait)?;
        let no_waiting = NoWaiting::during(wait);
        let inode = self.inode_for_data(inode, wait)?;
        inode.regular()?;
        if !flags.from_cache {
            may_write(&inode.state.lock().record)?;
        }
        if data.is_empty() {
            return Ok(0);
        }
        match wait {
            Wait::Never => {
                let range = inode.ranges.try_lock(whole_blocks(offset..end), false);
                let _range = range.ok_or(Error::WouldBlock(Reason::RangeLocked))?;
                self.cache.write(inode.regular()?, offset, data, Wait::Never)?;
            }
            Wait::Allowed => self.write_waiting(&inode, offset, data, flags)?,
        }
        self.note_written(caller, &inode, flags);
        self.drop_capability(&inode)?;
        drop(no_waiting);
        if flags.sync {
            self.write_back(&inode, offset..end)?;
            self.collect(&inode)?;
            self.commit_now()?;
        }
        Ok(data.len())
    }

    /// What the fast path refuses and the slow path waits for, before any lock.
    fn may_begin_write(&self, flags: WriteFlags, wait: Wait) -> Result<()> {
        if wait == Wait::Allowed {
            self.begin_creating()?;
            if self.cache.dirty_bytes() > self.cache.dirty_bytes_max() {
                self.relieve_dirty()?;
            }
            return Ok(());
        }
        let refused = if !self.options.nowait {
            Some(Reason::Disabled)
        } else if flags.direct || flags.sync {
            Some(Reason::DeviceWait)
        } else if self.cache.dirty_bytes() > self.cache.dirty_bytes_max() {
            Some(Reason::DirtyLimit)
        } else if self.meta.pressure() != Pressure::None {
            Some(Reason::JournalRoom)
        } else if self.meta.lacks_room() {
            Some(Reason::NoReservation)
        } else {
            None
        };
        refused.map_or(Ok(()), |reason| Err(Error::WouldBlock(reason)))
    }

    fn write_waiting(&self, inode: &Arc<Inode>, offset: u64, data: &[u8], flags: WriteFlags) -> Result<()> {
        let file = inode.regular()?;
        let end = offset + data.len() as u64;
        let whole = whole_blocks(offset..end);
        let blocks = (whole.end - whole.start) / BLOCK_SIZE;
        let is_direct = flags.direct && whole == (offset..end);
        if is_direct {
            self.open_group_in_time()?;
        }
        for attempt in 1.. {
            let result = {
                let _range = inode.ranges.lock(whole.clone(), false);
                if is_direct {
                    self.cache
                        .reserve(file, whole.start, whole.end, blocks, Wait::Allowed)
                        .and_then(|()| self.cache.write_through(file, offset, data))
                } else {
                    self.cache.write(file, offset, data, Wait::Allowed)
                }
            };
            match result {
                Err(Error::NoSpace) if attempt < SPACE_ATTEMPTS => self.find_space(blocks)?,
                result => {
                    result?;
                    break;
                }
            }
        }
        if flags.direct && !is_direct {
            self.write_back(inode, whole)?;
        }
        if is_direct && Self::has_many_uncollected(inode) {
            self.collect(inode)?;
        }
        Ok(())
    }

    /// The content changed. A kernel that caches writes keeps both times of files itself, has set them before it asked, and sends them
    /// only if they changed: a clock that has moved on meanwhile must not replace what it shows.
    pub(super) fn note_modified(&self, record: &mut InodeRecord) {
        if !self.options.kernel_caches {
            let time = now();
            record.modified = time;
            record.changed = time;
        }
    }

    fn note_written(&self, caller: &Caller, inode: &Arc<Inode>, flags: WriteFlags) {
        // With its cache in front the kernel stamps what it takes, and what passes it. Without, mapped pages come from its cache all the
        // same, and nobody else stamps those.
        if !self.options.kernel_caches || flags.kill_suid {
            let mut state = inode.state.lock();
            self.note_modified(&mut state.record);
            if flags.kill_suid {
                kill_suid(caller, &mut state.record);
            }
            state.is_dirty = true;
        }
        self.list(inode);
        if self.cache.dirty_bytes() > self.cache.dirty_bytes_background() {
            self.signals.writeback.wake_if_asleep();
        }
    }

    /// Writes a range back, and collects when the map has changed much.
    pub(super) fn write_back(&self, inode: &Arc<Inode>, range: std::ops::Range<u64>) -> Result<()> {
        let Some(file) = &inode.file else { return Ok(()) };
        self.cache.write_back(file, range)?;
        if Self::has_many_uncollected(inode) {
            self.collect(inode)?;
        }
        Ok(())
    }

    /// The dirty limit is reached: wait for the writeback thread, or without one do its work.
    fn relieve_dirty(&self) -> Result<()> {
        if self.options.background {
            self.signals.writeback.wake();
            return self.cache.wait_below_dirty_limit();
        }
        self.write_back_listed()
    }

    /// Writes back every listed inode that has dirty data, in one pass.
    pub(super) fn write_back_listed(&self) -> Result<()> {
        let mut listed: Vec<Arc<Inode>> = self.listed.lock().clone();
        listed.retain(|inode| inode.file.as_ref().is_some_and(|file| file.dirty_bytes() > 0));
        let files: Vec<_> = listed.iter().filter_map(|inode| inode.file.as_ref()).collect();
        let mut result = self.cache.write_back_files(&files);
        for inode in listed.iter().filter(|inode| Self::has_many_uncollected(inode)) {
            result = result.and(self.collect(inode));
        }
        result
    }

    fn has_many_uncollected(inode: &Inode) -> bool {
        inode.file.as_ref().is_some_and(|file| file.extents.map.lock().uncollected() > UNCOLLECTED_MAX)
    }

    /// The data of `inode` is in the running transaction, or an earlier one, when this returns (D8).
    pub(super) fn write_and_collect(&self, inode: &Arc<Inode>) -> Result<()> {
        self.write_back(inode, 0..u64::MAX)?;
        self.collect(inode)
    }

    /// Is there data to go with the next commit because the file was truncated to nothing before? True once.
    pub(super) fn take_replaced(inode: &Inode) -> bool {
        inode.file.as_ref().is_some_and(|file| file.is_busy()) && inode.is_replaced.swap(false, Ordering::AcqRel)
    }
}
