//! Tests of the library in this process: no kernel, no files, no root. Stores are in memory or on a simulated machine.

#[path = "../common/durability.rs"]
mod durability;
#[path = "../common/execution.rs"]
mod execution;
#[path = "../common/memory_store.rs"]
mod memory_store;
#[path = "../common/operations.rs"]
mod operations;
#[path = "../common/reference_model.rs"]
mod reference_model;
#[path = "../common/simulated_disk.rs"]
mod simulated_disk;
#[path = "../common/tree.rs"]
mod tree;

mod copies;
mod corruption;
mod crash;
mod detection;
mod devices;
mod forgotten_maps;
mod frozen_buffers;
mod fsync_cost;
mod hostile;
mod image;
mod index;
mod invariants;
mod io_errors;
mod issues;
mod model;
mod nowait;
mod online_check;
mod panics;
mod paths;
mod repair_races;
mod scale;
mod scrub;
mod semantics;
mod stress;
mod stripes;
mod tidy;
