//! What survives the end of the daemon (kill -9), and what a read-only mount leaves alone.

use crate::content::{assert_same, pattern};
use crate::mount::{Mount, run, sumfs};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

fn synced_files_survive(options: &str) {
    let mut mount = Mount::new(options);
    let mut acknowledged = BTreeMap::new();
    for round in 0..5 {
        let directory = mount.path().join(format!("round-{round}"));
        fs::create_dir(&directory).unwrap();
        for index in 0..20 {
            let content = pattern(1000 + index * 37_000, (round * 100 + index) as u64);
            let path = directory.join(format!("file-{index}"));
            let mut file = File::create(&path).unwrap();
            file.write_all(&content).unwrap();
            file.sync_all().unwrap();
            acknowledged.insert(path, content);
            // Never acknowledged: may be there or not, but must not get in the way.
            fs::write(directory.join(format!("unsynced-{index}")), pattern(50_000, 7)).unwrap();
        }
        mount.kill();
        mount.check().expect_success();
        mount.mount();
        for (path, content) in &acknowledged {
            assert_same(&fs::read(path).unwrap(), content, &path.display().to_string());
        }
    }
}

#[test]
fn what_fsync_acknowledged_survives_a_kill_writeback() {
    synced_files_survive("cache=writeback");
}

#[test]
fn what_fsync_acknowledged_survives_a_kill_none() {
    synced_files_survive("cache=none");
}

#[test]
fn what_sumfs_sync_acknowledged_survives_a_kill() {
    let mut mount = Mount::new("");
    fs::create_dir(mount.path().join("d")).unwrap();
    fs::write(mount.path().join("d/file"), pattern(3 << 20, 1)).unwrap();
    sumfs(&["sync", mount.path().to_str().unwrap()]).expect_success();
    mount.kill();
    mount.mount();
    assert_same(&fs::read(mount.path().join("d/file")).unwrap(), &pattern(3 << 20, 1), "synced");
}

#[test]
fn an_open_file_without_a_name_is_gone_after_a_kill() {
    let mut mount = Mount::new("");
    let mut file = File::create(mount.path().join("temporary")).unwrap();
    file.write_all(&pattern(20 << 20, 2)).unwrap();
    file.sync_all().unwrap();
    fs::remove_file(mount.path().join("temporary")).unwrap();
    File::open(mount.path()).unwrap().sync_all().unwrap();
    mount.kill();
    drop(file);
    mount.mount();
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 0);
    mount.umount();
    mount.check().expect_success();
}

/// Checksums of all files of a store on the host.
fn bytes_of(store: &Path) -> BTreeMap<PathBuf, u32> {
    let mut sums = BTreeMap::new();
    let mut left = vec![store.to_owned()];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            let sum = crc32c::crc32c(&fs::read(&path).unwrap());
            sums.insert(path, sum);
        }
    }
    sums
}

fn read_only_changes_nothing(mount: &mut Mount) {
    let before = bytes_of(&mount.store());
    mount.set_options("ro");
    mount.mount();
    assert_same(&fs::read(mount.path().join("file")).unwrap(), &pattern(100_000, 3), "read-only");
    let errno = |result: std::io::Result<()>| result.unwrap_err().raw_os_error();
    let expected = Some(Errno::ROFS.raw_os_error());
    assert_eq!(errno(fs::write(mount.path().join("file"), "x")), expected);
    assert_eq!(errno(fs::create_dir(mount.path().join("new"))), expected);
    assert_eq!(errno(fs::remove_file(mount.path().join("file"))), expected);
    mount.umount();
    assert_eq!(bytes_of(&mount.store()), before, "a read-only mount changed the store");
}

#[test]
fn a_read_only_mount_changes_no_byte() {
    let mut mount = Mount::with_size("256M", "");
    fs::write(mount.path().join("file"), pattern(100_000, 3)).unwrap();
    mount.umount();
    read_only_changes_nothing(&mut mount);
}

#[test]
fn nor_does_one_after_a_kill() {
    let mut mount = Mount::with_size("256M", "");
    fs::write(mount.path().join("file"), pattern(100_000, 3)).unwrap();
    sumfs(&["sync", mount.path().to_str().unwrap()]).expect_success();
    mount.kill();
    read_only_changes_nothing(&mut mount);
}

/// FS_IOC_SHUTDOWN, which ext4, XFS and btrfs know, of a directory, as a user.
const SHUT_DOWN: &str = "import fcntl, os, struct, sys; \
    root = os.open(sys.argv[1], os.O_RDONLY); \
    os.setuid(int(sys.argv[2])); \
    fcntl.ioctl(root, 0x8004587d, struct.pack('I', 0))";

/// What had reached the daemon is there afterwards; until then nothing changes any more.
fn shutting_down_on_request(options: &str) {
    let mut mount = Mount::with_size("256M", options);
    let root = mount.path();
    fs::write(root.join("file"), pattern(100_000, 4)).unwrap();
    let shut_down = |user: &str| run("python3", &["-c", SHUT_DOWN, root.to_str().unwrap(), user]);
    let refused = shut_down("65534");
    assert!(refused.code == 1 && refused.stderr.contains("Operation not permitted"), "{refused:?}");
    fs::write(root.join("more"), "x").unwrap();
    shut_down("0").expect_success();
    let expected = Some(Errno::ROFS.raw_os_error());
    assert_eq!(fs::create_dir(root.join("new")).unwrap_err().raw_os_error(), expected);
    assert_eq!(fs::remove_file(root.join("file")).unwrap_err().raw_os_error(), expected);
    assert_same(&fs::read(root.join("file")).unwrap(), &pattern(100_000, 4), "a store that is shut down");
    // Not `sumfs umount`, which would rightly say that the store was not closed.
    run("umount", &[root.to_str().unwrap()]).expect_success();
    mount.mount();
    assert_same(&fs::read(root.join("file")).unwrap(), &pattern(100_000, 4), "after the shut down");
    assert_eq!(fs::read(root.join("more")).unwrap(), b"x");
    fs::remove_file(root.join("more")).unwrap();
}

#[test]
fn shutting_down_on_request_is_as_a_crash() {
    shutting_down_on_request("cache=none");
}

#[test]
fn shutting_down_on_request_is_as_a_crash_with_the_kernels_cache() {
    shutting_down_on_request("cache=writeback");
}
