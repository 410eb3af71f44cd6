//! Counters of the whole daemon: what `sumfs stats` shows and what tests of the fast path look at. Every layer holds the one
//! `Arc<Stats>` of its file system (there is no global one, so two stores in one process do not mix) and adds to it with relaxed
//! atomics. Nothing here takes a lock; a reading is not a snapshot of one moment.

use crate::error::Reason;
use serde_json::{Map, Value, json};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The requests of the kernel that are counted one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs)]
pub enum Operation {
    Lookup,
    Forget,
    Getattr,
    Setattr,
    Readlink,
    Mknod,
    Mkdir,
    Unlink,
    Rmdir,
    Symlink,
    Rename,
    Link,
    Create,
    Read,
    Write,
    Fsync,
    Readdir,
    Readdirplus,
    Statfs,
    Setxattr,
    Getxattr,
    Listxattr,
    Removexattr,
    Fallocate,
    CopyFileRange,
    Other,
}

impl Operation {
    /// All of them, in the order of their numbers.
    pub const ALL: [Operation; 26] = [
        Operation::Lookup,
        Operation::Forget,
        Operation::Getattr,
        Operation::Setattr,
        Operation::Readlink,
        Operation::Mknod,
        Operation::Mkdir,
        Operation::Unlink,
        Operation::Rmdir,
        Operation::Symlink,
        Operation::Rename,
        Operation::Link,
        Operation::Create,
        Operation::Read,
        Operation::Write,
        Operation::Fsync,
        Operation::Readdir,
        Operation::Readdirplus,
        Operation::Statfs,
        Operation::Setxattr,
        Operation::Getxattr,
        Operation::Listxattr,
        Operation::Removexattr,
        Operation::Fallocate,
        Operation::CopyFileRange,
        Operation::Other,
    ];

    /// The name in `sumfs stats`.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Lookup => "lookup",
            Operation::Forget => "forget",
            Operation::Getattr => "getattr",
            Operation::Setattr => "setattr",
            Operation::Readlink => "readlink",
            Operation::Mknod => "mknod",
            Operation::Mkdir => "mkdir",
            Operation::Unlink => "unlink",
            Operation::Rmdir => "rmdir",
            Operation::Symlink => "symlink",
            Operation::Rename => "rename",
            Operation::Link => "link",
            Operation::Create => "create",
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Fsync => "fsync",
            Operation::Readdir => "readdir",
            Operation::Readdirplus => "readdirplus",
            Operation::Statfs => "statfs",
            Operation::Setxattr => "setxattr",
            Operation::Getxattr => "getxattr",
            Operation::Listxattr => "listxattr",
            Operation::Removexattr => "removexattr",
            Operation::Fallocate => "fallocate",
            Operation::CopyFileRange => "copy_file_range",
            Operation::Other => "other",
        }
    }
}

