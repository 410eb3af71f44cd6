//! Reads and writes of logical blocks: from an address to a device and offset, and the flush of what was written.

use super::groups::{Device, Space};
use crate::error::{Error, Result};
use crate::lock::assert_may_wait;
use crate::units::{BLOCK_SIZE, BlockAddress};
use std::sync::atomic::Ordering;

/// Where a block lies, for messages.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Device id.
    pub device: u32,
    /// Byte offset on it.
    pub offset: u64,
}

impl Space {
    /// Where the block lies.
    pub fn place(&self, block: BlockAddress) -> Result<Place> {
        let mut state = self.state.lock();
        let (group, in_group) = state.group_mut(block.0, self.blocks_per_group)?;
        Ok(Place { device: group.device, offset: group.device_offset + u64::from(in_group) * BLOCK_SIZE })
    }

    fn locate(&self, block: BlockAddress, bytes: usize) -> Result<(&Device, u64)> {
        if block.0 % self.blocks_per_group + bytes as u64 / BLOCK_SIZE > self.blocks_per_group {
            return Err(Error::corrupt(format!("an extent at block {block} crosses the end of its group")));
        }
        let place = self.place(block)?;
        Ok((self.device(place.device)?, place.offset))
    }

    /// Fills `into` (whole blocks, one group) from `block` on. Nothing is verified here.
    pub fn read(&self, block: BlockAddress, into: &mut [u8]) -> Result<()> {
        assert_may_wait("reading a device");
        let (device, offset) = self.locate(block, into.len())?;
        device.disk.read_at(offset, into)
    }

    /// Writes the slices one behind the other from `block` on (whole blocks, one group).
    pub fn write(&self, block: BlockAddress, slices: &[&[u8]]) -> Result<()> {
        assert_may_wait("writing a device");
        let (device, offset) = self.locate(block, slices.iter().map(|slice| slice.len()).sum())?;
        device.is_dirty.store(true, Ordering::Release);
        match slices {
            [one] => device.disk.write_at(offset, one),
            many => device.disk.write_vectored_at(offset, many),
        }
    }

    /// Flushes the devices written to since their last flush; how many (D2).
    pub fn flush(&self) -> Result<u64> {
        let mut flushed = 0;
        for device in &self.devices {
            if device.is_dirty.swap(false, Ordering::AcqRel) {
                device.disk.flush()?;
                flushed += 1;
            }
        }
        Ok(flushed)
    }
}
