//! Looking at a whole store: the offline check with the issues that it can find, and the scrub, which repairs what has a good copy.
//!
//! ```text
//!   opening   superblock, labels, index, journal (replayed in memory); not one byte is written
//!   inodes    every item of every inode, in key order: names, links, attributes, file maps
//!   extents   every extent in address order, against the references that the maps gave, and against the bitmaps
//!   data      every live block, in device order, against its checksum (on demand)
//! ```
//! Memory is bounded except for what the directories need (16 bytes each); a store of any size can be checked.

pub mod check;
pub mod issue;
pub mod repair;
pub mod scrub;

mod blocks;
mod data;
mod extents;
mod findings;
mod inodes;
mod names;
pub mod online;
mod opening;
mod references;
mod tables;

pub use findings::path_of;
