//! Devices of an open store come and go: adding one, moving everything off another (`device replace`, `device remove`), and what a mount
//! does about a change that was broken off.
//!
//! A device that comes has a new id. Replacing is adding, moving everything there, and removing the old one. What moves is a copy or
//! column of a group at a time (`space/moving.rs`): copied, then its record is committed, then used. So a crash costs one of them at most;
//! while the record says `Running`, the next mount goes on.
//!
//! The superblock's list says which devices there are. Who adds one writes its label first, then the records, then the list; who removes
//! one takes it from the list first: so records of a device that the list does not name can go (`settle_devices`).
//!
//! Locks: `changing` is held by who changes the list, `stepping` by who does a step; neither while the other is taken.

use super::Filesystem;
use crate::clock::now;
use crate::disk::Disk;
use crate::disk::label::{self, Label};
use crate::disk::superblock::DeviceEntry;
use crate::error::{Error, Result};
use crate::meta::Batch;
use crate::meta::records::{DeviceRecord, GroupRecord};
use crate::meta::relocation_record::RelocationRecord;
use crate::meta::schema::{self, Parsed};
use crate::meta::work_state::WorkState;
use crate::space::moving::PlannedMove;
use crate::sync::Mutex;
use crate::units::block_floor;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Chunks of a step while nobody else wants anything, and while somebody does.
const IDLE_STEP_CHUNKS: u32 = 32;
const BUSY_STEP_CHUNKS: u32 = 2;
/// While others want something the thread sleeps as long as a step took, and at most so long.
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Records of devices that are looked at; there are never more.
const DEVICES_MAX: usize = 1 << 16;

/// A device that a store does not have yet.
#[derive(Clone, Debug)]
pub struct NewDevice {
    /// Open, and nobody else's.
    pub disk: Arc<dyn Disk>,
    /// As the superblock shall name it.
    pub path: String,
}

/// What is being moved, as this process knows it.
#[derive(Debug, Default)]
pub(super) struct Relocation {
    held: Mutex<Held>,
    changing: Mutex<()>,
    stepping: Mutex<()>,
}

#[derive(Debug, Default)]
struct Held {
    record: RelocationRecord,
    /// Why it could not go on.
    failure: Option<String>,
    /// What is still to be moved, the next one first.
    plan: VecDeque<PlannedMove>,
    /// The first of the plan is on its way: the row where copying goes on.
    row: Option<u32>,
    /// Bytes of all that this process has planned, and of what it has done of it.
    bytes: (u64, u64),
}

impl Held {
    fn is_running(&self) -> bool {
        self.record.state == WorkState::Running && self.failure.is_none()
    }
}

impl Filesystem {
    /// Adds a device; groups are opened on it from now on. Its id.
    pub fn device_add(&self, new: NewDevice) -> Result<u32> {
        let _changing = self.relocation.changing.lock();
        self.refuse_if_open()?;
        let record =
            RelocationRecord { state: WorkState::Finished, began: now().seconds, ended: now().seconds, ..Default::default() };
        self.attach(new, record, false)
    }

    /// Adds a device and begins to move everything there that is on `old`, which then is no part of the store any more.
    pub fn device_replace(&self, old: u32, new: NewDevice) -> Result<u32> {
        let _changing = self.relocation.changing.lock();
        self.refuse_if_open()?;
        self.known(old)?;
        let area = label::data_area(new.disk.len()?);
        self.space.check_room_for(old, area.end - area.start)?;
        let record = RelocationRecord { state: WorkState::Running, from: Some(old), began: now().seconds, ..Default::default() };
        let id = self.attach(new, record, true)?;
        self.plan_relocation()?;
        self.signals.relocation.wake();
        Ok(id)
    }

    /// Begins to move everything off a device, which then is no part of the store any more.
    pub fn device_remove(&self, id: u32) -> Result<()> {
        let _changing = self.relocation.changing.lock();
        self.refuse_if_open()?;
        self.known(id)?;
        self.begin_changing()?;
        if self.superblock.lock().devices.len() < 2 {
            return Err(Error::usage(format!("device {id} is the only one; replace it, or add another one first")));
        }
        // Says now whether there is room.
        let plan = self.space.plan_moves(id, None)?;
        let record = RelocationRecord { state: WorkState::Running, from: Some(id), began: now().seconds, ..Default::default() };
        if let Err(error) = self.put_record(&record, Batch::new()) {
            self.space.forget_plan(id);
            return Err(error);
        }
        self.take_plan(record, plan);
        self.commit_now()?;
        self.signals.relocation.wake();
        Ok(())
    }

