//! Too little of what a process needs: file descriptors, memory. Clear errors, no crash, no deadlock, and it goes on afterwards.
//!
//! The memory test needs a memory controller of control groups that this process may use; where there is none it says so and runs
//! the same load without a limit. Version 1 does not hold back who makes pages of the kernel's cache dirty, and kills when all of a
//! group are: there the limit is for cache=none only.

use crate::content::{assert_same, pattern};
use crate::mount::{Mount, run, sumfs};
use crate::writers::PATIENCE;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// More silent callers than the daemon has descriptors or threads for.
const CALLERS: usize = 24;
const NO_DESCRIPTORS: &str = "out of file descriptors";
/// Daemon and load together.
const MEMORY_BYTES: u64 = 256 << 20;
const CACHE: &str = "64M";
const LOAD_MIB_DEFAULT: u64 = 1024;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn pid_of(mount: &Mount) -> Pid {
    Pid::from_raw(i32::try_from(mount.info()["pid"].as_i64().unwrap()).unwrap()).unwrap()
}

/// Leaves the daemon `spare` more file descriptors than it has open.
fn leave_descriptors(daemon: Pid, spare: u64) {
    let process = PathBuf::from(format!("/proc/{}", daemon.as_raw_nonzero()));
    let entries = |name: &str| fs::read_dir(process.join(name)).unwrap().map(|entry| entry.unwrap().path());
    // A connection that was answered may still be open for a moment, and must not be counted.
    let is_answering =
        || entries("task").any(|task| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("sumfs-control-")));
    let begin = Instant::now();
    while is_answering() {
        assert!(begin.elapsed() < PATIENCE, "the daemon goes on answering");
        std::thread::yield_now();
    }
    let open: Vec<u64> = entries("fd").map(|path| path.file_name().unwrap().to_str().unwrap().parse().unwrap()).collect();
    // Numbers below the limit count. The lowest free one is set aside for the next caller already, and does not show.
    set_limit(daemon, (0..).filter(|number| !open.contains(number)).nth(spare as usize).unwrap());
}

fn set_limit(daemon: Pid, descriptors: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    prlimit(Some(daemon), Resource::Nofile, Rlimit { current: Some(descriptors), maximum }).unwrap();
}

/// Names, data, new groups, a commit, statfs: nothing of that may need a descriptor.
fn work(root: &Path, round: u64) {
    let directory = root.join(format!("round-{round}"));
    fs::create_dir(&directory).unwrap();
    for number in 0..40 {
        let mut file = File::create(directory.join(format!("file-{number}"))).unwrap();
        file.write_all(&pattern(1 << 20, round + number)).unwrap();
        file.sync_all().unwrap();
    }
    fs::rename(directory.join("file-0"), directory.join("renamed")).unwrap();
    fs::remove_file(directory.join("file-1")).unwrap();
    File::open(&directory).unwrap().sync_all().unwrap();
    assert!(rustix::fs::statvfs(root).unwrap().f_bavail > 0);
}

fn assert_work_is_there(root: &Path, round: u64) {
    let directory = root.join(format!("round-{round}"));
    assert_same(&fs::read(directory.join("renamed")).unwrap(), &pattern(1 << 20, round), "renamed");
    for number in 2..40 {
        let name = format!("file-{number}");
        assert_same(&fs::read(directory.join(&name)).unwrap(), &pattern(1 << 20, round + number), &name);
    }
}

fn wait_for_stats(mount: &Mount) {
    let begin = Instant::now();
    while sumfs(&["stats", text(&mount.path())]).code != 0 {
        assert!(begin.elapsed() < PATIENCE, "no stats although there are descriptors again");
    }
}

fn without_descriptors(options: &str) {
    let mut mount = Mount::with_size("600M", options);
    let root = mount.path();
    let daemon = pid_of(&mount);
    let socket = PathBuf::from("/run/sumfs").join(format!("{}.sock", mount.info()["uuid"].as_str().unwrap()));
    // Not one: everything but the control socket goes on, and who calls there is told.
    leave_descriptors(daemon, 0);
    // The one that is set aside.
    sumfs(&["stats", text(&root)]);
    work(&root, 0);
    for command in ["stats", "info", "sync"] {
        let begin = Instant::now();
        let ran = sumfs(&[command, text(&root)]);
        assert!(ran.code == 1 && ran.stderr.contains(NO_DESCRIPTORS), "{command}: {ran:?}");
        assert!(begin.elapsed() < PATIENCE);
    }
    work(&root, 100);
    // Two, and callers who take them and say nothing.
    leave_descriptors(daemon, 2);
    let callers: Vec<UnixStream> = (0..CALLERS).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    work(&root, 200);
    drop(callers);
    wait_for_stats(&mount);
    set_limit(daemon, 1024);
    wait_for_stats(&mount);
    assert!(mount.info()["read_only_reason"].is_null());
    sumfs(&["sync", text(&root)]).expect_success();
    leave_descriptors(daemon, 0);
    mount.umount();
    mount.check().expect_success();
    mount.mount();
    for round in [0, 100, 200] {
        assert_work_is_there(&root, round);
    }
}

