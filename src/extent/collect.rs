//! From the map in memory to a batch: fresh entries that are neighbours in the file and on the device become one extent, touched
//! records are rewritten or deleted, and the changes of references go with them, all in one batch.

use super::map::{Entry, FileExtents, Kind, Written};
use crate::meta::records::{ALGORITHM_CRC32C, ExtentRecord, MapRecord};
use crate::meta::{Batch, schema};
use crate::units::{BLOCK_SIZE, BlockAddress, EXTENT_BLOCKS_MAX, blocks_for};
use std::sync::Arc;

/// Fresh neighbours about to become one extent.
struct Gathered {
    offset: u64,
    length: u64,
    block: BlockAddress,
    sums: Vec<u32>,
    keys: Vec<u64>,
}

impl FileExtents {
    /// Puts all changes since the last collect into `batch`. `blocks_per_group`: an extent never crosses a group.
    pub fn collect(&mut self, batch: &mut Batch, blocks_per_group: u64) {
        let fresh = std::mem::take(&mut self.fresh);
        let mut gathered: Option<Gathered> = None;
        for offset in fresh {
            let Some(Entry { length, kind: Kind::Written(written) }) = self.entries.get(&offset) else { continue };
            let sums = own_sums(written, *length);
            let block = written.block();
            match &mut gathered {
                Some(last) if last.takes(offset, block, sums.len(), blocks_per_group) => {
                    last.length += length;
                    last.sums.extend_from_slice(sums);
                    last.keys.push(offset);
                }
                _ => {
                    let next = Gathered { offset, length: *length, block, sums: sums.to_vec(), keys: vec![offset] };
                    if let Some(last) = gathered.replace(next) {
                        self.record(last, batch);
                    }
                }
            }
        }
        if let Some(last) = gathered {
            self.record(last, batch);
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

    fn record(&mut self, gathered: Gathered, batch: &mut Batch) {
        let Gathered { offset, length, block, sums, keys } = gathered;
        for key in keys {
            self.entries.remove(&key);
        }
        let sums: Arc<[u32]> = sums.into();
        let written =
            Written { extent: block, first: 0, extent_blocks: sums.len() as u16, sums: Some(sums.clone()), is_fresh: false };
        let entry = Entry { length, kind: Kind::Written(written) };
        let extent = ExtentRecord { algorithm: ALGORITHM_CRC32C, owner: self.inode(), owner_offset: offset, sums: sums.to_vec() };
        batch.put(schema::extent(block), extent.encode());
        batch.put(schema::map(self.inode(), offset), map_record(&entry).encode());
        self.touched.remove(&offset);
        self.entries.insert(offset, entry);
    }
}

impl Gathered {
    fn takes(&self, offset: u64, block: BlockAddress, blocks: usize, blocks_per_group: u64) -> bool {
        self.offset + self.length == offset
            && self.length.is_multiple_of(BLOCK_SIZE)
            && self.block.0 + self.sums.len() as u64 == block.0
            && !block.0.is_multiple_of(blocks_per_group)
            && self.sums.len() + blocks <= EXTENT_BLOCKS_MAX as usize
    }
}

fn own_sums(written: &Written, length: u64) -> &[u32] {
    let first = usize::from(written.first);
    let sums = written.sums.as_deref().unwrap_or_default();
    sums.get(first..first + blocks_for(length) as usize).unwrap_or_default()
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
