//! On which CPU the thread of a ring runs: on its queue's own while requests come one at a time, on any while many come at once.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Means of completions a batch, times this.
const SCALE: usize = 16;
/// From here on many come at once.
const MANY: usize = 4 * SCALE;
/// Up to here they come one at a time.
const FEW: usize = 3 * SCALE / 2;

/// Where the calling thread may run.
#[derive(Debug)]
pub struct Placement {
    cpu: usize,
    /// Where the process may run; None: unknown, or the queue's CPU is not among them. Then nothing is changed.
    anywhere: Option<CpuSet>,
    is_pinned: bool,
    /// Moving mean of the batches, scaled.
    mean: usize,
}

impl Placement {
    /// For the thread of `cpu`'s queue, which calls this.
    pub fn new(cpu: usize) -> Placement {
        let anywhere = sched_getaffinity(None).ok().filter(|set| cpu < CpuSet::MAX_CPU && set.is_set(cpu));
        let mut placement = Placement { cpu, anywhere, is_pinned: false, mean: SCALE };
        placement.pin(true);
        placement
    }

    fn pin(&mut self, pinned: bool) {
        let Some(anywhere) = &self.anywhere else { return };
        let mut own = CpuSet::new();
        own.set(self.cpu);
        let wanted = if pinned { &own } else { anywhere };
        if sched_setaffinity(None, wanted).is_ok() {
            self.is_pinned = pinned;
        }
    }

    /// A batch of so many completions has come.
    pub fn note(&mut self, completions: usize) {
        self.mean = (self.mean * 7 + completions.min(32) * SCALE) / 8;
        if self.is_pinned && self.mean > MANY {
            self.pin(false);
        } else if !self.is_pinned && self.mean < FEW {
            self.pin(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> CpuSet {
        sched_getaffinity(None).unwrap()
    }

    #[test]
    fn pinned_while_few_come_and_free_while_many_do() {
        // The affinity is this test thread's own.
        let before = here();
        let cpu = (0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu)).unwrap();
        let mut placement = Placement::new(cpu);
        assert_eq!((here().count(), here().is_set(cpu)), (1, true));
        (0..20).for_each(|_| placement.note(16));
        assert_eq!(here(), before);
        placement.note(1);
        assert_eq!(here(), before, "one small batch is not few");
        (0..60).for_each(|_| placement.note(1));
        assert_eq!(here().count(), 1);
    }
}
