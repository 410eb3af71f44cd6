//! Groups and the counts of space: what is open, reserved, promised; opening further groups on the host; what checkpoints store.

use super::allocator::Cursors;
use super::bitmap::Bitmap;
use super::copies::Faults;
use super::layout::{Layout, Slot};
use super::missing::FAILURES_MAX;
use super::moving::Moving;
use super::pace::Pace;
use super::pinned::{EpochGuard, Pinned, Run};
use super::slots::{Area, Plan, Taken};
use super::stripes::{RowCursors, StripeCounts};
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::lock::{Rank, RankedMutex, assert_may_wait};
use crate::meta::records::GroupRecord;
use crate::sync::{AtomicBool, AtomicU64, RwLock};
use crate::units::{BLOCK_SIZE, BlockAddress};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most groups of a store: 1 PiB in groups of the usual size. Each takes memory, open or not.
const GROUPS_MAX: u64 = 1 << 22;

/// One open group.
#[derive(Debug)]
pub(super) struct Group {
    /// Shared with whoever transfers: a place that moves makes a new one.
    pub(super) layout: Arc<Layout>,
    pub(super) used: Bitmap,
    /// With parity: the rows in which a block is used, or was when the row was written.
    pub(super) rows: Option<Bitmap>,
    /// Blocks that can be allocated. With parity: those of free rows.
    pub(super) free: u32,
    applied: Bitmap,
    is_applied_dirty: bool,
    /// May blocks be allocated here? Not in groups of another profile than new ones get.
    pub(super) takes_new: bool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// By group number; groups open in the order of their numbers.
    pub(super) groups: Vec<Group>,
    /// Of the groups that take new blocks.
    pub(super) free: u64,
    pub(super) reserved: u64,
    promised: u64,
    pub(super) cursors: Cursors,
    pub(super) rows: RowCursors,
    /// Where groups may lie.
    pub(super) areas: Vec<Area>,
    /// Devices on which no group is opened: missing, set aside, being emptied.
    pub(super) closed: Vec<u32>,
    /// Places where groups can still be opened; the next one last.
    pub(super) slots: Vec<Slot>,
    /// Ranges kept for what moves.
    pub(super) planned: Vec<Taken>,
    /// Of the groups with parity the most data blocks in a row: so many may be lost to one block that is written alone. 0: there are none.
    pub(super) row_blocks: u64,
}

/// One device with whether it was written to since its last flush.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) id: u32,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) is_dirty: AtomicBool,
    pub(super) faults: Faults,
    /// Missing, or it failed too often: nothing is read from it or written to it.
    pub(super) is_set_aside: AtomicBool,
    /// It is there again, but missed something.
    pub(super) is_stale: AtomicBool,
    /// That of its label; 0: not known.
    pub(super) generation: AtomicU64,
}

/// Groups, free space, reservations and the way from a logical block to a device.
#[derive(Debug)]
pub struct Space {
    pub(super) devices: RwLock<Vec<Arc<Device>>>,
    pub(super) blocks_per_group: u64,
    /// What new groups get.
    pub(super) plan: Plan,
    pub(super) state: RankedMutex<State>,
    pub(super) pinned: Arc<Pinned>,
    pub(super) is_opening: crate::sync::Mutex<()>,
    /// The place of a group that is moving; see `moving.rs`.
    pub(super) moving: RwLock<Option<Moving>>,
    /// Counts what devices missed that were not set aside.
    pub(super) missed: AtomicU64,
    /// A device was set aside, and the labels of the others do not say so yet.
    pub(super) is_absence_due: AtomicBool,
    /// How quick the devices are.
    pub pace: Pace,
    /// What was written to groups with parity.
    pub stripe_counts: StripeCounts,
}

/// Counts for statfs and `info`, in blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpaceCounts {
    /// All groups, open or not.
    pub total: u64,
    /// Neither used nor pinned, in open groups.
    pub free: u64,
    /// In groups that can still be opened, as far as the host has room.
    pub unopened: u64,
    /// Promised to dirty blocks.
    pub reserved: u64,
    /// Promised to unwritten ranges.
    pub promised: u64,
    /// Freed, waiting for reads to end.
    pub pinned: u64,
    /// Open groups.
    pub groups: u64,
}

/// A group that has its place on the host and waits to be recorded.
#[derive(Debug)]
pub struct NewGroup {
    /// Its number.
    pub number: u64,
    /// What to record.
    pub record: GroupRecord,
}

