//! Reading files.

use super::types::ReadFlags;
use super::{Filesystem, ReadData};
use crate::cache::CachedFile;
use crate::error::{Error, Reason, Result};
use crate::extent::load::whole_blocks;
use crate::lock::{NoWaiting, Wait};
use crate::units::InodeNumber;
use crate::verify::path_of;
use std::ops::Range;
use std::sync::Arc;

/// Most damaged blocks that are remembered as reported.
const REPORTED_MAX: usize = 100_000;

impl Filesystem {
    /// Reads up to `size` bytes at `offset`; fewer only at the end of the file.
    pub fn read(&self, inode: InodeNumber, offset: u64, size: usize, flags: ReadFlags, wait: Wait) -> Result<ReadData> {
        self.read_with(inode, (offset, size), flags, wait, |file, range| self.cache.read(file, range, !flags.direct, wait))
    }

    /// The same into memory of the caller's, of the size to be read and then up to a whole block. How many bytes were read.
    pub fn read_into(
        &self,
        inode: InodeNumber,
        (offset, size): (u64, usize),
        flags: ReadFlags,
        wait: Wait,
        target: &mut [u8],
    ) -> Result<usize> {
        let read = |file: &_, range| self.cache.read_into(file, range, !flags.direct, wait, target);
        self.read_with(inode, (offset, size), flags, wait, read)
    }

    fn read_with<T>(
        &self,
        inode: InodeNumber,
        (offset, size): (u64, usize),
        flags: ReadFlags,
        wait: Wait,
        read: impl FnOnce(&Arc<CachedFile>, Range<u64>) -> Result<T>,
    ) -> Result<T> {
        if wait == Wait::Never && !self.options.nowait {
            return Err(Error::WouldBlock(Reason::Disabled));
        }
        let _no_waiting = NoWaiting::during(wait);
        let inode = self.inode_for_data(inode, wait)?;
        let file = inode.regular()?;
        let _range = (wait == Wait::Allowed).then(|| {
            let whole = whole_blocks(offset..offset.saturating_add(size as u64));
            inode.ranges.lock(whole, true)
        });
        let cut = offset..offset.saturating_add(size as u64).min(file.size()).max(offset);
        let result = read(file, cut);
        match &result {
            Ok(_) if !flags.no_atime && size > 0 => self.note_access(&inode),
            Ok(_) => {}
            Err(error) => self.report_damage(error),
        }
        result
    }

    /// One line per damaged block, however often it is read.
    fn report_damage(&self, error: &Error) {
        if let Error::Integrity { address, inode, expected, found, device, .. } = error {
            let is_new = {
                let mut reported = self.reported.lock();
                reported.len() < REPORTED_MAX && reported.insert(address.0)
            };
            if is_new {
                let path = path_of(&self.meta, *inode).unwrap_or_else(|| "(no name)".into());
                tracing::error!("{error}; path {path}");
                self.note_damage(*address, *expected, Some(*found), *device);
            }
        }
    }
}
