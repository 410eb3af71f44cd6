//! mkfs: makes a store in a directory.
//!
//! Everything is checked before anything is overwritten. The superblock gets its name last, so that a broken-off mkfs leaves no
//! store; whatever was made is removed again on an error. What `force` never overrides: anything that is in use, a directory
//! with other things in it, and a place on a sumfs.

use super::directory::{
    IMAGE_FILES, INDEX_FILE, JOURNAL_FILE, LOCK_FILE, SLED_DIRECTORY, SUPERBLOCK_FILE, in_use_by_system, lock_store, no_index,
    open_directory, warn_if_copy_on_write,
};
use super::engine::Engine;
use super::host::{Host, unsafe_for_sled};
use super::rebuild::REBUILT_FILES;
use super::size::show_size;
use super::{DataProfile, Disks, FormatOptions, StoreDirectory, fill_with_zeros, format, signature};
use crate::disk::Disk;
use crate::disk::file::{FileDisk, OpenMode};
use crate::disk::label::DATA_BEGIN;
use crate::disk::superblock::{SUPERBLOCK_BYTES, Superblock};
use crate::error::{Error, Result};
use crate::units::{block_ceil, block_floor};
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Size of a store when none is given.
pub const STORE_BYTES_DEFAULT: u64 = 10 << 30;
/// Smallest store, and smallest device.
pub const STORE_BYTES_MIN: u64 = 16 << 20;
/// Smallest journal.
pub const JOURNAL_BYTES_MIN: u64 = 4 << 20;
const JOURNAL_BYTES_MAX: u64 = 128 << 20;
/// Part of the store's size that the journal gets.
const JOURNAL_SHARE: u64 = 32;
const DEVICE_FILE: &str = "device.0";
/// The superblock until all the rest is there.
const SUPERBLOCK_FILE_NEW: &str = "superblock.new";
/// What a file system makes in its root directory by itself.
const LOST_AND_FOUND: &str = "lost+found";
/// How long to wait for a daemon that is still closing the store.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Old signatures also stand at the end of a device.
const WIPED_END_BYTES: u64 = 64 << 10;

/// What mkfs lets one choose.
#[derive(Clone, Debug, Default)]
pub struct CreateOptions {
    /// Bytes of the device in the store, and of device files that do not exist yet; of existing devices at most so much is
    /// used. None: 10 GiB in the store, existing devices whole.
    pub size: Option<u64>,
    /// Files or block devices for the data, instead of one file in the store.
    pub devices: Vec<PathBuf>,
    /// A file or block device for the journal, instead of a file in the store.
    pub journal: Option<PathBuf>,
    /// What keeps the index.
    pub engine: Engine,
    /// A name for people.
    pub label: Option<String>,
    /// How data is kept.
    pub data: DataProfile,
    /// Striped profiles: bytes that follow each other on one device; None: 512 KiB.
    pub stripe_unit: Option<u64>,
    /// Overwrite a store that is there, and devices that hold something.
    pub force: bool,
}

impl StoreDirectory {
    /// Makes a store in the directory `path`, which is made if it does not exist (its parent must). Returns the superblock. Every
    /// refusal is an `Error::Usage` that says why and what to do.
    pub fn create(path: &Path, options: CreateOptions) -> Result<Superblock> {
        create_waiting(path, &options, LOCK_WAIT)
    }
}

