//! The commit: a role that one thread takes at a time (design: fold, close, flush the devices, journal, answer).
//!
//! What a crash between two steps leaves: before the journal's fdatasync the old state (its blocks are still there: freed ones
//! are pinned only afterwards, new ones are named by nobody); after it the new one, whose blocks the flush made durable (D2).

use super::batch::Delta;
use super::journal;
use super::layers::{Open, Overlay, overlay_bytes};
use super::merged::Merged;
use super::records::{CheckpointRecord, ExtentStateRecord, open, seal};
use super::schema::{self, Key};
use super::transaction::{CommitState, Metadata};
use crate::error::{Error, Result};
use crate::lock::assert_may_wait;
use crate::space::Run;
use crate::units::BlockAddress;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// States of extents read together, at least.
const STATES_AT_ONCE: usize = 64;

impl Metadata {
    /// Makes everything appended so far durable; the sequence number that is durable then. With nothing to do it costs nothing.
    pub fn commit(&self) -> Result<u64> {
        assert_may_wait("a commit");
        let mut role = self.commit.lock();
        let begin = Instant::now();
        self.latch.check()?;
        let Some((overlay, closed)) = self.close() else {
            return Ok(self.durable_sequence());
        };
        match self.write_out(&mut role, overlay, closed) {
            Ok(sequence) => {
                self.stats.commit_latency.record(begin.elapsed());
                Ok(sequence)
            }
            Err(error) => self.fail("commit", error),
        }
    }

    /// Swaps the running transaction for an empty one.
    fn close(&self) -> Option<(Arc<Overlay>, Open)> {
        self.layers.with(|state| {
            let open = &mut state.open;
            if state.running.is_empty() && open.deltas.is_empty() && open.unwritten_blocks == 0 {
                return None;
            }
            let next = Open { sequence: open.sequence + 1, ..Open::default() };
            let closed = std::mem::replace(open, next);
            self.running_bytes.store(0, Ordering::Relaxed);
            let overlay = Arc::new(std::mem::take(&mut state.running));
            state.committing = Some(overlay.clone());
            Some((overlay, closed))
        })
    }

    fn write_out(&self, role: &mut CommitState, overlay: Arc<Overlay>, closed: Open) -> Result<u64> {
        let mut freed: Vec<Run> = Vec::new();
        let mut folded = self.fold(closed.deltas, &mut freed)?;
        role.counters.next_inode = self.next_inode.load(Ordering::Relaxed);
        role.counters.unwritten_blocks = role.counters.unwritten_blocks.saturating_add_signed(closed.unwritten_blocks);
        let key = schema::counters();
        let value = seal(&key, role.counters.encode());
        folded.insert(key, Some(value));
        let allocated = allocated_runs(&overlay);
        let payload = journal::encode(&allocated, &freed, Merged::new([&folded, &*overlay], ..));
        let record_bytes = journal::record_bytes(payload.len());

        self.make_room(role, record_bytes)?;
        let flushes = self.space.flush()?;
        self.stats.device_flushes.fetch_add(flushes, Ordering::Relaxed);
        let position = role.journal.append(&payload)?;
        self.stats.commits.fetch_add(1, Ordering::Relaxed);
        self.stats.journal_bytes.fetch_add(record_bytes, Ordering::Relaxed);

        self.move_to_pending(overlay, folded, position, (allocated, freed.clone()));
        self.durable_sequence.store(position.sequence, Ordering::Release);
        self.measure_journal();
        self.space.free(freed)?;
        self.dropped_blocks.fetch_sub(closed.dropped_blocks, Ordering::Relaxed);
        Ok(position.sequence)
    }

    /// Makes sure that the next record fits between head and tail, by a checkpoint if need be.
    fn make_room(&self, role: &CommitState, record_bytes: u64) -> Result<()> {
        let journal = &role.journal;
        let gap = journal.len() - journal.head().journal_offset.min(journal.len());
        let needed = record_bytes + if gap < record_bytes { gap } else { 0 };
        let fits = |used: u64| used + needed < journal.len();
        let has_room = || fits(journal.used_since(self.tail.lock().oldest()));
        if has_room() {
            return Ok(());
        }
        self.checkpoint()?;
        while !has_room() && self.tail.lock().is_kept_back() {
            self.let_go_of_journal()?;
        }
        if has_room() {
            return Ok(());
        }
        Err(Error::corrupt(format!("a transaction of {record_bytes} bytes does not fit the journal of {}", journal.len())))
    }

