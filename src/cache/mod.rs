//! The daemon's cache: segments of files, what is dirty of them, writeback, eviction. State diagram: `segment.rs`.
//!
//! One budget of bytes for all files. Reads and writes of one file are kept apart by the range locks of `fs`; the lock here
//! (rank Segments) is short and never held across I/O.

pub mod file;
pub mod plug;
pub mod read;
pub mod segment;
pub mod write;
pub mod writeback;

use file::Content;
pub use file::{CachedFile, Hold};
use plug::DirectPlug;
pub use plug::PlugOptions;
pub use read::ReadData;

use crate::error::Result;
use crate::extent::Extents;
use crate::stats::Stats;
use crate::sync::{AtomicU64, Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often those who wait for writeback look whether it failed for good.
const LATCH_LOOK: Duration = Duration::from_millis(100);
/// One call of `evict` makes room for a sixteenth of the budget: hot segments outlive four budgets of streams.
const EVICTIONS_BETWEEN_AGING: u64 = 64;

/// The cache of all files.
#[derive(Debug)]
pub struct Cache {
    /// The layer below.
    pub extents: Arc<Extents>,
    /// Counters.
    pub stats: Arc<Stats>,
    /// Budget in bytes.
    budget_bytes: u64,
    /// Keep what was read or written back? Not when the kernel holds the same pages.
    keeps_clean: bool,
    dirty_bytes: AtomicU64,
    total_bytes: AtomicU64,
    dirty_lock: Mutex<()>,
    dirty_fell: Condvar,
    /// Counts calls of `evict`.
    evictions: AtomicU64,
    /// Files with clean segments, oldest first.
    queue: Mutex<VecDeque<Weak<CachedFile>>>,
    plug: DirectPlug,
}

impl Cache {
    /// `budget_bytes` for segments of all files.
    pub fn new(extents: Arc<Extents>, stats: Arc<Stats>, budget_bytes: u64, keeps_clean: bool, plug: PlugOptions) -> Cache {
        Cache {
            extents,
            stats,
            budget_bytes,
            keeps_clean,
            dirty_bytes: AtomicU64::new(0),
            total_bytes: AtomicU64::new(0),
            dirty_lock: Mutex::new(()),
            dirty_fell: Condvar::new(),
            evictions: AtomicU64::new(0),
            queue: Mutex::new(VecDeque::new()),
            plug: DirectPlug::new(plug),
        }
    }

    /// What the plug of direct writes did, for `stats`: batches released, by cause.
    pub fn plug_status(&self) -> serde_json::Value {
        self.plug.status()
    }

    /// Dirty and in-flight bytes.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of all segments.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes.load(Ordering::Relaxed)
    }

    /// More dirty bytes than this, and writers wait.
    pub fn dirty_bytes_max(&self) -> u64 {
        self.budget_bytes / 2
    }

    /// More dirty bytes than this, and writeback begins without waiting for the timer.
    pub fn dirty_bytes_background(&self) -> u64 {
        (self.budget_bytes / 8).min(16 << 20)
    }

    /// Waits until writers may go on; an error when a fault means that they never may.
    pub fn wait_below_dirty_limit(&self) -> Result<()> {
        let mut guard = self.dirty_lock.lock();
        while self.dirty_bytes() > self.dirty_bytes_max() {
            self.extents.meta.latch().check()?;
            self.dirty_fell.wait_for(&mut guard, LATCH_LOOK);
        }
        Ok(())
    }

    fn dirty_fell_by(&self, bytes: u64) {
        let before = self.dirty_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if before > self.dirty_bytes_max() {
            let _guard = self.dirty_lock.lock();
            self.dirty_fell.notify_all();
        }
    }

    /// Adjusts the total after the segments of a file changed.
    fn account(&self, before: u64, after: u64) {
        if after >= before {
            self.total_bytes.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.total_bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    fn queue_for_eviction(&self, file: &Arc<CachedFile>) {
        if !file.is_queued_for_eviction.swap(true, Ordering::AcqRel) {
            self.queue.lock().push_back(Arc::downgrade(file));
        }
    }

    /// Drops clean segments until the budget holds: cold ones, oldest files first; only if that is not enough, hot ones. What is
    /// read once from front to back stays cold and so cannot displace what is used again and again; hot segments that are not used
    /// any more are aged at long intervals.
    pub fn evict(&self) {
        let round = self.evictions.fetch_add(1, Ordering::Relaxed);
        self.evict_from_all(|content| {
            let ages = round >= content.aged_at + EVICTIONS_BETWEEN_AGING;
            if ages {
                content.aged_at = round;
            }
            ages
        });
        // Twice: the first round makes hot ones cold.
        self.evict_from_all(|_| true);
        self.evict_from_all(|_| true);
    }

    fn evict_from_all(&self, ages: impl Fn(&mut Content) -> bool) {
        let mut files = self.queue.lock().len();
        while self.total_bytes() > self.budget_bytes && files > 0 {
            files -= 1;
            let next = self.queue.lock().pop_front();
            let Some(file) = next.and_then(|weak| weak.upgrade()) else { continue };
            let over = self.total_bytes().saturating_sub(self.budget_bytes * 15 / 16);
            let (dropped, rest) = {
                let mut content = file.content.lock();
                let ages = ages(&mut content);
                let dropped = content.segments.evict(over, ages);
                (dropped, content.segments.total_bytes)
            };
            self.account(dropped, 0);
            if dropped > 0 {
                self.stats.cache_evictions.fetch_add(1, Ordering::Relaxed);
            }
            file.is_queued_for_eviction.store(false, Ordering::Release);
            if rest > 0 {
                self.queue_for_eviction(&file);
            }
        }
    }

    /// Forgets what is cached of a range, once nothing of it is in flight; dirty data is lost, its space released.
    pub fn discard(&self, file: &CachedFile, range: std::ops::Range<u64>) {
        let (dirty, before, after) = {
            let mut content = file.lock_settled(&range);
            let before = content.segments.total_bytes;
            let dirty = content.segments.remove(range);
            (dirty, before, content.segments.total_bytes)
        };
        self.account(before, after);
        self.drop_dirty(dirty);
    }

    /// Dirty bytes are dirty no more although nothing was written: their space is free again.
    fn drop_dirty(&self, bytes: u64) {
        if bytes > 0 {
            self.extents.space.release(bytes / crate::units::BLOCK_SIZE);
            self.dirty_fell_by(bytes);
        }
    }

    /// Makes `size` the size in memory: what is cached behind it is dropped, the rest of its block zeros. The caller has the range from
    /// there on, makes it so in the metadata, then drops the hold.
    pub fn resize<'a>(&self, file: &'a CachedFile, size: u64) -> Hold<'a> {
        let from = crate::units::block_floor(size.min(file.size()));
        let (hold, (dirty, before, after)) = file.hold_from(from, |content| {
            let before = content.segments.total_bytes;
            file.set_size(size);
            let dirty = content.segments.remove(crate::units::block_ceil(size)..u64::MAX);
            content.segments.zero_tail(size);
            (dirty, before, content.segments.total_bytes)
        });
        self.account(before, after);
        self.drop_dirty(dirty);
        hold
    }

    /// Makes the size in memory at least `end`, as `resize`.
    pub fn grow<'a>(&self, file: &'a CachedFile, end: u64) -> Hold<'a> {
        file.hold_from(crate::units::block_floor(end.min(file.size())), |_| file.grow(end)).0
    }
}
