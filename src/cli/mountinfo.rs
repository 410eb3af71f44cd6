//! Which sumfs mount a path of the command line means. The list of mounts is read ([`sys::mounts`]) instead of asking the mount
//! point, because a stat of a mount point whose daemon is gone or busy fails or hangs.

use super::{Failure, WithCode};
use crate::control::{self, Command, Pending};
use crate::error::{Error, Result};
use crate::store::StoreDirectory;
use crate::sys::{self, Mounted};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a daemon that may be the wrong one may take to say so.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Is it one of ours?
pub fn is_sumfs(mount: &Mounted) -> bool {
    mount.file_system_type == sys::FILE_SYSTEM_TYPE
}

/// All mounts that this process sees, the topmost of a stack last.
pub fn mounts() -> Result<Vec<Mounted>> {
    sys::mounts().map_err(|source| Error::io("reading the list of mounts", source))
}

/// The topmost mount at exactly `mountpoint`, if there is one.
pub fn mount_at(mountpoint: &Path) -> Result<Option<Mounted>> {
    let wanted = absolute(mountpoint)?;
    Ok(mounts()?.into_iter().rfind(|mount| mount.mountpoint == wanted))
}

/// The sumfs mount at `path`, or of the store there.
pub fn mount_at_or_of(path: &Path) -> Result<Option<Mounted>> {
    match mount_at(path)?.filter(is_sumfs) {
        Some(mount) => Ok(Some(mount)),
        None => mount_of_store(path),
    }
}

/// Where the store at `store` is mounted.
pub fn mount_of_store(store: &Path) -> Result<Option<Mounted>> {
    let wanted = absolute(store)?;
    let mut mounts: Vec<Mounted> = mounts()?.into_iter().filter(is_sumfs).collect();
    if let Some(at) = mounts.iter().rposition(|mount| mount.source == wanted) {
        return Ok(Some(mounts.swap_remove(at)));
    }
    if mounts.is_empty() {
        return Ok(None);
    }
    // What is no store is mounted nowhere.
    let Ok(uuid) = StoreDirectory::read_uuid(&wanted) else { return Ok(None) };
    // A store that is where its mount says is the one that is mounted there, and this one a copy of it.
    mounts.retain(|mount| has_name(mount) || !StoreDirectory::read_uuid(&mount.source).is_ok_and(|named| named == uuid));
    let mountpoint = if mounts.is_empty() { None } else { served_at(&uuid) };
    Ok(mounts.into_iter().rfind(|mount| mountpoint.as_ref() == Some(&mount.mountpoint)))
}

/// Does it show a name (`fsname=`) instead of its store's path?
fn has_name(mount: &Mounted) -> bool {
    !mount.source.is_absolute()
}

/// Where the daemon of this store, if there is one, says it has mounted it.
fn served_at(uuid: &uuid::Uuid) -> Option<PathBuf> {
    let info = Pending::send(uuid, Command::Info).ok()??.reply(Some(ANSWER_TIMEOUT)).ok()?;
    info.get("mountpoint").and_then(serde_json::Value::as_str).map(PathBuf::from)
}

/// The sumfs mount at `mountpoint`, or why there is none and what to do.
pub fn sumfs_mount(mountpoint: &Path) -> std::result::Result<Mounted, Failure> {
    let shown = mountpoint.display();
    match mount_at(mountpoint).or_code(1)? {
        Some(mount) if is_sumfs(&mount) => Ok(mount),
        Some(mount) => Err(Failure::new(
            1,
            format!(
                "{shown} is a mount of type {}, not of sumfs; `findmnt -t {}` lists those",
                mount.file_system_type,
                sys::FILE_SYSTEM_TYPE
            ),
        )),
        None => match mount_of_store(mountpoint) {
            Ok(Some(mount)) => Err(Failure::new(
                1,
                format!("{shown} is a store; name the directory that it is mounted on: {}", mount.mountpoint.display()),
            )),
            _ => Err(Failure::new(
                1,
                format!("{shown} is not a mount point; `findmnt -t {}` lists what is mounted", sys::FILE_SYSTEM_TYPE),
            )),
        },
    }
}

/// The UUID of a mounted store. The list of mounts goes on naming the directory that was mounted: of one that was moved meanwhile, or
/// that has a name there instead, the daemon is found by asking all for their mount points.
pub fn store_uuid(mount: &Mounted) -> Result<uuid::Uuid> {
    let is_this = |uuid: &uuid::Uuid| served_at(uuid).as_ref() == Some(&mount.mountpoint);
    let named = if has_name(mount) {
        let (name, at) = (mount.source.display(), mount.mountpoint.display());
        Err(Error::usage(format!("no daemon here says that it serves {at} ({name})")))
    } else {
        StoreDirectory::read_uuid(&mount.source)
    };
    named.or_else(|error| control::known_stores().into_iter().find(is_this).ok_or(error))
}

/// The path without links, dots and a trailing slash. Its last part is not looked at when that fails: a dead mount point must be
/// nameable. An error when the parent does not exist.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    if let Ok(whole) = path.canonicalize() {
        return Ok(whole);
    }
    let failed = |source| Error::io(format!("looking up {}", path.display()), source);
    let absolute = std::path::absolute(path).map_err(failed)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize().map_err(failed)?.join(name)),
        _ => Ok(absolute),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_mounted_but_not_by_us() {
        assert!(mount_at(Path::new("/")).unwrap().is_some());
        let failure = sumfs_mount(Path::new("/")).unwrap_err();
        assert!(failure.message.contains("not of sumfs"), "{}", failure.message);
    }

    #[test]
    fn a_directory_that_is_no_mount_point_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let failure = sumfs_mount(directory.path()).unwrap_err();
        assert!(failure.message.contains("not a mount point"), "{}", failure.message);
    }

    #[test]
    fn a_missing_last_part_is_no_error_a_missing_parent_is() {
        assert_eq!(absolute(Path::new("/no-such-name/")).unwrap(), Path::new("/no-such-name"));
        assert!(absolute(Path::new("/no-such-name/below")).is_err());
    }
}
