//! Opening the metadata: read the checkpoint, bring back what the journal holds behind it, load the groups.

use super::index::Index;
use super::journal::{self, Found, Journal};
use super::latch::Latch;
use super::layers::{Layers, Overlay, overlay_bytes};
use super::records::{self, CheckpointRecord, CountersRecord, GroupRecord};
use super::schema::{self, Parsed};
use super::tail::Tail;
use super::transaction::{CommitState, Metadata};
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::space::bitmap::Bitmap;
use crate::space::{Plan, Space};
use crate::stats::Stats;
use crate::sync::{AtomicBool, AtomicU64, Condvar, Mutex};
use crate::units::InodeNumber;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A data device: id, disk, and the byte range in which groups may lie.
pub type DeviceArea = (u32, Arc<dyn Disk>, (u64, u64));

/// What `Metadata::open` needs.
#[derive(Debug)]
pub struct Parts {
    /// Identifies the store in journal records.
    pub store_id: [u8; 16],
    /// The index, open.
    pub index: Arc<dyn Index>,
    /// The journal's disk.
    pub journal: Arc<dyn Disk>,
    /// Data devices.
    pub devices: Vec<DeviceArea>,
    /// Blocks per group.
    pub blocks_per_group: u32,
    /// What new groups get.
    pub plan: Plan,
    /// Counters.
    pub stats: Arc<Stats>,
    /// The latch; set here when the journal is damaged.
    pub latch: Arc<Latch>,
}

/// What replay found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replayed {
    /// Transactions brought back.
    pub transactions: u64,
    /// Journal copies that were bad and healed.
    pub healed: u64,
}

/// What a mount needs before anything else, and a repair can count anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damaged {
    /// The counters are damaged or missing.
    Counters,
    /// The bitmap of this group is damaged.
    Bitmap(u64),
}

impl Metadata {
    /// Opens index and journal, replays, and loads the groups. Nothing is written.
    pub fn open(parts: Parts) -> Result<(Metadata, Replayed)> {
        Self::open_with(parts, None)
    }

    /// As `open`; with a list, what is in [`Damaged`] goes there and is taken for zero.
    pub(super) fn open_with(parts: Parts, mut damaged: Option<&mut Vec<Damaged>>) -> Result<(Metadata, Replayed)> {
        let layers = Layers::new(&*parts.index, parts.stats.clone())?;
        let checkpoint = match layers.get(&schema::checkpoint())? {
            Some(record) => CheckpointRecord::decode(&record)?,
            None => return Err(Error::corrupt("the index has no checkpoint record")),
        };
        let mut journal = Journal::new(parts.journal, parts.store_id, checkpoint)?;
        let replayed = replay(&layers, &mut journal, &parts.latch)?;
        parts.stats.healed_journal_records.fetch_add(replayed.healed, Ordering::Relaxed);
        let counters = match (load_counters(&layers), &mut damaged) {
            (Err(Error::Corrupt(_)), Some(damaged)) => {
                damaged.push(Damaged::Counters);
                CountersRecord { next_inode: InodeNumber::ROOT.0 + 1, unwritten_blocks: 0 }
            }
            (counters, _) => counters?,
        };
        let groups = load_groups(&layers, parts.blocks_per_group, damaged)?;
        let (areas, devices): (Vec<_>, Vec<_>) = parts.devices.into_iter().map(|(id, disk, area)| (area, (id, disk))).unzip();
        let space = Space::new(devices, &areas, parts.blocks_per_group, parts.plan, groups, counters.unwritten_blocks)?;
        let head = journal.head();
        layers.with(|state| -> Result<()> {
            for (allocated, freed) in &state.committed.blocks {
                space.replay(allocated, freed)?;
            }
            state.committed.position = head;
            state.open.sequence = head.sequence + 1;
            Ok(())
        })?;
        let journal_bytes = journal.len();
        let tail =
            Tail::new(checkpoint, &earlier_checkpoints(&*parts.index)?, parts.index.checkpoints_kept(), journal_bytes, head);
        let (used, unapplied) = (journal.used_since(tail.oldest()), journal.used_since(checkpoint));
        let metadata = Metadata {
            layers,
            commit: Mutex::new(CommitState { journal, counters }),
            apply: Mutex::new(()),
            tail: Mutex::new(tail),
            tail_moved: Condvar::new(),
            index: parts.index,
            image: None,
            space: Arc::new(space),
            latch: parts.latch,
            stats: parts.stats,
            next_inode: AtomicU64::new(counters.next_inode),
            durable_sequence: AtomicU64::new(head.sequence),
            running_bytes: AtomicU64::new(0),
            dropped_blocks: AtomicU64::new(0),
            journal_used_bytes: AtomicU64::new(used),
            unapplied_bytes: AtomicU64::new(unapplied),
            journal_bytes,
            is_index_full: AtomicBool::new(false),
        };
        Ok((metadata, replayed))
    }

