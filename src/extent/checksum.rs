//! crc32c of blocks, inline or on the rayon pool. A plain function over bytes; the decision where it runs is made only here.
//! Pool closures own or borrow frozen bytes, take no lock, do no I/O.

use crate::stats::Stats;
use crate::units::BLOCK;
use rayon::prelude::*;
use std::sync::atomic::Ordering;

/// Blocks that a task of the pool takes at least.
const BLOCKS_A_TASK: usize = 16;

/// Where checksums run.
#[derive(Debug)]
pub struct Checksummer {
    /// Work of up to this many bytes runs on the calling thread.
    inline_max_bytes: usize,
    pool: Option<rayon::ThreadPool>,
}

/// A block that is not what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Which, counted from the begin.
    pub block: usize,
    /// Its checksum when it was written.
    pub expected: u32,
    /// Its checksum now.
    pub found: u32,
}

impl Checksummer {
    /// `inline_max_bytes`: larger work goes to the pool; with `usize::MAX` there is no pool.
    pub fn new(inline_max_bytes: usize) -> Checksummer {
        let pool = (inline_max_bytes != usize::MAX)
            .then(|| rayon::ThreadPoolBuilder::new().thread_name(|number| format!("checksum-{number}")).build().ok())
            .flatten();
        Checksummer { inline_max_bytes, pool }
    }

    /// One checksum per block of the slices, which are whole blocks each.
    pub fn sums(&self, slices: &[&[u8]], stats: &Stats) -> Vec<u32> {
        let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        let sums = match self.pool_for(bytes) {
            Some(pool) => {
                let blocks: Vec<&[u8]> = slices.iter().flat_map(|slice| slice.chunks(BLOCK)).collect();
                pool.install(|| blocks.par_iter().with_min_len(BLOCKS_A_TASK).map(|block| crc32c::crc32c(block)).collect())
            }
            None => slices.iter().flat_map(|slice| slice.chunks(BLOCK)).map(crc32c::crc32c).collect(),
        };
        stats.checksum_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        sums
    }

    /// The first block of `bytes` that does not have the checksum expected of it.
    pub fn first_mismatch(&self, bytes: &[u8], expected: &[u32], stats: &Stats) -> Option<Mismatch> {
        let compare = |(block, (bytes, expected)): (usize, (&[u8], &u32))| {
            let found = crc32c::crc32c(bytes);
            (found != *expected).then_some(Mismatch { block, expected: *expected, found })
        };
        let mismatch = match self.pool_for(bytes.len()) {
            Some(pool) => pool.install(|| {
                let blocks = bytes.par_chunks(BLOCK).with_min_len(BLOCKS_A_TASK);
                blocks.zip(expected).enumerate().find_map_first(compare)
            }),
            None => bytes.chunks(BLOCK).zip(expected).enumerate().find_map(compare),
        };
        stats.checksum_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        mismatch
    }

    fn pool_for(&self, bytes: usize) -> Option<&rayon::ThreadPool> {
        self.pool.as_ref().filter(|_| bytes > self.inline_max_bytes)
    }
}
