//! Metadata: what makes names, attributes and file maps atomic and durable.
//!
//! ```text
//!   operation --Batch--> running --commit--> committing --journal durable--> pending --apply--> index --checkpoint--> durable
//! ```
//! Operations append a `Batch` in one step; closing a transaction is a swap; there are no half-done operations. Readers look
//! through all layers (`layers.rs`). The journal is the truth until a checkpoint; the index may be lazy.

pub mod batch;
pub mod index;
pub mod latch;
pub mod layers;
pub mod memory_index;
pub mod records;
pub mod redb_backend;
pub mod redb_index;
pub mod relocation_record;
pub mod repair;
pub mod replay;
pub mod restore;
pub mod schema;
pub mod scrub_records;
#[cfg(feature = "sled")]
pub mod sled_index;
pub mod space_records;
pub mod transaction;
pub mod work_state;

mod apply;
mod commit;
mod fields;
mod frozen;
mod image;
mod image_format;
mod image_scan;
mod image_work;
mod journal;
mod merged;
mod redb_layout;
mod redb_overlay;
mod redb_space;
mod redb_sync;
mod redb_verify;
#[cfg(feature = "sled")]
mod sled_commit;
#[cfg(feature = "sled")]
mod sled_files;
#[cfg(feature = "sled")]
mod sled_history;
#[cfg(feature = "sled")]
mod sled_records;
#[cfg(feature = "sled")]
mod sled_snapshot;
#[cfg(feature = "sled")]
mod sled_tree;
mod tail;

pub use batch::{Batch, Delta};
pub use image_format::ImageRecord;
pub use replay::{Damaged, Parts, Replayed};
pub use transaction::{Metadata, Pressure};
