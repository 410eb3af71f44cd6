//! From damaged blocks and values to what a person can do something about: files, with paths and byte ranges.
//!
//! A block's extent names the file it was written for, which mostly is the only one that uses it. Only where references are missing
//! then are the maps of all files read.

use super::blocks::references;
use crate::error::Result;
use crate::meta::Metadata;
use crate::meta::records::{self, ExtentRecord, MapRecord};
use crate::meta::schema::{self, Key, Parsed};
use crate::meta::scrub_records::DamagedBlockRecord;
use crate::units::{BLOCK_SIZE, BlockAddress, EXTENT_BLOCKS_MAX, EXTENT_BYTES_MAX, InodeNumber};
use crate::verify::findings::{Findings, Items};
use crate::verify::issue::File;
use crate::verify::references::{Reference, for_each};
use serde::Serialize;
use std::collections::BTreeMap;

/// Neighbouring damaged blocks of one copy of a file's data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamagedRange {
    /// Whose data it is; None when no file uses it any more.
    pub file: Option<File>,
    /// Byte offset in the file, and bytes, whole blocks.
    pub offset: u64,
    /// See above.
    pub length: u64,
    /// Which copy.
    pub copy: u8,
    /// Logical block.
    pub address: u64,
    /// Device id and byte offset on it.
    pub device: u32,
    /// See above.
    pub device_offset: u64,
    /// Could the device not read it (else it differs from its checksum)?
    pub unreadable: bool,
    /// Has it been written anew from another copy?
    pub repaired: bool,
}

/// A damaged block that is still in use.
struct Live {
    address: BlockAddress,
    copy: u8,
    damage: DamagedBlockRecord,
    extent: u64,
    in_extent: u32,
    owner: InodeNumber,
    owner_offset: u64,
}

/// Where the damage lies that still counts: blocks that hold other data by now, or none, are left out.
pub fn damaged_ranges(metadata: &Metadata, blocks: &[(BlockAddress, u8, DamagedBlockRecord)]) -> Result<Vec<DamagedRange>> {
    let mut live = Vec::new();
    for (address, copy, damage) in blocks {
        live.extend(find_live(metadata, *address, *copy, *damage)?);
    }
    let mut users: BTreeMap<(u64, u32), Vec<(InodeNumber, u64)>> = BTreeMap::new();
    let mut is_incomplete = false;
    for block in &live {
        let known = users.entry((block.extent, block.in_extent)).or_default();
        if known.is_empty() {
            *known = owner_uses(metadata, block)?;
        }
        is_incomplete |= (known.len() as u32) < references(metadata, BlockAddress(block.extent), block.in_extent as usize)?;
    }
    if is_incomplete {
        users.values_mut().for_each(Vec::clear);
        for_each(metadata, |reference| {
            let range = (reference.extent, u32::from(reference.first))
                ..(reference.extent, u32::from(reference.first) + u32::from(reference.count));
            for ((_, in_extent), users) in users.range_mut(range) {
                users.push((reference.inode, offset_of(&reference, *in_extent)));
            }
        })?;
    }
    ranges(metadata, &live, &users)
}

fn offset_of(reference: &Reference, in_extent: u32) -> u64 {
    reference.offset.saturating_add(u64::from(in_extent.saturating_sub(u32::from(reference.first))) * BLOCK_SIZE)
}

/// The extent in which the block is live, with the checksum that the damage was held against.
fn find_live(metadata: &Metadata, address: BlockAddress, copy: u8, damage: DamagedBlockRecord) -> Result<Option<Live>> {
    let first = address.0.saturating_sub(u64::from(EXTENT_BLOCKS_MAX) - 1);
    let mut items = Items::new(metadata, schema::extent(BlockAddress(first)), schema::extent(address.plus(1)));
    while let Some((key, value)) = items.next()? {
        let Some(Parsed::Extent(extent)) = schema::parse(&key) else { continue };
        let Ok(record) = records::open(&key, &value).and_then(ExtentRecord::decode) else { continue };
        let in_extent = (address.0 - extent.0) as usize;
        if record.sums.get(in_extent) == Some(&damage.expected) && references(metadata, extent, in_extent)? > 0 {
            let (owner, owner_offset) = (record.owner, record.owner_offset);
            return Ok(Some(Live { address, copy, damage, extent: extent.0, in_extent: in_extent as u32, owner, owner_offset }));
        }
    }
    Ok(None)
}

