//! The daemon runs short of what the system lends it: file descriptors, and memory under a limit of its control group. It goes on, or it
//! ends as after a crash; either way nothing acknowledged is lost, nothing hangs, and who runs it can still stop it.

use crate::content::pattern;
use crate::mount::{Mount, SUMFS, run, sumfs};
use crate::writers::{PATIENCE, seed, work_until, writers_in};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit, test_kill_process};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

const CODE_MOUNT_FAILED: i32 = 32;
/// Clients of the control socket at the same time.
const CLIENTS: usize = 6;
const PIECE_BYTES: usize = 1 << 20;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn pid_of(mount: &Mount) -> Pid {
    Pid::from_raw(i32::try_from(mount.info()["pid"].as_i64().unwrap()).unwrap()).unwrap()
}

fn wait_for_end(pid: Pid) {
    let begin = Instant::now();
    while test_kill_process(pid).is_ok() {
        assert!(begin.elapsed() < PATIENCE, "the daemon does not end");
        std::thread::yield_now();
    }
}

/// No descriptor is left to the process: the first number that it does not use is forbidden.
fn take_descriptors(pid: Pid) {
    let open = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap();
    let open: Vec<u64> = open.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    let unused = (0..).find(|number| !open.contains(number));
    prlimit(Some(pid), Resource::Nofile, Rlimit { current: unused, maximum: unused }).unwrap();
}

fn ask_many_times(mountpoint: &Path) {
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                for command in ["info", "stats", "sync"] {
                    sumfs(&[command, text(mountpoint)]).expect_success();
                }
            });
        }
    });
}

fn without_descriptors(stop: impl FnOnce(&mut Mount, Pid)) {
    let seed = seed();
    let mut mount = Mount::new("");
    let mountpoint = mount.path();
    let mut writers = writers_in(&mountpoint, seed);
    let pid = pid_of(&mount);
    take_descriptors(pid);
    work_until(&mut writers, 60, || ask_many_times(&mountpoint));
    writers.iter_mut().for_each(|writer| _ = writer.verify(&format!("SEED={seed} without descriptors")));
    stop(&mut mount, pid);
    wait_for_end(pid);
    mount.check().expect_success();
    mount.mount();
    writers.iter_mut().for_each(|writer| _ = writer.verify(&format!("SEED={seed} mounted again")));
}

#[test]
fn without_a_free_descriptor_requests_are_answered_and_sigterm_unmounts() {
    without_descriptors(|mount, pid| {
        let mountpoint = mount.path();
        kill_process(pid, Signal::TERM).unwrap();
        wait_for_end(pid);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(text(&mountpoint)), "the daemon ended and left its mount");
    });
}

#[test]
fn without_a_free_descriptor_umount_closes_the_store() {
    without_descriptors(|mount, _| mount.umount());
}

#[test]
fn a_low_limit_of_open_files_is_raised_or_named() {
    let mut mount = Mount::with_size("64M", "");
    mount.umount();
    let (store, mountpoint) = (mount.store(), mount.path());
    let arguments = [SUMFS, "mount", text(&store), text(&mountpoint)];
    let few = ["--nofile=20:20"];
    let powerless = ["setpriv", "--bounding-set=-sys_resource"];
    let refused = run("prlimit", &[&few[..], &powerless[..], &arguments[..]].concat());
    refused.expect_failure(CODE_MOUNT_FAILED, &["only 20 open files", "raise the limit"]);
    let with_few = run("prlimit", &[&few[..], &arguments[..]].concat());
    if !may_raise_limits() {
        return with_few.expect_failure(CODE_MOUNT_FAILED, &["only 20 open files"]);
    }
    with_few.expect_success();
    fs::write(mountpoint.join("file"), pattern(PIECE_BYTES, 1)).unwrap();
    sumfs(&["umount", text(&mountpoint)]).expect_success();
}

/// Has this process the right to more than it was given? Root in a container may not have it.
fn may_raise_limits() -> bool {
    const SYS_RESOURCE: u64 = 1 << 24;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(effective.trim(), 16).unwrap() & SYS_RESOURCE != 0
}

/// A control group with a limit of memory, of either version.
struct Group {
    directory: PathBuf,
    is_v1: bool,
}

