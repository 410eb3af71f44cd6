//! Several writers at once, each in a directory of its own, and power cuts at flushes, whoever asked for them. Each directory must be
//! what its own history allows; how the histories of different writers lie to each other in time is not looked at.
//!
//! Threads make each run different: `SEED=n` repeats the operations, not the moments.

use super::{Cut, MIX, Recovered, Setting, cut, number_from_environment};
use crate::durability::History;
use crate::execution::Runner;
use crate::memory_store::MemoryStore;
use crate::operations::{Mix, Operation, draw};
use crate::reference_model::{Id, Model};
use crate::simulated_disk::{Random, SimulatedPower};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use sumfs::fs::{Caller, Filesystem};
use sumfs::units::InodeNumber;

const WRITERS: usize = 3;
const OPERATIONS: usize = 60;
const SEEDS_DEFAULT: u64 = 10;
const CUTS_MAX: usize = 60;

/// How far a writer is: numbers of operations.
#[derive(Default)]
struct Progress {
    begun: AtomicUsize,
    complete: AtomicUsize,
}

/// A cut, and what each writer had been answered before it and had asked for until after it.
struct Moment {
    cut: Cut,
    complete: Vec<usize>,
    begun: Vec<usize>,
}

type Moments = Arc<Mutex<Vec<Moment>>>;

/// Takes a cut at some of the flushes.
fn watch(power: &SimulatedPower, progress: Arc<Vec<Progress>>, moments: Moments, mut random: Random) {
    power.on_flush(Some(Box::new(move |power, port| {
        let is_wanted = random.below(3) > 0;
        let mut moments = moments.lock();
        if !is_wanted || moments.len() >= CUTS_MAX {
            return;
        }
        let complete = progress.iter().map(|of| of.complete.load(Ordering::SeqCst)).collect();
        let cut = cut(power, &mut random, &format!("at a flush of the {port}"));
        let begun = progress.iter().map(|of| of.begun.load(Ordering::SeqCst)).collect();
        moments.push(Moment { cut, complete, begun });
    })));
}

/// One writer's operations in its directory; its history.
fn write(
    fs: Arc<Filesystem>,
    root: Id,
    operations: &[Operation],
    progress: &Progress,
    deletes_later: bool,
) -> Result<History, String> {
    let mut runner = Runner::new(fs, Model::rooted(root));
    runner.deletes_later = deletes_later;
    let mut history = History::new(runner.model.clone());
    // Times are kept in memory until a commit looks at the inode: one that others asked for may come between them and what the same
    // writer did next.
    let is_wanted = |operation: &&Operation| !matches!(operation, Operation::Remount | Operation::SetModified { .. });
    for operation in operations.iter().filter(is_wanted) {
        progress.begun.store(history.last() + 1, Ordering::SeqCst);
        let effect = runner.run(operation).map_err(|error| format!("writer in {root}: {error}"))?;
        let number = history.add(&runner.model, effect, false);
        progress.complete.store(number, Ordering::SeqCst);
    }
    runner.compare(false)?;
    Ok(history)
}

/// The number of cuts judged.
fn run(seed: u64, setting: &Setting) -> Result<usize, String> {
    let mut random = Random::new(seed);
    let power = SimulatedPower::new(random.next());
    let store = MemoryStore::on(&power, 96 << 20);
    let fs = store.open_with(setting.options.clone());
    let caller = Caller { uid: 0, gid: 0, pid: 1 };
    let make = |number| fs.mkdir(&caller, InodeNumber::ROOT, format!("writer{number}").as_bytes(), 0o755, 0);
    let roots: Vec<Id> = (0..WRITERS).map(|number| make(number).expect("mkdir").inode.0).collect();
    fs.sync().expect("sync");

    let progress: Arc<Vec<Progress>> = Arc::new((0..WRITERS).map(|_| Progress::default()).collect());
    let moments = Moments::default();
    watch(&power, progress.clone(), moments.clone(), Random::new(random.next()));
    let mix = Mix { durability: 25, ..MIX };
    let lists: Vec<Vec<Operation>> = (0..WRITERS).map(|_| draw(&mut random, &mix, OPERATIONS)).collect();
    let deletes_later = setting.options.background;
    let histories: Result<Vec<History>, String> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                let (fs, root, operations, progress) = (fs.clone(), roots[number], &lists[number], &progress[number]);
                scope.spawn(move || write(fs, root, operations, progress, deletes_later))
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap_or_else(|_| Err("a writer panicked".to_owned()))).collect()
    });
    power.on_flush(None);
    fs.shutdown().map_err(|error| format!("shutdown: {error}"))?;
    store.check().map_err(|error| format!("after shutdown: {error}"))?;

    let (histories, moments) = (histories?, std::mem::take(&mut *moments.lock()));
    for moment in &moments {
        let recovered = Recovered::mount(&moment.cut, random.next())?;
        for (number, history) in histories.iter().enumerate() {
            let found = recovered.read(roots[number], history)?;
            let judged = history.judge(&found, moment.complete[number], moment.begun[number].min(history.last()));
            judged.map_err(|error| format!("{}: {error}", moment.cut.at))?;
        }
        recovered.fs.shutdown().map_err(|error| format!("shutdown after a crash: {error}"))?;
        recovered.store.check().map_err(|error| format!("after a crash and a clean shutdown: {error}"))?;
    }
    Ok(moments.len())
}

fn run_seeds(name: &str, setting: &Setting) {
    let count = number_from_environment("SEEDS").map_or(SEEDS_DEFAULT, |seeds| seeds.div_ceil(4));
    let seeds = number_from_environment("SEED").map_or(0..count, |seed| seed..seed + 1);
    let mut cuts = 0;
    for seed in seeds {
        cuts += run(seed, setting).unwrap_or_else(|error| panic!("{name}, SEED={seed}: {error}"));
        if (seed + 1) % 10 == 0 {
            println!("{name}: {} of {count} seeds, {cuts} cuts", seed + 1);
        }
    }
    println!("{name}: clean, {cuts} cuts");
}

#[test]
fn a_power_cut_under_several_writers_loses_nothing_acknowledged() {
    run_seeds("crash, writers", &Setting::new(false));
}

#[test]
fn a_power_cut_under_several_writers_and_background_threads_loses_nothing_acknowledged() {
    run_seeds("crash, writers, background", &Setting::new(true));
}
