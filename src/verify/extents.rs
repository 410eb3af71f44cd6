//! Extents in address order, each with its state and with the references that the file maps gave: counts, liveness, overlaps,
//! and the bitmaps of used blocks. One group's bitmap is held at a time. Dead blocks of an extent may hold newer extents, so only
//! live blocks must not overlap.

use super::findings::{Findings, Items, hex};
use super::issue::Issue;
use super::references::Reference;
use crate::error::Result;
use crate::meta::Metadata;
use crate::meta::records::{self, ExtentRecord, ExtentStateRecord};
use crate::meta::schema::{self, Key, Parsed};
use crate::space::Space;
use crate::space::bitmap::Bitmap;
use crate::units::{BlockAddress, EXTENT_BLOCKS_MAX, InodeNumber};
use std::iter::Peekable;
use std::ops::Range;

/// What is stored under one extent address, sealed.
pub(super) struct StoredExtent {
    pub(super) address: u64,
    pub(super) extent: Option<Vec<u8>>,
    pub(super) state: Option<Vec<u8>>,
}

/// Extents and their states, joined by address.
pub(super) struct StoredExtents<'a> {
    extents: Table<'a>,
    states: Table<'a>,
}

/// One of the two tables with its next item.
struct Table<'a> {
    items: Items<'a>,
    next: Option<(u64, Vec<u8>)>,
    /// Keys that are no addresses.
    unknown: Vec<Key>,
}

