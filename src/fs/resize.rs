//! Truncate and fallocate. Truncate is metadata only and atomic (D6): one batch, or for a file with very many extents one batch
//! with the new size and a record that the rest is being deleted, which a crash leaves to the next mount.

use super::Filesystem;
use super::attributes::kill_suid;
use super::inode::Inode;
use super::protection::may_allocate;
use super::types::{Caller, FallocateMode};
use crate::cache::{CachedFile, Hold};
use crate::clock::now;
use crate::error::{Error, Result};
use crate::extent::FileExtents;
use crate::extent::stored_map::last_range;
use crate::lock::Wait;
use crate::meta::records::OrphanRecord;
use crate::meta::schema::{self, Parsed};
use crate::meta::{Batch, Pressure};
use crate::units::{BLOCK_SIZE, FILE_SIZE_MAX, InodeNumber, block_ceil, block_floor, blocks_for};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of file offset whose map goes into one batch.
const STEP_BYTES: u64 = 16 << 20;

/// What to do with the record that a truncation is under way.
#[derive(Clone, Copy)]
pub(super) enum Mark {
    Keep,
    Set { size: u64 },
    Clear,
}

impl Filesystem {
    /// Sets the size.
    pub(super) fn truncate(&self, caller: &Caller, inode: &Arc<Inode>, size: u64) -> Result<()> {
        let file = inode.regular()?;
        if size > FILE_SIZE_MAX {
            return Err(Error::FileTooLarge);
        }
        let _range = inode.ranges.lock(block_floor(size)..u64::MAX, false);
        file.wait_in_flight(block_floor(size)..u64::MAX);
        let old = file.size();
        if size == 0 && old > 0 {
            inode.is_replaced.store(true, Ordering::Release);
        }
        let hold = self.cache.resize(file, size);
        self.drop_behind(inode, file, size, Some(hold))?;
        let mut state = inode.state.lock();
        if size != old || caller.uid != 0 {
            let time = now();
            state.record.modified = time;
            state.record.changed = time;
        }
        self.append_inode(inode, &mut state)
    }

    /// Deletes the map behind `size` and makes it the committed size. The caller holds the range from there on. `hold` ends with the
    /// first batch, which has the size.
    pub(super) fn drop_behind(&self, inode: &Arc<Inode>, file: &CachedFile, size: u64, mut hold: Option<Hold<'_>>) -> Result<()> {
        let keep = block_ceil(size);
        let mut is_marked = false;
        let mut last_block = keep;
        let mut dropped_from = u64::MAX;
        while let Some((last, end)) = self.last_mapped(file, dropped_from)? {
            let begin = keep.max(last / STEP_BYTES * STEP_BYTES);
            if end <= keep || begin == keep {
                last_block = end.max(keep);
                break;
            }
            let mark = if is_marked { Mark::Keep } else { Mark::Set { size } };
            is_marked = true;
            self.change_map(inode, file, begin..end, mark, |map| {
                map.set_size(size);
                map.remove(begin, u64::MAX)
            })?;
            hold = None;
            dropped_from = begin;
            self.relieve_inside()?;
        }
        let mark = if is_marked { Mark::Clear } else { Mark::Keep };
        let changed = self.change_map(inode, file, block_floor(size)..last_block, mark, |map| map.truncate(size));
        drop(hold);
        changed
    }

    /// Changes the map, with `range` loaded, and collects it in the same batch.
    pub(super) fn change_map(
        &self,
        inode: &Arc<Inode>,
        file: &CachedFile,
        range: Range<u64>,
        mark: Mark,
        change: impl FnOnce(&mut FileExtents) -> crate::extent::Dropped,
    ) -> Result<()> {
        let dropped = {
            let mut map = FileExtents::lock_loaded(&file.extents.map, &self.meta, range.start, range.end)?;
            let dropped = change(&mut map);
            let mut state = inode.state.lock();
            let mut batch = Batch::new();
            map.collect(&mut batch, self.space.blocks_per_group());
            // A file without names is in the table as such, and is deleted whole after a crash.
            match mark {
                Mark::Set { size } if state.record.links > 0 => {
                    batch.put(schema::orphan(inode.number), OrphanRecord::Truncating { size }.encode());
                }
                Mark::Clear if state.record.links > 0 => batch.delete(schema::orphan(inode.number)),
                _ => {}
            }
            state.record.size = map.size();
            state.record.blocks = map.blocks();
            self.append_states(batch, [(inode.number, &mut state)])?;
            dropped
        };
        self.extents.release(dropped)
    }

    /// In the middle of a long change, with the range locked: a commit takes no range lock.
    pub(super) fn relieve_inside(&self) -> Result<()> {
        match self.meta.pressure() {
            Pressure::None => Ok(()),
            Pressure::Commit => self.commit_now(),
            Pressure::Checkpoint => self.meta.relieve_journal(),
        }
    }

    /// Offset and end of the last range mapped before `end`, in memory or stored. Behind it there are perhaps thousands of deletions
    /// that are not in the index yet, and none of them is looked at.
    fn last_mapped(&self, file: &CachedFile, end: u64) -> Result<Option<(u64, u64)>> {
        let inode = file.inode;
        // Memory first: a commit may collect the map and forget it at any moment, and then what was not stored before is.
        let (in_memory, is_complete) = {
            let map = file.extents.map.lock();
            (map.last_entry(end), map.is_complete())
        };
        if is_complete {
            return Ok(in_memory);
        }
        let stored = last_range(&self.meta, inode, end, file.size())?;
        let stored = stored.map(|(offset, record)| (offset, offset + block_ceil(record.length())));
        Ok(stored.max(in_memory))
    }

