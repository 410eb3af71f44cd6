//! Which devices missed something that was written. Labels carry a generation: before anything is committed while a device is set aside,
//! the labels of the others get a higher one, so that the device, when it comes back, is known as *stale*.
//!
//! A stale device is used all the same: every block is verified, and what it missed is found by its checksums. A scrub that compared
//! everything and left nothing bad gives it the current generation again. After a power cut while labels were being written a device
//! may be called stale that missed nothing; never the other way round.

use super::groups::{Device, Space};
use crate::disk::label;
use crate::error::Result;
use std::sync::atomic::Ordering;

impl Device {
    /// Did it miss something that was written?
    pub(super) fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::Acquire)
    }

    fn write_generation(&self, generation: u64) -> Result<()> {
        let label = label::read(&*self.disk, false)?.label;
        label::write(&*self.disk, &label::Label { generation, ..label })?;
        self.generation.store(generation, Ordering::Release);
        Ok(())
    }
}

impl Space {
    /// Looks at the labels of all devices that are there: those behind the newest are stale. A label that cannot be read says nothing.
    pub fn compare_generations(&self) {
        let devices = self.devices();
        for device in devices.iter().filter(|device| !device.is_set_aside()) {
            if let Ok(found) = label::read(&*device.disk, false) {
                device.generation.store(found.label.generation, Ordering::Release);
            }
        }
        let newest = self.newest_generation();
        for device in devices.iter().filter(|device| !device.is_set_aside()) {
            let generation = device.generation.load(Ordering::Acquire);
            if (1..newest).contains(&generation) {
                device.is_stale.store(true, Ordering::Release);
                tracing::warn!(
                    "device {} ({}) is stale: it was not there when something was written; what it missed is read from the others, \
                     and a scrub writes it anew",
                    device.id,
                    device.disk.name()
                );
            }
        }
    }

    /// The generation of the newest label.
    pub fn newest_generation(&self) -> u64 {
        self.devices().iter().map(|device| device.generation.load(Ordering::Acquire)).max().unwrap_or(0)
    }

    /// Before something becomes durable: a device that is set aside is marked as one that missed it, by the labels of the others.
    pub(super) fn note_absence(&self) {
        if !self.is_absence_due.swap(false, Ordering::AcqRel) {
            return;
        }
        let next = self.newest_generation() + 1;
        for device in self.devices().iter().filter(|device| !device.is_set_aside() && !device.is_stale()) {
            if let Err(error) = device.write_generation(next) {
                tracing::warn!("the label of device {} ({}): {error}", device.id, device.disk.name());
            }
        }
    }

    /// Something that is durable now could not be written to a device that goes on being used; the others have it.
    pub(super) fn note_missed(&self, id: u32) {
        let Ok(device) = self.device(id) else { return };
        self.missed.fetch_add(1, Ordering::Release);
        if !device.is_stale.swap(true, Ordering::AcqRel) {
            self.is_absence_due.store(true, Ordering::Release);
            tracing::warn!(
                "device {id} ({}) is stale from now on: a write to it failed; the others have it, and a scrub writes it anew",
                device.disk.name()
            );
        }
    }

    /// How often a device missed something although it was used.
    pub fn missed_count(&self) -> u64 {
        self.missed.load(Ordering::Acquire)
    }

    /// Everything on all devices was compared and is good: none is stale any more.
    pub fn renew_generations(&self) {
        let newest = self.newest_generation();
        for device in self.devices().iter().filter(|device| device.is_stale() && !device.is_set_aside()) {
            match device.write_generation(newest) {
                Ok(()) => {
                    device.is_stale.store(false, Ordering::Release);
                    tracing::info!("device {} ({}) is up to date again", device.id, device.disk.name());
                }
                Err(error) => tracing::warn!("the label of device {} ({}): {error}", device.id, device.disk.name()),
            }
        }
    }
}
