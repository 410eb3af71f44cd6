//! A store, and a host, without space: what was promised can be written, what does not fit is refused with ENOSPC, nothing written
//! is lost, everything that frees space works, and all of it comes back.

use crate::content::{assert_same, pattern};
use crate::mount::{Mount, require_root_and_fuse, run, scratch, sumfs};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const BLOCK: usize = 4096;
const PIECE: usize = 64 << 10;
/// For what happens in the background.
const PATIENCE: Duration = Duration::from_secs(30);

fn available_bytes(path: &Path) -> u64 {
    let status = rustix::fs::statvfs(path).unwrap();
    status.f_bavail * status.f_frsize
}

fn sync(path: &Path) {
    sumfs(&["sync", path.to_str().unwrap()]).expect_success();
}

fn is_no_space(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOSPC.raw_os_error())
}

/// Where the error came.
#[derive(Debug, PartialEq, Eq)]
enum Refused {
    AtWrite,
    AtFsync,
}

/// Writes a pattern until ENOSPC; where that came, and how many bytes write(2) had taken by then.
fn fill(mut file: File, seed: u64, bytes_max: usize) -> (Refused, u64) {
    let content = pattern(bytes_max, seed);
    let mut taken = 0;
    for piece in content.chunks(PIECE) {
        let Err(error) = file.write_all(piece) else {
            taken += piece.len() as u64;
            continue;
        };
        assert!(is_no_space(&error), "{error}");
        // What is in the kernel's cache may not fit either.
        if let Err(error) = file.sync_all() {
            assert!(is_no_space(&error), "{error}");
        }
        return (Refused::AtWrite, taken);
    }
    let error = file.sync_all().expect_err("more was written than fits");
    assert!(is_no_space(&error), "{error}");
    (Refused::AtFsync, taken)
}

/// Bytes of whole blocks of the pattern that can be read back; other blocks must be zeros.
fn bytes_there(path: &Path, seed: u64, bytes_max: usize) -> u64 {
    let content = pattern(bytes_max, seed);
    let found = fs::read(path).unwrap();
    assert!(found.len() <= content.len());
    let mut there = 0;
    for (number, (found, expected)) in found.chunks(BLOCK).zip(content.chunks(BLOCK)).enumerate() {
        if *found == expected[..found.len()] {
            there += found.len() as u64;
        } else {
            assert!(found.iter().all(|byte| *byte == 0), "block {number} is neither what was written nor zeros");
        }
    }
    there
}

fn assert_near(found: u64, promised: u64, what: &str) {
    let tolerance = promised / 100 + (1 << 20);
    assert!(found.abs_diff(promised) <= tolerance, "{what}: {found} bytes, statfs promised {promised}");
}

/// Waits until deleting in the background has brought `expected` bytes back.
fn wait_for_space(path: &Path, expected: u64) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        // The first one may tell once more that written data did not fit (syncfs).
        let synced = sumfs(&["sync", path.to_str().unwrap()]);
        assert!(synced.code == 0 || synced.stderr.contains("No space"), "{synced:?}");
        let found = available_bytes(path);
        if found >= expected {
            return;
        }
        assert!(Instant::now() < deadline, "{found} bytes are available, {expected} were before");
    }
}