    /// Folds deltas into whole values: extents whose last block is dead are deleted, others get a state record.
    fn fold(&self, deltas: Vec<Delta>, freed: &mut Vec<Run>) -> Result<Overlay> {
        let mut changes: BTreeMap<BlockAddress, Vec<i32>> = BTreeMap::new();
        for delta in deltas {
            let counts = changes.entry(delta.extent).or_insert_with(|| vec![0; usize::from(delta.extent_blocks)]);
            let range = usize::from(delta.first)..usize::from(delta.first) + usize::from(delta.count);
            let counts =
                counts.get_mut(range).ok_or_else(|| Error::corrupt(format!("a change outside extent {}", delta.extent)))?;
            counts.iter_mut().for_each(|count| *count += delta.change);
        }
        let mut folded = Overlay::new();
        let states = self.stored_states(&changes)?;
        for (extent, changes) in changes {
            let key = schema::extent_state(extent);
            let stored = match states.find(&key).unwrap_or_else(|| self.layers.get_below_running(&key)) {
                // Its blocks stay used until a repair counts them: they may be another file's, too.
                Err(Error::Corrupt(reason)) => {
                    tracing::warn!("the references of extent {extent} are not counted any more: {reason}");
                    continue;
                }
                stored => stored?,
            };
            let had_state = stored.is_some();
            let mut references = match stored {
                Some(record) => ExtentStateRecord::decode(&record)?.references,
                None => vec![1; changes.len()],
            };
            if references.len() != changes.len() {
                return Err(Error::corrupt(format!(
                    "state of extent {extent} has {} blocks, not {}",
                    references.len(),
                    changes.len()
                )));
            }
            let mut dead = Vec::new();
            for (block, (count, change)) in references.iter_mut().zip(&changes).enumerate() {
                let before = *count;
                *count = before
                    .checked_add_signed(*change)
                    .ok_or_else(|| Error::corrupt(format!("block {block} of extent {extent} freed once too often")))?;
                if before > 0 && *count == 0 {
                    dead.push(block as u64);
                }
            }
            // The first block's address is the extent's key: it stays until the extent goes, or a new extent could take the key.
            dead.retain(|block| *block != 0);
            if references.iter().all(|count| *count == 0) {
                push_block(freed, extent.0);
            }
            dead.into_iter().for_each(|block| push_block(freed, extent.0 + block));
            if references.iter().all(|count| *count == 0) {
                folded.insert(schema::extent(extent), None);
                folded.insert(key, None);
            } else if references.iter().any(|count| *count != 1) {
                let value = seal(&key, ExtentStateRecord { references }.encode());
                folded.insert(key, Some(value));
            } else if had_state {
                folded.insert(key, None);
            }
        }
        Ok(folded)
    }

    /// What is stored for the extents of `changes`, with one look: most extents have no state.
    fn stored_states(&self, changes: &BTreeMap<BlockAddress, Vec<i32>>) -> Result<StoredStates> {
        let (Some((first, _)), Some((last, _))) = (changes.first_key_value(), changes.last_key_value()) else {
            return Ok(StoredStates::default());
        };
        let (from, to) = (schema::extent_state(*first), schema::extent_state(BlockAddress(last.0.saturating_add(1))));
        // The running layer has none: only commits make states.
        let (sealed, next) = self.layers.scan_sealed(&from, &to, changes.len() * 2 + STATES_AT_ONCE)?;
        Ok(StoredStates { sealed, end: next.unwrap_or(to) })
    }

    /// The committing layer becomes part of pending, in one step for readers.
    fn move_to_pending(&self, overlay: Arc<Overlay>, folded: Overlay, position: CheckpointRecord, blocks: (Vec<Run>, Vec<Run>)) {
        let bytes = overlay_bytes(&overlay) + overlay_bytes(&folded);
        self.layers.with(|state| {
            state.committing = None;
            state.pending_bytes += bytes;
            state.add_pending(Arc::try_unwrap(overlay).unwrap_or_else(|shared| (*shared).clone()));
            state.add_pending(folded);
            state.committed.position = position;
            state.committed.blocks.push(blocks);
        });
    }
}

/// The states of extents before `end`, as stored.
#[derive(Default)]
struct StoredStates {
    sealed: Vec<(Key, Vec<u8>)>,
    end: Key,
}

impl StoredStates {
    /// The record of `key`, if there is one; None when that is not known here.
    fn find(&self, key: &Key) -> Option<Result<Option<Vec<u8>>>> {
        if *key >= self.end {
            return None;
        }
        let found = self.sealed.binary_search_by(|(known, _)| known.cmp(key)).ok().and_then(|at| self.sealed.get(at));
        Some(found.map(|(key, sealed)| Ok(open(key, sealed)?.to_vec())).transpose())
    }
}

/// New extents of the transaction: every extent is put once.
fn allocated_runs(overlay: &Overlay) -> Vec<Run> {
    let (begin, end) = (schema::table_begin(schema::EXTENTS), schema::table_end(schema::EXTENTS));
    let mut runs: Vec<Run> = Vec::new();
    for (key, value) in overlay.range(begin..end) {
        let (Some(schema::Parsed::Extent(address)), Some(value)) = (schema::parse(key), value) else { continue };
        let blocks = super::records::extent_blocks_of_sealed(value);
        match runs.last_mut() {
            Some((first, count)) if *first + u64::from(*count) == address.0 => *count += blocks,
            _ => runs.push((address.0, blocks)),
        }
    }
    runs
}

fn push_block(runs: &mut Vec<Run>, block: u64) {
    match runs.last_mut() {
        Some((first, count)) if *first + u64::from(*count) == block => *count += 1,
        _ => runs.push((block, 1)),
    }
}
