//! Files, directories, attributes: POSIX semantics over the layers below. Knows nothing of FUSE; every operation can be called
//! from any thread. Data operations take a `Wait`; the others run to their end on the calling thread.
//!
//! Who may wait for what: before any lock, an operation waits for room in journal and dirty limit (`begin_changing`). A commit
//! (`sync.rs`) takes no range lock and no Names lock, so these may be held while waiting for one.

mod acl;
mod attributes;
mod background;
mod check;
mod clone;
mod image;
mod inode;
mod inode_table;
mod layout;
mod listing;
mod names;
mod open;
mod protection;
pub mod range_lock;
mod read;
mod reaper;
mod relocation;
mod rename;
mod resize;
mod salvage;
mod scrub;
mod sync;
mod tmpfile;
mod types;
mod write;
mod xattr;

pub use crate::cache::ReadData;
pub use relocation::NewDevice;
pub use salvage::{SALVAGE_BYTES_MAX, Salvaged};
pub use types::*;

use crate::cache::Cache;
use crate::disk::Disk;
use crate::disk::superblock::Superblock;
use crate::error::{Error, Reason, Result};
use crate::extent::Extents;
use crate::lock::{RankedMutex, Wait};
use crate::meta::{Metadata, Pressure};
use crate::space::Space;
use crate::space::pace::Direction;
use crate::stats::Stats;
use crate::sync::{AtomicBool, AtomicU64, Mutex};
use crate::units::InodeNumber;
use inode::Inode;
use inode_table::InodeTable;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Longest name in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Blocks left, promised to nobody, below which a direct write opens another group: as many windows as a file has open at once.
const BLOCKS_LEFT_MIN: u64 = 32 * crate::units::EXTENT_BLOCKS_MAX as u64;

/// A mounted store.
pub struct Filesystem {
    meta: Arc<Metadata>,
    space: Arc<Space>,
    extents: Arc<Extents>,
    cache: Arc<Cache>,
    stats: Arc<Stats>,
    options: Options,
    table: InodeTable,
    /// Rank Names: changes of the tree, one at a time.
    names: RankedMutex<()>,
    /// Inodes with something that the next commit must look at.
    listed: Mutex<Vec<Arc<Inode>>>,
    role: Mutex<sync::Role>,
    reap_queue: Mutex<VecDeque<InodeNumber>>,
    /// Counts changes: idleness is when it stands still.
    activity: AtomicU64,
    /// The commit thread was told that a commit is due.
    is_commit_asked: AtomicBool,
    signals: background::Signals,
    scrub: scrub::Scrub,
    relocation: relocation::Relocation,
    image_worker: image::ImageWorker,
    threads: Mutex<Vec<crate::sync::thread::JoinHandle<()>>>,
    superblock: Mutex<Superblock>,
    superblock_disk: Arc<dyn Disk>,
    /// Device addresses of damaged blocks that were reported already.
    reported: Mutex<HashSet<u64>>,
    /// The last group could not be opened; that was said.
    is_host_full: AtomicBool,
    /// Held by the one who looks for space.
    is_finding_space: Mutex<()>,
}

impl std::fmt::Debug for Filesystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Filesystem({:?})", self.meta)
    }
}

impl Filesystem {
    /// Counters.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// The options it was opened with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Makes the store read-only because of a fault that the caller saw.
    pub fn latch(&self, reason: impl AsRef<str>) {
        self.meta.latch().set(reason.as_ref(), true);
    }

    /// Called once when a fault makes the store read-only.
    pub fn set_latch_hook(&self, hook: Box<dyn Fn(&str) + Send + Sync>) {
        self.meta.latch().set_hook(hook);
    }

    /// Why the store is read-only, if it is.
    pub fn read_only_reason(&self) -> Option<String> {
        self.meta.latch().reason().map(|reason| reason.to_string())
    }

    fn inode(&self, number: InodeNumber) -> Result<Arc<Inode>> {
        self.table.get(number, &self.meta)
    }

    /// The inode for a data operation: with `Wait::Never` only when it is in memory.
    fn inode_for_data(&self, number: InodeNumber, wait: Wait) -> Result<Arc<Inode>> {
        match wait {
            Wait::Never => self.table.try_get(number).ok_or(Error::WouldBlock(Reason::InodeNotCached)),
            Wait::Allowed => self.inode(number),
        }
    }

    /// Would the wait that it was refused for, as devices are answering now, be shorter than a hand-over to another thread?
    pub fn is_quick(&self, refused: Reason) -> bool {
        match refused {
            Reason::NotCached | Reason::PartialBlockMissing => self.space.pace.is_quick(Direction::Read),
            Reason::DeviceWait => self.space.pace.is_quick(Direction::Write),
            _ => false,
        }
    }

    /// Does such a write wait for others, to be written together with them? They must not have to wait for its thread.
    pub fn gathers(&self, flags: WriteFlags) -> bool {
        flags.direct && self.space.has_parity() && self.options.plug.bytes_max > 0
    }

    /// Before an operation that changes metadata takes its first lock.
    fn begin_changing(&self) -> Result<()> {
        self.meta.latch().check()?;
        self.note_activity();
        match self.meta.pressure() {
            Pressure::None => {
                if self.options.background {
                    self.meta.slow_down();
                }
                Ok(())
            }
            Pressure::Commit => self.commit_now(),
            Pressure::Checkpoint => self.meta.relieve_journal(),
        }
    }

    /// As `begin_changing`, for operations that add records.
    fn begin_creating(&self) -> Result<()> {
        self.begin_changing()?;
        self.meta.check_room()
    }

