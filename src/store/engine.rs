//! Which engine keeps a store's index, and opening it. The superblock says which: the feature bit `sled`, or redb.

use super::Disks;
use crate::disk::superblock::{INCOMPAT_SLED, Superblock};
use crate::error::{Error, Result};
use crate::meta::index::Index;
use crate::meta::redb_index::RedbIndex;
#[cfg(feature = "sled")]
use crate::meta::sled_index::SledIndex;
use std::path::Path;
use std::sync::Arc;

/// An index engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// The default.
    #[default]
    Redb,
    /// The second one.
    Sled,
}

impl Engine {
    /// The engine of the store with this superblock.
    pub fn of(superblock: &Superblock) -> Engine {
        if superblock.incompat & INCOMPAT_SLED == 0 { Engine::Redb } else { Engine::Sled }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Redb => "redb",
            Engine::Sled => "sled",
        }
    }

    /// Its feature bits in the superblock.
    pub(super) fn incompat(self) -> u64 {
        match self {
            Engine::Redb => 0,
            Engine::Sled => INCOMPAT_SLED,
        }
    }
}

impl std::str::FromStr for Engine {
    type Err = Error;

    fn from_str(name: &str) -> Result<Engine> {
        let found = [Engine::Redb, Engine::Sled].into_iter().find(|engine| engine.name() == name);
        found.ok_or_else(|| Error::usage(format!("{name} is no index engine; there are redb and sled")))
    }
}

/// Opens the index of a store. `read_only`: no byte of it is changed. sled cannot promise that for itself, so then it gets a private
/// copy in the directory for temporary files. When sled's does not open, the error names the way out.
pub fn open_index(disks: &Disks, cache_bytes: usize, read_only: bool) -> Result<Arc<dyn Index>> {
    match &disks.sled {
        None => Ok(Arc::new(RedbIndex::open(disks.index.clone(), cache_bytes, read_only)?)),
        Some(directory) => open_sled(directory, cache_bytes, read_only).map_err(|error| with_way_out(error, directory)),
    }
}

fn with_way_out(error: Error, directory: &Path) -> Error {
    let Error::Corrupt(reason) = error else { return error };
    let store = directory.parent().unwrap_or(directory).display();
    Error::Corrupt(format!("{reason}; make the index anew from the metadata image with: sumfs index rebuild {store}"))
}

/// Makes the index of a store anew.
pub(super) fn create_index(disks: &Disks, cache_bytes: usize) -> Result<Arc<dyn Index>> {
    match &disks.sled {
        None => Ok(Arc::new(RedbIndex::create(disks.index.clone(), cache_bytes)?)),
        Some(directory) => create_sled(directory, cache_bytes),
    }
}

#[cfg(feature = "sled")]
fn open_sled(directory: &Path, cache_bytes: usize, read_only: bool) -> Result<Arc<dyn Index>> {
    Ok(Arc::new(if read_only { SledIndex::open_copy(directory, cache_bytes)? } else { SledIndex::open(directory, cache_bytes)? }))
}

#[cfg(feature = "sled")]
pub(super) fn create_sled(directory: &Path, cache_bytes: usize) -> Result<Arc<dyn Index>> {
    Ok(Arc::new(SledIndex::create(directory, cache_bytes)?))
}

#[cfg(not(feature = "sled"))]
fn open_sled(directory: &Path, _cache_bytes: usize, _read_only: bool) -> Result<Arc<dyn Index>> {
    Err(without_sled(directory))
}

#[cfg(not(feature = "sled"))]
pub(super) fn create_sled(directory: &Path, _cache_bytes: usize) -> Result<Arc<dyn Index>> {
    Err(without_sled(directory))
}

#[cfg(not(feature = "sled"))]
fn without_sled(directory: &Path) -> Error {
    Error::usage(format!("{} is an index of sled, and this sumfs was built without it", directory.display()))
}
