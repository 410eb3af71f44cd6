//! A store's directory: opening it, and the lock that keeps everybody else out.
//!
//! ```text
//! superblock   two copies, see disk/superblock.rs
//! index        the metadata index, of redb
//! index.sled/  the metadata index, of sled
//! journal      unless it is elsewhere
//! device.0     unless the devices are elsewhere
//! image.0, .1  the metadata image; made by the first mount
//! lock         flock: whoever opens the store, for reading too, has it alone
//! ```
//! The lock is held from before the superblock is read until the value is dropped. All files stay open, and relative names are
//! looked up in the open directory, so that moving the directory or changing the working directory does no harm.

use super::create::sync_directory;
use super::engine::Engine;
use super::host::{Host, copy_on_write_host, unsafe_for_sled};
use super::{Disks, size::show_size};
use crate::disk::Disk;
use crate::disk::file::{FileDisk, OpenMode};
use crate::disk::memory::MemoryDisk;
use crate::disk::superblock::Superblock;
use crate::error::{Error, Result};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

pub(super) const SUPERBLOCK_FILE: &str = "superblock";
pub(super) const INDEX_FILE: &str = "index";
pub(super) const SLED_DIRECTORY: &str = "index.sled";
pub(super) const JOURNAL_FILE: &str = "journal";
pub(super) const IMAGE_FILES: [&str; 2] = ["image.0", "image.1"];
pub(super) const LOCK_FILE: &str = "lock";
const LOCK_POLL: Duration = Duration::from_millis(10);

/// How to open a store.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Change no byte of any file.
    pub read_only: bool,
    /// How long to wait for a daemon that is still closing the store. A store that is mounted is refused at once.
    pub wait_for_lock: Option<Duration>,
    /// Use O_DIRECT for data devices where the host can do it.
    pub direct: bool,
    /// For `check`: open also when the journal is missing or too short (read-write: it is made whole with zeros) and when a
    /// device has lost both labels. Each is logged.
    pub allow_damage: bool,
    /// Open also without devices that are not there or do not fit: something stands for them that refuses every transfer.
    pub degraded: bool,
    /// Open an index of sled also on a host where it does not survive power cuts: to turn it into another one.
    pub allow_unsafe_host: bool,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            read_only: false,
            wait_for_lock: None,
            direct: true,
            allow_damage: false,
            degraded: false,
            allow_unsafe_host: false,
        }
    }
}

/// An open store. Holds the lock.
#[derive(Debug)]
pub struct StoreDirectory {
    path: PathBuf,
    disks: Disks,
    superblock: Superblock,
    damaged_superblock_copies: Vec<u64>,
    directory: OwnedFd,
    lock: OwnedFd,
}

