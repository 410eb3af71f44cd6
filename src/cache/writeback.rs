//! Writeback: dirty runs become ordered extents and go to the device. The bytes are frozen under the segments' lock, written
//! without it, and an ordered extent never overlaps another one of the same file, so an older version cannot land on a newer.
//!
//! A pass gathers runs, of one file or of many, under a *plug* and hands them down together, so that small neighbours on the device
//! become one write. Runs under a plug are in flight: who is about to wait for anything releases it first, else two passes could
//! wait for each other's runs.

use super::segment::Frozen;
use super::{Cache, CachedFile};
use crate::error::{Error, Result};
use crate::extent::load::whole_blocks;
use crate::extent::store::DirtyRun;
use crate::pool::panic_message;
use crate::units::{BLOCK_SIZE, EXTENT_BYTES_MAX};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A plug is released when it holds so many bytes (one extent: a larger write gains nothing) or runs. Where there is parity it holds whole
/// stripes, at least so many bytes.
const PLUG_BYTES: u64 = EXTENT_BYTES_MAX;
const PLUG_STRIPED_BYTES: u64 = 4 << 20;
const PLUG_RUNS: usize = 256;

/// A dirty run that was frozen.
struct FrozenRun {
    file: Arc<CachedFile>,
    start: u64,
    number: u64,
    parts: Vec<Frozen>,
    bytes: u64,
    /// When it was frozen: a size that comes later is not in the metadata with this data.
    file_size: u64,
}

/// What the next step of a writeback pass is.
enum Next {
    Run(FrozenRun),
    Busy,
    Done,
}

/// Runs gathered by a pass.
struct Plug<'a> {
    cache: &'a Cache,
    runs: Vec<FrozenRun>,
    bytes: u64,
    /// Released when it holds so many.
    bytes_max: u64,
}

impl<'a> Plug<'a> {
    fn new(cache: &'a Cache) -> Plug<'a> {
        let space = &cache.extents.space;
        let bytes_max = match (space.has_parity(), cache.plug.is_off()) {
            (true, false) => PLUG_STRIPED_BYTES.next_multiple_of(space.stripe_bytes().max(1)),
            _ => PLUG_BYTES,
        };
        Plug { cache, runs: Vec::new(), bytes: 0, bytes_max }
    }

    /// Freezes what is dirty in `range`, releasing the plug whenever it is full. What is in flight there is waited for if dirty data
    /// lies over it; the rest may still be in flight afterwards.
    fn gather(&mut self, file: &Arc<CachedFile>, range: Range<u64>) -> Result<()> {
        let mut from = range.start;
        loop {
            match self.cache.next_run(file, from..range.end, self.bytes_max - self.bytes) {
                Next::Run(run) => {
                    from = run.start + run.bytes;
                    self.bytes += run.bytes;
                    self.runs.push(run);
                    if self.bytes >= self.bytes_max || self.runs.len() >= PLUG_RUNS {
                        self.release()?;
                    }
                }
                Next::Busy => {
                    self.release()?;
                    file.wait_in_flight(range.clone());
                    from = range.start;
                }
                Next::Done => return Ok(()),
            }
        }
    }

    /// Writes what was gathered; the first error.
    fn release(&mut self) -> Result<()> {
        self.bytes = 0;
        let runs = std::mem::take(&mut self.runs);
        if runs.is_empty() { Ok(()) } else { self.cache.write_runs(&runs) }
    }
}

impl Cache {
    /// Writes back what is dirty in `range`, and waits for what is in flight there. The first error is returned and kept for
    /// fsync. With the latch set nothing is written: no commit could name it.
    pub fn write_back(&self, file: &Arc<CachedFile>, range: Range<u64>) -> Result<()> {
        if file.dirty_bytes() > 0 {
            self.extents.meta.latch().check()?;
        }
        self.plug.release();
        let range = whole_blocks(range);
        let mut plug = Plug::new(self);
        let gathered = plug.gather(file, range.clone());
        let result = gathered.and(plug.release());
        file.wait_in_flight(range);
        result
    }

