//! (being written)
pub mod check;
pub mod info;
pub mod mkfs;
pub mod mount;
pub mod umount;
