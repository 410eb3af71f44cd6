//! Placement: where the next blocks of a file go.
//!
//! Large files write into *windows*: 1 MiB of device space matched to 1 MiB of file offset, so that neighbours that arrive
//! out of order end up adjacent. A window is a hint, not a possession: the cursor moves on by whole windows, so others do not
//! come between unless space is short. Small files are packed one behind the other.

use super::groups::{Space, State};
use crate::error::{Error, Result};
use crate::units::{BlockAddress, EXTENT_BLOCKS_MAX};

/// Groups that a search looks through for the best place before it takes a good one.
const GROUPS_SEARCHED_MAX: usize = 2;

/// Where the next search begins: group and block.
#[derive(Debug, Default)]
pub(super) struct Cursors {
    window: (usize, u32),
    packed: (usize, u32),
}

/// How to place blocks.
#[derive(Clone, Copy, Debug)]
pub enum Placement {
    /// At this block if it is free, else as `Packed`.
    At(BlockAddress),
    /// In a fresh window, so many blocks behind its begin.
    Window {
        /// See above.
        within: u32,
    },
    /// Behind the last small file.
    Packed,
}

impl Space {
    /// Takes up to `most` blocks (at least one) in one run, out of the caller's reservation. The run may be shorter than
    /// asked for; the caller comes again for the rest.
    pub fn allocate(&self, most: u32, placement: Placement) -> Result<(BlockAddress, u32)> {
        let mut state = self.state.lock();
        let most = most.min(EXTENT_BLOCKS_MAX);
        let found = match placement {
            Placement::At(block) => state.run_at(block.0, most, self.blocks_per_group).or_else(|| state.find_packed(most)),
            Placement::Window { within } => state.find_window(within, most),
            Placement::Packed => state.find_packed(most),
        };
        let (group_number, block, count) = found.ok_or_else(|| Error::corrupt("a reservation without free space behind it"))?;
        let changed = state.groups[group_number].set_used(block, count, true);
        debug_assert_eq!(changed, count);
        state.free -= u64::from(changed);
        debug_assert!(state.reserved >= u64::from(count));
        state.reserved = state.reserved.saturating_sub(u64::from(count));
        Ok((BlockAddress(group_number as u64 * self.blocks_per_group + u64::from(block)), count))
    }
}

impl State {
    fn run_at(&self, block: u64, most: u32, blocks_per_group: u64) -> Option<(usize, u32, u32)> {
        let number = (block / blocks_per_group) as usize;
        let first = (block % blocks_per_group) as u32;
        let count = self.groups.get(number).filter(|group| group.takes_new)?.used.free_run(first, most);
        (count > 0).then_some((number, first, count))
    }

    fn find_window(&mut self, within: u32, most: u32) -> Option<(usize, u32, u32)> {
        let (number, first, count) = self.search(self.cursors.window, EXTENT_BLOCKS_MAX, most)?;
        self.cursors.window = (number, first + count);
        let within = if within < count { within } else { 0 };
        Some((number, first + within, most.min(count - within)))
    }

    fn find_packed(&mut self, most: u32) -> Option<(usize, u32, u32)> {
        let (number, first, count) = self.search(self.cursors.packed, most, most.min(16))?;
        let count = count.min(most);
        self.cursors.packed = (number, first + count);
        Some((number, first, count))
    }

    /// Searches from the cursor, once around, for a run of `want` blocks, else the longest seen; where space is in pieces a run of
    /// `need` is good enough after a few groups.
    fn search(&self, (start_group, start_block): (usize, u32), want: u32, need: u32) -> Option<(usize, u32, u32)> {
        let groups = self.groups.len();
        let mut best: Option<(usize, u32, u32)> = None;
        for step in 0..=groups {
            let number = (start_group + step) % groups.max(1);
            let Some(group) = self.groups.get(number) else { break };
            if group.free == 0 || !group.takes_new {
                continue;
            }
            let from = if step == 0 { start_block } else { 0 };
            let Some((first, count)) = group.used.find_run(from, want) else { continue };
            if best.is_none_or(|(_, _, most)| count > most) {
                best = Some((number, first, count));
            }
            let is_enough = best.is_some_and(|(_, _, most)| most >= need);
            if count >= want || (is_enough && step >= GROUPS_SEARCHED_MAX) {
                break;
            }
        }
        best
    }
}
