//! Reading what is left of a damaged file: where a block has no good copy, the bytes that the device gives, marked as such. They go to
//! the caller alone; no cache sees them (D4).

use super::Filesystem;
use super::types::ReadFlags;
use crate::disk::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::extent::FileExtents;
use crate::lock::Wait;
use crate::units::{BLOCK, BLOCK_SIZE, InodeNumber, block_floor};
use std::ops::Range;

/// Bytes that one call gives at most.
pub const SALVAGE_BYTES_MAX: u64 = 1 << 20;

const QUIETLY: ReadFlags = ReadFlags { direct: true, no_atime: true };

/// A part of a file, as well as it can be had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// The bytes, up to the end of the file.
    pub bytes: Vec<u8>,
    /// Byte ranges of the file of which no copy matches its checksum: they are as the device gives them.
    pub unverified: Vec<Range<u64>>,
    /// Byte ranges that no device gives: zeros.
    pub unreadable: Vec<Range<u64>>,
    /// Bytes of the whole file.
    pub size: u64,
}

impl Filesystem {
    /// Reads `length` bytes at `offset`, and what does not match its checksum too.
    pub fn salvage(&self, inode: InodeNumber, offset: u64, length: u64) -> Result<Salvaged> {
        let size = self.inode(inode)?.regular()?.size();
        let end = offset.saturating_add(length.min(SALVAGE_BYTES_MAX)).min(size);
        let mut salvaged = Salvaged { size, ..Salvaged::default() };
        if offset >= end {
            return Ok(salvaged);
        }
        if let Ok(data) = self.read(inode, offset, (end - offset) as usize, QUIETLY, Wait::Allowed) {
            salvaged.bytes = data.as_slice().to_vec();
            return Ok(salvaged);
        }
        let mut at = offset;
        while at < end {
            let upto = end.min(block_floor(at) + BLOCK_SIZE);
            self.salvage_block(inode, at..upto, &mut salvaged)?;
            at = upto;
        }
        Ok(salvaged)
    }

    /// `range` lies in one block.
    fn salvage_block(&self, inode: InodeNumber, range: Range<u64>, salvaged: &mut Salvaged) -> Result<()> {
        let count = (range.end - range.start) as usize;
        match self.read(inode, range.start, count, QUIETLY, Wait::Allowed) {
            Ok(data) if data.as_slice().len() == count => {
                salvaged.bytes.extend_from_slice(data.as_slice());
                return Ok(());
            }
            // Cut off meanwhile.
            Ok(_) => return Err(Error::Stale),
            Err(Error::Integrity { .. } | Error::Io { .. } | Error::SetAside { .. } | Error::Corrupt(_)) => {}
            Err(error) => return Err(error),
        }
        let begin = block_floor(range.start);
        let within = (range.start - begin) as usize;
        let raw = self.raw_block(inode, begin)?;
        let (list, bytes) = match &raw {
            Some(raw) => (&mut salvaged.unverified, raw.get(within..within + count)),
            None => (&mut salvaged.unreadable, None),
        };
        match list.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => list.push(range),
        }
        match bytes {
            Some(bytes) => salvaged.bytes.extend_from_slice(bytes),
            None => salvaged.bytes.resize(salvaged.bytes.len() + count, 0),
        }
        Ok(())
    }

    /// The block at `offset` as the first device that answers gives it; None when none does.
    fn raw_block(&self, inode: InodeNumber, offset: u64) -> Result<Option<AlignedBuffer>> {
        let inode = self.inode(inode)?;
        let file = inode.regular()?;
        let _range = inode.ranges.lock(offset..offset + BLOCK_SIZE, true);
        let _guard = self.space.enter_read();
        let pieces = FileExtents::lock_loaded(&file.extents.map, &self.meta, offset, offset + BLOCK_SIZE)?
            .pieces(offset, offset + BLOCK_SIZE);
        let Some(data) = pieces.into_iter().next().and_then(|piece| piece.data) else {
            return Ok(Some(AlignedBuffer::zeroed(BLOCK)));
        };
        if data.is_lost() {
            return Ok(None);
        }
        let mut copies = 0..self.space.places(data.block())?.len();
        let mut found = copies.find_map(|copy| self.space.read_block(data.block(), copy).ok());
        if let Some(rest) = found.as_mut().and_then(|buffer| buffer.get_mut(data.valid as usize..)) {
            rest.fill(0);
        }
        Ok(found)
    }
}
