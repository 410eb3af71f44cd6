//! Storing runs in groups with parity: all that came together is laid out in rows, whole stripes first, and written with its parity.
//! The counterpart of `store.rs`, whose rules hold here too.

use super::Extents;
use super::store::{ATTEMPTS_MAX, DirtyRun, Outcome, Placed};
use crate::error::{Error, Result};
use crate::space::stripes::{Rows, StripeWrite};
use crate::space::transfer::carve;
use crate::units::BLOCK;
use std::sync::atomic::Ordering;

/// Blocks of a run that need a place.
#[derive(Clone, Copy)]
struct Waiting {
    run: usize,
    first: usize,
    count: u32,
}

impl Extents {
    /// Places and writes the runs. What is written goes to `written`; a run of which something could not be has its error in `outcomes`.
    pub(super) fn store_in_rows<'a>(&self, runs: &[DirtyRun<'a>], written: &mut Vec<Placed<'a>>, outcomes: &mut [Outcome]) {
        let blocks = |run: &DirtyRun<'_>| (run.slices.iter().map(|slice| slice.len()).sum::<usize>() / BLOCK) as u32;
        let mut waiting: Vec<Waiting> =
            runs.iter().enumerate().map(|(run, dirty)| Waiting { run, first: 0, count: blocks(dirty) }).collect();
        // What follows in a file is to follow on the devices, in whatever order it came.
        waiting.sort_by_key(|waiting| runs.get(waiting.run).map(|run| (run.file.inode, run.offset)));
        for attempt in 1.. {
            let failed = match self.write_rows(runs, &waiting, written, outcomes) {
                Ok(failed) if failed.is_empty() => return,
                Ok(failed) => failed,
                Err(error) => {
                    fail(&waiting, outcomes, &error);
                    return;
                }
            };
            let (again, errors): (Vec<Waiting>, Vec<_>) = failed.into_iter().unzip();
            let total: u32 = again.iter().map(|waiting| waiting.count).sum();
            self.stats.io_errors.fetch_add(1, Ordering::Relaxed);
            if let Some(error) = errors.first() {
                tracing::warn!("writing {total} blocks with parity: {error} (attempt {attempt})");
                // The failed places stay out of use until the next mount.
                if attempt >= ATTEMPTS_MAX || !self.reserve_elsewhere(total) {
                    fail(&again, outcomes, error);
                    return;
                }
            }
            waiting = again;
        }
    }

    /// One attempt; what failed.
    fn write_rows<'a>(
        &self,
        runs: &[DirtyRun<'a>],
        waiting: &[Waiting],
        written: &mut Vec<Placed<'a>>,
        outcomes: &mut [Outcome],
    ) -> Result<Vec<(Waiting, Error)>> {
        let total = waiting.iter().map(|waiting| waiting.count).sum();
        let rows = self.space.allocate_rows(total)?;
        let placed = pour(runs, waiting, &rows);
        for part in placed.iter().flatten() {
            if let Some(outcome) = outcomes.get_mut(part.run) {
                outcome.taken_blocks += u64::from(part.count);
            }
        }
        let stripes: Vec<StripeWrite<'_>> = rows
            .into_iter()
            .zip(&placed)
            .map(|(rows, parts)| StripeWrite {
                rows,
                slices: parts.iter().flat_map(|part| part.slices.iter().copied()).collect(),
            })
            .collect();
        let results = self.space.write_stripes(&stripes);
        let mut failed = Vec::new();
        for (parts, result) in placed.into_iter().zip(results) {
            match result {
                Ok(()) => written.extend(parts),
                Err(error) => {
                    for part in parts {
                        if let Some(outcome) = outcomes.get_mut(part.run) {
                            outcome.taken_blocks -= u64::from(part.count);
                        }
                        failed.push((Waiting { run: part.run, first: part.first, count: part.count }, error.clone()));
                    }
                }
            }
        }
        Ok(failed)
    }
}

fn fail(waiting: &[Waiting], outcomes: &mut [Outcome], error: &Error) {
    for waiting in waiting {
        if let Some(outcome) = outcomes.get_mut(waiting.run) {
            outcome.result = Err(error.clone());
        }
    }
}

/// Gives each block that waits the next address of the rows, in order; for each of the rows what goes there.
fn pour<'a>(runs: &[DirtyRun<'a>], waiting: &[Waiting], rows: &[Rows]) -> Vec<Vec<Placed<'a>>> {
    let mut waiting = waiting.iter().copied();
    let mut current: Option<Waiting> = None;
    let mut pour_into = |rows: &Rows| {
        let mut parts = Vec::new();
        for (mut address, mut free) in rows.runs() {
            while free > 0 {
                let Some(next) = current.take().or_else(|| waiting.next()) else { return parts };
                let count = next.count.min(free);
                let upto = next.first + count as usize;
                let slices =
                    runs.get(next.run).map(|run| carve(&run.slices, next.first * BLOCK, upto * BLOCK)).unwrap_or_default();
                parts.push(Placed { run: next.run, first: next.first, count, address, slices });
                address = address.plus(u64::from(count));
                free -= count;
                current = (count < next.count).then_some(Waiting { run: next.run, first: upto, count: next.count - count });
            }
        }
        parts
    };
    rows.iter().map(&mut pour_into).collect()
}