fn create_waiting(path: &Path, options: &CreateOptions, lock_wait: Duration) -> Result<Superblock> {
    let host = Host::look();
    let store = resolve(path)?;
    refuse_on_sumfs(&host, &store)?;
    if options.engine == Engine::Sled {
        refuse_sled(&store)?;
    }
    let size = options.size.map(block_floor);
    if let Some(bytes) = size {
        check_least("a store", bytes, STORE_BYTES_MIN)?;
    }
    let mut made = Made::default();
    made.directory(&store)?;
    refuse_other_contents(&store, &list(&store)?)?;
    let (store, directory) = open_directory(&store)?;
    if !store.join(LOCK_FILE).exists() {
        made.files.push(store.join(LOCK_FILE));
    }
    made.lock = Some(lock_store(&store, directory.as_fd(), true, lock_wait).inspect_err(|_| made.files.clear())?);
    let old = list(&store)?;
    refuse_other_contents(&store, &old)?;
    refuse_store(&store, &old, options.force)?;

    let mut mkfs = Mkfs { host, store: &store, directory: directory.as_fd(), options, made, taken: Vec::new() };
    let outside = mkfs.outside_devices(size)?;
    let total =
        if outside.is_empty() { size.unwrap_or(STORE_BYTES_DEFAULT) } else { outside.iter().map(|part| part.bytes).sum() };
    let journal_bytes = default_journal_bytes(total);
    let outside_journal = match &options.journal {
        Some(path) => Some(mkfs.outside_part(path, "journal", Some(journal_bytes), JOURNAL_BYTES_MIN)?),
        None => None,
    };
    mkfs.remove_old(&old)?;
    mkfs.make(total, journal_bytes, outside, outside_journal)
}

/// Makes or empties what shall become a further device of a store that is mounted; its canonical path and its length. Refuses what is in
/// use, holds something, or is too small, like mkfs.
pub(super) fn make_device(store: &Path, path: &Path, size: Option<u64>, force: bool) -> Result<(PathBuf, u64)> {
    let (store, directory) = open_directory(store)?;
    let options = CreateOptions { force, ..CreateOptions::default() };
    let (host, made, taken) = (Host::look(), Made::default(), Vec::new());
    let mut mkfs = Mkfs { host, store: &store, directory: directory.as_fd(), options: &options, made, taken };
    let part = mkfs.outside_part(path, "device", size.map(block_floor), STORE_BYTES_MIN)?;
    if part.is_new {
        part.disk.flush()?;
        let path = Path::new(&part.path);
        sync_directory(path.parent().unwrap_or(path))?;
    } else {
        wipe(&part)?;
    }
    mkfs.made.keep();
    Ok((PathBuf::from(part.path), part.bytes))
}

fn default_journal_bytes(store_bytes: u64) -> u64 {
    block_ceil(store_bytes / JOURNAL_SHARE).clamp(JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX)
}

fn check_least(what: &str, bytes: u64, least: u64) -> Result<()> {
    if bytes >= least {
        return Ok(());
    }
    Err(Error::usage(format!("{what} of {}: it must have at least {}", show_size(bytes), show_size(least))))
}

/// The canonical path of something that may not exist yet; its directory must.
fn resolve(path: &Path) -> Result<PathBuf> {
    let failed = |error: std::io::Error, path: &Path| match error.kind() {
        ErrorKind::NotFound => Error::usage(format!("{} does not exist; make it first", path.display())),
        _ => Error::io(format!("looking up {}", path.display()), error),
    };
    match path.canonicalize() {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        found => return found.map_err(|error| failed(error, path)),
    }
    let whole = std::path::absolute(path).map_err(|error| failed(error, path))?;
    match (whole.parent(), whole.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize().map_err(|error| failed(error, parent))?.join(name)),
        _ => Ok(whole),
    }
}

fn refuse_on_sumfs(host: &Host, path: &Path) -> Result<()> {
    let existing = path.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(path);
    match host.sumfs_below(existing) {
        None => Ok(()),
        Some(at) => Err(Error::usage(format!(
            "{} lies on the sumfs mounted at {}: a store cannot be kept on a sumfs; use another file system",
            path.display(),
            at.display()
        ))),
    }
}

