//! Freed blocks that may not be used again yet (D3): the transaction that freed them is durable, but a read that began before
//! may still be under way. Reads hold an [`EpochGuard`]; frees carry the epoch at which they became final.

use crate::sync::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// A run of blocks: first logical block, count.
pub type Run = (u64, u32);

#[derive(Debug, Default)]
struct State {
    epoch: u64,
    /// Epochs in which reads began, oldest first, with how many of them are under way.
    readers: VecDeque<(u64, usize)>,
    pinned: VecDeque<(u64, Vec<Run>)>,
    pinned_blocks: u64,
}

/// Epochs of reads and the frees that wait for them. One leaf lock.
#[derive(Debug, Default)]
pub struct Pinned {
    state: Mutex<State>,
}

/// Held by every read of a device from the lookup of the address to the end of the read.
#[derive(Debug)]
pub struct EpochGuard {
    pinned: Arc<Pinned>,
    epoch: u64,
}

impl Pinned {
    /// Begins a read.
    pub fn enter(self: &Arc<Pinned>) -> EpochGuard {
        let mut state = self.state.lock();
        let epoch = state.epoch;
        match state.readers.back_mut() {
            Some((newest, count)) if *newest == epoch => *count += 1,
            _ => state.readers.push_back((epoch, 1)),
        }
        EpochGuard { pinned: self.clone(), epoch }
    }

    /// Pins `runs`: they come back from `take_released` when all reads that began before now have ended.
    pub fn pin(&self, runs: Vec<Run>) {
        if runs.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        let epoch = state.epoch;
        state.epoch += 1;
        state.pinned_blocks += runs.iter().map(|run| u64::from(run.1)).sum::<u64>();
        state.pinned.push_back((epoch, runs));
    }

    /// The runs that nobody can be reading any more.
    pub fn take_released(&self) -> Vec<Run> {
        let mut state = self.state.lock();
        let oldest = state.readers.front().map_or(u64::MAX, |(epoch, _)| *epoch);
        let mut released = Vec::new();
        while state.pinned.front().is_some_and(|(epoch, _)| *epoch < oldest) {
            if let Some((_, runs)) = state.pinned.pop_front() {
                state.pinned_blocks -= runs.iter().map(|run| u64::from(run.1)).sum::<u64>();
                released.extend(runs);
            }
        }
        released
    }

    /// Blocks that wait.
    pub fn blocks(&self) -> u64 {
        self.state.lock().pinned_blocks
    }
}

impl Drop for EpochGuard {
    fn drop(&mut self) {
        let mut state = self.pinned.state.lock();
        if let Some((_, count)) = state.readers.iter_mut().find(|(epoch, _)| *epoch == self.epoch) {
            *count -= 1;
        }
        while state.readers.front().is_some_and(|(_, count)| *count == 0) {
            state.readers.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_began_before_holds_a_free_back() {
        let pinned = Arc::new(Pinned::default());
        let before = pinned.enter();
        pinned.pin(vec![(7, 2)]);
        let after = pinned.enter();
        assert_eq!(pinned.take_released(), vec![]);
        drop(before);
        assert_eq!(pinned.take_released(), vec![(7, 2)]);
        pinned.pin(vec![(9, 1)]);
        assert_eq!(pinned.take_released(), vec![], "the second read is older than this free");
        drop(after);
        assert_eq!(pinned.take_released(), vec![(9, 1)]);
        assert_eq!(pinned.blocks(), 0);
    }
}
