//! Metadata under repair: opened although what only a mount needs is damaged, changed in the running layer where every reader sees
//! the changes, and stored with all that was pending in one durable step of the index. Until that step the store is as it was, and
//! after it the journal holds nothing that counts: a crash leaves the one or the other.

use super::layers::Overlay;
use super::merged::Merged;
use super::records::{self, CountersRecord};
use super::replay::{Damaged, Parts, Replayed};
use super::schema::{self, Key};
use super::transaction::Metadata;
use crate::error::Result;
use crate::units::InodeNumber;
use std::sync::atomic::Ordering;

impl Metadata {
    /// As `open`, but damaged counters and bitmaps are named instead of refused: a repair counts anew what they say.
    pub fn open_for_repair(parts: Parts) -> Result<(Metadata, Replayed, Vec<Damaged>)> {
        let mut damaged = Vec::new();
        let (metadata, replayed) = Metadata::open_with(parts, Some(&mut damaged))?;
        Ok((metadata, replayed, damaged))
    }

    /// Puts a record (None: deletes) into the running layer. The latch does not matter: nothing is acknowledged.
    pub fn draft(&self, key: Key, record: Option<Vec<u8>>) {
        let value = record.map(|record| records::seal(&key, record));
        self.layers.with(|state| state.running.insert(key, value));
    }

    /// No number up to this one is given to a new inode.
    pub fn raise_inode_numbers(&self, highest: InodeNumber) {
        self.next_inode.fetch_max(highest.0.saturating_add(1), Ordering::Relaxed);
    }

    /// Stores everything drafted and everything pending, the bitmaps as they are in `Space`, and where the journal goes on, in one
    /// durable step. Records of the journal that could not be replayed are given up: the next transaction is numbered behind them.
    /// Returns the sequence number of the store now.
    pub fn store_draft(&self, unwritten_blocks: u64) -> Result<u64> {
        let mut role = self.commit.lock();
        let _apply = self.apply.lock();
        self.space.flush()?;
        role.counters = CountersRecord { next_inode: self.next_inode.load(Ordering::Relaxed), unwritten_blocks };
        let position = role.journal.position_behind_all()?;
        let mut extra = self.checkpoint_records(position);
        let key = schema::counters();
        let value = records::seal(&key, role.counters.encode());
        extra.insert(key, Some(value));
        let overlays = self.layers.with(|state| {
            let mut overlays = std::mem::take(&mut state.pending);
            overlays.push(std::mem::take(&mut state.running));
            (state.pending_bytes, state.committed.position) = (0, position);
            state.committed.blocks.clear();
            overlays
        });
        let newest_first = std::iter::once::<&Overlay>(&extra).chain(overlays.iter().rev());
        let mut changes = Merged::new(newest_first, ..).map(|(key, value)| (key.as_slice(), value.as_deref()));
        self.index.apply(&mut changes, true)?;
        self.layers.applied(self.index.snapshot()?);
        self.space.settle_bitmaps();
        self.tail.lock().advance(position);
        role.journal.set_head(position);
        self.durable_sequence.store(position.sequence, Ordering::Release);
        Ok(position.sequence)
    }
}