impl Group {
    fn of_bytes(bytes: u64) -> Group {
        let (v1, v2) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
        let is_v1 = v1.join("memory.limit_in_bytes").exists();
        if !is_v1 {
            // Fails where it is on already or belongs to another; making the group tells.
            fs::write(v2.join("cgroup.subtree_control"), "+memory").ok();
        }
        let number = format!("sumfs-test-{}-{bytes}", std::process::id());
        let group = Group { directory: if is_v1 { v1 } else { v2 }.join(number), is_v1 };
        let limit = if is_v1 { "memory.limit_in_bytes" } else { "memory.max" };
        let made = fs::create_dir(&group.directory).and_then(|()| fs::write(group.directory.join(limit), bytes.to_string()));
        made.unwrap_or_else(|error| {
            panic!("this test needs the right to make memory control groups in /sys/fs/cgroup (mounted rw): {error}")
        });
        group
    }

    fn add(&self, pid: Pid) {
        fs::write(self.directory.join("cgroup.procs"), pid.as_raw_nonzero().to_string()).unwrap();
    }

    /// How often the limit was reached.
    fn refusals(&self) -> u64 {
        let name = if self.is_v1 { "memory.failcnt" } else { "memory.events" };
        let found = fs::read_to_string(self.directory.join(name)).unwrap();
        let value = if self.is_v1 { Some(found.trim()) } else { found.lines().find_map(|line| line.strip_prefix("max ")) };
        value.unwrap().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The daemon is gone, unless the test has failed.
        fs::remove_dir(&self.directory).ok();
    }
}

/// Fills most of the store once: on a host in memory its blocks then belong to nobody's limit.
fn touch_whole_store(mount: &mut Mount, bytes: usize) {
    let filler = mount.path().join("filler");
    let file = File::create(&filler).unwrap();
    let piece = pattern(PIECE_BYTES, 9);
    for at in (0..bytes).step_by(PIECE_BYTES) {
        file.write_all_at(&piece, at as u64).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    fs::remove_file(&filler).unwrap();
    mount.remount();
}

/// A load of `rounds` files, each written, made durable, read back.
fn write_and_read(root: &Path, rounds: u64, bytes: usize) {
    for round in 0..rounds {
        let path = root.join(format!("large-{round}"));
        let file = File::create(&path).unwrap();
        let content = pattern(bytes, round);
        file.write_all_at(&content, 0).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert!(fs::read(&path).unwrap() == content, "round {round}");
    }
}

#[test]
fn under_a_limit_of_memory_a_larger_load_gets_through() {
    let seed = seed();
    let mut mount = Mount::new("cache-size=16M");
    touch_whole_store(&mut mount, 700 << 20);
    let mut writers = writers_in(&mount.path(), seed);
    let (group, pid, root) = (Group::of_bytes(96 << 20), pid_of(&mount), mount.path());
    group.add(pid);
    work_until(&mut writers, 40, || write_and_read(&root, 8, 24 << 20));
    println!("the limit was reached {} times", group.refusals());
    writers.iter_mut().for_each(|writer| _ = writer.verify(&format!("SEED={seed} under the limit")));
    assert!(test_kill_process(pid).is_ok() && pid_of(&mount) == pid, "the daemon lives");
    mount.remount();
    writers.iter_mut().for_each(|writer| _ = writer.verify(&format!("SEED={seed} mounted again")));
    for round in 0..8 {
        assert!(fs::read(root.join(format!("large-{round}"))).unwrap() == pattern(24 << 20, round), "round {round}");
    }
}

#[test]
fn when_memory_does_not_suffice_what_was_acknowledged_is_there_afterwards() {
    let seed = seed();
    let mut mount = Mount::new("cache-size=512M");
    touch_whole_store(&mut mount, 700 << 20);
    let mut writers = writers_in(&mount.path(), seed);
    let (group, pid, root) = (Group::of_bytes(40 << 20), pid_of(&mount), mount.path());
    group.add(pid);
    let is_alive = || test_kill_process(pid).is_ok();
    work_until(&mut writers, 20, || {
        // More dirty data than the limit, until the daemon is killed or all of it is through.
        for round in 0..20_u64 {
            let written = File::create(root.join(format!("dirty-{round}")))
                .and_then(|file| file.write_all_at(&pattern(16 << 20, round), 0).and_then(|()| file.sync_all()));
            if written.is_err() {
                break;
            }
        }
    });
    println!("the limit was reached {} times, the daemon {}", group.refusals(), if is_alive() { "lives" } else { "was killed" });
    assert!(group.refusals() > 0, "the load did not reach the limit");
    if is_alive() && sumfs(&["sync", text(&root)]).code == 0 {
        mount.umount();
    } else {
        wait_for_end(pid);
        mount.bury();
    }
    mount.check().expect_success();
    mount.mount();
    writers.iter_mut().for_each(|writer| _ = writer.verify(&format!("SEED={seed} mounted again")));
}
