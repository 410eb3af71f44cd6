//! Data that a full store refused after write(2) had long returned: with the kernel's cache in front only fsync and close tell that, so
//! a program that does nothing but write would go on for ever, into a file of nothing. When much of a file was refused in a row the
//! kernel is told to forget the file's attributes. It asks for them anew before the program's next write, and a failed answer fails that
//! write. Whoever reads at the end of the file just then may get the error instead: the two ask alike. So it is told once
//! for each `REFUSED_BYTES_MIN`, and only while data is being refused.
//!
//! The notice is sent by a thread of its own: the kernel may wait in it for requests that the sender would have answered.

use super::device::Channel;
use crate::units::InodeNumber;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Of one file in a row, before its writer is told.
const REFUSED_BYTES_MIN: u64 = 64 << 20;
/// Refused longer ago, it is over.
const RECENT: Duration = Duration::from_secs(2);
/// Between two notices for a file.
const NOTICE_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Refused {
    bytes: u64,
    last: Instant,
    noticed: Option<Instant>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Refusals {
    files: Mutex<HashMap<InodeNumber, Refused>>,
    channel: Option<Arc<Channel>>,
}

impl Refusals {
    /// With the channel over which the kernel is told; without one nobody is.
    pub fn told_through(channel: Arc<Channel>) -> Refusals {
        Refusals { channel: Some(channel), ..Refusals::default() }
    }

    /// So many bytes out of the kernel's cache had no room.
    pub fn note(&self, inode: InodeNumber, bytes: usize) {
        let now = Instant::now();
        {
            let mut files = self.files.lock();
            files.retain(|_, refused| now.duration_since(refused.last) < RECENT);
            let refused = files.entry(inode).or_insert(Refused { bytes: 0, last: now, noticed: None });
            refused.bytes += bytes as u64;
            refused.last = now;
            let is_noticed = refused.noticed.is_some_and(|noticed| now.duration_since(noticed) < NOTICE_PAUSE);
            if refused.bytes < REFUSED_BYTES_MIN || is_noticed {
                return;
            }
            refused.noticed = Some(now);
        }
        let Some(channel) = self.channel.clone() else { return };
        let notice = move || channel.forget_attributes(inode);
        if let Err(error) = std::thread::Builder::new().name("sumfs-notice".into()).spawn(notice) {
            tracing::debug!("no thread to tell the kernel that there is no room: {error}");
        }
    }

    /// Is whoever writes to the file to be told? True once.
    pub fn take(&self, inode: InodeNumber) -> bool {
        let mut files = self.files.lock();
        let refused =
            files.get_mut(&inode).filter(|refused| refused.bytes >= REFUSED_BYTES_MIN && refused.last.elapsed() < RECENT);
        refused.is_some_and(|refused| std::mem::take(&mut refused.bytes) > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_is_told_once_for_much_and_never_for_little() {
        let (refusals, file) = (Arc::new(Refusals::default()), InodeNumber(7));
        refusals.note(file, 1 << 20);
        assert!(!refusals.take(file), "a little");
        refusals.note(file, REFUSED_BYTES_MIN as usize);
        assert!(!refusals.take(InodeNumber(8)), "another file");
        assert!(refusals.take(file) && !refusals.take(file), "once");
    }
}
