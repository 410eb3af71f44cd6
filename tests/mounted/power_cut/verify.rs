//! What a power cut left is mounted and judged: the store is clean, each writer's directory is what its history allows (D8), and the
//! histories fit one moment. That last rule is what makes the names of the whole store, and not only those of one writer, a prefix of
//! what happened.

use super::rig::{Outcome, Rig};
use super::writer::{Interval, Writer};
use crate::recording_file::Record;
use crate::reference_model::{FileBytes, Model};

/// At which step something was wrong, and what.
#[derive(Debug)]
pub enum Failure {
    /// ext4 did not mount, or nothing could be taken away afterwards.
    Host(String),
    /// The store does not check or mount, before and after.
    Store(String),
    /// Something acknowledged is not there, or something is there that cannot be.
    Content(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Failure::Host(what) | Failure::Store(what) | Failure::Content(what)) = self;
        write!(to, "{what}")
    }
}

/// What is known of the run.
pub struct Expected {
    pub writers: Vec<Writer>,
    /// Records when the writers' directories had been synced. Before, only the store itself is looked at.
    pub ready: usize,
}

/// Shows `image`, which a power cut after `position` records left, and judges it. Leaves nothing attached. What was written meanwhile.
pub fn verify(rig: &mut Rig, image: FileBytes, expected: &Expected, position: usize) -> Result<Vec<Record>, Failure> {
    rig.file.show(image);
    rig.file.start_recording();
    let result = rig.attach().map_err(Failure::Host).and_then(|()| look(rig, expected, position));
    let detached = rig.detach().map_err(Failure::Host);
    let log = rig.file.stop_recording();
    result.and(detached).map(|()| log)
}

fn look(rig: &mut Rig, expected: &Expected, position: usize) -> Result<(), Failure> {
    // 1: of two copies of something the cut may have torn one.
    rig.check(&[0, 1]).map_err(|error| Failure::Store(format!("as the cut left it: {error}")))?;
    rig.mount().map_err(Failure::Store)?;
    if position >= expected.ready {
        judge(expected, position).map_err(Failure::Content)?;
    }
    rig.umount().map_err(Failure::Store)?;
    rig.check(&[0]).map_err(|error| Failure::Store(format!("after mounting and unmounting: {error}")))
}

fn judge(expected: &Expected, position: usize) -> Outcome {
    let mut all = Vec::new();
    for writer in &expected.writers {
        let name = &writer.name;
        let moments = moments_of(writer, &writer.found()?, position).map_err(|error| format!("{name}: {error}"))?;
        all.push(Judged { name, intervals: &writer.intervals, moments });
    }
    fit_one_moment(&all)
}

/// One writer's history, and what was found.
struct Judged<'a> {
    name: &'a str,
    intervals: &'a [Interval],
    /// The operations after which the directory may have been as it was found.
    moments: Vec<usize>,
}

fn moments_of(writer: &Writer, found: &Model, position: usize) -> Outcome<Vec<usize>> {
    let before = |known: fn(&Interval) -> usize| {
        let last = writer.intervals.iter().rposition(|interval| known(interval) <= position);
        last.ok_or("nothing had happened before the cut".to_owned())
    };
    let complete = before(|interval| interval.acknowledged.position)?;
    let begun = before(|interval| interval.begun.position)?;
    let mut moments = vec![writer.history.judge(found, complete, begun.max(complete))?];
    while let Some(earlier) = moments.last().and_then(|last| last.checked_sub(1)) {
        match writer.history.judge(found, complete, earlier) {
            Ok(moment) => moments.push(moment),
            Err(_) => break,
        }
    }
    Ok(moments)
}

/// Is there a moment at which, for each writer, all that had been answered is there, and nothing that had not begun?
fn fit_one_moment(all: &[Judged<'_>]) -> Outcome {
    let ticks = all.iter().flat_map(|judged| judged.intervals).map(|interval| interval.acknowledged.tick);
    let fits = |tick: u64| {
        all.iter().all(|judged| {
            let answered = judged.intervals.partition_point(|interval| interval.acknowledged.tick <= tick);
            let begun = judged.intervals.partition_point(|interval| interval.begun.tick <= tick);
            judged.moments.iter().any(|moment| *moment + 1 >= answered && *moment < begun)
        })
    };
    if ticks.max().is_some_and(|last| (0..=last).any(fits)) {
        return Ok(());
    }
    let found: String = all.iter().map(|judged| format!("\n  {}: after one of {:?}", judged.name, judged.moments)).collect();
    Err(format!("the names of different writers are not those of one moment:{found}"))
}

#[test]
fn a_later_name_without_an_earlier_one_is_noticed() {
    let at = |begun, acknowledged| {
        let moment = |tick| super::writer::Moment { tick, position: 0 };
        Interval { begun: moment(begun), acknowledged: moment(acknowledged) }
    };
    // Operation 2 of `b` began when operation 1 of `a` had been answered.
    let (a, b) = ([at(0, 1), at(4, 6)], [at(2, 3), at(5, 7), at(8, 9)]);
    let fit = |of_a: usize, of_b: usize| {
        let judged = |name, intervals, moment| Judged { name, intervals, moments: vec![moment] };
        fit_one_moment(&[judged("a", &a[..], of_a), judged("b", &b[..], of_b)]).is_ok()
    };
    assert!(fit(0, 0) && fit(1, 0) && fit(0, 1) && fit(1, 1) && fit(1, 2));
    assert!(!fit(0, 2), "the later without the earlier");
}
