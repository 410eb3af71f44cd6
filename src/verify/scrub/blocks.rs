//! The data of a step of a scrub: which blocks are live, reading all copies of them, and what to do about one that is bad.
//!
//! The caller holds an epoch guard from before `gather` until after `judge`: what was live once under it is not given to anyone else,
//! so a block that does not match, and that the metadata, looked up again, still call live with this checksum, is damaged (D10).

use super::Surroundings;
use crate::disk::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::meta::Metadata;
use crate::meta::records::{ExtentRecord, ExtentStateRecord};
use crate::meta::schema;
use crate::meta::scrub_records::DamagedBlockRecord;
use crate::space::Space;
use crate::units::{BLOCK, BlockAddress};
use crate::verify::blocks::{self, Block, Run};
use crate::verify::extents::StoredExtents;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A copy of a block that is not as it should be, at first sight.
#[derive(Debug)]
pub(super) struct Suspect {
    block: Block,
    copy: usize,
}

impl Suspect {
    pub(super) fn address(&self) -> BlockAddress {
        self.block.address()
    }
}

/// What reading came to.
#[derive(Debug, Default)]
pub(super) struct Looked {
    /// Copies of blocks read.
    pub(super) blocks: u64,
    pub(super) suspects: Vec<Suspect>,
}

/// The live blocks of the extents from address `from` on, until there are about `most`, and where to go on. Damaged records are passed
/// over: they were found among the values.
pub(super) fn gather(metadata: &Metadata, from: u64, most: u64) -> Result<(Vec<Run>, Option<u64>)> {
    let blocks_per_group = metadata.space().blocks_per_group();
    let mut stored = StoredExtents::new(metadata, from..u64::MAX)?;
    let (mut runs, mut count): (Vec<Run>, u64) = (Vec::new(), 0);
    while let Some(stored) = stored.next_below(u64::MAX)? {
        if count >= most {
            return Ok((runs, Some(stored.address)));
        }
        for block in blocks::live(&stored) {
            count += 1;
            blocks::add(&mut runs, block, blocks_per_group);
        }
    }
    Ok((runs, None))
}

/// Reads every copy of the runs on so many threads, which take the next one each, in order.
pub(super) fn look(around: &Surroundings<'_>, runs: &[Run], threads: usize) -> Result<Looked> {
    let space: &Space = around.metadata.space();
    let (mut jobs, mut rows) = (Vec::new(), HashSet::new());
    for run in runs {
        // A group that is not there is the check's to find.
        let copies = space.places(run.first).map_or(0, |places| places.len());
        jobs.extend((copies > 0).then(|| (0, run.clone())));
        for copy in 1..copies {
            let parts = blocks::to_compute(space, run.clone(), &mut rows);
            jobs.extend(parts.into_iter().map(|run| (copy, run)));
        }
    }
    // Both copies on one device: all of the first ones, then all of the second ones.
    jobs.sort_by_key(|(copy, _)| *copy);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut looked = Looked::default();
        while let Some((copy, run)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            looked.suspects.extend(look_at(space, run, *copy));
            looked.blocks += run.blocks.len() as u64;
        }
        looked
    };
    let mut all = Looked::default();
    std::thread::scope(|scope| -> Result<()> {
        let others = (1..threads.min(jobs.len())).map(|number| {
            let builder = std::thread::Builder::new().name(format!("scrub-{number}"));
            builder.spawn_scoped(scope, work).map_err(|error| Error::io("starting a thread for the scrub", error))
        });
        let others = others.collect::<Result<Vec<_>>>()?;
        all = work();
        for other in others {
            let looked = other.join().map_err(|_| Error::corrupt("a thread of the scrub failed"))?;
            all.blocks += looked.blocks;
            all.suspects.extend(looked.suspects);
        }
        Ok(())
    })?;
    // What parity computes is judged when the blocks themselves have been.
    all.suspects.sort_unstable_by_key(|suspect| (suspect.copy, suspect.address()));
    around.stats.blocks_verified.fetch_add(all.blocks, Ordering::Relaxed);
    Ok(all)
}

