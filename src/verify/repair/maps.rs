//! The map of one file: ranges whose record is damaged, whose extent is not there or is another one, or that two records claim, become
//! ranges that read as an error. What is whole stays as it is.

use super::draft::{Draft, opened};
use super::inodes::{is_being_cut, map_records};
use crate::error::Result;
use crate::meta::records::{ExtentRecord, InodeRecord, MapRecord};
use crate::meta::schema::{self, Item, Key, Parsed};
use crate::units::{BLOCK_SIZE, BlockAddress, EXTENT_BYTES_MAX, FILE_SIZE_MAX, InodeNumber, block_ceil, blocks_for};
use crate::verify::findings::{Items, Look, look};
use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges of a file by offset.
type Ranges = BTreeMap<u64, MapRecord>;

/// Returns the blocks that the map holds now. A size that is not known yet becomes the end of the data.
pub(super) fn repair(
    draft: &mut Draft<'_>,
    inode: InodeNumber,
    record: &mut InodeRecord,
    items: &[(Key, Vec<u8>)],
    is_size_lost: bool,
) -> Result<u64> {
    let is_cut = is_being_cut(draft, inode, record)?;
    let stored = map_records(items)?;
    let mut ranges = Vec::new();
    let ends = stored.iter().skip(1).map(|(offset, _)| *offset).chain([u64::MAX]);
    for ((offset, map), end) in stored.iter().zip(ends) {
        let size = if is_size_lost { u64::MAX } else { record.size };
        ranges.extend(sound_range(draft, inode, *offset, *map, (size, end))?);
    }
    let ranges = without_overlaps(draft, inode, &ranges);
    let data_end =
        ranges.iter().filter(|(_, map)| matches!(map, MapRecord::Written { .. })).map(|(at, map)| at + map.length()).max();
    if let Some(end) = data_end.filter(|end| is_size_lost || (*end > block_ceil(record.size) && !is_cut)) {
        record.size = end;
        draft.say_of(inode, |file| format!("{file}: set its size to {end} bytes, where its data ends"));
    }
    let stored: BTreeMap<u64, Option<MapRecord>> = stored.into_iter().collect();
    stored.keys().filter(|offset| !ranges.contains_key(offset)).for_each(|offset| draft.delete(schema::map(inode, *offset)));
    for (offset, map) in &ranges {
        if stored.get(offset) != Some(&Some(*map)) {
            draft.put(schema::map(inode, *offset), map.encode());
        }
    }
    Ok(ranges.values().map(|map| blocks_for(map.length())).sum())
}

/// `blocks` of the file are in no map. If its holes are just as many, they are what was lost, and read as errors from now on; false
/// when that cannot be told.
pub(super) fn lose_holes(draft: &mut Draft<'_>, inode: InodeNumber, blocks: u64) -> Result<bool> {
    let Some(mut record) = draft.whole_inode(inode)? else { return Ok(false) };
    let (mut holes, mut at) = (Vec::new(), 0);
    let mut items = Items::new(draft.metadata, schema::items(inode, Item::Map), schema::items_end(inode, Item::Map));
    while let Some((key, value)) = items.next()? {
        let Some(Parsed::Map { offset, .. }) = schema::parse(&key) else { continue };
        let Some(map) = opened(&key, &value, MapRecord::decode)? else { return Ok(false) };
        holes.push(at..offset.min(record.size));
        at = block_ceil(offset + map.length());
    }
    holes.push(at..record.size);
    holes.retain(|hole| hole.start < hole.end);
    if holes.iter().map(|hole| blocks_for(hole.end - hole.start)).sum::<u64>() != blocks {
        return Ok(false);
    }
    for hole in holes {
        say_lost(draft, inode, hole.clone(), "the record of where they lie is gone");
        for begin in hole.clone().step_by(EXTENT_BYTES_MAX as usize) {
            draft.put(schema::map(inode, begin), MapRecord::lost(EXTENT_BYTES_MAX.min(hole.end - begin)).encode());
        }
    }
    record.blocks += blocks;
    draft.put_inode(inode, &record);
    Ok(true)
}

