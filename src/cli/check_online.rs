//! `sumfs check` of a store that is mounted: the daemon looks at the state after a commit while the mount goes on.

use super::check::{CODE_FAILED, as_json, exit_code};
use super::umount::ask_daemon;
use super::{Failure, Outcome, mountinfo};
use crate::control::Command;
use crate::error::Result;
use crate::fs::Filesystem;
use crate::sys::Mounted;
use serde_json::Value;
use std::path::Path;

/// The mount whose mount point this is.
pub(super) fn mount_at(path: &Path) -> Result<Option<Mounted>> {
    let Ok(path) = path.canonicalize() else { return Ok(None) };
    Ok(mountinfo::mounts()?.into_iter().rfind(|mount| mountinfo::is_sumfs(mount) && mount.mountpoint == path))
}

/// The daemon's answer.
pub fn answer(filesystem: &Filesystem) -> Result<Value> {
    let report = filesystem.check(&mut |_, _| {})?;
    let code = exit_code(&report);
    Ok(as_json(&report, code))
}

/// Asks the daemon of the mount, prints what it found, and says so in the exit code.
pub(super) fn run(mount: &Mounted, data: bool, json: bool) -> Outcome {
    let at = mount.mountpoint.display();
    if data {
        let message = format!("{at} is mounted: a check of it does not read data; for that run: sumfs scrub start --wait {at}");
        return Err(Failure::new(CODE_FAILED, message));
    }
    let report = ask_daemon(mount, Command::Check, CODE_FAILED)?;
    let code = report["exit_code"].as_u64().and_then(|code| u8::try_from(code).ok()).unwrap_or(CODE_FAILED);
    if json {
        println!("{report}");
        return Ok(code);
    }
    for message in report["messages"].as_array().into_iter().flatten() {
        println!("{}", message.as_str().unwrap_or_default());
    }
    let number = |field: &str| report[field].as_u64().unwrap_or(0);
    match number("issues_not_listed") {
        0 => {}
        more => println!("and {more} more"),
    }
    println!("{at}: {} files, {} directories, {} extents", number("files"), number("directories"), number("extents"));
    if report["clean"] == true {
        println!("{at}: clean");
    } else {
        println!("{at}: something is wrong; to look at all of it, unmount and check the store");
    }
    Ok(code)
}
