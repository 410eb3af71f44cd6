//! Live blocks of data with their checksums, as the check and the scrub read them: which there are, in runs of neighbours, and
//! whether another copy of one is good.

use super::extents::{StoredExtent, StoredExtents};
use crate::disk::buffer::AlignedBuffer;
use crate::error::Result;
use crate::meta::Metadata;
use crate::meta::records::{self, ExtentRecord, ExtentStateRecord};
use crate::meta::schema;
use crate::space::Space;
use crate::units::{BlockAddress, EXTENT_BLOCKS_MAX};
use std::collections::HashSet;

/// A live block with its checksum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) extent: u64,
    pub(super) in_extent: u32,
    pub(super) expected: u32,
}

impl Block {
    pub(super) fn address(&self) -> BlockAddress {
        BlockAddress(self.extent + u64::from(self.in_extent))
    }
}

/// Neighbouring live blocks of a group, read at once; never empty.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) first: BlockAddress,
    pub(super) blocks: Vec<Block>,
}

/// Adds a block to the last run, or to a new one where it does not go on.
pub(super) fn add(runs: &mut Vec<Run>, block: Block, blocks_per_group: u64) {
    let address = block.address();
    match runs.last_mut() {
        Some(run)
            if run.first.plus(run.blocks.len() as u64) == address
                && !address.0.is_multiple_of(blocks_per_group)
                && run.blocks.len() < EXTENT_BLOCKS_MAX as usize =>
        {
            run.blocks.push(block);
        }
        _ => runs.push(Run { first: address, blocks: vec![block] }),
    }
}

/// The parts of a run that are to be read as a further copy. What parity computes is asked for the first live block of each row (`rows` has
/// those before): when the blocks themselves are good, it is so for one or for none.
pub(super) fn to_compute(space: &Space, run: Run, rows: &mut HashSet<u64>) -> Vec<Run> {
    let Some(numbers) = space.row_numbers(run.first, run.blocks.len() as u32) else { return vec![run] };
    let mut parts: Vec<Run> = Vec::new();
    for (block, number) in run.blocks.into_iter().zip(numbers) {
        if rows.insert(number) {
            add(&mut parts, block, u64::MAX);
        }
    }
    parts
}

/// The live blocks of an extent; none when its records are damaged: whoever walks over the values reports that.
pub(super) fn live(stored: &StoredExtent) -> Vec<Block> {
    let address = BlockAddress(stored.address);
    let record =
        stored.extent.as_ref().map(|value| records::open(&schema::extent(address), value).and_then(ExtentRecord::decode));
    let Some(Ok(record)) = record else { return Vec::new() };
    let references = match &stored.state {
        None => vec![1; record.sums.len()],
        Some(value) => match records::open(&schema::extent_state(address), value).and_then(ExtentStateRecord::decode) {
            Ok(state) => state.references,
            Err(_) => return Vec::new(),
        },
    };
    let all = (0u32..).zip(record.sums.iter().zip(references)).filter(|(_, (_, references))| *references > 0);
    all.map(|(in_extent, (expected, _))| Block { extent: address.0, in_extent, expected: *expected }).collect()
}

/// Is a live block whose parity is also that of `address` not as it should be? Then what is computed from the row says nothing of the
/// parity.
pub(super) fn has_bad_mate(metadata: &Metadata, address: BlockAddress) -> Result<bool> {
    for mate in metadata.space().row_mates(address)? {
        if let Some(block) = find(metadata, mate)? {
            let bytes = metadata.space().read_block(mate, 0);
            if !bytes.is_ok_and(|bytes| crc32c::crc32c(&bytes) == block.expected) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The live block at an address.
fn find(metadata: &Metadata, address: BlockAddress) -> Result<Option<Block>> {
    let first = address.0.saturating_sub(u64::from(EXTENT_BLOCKS_MAX) - 1);
    let mut stored = StoredExtents::new(metadata, first..address.0 + 1)?;
    while let Some(stored) = stored.next_below(address.0 + 1)? {
        if let Some(block) = live(&stored).into_iter().find(|block| block.address() == address) {
            return Ok(Some(block));
        }
    }
    Ok(None)
}

/// The block's bytes from a copy other than `bad`, if one matches.
pub(super) fn good_copy(space: &Space, block: &Block, bad: usize) -> Result<Option<AlignedBuffer>> {
    let mut others = (0..space.places(block.address())?.len()).filter(|copy| *copy != bad);
    Ok(others.find_map(|copy| {
        let bytes = space.read_block(block.address(), copy).ok()?;
        (crc32c::crc32c(&bytes) == block.expected).then_some(bytes)
    }))
}
