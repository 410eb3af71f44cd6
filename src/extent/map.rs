//! The map of one file in memory: what each range is, newest state, loaded in chunks as needed.
//!
//! Entries never overlap and begin on whole blocks. A written entry is *fresh* until a collect has put its extent into the
//! running transaction; entries that are neighbours in file and on the device become one extent then. `touched` are keys whose
//! stored record is out of date. All changes since the last collect go into one batch, so a crash sees all of them or none.

use super::collect::Gathered;
use super::stored_map::{last_range, read_records};
use crate::error::Result;
use crate::lock::{RankedGuard, RankedMutex};
use crate::meta::records::{LOST, MapRecord};
use crate::meta::{Delta, Metadata, schema};
use crate::space::Run;
use crate::units::{BLOCK_SIZE, BlockAddress, EXTENT_BYTES_MAX, FILE_SIZE_MAX, InodeNumber, block_ceil, blocks_for};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Bytes of file offset that are loaded together.
const CHUNK_BYTES: u64 = 16 << 20;

/// A map of so many blocks is small.
const SMALL_BLOCKS_MAX: u64 = 1024;

/// Data in an extent.
#[derive(Clone, Debug)]
pub struct Written {
    /// First block of the extent.
    pub extent: BlockAddress,
    /// First block used, counted in the extent.
    pub first: u16,
    /// Blocks of the extent.
    pub extent_blocks: u16,
    /// Checksums of all blocks of the extent, when at hand.
    pub sums: Option<Arc<[u32]>>,
    /// Not in any transaction yet.
    pub is_fresh: bool,
}

impl Written {
    /// Found lost by a repair: there is no such extent.
    pub fn is_lost(&self) -> bool {
        self.extent == LOST
    }

    /// The first block used.
    pub fn block(&self) -> BlockAddress {
        self.extent.plus(u64::from(self.first))
    }
}

/// What a range is.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Data.
    Written(Written),
    /// Preallocated. `is_claimed`: dirty data in the cache already holds the space that was promised.
    Unwritten {
        /// See above.
        is_claimed: bool,
    },
}

/// One range of a file.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Bytes; what the last block holds behind them reads as zeros.
    pub length: u64,
    /// What it is.
    pub kind: Kind,
}

/// What a change of the map set free.
#[derive(Debug, Default)]
pub struct Dropped {
    /// Blocks that no transaction ever named: free once reads have ended.
    pub fresh: Vec<Run>,
    /// Promised blocks that are promised no more.
    pub promised_blocks: u64,
}

/// Which map is being read, and which of its lives.
#[derive(Clone, Copy)]
struct Reading {
    inode: InodeNumber,
    generation: u64,
    size: u64,
}

/// The map of one file; lock rank Extents.
#[derive(Debug)]
pub struct FileExtents {
    inode: InodeNumber,
    pub(super) entries: BTreeMap<u64, Entry>,
    /// Loaded chunks; None when all are (new files).
    loaded: Option<BTreeSet<u64>>,
    /// Counts how often everything was forgotten: what was read before that may be older than what was stored since.
    generation: u64,
    /// Keys of fresh entries.
    pub(super) fresh: BTreeSet<u64>,
    /// Keys whose stored record differs from the entry, or has none any more.
    pub(super) touched: BTreeSet<u64>,
    pub(super) deltas: Vec<Delta>,
    pub(super) unwritten_change: i64,
    /// Blocks of all entries, loaded or not.
    pub(super) blocks: u64,
    /// End of the written data that finished, or what truncate and fallocate set: the size that may be committed.
    size: u64,
    is_changed: bool,
}

impl FileExtents {
    /// The map of a new, empty file.
    pub fn empty(inode: InodeNumber) -> FileExtents {
        FileExtents {
            inode,
            entries: BTreeMap::new(),
            loaded: None,
            generation: 0,
            fresh: BTreeSet::new(),
            touched: BTreeSet::new(),
            deltas: Vec::new(),
            unwritten_change: 0,
            blocks: 0,
            size: 0,
            is_changed: false,
        }
    }

    /// The map of a stored file; chunks are loaded on use.
    pub fn stored(inode: InodeNumber, size: u64, blocks: u64) -> FileExtents {
        FileExtents { loaded: Some(BTreeSet::new()), size, blocks, ..FileExtents::empty(inode) }
    }

    /// The inode.
    pub fn inode(&self) -> InodeNumber {
        self.inode
    }

