//! On which thread a data operation may wait. READ and WRITE are first tried on the reading thread with `Wait::Never`. When the
//! file system refuses (the reason is counted), the same operation runs with `Wait::Allowed`: on this thread if another reading
//! thread is idle in read(2), so that requests are still taken, or if all that it waits for is a device that answers sooner than a
//! hand-over would take; else on the worker pool with one copy of the payload. FSYNC, which has no cheap try, follows the same
//! rule. Everything else runs on the reading thread: a hop costs as much as the work.
//! What `done` owns (a reply) is dropped unanswered when the operation panics.
//!
//! At least one reading thread never waits for a slow device: a thread counts as busy before it asks whether another is idle, so of
//! any number that ask at once the last sees nobody idle. The thread of a ring is the only one of its queue, so it has a rule of its
//! own ([`turn`]).

use super::ring::turn;
use super::stream::{LARGE_BYTES, Streams};
use crate::disk::buffer::AlignedBuffer;
use crate::error::{Error, Reason, Result};
use crate::fs::{Caller, Filesystem, ReadData, ReadFlags, ReadOrder, WaitInline, WriteFlags};
use crate::lock::Wait;
use crate::pool::{NextJob, OnPanic, Pool};
use crate::stats::{Operation, Stats};
use crate::units::InodeNumber;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Instant;

/// Bound of the worker queue: payloads of queued and running jobs.
const QUEUE_BYTES: usize = 32 << 20;
/// Larger work goes to another core if there is one that does not read requests, however quick the device is.
const QUICK_BYTES_MAX: usize = 64 << 10;

/// How many reading threads there are and how many of them are in a handler.
#[derive(Debug)]
pub struct ReadingThreads {
    count: usize,
    busy: AtomicUsize,
}

/// While this lives, one reading thread counts as busy.
#[derive(Debug)]
pub struct Busy<'a>(&'a AtomicUsize);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl ReadingThreads {
    /// `count` threads, all idle.
    pub fn new(count: usize) -> ReadingThreads {
        ReadingThreads { count, busy: AtomicUsize::new(0) }
    }

    /// This thread has taken a request.
    pub fn enter(&self) -> Busy<'_> {
        self.busy.fetch_add(1, SeqCst);
        Busy(&self.busy)
    }

    /// Asked by a busy thread: is there one that would take the next request at once?
    pub fn another_is_idle(&self) -> bool {
        self.busy.load(SeqCst) < self.count
    }
}

/// A READ.
#[derive(Clone, Copy)]
pub struct Read {
    /// The file.
    pub inode: InodeNumber,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: usize,
    /// How.
    pub flags: ReadFlags,
}

/// Where the bytes of a READ go, and who is told.
pub trait Reading: Send + 'static {
    /// Reads; how many bytes.
    fn attempt(&mut self, fs: &Filesystem, read: &Read, wait: Wait) -> Result<usize>;
    /// Answers with what was read.
    fn answer(self, result: Result<usize>);
}

/// Bytes where the file system has them.
struct Apart<F> {
    data: ReadData,
    done: F,
}

impl<F: FnOnce(Result<ReadData>) + Send + 'static> Reading for Apart<F> {
    fn attempt(&mut self, fs: &Filesystem, read: &Read, wait: Wait) -> Result<usize> {
        self.data = fs.read(read.inode, read.offset, read.size, read.flags, wait)?;
        Ok(self.data.as_slice().len())
    }

    fn answer(self, result: Result<usize>) {
        (self.done)(result.map(|_| self.data));
    }
}

/// A WRITE, without its data.
pub struct Write {
    /// On whose behalf.
    pub caller: Caller,
    /// The file.
    pub inode: InodeNumber,
    /// First byte.
    pub offset: u64,
    /// How.
    pub flags: WriteFlags,
}

/// What a job on any thread needs.
#[derive(Clone)]
struct Context {
    fs: Arc<Filesystem>,
    stats: Arc<Stats>,
}

/// Runs data operations. One per mount.
pub struct Dispatcher {
    context: Context,
    threads: ReadingThreads,
    /// One for each core may be awake.
    ring_threads: ReadingThreads,
    pool: Pool,
    streams: Arc<Streams>,
    nowait: bool,
    has_other_cores: bool,
}