    fn note_activity(&self) {
        self.activity.fetch_add(1, Ordering::Relaxed);
        if self.meta.is_commit_due() && !self.is_commit_asked.swap(true, Ordering::Relaxed) {
            self.signals.commit.wake();
        } else {
            self.signals.commit.wake_if_asleep();
        }
    }

    /// Puts the inode on the list for the next commit.
    fn list(&self, inode: &Arc<Inode>) {
        self.enlist(inode);
        self.note_activity();
    }

    /// The flag goes up in the same step in which the inode comes on the list: who sees it up, and asks for a sync, relies on the
    /// inode being there.
    fn enlist(&self, inode: &Arc<Inode>) {
        if inode.is_listed.load(Ordering::Acquire) {
            return;
        }
        let mut listed = self.listed.lock();
        if !inode.is_listed.swap(true, Ordering::AcqRel) {
            listed.push(inode.clone());
        }
    }

    /// Space for statfs: what can really be written.
    pub fn statfs(&self) -> SpaceStatus {
        let counts = self.space.counts();
        let free = (counts.free + counts.unopened + counts.pinned).saturating_sub(counts.reserved + counts.promised);
        let used = self.meta.inode_numbers_used();
        SpaceStatus {
            blocks: counts.total,
            free,
            available: if self.meta.check_room().is_ok() { free } else { 0 },
            inodes: u64::from(u32::MAX),
            inodes_free: u64::from(u32::MAX).saturating_sub(used),
        }
    }

    /// Makes room for `blocks`: commits what frees many, opens a group, commits and deletes what frees any. ENOSPC when nothing helps.
    fn find_space(&self, blocks: u64) -> Result<()> {
        // One at a time, who then looks whether another has found enough: else each of many writers opens a group.
        let _alone = self.is_finding_space.lock();
        if self.space.available() >= blocks || self.commit_frees(blocks)? || self.open_group()? {
            return Ok(());
        }
        if self.space.has_parity() {
            // What is dirty has reserved a row for each block; written together it takes far less.
            self.write_back_listed()?;
            if self.space.available() >= blocks {
                return Ok(());
            }
        }
        self.commit_now()?;
        self.reap_all()?;
        self.commit_now()?;
        self.space.collect_released()?;
        if self.space.available() >= blocks { Ok(()) } else { Err(Error::NoSpace) }
    }

    /// Commits if that frees much, and so saves a group: what is overwritten in place after place would otherwise take one for every
    /// commit's worth. True when `blocks` are free now.
    fn commit_frees(&self, blocks: u64) -> Result<bool> {
        if self.meta.dropped_blocks() < self.space.blocks_per_group() / 8 {
            return Ok(false);
        }
        self.commit_now()?;
        self.space.collect_released()?;
        Ok(self.space.available() >= blocks)
    }

    /// Opens a group before the last windows of the open ones are taken: files that are written out of order would go on in the
    /// gaps of each other's. Only who may wait comes here; no space is no error yet.
    fn open_group_in_time(&self) -> Result<()> {
        let margin = BLOCKS_LEFT_MIN.min(self.space.blocks_per_group() / 4);
        if self.space.available() >= margin || self.is_host_full.load(Ordering::Relaxed) {
            return Ok(());
        }
        let _alone = match self.is_finding_space.try_lock() {
            Some(guard) if self.space.available() < margin => guard,
            _ => return Ok(()),
        };
        if self.commit_frees(margin)? {
            return Ok(());
        }
        self.open_group().map(|_| ())
    }

    /// Opens one more group; false when there is none or the host has no room.
    fn open_group(&self) -> Result<bool> {
        match self.extents.open_group() {
            Ok(is_open) => {
                if is_open {
                    self.is_host_full.store(false, Ordering::Relaxed);
                }
                Ok(is_open)
            }
            Err(error @ Error::ReadOnly(_)) => Err(error),
            Err(error) => {
                // Every write that finds no space comes here.
                if !self.is_host_full.swap(true, Ordering::Relaxed) {
                    tracing::warn!("opening a group: {error}; until the host has room again only what is open can be filled");
                }
                Ok(false)
            }
        }
    }

    /// The superblock as it is now.
    pub fn superblock(&self) -> Superblock {
        self.superblock.lock().clone()
    }

    /// Each device: how it stands with it, what lies on it, what it did wrong.
    pub fn device_status(&self) -> serde_json::Value {
        self.space.device_status()
    }

    /// Everything for `info` and `stats`.
    pub fn status(&self) -> serde_json::Value {
        let counts = self.space.counts();
        serde_json::json!({
            "space": {
                "total_blocks": counts.total, "free_blocks": counts.free, "unopened_blocks": counts.unopened,
                "reserved_blocks": counts.reserved, "promised_blocks": counts.promised, "pinned_blocks": counts.pinned,
                "open_groups": counts.groups, "blocks_per_group": self.space.blocks_per_group(),
            },
            "metadata": self.meta.status(),
            "cache": {
                "total_bytes": self.cache.total_bytes(), "dirty_bytes": self.cache.dirty_bytes(),
                "dirty_bytes_max": self.cache.dirty_bytes_max(),
                "inodes_cached": self.table.cached_count(), "inodes_known_to_kernel": self.table.known_count(),
            },
            "devices": self.device_status(),
            "stripes": self.space.stripe_status(),
            "plug": if self.space.has_parity() { self.cache.plug_status() } else { serde_json::Value::Null },
            "read_only_reason": self.read_only_reason(),
            "counters": self.stats.to_json(),
        })
    }
}
