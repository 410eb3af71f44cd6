//! Tests of the whole program: the built binary, the kernel, a mount. They need root and /dev/fuse.

mod cli;
mod content;
mod crash;
mod damage;
mod full;
mod kill;
mod layout;
mod loop_device;
#[path = "../common/mount.rs"]
mod mount;
mod names;
mod random;
mod smoke;
mod work;
