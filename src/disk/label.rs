//! The label of a data device: which store it belongs to and which of its devices it is. Without it two swapped paths would
//! be read as damage.
//!
//! ```text
//! 0         first label (4 KiB)
//! 4 KiB     nothing, so that groups are aligned whatever lies below
//! 1 MiB     groups
//! ...       (what is too little for a group is not used)
//! end-4 KiB second label; end is the device's length in whole blocks
//! ```
//! A label: magic, version, device id, store UUID, device UUID, length, generation, zeros, crc32c of the 4092 bytes before it.
//! The second copy is written only after the first is durable, so one of them is always whole.

use super::Disk;
use super::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::units::{BLOCK, BLOCK_SIZE, block_floor};
use std::ops::Range;

/// First bytes of every label.
pub const LABEL_MAGIC: [u8; 8] = *b"sumfsDEV";
/// Where groups begin on a device.
pub const DATA_BEGIN: u64 = 1 << 20;
/// The layout that this code writes.
const LABEL_VERSION: u32 = 0;
const SUM_AT: usize = BLOCK - 4;

/// What a device says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// UUID of the store.
    pub store: [u8; 16],
    /// UUID of this device: another device that takes over the id has another one.
    pub device_uuid: [u8; 16],
    /// Number of the device in the store.
    pub device_id: u32,
    /// Bytes of the device that the store uses, labels included; whole blocks.
    pub device_bytes: u64,
    /// Counts the writes of the label; the higher one is valid.
    pub generation: u64,
}

/// A label that was read.
#[derive(Clone, Debug)]
pub struct FoundLabel {
    /// The newest valid copy.
    pub label: Label,
    /// Offsets of the copies that were damaged or older.
    pub damaged_copies: Vec<u64>,
    /// Were these written anew?
    pub healed: bool,
}

/// The bytes of a device of `device_bytes` where groups may lie; empty when there is no room.
pub fn data_area(device_bytes: u64) -> Range<u64> {
    let end = block_floor(device_bytes).saturating_sub(BLOCK_SIZE);
    DATA_BEGIN..end.max(DATA_BEGIN)
}

/// Writes the checksum of a block into its last four bytes.
pub(super) fn seal_block(block: &mut [u8; BLOCK]) {
    let (body, sum) = block.split_at_mut(SUM_AT);
    sum.copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
}

/// Does the block's checksum match?
pub(super) fn is_sealed(block: &[u8; BLOCK]) -> bool {
    let (body, sum) = block.split_at(SUM_AT);
    sum == crc32c::crc32c(body).to_le_bytes()
}

/// One block from `offset`.
pub(super) fn read_block(disk: &dyn Disk, offset: u64) -> Result<[u8; BLOCK]> {
    let mut buffer = AlignedBuffer::zeroed(BLOCK);
    disk.read_at(offset, &mut buffer)?;
    let mut block = [0; BLOCK];
    block.copy_from_slice(&buffer);
    Ok(block)
}

