//! Inodes in memory: how often the kernel knows each (lookup counts, which only FORGET lowers), and a cache of the inodes
//! themselves, which can be loaded again. Sharded; a shard's lock is held while an inode is loaded, so that nobody enters an
//! older record than another has changed meanwhile.

use super::inode::Inode;
use crate::cache::CachedFile;
use crate::error::{Error, Result};
use crate::extent::FileExtents;
use crate::lock::assert_may_wait;
use crate::meta::Metadata;
use crate::meta::records::{self, FileKind, InodeRecord};
use crate::meta::schema::{self, Parsed};
use crate::sync::Mutex;
use crate::units::InodeNumber;
use lru::LruCache;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SHARDS: usize = 16;
/// Inodes kept in memory per shard beyond those in use.
const KEPT_PER_SHARD: usize = 2048;
/// Numbers so far apart are worth one look that sees what lies between them, too.
const NEAR: u64 = 4;
/// Fewer are looked up one by one.
const RUN_MIN: usize = 4;
/// Records that one look takes for each inode: itself, its map, those of unwanted neighbours.
const RECORDS_PER_INODE: usize = 8;
/// Inodes looked at for dropping when one is added.
const TRIM_ATTEMPTS: usize = 8;

#[derive(Debug)]
struct Shard {
    lookups: HashMap<InodeNumber, u64>,
    cached: LruCache<InodeNumber, Arc<Inode>>,
    /// Counts what was entered: while it stands still, what was not in memory has not changed either.
    entered: u64,
}

/// See the module.
#[derive(Debug)]
pub struct InodeTable {
    shards: Vec<Mutex<Shard>>,
}

impl Default for InodeTable {
    fn default() -> InodeTable {
        let shard = || Mutex::new(Shard { lookups: HashMap::new(), cached: LruCache::unbounded(), entered: 0 });
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
        let inode = stored(number, &record)?;
        shard.enter(inode.clone());
        Ok(inode)
    }

    /// Brings those of `numbers` into memory that lie near each other in the index, with one look a run. The others, and what cannot
    /// be read, are left to `get`.
    pub fn load_together(&self, mut numbers: Vec<InodeNumber>, meta: &Metadata) -> Result<()> {
        let entered: Vec<u64> = self.shards.iter().map(|shard| shard.lock().entered).collect();
        numbers.retain(|number| !self.shard(*number).lock().cached.contains(number));
        numbers.sort_unstable();
        numbers.dedup();
        let mut found: Vec<Vec<Arc<Inode>>> = vec![Vec::new(); SHARDS];
        for run in numbers.chunk_by(|before, next| next.0 - before.0 <= NEAR).filter(|run| run.len() >= RUN_MIN) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let (from, to) = (schema::inode(*first), schema::inode_end(*last));
            let (items, _) = meta.scan_sealed(&from, &to, run.len() * RECORDS_PER_INODE)?;
            for (key, value) in items {
                let Some(Parsed::Inode(number)) = schema::parse(&key) else { continue };
                // A damaged one is for who asks for it.
                if run.binary_search(&number).is_ok()
                    && let Ok(record) = records::open(&key, &value)
                    && let Ok(inode) = stored(number, record)
                {
                    found[number.0 as usize % SHARDS].push(inode);
                }
            }
        }
        for ((shard, found), entered) in self.shards.iter().zip(found).zip(entered) {
            let mut shard = shard.lock();
            if shard.entered == entered {
                found.into_iter().for_each(|inode| shard.enter(inode));
            }
        }
        Ok(())
    }

    /// The inode if it is in memory and nobody is loading one beside it.
    pub fn try_get(&self, number: InodeNumber) -> Option<Arc<Inode>> {
        self.shard(number).try_lock()?.cached.get(&number).cloned()
    }

    /// Enters a new inode.
    pub fn insert(&self, inode: Arc<Inode>) {
        self.shard(inode.number).lock().enter(inode);
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

fn stored(number: InodeNumber, record: &[u8]) -> Result<Arc<Inode>> {
    let record = InodeRecord::decode(record)?;
    let file = (record.kind() == FileKind::Regular)
        .then(|| Arc::new(CachedFile::new(FileExtents::stored(number, record.size, record.blocks))));
    Ok(Arc::new(Inode::new(number, record, file, 0)))
}

impl Shard {
    fn enter(&mut self, inode: Arc<Inode>) {
        self.entered += 1;
        self.cached.put(inode.number, inode);
        self.trim();
    }

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
