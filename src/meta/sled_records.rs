//! How a record lies in sled's one tree.
//!
//! ```text
//! 00 name                 our own: the format record, earlier checkpoints, filling
//! 01 key                  a record: 00 value, or 01 length (u32 LE) when the value is in pieces
//! 02 key number (u16 BE)  a piece of the value of `key`
//! ```
//! sled puts pages of large values into files of their own that it never syncs; pieces keep clear of that. The number at the end has
//! a fixed length, so that no piece of one key can be taken for one of another.

use crate::error::{Error, Result};
use std::collections::BTreeMap;

const OWN: u8 = 0;
const RECORD: u8 = 1;
const PIECE: u8 = 2;
const WHOLE: u8 = 0;
const IN_PIECES: u8 = 1;
/// Largest value that is stored whole, and largest piece.
const PIECE_BYTES_MAX: usize = 4000;

/// A value as it was found.
#[derive(Debug)]
pub(super) enum Stored {
    /// No such key.
    Missing,
    /// The value.
    Whole(Vec<u8>),
    /// Pieces are missing or too many: either another thread is changing it at this moment, or it is damaged.
    Torn,
}

impl Stored {
    /// The value, when nobody was changing it.
    pub(super) fn settled(self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self {
            Stored::Missing => Ok(None),
            Stored::Whole(value) => Ok(Some(value)),
            Stored::Torn => Err(Error::corrupt(format!("a value of {} bytes of key in sled is not whole", key.len()))),
        }
    }
}

fn prefixed(prefix: u8, key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len() + 3);
    out.push(prefix);
    out.extend_from_slice(key);
    out
}

/// The key in sled of something of our own.
pub(super) fn own_key(name: &[u8]) -> Vec<u8> {
    prefixed(OWN, name)
}

/// The key in sled of the record of `key`.
pub(super) fn record_key(key: &[u8]) -> Vec<u8> {
    prefixed(RECORD, key)
}

/// The key of a record from its key in sled.
pub(super) fn key_of(record_key: &[u8]) -> &[u8] {
    record_key.get(1..).unwrap_or_default()
}

fn piece_key(key: &[u8], number: u16) -> Vec<u8> {
    let mut out = prefixed(PIECE, key);
    out.extend_from_slice(&number.to_be_bytes());
    out
}

/// How many pieces a value of `bytes` has.
fn pieces(bytes: usize) -> u16 {
    if bytes <= PIECE_BYTES_MAX { 0 } else { u16::try_from(bytes.div_ceil(PIECE_BYTES_MAX)).unwrap_or(u16::MAX) }
}

/// The value whose record in sled is `stored`; `piece` reads what has a key.
pub(super) fn assemble<P: AsRef<[u8]>>(
    key: &[u8],
    stored: &[u8],
    mut piece: impl FnMut(&[u8]) -> Result<Option<P>>,
) -> Result<Stored> {
    let length = match stored.split_first() {
        Some((&WHOLE, value)) => return Ok(Stored::Whole(value.to_vec())),
        Some((&IN_PIECES, length)) => <[u8; 4]>::try_from(length).map_or(0, u32::from_le_bytes) as usize,
        _ => return Ok(Stored::Torn),
    };
    let mut value = Vec::new();
    for number in 0..pieces(length) {
        match piece(&piece_key(key, number))? {
            Some(bytes) => value.extend_from_slice(bytes.as_ref()),
            None => return Ok(Stored::Torn),
        }
    }
    Ok(if value.len() == length && length > 0 { Stored::Whole(value) } else { Stored::Torn })
}

/// What to change in sled so that `key` has `value` and not `old` any more.
pub(super) fn changes(key: &[u8], old: Option<&[u8]>, value: Option<&[u8]>, out: &mut BTreeMap<Vec<u8>, Option<Vec<u8>>>) {
    let before = pieces(old.map_or(0, <[u8]>::len));
    let after = pieces(value.map_or(0, <[u8]>::len));
    for number in after..before {
        out.insert(piece_key(key, number), None);
    }
    let record = value.map(|value| {
        if after == 0 {
            return prefixed(WHOLE, value);
        }
        for (number, bytes) in (0..after).zip(value.chunks(PIECE_BYTES_MAX)) {
            out.insert(piece_key(key, number), Some(bytes.to_vec()));
        }
        prefixed(IN_PIECES, &u32::try_from(value.len()).unwrap_or(u32::MAX).to_le_bytes())
    });
    out.insert(record_key(key), record);
}

/// Is `value` one that can be stored?
pub(super) fn fits(key: &[u8], value: Option<&[u8]>) -> bool {
    key.len() <= 1024 && value.is_none_or(|value| value.len() <= usize::from(u16::MAX) * PIECE_BYTES_MAX)
}
