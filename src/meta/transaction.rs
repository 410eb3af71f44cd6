//! Metadata: the running transaction and everything below it. Operations append batches; the commit role (`commit.rs`) makes
//! them durable; `apply.rs` moves them on into the index; `replay.rs` brings them back after a crash.
//!
//! Locks: `commit` (the role, held across I/O, nothing else may be held when taking it), `apply` (same; may be taken under
//! `commit`), then the layers (rank Transaction).

use super::batch::Batch;
use super::image::Image;
use super::index::Index;
use super::journal::{Journal, used_between};
use super::latch::Latch;
use super::layers::{Layers, Page};
use super::records::CountersRecord;
use super::schema::Key;
use super::tail::Tail;
use crate::error::Result;
use crate::space::Space;
use crate::stats::Stats;
use crate::sync::{AtomicBool, AtomicU64, Condvar, Mutex};
use crate::units::InodeNumber;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The longest that a change waits when the journal is nearly half full.
const SLOWEST: Duration = Duration::from_millis(2);

/// Owned by the commit role.
#[derive(Debug)]
pub(super) struct CommitState {
    pub(super) journal: Journal,
    pub(super) counters: CountersRecord,
}

/// How much the caller should do before it adds more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// Nothing.
    None,
    /// The running transaction is large: commit.
    Commit,
    /// The journal is half full: checkpoint.
    Checkpoint,
}

/// The metadata of a store.
#[derive(Debug)]
pub struct Metadata {
    pub(super) layers: Layers,
    pub(super) commit: Mutex<CommitState>,
    /// Taken by whoever applies.
    pub(super) apply: Mutex<()>,
    /// The last durable checkpoint, and where the journal begins.
    pub(super) tail: Mutex<Tail>,
    /// Signalled when the tail has moved.
    pub(super) tail_moved: Condvar,
    pub(super) index: Arc<dyn Index>,
    /// None: none is kept.
    pub(super) image: Option<Image>,
    pub(super) space: Arc<Space>,
    pub(super) latch: Arc<Latch>,
    pub(super) stats: Arc<Stats>,
    pub(super) next_inode: AtomicU64,
    pub(super) durable_sequence: AtomicU64,
    pub(super) running_bytes: AtomicU64,
    pub(super) dropped_blocks: AtomicU64,
    pub(super) journal_used_bytes: AtomicU64,
    /// The part of it behind the last checkpoint.
    pub(super) unapplied_bytes: AtomicU64,
    pub(super) journal_bytes: u64,
    pub(super) is_index_full: AtomicBool,
}

impl Metadata {
    /// Adds a batch to the running transaction in one step; the sequence number of the transaction it is in.
    pub fn append(&self, batch: Batch) -> Result<u64> {
        self.latch.check()?;
        let bytes = batch.bytes() as u64;
        let dropped = batch.deltas.iter().filter(|delta| delta.change < 0).map(|delta| u64::from(delta.count)).sum::<u64>();
        let sequence = self.layers.with(|state| {
            for (key, value) in batch.changes {
                state.running.insert(key, value);
            }
            let open = &mut state.open;
            open.deltas.extend(batch.deltas);
            open.unwritten_blocks += batch.unwritten_blocks;
            open.dropped_blocks += dropped;
            self.dropped_blocks.fetch_add(dropped, Ordering::Relaxed);
            open.bytes += bytes;
            self.running_bytes.store(open.bytes, Ordering::Relaxed);
            open.sequence
        });
        Ok(sequence)
    }

