//! Records of where data lies: groups with their places on devices, and the devices. Layouts and rules as in `records.rs`.

use super::fields::Reader;
use crate::error::Result;

/// Profile of a group: one copy.
pub const PROFILE_SINGLE: u8 = 1;
/// Profile of a group: two copies.
pub const PROFILE_DUP: u8 = 2;
/// Profile of a group: units on its columns in turn.
pub const PROFILE_RAID0: u8 = 3;
/// Profile of a group: two copies, always on two devices.
pub const PROFILE_RAID1: u8 = 4;
/// Profile of a group: units on its columns in turn, one of them parity.
pub const PROFILE_RAID5: u8 = 5;

/// The most columns of a group.
pub const COLUMNS_MAX: usize = 16;

/// An open group: a range of logical blocks with its places on devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupRecord {
    /// `PROFILE_*`.
    pub profile: u8,
    /// Where each copy, or each column, lies: device id and byte offset.
    pub copies: Vec<(u32, u64)>,
    /// Striped groups: blocks that follow each other on one column; else 0.
    pub unit_blocks: u32,
    /// Striped groups: blocks of a column, a multiple of the unit; else 0.
    pub column_blocks: u32,
}

impl GroupRecord {
    /// Are the columns striped?
    pub fn is_striped(profile: u8) -> bool {
        matches!(profile, PROFILE_RAID0 | PROFILE_RAID5)
    }

    /// Ways to read a block: its copies; with parity also what the others compute.
    pub fn readable_copies(&self) -> usize {
        match self.profile {
            PROFILE_RAID0 => 1,
            PROFILE_RAID5 => 2,
            _ => self.copies.len(),
        }
    }

    /// Blocks at each of its places.
    pub fn place_blocks(&self, blocks_per_group: u64) -> u64 {
        if Self::is_striped(self.profile) { u64::from(self.column_blocks) } else { blocks_per_group }
    }

    /// Layout: profile, count, then device and offset of each copy or column; striped: blocks of a unit and of a column.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.profile, self.copies.len() as u8];
        for (device, offset) in &self.copies {
            out.extend_from_slice(&device.to_le_bytes());
            out.extend_from_slice(&offset.to_le_bytes());
        }
        if Self::is_striped(self.profile) {
            out.extend_from_slice(&self.unit_blocks.to_le_bytes());
            out.extend_from_slice(&self.column_blocks.to_le_bytes());
        }
        out
    }

    /// The group in `record`.
    pub fn decode(record: &[u8]) -> Result<GroupRecord> {
        let mut r = Reader::new("group", record);
        let (profile, count) = (r.u8()?, r.u8()?);
        let fits = match profile {
            PROFILE_SINGLE => count == 1,
            PROFILE_DUP | PROFILE_RAID1 => count == 2,
            PROFILE_RAID0 | PROFILE_RAID5 => (2..=COLUMNS_MAX).contains(&usize::from(count)),
            _ => false,
        };
        if !fits {
            return Err(r.damaged());
        }
        let mut group = GroupRecord { profile, ..GroupRecord::default() };
        for _ in 0..count {
            group.copies.push((r.u32()?, r.number()?));
        }
        if Self::is_striped(profile) {
            (group.unit_blocks, group.column_blocks) = (r.u32()?, r.u32()?);
            if group.unit_blocks == 0 || group.column_blocks == 0 || !group.column_blocks.is_multiple_of(group.unit_blocks) {
                return Err(r.damaged());
            }
        }
        r.end()?;
        Ok(group)
    }
}

/// A data device of the store. Ids count up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRecord {
    /// Number in the store, as in the device's label.
    pub id: u32,
    /// UUID in the device's label.
    pub uuid: [u8; 16],
    /// Bytes that the store uses, labels included; whole blocks.
    pub length: u64,
    /// Where it is: relative to the store's directory, or absolute.
    pub path: String,
}

impl DeviceRecord {
    /// Layout: id, UUID, length, path.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + self.path.len());
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.uuid);
        out.extend_from_slice(&self.length.to_le_bytes());
        out.extend_from_slice(self.path.as_bytes());
        out
    }

    /// The device in `record`.
    pub fn decode(record: &[u8]) -> Result<DeviceRecord> {
        let mut r = Reader::new("device", record);
        let (id, uuid, length) = (r.u32()?, r.array()?, r.number()?);
        let path = std::str::from_utf8(r.rest()).map_err(|_| r.damaged())?.to_owned();
        Ok(DeviceRecord { id, uuid, length, path })
    }
}
