//! Extents against the file maps that refer to them: counts of references, extents that nobody uses, bitmaps, and the counters of the
//! store. An extent that nobody uses, where the file that it was written for misses so many blocks and has a hole just there, gets its
//! place in the file map back: its own record says where that was. Blocks that two extents hold are told of and left.

use super::draft::{Draft, opened};
use super::inodes::Short;
use super::maps::is_in_group;
use crate::error::Result;
use crate::meta::Metadata;
use crate::meta::records::{CountersRecord, ExtentRecord, ExtentStateRecord, InodeRecord, MapRecord};
use crate::meta::schema::{self, Parsed};
use crate::space::bitmap::Bitmap;
use crate::units::{BLOCK_SIZE, BlockAddress, InodeNumber, block_ceil, blocks_for};
use crate::verify::extents::{StoredExtent, StoredExtents};
use crate::verify::findings::{Items, Look, look};
use crate::verify::references::{self, Reference, References};

/// Files named where their references were counted wrong.
const NAMED_MAX: usize = 8;

pub(super) fn repair(draft: &mut Draft<'_>, short: &mut Short) -> Result<()> {
    let mut references = References::new();
    references::for_each(draft.metadata, |reference| references.add(reference))?;
    let mut sweep = Sweep::new(draft.metadata);
    let mut stored = StoredExtents::new(draft.metadata, 0..u64::MAX)?;
    loop {
        let (held, end) = references.take();
        let mut held = held.into_iter().peekable();
        while let Some(stored) = stored.next_below(end)? {
            // What refers to no extent was made a lost range before.
            while held.next_if(|reference| reference.extent < stored.address).is_some() {}
            let mut of_this = Vec::new();
            while let Some(reference) = held.next_if(|reference| reference.extent == stored.address) {
                of_this.push(reference);
            }
            if let Some(live) = repair_extent(draft, &stored, &of_this, short)? {
                sweep.place(draft, stored.address, &live);
            }
        }
        if !references.refill(draft.metadata)? {
            break;
        }
    }
    sweep.finish(draft);
    repair_counters(draft)
}

/// Puts one extent right; the references of its blocks, or None when it is gone.
fn repair_extent(
    draft: &mut Draft<'_>,
    stored: &StoredExtent,
    references: &[Reference],
    short: &mut Short,
) -> Result<Option<Vec<u32>>> {
    let (extent, state) = (BlockAddress(stored.address), schema::extent_state(BlockAddress(stored.address)));
    let key = schema::extent(extent);
    let Some(value) = &stored.extent else {
        draft.delete(state);
        draft.say(None, format!("dropped the state of extent {extent}, which does not exist"));
        return Ok(None);
    };
    let record = opened(&key, value, ExtentRecord::decode)?;
    let record = record.filter(|record| is_in_group(draft, extent, record.sums.len() as u16));
    let Some(record) = record else {
        draft.delete(key);
        draft.delete(state);
        draft.say(None, format!("dropped extent {extent}: its record is damaged, or it lies on no device"));
        return Ok(None);
    };
    let blocks = record.sums.len();
    let recorded = match &stored.state {
        None => Some(vec![1; blocks]),
        Some(value) => opened(&state, value, ExtentStateRecord::decode)?.map(|state| state.references),
    };
    let recorded = recorded.filter(|recorded| recorded.len() == blocks);
    let mut counted = count(references, blocks);
    if counted.iter().all(|count| *count == 0) {
        counted = give_back(draft, extent, &record, recorded.as_deref(), short)?;
        if counted.iter().all(|count| *count == 0) {
            draft.delete(key);
            draft.delete(state);
            let owner = draft.file(record.owner);
            draft.say(None, format!("freed extent {extent} ({blocks} blocks, written for {owner}), which no file uses"));
            return Ok(None);
        }
    }
    let needs_state = counted.iter().any(|count| *count != 1);
    if recorded.as_ref() != Some(&counted) || stored.state.is_some() != needs_state {
        match needs_state {
            true => draft.put(state, ExtentStateRecord { references: counted.clone() }.encode()),
            false => draft.delete(state),
        }
        let users = users(draft, references);
        draft.say(None, format!("counted the references of extent {extent} anew; it is used by {users}"));
    }
    Ok(Some(counted))
}

