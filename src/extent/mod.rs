//! Extents: from bytes of a file to checksummed blocks and back.
//!
//! Writeback hands frozen bytes to [`store`], which allocates, checksums, writes and enters the new range into the file's map;
//! [`load`] reads and verifies (D4). A finished range is in the map at once (readers see it) and in the metadata when the next
//! commit collects it, so a crash shows old data or new data, never a mix within a block (D1, D2).

pub mod checksum;
pub mod collect;
pub mod load;
pub mod map;
mod rescue;
mod share;
pub mod store;
pub mod stored_map;
mod stripe;
mod windows;

pub use load::{Piece, ReadOrder};
pub use map::{Dropped, FileExtents};

use crate::error::Result;
use crate::lock::{Rank, RankedMutex};
use crate::meta::{Batch, Metadata, schema};
use crate::space::Space;
use crate::stats::Stats;
use crate::units::InodeNumber;
use std::sync::Arc;

/// What the extent layer works with.
#[derive(Debug)]
pub struct Extents {
    /// Metadata.
    pub meta: Arc<Metadata>,
    /// Space.
    pub space: Arc<Space>,
    /// Checksums.
    pub checksummer: checksum::Checksummer,
    /// Counters.
    pub stats: Arc<Stats>,
    /// In which order large reads are verified.
    pub read_order: ReadOrder,
}

/// One file as this layer sees it.
#[derive(Debug)]
pub struct ExtentFile {
    /// Its inode.
    pub inode: InodeNumber,
    /// Its map; rank Extents.
    pub map: RankedMutex<FileExtents>,
    /// Where its last writes went; a leaf but for the lock of the space.
    pub(crate) windows: crate::sync::Mutex<windows::Windows>,
}

impl ExtentFile {
    /// A file with this map.
    pub fn new(map: FileExtents) -> ExtentFile {
        ExtentFile { inode: map.inode(), map: RankedMutex::new(Rank::Extents, map), windows: crate::sync::Mutex::default() }
    }
}

impl Extents {
    /// Opens one more group: the host allocates it, its record goes into the running transaction. False when there is none; an
    /// error when the host has no room.
    pub fn open_group(&self) -> Result<bool> {
        let Some((group, _opening)) = self.space.prepare_group()? else { return Ok(false) };
        let mut batch = Batch::new();
        batch.put(schema::group(group.number), group.record.encode());
        self.meta.append(batch)?;
        self.space.add_group(&group)?;
        Ok(true)
    }

    /// Gives back what a change of a map set free.
    pub fn release(&self, dropped: Dropped) -> Result<()> {
        if dropped.promised_blocks > 0 {
            self.space.unpromise(dropped.promised_blocks);
        }
        if !dropped.fresh.is_empty() {
            self.space.free(dropped.fresh)?;
        }
        Ok(())
    }
}