impl Space {
    /// `open_groups`: number order, with the stored bitmap (None: never stored, all free). `areas` is where groups begin on each
    /// device and how far they may reach, `plan` what new ones get.
    pub fn new(
        devices: Vec<(u32, Arc<dyn Disk>)>,
        areas: &[(u64, u64)],
        blocks_per_group: u32,
        plan: Plan,
        open_groups: Vec<(GroupRecord, Option<Vec<u8>>)>,
        promised: u64,
    ) -> Result<Space> {
        let group_bytes = u64::from(blocks_per_group) * BLOCK_SIZE;
        let counts = areas.iter().map(|(begin, end)| end.saturating_sub(*begin) / group_bytes);
        if counts.fold(0, u64::saturating_add) > GROUPS_MAX {
            return Err(Error::corrupt(format!("devices with room for more than {GROUPS_MAX} groups of {group_bytes} bytes")));
        }
        let areas =
            devices.iter().zip(areas).map(|((device, _), (begin, end))| Area { device: *device, begin: *begin, end: *end });
        let areas: Vec<Area> = areas.collect();
        let closed = devices.iter().filter(|(_, disk)| disk.is_missing()).map(|(id, _)| *id).collect();
        let mut state = State { promised, areas, closed, ..State::default() };
        for (number, (record, bitmap)) in open_groups.into_iter().enumerate() {
            let layout = Arc::new(Layout::of(&record, blocks_per_group)?);
            let applied = match bitmap {
                None => Bitmap::new(layout.blocks()),
                Some(bytes) => Bitmap::from_bytes(blocks_per_group, &bytes)
                    .ok_or_else(|| Error::corrupt(format!("bitmap of group {number} has a wrong length")))?
                    .resized(layout.blocks()),
            };
            state.add(Group { takes_new: record.profile == plan.profile, ..Group::new(layout, applied) });
        }
        state.find_slots(&plan, blocks_per_group);
        let devices = devices.into_iter().map(|(id, disk)| Device::new(id, disk)).collect();
        Ok(Self::assemble(devices, u64::from(blocks_per_group), plan, state))
    }

    fn assemble(devices: Vec<Device>, blocks_per_group: u64, plan: Plan, state: State) -> Space {
        Space {
            devices: RwLock::new(devices.into_iter().map(Arc::new).collect()),
            blocks_per_group,
            plan,
            is_absence_due: AtomicBool::new(!state.closed.is_empty()),
            state: RankedMutex::new(Rank::Space, state),
            pinned: Arc::default(),
            is_opening: crate::sync::Mutex::new(()),
            moving: RwLock::new(None),
            missed: AtomicU64::new(0),
            pace: Pace::default(),
            stripe_counts: StripeCounts::default(),
        }
    }

    /// Begins a read: blocks freed from now on are not used again before the guard is dropped.
    pub fn enter_read(&self) -> EpochGuard {
        self.pinned.enter()
    }

    /// Promises `blocks` to dirty data, if that many are free now.
    pub fn reserve(&self, blocks: u64) -> bool {
        let mut state = self.state.lock();
        let fits = state.available() >= blocks;
        if fits {
            state.reserved += blocks;
        }
        fits
    }

    /// Renews the promise to dirty data that could not be written, whether or not so much is free.
    pub fn reserve_again(&self, blocks: u64) {
        self.state.lock().reserved += blocks;
    }

    /// Gives a promise back.
    pub fn release(&self, blocks: u64) {
        let mut state = self.state.lock();
        debug_assert!(state.reserved >= blocks, "released {blocks} of {}", state.reserved);
        state.reserved = state.reserved.saturating_sub(blocks);
    }

    /// Promises `blocks` to unwritten ranges, if that many are free now.
    pub fn promise(&self, blocks: u64) -> bool {
        let mut state = self.state.lock();
        let fits = state.available() >= blocks;
        if fits {
            state.promised += blocks;
        }
        fits
    }

    /// Unwritten ranges of `blocks` are gone.
    pub fn unpromise(&self, blocks: u64) {
        let mut state = self.state.lock();
        state.promised = state.promised.saturating_sub(blocks);
    }

    /// Turns a promise to an unwritten range into one to the dirty data that fills it.
    pub fn claim_promise(&self, blocks: u64) {
        let mut state = self.state.lock();
        state.promised = state.promised.saturating_sub(blocks);
        state.reserved += blocks;
    }

    /// Blocks that can be promised. With parity each may have to be written alone, and then takes a whole row: so many fewer.
    pub fn available(&self) -> u64 {
        self.state.lock().available()
    }

