//! From the map in memory to a batch: fresh entries that are neighbours in the file and on the device become one extent, touched
//! records are rewritten or deleted, and the changes of references go with them, all in one batch.

use super::map::{Entry, FileExtents, Kind, Written};
use crate::meta::records::{ALGORITHM_CRC32C, ExtentRecord, MapRecord};
use crate::meta::{Batch, schema};
use crate::units::{BLOCK_SIZE, BlockAddress, EXTENT_BLOCKS_MAX, blocks_for};
use std::borrow::Cow;
use std::sync::Arc;

/// Fresh data that is one run in the file and on the device: an entry, or neighbours about to become one.
pub(super) struct Gathered<'a> {
    pub(super) offset: u64,
    length: u64,
    block: BlockAddress,
    sums: Cow<'a, [u32]>,
}

impl<'a> Gathered<'a> {
    /// `length` bytes at `offset` with their first block and checksums.
    pub(super) fn new(offset: u64, length: u64, block: BlockAddress, sums: &'a [u32]) -> Gathered<'a> {
        Gathered { offset, length, block, sums: Cow::Borrowed(sums) }
    }

    /// A fresh entry, which may be a part of what was written together.
    pub(super) fn of(offset: u64, length: u64, written: &'a Written) -> Gathered<'a> {
        let first = usize::from(written.first);
        let sums = written.sums.as_deref().unwrap_or_default();
        let own = sums.get(first..first + blocks_for(length) as usize).unwrap_or_default();
        Gathered::new(offset, length, written.block(), own)
    }

    /// Both as one, if they are neighbours and one extent can hold them.
    pub(super) fn joined(&self, other: &Gathered<'_>, blocks_per_group: u64) -> Option<Gathered<'static>> {
        let (left, right) = if self.offset < other.offset { (self, other) } else { (other, self) };
        left.takes(right, blocks_per_group).then(|| Gathered {
            offset: left.offset,
            length: left.length + right.length,
            block: left.block,
            sums: [&*left.sums, &*right.sums].concat().into(),
        })
    }

    fn takes(&self, next: &Gathered<'_>, blocks_per_group: u64) -> bool {
        self.offset + self.length == next.offset
            && self.length.is_multiple_of(BLOCK_SIZE)
            && self.block.0 + self.sums.len() as u64 == next.block.0
            && !next.block.0.is_multiple_of(blocks_per_group)
            && self.sums.len() + next.sums.len() <= EXTENT_BLOCKS_MAX as usize
    }

    pub(super) fn into_entry(self, is_fresh: bool) -> Entry {
        let extent_blocks = self.sums.len() as u16;
        let sums = Some(Arc::from(self.sums));
        Entry {
            length: self.length,
            kind: Kind::Written(Written { extent: self.block, first: 0, extent_blocks, sums, is_fresh }),
        }
    }
}

impl FileExtents {
    /// Puts all changes since the last collect into `batch`. `blocks_per_group`: an extent never crosses a group.
    pub fn collect(&mut self, batch: &mut Batch, blocks_per_group: u64) {
        for gathered in self.gather(blocks_per_group) {
            self.record(gathered, batch);
        }
        let inode = self.inode();
        for offset in std::mem::take(&mut self.touched) {
            match self.entries.get(&offset) {
                Some(entry) => batch.put(schema::map(inode, offset), map_record(entry).encode()),
                None => batch.delete(schema::map(inode, offset)),
            }
        }
        for delta in std::mem::take(&mut self.deltas) {
            batch.delta(delta);
        }
        batch.unwritten(std::mem::take(&mut self.unwritten_change));
        self.settle();
    }

    /// Takes all fresh entries out, neighbours as one.
    fn gather(&mut self, blocks_per_group: u64) -> Vec<Gathered<'static>> {
        let mut gathered: Vec<Gathered<'static>> = Vec::new();
        for offset in std::mem::take(&mut self.fresh) {
            let Some(Entry { length, kind: Kind::Written(written) }) = self.entries.remove(&offset) else { continue };
            let next = Gathered::of(offset, length, &written);
            match gathered.last_mut() {
                Some(last) if last.takes(&next, blocks_per_group) => {
                    last.length += length;
                    last.sums.to_mut().extend_from_slice(&next.sums);
                }
                _ => gathered.push(Gathered { sums: Cow::Owned(next.sums.into_owned()), ..next }),
            }
        }
        gathered
    }

    fn record(&mut self, gathered: Gathered<'static>, batch: &mut Batch) {
        let (offset, block) = (gathered.offset, gathered.block);
        let sums = gathered.sums.to_vec();
        let entry = gathered.into_entry(false);
        let extent = ExtentRecord { algorithm: ALGORITHM_CRC32C, owner: self.inode(), owner_offset: offset, sums };
        batch.put(schema::extent(block), extent.encode());
        batch.put(schema::map(self.inode(), offset), map_record(&entry).encode());
        self.touched.remove(&offset);
        self.entries.insert(offset, entry);
    }
}

fn map_record(entry: &Entry) -> MapRecord {
    match &entry.kind {
        Kind::Written(written) => MapRecord::Written {
            extent: written.extent,
            first: written.first,
            extent_blocks: written.extent_blocks,
            length: entry.length,
        },
        Kind::Unwritten { .. } => MapRecord::Unwritten { length: entry.length },
    }
}
