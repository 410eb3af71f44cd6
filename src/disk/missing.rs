//! What stands for a device that was not found, in a mount that was told to do without it: every transfer is an error.

use super::Disk;
use crate::error::{Error, Result};

/// A device that is not there.
#[derive(Debug)]
pub struct MissingDisk {
    id: u32,
    name: String,
    len: u64,
}

impl MissingDisk {
    /// `name` for messages, `len` in bytes as the store knows it.
    pub fn new(id: u32, name: impl Into<String>, len: u64) -> MissingDisk {
        MissingDisk { id, name: name.into(), len }
    }

    fn refuse<T>(&self) -> Result<T> {
        Err(Error::SetAside { device: self.id })
    }
}

impl Disk for MissingDisk {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, _offset: u64, _into: &mut [u8]) -> Result<()> {
        self.refuse()
    }

    fn write_at(&self, _offset: u64, _from: &[u8]) -> Result<()> {
        self.refuse()
    }

    fn flush(&self) -> Result<()> {
        self.refuse()
    }

    fn set_len(&self, _len: u64) -> Result<()> {
        self.refuse()
    }

    fn allocate(&self, _offset: u64, _len: u64) -> Result<()> {
        self.refuse()
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        self.refuse()
    }

    fn bypasses_host_cache(&self) -> bool {
        true
    }

    fn is_missing(&self) -> bool {
        true
    }
}
