//! mkfs: makes a store in a directory.
//!
//! Everything is checked before anything is overwritten. The superblock gets its name last, so that a broken-off mkfs leaves no
//! store; whatever was made is removed again on an error. What `force` never overrides: anything that is in use, a directory
//! with other things in it, and a place on a sumfs.

use super::directory::{
    IMAGE_FILES, INDEX_FILE, JOURNAL_FILE, LOCK_FILE, SUPERBLOCK_FILE, in_use_by_system, lock_store, open_directory,
    warn_if_copy_on_write,
};
use super::host::Host;
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
    /// A name for people.
    pub label: Option<String>,
    /// How often data is kept.
    pub data: DataProfile,
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
    let always = [SUPERBLOCK_FILE, SUPERBLOCK_FILE_NEW, INDEX_FILE, JOURNAL_FILE, DEVICE_FILE, LOCK_FILE];
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
            std::fs::remove_file(file).ok();
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
        let index = Arc::new(self.inside_file(INDEX_FILE, 0)?);
        let disks = Disks { superblock: superblock.clone(), journal: Arc::new(journal), index, devices, images: None };
        let label = self.options.label.clone().unwrap_or_default();
        let options = FormatOptions { label, group_bytes: None, data: self.options.data };
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
mod tests {
    use super::*;
    use crate::store::OpenOptions;

    const SIZE: u64 = 20 << 20;

    fn options() -> CreateOptions {
        CreateOptions { size: Some(SIZE), label: Some("files".to_owned()), ..CreateOptions::default() }
    }

    fn create(path: &Path, options: CreateOptions) -> Result<Superblock> {
        create_waiting(path, &options, Duration::ZERO)
    }

    fn refusal(path: &Path, options: CreateOptions) -> String {
        match create(path, options) {
            Err(Error::Usage(text)) => text,
            other => panic!("no refusal: {other:?}"),
        }
    }

    fn names(path: &Path) -> Vec<String> {
        let mut names = list(path).unwrap();
        names.sort();
        names
    }

