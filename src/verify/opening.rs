//! Opening a store for a check: like a mount, but what a mount would refuse or heal is an issue, and nothing is written.

use super::findings::hex;
use super::issue::Issue;
use crate::disk::Disk;
use crate::disk::label;
use crate::disk::superblock::{DeviceEntry, Superblock};
use crate::error::{Error, Result};
use crate::meta::index::Index;
use crate::meta::latch::Latch;
use crate::meta::{Damaged, Metadata, Parts, Replayed, schema};
use crate::space::Plan;
use crate::stats::Stats;
use crate::store::{self, Disks};
use crate::units::block_floor;
use std::ops::Range;
use std::sync::Arc;

/// The index's cache during a check.
const INDEX_CACHE_BYTES: usize = 64 << 20;

/// A device as superblock and label describe it.
#[derive(Clone, Debug)]
pub(super) struct DeviceArea {
    pub(super) id: u32,
    /// Bytes that the store uses.
    pub(super) length: u64,
    /// Where groups may lie.
    pub(super) bytes: Range<u64>,
    /// From its label, if there is one.
    pub(super) uuid: Option<[u8; 16]>,
}

/// A store that can be walked.
pub(super) struct Opened {
    pub(super) superblock: Superblock,
    pub(super) metadata: Metadata,
    pub(super) devices: Vec<DeviceArea>,
    pub(super) replayed: Replayed,
    /// Index pages of which one copy is bad.
    pub(super) bad_index_copies: u64,
}

/// What is done with an opened store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Only looked at; not one byte is written.
    Check,
    /// Repaired in memory: damaged counters and bitmaps are issues of their own. Not one byte is written either.
    Plan,
    /// As `Plan`, and the index can be written to.
    Repair,
}

/// Opens everything. None when it cannot be opened, which is one of the `issues` then; an error only where a disk fails or is no
/// part of a store.
pub(super) fn open(disks: &Disks, purpose: Purpose, issues: &mut Vec<Issue>) -> Result<Option<Opened>> {
    let found = Superblock::read(&*disks.superblock)?;
    let superblock = found.superblock;
    issues.extend(found.damaged_copies.iter().map(|offset| Issue::SuperblockCopyDamaged { offset: *offset }));
    if superblock.devices.len() != disks.devices.len() {
        let (named, given) = (superblock.devices.len(), disks.devices.len());
        return Err(Error::usage(format!("the superblock names {named} devices, but there are {given}")));
    }
    let mut devices = Vec::new();
    for (entry, disk) in superblock.devices.iter().zip(&disks.devices) {
        devices.push(open_device(&superblock, entry, &**disk, issues)?);
    }
    let journal_bytes = disks.journal.len()?;
    if journal_bytes < superblock.journal_bytes {
        let reason = format!("it has {journal_bytes} bytes, but the store was made with {}", superblock.journal_bytes);
        issues.push(Issue::JournalDamaged { reason });
    }
    let Some((index, bad_index_copies)) = open_index(disks, purpose != Purpose::Repair, issues)? else { return Ok(None) };
    let latch = Arc::new(Latch::default());
    let parts = Parts {
        store_id: superblock.uuid,
        index,
        journal: disks.journal.clone(),
        devices: devices
            .iter()
            .zip(&disks.devices)
            .map(|(device, disk)| (device.id, disk.clone(), (device.bytes.start, device.bytes.end)))
            .collect(),
        blocks_per_group: superblock.blocks_per_group,
        plan: Plan::of(&superblock),
        stats: Arc::new(Stats::default()),
        latch: latch.clone(),
    };
    let opened = match purpose {
        Purpose::Check => Metadata::open(parts).map(|(metadata, replayed)| (metadata, replayed, Vec::new())),
        Purpose::Plan | Purpose::Repair => Metadata::open_for_repair(parts),
    };
    let (metadata, replayed, damaged) = match opened {
        Ok(opened) => opened,
        Err(Error::Corrupt(reason)) => {
            issues.push(Issue::MetadataUnusable { reason });
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    if let Some(reason) = latch.reason() {
        issues.push(Issue::JournalDamaged { reason: reason.to_string() });
    } else if let Some(clean) = superblock.clean_sequence.filter(|clean| *clean != metadata.durable_sequence()) {
        issues.push(Issue::SequenceDiffers { clean, found: metadata.durable_sequence() });
    }
    issues.extend(damaged.into_iter().map(|damaged| {
        let (what, key) = match damaged {
            Damaged::Counters => ("the counters".to_owned(), schema::counters()),
            Damaged::Bitmap(group) => (format!("the bitmap of group {group}"), schema::bitmap(group)),
        };
        Issue::DamagedValue { what, key: hex(&key) }
    }));
    Ok(Some(Opened { superblock, metadata, devices, replayed, bad_index_copies }))
}

pub(super) fn open_device(
    superblock: &Superblock,
    entry: &DeviceEntry,
    disk: &dyn Disk,
    issues: &mut Vec<Issue>,
) -> Result<DeviceArea> {
    let device = entry.id;
    if disk.is_missing() {
        // Whoever opened the store was told to do without it.
        return Ok(DeviceArea { id: device, length: entry.len, bytes: label::data_area(entry.len), uuid: None });
    }
    let found = block_floor(disk.len()?);
    let is_short = found < entry.len;
    if is_short {
        issues.push(Issue::DeviceShort { device, expected: entry.len, found });
    }
    let mut uuid = None;
    match label::read(disk, false) {
        Err(Error::Corrupt(reason)) => issues.push(Issue::LabelLost { device, reason }),
        Err(error) => return Err(error),
        Ok(read) => {
            let label = read.label;
            if label.store != superblock.uuid {
                issues.push(Issue::DeviceForeign { device, reason: "it belongs to another store".to_owned() });
            } else if label.device_id != device {
                let reason = format!("it is device {} of this store", label.device_id);
                issues.push(Issue::DeviceForeign { device, reason });
            } else {
                uuid = Some(label.device_uuid);
            }
            // The second label of a device that lost its end has gone with it.
            let damaged = read.damaged_copies.iter().filter(|offset| **offset == 0 || !is_short);
            issues.extend(damaged.map(|offset| Issue::LabelCopyDamaged { device, offset: *offset }));
        }
    }
    Ok(DeviceArea { id: device, length: entry.len, bytes: label::data_area(entry.len.min(found)), uuid })
}

/// The index, with the number of pages of which one copy is bad.
fn open_index(disks: &Disks, read_only: bool, issues: &mut Vec<Issue>) -> Result<Option<(Arc<dyn Index>, u64)>> {
    let opened = store::open_index(disks, INDEX_CACHE_BYTES, read_only).and_then(|index| {
        let bad_copies = index.verify()?;
        Ok((index, bad_copies))
    });
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(Error::Corrupt(reason)) => {
            issues.push(Issue::IndexDamaged { reason });
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
