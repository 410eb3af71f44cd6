//! Whether the thread of a ring may wait for a device itself. While it waits, every request of its CPU does, so it waits only for a
//! request that came alone; and if others turn out to have come meanwhile, the next ones that must wait go to the workers.
//!
//! All of it is the thread's own, so it costs a few instructions.

use std::cell::Cell;

/// So many operations that must wait are handed over after one that made others wait.
const HANDED_OVER: u32 = 32;

#[derive(Clone, Copy, Default)]
struct Turn {
    /// This is the thread of a ring.
    is_ring: bool,
    /// The request being served came alone, and nothing has come since.
    is_alone: bool,
    /// It waited.
    has_waited: bool,
    /// Operations to hand over before the next try.
    to_hand_over: u32,
}

thread_local!(static TURN: Cell<Turn> = const { Cell::new(Turn { is_ring: false, is_alone: false, has_waited: false, to_hand_over: 0 }) });

fn change(change: impl FnOnce(&mut Turn)) {
    let mut turn = TURN.get();
    change(&mut turn);
    TURN.set(turn);
}

/// Is this the thread of a ring?
pub fn is_ring_thread() -> bool {
    TURN.get().is_ring
}

/// Is this the thread of a ring, and do others wait behind the request that it serves?
pub fn others_wait() -> bool {
    let turn = TURN.get();
    turn.is_ring && !turn.is_alone
}

/// The thread begins with a request.
pub fn begin(is_alone: bool) {
    TURN.set(Turn { is_ring: true, is_alone, has_waited: false, ..TURN.get() });
}

/// Did the request wait? Then the caller looks whether others came meanwhile, and says so with [`kept_others_waiting`].
pub fn has_waited() -> bool {
    TURN.get().has_waited
}

/// Others came while the request waited.
pub fn kept_others_waiting() {
    change(|turn| turn.to_hand_over = HANDED_OVER);
}

/// Asked for an operation that must wait: here? None: this is not the thread of a ring. `is_quick`: it ends sooner than a hand-over.
pub fn may_wait_here(is_quick: bool) -> Option<bool> {
    let mut turn = TURN.get();
    if !turn.is_ring {
        return None;
    }
    let may = is_quick || (turn.is_alone && turn.to_hand_over == 0);
    turn.has_waited |= may && !is_quick;
    turn.to_hand_over = turn.to_hand_over.saturating_sub(u32::from(!may));
    TURN.set(turn);
    Some(may)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_it_waits_itself_until_others_came_meanwhile() {
        assert_eq!(may_wait_here(true), None);
        begin(true);
        assert_eq!((may_wait_here(false), has_waited()), (Some(true), true));
        kept_others_waiting();
        for _ in 0..HANDED_OVER {
            begin(true);
            assert_eq!((may_wait_here(false), has_waited()), (Some(false), false));
        }
        begin(true);
        assert_eq!(may_wait_here(false), Some(true), "tried again");
    }

    #[test]
    fn not_alone_only_what_is_quick() {
        begin(false);
        assert_eq!((may_wait_here(false), may_wait_here(true), has_waited()), (Some(false), Some(true), false));
    }
}
