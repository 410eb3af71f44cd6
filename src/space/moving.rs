//! Moving one copy or column of a group to another place while the group is in use. Addresses do not change, so nothing above this
//! layer notices.
//!
//! ```text
//!   plan -> begin -> copy, chunk by chunk -> settle -> (the group's record is committed) -> end
//! ```
//! From `begin` on whoever writes where the place was writes to both; a chunk is copied while nobody writes, so that neither overtakes
//! the other. From `settle` on a write that the new place refuses has failed: the record may be durable at any moment. `end` turns to
//! the new place. Before the record is durable the old place has everything, afterwards the new one has.
//!
//! A chunk is read from the old place; where that is missing, stale or refuses, it is computed from the other places. Checksums are not
//! looked at: what was bad is bad at the new place too, and found there.
//!
//! Lock: `moving`, held shared across each write of groups and alone across the copying of a chunk; taken before the lock of rank Space,
//! and while nothing of a rank is held.

use super::groups::{Space, State};
use super::layout::Layout;
use super::slots::{Area, Plan, Taken, free_places};
use super::transfer::{Place, carve};
use crate::disk::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::lock::assert_may_wait;
use crate::units::{BLOCK, BLOCK_SIZE};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Blocks copied while writers wait.
const CHUNK_BLOCKS: u32 = 128;

/// A copy or column of a group that is to go elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedMove {
    /// The group.
    pub group: u64,
    /// Which of its places.
    pub place: usize,
    /// Device and byte offset where it is.
    pub from: (u32, u64),
    /// Where it goes.
    pub to: (u32, u64),
    /// Bytes of the place.
    pub bytes: u64,
}

/// A place on its way.
#[derive(Debug)]
pub(super) struct Moving {
    planned: PlannedMove,
    /// Something could not be written to the new place.
    has_failed: AtomicBool,
    /// What the new place refuses has failed.
    is_settled: bool,
}

/// What copying a chunk came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Copied {
    /// Where to go on; None: that was all.
    pub next: Option<u32>,
    /// Bytes copied.
    pub bytes: u64,
    /// Blocks that could neither be read nor be computed; they read as before: as errors.
    pub unreadable: u64,
}

impl Moving {
    /// The part of a write that goes to the new place, too: where there, and which bytes of it.
    fn overlap(&self, place: Place, bytes: u64) -> Option<(Place, u64, u64)> {
        let PlannedMove { from, to, bytes: whole, .. } = self.planned;
        if place.device != from.0 {
            return None;
        }
        let (begin, end) = (place.offset.max(from.1), (place.offset + bytes).min(from.1 + whole));
        (begin < end).then(|| (Place { device: to.0, offset: begin - from.1 + to.1 }, begin - place.offset, end - place.offset))
    }
}

impl Space {
    /// Finds a place elsewhere for everything on `device`: on `target`, or on any device that the group is not on. The places are kept
    /// free of new groups, and so is `device`, until `forget_plan`. An error, and nothing is kept, when there is too little room.
    pub fn plan_moves(&self, device: u32, target: Option<u32>) -> Result<Vec<PlannedMove>> {
        // A group that is being opened has its place by now.
        let _opening = self.is_opening.lock();
        let (stale, set_aside) = (self.stale_devices(), self.set_aside_devices());
        let mut state = self.state.lock();
        state.planned.clear();
        let is_new = !state.closed.contains(&device);
        if is_new {
            state.closed.push(device);
        }
        state.closed.retain(|closed| Some(*closed) != target || set_aside.contains(closed));
        let planned = state.plan_moves(device, target, &stale);
        match &planned {
            Ok(moves) => state.planned = moves.iter().map(|planned| (planned.to.0, planned.to.1, planned.bytes)).collect(),
            Err(_) if is_new => state.closed.retain(|closed| *closed != device),
            Err(_) => {}
        }
        state.find_slots(&self.plan, self.blocks_per_group as u32);
        planned
    }

    /// Nothing moves off `device` any more; groups may be opened on it again.
    pub fn forget_plan(&self, device: u32) {
        let is_set_aside = self.device(device).is_ok_and(|device| device.is_set_aside());
        let mut state = self.state.lock();
        state.planned.clear();
        state.closed.retain(|closed| *closed != device || is_set_aside);
        state.find_slots(&self.plan, self.blocks_per_group as u32);
    }

