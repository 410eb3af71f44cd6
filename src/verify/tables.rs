//! The small tables: counters, devices, groups and their bitmaps; and keys that belong nowhere.

use super::findings::{Findings, Items, hex};
use super::inodes::Tally;
use super::issue::Issue;
use super::opening::DeviceArea;
use crate::error::Result;
use crate::meta::ImageRecord;
use crate::meta::records::{CountersRecord, DeviceRecord, GroupRecord};
use crate::meta::relocation_record::RelocationRecord;
use crate::meta::schema::{self, Parsed};
use crate::meta::scrub_records::{DamagedBlockRecord, DamagedValueRecord, ScrubRecord};
use crate::units::BLOCK_SIZE;

/// Tables whose keys other walks look at.
const WALKED: [u8; 4] = [schema::INODES, schema::EXTENTS, schema::EXTENT_STATES, schema::ORPHANS];
/// All tables, in order.
const TABLES: [u8; 14] = [
    schema::COUNTERS,
    schema::CHECKPOINT,
    schema::SCRUB,
    schema::IMAGE,
    schema::RELOCATION,
    schema::INODES,
    schema::EXTENTS,
    schema::EXTENT_STATES,
    schema::ORPHANS,
    schema::DAMAGED_BLOCKS,
    schema::DAMAGED_VALUES,
    schema::GROUPS,
    schema::DEVICES,
    schema::BITMAPS,
];

/// A group whose place is sound; ordered by where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PlacedGroup {
    pub(super) device: u32,
    pub(super) offset: u64,
    pub(super) number: u64,
    /// Which of the group's copies.
    pub(super) copy: usize,
}

/// Checks that every group lies within its device and on no other group. Returns those that can be read, in device order.
pub(super) fn check_groups(find: &mut Findings<'_>, devices: &[DeviceArea]) -> Result<Vec<PlacedGroup>> {
    let (mut placed, mut ranges) = (Vec::new(), Vec::new());
    let mut items = Items::of_table(find.metadata, schema::GROUPS);
    while let Some((key, value)) = items.next()? {
        let Some(Parsed::Group(number)) = schema::parse(&key) else { continue };
        let Some(record) = find.open(&key, &value, GroupRecord::decode) else { continue };
        let bytes = record.place_blocks(find.metadata.space().blocks_per_group()) * BLOCK_SIZE;
        let before = ranges.len();
        for (device, offset) in record.copies.iter().copied() {
            let area = devices.iter().find(|area| area.id == device).map(|area| area.bytes.clone()).unwrap_or(0..0);
            let end = offset.checked_add(bytes);
            if offset < area.start || offset % BLOCK_SIZE != 0 || end.is_none_or(|end| end > area.end) {
                find.add(Issue::GroupOutsideDevice { group: number, device, offset });
            } else {
                ranges.push((device, offset, bytes, number));
            }
        }
        // A striped group is read by its addresses: it has one place in the order.
        let sound = ranges.get(before..).unwrap_or_default();
        if !GroupRecord::is_striped(record.profile) {
            let at = |place| record.copies.iter().position(|copy| *copy == place).unwrap_or(0);
            placed.extend(sound.iter().map(|(device, offset, _, number)| PlacedGroup {
                device: *device,
                offset: *offset,
                number: *number,
                copy: at((*device, *offset)),
            }));
        } else if let (true, Some((device, offset, _, number))) = (sound.len() == record.copies.len(), sound.first()) {
            let group = PlacedGroup { device: *device, offset: *offset, number: *number, copy: 0 };
            placed.extend((0..record.readable_copies()).map(|copy| PlacedGroup { copy, ..group }));
        }
    }
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        if let [first, second] = pair
            && first.0 == second.0
            && second.1 - first.1 < first.2
        {
            find.add(Issue::GroupsOverlap { first: first.3, second: second.3, device: first.0 });
        }
    }
    placed.sort_unstable();
    Ok(placed)
}

/// Checks counters, device records and bitmaps, and looks for keys that this format does not have.
pub(super) fn check_rest(find: &mut Findings<'_>, devices: &[DeviceArea], tally: &Tally) -> Result<()> {
    check_counters(find, tally)?;
    let relocation = check_relocation(find)?;
    check_devices(find, devices, &relocation)?;
    check_scrub(find)?;
    check_image(find)?;
    let groups = find.metadata.space().counts().groups;
    let mut items = Items::of_table(find.metadata, schema::BITMAPS);
    while let Some((key, _)) = items.next()? {
        if let Some(Parsed::Bitmap(group)) = schema::parse(&key)
            && group >= groups
        {
            find.add(Issue::StrayBitmap { group });
        }
    }
    check_keys(find)
}

