//! Power cuts. Random operations on a simulated machine; at every flush, and between operations, what a cut could leave is mounted,
//! checked with all data, and compared with what had been acknowledged (D8, `durability.rs`). From one of these states the run goes
//! on, and is cut again.
//!
//! `SEEDS=n` runs so many seeds (`make crash SEEDS=n`), `SEED=n` one. The last tests are the canary: with a disk that lies
//! about flushes the same suite must fail.

mod lost_index;
mod writers;

use crate::durability::History;
use crate::execution::Runner;
use crate::memory_store::{MemoryStore, Shape};
use crate::operations::{Mix, Operation, draw, shrink};
use crate::reference_model::{Id, Model};
use crate::simulated_disk::{Images, Random, SimulatedPower, Survivors};
use crate::tree::Walk;
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use sumfs::fs::{Filesystem, Options};
use sumfs::verify::check::{CheckOptions, check};
use sumfs::verify::issue::{Issue, Severity};

const STORE_BYTES: u64 = 48 << 20;
const OPERATIONS: usize = 140;
const SEEDS_DEFAULT: u64 = 30;
const SEEDS_DUP: u64 = 6;
const CANARY_SEEDS: u64 = 40;
const SHRINK_TRIES_MAX: usize = 80;

const MIX: Mix =
    Mix { names: 35, data: 35, attributes: 8, durability: 15, memory: 7, write_bytes_max: 60_000, has_far_offsets: true };

/// How to run.
#[derive(Clone)]
struct Setting {
    options: Options,
    shape: Shape,
    seeds: u64,
    /// A metadata image is kept, and half of the cuts lose the index.
    keeps_image: bool,
    /// Flushes of these ports do nothing; none: of all.
    lie: Option<&'static [&'static str]>,
}

impl Setting {
    fn new(background: bool) -> Setting {
        let options = Options { background, commit_interval_ms: 2, cache_bytes: 16 << 20, ..Options::default() };
        Setting { options, shape: Shape::SINGLE, seeds: SEEDS_DEFAULT, keeps_image: false, lie: None }
    }
}

/// What a cut left, and when it was.
struct Cut {
    images: Images,
    at: String,
}

/// The cuts at flushes during one operation.
type Cuts = Arc<Mutex<Vec<Cut>>>;

/// A machine from power on to power off.
struct Life<'a> {
    setting: &'a Setting,
    power: SimulatedPower,
    store: MemoryStore,
    runner: Runner,
    history: History,
    cuts: Cuts,
    judged: u64,
}

fn cut(power: &SimulatedPower, random: &mut Random, at: &str) -> Cut {
    let seed = random.next();
    let torn = random.below(4) == 0;
    let images = if torn { power.cut_with(seed, Survivors::Any, true) } else { power.cut(seed) };
    Cut { images, at: format!("power cut {at}{}", if torn { ", blocks torn" } else { "" }) }
}

fn durable_sequence(fs: &Filesystem) -> Option<u64> {
    fs.status()["metadata"]["durable_sequence"].as_u64()
}

