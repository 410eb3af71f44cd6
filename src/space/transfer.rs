//! Reads and writes of logical blocks: from an address to devices and offsets, and the flush of what was written.

use super::copies::Places;
use super::groups::{Device, Space};
use super::layout::Layout;
use super::moving::Moving;
use super::pace::Direction;
use crate::error::{Error, Result};
use crate::lock::assert_may_wait;
use crate::units::{BLOCK, BLOCK_SIZE, BlockAddress};
use std::sync::Arc;
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

    /// How many of `blocks` from `block` on lie behind each other on one device; at least one.
    pub fn blocks_in_one_place(&self, block: BlockAddress, blocks: u64) -> Result<u64> {
        let (layout, in_group) = self.layout_at(block, BLOCK)?;
        let left = u32::try_from(blocks.max(1)).unwrap_or(u32::MAX).min(layout.blocks() - in_group);
        Ok(layout.pieces(in_group, left).next().map_or(1, |piece| u64::from(piece.count)))
    }

    /// Do `blocks` from `first` on and what begins at `next` lie one behind the other, so that one transfer may take both?
    pub fn are_neighbours(&self, first: BlockAddress, blocks: u64, next: BlockAddress) -> bool {
        first.plus(blocks) == next && first.0 / self.blocks_per_group == next.0 / self.blocks_per_group
    }

    pub(super) fn locate(&self, block: BlockAddress, bytes: usize) -> Result<Places> {
        let (layout, in_group) = self.layout_at(block, bytes)?;
        Places::of(&layout, in_group)
    }

    /// The layout of the group of a run, and where in it the run begins.
    pub(super) fn layout_at(&self, block: BlockAddress, bytes: usize) -> Result<(Arc<Layout>, u32)> {
        let mut state = self.state.lock();
        let (group, in_group) = state.group_mut(block.0, self.blocks_per_group)?;
        if u64::from(in_group) + bytes as u64 / BLOCK_SIZE > u64::from(group.layout.blocks()) {
            return Err(Error::corrupt(format!("an extent at block {block} crosses the end of its group")));
        }
        Ok((group.layout.clone(), in_group))
    }

    /// Fills the slices (whole blocks, one group), which lie one behind the other on the device, from the first copy of `block` on that
    /// can be read. Nothing is verified here.
    pub fn read(&self, block: BlockAddress, into: &mut [&mut [u8]]) -> Result<()> {
        assert_may_wait("reading a device");
        let bytes = into.iter().map(|slice| slice.len()).sum();
        let (layout, in_group) = self.layout_at(block, bytes)?;
        self.pace.timed(Direction::Read, bytes, || {
            if layout.is_striped() {
                return self.read_striped(&layout, in_group, into);
            }
            let places = Places::of(&layout, in_group)?;
            let mut present = places.iter().filter_map(|place| Some((self.present(place.device).ok()?, place.offset)));
            let (device, offset) = match (present.next(), places.first()) {
                (Some(found), _) => found,
                (None, Some(first)) => (self.device(first.device)?, first.offset),
                (None, None) => return Err(Error::corrupt(format!("block {block} lies nowhere"))),
            };
            read_device(&device, offset, into)
        })
    }

    /// The device, if it is not set aside.
    pub(super) fn present(&self, id: u32) -> Result<Arc<Device>> {
        let device = self.device(id)?;
        if device.is_set_aside() { Err(Error::SetAside { device: id }) } else { Ok(device) }
    }

    /// Reads a device that is not set aside.
    pub(super) fn read_present(&self, place: Place, into: &mut [u8]) -> Result<()> {
        self.present(place.device)?.disk.read_at(place.offset, into)
    }

    fn read_striped(&self, layout: &Layout, block: u32, into: &mut [&mut [u8]]) -> Result<()> {
        let blocks = into.iter().map(|slice| (slice.len() / BLOCK) as u32).sum();
        let mut slices = into.iter_mut();
        let mut rest: &mut [u8] = &mut [];
        for piece in layout.pieces(block, blocks) {
            let mut missing = piece.count as usize * BLOCK;
            let mut targets: Vec<&mut [u8]> = Vec::new();
            while missing > 0 {
                if rest.is_empty() {
                    rest = slices.next().map(|slice| &mut **slice).unwrap_or_default();
                }
                let bytes = rest.len().min(missing);
                if bytes == 0 {
                    return Err(Error::corrupt("a read of a part of a block"));
                }
                let (now, later) = std::mem::take(&mut rest).split_at_mut(bytes);
                missing -= bytes;
                rest = later;
                targets.push(now);
            }
            self.read_piece(layout, piece.block, &mut targets)?;
        }
        Ok(())
    }

    /// Slices that lie behind each other on one device from `block` on; with parity they are computed when they cannot be read.
    fn read_piece(&self, layout: &Layout, mut block: u32, targets: &mut [&mut [u8]]) -> Result<()> {
        let place = layout.data_place(block).ok_or_else(nowhere)?;
        let device = self.device(place.device)?;
        let result = match device.is_set_aside() {
            true => Err(Error::SetAside { device: place.device }),
            false => read_device(&device, place.offset, targets),
        };
        if result.is_ok() || !layout.has_parity() {
            return result;
        }
        for target in targets {
            self.compute(layout, block, target)?;
            block += (target.len() / BLOCK) as u32;
        }
        Ok(())
    }

    /// Writes the slices one behind the other from `block` on (whole blocks, one group without parity), to every copy. After an error
    /// some copies may have them.
    pub fn write(&self, block: BlockAddress, slices: &[&[u8]]) -> Result<()> {
        assert_may_wait("writing a device");
        let bytes = slices.iter().map(|slice| slice.len()).sum();
        let moving = self.moving.read();
        let (layout, in_group) = self.layout_at(block, bytes)?;
        if layout.has_parity() {
            return Err(Error::corrupt(format!("block {block} has parity and cannot be written alone")));
        }
        if layout.is_striped() {
            return self.write_striped(moving.as_ref(), &layout, in_group, slices);
        }
        let places = Places::of(&layout, in_group)?;
        let mut lost = 0;
        for place in places.iter() {
            match self.write_place(moving.as_ref(), *place, slices, bytes) {
                // What the other copies get is enough while this device is missing.
                Err(Error::SetAside { .. }) if lost + 1 < places.len() => lost += 1,
                result => result?,
            }
        }
        Ok(())
    }

    fn write_striped(&self, moving: Option<&Moving>, layout: &Layout, block: u32, slices: &[&[u8]]) -> Result<()> {
        let blocks: usize = slices.iter().map(|slice| slice.len() / BLOCK).sum();
        let mut at = 0;
        for piece in layout.pieces(block, blocks as u32) {
            let bytes = piece.count as usize * BLOCK;
            let place = layout.data_place(piece.block).ok_or_else(nowhere)?;
            self.write_place(moving, place, &carve(slices, at, at + bytes), bytes)?;
            at += bytes;
        }
        Ok(())
    }

    /// One write to one device, and to where what it meets is moving.
    pub(super) fn write_place(&self, moving: Option<&Moving>, place: Place, slices: &[&[u8]], bytes: usize) -> Result<()> {
        let moved = self.write_moving(moving, place, slices, bytes);
        self.write_device(place, slices, bytes).and(moved)
    }

    fn write_device(&self, place: Place, slices: &[&[u8]], bytes: usize) -> Result<()> {
        let device = self.present(place.device)?;
        let result = self.pace.timed(Direction::Write, bytes, || match slices {
            [one] => device.disk.write_at(place.offset, one),
            many => device.disk.write_vectored_at(place.offset, many),
        });
        // Only now: a flush that another commit does during the write would take the mark away and not make the write durable,
        // and the commit that names these blocks would then find nothing to flush (D2).
        device.is_dirty.store(true, Ordering::Release);
        if result.is_err() {
            device.faults.write_errors.fetch_add(1, Ordering::Relaxed);
            // Redundant data goes on without this device; else the write is tried elsewhere, perhaps on it.
            if self.note_failure(&device) {
                return Err(Error::SetAside { device: place.device });
            }
        }
        result
    }

    /// Flushes the devices written to since their last flush; how many (D2).
    pub fn flush(&self) -> Result<u64> {
        let mut flushed = 0;
        for device in self.devices() {
            if device.is_dirty.swap(false, Ordering::AcqRel) && !device.is_set_aside() {
                match device.disk.flush() {
                    // All it has is elsewhere too.
                    Err(_) if self.set_aside(&device) => {}
                    result => result?,
                }
                flushed += 1;
            }
        }
        self.note_absence();
        Ok(flushed)
    }
}