impl Drop for StoreDirectory {
    /// Gives the lock back at once: who looks at /proc/PID/fd at this moment holds the file, and with it the lock, beyond our close.
    fn drop(&mut self) {
        // The close behind this does it too, only perhaps later.
        let _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

impl StoreDirectory {
    /// Opens the store in the directory `path`, alone. `Error::Usage` with the way out when it is no store, in use, or a part is
    /// missing; `Error::Corrupt` when a part is damaged beyond its copies.
    pub fn open(path: &Path, read_only: bool, wait_for_lock: Option<Duration>) -> Result<StoreDirectory> {
        StoreDirectory::open_with(path, OpenOptions { read_only, wait_for_lock, ..OpenOptions::default() })
    }

    /// [`StoreDirectory::open`] with everything that can be chosen.
    pub fn open_with(path: &Path, options: OpenOptions) -> Result<StoreDirectory> {
        let (path, directory) = open_directory(path)?;
        refuse_no_store(&path, &directory)?;
        let lock = lock_store(&path, directory.as_fd(), !options.read_only, options.wait_for_lock.unwrap_or_default())?;
        let opening = Opening { path: &path, directory: directory.as_fd(), options };
        let superblock_disk = opening.part(Path::new(SUPERBLOCK_FILE), "superblock", false)?;
        let found = Superblock::read(&superblock_disk)?;
        let unknown = found.superblock.unknown_ro_compat();
        if !unknown.is_empty() && !options.read_only {
            return Err(Error::usage(format!(
                "{} uses features that this sumfs can only read ({}): mount it with -o ro, or use a newer sumfs",
                path.display(),
                unknown.join(", ")
            )));
        }
        let disks = Disks {
            journal: opening.journal(&found.superblock)?,
            index: match Engine::of(&found.superblock) {
                Engine::Redb => Arc::new(opening.index()?),
                Engine::Sled => no_index(),
            },
            sled: opening.sled(&found.superblock)?,
            devices: opening.devices(&found.superblock)?,
            images: opening.images(),
            superblock: Arc::new(superblock_disk),
        };
        Ok(StoreDirectory {
            path,
            disks,
            superblock: found.superblock,
            damaged_superblock_copies: found.damaged_copies,
            directory,
            lock,
        })
    }

    /// The UUID of the store in the directory `path`, also while it is in use.
    pub fn read_uuid(path: &Path) -> Result<uuid::Uuid> {
        let (path, directory) = open_directory(path)?;
        refuse_no_store(&path, &directory)?;
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let opening = Opening { path: &path, directory: directory.as_fd(), options };
        let disk = opening.part(Path::new(SUPERBLOCK_FILE), "superblock", false)?;
        Ok(uuid::Uuid::from_bytes(Superblock::read(&disk)?.superblock.uuid))
    }

    /// The store's disks.
    pub fn disks(&self) -> &Disks {
        &self.disks
    }

    /// Lets go of the devices: who serves the store has them, and one that is removed is to be free.
    pub fn release_devices(&mut self) {
        self.disks.devices.clear();
    }

    /// The superblock as it was read.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Offsets of the superblock copies that are damaged; the next write of the superblock heals them.
    pub fn damaged_superblock_copies(&self) -> &[u64] {
        &self.damaged_superblock_copies
    }

    /// The store's UUID.
    pub fn uuid(&self) -> uuid::Uuid {
        uuid::Uuid::from_bytes(self.superblock.uuid)
    }

    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// The directory, canonical.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Opens the parts of one store.
pub(super) struct Opening<'a> {
    pub(super) path: &'a Path,
    pub(super) directory: BorrowedFd<'a>,
    pub(super) options: OpenOptions,
}

impl Opening<'_> {
    pub(super) fn part(&self, path: &Path, role: &str, direct: bool) -> Result<FileDisk> {
        let mode = if self.options.read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
        let whole = self.path.join(path);
        let disk = match FileDisk::open_at(self.directory, path, whole.display().to_string(), mode, direct) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                return Err(Error::usage(format!(
                    "the {role} of the store {} is missing: {} does not exist; put it back, or restore the store",
                    self.path.display(),
                    whole.display()
                )));
            }
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::ResourceBusy => {
                return Err(in_use_by_system(&Host::look(), &whole));
            }
            opened => opened?,
        };
        // Files elsewhere may be named by two stores, and the lock of the directory does not cover them. Block devices are
        // claimed by opening them (and udev takes their flock now and then).
        if path.is_absolute() && !disk.is_block_device() && !disk.lock_exclusive()? {
            return Err(Error::usage(format!("{}, the {role} of {}, is in use", whole.display(), self.path.display())));
        }
        Ok(disk)
    }

    fn index(&self) -> Result<FileDisk> {
        let store = self.path.display();
        let disk = match self.part(Path::new(INDEX_FILE), "index", self.options.direct) {
            Err(Error::Usage(_)) if !self.path.join(INDEX_FILE).exists() => {
                return Err(Error::usage(format!(
                    "the index of the store {store} is missing: {} does not exist; put it back, or make it anew from the metadata \
                     image with: sumfs index rebuild {store}",
                    self.path.join(INDEX_FILE).display()
                )));
            }
            opened => opened?,
        };
        if disk.is_empty()? && !self.options.allow_damage {
            let name = disk.name();
            return Err(Error::corrupt(format!(
                "the index {name} is empty; make it anew from the metadata image with: sumfs index rebuild {store}"
            )));
        }
        Ok(disk)
    }

    /// The files of the metadata image, made if need be. Without them a store works all the same.
    pub(super) fn images(&self) -> Option<[Arc<dyn Disk>; 2]> {
        let open = |name: &str| -> Result<Arc<dyn Disk>> {
            let whole = self.path.join(name);
            let mode = match self.options.read_only {
                true => OpenMode::ReadOnly,
                false if whole.exists() => OpenMode::ReadWrite,
                false => OpenMode::Create,
            };
            let disk =
                FileDisk::open_at(self.directory, Path::new(name), whole.display().to_string(), mode, self.options.direct)?;
            if mode == OpenMode::Create {
                sync_directory(self.path)?;
            }
            Ok(Arc::new(disk))
        };
        let [first, second] = IMAGE_FILES.map(open);
        let opened = first.and_then(|first| Ok([first, second?]));
        match opened {
            Ok(images) => Some(images),
            // Before the first mount there are none.
            Err(_) if self.options.read_only => None,
            Err(error) => {
                tracing::warn!("no metadata image is kept: {error}");
                None
            }
        }
    }

    fn sled(&self, superblock: &Superblock) -> Result<Option<PathBuf>> {
        if Engine::of(superblock) == Engine::Redb {
            return Ok(None);
        }
        let directory = self.path.join(SLED_DIRECTORY);
        let is_refused = !self.options.read_only && !self.options.allow_unsafe_host;
        match unsafe_for_sled(self.path).filter(|_| is_refused) {
            None => Ok(Some(directory)),
            Some(host) => Err(Error::usage(format!(
                "{} lies on {host}, where an index of sled does not survive power cuts: copy the store to a local ext4 or xfs, mount it \
                 with -o ro, or run: sumfs index convert --to redb {}",
                directory.display(),
                self.path.display()
            ))),
        }
    }

    pub(super) fn journal(&self, superblock: &Superblock) -> Result<Arc<dyn Disk>> {
        let path = Path::new(superblock.journal_path.as_deref().unwrap_or(JOURNAL_FILE));
        let damaged = |what: String| {
            Error::corrupt(format!(
                "the journal {}: {what}; the last changes before a crash may be lost with it: restore it, or give it up with: \
                 sumfs check --repair {}",
                self.path.join(path).display(),
                self.path.display()
            ))
        };
        let disk = match self.part(path, "journal", self.options.direct) {
            Err(Error::Usage(_)) if !self.path.join(path).exists() => {
                if !self.options.allow_damage || self.options.read_only {
                    return Err(damaged("it does not exist".to_owned()));
                }
                let name = self.path.join(path).display().to_string();
                FileDisk::open_at(self.directory, path, name, OpenMode::Create, false)?
            }
            opened => opened?,
        };
        let (len, wanted) = (disk.len()?, superblock.journal_bytes);
        if len < wanted {
            let error = damaged(format!("it has {} and should have {}", show_size(len), show_size(wanted)));
            if !self.options.allow_damage {
                return Err(error);
            }
            tracing::warn!("{error}");
            if !self.options.read_only {
                disk.set_len(wanted)?;
                super::fill_with_zeros(&disk, len, wanted - len)?;
                disk.flush()?;
            }
        }
        Ok(Arc::new(disk.limited_to(wanted)))
    }
}