    /// The same for whole files in one pass. The first error; the others go on, and each file keeps its own for fsync.
    pub fn write_back_files(&self, files: &[&Arc<CachedFile>]) -> Result<()> {
        if !files.is_empty() {
            self.extents.meta.latch().check()?;
        }
        let mut plug = Plug::new(self);
        let mut result = Ok(());
        for file in files {
            result = result.and(plug.gather(file, 0..u64::MAX));
        }
        result = result.and(plug.release());
        files.iter().for_each(|file| file.wait_in_flight(0..u64::MAX));
        result
    }

    /// Freezes the next dirty run in `range`, at most `most` bytes of it.
    fn next_run(&self, file: &Arc<CachedFile>, range: Range<u64>, most: u64) -> Next {
        let mut content = file.content.lock();
        let mut from = range.start;
        let mut is_busy = false;
        while let Some(start) = content.segments.first_dirty(from..range.end) {
            let mut end = range.end.min(start.saturating_add(most));
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
            return Next::Run(FrozenRun { file: file.clone(), start, number, parts, bytes, file_size: file.size() });
        }
        if is_busy { Next::Busy } else { Next::Done }
    }

    fn write_runs(&self, runs: &[FrozenRun]) -> Result<()> {
        let dirty: Vec<DirtyRun<'_>> = runs
            .iter()
            .map(|run| DirtyRun {
                file: &run.file.extents,
                offset: run.start,
                end: (run.start + run.bytes).min(run.file_size.max(run.start + 1)),
                slices: run.parts.iter().map(Frozen::bytes).collect(),
                file_size: run.file_size,
            })
            .collect();
        let results = self.store(&dirty);
        let mut first = Ok(());
        for (run, result) in runs.iter().zip(results) {
            self.finish_run(run, &result);
            first = first.and(result);
        }
        if self.keeps_clean && self.total_bytes() > self.budget_bytes {
            self.evict();
        }
        first
    }

    /// A panic must not leave the runs in flight for ever: who waits for them gets an error.
    pub(super) fn store(&self, runs: &[DirtyRun<'_>]) -> Vec<Result<()>> {
        catch_unwind(AssertUnwindSafe(|| self.extents.store(runs))).unwrap_or_else(|panic| {
            self.stats.panics.fetch_add(1, Ordering::Relaxed);
            let error = Error::corrupt(format!("internal error: {}", panic_message(&*panic)));
            vec![Err(error); runs.len()]
        })
    }

    fn finish_run(&self, run: &FrozenRun, result: &Result<()>) {
        let file = &run.file;
        self.stats.writebacks.fetch_add(1, Ordering::Relaxed);
        let (dirty_again, before, after) = {
            let mut content = file.content.lock();
            let before = content.segments.total_bytes;
            let range = run.start..run.start + run.bytes;
            let dirty_again = content.segments.finish(range, run.number, result.is_err(), self.keeps_clean);
            content.in_flight.retain(|(flying, _)| *flying != run.number);
            (dirty_again, before, content.segments.total_bytes)
        };
        self.account(before, after);
        self.dirty_fell_by(run.bytes - dirty_again);
        if let Err(error) = result {
            file.note_error(error.clone());
            self.extents.meta.latch().set(&format!("writing back inode {}: {error}", file.inode), true);
        }
        file.finished.notify_all();
        if self.keeps_clean {
            self.queue_for_eviction(file);
        }
    }

    /// Writes whole blocks straight to the device (O_DIRECT): an ordered extent of its own. The caller holds the range exclusively,
    /// and nobody changes `data` meanwhile (D9: it is a request's own memory); what the cache has of the range is superseded.
    pub fn write_through(&self, file: &Arc<CachedFile>, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset + data.len() as u64;
        debug_assert!(offset.is_multiple_of(BLOCK_SIZE) && (data.len() as u64).is_multiple_of(BLOCK_SIZE));
        self.discard(file, offset..end);
        let file_size = file.size().max(end);
        let results = if self.extents.space.has_parity() && !self.plug.is_off() {
            vec![self.write_gathered(file, offset, data, file_size)]
        } else {
            self.extents.store(&[DirtyRun { file: &file.extents, offset, end, slices: vec![data], file_size }])
        };
        for result in results {
            result.inspect_err(|error| {
                self.extents.space.release(data.len() as u64 / BLOCK_SIZE);
                self.extents.meta.latch().set(&format!("writing inode {}: {error}", file.inode), true);
            })?;
        }
        file.grow(end);
        Ok(())
    }
}
