//! `sumfs device`: what a store lies on. A mounted store is asked through its control socket, and only there devices change; the list of
//! any other is read here.

use super::info::show_bytes;
use super::umount::ask_daemon;
use super::{Failure, LOCK_TIMEOUT, LOOK_AGAIN, Outcome, TargetArguments, fields, mountinfo, progress_bar};
use crate::control::{Command, DeviceRequest};
use crate::error::{Error, Result};
use crate::fs::{Filesystem, NewDevice, Options};
use crate::store::{DataProfile, OpenOptions, StoreDirectory, parse_size, prepare_device};
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
    /// Add a device; new data goes there too.
    #[command(after_long_help = fields::DEVICE_LIST)]
    Add(AddArguments),
    /// Move everything that is on a device to a new one, which takes its place. It may be missing.
    #[command(after_long_help = fields::DEVICE_STATUS)]
    Replace(ReplaceArguments),
    /// Move everything that is on a device to the others, and take it out of the store.
    #[command(after_long_help = fields::DEVICE_STATUS)]
    Remove(RemoveArguments),
    /// Show how far replacing or removing a device is, or what the last time came to.
    #[command(after_long_help = fields::DEVICE_STATUS)]
    Status(MountArguments),
    /// Stop it for now; survives unmounting.
    #[command(after_long_help = fields::DEVICE_STATUS)]
    Pause(MountArguments),
    /// Go on where it was, also after a failure.
    #[command(after_long_help = fields::DEVICE_STATUS)]
    Resume(ResumeArguments),
    /// Stop it for good. What was moved stays where it is, and a device that was added for it stays in the store.
    #[command(after_long_help = fields::DEVICE_STATUS)]
    Cancel(MountArguments),
}

