//! The io_uring of one queue and the memory that the kernel fills and reads: the only place of the transport with `unsafe`.
//!
//! The kernel touches this memory only inside io_uring_enter(2) of the thread that made the ring (SINGLE_ISSUER, DEFER_TASKRUN: copies
//! run in that thread's context, and not at all once it has ended), and only the parts of a slot that waits for a request or is being
//! committed. So while that thread runs our code nobody else touches a header, and a [`Payload`] is touched by its owner alone: it is
//! handed out once, and comes back before its slot is committed.

#![allow(unsafe_code)]

use io_uring::cqueue;
use io_uring::squeue::Entry128;
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// `struct fuse_uring_req_header`: 128 bytes header, 128 bytes fixed part, 32 bytes about the slot.
pub const HEADER_BYTES: usize = 288;
/// Where the fixed part of the operation stands.
pub const FIXED_START: usize = 128;
/// Where the part about the slot stands.
const ENTRY_START: usize = 256;
/// `commit_id` in it.
pub const COMMIT_ID_START: usize = ENTRY_START + 8;
/// `payload_sz` in it.
pub const PAYLOAD_BYTES_START: usize = ENTRY_START + 16;

const COMMAND_REGISTER: u32 = 1;
const COMMAND_COMMIT_AND_FETCH: u32 = 2;
/// Least that the kernel would take.
const PAYLOAD_BYTES_MIN: usize = 8192;
/// Marks the completion of the read that wakes the thread.
pub const WAKE: u64 = u64::MAX;
/// `sqe->len`, which the crate has no setter for.
const SQE_LENGTH_START: usize = 24;

/// Pages of our own, untouched until used.
#[derive(Debug)]
struct Region {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the region is only memory; who may touch which part of it is said at the types that hold it.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn new(length: usize) -> io::Result<Region> {
        // SAFETY: a fresh private mapping at an address that the kernel chooses.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Region { start, length })
    }

    /// The address of a part; panics outside, which is a mistake in this file.
    fn part(&self, start: usize, length: usize) -> *mut u8 {
        assert!(start + length <= self.length, "outside the ring's memory");
        // SAFETY: within the mapping.
        unsafe { self.start.as_ptr().add(start) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which nobody uses any more: every holder has an `Arc` or is the ring's thread.
        if let Err(error) = unsafe { munmap(self.start.as_ptr().cast(), self.length) } {
            tracing::error!("giving memory of a ring back: {error}");
        }
    }
}

/// The payload of one slot: what came with a request, then the body of its answer. One holder at a time.
#[derive(Debug)]
pub struct Payload {
    region: Arc<Region>,
    start: usize,
    length: usize,
}

impl Deref for Payload {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: initialised memory (zeros or what the kernel wrote) that this value alone stands for; the kernel does not touch it
        // while it is out of the ring's hands (see the top).
        unsafe { std::slice::from_raw_parts(self.region.part(self.start, self.length), self.length) }
    }
}

impl DerefMut for Payload {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.region.part(self.start, self.length), self.length) }
    }
}

/// One queue's ring. Made and used by one thread.
pub struct Raw {
    // First, so that it is closed before its memory goes.
    ring: IoUring<Entry128, cqueue::Entry>,
    device: OwnedFd,
    queue: u16,
    headers: Region,
    /// Pairs of address and length for REGISTER, and the number read from the eventfd.
    vectors: Region,
}

/// A pair of them for each slot.
const VECTOR_BYTES: usize = 32;

fn new_ring(entries: u32) -> io::Result<IoUring<Entry128, cqueue::Entry>> {
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().build(entries)
}

/// Can this system make such rings at all?
pub fn probe() -> io::Result<()> {
    new_ring(2).map(|_| ())
}

/// Tells the kernel that there will be no rings although INIT said so: it then takes requests out of /dev/fuse. It does that when a
/// slot is refused, so one is offered for a queue that cannot be.
pub fn give_up(device: BorrowedFd<'_>) -> io::Result<()> {
    let (mut raw, mut payloads) = Raw::new(device, u16::MAX, 1, PAYLOAD_BYTES_MIN)?;
    payloads.iter_mut().try_for_each(|payload| raw.queue_register(0, payload))?;
    raw.enter(1)?;
    let mut refused = Vec::new();
    raw.completions(&mut refused);
    if refused.iter().any(|(_, result)| *result < 0) { Ok(()) } else { Err(io::Error::other("the kernel waits for rings")) }
}