/// sled's index is safe only where what it writes stays in its place and fdatasync means what it says.
fn refuse_sled(store: &Path) -> Result<()> {
    if cfg!(not(feature = "sled")) {
        return Err(Error::usage("this sumfs was built without sled; make the store with --index redb"));
    }
    let existing = store.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(store);
    match unsafe_for_sled(existing) {
        None => Ok(()),
        Some(host) => Err(Error::usage(format!(
            "{} lies on {host}, where an index of sled does not survive power cuts; use a local ext4 or xfs, or --index redb",
            store.display()
        ))),
    }
}

fn list(directory: &Path) -> Result<Vec<String>> {
    let failed = |error| Error::io(format!("listing {}", directory.display()), error);
    let entries = std::fs::read_dir(directory).map_err(|error| match error.kind() {
        ErrorKind::NotADirectory => {
            Error::usage(format!("{} is not a directory; a store is made in a directory of its own", directory.display()))
        }
        _ => failed(error),
    })?;
    entries.map(|entry| Ok(entry.map_err(failed)?.file_name().to_string_lossy().into_owned())).collect()
}

/// Is `name` a file that mkfs, a mount or a rebuilding of the index makes?
fn is_ours(name: &str) -> bool {
    let always = [SUPERBLOCK_FILE, SUPERBLOCK_FILE_NEW, INDEX_FILE, SLED_DIRECTORY, JOURNAL_FILE, DEVICE_FILE, LOCK_FILE];
    always.contains(&name) || IMAGE_FILES.contains(&name) || REBUILT_FILES.contains(&name)
}

fn refuse_other_contents(store: &Path, names: &[String]) -> Result<()> {
    match names.iter().find(|name| !is_ours(name) && *name != LOST_AND_FOUND) {
        None => Ok(()),
        Some(name) => Err(Error::usage(format!(
            "{} is not empty (it has `{name}`); use an empty directory, or one that does not exist",
            store.display()
        ))),
    }
}

fn refuse_store(store: &Path, names: &[String], force: bool) -> Result<()> {
    let shown = store.display();
    if force || names.iter().all(|name| name == LOCK_FILE || name == LOST_AND_FOUND) {
        return Ok(());
    }
    Err(Error::usage(if names.iter().any(|name| name == SUPERBLOCK_FILE) {
        format!("{shown} is a store already; to destroy it and everything in it use --force")
    } else {
        format!("{shown} has what is left of a store or of an mkfs that was broken off; to overwrite it use --force")
    }))
}

/// What was made so far; removed unless kept. The lock is given up only after that.
#[derive(Debug, Default)]
struct Made {
    files: Vec<PathBuf>,
    directory: Option<PathBuf>,
    lock: Option<OwnedFd>,
}

impl Made {
    fn directory(&mut self, path: &Path) -> Result<()> {
        match std::fs::create_dir(path) {
            Ok(()) => {
                self.directory = Some(path.to_owned());
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(Error::io(format!("making the directory {}", path.display()), error)),
        }
    }

    fn keep(&mut self) {
        self.files.clear();
        self.directory = None;
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for file in self.files.iter().rev() {
            // One of them may be sled's directory.
            std::fs::remove_file(file).or_else(|_| std::fs::remove_dir_all(file)).ok();
        }
        if let Some(directory) = &self.directory {
            std::fs::remove_dir(directory).ok();
        }
    }
}

/// A device or journal outside the store's directory, ready to be formatted.
struct Part {
    disk: FileDisk,
    path: String,
    bytes: u64,
    is_new: bool,
}

struct Mkfs<'a> {
    host: Host,
    store: &'a Path,
    directory: BorrowedFd<'a>,
    options: &'a CreateOptions,
    made: Made,
    taken: Vec<PathBuf>,
}