impl<'a> Life<'a> {
    fn begin(setting: &'a Setting, power: SimulatedPower, store: MemoryStore, mut runner: Runner, history: History) -> Life<'a> {
        let cuts = Cuts::default();
        runner.deletes_later = setting.options.background;
        match setting.lie {
            Some([]) => power.lie_about_flushes(None),
            Some(ports) => ports.iter().for_each(|port| power.lie_about_flushes(Some(port))),
            None => {}
        }
        Life { setting, power, store, runner, history, cuts, judged: 0 }
    }

    /// Runs the operations and judges the cuts. What the last one left.
    fn run(&mut self, operations: &[Operation], random: &mut Random) -> Result<Cut, String> {
        let (cuts, mut hook_random) = (self.cuts.clone(), Random::new(random.next()));
        self.power.on_flush(Some(Box::new(move |power, port| {
            let cut = cut(power, &mut hook_random, &format!("at a flush of the {port}"));
            cuts.lock().push(cut);
        })));
        for operation in operations {
            self.step(operation, random)
                .map_err(|error| format!("{operation:?} (operation {}): {error}", self.history.last()))?;
        }
        self.power.on_flush(None);
        let cut = cut(&self.power, random, "at the end");
        if self.setting.options.background {
            // Ends the threads; what it writes is of no interest any more.
            self.runner.fs.shutdown().map_err(|error| format!("shutdown: {error}"))?;
        }
        Ok(cut)
    }

    fn step(&mut self, operation: &Operation, random: &mut Random) -> Result<(), String> {
        let before = durable_sequence(&self.runner.fs);
        let mut effect = self.runner.run(operation)?;
        let mut has_committed = !self.setting.options.background && durable_sequence(&self.runner.fs) != before;
        if *operation == Operation::Remount {
            self.runner.fs.shutdown().map_err(|error| format!("shutdown: {error}"))?;
            self.runner.remounted(self.open()?);
            effect.event = Some(crate::execution::Event::SyncedAll);
            has_committed = true;
        }
        lost_index::work_on_image(&self.runner.fs, self.setting, random)?;
        let step = self.history.add(&self.runner.model, effect, has_committed);
        let cuts = std::mem::take(&mut *self.cuts.lock());
        for cut in cuts {
            self.judge(&cut, step - 1, step, random)?;
        }
        if random.below(100) < 15 {
            let cut = cut(&self.power, random, "after it");
            self.judge(&cut, step, step, random)?;
        }
        Ok(())
    }

    fn open(&self) -> Result<Arc<Filesystem>, String> {
        Filesystem::open(self.store.disks.clone(), self.setting.options.clone()).map_err(|error| format!("opening: {error}"))
    }

    fn judge(&mut self, cut: &Cut, complete: usize, last: usize, random: &mut Random) -> Result<(), String> {
        let recovered = Recovered::from(cut, random.next(), &self.history, complete, last)?;
        self.judged += 1;
        if random.below(100) < 30 {
            recovered.fs.shutdown().map_err(|error| format!("shutdown after a crash: {error}"))?;
            recovered.store.check().map_err(|error| format!("after a crash and a clean shutdown: {error}"))?;
        }
        Ok(())
    }
}

/// A machine that was switched on again after a cut.
struct Recovered {
    power: SimulatedPower,
    store: MemoryStore,
    fs: Arc<Filesystem>,
    found: Model,
    replayed: u64,
}

impl Recovered {
    /// Checks, mounts, reads everything, compares it with the history.
    fn from(cut: &Cut, seed: u64, history: &History, complete: usize, last: usize) -> Result<Recovered, String> {
        let mut recovered = Recovered::mount(cut, seed)?;
        recovered.found = recovered.read(Model::new().root(), history)?;
        let judged = history.judge(&recovered.found, complete, last);
        judged.map_err(|error| format!("{}: {} transactions replayed: {error}", cut.at, recovered.replayed))?;
        Ok(recovered)
    }

    /// The tree below a directory, as far as the history knows of it.
    fn read(&self, root: Id, history: &History) -> Result<Model, String> {
        let interesting = |id| history.touched_blocks(id);
        let walk = Walk { fs: &self.fs, root, nameless: &[], interesting: &interesting, direct: false };
        walk.read().map_err(|error| format!("reading the tree after a crash: {error}"))
    }

    /// Checks and mounts.
    fn mount(cut: &Cut, seed: u64) -> Result<Recovered, String> {
        let power = SimulatedPower::reopen(seed, &cut.images);
        let store = MemoryStore::found_on(&power);
        let at = |what: &str, error: &dyn std::fmt::Display| format!("{}: {what}: {error}", cut.at);
        if store.disks.images.is_some() && seed.is_multiple_of(2) {
            lost_index::lose_and_rebuild(&store, seed).map_err(|error| at("making the index anew", &error))?;
        }
        let options = CheckOptions { verify_data: true };
        let report = check(&store.disks, &options, &mut |_, _| {}).map_err(|error| at("check", &error))?;
        // Torn copies are healed by the mount; but what is recorded has all its copies.
        let is_bad = |issue: &&Issue| issue.severity() != Severity::Harmless || matches!(issue, Issue::BadCopy { .. });
        if let Some(issue) = report.issues.iter().find(is_bad) {
            return Err(at("check", issue));
        }
        let options = Options { background: false, ..Options::default() };
        let fs = Filesystem::open(store.disks.clone(), options).map_err(|error| at("opening", &error))?;
        if let Some(reason) = fs.read_only_reason() {
            return Err(at("read-only", &reason));
        }
        Ok(Recovered { power, store, fs, found: Model::new(), replayed: report.replayed_transactions })
    }
}

/// Two lives of one store. The number of cuts that were judged.
fn run(seed: u64, operations: &[Operation], setting: &Setting) -> Result<u64, String> {
    let mut random = Random::new(seed);
    let power = SimulatedPower::new(random.next());
    let store = MemoryStore::shaped_on(&power, STORE_BYTES, setting.shape);
    let store = if setting.keeps_image { lost_index::begin(store, &power)? } else { store };
    let fs = store.open_with(setting.options.clone());
    let runner = Runner::new(fs, Model::new());
    let (first, second) = operations.split_at(operations.len() / 2);

    let mut life = Life::begin(setting, power, store, runner, History::new(Model::new()));
    let cut = life.run(first, &mut random)?;
    let last = life.history.last();
    let recovered = Recovered::from(&cut, random.next(), &life.history, last, last)?;
    let judged = life.judged;
    drop(life);

    let Recovered { power, store, fs, found, .. } = recovered;
    let history = History::restart(&found);
    let mut life = Life::begin(setting, power, store, Runner::new(fs, found), history);
    life.run(second, &mut random).map_err(|error| format!("in the second life: {error}"))?;
    Ok(judged + life.judged)
}

/// As `run`; panics count as failures.
fn run_caught(seed: u64, operations: &[Operation], setting: &Setting) -> Result<u64, String> {
    catch_unwind(AssertUnwindSafe(|| run(seed, operations, setting))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or(panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or("a panic".to_owned()))
    })
}

