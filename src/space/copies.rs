//! Groups with more than one place: where new ones can be opened, and the single copies of a block.
//!
//! Copies lie on different devices; on a store with one device they lie half of it apart, so that no damage of a stretch takes both.
//! A block is written to all of its copies and read from the first. The others are looked at by who found that one bad, and by a
//! scrub. A repair (`mend`) writes one copy; its caller keeps D10.

use super::groups::{Device, Space};
use super::transfer::Place;
use crate::disk::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::lock::assert_may_wait;
use crate::meta::records::{PROFILE_DUP, PROFILE_SINGLE};
use crate::stats::Stats;
use crate::units::{BLOCK, BLOCK_SIZE, BlockAddress};
use serde_json::{Value, json};
use std::collections::{HashSet, VecDeque};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most copies that a group has.
pub const COPIES_MAX: usize = 2;

/// Where a group lies, or could: device and byte offset of each copy.
pub(super) type Slot = Vec<(u32, u64)>;

/// The places of all copies of a block, the first one first; never empty.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    list: [Place; COPIES_MAX],
    count: usize,
}

impl Places {
    /// `offset` bytes into a group with these places.
    pub(super) fn within(group: &[(u32, u64)], offset: u64) -> Result<Places> {
        let mut places = Places { list: [Place { device: 0, offset: 0 }; COPIES_MAX], count: group.len() };
        if group.is_empty() || group.len() > COPIES_MAX {
            return Err(Error::corrupt(format!("a group with {} places", group.len())));
        }
        for (place, (device, begin)) in places.list.iter_mut().zip(group) {
            *place = Place { device: *device, offset: begin + offset };
        }
        Ok(places)
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

/// A device of whose bytes some are for groups.
pub(super) struct Area {
    pub(super) device: u32,
    pub(super) begin: u64,
    pub(super) end: u64,
}

/// The places for further groups, the next one last. What `taken` names is not given again.
pub(super) fn free_slots(profile: u8, areas: &[Area], group_bytes: u64, taken: &HashSet<(u32, u64)>) -> Vec<Slot> {
    let mut free: Vec<VecDeque<(u32, u64)>> = areas
        .iter()
        .map(|area| {
            let count = area.end.saturating_sub(area.begin) / group_bytes;
            let all = (0..count).map(|number| (area.device, area.begin + number * group_bytes));
            all.filter(|slot| !taken.contains(slot)).collect()
        })
        .collect();
    let mut slots = match (profile, free.as_mut_slice()) {
        (PROFILE_DUP, [only]) => {
            let far = only.split_off(only.len() / 2);
            only.iter().zip(far).map(|(near, far)| vec![*near, far]).collect()
        }
        (PROFILE_DUP, devices) => pairs(devices),
        // Devices in turn, so that groups spread.
        _ => {
            let all = areas.iter().zip(free).enumerate();
            let mut numbered: Vec<(u64, usize, (u32, u64))> = all
                .flat_map(|(at, (area, free))| {
                    let begin = area.begin;
                    free.into_iter().map(move |slot| ((slot.1 - begin) / group_bytes, at, slot))
                })
                .collect();
            numbered.sort_unstable();
            numbered.into_iter().map(|(_, _, slot)| vec![slot]).collect::<Vec<Slot>>()
        }
    };
    slots.reverse();
    slots
}

/// Always the two devices with the most room: as little as possible is left without a partner.
fn pairs(devices: &mut [VecDeque<(u32, u64)>]) -> Vec<Slot> {
    let mut found = Vec::new();
    loop {
        devices.sort_by_key(|free| (std::cmp::Reverse(free.len()), free.front().copied()));
        let [first, second, ..] = devices else { return found };
        let (Some(one), Some(two)) = (first.front().copied(), second.front().copied()) else { return found };
        first.pop_front();
        second.pop_front();
        found.push(vec![one, two]);
    }
}

/// Copies that a group of this profile has.
pub fn copies_of(profile: u8) -> u64 {
    if profile == PROFILE_SINGLE { 1 } else { COPIES_MAX as u64 }
}

impl Space {
    /// Copies that a group has which is opened now.
    pub fn copies_of_new_groups(&self) -> u64 {
        copies_of(self.profile)
    }

    /// Where all copies of the block lie.
    pub fn places(&self, block: BlockAddress) -> Result<Places> {
        let mut state = self.state.lock();
        let (group, in_group) = state.group_mut(block.0, self.blocks_per_group)?;
        Places::within(&group.copies, u64::from(in_group) * BLOCK_SIZE)
    }

    /// Reads one copy of the blocks from `block` on (one group) into `into`. Nothing is verified here.
    pub fn read_copy(&self, block: BlockAddress, copy: usize, into: &mut [u8]) -> Result<()> {
        assert_may_wait("reading a device");
        let (device, offset) = self.locate_copy(block, copy, into.len())?;
        device.disk.read_at(offset, into)
    }

    /// One copy of a block. Nothing is verified here.
    pub fn read_block(&self, block: BlockAddress, copy: usize) -> Result<AlignedBuffer> {
        let mut buffer = AlignedBuffer::zeroed(BLOCK);
        self.read_copy(block, copy, &mut buffer)?;
        Ok(buffer)
    }

    /// Writes one copy of a block anew. The bytes match the checksum recorded for the block, whose mapping was looked up under a guard
    /// that the caller still holds (D10).
    pub fn mend(&self, block: BlockAddress, copy: usize, bytes: &[u8]) -> Result<()> {
        assert_may_wait("writing a device");
        let (device, offset) = self.locate_copy(block, copy, bytes.len())?;
        let written = device.disk.write_at(offset, bytes);
        device.is_dirty.store(true, Ordering::Release);
        let counter = if written.is_ok() { &device.faults.repaired_blocks } else { &device.faults.write_errors };
        counter.fetch_add(1, Ordering::Relaxed);
        written
    }

    /// Counts a copy of a block that did not match its checksum, or could not be read, in `stats` and with its device.
    pub fn count_bad_copy(&self, stats: &Stats, block: BlockAddress, copy: usize, is_unreadable: bool) {
        let Ok((Device { faults, .. }, _)) = self.locate_copy(block, copy, 0) else { return };
        let (of_all, of_device) = if is_unreadable {
            (&stats.io_errors, &faults.read_errors)
        } else {
            (&stats.checksum_errors, &faults.checksum_errors)
        };
        of_all.fetch_add(1, Ordering::Relaxed);
        of_device.fetch_add(1, Ordering::Relaxed);
    }

    fn locate_copy(&self, block: BlockAddress, copy: usize, bytes: usize) -> Result<(&Device, u64)> {
        let places = self.locate(block, bytes)?;
        let place = places.get(copy).ok_or_else(|| Error::corrupt(format!("block {block} has no copy {copy}")))?;
        Ok((self.device(place.device)?, place.offset))
    }

    /// What each device did wrong, for `stats`.
    pub fn device_status(&self) -> Value {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let devices = self.devices.iter().map(|device| {
            let faults = &device.faults;
            json!({
                "id": device.id,
                "checksum_errors": of(&faults.checksum_errors),
                "read_errors": of(&faults.read_errors),
                "write_errors": of(&faults.write_errors),
                "repaired_blocks": of(&faults.repaired_blocks),
            })
        });
        devices.collect::<Vec<_>>().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: u64 = 1 << 20;

    fn slots(profile: u8, sizes: &[u64], taken: &[(u32, u64)]) -> Vec<Slot> {
        let areas: Vec<Area> =
            (0u32..).zip(sizes).map(|(device, size)| Area { device, begin: GROUP, end: GROUP + size * GROUP }).collect();
        let mut slots = free_slots(profile, &areas, GROUP, &taken.iter().copied().collect());
        slots.reverse();
        slots
    }

    #[test]
    fn one_copy_takes_the_devices_in_turn() {
        let found = slots(PROFILE_SINGLE, &[2, 3], &[(0, GROUP)]);
        let expected = [(1, GROUP), (0, 2 * GROUP), (1, 2 * GROUP), (1, 3 * GROUP)];
        assert_eq!(found, expected.map(|slot| vec![slot]));
    }

    #[test]
    fn two_copies_on_one_device_lie_half_of_it_apart_also_when_opened_later() {
        let all = slots(PROFILE_DUP, &[7], &[]);
        assert_eq!(all, (1..4).map(|at| vec![(0, at * GROUP), (0, (at + 3) * GROUP)]).collect::<Vec<_>>());
        let [first, rest @ ..] = all.as_slice() else { panic!("no slots") };
        let later = slots(PROFILE_DUP, &[7], first);
        assert!(later.iter().all(|slot| slot[1].1 - slot[0].1 >= 2 * GROUP), "{later:?}");
        assert_eq!(later.len(), rest.len());
    }

    #[test]
    fn two_copies_lie_on_different_devices_and_little_is_left_over() {
        for (sizes, expected) in [(vec![4, 4], 4), (vec![5, 2], 2), (vec![3, 2, 2], 3), (vec![1, 1, 1, 1], 2), (vec![6, 3, 3], 6)]
        {
            let found = slots(PROFILE_DUP, &sizes, &[]);
            assert_eq!(found.len(), expected, "{sizes:?}");
            assert!(found.iter().all(|slot| slot[0].0 != slot[1].0), "{found:?}");
            let places: HashSet<_> = found.iter().flatten().collect();
            assert_eq!(places.len(), 2 * expected, "no place twice");
        }
    }
}
