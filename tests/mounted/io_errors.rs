//! Disks that fail under a mount: a device that takes no writes any more latches the store (D7), with the reason where people look, and
//! the mount point turns read-only; a device that lost its end costs what lay there; a store can move while it is mounted.

use crate::content::{assert_same, pattern};
use crate::mount::{Mount, require_root_and_fuse, run, scratch, sumfs};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const CODE_MOUNT_FAILED: i32 = 32;
const PATIENCE: Duration = Duration::from_secs(30);

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn json(command: &str, mountpoint: &Path) -> serde_json::Value {
    let ran = sumfs(&[command, text(mountpoint), "--json"]).expect_success();
    serde_json::from_str(&ran.stdout).unwrap()
}

/// A store with its device on a loop device over a sparse file on a small tmpfs: once the tmpfs is full, what was never written
/// to cannot be written.
struct FailingDevice {
    directory: TempDir,
    device: String,
}

impl FailingDevice {
    fn new() -> FailingDevice {
        require_root_and_fuse();
        let directory = scratch();
        let host = directory.path().join("host");
        fs::create_dir(&host).unwrap();
        fs::create_dir(directory.path().join("mnt")).unwrap();
        run("mount", &["-t", "tmpfs", "-o", "size=40M", "tmpfs", text(&host)]).expect_success();
        let mut failing = FailingDevice { directory, device: String::new() };
        let image = host.join("image");
        File::create(&image).unwrap().set_len(96 << 20).unwrap();
        failing.device = run("losetup", &["--find", "--show", text(&image)]).expect_success().stdout.trim().to_owned();
        sumfs(&["mkfs", text(&failing.store()), "--device", &failing.device]).expect_success();
        failing
    }

    fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    fn mountpoint(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn mount(&self, options: &str) {
        let (store, mountpoint, log) = (self.store(), self.mountpoint(), self.log());
        sumfs(&["mount", text(&store), text(&mountpoint), "-o", options, "--log", text(&log)]).expect_success();
    }

    /// From now on the device takes no writes to new places.
    fn fail(&self) {
        let mut ballast = File::create(self.directory.path().join("host/ballast")).unwrap();
        for piece in [1 << 20, 4096] {
            while ballast.write_all(&vec![0; piece]).is_ok() {}
        }
    }

    fn repair(&self) {
        fs::remove_file(self.directory.path().join("host/ballast")).unwrap();
    }
}

impl Drop for FailingDevice {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", fs::read_to_string(self.log()).unwrap_or_default());
        }
        rustix::mount::unmount(self.mountpoint(), rustix::mount::UnmountFlags::DETACH).ok();
        if !self.device.is_empty() {
            run("losetup", &["--detach", &self.device]);
        }
        rustix::mount::unmount(self.directory.path().join("host"), rustix::mount::UnmountFlags::DETACH).ok();
    }
}

fn mount_flags(mountpoint: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some(text(mountpoint)));
    line.and_then(|line| line.split(' ').nth(3)).unwrap_or_default().to_owned()
}