    /// Says before anything is overwritten whether a device can be replaced now.
    pub fn check_replaceable(&self, old: u32) -> Result<()> {
        self.meta.latch().check()?;
        self.refuse_if_open()?;
        self.known(old)
    }

    fn refuse_if_open(&self) -> Result<()> {
        match self.relocation.held.lock().record.state {
            WorkState::Running => Err(Error::usage("a device is being emptied already; see: sumfs device status")),
            WorkState::Paused => Err(Error::usage("a device is being emptied, and that is paused; resume or cancel it first")),
            _ => Ok(()),
        }
    }

    fn known(&self, id: u32) -> Result<()> {
        match self.superblock.lock().devices.iter().any(|device| device.id == id) {
            true => Ok(()),
            false => Err(Error::usage(format!("the store has no device {id}; see: sumfs device list"))),
        }
    }

    /// Makes a device a part of the store: label, records, superblock. `record` goes with it, and gets its id.
    fn attach(&self, new: NewDevice, mut record: RelocationRecord, is_closed: bool) -> Result<u32> {
        self.begin_changing()?;
        let len = block_floor(new.disk.len()?);
        let mut superblock = self.superblock.lock().clone();
        let id = superblock.devices.iter().map(|device| device.id).max().map_or(0, |last| last + 1);
        superblock.devices.push(DeviceEntry { id, len, path: new.path.clone() });
        // Says now whether the name fits.
        superblock.encode()?;
        let device_uuid = uuid::Uuid::new_v4().into_bytes();
        let generation = self.space.newest_generation().max(1);
        label::write(&*new.disk, &Label { store: superblock.uuid, device_uuid, device_id: id, device_bytes: len, generation })?;
        record.to = Some(id);
        let mut batch = Batch::new();
        batch.put(schema::device(id), DeviceRecord { id, uuid: device_uuid, length: len, path: new.path }.encode());
        self.put_record(&record, batch)?;
        self.commit_now()?;
        {
            let mut held = self.superblock.lock();
            held.devices = superblock.devices;
            held.write(&*self.superblock_disk)?;
        }
        let area = label::data_area(len);
        self.space.add_device(id, new.disk, (area.start, area.end), generation, is_closed);
        self.relocation.held.lock().record = record;
        tracing::info!("device {id} is a part of the store now");
        Ok(id)
    }

    fn put_record(&self, record: &RelocationRecord, mut batch: Batch) -> Result<()> {
        batch.put(schema::relocation(), record.encode());
        self.meta.append(batch)?;
        self.note_activity();
        Ok(())
    }

    fn plan_relocation(&self) -> Result<()> {
        let record = self.relocation.held.lock().record.clone();
        let Some(from) = record.from else { return Err(Error::corrupt("a relocation from nowhere")) };
        let plan = self.space.plan_moves(from, record.to).inspect_err(|error| {
            self.relocation.held.lock().failure = Some(error.to_string());
        })?;
        self.take_plan(record, plan);
        Ok(())
    }

    fn take_plan(&self, record: RelocationRecord, plan: Vec<PlannedMove>) {
        let bytes = plan.iter().map(|planned| planned.bytes).sum();
        *self.relocation.held.lock() = Held { record, failure: None, plan: plan.into(), row: None, bytes: (bytes, 0) };
    }

    /// When opening for writing: records of devices that the superblock does not name go, and what was broken off goes on.
    pub(super) fn settle_devices(&self) -> Result<()> {
        let named: Vec<u32> = self.superblock.lock().devices.iter().map(|device| device.id).collect();
        let mut batch = Batch::new();
        let (found, _) =
            self.meta.scan(&schema::table_begin(schema::DEVICES), &schema::table_end(schema::DEVICES), DEVICES_MAX)?;
        for (key, _) in found {
            if let Some(Parsed::Device(id)) = schema::parse(&key)
                && !named.iter().any(|named| u64::from(*named) == id)
            {
                batch.delete(key);
            }
        }
        let before = self.relocation.held.lock().record.clone();
        let mut record = before.clone();
        if record.state.is_open() {
            let is_named = |id: Option<u32>| id.is_none_or(|id| named.contains(&id));
            if !is_named(record.from) {
                (record.state, record.ended) = (WorkState::Finished, now().seconds);
            } else if !is_named(record.to) {
                (record.state, record.ended) = (WorkState::Cancelled, now().seconds);
            }
        }
        if record != before || !batch.is_empty() {
            self.put_record(&record, batch)?;
        }
        let is_open = record.state.is_open();
        self.relocation.held.lock().record = record;
        if is_open && let Err(error) = self.plan_relocation() {
            tracing::error!("device: {error}");
        }
        Ok(())
    }

