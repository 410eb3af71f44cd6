//! Reading files.

use super::types::ReadFlags;
use super::{Filesystem, ReadData};
use crate::error::{Error, Reason, Result};
use crate::extent::load::whole_blocks;
use crate::lock::{NoWaiting, Wait};
use crate::units::InodeNumber;
use crate::verify::path_of;

/// Most damaged blocks that are remembered as reported.
const REPORTED_MAX: usize = 100_000;

impl Filesystem {
    /// Reads up to `size` bytes at `offset`; fewer only at the end of the file.
    pub fn read(&self, inode: InodeNumber, offset: u64, size: usize, flags: ReadFlags, wait: Wait) -> Result<ReadData> {
        if wait == Wait::Never && !self.options.nowait {
            return Err(Error::WouldBlock(Reason::Disabled));
        }
        let _no_waiting = NoWaiting::during(wait);
        let inode = self.inode_for_data(inode, wait)?;
        let file = inode.regular()?;
        let cut = || offset..offset.saturating_add(size as u64).min(file.size()).max(offset);
        let data = match wait {
            Wait::Never => self.cache.read(file, cut(), !flags.direct, Wait::Never),
            Wait::Allowed => {
                let whole = whole_blocks(offset..offset.saturating_add(size as u64));
                let _range = inode.ranges.lock(whole, true);
                self.cache.read(file, cut(), !flags.direct, Wait::Allowed)
            }
        };
        match &data {
            Ok(_) if !flags.no_atime && size > 0 => self.note_access(&inode),
            Ok(_) => {}
            Err(error) => self.report_damage(error),
        }
        data
    }

    /// One line per damaged block, however often it is read.
    fn report_damage(&self, error: &Error) {
        if let Error::Integrity { address, inode, .. } = error {
            let is_new = {
                let mut reported = self.reported.lock();
                reported.len() < REPORTED_MAX && reported.insert(address.0)
            };
            if is_new {
                let path = path_of(&self.meta, *inode).unwrap_or_else(|| "(no name)".into());
                tracing::error!("{error}; path {path}");
            }
        }
    }
}