impl<'a> Table<'a> {
    fn new(metadata: &'a Metadata, from: Key, end: Key) -> Result<Table<'a>> {
        let mut table = Table { items: Items::new(metadata, from, end), next: None, unknown: Vec::new() };
        table.advance()?;
        Ok(table)
    }

    fn advance(&mut self) -> Result<()> {
        self.next = None;
        while let Some((key, value)) = self.items.next()? {
            if let Some(Parsed::Extent(address) | Parsed::ExtentState(address)) = schema::parse(&key) {
                self.next = Some((address.0, value));
                break;
            }
            self.unknown.push(key);
        }
        Ok(())
    }

    fn address(&self) -> Option<u64> {
        self.next.as_ref().map(|(address, _)| *address)
    }

    fn take_if_at(&mut self, address: u64) -> Result<Option<Vec<u8>>> {
        if self.address() != Some(address) {
            return Ok(None);
        }
        let value = self.next.take().map(|(_, value)| value);
        self.advance()?;
        Ok(value)
    }
}

impl<'a> StoredExtents<'a> {
    /// Those of the addresses in `range`; an end of `u64::MAX` is the end of the table.
    pub(super) fn new(metadata: &'a Metadata, range: Range<u64>) -> Result<StoredExtents<'a>> {
        let bounds = |key: fn(BlockAddress) -> Key, table: u8| {
            let end = if range.end == u64::MAX { schema::table_end(table) } else { key(BlockAddress(range.end)) };
            (key(BlockAddress(range.start)), end)
        };
        let (extents, states) = (bounds(schema::extent, schema::EXTENTS), bounds(schema::extent_state, schema::EXTENT_STATES));
        Ok(StoredExtents {
            extents: Table::new(metadata, extents.0, extents.1)?,
            states: Table::new(metadata, states.0, states.1)?,
        })
    }

    /// The next address, if it lies below `end` (`u64::MAX`: any).
    pub(super) fn next_below(&mut self, end: u64) -> Result<Option<StoredExtent>> {
        let next = [self.extents.address(), self.states.address()].into_iter().flatten().min();
        let Some(address) = next.filter(|address| *address < end || end == u64::MAX) else { return Ok(None) };
        let (extent, state) = (self.extents.take_if_at(address)?, self.states.take_if_at(address)?);
        Ok(Some(StoredExtent { address, extent, state }))
    }
}

/// The walk over the extents; may be fed with references window by window.
pub(super) struct Sweep<'a> {
    stored: StoredExtents<'a>,
    space: &'a Space,
    blocks_per_group: u64,
    /// Open groups.
    groups: u64,
    /// Some references are missing because their file maps are damaged.
    has_missing_references: bool,
    /// The group being collected, and its live blocks.
    group: u64,
    live: Bitmap,
    pub(super) extents: u64,
    pub(super) blocks_used: u64,
}

impl<'a> Sweep<'a> {
    pub(super) fn new(metadata: &'a Metadata, has_missing_references: bool) -> Result<Sweep<'a>> {
        let space: &Space = metadata.space();
        let blocks_per_group = space.blocks_per_group();
        Ok(Sweep {
            stored: StoredExtents::new(metadata, 0..u64::MAX)?,
            space,
            blocks_per_group,
            groups: space.counts().groups,
            has_missing_references,
            group: 0,
            live: Bitmap::new(u32::try_from(blocks_per_group).unwrap_or(u32::MAX)),
            extents: 0,
            blocks_used: 0,
        })
    }

    /// Goes on to the address `end`, with all references below it, in order.
    pub(super) fn run(
        &mut self,
        find: &mut Findings<'_>,
        references: Vec<Reference>,
        end: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let mut references = references.into_iter().peekable();
        while let Some(stored) = self.stored.next_below(end)? {
            progress(stored.address);
            report_lost(find, &mut references, Some(stored.address));
            let mut of_this = Vec::new();
            while let Some(reference) = references.next_if(|reference| reference.extent == stored.address) {
                of_this.push(reference);
            }
            self.extent(find, &stored, &of_this);
        }
        report_lost(find, &mut references, None);
        Ok(())
    }

    /// The groups behind the last extent.
    pub(super) fn finish(&mut self, find: &mut Findings<'_>) {
        self.go_to_group(find, self.groups);
        for key in self.stored.extents.unknown.iter().chain(&self.stored.states.unknown) {
            find.add(Issue::UnknownKey { key: hex(key) });
        }
    }

    fn extent(&mut self, find: &mut Findings<'_>, stored: &StoredExtent, references: &[Reference]) {
        let address = stored.address;
        let Some(value) = &stored.extent else {
            report_lost(find, &mut references.iter().copied().peekable(), None);
            find.add(Issue::StateWithoutExtent { extent: address });
            return;
        };
        self.extents += 1;
        let record = find.open(&schema::extent(BlockAddress(address)), value, ExtentRecord::decode);
        // A damaged record keeps its length, as well as that can be known.
        let blocks = record.as_ref().map_or_else(|| records::extent_blocks_of_sealed(value), |record| record.sums.len() as u32);
        if blocks == 0 || blocks > EXTENT_BLOCKS_MAX {
            return;
        }
        let counted = count(find, references, blocks);
        let state = self.state(find, stored, blocks);
        let is_referenced = counted.iter().any(|count| *count > 0);
        if !is_referenced && !self.has_missing_references {
            let owner = record.map_or(InodeNumber(0), |record| record.owner);
            let owner = find.file(owner);
            find.add(Issue::ExtentUnreferenced { extent: address, blocks, owner });
        } else if let State::Known(recorded) = &state {
            self.compare_counts(find, address, recorded, &counted);
        }
        let live = match state {
            State::Known(recorded) => recorded,
            State::Damaged => counted,
        };
        self.place(find, address, &live);
    }

    /// The references that the state record, or its absence, says.
    fn state(&mut self, find: &mut Findings<'_>, stored: &StoredExtent, blocks: u32) -> State {
        let extent = stored.address;
        let Some(value) = &stored.state else { return State::Known(vec![1; blocks as usize]) };
        let Some(state) = find.open(&schema::extent_state(BlockAddress(extent)), value, ExtentStateRecord::decode) else {
            return State::Damaged;
        };
        let recorded = state.references.len() as u32;
        if recorded != blocks {
            find.add(Issue::StateLength { extent, recorded, found: blocks });
            return State::Damaged;
        }
        for references in [0, 1] {
            if state.references.iter().all(|count| *count == references) {
                find.add(Issue::StateNeedless { extent, references });
            }
        }
        State::Known(state.references)
    }

    fn compare_counts(&self, find: &mut Findings<'_>, extent: u64, recorded: &[u32], counted: &[u32]) {
        let mut differing = recorded
            .iter()
            .zip(counted)
            .enumerate()
            .filter(|(_, (recorded, counted))| recorded != counted && !(self.has_missing_references && counted < recorded));
        if let Some((block, (recorded, counted))) = differing.next() {
            let blocks = 1 + differing.count() as u32;
            find.add(Issue::ReferenceCount { extent, block: block as u32, recorded: *recorded, counted: *counted, blocks });
        }
    }

    /// Puts the live blocks where they lie.
    fn place(&mut self, find: &mut Findings<'_>, address: u64, live: &[u32]) {
        let blocks = live.len() as u32;
        let end = address.saturating_add(u64::from(blocks));
        let (group, last_group) = (address / self.blocks_per_group, (end - 1) / self.blocks_per_group);
        if group != last_group || group >= self.groups {
            find.add(Issue::ExtentOutsideGroup { extent: address, blocks });
        }
        if group >= self.groups {
            return;
        }
        self.go_to_group(find, group);
        let first = (address % self.blocks_per_group) as u32;
        let mut overlap = None;
        // What crosses the end of the group is cut off.
        let in_group = (first..self.live.len()).zip(live).filter(|(_, count)| **count > 0);
        for (block, _) in in_group {
            let is_new = self.live.set(block, 1, true) == 1;
            self.blocks_used += u64::from(is_new);
            if !is_new && overlap.is_none() {
                overlap = Some(group * self.blocks_per_group + u64::from(block));
            }
        }
        if let Some(block) = overlap {
            find.add(Issue::ExtentOverlap { extent: address, block });
        }
        // The first block is the extent's key: it stays used until the extent goes.
        if live.first() == Some(&0) {
            self.live.set(first, 1, true);
        }
    }

    /// Compares the bitmaps of the groups up to `group`, and begins that one.
    fn go_to_group(&mut self, find: &mut Findings<'_>, group: u64) {
        while self.group < group {
            let empty = Bitmap::new(self.live.len());
            let live = std::mem::replace(&mut self.live, empty);
            if let Some(used) = self.space.used_in_group(self.group)
                && used != live
            {
                self.report_bitmap(find, &used, &live);
            }
            self.group += 1;
        }
    }

    fn report_bitmap(&self, find: &mut Findings<'_>, used: &Bitmap, live: &Bitmap) {
        let begin = self.group * self.blocks_per_group;
        let mut block = 0;
        while block < live.len() {
            let is_used = used.get(block);
            let mut count = 0;
            if is_used != live.get(block) {
                while block + count < live.len() && used.get(block + count) == is_used && live.get(block + count) != is_used {
                    count += 1;
                }
                let (first, count) = (begin + u64::from(block), u64::from(count));
                find.add(if is_used { Issue::UsedWithoutData { first, count } } else { Issue::DataNotUsed { first, count } });
            }
            block += count.max(1);
        }
    }
}

enum State {
    Known(Vec<u32>),
    Damaged,
}

/// References per block; those that do not fit the extent are reported.
fn count(find: &mut Findings<'_>, references: &[Reference], blocks: u32) -> Vec<u32> {
    let mut counted = vec![0u32; blocks as usize];
    for reference in references {
        if u32::from(reference.extent_blocks) != blocks {
            let file = find.file(reference.inode);
            let (offset, extent, recorded) = (reference.offset, reference.extent, u32::from(reference.extent_blocks));
            find.add(Issue::MapExtentLength { file, offset, extent, recorded, found: blocks });
        }
        let used = counted.iter_mut().skip(usize::from(reference.first)).take(usize::from(reference.count));
        used.for_each(|count| *count = count.saturating_add(1));
    }
    counted
}

/// References to addresses below `end` that have no extent.
fn report_lost(find: &mut Findings<'_>, references: &mut Peekable<impl Iterator<Item = Reference>>, end: Option<u64>) {
    while let Some(reference) = references.next_if(|reference| end.is_none_or(|end| reference.extent < end)) {
        let file = find.file(reference.inode);
        find.add(Issue::MapWithoutExtent { file, offset: reference.offset, extent: reference.extent });
    }
}