fn a_failing_device(options: &str) {
    let failing = FailingDevice::new();
    let root = failing.mountpoint();
    failing.mount(options);
    let kept = pattern(2 << 20, 1);
    let file = File::create(root.join("kept")).unwrap();
    file.write_all_at(&kept, 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    failing.fail();
    let file = File::create(root.join("lost")).unwrap();
    // Larger than what the tmpfs has allocated beyond what was written.
    let result = file.write_all_at(&pattern(8 << 20, 2), 0).and_then(|()| file.sync_all());
    let code = result.expect_err("the device takes nothing").raw_os_error();
    assert_eq!(code, Some(Errno::IO.raw_os_error()), "the first one has the device's error");
    assert!(file.sync_all().is_err(), "undurable data is never acknowledged");
    let refused = File::create(root.join("new")).unwrap_err().raw_os_error();
    assert_eq!(refused, Some(Errno::ROFS.raw_os_error()), "with a file open for writing");
    drop(file);

    // The kernel lets the mount point turn read-only when no file is open for writing.
    let deadline = Instant::now() + PATIENCE;
    while !mount_flags(&root).starts_with("ro") {
        assert!(Instant::now() < deadline, "still {}", mount_flags(&root));
        std::thread::yield_now();
    }
    let refused = File::create(root.join("new")).unwrap_err().raw_os_error();
    assert_eq!(refused, Some(Errno::ROFS.raw_os_error()));
    let reason = json("info", &root)["read_only_reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("inode") && reason.contains(&failing.device), "{reason}");
    assert_eq!(json("stats", &root)["read_only_reason"].as_str(), Some(&*reason));
    assert!(sumfs(&["info", text(&root)]).expect_success().stdout.contains(&reason));
    let log = fs::read_to_string(failing.log()).unwrap();
    assert!(log.contains(&format!("store is now read-only: {reason}")), "{log}");
    assert_same(&fs::read(root.join("kept")).unwrap(), &kept, "reading goes on");
    // It cannot close the store cleanly, and says so; it must end.
    let ended = sumfs(&["umount", text(&root)]);
    assert!(ended.code == 0 || ended.stderr.contains("read-only"), "{ended:?}");

    failing.repair();
    crate::mount::check(&failing.store()).expect_success();
    failing.mount(options);
    assert!(json("info", &root)["read_only_reason"].is_null());
    assert_same(&fs::read(root.join("kept")).unwrap(), &kept, "after the repair");
    fs::write(root.join("new"), "x").unwrap();
    sumfs(&["umount", text(&root)]).expect_success();
    crate::mount::check(&failing.store()).expect_success();
}

#[test]
fn a_device_that_fails_makes_the_store_read_only_writeback() {
    a_failing_device("cache=writeback");
}

#[test]
fn a_device_that_fails_makes_the_store_read_only_none() {
    a_failing_device("cache=none");
}

fn read_direct(path: &Path, offset: u64) -> Result<usize, Errno> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let mut buffer = sumfs::disk::buffer::AlignedBuffer::zeroed(4096);
    rustix::io::pread(&file, &mut buffer[..], offset)
}

#[test]
fn a_device_that_loses_its_end_costs_what_lay_there() {
    let mut mount = Mount::with_size("64M", "cache=none");
    let content = pattern(24 << 20, 1);
    fs::write(mount.path().join("large"), &content).unwrap();
    mount.umount();
    let (store, copy) = (mount.store(), mount.beside("original"));
    run("cp", &["-a", "--sparse=always", text(&store), text(&copy)]).expect_success();
    let device = store.join("device.0");
    let length = fs::metadata(&device).unwrap().len();

    mount.mount();
    let large = mount.path().join("large");
    File::options().write(true).open(&device).unwrap().set_len(8 << 20).unwrap();
    let results: Vec<Result<usize, Errno>> = (0..24).map(|number| read_direct(&large, number << 20)).collect();
    assert!(results.iter().all(|result| matches!(result, Ok(4096) | Err(Errno::IO))), "{results:?}");
    assert!(results.contains(&Ok(4096)) && results.contains(&Err(Errno::IO)), "{results:?}");
    let log = fs::read_to_string(mount.beside("log")).unwrap();
    assert!(log.contains("device.0") && log.contains("shorter"), "{log}");
    assert!(mount.info()["read_only_reason"].is_null(), "a read breaks nothing");
    mount.umount();

    File::options().write(true).open(&device).unwrap().set_len(8 << 20).unwrap();
    let parts = ["device.0", "should have", "shorter"];
    for mode in ["rw", "ro"] {
        let refused = sumfs(&["mount", text(&store), text(&mount.path()), "-o", mode]);
        refused.expect_failure(CODE_MOUNT_FAILED, &parts);
    }
    let found = mount.check();
    assert!(found.code >= 4 && parts.iter().all(|part| format!("{found:?}").contains(part)), "{found:?}");
    fs::remove_dir_all(&store).unwrap();
    fs::rename(&copy, &store).unwrap();
    assert_eq!(fs::metadata(&device).unwrap().len(), length);
    mount.mount();
    assert_same(&fs::read(&large).unwrap(), &content, "the whole device again");
}

#[test]
fn a_store_can_be_moved_while_it_is_mounted() {
    let mut mount = Mount::with_size("64M", "");
    let content = pattern(3 << 20, 1);
    let copy = mount.beside("copy");
    mount.umount();
    run("cp", &["-a", text(&mount.store()), text(&copy)]).expect_success();
    mount.mount();
    fs::write(mount.path().join("before"), &content).unwrap();
    // A copy is a store of its own, mounted nowhere.
    crate::mount::check(&copy).expect_success();
    let moved = mount.beside("moved");
    fs::rename(mount.store(), &moved).unwrap();
    // Found by its number, where the list of mounts names a path that is no more; nobody waits for its lock.
    sumfs(&["mount", text(&moved), text(&mount.path())])
        .expect_failure(CODE_MOUNT_FAILED, &["already mounted at", text(&mount.path())]);
    let checked = crate::mount::check(&moved);
    assert!(checked.code != 0 && checked.stderr.contains("mounted at"), "{checked:?}");
    let file = File::create(mount.path().join("after")).unwrap();
    file.write_all_at(&content, 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    sumfs(&["sync", text(&mount.path())]).expect_success();
    assert!(mount.info()["read_only_reason"].is_null());
    mount.umount();
    crate::mount::check(&moved).expect_success();
    fs::rename(&moved, mount.store()).unwrap();
    mount.mount();
    for name in ["before", "after"] {
        assert_same(&fs::read(mount.path().join(name)).unwrap(), &content, name);
    }
}
