//! An image file in the mount as a loop device, with the loop driver's direct I/O on and off and in both cache modes: what is written
//! to the device is in the file, what it flushed survives a kill of the daemon, what it discards takes no space any more, and ext4 and
//! xfs live inside (C74). The tools are required: one that is missing fails its test.

use crate::content::{aligned, assert_same, bytes_taken, pattern};
use crate::mount::{Mount, Ran, run, sumfs};
use crate::random::Random;
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The loop driver's logical block: all I/O is in multiples of it.
const SECTOR: u64 = 512;
const IMAGE_BYTES: u64 = 24 << 20;
/// Writes, reads and holes of one random test.
const OPERATIONS: usize = 250;
const OPERATION_BYTES_MAX: u64 = 200 << 10;
/// xfs is no smaller.
const FILE_SYSTEM_BYTES: u64 = 320 << 20;
const DETACH_PATIENCE: Duration = Duration::from_secs(60);

/// Runs a tool that a Debian package brings.
fn tool<S: AsRef<std::ffi::OsStr>>(program: &str, package: &str, arguments: &[S]) -> Ran {
    let ran = run(program, arguments);
    assert_ne!(ran.code, 127, "{program} is missing: as root, apt-get install {package}");
    ran.expect_success()
}

/// An attached loop device.
struct Loop {
    device: PathBuf,
}

impl Loop {
    fn attach(image: &Path, direct: &str) -> Loop {
        let direct_io = format!("--direct-io={direct}");
        let ran = tool("losetup", "mount", &["--find", "--show", &direct_io, image.to_str().unwrap()]);
        let attached = Loop { device: ran.stdout.trim().into() };
        let dio = fs::read_to_string(attached.status("dio")).unwrap();
        assert_eq!(dio.trim(), if direct == "on" { "1" } else { "0" }, "the driver took another mode than --direct-io={direct}");
        attached
    }

    fn status(&self, name: &str) -> PathBuf {
        Path::new("/sys/block").join(self.device.file_name().unwrap()).join("loop").join(name)
    }

    fn text(&self) -> &str {
        self.device.to_str().unwrap()
    }

    fn open(&self, flags: OFlags) -> File {
        File::options().read(true).write(true).custom_flags(flags.bits() as i32).open(&self.device).unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach", self.text()]);
        // Somebody who looks at new devices may have it open: the driver then lets go when the last one closes it.
        let begun = Instant::now();
        while self.status("backing_file").exists() && begun.elapsed() < DETACH_PATIENCE {
            std::thread::yield_now();
        }
    }
}

/// A file system on a loop device, mounted.
struct Inner(PathBuf);

impl Inner {
    fn mount(device: &Loop, at: PathBuf) -> Inner {
        fs::create_dir_all(&at).unwrap();
        tool("mount", "mount", &[device.text(), at.to_str().unwrap()]);
        Inner(at)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let ran = run("umount", &[&self.0]);
        if !std::thread::panicking() {
            ran.expect_success();
        }
    }
}

