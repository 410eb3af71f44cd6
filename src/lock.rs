//! The lock order, as code. Debug builds keep the ranks that a thread holds and assert that they only rise.
//!
//! Order: Names < Content < Segments < Extents < Attributes < Transaction < Space < Leaf. Content is a range lock
//! (`fs/range_lock.rs`) and may be held while waiting for ordered extents; everything above it is short and is never held
//! across I/O or waiting.

use crate::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::ops::{Deref, DerefMut};

/// May the caller be made to wait?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Refuse with `Error::WouldBlock(reason)` instead; nothing observable has changed then.
    Never,
    /// Waiting, device I/O and forcing a commit are allowed.
    Allowed,
}

/// Lock ranks; the order of the variants is the order of locking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Namespace changes.
    Names,
    /// Range locks of files.
    Content,
    /// The segments of one file.
    Segments,
    /// The extent map of one file.
    Extents,
    /// The attributes of one inode.
    Attributes,
    /// The running transaction and its overlays.
    Transaction,
    /// Allocator, reservations.
    Space,
    /// Nothing is acquired while one of these is held.
    Leaf,
}

#[cfg(debug_assertions)]
mod held {
    use super::Rank;
    use std::cell::{Cell, RefCell};

    #[cfg(not(feature = "shuttle"))]
    thread_local! {
        static RANKS: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
        static MAY_NOT_WAIT: Cell<bool> = const { Cell::new(false) };
    }
    // In a model all threads are one.
    #[cfg(feature = "shuttle")]
    shuttle::thread_local! {
        static RANKS: RefCell<Vec<Rank>> = RefCell::new(Vec::new());
        static MAY_NOT_WAIT: Cell<bool> = Cell::new(false);
    }

    #[derive(Debug)]
    pub(super) struct Token(Rank);

    impl Token {
        pub(super) fn new(rank: Rank) -> Token {
            RANKS.with(|ranks| {
                let ranks = ranks.borrow();
                let rises = ranks.iter().all(|held| *held < rank);
                assert!(rises, "lock order: {rank:?} taken while holding {ranks:?}");
            });
            Token::further(rank)
        }

        pub(super) fn further(rank: Rank) -> Token {
            RANKS.with(|ranks| {
                let mut ranks = ranks.borrow_mut();
                let rises = ranks.iter().all(|held| *held <= rank);
                assert!(rises, "lock order: a further {rank:?} taken while holding {ranks:?}");
                ranks.push(rank);
            });
            Token(rank)
        }
    }

    impl Drop for Token {
        fn drop(&mut self) {
            RANKS.with(|ranks| {
                let mut ranks = ranks.borrow_mut();
                if let Some(at) = ranks.iter().rposition(|rank| *rank == self.0) {
                    ranks.remove(at);
                }
            });
        }
    }

    #[derive(Debug)]
    pub(super) struct NoWaiting;

    impl NoWaiting {
        pub(super) fn new() -> NoWaiting {
            MAY_NOT_WAIT.with(|flag| flag.set(true));
            NoWaiting
        }
    }

    impl Drop for NoWaiting {
        fn drop(&mut self) {
            MAY_NOT_WAIT.with(|flag| flag.set(false));
        }
    }

    /// Panics in an operation with `Wait::Never`.
    pub(super) fn assert_waiting_allowed(what: &str) {
        assert!(!MAY_NOT_WAIT.with(Cell::get), "{what} in an operation that must not wait");
    }

    /// Panics when the thread holds a lock of the given rank or a later one.
    pub(super) fn assert_below(rank: Rank, what: &str) {
        RANKS.with(|ranks| {
            let ranks = ranks.borrow();
            assert!(ranks.iter().all(|held| *held < rank), "{what} while holding {ranks:?}");
        });
    }
}

#[cfg(not(debug_assertions))]
mod held {
    use super::Rank;
    #[derive(Debug)]
    pub(super) struct Token;
    impl Token {
        pub(super) fn new(_: Rank) -> Token {
            Token
        }
        pub(super) fn further(_: Rank) -> Token {
            Token
        }
    }
    #[derive(Debug)]
    pub(super) struct NoWaiting;
    impl NoWaiting {
        pub(super) fn new() -> NoWaiting {
            NoWaiting
        }
    }
    pub(super) fn assert_below(_: Rank, _: &str) {}
    pub(super) fn assert_waiting_allowed(_: &str) {}
}

