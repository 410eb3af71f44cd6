//! Access control lists, as the kernel obeys them and as the tools see them.

use crate::mount::{Mount, Ran, run};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
/// A user who owns nothing here.
const GUEST: u32 = 2345;
const NOBODY: u32 = u32::MAX;

/// Owner all, the guest `user`, the group nothing, a mask, others nothing.
fn list(user: u16, mask: u16) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in [(1u16, 7u16, NOBODY), (2, user, GUEST), (4, 0, NOBODY), (16, mask, NOBODY), (32, 0, NOBODY)] {
        bytes.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn get(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 4096];
    let length = getxattr(path, name, &mut value[..])?;
    value.truncate(length);
    Ok(value)
}

fn as_guest(script: &str, path: &Path) -> Ran {
    let (user, group) = (format!("--reuid={GUEST}"), format!("--regid={GUEST}"));
    run("setpriv", &[&user, &group, "--clear-groups", "sh", "-c", script, "sh", path.to_str().unwrap()])
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn who_is_in_the_list_may() {
    for options in ["cache=writeback", "cache=none", "cache=none,acl"] {
        let mut mount = Mount::with_size("64M", options);
        let directory = mount.path().join("directory");
        let file = directory.join("file");
        fs::create_dir(&directory).unwrap();
        fs::write(&file, "secret\n").unwrap();
        set_mode(&file, 0o600);
        assert_ne!(as_guest("cat \"$1\"", &file).code, 0);
        setxattr(&file, ACCESS, &list(6, 7), XattrFlags::empty()).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o770, "the mask stands where the group did");
        assert_eq!(as_guest("cat \"$1\"", &file).expect_success().stdout, "secret\n");
        as_guest("echo more >> \"$1\"", &file).expect_success();
        // A mode without group bits is an empty mask.
        set_mode(&file, 0o700);
        assert_eq!(get(&file, ACCESS).unwrap(), list(6, 0));
        assert_ne!(as_guest("cat \"$1\"", &file).code, 0);
        set_mode(&file, 0o740);
        assert_eq!(as_guest("cat \"$1\"", &file).expect_success().stdout, "secret\nmore\n");
        assert_ne!(as_guest("echo more >> \"$1\"", &file).code, 0);
        mount.remount();
        assert_eq!(get(&file, ACCESS).unwrap(), list(6, 4));
        assert_eq!(as_guest("cat \"$1\"", &file).expect_success().stdout, "secret\nmore\n");
        assert_ne!(as_guest("echo more >> \"$1\"", &file).code, 0);
    }
}

/// The top directory is known to the kernel before it knows that there are lists.
#[test]
fn the_list_of_the_top_directory_counts() {
    let mount = Mount::with_size("64M", "");
    let top = mount.path();
    set_mode(&top, 0o700);
    fs::write(top.join("file"), "secret\n").unwrap();
    set_mode(&top.join("file"), 0o644);
    assert_ne!(as_guest("cat \"$1\"/file", &top).code, 0);
    setxattr(&top, ACCESS, &list(5, 7), XattrFlags::empty()).unwrap();
    as_guest("cat \"$1\"/file && ls \"$1\"", &top).expect_success();
    assert_ne!(as_guest("touch \"$1\"/new", &top).code, 0);
}

#[test]
fn what_is_made_inherits() {
    for options in ["cache=writeback", "cache=none"] {
        let mut mount = Mount::with_size("64M", options);
        let directory = mount.path().join("directory");
        fs::create_dir(&directory).unwrap();
        setxattr(&directory, DEFAULT, &list(6, 6), XattrFlags::empty()).unwrap();
        // A umask that would leave nothing.
        let make = "umask 777; cd \"$1\"; : > file; mkdir inner; mkfifo pipe; ln -s file link";
        run("sh", &["-c", make, "sh", directory.to_str().unwrap()]).expect_success();
        for again in [false, true] {
            let mode = |name: &str| directory.join(name).symlink_metadata().unwrap().mode() & 0o7777;
            assert_eq!(["file", "inner", "pipe", "link"].map(mode), [0o660, 0o760, 0o660, 0o777]);
            assert_eq!(get(&directory.join("inner"), DEFAULT).unwrap(), list(6, 6));
            assert_eq!(get(&directory.join("inner"), ACCESS).unwrap(), list(6, 6));
            assert_eq!(get(&directory.join("file"), DEFAULT), Err(Errno::NODATA));
            as_guest("echo hello >> \"$1\"/file", &directory).expect_success();
            if !again {
                mount.remount();
            }
        }
    }
}

/// Whoever is not of a file's group cannot keep its set-group-id while changing its list.
#[test]
fn a_stranger_to_the_group_loses_set_group_id() {
    for options in ["cache=writeback", "cache=none"] {
        let mount = Mount::with_size("64M", options);
        let file = mount.path().join("file");
        fs::write(&file, "").unwrap();
        for (group, left) in [(GUEST, 0o2770), (GUEST + 1, 0o770)] {
            std::os::unix::fs::chown(&file, Some(GUEST), Some(group)).unwrap();
            set_mode(&file, 0o2755);
            let value: String = list(6, 7).iter().map(|byte| format!("{byte:02x}")).collect();
            let set = format!("import os, sys; os.setxattr(sys.argv[1], '{ACCESS}', bytes.fromhex('{value}'))");
            as_guest(&format!("python3 -c \"{set}\" \"$1\""), &file).expect_success();
            assert_eq!(file.metadata().unwrap().mode() & 0o7777, left, "group {group}");
        }
    }
}

#[test]
fn without_lists_there_are_none() {
    let mut mount = Mount::with_size("64M", "acl");
    let file = mount.path().join("file");
    fs::write(&file, "secret\n").unwrap();
    setxattr(&file, ACCESS, &list(6, 7), XattrFlags::empty()).unwrap();
    set_mode(&file, 0o700);
    mount.set_options("noacl");
    mount.remount();
    assert_eq!(get(&file, ACCESS), Err(Errno::OPNOTSUPP));
    assert_eq!(setxattr(&file, ACCESS, &list(6, 7), XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    assert_eq!(rustix::fs::listxattr(&file, &mut [0; 100][..]), Ok(0));
    set_mode(&file, 0o770);
    assert_ne!(as_guest("cat \"$1\"", &file).code, 0, "group bits are not for the guest");
    mount.set_options("");
    mount.remount();
    assert_eq!(get(&file, ACCESS).unwrap(), list(6, 7));
    as_guest("cat \"$1\"", &file).expect_success();
}
