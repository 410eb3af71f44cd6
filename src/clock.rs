//! The time for stamps: the kernel's coarse clock, the one that it stamps cached files with. A finer clock would make a file's
//! kernel-stamped mtime look older than its creation.

use crate::units::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// Now.
pub fn now() -> Timestamp {
    let time = clock_gettime(ClockId::RealtimeCoarse);
    Timestamp { seconds: time.tv_sec, nanoseconds: u32::try_from(time.tv_nsec).unwrap_or(0) }
}
