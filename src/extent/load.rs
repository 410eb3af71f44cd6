//! The read pipeline: look the range up, read whole blocks, verify every one (D4), hand on. A block that fails its checksum is
//! taken from another copy (`rescue.rs`); without a good one it is an error for reads that need it.
//!
//! What a request needs is read in the order of the device, neighbours in one call, and verified batch by batch in that order, while
//! it is still in the core's cache (as btrfs finishes the pages of a read in the order they were submitted).

use super::map::{FileExtents, Kind};
use super::{ExtentFile, Extents};
use crate::error::{Error, Result};
use crate::meta::records::{ExtentRecord, LOST};
use crate::meta::schema;
use crate::units::{BLOCK, BLOCK_SIZE, BlockAddress, block_ceil, block_floor};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What part of a range is, cut to the range.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Byte offset in the file, a whole block.
    pub offset: u64,
    /// Whole blocks, in bytes.
    pub length: u64,
    /// None: zeros.
    pub data: Option<Data>,
}

/// Where a piece's bytes are.
#[derive(Clone, Debug)]
pub struct Data {
    /// The extent.
    pub extent: BlockAddress,
    /// First block of the piece, counted in the extent.
    pub first: usize,
    /// Bytes that count; the rest reads as zeros.
    pub valid: u64,
    /// The entry's key in the map.
    pub entry: u64,
    sums: Option<Arc<[u32]>>,
}

impl Data {
    /// Found lost by a repair: there are no bytes.
    pub fn is_lost(&self) -> bool {
        self.extent == LOST
    }

    /// The first block of the piece.
    pub fn block(&self) -> BlockAddress {
        self.extent.plus(self.first as u64)
    }
}

impl FileExtents {
    /// The pieces of the whole blocks `start..end`, in order and without gaps. The range must be loaded.
    pub fn pieces(&self, start: u64, end: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = start;
        for (offset, entry) in self.overlapping(start, end) {
            if offset > at {
                pieces.push(Piece { offset: at, length: offset.min(end) - at, data: None });
                at = offset;
            }
            let upto = (offset + block_ceil(entry.length)).min(end);
            if upto <= at {
                continue;
            }
            let data = match &entry.kind {
                Kind::Unwritten { .. } => None,
                Kind::Written(written) => Some(Data {
                    extent: written.extent,
                    first: usize::from(written.first) + ((at - offset) / BLOCK_SIZE) as usize,
                    valid: (offset + entry.length).min(upto) - at,
                    entry: offset,
                    sums: written.sums.clone(),
                }),
            };
            pieces.push(Piece { offset: at, length: upto - at, data });
            at = upto;
        }
        if at < end {
            pieces.push(Piece { offset: at, length: end - at, data: None });
        }
        pieces
    }
}

/// Bytes that are read and verified together: they stay in a core's cache between the two.
const WARM_BYTES: usize = 256 << 10;

/// In which order what a large request read is verified, and large requests of one stream are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadOrder {
    /// As submitted: each part is verified while it is warm.
    #[default]
    Submitted,
    /// All is read, then verified from the end; the newest request goes first. Only to measure what the order is worth.
    Reversed,
}

/// A part of a request with its place on the device and in the reply.
pub(super) struct Part<'a> {
    pub(super) address: BlockAddress,
    /// Byte offset in the file.
    pub(super) offset: u64,
    /// Checksums expected, one a block.
    sums: Arc<[u32]>,
    /// First of them.
    first: usize,
    /// Bytes that count; the rest becomes zeros.
    valid: u64,
    pub(super) target: &'a mut [u8],
}

impl Part<'_> {
    /// The checksums of its blocks.
    pub(super) fn expected(&self, file: &ExtentFile) -> Result<&[u32]> {
        self.sums.get(self.first..self.first + self.target.len() / BLOCK).ok_or_else(|| {
            Error::corrupt(format!("an extent has fewer checksums than the file map of inode {} needs", file.inode))
        })
    }
}

impl Extents {
    /// Fills `into` with the whole blocks of the file from `offset` on, verified. The caller holds the range locked, shared at
    /// least, so that the mapping cannot change under it.
    pub fn load(&self, file: &ExtentFile, offset: u64, into: &mut [u8]) -> Result<()> {
        let end = offset + into.len() as u64;
        let guard = self.space.enter_read();
        let pieces = FileExtents::lock_loaded(&file.map, &self.meta, offset, end)?.pieces(offset, end);
        let mut parts = Vec::with_capacity(pieces.len());
        let mut rest = into;
        for piece in pieces {
            let (target, behind) = std::mem::take(&mut rest).split_at_mut_checked(piece.length as usize).unwrap_or_default();
            rest = behind;
            match &piece.data {
                None => target.fill(0),
                Some(data) => self.cut(file, piece.offset, data, target, &mut parts)?,
            }
        }
        self.load_parts(file, &mut parts)?;
        drop(guard);
        Ok(())
    }

