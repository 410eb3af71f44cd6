//! `sumfs info` and `sumfs stats`. A mounted store is asked through its control socket, any other is opened read-only here, without
//! changing a byte. `--json` prints the same object that the daemon sends.

use super::mountinfo::{self, sumfs_mount};
use super::umount::ask_daemon;
use super::{Outcome, WithCode, fields};
use crate::clock;
use crate::control::Command;
use crate::disk::superblock::{FeatureKind, Superblock, feature_names};
use crate::error::Result;
use crate::fs::{Filesystem, Options};
use crate::store::{DataProfile, Engine, OpenOptions, StoreDirectory};
use crate::units::BLOCK_SIZE;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Why the file system says that it is read-only when only the looking is.
const OUR_OWN_REASON: &str = "mounted read-only";

/// Arguments of `sumfs info`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = fields::INFO)]
pub struct Arguments {
    /// A mount point or a store.
    #[arg(value_name = "MNT|STORE")]
    target: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `sumfs stats`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = fields::STATS)]
pub struct StatsArguments {
    /// Where the store is mounted.
    #[arg(value_name = "MNT")]
    mountpoint: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints what a store or mount is.
pub fn run(arguments: &Arguments) -> Outcome {
    let mount = mountinfo::mount_at_or_of(&arguments.target).or_code(1)?;
    let info = match &mount {
        Some(mount) => {
            let mut info = ask_daemon(mount, Command::Info, 1)?;
            set(&mut info, "mountpoint", json!(mount.mountpoint.to_string_lossy()));
            info
        }
        None => unmounted(&arguments.target).or_code(1)?,
    };
    if arguments.json {
        println!("{info:#}");
    } else {
        print!("{}", info_table(&info));
    }
    Ok(0)
}

/// Prints the counters of a mount.
pub fn stats(arguments: &StatsArguments) -> Outcome {
    let mount = sumfs_mount(&arguments.mountpoint)?;
    let stats = ask_daemon(&mount, Command::Stats, 1)?;
    if arguments.json {
        println!("{stats:#}");
    } else {
        let mut text = String::new();
        write_tree(&mut text, &stats, 0);
        print!("{text}");
    }
    Ok(0)
}

/// Opens a store that nobody serves, as `mount -o ro` would.
fn unmounted(store: &Path) -> Result<Value> {
    let store = StoreDirectory::open_with(store, OpenOptions { read_only: true, degraded: true, ..OpenOptions::default() })?;
    let options = Options { read_only: true, background: false, ..Options::default() };
    let filesystem = Filesystem::open(store.disks().clone(), options)?;
    let mut info = with_status(describe_store(&store), &filesystem);
    set(&mut info, "pid", Value::Null);
    if info.get("read_only_reason").and_then(Value::as_str) == Some(OUR_OWN_REASON) {
        set(&mut info, "read_only_reason", Value::Null);
    }
    filesystem.shutdown()?;
    Ok(info)
}

/// What does not change while a store is open: identity, features, devices.
pub fn describe_store(store: &StoreDirectory) -> Value {
    let superblock = store.superblock();
    json!({
        "store": store.path().to_string_lossy(),
        "uuid": uuid::Uuid::from_bytes(superblock.uuid).to_string(),
        "label": superblock.label,
        "format_version": superblock.version,
        "features": {
            "compat": feature_names(FeatureKind::Compat, superblock.compat),
            "ro_compat": feature_names(FeatureKind::ReadOnlyCompat, superblock.ro_compat),
            "incompat": feature_names(FeatureKind::Incompat, superblock.incompat),
        },
        "index": Engine::of(superblock).name(),
        "group_bytes": u64::from(superblock.blocks_per_group) * BLOCK_SIZE,
        "data_profile": DataProfile::of(superblock).name(),
        "devices": list_devices(superblock),
        "journal": { "path": superblock.journal_path, "bytes": superblock.journal_bytes },
    })
}

fn list_devices(superblock: &Superblock) -> Value {
    let devices = superblock.devices.iter().map(|device| json!({ "id": device.id, "path": device.path, "bytes": device.len }));
    devices.collect::<Vec<_>>().into()
}

/// Adds what changes: space, inodes, state, the process that serves.
pub fn with_status(mut description: Value, filesystem: &Filesystem) -> Value {
    let space = filesystem.statfs();
    set(&mut description, "size_bytes", json!(space.blocks * BLOCK_SIZE));
    set(&mut description, "used_bytes", json!(space.blocks.saturating_sub(space.free) * BLOCK_SIZE));
    set(&mut description, "free_bytes", json!(space.available * BLOCK_SIZE));
    set(&mut description, "inodes", json!(space.inodes.saturating_sub(space.inodes_free)));
    let mut image = filesystem.status()["metadata"]["image"].take();
    if let Some(completed) = image["completed"].as_i64().filter(|completed| *completed > 0) {
        set(&mut image, "age_seconds", json!(clock::now().seconds.saturating_sub(completed).max(0)));
    }
    set(&mut description, "image", image);
    set(&mut description, "devices", list_devices(&filesystem.superblock()));
    let states = filesystem.device_status();
    for device in description["devices"].as_array_mut().into_iter().flatten() {
        let known = states.as_array().into_iter().flatten().find(|known| known["id"] == device["id"]);
        set(device, "state", known.map_or(Value::Null, |known| known["state"].clone()));
    }
    set(&mut description, "read_only_reason", json!(filesystem.read_only_reason()));
    set(&mut description, "version", json!(env!("CARGO_PKG_VERSION")));
    set(&mut description, "pid", json!(std::process::id()));
    description
}

fn set(object: &mut Value, key: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}

/// `bytes` with at most one decimal in a unit that leaves at most four digits before it.
pub fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = "bytes";
    for larger in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if unit == "bytes" { format!("{bytes} bytes") } else { format!("{value:.1} {unit}") }
}

