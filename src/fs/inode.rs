//! An inode in memory: its record as appended last, what changed since in memory, its range locks, and for regular files the
//! cached file.

use super::range_lock::RangeLock;
use super::types::Attributes;
use crate::cache::CachedFile;
use crate::error::{Error, Result};
use crate::lock::{Rank, RankedGuard, RankedMutex};
use crate::meta::records::{FileKind, InodeRecord};
use crate::sync::AtomicBool;
use crate::units::{BLOCK_SIZE, InodeNumber, blocks_for};
use std::sync::Arc;

/// What the attributes lock protects.
#[derive(Debug)]
pub struct InodeState {
    /// As last appended, plus changes of times not appended yet. Its size is the committed one (D6).
    pub record: InodeRecord,
    /// Times changed in memory only.
    pub is_dirty: bool,
    /// Transaction of the last append.
    pub sequence: u64,
    /// Being deleted: the kernel does not get to know it any more.
    pub is_dying: bool,
    /// Deleted from the metadata: nothing may be appended for it any more.
    pub is_gone: bool,
    /// Directories: where listings end: the next cookie when last read from the start.
    pub listing_end: Option<u64>,
}

/// An inode in memory.
#[derive(Debug)]
pub struct Inode {
    /// Its number.
    pub number: InodeNumber,
    /// Rank Attributes; two of them in ascending order of numbers (`lock_states`).
    pub state: RankedMutex<InodeState>,
    /// Rank Content.
    pub ranges: RangeLock,
    /// Regular files.
    pub file: Option<Arc<CachedFile>>,
    /// In the list of inodes that the next commit looks at.
    pub is_listed: AtomicBool,
    /// Truncated to nothing, then written: its data goes with the next commit (D8).
    pub is_replaced: AtomicBool,
}

impl Inode {
    /// An inode with this record.
    pub fn new(number: InodeNumber, record: InodeRecord, file: Option<Arc<CachedFile>>, sequence: u64) -> Inode {
        let state = InodeState { record, is_dirty: false, sequence, is_dying: false, is_gone: false, listing_end: None };
        Inode {
            number,
            state: RankedMutex::new(Rank::Attributes, state),
            ranges: RangeLock::default(),
            file,
            is_listed: AtomicBool::new(false),
            is_replaced: AtomicBool::new(false),
        }
    }

    /// The cached file, or what a caller who wants one is told.
    pub fn regular(&self) -> Result<&Arc<CachedFile>> {
        match (&self.file, self.state.lock().record.kind()) {
            (Some(file), _) => Ok(file),
            (None, FileKind::Directory) => Err(Error::IsDirectory),
            (None, _) => Err(Error::Invalid("not a regular file")),
        }
    }

    /// The kind.
    pub fn kind(&self) -> FileKind {
        self.state.lock().record.kind()
    }

    /// Attributes as a caller sees them now.
    pub fn attributes(&self) -> Attributes {
        let live = self.file.as_ref().map(|file| (file.size(), blocks_for(file.dirty_bytes()), file.extents.map.lock().blocks()));
        let state = self.state.lock();
        let record = &state.record;
        let (size, blocks) = match live {
            Some((size, dirty, mapped)) => (size, (mapped + dirty).min(mapped.max(blocks_for(size)))),
            None => (record.size, record.blocks),
        };
        Attributes {
            inode: self.number,
            size,
            blocks_512: blocks * (BLOCK_SIZE / 512),
            accessed: record.accessed,
            modified: record.modified,
            changed: record.changed,
            created: record.created,
            mode: record.mode,
            links: record.links,
            uid: record.uid,
            gid: record.gid,
            rdev: record.rdev,
        }
    }
}

/// Locks the states of several inodes in ascending order of numbers; the guards come in the order of `inodes`. One that is named
/// twice, a directory that holds itself, is damage.
pub fn lock_states<'a, const N: usize>(inodes: [&'a Inode; N]) -> Result<[RankedGuard<'a, InodeState>; N]> {
    let mut order: [usize; N] = std::array::from_fn(|at| at);
    order.sort_by_key(|at| inodes[*at].number);
    if let Some(pair) = order.windows(2).find(|pair| inodes[pair[0]].number == inodes[pair[1]].number) {
        return Err(Error::corrupt(format!("directory {} has an entry for itself", inodes[pair[0]].number)));
    }
    let mut guards: [Option<RankedGuard<'a, InodeState>>; N] = std::array::from_fn(|_| None);
    for at in order {
        guards[at] = Some(inodes[at].state.lock_further());
    }
    Ok(guards.map(|guard| match guard {
        Some(guard) => guard,
        None => unreachable!("every index is in the order once"),
    }))
}
