//! A new index for a store whose index is lost in both copies: made from the metadata image and the journal (`meta::restore`) beside the
//! old one, put in its place in one step when it is complete and durable, the old one kept aside. Broken off anywhere, it can be begun
//! again; the image files, the journal and the devices are only read.

use super::StoreDirectory;
use super::create::sync_directory;
use super::directory::{INDEX_FILE, OpenOptions, Opening, SLED_DIRECTORY, SUPERBLOCK_FILE, lock_store, open_directory};
use super::engine::{Engine, create_sled};
use crate::disk::Disk;
use crate::disk::file::{FileDisk, OpenMode};
use crate::disk::superblock::Superblock;
use crate::error::{Error, Result};
use crate::meta::redb_index::RedbIndex;
use crate::meta::restore::{Missing, Progress, Restore, Source};
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What an index is called, while it is made, in its place, and when it was damaged.
struct Names {
    new: &'static str,
    index: &'static str,
    damaged: &'static str,
}

const REDB: Names = Names { new: "index.new", index: INDEX_FILE, damaged: "index.damaged" };
const SLED: Names = Names { new: "index.sled.new", index: SLED_DIRECTORY, damaged: "index.sled.damaged" };
/// What a rebuilding leaves in a store.
pub(super) const REBUILT_FILES: [&str; 4] = [REDB.new, REDB.damaged, SLED.new, SLED.damaged];
const INDEX_CACHE_BYTES: usize = 64 << 20;

/// How to make a new index.
#[derive(Clone, Copy, Debug, Default)]
pub struct RebuildOptions {
    /// Also when it is known that transactions are missing.
    pub allow_loss: bool,
    /// How long to wait for a daemon that is still closing the store.
    pub wait_for_lock: Duration,
}

/// What was made.
#[derive(Clone, Debug)]
pub struct Rebuilt {
    /// Out of what.
    pub source: Source,
    /// Records put and deleted.
    pub records: u64,
    /// Bytes of the new index.
    pub index_bytes: u64,
    /// Where the old one is now, if there was one.
    pub damaged: Option<PathBuf>,
}

impl StoreDirectory {
    /// Makes a new index for the store in the directory `path`, which must not be in use.
    pub fn rebuild_index(path: &Path, options: RebuildOptions, progress: &mut Progress<'_>) -> Result<Rebuilt> {
        let (path, directory) = open_directory(path)?;
        super::directory::refuse_no_store(&path, &directory)?;
        let _lock = lock_store(&path, directory.as_fd(), true, options.wait_for_lock)?;
        let opening = Opening { path: &path, directory: directory.as_fd(), options: OpenOptions::default() };
        let superblock = Superblock::read(&opening.part(Path::new(SUPERBLOCK_FILE), "superblock", false)?)?.superblock;
        let journal = opening.journal(&superblock)?;
        let images = opening.images().ok_or_else(|| Error::usage("the files of the metadata image cannot be opened"))?;
        let found = Restore::find(&images, &journal, superblock.uuid, superblock.clean_sequence, progress)?;
        refuse_loss(found.source(), options.allow_loss)?;
        let engine = Engine::of(&superblock);
        let names = if engine == Engine::Redb { REDB } else { SLED };
        let replacing = Replacing { path: &path, directory: directory.as_fd(), engine, names };
        replacing.remove(replacing.names.new)?;
        let made = replacing.make(&found, progress);
        let (records, index_bytes) = match made {
            Ok(made) => made,
            Err(error) => {
                // The reason is what counts; what is left is removed by the next attempt.
                replacing.remove(replacing.names.new).ok();
                return Err(error);
            }
        };
        let damaged = replacing.put_in_place()?;
        Ok(Rebuilt { source: *found.source(), records, index_bytes, damaged })
    }
}

fn refuse_loss(source: &Source, is_allowed: bool) -> Result<()> {
    let Some(missing) = source.missing.filter(|_| !is_allowed) else { return Ok(()) };
    let reached = source.sequence;
    let missing = match missing {
        Missing::JournalRecord(record) => format!("the journal has later ones, but not number {record}"),
        Missing::Until(last) => format!("the store was closed with transaction {last}"),
    };
    Err(Error::usage(format!(
        "image and journal lead to transaction {reached} only, but {missing}; an index as of transaction {reached}, with which the \
         store may be readable only, can be made with --allow-loss"
    )))
}

struct Replacing<'a> {
    path: &'a Path,
    directory: BorrowedFd<'a>,
    engine: Engine,
    names: Names,
}

impl Replacing<'_> {
    fn failed(&self, doing: &str, name: &str, errno: Errno) -> Error {
        Error::io(format!("{doing} {}", self.path.join(name).display()), errno.into())
    }

    /// A file of redb, or a directory of sled.
    fn remove(&self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        let removed = match rustix::fs::unlinkat(self.directory, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => std::fs::remove_dir_all(&path),
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        };
        removed.map_err(|error| Error::io(format!("removing {}", path.display()), error))
    }

    fn make(&self, found: &Restore, progress: &mut Progress<'_>) -> Result<(u64, u64)> {
        let path = self.path.join(self.names.new);
        if self.engine == Engine::Sled {
            let index = create_sled(&path, INDEX_CACHE_BYTES)?;
            let records = found.fill(&*index, progress)?;
            return Ok((records, index.disk_bytes()));
        }
        let (name, mode) = (path.display().to_string(), OpenMode::Create);
        let disk = FileDisk::open_at(self.directory, Path::new(self.names.new), name, mode, true)?;
        let disk: Arc<dyn Disk> = Arc::new(disk);
        let index = RedbIndex::create(disk.clone(), INDEX_CACHE_BYTES)?;
        let records = found.fill(&index, progress)?;
        drop(index);
        disk.flush()?;
        Ok((records, disk.len()?))
    }

    /// A file gets its second name first, so that there is one under the usual name at every moment.
    fn put_in_place(&self) -> Result<Option<PathBuf>> {
        let (dir, Names { new, index, damaged }) = (self.directory, &self.names);
        self.remove(damaged)?;
        let kept = match rustix::fs::linkat(dir, *index, dir, *damaged, AtFlags::empty()) {
            Ok(()) => true,
            Err(Errno::NOENT) => false,
            // A directory, or a host without hard links.
            Err(_) => {
                rustix::fs::renameat(dir, *index, dir, *damaged).map_err(|errno| self.failed("keeping aside", index, errno))?;
                true
            }
        };
        rustix::fs::renameat(dir, *new, dir, *index).map_err(|errno| self.failed("putting in place", new, errno))?;
        sync_directory(self.path)?;
        Ok(kept.then(|| self.path.join(damaged)))
    }
}