fn image(mount: &Mount, bytes: u64) -> PathBuf {
    let path = mount.path().join("image");
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

/// Buffered and direct I/O, holes and zeros at random sectors, against bytes in memory.
fn random_io(options: &str, direct: &str) {
    let mut mount = Mount::new(options);
    let path = image(&mount, IMAGE_BYTES);
    let mut random = Random::from_environment("loop device");
    let mut expected = vec![0; IMAGE_BYTES as usize];
    {
        let device = Loop::attach(&path, direct);
        let (buffered, unbuffered) = (device.open(OFlags::empty()), device.open(OFlags::DIRECT));
        let mut buffer = vec![0; (OPERATION_BYTES_MAX + 4096) as usize];
        for number in 0..OPERATIONS {
            let length = (1 + random.below(OPERATION_BYTES_MAX / SECTOR - 1)) * SECTOR;
            let at = random.below((IMAGE_BYTES - length) / SECTOR) * SECTOR;
            let known = &mut expected[at as usize..(at + length) as usize];
            let part = aligned(&mut buffer, length as usize);
            let file = if random.below(2) == 0 { &buffered } else { &unbuffered };
            match random.below(10) {
                0..=4 => {
                    part.copy_from_slice(&pattern(length as usize, random.next()));
                    file.write_all_at(part, at).unwrap();
                    known.copy_from_slice(part);
                }
                5..=7 => {
                    file.read_exact_at(part, at).unwrap();
                    assert_same(part, known, &format!("operation {number}: {length} bytes at {at}"));
                }
                kind => {
                    let flags = if kind == 8 { FallocateFlags::PUNCH_HOLE } else { FallocateFlags::ZERO_RANGE };
                    fallocate(file, flags | FallocateFlags::KEEP_SIZE, at, length).unwrap();
                    known.fill(0);
                }
            }
        }
        let mut found = vec![0; IMAGE_BYTES as usize];
        buffered.read_exact_at(&mut found, 0).unwrap();
        assert_same(&found, &expected, "the device");
        buffered.sync_all().unwrap();
    }
    assert_same(&fs::read(&path).unwrap(), &expected, "the image");
    mount.remount();
    assert_same(&fs::read(&path).unwrap(), &expected, "the image after the remount");
}

/// What fsync on the device acknowledged is there after a crash of the daemon.
fn a_flush_survives_a_kill(options: &str, direct: &str) {
    // A commit of its own accord would hide a flush that did nothing.
    let mut mount = Mount::new(&format!("{options},commit=3600"));
    let path = image(&mount, IMAGE_BYTES);
    File::open(&path).unwrap().sync_all().unwrap();
    let flushed = pattern(8 << 20, 1);
    let device = Loop::attach(&path, direct);
    let file = device.open(OFlags::empty());
    file.write_all_at(&flushed, 1 << 20).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(&pattern(1 << 20, 2), 16 << 20).unwrap();
    mount.kill();
    drop(file);
    drop(device);
    mount.mount();
    let mut found = vec![0; flushed.len()];
    File::open(&path).unwrap().read_exact_at(&mut found, 1 << 20).unwrap();
    assert_same(&found, &flushed, "what was flushed");
}

/// Ranges of the image that hold data, as (offset, length), neighbours as one.
fn mapped(path: &Path) -> Vec<(u64, u64)> {
    let ran = sumfs(&["map", path.to_str().unwrap(), "--json"]).expect_success();
    let map: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for range in map["ranges"].as_array().unwrap().iter().filter(|range| range["kind"] == "data") {
        let (offset, length) = (range["offset"].as_u64().unwrap(), range["length"].as_u64().unwrap());
        match ranges.last_mut() {
            Some(last) if last.0 + last.1 == offset => last.1 += length,
            _ => ranges.push((offset, length)),
        }
    }
    ranges
}

/// A discard of the device punches a hole into the image.
fn discard_punches(options: &str, direct: &str) {
    let mount = Mount::new(options);
    let path = image(&mount, IMAGE_BYTES);
    let device = Loop::attach(&path, direct);
    let file = device.open(OFlags::empty());
    let mut expected = pattern(IMAGE_BYTES as usize, 3);
    file.write_all_at(&expected, 0).unwrap();
    file.sync_all().unwrap();
    let on_host = File::open(&path).unwrap();
    assert_eq!(mapped(&path), [(0, IMAGE_BYTES)]);
    let before = bytes_taken(&on_host);
    tool("blkdiscard", "util-linux", &["--offset", "4194304", "--length", "8388608", device.text()]);
    expected[4 << 20..12 << 20].fill(0);
    assert_eq!(mapped(&path), [(0, 4 << 20), (12 << 20, IMAGE_BYTES - (12 << 20))], "the hole");
    assert_eq!(before - bytes_taken(&on_host), 8 << 20, "space given back");
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 16 << 20, 1 << 20).unwrap();
    expected[16 << 20..17 << 20].fill(0);
    assert_eq!(before - bytes_taken(&on_host), 9 << 20, "space given back by fallocate");
    let mut found = vec![0; IMAGE_BYTES as usize];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found, &expected, "the device");
    assert_same(&fs::read(&path).unwrap(), &expected, "the image");
}

