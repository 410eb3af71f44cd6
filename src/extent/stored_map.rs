//! File maps as they are stored. A record that is damaged costs its own range: it reads as an error, and is gone when the range is
//! written anew or removed.

use crate::error::{Error, Result};
use crate::meta::records::{self, MapRecord};
use crate::meta::schema::Key;
use crate::meta::{Metadata, schema};
use crate::units::{BLOCK_SIZE, EXTENT_BYTES_MAX, FILE_SIZE_MAX, InodeNumber};

/// Records read at once.
const RECORDS_AT_ONCE: usize = 4096;

/// A stored range of a file map: where it begins, and what it is. It ends within the largest file.
fn parse_map(key: &[u8], record: &[u8]) -> Result<(u64, MapRecord)> {
    let Some(schema::Parsed::Map { offset, inode }) = schema::parse(key) else {
        return Err(Error::corrupt("a file map key with a wrong layout"));
    };
    let record = MapRecord::decode(record)?;
    let is_inside = offset.checked_add(record.length()).is_some_and(|end| end <= FILE_SIZE_MAX);
    if offset % BLOCK_SIZE == 0 && is_inside {
        return Ok((offset, record));
    }
    Err(Error::corrupt(format!("the file map of inode {inode} has {} bytes at {offset}", record.length())))
}

/// The offsets and records of `from <= key < to`, in order. `size`: of the file.
pub(super) fn read_records(
    meta: &Metadata,
    mut from: Key,
    to: &[u8],
    size: u64,
    found: &mut Vec<(u64, MapRecord)>,
) -> Result<()> {
    loop {
        let (items, next) = meta.scan_sealed(&from, to, RECORDS_AT_ONCE)?;
        for (key, value) in items {
            let (offset, record) = sound(meta, &key, &value, size)?;
            if found.last().is_some_and(|(before, last): &(u64, MapRecord)| before + last.length() > offset) {
                return Err(Error::corrupt(format!("the file map has two ranges at {offset}, key {}", key.escape_ascii())));
            }
            found.push((offset, record));
        }
        match next {
            Some(next) => from = next,
            None => return Ok(()),
        }
    }
}

/// The last range that begins before `end`. `size`: of the file.
pub fn last_range(meta: &Metadata, inode: InodeNumber, end: u64, size: u64) -> Result<Option<(u64, MapRecord)>> {
    let found = meta.last_sealed(&schema::map(inode, 0), &schema::map(inode, end))?;
    found.map(|(key, value)| sound(meta, &key, &value, size)).transpose()
}

/// The range that a stored record says, or what stands for a damaged one.
fn sound(meta: &Metadata, key: &[u8], value: &[u8], size: u64) -> Result<(u64, MapRecord)> {
    match records::open(key, value) {
        Ok(record) => parse_map(key, record),
        Err(Error::Corrupt(reason)) => damaged(meta, key, size, &reason),
        Err(error) => Err(error),
    }
}

/// What stands for a damaged record: a range without data, as long as one with data can be.
fn damaged(meta: &Metadata, key: &[u8], size: u64, reason: &str) -> Result<(u64, MapRecord)> {
    let Some(schema::Parsed::Map { offset, inode }) = schema::parse(key).filter(|_| size <= FILE_SIZE_MAX) else {
        return Err(Error::corrupt("a file map key with a wrong layout"));
    };
    if !offset.is_multiple_of(BLOCK_SIZE) || offset >= FILE_SIZE_MAX {
        return Err(Error::corrupt(reason.to_owned()));
    }
    let most = EXTENT_BYTES_MAX.min(size.saturating_sub(offset)).max(1);
    let next = meta.first_key(&schema::map(inode, offset + 1), &schema::map(inode, offset + most))?;
    let length = match next.as_deref().and_then(schema::parse) {
        Some(schema::Parsed::Map { offset: next, .. }) => next - offset,
        _ => most,
    };
    tracing::warn!("{reason}: bytes {offset} to {} of inode {inode} are lost and read as errors", offset + length);
    Ok((offset, MapRecord::lost(length)))
}
