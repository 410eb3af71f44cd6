//! Inodes in memory: how often the kernel knows each (lookup counts, which only FORGET lowers), and a cache of the inodes
//! themselves, which can be loaded again. Sharded; a shard's lock is held while an inode is loaded, so that nobody enters an
//! older record than another has changed meanwhile.

use super::inode::Inode;
use crate::cache::CachedFile;
use crate::error::{Error, Result};
use crate::extent::FileExtents;
use crate::lock::assert_may_wait;
use crate::meta::records::{FileKind, InodeRecord};
use crate::meta::{Metadata, schema};
use crate::sync::Mutex;
use crate::units::InodeNumber;
use lru::LruCache;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SHARDS: usize = 16;
/// Inodes kept in memory per shard beyond those in use.
const KEPT_PER_SHARD: usize = 2048;
/// Inodes looked at for dropping when one is added.
const TRIM_ATTEMPTS: usize = 8;

#[derive(Debug)]
struct Shard {
    lookups: HashMap<InodeNumber, u64>,
    cached: LruCache<InodeNumber, Arc<Inode>>,
}

/// See the module.
#[derive(Debug)]
pub struct InodeTable {
    shards: Vec<Mutex<Shard>>,
}

impl Default for InodeTable {
    fn default() -> InodeTable {
        let shard = || Mutex::new(Shard { lookups: HashMap::new(), cached: LruCache::unbounded() });
        InodeTable { shards: (0..SHARDS).map(|_| shard()).collect() }
    }
}

impl InodeTable {
    fn shard(&self, number: InodeNumber) -> &Mutex<Shard> {
        &self.shards[number.0 as usize % SHARDS]
    }

    /// The inode, loaded if need be. ESTALE for one that is gone.
    pub fn get(&self, number: InodeNumber, meta: &Metadata) -> Result<Arc<Inode>> {
        let mut shard = self.shard(number).lock();
        if let Some(inode) = shard.cached.get(&number) {
            return Ok(inode.clone());
        }
        assert_may_wait("loading an inode");
        let record = meta.get(&schema::inode(number))?.ok_or(Error::Stale)?;
        let record = InodeRecord::decode(&record)?;
        let file = (record.kind() == FileKind::Regular)
            .then(|| Arc::new(CachedFile::new(FileExtents::stored(number, record.size, record.blocks))));
        let inode = Arc::new(Inode::new(number, record, file, 0));
        shard.cached.put(number, inode.clone());
        shard.trim();
        Ok(inode)
    }

    /// The inode if it is in memory and nobody is loading one beside it.
    pub fn try_get(&self, number: InodeNumber) -> Option<Arc<Inode>> {
        self.shard(number).try_lock()?.cached.get(&number).cloned()
    }

    /// Enters a new inode.
    pub fn insert(&self, inode: Arc<Inode>) {
        let mut shard = self.shard(inode.number).lock();
        shard.cached.put(inode.number, inode);
        shard.trim();
    }

    /// Drops a deleted inode.
    pub fn remove(&self, number: InodeNumber) {
        self.shard(number).lock().cached.pop(&number);
    }

    /// The kernel was told of the inode once more.
    pub fn add_lookup(&self, number: InodeNumber) {
        *self.shard(number).lock().lookups.entry(number).or_insert(0) += 1;
    }

    /// The kernel forgot `count` of them; true when it knows the inode no more.
    pub fn forget(&self, number: InodeNumber, count: u64) -> bool {
        let mut shard = self.shard(number).lock();
        let Some(lookups) = shard.lookups.get_mut(&number) else { return true };
        *lookups = lookups.saturating_sub(count);
        let is_forgotten = *lookups == 0;
        if is_forgotten {
            shard.lookups.remove(&number);
        }
        is_forgotten
    }

    /// Does the kernel know the inode?
    pub fn is_known(&self, number: InodeNumber) -> bool {
        self.shard(number).lock().lookups.contains_key(&number)
    }

    /// Inodes that the kernel knows.
    pub fn known_count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().lookups.len()).sum()
    }

    /// Inodes in memory.
    pub fn cached_count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().cached.len()).sum()
    }
}

impl Shard {
    /// Drops the longest unused that nobody holds and that have nothing which is only in memory.
    fn trim(&mut self) {
        for _ in 0..TRIM_ATTEMPTS {
            if self.cached.len() <= KEPT_PER_SHARD {
                return;
            }
            let Some((number, inode)) = self.cached.pop_lru() else { return };
            let is_idle = Arc::strong_count(&inode) == 1
                && !inode.is_listed.load(Ordering::Acquire)
                && inode.file.as_ref().is_none_or(|file| file.is_bare() && file.extents.map.lock().uncollected() == 0);
            if !is_idle {
                self.cached.put(number, inode);
            }
        }
    }
}