impl Label {
    fn encode(&self) -> [u8; BLOCK] {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend_from_slice(&LABEL_MAGIC);
        bytes.extend_from_slice(&LABEL_VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.device_id.to_le_bytes());
        bytes.extend_from_slice(&self.store);
        bytes.extend_from_slice(&self.device_uuid);
        bytes.extend_from_slice(&self.device_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        let mut block = [0; BLOCK];
        for (into, byte) in block.iter_mut().zip(bytes) {
            *into = byte;
        }
        seal_block(&mut block);
        block
    }

    /// None when the block is no label or damaged.
    fn decode(block: &[u8; BLOCK]) -> Option<Label> {
        if !block.starts_with(&LABEL_MAGIC) || !is_sealed(block) || u32::from_le_bytes(field(block, 8)?) != LABEL_VERSION {
            return None;
        }
        Some(Label {
            device_id: u32::from_le_bytes(field(block, 12)?),
            store: field(block, 16)?,
            device_uuid: field(block, 32)?,
            device_bytes: u64::from_le_bytes(field(block, 48)?),
            generation: u64::from_le_bytes(field(block, 56)?),
        })
    }
}

fn field<const N: usize>(block: &[u8; BLOCK], at: usize) -> Option<[u8; N]> {
    block.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Offsets of the two copies; an error when the disk has no room for two.
fn places(disk: &dyn Disk) -> Result<[u64; 2]> {
    let len = disk.len()?;
    match block_floor(len).checked_sub(BLOCK_SIZE).filter(|last| *last >= BLOCK_SIZE) {
        Some(last) => Ok([0, last]),
        None => Err(Error::corrupt(format!("device {} has only {len} bytes, too few for its labels", disk.name()))),
    }
}

/// Writes both copies, each durable before the next. The disk's length must be the label's.
pub fn write(disk: &dyn Disk, label: &Label) -> Result<()> {
    for place in places(disk)? {
        write_copy(disk, place, label)?;
    }
    Ok(())
}

fn write_copy(disk: &dyn Disk, place: u64, label: &Label) -> Result<()> {
    disk.write_at(place, &AlignedBuffer::copy_of(&label.encode()))?;
    disk.flush()
}

/// Makes it no label any more.
pub fn wipe(disk: &dyn Disk) -> Result<()> {
    for place in places(disk)? {
        disk.write_at(place, &AlignedBuffer::zeroed(BLOCK))?;
    }
    disk.flush()
}

/// Reads the newest valid copy at the two ends of `disk`. With `heal` a damaged or older copy is written anew; one that
/// cannot be is no error, only logged. `Error::Corrupt` when neither copy is a label.
pub fn read(disk: &dyn Disk, heal: bool) -> Result<FoundLabel> {
    let mut copies = Vec::new();
    let mut unreadable = None;
    for place in places(disk)? {
        match read_block(disk, place) {
            Ok(block) => copies.push((place, Label::decode(&block))),
            Err(error) => {
                copies.push((place, None));
                unreadable = Some(error);
            }
        }
    }
    let Some(label) = copies.iter().filter_map(|(_, label)| *label).max_by_key(|label| label.generation) else {
        return Err(unreadable.unwrap_or_else(|| {
            Error::corrupt(format!("device {} has no sumfs label at its beginning nor at its end", disk.name()))
        }));
    };
    let damaged_copies: Vec<u64> = copies.iter().filter(|(_, copy)| *copy != Some(label)).map(|(place, _)| *place).collect();
    let mut healed = false;
    for place in &damaged_copies {
        if !heal {
            tracing::warn!("the label at offset {place} of {} is damaged; the other copy is good", disk.name());
            continue;
        }
        match write_copy(disk, *place, &label) {
            Ok(()) => {
                healed = true;
                tracing::warn!("the label at offset {place} of {} was damaged and has been healed", disk.name());
            }
            Err(error) => tracing::warn!("the label at offset {place} of {} is damaged: {error}", disk.name()),
        }
    }
    Ok(FoundLabel { label, damaged_copies, healed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::memory::MemoryDisk;

    const LEN: u64 = 2 << 20;

    fn label(generation: u64) -> Label {
        Label { store: [3; 16], device_uuid: [4; 16], device_id: 7, device_bytes: LEN, generation }
    }

    #[test]
    fn both_copies_are_there() {
        let disk = MemoryDisk::new("device", LEN + 100);
        write(&disk, &label(1)).unwrap();
        let found = read(&disk, false).unwrap();
        assert_eq!(found.label, label(1));
        assert!(found.damaged_copies.is_empty() && !found.healed);
        assert_eq!(read_block(&disk, LEN - BLOCK_SIZE).unwrap(), label(1).encode());
    }

    #[test]
    fn either_copy_alone_is_enough_and_the_other_is_healed() {
        for place in [0, LEN - BLOCK_SIZE] {
            let disk = MemoryDisk::new("device", LEN);
            write(&disk, &label(1)).unwrap();
            disk.write_at(place + 2000, &[1]).unwrap();
            let found = read(&disk, false).unwrap();
            assert_eq!((found.label, found.damaged_copies, found.healed), (label(1), vec![place], false));
            assert_eq!(read(&disk, false).unwrap().damaged_copies, vec![place], "read without heal wrote");
            assert!(read(&disk, true).unwrap().healed);
            assert!(read(&disk, false).unwrap().damaged_copies.is_empty());
        }
    }

    #[test]
    fn the_newer_copy_wins() {
        let disk = MemoryDisk::new("device", LEN);
        write(&disk, &label(1)).unwrap();
        write_copy(&disk, 0, &label(2)).unwrap();
        let found = read(&disk, true).unwrap();
        assert_eq!((found.label.generation, found.damaged_copies), (2, vec![LEN - BLOCK_SIZE]));
        assert_eq!(Label::decode(&read_block(&disk, LEN - BLOCK_SIZE).unwrap()), Some(label(2)));
    }

    #[test]
    fn no_label_at_all_is_said() {
        let disk = MemoryDisk::new("device-x", LEN);
        assert!(read(&disk, true).unwrap_err().to_string().contains("device-x has no sumfs label"));
        assert!(read(&MemoryDisk::new("tiny", 5000), true).unwrap_err().to_string().contains("too few"));
    }

    #[test]
    fn every_flipped_byte_of_a_copy_is_noticed() {
        let block = label(1).encode();
        for at in 0..BLOCK {
            let mut bad = block;
            bad[at] ^= 0x10;
            assert_eq!(Label::decode(&bad), None, "byte {at}");
        }
    }

    #[test]
    fn the_data_area_leaves_room_for_both_labels() {
        assert_eq!(data_area(LEN + 5), DATA_BEGIN..LEN - BLOCK_SIZE);
        assert!(data_area(1 << 20).is_empty() && data_area(0).is_empty());
    }
}
