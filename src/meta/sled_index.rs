//! sled as the [`Index`], by measured rules: one tree, small batches, each synced before the next; see `sled_commit.rs` (writing),
//! `sled_history.rs` (snapshots), `sled_records.rs` (layout), `sled_files.rs` (the directory).
//!
//! An apply is atomic for those who read, through the history. For a power cut it is not: some of its chunks may be there. That is
//! why the checkpoint record is written last, alone with records of the checkpoints before it: whoever opens the index goes on from
//! the checkpoint that it finds, and the journal has everything since, as puts and deletes that may be done again. Filling behind
//! each checkpoint keeps later writes off the block that it ends in: a torn block could take it back. Should it be taken back all the
//! same, `earlier_checkpoints` says how far; the journal is kept so far.
//!
//! After the first error of a write nothing more is written. Reading sled goes on.
//!
//! Lock: `writing`, for the whole of an apply; leaf but for the history's.

use super::index::{Change, Index, Snapshot};
use super::schema;
use super::sled_commit::Committer;
use super::sled_history::{History, Notes};
use super::sled_records as layout;
use super::sled_snapshot::SledSnapshot;
use super::sled_tree::Tree;
use super::{sled_files as files, sled_records::Stored};
use crate::error::{Error, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// Keys and values in one batch. sled's log of them is some times as long, and must stay below half a segment (512 KiB).
const CHUNK_BYTES: usize = 64 << 10;
/// What a record costs beside key and value.
const RECORD_OVERHEAD_BYTES: usize = 64;
/// sled uses a multiple of its cache; it gets at most this much.
const CACHE_BYTES_MAX: usize = 64 << 20;
const FORMAT_NAME: &[u8] = b"format";
const FORMAT: &[u8] = b"sumfs index 0";
const FILLING_NAME: &[u8] = b"filling";
/// More than a block, so that what is written behind it starts in a later one.
const FILLING_BYTES: usize = 6 << 10;
/// Names of the records of earlier checkpoints, the newest first.
const EARLIER_NAMES: [&[u8]; 2] = [b"checkpoint 1", b"checkpoint 2"];

struct Writing {
    committer: Committer,
    is_failed: bool,
    /// Counts the fillings, so that each differs.
    fillings: u64,
}

/// An index in sled, in a directory of its own.
pub struct SledIndex {
    tree: Tree,
    history: Arc<History>,
    writing: Mutex<Writing>,
    log: File,
}

impl SledIndex {
    /// Makes an empty index in `directory`, durable with all names; what was there is lost.
    pub fn create(directory: &Path, cache_bytes: usize) -> Result<SledIndex> {
        files::remove(directory)?;
        let index = SledIndex::on(directory, cache_bytes)?;
        let mut batch = sled::Batch::default();
        batch.insert(layout::own_key(FORMAT_NAME), FORMAT);
        index.writing.lock().committer.commit(batch)?;
        files::sync_new(directory)?;
        Ok(index)
    }

    /// Opens the index in `directory`.
    pub fn open(directory: &Path, cache_bytes: usize) -> Result<SledIndex> {
        files::require(directory)?;
        let index = SledIndex::on(directory, cache_bytes)?;
        index.require_format(directory)?;
        // After a kill the host may hold what no disk holds yet, and from here on the journal is freed as if it did.
        index.log.sync_all().map_err(|error| Error::io(format!("syncing the index in {}", directory.display()), error))?;
        files::sync(directory)?;
        Ok(index)
    }

    /// Opens a copy of the index in `directory`, of which no byte is changed. Applies work, and are gone when this is dropped.
    pub fn open_copy(directory: &Path, cache_bytes: usize) -> Result<SledIndex> {
        files::require(directory)?;
        let copy = files::private_copy(directory)?;
        let opened = SledIndex::on(&copy, cache_bytes).and_then(|index| {
            index.require_format(directory)?;
            Ok(index)
        });
        // sled keeps the files that it needs open; nothing stays behind, however we end.
        files::remove(&copy)?;
        opened
    }

    fn on(directory: &Path, cache_bytes: usize) -> Result<SledIndex> {
        let db = files::open(directory, cache_bytes.min(CACHE_BYTES_MAX))?;
        files::require_no_blobs(directory)?;
        let tree = Tree { db, path: directory.to_owned() };
        let open_log = || File::options().read(true).write(true).open(directory.join(files::LOG));
        let failed = |error| Error::io(format!("opening the log of sled in {}", directory.display()), error);
        let committer = Committer::start(tree.clone(), open_log().map_err(failed)?)?;
        let writing = Mutex::new(Writing { committer, is_failed: false, fillings: 0 });
        Ok(SledIndex { tree, history: Arc::default(), writing, log: open_log().map_err(failed)? })
    }

    fn require_format(&self, directory: &Path) -> Result<()> {
        if self.tree.own(FORMAT_NAME)?.as_deref() == Some(FORMAT) {
            return Ok(());
        }
        Err(Error::corrupt(format!("the index in {} was never finished, or sled has lost it", directory.display())))
    }

    /// Generations of old values kept for snapshots.
    pub fn kept_generations(&self) -> usize {
        self.history.kept()
    }

    fn write(&self, writing: &mut Writing, changes: &mut dyn Iterator<Item = Change<'_>>, durable: bool) -> Result<()> {
        let checkpoint_key = schema::checkpoint();
        let mut checkpoint = None;
        let (mut chunk, mut bytes) = (Vec::new(), 0);
        for (key, value) in changes {
            if !layout::fits(key, value) {
                return Err(Error::corrupt(format!("a record of {} and {} bytes", key.len(), value.map_or(0, <[u8]>::len))));
            }
            if key == checkpoint_key.as_slice() && value.is_some() {
                checkpoint = value.map(<[u8]>::to_vec);
                continue;
            }
            let more = key.len() + value.map_or(0, <[u8]>::len) + RECORD_OVERHEAD_BYTES;
            if bytes + more > CHUNK_BYTES && !chunk.is_empty() {
                self.write_chunk(writing, std::mem::take(&mut chunk))?;
                bytes = 0;
            }
            chunk.push((key.to_vec(), value.map(<[u8]>::to_vec)));
            bytes += more;
        }
        if !chunk.is_empty() {
            self.write_chunk(writing, chunk)?;
        }
        if let Some(checkpoint) = checkpoint {
            self.write_checkpoint(writing, checkpoint)?;
        }
        if durable { self.write_filling(writing) } else { Ok(()) }
    }

    /// Notes what the chunk replaces, then writes it.
    fn write_chunk(&self, writing: &mut Writing, chunk: Vec<(Vec<u8>, Option<Vec<u8>>)>) -> Result<()> {
        let mut notes = Notes::new();
        let mut stored = BTreeMap::new();
        for (key, value) in chunk {
            let old = match self.tree.get(&key)? {
                // A power cut never tears a value; should it happen, the journal has it whole.
                Stored::Torn => None,
                found => found.settled(&key)?,
            };
            layout::changes(&key, old.as_deref(), value.as_deref(), &mut stored);
            notes.insert(key, old.map(Arc::from));
        }
        self.history.note(notes);
        writing.committer.commit(batch_of(stored))
    }

    fn write_checkpoint(&self, writing: &mut Writing, value: Vec<u8>) -> Result<()> {
        let key = schema::checkpoint();
        let old = self.tree.get(&key)?.settled(&key)?;
        let mut stored = BTreeMap::new();
        layout::changes(&key, old.as_deref(), Some(&value), &mut stored);
        let mut earlier = old.clone();
        for name in EARLIER_NAMES {
            let older = self.tree.own(name)?;
            if let Some(earlier) = earlier {
                stored.insert(layout::own_key(name), Some(earlier));
            }
            earlier = older;
        }
        self.history.note(Notes::from([(key, old.map(Arc::from))]));
        writing.committer.commit(batch_of(stored))
    }

    fn write_filling(&self, writing: &mut Writing) -> Result<()> {
        writing.fillings += 1;
        let half = vec![writing.fillings as u8; FILLING_BYTES / 2];
        let halves = [0, 1].map(|half| layout::own_key(&[FILLING_NAME, &[half]].concat()));
        writing.committer.commit(batch_of(halves.into_iter().map(|key| (key, Some(half.clone()))).collect()))
    }
}

fn batch_of(changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>) -> sled::Batch {
    let mut batch = sled::Batch::default();
    for (key, value) in changes {
        match value {
            Some(value) => batch.insert(key, value),
            None => batch.remove(key),
        }
    }
    batch
}

impl Index for SledIndex {
    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(SledSnapshot::new(self.tree.clone(), Arc::clone(&self.history))))
    }

    fn apply(&self, changes: &mut dyn Iterator<Item = Change<'_>>, durable: bool) -> Result<()> {
        let mut writing = self.writing.lock();
        if writing.is_failed {
            return Err(Error::io("writing the index", std::io::Error::other("an earlier write failed")));
        }
        self.history.begin();
        // Whatever fails, or panics in the iterator, leaves an apply that no snapshot must show.
        writing.is_failed = true;
        self.write(&mut writing, changes, durable)?;
        writing.is_failed = false;
        self.history.finish();
        Ok(())
    }

    fn space_ahead_bytes(&self) -> u64 {
        self.log.metadata().map_or(0, |log| (log.blocks() * 512).saturating_sub(log.len()))
    }

    fn reserve_ahead(&self, bytes: u64) -> Result<()> {
        let doing = || format!("setting aside {bytes} bytes for the index in {}", self.tree.path.display());
        let len = self.log.metadata().map_err(|error| Error::io(doing(), error))?.len();
        rustix::fs::fallocate(&self.log, rustix::fs::FallocateFlags::KEEP_SIZE, len, bytes)
            .map_err(|errno| Error::io(doing(), errno.into()))
    }

    /// Reads everything; sled has a checksum over each of its pages, and nothing to heal them from.
    fn verify_while(&self, goes_on: &dyn Fn() -> bool) -> Result<Option<u64>> {
        let mut is_whole = true;
        self.snapshot()?.range(&[], &[0xff; 16], &mut |_, _| {
            is_whole = goes_on();
            if is_whole { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(is_whole.then_some(0))
    }

    fn healed_count(&self) -> u64 {
        0
    }

    fn disk_bytes(&self) -> u64 {
        self.log.metadata().map_or(0, |log| log.len())
    }

    fn earlier_checkpoints(&self) -> Result<Vec<Vec<u8>>> {
        let mut found = Vec::new();
        for name in EARLIER_NAMES {
            found.extend(self.tree.own(name)?);
        }
        Ok(found)
    }

    fn checkpoints_kept(&self) -> usize {
        EARLIER_NAMES.len()
    }
}

impl std::fmt::Debug for SledIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SledIndex({})", self.tree.path.display())
    }
}