    /// The space of the store.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// The index.
    pub fn index(&self) -> &Arc<dyn Index> {
        &self.index
    }
}

/// The newest first, up to the first that is damaged.
fn earlier_checkpoints(index: &dyn Index) -> Result<Vec<CheckpointRecord>> {
    let key = schema::checkpoint();
    let sealed = index.earlier_checkpoints()?;
    let decoded = sealed.iter().map(|sealed| CheckpointRecord::decode(records::open(&key, sealed)?));
    Ok(decoded.map_while(Result::ok).collect())
}

fn replay(layers: &Layers, journal: &mut Journal, latch: &Latch) -> Result<Replayed> {
    let mut replayed = Replayed::default();
    loop {
        match journal.read_next(journal.head())? {
            Found::Record(payload, behind) => {
                let payload = journal::decode(&payload)?;
                let changes: Overlay = payload.changes.into_iter().collect();
                let bytes = overlay_bytes(&changes);
                layers.with(|state| {
                    state.pending_bytes += bytes;
                    state.add_pending(changes);
                    state.committed.blocks.push((payload.allocated, payload.freed));
                });
                journal.set_head(behind);
                replayed.transactions += 1;
            }
            Found::End => break,
            Found::Damaged { sequence } => {
                let reason = format!(
                    "journal record {sequence} is damaged although later ones are whole; mounted up to record {}, read-only",
                    sequence - 1
                );
                latch.set(&reason, true);
                break;
            }
        }
    }
    replayed.healed = journal.healed;
    Ok(replayed)
}

fn load_counters(layers: &Layers) -> Result<CountersRecord> {
    match layers.get(&schema::counters())? {
        Some(record) => CountersRecord::decode(&record),
        None => Err(Error::corrupt("the index has no counters record")),
    }
}

fn load_groups(
    layers: &Layers,
    blocks_per_group: u32,
    mut damaged: Option<&mut Vec<Damaged>>,
) -> Result<Vec<(GroupRecord, Option<Vec<u8>>)>> {
    let mut groups = Vec::new();
    let (mut from, end) = (schema::table_begin(schema::GROUPS), schema::table_end(schema::GROUPS));
    loop {
        let (items, next) = layers.scan(&from, &end, 1000)?;
        for (key, record) in items {
            let Some(Parsed::Group(number)) = schema::parse(&key) else { continue };
            if number != groups.len() as u64 {
                return Err(Error::corrupt(format!("group {} is missing", groups.len())));
            }
            let bitmap = layers.get(&schema::bitmap(number)).and_then(|bytes| match bytes {
                Some(bytes) if Bitmap::from_bytes(blocks_per_group, &bytes).is_none() => {
                    Err(Error::corrupt(format!("bitmap of group {number} has a wrong length")))
                }
                bytes => Ok(bytes),
            });
            let bitmap = match (bitmap, &mut damaged) {
                (Err(Error::Corrupt(_)), Some(damaged)) => {
                    damaged.push(Damaged::Bitmap(number));
                    None
                }
                (bitmap, _) => bitmap?,
            };
            groups.push((GroupRecord::decode(&record)?, bitmap));
        }
        match next {
            Some(next) => from = next,
            None => return Ok(groups),
        }
    }
}
