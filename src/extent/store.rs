//! The write pipeline of dirty runs: checksum, allocate, write, enter into the map. The bytes are frozen (D9) and the space is
//! reserved (D5), so the only thing that can fail is the device; a failed write is tried elsewhere up to three times.
//!
//! Runs come several at a time, as a pass gathered them: what the allocator placed side by side goes out in one vectored write
//! (the plug of md-raid5 and the block layer, one level higher).

use super::{ExtentFile, Extents, FileExtents};
use crate::error::Result;
use crate::space::allocator::Placement;
use crate::units::{BLOCK, BLOCK_SIZE, BlockAddress, block_ceil};
use std::sync::atomic::Ordering;

/// Attempts to write a run before the error stands.
const ATTEMPTS_MAX: u32 = 4;
/// So many runs in one pass are scattered: small ones among them are packed, to leave in one write.
const SCATTERED_RUNS_MIN: usize = 8;
/// Runs of fewer blocks are small.
const SMALL_RUN_BLOCKS_MAX: u32 = 64;

/// A dirty run on its way to the device. Its bytes are frozen.
#[derive(Debug)]
pub struct DirtyRun<'a> {
    /// The file.
    pub file: &'a ExtentFile,
    /// Where in the file, a whole block.
    pub offset: u64,
    /// Of the last block only the bytes up to here belong to the file.
    pub end: u64,
    /// Whole blocks, one behind the other, at most `EXTENT_BYTES_MAX` in all.
    pub slices: Vec<&'a [u8]>,
    /// Guides the placement.
    pub file_size: u64,
}

/// A part of a run that has its place.
struct Placed<'a> {
    run: usize,
    /// First block, counted in the run.
    first: usize,
    count: u32,
    address: BlockAddress,
    slices: Vec<&'a [u8]>,
}

impl Extents {
    /// Stores runs, of one file or of many, that were gathered under a plug: all are placed first, then written in the order of
    /// the device, neighbours in one call, then entered into their maps in the order given. One result for each run; one that
    /// fails does not hold up the others.
    pub fn store(&self, runs: &[DirtyRun<'_>]) -> Vec<Result<()>> {
        let sums: Vec<Vec<u32>> = runs.iter().map(|run| self.checksummer.sums(&run.slices, &self.stats)).collect();
        let mut results: Vec<Result<()>> = runs.iter().map(|_| Ok(())).collect();
        let mut placed = Vec::with_capacity(runs.len());
        let are_scattered = runs.len() >= SCATTERED_RUNS_MIN;
        for (number, run) in runs.iter().enumerate() {
            let outcome = self.place_run(number, run, are_scattered, &mut placed);
            if let (Err(error), Some(result)) = (outcome, results.get_mut(number)) {
                *result = Err(error);
            }
        }
        placed.sort_unstable_by_key(|part: &Placed<'_>| part.address);
        for neighbours in placed.chunk_by_mut(|one, next| self.are_neighbours(one, next)) {
            self.write_neighbours(neighbours, &mut results);
        }
        placed.sort_unstable_by_key(|part| (part.run, part.first));
        for part in &placed {
            if let (Some(run), Some(sums), Some(result)) = (runs.get(part.run), sums.get(part.run), results.get_mut(part.run))
                && result.is_ok()
            {
                *result = self.enter(run, part, sums);
            }
        }
        results
    }

    fn place_run<'a>(&self, number: usize, run: &DirtyRun<'a>, are_scattered: bool, placed: &mut Vec<Placed<'a>>) -> Result<()> {
        let blocks = run.slices.iter().map(|slice| slice.len()).sum::<usize>() / BLOCK;
        let mut first = 0;
        while first < blocks {
            let at = run.offset + first as u64 * BLOCK_SIZE;
            let most = (blocks - first) as u32;
            let (address, count) = if are_scattered && most < SMALL_RUN_BLOCKS_MAX {
                self.space.allocate(most, Placement::Packed)?
            } else {
                self.place(run.file, at, most, run.file_size)?
            };
            let upto = first + count as usize;
            placed.push(Placed { run: number, first, count, address, slices: carve(&run.slices, first * BLOCK, upto * BLOCK) });
            first = upto;
        }
        Ok(())
    }

    fn are_neighbours(&self, one: &Placed<'_>, next: &Placed<'_>) -> bool {
        let group = self.space.blocks_per_group();
        one.address.plus(u64::from(one.count)) == next.address && one.address.0 / group == next.address.0 / group
    }

    /// Parts that lie one behind the other, in one call. When that fails each is tried alone, and elsewhere.
    fn write_neighbours(&self, parts: &mut [Placed<'_>], results: &mut [Result<()>]) {
        if let [first, _, ..] = parts {
            let address = first.address;
            let slices: Vec<&[u8]> = parts.iter().flat_map(|part| part.slices.iter().copied()).collect();
            if self.space.write(address, &slices).is_ok() {
                self.stats.merged_writes.fetch_add(parts.len() as u64 - 1, Ordering::Relaxed);
                return;
            }
            self.stats.io_errors.fetch_add(1, Ordering::Relaxed);
        }
        for part in parts {
            match (self.write_somewhere(part.address, part.count, &part.slices), results.get_mut(part.run)) {
                (Ok(address), _) => part.address = address,
                (Err(error), Some(result)) => *result = Err(error),
                (Err(_), None) => {}
            }
        }
    }

    /// The part is on the device: it becomes what the file has there.
    fn enter(&self, run: &DirtyRun<'_>, part: &Placed<'_>, sums: &[u32]) -> Result<()> {
        let at = run.offset + part.first as u64 * BLOCK_SIZE;
        let length = (run.end - at).min(u64::from(part.count) * BLOCK_SIZE);
        let sums = sums.get(part.first..part.first + part.count as usize).unwrap_or_default().into();
        let dropped = {
            let mut map = FileExtents::lock_loaded(&run.file.map, &self.meta, at, at + block_ceil(length))?;
            map.finish(at, length, part.address, sums, self.space.blocks_per_group())
        };
        self.release(dropped)?;
        self.stats.extents_written.fetch_add(1, Ordering::Relaxed);
        self.stats.blocks_written.fetch_add(u64::from(part.count), Ordering::Relaxed);
        Ok(())
    }

    /// Space for `most` blocks at `offset`, near what the file has there.
    fn place(&self, file: &ExtentFile, offset: u64, most: u32, file_size: u64) -> Result<(BlockAddress, u32)> {
        let stored_size = file.map.lock().size();
        let mut windows = file.windows.lock();
        let (placement, most) = windows.placement(offset, most, file_size, stored_size);
        let (address, count) = self.space.allocate(most, placement)?;
        windows.note(offset, file_size, placement, address, count);
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
