//! The scrub: one walk over everything that a store keeps, while it is mounted or not, in bounded steps.
//!
//! ```text
//!   structures  superblock, labels; a checkpoint, so that nothing that counts is in the journal only
//!   index       every page, both copies; every frame of the metadata image
//!   values      every metadata value against its checksum
//!   data        every copy of every live block, in the order of the devices (`blocks.rs`)
//! ```
//! A step takes a fresh view of the metadata from a cursor (a key) on, so that nothing old is held while a long scrub sleeps, and
//! leaves what it found and the next cursor to the caller, who records both in one batch: after a crash nothing is passed over and
//! nothing that was found is forgotten. What is written during the scrub and behind the cursor was compared with nothing, but its
//! bytes left memory a moment ago. `damage.rs` turns what was found into files and ranges.

mod blocks;
mod damage;

pub use damage::{DamagedRange, damaged_ranges, damaged_values};

use crate::error::Result;
use crate::meta::Metadata;
use crate::meta::records;
use crate::meta::schema::{self, Key, Parsed};
use crate::meta::scrub_records::{DamagedBlockRecord, DamagedValueRecord, ScrubPhase, ScrubRecord};
use crate::meta::work_state::WorkState;
use crate::stats::Stats;
use crate::units::BlockAddress;

/// Values of a step.
const VALUES_A_STEP: usize = 2000;

/// What a step works on.
pub struct Surroundings<'a> {
    /// The store's metadata, which knows its space.
    pub metadata: &'a Metadata,
    /// Counters.
    pub stats: &'a Stats,
    /// Looks at superblock and labels, writes bad copies anew, makes a checkpoint; how many copies were bad.
    pub structures: &'a dyn Fn() -> Result<u64>,
    /// False: end the step as soon as possible.
    pub goes_on: &'a dyn Fn() -> bool,
    /// Seconds since 1970.
    pub now: i64,
}

/// How much a step may do.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Blocks to look at, about.
    pub blocks: u64,
    /// Threads that read and compare.
    pub threads: usize,
}

/// What a step found.
#[derive(Debug, Default)]
pub struct Found {
    /// Blocks of data read.
    pub blocks_read: u64,
    /// Bad copies of blocks.
    pub blocks: Vec<(BlockAddress, u8, DamagedBlockRecord)>,
    /// Keys of damaged values.
    pub values: Vec<(Key, DamagedValueRecord)>,
}

/// Does the next step of the scrub in `record`, which says afterwards how far it is; `Finished` when that was the last.
pub fn step(record: &mut ScrubRecord, around: &Surroundings<'_>, effort: Effort) -> Result<Found> {
    let mut found = Found::default();
    match record.phase {
        ScrubPhase::Structures => {
            record.healed += (around.structures)()?;
            record.phase = ScrubPhase::Index;
        }
        ScrubPhase::Index => {
            let index = around.metadata.index().verify_while(around.goes_on)?;
            let image = around.metadata.verify_image_while(around.goes_on)?;
            if let (Some(healed), Some(bad_frames)) = (index, image) {
                record.healed += healed + bad_frames;
                record.phase = ScrubPhase::Values;
                record.cursor = schema::table_begin(0);
            }
        }
        ScrubPhase::Values => look_at_values(record, around, &mut found)?,
        ScrubPhase::Data => look_at_data(record, around, effort, &mut found)?,
    }
    Ok(found)
}

fn look_at_values(record: &mut ScrubRecord, around: &Surroundings<'_>, found: &mut Found) -> Result<()> {
    let end = schema::table_end(u8::MAX - 1);
    let (page, next) = around.metadata.scan_sealed(&record.cursor, &end, VALUES_A_STEP)?;
    record.values += page.len() as u64;
    for (key, value) in page {
        // Looked up again: it may be gone, or be another one by now.
        if records::open(&key, &value).is_err() && around.metadata.get(&key).is_err() {
            record.damaged_values += 1;
            found.values.push((key, DamagedValueRecord { scrub: record.number, found_at: around.now }));
        }
    }
    match next {
        Some(next) => record.cursor = next,
        None => {
            record.phase = ScrubPhase::Data;
            record.cursor = schema::extent(BlockAddress(0));
        }
    }
    Ok(())
}

fn look_at_data(record: &mut ScrubRecord, around: &Surroundings<'_>, effort: Effort, found: &mut Found) -> Result<()> {
    let from = match schema::parse(&record.cursor) {
        Some(Parsed::Extent(address)) => address.0,
        _ => 0,
    };
    // From here on nothing that is freed is given to anyone else (D3, D10).
    let guard = around.metadata.space().enter_read();
    let (runs, next) = blocks::gather(around.metadata, from, effort.blocks)?;
    let looked = blocks::look(around, &runs, effort.threads)?;
    record.blocks += looked.blocks;
    found.blocks_read = looked.blocks;
    for suspect in looked.suspects {
        let Some((copy, mut damage)) = blocks::judge(around, &suspect)? else { continue };
        record.bad_blocks += 1;
        record.repaired_blocks += u64::from(damage.is_repaired);
        damage.scrub = record.number;
        damage.found_at = around.now;
        found.blocks.push((suspect.address(), copy, damage));
    }
    drop(guard);
    match next {
        Some(next) => record.cursor = schema::extent(BlockAddress(next)),
        None => {
            record.state = WorkState::Finished;
            record.ended = around.now;
            record.cursor = Key::new();
        }
    }
    Ok(())
}
