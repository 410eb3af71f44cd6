//! An unchanging view of sled: what it says now, corrected by the notes of what has changed since ([`super::sled_history`]). Always
//! in this order: sled first, the notes afterwards.

use super::index::{Snapshot, Visit};
use super::sled_history::{History, Notes};
use super::sled_records::Stored;
use super::sled_tree::Tree;
use crate::error::Result;
use std::ops::Bound;
use std::sync::Arc;

/// Records read from sled at once: first few, for those who stop early, then more.
const READ_RECORDS: (usize, usize) = (32, 512);

pub(super) struct SledSnapshot {
    tree: Tree,
    history: Arc<History>,
    generation: u64,
}

impl SledSnapshot {
    pub(super) fn new(tree: Tree, history: Arc<History>) -> SledSnapshot {
        let generation = history.hold();
        SledSnapshot { tree, history, generation }
    }
}

impl Drop for SledSnapshot {
    fn drop(&mut self) {
        self.history.release(self.generation);
    }
}

/// What was found, as of a generation with these notes of later changes, in order.
fn corrected(found: Vec<(Vec<u8>, Stored)>, notes: Notes) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut records = Vec::with_capacity(found.len() + notes.len());
    let mut notes = notes.into_iter().peekable();
    let push_old = |(key, old): (Vec<u8>, Option<Arc<[u8]>>), records: &mut Vec<_>| {
        records.extend(old.map(|old| (key, old.to_vec())));
    };
    for (key, stored) in found {
        while let Some(before) = notes.next_if(|(noted, _)| *noted < key) {
            push_old(before, &mut records);
        }
        match notes.next_if(|(noted, _)| *noted == key) {
            Some(same) => push_old(same, &mut records),
            None => records.extend(stored.settled(&key)?.map(|value| (key, value))),
        }
    }
    notes.for_each(|behind| push_old(behind, &mut records));
    Ok(records)
}

impl Snapshot for SledSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let found = self.tree.get(key);
        match self.history.find(self.generation, key) {
            Some(old) => Ok(old.map(|old| old.to_vec())),
            None => found?.settled(key),
        }
    }

    fn range(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        let (mut from, mut most) = (from.to_vec(), READ_RECORDS.0);
        while from.as_slice() < to {
            let read = self.tree.records(&from, to, most)?;
            // What sled was asked for reaches up to the last key it gave.
            let last = read.records.last().map(|(key, _)| key.clone()).filter(|_| !read.is_end);
            let covered = last.as_ref().map_or(Bound::Excluded(to), |last| Bound::Included(last.as_slice()));
            let notes = self.history.find_range(self.generation, &from, covered);
            for (key, value) in corrected(read.records, notes)? {
                if visit(&key, &value).is_break() {
                    return Ok(());
                }
            }
            let Some(mut last) = last else { break };
            last.push(0);
            from = last;
            most = (most * 2).min(READ_RECORDS.1);
        }
        Ok(())
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let mut end = to.to_vec();
        while from < end.as_slice() {
            let found = self.tree.last(from, &end)?;
            let lowest = found.as_ref().map(|(key, _)| key.clone());
            let covered = lowest.as_deref().unwrap_or(from);
            let notes = self.history.find_range(self.generation, covered, Bound::Excluded(&end));
            if let Some(record) = corrected(found.into_iter().collect(), notes)?.pop() {
                return Ok(Some(record));
            }
            // All that sled has from there on is newer than this view.
            match lowest {
                Some(key) => end = key,
                None => return Ok(None),
            }
        }
        Ok(None)
    }
}
