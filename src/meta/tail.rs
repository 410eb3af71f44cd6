//! Where the journal may be overwritten up to. With most engines that is the last checkpoint; one that a power cut may throw back to an
//! earlier checkpoint (sled) has the journal kept from there on.

use super::journal::{Position, used_between};
use std::collections::VecDeque;

/// The last checkpoint and those before it that the journal still reaches back to.
#[derive(Debug)]
pub(super) struct Tail {
    /// Ascending; never empty.
    checkpoints: VecDeque<Position>,
    kept: usize,
}

impl Tail {
    /// After opening: `newest` is the checkpoint found, `earlier` those before it, the newest first, `kept` how many the engine wants.
    /// Earlier ones that the ring of `journal_bytes` has overwritten (the engine was thrown back itself) are left out.
    pub(super) fn new(newest: Position, earlier: &[Position], kept: usize, journal_bytes: u64, head: Position) -> Tail {
        let mut used = used_between(journal_bytes, newest, head);
        let mut checkpoints = VecDeque::from([newest]);
        for position in earlier.iter().take(kept) {
            let next = checkpoints.front().copied().unwrap_or(newest);
            used += used_between(journal_bytes, *position, next);
            if position.sequence > next.sequence || position.journal_offset > journal_bytes || used >= journal_bytes {
                break;
            }
            checkpoints.push_front(*position);
        }
        Tail { checkpoints, kept }
    }

    /// Where the journal begins.
    pub(super) fn oldest(&self) -> Position {
        self.checkpoints.front().copied().unwrap_or_default()
    }

    /// The last checkpoint.
    pub(super) fn newest(&self) -> Position {
        self.checkpoints.back().copied().unwrap_or_default()
    }

    /// Does the journal reach back behind the last checkpoint?
    pub(super) fn is_kept_back(&self) -> bool {
        self.oldest() != self.newest()
    }

    /// A checkpoint is durable.
    pub(super) fn advance(&mut self, position: Position) {
        self.checkpoints.push_back(position);
        while self.checkpoints.len() > self.kept + 1 {
            self.checkpoints.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sequence: u64, journal_offset: u64) -> Position {
        Position { sequence, journal_offset, record_checksum: 0 }
    }

    #[test]
    fn the_journal_begins_so_many_checkpoints_back() {
        let mut tail = Tail::new(at(0, 0), &[], 2, 1 << 20, at(0, 0));
        for sequence in 1..5 {
            tail.advance(at(sequence, sequence * 4096));
            assert_eq!((tail.newest().sequence, tail.oldest().sequence), (sequence, sequence.saturating_sub(2)));
        }
        let mut tail = Tail::new(at(1, 4096), &[], 0, 1 << 20, at(3, 8192));
        tail.advance(at(3, 8192));
        assert_eq!((tail.oldest(), tail.is_kept_back()), (at(3, 8192), false));
    }

    #[test]
    fn earlier_checkpoints_count_as_long_as_the_ring_still_has_them() {
        let ring = 100 * 4096;
        let earlier = [at(5, 60 * 4096), at(3, 40 * 4096)];
        let tail = Tail::new(at(7, 90 * 4096), &earlier, 2, ring, at(9, 30 * 4096));
        assert_eq!(tail.oldest(), at(3, 40 * 4096));
        // The head has gone over the older one.
        let tail = Tail::new(at(7, 90 * 4096), &earlier, 2, ring, at(9, 50 * 4096));
        assert_eq!(tail.oldest(), at(5, 60 * 4096));
        let tail = Tail::new(at(7, 90 * 4096), &earlier, 2, ring, at(9, 70 * 4096));
        assert_eq!(tail.oldest(), at(7, 90 * 4096));
        let tail = Tail::new(at(7, 90 * 4096), &[at(8, 0)], 2, ring, at(9, 95 * 4096));
        assert_eq!(tail.oldest(), at(7, 90 * 4096));
    }
}
