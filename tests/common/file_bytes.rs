//! The contents of a file in the reference model: sparse, in blocks that are shared between copies. Blocks that are all zeros are not
//! stored, so that holes, zeroed and never written ranges are equal.

use std::collections::BTreeMap;
use std::sync::Arc;
use sumfs::units::{BLOCK, BLOCK_SIZE};

/// The contents of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileBytes {
    size: u64,
    blocks: BTreeMap<u64, Arc<[u8; BLOCK]>>,
}

impl FileBytes {
    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The block, unless it is all zeros. Bytes behind the end of the file are zeros.
    pub fn block(&self, index: u64) -> Option<&Arc<[u8; BLOCK]>> {
        self.blocks.get(&index)
    }

    /// Numbers of the blocks that are not all zeros.
    pub fn block_indexes(&self) -> impl Iterator<Item = u64> + '_ {
        self.blocks.keys().copied()
    }

    /// What a read gives: short at the end of the file.
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let len = (len as u64).min(self.size.saturating_sub(offset)) as usize;
        let mut bytes = vec![0; len];
        for (index, within, range) in pieces(offset, len) {
            if let Some(block) = self.blocks.get(&index) {
                bytes[range.clone()].copy_from_slice(&block[within..within + range.len()]);
            }
        }
        bytes
    }

    /// Writes, making the file longer if need be.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.size = self.size.max(if data.is_empty() { 0 } else { offset + data.len() as u64 });
        for (index, within, range) in pieces(offset, data.len()) {
            self.change(index, |block| block[within..within + range.len()].copy_from_slice(&data[range.clone()]));
        }
    }

    /// Makes `offset..end` zeros; the size stays.
    pub fn zero(&mut self, offset: u64, end: u64) {
        let end = end.min(self.size.next_multiple_of(BLOCK_SIZE));
        let (first, last) = (offset / BLOCK_SIZE, end.div_ceil(BLOCK_SIZE));
        if first >= last {
            return;
        }
        let touched: Vec<u64> = self.blocks.range(first..last).map(|(index, _)| *index).collect();
        for index in touched {
            let from = offset.saturating_sub(index * BLOCK_SIZE).min(BLOCK_SIZE) as usize;
            let to = end.saturating_sub(index * BLOCK_SIZE).min(BLOCK_SIZE) as usize;
            if from < to {
                self.change(index, |block| block[from..to].fill(0));
            }
        }
    }

    /// Truncates or extends.
    pub fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size);
        }
        self.size = size;
    }

    fn change(&mut self, index: u64, change: impl FnOnce(&mut [u8; BLOCK])) {
        let block = Arc::make_mut(self.blocks.entry(index).or_insert_with(|| Arc::new([0; BLOCK])));
        change(block);
        if block.iter().all(|byte| *byte == 0) {
            self.blocks.remove(&index);
        }
    }
}

/// A byte range cut at block borders: block number, offset in it, part of the buffer.
pub fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % BLOCK_SIZE) as usize;
        let begin = done;
        done = len.min(begin + BLOCK - within);
        Some((at / BLOCK_SIZE, within, begin..done))
    })
}
