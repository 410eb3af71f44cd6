//! A disk over another one, for tests: it says only what it does otherwise, and all else goes to the one below.

use super::Disk;
use crate::error::Result;
use std::fmt::Debug;

/// Implementing this makes a [`Disk`]. Vectored calls come as single ones, so that they pass here too; what the host has to do with the
/// disk below is not seen.
pub trait OverDisk: Send + Sync + Debug {
    /// The disk below.
    fn below(&self) -> &dyn Disk;

    /// As [`Disk::read_at`].
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.below().read_at(offset, into)
    }

    /// As [`Disk::write_at`].
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.below().write_at(offset, from)
    }

    /// As [`Disk::flush`].
    fn flush(&self) -> Result<()> {
        self.below().flush()
    }
}

impl<T: OverDisk> Disk for T {
    fn name(&self) -> &str {
        self.below().name()
    }

    fn len(&self) -> Result<u64> {
        self.below().len()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        OverDisk::read_at(self, offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        OverDisk::write_at(self, offset, from)
    }

    fn flush(&self) -> Result<()> {
        OverDisk::flush(self)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.below().set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.below().allocate(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.below().discard(offset, len)
    }
}
