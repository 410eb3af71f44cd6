//! Reads and writes of logical blocks: from an address to devices and offsets, and the flush of what was written.

use super::copies::Places;
use super::groups::Space;
use super::pace::Direction;
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
    /// Where the first copy of the block lies.
    pub fn place(&self, block: BlockAddress) -> Result<Place> {
        let places = self.places(block)?;
        places.first().copied().ok_or_else(|| Error::corrupt(format!("block {block} lies nowhere")))
    }

    /// Do `blocks` from `first` on and what begins at `next` lie one behind the other, so that one transfer may take both?
    pub fn are_neighbours(&self, first: BlockAddress, blocks: u64, next: BlockAddress) -> bool {
        first.plus(blocks) == next && first.0 / self.blocks_per_group == next.0 / self.blocks_per_group
    }

    pub(super) fn locate(&self, block: BlockAddress, bytes: usize) -> Result<Places> {
        if block.0 % self.blocks_per_group + bytes as u64 / BLOCK_SIZE > self.blocks_per_group {
            return Err(Error::corrupt(format!("an extent at block {block} crosses the end of its group")));
        }
        self.places(block)
    }

    /// Fills the slices (whole blocks, one group), which lie one behind the other on the device, from the first copy of `block` on.
    /// Nothing is verified here.
    pub fn read(&self, block: BlockAddress, into: &mut [&mut [u8]]) -> Result<()> {
        assert_may_wait("reading a device");
        let bytes = into.iter().map(|slice| slice.len()).sum();
        let places = self.locate(block, bytes)?;
        let Some(place) = places.first() else { return Err(Error::corrupt(format!("block {block} lies nowhere"))) };
        let device = self.device(place.device)?;
        self.pace.timed(Direction::Read, bytes, || match into {
            [one] => device.disk.read_at(place.offset, one),
            many => device.disk.read_vectored_at(place.offset, many),
        })
    }

    /// Writes the slices one behind the other from `block` on (whole blocks, one group), to every copy. After an error some copies
    /// may have them.
    pub fn write(&self, block: BlockAddress, slices: &[&[u8]]) -> Result<()> {
        assert_may_wait("writing a device");
        let bytes = slices.iter().map(|slice| slice.len()).sum();
        for place in self.locate(block, bytes)?.iter() {
            let device = self.device(place.device)?;
            let result = self.pace.timed(Direction::Write, bytes, || match slices {
                [one] => device.disk.write_at(place.offset, one),
                many => device.disk.write_vectored_at(place.offset, many),
            });
            // Only now: a flush that another commit does during the write would take the mark away and not make the write durable,
            // and the commit that names these blocks would then find nothing to flush (D2).
            device.is_dirty.store(true, Ordering::Release);
            if result.is_err() {
                device.faults.write_errors.fetch_add(1, Ordering::Relaxed);
                return result;
            }
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;
    use crate::disk::memory::MemoryDisk;
    use crate::disk::over::OverDisk;
    use crate::meta::records::{GroupRecord, PROFILE_SINGLE};
    use std::sync::{Arc, Barrier};

    /// A device whose writes meet the test in their middle.
    #[derive(Debug)]
    struct Slow {
        inner: MemoryDisk,
        meeting: Barrier,
    }

    impl OverDisk for Slow {
        fn below(&self) -> &dyn Disk {
            &self.inner
        }

        fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
            self.meeting.wait();
            self.meeting.wait();
            self.inner.write_at(offset, from)
        }
    }

    #[test]
    fn a_flush_during_a_write_leaves_the_device_to_be_flushed_again() {
        let disk = Arc::new(Slow { inner: MemoryDisk::new("device", 8 << 20), meeting: Barrier::new(2) });
        let group = (GroupRecord { profile: PROFILE_SINGLE, copies: vec![(0, 0)] }, None);
        let space =
            Space::new(vec![(0, disk.clone() as Arc<dyn Disk>)], &[(0, 8 << 20)], 256, PROFILE_SINGLE, vec![group], 0).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| space.write(BlockAddress(3), &[&[1; 4096]]));
            disk.meeting.wait();
            space.flush().unwrap();
            disk.meeting.wait();
            writer.join().unwrap().unwrap();
        });
        assert_eq!(space.flush().unwrap(), 1, "the write that ended after the first flush is not durable yet");
        assert_eq!(space.flush().unwrap(), 0);
    }
}
