//! Groups with more than one place: where new ones can be opened, and the single copies of a block.
//!
//! Copies lie on different devices; on a store with one device they lie half of it apart, so that no damage of a stretch takes both.
//! A block is written to all of its copies and read from the first. The others are looked at by who found that one bad, and by a
//! scrub. A repair (`mend`) writes one copy; its caller keeps D10.

use super::groups::Space;
use super::layout::Layout;
use super::transfer::Place;
use crate::disk::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::lock::assert_may_wait;
use crate::stats::Stats;
use crate::units::{BLOCK, BLOCK_SIZE, BlockAddress};
use serde_json::{Value, json};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most copies that a group has.
pub const COPIES_MAX: usize = 2;

/// The places of all copies of a block, the first one first; never empty.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    list: [Place; COPIES_MAX],
    count: usize,
}

impl Places {
    /// Those of a block of a group. With parity the second one is that of the parity: what the others compute is a copy too.
    pub(super) fn of(layout: &Layout, block: u32) -> Result<Places> {
        let mut places = Places { list: [Place { device: 0, offset: 0 }; COPIES_MAX], count: 0 };
        let mut add = |place: Option<Place>| -> Result<()> {
            let place = place.ok_or_else(|| Error::corrupt(format!("a group with {} places", layout.places.len())))?;
            let next = places.list.get_mut(places.count);
            *next.ok_or_else(|| Error::corrupt(format!("a group with {} places", layout.places.len())))? = place;
            places.count += 1;
            Ok(())
        };
        if layout.is_striped() {
            add(layout.data_place(block))?;
            if layout.has_parity() {
                add(layout.parity_place(layout.row(block)))?;
            }
        } else {
            let offset = u64::from(block) * BLOCK_SIZE;
            layout.places.iter().try_for_each(|(device, begin)| add(Some(Place { device: *device, offset: begin + offset })))?;
        }
        if places.count == 0 {
            return Err(Error::corrupt("a group without places"));
        }
        Ok(places)
    }

    /// That of one copy of `block`.
    fn copy(&self, block: BlockAddress, copy: usize) -> Result<Place> {
        self.get(copy).copied().ok_or_else(|| Error::corrupt(format!("block {block} has no copy {copy}")))
    }
}

impl Deref for Places {
    type Target = [Place];
    fn deref(&self) -> &[Place] {
        self.list.get(..self.count).unwrap_or_default()
    }
}

/// What a device did wrong since the store was opened.
#[derive(Debug, Default)]
pub struct Faults {
    /// Blocks that did not match their checksum.
    pub checksum_errors: AtomicU64,
    /// Blocks that could not be read.
    pub read_errors: AtomicU64,
    /// Writes that failed.
    pub write_errors: AtomicU64,
    /// Blocks written anew from another copy.
    pub repaired_blocks: AtomicU64,
}

impl Space {
    /// Copies that a group has which is opened now.
    pub fn copies_of_new_groups(&self) -> u64 {
        self.plan.copies()
    }

    /// Where all copies of the block lie.
    pub fn places(&self, block: BlockAddress) -> Result<Places> {
        self.locate(block, BLOCK)
    }

    /// Reads one copy of the blocks from `block` on (one group) into `into`. Nothing is verified here.
    pub fn read_copy(&self, block: BlockAddress, copy: usize, into: &mut [u8]) -> Result<()> {
        assert_may_wait("reading a device");
        let (layout, in_group) = self.layout_at(block, into.len())?;
        if !layout.is_striped() {
            return self.read_present(Places::of(&layout, in_group)?.copy(block, copy)?, into);
        }
        let mut rest = into;
        for piece in layout.pieces(in_group, (rest.len() / BLOCK) as u32) {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(piece.count as usize * BLOCK);
            rest = later;
            if copy > 0 {
                self.compute(&layout, piece.block, now)?;
            } else if let Some(place) = layout.data_place(piece.block) {
                self.read_present(place, now)?;
            }
        }
        Ok(())
    }

    /// One copy of a block. Nothing is verified here.
    pub fn read_block(&self, block: BlockAddress, copy: usize) -> Result<AlignedBuffer> {
        let mut buffer = AlignedBuffer::zeroed(BLOCK);
        self.read_copy(block, copy, &mut buffer)?;
        Ok(buffer)
    }

    /// Writes one copy of a block anew. The bytes match the checksum recorded for the block, whose mapping was looked up under a guard
    /// that the caller still holds (D10). A copy that is computed from parity is mended by writing the parity: all `row_mates` are good then.
    pub fn mend(&self, block: BlockAddress, copy: usize, bytes: &[u8]) -> Result<()> {
        assert_may_wait("writing a device");
        let moving = self.moving.read();
        let (layout, in_group) = self.layout_at(block, bytes.len())?;
        let place = Places::of(&layout, in_group)?.copy(block, copy)?;
        let device = self.present(place.device)?;
        let written = if copy > 0 && layout.has_parity() {
            self.mend_parity(moving.as_ref(), &layout, in_group, bytes)
        } else {
            let moved = self.write_moving(moving.as_ref(), place, &[bytes], bytes.len());
            device.disk.write_at(place.offset, bytes).and(moved)
        };
        device.is_dirty.store(true, Ordering::Release);
        let counter = if written.is_ok() { &device.faults.repaired_blocks } else { &device.faults.write_errors };
        counter.fetch_add(1, Ordering::Relaxed);
        written
    }

    /// Counts a copy of a block that did not match its checksum, or could not be read, in `stats` and with its device.
    pub fn count_bad_copy(&self, stats: &Stats, block: BlockAddress, copy: usize, is_unreadable: bool) {
        let Ok(device) = self.locate(block, 0).and_then(|places| self.device(places.copy(block, copy)?.device)) else { return };
        let faults = &device.faults;
        let (of_all, of_device) = if is_unreadable {
            (&stats.io_errors, &faults.read_errors)
        } else {
            (&stats.checksum_errors, &faults.checksum_errors)
        };
        of_all.fetch_add(1, Ordering::Relaxed);
        of_device.fetch_add(1, Ordering::Relaxed);
    }

    /// What each device is, holds and did wrong, for `stats` and `device list`.
    pub fn device_status(&self) -> Value {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (devices, occupancy) = (self.devices(), self.occupancy());
        let devices = devices.iter().map(|device| {
            let faults = &device.faults;
            let held = occupancy.get(&device.id).copied().unwrap_or_default();
            json!({
                "id": device.id,
                "path": device.disk.name(),
                "state": Space::state_of(device),
                "bytes": device.disk.len().unwrap_or(0),
                "allocated_bytes": held.allocated,
                "used_bytes": held.used,
                "checksum_errors": of(&faults.checksum_errors),
                "read_errors": of(&faults.read_errors),
                "write_errors": of(&faults.write_errors),
                "repaired_blocks": of(&faults.repaired_blocks),
                "is_set_aside": device.is_set_aside(),
            })
        });
        devices.collect::<Vec<_>>().into()
    }
}