fn count(references: &[Reference], blocks: usize) -> Vec<u32> {
    let mut counted = vec![0u32; blocks];
    for reference in references {
        let used = counted.iter_mut().skip(usize::from(reference.first)).take(usize::from(reference.count));
        used.for_each(|count| *count = count.saturating_add(1));
    }
    counted
}

fn users(draft: &Draft<'_>, references: &[Reference]) -> String {
    let mut users: Vec<InodeNumber> = references.iter().map(|reference| reference.inode).collect();
    users.dedup();
    let named = users.iter().take(NAMED_MAX).map(|inode| draft.file(*inode).to_string()).collect::<Vec<_>>().join(", ");
    if users.len() > NAMED_MAX { format!("{named} and {} more", users.len() - NAMED_MAX) } else { named }
}

/// The file's map gets ranges for the blocks that were in use, if everything says that it lost just these. The references then.
fn give_back(
    draft: &mut Draft<'_>,
    extent: BlockAddress,
    record: &ExtentRecord,
    recorded: Option<&[u32]>,
    short: &mut Short,
) -> Result<Vec<u32>> {
    let none = vec![0; record.sums.len()];
    let (Some(recorded), inode) = (recorded, record.owner) else { return Ok(none) };
    let Some(missing) = short.get(&inode).copied() else { return Ok(none) };
    let Some(mut file) = draft.whole_inode(inode)? else { return Ok(none) };
    let ranges = live_ranges(recorded);
    let live: u64 = ranges.iter().map(|(_, count)| u64::from(*count)).sum();
    let is_used_once = recorded.iter().all(|count| *count <= 1);
    let offset = record.owner_offset;
    if !is_used_once || live == 0 || live > missing || !is_hole(draft, inode, offset, record.sums.len() as u64 * BLOCK_SIZE)? {
        return Ok(none);
    }
    for (first, count) in ranges {
        let begin = offset + u64::from(first) * BLOCK_SIZE;
        let Some(length) = file.size.checked_sub(begin).map(|rest| rest.min(u64::from(count) * BLOCK_SIZE)) else {
            return Ok(none);
        };
        if blocks_for(length) != u64::from(count) {
            return Ok(none);
        }
    }
    for (first, count) in live_ranges(recorded) {
        let begin = offset + u64::from(first) * BLOCK_SIZE;
        let length = (file.size - begin).min(u64::from(count) * BLOCK_SIZE);
        let map = MapRecord::Written { extent, first, extent_blocks: record.sums.len() as u16, length };
        draft.put(schema::map(inode, begin), map.encode());
        draft.say_of(inode, |file| {
            format!("{file}: bytes {begin} to {} are in its map again, from extent {extent}", begin + length)
        });
    }
    file.blocks += live;
    draft.put_inode(inode, &InodeRecord { ..file });
    if live == missing {
        short.remove(&inode)
    } else {
        short.insert(inode, missing - live)
    };
    Ok(recorded.to_vec())
}

/// Runs of blocks that are in use: first and how many.
fn live_ranges(references: &[u32]) -> Vec<(u16, u16)> {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for (block, _) in references.iter().enumerate().filter(|(_, count)| **count > 0) {
        match ranges.last_mut() {
            Some((first, count)) if usize::from(*first + *count) == block => *count += 1,
            _ => ranges.push((block as u16, 1)),
        }
    }
    ranges
}

/// Is nothing of the range in the file's map?
fn is_hole(draft: &Draft<'_>, inode: InodeNumber, offset: u64, length: u64) -> Result<bool> {
    let (begin, end) = (schema::map(inode, 0), schema::map(inode, offset.saturating_add(length)));
    Ok(match draft.metadata.last(&begin, &end)? {
        None => true,
        Some((key, record)) => match (schema::parse(&key), MapRecord::decode(&record)) {
            (Some(Parsed::Map { offset: at, .. }), Ok(map)) => block_ceil(at + map.length()) <= offset,
            _ => false,
        },
    })
}