#[derive(Debug, clap::Args)]
struct MountArguments {
    /// The mount point, or the store that is mounted.
    #[arg(value_name = "MNT|STORE")]
    target: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct NewArguments {
    /// Bytes of a file that does not exist yet, like 10G; of another file or a block device at most so much is used.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    size: Option<u64>,
    /// Overwrite what it holds.
    #[arg(long)]
    force: bool,
}

#[derive(Debug, clap::Args)]
struct AddArguments {
    #[command(flatten)]
    mount: MountArguments,
    /// A file or a block device.
    path: PathBuf,
    #[command(flatten)]
    new: NewArguments,
}

#[derive(Debug, clap::Args)]
struct ReplaceArguments {
    #[command(flatten)]
    mount: MountArguments,
    /// The id or the path of the device that goes.
    old: String,
    /// A file or a block device.
    path: PathBuf,
    #[command(flatten)]
    new: NewArguments,
    /// Wait until everything is moved.
    #[arg(long)]
    wait: bool,
}

#[derive(Debug, clap::Args)]
struct RemoveArguments {
    #[command(flatten)]
    mount: MountArguments,
    /// The id or the path of the device that goes.
    old: String,
    /// Wait until everything is moved.
    #[arg(long)]
    wait: bool,
}

#[derive(Debug, clap::Args)]
struct ResumeArguments {
    #[command(flatten)]
    mount: MountArguments,
    /// Wait until everything is moved.
    #[arg(long)]
    wait: bool,
}

fn parse_bytes(text: &str) -> std::result::Result<u64, String> {
    parse_size(text).map_err(|_| "not a size; write it like 10G".to_owned())
}

/// What the daemon of `store` answers; for a list the same of a store opened here.
pub fn answer(filesystem: &Filesystem, store: &Path, request: &DeviceRequest) -> Result<Value> {
    let new = |path: &str, size: Option<u64>, force: bool| -> Result<NewDevice> {
        let (disk, path) = prepare_device(store, Path::new(path), size, force)?;
        Ok(NewDevice { disk, path })
    };
    match request {
        DeviceRequest::List => return Ok(listed(filesystem)),
        DeviceRequest::Add { path, size, force } => {
            filesystem.device_add(new(path, *size, *force)?)?;
            return Ok(listed(filesystem));
        }
        DeviceRequest::Replace { old, path, size, force } => {
            let old = id_of(filesystem, old)?;
            filesystem.check_replaceable(old)?;
            filesystem.device_replace(old, new(path, *size, *force)?)?;
        }
        DeviceRequest::Remove { old } => filesystem.device_remove(id_of(filesystem, old)?)?,
        DeviceRequest::Pause => filesystem.relocation_pause()?,
        DeviceRequest::Resume => filesystem.relocation_resume()?,
        DeviceRequest::Cancel => filesystem.relocation_cancel()?,
        DeviceRequest::Status => {}
    }
    Ok(filesystem.relocation_status())
}

fn listed(filesystem: &Filesystem) -> Value {
    let profile = DataProfile::of(&filesystem.superblock()).name();
    json!({ "data_profile": profile, "devices": filesystem.device_status() })
}

/// The device that is called so: by its id, or by its path.
fn id_of(filesystem: &Filesystem, old: &str) -> Result<u32> {
    if let Ok(id) = old.parse() {
        return Ok(id);
    }
    let canonical = |path: &str| Path::new(path).canonicalize().unwrap_or_else(|_| PathBuf::from(path));
    let devices = filesystem.device_status();
    let found = devices.as_array().into_iter().flatten().find(|device| {
        let path = device["path"].as_str().unwrap_or_default();
        path == old || canonical(path) == canonical(old)
    });
    let id = found.and_then(|device| device["id"].as_u64()).and_then(|id| u32::try_from(id).ok());
    id.ok_or_else(|| Error::usage(format!("the store has no device {old}; see: sumfs device list")))
}

/// `sumfs device`.
pub fn run(arguments: &Arguments) -> Outcome {
    match &arguments.action {
        Action::List(target) => list(target),
        Action::Add(add) => {
            let NewArguments { size, force } = add.new;
            let list = ask(&add.mount, DeviceRequest::Add { path: absolute(&add.path)?, size, force })?;
            show(&list, add.mount.json, table);
            Ok(0)
        }
        Action::Replace(replace) => {
            let NewArguments { size, force } = replace.new;
            let request = DeviceRequest::Replace { old: replace.old.clone(), path: absolute(&replace.path)?, size, force };
            change(&replace.mount, request, replace.wait)
        }
        Action::Remove(remove) => change(&remove.mount, DeviceRequest::Remove { old: remove.old.clone() }, remove.wait),
        Action::Status(mount) => change(mount, DeviceRequest::Status, false),
        Action::Pause(mount) => change(mount, DeviceRequest::Pause, false),
        Action::Resume(resume) => change(&resume.mount, DeviceRequest::Resume, resume.wait),
        Action::Cancel(mount) => change(mount, DeviceRequest::Cancel, false),
    }
}

fn absolute(path: &Path) -> std::result::Result<String, Failure> {
    let path = mountinfo::absolute(path)?;
    let shown = path.display();
    path.to_str().map(str::to_owned).ok_or_else(|| Failure::new(1, format!("the path {shown} is not UTF-8; use another name")))
}

fn ask(mount: &MountArguments, request: DeviceRequest) -> std::result::Result<Value, Failure> {
    let target = mount.target.display();
    let found = mountinfo::mount_at_or_of(&mount.target)?;
    let found =
        found.ok_or_else(|| Failure::new(1, format!("{target} is not mounted; devices change while it is: mount it first")))?;
    ask_daemon(&found, Command::Device(request), 1)
}

/// Asks, and waits for the end if that is wanted.
fn change(mount: &MountArguments, request: DeviceRequest, waits: bool) -> Outcome {
    let mut status = ask(mount, request)?;
    let bar = progress_bar("{bar:30} {percent}% {msg}");
    while waits && status["state"] == "running" {
        bar.set_length(status["bytes_total"].as_u64().unwrap_or(0));
        bar.set_position(status["bytes_done"].as_u64().unwrap_or(0));
        bar.set_message(format!("{} groups left", status["groups_left"]));
        std::thread::sleep(LOOK_AGAIN);
        status = ask(mount, DeviceRequest::Status)?;
    }
    bar.finish_and_clear();
    show(&status, mount.json, status_text);
    Ok(if status["state"] == "failed" { 1 } else { 0 })
}

fn show(answer: &Value, as_json: bool, text: impl Fn(&Value) -> String) {
    if as_json {
        println!("{answer:#}");
    } else {
        print!("{}", text(answer));
    }
}

fn status_text(status: &Value) -> String {
    let state = status["state"].as_str().unwrap_or("unknown");
    if state == "never" {
        return "no device was ever replaced or removed\n".to_owned();
    }
    let number = |name: &str| status[name].as_u64().unwrap_or(0);
    let what = match (status["from"].as_u64(), status["to"].as_u64()) {
        (Some(from), Some(to)) => format!("replacing device {from} by device {to}"),
        (Some(from), None) => format!("removing device {from}"),
        _ => "adding a device".to_owned(),
    };
    let mut text = format!("{what}: {state}\n");
    if let Some(error) = status["error"].as_str() {
        text.push_str(&format!(
            "error       {error}\ntry         sumfs device resume, when that is over; or sumfs device cancel\n"
        ));
    }
    let (done, left) = (number("groups_moved"), number("groups_left"));
    text.push_str(&format!("moved       {done} groups, {} copied; {left} groups left\n", show_bytes(number("bytes_copied"))));
    if number("unreadable_blocks") > 0 {
        text.push_str(&format!("unreadable  {} blocks, which read as errors\n", number("unreadable_blocks")));
    }
    text
}

fn list(target: &TargetArguments) -> Outcome {
    let found = match mountinfo::mount_at_or_of(&target.target)? {
        Some(mount) => ask_daemon(&mount, Command::Device(DeviceRequest::List), 1)?,
        None => unmounted(&target.target).map_err(Failure::from)?,
    };
    show(&found, target.json, table);
    Ok(0)
}

/// The list of a store that nobody serves; devices that are not there are part of it.
fn unmounted(store: &Path) -> Result<Value> {
    let opening = OpenOptions { read_only: true, wait_for_lock: Some(LOCK_TIMEOUT), degraded: true, ..OpenOptions::default() };
    let store = StoreDirectory::open_with(store, opening)?;
    let options = Options { read_only: true, background: false, ..Options::default() };
    let filesystem = Filesystem::open(store.disks().clone(), options)?;
    let list = listed(&filesystem);
    filesystem.shutdown()?;
    Ok(list)
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
