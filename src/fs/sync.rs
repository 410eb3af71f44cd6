//! Making things durable: fsync, sync, and the commit role. The first who asks leads; others leave their answer in the list and
//! free their thread; one commit serves all who asked before it began.

use super::Filesystem;
use super::inode::Inode;
use super::types::Done;
use crate::error::Result;
use crate::meta::Batch;
use crate::meta::schema;
use crate::units::InodeNumber;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Entries of a file's map that stay in memory once they are recorded.
const ENTRIES_KEPT_MAX: usize = 1 << 16;

/// Who waits for the next commit.
#[derive(Default)]
pub(super) struct Role {
    is_led: bool,
    waiters: Vec<Done>,
}

impl Filesystem {
    /// Makes the inode durable, then calls `done`, perhaps from another thread. With nothing undurable it costs nothing.
    pub fn fsync(&self, inode: InodeNumber, _data_only: bool, done: Done) {
        match self.begin_fsync(inode) {
            Ok(true) => self.request_commit(done),
            Ok(false) => done(Ok(())),
            Err(error) => done(Err(error)),
        }
    }

    /// Writes the inode's data back; true when a commit must follow.
    fn begin_fsync(&self, inode: InodeNumber) -> Result<bool> {
        let inode = self.inode(inode)?;
        let mut has_changes = false;
        if let Some(file) = &inode.file {
            let written = self.cache.write_back(file, 0..u64::MAX);
            if let Some(error) = file.take_error() {
                return Err(error);
            }
            written?;
            has_changes = file.extents.map.lock().uncollected() > 0;
        }
        let state = inode.state.lock();
        let is_undurable = has_changes || state.is_dirty || state.sequence > self.meta.durable_sequence();
        drop(state);
        if is_undurable {
            self.meta.latch().check()?;
        }
        Ok(is_undurable)
    }

    /// Everything that was acknowledged becomes durable.
    pub fn sync(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        let written = self.write_back_listed();
        self.commit_now()?;
        written
    }

    /// A commit of everything appended so far; returns when it is durable.
    pub(super) fn commit_now(&self) -> Result<()> {
        let (sender, receiver) = crossbeam::channel::bounded(1);
        self.request_commit(Box::new(move |result| {
            // The receiver lives until it has the answer.
            let _sent = sender.send(result);
        }));
        receiver.recv().unwrap_or_else(|_| Err(crate::error::Error::corrupt("a commit ended without an answer")))
    }

    /// Adds `done` to those who wait; leads the commits if nobody does.
    pub(super) fn request_commit(&self, done: Done) {
        {
            let mut role = self.role.lock();
            role.waiters.push(done);
            if role.is_led {
                return;
            }
            role.is_led = true;
        }
        loop {
            let waiters = {
                let mut role = self.role.lock();
                if role.waiters.is_empty() {
                    role.is_led = false;
                    return;
                }
                std::mem::take(&mut role.waiters)
            };
            let result = self.commit_once();
            self.signals.apply.wake_if_asleep();
            for done in waiters {
                done(result.clone());
            }
        }
    }

    fn commit_once(&self) -> Result<()> {
        self.meta.latch().check()?;
        for inode in std::mem::take(&mut *self.flush_list.lock()) {
            self.write_back(&inode, 0..u64::MAX)?;
        }
        let listed = std::mem::take(&mut *self.listed.lock());
        let mut still_dirty = Vec::new();
        let mut result = Ok(());
        for inode in listed {
            inode.is_listed.store(false, Ordering::Release);
            if Self::take_replaced(&inode) {
                result = result.and(self.write_back(&inode, 0..u64::MAX));
            }
            result = result.and(self.collect(&inode));
            if result.is_err() || inode.file.as_ref().is_some_and(|file| file.is_busy()) {
                still_dirty.push(inode);
            }
            if self.meta.pressure() != crate::meta::Pressure::None {
                result = result.and(self.meta.commit().map(|_| ()));
            }
        }
        for inode in still_dirty {
            if !inode.is_listed.swap(true, Ordering::AcqRel) {
                self.listed.lock().push(inode);
            }
        }
        result?;
        self.meta.commit()?;
        Ok(())
    }

    /// Puts what changed in memory only, finished extents and times, into the running transaction.
    pub(super) fn collect(&self, inode: &Arc<Inode>) -> Result<()> {
        let mut batch = Batch::new();
        let mut map = inode.file.as_ref().map(|file| file.extents.map.lock());
        let mut state = inode.state.lock();
        let has_changes = map.as_ref().is_some_and(|map| map.uncollected() > 0);
        if state.is_gone || !(has_changes || state.is_dirty) {
            return Ok(());
        }
        if let Some(map) = &mut map {
            map.collect(&mut batch, self.space.blocks_per_group());
            state.record.size = map.size();
            state.record.blocks = map.blocks();
            if map.entry_count() > ENTRIES_KEPT_MAX {
                map.forget();
            }
        }
        batch.put(schema::inode(inode.number), state.record.encode());
        state.sequence = self.meta.append(batch)?;
        state.is_dirty = false;
        Ok(())
    }
}