fn operations_of(seed: u64) -> Vec<Operation> {
    draw(&mut Random::new(!seed), &MIX, OPERATIONS)
}

fn number_from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Runs all seeds on as many threads as there are processors; panics with the first failure, made short.
fn run_seeds(name: &str, setting: &Setting) {
    let count = number_from_environment("SEEDS").unwrap_or(setting.seeds);
    let seeds = number_from_environment("SEED").map_or(0..count, |seed| seed..seed + 1);
    let (next, judged) = (AtomicU64::new(seeds.start), AtomicU64::new(0));
    let failure: Mutex<Option<(u64, String)>> = Mutex::new(None);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || failure.lock().is_some() {
                return;
            }
            match run_caught(seed, &operations_of(seed), setting) {
                Ok(cuts) => judged.fetch_add(cuts, Ordering::Relaxed),
                Err(reason) => return *failure.lock() = Some((seed, reason)),
            };
            if (seed + 1) % 10 == 0 {
                println!("{name}: {} of {count} seeds, {} cuts", seed + 1, judged.load(Ordering::Relaxed));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |count| count.get()) {
            scope.spawn(work);
        }
    });
    if let Some((seed, reason)) = failure.into_inner() {
        println!("{name}, SEED={seed}: {reason}\nmaking it short");
        let fails = |operations: &[Operation]| run_caught(seed, operations, setting).is_err();
        let short = shrink(operations_of(seed), SHRINK_TRIES_MAX, fails);
        let short_reason = run_caught(seed, &short, setting).err().unwrap_or_default();
        let listed: Vec<String> = short.iter().map(|operation| format!("{operation:?}")).collect();
        panic!("{name}, SEED={seed}: {reason}\nshorter: {short_reason}\nafter\n  {}", listed.join("\n  "));
    }
    println!("{name}: clean, {} cuts", judged.load(Ordering::Relaxed));
}

#[test]
fn a_power_cut_at_any_moment_loses_nothing_acknowledged() {
    run_seeds("crash", &Setting::new(false));
}

#[test]
fn a_power_cut_under_background_threads_loses_nothing_acknowledged() {
    run_seeds("crash, background", &Setting::new(true));
}

#[test]
fn a_power_cut_with_two_copies_loses_nothing_acknowledged() {
    for (name, shape) in [("crash, dup on one device", Shape::DUP_ONE), ("crash, dup on two devices", Shape::DUP_TWO)] {
        run_seeds(name, &Setting { shape, seeds: SEEDS_DUP, ..Setting::new(false) });
    }
}

#[test]
fn a_power_cut_with_stripes_loses_nothing_acknowledged() {
    for (name, shape) in [("crash, raid5", Shape::RAID5), ("crash, raid0", Shape::RAID0), ("crash, raid1", Shape::RAID1)] {
        run_seeds(name, &Setting { shape, seeds: SEEDS_DUP, ..Setting::new(false) });
    }
}

/// The suite must notice that these disks lie.
fn must_notice(setting: Setting, ports: &'static [&'static str]) {
    let setting = Setting { lie: Some(ports), ..setting };
    let noticed = (0..CANARY_SEEDS).find_map(|seed| run_caught(seed, &operations_of(seed), &setting).err());
    println!("{ports:?}: {}", noticed.as_deref().unwrap_or("not noticed"));
    assert!(noticed.is_some(), "flushes of {ports:?} did nothing, and nothing was noticed");
}

#[test]
fn canary_no_flush_at_all() {
    must_notice(Setting::new(false), &[]);
}

#[test]
fn canary_no_flush_of_the_device() {
    must_notice(Setting::new(false), &["device"]);
}

#[test]
fn canary_no_flush_of_the_journal() {
    must_notice(Setting::new(false), &["journal"]);
}

#[test]
fn canary_no_flush_of_the_index() {
    must_notice(Setting::new(false), &["index"]);
}
