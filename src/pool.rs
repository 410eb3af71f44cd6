//! The worker pool: where operations go that must wait and that no reading thread can do itself. The queue is bounded by bytes
//! (payloads of queued and running jobs together), not by jobs.
//!
//! Rules: who submits holds no lock (`reserve` may wait). A job may wait for devices, range locks and commits, never for another
//! job of the pool: commit, apply, writeback and readahead have threads of their own. A job that panics is dropped with all it
//! owns; a reply that is dropped unanswered answers EIO, so the caller of the kernel is never left waiting.

use crate::error::{Error, Result};
use crate::lock::assert_may_wait;
use crossbeam::channel::{Receiver, Sender, unbounded};
use parking_lot::{Condvar, Mutex};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

/// What a job costs at least, in bytes of the queue's bound.
const JOB_BYTES_MIN: usize = 4096;

/// Called with the message of a panic.
pub type OnPanic = Arc<dyn Fn(&str) + Send + Sync>;

struct Budget {
    limit_bytes: usize,
    used_bytes: Mutex<usize>,
    freed: Condvar,
}

/// Bytes of the budget, given back when dropped.
struct Held {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        *self.budget.used_bytes.lock() -= self.bytes;
        self.budget.freed.notify_all();
    }
}

struct Job {
    run: Box<dyn FnOnce() + Send>,
    held: Held,
}

/// Room in the queue for one job: take it first, then copy the payload.
pub struct Room<'pool> {
    pool: &'pool Pool,
    held: Held,
}

impl Room<'_> {
    /// Queues the job.
    pub fn submit(self, run: impl FnOnce() + Send + 'static) {
        if let Some(sender) = &self.pool.sender {
            // The receivers live as long as the workers, and those end after the sender only.
            let _ = sender.send(Job { run: Box::new(run), held: self.held });
        }
    }
}

/// Threads and their queue. Dropping it finishes what is queued, then ends the threads.
pub struct Pool {
    sender: Option<Sender<Job>>,
    budget: Arc<Budget>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts `threads` workers named `{name}-{number}`, with at most `limit_bytes` queued and running.
    pub fn new(name: &str, threads: usize, limit_bytes: usize, on_panic: OnPanic) -> Result<Pool> {
        let (sender, receiver) = unbounded();
        let budget = Arc::new(Budget { limit_bytes, used_bytes: Mutex::new(0), freed: Condvar::new() });
        let mut pool = Pool { sender: Some(sender), budget, workers: Vec::with_capacity(threads) };
        for number in 0..threads.max(1) {
            let (receiver, on_panic) = (receiver.clone(), on_panic.clone());
            let worker = std::thread::Builder::new()
                .name(format!("{name}-{number}"))
                .spawn(move || work(&receiver, &on_panic))
                .map_err(|source| Error::io(format!("starting worker thread {name}-{number}"), source))?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Waits until the queue has room for a job with a payload of `bytes`. A job larger than the whole bound gets in alone.
    pub fn reserve(&self, bytes: usize) -> Room<'_> {
        assert_may_wait("waiting for room in the worker queue");
        let bytes = bytes.max(JOB_BYTES_MIN);
        let mut used = self.budget.used_bytes.lock();
        while *used > 0 && *used + bytes > self.budget.limit_bytes {
            self.budget.freed.wait(&mut used);
        }
        self.take(&mut used, bytes)
    }

    /// The same without waiting: None when the queue is full.
    pub fn try_reserve(&self, bytes: usize) -> Option<Room<'_>> {
        let bytes = bytes.max(JOB_BYTES_MIN);
        let mut used = self.budget.used_bytes.lock();
        if *used > 0 && *used + bytes > self.budget.limit_bytes {
            return None;
        }
        Some(self.take(&mut used, bytes))
    }

    fn take(&self, used: &mut usize, bytes: usize) -> Room<'_> {
        *used += bytes;
        Room { pool: self, held: Held { budget: self.budget.clone(), bytes } }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.sender = None;
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its jobs and has none of its own.
            let _ = worker.join();
        }
    }
}

fn work(receiver: &Receiver<Job>, on_panic: &OnPanic) {
    for Job { run, held } in receiver {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            on_panic(panic_message(&*panic));
        }
        drop(held);
    }
}

/// The text of a caught panic.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&'static str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "a panic without a message"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam::channel::bounded;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    fn ignore_panics() -> OnPanic {
        Arc::new(|_| {})
    }

    #[test]
    fn every_job_runs_before_the_pool_is_gone() {
        let pool = Pool::new("test", 3, 1 << 20, ignore_panics()).unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        for _ in 0..1000 {
            let ran = ran.clone();
            pool.reserve(0).submit(move || {
                ran.fetch_add(1, SeqCst);
            });
        }
        drop(pool);
        assert_eq!(ran.load(SeqCst), 1000);
    }

    #[test]
    fn the_queue_is_bounded_by_bytes_of_queued_and_running_jobs() {
        let pool = Pool::new("test", 1, 64 << 10, ignore_panics()).unwrap();
        let (release, released) = bounded::<()>(0);
        pool.reserve(60 << 10).submit(move || released.recv().unwrap());
        assert!(pool.try_reserve(4 << 10).is_some(), "room that is not used is given back");
        let last = pool.try_reserve(4 << 10).unwrap();
        assert!(pool.try_reserve(0).is_none());
        last.submit(|| {});
        release.send(()).unwrap();
        // Waits for both jobs to end.
        let whole = pool.reserve(64 << 10);
        assert!(pool.try_reserve(0).is_none());
        drop(whole);
    }

    #[test]
    fn a_job_larger_than_the_bound_gets_in_alone() {
        let pool = Pool::new("test", 1, 8 << 10, ignore_panics()).unwrap();
        let (done, wait) = bounded(1);
        pool.reserve(1 << 20).submit(move || done.send(()).unwrap());
        wait.recv().unwrap();
        drop(pool.reserve(1 << 20));
    }

    /// Stands for a reply: answers when dropped.
    struct Answers(Sender<&'static str>);

    impl Drop for Answers {
        fn drop(&mut self) {
            self.0.send("answered").unwrap();
        }
    }

    #[test]
    fn a_panic_is_told_answered_and_survived() {
        let (told, heard) = bounded(1);
        let pool = Pool::new("test", 1, 1 << 20, Arc::new(move |text: &str| told.send(text.to_owned()).unwrap())).unwrap();
        let (answer, answered) = bounded(1);
        let reply = Answers(answer);
        pool.reserve(0).submit(move || {
            let _reply = reply;
            panic!("on purpose: {}", 42);
        });
        assert_eq!(answered.recv().unwrap(), "answered");
        assert_eq!(heard.recv().unwrap(), "on purpose: 42");
        let (done, wait) = bounded(1);
        pool.reserve(1 << 20).submit(move || done.send(()).unwrap());
        wait.recv().unwrap();
    }
}
