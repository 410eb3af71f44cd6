//! Making things durable: fsync, sync, and the commit role. The first who asks leads; others leave their answer in the list and
//! free their thread; one commit serves all who asked before it began.

use super::Filesystem;
use super::inode::Inode;
use super::types::Done;
use crate::error::{Error, Result};
use crate::meta::Batch;
use crate::meta::schema;
use crate::pool::panic_message;
use crate::space::pace::Direction;
use crate::units::InodeNumber;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of cache budget for each entry of a file's map that stays in memory once it is recorded. A map that is larger is forgotten
/// whole and loaded again in pieces, so the bound must be one that few files reach.
const CACHE_BYTES_PER_ENTRY: u64 = 256;

/// An fsync that has more to write back is not quick.
const QUICK_FSYNC_BYTES_MAX: u64 = 256 << 10;

/// Who waits for the next commit.
#[derive(Default)]
pub(super) struct Role {
    is_led: bool,
    waiters: Vec<Done>,
    /// One of the waiters wants all dirty data to be written back first.
    writes_all: bool,
}

impl Filesystem {
    /// Makes the inode durable, then calls `done`, perhaps from another thread. With nothing undurable it costs nothing.
    pub fn fsync(&self, inode: InodeNumber, _data_only: bool, done: Done) {
        match self.begin_fsync(inode) {
            Ok(true) => self.request_commit(done, false),
            Ok(false) => done(Ok(())),
            Err(error) => done(Err(error)),
        }
    }

    /// Would an fsync, as commits are going now, not keep a thread from other work for long?
    pub fn fsync_is_quick(&self, inode: InodeNumber) -> bool {
        let is_small = |inode: Arc<Inode>| inode.file.as_ref().is_none_or(|file| file.dirty_bytes() <= QUICK_FSYNC_BYTES_MAX);
        self.space.pace.is_quick(Direction::Commit) && self.table.try_get(inode).is_some_and(is_small)
    }

    /// Writes the inode's data back; true when a commit must follow.
    fn begin_fsync(&self, inode: InodeNumber) -> Result<bool> {
        let inode = self.inode(inode)?;
        if let Some(file) = &inode.file {
            let written = self.cache.write_back(file, 0..u64::MAX);
            if let Some(error) = file.take_error() {
                return Err(error);
            }
            written?;
        }
        // Here, not in the commit: another one may just have taken the inode from the list, before the data was on the device.
        self.collect(&inode)?;
        let state = inode.state.lock();
        let is_undurable = state.sequence > self.meta.durable_sequence();
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
        // Most of it before taking the role; the rest in the role, whose owner alone sees all that is listed.
        let written = self.write_back_listed();
        let committed = self.commit_with(true);
        written.and(committed)
    }

    /// Makes everything durable, then refuses every change until the store is mounted anew, which replays the journal: what
    /// FS_IOC_SHUTDOWN asks for. Its flags, which of this to leave out, do not get here.
    pub fn go_down(&self) -> Result<()> {
        let synced = self.sync();
        self.meta.latch().set("shut down on request", false);
        synced
    }

    /// A commit of everything appended so far; returns when it is durable.
    pub(super) fn commit_now(&self) -> Result<()> {
        self.commit_with(false)
    }

    fn commit_with(&self, writes_all: bool) -> Result<()> {
        let (sender, receiver) = crate::sync::channel::bounded(1);
        let done = move |result| {
            // The receiver lives until it has the answer.
            let _sent = sender.send(result);
        };
        self.request_commit(Box::new(done), writes_all);
        receiver.recv().unwrap_or_else(|_| Err(Error::corrupt("a commit ended without an answer")))
    }

    /// Adds `done` to those who wait; leads the commits if nobody does.
    pub(super) fn request_commit(&self, done: Done, writes_all: bool) {
        {
            let mut role = self.role.lock();
            role.waiters.push(done);
            role.writes_all |= writes_all;
            if role.is_led {
                return;
            }
            role.is_led = true;
        }
        loop {
            let (waiters, writes_all) = {
                let mut role = self.role.lock();
                if role.waiters.is_empty() {
                    role.is_led = false;
                    return;
                }
                let writes_all = std::mem::take(&mut role.writes_all);
                (std::mem::take(&mut role.waiters), writes_all)
            };
            let result = self.space.pace.timed(Direction::Commit, 0, || self.commit_surviving_panics(writes_all));
            self.wake_apply();
            for done in waiters {
                done(result.clone());
            }
        }
    }

    /// A panic must not leave the role taken for ever: who waits, and who comes later, gets an error.
    fn commit_surviving_panics(&self, writes_all: bool) -> Result<()> {
        catch_unwind(AssertUnwindSafe(|| self.commit_once(writes_all))).unwrap_or_else(|panic| {
            self.stats.panics.fetch_add(1, Ordering::Relaxed);
            let message = format!("internal error in a commit: {}", panic_message(&*panic));
            self.latch(&message);
            Err(Error::corrupt(message))
        })
    }

    fn commit_once(&self, writes_all: bool) -> Result<()> {
        self.meta.latch().check()?;
        let listed = std::mem::take(&mut *self.listed.lock());
        let mut result = Ok(());
        // What must go with the names (D8) is collected before anything can be committed.
        for inode in listed.iter().filter(|inode| Self::take_replaced(inode)) {
            result = result.and(self.write_back(inode, 0..u64::MAX)).and(self.collect(inode));
        }
        let mut still_dirty = Vec::new();
        for inode in listed {
            inode.is_listed.store(false, Ordering::Release);
            if writes_all {
                result = result.and(self.write_back(&inode, 0..u64::MAX));
            }
            result = result.and(self.collect(&inode));
            // Looked at in this order: data in flight shows as busy until its extents can be collected.
            if result.is_err() || inode.file.as_ref().is_some_and(|file| file.is_busy()) || Self::has_uncollected(&inode) {
                still_dirty.push(inode);
            }
            if self.meta.is_transaction_full() {
                result = result.and(self.meta.commit().map(|_| ()));
            }
        }
        for inode in still_dirty {
            self.enlist(&inode);
        }
        result?;
        self.meta.commit()?;
        Ok(())
    }

    fn has_uncollected(inode: &Inode) -> bool {
        inode.file.as_ref().is_some_and(|file| file.extents.map.lock().uncollected() > 0) || inode.state.lock().is_dirty
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
            if map.entry_count() as u64 > self.options.cache_bytes / CACHE_BYTES_PER_ENTRY {
                map.forget();
            }
        }
        batch.put(schema::inode(inode.number), state.record.encode());
        state.sequence = self.meta.append(batch)?;
        state.is_dirty = false;
        Ok(())
    }
}
