//! Opening a store's devices, and what is said, or put in its place, when one is not there or is another one.
//!
//! Whether all groups can do without a device that is missing is known only when the metadata is open: `Space::lost_group`.

use super::DataProfile;
use super::create::make_device;
use super::directory::{OpenOptions, Opening, open_directory, warn_if_copy_on_write};
use super::size::show_size;
use crate::disk::Disk;
use crate::disk::file::FileDisk;
use crate::disk::label;
use crate::disk::missing::MissingDisk;
use crate::disk::superblock::{DeviceEntry, Superblock};
use crate::error::{Error, Result};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

/// Makes what shall become a further device of the mounted store `store` ready, and opens it: mkfs's rules for what may be overwritten,
/// a mount's for how it is opened.
pub fn prepare_device(store: &Path, path: &Path, size: Option<u64>, force: bool) -> Result<(Arc<dyn Disk>, String)> {
    let (path, bytes) = make_device(store, path, size, force)?;
    let (store, directory) = open_directory(store)?;
    let opening = Opening { path: &store, directory: directory.as_fd(), options: OpenOptions::default() };
    let disk = opening.part(&path, "new device", true)?.limited_to(bytes);
    Ok((Arc::new(disk), path.display().to_string()))
}

/// What was found where a device should be.
enum Found {
    Device(FileDisk),
    /// Nothing that can be used as this device, and why.
    Unfit(Error),
}

impl Opening<'_> {
    pub(super) fn devices(&self, superblock: &Superblock) -> Result<Vec<Arc<dyn Disk>>> {
        let mut devices: Vec<Arc<dyn Disk>> = Vec::new();
        let ids: Vec<u32> = superblock.devices.iter().map(|entry| entry.id).collect();
        for entry in &superblock.devices {
            if !ids.is_sorted_by(|one, next| one < next) {
                return Err(Error::corrupt(format!("list of devices in the superblock of {}", self.path.display())));
            }
            let error = match self.device(superblock, entry)? {
                Found::Device(disk) => {
                    devices.push(Arc::new(disk));
                    continue;
                }
                Found::Unfit(error) => error,
            };
            if !self.options.degraded {
                return Err(self.with_way_out(superblock, entry, error));
            }
            tracing::warn!("without device {}: {error}", entry.id);
            let name = self.path.join(&entry.path).display().to_string();
            devices.push(Arc::new(MissingDisk::new(entry.id, name, entry.len)));
        }
        Ok(devices)
    }

    /// What can be done about a device that cannot be used.
    fn with_way_out(&self, superblock: &Superblock, entry: &DeviceEntry, error: Error) -> Error {
        if !DataProfile::of(superblock).survives_a_device(superblock.devices.len()) {
            return error;
        }
        let way_out = format!(
            "to go on without it mount with -o degraded, then put another in its place with: sumfs device replace MNT {} NEW",
            entry.id
        );
        match error {
            Error::Usage(what) => Error::Usage(format!("{what}; {way_out}")),
            Error::Corrupt(what) => Error::Corrupt(format!("{what}; {way_out}")),
            Error::Io { doing, source } => Error::Io { doing: format!("{doing} ({way_out})"), source },
            error => error,
        }
    }

    fn device(&self, superblock: &Superblock, entry: &DeviceEntry) -> Result<Found> {
        let role = format!("device {}", entry.id);
        let disk = match self.part(Path::new(&entry.path), &role, self.options.direct) {
            // In use is not missing: who has it writes to it.
            Err(error @ Error::Usage(_)) if self.path.join(&entry.path).exists() => return Err(error),
            Err(error @ (Error::Usage(_) | Error::Io { .. })) => return Ok(Found::Unfit(error)),
            opened => opened?,
        };
        let store = self.path.display();
        let name = disk.name().to_owned();
        let len = disk.len()?;
        if len < entry.len {
            return Ok(Found::Unfit(Error::corrupt(format!(
                "{name}, device {} of the store {store}, has {} and should have {}: it was made shorter; put the whole one back",
                entry.id,
                show_size(len),
                show_size(entry.len)
            ))));
        }
        warn_if_copy_on_write(&self.path.join(&entry.path));
        let disk = disk.limited_to(entry.len);
        let label = match label::read(&disk, !self.options.read_only) {
            Err(error) if self.options.allow_damage => {
                tracing::warn!("{error}");
                return Ok(Found::Device(disk));
            }
            Err(error) => return Ok(Found::Unfit(error)),
            Ok(found) => found.label,
        };
        if label.store != superblock.uuid {
            return Ok(Found::Unfit(Error::usage(format!(
                "{name} is not a device of the store {store}, where device {} is looked for: its label names the store {}, and this \
                 one is {}; correct the path",
                entry.id,
                uuid::Uuid::from_bytes(label.store),
                uuid::Uuid::from_bytes(superblock.uuid)
            ))));
        }
        if label.device_id != entry.id || label.device_bytes != entry.len {
            return Ok(Found::Unfit(Error::usage(format!(
                "{name} is device {} ({}) of the store {store}, but device {} ({}) is looked for there; correct the paths",
                label.device_id,
                show_size(label.device_bytes),
                entry.id,
                show_size(entry.len)
            ))));
        }
        Ok(Found::Device(disk))
    }
}
