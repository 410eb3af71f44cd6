//! The write pipeline of dirty runs: checksum, allocate, write, enter into the map. The bytes are frozen (D9) and the space is
//! reserved (D5), so the only thing that can fail is the device; a failed write is tried elsewhere up to three times.
//!
//! Runs come several at a time, as a pass gathered them: what the allocator placed side by side goes out in one vectored write
//! (the plug of md-raid5 and the block layer, one level higher).

use super::{Dropped, ExtentFile, Extents, FileExtents};
use crate::error::Result;
use crate::space::allocator::Placement;
use crate::space::transfer::carve;
use crate::units::{BLOCK, BLOCK_SIZE, BlockAddress, block_ceil, blocks_for};
use std::sync::atomic::Ordering;

/// Attempts to write a run before the error stands.
pub(super) const ATTEMPTS_MAX: u32 = 4;
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
#[derive(Clone)]
pub(super) struct Placed<'a> {
    pub(super) run: usize,
    /// First block, counted in the run.
    pub(super) first: usize,
    pub(super) count: u32,
    pub(super) address: BlockAddress,
    pub(super) slices: Vec<&'a [u8]>,
}

/// How it goes with a run.
pub(super) struct Outcome {
    /// Blocks whose reservation was turned into a place.
    pub(super) taken_blocks: u64,
    pub(super) result: Result<()>,
}

