//! Reading the fields of a record, one behind the other, without trust: in lengths, nor in numbers, which decoders bound here so that nobody
//! who adds to them later has to think of a wrap.

use crate::error::{Error, Result};
use crate::units::NUMBER_MAX;

/// Reads fields in order; every step checks the length.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(super) fn new(what: &'static str, bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes, what }
    }

    pub(super) fn damaged(&self) -> Error {
        Error::corrupt(format!("{} record has a wrong layout", self.what))
    }

    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let (head, tail) = self.rest.split_at_checked(count).ok_or_else(|| self.damaged())?;
        self.rest = tail;
        Ok(head)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.bytes(N)?.try_into().map_err(|_| self.damaged())
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// A number that is at most `most`.
    pub(super) fn bounded(&mut self, most: u64) -> Result<u64> {
        let number = self.u64()?;
        if number <= most { Ok(number) } else { Err(self.damaged()) }
    }

    /// A number that counts up, or an offset.
    pub(super) fn number(&mut self) -> Result<u64> {
        self.bounded(NUMBER_MAX)
    }

    /// What was not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn end(self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.damaged()) }
    }
}
