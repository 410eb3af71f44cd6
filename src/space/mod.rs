//! (being written)
pub mod allocator;
pub mod groups;
pub mod host;
pub mod pinned;
pub mod reservation;
