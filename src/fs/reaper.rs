//! Deleting inodes without names: when the kernel knows them no more, and after a crash. Each leaves an orphan record until it
//! is gone, so that nothing is lost or kept by a crash in between.

use super::Filesystem;
use super::inode::Inode;
use super::types::Attributes;
use crate::error::{Error, Result};
use crate::extent::FileExtents;
use crate::meta::Batch;
use crate::meta::records::{self, FileKind, INODE_HAS_XATTRS, OrphanRecord};
use crate::meta::schema::{self, Item, Parsed};
use crate::units::InodeNumber;
use std::sync::Arc;

impl Filesystem {
    /// The kernel forgets `count` lookups of the inode.
    pub fn forget(&self, inode: InodeNumber, count: u64) {
        if !self.table.forget(inode, count) || inode == InodeNumber::ROOT {
            return;
        }
        if let Ok(found) = self.inode(inode) {
            self.reap_if_unused(&found);
        }
    }

    /// Queues the inode for deletion when it has no name and the kernel does not know it.
    pub(super) fn reap_if_unused(&self, inode: &Arc<Inode>) {
        if inode.state.lock().record.links > 0 || self.table.is_known(inode.number) || self.options.read_only {
            return;
        }
        self.reap_queue.lock().push_back(inode.number);
        if self.options.background {
            self.signals.reaper.wake_if_asleep();
        } else if let Err(error) = self.reap_all() {
            tracing::warn!("deleting inode {}: {error}", inode.number);
        }
    }

    /// Deletes what is queued.
    pub(super) fn reap_all(&self) -> Result<()> {
        loop {
            let Some(number) = self.reap_queue.lock().pop_front() else { return Ok(()) };
            match self.inode(number).and_then(|inode| self.reap(&inode)) {
                Ok(()) | Err(Error::Stale) => {}
                // It stays, and the others go.
                Err(Error::Corrupt(reason)) => tracing::warn!("inode {number} cannot be deleted: {reason}"),
                Err(error) => return Err(error),
            }
        }
    }

    /// Counts a lookup of an inode that was found, and gives its attributes. Counted first: what the kernel knows is not reaped. ESTALE
    /// when that has begun.
    pub(super) fn meet(&self, number: InodeNumber) -> Result<Attributes> {
        self.table.add_lookup(number);
        let met = self.inode(number).and_then(|inode| match inode.state.lock().is_dying {
            true => Err(Error::Stale),
            false => Ok(inode.clone()),
        });
        match met {
            Ok(inode) => Ok(inode.attributes()),
            Err(error) => {
                self.forget(number, 1);
                Err(error)
            }
        }
    }

    fn reap(&self, inode: &Arc<Inode>) -> Result<()> {
        let _range = inode.ranges.lock(0..u64::MAX, false);
        {
            let mut state = inode.state.lock();
            if state.is_gone || state.record.links > 0 || self.table.is_known(inode.number) {
                return Ok(());
            }
            state.is_dying = true;
        }
        let deleted = self.delete(inode);
        if deleted.is_err() {
            inode.state.lock().is_dying = false;
        }
        deleted
    }

    fn delete(&self, inode: &Arc<Inode>) -> Result<()> {
        if let Some(file) = &inode.file {
            self.cache.discard(file, 0..u64::MAX);
            file.set_size(0);
            FileExtents::load_if_small(&file.extents.map, &self.meta)?;
            self.drop_behind(inode, file, 0, None)?;
        }
        let mut batch = Batch::new();
        self.delete_items(inode, &mut batch)?;
        batch.delete(schema::inode(inode.number));
        batch.delete(schema::orphan(inode.number));
        let mut state = inode.state.lock();
        self.meta.append(batch)?;
        state.is_gone = true;
        drop(state);
        self.table.remove(inode.number);
        self.note_activity();
        Ok(())
    }

    /// What there is beside the map. With the last name went the last record of a further link.
    fn delete_items(&self, inode: &Inode, batch: &mut Batch) -> Result<()> {
        let (kind, flags) = {
            let state = inode.state.lock();
            (state.record.kind(), state.record.flags)
        };
        if kind == FileKind::Symlink {
            batch.delete(schema::symlink(inode.number));
        }
        if flags & INODE_HAS_XATTRS == 0 {
            return Ok(());
        }
        let (mut from, end) = (schema::items(inode.number, Item::Xattr), schema::items_end(inode.number, Item::Xattr));
        loop {
            let (items, next) = self.meta.scan_sealed(&from, &end, 256)?;
            items.into_iter().for_each(|(key, _)| batch.delete(key));
            match next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// After opening: finishes truncations at once, queues what has no name.
    pub(super) fn take_up_orphans(&self) -> Result<()> {
        let (mut from, end) = (schema::table_begin(schema::ORPHANS), schema::table_end(schema::ORPHANS));
        loop {
            let (items, next) = self.meta.scan_sealed(&from, &end, 1000)?;
            for (key, value) in &items {
                let Some(Parsed::Orphan(number)) = schema::parse(key) else { continue };
                let taken_up = match records::open(key, value).and_then(OrphanRecord::decode) {
                    Ok(OrphanRecord::Unlinked) => {
                        self.reap_queue.lock().push_back(number);
                        Ok(())
                    }
                    Ok(OrphanRecord::Truncating { size }) => self.finish_truncate(number, size),
                    Err(error) => Err(error),
                };
                match taken_up {
                    // What is damaged does not keep the rest from being mounted.
                    Err(error @ (Error::Corrupt(_) | Error::Stale)) => {
                        tracing::warn!("the deletion or truncation of inode {number} cannot be finished: {error}");
                    }
                    taken_up => taken_up?,
                }
            }
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        if !self.options.background {
            self.reap_all()?;
        }
        Ok(())
    }

    fn finish_truncate(&self, number: InodeNumber, size: u64) -> Result<()> {
        let inode = self.inode(number)?;
        let file = inode.regular()?;
        let _range = inode.ranges.lock(0..u64::MAX, false);
        self.drop_behind(&inode, file, size, None)?;
        let mut batch = Batch::new();
        batch.delete(schema::orphan(number));
        if inode.state.lock().record.links == 0 {
            batch = Batch::new();
            batch.put(schema::orphan(number), OrphanRecord::Unlinked.encode());
            self.reap_queue.lock().push_back(number);
        }
        self.meta.append(batch)?;
        Ok(())
    }
}
