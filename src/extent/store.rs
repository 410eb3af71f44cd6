//! The write pipeline of one dirty run: allocate, checksum, write, enter into the map. The bytes are frozen (D9) and the space
//! is reserved (D5), so the only thing that can fail is the device; a failed write is tried elsewhere up to three times.

use super::{ExtentFile, Extents, FileExtents};
use crate::error::Result;
use crate::space::allocator::Placement;
use crate::units::{BLOCK, BLOCK_SIZE, BlockAddress, EXTENT_BYTES_MAX, block_ceil};
use std::sync::atomic::Ordering;

/// Attempts to write a run before the error stands.
const ATTEMPTS_MAX: u32 = 4;
/// Files below this size are packed one behind the other.
const PACKED_BYTES_MAX: u64 = 512 << 10;
/// Runs of so many blocks get a window wherever they are in the file.
const WINDOW_BLOCKS_MIN: u32 = 64;
/// Bytes of a window.
const WINDOW_BYTES: u64 = EXTENT_BYTES_MAX;

impl Extents {
    /// Stores `slices` (whole blocks, one behind the other, at most `EXTENT_BYTES_MAX` in all) at `offset`. Of the last block only
    /// the bytes up to `end` belong to the file. `file_size` guides the placement.
    pub fn store(&self, file: &ExtentFile, offset: u64, end: u64, slices: &[&[u8]], file_size: u64) -> Result<()> {
        let sums = self.checksummer.sums(slices, &self.stats);
        let mut done = 0;
        while done < sums.len() {
            let at = offset + done as u64 * BLOCK_SIZE;
            let (address, count) = self.place(file, at, (sums.len() - done) as u32, file_size)?;
            let upto = done + count as usize;
            let part = carve(slices, done * BLOCK, upto * BLOCK);
            let address = self.write_somewhere(address, count, &part)?;
            let length = (end - at).min(u64::from(count) * BLOCK_SIZE);
            let part_sums = sums.get(done..upto).unwrap_or_default().into();
            let dropped = {
                let mut map = FileExtents::lock_loaded(&file.map, &self.meta, at, at + block_ceil(length))?;
                map.finish(at, length, address, part_sums)
            };
            self.release(dropped)?;
            self.stats.extents_written.fetch_add(1, Ordering::Relaxed);
            self.stats.blocks_written.fetch_add(u64::from(count), Ordering::Relaxed);
            done = upto;
        }
        Ok(())
    }

    /// Space for `most` blocks at `offset`, near what the file has there.
    fn place(&self, file: &ExtentFile, offset: u64, most: u32, file_size: u64) -> Result<(BlockAddress, u32)> {
        if file_size <= PACKED_BYTES_MAX {
            return self.space.allocate(most, Placement::Packed);
        }
        let (window, within) = (offset / WINDOW_BYTES, offset % WINDOW_BYTES / BLOCK_SIZE);
        let mut last = file.window.lock();
        let is_near = last.is_none_or(|(number, _)| window.abs_diff(number) <= 1);
        let placement = match *last {
            Some((number, base)) if number == window => Placement::At(BlockAddress(base + within)),
            _ if is_near || most >= WINDOW_BLOCKS_MIN => Placement::Window { within: within as u32 },
            // Scattered small writes: a window for each would leave the store in pieces.
            _ => Placement::Packed,
        };
        // What reaches into the next window goes there on the next call.
        let most = most.min((WINDOW_BYTES / BLOCK_SIZE - within) as u32);
        let (address, count) = self.space.allocate(most, placement)?;
        if let Some(base) = address.0.checked_sub(within) {
            *last = Some((window, base));
        }
        Ok((address, count))
    }

    fn write_somewhere(&self, mut address: BlockAddress, count: u32, slices: &[&[u8]]) -> Result<BlockAddress> {
        for attempt in 1.. {
            let error = match self.space.write(address, slices) {
                Ok(()) => return Ok(address),
                Err(error) => error,
            };
            self.stats.io_errors.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("writing {count} blocks at {address}: {error} (attempt {attempt})");
            if attempt >= ATTEMPTS_MAX || !self.space.reserve(u64::from(count)) {
                return Err(error);
            }
            // The failed place stays out of use until the next mount.
            let (elsewhere, found) = self.space.allocate(count, Placement::Window { within: 0 })?;
            if found < count {
                self.space.release(u64::from(count - found));
                self.space.free(vec![(elsewhere.0, found)])?;
                return Err(error);
            }
            address = elsewhere;
        }
        Ok(address)
    }
}

/// The bytes `start..end` of the slices taken as one.
fn carve<'a>(slices: &[&'a [u8]], start: usize, end: usize) -> Vec<&'a [u8]> {
    let mut carved = Vec::new();
    let mut at = 0;
    for slice in slices {
        let (from, to) = (start.clamp(at, at + slice.len()) - at, end.clamp(at, at + slice.len()) - at);
        if let Some(part) = slice.get(from..to)
            && !part.is_empty()
        {
            carved.push(part);
        }
        at += slice.len();
    }
    carved
}
