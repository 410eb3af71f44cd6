//! What makes a snapshot an unchanging view of sled, which has none: while an apply runs, the values that it replaces are kept for
//! those who hold an older view.
//!
//! Generation n is the state after the n-th apply. An apply first notes the old value of each key it is about to change, then changes
//! sled. A reader reads sled first and the notes afterwards: if it saw a change, the note was there before the change and is found;
//! if it did not, the note (if there is one by now) says the same as what it read. Notes of generation n are needed by snapshots
//! older than n, and go with the last of them.
//!
//! Lock: one reader-writer lock, leaf, never held while sled is asked.

use parking_lot::RwLock;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// An old value per key; None: there was none.
pub(super) type Notes = BTreeMap<Vec<u8>, Option<Arc<[u8]>>>;

#[derive(Default)]
struct State {
    /// The newest generation that is complete.
    current: u64,
    /// Notes by generation, ascending; the last may be of the apply that runs, or that failed.
    notes: VecDeque<(u64, Notes)>,
    /// How many snapshots there are of each generation.
    live: BTreeMap<u64, usize>,
}

impl State {
    /// Takes out the notes that nobody needs any more.
    fn outlived(&mut self) -> Vec<Notes> {
        let oldest = self.live.keys().next().copied().unwrap_or(self.current);
        let mut out = Vec::new();
        while let Some((generation, _)) = self.notes.front()
            && *generation <= oldest
        {
            out.extend(self.notes.pop_front().map(|(_, notes)| notes));
        }
        out
    }
}

/// All generations of one index.
#[derive(Default)]
pub(super) struct History {
    state: RwLock<State>,
}

impl History {
    /// An apply begins. Only one at a time.
    pub(super) fn begin(&self) {
        let mut state = self.state.write();
        let next = state.current + 1;
        state.notes.push_back((next, Notes::new()));
    }

    /// Notes old values for the apply that runs; to be done before sled is changed.
    pub(super) fn note(&self, old: Notes) {
        if let Some((_, notes)) = self.state.write().notes.back_mut() {
            for (key, value) in old {
                notes.entry(key).or_insert(value);
            }
        }
    }

    /// The apply is complete: snapshots from now on show it.
    pub(super) fn finish(&self) {
        let outlived = {
            let mut state = self.state.write();
            state.current += 1;
            state.outlived()
        };
        drop(outlived);
    }

    /// Begins a snapshot; its generation.
    pub(super) fn hold(&self) -> u64 {
        let mut state = self.state.write();
        let generation = state.current;
        *state.live.entry(generation).or_insert(0) += 1;
        generation
    }

    /// Ends a snapshot.
    pub(super) fn release(&self, generation: u64) {
        let outlived = {
            let mut state = self.state.write();
            if let Some(count) = state.live.get_mut(&generation) {
                *count -= 1;
                if *count == 0 {
                    state.live.remove(&generation);
                }
            }
            state.outlived()
        };
        drop(outlived);
    }

    /// What `key` had in `generation`, if it was changed since.
    pub(super) fn find(&self, generation: u64, key: &[u8]) -> Option<Option<Arc<[u8]>>> {
        let state = self.state.read();
        let mut newer = state.notes.iter().filter(|(number, _)| *number > generation);
        newer.find_map(|(_, notes)| notes.get(key).cloned())
    }

    /// What the changed keys between the bounds had in `generation`.
    pub(super) fn find_range(&self, generation: u64, from: &[u8], to: Bound<&[u8]>) -> Notes {
        let state = self.state.read();
        let mut found = Notes::new();
        for (_, notes) in state.notes.iter().filter(|(number, _)| *number > generation) {
            for (key, value) in notes.range::<[u8], _>((Bound::Included(from), to)) {
                found.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        found
    }

    /// Generations of which there are notes.
    pub(super) fn kept(&self) -> usize {
        self.state.read().notes.len()
    }
}
