//! From the pending layer into the index, in the background; and checkpoints, which make the index durable and move the
//! journal's tail. Never waits for a commit; needs no space on data devices.

use super::layers::{Committed, Overlay};
use super::merged::Merged;
use super::records::{self, CheckpointRecord};
use super::schema;
use super::transaction::{Metadata, Pressure};
use crate::error::Result;
use crate::lock::assert_may_wait;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of host space that the index is to have ahead of its highest page, at least.
const AHEAD_BYTES_MIN: u64 = 64 << 20;

impl Metadata {
    /// Bytes of committed records that wait to be applied.
    pub fn pending_bytes(&self) -> u64 {
        self.layers.read(|state| state.pending_bytes)
    }

    /// Moves all pending records into the index, not durably.
    pub fn apply(&self) -> Result<()> {
        self.apply_with(false, false, || true)
    }

    /// Moves all pending records into the index and makes it durable. Where the index may fall back to earlier checkpoints, a journal that
    /// is more than half full is freed by more of them.
    pub fn checkpoint(&self) -> Result<()> {
        self.apply_with(true, false, || true)?;
        self.shorten_journal()
    }

    /// As `checkpoint`, if the journal still needs it once others have done what they were doing: they were perhaps doing just that.
    pub fn relieve_journal(&self) -> Result<()> {
        self.apply_with(true, false, || self.pressure() == Pressure::Checkpoint)?;
        self.shorten_journal()
    }

    fn shorten_journal(&self) -> Result<()> {
        while self.journal_used_bytes() > self.journal_bytes / 2 && self.tail.lock().is_kept_back() {
            self.let_go_of_journal()?;
        }
        Ok(())
    }

    /// One more checkpoint, also with nothing new, so that the journal need not reach back so far.
    pub(super) fn let_go_of_journal(&self) -> Result<()> {
        self.apply_with(true, true, || true)
    }

    fn apply_with(&self, is_durable: bool, is_repeated: bool, is_needed: impl FnOnce() -> bool) -> Result<()> {
        assert_may_wait("applying");
        let role = self.apply.lock();
        self.latch.check()?;
        if !is_needed() {
            return Ok(());
        }
        let (overlays, bytes, committed) = self.layers.with(|state| {
            let overlays = Arc::new(std::mem::take(&mut state.pending));
            state.applying = overlays.clone();
            let bytes = std::mem::take(&mut state.pending_bytes);
            let next = Committed { position: state.committed.position, blocks: Vec::new() };
            (overlays, bytes, std::mem::replace(&mut state.committed, next))
        });
        let has_changes = !overlays.iter().all(Overlay::is_empty) || is_durable && self.has_image_to_record();
        let is_nothing_new = || !is_durable || !is_repeated && self.tail.lock().newest() == committed.position;
        if !has_changes && is_nothing_new() {
            self.layers.with(|state| state.applying = Arc::default());
            return Ok(());
        }
        self.keep_ahead(bytes);
        let result = self.apply_overlays(&overlays, &committed, is_durable);
        drop(role);
        match result {
            Ok(()) => Ok(()),
            Err(error) => self.fail(if is_durable { "index checkpoint" } else { "index apply" }, error),
        }
    }

    fn apply_overlays(&self, overlays: &[Overlay], committed: &Committed, is_durable: bool) -> Result<()> {
        for (allocated, freed) in &committed.blocks {
            self.space.apply(allocated, freed)?;
        }
        let mut extra = if is_durable { self.checkpoint_records(committed.position) } else { Overlay::new() };
        self.log_to_image(overlays, &mut extra, is_durable.then_some(committed.position));
        let mut records = 0;
        let newest_first = std::iter::once(&extra).chain(overlays.iter().rev());
        let mut changes = Merged::new(newest_first, ..).map(|(key, value)| {
            records += 1;
            (key.as_slice(), value.as_deref())
        });
        self.index.apply(&mut changes, is_durable)?;
        self.stats.applied_records.fetch_add(records - extra.len() as u64, Ordering::Relaxed);
        self.layers.applied(self.index.snapshot()?);
        if is_durable {
            self.space.settle_bitmaps();
            self.tail.lock().advance(committed.position);
            self.measure_journal();
            self.tail_moved.notify_all();
            self.stats.checkpoints.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(super) fn checkpoint_records(&self, position: CheckpointRecord) -> Overlay {
        let mut extra = Overlay::new();
        let key = schema::checkpoint();
        let value = records::seal(&key, position.encode());
        extra.insert(key, Some(value));
        for (group, bytes) in self.space.changed_bitmaps() {
            let key = schema::bitmap(group);
            let value = records::seal(&key, bytes);
            extra.insert(key, Some(value));
        }
        extra
    }

    /// Asks a host that had no room once more for the usual space ahead of the index; true when there is room now.
    pub(super) fn find_room(&self) -> bool {
        let has_room = self.index.reserve_ahead(AHEAD_BYTES_MIN.min(self.journal_bytes)).is_ok();
        if has_room {
            tracing::info!("the host has space for the index again");
            self.is_index_full.store(false, Ordering::Relaxed);
        }
        has_room
    }

    /// Keeps host space ahead of the index, so that redb never sees an ENOSPC; when the host has none, creating operations are
    /// refused before that.
    fn keep_ahead(&self, bytes: u64) {
        let wanted = AHEAD_BYTES_MIN.min(self.journal_bytes).max(4 * bytes);
        if self.index.space_ahead_bytes() >= wanted {
            return;
        }
        let reserved = self.index.reserve_ahead(wanted);
        let was_full = self.is_index_full.swap(reserved.is_err(), Ordering::Relaxed);
        if let (Err(error), false) = (reserved, was_full) {
            tracing::warn!("no space on the host for the index to grow: {error}; what adds data is refused until there is");
        }
    }
}