    /// Blocks mapped, written or unwritten.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The size that may be committed, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Sets the size that may be committed.
    pub fn set_size(&mut self, size: u64) {
        self.size = size;
        self.is_changed = true;
    }

    /// Changes that no batch holds yet.
    pub fn uncollected(&self) -> usize {
        self.fresh.len() + self.touched.len() + self.deltas.len() + usize::from(self.is_changed)
    }

    pub(super) fn settle(&mut self) {
        self.is_changed = false;
    }

    /// The first chunk of `start..end` that is not loaded.
    fn missing(&self, start: u64, end: u64) -> Option<u64> {
        let loaded = self.loaded.as_ref()?;
        if start >= end {
            return None;
        }
        let (first, last) = (start / CHUNK_BYTES, (end - 1) / CHUNK_BYTES);
        if loaded.contains(&u64::MAX) {
            return None;
        }
        (first..=last).find(|chunk| !loaded.contains(chunk))
    }

    /// Is all of `start..end` loaded?
    pub fn is_loaded(&self, start: u64, end: u64) -> bool {
        self.missing(start, end).is_none()
    }

    /// The map, locked, with all of `start..end` loaded. Every change of a range, and every look at one, needs this: what is not
    /// loaded looks like a hole.
    pub fn lock_loaded<'a>(
        extents: &'a RankedMutex<FileExtents>,
        meta: &Metadata,
        start: u64,
        end: u64,
    ) -> Result<RankedGuard<'a, FileExtents>> {
        loop {
            {
                let map = extents.lock();
                if map.is_loaded(start, end) {
                    return Ok(map);
                }
            }
            Self::load(extents, meta, start, end)?;
        }
    }

    /// Loads the whole map if it is of so few blocks that one read of the metadata brings it: cheaper than looking for its end.
    pub fn load_if_small(extents: &RankedMutex<FileExtents>, meta: &Metadata) -> Result<()> {
        if extents.lock().blocks <= SMALL_BLOCKS_MAX {
            Self::load(extents, meta, 0, FILE_SIZE_MAX)?;
        }
        Ok(())
    }

    /// Reads what is missing of `start..end` from the metadata. Called without the lock; `lock` takes it for a moment.
    fn load(extents: &RankedMutex<FileExtents>, meta: &Metadata, start: u64, end: u64) -> Result<()> {
        loop {
            let (reading, chunk, is_open_ended) = {
                let map = extents.lock();
                match map.missing(start, end) {
                    None => return Ok(()),
                    Some(chunk) => {
                        let reading = Reading { inode: map.inode, generation: map.generation, size: map.size };
                        (reading, chunk, end - start > 16 * CHUNK_BYTES)
                    }
                }
            };
            if is_open_ended {
                Self::load_all(extents, meta, reading)?;
            } else {
                Self::load_chunk(extents, meta, reading, chunk)?;
            }
        }
    }

    fn load_chunk(extents: &RankedMutex<FileExtents>, meta: &Metadata, reading: Reading, chunk: u64) -> Result<()> {
        let inode = reading.inode;
        let (begin, end) = (chunk * CHUNK_BYTES, (chunk + 1).saturating_mul(CHUNK_BYTES));
        // A record of an earlier chunk may reach into this one: that chunk then comes first, and owns it.
        if let Some((offset, record)) = last_range(meta, inode, begin, reading.size)?
            && offset + record.length() > begin
            && !extents.lock().is_loaded(offset, offset + 1)
        {
            Self::load_chunk(extents, meta, reading, offset / CHUNK_BYTES)?;
        }
        let mut found = Vec::new();
        read_records(meta, schema::map(inode, begin), &schema::map(inode, end), reading.size, &mut found)?;
        extents.lock().add_loaded(reading.generation, chunk, begin, end, found);
        Ok(())
    }

    fn load_all(extents: &RankedMutex<FileExtents>, meta: &Metadata, reading: Reading) -> Result<()> {
        use schema::Item;
        let inode = reading.inode;
        let mut found = Vec::new();
        read_records(meta, schema::items(inode, Item::Map), &schema::items_end(inode, Item::Map), reading.size, &mut found)?;
        let mut map = extents.lock();
        if map.generation != reading.generation {
            return Ok(());
        }
        let mut chunks: BTreeMap<u64, Vec<(u64, MapRecord)>> = BTreeMap::new();
        for record in found {
            chunks.entry(record.0 / CHUNK_BYTES).or_default().push(record);
        }
        for (chunk, part) in chunks {
            let (begin, end) = (chunk * CHUNK_BYTES, (chunk + 1).saturating_mul(CHUNK_BYTES));
            map.add_loaded(reading.generation, chunk, begin, end, part);
        }
        if let Some(loaded) = &mut map.loaded {
            loaded.insert(u64::MAX);
        }
        Ok(())
    }

    /// Enters what was read, unless the map was forgotten since: it may have changed and been stored meanwhile, and what was read
    /// be older than that. The caller then reads again.
    fn add_loaded(&mut self, generation: u64, chunk: u64, begin: u64, end: u64, found: Vec<(u64, MapRecord)>) {
        if self.generation != generation {
            return;
        }
        let Some(loaded) = &mut self.loaded else { return };
        if loaded.contains(&u64::MAX) || !loaded.insert(chunk) {
            return;
        }
        debug_assert!(self.entries.range(begin..end).next().is_none());
        for (offset, record) in found {
            let kind = match record {
                MapRecord::Written { extent, first, extent_blocks, .. } => {
                    Kind::Written(Written { extent, first, extent_blocks, sums: None, is_fresh: false })
                }
                MapRecord::Unwritten { .. } => Kind::Unwritten { is_claimed: false },
            };
            self.entries.insert(offset, Entry { length: record.length(), kind });
        }
    }

    /// Forgets what can be read again, when nothing waits to be collected and nobody claimed a promise.
    pub fn forget(&mut self) {
        if self.uncollected() == 0 && self.unwritten_change == 0 {
            let has_claims = self.entries.values().any(|entry| matches!(entry.kind, Kind::Unwritten { is_claimed: true }));
            if !has_claims {
                self.entries.clear();
                self.loaded = Some(BTreeSet::new());
                self.generation += 1;
            }
        }
    }

    /// Entries in memory.
    pub fn entry_count(&self) -> usize {
        self.entries.len()
    }

    /// The loaded entries that overlap `start..end`, cut to nothing: offsets and whole entries.
    pub fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Entry)> {
        let begin = self
            .entries
            .range(..=start)
            .next_back()
            .filter(|(offset, entry)| **offset + block_ceil(entry.length) > start)
            .map_or(start, |(offset, _)| *offset);
        self.entries.range(begin..end.max(begin)).map(|(offset, entry)| (*offset, entry))
    }

    /// Offset and end of the last entry in memory that begins before `end`.
    pub fn last_entry(&self, end: u64) -> Option<(u64, u64)> {
        self.entries.range(..end).next_back().map(|(offset, entry)| (*offset, offset + block_ceil(entry.length)))
    }

    /// Is the whole map in memory?
    pub fn is_complete(&self) -> bool {
        self.loaded.as_ref().is_none_or(|loaded| loaded.contains(&u64::MAX))
    }

    /// Is every block of `start..end` unwritten and unclaimed?
    pub fn is_unwritten(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        for (offset, entry) in self.overlapping(start, end) {
            if offset > at || !matches!(entry.kind, Kind::Unwritten { is_claimed: false }) {
                return false;
            }
            at = offset + block_ceil(entry.length);
        }
        at >= end
    }

    /// Marks the unwritten range as claimed by dirty data.
    pub fn claim(&mut self, start: u64, end: u64) {
        self.split_at(start);
        self.split_at(end);
        for (_, entry) in self.entries.range_mut(start..end) {
            if let Kind::Unwritten { is_claimed } = &mut entry.kind {
                *is_claimed = true;
            }
        }
    }

    /// Makes `at` (a whole block) a border between entries.
    fn split_at(&mut self, at: u64) {
        let Some((&offset, entry)) = self.entries.range_mut(..at).next_back() else { return };
        if offset + entry.length <= at {
            return;
        }
        let mut right = entry.clone();
        right.length = entry.length - (at - offset);
        entry.length = at - offset;
        let is_fresh = match &mut right.kind {
            Kind::Written(written) => {
                written.first += ((at - offset) / BLOCK_SIZE) as u16;
                written.is_fresh
            }
            Kind::Unwritten { .. } => false,
        };
        if is_fresh {
            self.fresh.insert(at);
        } else {
            self.touched.insert(offset);
            self.touched.insert(at);
        }
        self.entries.insert(at, right);
    }

    /// Replaces the whole blocks `start..end` by nothing (a hole). The range must be loaded.
    pub fn remove(&mut self, start: u64, end: u64) -> Dropped {
        let mut dropped = Dropped::default();
        if start >= end {
            return dropped;
        }
        self.split_at(start);
        if end < u64::MAX / 2 {
            self.split_at(end);
        }
        let keys: Vec<u64> = self.entries.range(start..end).map(|(offset, _)| *offset).collect();
        for offset in keys {
            let Some(entry) = self.entries.remove(&offset) else { continue };
            let blocks = blocks_for(entry.length);
            self.blocks = self.blocks.saturating_sub(blocks);
            match entry.kind {
                Kind::Written(written) if written.is_fresh => {
                    self.fresh.remove(&offset);
                    dropped.fresh.push((written.block().0, blocks as u32));
                }
                Kind::Written(written) => {
                    self.touched.insert(offset);
                    self.deltas.extend((!written.is_lost()).then_some(Delta {
                        extent: written.extent,
                        extent_blocks: written.extent_blocks,
                        first: written.first,
                        count: blocks as u16,
                        change: -1,
                    }));
                }
                Kind::Unwritten { is_claimed } => {
                    self.touched.insert(offset);
                    self.unwritten_change -= blocks as i64;
                    if !is_claimed {
                        dropped.promised_blocks += blocks;
                    }
                }
            }
        }
        dropped
    }

    /// Enters data that is on the device now: `length` bytes at `offset` in a new extent. Neighbours become one entry at once, so
    /// that a map of many small writes stays small and is collected only when it cannot: each collect cuts extents where writes
    /// are still in flight. `blocks_per_group`: an extent never crosses a group.
    pub fn finish(&mut self, offset: u64, length: u64, extent: BlockAddress, sums: Arc<[u32]>, blocks_per_group: u64) -> Dropped {
        let dropped = self.remove(offset, offset + block_ceil(length));
        let blocks = blocks_for(length);
        let mut gathered = Gathered::new(offset, length, extent, &sums);
        let neighbours = [self.fresh.range(..offset).next_back().copied(), self.fresh.range(offset..).next().copied()];
        for neighbour in neighbours.into_iter().flatten() {
            let Some(Entry { length, kind: Kind::Written(written) }) = self.entries.get(&neighbour) else { continue };
            // The collect joins over the borders of windows; pieces that lie across them would not fit together there.
            if neighbour / EXTENT_BYTES_MAX == offset / EXTENT_BYTES_MAX
                && let Some(joined) = gathered.joined(&Gathered::of(neighbour, *length, written), blocks_per_group)
            {
                gathered = joined;
                self.entries.remove(&neighbour);
                self.fresh.remove(&neighbour);
            }
        }
        self.fresh.insert(gathered.offset);
        self.entries.insert(gathered.offset, gathered.into_entry(true));
        self.blocks += blocks;
        self.size = self.size.max(offset + length);
        dropped
    }

    /// Fills the holes of `start..end` with unwritten ranges; the blocks for them are promised already. How many blocks.
    pub fn preallocate(&mut self, start: u64, end: u64) -> u64 {
        let mut added = 0;
        for (hole_start, hole_end) in self.holes(start, end) {
            self.entries.insert(hole_start, Entry { length: hole_end - hole_start, kind: Kind::Unwritten { is_claimed: false } });
            self.touched.insert(hole_start);
            added += blocks_for(hole_end - hole_start);
        }
        self.blocks += added;
        self.unwritten_change += added as i64;
        added
    }

    /// The ranges of whole blocks in `start..end` that no entry covers.
    pub fn holes(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut holes = Vec::new();
        let mut at = start;
        for (offset, entry) in self.overlapping(start, end) {
            if offset > at {
                holes.push((at, offset.min(end)));
            }
            at = at.max(offset + block_ceil(entry.length));
        }
        if at < end {
            holes.push((at, end));
        }
        holes
    }

    /// Cuts the file to `size` bytes: blocks behind are dropped, the last entry ends there (D6). Must be loaded from there on.
    pub fn truncate(&mut self, size: u64) -> Dropped {
        let dropped = self.remove(block_ceil(size), u64::MAX);
        if let Some((&offset, entry)) = self.entries.range_mut(..size).next_back()
            && offset + entry.length > size
        {
            entry.length = size - offset;
            if !self.fresh.contains(&offset) {
                self.touched.insert(offset);
            }
        }
        self.set_size(size);
        dropped
    }

    /// Remembers the checksums of an extent, for the entries that use it.
    pub fn remember_sums(&mut self, offset: u64, extent: BlockAddress, sums: &Arc<[u32]>) {
        if let Some(entry) = self.entries.get_mut(&offset)
            && let Kind::Written(written) = &mut entry.kind
            && written.extent == extent
        {
            written.sums = Some(sums.clone());
        }
    }
}
