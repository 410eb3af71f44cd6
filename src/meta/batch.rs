//! A batch: all metadata changes of one operation, appended to the running transaction in one step.

use super::records::seal;
use super::schema::Key;
use crate::units::BlockAddress;

/// Largest batch in bytes; operations that need more go in steps that each leave a consistent state.
pub const BATCH_BYTES_MAX: usize = 1 << 20;

/// A change of references to blocks of one extent; the commit folds them into whole values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    /// The extent.
    pub extent: BlockAddress,
    /// Blocks of the extent.
    pub extent_blocks: u16,
    /// First block concerned.
    pub first: u16,
    /// How many blocks.
    pub count: u16,
    /// +1: one more reference each; -1: one less.
    pub change: i32,
}

/// Puts, deletes and deltas of one operation.
#[derive(Debug, Default)]
pub struct Batch {
    /// Key and sealed value; None deletes.
    pub(crate) changes: Vec<(Key, Option<Vec<u8>>)>,
    /// Changes of references.
    pub(crate) deltas: Vec<Delta>,
    /// Change of the number of promised blocks.
    pub(crate) unwritten_blocks: i64,
    bytes: usize,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Sets `key` to `record`.
    pub fn put(&mut self, key: Key, record: Vec<u8>) {
        let value = seal(&key, record);
        self.bytes += key.len() + value.len() + 16;
        self.changes.push((key, Some(value)));
    }

    /// Deletes `key`, which may be absent.
    pub fn delete(&mut self, key: Key) {
        self.bytes += key.len() + 16;
        self.changes.push((key, None));
    }

    /// Adds a change of references.
    pub fn delta(&mut self, delta: Delta) {
        self.bytes += 64;
        self.deltas.push(delta);
    }

    /// Adds to (or takes from) the blocks promised to unwritten ranges.
    pub fn unwritten(&mut self, blocks: i64) {
        self.unwritten_blocks += blocks;
    }

    /// Bytes so far, about as many as the journal will need.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Nothing in it?
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.deltas.is_empty() && self.unwritten_blocks == 0
    }
}
