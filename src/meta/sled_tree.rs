//! sled's calls, guarded: its errors and panics become ours. Reads only; `sled_commit.rs` writes.

use super::sled_records::{self, Stored};
use crate::error::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

const READING: &str = "reading the index";

/// An open sled and where it is.
#[derive(Clone)]
pub(super) struct Tree {
    pub(super) db: sled::Db,
    pub(super) path: PathBuf,
}

/// Some records in order, and whether there is nothing behind them.
pub(super) struct Records {
    pub(super) records: Vec<(Vec<u8>, Stored)>,
    pub(super) is_end: bool,
}

impl Tree {
    /// The value of something of our own.
    pub(super) fn own(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let key = sled_records::own_key(name);
        guarded(&self.path, READING, || Ok(self.db.get(key)?.map(|value| value.to_vec())))
    }

    fn piece(&self, key: &[u8]) -> Result<Option<sled::IVec>> {
        guarded(&self.path, READING, || self.db.get(key))
    }

    /// The value of `key`.
    pub(super) fn get(&self, key: &[u8]) -> Result<Stored> {
        match self.piece(&sled_records::record_key(key))? {
            Some(stored) => sled_records::assemble(key, &stored, |key| self.piece(key)),
            None => Ok(Stored::Missing),
        }
    }

    /// At most `most` records of `from <= key < to`.
    pub(super) fn records(&self, from: &[u8], to: &[u8], most: usize) -> Result<Records> {
        let (first, end) = (sled_records::record_key(from), sled_records::record_key(to));
        let found = guarded(&self.path, READING, || self.db.range(first..end).take(most).collect::<sled::Result<Vec<_>>>())?;
        let is_end = found.len() < most;
        let records = found.into_iter().map(|(stored_key, stored)| {
            let key = sled_records::key_of(&stored_key).to_vec();
            let value = sled_records::assemble(&key, &stored, |key| self.piece(key))?;
            Ok((key, value))
        });
        Ok(Records { records: records.collect::<Result<_>>()?, is_end })
    }

    /// The last record of `from <= key < to`.
    pub(super) fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Vec<u8>, Stored)>> {
        let (first, end) = (sled_records::record_key(from), sled_records::record_key(to));
        let Some((key, stored)) = guarded(&self.path, READING, || self.db.range(first..end).next_back().transpose())? else {
            return Ok(None);
        };
        let key = sled_records::key_of(&key).to_vec();
        let value = sled_records::assemble(&key, &stored, |key| self.piece(key))?;
        Ok(Some((key, value)))
    }
}

/// Runs a step of sled.
pub(super) fn guarded<T>(path: &Path, doing: &str, step: impl FnOnce() -> sled::Result<T>) -> Result<T> {
    let doing = || format!("{doing} in {}", path.display());
    match catch_unwind(AssertUnwindSafe(step)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(sled::Error::Io(error))) => Err(Error::io(doing(), error)),
        Ok(Err(error)) => Err(Error::corrupt(format!("{}: {error}", doing()))),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Err(Error::corrupt(format!("{}: sled gave up: {}", doing(), text.unwrap_or("a panic"))))
        }
    }
}
