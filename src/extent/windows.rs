//! Where a file's last writes went, so that the next ones go beside them although they arrive out of order.
//!
//! A window is 1 MiB of device space matched to 1 MiB of file offset. With many writes in flight the last ones of a window arrive
//! between the first ones of the next, and with large ones many windows are open at once, so the last few are remembered.
//! Guarded by a leaf mutex of the file.

use crate::space::allocator::Placement;
use crate::units::{BLOCK_SIZE, BlockAddress, EXTENT_BYTES_MAX, block_ceil};
use std::collections::VecDeque;

/// Bytes of a window.
const WINDOW_BYTES: u64 = EXTENT_BYTES_MAX;
/// Blocks of a window.
const WINDOW_BLOCKS: u32 = (WINDOW_BYTES / BLOCK_SIZE) as u32;
/// Windows remembered: as many as 64 writes of half a window each reach into.
const WINDOWS_MAX: usize = 32;
/// A write beside one of so many is no scattered one: the last was perhaps a late one of the window before.
const NEAR_MAX: usize = 4;
/// Files below this size are packed one behind the other.
const PACKED_BYTES_MAX: u64 = 512 << 10;
/// Runs of so many blocks get a window wherever they are in the file.
const WINDOW_BLOCKS_MIN: u32 = 64;
/// A window of which so much was handed out is over: what comes to it again is a second pass over the file.
const FULL_BLOCKS_MIN: u32 = WINDOW_BLOCKS / 4 * 3;

/// One remembered window.
#[derive(Debug)]
struct Window {
    /// File offset in windows.
    number: u64,
    /// The block that stands for its first.
    base: u64,
    /// Blocks handed out in it.
    given: u32,
    /// One write that was packed: forgotten with the next that is elsewhere.
    is_scattered: bool,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    /// Newest first.
    known: VecDeque<Window>,
    /// End in the file of what was packed, while it was small.
    packed_end: u64,
}

impl Windows {
    /// Where `most` blocks at `offset` should go, and how many of them. `stored_size`: up to there the file is on the device.
    pub(super) fn placement(&self, offset: u64, most: u32, file_size: u64, stored_size: u64) -> (Placement, u32) {
        let (number, within) = split(offset);
        // What reaches into the next window goes there on the next call.
        let fitting = most.min(WINDOW_BLOCKS - within);
        let is_small = file_size <= PACKED_BYTES_MAX;
        let window = Placement::Window { within };
        let placement = match self.known.iter().find(|window| window.number == number) {
            // A second write where one was packed: not scattered after all.
            Some(known) if known.is_scattered => window,
            Some(known) if known.given >= FULL_BLOCKS_MIN && known.given + fitting > WINDOW_BLOCKS => window,
            Some(known) => Placement::At(BlockAddress(known.base + u64::from(within))),
            // A file that grows in order is packed while it is small; one that leaves gaps will have them filled in any order.
            None if is_small && offset <= self.packed_end.max(block_ceil(stored_size)) => return (Placement::Packed, most),
            None if is_small || most >= WINDOW_BLOCKS_MIN || self.is_near(number) => window,
            // Scattered small writes: a window for each would leave the store in pieces.
            None => Placement::Packed,
        };
        (placement, fitting)
    }

    fn is_near(&self, number: u64) -> bool {
        self.known.is_empty() || self.known.iter().take(NEAR_MAX).any(|window| window.number.abs_diff(number) <= 1)
    }

    /// Notes where `count` blocks at `offset` went.
    pub(super) fn note(&mut self, offset: u64, file_size: u64, placement: Placement, address: BlockAddress, count: u32) {
        let (number, within) = split(offset);
        let is_packed = matches!(placement, Placement::Packed);
        if is_packed && file_size <= PACKED_BYTES_MAX {
            self.packed_end = self.packed_end.max(offset + u64::from(count) * BLOCK_SIZE);
            return;
        }
        let Some(base) = address.0.checked_sub(u64::from(within)) else { return };
        let before = self.known.iter().position(|window| window.number == number).and_then(|at| self.known.remove(at));
        if self.known.front().is_some_and(|last| last.is_scattered) {
            self.known.pop_front();
        }
        let given = before.filter(|window| window.base == base).map_or(0, |window| window.given);
        self.known.push_front(Window { number, base, given: given + count, is_scattered: is_packed });
        self.known.truncate(WINDOWS_MAX);
    }
}

/// Number of the window and block in it.
fn split(offset: u64) -> (u64, u32) {
    (offset / WINDOW_BYTES, (offset % WINDOW_BYTES / BLOCK_SIZE) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Placement::{At, Packed, Window as Fresh};

    const MIB: u64 = 1 << 20;

    /// Places one block; each fresh window is the next MiB of the device, and what is packed goes behind 1 << 20.
    fn place(windows: &mut Windows, fresh: &mut u64, block: u64, file_size: u64) -> Placement {
        let (placement, count) = windows.placement(block * BLOCK_SIZE, 1, file_size, 0);
        let address = match placement {
            At(address) => address,
            Fresh { within } => {
                *fresh += 256;
                BlockAddress(*fresh + u64::from(within))
            }
            Packed => BlockAddress(1 << 20),
        };
        windows.note(block * BLOCK_SIZE, file_size, placement, address, count);
        placement
    }

    #[test]
    fn late_writes_find_their_window() {
        let (mut windows, mut fresh) = (Windows::default(), 0);
        for block in [254, 256, 255, 257, 512, 253, 258, 768, 100, 513] {
            place(&mut windows, &mut fresh, block, 64 * MIB);
        }
        assert_eq!(fresh, 4 * 256, "one window for each of four MiB");
        assert!(matches!(place(&mut windows, &mut fresh, 252, 64 * MIB), At(BlockAddress(508))));
    }

    #[test]
    fn scattered_writes_take_no_windows() {
        let (mut windows, mut fresh) = (Windows::default(), 0);
        place(&mut windows, &mut fresh, 0, 9000 * MIB);
        for number in 1..500 {
            place(&mut windows, &mut fresh, number * 2560, 9000 * MIB);
        }
        assert_eq!(fresh, 256, "only the first");
        place(&mut windows, &mut fresh, 499 * 2560 + 1, 9000 * MIB);
        assert_eq!(fresh, 512, "a second beside the last one is no scattered one");
    }

    #[test]
    fn small_files_are_packed_unless_they_begin_with_gaps() {
        let (mut windows, mut fresh) = (Windows::default(), 0);
        (0..128).for_each(|block| assert!(matches!(place(&mut windows, &mut fresh, block, MIB / 2), Packed)));
        let mut windows = Windows::default();
        for block in [5, 0, 3] {
            place(&mut windows, &mut fresh, block, MIB / 2);
        }
        assert_eq!(fresh, 256);
    }

    #[test]
    fn a_second_pass_takes_fresh_windows() {
        let (mut windows, mut fresh) = (Windows::default(), 0);
        for block in (0..512).rev().chain((0..512).rev()) {
            place(&mut windows, &mut fresh, block, 2 * MIB);
        }
        assert_eq!(fresh, 4 * 256);
    }
}
