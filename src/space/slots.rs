//! Where further groups can be opened: the places that the devices still have, arranged as the profile wants them.

use super::layout::Slot;
use crate::disk::superblock::{StripeProfile, Superblock};
use crate::meta::records::{COLUMNS_MAX, GroupRecord, PROFILE_DUP, PROFILE_RAID0, PROFILE_RAID1, PROFILE_RAID5, PROFILE_SINGLE};
use crate::units::BLOCK_SIZE;
use std::collections::VecDeque;

/// What new groups get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// `PROFILE_*`.
    pub profile: u8,
    /// Striped profiles: blocks that follow each other on one column.
    pub unit_blocks: u32,
    /// Striped profiles: the most columns of a group.
    pub columns: u32,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan { profile: PROFILE_SINGLE, unit_blocks: 0, columns: 0 }
    }
}

/// A device of whose bytes some are for groups.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub(super) device: u32,
    pub(super) begin: u64,
    pub(super) end: u64,
}

/// A range of a device that a group has: device, first byte, bytes.
pub(super) type Taken = (u32, u64, u64);

impl Plan {
    /// What the superblock says.
    pub fn of(superblock: &Superblock) -> Plan {
        match superblock.profile {
            Some(StripeProfile { profile, unit_blocks, columns }) => Plan { profile, unit_blocks, columns },
            None if superblock.has_two_copies() => Plan { profile: PROFILE_DUP, ..Plan::default() },
            None => Plan::default(),
        }
    }

    fn is_striped(&self) -> bool {
        GroupRecord::is_striped(self.profile)
    }

    fn parity_columns(&self) -> u64 {
        u64::from(self.has_parity())
    }

    /// The fewest columns of a striped group. Where one device of three is missing, two are a mirror.
    fn columns_min(&self) -> usize {
        2
    }

    pub(super) fn has_parity(&self) -> bool {
        self.profile == PROFILE_RAID5
    }

    /// Data blocks of the widest full stripe.
    pub(super) fn stripe_blocks(&self) -> u64 {
        u64::from(self.unit_blocks) * u64::from(self.columns).saturating_sub(self.parity_columns())
    }

    /// Copies of each block; with parity there is one, and what can be computed from the others.
    pub(super) fn copies(&self) -> u64 {
        if matches!(self.profile, PROFILE_DUP | PROFILE_RAID1) { 2 } else { 1 }
    }

    /// Blocks of a column, or of a copy, of a group with so many: whole units, and as many as the addresses of the widest group
    /// allow, so that the columns of all groups are alike.
    pub(super) fn column_blocks(&self, blocks_per_group: u32) -> u64 {
        if !self.is_striped() {
            return u64::from(blocks_per_group);
        }
        let data = u64::from(self.columns).saturating_sub(self.parity_columns()).max(1);
        let unit = u64::from(self.unit_blocks).max(1);
        u64::from(blocks_per_group) / data / unit * unit
    }

    /// Blocks that a group with so many columns or copies holds.
    pub(super) fn blocks(&self, places: usize, blocks_per_group: u32) -> u64 {
        let column = self.column_blocks(blocks_per_group);
        if self.is_striped() { (places as u64).saturating_sub(self.parity_columns()) * column } else { column }
    }

    /// The record of a group at these places.
    pub(super) fn record(&self, places: Slot, blocks_per_group: u32) -> GroupRecord {
        let column = self.column_blocks(blocks_per_group) as u32;
        let (unit_blocks, column_blocks) = if self.is_striped() { (self.unit_blocks, column) } else { (0, 0) };
        GroupRecord { profile: self.profile, copies: places, unit_blocks, column_blocks }
    }

    /// The places for further groups, the next one last. Nothing lies where something taken does.
    pub(super) fn free_slots(&self, areas: &[Area], blocks_per_group: u32, taken: &[Taken]) -> Vec<Slot> {
        let bytes = self.column_blocks(blocks_per_group) * BLOCK_SIZE;
        if bytes == 0 {
            return Vec::new();
        }
        let mut free: Vec<VecDeque<(u32, u64)>> = areas.iter().map(|area| free_places(area, bytes, taken)).collect();
        let mut slots = match (self.profile, free.as_mut_slice()) {
            (PROFILE_DUP, [only]) => {
                let far = only.split_off(only.len() / 2);
                only.iter().zip(far).map(|(near, far)| vec![*near, far]).collect()
            }
            (PROFILE_DUP | PROFILE_RAID1, devices) => rows_of(devices, 2, 2),
            (PROFILE_RAID0 | PROFILE_RAID5, devices) => {
                rows_of(devices, self.columns_min(), COLUMNS_MAX.min(self.columns as usize))
            }
            _ => in_turn(areas, free, bytes),
        };
        slots.reverse();
        slots
    }
}