/// The uses of the block by the file that its extent was written for.
fn owner_uses(metadata: &Metadata, block: &Live) -> Result<Vec<(InodeNumber, u64)>> {
    let (owner, begin) = (block.owner, block.owner_offset);
    let mut found = Vec::new();
    let mut items = Items::new(metadata, schema::map(owner, begin), schema::map(owner, begin.saturating_add(EXTENT_BYTES_MAX)));
    while let Some((key, value)) = items.next()? {
        let Some(Parsed::Map { inode, offset }) = schema::parse(&key) else { continue };
        let Ok(map) = records::open(&key, &value).and_then(MapRecord::decode) else { continue };
        let Some(reference) = Reference::of(inode, offset, &map) else { continue };
        let (first, end) = (u32::from(reference.first), u32::from(reference.first) + u32::from(reference.count));
        if reference.extent == block.extent && (first..end).contains(&block.in_extent) {
            found.push((inode, offset_of(&reference, block.in_extent)));
        }
    }
    Ok(found)
}

/// Puts the blocks in the order of files, copies and offsets, neighbours as one.
fn ranges(
    metadata: &Metadata,
    live: &[Live],
    users: &BTreeMap<(u64, u32), Vec<(InodeNumber, u64)>>,
) -> Result<Vec<DamagedRange>> {
    let find = Findings::new(metadata, Vec::new());
    let mut all: Vec<(Option<InodeNumber>, u64, &Live)> = Vec::new();
    for block in live {
        match users.get(&(block.extent, block.in_extent)).map(Vec::as_slice) {
            None | Some([]) => all.push((None, 0, block)),
            Some(users) => all.extend(users.iter().map(|(inode, offset)| (Some(*inode), *offset, block))),
        }
    }
    all.sort_by_key(|(inode, offset, block)| (*inode, block.copy, *offset, block.address));
    let mut found: Vec<DamagedRange> = Vec::new();
    for (inode, offset, block) in all {
        let places = metadata.space().places(block.address)?;
        let Some(place) = places.get(usize::from(block.copy)) else { continue };
        let next = DamagedRange {
            file: None,
            offset,
            length: BLOCK_SIZE,
            copy: block.copy,
            address: block.address.0,
            device: place.device,
            device_offset: place.offset,
            unreadable: block.damage.found.is_none(),
            repaired: block.damage.is_repaired,
        };
        match found.last_mut().filter(|last| inode.is_some() && goes_on(last, inode, &next)) {
            Some(last) => last.length += BLOCK_SIZE,
            None => found.push(DamagedRange { file: inode.map(|inode| find.file(inode)), ..next }),
        }
    }
    Ok(found)
}

fn goes_on(last: &DamagedRange, inode: Option<InodeNumber>, next: &DamagedRange) -> bool {
    last.file.as_ref().map(|file| file.inode) == inode.map(|inode| inode.0)
        && (last.copy, last.device, last.unreadable, last.repaired) == (next.copy, next.device, next.unreadable, next.repaired)
        && last.offset + last.length == next.offset
        && last.device_offset + last.length == next.device_offset
}

/// What the damaged values are, in plain words.
pub fn damaged_values(metadata: &Metadata, keys: &[Key]) -> Vec<String> {
    let find = Findings::new(metadata, Vec::new());
    keys.iter().map(|key| find.what(key)).collect()
}