    /// The first step of a move: from now on the new place gets what is written.
    pub fn begin_move(&self, planned: PlannedMove) -> Result<()> {
        assert_may_wait("moving a group");
        self.device(planned.to.0)?.disk.allocate(planned.to.1, planned.bytes)?;
        let mut moving = self.moving.write();
        let state = self.state.lock();
        let group = usize::try_from(planned.group).ok().and_then(|number| state.groups.get(number));
        let place = group.and_then(|group| group.layout.places.get(planned.place));
        if moving.is_some() || place != Some(&planned.from) {
            return Err(Error::corrupt(format!("place {} of group {} is not where a move begins", planned.place, planned.group)));
        }
        *moving = Some(Moving { planned, has_failed: AtomicBool::new(false), is_settled: false });
        Ok(())
    }

    /// Copies the next blocks in use from row `row` of the moving place on.
    pub fn copy_chunk(&self, row: u32) -> Result<Copied> {
        assert_may_wait("moving a group");
        let moving = self.moving.write();
        let Some(Moving { planned, .. }) = &*moving else { return Err(Error::corrupt("no group is moving")) };
        let found = {
            let state = self.state.lock();
            let group = usize::try_from(planned.group).ok().and_then(|number| state.groups.get(number));
            let group = group.ok_or_else(|| Error::corrupt(format!("no group {}", planned.group)))?;
            group.next_used_row(row).map(|row| (group.layout.clone(), row))
        };
        let Some((layout, first)) = found else { return Ok(Copied::default()) };
        let count = CHUNK_BLOCKS.min(layout.column_blocks() - first);
        let mut buffer = AlignedBuffer::zeroed(count as usize * BLOCK);
        let unreadable = self.read_column(&layout, planned.place, first, &mut buffer);
        let target = self.device(planned.to.0)?;
        let written = target.disk.write_at(planned.to.1 + u64::from(first) * BLOCK_SIZE, &buffer);
        target.is_dirty.store(true, Ordering::Release);
        written.inspect_err(|_| {
            target.faults.write_errors.fetch_add(1, Ordering::Relaxed);
        })?;
        Ok(Copied { next: Some(first + count), bytes: buffer.len() as u64, unreadable })
    }

    /// Everything is copied; the record that names the new place may be appended. An error when the new place does not have everything.
    pub fn settle_move(&self) -> Result<()> {
        match &mut *self.moving.write() {
            Some(moving) if !moving.has_failed.load(Ordering::Acquire) => {
                moving.is_settled = true;
                Ok(())
            }
            Some(Moving { planned, .. }) => {
                let what = format!("device {} refused something that was written while a group moved there", planned.to.0);
                Err(Error::io(what, std::io::ErrorKind::Other.into()))
            }
            None => Err(Error::corrupt("no group is moving")),
        }
    }

    /// Ends the move: with the new place, when its record is durable, or as if it had not begun.
    pub fn end_move(&self, is_committed: bool) {
        let mut moving = self.moving.write();
        let Some(Moving { planned, .. }) = moving.take() else { return };
        if !is_committed {
            return;
        }
        let mut state = self.state.lock();
        let group = usize::try_from(planned.group).ok().and_then(|number| state.groups.get_mut(number));
        if let Some(place) = group.and_then(|group| Arc::make_mut(&mut group.layout).places.get_mut(planned.place)) {
            *place = planned.to;
        }
        state.planned.retain(|kept| (kept.0, kept.1) != planned.to);
    }

    /// A write of groups also goes where they are moving to.
    pub(super) fn write_moving(&self, moving: Option<&Moving>, place: Place, slices: &[&[u8]], bytes: usize) -> Result<()> {
        let Some((moving, (place, begin, end))) = moving.and_then(|moving| Some((moving, moving.overlap(place, bytes as u64)?)))
        else {
            return Ok(());
        };
        let device = self.device(place.device)?;
        let written = device.disk.write_vectored_at(place.offset, &carve(slices, begin as usize, end as usize));
        device.is_dirty.store(true, Ordering::Release);
        let Err(error) = written else { return Ok(()) };
        device.faults.write_errors.fetch_add(1, Ordering::Relaxed);
        moving.has_failed.store(true, Ordering::Release);
        if moving.is_settled { Err(error) } else { Ok(()) }
    }

