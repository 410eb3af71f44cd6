//! A disk in memory, for tests and examples. Sparse: blocks never written cost nothing. Its contents can be taken out and
//! copied cheaply (copies share blocks until one of them writes), which is also what the simulated disk of the tests is made of.
//!
//! Locks: one reader-writer lock per disk, leaf, held for the copy only.

use super::Disk;
use crate::error::{Error, Result};
use crate::units::{BLOCK, BLOCK_SIZE};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

/// A block's bytes, shared between copies.
pub type BlockBytes = Arc<[u8; BLOCK]>;

/// The contents of a disk: a length, and the blocks that are not all zeros (a missing one is zeros).
#[derive(Clone, Debug, Default)]
pub struct MemoryImage {
    len: u64,
    blocks: HashMap<u64, BlockBytes>,
}

impl MemoryImage {
    /// `len` bytes of zeros.
    pub fn new(len: u64) -> MemoryImage {
        MemoryImage { len, blocks: HashMap::new() }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Has no byte?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Is `offset..offset + count` within the length?
    pub fn contains(&self, offset: u64, count: u64) -> bool {
        offset.checked_add(count).is_some_and(|end| end <= self.len)
    }

    /// Block number `index` (byte offset / 4096); None is zeros.
    pub fn block(&self, index: u64) -> Option<&BlockBytes> {
        self.blocks.get(&index)
    }

    /// Puts a whole block, or zeros.
    pub fn set_block(&mut self, index: u64, block: Option<BlockBytes>) {
        match block {
            Some(block) => self.blocks.insert(index, block),
            None => self.blocks.remove(&index),
        };
    }

    /// The numbers of the blocks that are present, in no order.
    pub fn block_indexes(&self) -> impl Iterator<Item = u64> {
        self.blocks.keys().copied()
    }

    /// Fills `into` from `offset`; what lies behind the length reads as zeros.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        for (index, within, range) in pieces(offset, into.len()) {
            let Some(into) = into.get_mut(range) else { continue };
            match self.blocks.get(&index).and_then(|block| block.get(within..within + into.len())) {
                Some(bytes) => into.copy_from_slice(bytes),
                None => into.fill(0),
            }
        }
    }

    /// Writes `from` at `offset`; the length does not change.
    pub fn write(&mut self, offset: u64, from: &[u8]) {
        for (index, within, range) in pieces(offset, from.len()) {
            let Some(from) = from.get(range) else { continue };
            let block = Arc::make_mut(self.blocks.entry(index).or_insert_with(|| Arc::new([0; BLOCK])));
            if let Some(into) = block.get_mut(within..within + from.len()) {
                into.copy_from_slice(from);
            }
        }
    }

    /// Changes the length; what is cut off is zeros if the disk grows again.
    pub fn set_len(&mut self, len: u64) {
        if len < self.len {
            let (last, within) = (len / BLOCK_SIZE, (len % BLOCK_SIZE) as usize);
            self.blocks.retain(|index, _| *index < last || *index == last && within > 0);
            if let Some(tail) = self.blocks.get_mut(&last).map(Arc::make_mut).and_then(|block| block.get_mut(within..)) {
                tail.fill(0);
            }
        }
        self.len = len;
    }
}

/// The range cut at block borders: block number, offset within it, and the part of the buffer.
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

/// A [`Disk`] in memory. Every write is as good as flushed.
#[derive(Debug)]
pub struct MemoryDisk {
    name: String,
    image: RwLock<MemoryImage>,
}

impl MemoryDisk {
    /// A disk of `len` zero bytes.
    pub fn new(name: impl Into<String>, len: u64) -> MemoryDisk {
        MemoryDisk::from_image(name, MemoryImage::new(len))
    }

    /// A disk with these contents.
    pub fn from_image(name: impl Into<String>, image: MemoryImage) -> MemoryDisk {
        MemoryDisk { name: name.into(), image: RwLock::new(image) }
    }

    /// A copy of the contents.
    pub fn image(&self) -> MemoryImage {
        self.image.read().clone()
    }

    fn past_end(&self, doing: &str, offset: u64, len: usize, end: u64) -> Error {
        let what = format!("{doing} {len} bytes at offset {offset} of {}, which ends at {end}", self.name);
        Error::io(what, std::io::ErrorKind::UnexpectedEof.into())
    }
}

impl Disk for MemoryDisk {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> Result<u64> {
        Ok(self.image.read().len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let image = self.image.read();
        if !image.contains(offset, into.len() as u64) {
            return Err(self.past_end("reading", offset, into.len(), image.len()));
        }
        image.read(offset, into);
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        let mut image = self.image.write();
        if !image.contains(offset, from.len() as u64) {
            return Err(self.past_end("writing", offset, from.len(), image.len()));
        }
        image.write(offset, from);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.image.write().set_len(len);
        Ok(())
    }

    fn allocate(&self, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let mut image = self.image.write();
        for index in offset.div_ceil(BLOCK_SIZE)..offset.saturating_add(len) / BLOCK_SIZE {
            image.set_block(index, None);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_was_written_and_zeros_elsewhere() {
        let disk = MemoryDisk::new("memory", 20_000);
        let data: Vec<u8> = (0..9000).map(|at| (at % 251) as u8).collect();
        disk.write_at(3000, &data).unwrap();
        let mut found = vec![1; 20_000];
        disk.read_at(0, &mut found).unwrap();
        assert!(found[..3000].iter().all(|byte| *byte == 0));
        assert!(found[3000..12_000] == data[..]);
        assert!(found[12_000..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn past_the_end_is_an_error() {
        let disk = MemoryDisk::new("memory", 100);
        assert!(disk.read_at(99, &mut [0; 2]).unwrap_err().to_string().contains("offset 99 of memory"));
        assert!(disk.write_at(u64::MAX, &[0; 2]).is_err());
        disk.read_at(100, &mut []).unwrap();
    }

    #[test]
    fn what_was_cut_off_is_zeros_when_it_grows_again() {
        let disk = MemoryDisk::new("memory", 12_288);
        disk.write_at(0, &[7; 12_288]).unwrap();
        disk.set_len(5000).unwrap();
        disk.set_len(12_288).unwrap();
        let mut found = vec![1; 12_288];
        disk.read_at(0, &mut found).unwrap();
        assert!(found[..5000].iter().all(|byte| *byte == 7) && found[5000..].iter().all(|byte| *byte == 0));
        disk.set_len(4096).unwrap();
        assert_eq!(disk.image().block_indexes().count(), 1);
    }

    #[test]
    fn copies_do_not_see_each_other() {
        let disk = MemoryDisk::new("memory", 4096);
        disk.write_at(0, b"one").unwrap();
        let copy = MemoryDisk::from_image("copy", disk.image());
        disk.write_at(0, b"two").unwrap();
        let mut found = [0; 3];
        copy.read_at(0, &mut found).unwrap();
        assert_eq!(&found, b"one");
    }
}
