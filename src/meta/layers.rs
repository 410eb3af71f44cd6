//! The overlays above the index, newest first: running -> committing -> pending -> applying -> index snapshot. Pending and applying
//! are several overlays each: a large transaction comes as one that nobody has to insert record by record under the lock.
//!
//! A record moves down only by one step under the write lock, so that a reader who looks at all layers under the read lock
//! sees each record exactly once. Reads of the index itself happen outside the lock, on the snapshot that was current inside.

use super::batch::Delta;
use super::index::{Index, Snapshot};
use super::records::{self, CheckpointRecord};
use super::schema::Key;
use crate::error::Result;
use crate::lock::{Rank, RankedRwLock};
use crate::space::Run;
use crate::stats::Stats;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Newest value per key; None deletes.
pub(crate) type Overlay = BTreeMap<Key, Option<Vec<u8>>>;

/// A transaction of no more records than this goes into the newest pending overlay: inserting them holds the lock for a moment only.
const RECORDS_INSERTED_MAX: usize = 256;
/// More pending overlays than this would cost readers more than inserting costs.
const PENDING_OVERLAYS_MAX: usize = 6;

/// A page of a range read: keys and records in order, and where to go on (None at the end).
pub type Page = (Vec<(Key, Vec<u8>)>, Option<Key>);

/// What the running transaction holds beside its overlay.
#[derive(Debug, Default)]
pub(crate) struct Open {
    pub(crate) deltas: Vec<Delta>,
    pub(crate) unwritten_blocks: i64,
    /// References that the deltas take away: about as many blocks are free once they are durable.
    pub(crate) dropped_blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) sequence: u64,
}

/// What belongs to the pending layer: the position behind its last record, and the blocks of each transaction in it.
#[derive(Debug, Default)]
pub(crate) struct Committed {
    pub(crate) position: CheckpointRecord,
    /// Allocated and freed blocks of each transaction.
    pub(crate) blocks: Vec<(Vec<Run>, Vec<Run>)>,
}

/// Bytes of keys and values.
pub(crate) fn overlay_bytes(overlay: &Overlay) -> u64 {
    overlay.iter().map(|(key, value)| (key.len() + value.as_ref().map_or(0, Vec::len)) as u64).sum()
}

/// All layers; lock rank Transaction.
#[derive(Debug)]
pub(crate) struct Layers {
    state: RankedRwLock<State>,
    stats: Arc<Stats>,
}

pub(crate) struct State {
    pub(crate) running: Overlay,
    pub(crate) open: Open,
    pub(crate) committed: Committed,
    pub(crate) committing: Option<Arc<Overlay>>,
    /// Oldest first.
    pub(crate) pending: Vec<Overlay>,
    pub(crate) pending_bytes: u64,
    /// Oldest first.
    pub(crate) applying: Arc<Vec<Overlay>>,
    snapshot: Arc<dyn Snapshot>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "running {}, pending {}", self.running.len(), self.pending_records())
    }
}

impl State {
    fn overlays(&self) -> impl Iterator<Item = &Overlay> {
        std::iter::once(&self.running)
            .chain(self.committing.as_deref())
            .chain(self.pending.iter().rev())
            .chain(self.applying.iter().rev())
            .filter(|overlay| !overlay.is_empty())
    }

    fn find(&self, key: &[u8]) -> Option<&Option<Vec<u8>>> {
        self.overlays().find_map(|overlay| overlay.get(key))
    }

    /// Records that wait to be applied.
    pub(crate) fn pending_records(&self) -> usize {
        self.pending.iter().map(Overlay::len).sum()
    }

    /// Adds what is newer than all that is pending.
    pub(crate) fn add_pending(&mut self, newer: Overlay) {
        let is_full = self.pending.len() >= PENDING_OVERLAYS_MAX;
        match self.pending.last_mut() {
            Some(last) if is_full || newer.len() <= RECORDS_INSERTED_MAX => last.extend(newer),
            _ => self.pending.push(newer),
        }
    }

    /// Like `find` without the running layer: what the commit folds deltas onto.
    fn find_below_running(&self, key: &[u8]) -> Option<&Option<Vec<u8>>> {
        self.overlays().filter(|overlay| !std::ptr::eq(*overlay, &self.running)).find_map(|overlay| overlay.get(key))
    }
}

impl Layers {
    pub(crate) fn new(index: &dyn Index, stats: Arc<Stats>) -> Result<Layers> {
        Ok(Layers {
            stats,
            state: RankedRwLock::new(
                Rank::Transaction,
                State {
                    running: Overlay::new(),
                    open: Open::default(),
                    committed: Committed::default(),
                    committing: None,
                    pending: Vec::new(),
                    pending_bytes: 0,
                    applying: Arc::default(),
                    snapshot: index.snapshot()?,
                },
            ),
        })
    }