/// Where the next places of an area are that meet nothing taken.
pub(super) fn free_places(area: &Area, bytes: u64, taken: &[Taken]) -> VecDeque<(u32, u64)> {
    let mut on_device: Vec<(u64, u64)> = taken
        .iter()
        .filter(|taken| taken.0 == area.device)
        .map(|(_, begin, bytes)| (*begin, begin.saturating_add(*bytes)))
        .collect();
    on_device.sort_unstable();
    let count = area.end.saturating_sub(area.begin) / bytes;
    let mut next = 0;
    let mut places = VecDeque::new();
    for number in 0..count {
        let (begin, end) = (area.begin + number * bytes, area.begin + (number + 1) * bytes);
        while on_device.get(next).is_some_and(|taken| taken.1 <= begin) {
            next += 1;
        }
        if on_device.get(next).is_none_or(|taken| taken.0 >= end) {
            places.push_back((area.device, begin));
        }
    }
    places
}

/// One place a group, devices in turn, so that groups spread.
fn in_turn(areas: &[Area], free: Vec<VecDeque<(u32, u64)>>, bytes: u64) -> Vec<Slot> {
    let all = areas.iter().zip(free).enumerate();
    let mut numbered: Vec<(u64, usize, (u32, u64))> = all
        .flat_map(|(at, (area, free))| {
            let begin = area.begin;
            free.into_iter().map(move |slot| ((slot.1 - begin) / bytes, at, slot))
        })
        .collect();
    numbered.sort_unstable();
    numbered.into_iter().map(|(_, _, slot)| vec![slot]).collect()
}

/// Groups with places on `least` to `most` different devices, always those with the most room: little is left without partners.
fn rows_of(devices: &mut [VecDeque<(u32, u64)>], least: usize, most: usize) -> Vec<Slot> {
    let mut found = Vec::new();
    loop {
        devices.sort_by_key(|free| (std::cmp::Reverse(free.len()), free.front().copied()));
        let with_room = devices.iter().filter(|free| !free.is_empty()).count();
        if with_room < least.max(1) {
            return found;
        }
        let mut slot: Slot = devices.iter_mut().take(with_room.min(most)).filter_map(VecDeque::pop_front).collect();
        if most > 2 {
            slot.sort_unstable();
        }
        found.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const GROUP: u64 = 1 << 20;
    const GROUP_BLOCKS: u32 = 256;

    fn slots_of(plan: Plan, sizes: &[u64], taken: &[Taken]) -> Vec<Slot> {
        let areas: Vec<Area> =
            (0u32..).zip(sizes).map(|(device, size)| Area { device, begin: GROUP, end: GROUP + size * GROUP }).collect();
        let mut slots = plan.free_slots(&areas, GROUP_BLOCKS, taken);
        slots.reverse();
        slots
    }

    fn slots(profile: u8, sizes: &[u64], taken: &[(u32, u64)]) -> Vec<Slot> {
        let taken: Vec<Taken> = taken.iter().map(|(device, begin)| (*device, *begin, GROUP)).collect();
        slots_of(Plan { profile, ..Plan::default() }, sizes, &taken)
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
            for profile in [PROFILE_DUP, PROFILE_RAID1] {
                let found = slots(profile, &sizes, &[]);
                assert_eq!(found.len(), expected, "{sizes:?}");
                assert!(found.iter().all(|slot| slot[0].0 != slot[1].0), "{found:?}");
                let places: HashSet<_> = found.iter().flatten().collect();
                assert_eq!(places.len(), 2 * expected, "no place twice");
            }
        }
        assert_eq!(slots(PROFILE_RAID1, &[7], &[]), Vec::<Slot>::new(), "one device is no mirror");
    }

    #[test]
    fn columns_are_alike_and_on_different_devices_whatever_their_sizes() {
        let plan = Plan { profile: PROFILE_RAID5, unit_blocks: 16, columns: 4 };
        assert_eq!(plan.column_blocks(GROUP_BLOCKS), 80, "whole units, three of them within the addresses of a group");
        assert_eq!((plan.blocks(4, GROUP_BLOCKS), plan.blocks(3, GROUP_BLOCKS)), (240, 160));
        let found = slots_of(plan, &[2, 2, 1, 1], &[]);
        let widths: Vec<usize> = found.iter().map(Vec::len).collect();
        assert_eq!(widths, [4, 4, 4, 2, 2, 2]);
        for slot in &found {
            let devices: HashSet<u32> = slot.iter().map(|place| place.0).collect();
            assert_eq!(devices.len(), slot.len());
        }
    }

    #[test]
    fn nothing_is_given_that_meets_a_column_of_another_size() {
        let plan = Plan { profile: PROFILE_RAID5, unit_blocks: 16, columns: 3 };
        let bytes = plan.column_blocks(GROUP_BLOCKS) * BLOCK_SIZE;
        let taken = [(0, GROUP + bytes + 4096, 4096), (1, GROUP, bytes + 1)];
        for (device, begin) in slots_of(plan, &[4, 4, 4], &taken).into_iter().flatten() {
            let meets = taken.iter().any(|taken| taken.0 == device && begin < taken.1 + taken.2 && taken.1 < begin + bytes);
            assert!(!meets, "{device} {begin}");
        }
    }
}