fn info_table(info: &Value) -> String {
    let text = |key: &str| match info.get(key) {
        Some(Value::String(text)) if !text.is_empty() => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => "-".to_owned(),
    };
    let bytes_in = |value: &Value, key: &str| show_bytes(value.get(key).and_then(Value::as_u64).unwrap_or(0));
    let bytes = |key: &str| bytes_in(info, key);
    let features: Vec<&str> = ["compat", "ro_compat", "incompat"]
        .iter()
        .filter_map(|kind| info.pointer(&format!("/features/{kind}"))?.as_array())
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let number = |key: &str| info.get(key).and_then(Value::as_u64).unwrap_or(0);
    let groups = number("size_bytes").checked_div(number("group_bytes")).unwrap_or(0);
    let mut rows = vec![
        ("store", text("store")),
        (
            "mounted on",
            info.get("mountpoint").map_or_else(|| "-".to_owned(), |_| format!("{} (pid {})", text("mountpoint"), text("pid"))),
        ),
        ("uuid", text("uuid")),
        ("label", text("label")),
        (
            "format",
            format!(
                "version {}, features: {}",
                text("format_version"),
                if features.is_empty() { "none".to_owned() } else { features.join(", ") }
            ),
        ),
        ("space", format!("{} size, {} used, {} free", bytes("size_bytes"), bytes("used_bytes"), bytes("free_bytes"))),
        ("inodes", text("inodes")),
        ("groups", format!("{groups} of {}, data {}", bytes("group_bytes"), text("data_profile"))),
    ];
    for device in info.get("devices").and_then(Value::as_array).into_iter().flatten() {
        let path = device.get("path").and_then(Value::as_str).unwrap_or("-");
        let state = device.get("state").and_then(Value::as_str).filter(|state| *state != "present");
        let state = state.map(|state| format!(", {state}")).unwrap_or_default();
        let id = device.get("id").unwrap_or(&Value::Null);
        rows.push(("device", format!("{id}: {path}, {}{state}", bytes_in(device, "bytes"))));
    }
    let journal = info.get("journal").unwrap_or(&Value::Null);
    let place = journal.get("path").and_then(Value::as_str).unwrap_or("in the store");
    rows.push(("journal", format!("{place}, {}", bytes_in(journal, "bytes"))));
    rows.push(("image", image_row(info.get("image").unwrap_or(&Value::Null))));
    rows.push(("index", text("index")));
    rows.push(("read-only", info.get("read_only_reason").and_then(Value::as_str).unwrap_or("no").to_owned()));
    rows.into_iter().map(|(name, value)| format!("{name:<11} {value}\n")).collect()
}