fn read_device(device: &Device, offset: u64, into: &mut [&mut [u8]]) -> Result<()> {
    match into {
        [one] => device.disk.read_at(offset, one),
        many => device.disk.read_vectored_at(offset, many),
    }
}

pub(super) fn nowhere() -> Error {
    Error::corrupt("a group without places")
}

/// The bytes `start..end` of the slices taken as one.
pub fn carve<'a>(slices: &[&'a [u8]], start: usize, end: usize) -> Vec<&'a [u8]> {
    let mut carved = Vec::new();
    let mut at = 0;
    for slice in slices {
        let (from, to) = (start.clamp(at, at + slice.len()) - at, end.clamp(at, at + slice.len()) - at);
        if let Some(part) = slice.get(from..to)
            && !part.is_empty()
        {
            carved.push(part);
        }
        at += slice.len();
    }
    carved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;
    use crate::disk::memory::MemoryDisk;
    use crate::disk::over::OverDisk;
    use crate::meta::records::{GroupRecord, PROFILE_SINGLE};
    use crate::space::Plan;
    use std::sync::Barrier;

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
        let group = (GroupRecord { profile: PROFILE_SINGLE, copies: vec![(0, 0)], ..GroupRecord::default() }, None);
        let space =
            Space::new(vec![(0, disk.clone() as Arc<dyn Disk>)], &[(0, 8 << 20)], 256, Plan::default(), vec![group], 0).unwrap();
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
