//! Extents in more than one place: what a part of a map refers to, and a map that refers to it as well.
//!
//! Each use of a block is one reference; a new one goes into the same batch as the map record that makes it (D2), and the commit folds
//! both into counts. Only recorded data can be shared: what is fresh has no extent yet, and may still become a part of a larger one.

use super::map::{Entry, FileExtents, Kind, Written};
use crate::error::{Error, Result};
use crate::meta::Delta;
use crate::units::{BLOCK_SIZE, blocks_for};

/// Data of a range, as a map refers to it.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Bytes from the start of the range; whole blocks.
    at: u64,
    /// Bytes; what the last block holds behind them reads as zeros (D6).
    length: u64,
    written: Written,
}

impl FileExtents {
    /// The data of `start..end`, cut to it: `start` is a whole block, `end` any byte. The range must be loaded and collected; holes and
    /// what is preallocated are left out.
    pub fn shared(&self, start: u64, end: u64) -> Result<Vec<Shared>> {
        let mut parts = Vec::new();
        for (offset, entry) in self.overlapping(start, end) {
            let (from, to) = (offset.max(start), (offset + entry.length).min(end));
            let Kind::Written(written) = &entry.kind else { continue };
            if from >= to {
                continue;
            }
            if written.is_fresh {
                return Err(Error::corrupt(format!("data of inode {} was to be shared before it was recorded", self.inode())));
            }
            let mut written = written.clone();
            written.first += ((from - offset) / BLOCK_SIZE) as u16;
            parts.push(Shared { at: from - start, length: to - from, written });
        }
        Ok(parts)
    }

    /// Refers to `parts` from `start` on; what is there must have been removed.
    pub fn share(&mut self, start: u64, parts: Vec<Shared>) {
        for Shared { at, length, written } in parts {
            let blocks = blocks_for(length);
            self.deltas.extend((!written.is_lost()).then_some(Delta {
                extent: written.extent,
                extent_blocks: written.extent_blocks,
                first: written.first,
                count: blocks as u16,
                change: 1,
            }));
            self.blocks += blocks;
            self.touched.insert(start + at);
            self.entries.insert(start + at, Entry { length, kind: Kind::Written(written) });
        }
    }
}
