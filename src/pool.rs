//! The worker pool: where operations go that must wait and that no reading thread can do itself. The queue is bounded by bytes
//! (payloads of queued and running jobs together), not by jobs.
//!
//! Jobs have a key (the file). Jobs of one key begin in the order they came; keys take turns, and one key has at most half of the
//! workers, so that a file whose jobs all wait for one thing cannot hold up the others, and a large job of one file does not stand
//! behind the small ones of another.
//!
//! Rules: who submits holds no lock (`reserve` may wait). A job may wait for devices, range locks and commits, never for another
//! job of the pool: commit, apply and writeback have threads of their own. A job that panics is dropped with all it
//! owns; a reply that is dropped unanswered answers EIO, so the caller of the kernel is never left waiting.

use crate::error::{Error, Result};
use crate::lock::assert_may_wait;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex};
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

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

/// Which of the waiting jobs begins next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextJob {
    /// The oldest of the key whose turn it is.
    Oldest,
    /// The newest of the newest key: only to measure what the order is worth.
    Newest,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    running: usize,
    /// In `Queue::turns`.
    has_turn: bool,
}

/// Invariant: a key is in `turns`, once, exactly when it has waiting jobs and runs fewer than its share.
#[derive(Default)]
struct Queue {
    keys: HashMap<u64, Jobs>,
    turns: VecDeque<u64>,
    is_closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    has_turn: Condvar,
    /// Jobs of one key that run at the same time.
    share: usize,
    next: NextJob,
}

impl Shared {
    fn give_turn(&self, queue: &mut Queue, key: u64) {
        let Queue { keys, turns, .. } = queue;
        let Some(jobs) = keys.get_mut(&key) else { return };
        if !jobs.has_turn && !jobs.waiting.is_empty() && jobs.running < self.share {
            jobs.has_turn = true;
            turns.push_back(key);
            self.has_turn.notify_one();
        }
    }

    fn submit(&self, key: u64, job: Job) {
        let mut queue = self.queue.lock();
        queue.keys.entry(key).or_default().waiting.push_back(job);
        self.give_turn(&mut queue, key);
    }

    /// The next job; None when the pool is closed and nothing waits for a turn.
    fn take(&self) -> Option<(u64, Job)> {
        let mut queue = self.queue.lock();
        loop {
            let key = match self.next {
                NextJob::Oldest => queue.turns.pop_front(),
                NextJob::Newest => queue.turns.pop_back(),
            };
            if let Some(key) = key {
                let jobs = queue.keys.entry(key).or_default();
                jobs.has_turn = false;
                let job = match self.next {
                    NextJob::Oldest => jobs.waiting.pop_front(),
                    NextJob::Newest => jobs.waiting.pop_back(),
                };
                let Some(job) = job else { continue };
                jobs.running += 1;
                self.give_turn(&mut queue, key);
                return Some((key, job));
            }
            if queue.is_closed {
                return None;
            }
            self.has_turn.wait(&mut queue);
        }
    }

    fn ended(&self, key: u64) {
        let mut queue = self.queue.lock();
        if let Some(jobs) = queue.keys.get_mut(&key) {
            jobs.running -= 1;
            if jobs.running == 0 && jobs.waiting.is_empty() {
                queue.keys.remove(&key);
                return;
            }
        }
        self.give_turn(&mut queue, key);
    }
}

/// Room in the queue for one job: take it first, then copy the payload.
pub struct Room<'pool> {
    pool: &'pool Pool,
    held: Held,
}

impl Room<'_> {
    /// Queues the job behind the others of its key.
    pub fn submit(self, key: u64, run: impl FnOnce() + Send + 'static) {
        self.pool.shared.submit(key, Job { run: Box::new(run), held: self.held });
    }
}

/// Threads and their queue. Dropping it finishes what is queued, then ends the threads.
pub struct Pool {
    shared: Arc<Shared>,
    budget: Arc<Budget>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts `threads` workers named `{name}-{number}`, with at most `limit_bytes` queued and running.
    pub fn new(name: &str, threads: usize, limit_bytes: usize, next: NextJob, on_panic: OnPanic) -> Result<Pool> {
        let shared = Arc::new(Shared { queue: Mutex::default(), has_turn: Condvar::new(), share: (threads / 2).max(1), next });
        let budget = Arc::new(Budget { limit_bytes, used_bytes: Mutex::new(0), freed: Condvar::new() });
        let mut pool = Pool { shared, budget, workers: Vec::with_capacity(threads) };
        for number in 0..threads.max(1) {
            let (shared, on_panic) = (pool.shared.clone(), on_panic.clone());
            let worker = thread::Builder::new()
                .name(format!("{name}-{number}"))
                .spawn(move || work(&shared, &on_panic))
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
        self.shared.queue.lock().is_closed = true;
        self.shared.has_turn.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its jobs and has none of its own.
            let _ = worker.join();
        }
    }
}

