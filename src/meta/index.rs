//! The index as the transaction layer sees it: an ordered map of byte strings with snapshots, fed in large batches, made
//! durable only by checkpoints. Implementations: redb (default), sled, memory (tests).

use crate::error::Result;
use std::ops::ControlFlow;
use std::sync::Arc;

/// One change: key, and the new value or None to delete.
pub type Change<'a> = (&'a [u8], Option<&'a [u8]>);

/// What a range visit calls for every key and value.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// An ordered map of byte strings. All methods may be called from several threads; `apply` from one at a time.
pub trait Index: Send + Sync + std::fmt::Debug {
    /// The state now; later applies do not change it.
    fn snapshot(&self) -> Result<Arc<dyn Snapshot>>;
    /// Applies the changes (sorted by key, each key once) in one atomic step. `durable` makes this and all earlier ones
    /// survive a power cut before it returns; without it a power cut falls back to the last durable one, in sled with some of the
    /// later changes (the checkpoint record never among them, unless all are there).
    fn apply(&self, changes: &mut dyn Iterator<Item = Change<'_>>, durable: bool) -> Result<()>;
    /// Bytes set aside on the host for growth that are not used yet.
    fn space_ahead_bytes(&self) -> u64;
    /// Sets more space aside, so that `bytes` of growth cannot fail; an error leaves the index usable.
    fn reserve_ahead(&self, bytes: u64) -> Result<()>;
    /// Verifies everything, both copies of each page, healing what can be healed; the number of healed pages.
    fn verify(&self) -> Result<u64> {
        Ok(self.verify_while(&|| true)?.unwrap_or(0))
    }
    /// As `verify`, as long as `goes_on`; None when that ended it.
    fn verify_while(&self, goes_on: &dyn Fn() -> bool) -> Result<Option<u64>>;
    /// Pages healed from their second copy since opening.
    fn healed_count(&self) -> u64;
    /// Bytes the index takes on its disk.
    fn disk_bytes(&self) -> u64;
    /// How many checkpoints before the last one the journal must reach back to: so many a power cut may take from the index.
    fn checkpoints_kept(&self) -> usize {
        0
    }
    /// Stored checkpoint records before the last one, the newest first, at most `checkpoints_kept`.
    fn earlier_checkpoints(&self) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }
}

/// A state of the index at one moment.
pub trait Snapshot: Send + Sync {
    /// The value of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;
    /// Visits `from <= key < to` in order until told to stop.
    fn range(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<()>;
    /// The last key in `from <= key < to` and its value.
    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>>;
}