    fn put(path: &Path, offset: u64, bytes: &[u8], len: u64) {
        let file = std::fs::File::options().write(true).create(true).truncate(false).open(path).unwrap();
        file.set_len(len).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, offset).unwrap();
    }

    #[test]
    fn a_store_in_a_new_directory_opens() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let made = create(&path, options()).unwrap();
        assert_eq!(names(&path), ["device.0", "index", "journal", "lock", "superblock"]);
        let store = StoreDirectory::open(&path, false, None).unwrap();
        assert_eq!(*store.superblock(), made);
        assert_eq!((made.label.as_str(), made.journal_bytes), ("files", JOURNAL_BYTES_MIN));
        assert_eq!(store.disks().devices[0].len().unwrap(), SIZE);
        assert_eq!(store.disks().journal.len().unwrap(), JOURNAL_BYTES_MIN);
        assert_eq!(StoreDirectory::read_uuid(&path).unwrap(), store.uuid());
    }

    #[test]
    fn an_empty_directory_and_the_root_of_a_new_file_system_are_fine() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join(LOST_AND_FOUND)).unwrap();
        create(directory.path(), options()).unwrap();
    }

    #[test]
    fn sizes() {
        assert_eq!(default_journal_bytes(10 << 30), 128 << 20);
        assert_eq!(default_journal_bytes(1 << 30), 32 << 20);
        assert_eq!(default_journal_bytes((256 << 20) + 4096 * 33), (8 << 20) + 8192);
        assert_eq!(default_journal_bytes(64 << 20), JOURNAL_BYTES_MIN);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let text = refusal(&path, CreateOptions { size: Some((16 << 20) - 1), ..options() });
        assert!(text.contains("at least 16 MiB"), "{text}");
        assert!(!path.exists());
    }

    #[test]
    fn a_store_is_overwritten_only_by_force_and_never_while_open() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let first = create(path, options()).unwrap();
        assert!(refusal(path, options()).contains("--force"));
        let force = CreateOptions { force: true, ..options() };
        let open = StoreDirectory::open(path, false, None).unwrap();
        assert!(refusal(path, force.clone()).contains("in use"));
        assert_eq!(open.superblock().uuid, first.uuid);
        drop(open);
        let second = create(path, force).unwrap();
        assert_ne!(first.uuid, second.uuid);
        assert_eq!(names(path), ["device.0", "index", "journal", "lock", "superblock"]);
        StoreDirectory::open(path, false, None).unwrap();
    }

    #[test]
    fn other_contents_are_always_refused_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("thesis.tex"), "x").unwrap();
        let text = refusal(directory.path(), CreateOptions { force: true, ..options() });
        assert!(text.contains("thesis.tex") && text.contains("empty directory"), "{text}");
        assert_eq!(names(directory.path()), ["thesis.tex"]);
        let text = refusal(&directory.path().join("thesis.tex"), options());
        assert!(text.contains("not a directory"), "{text}");
        assert!(refusal(&directory.path().join("no/store"), options()).contains("does not exist"));
    }

    #[test]
    fn what_a_broken_off_mkfs_left_needs_force() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("superblock.new"), "x").unwrap();
        assert!(refusal(directory.path(), options()).contains("broken off"));
        assert_eq!(names(directory.path()), ["superblock.new"]);
        create(directory.path(), CreateOptions { force: true, ..options() }).unwrap();
    }

    #[test]
    fn devices_and_journal_elsewhere() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        put(&at("old"), 0, &[], 33 << 20);
        let elsewhere = CreateOptions { devices: vec![at("old"), at("new")], journal: Some(at("j")), ..options() };
        let made = create(&at("store"), elsewhere).unwrap();
        assert_eq!(names(&at("store")), ["index", "lock", "superblock"]);
        let lens: Vec<u64> = made.devices.iter().map(|device| device.len).collect();
        assert_eq!(lens, [SIZE, SIZE]);
        let real = at("").canonicalize().unwrap();
        assert_eq!(made.journal_path.as_deref(), real.join("j").to_str());
        assert_eq!(made.journal_bytes, default_journal_bytes(2 * SIZE));
        let store = StoreDirectory::open(&at("store"), false, None).unwrap();
        assert_eq!(store.disks().devices.len(), 2);
        let text = refusal(&at("other"), CreateOptions { devices: vec![at("new")], force: true, ..options() });
        assert!(text.contains("in use"), "{text}");
        drop(store);
        let text = refusal(&at("other"), CreateOptions { devices: vec![at("new")], ..options() });
        assert!(text.contains("another sumfs store"), "{text}");
        assert!(!at("other").exists());
    }

    #[test]
    fn devices_that_cannot_be_are_refused_and_nothing_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let with = |devices: &[&str]| CreateOptions { devices: devices.iter().map(|name| at(name)).collect(), ..options() };
        put(&at("ext4"), 1080, b"\x53\xef", SIZE);
        put(&at("data"), 5000, b"data", SIZE);
        put(&at("small"), 0, &[], 1 << 20);
        std::fs::create_dir(at("directory")).unwrap();
        let before = names(directory.path());
        for (devices, word) in [
            (&["ext4"][..], "ext4 file system; to overwrite it use --force"),
            (&["data"], "holds data"),
            (&["small"], "at least 16 MiB"),
            (&["new", "new"], "named twice"),
            (&["store/device.0"], "inside the store"),
            (&["directory"], "neither a file nor a block device"),
            (&["no/device"], "does not exist"),
            (&["new", "ext4"], "--force"),
        ] {
            let text = match create(&at("store"), with(devices)) {
                Err(error) => error.to_string(),
                Ok(_) => panic!("{devices:?} taken"),
            };
            assert!(text.contains(word), "{devices:?}: {text}");
            assert_eq!(names(directory.path()), before, "{devices:?}");
        }
        let text = refusal(&at("store"), CreateOptions { size: None, ..with(&["new"]) });
        assert!(text.contains("give --size"), "{text}");
        create(&at("store"), CreateOptions { force: true, ..with(&["ext4", "data"]) }).unwrap();
        let disk = FileDisk::open(&at("ext4"), OpenMode::ReadOnly, false).unwrap();
        let mut magic = [1; 2];
        disk.read_at(1080, &mut magic).unwrap();
        assert_eq!(magic, [0; 2], "the old signature is still there");
    }

    #[test]
    fn a_device_longer_than_recorded_is_used_as_recorded() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        create(&at("store"), CreateOptions { devices: vec![at("d")], ..options() }).unwrap();
        std::fs::File::options().write(true).open(at("d")).unwrap().set_len(SIZE * 2).unwrap();
        let options = OpenOptions { direct: false, ..OpenOptions::default() };
        let store = StoreDirectory::open_with(&at("store"), options).unwrap();
        assert_eq!(store.disks().devices[0].len().unwrap(), SIZE);
    }
}