#[test]
fn a_daemon_without_file_descriptors_goes_on_writeback() {
    without_descriptors("cache=writeback");
}

#[test]
fn a_daemon_without_file_descriptors_goes_on_none() {
    without_descriptors("cache=none");
}

/// A control group with a bound on memory; its processes must have ended when it is dropped.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    fn new(bytes: u64, makes_pages_dirty: bool) -> Result<MemoryGroup, String> {
        let places = [
            ("/sys/fs/cgroup", "cgroup.controllers", "memory.max"),
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.limit_in_bytes"),
        ];
        let mut reasons = Vec::new();
        for (top, mark, limit) in places {
            if !Path::new(top).join(mark).exists() {
                reasons.push(format!("no {top}/{mark}"));
                continue;
            }
            if makes_pages_dirty && limit != "memory.max" {
                reasons.push(format!("{top}: version 1 does not hold back who makes pages dirty"));
                continue;
            }
            // Version 2 gives a controller only to groups below one that hands it down; this may be so already.
            fs::write(Path::new(top).join("cgroup.subtree_control"), "+memory").ok();
            let group = MemoryGroup(Path::new(top).join(format!("sumfs-test-{}", std::process::id())));
            match fs::create_dir(&group.0).and_then(|()| fs::write(group.0.join(limit), bytes.to_string())) {
                Ok(()) => return Ok(group),
                Err(error) => reasons.push(format!("{}: {error}", group.0.join(limit).display())),
            }
        }
        Err(reasons.join("; "))
    }

    fn processes(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let begin = Instant::now();
        while fs::remove_dir(&self.0).is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) && begin.elapsed() < PATIENCE
        {
            std::thread::yield_now();
        }
    }
}

/// Buffered writes, a mapping that is written, fsync, everything read back: each MiB is its own number.
const LOAD: &str = r#"
import mmap, os, sys
root, mebibytes = sys.argv[1], int(sys.argv[2])
def piece(number):
    return number.to_bytes(8, "little") * (1 << 17)
def write(name, begin, end):
    with open(f"{root}/{name}", "wb", buffering=0) as file:
        for number in range(begin, end):
            assert file.write(piece(number)) == 1 << 20
        os.fsync(file.fileno())
half = mebibytes // 2
write("one", 0, half)
write("two", half, mebibytes - 256)
with open(f"{root}/mapped", "w+b") as file:
    file.truncate(256 << 20)
    with mmap.mmap(file.fileno(), 0) as mapping:
        for number in range(256):
            mapping[number << 20:(number + 1) << 20] = piece(number)
        mapping.flush()
        for number in range(0, 256, 2):
            mapping[number << 20:(number + 1) << 20] = piece(number + 1000)
    os.fsync(file.fileno())
for name, numbers in [("one", range(half)), ("two", range(half, mebibytes - 256)),
                      ("mapped", [number + (1000 if number % 2 == 0 else 0) for number in range(256)])]:
    with open(f"{root}/{name}", "rb") as file:
        for number in numbers:
            assert file.read(1 << 20) == piece(number), (name, number)
        assert file.read(1) == b""
"#;

fn under_memory_pressure(options: &str) {
    let mebibytes = std::env::var("LOAD_MIB").map_or(LOAD_MIB_DEFAULT, |text| text.parse().expect("LOAD_MIB is a number"));
    let size = format!("{}M", mebibytes + 1024);
    let mut mount = Mount::on_disk(&size, &format!("{options},cache-size={CACHE}"));
    let group = MemoryGroup::new(MEMORY_BYTES, options == "cache=writeback");
    let mut script = String::from("exec python3 -c \"$0\" \"$@\"");
    match &group {
        Ok(group) => {
            fs::write(group.processes(), pid_of(&mount).as_raw_nonzero().to_string()).unwrap();
            script = format!("echo $$ > {} && {script}", group.processes().display());
        }
        Err(reason) => println!("NOTICE: no control group with a memory bound here, the load runs without one: {reason}"),
    }
    let (root, mebibytes) = (mount.path(), mebibytes.to_string());
    let ran = run("bash", &["-c", &script, LOAD, text(&root), &mebibytes]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(mount.info()["read_only_reason"].is_null());
    mount.umount();
    drop(group);
}

#[test]
fn little_memory_is_no_deadlock() {
    // One after the other: together they would measure each other.
    for options in ["cache=writeback", "cache=none"] {
        under_memory_pressure(options);
    }
}
