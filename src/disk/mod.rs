//! Devices as the file system sees them: one trait, four implementations (file or block device, memory, and
//! in the tests simulated and failing ones). Everything that must survive a power cut (devices, journal, index,
//! superblock) goes through it, so that one simulated disk can cut the power of all of them together.

pub mod buffer;
pub mod file;
pub mod label;
pub mod memory;
pub mod missing;
pub mod over;
pub mod superblock;

use crate::error::Result;
use std::fmt::Debug;

/// A device. The contract of every implementation and every test double:
/// - a write is visible to later reads at once, durable only after a later `flush` returned;
/// - before that any subset of the written 4 KiB blocks may survive a crash, each block whole or not at all
///   (a torn block is a fault that checksums must find);
/// - an error leaves the range in an unknown state.
///
/// Offsets and lengths are bytes. Data devices are always addressed in whole blocks from aligned buffers.
pub trait Disk: Send + Sync + Debug {
    /// For messages: a path or a role.
    fn name(&self) -> &str;
    /// Length in bytes.
    fn len(&self) -> Result<u64>;
    /// Fills `into` from `offset`; an error when that passes the end.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()>;
    /// Writes all of `from` at `offset`.
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()>;
    /// Writes the slices one after another from `offset` on, in as few calls as the system allows.
    fn write_vectored_at(&self, offset: u64, slices: &[&[u8]]) -> Result<()> {
        let mut at = offset;
        for slice in slices {
            self.write_at(at, slice)?;
            at += slice.len() as u64;
        }
        Ok(())
    }
    /// Fills the slices one after another from `offset` on, in as few calls as the system allows.
    fn read_vectored_at(&self, offset: u64, slices: &mut [&mut [u8]]) -> Result<()> {
        let mut at = offset;
        for slice in slices {
            self.read_at(at, slice)?;
            at += slice.len() as u64;
        }
        Ok(())
    }
    /// Makes everything written before durable.
    fn flush(&self) -> Result<()>;
    /// Changes the length; new bytes read as zeros. Block devices refuse.
    fn set_len(&self, len: u64) -> Result<()>;
    /// Makes the host set real space aside for the range, so that writing to it cannot meet ENOSPC. The contents are kept.
    fn allocate(&self, offset: u64, len: u64) -> Result<()>;
    /// Tells the host that the range's contents are of no use any more. Best effort.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;
    /// Bytes that the host could still set aside for this device; None when it has no such limit (block devices).
    fn host_free_bytes(&self) -> Option<u64> {
        None
    }
    /// Does writing here bypass the host's page cache?
    fn bypasses_host_cache(&self) -> bool {
        false
    }
    /// Stands for a device that was not found.
    fn is_missing(&self) -> bool {
        false
    }
    /// True when there is nothing.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }
}
