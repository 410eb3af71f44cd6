//! Moving the index of a store that is not mounted from one engine to the other.
//!
//! Each engine has its own name in the store, so the new index is built beside the old one, made durable and compared with it. The
//! superblock says which of the two counts: writing it is the switch. Only then does the old one go. Whoever is killed on the way
//! leaves a store with one whole index, the one that the superblock names; what there is of the other goes with the next conversion.
//!
//! The journal stays as it is. The new index has the checkpoint record of the old one, so a mount brings back the same transactions.

use super::create::sync_directory;
use super::directory::{INDEX_FILE, SLED_DIRECTORY, no_index};
use super::engine::{self, Engine, open_index};
use super::host::unsafe_for_sled;
use super::{Disks, OpenOptions, StoreDirectory};
use crate::disk::Disk;
use crate::disk::file::{FileDisk, OpenMode};
use crate::error::{Error, Result};
use crate::meta::index::{Change, Index, Snapshot};
use crate::meta::schema;
use std::hash::{DefaultHasher, Hasher};
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The cache of each of the two indexes.
const INDEX_CACHE_BYTES: usize = 64 << 20;
/// Keys and values that are applied at once.
const BATCH_BYTES: usize = 4 << 20;
/// Behind every key.
const END: [u8; 16] = [0xff; 16];

/// What a conversion did.
#[derive(Clone, Copy, Debug)]
pub struct Converted {
    /// Which engine kept the index before; the wanted one: nothing was to be done.
    pub before: Engine,
    /// Records in the new index.
    pub records: u64,
    /// Bytes of the old index and of the new one.
    pub bytes: (u64, u64),
}

/// Told how many records of how many are copied.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// How many records, and what they hash to all together.
type Digest = (u64, u64);

impl StoreDirectory {
    /// Has `engine` keep the index of the store in the directory `path` from now on.
    pub fn convert_index(path: &Path, engine: Engine, wait_for_lock: Duration, progress: Progress<'_>) -> Result<Converted> {
        let options = OpenOptions {
            wait_for_lock: Some(wait_for_lock),
            allow_unsafe_host: engine == Engine::Redb,
            ..OpenOptions::default()
        };
        let store = StoreDirectory::open_with(path, options)?;
        if let (Engine::Sled, Some(host)) = (engine, unsafe_for_sled(store.path())) {
            return Err(Error::usage(format!(
                "{} lies on {host}, where an index of sled does not survive power cuts; leave the index as it is, or copy the store \
                 to a local ext4 or xfs first",
                store.path().display()
            )));
        }
        let before = Engine::of(store.superblock());
        let other = if before == Engine::Redb { Engine::Sled } else { Engine::Redb };
        // What an earlier conversion left behind.
        remove(store.path(), other)?;
        if before == engine {
            return Ok(Converted { before, records: 0, bytes: (0, 0) });
        }
        let built = build(&store, engine, progress);
        let (records, bytes) = match built {
            Ok(built) => built,
            Err(error) => {
                remove(store.path(), engine)?;
                return Err(error);
            }
        };
        let mut superblock = store.superblock().clone();
        superblock.incompat = superblock.incompat & !Engine::Sled.incompat() | engine.incompat();
        superblock.write(&*store.disks().superblock)?;
        remove(store.path(), before)?;
        Ok(Converted { before, records, bytes })
    }
}

fn name_of(engine: Engine) -> &'static str {
    match engine {
        Engine::Redb => INDEX_FILE,
        Engine::Sled => SLED_DIRECTORY,
    }
}

/// Removes the index of `engine`, if there is one.
fn remove(store: &Path, engine: Engine) -> Result<()> {
    let path = store.join(name_of(engine));
    let removed = match engine {
        Engine::Redb => std::fs::remove_file(&path),
        Engine::Sled => std::fs::remove_dir_all(&path),
    };
    match removed {
        Ok(()) => sync_directory(store),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io(format!("removing {}", path.display()), error)),
    }
}