    /// When opening: what the last process left.
    pub(super) fn load_relocation(&self) -> Result<()> {
        if let Some(record) = self.meta.get(&schema::relocation())? {
            self.relocation.held.lock().record = RelocationRecord::decode(&record)?;
        }
        Ok(())
    }

    /// Stops moving for now.
    pub fn relocation_pause(&self) -> Result<()> {
        self.change_relocation(|state| match state {
            WorkState::Running => Ok(WorkState::Paused),
            state => Err(Error::usage(format!("no device is being emptied (the last time: {})", state.name()))),
        })
    }

    /// Goes on where it was, also after a failure.
    pub fn relocation_resume(&self) -> Result<()> {
        self.change_relocation(|state| match state {
            WorkState::Running | WorkState::Paused => Ok(WorkState::Running),
            state => Err(Error::usage(format!("no device was being emptied (the last time: {})", state.name()))),
        })?;
        if self.relocation.held.lock().failure.is_some() {
            self.plan_relocation()?;
        }
        self.signals.relocation.wake();
        Ok(())
    }

    /// Stops for good. What was moved stays where it is, and a device that was added for it stays a part of the store.
    pub fn relocation_cancel(&self) -> Result<()> {
        self.change_relocation(|state| match state {
            WorkState::Running | WorkState::Paused => Ok(WorkState::Cancelled),
            state => Err(Error::usage(format!("no device is being emptied (the last time: {})", state.name()))),
        })?;
        let (from, is_moving) = {
            let mut held = self.relocation.held.lock();
            held.plan.clear();
            held.failure = None;
            (held.record.from, held.row.take().is_some())
        };
        if is_moving {
            self.space.end_move(false);
        }
        if let Some(from) = from {
            self.space.forget_plan(from);
        }
        Ok(())
    }

    fn change_relocation(&self, change: impl FnOnce(WorkState) -> Result<WorkState>) -> Result<()> {
        self.begin_changing()?;
        let _changing = self.relocation.changing.lock();
        // Not in the middle of a step.
        let _stepping = self.relocation.stepping.lock();
        let mut record = self.relocation.held.lock().record.clone();
        record.state = change(record.state)?;
        if record.state == WorkState::Cancelled {
            record.ended = now().seconds;
        }
        self.put_record(&record, Batch::new())?;
        self.relocation.held.lock().record = record;
        // Who was told that it is so may pull the plug.
        self.commit_now()
    }

    /// Is there something that should go on?
    pub fn is_relocating(&self) -> bool {
        self.relocation.held.lock().is_running()
    }

    /// Moves the next chunks on this thread; false when there is nothing left to do. What is returned as an error has ended it until it
    /// is resumed.
    pub fn relocation_step(&self) -> Result<bool> {
        let _stepping = self.relocation.stepping.lock();
        if !self.is_relocating() {
            return Ok(false);
        }
        let result = self.relieve_inside().and_then(|()| self.do_relocation_step());
        if let Err(error) = &result {
            tracing::error!("moving off a device: {error}");
            let is_moving = {
                let mut held = self.relocation.held.lock();
                held.failure = Some(error.to_string());
                held.row.take().is_some()
            };
            if is_moving {
                self.space.end_move(false);
            }
        }
        result?;
        Ok(self.is_relocating())
    }

