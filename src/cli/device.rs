//! `sumfs device`: what a store lies on. A mounted store is asked through its control socket; any other is opened here, read-only.

use super::info::show_bytes;
use super::umount::ask_daemon;
use super::{Failure, LOCK_TIMEOUT, Outcome, fields, mountinfo};
use crate::control::{Command, DeviceRequest};
use crate::error::Result;
use crate::fs::{Filesystem, Options};
use crate::store::{DataProfile, OpenOptions, StoreDirectory};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Arguments of `sumfs device`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show the devices, how it stands with each, and what lies on it.
    #[command(after_long_help = fields::DEVICE_LIST)]
    List(TargetArguments),
}

#[derive(Debug, clap::Args)]
struct TargetArguments {
    /// A mount point, or a store that is not mounted.
    #[arg(value_name = "MNT|STORE")]
    target: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What the daemon answers; the same for a store opened here.
pub fn answer(filesystem: &Filesystem, request: &DeviceRequest) -> Result<Value> {
    match request {
        DeviceRequest::List => {
            let profile = DataProfile::of(&filesystem.superblock()).name();
            Ok(json!({ "data_profile": profile, "devices": filesystem.device_status() }))
        }
    }
}

/// `sumfs device`.
pub fn run(arguments: &Arguments) -> Outcome {
    match &arguments.action {
        Action::List(target) => list(target),
    }
}

fn list(target: &TargetArguments) -> Outcome {
    let found = match mountinfo::mount_at_or_of(&target.target)? {
        Some(mount) => ask_daemon(&mount, Command::Device(DeviceRequest::List), 1)?,
        None => unmounted(&target.target).map_err(Failure::from)?,
    };
    if target.json {
        println!("{found:#}");
    } else {
        print!("{}", table(&found));
    }
    Ok(0)
}

/// The list of a store that nobody serves; devices that are not there are part of it.
fn unmounted(store: &Path) -> Result<Value> {
    let opening = OpenOptions { read_only: true, wait_for_lock: Some(LOCK_TIMEOUT), degraded: true, ..OpenOptions::default() };
    let store = StoreDirectory::open_with(store, opening)?;
    let options = Options { read_only: true, background: false, ..Options::default() };
    let filesystem = Filesystem::open(store.disks().clone(), options)?;
    let listed = answer(&filesystem, &DeviceRequest::List)?;
    filesystem.shutdown()?;
    Ok(listed)
}

fn table(list: &Value) -> String {
    let mut text = format!("data        {}\n", list["data_profile"].as_str().unwrap_or("unknown"));
    for device in list["devices"].as_array().into_iter().flatten() {
        let number = |name: &str| device[name].as_u64().unwrap_or(0);
        let bytes = |name: &str| show_bytes(number(name));
        let kinds = ["read", "write", "checksum"];
        let errors = kinds.iter().map(|kind| (kind, number(&format!("{kind}_errors")))).filter(|(_, count)| *count > 0);
        let mut faults: Vec<String> = errors.map(|(kind, count)| format!("{count} {kind} errors")).collect();
        if number("repaired_blocks") > 0 {
            faults.push(format!("{} blocks repaired", number("repaired_blocks")));
        }
        let faults = if faults.is_empty() { "no errors".to_owned() } else { faults.join(", ") };
        let (state, path) = (device["state"].as_str().unwrap_or("unknown"), device["path"].as_str().unwrap_or("unknown"));
        text.push_str(&format!("device {:<4} {state}: {path}\n", number("id")));
        text.push_str(&format!(
            "            {} size, {} in groups, {} of that used; {faults}\n",
            bytes("bytes"),
            bytes("allocated_bytes"),
            bytes("used_bytes")
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_how_it_stands_with_each_device() {
        let device = |id: u64, state: &str, errors: u64| {
            json!({ "id": id, "path": format!("/dev/d{id}"), "state": state, "bytes": 1 << 30, "allocated_bytes": 1 << 20,
                "used_bytes": 4096, "read_errors": errors, "repaired_blocks": errors })
        };
        let text = table(&json!({ "data_profile": "raid5", "devices": [device(0, "present", 0), device(1, "stale", 2)] }));
        for part in [
            "data        raid5",
            "device 0    present: /dev/d0",
            "1.0 GiB size, 1.0 MiB in groups, 4.0 KiB of that used; no errors",
            "device 1    stale: /dev/d1",
            "; 2 read errors, 2 blocks repaired",
        ] {
            assert!(text.contains(part), "no \"{part}\" in\n{text}");
        }
    }
}