impl Mkfs<'_> {
    fn outside_devices(&mut self, size: Option<u64>) -> Result<Vec<Part>> {
        let options = self.options;
        options.devices.iter().map(|path| self.outside_part(path, "device", size, STORE_BYTES_MIN)).collect()
    }

    /// Opens or makes the device or journal at `path`; refuses it when it is in use or holds something. `bytes` is the size of
    /// a new one, and the most that is used of an existing one.
    fn outside_part(&mut self, path: &Path, role: &str, bytes: Option<u64>, least: u64) -> Result<Part> {
        let path = resolve(path)?;
        let shown = path.display().to_string();
        refuse_on_sumfs(&self.host, &path)?;
        if path.starts_with(self.store) {
            return Err(Error::usage(format!("{shown} is inside the store; keep it elsewhere, or leave the option out")));
        }
        if self.taken.contains(&path) {
            return Err(Error::usage(format!("{shown} is named twice; name each device and the journal once")));
        }
        self.taken.push(path.clone());
        let Some(name) = path.to_str() else {
            return Err(Error::usage(format!("the path {shown} is not UTF-8; use another name")));
        };
        let (disk, is_new) = match path.exists() {
            true => (self.existing_part(&path, &shown)?, false),
            false => (self.new_part(&path, &shown, role)?, true),
        };
        if disk.is_empty()? && !disk.is_block_device() {
            let Some(bytes) = bytes else {
                return Err(Error::usage(format!(
                    "{shown} does not exist or is empty; give --size to make a {role} of that size"
                )));
            };
            disk.set_len(bytes)?;
        }
        let bytes = block_floor(disk.len()?.min(bytes.unwrap_or(u64::MAX)));
        check_least(&format!("a {role} ({shown})"), bytes, least)?;
        warn_if_copy_on_write(&path);
        Ok(Part { disk: disk.limited_to(bytes), path: name.to_owned(), bytes, is_new })
    }

    fn new_part(&mut self, path: &Path, shown: &str, role: &str) -> Result<FileDisk> {
        if self.host.is_in_devtmpfs(path) {
            return Err(Error::usage(format!("there is no device {shown}; name one that exists, or a {role} file elsewhere")));
        }
        let disk = FileDisk::open(path, OpenMode::Create, false)?;
        self.made.files.push(path.to_owned());
        Ok(disk)
    }

    fn existing_part(&self, path: &Path, shown: &str) -> Result<FileDisk> {
        let disk = match FileDisk::open(path, OpenMode::ReadWrite, false) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::ResourceBusy => {
                return Err(in_use_by_system(&self.host, path));
            }
            opened => opened?,
        };
        if disk.is_block_device() {
            if self.host.mountpoint_of_device(path).is_some() {
                return Err(in_use_by_system(&self.host, path));
            }
        } else if let Some(device) = self.host.loop_device_of(path) {
            let device = device.display();
            return Err(Error::usage(format!("{shown} is in use as {device}; free it with: losetup -d {device}")));
        } else if !disk.lock_exclusive()? {
            return Err(Error::usage(format!("{shown} is in use by a store that is mounted; unmount that first")));
        }
        if self.options.force {
            return Ok(disk);
        }
        if let Some(what) = signature::find(&disk)? {
            return Err(Error::usage(format!("{shown} seems to hold {what}; to overwrite it use --force")));
        }
        if !disk.is_block_device() && !signature::is_blank(&disk, DATA_BEGIN)? {
            return Err(Error::usage(format!("{shown} is a file that holds data; to overwrite it use --force")));
        }
        Ok(disk)
    }

    /// Removes the old store's files, the superblock first: from then on it is no store any more.
    fn remove_old(&self, names: &[String]) -> Result<()> {
        let is_old = |name: &&String| is_ours(name) && *name != LOCK_FILE;
        let mut names: Vec<&String> = names.iter().filter(is_old).collect();
        names.sort_by_key(|name| *name != SUPERBLOCK_FILE);
        for name in names {
            if name == SLED_DIRECTORY {
                let path = self.store.join(name);
                std::fs::remove_dir_all(&path).map_err(|error| Error::io(format!("removing {}", path.display()), error))?;
                continue;
            }
            match rustix::fs::unlinkat(self.directory, name.as_str(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => self.sync_directory()?,
                Err(errno) => return Err(Error::io(format!("removing {}", self.store.join(name).display()), errno.into())),
            }
        }
        Ok(())
    }

    fn sync_directory(&self) -> Result<()> {
        sync_directory(self.store)
    }

    fn inside_file(&mut self, name: &str, bytes: u64) -> Result<FileDisk> {
        let whole = self.store.join(name);
        let disk = FileDisk::open_at(self.directory, Path::new(name), whole.display().to_string(), OpenMode::Create, false)?;
        self.made.files.push(whole);
        disk.set_len(bytes)?;
        Ok(disk)
    }

    fn make(&mut self, total: u64, journal_bytes: u64, outside: Vec<Part>, outside_journal: Option<Part>) -> Result<Superblock> {
        let superblock = Arc::new(self.inside_file(SUPERBLOCK_FILE_NEW, SUPERBLOCK_BYTES)?);
        for part in outside.iter().chain(&outside_journal).filter(|part| !part.is_new) {
            wipe(part)?;
        }
        let mut paths = Vec::new();
        let mut devices: Vec<Arc<dyn Disk>> = Vec::new();
        for part in outside {
            paths.push(part.path);
            devices.push(Arc::new(part.disk));
        }
        if devices.is_empty() {
            paths.push(DEVICE_FILE.to_owned());
            devices.push(Arc::new(self.inside_file(DEVICE_FILE, total)?));
            warn_if_copy_on_write(&self.store.join(DEVICE_FILE));
        }
        let (journal, journal_path) = match outside_journal {
            Some(part) => (part.disk, Some(part.path)),
            None => (self.inside_file(JOURNAL_FILE, journal_bytes)?, None),
        };
        let (index, sled): (Arc<dyn Disk>, _) = match self.options.engine {
            Engine::Redb => (Arc::new(self.inside_file(INDEX_FILE, 0)?), None),
            Engine::Sled => {
                let directory = self.store.join(SLED_DIRECTORY);
                self.made.files.push(directory.clone());
                (no_index(), Some(directory))
            }
        };
        let disks = Disks { superblock: superblock.clone(), journal: Arc::new(journal), index, sled, devices, images: None };
        let label = self.options.label.clone().unwrap_or_default();
        let options = FormatOptions { label, group_bytes: None, data: self.options.data, stripe_unit: self.options.stripe_unit };
        format(&disks, &options, &paths, journal_path)?;
        let written = Superblock::read(superblock.as_ref())?.superblock;
        self.put_in_place()?;
        Ok(written)
    }

    /// Gives the superblock its name, which makes it a store, and makes the names durable.
    fn put_in_place(&mut self) -> Result<()> {
        self.sync_directory()?;
        rustix::fs::renameat(self.directory, SUPERBLOCK_FILE_NEW, self.directory, SUPERBLOCK_FILE)
            .map_err(|errno| Error::io(format!("naming the superblock of {}", self.store.display()), errno.into()))?;
        self.made.files.push(self.store.join(SUPERBLOCK_FILE));
        self.sync_directory()?;
        let parents = self.made.files.iter().chain(&self.made.directory).filter_map(|path| path.parent());
        for parent in parents {
            sync_directory(parent)?;
        }
        self.made.keep();
        Ok(())
    }
}

pub(super) fn sync_directory(path: &Path) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty())
        .and_then(rustix::fs::fsync)
        .map_err(|errno| Error::io(format!("syncing the directory {}", path.display()), errno.into()))
}

/// Takes old signatures away, so that nobody sees another file system in the device.
fn wipe(part: &Part) -> Result<()> {
    let end = part.bytes.saturating_sub(WIPED_END_BYTES);
    fill_with_zeros(&part.disk, 0, part.bytes.min(DATA_BEGIN))?;
    fill_with_zeros(&part.disk, end, part.bytes - end)?;
    part.disk.flush()
}

#[cfg(test)]
mod tests;