    fn do_relocation_step(&self) -> Result<()> {
        let (next, row) = {
            let held = self.relocation.held.lock();
            (held.plan.front().copied(), held.row)
        };
        let Some(next) = next else { return self.finish_relocation() };
        let mut row = match row {
            Some(row) => row,
            None => {
                self.space.begin_move(next)?;
                self.relocation.held.lock().row = Some(0);
                0
            }
        };
        let chunks = if self.is_busy_with_others() { BUSY_STEP_CHUNKS } else { IDLE_STEP_CHUNKS };
        for _ in 0..chunks {
            let copied = self.space.copy_chunk(row)?;
            let mut held = self.relocation.held.lock();
            held.record.moved_bytes += copied.bytes;
            held.record.unreadable_blocks += copied.unreadable;
            match copied.next {
                Some(next) => row = next,
                None => {
                    drop(held);
                    return self.commit_move(next);
                }
            }
            held.row = Some(row);
        }
        Ok(())
    }

    /// All of a place is copied: the record of its group is committed, then the new place is the one.
    fn commit_move(&self, planned: PlannedMove) -> Result<()> {
        let key = schema::group(planned.group);
        let mut group = match self.meta.get(&key)? {
            Some(record) => GroupRecord::decode(&record)?,
            None => return Err(Error::corrupt(format!("group {} has no record", planned.group))),
        };
        match group.copies.get_mut(planned.place) {
            Some(place) if *place == planned.from => *place = planned.to,
            _ => return Err(Error::corrupt(format!("the record of group {} names other places", planned.group))),
        }
        self.space.settle_move()?;
        let mut record = self.relocation.held.lock().record.clone();
        record.moved_groups += 1;
        let mut batch = Batch::new();
        batch.put(key, group.encode());
        self.put_record(&record, batch)?;
        if self.commit_now().is_err() {
            // Some file could not be written back. The record becomes durable all the same, so it must be known when.
            self.meta.commit()?;
        }
        self.space.end_move(true);
        let mut held = self.relocation.held.lock();
        (held.record, held.row) = (record, None);
        held.plan.pop_front();
        held.bytes.1 += planned.bytes;
        Ok(())
    }

    /// Nothing is on the device any more.
    fn finish_relocation(&self) -> Result<()> {
        let mut record = self.relocation.held.lock().record.clone();
        let Some(from) = record.from else { return Err(Error::corrupt("a relocation from nowhere")) };
        if self.space.occupancy().contains_key(&from) {
            return Err(Error::corrupt(format!("device {from} is not empty after everything was moved off it")));
        }
        {
            let mut superblock = self.superblock.lock();
            superblock.devices.retain(|device| device.id != from);
            superblock.write(&*self.superblock_disk)?;
        }
        (record.state, record.ended) = (WorkState::Finished, now().seconds);
        let mut batch = Batch::new();
        batch.delete(schema::device(from));
        self.put_record(&record, batch)?;
        self.commit_now()?;
        self.relocation.held.lock().record = record;
        if let Some(disk) = self.space.remove_device(from).filter(|disk| !disk.is_missing())
            && let Err(error) = label::wipe(&*disk)
        {
            tracing::warn!("the label of {}, which is no device of the store any more: {error}", disk.name());
        }
        tracing::info!("device {from} is no part of the store any more");
        Ok(())
    }

    /// How far it is, or what the last one came to.
    pub fn relocation_status(&self) -> Value {
        let held = self.relocation.held.lock();
        let record = &held.record;
        let or_null = |seconds: i64| if seconds == 0 { Value::Null } else { seconds.into() };
        json!({
            "state": if held.failure.is_some() { "failed" } else { record.state.name() },
            "error": held.failure,
            "from": record.from,
            "to": record.to,
            "began": or_null(record.began),
            "ended": or_null(record.ended),
            "groups_moved": record.moved_groups,
            "groups_left": held.plan.len(),
            "bytes_copied": record.moved_bytes,
            "bytes_total": held.bytes.0,
            "bytes_done": held.bytes.1,
            "unreadable_blocks": record.unreadable_blocks,
        })
    }

    /// The body of the thread.
    pub(super) fn run_relocation(&self) {
        crate::sys::step_back();
        while self.signals.relocation.sleep_unless(|| self.is_relocating()) {
            while self.is_relocating() {
                let begin = Instant::now();
                // What ended it is in the status.
                let goes_on = self.relocation_step().unwrap_or(false);
                let pause = if goes_on && self.is_busy_with_others() { begin.elapsed().min(PAUSE_MAX) } else { Duration::ZERO };
                if !self.signals.relocation.sleep_for(pause) {
                    return;
                }
            }
        }
    }
}