fn look_at(space: &Space, run: &Run, copy: usize) -> Vec<Suspect> {
    let mut buffer = AlignedBuffer::filled_by(run.blocks.len() * BLOCK, |_| ());
    if space.read_copy(run.first, copy, &mut buffer).is_err() {
        // One of them, or all: each is judged alone.
        return run.blocks.iter().map(|block| Suspect { block: *block, copy }).collect();
    }
    let pairs = run.blocks.iter().zip(buffer.chunks_exact(BLOCK));
    let differing = pairs.filter(|(block, bytes)| crc32c::crc32c(bytes) != block.expected);
    differing.map(|(block, _)| Suspect { block: *block, copy }).collect()
}

/// Reads the suspect again, alone, and looks its mapping up again. When it is bad indeed: writes it anew from a copy that matches, if
/// there is one. The number of the copy, with the damage; scrub and time are the caller's to fill in.
pub(super) fn judge(around: &Surroundings<'_>, suspect: &Suspect) -> Result<Option<(u8, DamagedBlockRecord)>> {
    let space: &Space = around.metadata.space();
    let (address, expected) = (suspect.address(), suspect.block.expected);
    let found = match space.read_block(address, suspect.copy) {
        Ok(bytes) => Some(crc32c::crc32c(&bytes)),
        // Not compared; what is on that device is written anew when it is replaced, or back and scrubbed.
        Err(Error::SetAside { .. }) if matches!(blocks::good_copy(space, &suspect.block, suspect.copy), Ok(Some(_))) => {
            return Ok(None);
        }
        Err(_) => None,
    };
    if found == Some(expected) || !is_live(around.metadata, &suspect.block)? {
        return Ok(None);
    }
    if suspect.copy > 0 && blocks::has_bad_mate(around.metadata, address)? {
        return Ok(None);
    }
    space.count_bad_copy(around.stats, address, suspect.copy, found.is_none());
    let is_repaired = repair(around, suspect)?;
    let copy = u8::try_from(suspect.copy).unwrap_or(u8::MAX);
    Ok(Some((copy, DamagedBlockRecord { scrub: 0, found_at: 0, expected, found, is_repaired })))
}

/// True when the copy has been written anew and reads as it should.
fn repair(around: &Surroundings<'_>, suspect: &Suspect) -> Result<bool> {
    let space: &Space = around.metadata.space();
    let (address, copy) = (suspect.address(), suspect.copy);
    let Some(good) = blocks::good_copy(space, &suspect.block, copy)? else { return Ok(false) };
    if around.metadata.latch().check().is_err() || !is_live(around.metadata, &suspect.block)? {
        return Ok(false);
    }
    if let Err(error) = space.mend(address, copy, &good) {
        tracing::warn!("scrub: repairing copy {copy} of block {address}: {error}");
        return Ok(false);
    }
    around.stats.repaired_blocks.fetch_add(1, Ordering::Relaxed);
    Ok(space.read_block(address, copy).is_ok_and(|bytes| crc32c::crc32c(&bytes) == suspect.block.expected))
}

/// Do the metadata still say that this block holds data with this checksum?
fn is_live(metadata: &Metadata, block: &Block) -> Result<bool> {
    let (address, at) = (BlockAddress(block.extent), block.in_extent as usize);
    let Some(record) = metadata.get(&schema::extent(address))? else { return Ok(false) };
    let names = ExtentRecord::decode(&record)?.sums.get(at) == Some(&block.expected);
    Ok(names && references(metadata, address, at)? > 0)
}

/// How often a block of an extent that exists is referenced.
pub(super) fn references(metadata: &Metadata, extent: BlockAddress, in_extent: usize) -> Result<u32> {
    Ok(match metadata.get(&schema::extent_state(extent))? {
        None => 1,
        Some(state) => ExtentStateRecord::decode(&state)?.references.get(in_extent).copied().unwrap_or(0),
    })
}
