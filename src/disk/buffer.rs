//! Aligned memory: what O_DIRECT, the cache's segments and the checksum pipeline share. One of the few files with
//! `unsafe`. Buffers of 1 MiB, the common case of streams, are kept and used again: a fresh one costs 256 page faults.

#![allow(unsafe_code)]

use parking_lot::Mutex;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

const ALIGNMENT: usize = 4096;
const KEPT_BYTES: usize = 1 << 20;
const KEPT_COUNT_MAX: usize = 64;

static KEPT: Mutex<Vec<AlignedBuffer>> = Mutex::new(Vec::new());

/// Memory aligned to 4096 bytes, of a fixed length, owned by one holder.
pub struct AlignedBuffer {
    pointer: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its memory alone; access follows the borrow of the buffer.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared access is read-only.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    fn layout(len: usize) -> Layout {
        match Layout::from_size_align(len.max(1), ALIGNMENT) {
            Ok(layout) => layout,
            Err(_) => panic!("a buffer of {len} bytes"),
        }
    }

    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> AlignedBuffer {
        if let Some(mut buffer) = AlignedBuffer::kept(len) {
            buffer.fill(0);
            return buffer;
        }
        // SAFETY: the layout has a size of at least one byte.
        let pointer = unsafe { alloc_zeroed(Self::layout(len)) };
        match NonNull::new(pointer) {
            Some(pointer) => AlignedBuffer { pointer, len },
            None => handle_alloc_error(Self::layout(len)),
        }
    }

    /// A buffer of `len` bytes filled with `fill`, which must write every byte it wants to be defined: the rest has
    /// whatever an earlier, private use of the memory left or zeros, never foreign memory.
    pub fn filled_by(len: usize, fill: impl FnOnce(&mut [u8])) -> AlignedBuffer {
        let mut buffer = AlignedBuffer::kept(len).unwrap_or_else(|| AlignedBuffer::zeroed(len));
        fill(&mut buffer);
        buffer
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> AlignedBuffer {
        if let Some(mut buffer) = AlignedBuffer::kept(bytes.len()) {
            buffer.copy_from_slice(bytes);
            return buffer;
        }
        // SAFETY: the layout has a size of at least one byte, and all bytes are written before anyone reads them.
        unsafe {
            let pointer = alloc(Self::layout(bytes.len()));
            let Some(pointer) = NonNull::new(pointer) else { handle_alloc_error(Self::layout(bytes.len())) };
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer.as_ptr(), bytes.len());
            AlignedBuffer { pointer, len: bytes.len() }
        }
    }

    fn kept(len: usize) -> Option<AlignedBuffer> {
        if len == KEPT_BYTES { KEPT.lock().pop() } else { None }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if self.len == KEPT_BYTES {
            let mut kept = KEPT.lock();
            if kept.len() < KEPT_COUNT_MAX {
                kept.push(AlignedBuffer { pointer: self.pointer, len: self.len });
                return;
            }
        }
        // SAFETY: allocated with the same layout; nobody else has the pointer.
        unsafe { dealloc(self.pointer.as_ptr(), Self::layout(self.len)) }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is initialised and lives as long as the buffer.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuffer({} bytes)", self.len)
    }
}
