//! Writeback: dirty runs become ordered extents and go to the device. The bytes are frozen under the segments' lock, written
//! without it, and an ordered extent never overlaps another one of the same file, so an older version cannot land on a newer.

use super::segment::Frozen;
use super::{Cache, CachedFile};
use crate::disk::buffer::AlignedBuffer;
use crate::error::Result;
use crate::extent::load::whole_blocks;
use crate::units::BLOCK_SIZE;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What the next step of a writeback pass is.
enum Next {
    Run { start: u64, number: u64, parts: Vec<Frozen>, bytes: u64 },
    Busy,
    Done,
}

impl Cache {
    /// Writes back what is dirty in `range`, and waits for what is in flight there. The first error is returned and kept for
    /// fsync.
    pub fn write_back(&self, file: &Arc<CachedFile>, range: Range<u64>) -> Result<()> {
        let range = whole_blocks(range);
        let mut result = Ok(());
        let mut from = range.start;
        loop {
            match self.next_run(file, from..range.end) {
                Next::Run { start, number, parts, bytes } => {
                    from = start + bytes;
                    if let Err(error) = self.write_run(file, start, number, &parts, bytes) {
                        result = Err(error);
                        break;
                    }
                }
                Next::Busy => {
                    file.wait_in_flight(range.clone());
                    from = range.start;
                }
                Next::Done => break,
            }
        }
        file.wait_in_flight(range);
        result
    }

    fn next_run(&self, file: &CachedFile, range: Range<u64>) -> Next {
        let mut content = file.content.lock();
        let mut from = range.start;
        let mut is_busy = false;
        while let Some(start) = content.segments.first_dirty(from..range.end) {
            let mut end = range.end;
            let mut blocked_until = None;
            for (_, flying) in &content.in_flight {
                if flying.start <= start && start < flying.end {
                    blocked_until = Some(flying.end);
                } else if flying.start > start {
                    end = end.min(flying.start);
                }
            }
            if let Some(until) = blocked_until {
                is_busy = true;
                from = until;
                continue;
            }
            let number = content.next_number;
            content.next_number += 1;
            let parts = content.segments.freeze_run(start, end, number);
            let bytes: u64 = parts.iter().map(|part| part.bytes().len() as u64).sum();
            content.in_flight.push((number, start..start + bytes));
            return Next::Run { start, number, parts, bytes };
        }
        if is_busy { Next::Busy } else { Next::Done }
    }

    fn write_run(&self, file: &Arc<CachedFile>, start: u64, number: u64, parts: &[Frozen], bytes: u64) -> Result<()> {
        let slices: Vec<&[u8]> = parts.iter().map(Frozen::bytes).collect();
        let size = file.size();
        let end = (start + bytes).min(size.max(start + 1));
        let result = self.extents.store(&file.extents, start, end, &slices, size);
        self.stats.writebacks.fetch_add(1, Ordering::Relaxed);
        let (dirty_again, before, after) = {
            let mut content = file.content.lock();
            let before = content.segments.total_bytes;
            let dirty_again = content.segments.finish(start..start + bytes, number, result.is_err(), self.keeps_clean);
            content.in_flight.retain(|(flying, _)| *flying != number);
            (dirty_again, before, content.segments.total_bytes)
        };
        self.account(before, after);
        self.dirty_fell_by(bytes - dirty_again);
        file.finished.notify_all();
        if self.keeps_clean {
            self.queue_for_eviction(file);
            if self.total_bytes() > self.budget_bytes {
                self.evict();
            }
        }
        if let Err(error) = &result {
            file.note_error(error.clone());
            self.extents.meta.latch().set(&format!("writing back inode {}: {error}", file.inode), true);
        }
        result
    }

    /// Writes whole blocks straight to the device (O_DIRECT): a private copy, an ordered extent of its own. The caller holds the
    /// range exclusively; what the cache has of it is superseded.
    pub fn write_through(&self, file: &Arc<CachedFile>, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset + data.len() as u64;
        debug_assert!(offset.is_multiple_of(BLOCK_SIZE) && (data.len() as u64).is_multiple_of(BLOCK_SIZE));
        file.wait_in_flight(offset..end);
        let copy = AlignedBuffer::copy_of(data);
        self.discard(file, offset..end);
        let size = file.size().max(end);
        self.extents.store(&file.extents, offset, end, &[&copy], size).inspect_err(|error| {
            self.extents.meta.latch().set(&format!("writing inode {}: {error}", file.inode), true);
        })?;
        file.grow(end);
        Ok(())
    }
}
