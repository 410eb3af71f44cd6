//! The answer to one request: sent once, at once or later, from any thread. One that is dropped unsent (its handler panicked) answers
//! EIO, so nobody waits for ever.

use super::abi::out_header;
use super::device::Channel;
use super::ring::queue::Slot;
use super::translate::errno;
use crate::error::{Error, Result};
use std::io::IoSlice;
use std::sync::Arc;

/// Where an answer goes, and to what.
#[derive(Debug)]
pub struct Reply {
    unique: u64,
    way: Option<Way>,
}

#[derive(Debug)]
enum Way {
    Device(Arc<Channel>),
    Ring(Slot),
}

impl Reply {
    /// To a request that came out of `channel`.
    pub fn to_device(channel: &Arc<Channel>, unique: u64) -> Reply {
        Reply { unique, way: Some(Way::Device(channel.clone())) }
    }

    /// To a request that came over a ring.
    pub fn to_ring(slot: Slot, unique: u64) -> Reply {
        Reply { unique, way: Some(Way::Ring(slot)) }
    }

    fn send(&mut self, error: i32, body: &[u8]) {
        match self.way.take() {
            Some(Way::Device(channel)) => {
                let header = out_header(self.unique, error, body.len());
                channel.send(&[IoSlice::new(&header), IoSlice::new(body)]);
            }
            Some(Way::Ring(slot)) => slot.answer(error, body),
            None => {}
        }
    }

    /// Success with a body.
    pub fn body(mut self, body: &[u8]) {
        self.send(0, body);
    }

    /// Where the body of the answer can be put together; None: it must be given to [`Reply::body`].
    pub fn place(&mut self) -> Option<&mut [u8]> {
        match &mut self.way {
            Some(Way::Ring(slot)) => slot.place(),
            Some(Way::Device(_)) | None => None,
        }
    }

    /// Success with the first `bytes` of [`Reply::place`].
    pub fn placed(mut self, bytes: usize) {
        if let Some(Way::Ring(slot)) = self.way.take() {
            slot.answer_in_place(bytes);
        }
    }

    /// Success without one.
    pub fn ok(self) {
        self.body(&[]);
    }

    /// Failure, with the number of an error as libc has it.
    pub fn failure(mut self, errno: i32) {
        self.send(-errno, &[]);
    }

    /// Failure.
    pub fn error(self, error: &Error) {
        self.failure(errno(error));
    }

    /// Success without a body, or failure.
    pub fn empty(self, result: Result<()>) {
        match result {
            Ok(()) => self.ok(),
            Err(error) => self.error(&error),
        }
    }

    /// To the few requests that want none. They do not come over rings, where every slot must be given back.
    pub fn none(mut self) {
        if let Some(Way::Device(_)) = self.way {
            self.way = None;
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(-libc::EIO, &[]);
    }
}
