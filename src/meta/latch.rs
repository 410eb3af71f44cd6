//! The read-only latch (D7): after a failed flush, journal write or checkpoint nothing more is acknowledged. The first reason
//! stays; a latch never opens again while the store is mounted.

use crate::error::{Error, Result};
use crate::sync::{AtomicBool, Mutex};
use std::sync::Arc;
use std::sync::atomic::Ordering;

type Hook = Box<dyn Fn(&str) + Send + Sync>;

/// Set once, looked at by every append.
#[derive(Default)]
pub struct Latch {
    is_set: AtomicBool,
    reason: Mutex<Option<Arc<str>>>,
    hook: Mutex<Option<Hook>>,
}

impl std::fmt::Debug for Latch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Latch({:?})", self.reason())
    }
}

impl Latch {
    /// Sets the latch with `reason`, unless it is set already. `is_fault` decides whether it is logged as an error.
    pub fn set(&self, reason: &str, is_fault: bool) {
        {
            let mut stored = self.reason.lock();
            if stored.is_some() {
                return;
            }
            *stored = Some(reason.into());
        }
        self.is_set.store(true, Ordering::Release);
        if is_fault {
            tracing::error!("store is now read-only: {reason}");
            if let Some(hook) = &*self.hook.lock() {
                hook(reason);
            }
        }
    }

    /// Called once when a fault sets the latch (to remount the mount point read-only).
    pub fn set_hook(&self, hook: Hook) {
        *self.hook.lock() = Some(hook);
    }

    /// Why, when it is set.
    pub fn reason(&self) -> Option<Arc<str>> {
        self.reason.lock().clone()
    }

    /// An error when it is set.
    pub fn check(&self) -> Result<()> {
        if !self.is_set.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(Error::ReadOnly(self.reason().unwrap_or_else(|| "unknown".into())))
    }
}