/// What a record says, or what becomes of it. `within`: the size of the file, and where the next record begins.
fn sound_range(
    draft: &mut Draft<'_>,
    inode: InodeNumber,
    offset: u64,
    map: Option<MapRecord>,
    within: (u64, u64),
) -> Result<Option<(u64, MapRecord)>> {
    let is_placed =
        offset.is_multiple_of(BLOCK_SIZE) && offset.saturating_add(map.map_or(1, |map| map.length())) <= FILE_SIZE_MAX;
    if !is_placed {
        draft.say_of(inode, |file| format!("{file}: dropped the range at byte {offset}, where no range can be"));
        return Ok(None);
    }
    let (size, next) = within;
    let Some(map) = map else {
        let length = EXTENT_BYTES_MAX.min(next - offset).min(size.saturating_sub(offset));
        if length == 0 {
            draft.say_of(inode, |file| format!("{file}: dropped the damaged record of a range behind its end, at byte {offset}"));
            return Ok(None);
        }
        say_lost(draft, inode, offset..offset + length, "the record of where they lie is damaged");
        return Ok(Some((offset, MapRecord::lost(length))));
    };
    let MapRecord::Written { extent, extent_blocks, length, .. } = map else { return Ok(Some((offset, map))) };
    if map.is_lost() {
        return Ok(Some((offset, map)));
    }
    let why = match look(draft.metadata, &schema::extent(extent), ExtentRecord::decode)? {
        Look::Absent => "there is no such extent as they should lie in",
        Look::Damaged => "the record of the extent with their checksums is damaged",
        Look::There(found) if found.sums.len() != usize::from(extent_blocks) => {
            "in the extent where they should lie is something else"
        }
        Look::There(_) if !is_in_group(draft, extent, extent_blocks) => "the extent where they should lie is on no device",
        Look::There(_) => return Ok(Some((offset, map))),
    };
    say_lost(draft, inode, offset..offset + length, why);
    Ok(Some((offset, MapRecord::lost(length))))
}

/// Does the extent lie within one open group?
pub(super) fn is_in_group(draft: &Draft<'_>, extent: BlockAddress, blocks: u16) -> bool {
    let space = draft.metadata.space();
    let (groups, blocks_per_group) = (space.counts().groups, space.blocks_per_group());
    let last = extent.0.saturating_add(u64::from(blocks).saturating_sub(1));
    extent.0 / blocks_per_group == last / blocks_per_group && last / blocks_per_group < groups
}

fn say_lost(draft: &mut Draft<'_>, inode: InodeNumber, range: Range<u64>, why: &str) {
    draft.say_of(inode, |file| format!("{file}: bytes {} to {} are lost and read as an error: {why}", range.start, range.end));
}

/// Where two records claim the same bytes neither can be believed.
fn without_overlaps(draft: &mut Draft<'_>, inode: InodeNumber, ranges: &[(u64, MapRecord)]) -> Ranges {
    let mut claimed_twice: Vec<Range<u64>> = Vec::new();
    let mut reached = 0;
    for (offset, map) in ranges {
        let end = block_ceil(offset + map.length());
        if *offset < reached {
            let twice = *offset..end.min(reached);
            match claimed_twice.last_mut() {
                Some(last) if last.end >= twice.start => last.end = last.end.max(twice.end),
                _ => claimed_twice.push(twice),
            }
        }
        reached = reached.max(end);
    }
    let mut sound = Ranges::new();
    for (offset, map) in ranges {
        let mut at = *offset;
        let end = offset + map.length();
        for twice in claimed_twice.iter().filter(|twice| twice.start < end && twice.end > *offset) {
            sound.extend((at < twice.start).then(|| (at, part(map, *offset, at..twice.start))));
            at = at.max(twice.end);
        }
        sound.extend((at < end).then(|| (at, part(map, *offset, at..end))));
    }
    for twice in claimed_twice {
        say_lost(draft, inode, twice.clone(), "two records claim them");
        let mut at = twice.start;
        while at < twice.end {
            let length = EXTENT_BYTES_MAX.min(twice.end - at);
            sound.insert(at, MapRecord::lost(length));
            at += length;
        }
    }
    sound
}

/// The part `range` of what lies at `offset`; both begin on whole blocks.
fn part(map: &MapRecord, offset: u64, range: Range<u64>) -> MapRecord {
    let length = range.end - range.start;
    match *map {
        MapRecord::Unwritten { .. } => MapRecord::Unwritten { length },
        MapRecord::Written { extent, first, extent_blocks, .. } => {
            let first = first.saturating_add(u16::try_from((range.start - offset) / BLOCK_SIZE).unwrap_or(u16::MAX));
            MapRecord::Written { extent, first, extent_blocks, length }
        }
    }
}
