//! Devices that are not there, or fail too often: they are *set aside*. What lies on them is computed or read from the others, and
//! what would be written to them is left out, as long as every group that has a place on them can do without one place.
//!
//! A device comes back with a mount that finds it, or with `device replace`; what it missed is found by its checksums, and a scrub
//! mends it.

use super::copies::Faults;
use super::groups::{Device, Group, Space};
use super::slots::Area;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::sync::{AtomicBool, AtomicU64};
use crate::units::BLOCK_SIZE;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// So many writes may fail on a device that redundant data can do without.
pub(super) const FAILURES_MAX: u64 = 4;

impl Device {
    pub(super) fn new(id: u32, disk: Arc<dyn Disk>) -> Device {
        let is_set_aside = AtomicBool::new(disk.is_missing());
        Device {
            id,
            disk,
            is_dirty: AtomicBool::new(false),
            faults: Faults::default(),
            is_set_aside,
            is_stale: AtomicBool::new(false),
            generation: AtomicU64::new(0),
        }
    }

    /// For a frozen view of the space.
    pub(super) fn with_the_same_disk(&self) -> Device {
        let device = Device::new(self.id, self.disk.clone());
        device.is_set_aside.store(self.is_set_aside(), Ordering::Release);
        device
    }

    pub(super) fn is_set_aside(&self) -> bool {
        self.is_set_aside.load(Ordering::Acquire)
    }
}

impl Space {
    /// A further device. `area` is where groups may lie; with `is_closed` none is opened there yet.
    pub fn add_device(&self, id: u32, disk: Arc<dyn Disk>, area: (u64, u64), generation: u64, is_closed: bool) {
        let device = Device::new(id, disk);
        device.generation.store(generation, Ordering::Release);
        self.devices.write().push(Arc::new(device));
        let mut state = self.state.lock();
        state.areas.push(Area { device: id, begin: area.0, end: area.1 });
        if is_closed {
            state.closed.push(id);
        }
        state.find_slots(&self.plan, self.blocks_per_group as u32);
    }

    /// Takes away a device that no group has a place on. Who still reads what lay there meets an error, and looks again.
    pub fn remove_device(&self, id: u32) -> Option<Arc<dyn Disk>> {
        let mut state = self.state.lock();
        state.areas.retain(|area| area.device != id);
        state.closed.retain(|closed| *closed != id);
        state.planned.clear();
        state.find_slots(&self.plan, self.blocks_per_group as u32);
        drop(state);
        let mut devices = self.devices.write();
        let at = devices.iter().position(|device| device.id == id)?;
        Some(devices.remove(at).disk.clone())
    }

    /// Would a device with so many bytes for groups hold everything that is on `device`?
    pub fn check_room_for(&self, device: u32, bytes: u64) -> Result<()> {
        let state = self.state.lock();
        let on_device = |group: &Group| group.layout.places.iter().filter(|place| place.0 == device).count();
        let of_group = |group: &Group| vec![u64::from(group.layout.column_blocks()) * BLOCK_SIZE; on_device(group)];
        let sizes: Vec<u64> = state.groups.iter().flat_map(of_group).collect();
        let largest = sizes.iter().copied().max().unwrap_or(1);
        let fits = bytes / largest;
        if fits >= sizes.len() as u64 {
            return Ok(());
        }
        Err(Error::usage(format!(
            "device {device} holds {} copies or columns of groups, and the new device has room for {fits}; use a larger one",
            sizes.len()
        )))
    }

    /// A write to the device failed. True: it is set aside from now on.
    pub(super) fn note_failure(&self, device: &Device) -> bool {
        device.faults.write_errors.load(Ordering::Relaxed) >= FAILURES_MAX && self.set_aside(device)
    }

    /// Sets the device aside if everything on it is elsewhere too. False: it is needed.
    pub(super) fn set_aside(&self, device: &Device) -> bool {
        if !self.can_lose(device.id) {
            return false;
        }
        if !device.is_set_aside.swap(true, Ordering::AcqRel) {
            let mut state = self.state.lock();
            state.closed.push(device.id);
            state.find_slots(&self.plan, self.blocks_per_group as u32);
            drop(state);
            self.is_absence_due.store(true, Ordering::Release);
            tracing::error!(
                "device {} ({}) is set aside: it failed too often; replace it with: sumfs device replace",
                device.id,
                device.disk.name()
            );
        }
        true
    }

    /// How it stands with a device, for people.
    pub(super) fn state_of(device: &Device) -> &'static str {
        if device.disk.is_missing() {
            "missing"
        } else if device.is_set_aside() {
            "set aside"
        } else if device.is_stale() {
            "stale"
        } else {
            "present"
        }
    }

    /// An error that says what is needed, when a group cannot do without the devices that are set aside.
    pub fn check_not_lost(&self) -> Result<()> {
        let Some((group, device)) = self.lost_group() else { return Ok(()) };
        let name = self.device(device)?.disk.name().to_owned();
        let missing = self.set_aside_devices();
        let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
        Err(Error::usage(format!(
            "group {group} needs device {device} ({name}) and cannot do without what is missing (devices {}); put one of them back",
            missing.join(", ")
        )))
    }

    /// Ids of the devices set aside.
    pub fn set_aside_devices(&self) -> Vec<u32> {
        self.devices().iter().filter(|device| device.is_set_aside()).map(|device| device.id).collect()
    }

    /// The first group that cannot do without the devices that are set aside, and the last of them that it is on.
    pub fn lost_group(&self) -> Option<(u64, u32)> {
        self.group_lost_without(&self.set_aside_devices())
    }

    fn group_lost_without(&self, missing: &[u32]) -> Option<(u64, u32)> {
        let state = self.state.lock();
        (0..).zip(&state.groups).find_map(|(number, group)| {
            let lost: Vec<u32> = group.layout.places.iter().map(|place| place.0).filter(|id| missing.contains(id)).collect();
            let last = lost.last()?;
            (lost.len() > group.layout.spare_places()).then_some((number, *last))
        })
    }

    /// Ids of the devices that missed something.
    pub(super) fn stale_devices(&self) -> Vec<u32> {
        self.devices().iter().filter(|device| device.is_stale()).map(|device| device.id).collect()
    }

    /// Can all groups do without this device, besides those that are set aside already?
    fn can_lose(&self, id: u32) -> bool {
        // What a stale one missed is on the others only.
        let mut aside = [self.set_aside_devices(), self.stale_devices()].concat();
        if !aside.contains(&id) {
            aside.push(id);
        }
        self.group_lost_without(&aside).is_none()
    }
}