    /// What lies at one place of a group from `row` on; how many blocks are nowhere to be had (zeros then).
    fn read_column(&self, layout: &Layout, place: usize, row: u32, into: &mut [u8]) -> u64 {
        let is_stale =
            layout.places.get(place).and_then(|place| self.device(place.0).ok()).is_none_or(|device| device.is_stale());
        let read = |row: u32, into: &mut [u8]| {
            let own = |into: &mut [u8]| self.read_column_at(layout, place, row, into);
            let others = |into: &mut [u8]| self.compute_column(layout, place, row, into);
            if is_stale { others(into).or_else(|_| own(into)) } else { own(into).or_else(|_| others(into)) }
        };
        if read(row, into).is_ok() {
            return 0;
        }
        let mut unreadable = 0;
        for (row, block) in (row..).zip(into.chunks_exact_mut(BLOCK)) {
            if read(row, block).is_err() {
                block.fill(0);
                unreadable += 1;
            }
        }
        unreadable
    }

    /// The same from the other places.
    fn compute_column(&self, layout: &Layout, place: usize, row: u32, into: &mut [u8]) -> Result<()> {
        if layout.has_parity() {
            into.fill(0);
            return self.add_columns(layout, &[place], row, into);
        }
        let mut result = Err(Error::corrupt("there is no other copy"));
        if !layout.is_striped() {
            for other in (0..layout.places.len()).filter(|other| *other != place) {
                result = self.read_column_at(layout, other, row, into);
                if result.is_ok() {
                    break;
                }
            }
        }
        result
    }
}

impl State {
    fn plan_moves(&self, device: u32, target: Option<u32>, stale: &[u32]) -> Result<Vec<PlannedMove>> {
        let areas: Vec<Area> = self.areas.iter().filter(|area| self.may_take(area, device, target)).copied().collect();
        let mut taken = self.taken();
        let mut rooms: HashMap<u64, Vec<VecDeque<(u32, u64)>>> = HashMap::new();
        let mut moves = Vec::new();
        for (number, group) in (0..).zip(&self.groups) {
            let bytes = u64::from(group.layout.column_blocks()) * BLOCK_SIZE;
            let mut partners: Vec<u32> = group.layout.places.iter().map(|place| place.0).collect();
            for (place, from) in group.layout.places.iter().enumerate().filter(|(_, from)| from.0 == device) {
                if !rooms.contains_key(&bytes) {
                    // Places of another size meet those that were given out before.
                    rooms.clear();
                }
                let rooms =
                    rooms.entry(bytes).or_insert_with(|| areas.iter().map(|area| free_places(area, bytes, &taken)).collect());
                // Two copies on the old device may be two on the one that takes its place.
                let is_partner = |id: u32| target.is_none() && partners.contains(&id);
                let room = rooms.iter_mut().filter(|room| room.front().is_some_and(|place| !is_partner(place.0)));
                // A stale one only if there is no other.
                let room = room.max_by_key(|room| (room.front().is_some_and(|place| !stale.contains(&place.0)), room.len()));
                let Some(to) = room.and_then(VecDeque::pop_front) else { return Err(self.no_room(device, target, moves.len())) };
                partners.push(to.0);
                taken.push((to.0, to.1, bytes));
                moves.push(PlannedMove { group: number, place, from: *from, to, bytes });
            }
        }
        Ok(moves)
    }

    fn may_take(&self, area: &Area, device: u32, target: Option<u32>) -> bool {
        match target {
            Some(target) => area.device == target,
            None => area.device != device && !self.closed.contains(&area.device),
        }
    }

    fn no_room(&self, device: u32, target: Option<u32>, found: usize) -> Error {
        let count = self.groups.iter().flat_map(|group| &group.layout.places).filter(|place| place.0 == device).count();
        let (place, way_out) = match target {
            Some(target) => (format!("on device {target}"), "use a larger one"),
            None => ("on the devices that their groups are not on yet".to_owned(), "add a device first, or replace this one"),
        };
        Error::usage(format!(
            "device {device} holds {count} copies or columns of groups, and {place} there is room for {found}; {way_out}"
        ))
    }

    /// Ranges of devices that groups have, or that are kept for them.
    pub(super) fn taken(&self) -> Vec<Taken> {
        let mut taken = self.planned.clone();
        for group in &self.groups {
            let bytes = u64::from(group.layout.column_blocks()) * BLOCK_SIZE;
            taken.extend(group.layout.places.iter().map(|(device, begin)| (*device, *begin, bytes)));
        }
        taken
    }

    /// Looks for the places that are left for further groups.
    pub(super) fn find_slots(&mut self, plan: &Plan, blocks_per_group: u32) {
        let areas: Vec<Area> = self.areas.iter().filter(|area| !self.closed.contains(&area.device)).copied().collect();
        self.slots = plan.free_slots(&areas, blocks_per_group, &self.taken());
    }
}
