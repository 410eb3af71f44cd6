//! (being written)
pub mod eviction;
pub mod file;
pub mod readahead;
pub mod segment;
pub mod writeback;
