//! The read pipeline: look the range up, read whole blocks, verify every one (D4), hand on. A block that fails its checksum is
//! an error for reads that need it, once the mapping, looked up again, still names it (D10).

use super::map::{FileExtents, Kind};
use super::{ExtentFile, Extents};
use crate::error::{Error, Result};
use crate::meta::records::ExtentRecord;
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

impl Extents {
    /// Fills `into` with the whole blocks of the file from `offset` on, verified. The caller holds the range locked, shared at
    /// least, so that the mapping cannot change under it.
    pub fn load(&self, file: &ExtentFile, offset: u64, into: &mut [u8]) -> Result<()> {
        let end = offset + into.len() as u64;
        let guard = self.space.enter_read();
        let pieces = FileExtents::lock_loaded(&file.map, &self.meta, offset, end)?.pieces(offset, end);
        for piece in pieces {
            let range = (piece.offset - offset) as usize..(piece.offset + piece.length - offset) as usize;
            let Some(target) = into.get_mut(range) else { continue };
            match &piece.data {
                None => target.fill(0),
                Some(data) => self.load_piece(file, &piece, data, target)?,
            }
        }
        drop(guard);
        Ok(())
    }

    fn load_piece(&self, file: &ExtentFile, piece: &Piece, data: &Data, target: &mut [u8]) -> Result<()> {
        let address = data.extent.plus(data.first as u64);
        self.space.read(address, target).inspect_err(|_| {
            self.stats.io_errors.fetch_add(1, Ordering::Relaxed);
        })?;
        let sums = match &data.sums {
            Some(sums) => sums.clone(),
            None => self.read_sums(file, data)?,
        };
        let blocks = target.len() / BLOCK;
        let expected = sums.get(data.first..data.first + blocks).ok_or_else(|| {
            Error::corrupt(format!("extent {} has fewer checksums than the file map of inode {} needs", data.extent, file.inode))
        })?;
        let found = self.checksummer.sums(&[target], &self.stats);
        self.stats.blocks_verified.fetch_add(blocks as u64, Ordering::Relaxed);
        for (block, (expected, found)) in expected.iter().zip(&found).enumerate() {
            if expected != found {
                return Err(self.report(file, piece, address.plus(block as u64), block, *expected, *found));
            }
        }
        if let Some(rest) = target.get_mut(data.valid as usize..) {
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

    fn report(&self, file: &ExtentFile, piece: &Piece, address: BlockAddress, block: usize, expected: u32, found: u32) -> Error {
        self.stats.checksum_errors.fetch_add(1, Ordering::Relaxed);
        let place = match self.space.place(address) {
            Ok(place) => place,
            Err(error) => return error,
        };
        Error::Integrity {
            inode: file.inode,
            offset: piece.offset + block as u64 * BLOCK_SIZE,
            device: place.device,
            address,
            device_offset: place.offset,
            expected,
            found,
        }
    }
}

/// `range` in bytes, grown to whole blocks.
pub fn whole_blocks(range: Range<u64>) -> Range<u64> {
    block_floor(range.start)..block_ceil(range.end)
}
