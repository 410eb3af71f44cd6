//! A new index for a store whose index is lost in both copies: made from the metadata image and the journal (`meta::restore`) beside the
//! old one, put in its place in one step when it is complete and durable, the old one kept aside. Broken off anywhere, it can be begun
//! again; the image files, the journal and the devices are only read.

use super::StoreDirectory;
use super::create::sync_directory;
use super::directory::{INDEX_FILE, OpenOptions, Opening, SUPERBLOCK_FILE, lock_store, open_directory};
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

const INDEX_FILE_NEW: &str = "index.new";
const INDEX_FILE_DAMAGED: &str = "index.damaged";
/// What a rebuilding leaves in a store.
pub(super) const REBUILT_FILES: [&str; 2] = [INDEX_FILE_NEW, INDEX_FILE_DAMAGED];
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
        let replacing = Replacing { path: &path, directory: directory.as_fd() };
        replacing.remove(INDEX_FILE_NEW)?;
        let made = replacing.make(&found, progress);
        let (records, index_bytes) = match made {
            Ok(made) => made,
            Err(error) => {
                // The reason is what counts; what is left is removed by the next attempt.
                replacing.remove(INDEX_FILE_NEW).ok();
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
}

impl Replacing<'_> {
    fn failed(&self, doing: &str, name: &str, errno: Errno) -> Error {
        Error::io(format!("{doing} {}", self.path.join(name).display()), errno.into())
    }

    fn remove(&self, name: &str) -> Result<()> {
        match rustix::fs::unlinkat(self.directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.failed("removing", name, errno)),
        }
    }

    fn make(&self, found: &Restore, progress: &mut Progress<'_>) -> Result<(u64, u64)> {
        let name = self.path.join(INDEX_FILE_NEW).display().to_string();
        let disk = FileDisk::open_at(self.directory, Path::new(INDEX_FILE_NEW), name, OpenMode::Create, true)?;
        let disk: Arc<dyn Disk> = Arc::new(disk);
        let index = RedbIndex::create(disk.clone(), INDEX_CACHE_BYTES)?;
        let records = found.fill(&index, progress)?;
        drop(index);
        disk.flush()?;
        Ok((records, disk.len()?))
    }

    /// The old index gets a second name first, so that there is one under the usual name at every moment.
    fn put_in_place(&self) -> Result<Option<PathBuf>> {
        let dir = self.directory;
        self.remove(INDEX_FILE_DAMAGED)?;
        let kept = match rustix::fs::linkat(dir, INDEX_FILE, dir, INDEX_FILE_DAMAGED, AtFlags::empty()) {
            Ok(()) => true,
            Err(Errno::NOENT) => false,
            // A host without hard links.
            Err(_) => {
                rustix::fs::renameat(dir, INDEX_FILE, dir, INDEX_FILE_DAMAGED)
                    .map_err(|errno| self.failed("keeping aside", INDEX_FILE, errno))?;
                true
            }
        };
        rustix::fs::renameat(dir, INDEX_FILE_NEW, dir, INDEX_FILE)
            .map_err(|errno| self.failed("putting in place", INDEX_FILE_NEW, errno))?;
        sync_directory(self.path)?;
        Ok(kept.then(|| self.path.join(INDEX_FILE_DAMAGED)))
    }
}
