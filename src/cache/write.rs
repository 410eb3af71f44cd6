//! A write into the cache. Everything that can refuse comes before the first effect: the same function serves the reading
//! thread (`Wait::Never`) and the worker (`Wait::Allowed`).

use super::segment::{Segment, State};
use super::{Cache, CachedFile};
use crate::disk::buffer::AlignedBuffer;
use crate::error::{Error, Reason, Result};
use crate::extent::FileExtents;
use crate::extent::load::whole_blocks;
use crate::lock::Wait;
use crate::units::{BLOCK_SIZE, block_floor};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Cache {
    /// Writes `data` at `offset`; the caller holds the range of whole blocks exclusively. `Error::NoSpace` under `Allowed` means
    /// that there was none at this moment: the caller may force a commit and come again.
    pub fn write(&self, file: &Arc<CachedFile>, offset: u64, data: &[u8], wait: Wait) -> Result<()> {
        let end = offset + data.len() as u64;
        let whole = whole_blocks(offset..end);
        let blocks = (whole.end - whole.start) / BLOCK_SIZE;
        let partial = self.partial_blocks(file, offset, end, wait)?;
        self.reserve(file, whole.start, whole.end, blocks, wait)?;
        let (became_dirty, before, after) = {
            let mut content = file.content.lock();
            let before = content.segments.total_bytes;
            for (at, block) in partial {
                if !content.segments.covers(at..at + BLOCK_SIZE) {
                    content.segments.insert(at, block);
                }
            }
            let became_dirty = content.segments.write(offset, data);
            file.grow(end);
            (became_dirty, before, content.segments.total_bytes)
        };
        self.extents.space.release(blocks - became_dirty / BLOCK_SIZE);
        self.dirty_bytes.fetch_add(became_dirty, Ordering::Relaxed);
        self.account(before, after);
        Ok(())
    }

    /// Space for the whole blocks of a write: free space first, else what is promised to an unwritten range.
    pub fn reserve(&self, file: &CachedFile, start: u64, end: u64, blocks: u64, wait: Wait) -> Result<()> {
        if self.extents.space.reserve(blocks) {
            return Ok(());
        }
        let claimed = {
            let map = match wait {
                Wait::Never => file.extents.map.try_lock(),
                Wait::Allowed => Some(FileExtents::lock_loaded(&file.extents.map, &self.extents.meta, start, end)?),
            };
            map.is_some_and(|mut map| {
                let is_promised = map.is_loaded(start, end) && map.is_unwritten(start, end);
                if is_promised {
                    map.claim(start, end);
                }
                is_promised
            })
        };
        if claimed {
            self.extents.space.claim_promise(blocks);
            return Ok(());
        }
        match wait {
            Wait::Never => Err(Error::WouldBlock(Reason::NoReservation)),
            Wait::Allowed => Err(Error::NoSpace),
        }
    }

    /// The first and the last block of a write where old bytes of them stay, as they are now: refused when not resident and waiting
    /// is not allowed, else loaded. Nobody else changes them (the caller has the range), but what is resident may be written back
    /// and dropped at any moment, so it is held on to.
    fn partial_blocks(&self, file: &CachedFile, offset: u64, end: u64, wait: Wait) -> Result<Vec<(u64, Segment)>> {
        let size = file.size();
        let (first, last) = (block_floor(offset), block_floor(end));
        let mut needed = Vec::new();
        if first != offset && first < size {
            needed.push(first);
        }
        if last != end && end < size && !needed.contains(&last) {
            needed.push(last);
        }
        if needed.is_empty() {
            return Ok(Vec::new());
        }
        let mut blocks: Vec<(u64, Segment)> = {
            let content = file.content.lock();
            needed.iter().filter_map(|at| Some((*at, content.segments.block(*at)?))).collect()
        };
        needed.retain(|at| blocks.iter().all(|(resident, _)| resident != at));
        if wait == Wait::Never && !needed.is_empty() {
            return Err(Error::WouldBlock(Reason::PartialBlockMissing));
        }
        for at in needed {
            let mut buffer = AlignedBuffer::zeroed(BLOCK_SIZE as usize);
            self.extents.load(&file.extents, at, &mut buffer)?;
            blocks.push((at, Segment::new(buffer, State::Clean)));
        }
        Ok(blocks)
    }
}
