//! sumfs: a checksummed, copy-on-write file system in user space.
//!
//! The modules stand in the order of the data path: `fuse -> fs -> cache -> extent -> space, meta -> disk`. Each uses only
//! what stands below it; a test reads the imports and keeps that true.

pub mod cache;
pub mod cli;
pub mod disk;
pub mod extent;
pub mod fs;
pub mod fuse;
pub mod meta;
pub mod space;
pub mod verify;

pub mod clock;
pub mod control;
pub mod error;
pub mod lock;
pub mod pool;
pub mod stats;
pub mod store;
pub mod sync;
pub mod sys;
pub mod units;