fn check_counters(find: &mut Findings<'_>, tally: &Tally) -> Result<()> {
    let mut items = Items::of_table(find.metadata, schema::COUNTERS);
    while let Some((key, value)) = items.next()? {
        if schema::parse(&key) != Some(Parsed::Counters) {
            continue;
        }
        let Some(counters) = find.open(&key, &value, CountersRecord::decode) else { continue };
        if counters.next_inode <= tally.highest_inode {
            find.add(Issue::NextInodeTooLow { next_inode: counters.next_inode, highest: tally.highest_inode });
        }
        let (recorded, counted) = (counters.unwritten_blocks, tally.unwritten_blocks);
        if recorded != counted && !tally.has_damaged_maps {
            find.add(Issue::UnwrittenCount { recorded, counted });
        }
    }
    Ok(())
}

/// What scrubs left. That it is out of date is no fault.
fn check_scrub(find: &mut Findings<'_>) -> Result<()> {
    for table in [schema::SCRUB, schema::DAMAGED_BLOCKS, schema::DAMAGED_VALUES] {
        let mut items = Items::of_table(find.metadata, table);
        while let Some((key, value)) = items.next()? {
            match schema::parse(&key) {
                Some(Parsed::Scrub) => drop(find.open(&key, &value, ScrubRecord::decode)),
                Some(Parsed::DamagedBlock { .. }) => drop(find.open(&key, &value, DamagedBlockRecord::decode)),
                Some(Parsed::DamagedValue(_)) => drop(find.open(&key, &value, DamagedValueRecord::decode)),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Where the index has its image. Whether that is there, a scrub says.
fn check_image(find: &mut Findings<'_>) -> Result<()> {
    let mut items = Items::of_table(find.metadata, schema::IMAGE);
    while let Some((key, value)) = items.next()? {
        if schema::parse(&key) == Some(Parsed::Image) {
            let _found = find.open(&key, &value, ImageRecord::decode);
        }
    }
    Ok(())
}

/// Which device is being emptied, or was last.
fn check_relocation(find: &mut Findings<'_>) -> Result<RelocationRecord> {
    let mut items = Items::of_table(find.metadata, schema::RELOCATION);
    let mut found = None;
    while let Some((key, value)) = items.next()? {
        if schema::parse(&key) == Some(Parsed::Relocation) {
            found = find.open(&key, &value, RelocationRecord::decode);
        }
    }
    Ok(found.unwrap_or_default())
}

/// Superblock, label and record of a device must agree. One that is just coming or going may have a record alone: the next mount sees to
/// it.
fn check_devices(find: &mut Findings<'_>, devices: &[DeviceArea], relocation: &RelocationRecord) -> Result<()> {
    let mut known = Vec::new();
    let mut items = Items::of_table(find.metadata, schema::DEVICES);
    while let Some((key, value)) = items.next()? {
        let Some(Parsed::Device(id)) = schema::parse(&key) else { continue };
        let id = u32::try_from(id).unwrap_or(u32::MAX);
        known.push(id);
        let Some(record) = find.open(&key, &value, DeviceRecord::decode) else { continue };
        let reason = match devices.iter().find(|device| device.id == id) {
            None if relocation.names(id) => continue,
            None => "the superblock does not name it",
            Some(device) if record.id != id || record.length != device.length => "number or length differ",
            Some(device) if device.uuid.is_some_and(|uuid| uuid != record.uuid) => "its label has another UUID",
            Some(_) => continue,
        };
        find.add(Issue::DeviceRecord { device: id, reason });
    }
    for device in devices.iter().filter(|device| !known.contains(&device.id)) {
        find.add(Issue::DeviceRecord { device: device.id, reason: "there is none" });
    }
    Ok(())
}

/// Keys between the tables, and keys in them with a wrong form.
fn check_keys(find: &mut Findings<'_>) -> Result<()> {
    let mut from = vec![0];
    for table in TABLES {
        report_unknown(find, from, schema::table_begin(table), false)?;
        if !WALKED.contains(&table) {
            report_unknown(find, schema::table_begin(table), schema::table_end(table), true)?;
        }
        from = schema::table_end(table);
    }
    report_unknown(find, from, vec![u8::MAX; 16], false)
}

fn report_unknown(find: &mut Findings<'_>, from: Vec<u8>, end: Vec<u8>, is_table: bool) -> Result<()> {
    let mut items = Items::new(find.metadata, from, end);
    while let Some((key, _)) = items.next()? {
        if !(is_table && schema::parse(&key).is_some()) {
            find.add(Issue::UnknownKey { key: hex(&key) });
        }
    }
    Ok(())
}