fn fill_and_go_on(options: &str, expected: &[Refused]) {
    const MOST: usize = 80 << 20;
    let mut mount = Mount::with_size("64M", options);
    let root = mount.path();
    let at = |name: &str| root.join(name);
    for index in 0..10 {
        fs::write(at(&format!("before-{index}")), pattern(100_000, index)).unwrap();
    }
    sync(&root);
    let promised = available_bytes(&root);
    let (refused, _) = fill(File::create(at("large")).unwrap(), 99, MOST);
    assert!(expected.contains(&refused), "{refused:?}");
    // At full: everything that frees or changes in place works; what creates may be refused, cleanly.
    File::open(at("before-1")).unwrap().sync_all().unwrap();
    fs::rename(at("before-1"), at("renamed")).unwrap();
    if let Err(error) = fs::create_dir(at("directory")) {
        assert!(is_no_space(&error), "{error}");
    }
    let left = available_bytes(&root);
    assert!(left <= 2 << 20, "{left} bytes are available after ENOSPC");
    mount.remount();
    let there = bytes_there(&at("large"), 99, MOST);
    assert_near(there, promised, options);
    File::options().write(true).open(at("before-2")).unwrap().set_len(50_000).unwrap();
    fs::remove_file(at("before-3")).unwrap();
    fs::rename(at("before-4"), at("before-5")).unwrap();
    File::open(&root).unwrap().sync_all().unwrap();
    File::options().write(true).open(at("large")).unwrap().set_len(30 << 20).unwrap();
    mount.remount();
    assert!(bytes_there(&at("large"), 99, MOST) <= 30 << 20);
    for (name, seed, length) in
        [("renamed", 1, 100_000), ("before-2", 2, 50_000), ("before-5", 4, 100_000), ("before-9", 9, 100_000)]
    {
        assert_same(&fs::read(at(name)).unwrap(), &pattern(100_000, seed)[..length], name);
    }
    fs::remove_file(at("large")).unwrap();
    wait_for_space(&root, promised);
    fs::write(at("again"), pattern(20 << 20, 5)).unwrap();
    mount.remount();
    assert_same(&fs::read(at("again")).unwrap(), &pattern(20 << 20, 5), "again");
}

#[test]
fn a_full_store_goes_on_writeback() {
    fill_and_go_on("cache=writeback", &[Refused::AtWrite, Refused::AtFsync]);
}

#[test]
fn a_full_store_goes_on_none() {
    fill_and_go_on("cache=none", &[Refused::AtWrite]);
}

fn filling_and_deleting_leaks_nothing(options: &str) {
    const MOST: usize = 80 << 20;
    let mut mount = Mount::with_size("64M", options);
    let root = mount.path();
    sync(&root);
    let before = available_bytes(&root);
    for cycle in 0..5 {
        fill(File::create(root.join("large")).unwrap(), cycle, MOST);
        fs::remove_file(root.join("large")).unwrap();
        wait_for_space(&root, before);
        assert_eq!(available_bytes(&root), before, "cycle {cycle}");
        mount.umount();
        mount.check().expect_success();
        mount.mount();
        assert_eq!(available_bytes(&root), before, "after the remount of cycle {cycle}");
    }
}

#[test]
fn filling_and_deleting_leaks_nothing_writeback() {
    filling_and_deleting_leaks_nothing("cache=writeback");
}

#[test]
fn filling_and_deleting_leaks_nothing_none() {
    filling_and_deleting_leaks_nothing("cache=none");
}

/// Many small files until there is no space: also names and inodes need some.
#[test]
fn a_store_full_of_small_files_goes_on() {
    let mut mount = Mount::with_size("32M", "cache=none");
    let root = mount.path();
    sync(&root);
    let before = available_bytes(&root);
    let mut count = 0;
    loop {
        match File::create(root.join(format!("small-{count}"))).and_then(|mut file| file.write_all(&pattern(6000, count))) {
            Ok(()) => count += 1,
            Err(error) => {
                assert!(is_no_space(&error), "{error}");
                break;
            }
        }
    }
    assert_near(count * 8192, before, "small files");
    mount.remount();
    for number in 0..count {
        assert_same(&fs::read(root.join(format!("small-{number}"))).unwrap(), &pattern(6000, number), "a small file");
    }
    for entry in fs::read_dir(&root).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    wait_for_space(&root, before);
}

/// A small file system on the host, mounted beside nothing else.
struct SmallHost {
    directory: TempDir,
}

impl SmallHost {
    fn tmpfs(size: &str) -> SmallHost {
        let host = SmallHost::new();
        run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs", host.path().to_str().unwrap()]).expect_success();
        host
    }

    fn ext4(size: u64) -> SmallHost {
        let host = SmallHost::new();
        let image = host.directory.path().join("image");
        File::create(&image).unwrap().set_len(size).unwrap();
        run("mkfs.ext4", &["-q", "-F", image.to_str().unwrap()]).expect_success();
        run("mount", &["-o", "loop", image.to_str().unwrap(), host.path().to_str().unwrap()]).expect_success();
        host
    }

    fn new() -> SmallHost {
        require_root_and_fuse();
        let host = SmallHost { directory: scratch() };
        fs::create_dir(host.path()).unwrap();
        fs::create_dir(host.mountpoint()).unwrap();
        host
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("host")
    }

    fn store(&self) -> PathBuf {
        self.path().join("store")
    }