/// What there is to make the index from when it is lost.
fn image_row(image: &Value) -> String {
    let number = |key: &str| image.get(key).and_then(Value::as_u64).unwrap_or(0);
    let state = image.get("state").and_then(Value::as_str).unwrap_or("none");
    let failure = image.get("failure").and_then(Value::as_str).map(|reason| format!(" ({reason})")).unwrap_or_default();
    if number("generation") == 0 {
        return format!("{state}{failure}");
    }
    let (base, log) = (show_bytes(number("base_bytes")), show_bytes(number("log_bytes")));
    let age = indicatif::HumanDuration(std::time::Duration::from_secs(number("age_seconds")));
    format!("{state}{failure}, generation {}, {base} written {age} ago + {log} log", number("generation"))
}

/// Nested objects as an indented list; lists on one line.
fn write_tree(text: &mut String, value: &Value, depth: usize) {
    let Some(object) = value.as_object() else { return };
    let width = object.iter().filter(|(_, value)| !value.is_object()).map(|(key, _)| key.len()).max().unwrap_or(0);
    let indent = "  ".repeat(depth);
    for (key, value) in object.iter().filter(|(_, value)| !value.is_object()) {
        let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        text.push_str(&format!("{indent}{key:<width$}  {shown}\n"));
    }
    for (key, value) in object.iter().filter(|(_, value)| value.is_object()) {
        text.push_str(&format!("{indent}{key}:\n"));
        write_tree(text, value, depth + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_for_people() {
        for (bytes, shown) in
            [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (10 << 30, "10.0 GiB"), (3 << 40, "3.0 TiB")]
        {
            assert_eq!(show_bytes(bytes), shown);
        }
    }

    #[test]
    fn the_table_shows_what_is_known_and_survives_what_is_not() {
        let info = json!({
            "store": "/s", "mountpoint": "/m", "pid": 7, "uuid": "u", "label": "", "format_version": 0,
            "features": { "compat": [], "incompat": ["unstable"] }, "size_bytes": 1 << 30, "used_bytes": 4096, "free_bytes": 0, "inodes": 3,
            "group_bytes": 1 << 20, "devices": [{ "id": 0, "path": "data", "bytes": 1 << 30 }], "journal": { "path": null, "bytes": 1 << 20 },
            "image": { "state": "current", "generation": 3, "base_bytes": 2 << 20, "log_bytes": 4096, "age_seconds": 60 },
            "read_only_reason": "flush failed",
        });
        let table = info_table(&info);
        for part in [
            "current, generation 3, 2.0 MiB written 60 seconds ago + 4.0 KiB log",
            "/m (pid 7)",
            "version 0, features: unstable",
            "1.0 GiB size, 4.0 KiB used",
            "0: data, 1.0 GiB",
            "in the store, 1.0 MiB",
            "flush failed",
        ] {
            assert!(table.contains(part), "no \"{part}\" in\n{table}");
        }
        assert!(info_table(&json!({})).contains("read-only   no"));
    }

    #[test]
    fn trees_are_indented_with_scalars_first() {
        let mut text = String::new();
        write_tree(&mut text, &json!({ "inner": { "a": 1, "long": "x" }, "z": [1, 2] }), 0);
        assert_eq!(text, "z  [1,2]\ninner:\n  a     1\n  long  x\n");
    }
}