/// A file system, and how it is made and checked.
struct Kind {
    make: (&'static str, &'static str, &'static [&'static str]),
    check: (&'static str, &'static str, &'static [&'static str]),
}

const EXT4: Kind = Kind { make: ("mkfs.ext4", "e2fsprogs", &["-q", "-F"]), check: ("e2fsck", "e2fsprogs", &["-f", "-n"]) };
const XFS: Kind = Kind { make: ("mkfs.xfs", "xfsprogs", &["-q", "-f"]), check: ("xfs_repair", "xfsprogs", &["-n"]) };

impl Kind {
    fn run((program, package, arguments): (&str, &str, &[&str]), device: &Loop) {
        tool(program, package, &[arguments, &[device.text()]].concat());
    }
}

/// Files of many sizes, links and a hole.
fn make_tree(at: &Path) {
    for number in 0..120_usize {
        let directory = at.join(format!("directory-{}", number % 7)).join("below");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(format!("file-{number}")), pattern(number * number * 37, number as u64)).unwrap();
    }
    let first = at.join("directory-0/below/file-0");
    fs::hard_link(&first, at.join("hard")).unwrap();
    std::os::unix::fs::symlink("directory-1", at.join("soft")).unwrap();
    let sparse = File::create(at.join("sparse")).unwrap();
    sparse.write_all_at(b"end", 5 << 20).unwrap();
}

/// mkfs, mount, copy, unmount, fsck; again after a remount of everything, with nothing in a cache; deleted files are given back.
fn file_system_inside(kind: &Kind, options: &str, direct: &str) {
    let mut mount = Mount::with_size("2G", options);
    let path = image(&mount, FILE_SYSTEM_BYTES);
    let (tree, inner) = (mount.beside("tree"), mount.beside("inner"));
    make_tree(&tree);
    {
        let device = Loop::attach(&path, direct);
        Kind::run(kind.make, &device);
        let mounted = Inner::mount(&device, inner.clone());
        run("cp", &["-a", tree.to_str().unwrap(), inner.join("copy").to_str().unwrap()]).expect_success();
        drop(mounted);
        Kind::run(kind.check, &device);
    }
    mount.remount();
    let device = Loop::attach(&path, direct);
    let mounted = Inner::mount(&device, inner.clone());
    run("diff", &["-r", "--no-dereference", tree.to_str().unwrap(), inner.join("copy").to_str().unwrap()]).expect_success();
    let on_host = File::open(&path).unwrap();
    let before = bytes_taken(&on_host);
    fs::remove_dir_all(inner.join("copy")).unwrap();
    // What a journal still names, or a background thread has yet to free, fstrim leaves alone.
    drop(mounted);
    let mounted = Inner::mount(&device, inner.clone());
    tool("fstrim", "util-linux", &[inner.to_str().unwrap()]);
    let (after, removed) = (bytes_taken(&on_host), (0..120_u64).map(|number| number * number * 37).sum::<u64>());
    assert!(after + removed / 2 < before, "{before} bytes before fstrim, {after} after it, {removed} were deleted");
    drop(mounted);
    Kind::run(kind.check, &device);
}

fn ext4_inside(options: &str, direct: &str) {
    file_system_inside(&EXT4, options, direct);
}

fn xfs_inside(options: &str, direct: &str) {
    file_system_inside(&XFS, options, direct);
}

macro_rules! in_all_modes {
    ($($test:ident),* $(,)?) => {
        in_all_modes!(writeback_direct, "cache=writeback", "on", $($test),*);
        in_all_modes!(writeback_buffered, "cache=writeback", "off", $($test),*);
        in_all_modes!(none_direct, "cache=none", "on", $($test),*);
        in_all_modes!(none_buffered, "cache=none", "off", $($test),*);
    };
    ($module:ident, $options:literal, $direct:literal, $($test:ident),*) => {
        mod $module {
            $(#[test]
            fn $test() {
                super::$test($options, $direct);
            })*
        }
    };
}

in_all_modes![random_io, a_flush_survives_a_kill, discard_punches, ext4_inside, xfs_inside];