/// The live blocks of the group that the walk is in.
struct Sweep {
    blocks_per_group: u64,
    groups: u64,
    group: u64,
    live: Bitmap,
}

impl Sweep {
    fn new(metadata: &Metadata) -> Sweep {
        let blocks_per_group = metadata.space().blocks_per_group();
        let live = Bitmap::new(u32::try_from(blocks_per_group).unwrap_or(u32::MAX));
        Sweep { blocks_per_group, groups: metadata.space().counts().groups, group: 0, live }
    }

    fn place(&mut self, draft: &mut Draft<'_>, address: u64, live: &[u32]) {
        self.go_to(draft, address / self.blocks_per_group);
        let first = (address % self.blocks_per_group) as u32;
        let in_group = (first..self.live.len()).zip(live).filter(|(_, count)| **count > 0);
        for (block, _) in in_group {
            self.live.set(block, 1, true);
        }
        // The first block is the extent's key: it stays used until the extent goes.
        if live.first() == Some(&0) {
            self.live.set(first, 1, true);
        }
    }

    fn finish(&mut self, draft: &mut Draft<'_>) {
        self.go_to(draft, self.groups);
    }

    fn go_to(&mut self, draft: &mut Draft<'_>, group: u64) {
        while self.group < group {
            let empty = Bitmap::new(self.live.len());
            let live = std::mem::replace(&mut self.live, empty);
            self.compare(draft, live);
            self.group += 1;
        }
    }

    fn compare(&self, draft: &mut Draft<'_>, live: Bitmap) {
        let space = draft.metadata.space();
        let Some(used) = space.used_in_group(self.group) else { return };
        let key = schema::bitmap(self.group);
        let is_damaged = matches!(look(draft.metadata, &key, |_| Ok(())), Ok(Look::Damaged));
        if used == live && !is_damaged {
            return;
        }
        let differing =
            |this: &Bitmap, other: &Bitmap| (0..live.len()).filter(|block| this.get(*block) && !other.get(*block)).count();
        let (leaked, missed) = (differing(&used, &live), differing(&live, &used));
        let (group, bytes) = (self.group, live.to_bytes());
        space.set_used(group, live.clone());
        draft.put(key, bytes);
        draft.say(
            None,
            format!("counted the blocks of group {group} anew: freed {leaked} that held nothing, marked {missed} as used that hold data"),
        );
    }
}

/// Blocks of all unwritten ranges.
pub(super) fn unwritten_blocks(metadata: &Metadata) -> Result<u64> {
    let mut blocks = 0u64;
    let mut items = Items::of_table(metadata, schema::INODES);
    while let Some((key, value)) = items.next()? {
        if !matches!(schema::parse(&key), Some(Parsed::Map { .. })) {
            continue;
        }
        if let Some(MapRecord::Unwritten { length }) = opened(&key, &value, MapRecord::decode)? {
            blocks = blocks.saturating_add(blocks_for(length));
        }
    }
    Ok(blocks)
}

fn repair_counters(draft: &mut Draft<'_>) -> Result<()> {
    let stored = match look(draft.metadata, &schema::counters(), CountersRecord::decode)? {
        Look::There(counters) => Some(counters),
        Look::Absent | Look::Damaged => None,
    };
    let next_inode = draft.metadata.inode_numbers_used();
    let counters = CountersRecord { next_inode, unwritten_blocks: unwritten_blocks(draft.metadata)? };
    if stored != Some(counters) {
        draft.put(schema::counters(), counters.encode());
        let (next, blocks) = (counters.next_inode, counters.unwritten_blocks);
        draft.say(None, format!("corrected the counters: the next inode is {next}, {blocks} blocks are preallocated"));
    }
    Ok(())
}