/// Builds the new index, durable and the same as the old one; the number of records, and the bytes of both.
fn build(store: &StoreDirectory, engine: Engine, progress: Progress<'_>) -> Result<(u64, (u64, u64))> {
    let disks = store.disks();
    // sled must write to open what it has; redb need not.
    let old = open_index(disks, INDEX_CACHE_BYTES, disks.sled.is_none())?;
    let snapshot = old.snapshot()?;
    let wanted = digest(&*snapshot)?;
    if wanted.0 == 0 {
        return Err(Error::corrupt("the index is empty"));
    }
    let new = engine::create_index(&new_disks(store, engine)?, INDEX_CACHE_BYTES)?;
    copy(&*snapshot, &*new, wanted.0, progress)?;
    repeat_checkpoint(&*snapshot, &*new)?;
    let found = digest(&*new.snapshot()?)?;
    if found != wanted {
        return Err(Error::corrupt(format!(
            "the new index: it has {} records, and not the {} of the old one",
            found.0, wanted.0
        )));
    }
    let bytes = (old.disk_bytes(), new.disk_bytes());
    sync_directory(store.path())?;
    Ok((wanted.0, bytes))
}

/// The disks of the store with the index of `engine`.
fn new_disks(store: &StoreDirectory, engine: Engine) -> Result<Disks> {
    let path = store.path().join(name_of(engine));
    let (index, sled): (Arc<dyn Disk>, Option<PathBuf>) = match engine {
        Engine::Redb => {
            let name = path.display().to_string();
            let disk = FileDisk::open_at(store.directory(), Path::new(INDEX_FILE), name, OpenMode::Create, false)?;
            (Arc::new(disk), None)
        }
        Engine::Sled => (no_index(), Some(path)),
    };
    Ok(Disks { index, sled, ..store.disks().clone() })
}

fn digest(snapshot: &dyn Snapshot) -> Result<Digest> {
    let (mut records, mut hasher) = (0, DefaultHasher::new());
    snapshot.range(&[], &END, &mut |key, value| {
        records += 1;
        for bytes in [key, value] {
            hasher.write_usize(bytes.len());
            hasher.write(bytes);
        }
        ControlFlow::Continue(())
    })?;
    Ok((records, hasher.finish()))
}

fn copy(from: &dyn Snapshot, to: &dyn Index, total: u64, progress: Progress<'_>) -> Result<()> {
    let (mut batch, mut bytes, mut done) = (Vec::<(Vec<u8>, Vec<u8>)>::new(), 0, 0);
    let mut outcome: Result<()> = Ok(());
    let mut flush = |batch: &mut Vec<(Vec<u8>, Vec<u8>)>| -> Result<()> {
        let mut changes = batch.iter().map(|(key, value)| -> Change<'_> { (key, Some(value)) });
        to.apply(&mut changes, false)?;
        done += batch.len() as u64;
        batch.clear();
        progress(done, total);
        Ok(())
    };
    from.range(&[], &END, &mut |key, value| {
        bytes += key.len() + value.len();
        batch.push((key.to_vec(), value.to_vec()));
        if bytes >= BATCH_BYTES {
            bytes = 0;
            outcome = flush(&mut batch);
        }
        if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    outcome?;
    flush(&mut batch)
}

/// Makes everything durable, and the checkpoint known as all those that the engine may fall back to: the journal need not reach back
/// behind it.
fn repeat_checkpoint(from: &dyn Snapshot, to: &dyn Index) -> Result<()> {
    let key = schema::checkpoint();
    let value = from.get(&key)?.ok_or_else(|| Error::corrupt("the index has no checkpoint record"))?;
    for _ in 0..=to.checkpoints_kept() {
        to.apply(&mut std::iter::once((key.as_slice(), Some(value.as_slice()))), true)?;
    }
    Ok(())
}