    /// Cuts a piece into parts that stay warm.
    fn cut<'a>(
        &self,
        file: &ExtentFile,
        mut offset: u64,
        data: &Data,
        target: &'a mut [u8],
        parts: &mut Vec<Part<'a>>,
    ) -> Result<()> {
        if data.is_lost() {
            return Err(Error::corrupt(format!("the data of inode {} at byte {offset} was lost before a repair", file.inode)));
        }
        let sums = match &data.sums {
            Some(sums) => sums.clone(),
            None => self.read_sums(file, data)?,
        };
        let (mut first, mut valid) = (data.first, data.valid);
        for target in target.chunks_mut(WARM_BYTES) {
            let (bytes, blocks) = (target.len() as u64, target.len() / BLOCK);
            let address = data.extent.plus(first as u64);
            parts.push(Part { address, offset, sums: sums.clone(), first, valid: valid.min(bytes), target });
            offset += bytes;
            first += blocks;
            valid = valid.saturating_sub(bytes);
        }
        Ok(())
    }

    /// Reads the parts in the order of the device, neighbours in one call, and verifies each batch before the next is read.
    fn load_parts(&self, file: &ExtentFile, parts: &mut [Part<'_>]) -> Result<()> {
        if !parts.is_sorted_by_key(|part| part.address) {
            parts.sort_unstable_by_key(|part| part.address);
        }
        let is_reversed = self.read_order == ReadOrder::Reversed;
        let mut begin = 0;
        while begin < parts.len() {
            let count = self.batch(parts.get(begin..).unwrap_or_default());
            let batch = parts.get_mut(begin..begin + count).unwrap_or_default();
            if self.read_batch(batch).is_err() {
                self.stats.io_errors.fetch_add(1, Ordering::Relaxed);
                // Perhaps one block of many; or another copy has what this one does not give.
                batch.iter_mut().try_for_each(|part| self.rescue(file, part, false))?;
            }
            if !is_reversed {
                batch.iter_mut().try_for_each(|part| self.verify(file, part))?;
            }
            begin += count;
        }
        if is_reversed {
            parts.iter_mut().rev().try_for_each(|part| self.verify(file, part))?;
        }
        Ok(())
    }

    /// How many of the first parts are read in one call: neighbours in a group that stay warm together.
    fn batch(&self, parts: &[Part<'_>]) -> usize {
        let mut bytes = parts.first().map_or(0, |part| part.target.len());
        let pairs = parts.windows(2).take_while(|pair| {
            let [one, next] = pair else { return false };
            bytes += next.target.len();
            self.space.are_neighbours(one.address, (one.target.len() / BLOCK) as u64, next.address) && bytes <= WARM_BYTES
        });
        1 + pairs.count()
    }

    fn read_batch(&self, batch: &mut [Part<'_>]) -> Result<()> {
        let Some(address) = batch.first().map(|part| part.address) else { return Ok(()) };
        match batch {
            [one] => self.space.read(address, &mut [&mut *one.target]),
            many => {
                self.stats.merged_reads.fetch_add(many.len() as u64 - 1, Ordering::Relaxed);
                let mut targets: Vec<&mut [u8]> = many.iter_mut().map(|part| &mut *part.target).collect();
                self.space.read(address, &mut targets)
            }
        }
    }

    fn verify(&self, file: &ExtentFile, part: &mut Part<'_>) -> Result<()> {
        let found = self.checksummer.first_mismatch(part.target, part.expected(file)?, &self.stats);
        self.stats.blocks_verified.fetch_add((part.target.len() / BLOCK) as u64, Ordering::Relaxed);
        if found.is_some() {
            self.rescue(file, part, true)?;
        }
        if let Some(rest) = part.target.get_mut(part.valid as usize..) {
            rest.fill(0);
        }
        Ok(())
    }

    /// The checksums of an extent, from its record.
    fn read_sums(&self, file: &ExtentFile, data: &Data) -> Result<Arc<[u32]>> {
        let record = self.meta.get(&schema::extent(data.extent))?;
        let record = record.ok_or_else(|| {
            Error::corrupt(format!("the file map of inode {} names extent {}, which has no record", file.inode, data.extent))
        })?;
        let sums: Arc<[u32]> = ExtentRecord::decode(&record)?.sums.into();
        file.map.lock().remember_sums(data.entry, data.extent, &sums);
        Ok(sums)
    }
}

/// `range` in bytes, grown to whole blocks.
pub fn whole_blocks(range: Range<u64>) -> Range<u64> {
    block_floor(range.start)..block_ceil(range.end)
}