impl Raw {
    /// A ring with `depth` slots, and the payloads of the slots.
    pub fn new(device: BorrowedFd<'_>, queue: u16, depth: u16, payload_bytes: usize) -> io::Result<(Raw, Vec<Payload>)> {
        let slots = usize::from(depth);
        let payloads = Arc::new(Region::new(slots * payload_bytes)?);
        let raw = Raw {
            ring: new_ring(u32::from(depth) + 2)?,
            device: device.try_clone_to_owned()?,
            queue,
            headers: Region::new(slots * HEADER_BYTES)?,
            vectors: Region::new((slots + 1) * VECTOR_BYTES)?,
        };
        let payload = |slot| Payload { region: payloads.clone(), start: slot * payload_bytes, length: payload_bytes };
        Ok((raw, (0..slots).map(payload).collect()))
    }

    fn push(&mut self, entry: &Entry128) -> io::Result<()> {
        loop {
            // SAFETY: the memory that the entry names (headers, payload, vectors) lives as long as the ring (see the top).
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.enter(0)?;
        }
    }

    fn command(&self, operation: u32, commit_id: u64) -> opcode::UringCmd80 {
        let mut command = [0; 80];
        command[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        command[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        opcode::UringCmd80::new(Fd(self.device.as_raw_fd()), operation).cmd(command)
    }

    /// Queues the first fetch of a slot, which tells the kernel its memory.
    pub fn queue_register(&mut self, slot: u16, payload: &mut Payload) -> io::Result<()> {
        let header = self.headers.part(usize::from(slot) * HEADER_BYTES, HEADER_BYTES);
        let vectors = self.vectors.part(usize::from(slot) * VECTOR_BYTES, VECTOR_BYTES);
        let numbers = [header as u64, HEADER_BYTES as u64, payload.as_mut_ptr() as u64, payload.len() as u64];
        let entry = self.command(COMMAND_REGISTER, 0).addr(Some(vectors as u64)).build().user_data(slot.into());
        // SAFETY: 32 bytes of the vectors are this slot's; page-aligned memory, so every multiple of 32 is aligned for u64. An entry is
        // `repr(C)` bytes without padding, every value of which is valid, so it may be looked at as bytes and back.
        let entry = unsafe {
            vectors.cast::<[u64; 4]>().write(numbers);
            let mut bytes = std::mem::transmute::<Entry128, [u8; 128]>(entry);
            bytes[SQE_LENGTH_START..SQE_LENGTH_START + 4].copy_from_slice(&2_u32.to_ne_bytes());
            std::mem::transmute::<[u8; 128], Entry128>(bytes)
        };
        self.push(&entry)
    }

    /// What came in a slot.
    pub fn header(&self, slot: u16) -> [u8; HEADER_BYTES] {
        let header = self.headers.part(usize::from(slot) * HEADER_BYTES, HEADER_BYTES);
        // SAFETY: the slot's header, which the kernel has written and does not touch now.
        unsafe { header.cast::<[u8; HEADER_BYTES]>().read() }
    }

    /// Queues the answer in a slot, and the fetch of the next request into it.
    pub fn queue_commit(&mut self, slot: u16, commit_id: u64, out_header: &[u8; 16], body_bytes: u32) -> io::Result<()> {
        let header = self.headers.part(usize::from(slot) * HEADER_BYTES, HEADER_BYTES);
        // SAFETY: both places lie in the slot's header, which is ours until the commit is submitted.
        unsafe {
            header.cast::<[u8; 16]>().write(*out_header);
            header.add(PAYLOAD_BYTES_START).cast::<[u8; 4]>().write(body_bytes.to_ne_bytes());
        }
        let entry = self.command(COMMAND_COMMIT_AND_FETCH, commit_id).build().user_data(slot.into());
        self.push(&entry)
    }

    /// Queues the read of an eventfd: its completion wakes the thread.
    pub fn queue_wake(&mut self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        let number = self.vectors.part(self.vectors.length - VECTOR_BYTES, 8);
        let entry = opcode::Read::new(Fd(eventfd.as_raw_fd()), number, 8).build().user_data(WAKE);
        self.push(&entry.into())
    }

    /// Submits what is queued and waits for so many completions.
    pub fn enter(&mut self, wanted: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(wanted) {
            Ok(_) => Ok(()),
            // Taken back by a signal, or the completions must be seen first: the caller looks and comes again.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What has completed: slot or [`WAKE`], and result.
    pub fn completions(&mut self, into: &mut Vec<(u64, i32)>) {
        into.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
    }

    /// Has something come that the next `enter` would bring?
    pub fn has_more(&mut self) -> bool {
        self.ring.submission().taskrun()
    }
}
