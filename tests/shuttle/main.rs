//! Models for shuttle: a few threads, each with a few operations, run under hundreds of schedules that a seed chooses. All code
//! is the real one, on a simulated machine; only threads, locks and atomics are shuttle's (`src/sync.rs`). A deadlock and a lost
//! wakeup are found by shuttle itself, the rest by what each model asserts.
//!
//! `make shuttle SCHEDULES=n` says how many schedules a model gets, SEED= which. A failing schedule is written to a file;
//! SCHEDULE=FILE runs only that one, with the name of the test that failed.

#[path = "../common/simulated_disk.rs"]
mod simulated_disk;

mod answers;
mod contents;
mod durability;
mod machine;
mod names;
mod ranges;
mod revival;
mod room;

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, Runner};

/// Schedules that a model gets when nothing else is said.
const SCHEDULES: usize = 200;
/// redb's frames are large.
const STACK_BYTES: usize = 1 << 20;
/// Changes of priority in a schedule of the second kind: bugs that need so many unlucky moments are found with good odds.
const DEPTH: usize = 4;

/// Runs `body` under many schedules: half of them switch at random, half keep to priorities that change at a few moments.
fn model(body: impl Fn() + Clone + Send + Sync + 'static) {
    if let Ok(file) = std::env::var("SCHEDULE") {
        let scheduler = ReplayScheduler::new_from_file(&file).expect("reading the schedule");
        return run(scheduler, body);
    }
    let seed = simulated_disk::seed_from_environment(1);
    let schedules = std::env::var("SCHEDULES").ok().and_then(|text| text.parse().ok()).unwrap_or(SCHEDULES);
    run(RandomScheduler::new_from_seed(seed, schedules.div_ceil(2)), body.clone());
    run(PctScheduler::new_from_seed(seed, DEPTH, schedules.div_ceil(2)), body);
}

fn run(scheduler: impl Scheduler + 'static, body: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.silence_warnings = true;
    config.failure_persistence = FailurePersistence::File(Some(env!("CARGO_TARGET_TMPDIR").into()));
    Runner::new(scheduler, config).run(body);
}

/// A number below `limit`, chosen by the schedule.
fn below(limit: u64) -> u64 {
    thread_rng().gen_range(0..limit)
}

/// One of them, chosen by the schedule.
fn one_of<T: Clone>(choices: &[T]) -> T {
    choices[below(choices.len() as u64) as usize].clone()
}

/// Runs the bodies, each on a thread of the model, and waits for all; their results.
fn together<T: Send + 'static>(bodies: Vec<Box<dyn FnOnce() -> T + Send>>) -> Vec<T> {
    let threads: Vec<_> = bodies.into_iter().map(shuttle::thread::spawn).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}
