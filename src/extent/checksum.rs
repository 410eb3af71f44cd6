//! crc32c of blocks, inline or on the rayon pool. A plain function over bytes; the decision where it runs is made only here.
//! Pool closures own or borrow frozen bytes, take no lock, do no I/O.

use crate::stats::Stats;
use crate::units::BLOCK;
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Where checksums run.
#[derive(Debug)]
pub struct Checksummer {
    /// Work of up to this many bytes runs on the calling thread.
    inline_max_bytes: AtomicUsize,
    pool: Option<rayon::ThreadPool>,
}

impl Checksummer {
    /// `inline_max_bytes`: larger work goes to the pool; with `usize::MAX` there is no pool.
    pub fn new(inline_max_bytes: usize) -> Checksummer {
        let pool = (inline_max_bytes != usize::MAX)
            .then(|| rayon::ThreadPoolBuilder::new().thread_name(|number| format!("checksum-{number}")).build().ok())
            .flatten();
        Checksummer { inline_max_bytes: AtomicUsize::new(inline_max_bytes), pool }
    }

    /// One checksum per block of the slices, which are whole blocks each.
    pub fn sums(&self, slices: &[&[u8]], stats: &Stats) -> Vec<u32> {
        let begin = Instant::now();
        let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        let blocks: Vec<&[u8]> = slices.iter().flat_map(|slice| slice.chunks(BLOCK)).collect();
        let sums = match &self.pool {
            Some(pool) if bytes > self.inline_max_bytes.load(Ordering::Relaxed) => {
                pool.install(|| blocks.par_iter().with_min_len(16).map(|block| crc32c::crc32c(block)).collect())
            }
            _ => blocks.iter().map(|block| crc32c::crc32c(block)).collect(),
        };
        stats.checksum_ns.fetch_add(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
        sums
    }
}
