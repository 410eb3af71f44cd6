//! What a mount says about itself at one moment, and what happened between two of them.

use crate::cli::Failure;
use crate::cli::umount::ask_daemon;
use crate::control::{Command, ScrubAction};
use crate::sys::Mounted;
use serde_json::Value;
use std::time::Instant;

/// The answers of a daemon.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When they were given.
    pub at: Instant,
    /// What the store is.
    pub info: Value,
    /// All counters.
    pub stats: Value,
    /// The scrub.
    pub scrub: Value,
}

impl Sample {
    /// Asks the daemon of a mount.
    pub fn take(mount: &Mounted) -> Result<Sample, Failure> {
        let ask = |command| ask_daemon(mount, command, 1);
        let stats = ask(Command::Stats)?;
        let at = Instant::now();
        let scrub = ask(Command::Scrub { action: ScrubAction::Status, limit: None })?;
        Ok(Sample { at, info: ask(Command::Info)?, stats, scrub })
    }
}

/// The number at a path like `counters/io/bytes_read`; 0 where there is none (an older daemon).
pub fn number(value: &Value, path: &str) -> f64 {
    path.split('/').try_fold(value, |value, name| value.get(name)).and_then(Value::as_f64).unwrap_or_default()
}

/// The members of the object at a path, by name.
pub fn members<'a>(value: &'a Value, path: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    let found = path.split('/').try_fold(value, |value, name| value.get(name));
    found.and_then(Value::as_object).into_iter().flatten()
}

/// Two samples of one mount.
#[derive(Clone, Copy, Debug)]
pub struct Between<'a> {
    /// The older.
    pub before: &'a Sample,
    /// The newer.
    pub now: &'a Sample,
}

impl Between<'_> {
    /// Seconds between them.
    pub fn seconds(&self) -> f64 {
        self.now.at.saturating_duration_since(self.before.at).as_secs_f64().max(0.001)
    }

    /// How much a counter of `stats` grew in a second.
    pub fn rate(&self, path: &str) -> f64 {
        (number(&self.now.stats, path) - number(&self.before.stats, path)).max(0.0) / self.seconds()
    }

    /// The counters of a group that moved, the fastest first, with their rates.
    pub fn busiest(&self, group: &str) -> Vec<(String, f64)> {
        let rates = members(&self.now.stats, group).map(|(name, _)| (name.clone(), self.rate(&format!("{group}/{name}"))));
        let mut moved: Vec<(String, f64)> = rates.filter(|(_, rate)| *rate > 0.0).collect();
        moved.sort_by(|one, other| other.1.total_cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        moved
    }

    /// Which part of what was asked was answered at once; None: nothing was asked.
    pub fn share(&self, fast: &str, all: &str) -> Option<f64> {
        let all = self.rate(all);
        (all > 0.0).then(|| (self.rate(fast) / all).min(1.0))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    /// Two samples, two seconds apart.
    pub fn pair() -> (Sample, Sample) {
        let sample = |at, stats, scrub| Sample {
            at,
            info: json!({ "store": "/srv/store", "mountpoint": "/mnt/data", "version": "0.1.0", "pid": 7, "size_bytes": 4_u64 << 30,
                "used_bytes": 1 << 30, "devices": [{ "id": 0, "path": "device.0" }], "read_only_reason": "a flush failed" }),
            stats,
            scrub,
        };
        let begin = Instant::now();
        let before = json!({ "counters": { "operations": { "read": 0, "write": 100, "lookup": 5 },
            "requests": { "fast_reads": 0, "fast_writes": 50 }, "io": { "bytes_read": 0, "bytes_written": 0 } } });
        let after = json!({ "counters": {
            "operations": { "read": 2000, "write": 300, "lookup": 5 },
            "requests": { "fast_reads": 1500, "fast_writes": 250 },
            "refused": { "not_cached": 500, "range_locked": 0 },
            "cache": { "cache_hits": 3, "cache_misses": 1, "writebacks": 4 },
            "io": { "bytes_read": 20 << 20, "bytes_written": 6 << 20, "device_flushes": 8, "io_errors": 0 },
            "latency": { "fsync": { "count": 10, "p50_us": 900, "p99_us": 12_000, "max_us": 2_000_000 } },
            "transaction": { "commits": 6, "checkpoints": 0 } },
            "cache": { "total_bytes": 3 << 20, "dirty_bytes": 24 << 20, "dirty_bytes_max": 96 << 20 },
            "metadata": { "journal_used_bytes": 8 << 20, "journal_bytes": 32 << 20, "pending_records": 7 },
            "devices": [{ "id": 0, "read_errors": 2, "write_errors": 0, "checksum_errors": 1, "repaired_blocks": 1 }] });
        let running = json!({ "state": "running", "bytes_done": 1 << 30, "bytes_total": 4_u64 << 30, "bytes_per_second": 200 << 20,
            "seconds_left": 16, "bad_blocks": 1, "repaired_blocks": 1 });
        (sample(begin, before, json!({ "state": "never" })), sample(begin + Duration::from_secs(2), after, running))
    }

    #[test]
    fn rates_are_of_the_time_between_two_samples() {
        let (before, now) = pair();
        let between = Between { before: &before, now: &now };
        assert_eq!(between.rate("counters/operations/read"), 1000.0);
        assert_eq!(between.rate("counters/nothing/such"), 0.0);
        assert_eq!(between.busiest("counters/operations"), [("read".to_owned(), 1000.0), ("write".to_owned(), 100.0)]);
        assert_eq!(between.share("counters/requests/fast_reads", "counters/operations/read"), Some(0.75));
        assert_eq!(between.share("counters/requests/fast_reads", "counters/operations/lookup"), None);
        let backwards = Between { before: &now, now: &before };
        assert_eq!(backwards.rate("counters/operations/read"), 0.0, "a daemon that began anew");
    }
}
