//! (being written)
pub mod checksum;
pub mod load;
pub mod map;
pub mod ordered;
pub mod store;