impl Dispatcher {
    /// For `reading_threads` threads, with `workers` threads that may wait. Without `nowait` every data operation goes to the
    /// workers.
    pub fn new(fs: Arc<Filesystem>, reading_threads: usize, workers: usize, nowait: bool) -> Result<Dispatcher> {
        let context = Context { stats: fs.stats().clone(), fs };
        let on_panic: OnPanic = {
            let context = context.clone();
            Arc::new(move |message| context.panicked("a worker", message))
        };
        let next = if context.fs.options().read_order == ReadOrder::Reversed { NextJob::Newest } else { NextJob::Oldest };
        let pool = Pool::new("sumfs-worker", workers, QUEUE_BYTES, next, on_panic)?;
        let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
        Ok(Dispatcher {
            context,
            threads: ReadingThreads::new(reading_threads),
            pool,
            streams: Arc::default(),
            nowait,
            ring_threads: ReadingThreads::new(cores),
            has_other_cores: cores > reading_threads,
        })
    }

    /// Marks the calling reading thread busy while the result lives.
    pub fn enter(&self) -> Option<Busy<'_>> {
        (!turn::is_ring_thread()).then(|| self.threads.enter())
    }

    /// Marks the calling thread of a ring awake while the result lives.
    pub fn awake(&self) -> Busy<'_> {
        self.ring_threads.enter()
    }

    /// Reads and calls `done`, now or later.
    pub fn read(&self, read: Read, done: impl FnOnce(Result<ReadData>) + Send + 'static) {
        self.serve_read(read, Apart { data: ReadData::default(), done });
    }

    /// Reads and answers, now or later.
    pub fn serve_read(&self, read: Read, mut reading: impl Reading) {
        let Context { fs, stats } = &self.context;
        let reason = match self.nowait.then(|| reading.attempt(fs, &read, Wait::Never)) {
            None => Reason::Disabled,
            Some(Err(Error::WouldBlock(reason))) => reason,
            Some(result) => {
                stats.fast_reads.fetch_add(u64::from(result.is_ok()), Relaxed);
                return self.context.finish_read(result, |result| reading.answer(result));
            }
        };
        let refused = Instant::now();
        if self.may_wait_here(Some(reason), self.is_quick(reason, read.size)) {
            self.context.read(read, refused, reading, Reading::answer);
        } else {
            // Reading threads take requests in order and end nearly so; workers of a slow device may not.
            let is_ordered = read.size >= LARGE_BYTES && fs.options().read_order == ReadOrder::Submitted;
            let ticket = if is_ordered { self.streams.enter(read.inode, read.offset, read.size) } else { None };
            let done = move |reading, result| match ticket {
                Some(ticket) => ticket.answer(move || Reading::answer(reading, result)),
                None => Reading::answer(reading, result),
            };
            let context = self.context.clone();
            self.hand_over(read.inode, 0, || (), move |()| context.read(read, refused, reading, done));
        }
    }

    /// Writes and calls `done`, now or later. `data` is borrowed from the thread's request buffer.
    pub fn write(&self, write: Write, data: &[u8], done: impl FnOnce(Result<usize>) + Send + 'static) {
        let Context { fs, stats } = &self.context;
        let try_it = || fs.write(&write.caller, write.inode, write.offset, data, write.flags, Wait::Never);
        let reason = match self.nowait.then(try_it) {
            None => Reason::Disabled,
            Some(Err(Error::WouldBlock(reason))) => reason,
            Some(result) => {
                stats.fast_writes.fetch_add(u64::from(result.is_ok()), Relaxed);
                return self.context.finish_write(result, done);
            }
        };
        let refused = Instant::now();
        let may_wait = self.may_wait_here(Some(reason), !write.flags.sync && self.is_quick(reason, data.len()));
        if may_wait && !fs.gathers(write.flags) {
            self.context.write(&write, data, refused, done);
        } else {
            let context = self.context.clone();
            let copy = || AlignedBuffer::copy_of(data);
            self.hand_over(write.inode, data.len(), copy, move |data| context.write(&write, &data, refused, done));
        }
    }

    /// Makes a file or directory durable and calls `done` on whatever thread that ends on.
    pub fn fsync(&self, inode: InodeNumber, data_only: bool, done: impl FnOnce(Result<()>) + Send + 'static) {
        let asked = Instant::now();
        // However quick: those that wait behind it may share its commit, if somebody takes them meanwhile.
        let is_quick = !turn::others_wait() && self.context.fs.fsync_is_quick(inode);
        if self.may_wait_here(None, is_quick) {
            self.context.fsync(inode, data_only, asked, done);
        } else {
            let context = self.context.clone();
            self.hand_over(inode, 0, || (), move |()| context.fsync(inode, data_only, asked, done));
        }
    }

    /// A handler on a reading thread panicked (its reply was dropped, which answered EIO).
    pub fn panicked(&self, operation: Operation, message: &str) {
        self.context.panicked(operation.name(), message);
    }

    /// Is what the operation was refused for a wait that is shorter than a hand-over?
    fn is_quick(&self, reason: Reason, bytes: usize) -> bool {
        // The thread of a ring keeps only its own requests from being served; the other cores are taken when all others serve too.
        let has_other_cores = if turn::is_ring_thread() { self.ring_threads.another_is_idle() } else { self.has_other_cores };
        (bytes <= QUICK_BYTES_MAX || !has_other_cores) && self.context.fs.is_quick(reason)
    }

    /// Counts the refusal (None: nothing was tried) and decides: wait on this thread?
    fn may_wait_here(&self, refused: Option<Reason>, is_quick: bool) -> bool {
        let stats = &self.context.stats;
        if let Some(reason) = refused {
            stats.refused(reason);
        }
        let turn_comes = |is_quick| match turn::may_wait_here(is_quick) {
            Some(may) => may,
            None => is_quick || self.threads.another_is_idle(),
        };
        let may_wait = self.nowait
            && match self.context.fs.options().wait_inline {
                WaitInline::Auto => turn_comes(is_quick),
                WaitInline::Idle => turn_comes(false),
                WaitInline::Off => false,
            };
        if may_wait && refused.is_some() {
            stats.slow_on_reading_thread.fetch_add(1, Relaxed);
        }
        may_wait
    }

    /// Waits for room, makes the copy, queues.
    fn hand_over<P: Send + 'static>(
        &self,
        file: InodeNumber,
        bytes: usize,
        copy: impl FnOnce() -> P,
        run: impl FnOnce(P) + Send + 'static,
    ) {
        let stats = &self.context.stats;
        let room = self.pool.try_reserve(bytes).unwrap_or_else(|| {
            stats.worker_queue_full.fetch_add(1, Relaxed);
            self.pool.reserve(bytes)
        });
        stats.worker_jobs.fetch_add(1, Relaxed);
        let payload = copy();
        room.submit(file.0, move || run(payload));
    }
}

