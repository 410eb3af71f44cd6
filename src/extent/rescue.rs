//! What a read does about blocks that could not be read or do not match: read each of its copies once more, alone; hand on the first
//! one that matches (D4); write the bad ones anew from it (D10); and where none matches say which block is lost.
//!
//! The caller of a load holds an epoch guard and the range, so the mapping that led here cannot change and the blocks cannot be
//! given to anyone else; it is looked up again all the same before a byte is written.

use super::load::Part;
use super::{ExtentFile, Extents, FileExtents};
use crate::disk::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::units::{BLOCK, BLOCK_SIZE, BlockAddress};
use std::sync::atomic::Ordering;

/// A block of a file whose bytes are missing.
struct Missing {
    /// Byte offset in the file.
    offset: u64,
    address: BlockAddress,
    expected: u32,
}

/// Why a copy is no good.
enum Bad {
    Differs(u32),
    Unreadable(Error),
}

impl Bad {
    fn is_absent(&self) -> bool {
        matches!(self, Bad::Unreadable(Error::SetAside { .. }))
    }
}

impl Extents {
    /// Makes all blocks of the part what they should be. `is_read` says whether its bytes came from a device at all.
    pub(super) fn rescue(&self, file: &ExtentFile, part: &mut Part<'_>, is_read: bool) -> Result<()> {
        let sums = part.expected(file)?.to_vec();
        for (number, (target, expected)) in part.target.chunks_exact_mut(BLOCK).zip(sums).enumerate() {
            if is_read && crc32c::crc32c(target) == expected {
                continue;
            }
            let offset = part.offset + number as u64 * BLOCK_SIZE;
            let good = self.rescue_block(file, &Missing { offset, address: part.address.plus(number as u64), expected })?;
            target.copy_from_slice(&good);
        }
        Ok(())
    }

    fn rescue_block(&self, file: &ExtentFile, missing: &Missing) -> Result<AlignedBuffer> {
        let mut bad = Vec::new();
        for copy in 0..self.space.places(missing.address)?.len() {
            match self.space.read_block(missing.address, copy) {
                Err(error) => bad.push((copy, Bad::Unreadable(error))),
                Ok(buffer) => match crc32c::crc32c(&buffer) {
                    found if found != missing.expected => bad.push((copy, Bad::Differs(found))),
                    _ => {
                        self.count(missing, &bad);
                        self.mend(file, missing, &bad, &buffer);
                        return Ok(buffer);
                    }
                },
            }
        }
        self.count(missing, &bad);
        Err(self.lost(file, missing, bad))
    }

    fn count(&self, missing: &Missing, bad: &[(usize, Bad)]) {
        // A device that is not there does nothing wrong.
        for (copy, fault) in bad.iter().filter(|(_, fault)| !fault.is_absent()) {
            self.space.count_bad_copy(&self.stats, missing.address, *copy, matches!(fault, Bad::Unreadable(_)));
        }
    }

    /// Writes the bad copies anew, if the file still has this block there (D10). That it fails is no error of the read.
    fn mend(&self, file: &ExtentFile, missing: &Missing, bad: &[(usize, Bad)], good: &[u8]) {
        if bad.is_empty() || self.meta.latch().check().is_err() || !self.still_names(file, missing) {
            return;
        }
        let (inode, offset, address) = (file.inode, missing.offset, missing.address);
        for (copy, _) in bad.iter().filter(|(_, fault)| !fault.is_absent()) {
            match self.space.mend(address, *copy, good) {
                Ok(()) => {
                    self.stats.repaired_blocks.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(
                        "copy {copy} of block {address} (inode {inode}, offset {offset}) was bad; repaired from another"
                    );
                }
                Err(error) => {
                    tracing::warn!("repairing copy {copy} of block {address} (inode {inode}, offset {offset}): {error}")
                }
            }
        }
    }

    fn still_names(&self, file: &ExtentFile, missing: &Missing) -> bool {
        let (begin, end) = (missing.offset, missing.offset + BLOCK_SIZE);
        let Ok(map) = FileExtents::lock_loaded(&file.map, &self.meta, begin, end) else { return false };
        let pieces = map.pieces(begin, end);
        pieces.first().and_then(|piece| piece.data.as_ref()).is_some_and(|data| data.block() == missing.address)
    }

    /// The error for a block without a good copy.
    fn lost(&self, file: &ExtentFile, missing: &Missing, bad: Vec<(usize, Bad)>) -> Error {
        // A wrong checksum says more than a device that does not answer.
        let differing = bad.iter().find_map(|(copy, fault)| match fault {
            Bad::Differs(found) => Some((*copy, *found)),
            Bad::Unreadable(_) => None,
        });
        let places = match self.space.places(missing.address) {
            Ok(places) => places,
            Err(error) => return error,
        };
        match differing.and_then(|(copy, found)| Some((places.get(copy)?, found))) {
            Some((place, found)) => Error::Integrity {
                inode: file.inode,
                offset: missing.offset,
                device: place.device,
                address: missing.address,
                device_offset: place.offset,
                expected: missing.expected,
                found,
            },
            None => bad
                .into_iter()
                .find_map(|(_, fault)| match fault {
                    Bad::Unreadable(error) => Some(error),
                    Bad::Differs(_) => None,
                })
                .unwrap_or_else(|| Error::corrupt(format!("block {} lies nowhere", missing.address))),
        }
    }
}
