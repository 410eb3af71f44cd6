//! One file as the cache and the layers below see it: its segments, its ordered extents in flight, its extents, its size.

use super::segment::Segments;
use crate::error::Error;
use crate::extent::{ExtentFile, FileExtents};
use crate::lock::{Rank, RankedGuard, RankedMutex};
use crate::sync::{AtomicBool, AtomicU64, Condvar, Mutex};
use crate::units::InodeNumber;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Segments and what is being written of them.
#[derive(Debug, Default)]
pub struct Content {
    /// The cache.
    pub segments: Segments,
    /// Ordered extents: number and range of frozen data on its way to the device.
    pub in_flight: Vec<(u64, Range<u64>)>,
    pub(super) next_number: u64,
    /// Where the last read ended.
    last_read_end: u64,
    /// The count of evictions when the segments were last aged.
    pub(super) aged_at: u64,
}

impl Content {
    /// Does a read of `range` only go on where the last one ended?
    pub(super) fn note_read(&mut self, range: &Range<u64>) -> bool {
        std::mem::replace(&mut self.last_read_end, range.end) == range.start
    }
}

/// While this lives, writeback of a part of the file waits as it does for an ordered extent.
#[derive(Debug)]
pub struct Hold<'a> {
    file: &'a CachedFile,
    number: u64,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.file.content.lock().in_flight.retain(|(number, _)| *number != self.number);
        self.file.finished.notify_all();
    }
}

/// A regular file in memory.
#[derive(Debug)]
pub struct CachedFile {
    /// The inode.
    pub inode: InodeNumber,
    /// Its map.
    pub extents: ExtentFile,
    /// Rank Segments.
    pub(super) content: RankedMutex<Content>,
    /// Signalled when an ordered extent is done.
    pub(super) finished: Condvar,
    /// Size in bytes as users see it; changed under the range lock of what grows or shrinks.
    size: AtomicU64,
    /// First error of a writeback that fsync has not reported yet.
    error: Mutex<Option<Error>>,
    pub(super) is_queued_for_eviction: AtomicBool,
}

impl CachedFile {
    /// A file with this map and size.
    pub fn new(map: FileExtents) -> CachedFile {
        CachedFile {
            inode: map.inode(),
            size: AtomicU64::new(map.size()),
            extents: ExtentFile::new(map),
            content: RankedMutex::new(Rank::Segments, Content::default()),
            finished: Condvar::new(),
            error: Mutex::new(None),
            is_queued_for_eviction: AtomicBool::new(false),
        }
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Sets the size (truncate, fallocate).
    pub fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    /// Grows the size to `end` if it is smaller.
    pub fn grow(&self, end: u64) {
        self.size.fetch_max(end, Ordering::AcqRel);
    }

    /// Bytes that are newer than the device, in flight ones not counted.
    pub fn dirty_bytes(&self) -> u64 {
        self.content.lock().segments.dirty_bytes
    }

    /// Is there dirty data, or data on its way?
    pub fn is_busy(&self) -> bool {
        let content = self.content.lock();
        content.segments.dirty_bytes > 0 || !content.in_flight.is_empty()
    }

    /// Nothing cached at all?
    pub fn is_bare(&self) -> bool {
        let content = self.content.lock();
        content.segments.total_bytes == 0 && content.in_flight.is_empty()
    }

    /// Waits until no ordered extent overlaps `range`. The caller may hold a range lock, nothing later.
    pub fn wait_in_flight(&self, range: Range<u64>) {
        drop(self.lock_settled(&range));
    }

    /// The segments, with no ordered extent over `range`: what is removed or replaced before the lock is given up cannot come back
    /// from one that ends later. The caller may hold a range lock, nothing later.
    pub(super) fn lock_settled(&self, range: &Range<u64>) -> RankedGuard<'_, Content> {
        let mut content = self.content.lock();
        while content.in_flight.iter().any(|(_, flying)| flying.start < range.end && range.start < flying.end) {
            content.wait(&self.finished);
        }
        content
    }

    /// Holds back writeback of everything from `offset` on while this thread changes the size, first in memory, as `change` does under
    /// the segments' lock, then in a batch: no commit sees data that was written back between the two. The caller appends its batch
    /// and drops the hold without waiting for ordered extents or a commit.
    pub(super) fn hold_from<T>(&self, offset: u64, change: impl FnOnce(&mut Content) -> T) -> (Hold<'_>, T) {
        let range = offset..u64::MAX;
        let mut content = self.lock_settled(&range);
        let number = content.next_number;
        content.next_number += 1;
        content.in_flight.push((number, range));
        let changed = change(&mut content);
        (Hold { file: self, number }, changed)
    }

    pub(super) fn note_error(&self, error: Error) {
        self.error.lock().get_or_insert(error);
    }

    /// The error to report at fsync, once.
    pub fn take_error(&self) -> Option<Error> {
        self.error.lock().take()
    }
}
