//! Random operations on a [`Filesystem`](sumfs::fs::Filesystem) and on the reference model: every answer and, every few
//! operations, the whole tree must agree; in between the store is closed, checked and opened again.
//!
//! `SEED=n` runs one seed, `MODEL_SEEDS=n` so many. A failing list of operations is made short before it is shown.

use crate::execution::Runner;
use crate::memory_store::{MemoryStore, Shape};
use crate::operations::{Mix, Operation, draw, shrink};
use crate::reference_model::Model;
use crate::simulated_disk::Random;
use std::panic::{AssertUnwindSafe, catch_unwind};
use sumfs::fs::Options;

/// The whole tree is compared after so many operations.
const COMPARE_EVERY: usize = 25;
const SHRINK_TRIES_MAX: usize = 300;

const MIX: Mix =
    Mix { names: 30, data: 45, attributes: 15, durability: 5, memory: 5, write_bytes_max: 150_000, has_far_offsets: true };

/// One way to run.
struct Variant {
    mix: Mix,
    store_bytes: u64,
    shape: Shape,
    options: Options,
    may_be_full: bool,
    operations: usize,
    seeds: u64,
}

impl Variant {
    fn usual() -> Variant {
        let options = Options { background: false, ..Options::default() };
        Variant { mix: MIX, store_bytes: 1 << 30, shape: Shape::SINGLE, options, may_be_full: false, operations: 400, seeds: 12 }
    }
}

fn number_from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn run_all(name: &str, variant: &Variant) {
    let seeds = match number_from_environment("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number_from_environment("MODEL_SEEDS").unwrap_or(variant.seeds),
    };
    println!("{name}: seeds {seeds:?}; SEED=n runs one of them");
    for seed in seeds {
        let operations = draw(&mut Random::new(seed), &variant.mix, variant.operations);
        let Err(reason) = run(&operations, variant) else { continue };
        let short = shrink(operations, SHRINK_TRIES_MAX, |operations| run(operations, variant).is_err());
        let reason = run(&short, variant).err().unwrap_or(format!("(before it was made short) {reason}"));
        let listed: Vec<String> = short.iter().map(|operation| format!("{operation:?}")).collect();
        panic!("{name}, SEED={seed}: {reason}\nafter these operations:\n  {}", listed.join("\n  "));
    }
}

/// Runs the operations on a new store. Panics count as failures.
fn run(operations: &[Operation], variant: &Variant) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| run_operations(operations, variant))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or(panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or("a panic".to_owned()))
    })
}

fn run_operations(operations: &[Operation], variant: &Variant) -> Result<(), String> {
    let store = MemoryStore::shaped(variant.store_bytes, variant.shape);
    let mut runner = Runner::new(store.open_with(variant.options.clone()), Model::new());
    runner.may_be_full = variant.may_be_full;
    runner.deletes_later = variant.options.background;
    for (number, operation) in operations.iter().enumerate() {
        let at = |error: String| format!("operation {number}: {error}");
        if *operation == Operation::Remount {
            remount(&store, &mut runner, &variant.options).map_err(at)?;
        } else {
            runner.run(operation).map_err(at)?;
        }
        if number % COMPARE_EVERY == COMPARE_EVERY - 1 {
            runner.compare(number % 2 == 0).map_err(at)?;
        }
    }
    runner.compare(false)?;
    remount(&store, &mut runner, &variant.options)?;
    runner.compare(false).map_err(|error| format!("after the last remount: {error}"))?;
    close(&store, &runner)
}

fn close(store: &MemoryStore, runner: &Runner) -> Result<(), String> {
    runner.fs.shutdown().map_err(|error| format!("shutdown: {error}"))?;
    store.check().map(|_| ()).map_err(|error| format!("after shutdown: {error}"))
}

fn remount(store: &MemoryStore, runner: &mut Runner, options: &Options) -> Result<(), String> {
    close(store, runner)?;
    runner.remounted(store.open_with(options.clone()));
    Ok(())
}

#[test]
fn random_operations_agree_with_the_model() {
    run_all("usual", &Variant::usual());
}

#[test]
fn names_alone_agree_with_the_model() {
    let mix = Mix { names: 80, data: 2, attributes: 10, durability: 3, memory: 5, ..MIX };
    run_all("names", &Variant { mix, operations: 1500, seeds: 6, ..Variant::usual() });
}

#[test]
fn data_alone_agrees_with_the_model() {
    let mix =
        Mix { names: 4, data: 90, attributes: 1, durability: 3, memory: 2, write_bytes_max: 40_000, has_far_offsets: false };
    run_all("data", &Variant { mix, operations: 800, seeds: 8, ..Variant::usual() });
}

#[test]
fn a_small_cache_agrees_with_the_model() {
    let mix = Mix { write_bytes_max: 1 << 20, ..MIX };
    let options = Options { background: false, cache_bytes: 1 << 20, ..Options::default() };
    run_all("small cache", &Variant { mix, options, operations: 200, seeds: 4, ..Variant::usual() });
}

#[test]
fn a_full_store_agrees_with_the_model() {
    let mix = Mix { names: 20, data: 70, write_bytes_max: 600_000, has_far_offsets: false, ..MIX };
    run_all("full store", &Variant { mix, store_bytes: 17 << 20, may_be_full: true, seeds: 8, ..Variant::usual() });
}

#[test]
fn background_threads_agree_with_the_model() {
    let options = Options { commit_interval_ms: 5, ..Options::default() };
    run_all("background", &Variant { options, seeds: 6, ..Variant::usual() });
}

#[test]
fn a_kernel_that_caches_agrees_with_the_model() {
    let options = Options { background: false, kernel_caches: true, ..Options::default() };
    run_all("kernel caches", &Variant { options, seeds: 6, ..Variant::usual() });
}

#[test]
fn two_copies_agree_with_the_model() {
    run_all("dup on one device", &Variant { shape: Shape::DUP_ONE, seeds: 3, ..Variant::usual() });
    let mix = Mix { names: 20, data: 70, write_bytes_max: 600_000, has_far_offsets: false, ..MIX };
    let variant = Variant { mix, store_bytes: 17 << 20, shape: Shape::DUP_TWO, may_be_full: true, seeds: 3, ..Variant::usual() };
    run_all("full, dup on two devices", &variant);
}

#[test]
fn stripes_and_mirrors_agree_with_the_model() {
    for (name, shape) in
        [("raid0", Shape::RAID0), ("raid1", Shape::RAID1), ("raid5", Shape::RAID5), ("raid5 of three", Shape::RAID5_OF_THREE)]
    {
        run_all(name, &Variant { shape, seeds: 4, ..Variant::usual() });
    }
    let mix = Mix { names: 20, data: 70, write_bytes_max: 600_000, has_far_offsets: false, ..MIX };
    let variant = Variant { mix, store_bytes: 17 << 20, shape: Shape::RAID5, may_be_full: true, seeds: 4, ..Variant::usual() };
    run_all("full, raid5", &variant);
}
