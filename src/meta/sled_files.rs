//! The directory that sled keeps an index in: making it durable, mending what a kill leaves in it, a private copy to read from.
//!
//! ```text
//! conf    db    snap.*    blobs/
//! ```
//! sled syncs nothing of this at creation, and a `snap.*.generating` that a kill left makes every later open fail. `blobs` must stay
//! empty: sled never syncs what it puts there.

use super::sled_tree::guarded;
use crate::error::{Error, Result};
use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// sled's log, which holds everything.
pub(super) const LOG: &str = "db";
const CONFIGURATION: &str = "conf";
const BLOBS: &str = "blobs";
const SNAPSHOT_PREFIX: &str = "snap.";
const UNFINISHED_SUFFIX: &str = ".generating";
/// How long threads of an earlier handle of this process may still hold sled's lock.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
const LOCK_POLL: Duration = Duration::from_millis(5);

fn io<'a>(doing: &'a str, path: &'a Path) -> impl Fn(std::io::Error) -> Error + 'a {
    move |error| Error::io(format!("{doing} {}", path.display()), error)
}

fn names(directory: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(directory).map_err(io("listing", directory))?;
    entries.map(|entry| Ok(entry.map_err(io("listing", directory))?.file_name().to_string_lossy().into_owned())).collect()
}

/// Makes the file or directory durable.
pub(super) fn sync(path: &Path) -> Result<()> {
    File::open(path).and_then(|file| file.sync_all()).map_err(io("syncing", path))
}

/// Removes an index, if there is one.
pub(super) fn remove(directory: &Path) -> Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io("removing", directory)(error)),
        _ => Ok(()),
    }
}

/// Makes everything durable that opening a new index has made, and its name.
pub(super) fn sync_new(directory: &Path) -> Result<()> {
    for name in [CONFIGURATION, LOG, BLOBS] {
        sync(&directory.join(name))?;
    }
    sync(directory)?;
    directory.parent().map_or(Ok(()), sync)
}

/// An error if there is no index in `directory`: sled would make one.
pub(super) fn require(directory: &Path) -> Result<()> {
    match [CONFIGURATION, LOG].into_iter().find(|name| !directory.join(name).is_file()) {
        None => Ok(()),
        Some(name) => Err(Error::corrupt(format!("the index in {} has no file `{name}`", directory.display()))),
    }
}

/// An error when sled has put anything into files of its own.
pub(super) fn require_no_blobs(directory: &Path) -> Result<()> {
    let blobs = directory.join(BLOBS);
    match names(&blobs)?.first() {
        None => Ok(()),
        Some(name) => {
            Err(Error::corrupt(format!("sled has put a value into {}/{name}, which it does not sync", blobs.display())))
        }
    }
}

fn remove_snapshots(directory: &Path, with_finished: bool) -> Result<()> {
    for name in names(directory)? {
        if name.starts_with(SNAPSHOT_PREFIX) && (with_finished || name.ends_with(UNFINISHED_SUFFIX)) {
            let path = directory.join(name);
            std::fs::remove_file(&path).map_err(io("removing", &path))?;
        }
    }
    Ok(())
}

/// Opens or makes the sled in `directory`. Its snapshot files are only a shortcut: when it does not open with them, they go.
pub(super) fn open(directory: &Path, cache_bytes: usize) -> Result<sled::Db> {
    if directory.is_dir() {
        remove_snapshots(directory, false)?;
    }
    match open_once(directory, cache_bytes) {
        Err(Error::Corrupt(reason)) => {
            tracing::warn!("{reason}; trying again without sled's snapshots");
            remove_snapshots(directory, true)?;
            open_once(directory, cache_bytes)
        }
        opened => opened,
    }
}

fn open_once(directory: &Path, cache_bytes: usize) -> Result<sled::Db> {
    let configuration = sled::Config::new().path(directory).cache_capacity(cache_bytes as u64).flush_every_ms(None);
    let begun = Instant::now();
    loop {
        match guarded(directory, "opening the index", || configuration.open()) {
            Err(Error::Io { source, .. })
                if source.to_string().contains("could not acquire lock") && begun.elapsed() < LOCK_PATIENCE =>
            {
                std::thread::sleep(LOCK_POLL);
            }
            opened => return opened,
        }
    }
}

/// Copies the index in `directory`, which nobody writes to, into a directory for temporary files. sled cannot open anything without
/// writing to it.
pub(super) fn private_copy(directory: &Path) -> Result<PathBuf> {
    let copy = std::env::temp_dir().join(format!("sumfs-index-{}", uuid::Uuid::new_v4()));
    let made = std::fs::DirBuilder::new().mode(0o700).create(&copy).and_then(|()| std::fs::create_dir(copy.join(BLOBS)));
    made.map_err(io("making the directory", &copy))?;
    for name in names(directory)? {
        let (from, to) = (directory.join(&name), copy.join(&name));
        if name.ends_with(UNFINISHED_SUFFIX) || !from.is_file() {
            continue;
        }
        if let Err(error) = std::fs::copy(&from, &to) {
            remove(&copy)?;
            return Err(Error::io(format!("copying {} to {}, to read it", from.display(), to.display()), error));
        }
    }
    Ok(copy)
}
