//! Range locks of a file (rank Content): reads that load share a range, writes and everything that changes the map have it alone.
//! Held across device I/O and while waiting for ordered extents; nothing that finishes an ordered extent needs one.

use crate::lock::{Rank, RankToken, assert_may_wait};
use crate::sync::{Condvar, Mutex};
use std::ops::Range;

#[derive(Debug)]
struct Held {
    number: u64,
    range: Range<u64>,
    is_shared: bool,
}

#[derive(Debug, Default)]
struct State {
    held: Vec<Held>,
    next_number: u64,
}

/// The locks of one file.
#[derive(Debug, Default)]
pub struct RangeLock {
    state: Mutex<State>,
    released: Condvar,
}

/// A locked range.
#[derive(Debug)]
pub struct RangeGuard<'a> {
    lock: &'a RangeLock,
    number: u64,
    _token: RankToken,
}

impl State {
    fn take(&mut self, range: &Range<u64>, is_shared: bool) -> Option<u64> {
        let blocked =
            |held: &Held| held.range.start < range.end && range.start < held.range.end && !(held.is_shared && is_shared);
        if self.held.iter().any(blocked) {
            return None;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.held.push(Held { number, range: range.clone(), is_shared });
        Some(number)
    }
}

impl RangeLock {
    /// Takes the range if nobody is in the way.
    pub fn try_lock(&self, range: Range<u64>, is_shared: bool) -> Option<RangeGuard<'_>> {
        let number = self.state.lock().take(&range, is_shared)?;
        Some(RangeGuard { lock: self, number, _token: RankToken::new(Rank::Content) })
    }

    /// Takes the range, waiting.
    pub fn lock(&self, range: Range<u64>, is_shared: bool) -> RangeGuard<'_> {
        self.lock_as(RankToken::new(Rank::Content), range, is_shared)
    }

    /// Takes a range of one more file; the caller goes through them in ascending order of inode numbers.
    pub fn lock_further(&self, range: Range<u64>, is_shared: bool) -> RangeGuard<'_> {
        self.lock_as(RankToken::further(Rank::Content), range, is_shared)
    }

    fn lock_as(&self, token: RankToken, range: Range<u64>, is_shared: bool) -> RangeGuard<'_> {
        assert_may_wait("locking a range");
        let mut state = self.state.lock();
        let number = loop {
            match state.take(&range, is_shared) {
                Some(number) => break number,
                None => self.released.wait(&mut state),
            }
        };
        drop(state);
        RangeGuard { lock: self, number, _token: token }
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.lock.state.lock();
        state.held.retain(|held| held.number != self.number);
        drop(state);
        self.lock.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_ranges_overlap_exclusive_ones_do_not() {
        let lock = RangeLock::default();
        let first = lock.try_lock(0..10, true).map(|guard| guard.number);
        assert_eq!(first, Some(0), "free");
        let held = lock.state.lock().take(&(20..30), false);
        assert!(held.is_some());
        assert!(lock.state.lock().take(&(25..26), true).is_none(), "shared against exclusive");
        assert!(lock.state.lock().take(&(30..31), false).is_some(), "neighbours do not touch");
    }
}
