//! The check of the store while it is in use.

use super::Filesystem;
use crate::error::Result;
use crate::verify::check::Report;
use crate::verify::online;

impl Filesystem {
    /// Checks the metadata as the last commit left it. Waits for no one and stops no one; `progress` hears steps done and all steps.
    pub fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Report> {
        let superblock = self.superblock.lock().clone();
        online::check_online(&self.meta, &superblock, progress)
    }
}