impl Extents {
    /// Stores runs, of one file or of many, that were gathered under a plug: all are placed first, then written in the order of
    /// the device, neighbours in one call, then entered into their maps in the order given. One result for each run; one that
    /// fails does not hold up the others. Takes the reservations of the runs; after an error all of that run's is back, for its
    /// bytes are still to be written.
    pub fn store(&self, runs: &[DirtyRun<'_>]) -> Vec<Result<()>> {
        // What is written to a store that is read-only by now no commit can name.
        if let Err(error) = self.meta.latch().check() {
            return runs.iter().map(|_| Err(error.clone())).collect();
        }
        let sums: Vec<Vec<u32>> = runs.iter().map(|run| self.checksummer.sums(&run.slices, &self.stats)).collect();
        let mut written = Vec::with_capacity(runs.len());
        let mut outcomes: Vec<Outcome> = (0..runs.len()).map(|_| Outcome { taken_blocks: 0, result: Ok(()) }).collect();
        if self.space.has_parity() {
            self.store_in_rows(runs, &mut written, &mut outcomes);
        } else {
            self.store_in_runs(runs, &mut written, &mut outcomes);
        }
        written.sort_unstable_by_key(|part| (part.run, part.first));
        for part in &written {
            if let (Some(run), Some(sums), Some(outcome)) = (runs.get(part.run), sums.get(part.run), outcomes.get_mut(part.run))
                && outcome.result.is_ok()
            {
                outcome.result = self.enter(run, part, sums);
            }
        }
        for outcome in outcomes.iter().filter(|outcome| outcome.result.is_err()) {
            self.space.reserve_again(outcome.taken_blocks);
        }
        outcomes.into_iter().map(|outcome| outcome.result).collect()
    }

    /// Places and writes the runs where there is no parity.
    fn store_in_runs<'a>(&self, runs: &[DirtyRun<'a>], written: &mut Vec<Placed<'a>>, outcomes: &mut [Outcome]) {
        let are_scattered = runs.len() >= SCATTERED_RUNS_MIN;
        let mut placed = Vec::with_capacity(runs.len());
        for (number, (run, outcome)) in runs.iter().zip(&mut *outcomes).enumerate() {
            let before = placed.len();
            outcome.result = self.place_run(number, run, are_scattered, &mut placed);
            let parts = placed.get(before..).unwrap_or_default();
            outcome.taken_blocks = parts.iter().map(|part: &Placed<'_>| u64::from(part.count)).sum();
        }
        placed.sort_unstable_by_key(|part| part.address);
        let are_neighbours =
            |one: &Placed<'_>, next: &Placed<'_>| self.space.are_neighbours(one.address, u64::from(one.count), next.address);
        for neighbours in placed.chunk_by(are_neighbours) {
            self.write_neighbours(neighbours, written, outcomes);
        }
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

    /// Parts that lie one behind the other, in one call. When that fails each is tried alone, and elsewhere.
    fn write_neighbours<'a>(&self, parts: &[Placed<'a>], written: &mut Vec<Placed<'a>>, outcomes: &mut [Outcome]) {
        if let [first, _, ..] = parts {
            let slices: Vec<&[u8]> = parts.iter().flat_map(|part| part.slices.iter().copied()).collect();
            if self.space.write(first.address, &slices).is_ok() {
                self.stats.merged_writes.fetch_add(parts.len() as u64 - 1, Ordering::Relaxed);
                written.extend(parts.iter().cloned());
                return;
            }
            self.stats.io_errors.fetch_add(1, Ordering::Relaxed);
        }
        for part in parts {
            if let (Err(error), Some(outcome)) = (self.write_somewhere(part, written), outcomes.get_mut(part.run)) {
                outcome.result = Err(error);
            }
        }
    }

    /// The part is on the device: it becomes what the file has there.
    fn enter(&self, run: &DirtyRun<'_>, part: &Placed<'_>, sums: &[u32]) -> Result<()> {
        let at = run.offset + part.first as u64 * BLOCK_SIZE;
        let length = run.end.saturating_sub(at).min(u64::from(part.count) * BLOCK_SIZE);
        let kept = blocks_for(length);
        let sums = sums.get(part.first..part.first + part.count as usize).unwrap_or_default().into();
        let mut dropped = Dropped::default();
        if kept > 0 {
            let mut map = FileExtents::lock_loaded(&run.file.map, &self.meta, at, at + block_ceil(length))?;
            dropped = map.finish(at, length, part.address, sums, self.space.blocks_per_group());
        }
        if kept < u64::from(part.count) {
            // The file was truncated after the run was frozen.
            dropped.fresh.push((part.address.plus(kept).0, part.count - kept as u32));
        }
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

    /// Writes a part where it was placed; where that fails, elsewhere, in as many pieces as there is room for.
    fn write_somewhere<'a>(&self, part: &Placed<'a>, written: &mut Vec<Placed<'a>>) -> Result<()> {
        let (mut address, mut count) = (part.address, part.count);
        let (mut done, mut attempt) = (0, 1);
        // Blocks behind this piece that have a reservation but no place yet.
        let mut behind = 0;
        while done < part.count {
            let slices = carve(&part.slices, done as usize * BLOCK, (done + count) as usize * BLOCK);
            let Err(error) = self.space.write(address, &slices) else {
                written.push(Placed { run: part.run, first: part.first + done as usize, count, address, slices });
                done += count;
                attempt = 1;
                if done < part.count {
                    (address, count) = self.space.allocate(part.count - done, Placement::Window { within: 0 })?;
                    behind -= count;
                }
                continue;
            };
            self.stats.io_errors.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("writing {count} blocks at {address}: {error} (attempt {attempt})");
            if attempt >= ATTEMPTS_MAX || !self.reserve_elsewhere(count) {
                self.space.release(u64::from(behind));
                return Err(error);
            }
            attempt += 1;
            // The failed place stays out of use until the next mount.
            let wanted = count;
            (address, count) = self.space.allocate(wanted, Placement::Window { within: 0 })?;
            behind += wanted - count;
        }
        Ok(())
    }

    /// Space for blocks whose place turned out bad: nobody planned for it, so a group may have to be opened.
    pub(super) fn reserve_elsewhere(&self, count: u32) -> bool {
        let blocks = u64::from(count);
        self.space.reserve(blocks) || (matches!(self.open_group(), Ok(true)) && self.space.reserve(blocks))
    }
}