    /// Finds a place for one more group and makes the host allocate it (slow). None when there is no place; an error when the
    /// host has no room. The caller records it, then calls `add_group`. One caller at a time keeps the guard until then.
    pub fn prepare_group(&self) -> Result<Option<(NewGroup, crate::sync::MutexGuard<'_, ()>)>> {
        assert_may_wait("opening a group");
        let opening = self.is_opening.lock();
        loop {
            let (number, slot) = {
                let state = self.state.lock();
                (state.groups.len() as u64, state.slots.last().cloned())
            };
            let Some(copies) = slot else { return Ok(None) };
            let record = self.plan.record(copies, self.blocks_per_group as u32);
            let bytes = u64::from(Layout::of(&record, self.blocks_per_group as u32)?.column_blocks()) * BLOCK_SIZE;
            let allocated = record.copies.iter().try_for_each(|(device, offset)| self.allocate_place(*device, *offset, bytes));
            match allocated {
                Ok(()) => return Ok(Some((NewGroup { number, record }, opening))),
                // There are other places without it.
                Err(Error::SetAside { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// A device that the rest can do without does not keep groups from being opened: it is set aside.
    fn allocate_place(&self, device: u32, offset: u64, bytes: u64) -> Result<()> {
        let device = self.device(device)?;
        loop {
            match device.disk.allocate(offset, bytes) {
                Err(error) if !matches!(error, Error::NoSpace) => {
                    let failures = device.faults.write_errors.fetch_add(1, Ordering::Relaxed);
                    if self.note_failure(&device) {
                        return Err(Error::SetAside { device: device.id });
                    }
                    if failures >= FAILURES_MAX {
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
    }

    /// Opens the group for allocation; its record is in the running transaction by now.
    pub fn add_group(&self, group: &NewGroup) -> Result<()> {
        let mut state = self.state.lock();
        let is_slot = state.slots.last() == Some(&group.record.copies);
        let layout = Layout::of(&group.record, self.blocks_per_group as u32)?;
        let blocks = layout.blocks();
        state.add(Group::new(layout.into(), Bitmap::new(blocks)));
        if is_slot {
            state.slots.pop();
        } else {
            // They were looked for anew meanwhile, and the group's places may be in others.
            state.find_slots(&self.plan, self.blocks_per_group as u32);
        }
        Ok(())
    }

    /// Blocks in a group.
    pub fn blocks_per_group(&self) -> u64 {
        self.blocks_per_group
    }

    /// Sets and clears bits of the applied state: one transaction has reached the index.
    pub fn apply(&self, allocated: &[Run], freed: &[Run]) -> Result<()> {
        let mut state = self.state.lock();
        for (runs, used) in [(allocated, true), (freed, false)] {
            for (first, count) in runs.iter().flat_map(|run| self.by_group(*run)) {
                let (group, block) = state.group_mut(first, self.blocks_per_group)?;
                group.applied.set(block, count, used);
                group.is_applied_dirty = true;
            }
        }
        Ok(())
    }

    /// As `apply`, for the allocator's view too: replay of a journal record.
    pub fn replay(&self, allocated: &[Run], freed: &[Run]) -> Result<()> {
        let mut state = self.state.lock();
        for (runs, used) in [(allocated, true), (freed, false)] {
            for (first, count) in runs.iter().flat_map(|run| self.by_group(*run)) {
                state.set_used(first, count, used, self.blocks_per_group)?;
            }
        }
        Ok(())
    }

    /// Bitmaps changed since the last checkpoint. `settle_bitmaps` follows when they are stored.
    pub fn changed_bitmaps(&self) -> Vec<(u64, Vec<u8>)> {
        let state = self.state.lock();
        let changed = state.groups.iter().enumerate().filter(|(_, group)| group.is_applied_dirty);
        let bytes = |group: &Group| group.applied.resized(self.blocks_per_group as u32).to_bytes();
        changed.map(|(number, group)| (number as u64, bytes(group))).collect()
    }

    /// The changed bitmaps are stored.
    pub fn settle_bitmaps(&self) {
        for group in &mut self.state.lock().groups {
            group.is_applied_dirty = false;
        }
    }

    /// Pins blocks that a durable transaction freed, or that no transaction ever named.
    pub fn free(&self, runs: Vec<Run>) -> Result<()> {
        self.pinned.pin(runs);
        self.collect_released()
    }

    /// Makes pinned blocks free whose readers are gone.
    pub fn collect_released(&self) -> Result<()> {
        let released = self.pinned.take_released();
        if released.is_empty() {
            return Ok(());
        }
        let mut state = self.state.lock();
        for (first, count) in released.into_iter().flat_map(|run| self.by_group(run)) {
            state.set_used(first, count, false, self.blocks_per_group)?;
        }
        Ok(())
    }

    /// The counts now.
    pub fn counts(&self) -> SpaceCounts {
        let pinned = self.pinned.blocks();
        let host = self.devices().iter().filter_map(|device| device.disk.host_free_bytes()).min();
        let state = self.state.lock();
        let unopened = state.slots.len() as u64;
        let bytes = |slot: &Slot| slot.len() as u64 * self.plan.column_blocks(self.blocks_per_group as u32) * BLOCK_SIZE;
        let group_bytes = state.slots.last().map_or(0, bytes).max(1);
        let can_open = host.map_or(unopened, |bytes| unopened.min(bytes / group_bytes));
        let blocks = |slot: &Slot| self.plan.blocks(slot.len(), self.blocks_per_group as u32);
        let opened: u64 = state.groups.iter().map(|group| u64::from(group.layout.blocks())).sum();
        SpaceCounts {
            total: opened + state.slots.iter().map(blocks).sum::<u64>(),
            free: state.free,
            unopened: state.slots.iter().rev().take(can_open as usize).map(blocks).sum(),
            reserved: state.reserved,
            promised: state.promised,
            pinned,
            groups: state.groups.len() as u64,
        }
    }

    /// Does the bitmap of the open groups say that the block is used? For check.
    pub fn is_used(&self, block: BlockAddress) -> Option<bool> {
        let state = self.state.lock();
        let group = state.groups.get((block.0 / self.blocks_per_group) as usize)?;
        Some(group.used.get((block.0 % self.blocks_per_group) as u32))
    }

    /// Replaces what is known of a group: a repair has counted its blocks.
    pub fn set_used(&self, number: u64, used: Bitmap) {
        let mut state = self.state.lock();
        let Some(group) = usize::try_from(number).ok().and_then(|number| state.groups.get_mut(number)) else { return };
        let before = group.free;
        let takes_new = group.takes_new;
        let used = used.resized(group.layout.blocks());
        *group = Group { is_applied_dirty: true, takes_new, ..Group::new(group.layout.clone(), used) };
        let free = group.free;
        if takes_new {
            state.free = state.free - u64::from(before) + u64::from(free);
        }
    }

    /// The groups as they were last applied. The caller keeps everybody from applying; one group is copied at a time, so that
    /// writers wait for no more than that.
    pub fn frozen(&self) -> Space {
        let mut state = State::default();
        loop {
            let next = state.groups.len();
            let copied = self.state.lock().groups.get(next).map(|group| (group.layout.clone(), group.applied.clone()));
            let Some((layout, applied)) = copied else { break };
            state.add(Group::new(layout, applied));
        }
        let devices = self.devices().iter().map(|device| device.with_the_same_disk()).collect();
        Self::assemble(devices, self.blocks_per_group, self.plan, state)
    }

    /// The used blocks of an open group, for check: a bit for each address that it takes.
    pub fn used_in_group(&self, number: u64) -> Option<Bitmap> {
        let state = self.state.lock();
        let used = &state.groups.get(usize::try_from(number).ok()?)?.used;
        Some(used.resized(self.blocks_per_group as u32))
    }

    /// The parts of a run, none of which crosses the end of a group.
    fn by_group(&self, (first, count): Run) -> impl Iterator<Item = Run> + use<> {
        let (blocks_per_group, end) = (self.blocks_per_group, first + u64::from(count));
        let mut at = first;
        std::iter::from_fn(move || {
            let upto = end.min((at / blocks_per_group + 1) * blocks_per_group);
            let part = (at, (upto - at) as u32);
            at = upto;
            (part.1 > 0).then_some(part)
        })
    }

    /// The devices with their ids.
    pub fn disks(&self) -> Vec<(u32, Arc<dyn Disk>)> {
        self.devices().iter().map(|device| (device.id, device.disk.clone())).collect()
    }

    pub(super) fn devices(&self) -> Vec<Arc<Device>> {
        self.devices.read().clone()
    }

    pub(super) fn device(&self, id: u32) -> Result<Arc<Device>> {
        let devices = self.devices.read();
        devices.iter().find(|device| device.id == id).cloned().ok_or_else(|| Error::corrupt(format!("no device {id}")))
    }
}

impl Group {
    /// The first row at or behind `from` in which a block is used.
    pub(super) fn next_used_row(&self, from: u32) -> Option<u32> {
        match &self.rows {
            Some(rows) => rows.next_used(from),
            None if !self.layout.is_striped() => self.used.next_used(from),
            None => (from..self.layout.column_blocks())
                .find(|row| (0..self.layout.data_columns()).any(|cell| self.used.get(self.layout.block(*row, cell)))),
        }
    }

    fn new(layout: Arc<Layout>, applied: Bitmap) -> Group {
        let rows = layout.has_parity().then(|| rows_in_use(&layout, &applied));
        let free = match &rows {
            Some(rows) => (rows.len() - rows.count()) * layout.data_columns(),
            None => applied.len() - applied.count(),
        };
        Group { layout, used: applied.clone(), rows, free, applied, is_applied_dirty: false, takes_new: true }
    }

    /// Sets or clears bits; by how much `free` fell or rose. A row is free again when nothing in it is used.
    pub(super) fn set_used(&mut self, block: u32, count: u32, used: bool) -> u32 {
        let mut changed = self.used.set(block, count, used);
        if let Some(rows) = &mut self.rows {
            let columns = self.layout.data_columns();
            changed = 0;
            for row in self.layout.rows(block, count).flatten() {
                if used || !(0..columns).any(|cell| self.used.get(self.layout.block(row, cell))) {
                    changed += rows.set(row, 1, used) * columns;
                }
            }
        }
        if used {
            self.free -= changed
        } else {
            self.free += changed
        }
        changed
    }
}

fn rows_in_use(layout: &Layout, used: &Bitmap) -> Bitmap {
    let mut rows = Bitmap::new(layout.column_blocks());
    let mut at = 0;
    while let Some(first) = used.next_used(at) {
        let row = layout.row(first);
        rows.set(row, 1, true);
        at = first + 1;
    }
    rows
}

impl State {
    fn add(&mut self, group: Group) {
        if group.takes_new {
            self.free += u64::from(group.free);
        }
        if group.layout.has_parity() {
            self.row_blocks = self.row_blocks.max(u64::from(group.layout.data_columns()));
        }
        self.groups.push(group);
    }

    fn available(&self) -> u64 {
        (self.free / self.row_blocks.max(1)).saturating_sub(self.reserved + self.promised)
    }

    pub(super) fn set_used(&mut self, first: u64, count: u32, used: bool, blocks_per_group: u64) -> Result<()> {
        let (group, block) = self.group_mut(first, blocks_per_group)?;
        let changed = u64::from(group.set_used(block, count, used));
        if group.takes_new {
            self.free = if used { self.free - changed } else { self.free + changed };
        }
        Ok(())
    }

    pub(super) fn group_mut(&mut self, block: u64, blocks_per_group: u64) -> Result<(&mut Group, u32)> {
        let group = self
            .groups
            .get_mut((block / blocks_per_group) as usize)
            .ok_or_else(|| Error::corrupt(format!("block {block} is in no open group")))?;
        Ok((group, (block % blocks_per_group) as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::memory::MemoryDisk;
    use crate::meta::records::PROFILE_SINGLE;

    #[test]
    fn a_device_with_room_for_more_groups_than_memory_is_refused() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new("device", 64 << 20));
        let areas = [(1 << 20, i64::MAX as u64)];
        assert!(matches!(Space::new(vec![(0, disk)], &areas, 256, Plan::default(), Vec::new(), 0), Err(Error::Corrupt(_))));
    }

    #[test]
    fn a_run_over_the_end_of_a_group_is_used_in_both() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new("device", 64 << 20));
        let groups = [0, 1].map(|number| {
            (GroupRecord { profile: PROFILE_SINGLE, copies: vec![(0, number << 20)], ..GroupRecord::default() }, None)
        });
        let space = Space::new(vec![(0, disk)], &[(0, 64 << 20)], 256, Plan::default(), groups.to_vec(), 0).unwrap();
        space.replay(&[(250, 10)], &[]).unwrap();
        space.apply(&[(250, 10)], &[]).unwrap();
        let used = |block| space.is_used(BlockAddress(block)).unwrap();
        assert_eq!([249, 250, 255, 256, 259, 260].map(used), [false, true, true, true, true, false]);
        assert_eq!(space.changed_bitmaps().len(), 2);
        assert_eq!(space.counts().free, 512 - 10);
        space.free(vec![(250, 10)]).unwrap();
        assert_eq!(space.counts().free, 512);
    }
}
