//! copy_file_range: the target refers to the extents of the source, no byte is copied. Both ranges are locked; what the source has in
//! memory only is written back and recorded first, so that there is an extent to refer to; then the target's old blocks go and the new
//! references come, one batch for each step of [`STEP_BYTES`].
//!
//! What cannot be shared, because offsets or ends lie inside blocks, is answered so that the kernel copies it through its cache.

use super::Filesystem;
use super::attributes::kill_suid;
use super::inode::Inode;
use super::protection::may_write;
use super::range_lock::RangeGuard;
use super::resize::Mark;
use super::types::Caller;
use crate::cache::CachedFile;
use crate::error::{Error, Result};
use crate::extent::FileExtents;
use crate::extent::load::whole_blocks;
use crate::units::{BLOCK_SIZE, FILE_SIZE_MAX, InodeNumber, block_ceil, block_floor};
use std::ops::Range;
use std::sync::Arc;

/// Bytes whose references go into one batch.
const STEP_BYTES: u64 = 8 << 20;
/// Bytes that one call shares; the caller comes again for the rest.
const SHARED_BYTES_MAX: u64 = 256 << 20;

/// One side of a copy.
struct Side<'a> {
    inode: &'a Arc<Inode>,
    file: &'a Arc<CachedFile>,
    offset: u64,
}

impl Side<'_> {
    fn range(&self, length: u64) -> Range<u64> {
        self.offset..self.offset + length
    }
}

impl Filesystem {
    /// Makes `length` bytes of one file at an offset those of another one, or of another place of the same. How many were copied: fewer
    /// at the source's end, or where the caller must come again. `Error::Unsupported`: they can be copied, but not shared.
    pub fn copy_range(&self, caller: &Caller, from: (InodeNumber, u64), to: (InodeNumber, u64), length: u64) -> Result<u64> {
        let length = length.min(SHARED_BYTES_MAX);
        if [from.1, to.1].iter().any(|offset| offset.checked_add(length).is_none_or(|end| end > FILE_SIZE_MAX)) {
            return Err(Error::FileTooLarge);
        }
        self.begin_creating()?;
        let (source, target) = (self.inode(from.0)?, self.inode(to.0)?);
        let source = Side { inode: &source, file: source.regular()?, offset: from.1 };
        let target = Side { inode: &target, file: target.regular()?, offset: to.1 };
        may_write(&target.inode.state.lock().record)?;
        let length = length.min(source.file.size().saturating_sub(source.offset));
        let is_same = source.inode.number == target.inode.number;
        if is_same && source.offset < target.offset + length && target.offset < source.offset + length {
            return Err(Error::Invalid("a copy onto itself"));
        }
        let _ranges = lock_both(&source, &target, length);
        // The source may have become shorter before it was locked.
        let length = shareable(&source, &target, length.min(source.file.size().saturating_sub(source.offset)))?;
        if length == 0 {
            return Ok(0);
        }
        self.settle(&source, &target, length)?;
        let done = self.share_range(&source, &target, length)?;
        self.note_access(source.inode);
        self.drop_capability(target.inode)?;
        let mut state = target.inode.state.lock();
        self.note_modified(&mut state.record);
        if caller.uid != 0 {
            kill_suid(caller, &mut state.record);
        }
        self.append_inode(target.inode, &mut state)?;
        Ok(done)
    }

    /// Everything of the source's range is recorded, nothing of the target's is in memory.
    fn settle(&self, source: &Side<'_>, target: &Side<'_>, length: u64) -> Result<()> {
        self.write_back(source.inode, source.range(length))?;
        self.collect(source.inode)?;
        if target.file.extents.map.lock().size() < target.offset + length {
            // The recorded size must not run ahead of data that is only in memory (D6).
            self.write_back(target.inode, 0..target.offset)?;
        }
        self.cache.discard(target.file, whole_blocks(target.range(length)));
        Ok(())
    }

    /// Shares step by step; how far it came. An error only if that is nowhere.
    fn share_range(&self, source: &Side<'_>, target: &Side<'_>, length: u64) -> Result<u64> {
        let mut done = 0;
        while done < length {
            let step = STEP_BYTES.min(length - done);
            match self.share_step(source, target, done..done + step) {
                Ok(()) => done += step,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn share_step(&self, source: &Side<'_>, target: &Side<'_>, part: Range<u64>) -> Result<()> {
        let (start, end) = (source.offset + part.start, source.offset + part.end);
        let shared =
            FileExtents::lock_loaded(&source.file.extents.map, &self.meta, start, block_ceil(end))?.shared(start, end)?;
        let (start, end) = (target.offset + part.start, target.offset + part.end);
        self.change_map(target.inode, target.file, start..block_ceil(end), Mark::Keep, |map| {
            let dropped = map.remove(start, block_ceil(end));
            map.share(start, shared);
            map.set_size(map.size().max(end));
            dropped
        })?;
        target.file.grow(end);
        self.relieve_inside()
    }
}

/// How much of `length` can be shared from here on: all of it, or less when its end lies inside a block of the target that goes on behind.
fn shareable(source: &Side<'_>, target: &Side<'_>, length: u64) -> Result<u64> {
    let are_aligned = source.offset.is_multiple_of(BLOCK_SIZE) && target.offset.is_multiple_of(BLOCK_SIZE);
    let whole = if target.offset + length >= target.file.size() { length } else { block_floor(length) };
    if length > 0 && !(are_aligned && whole > 0) { Err(Error::Unsupported) } else { Ok(whole) }
}

/// The source shared, the target alone; in the order of inodes. In one file both and what lies between: two such copies could each hold
/// what the other waits for.
fn lock_both<'a>(source: &Side<'a>, target: &Side<'a>, length: u64) -> Vec<RangeGuard<'a>> {
    let (from, to) = (whole_blocks(source.range(length)), whole_blocks(target.range(length)));
    let (first, second) = (&source.inode.ranges, &target.inode.ranges);
    if source.inode.number == target.inode.number {
        return vec![first.lock(from.start.min(to.start)..from.end.max(to.end), false)];
    }
    if source.inode.number < target.inode.number {
        vec![first.lock(from, true), second.lock_further(to, false)]
    } else {
        vec![second.lock(to, false), first.lock_further(from, true)]
    }
}
