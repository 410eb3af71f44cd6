//! The thread that writes new bases of the metadata image, piece by piece, and leaves processor and devices to others in between.
//! Nobody waits for it; a log that is longer than it should be for a while does no harm.

use super::Filesystem;
use super::background::log;
use crate::error::Result;
use crate::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// While requests arrive the thread sleeps so many times as long as a piece took, and at most so long: a snapshot that is held keeps
/// pages of the index.
const BUSY_PAUSE: u32 = 4;
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Requests that were seen last.
#[derive(Debug, Default)]
pub(super) struct ImageWorker {
    requests: Mutex<u64>,
}

impl Filesystem {
    /// After something was applied.
    pub(super) fn wake_image(&self) {
        if self.meta.has_image_work() {
            self.signals.image.wake_if_asleep();
        }
    }

    /// Does the next step for the image on this thread; false when there was none.
    pub fn image_step(&self) -> Result<bool> {
        let has_work = self.meta.has_image_work();
        self.meta.work_on_image()?;
        Ok(has_work)
    }

    /// Asks for a new image, as a scrub does that finds the one there is damaged.
    pub fn renew_image(&self) {
        self.meta.suspect_image();
        self.wake_image();
    }

    /// The body of the image's thread.
    pub(super) fn run_image(&self) {
        crate::sys::step_back();
        let has_work = || self.meta.latch().check().is_ok() && self.meta.has_image_work();
        while self.signals.image.sleep_unless(has_work) {
            while has_work() {
                let begin = Instant::now();
                log(self.meta.work_on_image(), "metadata image");
                let pause = if self.is_asked() { (begin.elapsed() * BUSY_PAUSE).min(PAUSE_MAX) } else { Duration::ZERO };
                if !self.signals.image.sleep_for(pause) {
                    return;
                }
            }
        }
    }

    /// Did requests arrive since this was asked last?
    fn is_asked(&self) -> bool {
        let requests = self.stats.operations.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        std::mem::replace(&mut *self.image_worker.requests.lock(), requests) != requests
    }
}