    /// Runs `change` with the layers locked.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.write())
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.read())
    }

    /// The record of `key`, verified.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let snapshot = {
            let state = self.state.read();
            match state.find(key) {
                Some(value) => return value.as_deref().map(|value| unsealed(key, value)).transpose(),
                None => state.snapshot.clone(),
            }
        };
        self.get_stored(&*snapshot, key)
    }

    /// As `get`, without what is in the running layer.
    pub(crate) fn get_below_running(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let snapshot = {
            let state = self.state.read();
            match state.find_below_running(key) {
                Some(value) => return value.as_deref().map(|value| unsealed(key, value)).transpose(),
                None => state.snapshot.clone(),
            }
        };
        self.get_stored(&*snapshot, key)
    }

    fn get_stored(&self, snapshot: &dyn Snapshot, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.stats.index_reads.fetch_add(1, Ordering::Relaxed);
        let Some(mut value) = snapshot.get(key)? else { return Ok(None) };
        let length = records::open(key, &value)?.len();
        value.truncate(length);
        Ok(Some(value))
    }

    /// At most `limit` sealed values of `from <= key < to`. The visitor decides what a damaged value means.
    pub(crate) fn scan_sealed(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Page> {
        if from >= to {
            return Ok((Vec::new(), None));
        }
        let (overlay, bound, snapshot) = {
            let state = self.state.read();
            let mut merged: BTreeMap<Key, Option<Vec<u8>>> = BTreeMap::new();
            // Where a layer was cut short, what lies behind its last key is not known yet.
            let mut bound: Option<Key> = None;
            for layer in state.overlays() {
                let mut entries = layer.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)));
                for (key, value) in entries.by_ref().take(limit) {
                    merged.entry(key.clone()).or_insert_with(|| value.clone());
                }
                if let Some((key, _)) = entries.next()
                    && bound.as_ref().is_none_or(|bound| key < bound)
                {
                    bound = Some(key.clone());
                }
            }
            (merged, bound, state.snapshot.clone())
        };
        let end = bound.as_deref().unwrap_or(to);
        let mut found: Vec<(Key, Vec<u8>)> = Vec::new();
        let mut next: Option<Key> = bound.clone();
        let mut above = overlay.into_iter().take_while(|(key, _)| key.as_slice() < end).peekable();
        // `found` may grow to one more than `limit`: that one says where to go on.
        self.stats.index_reads.fetch_add(1, Ordering::Relaxed);
        snapshot.range(from, end, &mut |key, value| {
            while let Some((above_key, above_value)) = above.next_if(|(above_key, _)| above_key.as_slice() < key) {
                if let Some(above_value) = above_value {
                    found.push((above_key, above_value));
                }
            }
            match above.next_if(|(above_key, _)| above_key.as_slice() == key) {
                Some((above_key, Some(above_value))) => found.push((above_key, above_value)),
                Some((_, None)) => {}
                None => found.push((key.to_vec(), value.to_vec())),
            }
            if found.len() > limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if found.len() <= limit {
            found.extend(above.filter_map(|(key, value)| Some((key, value?))));
        }
        if found.len() > limit {
            next = found.get(limit).map(|(key, _)| key.clone());
            found.truncate(limit);
        }
        Ok((found, next))
    }

    /// At most `limit` verified records of `from <= key < to`.
    pub(crate) fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Page> {
        let (mut items, next) = self.scan_sealed(from, to, limit)?;
        for (key, value) in &mut items {
            let length = records::open(key, value)?.len();
            value.truncate(length);
        }
        Ok((items, next))
    }

    /// The first key of `from <= key < to`.
    pub(crate) fn first_key(&self, from: &[u8], to: &[u8]) -> Result<Option<Key>> {
        let mut from = from.to_vec();
        loop {
            // A page may be empty and still not be the last: what it covers is deleted.
            let (items, next) = self.scan_sealed(&from, to, 16)?;
            match (items.into_iter().next(), next) {
                (Some((key, _)), _) => return Ok(Some(key)),
                (None, Some(next)) => from = next,
                (None, None) => return Ok(None),
            }
        }
    }

    /// The last record of `from <= key < to`.
    pub(crate) fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Key, Vec<u8>)>> {
        let Some((key, value)) = self.last_sealed(from, to)? else { return Ok(None) };
        let record = unsealed(&key, &value)?;
        Ok(Some((key, record)))
    }

    /// As `last`, with the stored value unopened.
    pub(crate) fn last_sealed(&self, from: &[u8], to: &[u8]) -> Result<Option<(Key, Vec<u8>)>> {
        let mut end = to.to_vec();
        loop {
            if from >= end.as_slice() {
                return Ok(None);
            }
            let (above, snapshot) = {
                let state = self.state.read();
                let above = state
                    .overlays()
                    .filter_map(|layer| {
                        layer.range::<[u8], _>((Bound::Included(from), Bound::Excluded(end.as_slice()))).next_back()
                    })
                    .map(|(key, _)| key)
                    .max()
                    .map(|key| (key.clone(), state.find(key).cloned().flatten()));
                (above, state.snapshot.clone())
            };
            self.stats.index_reads.fetch_add(1, Ordering::Relaxed);
            let below = snapshot.last(from, &end)?;
            match (above, below) {
                (None, None) => return Ok(None),
                (Some((key, value)), below) if below.as_ref().is_none_or(|(low, _)| *low <= key) => match value {
                    Some(value) => return Ok(Some((key, value))),
                    None => end = key,
                },
                (_, below @ Some(_)) => return Ok(below),
                (Some(_), None) => return Ok(None),
            }
        }
    }

    /// Replaces the snapshot after an apply and drops the applied layer, in one step.
    pub(crate) fn applied(&self, snapshot: Arc<dyn Snapshot>) {
        let old = self.with(|state| {
            let old = std::mem::replace(&mut state.snapshot, snapshot);
            (old, std::mem::take(&mut state.applying))
        });
        drop(old);
    }
}

fn unsealed(key: &[u8], value: &[u8]) -> Result<Vec<u8>> {
    Ok(records::open(key, value)?.to_vec())
}
