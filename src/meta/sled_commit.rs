//! The thread that writes to sled, and the watch over it.
//!
//! Durable is a batch in sled only after `flush()` *and* our own fdatasync: flush waits for sync_file_range alone. And never may more
//! than about a segment of sled's log be unsynced, or a power cut can leave it unopenable. So every batch, small enough, goes all the
//! way before the next one.
//!
//! sled can hang for ever after some errors. The caller waits only so long; then the handle is given up, with its thread.

use super::sled_tree::{Tree, guarded};
use crate::error::{Error, Result};
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::fs::File;
use std::thread::JoinHandle;
use std::time::Duration;

/// A step that takes longer never ends.
const PATIENCE: Duration = Duration::from_secs(120);

/// The writer.
pub(super) struct Committer {
    /// None only while it is dropped.
    requests: Option<Sender<sled::Batch>>,
    answers: Receiver<Result<()>>,
    thread: Option<JoinHandle<()>>,
    is_hung: bool,
}

impl Committer {
    /// Starts the thread. `log` is sled's file `db`, opened by us.
    pub(super) fn start(tree: Tree, log: File) -> Result<Committer> {
        let (requests, work) = bounded::<sled::Batch>(1);
        let (done, answers) = bounded(1);
        let run = move || {
            for batch in work {
                if done.send(commit(&tree, &log, batch)).is_err() {
                    break;
                }
            }
            // A panic in here would end the process of whoever drops the index.
            let path = tree.path.clone();
            let close = || {
                drop(tree);
                Ok(())
            };
            if guarded(&path, "closing", close).is_err() {
                tracing::warn!("sled gave up while closing an index");
            }
        };
        let thread = std::thread::Builder::new().name("sumfs-sled".to_owned()).spawn(run);
        let thread = thread.map_err(|error| Error::io("starting the thread that writes the index", error))?;
        Ok(Committer { requests: Some(requests), answers, thread: Some(thread), is_hung: false })
    }

    /// Makes a batch durable.
    pub(super) fn commit(&mut self, batch: sled::Batch) -> Result<()> {
        let failed = |what: &str| Error::io("writing the index", std::io::Error::other(what.to_owned()));
        let requests = self.requests.as_ref().filter(|_| !self.is_hung).ok_or_else(|| failed("sled hung before"))?;
        requests.send(batch).map_err(|_| failed("the thread of sled is gone"))?;
        match self.answers.recv_timeout(PATIENCE) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Timeout) => {
                self.is_hung = true;
                Err(failed(&format!("sled has not answered for {} seconds", PATIENCE.as_secs())))
            }
            Err(RecvTimeoutError::Disconnected) => Err(failed("the thread of sled is gone")),
        }
    }
}

fn commit(tree: &Tree, log: &File, batch: sled::Batch) -> Result<()> {
    guarded(&tree.path, "writing the index", || {
        tree.db.apply_batch(batch)?;
        tree.db.flush().map(|_| ())
    })?;
    log.sync_data().map_err(|error| Error::io(format!("syncing the index in {}", tree.path.display()), error))
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.requests = None;
        if let (Some(thread), false) = (self.thread.take(), self.is_hung)
            && thread.join().is_err()
        {
            tracing::warn!("the thread of sled ended in a panic");
        }
    }
}