impl Context {
    fn read<R: Reading>(&self, read: Read, refused: Instant, mut reading: R, done: impl FnOnce(R, Result<usize>)) {
        let result = reading.attempt(&self.fs, &read, Wait::Allowed);
        self.finish_read(result, |result| done(reading, result));
        self.stats.slow_read_latency.record(refused.elapsed());
    }

    fn finish_read(&self, result: Result<usize>, done: impl FnOnce(Result<usize>)) {
        if let Ok(bytes) = &result {
            self.stats.bytes_read.fetch_add(*bytes as u64, Relaxed);
        }
        done(result);
    }

    fn write(&self, write: &Write, data: &[u8], refused: Instant, done: impl FnOnce(Result<usize>)) {
        let result = self.fs.write(&write.caller, write.inode, write.offset, data, write.flags, Wait::Allowed);
        self.finish_write(result, done);
        self.stats.slow_write_latency.record(refused.elapsed());
    }

    fn finish_write(&self, result: Result<usize>, done: impl FnOnce(Result<usize>)) {
        if let Ok(bytes) = &result {
            self.stats.bytes_written.fetch_add(*bytes as u64, Relaxed);
        }
        done(result);
    }

    fn fsync(&self, inode: InodeNumber, data_only: bool, asked: Instant, done: impl FnOnce(Result<()>) + Send + 'static) {
        let stats = self.stats.clone();
        let answered = move |result: Result<()>| {
            done(result);
            stats.fsync_latency.record(asked.elapsed());
        };
        self.fs.fsync(inode, data_only, Box::new(answered));
    }

    fn panicked(&self, place: &str, message: &str) {
        self.stats.panics.fetch_add(1, Relaxed);
        tracing::error!("internal error in {place}, the store becomes read-only: {message}");
        self.fs.latch(format!("internal error in {place}: {message}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_reading_thread_never_waits() {
        let threads = ReadingThreads::new(2);
        let first = threads.enter();
        assert!(threads.another_is_idle());
        let second = threads.enter();
        assert!(!threads.another_is_idle());
        drop(first);
        assert!(threads.another_is_idle());
        drop(second);
    }

    #[test]
    fn a_single_reading_thread_never_waits() {
        let threads = ReadingThreads::new(1);
        let _busy = threads.enter();
        assert!(!threads.another_is_idle());
    }

    #[test]
    fn a_panic_ends_being_busy() {
        let threads = ReadingThreads::new(1);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _busy = threads.enter();
            panic!("on purpose");
        }));
        assert!(caught.is_err());
        assert_eq!(threads.busy.load(SeqCst), 0);
    }
}
