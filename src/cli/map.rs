//! `sumfs map`: where the data of a file lies.

use super::umount::ask_daemon;
use super::{Failure, Outcome, WithCode, fields, mountinfo};
use crate::control::Command;
use crate::sys::{FILE_SYSTEM_TYPE, Mounted};
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Arguments of `sumfs map`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = fields::MAP)]
pub struct Arguments {
    /// A file in a mount.
    file: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Prints the ranges of a file and how many extents they are.
pub fn run(arguments: &Arguments) -> Outcome {
    let shown = arguments.file.display();
    let (mount, inode) = file_in_mount(&arguments.file)?;
    // What the kernel still holds is not laid out yet.
    std::fs::File::open(&arguments.file)
        .and_then(|file| file.sync_data())
        .map_err(|error| Failure::new(1, format!("writing back {shown}: {error}")))?;
    let map = ask_daemon(&mount, Command::Map { inode }, 1)?;
    if arguments.json {
        println!("{map}");
    } else {
        print(&map);
    }
    Ok(0)
}

/// The mount that a regular file is in, and its inode number.
pub(super) fn file_in_mount(file: &Path) -> Result<(Mounted, u64), Failure> {
    let shown = file.display();
    let failed = |error: std::io::Error| Failure::new(1, format!("{shown}: {error}; name a file in a sumfs mount"));
    let path = file.canonicalize().map_err(failed)?;
    let metadata = std::fs::metadata(&path).map_err(failed)?;
    if !metadata.is_file() {
        return Err(Failure::new(1, format!("{shown} is not a regular file; name one in a sumfs mount")));
    }
    let mounts = mountinfo::mounts().or_code(1)?;
    let holder =
        mounts.iter().filter(|mount| path.starts_with(&mount.mountpoint)).max_by_key(|mount| mount.mountpoint.as_os_str().len());
    match holder.filter(|mount| mountinfo::is_sumfs(mount)) {
        Some(mount) => Ok((mount.clone(), metadata.ino())),
        None => Err(Failure::new(1, format!("{shown} is not in a sumfs mount; `findmnt -t {}` lists these", FILE_SYSTEM_TYPE))),
    }
}

fn print(map: &Value) {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    println!("{:>16} {:>12} {:>12} {:>7} {:>16}", "offset", "length", "block", "device", "device offset");
    for range in map["ranges"].as_array().into_iter().flatten() {
        let (offset, length) = (number(&range["offset"]), number(&range["length"]));
        if range["kind"] == "data" {
            let (block, device, at) = (number(&range["block"]), number(&range["device"]), number(&range["device_offset"]));
            println!("{offset:>16} {length:>12} {block:>12} {device:>7} {at:>16}");
        } else {
            println!("{offset:>16} {length:>12} {:>12}", "zeros");
        }
    }
    let per_mebibyte = map["extents_per_mebibyte"].as_f64().unwrap_or(0.0);
    println!("{} bytes in {} extents, {per_mebibyte:.2} per MiB", number(&map["size"]), number(&map["extents"]));
}
