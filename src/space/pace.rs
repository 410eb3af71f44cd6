//! How quick the devices are, measured: a transfer that ends sooner than a hand-over to another thread would take is not worth one. A tmpfs
//! or a warm host cache answers in microseconds, a disk does not.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A transfer counts as so many units: one, and one more for each of these.
const UNIT_BYTES: usize = 64 << 10;
/// A device whose units take less than this is quick. A hand-over costs 5 to 10 us here and two context switches anywhere.
const QUICK_NS: u64 = 15_000;
/// The same for a commit, which is several transfers and flushes: on memory 30 us, on any disk hundreds at least.
const QUICK_COMMIT_NS: u64 = 100_000;
/// The mean looks back over about so many transfers.
const REMEMBERED: u64 = 16;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
    /// To the device and durable: a whole commit.
    Commit,
}

impl Direction {
    fn quick_ns(self) -> u64 {
        if self == Direction::Commit { QUICK_COMMIT_NS } else { QUICK_NS }
    }
}

/// Moving means of the time a unit takes, in nanoseconds. Updates may lose one another: a hint, not an account.
#[derive(Debug, Default)]
pub struct Pace {
    read_ns: AtomicU64,
    write_ns: AtomicU64,
    commit_ns: AtomicU64,
}

impl Pace {
    fn mean(&self, direction: Direction) -> &AtomicU64 {
        match direction {
            Direction::Read => &self.read_ns,
            Direction::Write => &self.write_ns,
            Direction::Commit => &self.commit_ns,
        }
    }

    /// Runs a transfer of so many bytes and remembers how long it took.
    pub fn timed<T>(&self, direction: Direction, bytes: usize, run: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let result = run();
        self.note(direction, bytes, begin.elapsed());
        result
    }

    fn note(&self, direction: Direction, bytes: usize, elapsed: Duration) {
        let units = 1 + (bytes / UNIT_BYTES) as u64;
        let now = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX) / units;
        let mean = self.mean(direction);
        let before = mean.load(Relaxed);
        // One stall (the daemon was not scheduled) must not count as a slow device for long: it counts as a few slow transfers.
        let now = now.min(direction.quick_ns() * 4);
        mean.store((before * (REMEMBERED - 1) + now) / REMEMBERED, Relaxed);
    }

    /// Would a transfer end sooner than a hand-over? Before the first one: yes, to find out.
    pub fn is_quick(&self, direction: Direction) -> bool {
        self.mean(direction).load(Relaxed) < direction.quick_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_until_it_was_slow_for_a_while_and_quick_again() {
        let pace = Pace::default();
        assert!(pace.is_quick(Direction::Read));
        pace.note(Direction::Read, 4096, Duration::from_millis(50));
        assert!(pace.is_quick(Direction::Read), "one stall");
        (0..20).for_each(|_| pace.note(Direction::Read, 4096, Duration::from_micros(90)));
        assert!(!pace.is_quick(Direction::Read), "a disk");
        assert!(pace.is_quick(Direction::Write), "the other direction");
        (0..100).for_each(|_| pace.note(Direction::Read, 4096, Duration::from_micros(2)));
        assert!(pace.is_quick(Direction::Read));
    }

    #[test]
    fn large_transfers_may_take_longer() {
        let pace = Pace::default();
        (0..100).for_each(|_| pace.note(Direction::Write, 1 << 20, Duration::from_micros(150)));
        assert!(pace.is_quick(Direction::Write));
        (0..100).for_each(|_| pace.note(Direction::Write, 1 << 20, Duration::from_millis(2)));
        assert!(!pace.is_quick(Direction::Write));
    }
}
