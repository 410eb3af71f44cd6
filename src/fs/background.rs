//! Background threads: commit timer and idleness, writeback, applying and checkpoints, the reaper, the scrub, the image. Each sleeps without a timer
//! when it has nothing to do, so an idle daemon does not wake at all. They take no request and no request waits in their queues.

use super::Filesystem;
use crate::error::{Error, Result};
use crate::sync::{AtomicBool, Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Nothing arrived for so long: write back and commit.
const IDLE: Duration = Duration::from_millis(200);
/// Committed records wait at most so long to be applied.
const APPLY_INTERVAL: Duration = Duration::from_secs(5);
/// More committed bytes than this are applied at once: what comes meanwhile must fit into the journal.
const APPLY_BYTES: u64 = 8 << 20;
/// More journal bytes than this behind the last checkpoint, and there is a new one.
const CHECKPOINT_BYTES: u64 = 32 << 20;
/// After so many changes a quiet moment is used to give memory back that they needed.
const CHANGES_BETWEEN_TRIMS: u64 = 10_000;
/// Longest time between checkpoints while there is something to apply.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(30);

/// Wakes one background thread.
#[derive(Debug, Default)]
pub(super) struct Signal {
    is_asleep: AtomicBool,
    state: Mutex<Wanted>,
    woken: Condvar,
}

#[derive(Debug, Default)]
struct Wanted {
    is_woken: bool,
    is_stopped: bool,
}

/// One signal a thread.
#[derive(Debug, Default)]
pub(super) struct Signals {
    pub(super) commit: Signal,
    pub(super) writeback: Signal,
    pub(super) apply: Signal,
    pub(super) reaper: Signal,
    pub(super) scrub: Signal,
    pub(super) image: Signal,
    pub(super) relocation: Signal,
}

impl Signal {
    /// Wakes the thread, or makes its next sleep end at once.
    pub(super) fn wake(&self) {
        self.state.lock().is_woken = true;
        self.woken.notify_all();
    }

    /// As `wake`, when the thread sleeps without a timer: costs one load otherwise.
    pub(super) fn wake_if_asleep(&self) {
        if self.is_asleep.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.woken.notify_all();
    }

    /// Is it time to end?
    pub(super) fn is_stopped(&self) -> bool {
        self.state.lock().is_stopped
    }

    /// Sleeps until woken, unless `has_work` holds; false when it is time to end.
    pub(super) fn sleep_unless(&self, has_work: impl Fn() -> bool) -> bool {
        self.is_asleep.store(true, Ordering::SeqCst);
        // Looked at after the flag is up: who adds work afterwards sees the flag.
        let is_needed = has_work();
        let mut state = self.state.lock();
        while !is_needed && !state.is_woken && !state.is_stopped {
            self.woken.wait(&mut state);
        }
        state.is_woken = false;
        self.is_asleep.store(false, Ordering::SeqCst);
        !state.is_stopped
    }

    /// Sleeps at most `time`; false when it is time to end.
    pub(super) fn sleep_for(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.is_woken && !state.is_stopped {
            self.woken.wait_for(&mut state, time);
        }
        state.is_woken = false;
        !state.is_stopped
    }
}

impl Filesystem {
    pub(super) fn start_threads(self: &Arc<Filesystem>) -> Result<()> {
        type Body = fn(&Filesystem);
        let bodies: [(&str, Body); 7] = [
            ("commit", Filesystem::run_commit_timer),
            ("writeback", Filesystem::run_writeback),
            ("apply", Filesystem::run_apply),
            ("reaper", Filesystem::run_reaper),
            ("scrub", Filesystem::run_scrub),
            ("image", Filesystem::run_image),
            ("relocation", Filesystem::run_relocation),
        ];
        for (name, body) in bodies {
            let filesystem = self.clone();
            let run = move || {
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&filesystem)));
                if outcome.is_err() {
                    filesystem.latch(format!("the {name} thread failed"));
                }
            };
            let thread = crate::sync::thread::Builder::new().name(name.into()).spawn(run);
            let thread = thread.map_err(|error| Error::io(format!("starting the {name} thread"), error))?;
            self.threads.lock().push(thread);
        }
        Ok(())
    }

    pub(super) fn stop_threads(&self) {
        let Signals { commit, writeback, apply, reaper, scrub, image, relocation } = &self.signals;
        for signal in [commit, writeback, apply, reaper, scrub, image, relocation] {
            signal.stop();
        }
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.join().is_err() {
                self.latch("a background thread failed");
            }
        }
    }

    fn is_latched(&self) -> bool {
        self.meta.latch().check().is_err()
    }

    fn has_uncommitted(&self) -> bool {
        !self.is_latched() && (self.meta.has_uncommitted() || !self.listed.lock().is_empty())
    }

    fn run_commit_timer(&self) {
        let interval = Duration::from_millis(self.options.commit_interval_ms);
        let mut trimmed_at = 0;
        while self.signals.commit.sleep_unless(|| self.has_uncommitted()) {
            let begin = Instant::now();
            while self.has_uncommitted() {
                let seen = self.activity.load(Ordering::Relaxed);
                if !self.signals.commit.sleep_for(IDLE.min(interval)) {
                    return;
                }
                self.open_group_ahead();
                if self.is_commit_asked.swap(false, Ordering::Relaxed) && self.meta.is_commit_due() {
                    // So that those who create need not.
                    log(self.commit_now(), "commit");
                    if begin.elapsed() < interval {
                        continue;
                    }
                }
                if self.activity.load(Ordering::Relaxed) == seen || begin.elapsed() >= interval {
                    // A failure has set the latch, or stays with the file for its next fsync.
                    log(self.sync(), "commit");
                    let now = self.activity.load(Ordering::Relaxed);
                    if now == seen && now - trimmed_at > CHANGES_BETWEEN_TRIMS {
                        crate::sys::release_free_memory();
                        trimmed_at = now;
                    }
                    break;
                }
            }
        }
    }

    fn open_group_ahead(&self) {
        let wanted = self.space.blocks_per_group() / 4;
        if self.space.available() >= wanted {
            return;
        }
        // Who holds it is doing just this.
        if let Some(_alone) = self.is_finding_space.try_lock() {
            let has_room = self.commit_frees(wanted).and_then(|has_room| Ok(has_room || self.open_group()?));
            log(has_room.map(|_| ()), "opening a group");
        }
    }

    fn run_writeback(&self) {
        let is_due = || !self.is_latched() && self.cache.dirty_bytes() > self.cache.dirty_bytes_background();
        while self.signals.writeback.sleep_unless(is_due) {
            if is_due() {
                log(self.write_back_listed(), "writeback");
            }
        }
    }

    fn run_apply(&self) {
        let has_work = || !self.is_latched() && self.meta.has_unapplied();
        let mut last_checkpoint = Instant::now();
        while self.signals.apply.sleep_unless(has_work) {
            if !has_work() {
                continue;
            }
            let begin = Instant::now();
            // Records that change again soon are applied once; when nothing happens any more there is no reason to wait.
            let mut seen = None;
            while !self.is_apply_due() && begin.elapsed() < APPLY_INTERVAL {
                let now = self.activity.load(Ordering::Relaxed);
                if seen.replace(now) == Some(now) {
                    break;
                }
                if !self.signals.apply.sleep_for(2 * IDLE) {
                    return;
                }
            }
            let is_due =
                self.is_checkpoint_due() || last_checkpoint.elapsed() > CHECKPOINT_INTERVAL || self.meta.pending_bytes() == 0;
            let outcome = if is_due { self.meta.checkpoint() } else { self.meta.apply() };
            if is_due {
                last_checkpoint = Instant::now();
            }
            log(outcome, "applying");
            self.wake_image();
        }
    }

    fn is_checkpoint_due(&self) -> bool {
        self.meta.journal_used_bytes() > CHECKPOINT_BYTES.min(self.meta.journal_size_bytes() / 4)
    }

    fn is_apply_due(&self) -> bool {
        self.is_checkpoint_due() || self.meta.pending_bytes() >= APPLY_BYTES.min(self.meta.transaction_bytes_max() * 2)
    }

    /// After a commit: something waits to be applied.
    pub(super) fn wake_apply(&self) {
        if self.is_apply_due() {
            self.signals.apply.wake();
        } else {
            self.signals.apply.wake_if_asleep();
        }
    }

    fn run_reaper(&self) {
        let has_work = || !self.is_latched() && !self.reap_queue.lock().is_empty();
        while self.signals.reaper.sleep_unless(has_work) {
            if has_work() {
                let outcome = self.begin_changing().and_then(|()| self.reap_all());
                log(outcome, "deleting");
            }
        }
    }
}

pub(super) fn log(outcome: Result<()>, what: &str) {
    if let Err(error) = outcome {
        tracing::warn!("{what}: {error}");
    }
}