/// Debug builds: assert that this thread may now wait or do I/O (it holds nothing from Segments up, and does nothing with
/// `Wait::Never`).
pub fn assert_may_wait(what: &str) {
    held::assert_below(Rank::Segments, what);
    held::assert_waiting_allowed(what);
}

/// While this lives, waiting and I/O on this thread are a fault that debug builds assert.
#[derive(Debug)]
pub struct NoWaiting(#[allow(dead_code)] held::NoWaiting);

impl NoWaiting {
    /// For the time of an operation with `wait`; nothing for `Wait::Allowed`.
    pub fn during(wait: Wait) -> Option<NoWaiting> {
        (wait == Wait::Never).then(|| NoWaiting(held::NoWaiting::new()))
    }
}

/// Marks a rank as held without a lock of this module (range locks).
#[derive(Debug)]
pub struct RankToken(#[allow(dead_code)] held::Token);

impl RankToken {
    /// Asserts the order and remembers the rank until dropped on the same thread.
    pub fn new(rank: Rank) -> RankToken {
        RankToken(held::Token::new(rank))
    }

    /// As `new`, for one more of several of this rank; the caller takes them in ascending order of inode numbers.
    pub fn further(rank: Rank) -> RankToken {
        RankToken(held::Token::further(rank))
    }
}

/// A mutex with a rank.
#[derive(Debug)]
pub struct RankedMutex<T> {
    rank: Rank,
    inner: Mutex<T>,
}

/// Guard of a [`RankedMutex`].
#[derive(Debug)]
pub struct RankedGuard<'a, T> {
    guard: MutexGuard<'a, T>,
    _token: held::Token,
}

impl<T> RankedMutex<T> {
    /// A mutex at `rank`.
    pub const fn new(rank: Rank, value: T) -> RankedMutex<T> {
        RankedMutex { rank, inner: Mutex::new(value) }
    }

    /// Locks, waiting.
    pub fn lock(&self) -> RankedGuard<'_, T> {
        let token = held::Token::new(self.rank);
        RankedGuard { guard: self.inner.lock(), _token: token }
    }

    /// Locks one more of several mutexes of this rank; the caller takes them in ascending order of inode numbers.
    pub fn lock_further(&self) -> RankedGuard<'_, T> {
        let token = held::Token::further(self.rank);
        RankedGuard { guard: self.inner.lock(), _token: token }
    }

    /// Locks only if that is possible at once.
    pub fn try_lock(&self) -> Option<RankedGuard<'_, T>> {
        let guard = self.inner.try_lock()?;
        Some(RankedGuard { guard, _token: held::Token::new(self.rank) })
    }

    /// The value, when nobody else has the mutex.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T> RankedGuard<'_, T> {
    /// Waits on `condition`, giving the lock up meanwhile.
    pub fn wait(&mut self, condition: &Condvar) {
        condition.wait(&mut self.guard);
    }

    /// Waits at most `timeout`; true when it timed out.
    pub fn wait_for(&mut self, condition: &Condvar, timeout: std::time::Duration) -> bool {
        condition.wait_for(&mut self.guard, timeout).timed_out()
    }
}

impl<T> Deref for RankedGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for RankedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A reader-writer lock with a rank.
#[derive(Debug)]
pub struct RankedRwLock<T> {
    rank: Rank,
    inner: RwLock<T>,
}

/// Shared guard.
#[derive(Debug)]
pub struct RankedReadGuard<'a, T> {
    guard: RwLockReadGuard<'a, T>,
    _token: held::Token,
}

/// Exclusive guard.
#[derive(Debug)]
pub struct RankedWriteGuard<'a, T> {
    guard: RwLockWriteGuard<'a, T>,
    _token: held::Token,
}

impl<T> RankedRwLock<T> {
    /// A lock at `rank`.
    pub const fn new(rank: Rank, value: T) -> RankedRwLock<T> {
        RankedRwLock { rank, inner: RwLock::new(value) }
    }

    /// Locks shared.
    pub fn read(&self) -> RankedReadGuard<'_, T> {
        let token = held::Token::new(self.rank);
        RankedReadGuard { guard: self.inner.read(), _token: token }
    }

    /// Locks exclusively.
    pub fn write(&self) -> RankedWriteGuard<'_, T> {
        let token = held::Token::new(self.rank);
        RankedWriteGuard { guard: self.inner.write(), _token: token }
    }
}

impl<T> Deref for RankedReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> Deref for RankedWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for RankedWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