fn work(shared: &Shared, on_panic: &OnPanic) {
    while let Some((key, Job { run, held })) = shared.take() {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            on_panic(panic_message(&*panic));
        }
        drop(held);
        shared.ended(key);
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
    use crossbeam::channel::{Sender, bounded};
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    fn ignore_panics() -> OnPanic {
        Arc::new(|_| {})
    }

    #[test]
    fn every_job_runs_before_the_pool_is_gone() {
        let pool = Pool::new("test", 3, 1 << 20, NextJob::Oldest, ignore_panics()).unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        for _ in 0..1000 {
            let ran = ran.clone();
            pool.reserve(0).submit(1, move || {
                ran.fetch_add(1, SeqCst);
            });
        }
        drop(pool);
        assert_eq!(ran.load(SeqCst), 1000);
    }

    #[test]
    fn the_queue_is_bounded_by_bytes_of_queued_and_running_jobs() {
        let pool = Pool::new("test", 1, 64 << 10, NextJob::Oldest, ignore_panics()).unwrap();
        let (release, released) = bounded::<()>(0);
        pool.reserve(60 << 10).submit(1, move || released.recv().unwrap());
        assert!(pool.try_reserve(4 << 10).is_some(), "room that is not used is given back");
        let last = pool.try_reserve(4 << 10).unwrap();
        assert!(pool.try_reserve(0).is_none());
        last.submit(1, || {});
        release.send(()).unwrap();
        // Waits for both jobs to end.
        let whole = pool.reserve(64 << 10);
        assert!(pool.try_reserve(0).is_none());
        drop(whole);
    }

    #[test]
    fn a_job_larger_than_the_bound_gets_in_alone() {
        let pool = Pool::new("test", 1, 8 << 10, NextJob::Oldest, ignore_panics()).unwrap();
        let (done, wait) = bounded(1);
        pool.reserve(1 << 20).submit(1, move || done.send(()).unwrap());
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
        let pool =
            Pool::new("test", 1, 1 << 20, NextJob::Oldest, Arc::new(move |text: &str| told.send(text.to_owned()).unwrap()))
                .unwrap();
        let (answer, answered) = bounded(1);
        let reply = Answers(answer);
        pool.reserve(0).submit(1, move || {
            let _reply = reply;
            panic!("on purpose: {}", 42);
        });
        assert_eq!(answered.recv().unwrap(), "answered");
        assert_eq!(heard.recv().unwrap(), "on purpose: 42");
        let (done, wait) = bounded(1);
        pool.reserve(1 << 20).submit(1, move || done.send(()).unwrap());
        wait.recv().unwrap();
    }

    /// A gate that jobs wait at.
    fn closed_gate() -> (Sender<()>, crossbeam::channel::Receiver<()>) {
        bounded(100)
    }

    #[test]
    fn a_file_whose_jobs_all_wait_does_not_hold_up_another() {
        let pool = Pool::new("test", 4, 1 << 20, NextJob::Oldest, ignore_panics()).unwrap();
        let (open, gate) = closed_gate();
        for _ in 0..20 {
            let gate = gate.clone();
            pool.reserve(0).submit(1, move || gate.recv().unwrap());
        }
        let (done, wait) = bounded(1);
        pool.reserve(0).submit(2, move || done.send(()).unwrap());
        wait.recv_timeout(std::time::Duration::from_secs(60)).expect("the other file's job never began");
        (0..20).for_each(|_| open.send(()).unwrap());
    }

    /// The order in which jobs begin that were queued while the only worker was busy.
    fn order(next: NextJob, keys: &[u64]) -> Vec<usize> {
        let pool = Pool::new("test", 1, 1 << 20, next, ignore_panics()).unwrap();
        let (open, gate) = closed_gate();
        let (began, beginning) = bounded(1);
        pool.reserve(0).submit(0, move || {
            began.send(()).unwrap();
            gate.recv().unwrap();
        });
        beginning.recv().unwrap();
        let (saw, seen) = bounded(keys.len());
        for (number, key) in keys.iter().enumerate() {
            let saw = saw.clone();
            pool.reserve(0).submit(*key, move || saw.send(number).unwrap());
        }
        open.send(()).unwrap();
        drop(pool);
        seen.try_iter().collect()
    }

    #[test]
    fn jobs_of_a_file_begin_in_order_and_files_take_turns() {
        assert_eq!(order(NextJob::Oldest, &[1, 1, 1, 2, 2, 3]), [0, 3, 5, 1, 4, 2]);
        assert_eq!(order(NextJob::Newest, &[1, 1, 1]), [2, 1, 0]);
    }

    #[test]
    fn nothing_is_kept_of_a_file_without_jobs() {
        let pool = Pool::new("test", 3, 1 << 20, NextJob::Oldest, ignore_panics()).unwrap();
        let shared = pool.shared.clone();
        (0..500).for_each(|number| pool.reserve(0).submit(number % 7, || {}));
        drop(pool);
        let queue = shared.queue.lock();
        assert!(queue.keys.is_empty() && queue.turns.is_empty());
    }
}
