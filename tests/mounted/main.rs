//! Tests of the whole program: the built binary, the kernel, a mount. They need root and /dev/fuse.

mod access_times;
mod acl;
mod applications;
mod cli;
mod complaints;
mod content;
mod copies;
mod crash;
mod damage;
mod devices;
mod directories;
#[expect(dead_code, reason = "the workload here does only some of what can be judged")]
#[path = "../common/durability.rs"]
mod durability;
mod engines;
mod finish;
mod fstab;
mod full;
mod handles;
mod holes;
mod io_errors;
mod json;
mod kill;
mod layout;
mod leaving;
mod locks;
mod loop_device;
mod lost_index;
mod mappings;
#[path = "../common/mount.rs"]
mod mount;
mod names;
mod no_space;
mod overlay;
mod power_cut;
mod promise;
mod protection;
mod random;
#[path = "../common/recording_file.rs"]
mod recording_file;
#[expect(dead_code, reason = "the workload here needs only some of what the model knows")]
#[path = "../common/reference_model.rs"]
mod reference_model;
mod scale;
mod scarcity;
mod scrub;
mod smoke;
mod sockets;
mod surface;
mod times;
mod transport;
mod work;
mod writers;
mod xattrs;
