//! Where a byte can be. Devices are cut into groups; a block is free, reserved (a promise to a dirty block, in memory), promised
//! (to an unwritten range, recorded), used, or pinned (freed, D3). Only this module knows devices and their offsets.
//!
//! ```text
//!   free --reserve--> reserved --allocate--> used --freed by a durable transaction--> pinned --readers gone--> free
//! ```
//! Two bitmaps a group: `used` is what the allocator sees (applied + in flight + pinned); `applied` is the state of the last
//! transaction that is in the index, and the one that a checkpoint stores. Reservations count only groups whose range the
//! host has allocated (D5). One lock, rank Space, never held across I/O.

pub mod allocator;
pub mod bitmap;
pub mod copies;
mod generations;
pub mod groups;
mod layout;
mod missing;
pub mod moving;
pub mod occupancy;
pub mod pace;
pub mod pinned;
pub mod slots;
pub mod stripes;
pub mod transfer;

pub use groups::{NewGroup, Space, SpaceCounts};
pub use pinned::{EpochGuard, Run};
pub use slots::Plan;