/// What stands for redb's disk where sled keeps the index.
pub(super) fn no_index() -> Arc<dyn Disk> {
    Arc::new(MemoryDisk::new("no index of redb", 0))
}

/// The canonical path and the open directory.
pub(super) fn open_directory(path: &Path) -> Result<(PathBuf, OwnedFd)> {
    let shown = path.display();
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => Error::usage(format!("{shown} does not exist; make a store there with: sumfs mkfs {shown}")),
        ErrorKind::NotADirectory => {
            Error::usage(format!("{shown} is not a directory; a store is a directory made by: sumfs mkfs DIRECTORY"))
        }
        _ => Error::io(format!("opening the store {shown}"), error),
    };
    let path = path.canonicalize().map_err(failed)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(&path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
    Ok((path, directory))
}

pub(super) fn refuse_no_store(path: &Path, directory: &OwnedFd) -> Result<()> {
    let shown = path.display();
    match rustix::fs::statat(directory, SUPERBLOCK_FILE, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(()),
        Err(Errno::NOENT) => Err(match Host::look().store_mounted_at(path) {
            Some(store) => Error::usage(format!("{shown} is where the store {} is mounted; name the store", store.display())),
            None => Error::usage(format!("{shown} is no sumfs store; make one with: sumfs mkfs {shown}")),
        }),
        Err(errno) => Err(Error::io(format!("looking for a superblock in {shown}"), errno.into())),
    }
}

