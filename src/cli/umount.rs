//! `sumfs umount` and `sumfs sync`.
//!
//! umount(2) returns while the daemon still writes its last transaction. So before unmounting we ask the daemon to tell us how closing
//! the store went, and afterwards we wait for that word, and for the store's lock, which is free only when the daemon has let go of
//! everything.

use super::mountinfo::{self, sumfs_mount};
use super::{Failure, Outcome, WithCode, waiting};
use crate::control::{self, Command, Pending};
use crate::error::Error;
use crate::store::StoreDirectory;
use crate::sys::{self, Mounted};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of `sumfs umount`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Where the store is mounted.
    mountpoint: PathBuf,
    /// Give up waiting for the daemon after so many seconds; the mount is gone by then.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
}

/// Arguments of `sumfs sync`.
#[derive(Debug, clap::Args)]
pub struct SyncArguments {
    /// Where the store is mounted.
    mountpoint: PathBuf,
}

/// Unmounts; returns when all is durable and the store, unless it is mounted a second time, is free for the next mount, check or mkfs.
pub fn run(arguments: &Arguments) -> Outcome {
    let mount = sumfs_mount(&arguments.mountpoint)?;
    let timeout = Duration::from_secs(arguments.timeout);
    let farewell = ask_for_farewell(&mount);
    let _shown = waiting(format!("until {} is durable", mount.source.display()));
    unmount(&mount.mountpoint)?;
    // Seen elsewhere still, so the daemon goes on.
    if mountinfo::mounts().or_code(1)?.iter().any(|other| other.device == mount.device) {
        return Ok(0);
    }
    let closed = match farewell {
        Some(mut farewell) => farewell.reply(Some(timeout)).map(|_| ()),
        None => StoreDirectory::open(&mount.source, true, Some(timeout)).map(|_| ()),
    };
    match closed {
        Ok(()) => Ok(0),
        // Mounted anew meanwhile: so it was free.
        Err(_) if matches!(mountinfo::mount_of_store(&mount.source), Ok(Some(_))) => Ok(0),
        Err(error) => Err(Failure::new(1, not_closed(&mount, &error))),
    }
}

/// None without a daemon that answers, or with a damaged store: there is still something to unmount.
fn ask_for_farewell(mount: &Mounted) -> Option<Pending> {
    let uuid = mountinfo::store_uuid(mount).ok()?;
    let mut farewell = Pending::send(&uuid, Command::Wait).ok()??;
    farewell.reply(Some(Duration::from_secs(10))).ok()?;
    Some(farewell)
}

fn not_closed(mount: &Mounted, error: &Error) -> String {
    let store = mount.source.display();
    format!(
        "unmounted, but the store {store} was not closed cleanly ({error}); what was synced is safe; run: sumfs check {store}"
    )
}

/// Makes everything written so far durable: the kernel's dirty pages to the daemon, the daemon's to the devices.
pub fn sync(arguments: &SyncArguments) -> Outcome {
    let mount = sumfs_mount(&arguments.mountpoint)?;
    let at = mount.mountpoint.display();
    let directory = std::fs::File::open(&mount.mountpoint).map_err(|error| Failure::new(1, format!("opening {at}: {error}")))?;
    let _shown = waiting(format!("writing back {at}"));
    // What could be written back is made durable even if something else could not.
    let written = rustix::fs::syncfs(&directory);
    ask_daemon(&mount, Command::Sync, 1)?;
    written.map_err(|error| Failure::new(1, format!("writing back {at} (all else is durable): {error}")))?;
    Ok(0)
}

/// What the daemon of a mount answers; failures have `code`, but for nobody answering.
pub fn ask_daemon(mount: &Mounted, command: Command, code: u8) -> std::result::Result<Value, Failure> {
    let uuid = mountinfo::store_uuid(mount).or_code(code)?;
    control::ask(&uuid, command).or_code(code)?.ok_or_else(|| no_daemon(mount))
}

/// Nobody answers for a mount.
pub fn no_daemon(mount: &Mounted) -> Failure {
    let at = mount.mountpoint.display();
    Failure::new(
        1,
        format!(
            "the daemon of {at} does not answer here; ask as the user who mounted it, or if it is gone run: sumfs umount {at}"
        ),
    )
}

fn unmount(mountpoint: &Path) -> std::result::Result<(), Failure> {
    let at = mountpoint.display();
    sys::unmount(mountpoint, false).map_err(|error| match error.kind() {
        std::io::ErrorKind::ResourceBusy => Failure::new(1, format!("{at} is busy{}", what_keeps_it_busy(mountpoint))),
        _ => Failure::new(1, format!("unmounting {at}: {error}")),
    })
}

/// The rest of the sentence "MNT is busy", with the cure.
fn what_keeps_it_busy(mountpoint: &Path) -> String {
    let inner = mountinfo::mounts().unwrap_or_default();
    if let Some(inner) = inner.iter().find(|entry| entry.mountpoint != mountpoint && entry.mountpoint.starts_with(mountpoint)) {
        return format!(": {} is mounted inside; unmount that first", inner.mountpoint.display());
    }
    let users = users_of(mountpoint);
    if users.is_empty() {
        return "; a process, a loop device or a swap file uses it: `fuser -vm MNT`, `losetup` and `swapon` tell".to_owned();
    }
    let named: Vec<String> = users.iter().take(8).map(|(pid, name)| format!("{name} (pid {pid})")).collect();
    let more = if users.len() > named.len() { format!(" and {} more", users.len() - named.len()) } else { String::new() };
    format!(": used by {}{more}; end them or have them leave the directory, then try again", named.join(", "))
}

/// Processes with a file, their directory or a mapping below the mount point. Reads links of /proc only, so that the mount itself is
/// not asked anything.
fn users_of(mountpoint: &Path) -> BTreeMap<u32, String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|process| {
            let pid: u32 = process.file_name().to_str()?.parse().ok()?;
            let directory = process.path();
            let links = ["cwd", "root", "exe"].map(|name| directory.join(name)).into_iter();
            let opened = ["fd", "map_files"]
                .iter()
                .flat_map(|name| std::fs::read_dir(directory.join(name)).into_iter().flatten().flatten());
            let mut all = links.chain(opened.map(|entry| entry.path()));
            all.any(|link| std::fs::read_link(link).is_ok_and(|target| target.starts_with(mountpoint))).then(|| {
                let name = std::fs::read_to_string(directory.join("comm")).unwrap_or_default();
                (pid, name.trim().to_owned())
            })
        })
        .collect()
}
