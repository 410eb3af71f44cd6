//! The transport over /dev/fuse: threads that read(2) one request each, serve it, and answer with one writev(2). Every thread has a
//! descriptor of its own (FUSE_DEV_IOC_CLONE), and a buffer laid out so that the data of a WRITE begins at a page.

use super::abi::{IN_HEADER_BYTES, Message as Notice, NOTIFY_INVAL_INODE, WRITE_IN_BYTES, out_header};
use super::reply::Reply;
use super::request::{self, Message};
use super::serve::{Next, Server};
use crate::disk::buffer::AlignedBuffer;
use crate::sys;
use crate::units::{BLOCK, InodeNumber};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Largest WRITE and, with the kernel's page limit, largest READ.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Where in its buffer a thread lets requests begin.
const REQUEST_START: usize = BLOCK - IN_HEADER_BYTES - WRITE_IN_BYTES;

/// One open /dev/fuse: requests out of it must be answered into it.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    /// A channel over an open device (or, in tests, a socket that keeps the borders of messages).
    pub fn new(device: OwnedFd) -> Channel {
        Channel(device)
    }

    /// Another one of the same connection; where the kernel refuses that, the same.
    pub fn another(&self) -> io::Result<Channel> {
        let clone = sys::clone_fuse_device(self.0.as_fd()).or_else(|error| {
            tracing::debug!("no descriptor of its own for a thread: {error}");
            self.0.try_clone()
        });
        clone.map(Channel)
    }

    /// The next request's length; None at the end of the connection.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(0) | Err(Errno::NODEV) => return Ok(None),
                Ok(length) => return Ok(Some(length)),
                // NOENT: the request was withdrawn while it was read.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Tells the kernel that what it remembers of an inode's attributes is not true any more. It must be open, or being asked about:
    /// the kernel would wait for one that it is dropping, and that for us.
    pub fn forget_attributes(&self, inode: InodeNumber) {
        let mut place = Notice::<24>::default();
        place.u64(inode.0);
        // An offset below 0: of attributes only.
        place.u64(u64::MAX);
        place.u64(0);
        let header = out_header(0, NOTIFY_INVAL_INODE, place.as_slice().len());
        self.send(&[IoSlice::new(&header), IoSlice::new(place.as_slice())]);
    }

    /// Sends an answer. The kernel does not want every one: it may have been withdrawn, or the connection has ended.
    pub fn send(&self, parts: &[IoSlice<'_>]) {
        loop {
            match rustix::io::writev(&self.0, parts) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) | Ok(_) => return,
                Err(error) => return tracing::warn!("the kernel did not take an answer: {error}"),
            }
        }
    }
}

/// What a reader does that takes only what rings do not: with pauses, so that the many FORGETs come many at once.
pub const FORGETS_PAUSE: Duration = Duration::from_millis(1);

/// Serves requests out of `channel` until the connection ends, with a pause after each.
pub fn serve(server: &Server, channel: &Arc<Channel>, pause: Option<Duration>) -> io::Result<()> {
    let mut buffer = AlignedBuffer::zeroed(BLOCK + REQUEST_BYTES_MAX + BLOCK);
    loop {
        let Some(space) = buffer.get_mut(REQUEST_START..) else { return Ok(()) };
        let Some(length) = channel.receive(space)? else { return Ok(()) };
        let received = space.get(..length).unwrap_or_default();
        let Some(message) = Message::whole(received) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a request shorter than its header"));
        };
        let reply = Reply::to_device(channel, request::unique(message.header).unwrap_or_default());
        if server.serve(&message, reply) == Next::End {
            return Ok(());
        }
        if let Some(pause) = pause {
            std::thread::sleep(pause);
        }
    }
}
