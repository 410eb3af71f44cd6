//! Hostile stores: what comes from a disk is mutated in every way that a stranger could think of, half of the time with its checksums made
//! right again, and must give an error or a sound mount: never a panic, a hang, memory without bound, or wrong data.
//!
//! Not a libtest harness: each target runs in a process of its own (`runner.rs`) with little address space, so that also an abort, an
//! overflowing stack and a deadlock are findings with a seed. Without arguments every target runs a fixed number of cases; `FUZZ_SECONDS=600`
//! runs for as long; `FUZZ_TARGET=name` chooses one; `SEED=n FUZZ_CASE=m FUZZ_TARGET=name` repeats one case in this process and tells
//! what it does.

#[path = "../common/reference_model.rs"]
#[allow(dead_code)]
mod reference_model;
#[path = "../common/simulated_disk.rs"]
#[allow(unused_imports)]
mod simulated_disk;

mod format;
mod index;
mod journal;
mod labels;
mod metadata;
mod mount;
mod mutation;
mod records;
mod runner;
mod store;
mod walk;

use runner::Plan;

/// Every target: its name, the cases of a short run, and how it is made.
const PLANS: [Plan; 7] = [
    Plan { name: "superblock", short_cases: 30_000, make: || Box::new(labels::Superblocks::new()) },
    Plan { name: "label", short_cases: 30_000, make: || Box::new(labels::Labels::new()) },
    Plan { name: "record", short_cases: 60_000, make: || Box::new(records::Records::new()) },
    Plan { name: "journal", short_cases: 1_500, make: || Box::new(journal::Journals::new()) },
    Plan { name: "index", short_cases: 150, make: || Box::new(index::Indexes::new(false)) },
    // Only when it is asked for: see there.
    Plan { name: "page", short_cases: 0, make: || Box::new(index::Indexes::new(true)) },
    Plan { name: "mount", short_cases: 100, make: || Box::new(mount::Mounts::new()) },
];

fn main() -> std::process::ExitCode {
    runner::main(&PLANS)
}