    /// The record of a key.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.layers.get(key)
    }

    /// At most `limit` records of `from <= key < to`, and where to go on.
    pub fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Page> {
        self.layers.scan(from, to, limit)
    }

    /// As `scan`, with the stored values unopened: check wants to see damaged ones.
    pub fn scan_sealed(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Page> {
        self.layers.scan_sealed(from, to, limit)
    }

    /// The first key of `from <= key < to`.
    pub fn first_key(&self, from: &[u8], to: &[u8]) -> Result<Option<Key>> {
        self.layers.first_key(from, to)
    }

    /// The last record of `from <= key < to`.
    pub fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Key, Vec<u8>)>> {
        self.layers.last(from, to)
    }

    /// As `last`, with the stored value unopened.
    pub fn last_sealed(&self, from: &[u8], to: &[u8]) -> Result<Option<(Key, Vec<u8>)>> {
        self.layers.last_sealed(from, to)
    }

    /// A new inode number.
    pub fn new_inode_number(&self) -> InodeNumber {
        InodeNumber(self.next_inode.fetch_add(1, Ordering::Relaxed))
    }

    /// Inode numbers given out so far.
    pub fn inode_numbers_used(&self) -> u64 {
        self.next_inode.load(Ordering::Relaxed)
    }

    /// Is there anything that a power cut would lose?
    pub fn has_uncommitted(&self) -> bool {
        self.running_bytes.load(Ordering::Relaxed) > 0
    }

    /// Is there anything committed that the index does not hold durably?
    pub fn has_unapplied(&self) -> bool {
        self.unapplied_bytes.load(Ordering::Relaxed) > 0
    }

    /// Journal bytes that may not be overwritten: behind the last checkpoint, or earlier ones that the index may fall back to.
    pub fn journal_used_bytes(&self) -> u64 {
        self.journal_used_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the journal.
    pub fn journal_size_bytes(&self) -> u64 {
        self.journal_bytes
    }

    /// Sequence number of the last durable transaction.
    pub fn durable_sequence(&self) -> u64 {
        self.durable_sequence.load(Ordering::Acquire)
    }

    /// About how many blocks are free once everything appended, what is being committed included, is durable.
    pub fn dropped_blocks(&self) -> u64 {
        self.dropped_blocks.load(Ordering::Relaxed)
    }

    /// Bytes at which the running transaction is to be committed.
    pub fn transaction_bytes_max(&self) -> u64 {
        (8 << 20).min(self.journal_bytes / 16)
    }

    /// Is it time for somebody who has nothing else to do to commit?
    pub fn is_commit_due(&self) -> bool {
        self.running_bytes.load(Ordering::Relaxed) > self.transaction_bytes_max() / 2
    }

    /// Is the running transaction as large as one may be?
    pub fn is_transaction_full(&self) -> bool {
        self.running_bytes.load(Ordering::Relaxed) > self.transaction_bytes_max()
    }

    /// What an operation that adds metadata must see to first, before it takes any lock.
    pub fn pressure(&self) -> Pressure {
        if self.journal_used_bytes.load(Ordering::Relaxed) > self.journal_bytes / 2 {
            Pressure::Checkpoint
        } else if self.is_transaction_full() {
            Pressure::Commit
        } else {
            Pressure::None
        }
    }

    /// Before the journal is so full that changes must wait for a checkpoint they wait a little each, the longer the less room is
    /// left: a checkpoint under way ends meanwhile, and nobody has to wait for all of it.
    pub fn slow_down(&self) {
        let span = self.journal_bytes / 8;
        let over = self.journal_used_bytes.load(Ordering::Relaxed).saturating_sub(3 * span);
        if over == 0 || span == 0 {
            return;
        }
        let wait = SLOWEST.mul_f64((over as f64 / span as f64).min(1.0));
        let mut tail = self.tail.lock();
        self.tail_moved.wait_for(&mut tail, wait);
    }

    /// Sequence number of the transaction that appends go to now.
    pub fn running_sequence(&self) -> u64 {
        self.layers.read(|state| state.open.sequence)
    }

    /// Had the host no room for the index to grow when it was asked last?
    pub fn lacks_room(&self) -> bool {
        self.is_index_full.load(Ordering::Relaxed)
    }

    /// An error when the index cannot grow: operations that create must not begin, ones that delete may. The host is asked again
    /// before it is refused: nothing else would notice that it has room again while only creating is tried.
    pub fn check_room(&self) -> Result<()> {
        if self.lacks_room() && !self.find_room() { Err(crate::error::Error::NoSpace) } else { Ok(()) }
    }

    /// The latch.
    pub fn latch(&self) -> &Arc<Latch> {
        &self.latch
    }

    /// Sets the latch for a fault and gives the error back.
    pub(super) fn fail<T>(&self, doing: &str, error: crate::error::Error) -> Result<T> {
        self.latch.set(&format!("{doing}: {error}"), true);
        Err(error)
    }

    /// Brings the figure of used journal bytes up to date: after a commit moved the head, or a checkpoint the tail.
    pub(super) fn measure_journal(&self) {
        let tail = self.tail.lock();
        let head = self.layers.read(|state| state.committed.position);
        self.journal_used_bytes.store(used_between(self.journal_bytes, tail.oldest(), head), Ordering::Relaxed);
        self.unapplied_bytes.store(used_between(self.journal_bytes, tail.newest(), head), Ordering::Relaxed);
    }

    /// Figures for `info` and `stats`.
    pub fn status(&self) -> serde_json::Value {
        let pending = self.layers.read(|state| (state.pending_records(), state.pending_bytes));
        serde_json::json!({
            "durable_sequence": self.durable_sequence(),
            "running_bytes": self.running_bytes.load(Ordering::Relaxed),
            "pending_records": pending.0,
            "pending_bytes": pending.1,
            "journal_bytes": self.journal_bytes,
            "journal_used_bytes": self.journal_used_bytes.load(Ordering::Relaxed),
            "index_bytes": self.index.disk_bytes(),
            "index_healed_pages": self.index.healed_count(),
            "image": self.image_status(),
        })
    }
}