/// Declares [`Stats`] and, from the same list, its JSON: a counter cannot be forgotten in the output.
macro_rules! counters {
    ($($group:ident { $($(#[$doc:meta])* $name:ident,)* })*) => {
        /// The counters since the daemon started. Add with `fetch_add(n, Relaxed)`.
        #[derive(Debug, Default)]
        pub struct Stats {
            /// Requests, by [`Operation`] as `usize`.
            pub operations: [AtomicU64; Operation::ALL.len()],
            /// Refusals of `Wait::Never`, by [`Reason`] as `usize`.
            pub refusals: [AtomicU64; Reason::ALL.len()],
            /// From the request to the answer of fsync and fdatasync.
            pub fsync_latency: Histogram,
            /// Of one commit, from taking the role to durable.
            pub commit_latency: Histogram,
            /// Of reads that were refused at first, from the refusal to the answer.
            pub slow_read_latency: Histogram,
            /// Of writes that were refused at first, from the refusal to the answer.
            pub slow_write_latency: Histogram,
            $($($(#[$doc])* pub $name: AtomicU64,)*)*
        }

        impl Stats {
            fn groups(&self) -> Map<String, Value> {
                let mut groups = Map::new();
                $(
                    let mut group = Map::new();
                    $(group.insert(stringify!($name).to_owned(), self.$name.load(Relaxed).into());)*
                    groups.insert(stringify!($group).to_owned(), group.into());
                )*
                groups
            }
        }
    };
}

counters! {
    requests {
        /// Reads answered by the reading thread at the first try.
        fast_reads,
        /// Writes answered by the reading thread at the first try.
        fast_writes,
        /// Refused operations that the reading thread then did itself.
        slow_on_reading_thread,
        /// Refused operations handed to the worker pool.
        worker_jobs,
        /// Times a reading thread found the worker queue full.
        worker_queue_full,
        /// Panics caught in handlers and workers.
        panics,
    }
    io {
        /// Bytes read by applications (replies to READ).
        bytes_read,
        /// Bytes written by applications (accepted WRITEs).
        bytes_written,
        /// Blocks written to data devices.
        blocks_written,
        /// Extents written.
        extents_written,
        /// Writes saved because the runs of a pass lay side by side.
        merged_writes,
        /// Reads saved because the pieces of a request lay side by side.
        merged_reads,
        /// Flushes of data devices.
        device_flushes,
        /// Errors that devices reported.
        io_errors,
    }
    checksum {
        /// Blocks compared with their checksum after being read.
        blocks_verified,
        /// Blocks that did not match.
        checksum_errors,
        /// Bytes checksummed, to write or to compare, on any thread.
        checksum_bytes,
    }
    transaction {
        /// Commits made durable.
        commits,
        /// Bytes appended to the journal.
        journal_bytes,
        /// Checkpoints of the index.
        checkpoints,
        /// Records applied to the index.
        applied_records,
        /// Looks into the index: for one key, or along a range.
        index_reads,
    }
    cache {
        /// Reads found in the daemon's cache.
        cache_hits,
        /// Reads that had to load.
        cache_misses,
        /// Segments dropped to make room.
        cache_evictions,
        /// Dirty runs written back.
        writebacks,
    }
    healed {
        /// Index pages rewritten from their second copy.
        healed_index_pages,
        /// Journal records recovered from a second copy.
        healed_journal_records,
        /// Copies of data blocks written anew from another one.
        repaired_blocks,
    }
}

impl Stats {
    /// Counts one request.
    pub fn count(&self, operation: Operation) {
        self.operations[operation as usize].fetch_add(1, Relaxed);
    }

    /// Counts one refusal of `Wait::Never`.
    pub fn refused(&self, reason: Reason) {
        self.refusals[reason as usize].fetch_add(1, Relaxed);
    }

    /// All of it as nested objects of numbers.
    pub fn to_json(&self) -> Value {
        let by_name = |names: &mut dyn Iterator<Item = (&'static str, &AtomicU64)>| -> Value {
            names.map(|(name, count)| (name.to_owned(), count.load(Relaxed).into())).collect::<Map<_, _>>().into()
        };
        let mut all = self.groups();
        all.insert("operations".into(), by_name(&mut Operation::ALL.iter().map(|o| (o.name(), &self.operations[*o as usize]))));
        all.insert("refused".into(), by_name(&mut Reason::ALL.iter().map(|r| (r.name(), &self.refusals[*r as usize]))));
        all.insert(
            "latency".into(),
            json!({
                "fsync": self.fsync_latency.to_json(),
                "commit": self.commit_latency.to_json(),
                "slow_read": self.slow_read_latency.to_json(),
                "slow_write": self.slow_write_latency.to_json(),
            }),
        );
        all.into()
    }
}

/// Buckets of a [`Histogram`]: the last begins at 2^30 us (18 minutes).
const BUCKETS: usize = 32;

/// Durations in buckets of powers of two: bucket 0 holds less than 1 us, bucket n from 2^(n-1) to 2^n us.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Histogram {
    /// Adds one duration.
    pub fn record(&self, duration: Duration) {
        let microseconds = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - microseconds.leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// How many durations were added.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum()
    }

    /// The buckets but for the last, which has no bound: upper bound in microseconds, and how many.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let all = self.buckets.iter().enumerate().map(|(number, bucket)| (1 << number, bucket.load(Relaxed)));
        all.take(BUCKETS - 1)
    }

    /// All durations together.
    pub fn sum_seconds(&self) -> f64 {
        self.sum_ns.load(Relaxed) as f64 / 1e9
    }

    /// An upper bound, in microseconds, of the fastest `per_mille` of 1000 (500: the median). 0 when there are none.
    pub fn quantile_us(&self, per_mille: u64) -> u64 {
        let wanted = u128::from(self.count()) * u128::from(per_mille);
        let mut seen = 0u128;
        for (number, bucket) in self.buckets.iter().enumerate() {
            seen += u128::from(bucket.load(Relaxed)) * 1000;
            if seen > 0 && seen >= wanted {
                return 1 << number;
            }
        }
        0
    }

    /// Count, mean, and bounds of the median, the 99th percentile and the maximum.
    pub fn to_json(&self) -> Value {
        let count = self.count();
        let mean_us = self.sum_ns.load(Relaxed) / 1000 / count.max(1);
        json!({
            "count": count,
            "mean_us": mean_us,
            "p50_us": self.quantile_us(500),
            "p99_us": self.quantile_us(990),
            "max_us": self.quantile_us(1000),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_stand_in_the_order_of_their_numbers() {
        assert!(Operation::ALL.iter().enumerate().all(|(number, operation)| *operation as usize == number));
        assert!(Reason::ALL.iter().enumerate().all(|(number, reason)| *reason as usize == number));
    }

    #[test]
    fn json_has_every_counter() {
        let stats = Stats::default();
        stats.count(Operation::Rename);
        stats.refused(Reason::DirtyLimit);
        stats.healed_index_pages.fetch_add(3, Relaxed);
        stats.fsync_latency.record(Duration::from_micros(300));
        let json = stats.to_json();
        assert_eq!(json["operations"]["rename"], 1);
        assert_eq!(json["operations"].as_object().unwrap().len(), Operation::ALL.len());
        assert_eq!(json["refused"]["dirty_limit"], 1);
        assert_eq!(json["refused"].as_object().unwrap().len(), Reason::ALL.len());
        assert_eq!(json["healed"]["healed_index_pages"], 3);
        assert_eq!(json["latency"]["fsync"]["count"], 1);
        assert_eq!(json["latency"]["fsync"]["p50_us"], 512);
    }

    #[test]
    fn quantiles_are_upper_bounds() {
        let histogram = Histogram::default();
        assert_eq!(histogram.quantile_us(500), 0);
        for microseconds in 1..=1000 {
            histogram.record(Duration::from_micros(microseconds));
        }
        histogram.record(Duration::from_secs(u64::MAX / 4));
        assert_eq!(histogram.count(), 1001);
        assert_eq!(histogram.quantile_us(500), 512);
        assert_eq!(histogram.quantile_us(990), 1024);
        assert_eq!(histogram.quantile_us(1000), 1 << 31);
    }

    #[test]
    fn less_than_a_microsecond_is_the_first_bucket() {
        let histogram = Histogram::default();
        histogram.record(Duration::from_nanos(10));
        assert_eq!(histogram.quantile_us(1000), 1);
    }
}