/// Takes the store's lock, waiting up to `wait` for a daemon that is closing the store. `create` makes the file if needed.
pub(super) fn lock_store(path: &Path, directory: BorrowedFd<'_>, create: bool, wait: Duration) -> Result<OwnedFd> {
    let failed = |errno: Errno| Error::io(format!("locking {}", path.join(LOCK_FILE).display()), errno.into());
    let begun = Instant::now();
    loop {
        if let Some(lock) = try_lock(path, directory, create)? {
            // The file may have been removed (by a mkfs that failed) between opening and locking it.
            let held = rustix::fs::fstat(&lock).map_err(failed)?;
            match rustix::fs::statat(directory, LOCK_FILE, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(named) if named.st_ino == held.st_ino => return Ok(lock),
                Ok(_) | Err(Errno::NOENT) => continue,
                Err(errno) => return Err(failed(errno)),
            }
        }
        let host = Host::look();
        let store = path.display();
        if let Some(at) = host.mountpoint_of_store(path) {
            let at = at.display();
            return Err(Error::usage(format!("store {store} is in use (mounted at {at}); unmount it first: sumfs umount {at}")));
        }
        if begun.elapsed() >= wait {
            return Err(Error::usage(format!(
                "store {store} is in use by another process (a mount that is still closing, or a check); try again when it has ended"
            )));
        }
        std::thread::sleep(LOCK_POLL);
    }
}

fn try_lock(path: &Path, directory: BorrowedFd<'_>, create: bool) -> Result<Option<OwnedFd>> {
    let name = path.join(LOCK_FILE);
    let name = name.display();
    let create = if create { OFlags::CREATE } else { OFlags::empty() };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | create;
    let lock = match rustix::fs::openat(directory, LOCK_FILE, flags, Mode::RUSR | Mode::WUSR) {
        Ok(lock) => lock,
        Err(Errno::NOENT) => return Err(Error::usage(format!("{name} is missing; make it with: touch {name}"))),
        Err(errno) => return Err(Error::io(format!("opening {name}"), errno.into())),
    };
    loop {
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(lock)),
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::io(format!("locking {name}"), errno.into())),
        }
    }
}

/// A block device could not be claimed.
pub(super) fn in_use_by_system(host: &Host, path: &Path) -> Error {
    let shown = path.display();
    match host.mountpoint_of_device(path) {
        Some(at) => {
            let at = at.display();
            Error::usage(format!("{shown} is in use: it is mounted at {at}; unmount it first: umount {at}"))
        }
        None => Error::usage(format!(
            "{shown} is in use by the system (mounted, swap, or part of a RAID, volume group or another store); free it first"
        )),
    }
}

/// Says once per process that a copy-on-write host cannot keep space set aside.
pub(super) fn warn_if_copy_on_write(path: &Path) {
    static SAID: Once = Once::new();
    if let Some(host) = copy_on_write_host(path) {
        SAID.call_once(|| {
            tracing::warn!(
                "{} is on {host}, where space cannot be set aside for overwriting: if the host fills up, writes that were \
                 acknowledged may fail; keep space free there, or use a block device",
                path.display()
            );
        });
    }
}

#[cfg(test)]
mod tests;
