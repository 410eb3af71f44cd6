//! The primitives by which threads wait for each other, in one place, so that a test can take them over: usually parking_lot's and
//! std's; with the cargo feature `shuttle` a model checker's, which runs all threads on one and chooses at every primitive
//! who goes on (`tests/shuttle`).
//!
//! What is modelled: everything from `fs` down to `meta` and `space`, and the worker pool. Not modelled are locks that are
//! held only where nothing of this module is used: disks, redb and its backend, kept buffers, counters. A lock of theirs must
//! never be held across a use of one of these, or a model hangs.

#[cfg(not(feature = "shuttle"))]
mod primitives {
    pub use crossbeam::channel;
    pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
    pub use std::sync::atomic::{AtomicBool, AtomicU64};
    pub use std::thread;
}

#[cfg(feature = "shuttle")]
mod primitives {
    use std::ops::{Deref, DerefMut};
    use std::sync::{PoisonError, TryLockError};
    use std::time::Duration;

    pub use shuttle::sync::atomic::{AtomicBool, AtomicU64};
    pub use shuttle::thread;

    /// As much of crossbeam's channels as is used.
    pub mod channel {
        pub use shuttle::sync::mpsc::{Receiver, SyncSender as Sender, sync_channel as bounded};
    }

    /// As parking_lot's: no poison.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(shuttle::sync::Mutex<T>);

    /// Guard of a [`Mutex`]. Empty only inside [`Condvar::wait`].
    #[derive(Debug)]
    pub struct MutexGuard<'a, T> {
        mutex: &'a Mutex<T>,
        guard: Option<shuttle::sync::MutexGuard<'a, T>>,
    }

    impl<T> Mutex<T> {
        /// A mutex around `value`.
        pub const fn new(value: T) -> Mutex<T> {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        /// Locks, waiting.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard { mutex: self, guard: Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)) }
        }

        /// Locks only if that is possible at once.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            let guard = match self.0.try_lock() {
                Ok(guard) => guard,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return None,
            };
            Some(MutexGuard { mutex: self, guard: Some(guard) })
        }

        /// The value, when nobody else has the mutex.
        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl<T> From<T> for Mutex<T> {
        fn from(value: T) -> Mutex<T> {
            Mutex::new(value)
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            match &self.guard {
                Some(guard) => guard,
                None => unreachable!("a guard is empty only while its thread waits"),
            }
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            match &mut self.guard {
                Some(guard) => guard,
                None => unreachable!("a guard is empty only while its thread waits"),
            }
        }
    }

    /// As parking_lot's.
    #[derive(Debug, Default)]
    pub struct Condvar(shuttle::sync::Condvar);

    /// What ended a wait.
    #[derive(Debug)]
    pub struct WaitTimeoutResult;

    impl WaitTimeoutResult {
        /// Did the time end it?
        pub fn timed_out(&self) -> bool {
            true
        }
    }

    impl Condvar {
        /// A condition that nobody waits for.
        pub const fn new() -> Condvar {
            Condvar(shuttle::sync::Condvar::new())
        }

        /// Waits, giving the lock up meanwhile.
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            if let Some(held) = guard.guard.take() {
                guard.guard = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
            }
        }

        /// Gives the lock up while others run for as long as the model likes, which is when the time ends.
        pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _time: Duration) -> WaitTimeoutResult {
            guard.guard = None;
            shuttle::thread::yield_now();
            guard.guard = Some(guard.mutex.0.lock().unwrap_or_else(PoisonError::into_inner));
            WaitTimeoutResult
        }

        /// Wakes one that waits.
        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        /// Wakes all that wait.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    /// As parking_lot's: no poison.
    #[derive(Debug, Default)]
    pub struct RwLock<T>(shuttle::sync::RwLock<T>);

    /// Shared guard.
    pub type RwLockReadGuard<'a, T> = shuttle::sync::RwLockReadGuard<'a, T>;
    /// Exclusive guard.
    pub type RwLockWriteGuard<'a, T> = shuttle::sync::RwLockWriteGuard<'a, T>;

    impl<T> RwLock<T> {
        /// A lock around `value`.
        pub const fn new(value: T) -> RwLock<T> {
            RwLock(shuttle::sync::RwLock::new(value))
        }

        /// Locks shared.
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }

        /// Locks exclusively.
        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }
    }
}

pub use primitives::*;