    fn mountpoint(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    fn mount(&self, options: &str) {
        let (store, mountpoint) = (self.store(), self.mountpoint());
        let log = self.directory.path().join("log");
        let arguments =
            ["mount", store.to_str().unwrap(), mountpoint.to_str().unwrap(), "-o", options, "--log", log.to_str().unwrap()];
        sumfs(&arguments).expect_success();
    }

    fn umount(&self) {
        sumfs(&["umount", self.mountpoint().to_str().unwrap()]).expect_success();
    }

    /// Takes what is left of the host's space.
    fn add_ballast(&self) {
        let mut ballast = File::create(self.path().join("ballast")).unwrap();
        let zeros = vec![0; 1 << 20];
        for piece in [1 << 20, BLOCK] {
            while ballast.write_all(&zeros[..piece]).is_ok() {}
        }
        ballast.sync_all().ok();
    }

    fn remove_ballast(&self) {
        fs::remove_file(self.path().join("ballast")).unwrap();
    }
}

impl Drop for SmallHost {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", fs::read_to_string(self.directory.path().join("log")).unwrap_or_default());
        }
        for path in [self.mountpoint(), self.path()] {
            rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH).ok();
        }
    }
}

/// Creates files until the host's lack of space has come through; it may also never, when there is room left in what is set aside.
fn create_until_refused(root: &Path) {
    for index in 0..300 {
        let written = File::create(root.join(format!("small-{index}"))).and_then(|mut file| {
            file.write_all(&pattern(9000, 5))?;
            file.sync_all()
        });
        if let Err(error) = written {
            assert!(is_no_space(&error), "{error}");
            return;
        }
    }
}

/// The host is full before the store is: ENOSPC, nothing lost, and it goes on when there is space again.
fn a_full_host(host: &SmallHost, options: &str, is_acknowledged_by_write: bool) {
    const MOST: usize = 260 << 20;
    let (store, root) = (host.store(), host.mountpoint());
    let at = |name: &str| root.join(name);
    sumfs(&["mkfs", store.to_str().unwrap(), "--size", "512M"]).expect_success();
    host.mount(options);
    fs::write(at("before"), pattern(3 << 20, 1)).unwrap();
    let large = File::create(at("large")).unwrap();
    sync(&root);
    host.add_ballast();
    let promised = available_bytes(&root);
    let (_, taken) = fill(large, 2, MOST);
    fs::rename(at("before"), at("renamed")).unwrap();
    File::open(&root).unwrap().sync_all().unwrap();
    create_until_refused(&root);
    let info = sumfs(&["info", root.to_str().unwrap(), "--json"]).expect_success();
    assert!(info.stdout.contains("\"read_only_reason\": null"), "{info:?}");
    host.umount();
    crate::mount::check(&store).expect_success();
    host.mount(options);
    assert_same(&fs::read(at("renamed")).unwrap(), &pattern(3 << 20, 1), "what was there before");
    let there = bytes_there(&at("large"), 2, MOST);
    assert!(there <= promised + promised / 100 + (1 << 20), "{there} bytes, statfs promised {promised}");
    assert!(!is_acknowledged_by_write || there >= taken, "{there} bytes are there of {taken} acknowledged");
    create_until_refused(&root);
    // Nothing but the host's space changes, and it goes on.
    host.remove_ballast();
    let after = File::create(at("after")).unwrap();
    after.write_all_at(&pattern(30 << 20, 3), 0).unwrap();
    after.sync_all().unwrap();
    drop(after);
    host.umount();
    host.mount(options);
    assert_same(&fs::read(at("after")).unwrap(), &pattern(30 << 20, 3), "after");
    host.umount();
    crate::mount::check(&store).expect_success();
}

#[test]
fn a_full_tmpfs_below_the_store_writeback() {
    a_full_host(&SmallHost::tmpfs("220M"), "cache=writeback", false);
}

#[test]
fn a_full_tmpfs_below_the_store_none() {
    a_full_host(&SmallHost::tmpfs("220M"), "cache=none", true);
}

#[test]
fn a_full_ext4_below_the_store_writeback() {
    a_full_host(&SmallHost::ext4(240 << 20), "cache=writeback", false);
}

#[test]
fn a_full_ext4_below_the_store_none() {
    a_full_host(&SmallHost::ext4(240 << 20), "cache=none", true);
}
