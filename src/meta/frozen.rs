//! The metadata as one commit left it, to look at for as long as one likes while the store goes on: a snapshot of the index, what was
//! pending above it, and the bitmaps of exactly that state. Nobody waits for who looks; only commits wait, while it is taken.

use super::index::{Change, Index, Snapshot};
use super::journal::Journal;
use super::latch::Latch;
use super::layers::Layers;
use super::records::CheckpointRecord;
use super::tail::Tail;
use super::transaction::{CommitState, Metadata};
use crate::disk::memory::MemoryDisk;
use crate::error::{Error, Result};
use crate::stats::Stats;
use crate::sync::{AtomicBool, AtomicU64, Condvar, Mutex};
use std::sync::Arc;

/// An index that stays as it is.
struct FrozenIndex(Arc<dyn Snapshot>);

impl std::fmt::Debug for FrozenIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FrozenIndex")
    }
}

impl Index for FrozenIndex {
    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        Ok(self.0.clone())
    }

    fn apply(&self, _changes: &mut dyn Iterator<Item = Change<'_>>, _durable: bool) -> Result<()> {
        Err(Error::Invalid("a snapshot of the index does not change"))
    }

    fn space_ahead_bytes(&self) -> u64 {
        0
    }

    fn reserve_ahead(&self, _bytes: u64) -> Result<()> {
        Ok(())
    }

    fn verify_while(&self, _goes_on: &dyn Fn() -> bool) -> Result<Option<u64>> {
        Ok(Some(0))
    }

    fn healed_count(&self) -> u64 {
        0
    }

    fn disk_bytes(&self) -> u64 {
        0
    }
}

impl Metadata {
    /// Commits, and gives the state after that. What is appended later is not in it.
    pub fn frozen(&self) -> Result<Metadata> {
        if self.latch.check().is_ok() {
            self.commit()?;
            // Most of the work, before anybody has to wait.
            self.apply()?;
        }
        let role = self.commit.lock();
        if self.latch.check().is_ok() {
            self.apply()?;
        }
        let _apply = self.apply.lock();
        let index: Arc<dyn Index> = Arc::new(FrozenIndex(self.index.snapshot()?));
        let stats = Arc::new(Stats::default());
        let layers = Layers::new(&*index, stats.clone())?;
        // Empty but for a store that cannot apply any more, or was mounted read-only.
        let (overlays, blocks, position) = self.layers.read(|state| {
            let overlays: Vec<_> = state.applying.iter().chain(&state.pending).cloned().collect();
            (overlays, state.committed.blocks.clone(), state.committed.position)
        });
        layers.with(|state| {
            state.pending = overlays;
            state.open.sequence = position.sequence + 1;
        });
        let space = self.space.frozen();
        for (allocated, freed) in &blocks {
            space.replay(allocated, freed)?;
        }
        let nowhere = CheckpointRecord { sequence: position.sequence, ..CheckpointRecord::default() };
        let journal = Journal::new(Arc::new(MemoryDisk::new("no journal", 0)), [0; 16], nowhere)?;
        let counters = role.counters;
        Ok(Metadata {
            layers,
            commit: Mutex::new(CommitState { journal, counters }),
            apply: Mutex::new(()),
            tail: Mutex::new(Tail::new(nowhere, &[], 0, 0, nowhere)),
            tail_moved: Condvar::new(),
            index,
            space: Arc::new(space),
            latch: Arc::new(Latch::default()),
            stats,
            next_inode: AtomicU64::new(counters.next_inode),
            durable_sequence: AtomicU64::new(position.sequence),
            running_bytes: AtomicU64::new(0),
            dropped_blocks: AtomicU64::new(0),
            journal_used_bytes: AtomicU64::new(0),
            unapplied_bytes: AtomicU64::new(0),
            journal_bytes: 0,
            image: None,
            is_index_full: AtomicBool::new(false),
        })
    }
}
