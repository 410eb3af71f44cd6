//! Aligned memory: what O_DIRECT, the cache's segments and the checksum pipeline share. One of the few files with
//! `unsafe`. Buffers of the usual sizes are kept and used again: a fresh one of 1 MiB costs 256 page faults, an aligned one of 4 KiB
//! more than the checksum of what it will hold.

#![allow(unsafe_code)]

use parking_lot::Mutex;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

const ALIGNMENT: usize = 4096;
/// Kept sizes are the powers of two from 4 KiB to 1 MiB.
const KEPT_SHIFT_MIN: u32 = 12;
const KEPT_SIZES: usize = 9;
/// Of the largest size 32 MiB are kept at most, of each smaller one half as much as of the next.
const KEPT_COUNT_MAX: usize = 32;

static KEPT: [Mutex<Vec<AlignedBuffer>>; KEPT_SIZES] = [const { Mutex::new(Vec::new()) }; KEPT_SIZES];

/// Where buffers of this length are kept.
fn kept(len: usize) -> Option<&'static Mutex<Vec<AlignedBuffer>>> {
    let size = len.checked_ilog2()?.checked_sub(KEPT_SHIFT_MIN)?;
    KEPT.get(size as usize).filter(|_| len.is_power_of_two())
}

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
        kept(len)?.lock().pop()
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if let Some(kept) = kept(self.len) {
            let mut kept = kept.lock();
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