    /// fallocate(2), byte exact.
    pub fn fallocate(&self, caller: &Caller, inode: InodeNumber, offset: u64, length: u64, mode: FallocateMode) -> Result<()> {
        let end = offset.checked_add(length).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Error::FileTooLarge)?;
        if length == 0 {
            return Err(Error::Invalid("fallocate of no bytes"));
        }
        self.begin_creating()?;
        let inode = self.inode(inode)?;
        let file = inode.regular()?;
        may_allocate(&inode.state.lock().record, mode)?;
        let blocks = blocks_for(end) - offset / BLOCK_SIZE;
        for attempt in 1.. {
            let result = {
                let _range = inode.ranges.lock(block_floor(offset)..block_ceil(end), false);
                self.fallocate_locked(&inode, file, offset..end, mode)
            };
            match result {
                Err(Error::NoSpace) if attempt < 3 => self.find_space_repeatedly(blocks)?,
                result => {
                    result?;
                    break;
                }
            }
        }
        self.drop_capability(&inode)?;
        let mut state = inode.state.lock();
        self.note_modified(&mut state.record);
        if caller.uid != 0 {
            kill_suid(caller, &mut state.record);
        }
        self.append_inode(&inode, &mut state)
    }

    /// A large promise may need several groups. One that cannot be kept opens none.
    fn find_space_repeatedly(&self, blocks: u64) -> Result<()> {
        if self.statfs().available < blocks {
            return self.find_space(blocks);
        }
        while self.space.available() < blocks {
            if !self.open_group()? {
                return self.find_space(blocks);
            }
        }
        Ok(())
    }

    fn fallocate_locked(&self, inode: &Arc<Inode>, file: &Arc<CachedFile>, range: Range<u64>, mode: FallocateMode) -> Result<()> {
        let is_zeroing = matches!(mode, FallocateMode::PunchHole | FallocateMode::ZeroRange | FallocateMode::ZeroRangeKeepSize);
        if is_zeroing {
            self.zero(inode, file, range.clone())?;
        }
        if mode == FallocateMode::PunchHole {
            return Ok(());
        }
        let whole = block_floor(range.start)..block_ceil(range.end);
        let map = FileExtents::lock_loaded(&file.extents.map, &self.meta, whole.start, whole.end)?;
        let holes = map.holes(whole.start, whole.end);
        drop(map);
        let needed: u64 = holes.iter().map(|(start, end)| blocks_for(end - start)).sum();
        if !self.space.promise(needed) {
            return Err(Error::NoSpace);
        }
        let grows = matches!(mode, FallocateMode::Allocate | FallocateMode::ZeroRange) && range.end > file.size();
        let hold = grows.then(|| self.cache.grow(file, range.end));
        let mut added = 0;
        let changed = self.change_map(inode, file, whole.clone(), Mark::Keep, |map| {
            added = map.preallocate(whole.start, whole.end);
            if grows {
                map.set_size(map.size().max(range.end));
            }
            crate::extent::Dropped::default()
        });
        drop(hold);
        // Writeback may have filled a hole meanwhile.
        self.space.unpromise(needed - added);
        changed
    }

    /// Makes `range` read as zeros: whole blocks become holes, parts of blocks are written.
    fn zero(&self, inode: &Arc<Inode>, file: &Arc<CachedFile>, range: Range<u64>) -> Result<()> {
        let size = file.size();
        let inner = block_ceil(range.start)..if range.end >= size { block_ceil(range.end) } else { block_floor(range.end) };
        let head = range.start..range.end.min(block_ceil(range.start)).min(size);
        let tail = block_floor(range.end).max(head.end).max(range.start)..range.end.min(size);
        for part in [head, tail] {
            if part.start < part.end && !(inner.start <= part.start && part.end <= inner.end) {
                self.zero_part(file, part)?;
                self.list(inode);
            }
        }
        let mut end = inner.end;
        while inner.start < end {
            let begin = inner.start.max((end - 1) / STEP_BYTES * STEP_BYTES);
            let begin = if end - inner.start > 64 * STEP_BYTES {
                self.skip_hole(file, inner.start, end)?.unwrap_or(inner.start)
            } else {
                begin
            };
            self.cache.discard(file, begin..end);
            self.change_map(inode, file, begin..end, Mark::Keep, |map| {
                // Dirty data that made the file longer may have been in the way: its length stays.
                map.set_size(map.size().max(size.min(end)));
                map.remove(begin, end)
            })?;
            self.relieve_inside()?;
            end = begin;
        }
        Ok(())
    }

    /// For huge ranges: where the step that holds the last mapped range before `end` begins; None when nothing is mapped.
    fn skip_hole(&self, file: &CachedFile, start: u64, end: u64) -> Result<Option<u64>> {
        // In this order for the reason given in `last_mapped`.
        let in_memory = file.extents.map.lock().overlapping(start, end).last().map(|(offset, _)| offset);
        let stored = self.meta.last_sealed(&schema::map(file.inode, start), &schema::map(file.inode, end))?;
        let stored = stored.and_then(|(key, _)| match schema::parse(&key) {
            Some(Parsed::Map { offset, .. }) => Some(offset),
            _ => None,
        });
        Ok(stored.max(in_memory).map(|offset| start.max(offset / STEP_BYTES * STEP_BYTES)))
    }

    /// Zeros a part of one block through the cache, unless it reads as zeros already.
    fn zero_part(&self, file: &Arc<CachedFile>, part: Range<u64>) -> Result<()> {
        let now_there = self.cache.read(file, part.clone(), true, Wait::Allowed)?;
        if now_there.as_slice().iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let zeros = vec![0; (part.end - part.start) as usize];
        self.cache.write(file, part.start, &zeros, Wait::Allowed)
    }
}
