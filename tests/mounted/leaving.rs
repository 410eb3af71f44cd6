//! The mount goes while it is worked in: the connection is aborted from outside, umount(8) and `sumfs umount` of a busy mount, a lazy
//! unmount, SIGTERM twice. Afterwards the daemon is gone, the store is clean, and what was acknowledged is there.

use crate::content::pattern;
use crate::mount::{Mount, run, sumfs};
use crate::writers::{PATIENCE, seed, work_until, writers_in};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit, test_kill_process};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn pid_of(mount: &Mount) -> Pid {
    Pid::from_raw(i32::try_from(mount.info()["pid"].as_i64().unwrap()).unwrap()).unwrap()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what} takes too long");
        std::thread::yield_now();
    }
}

fn wait_for_end(pid: Pid) {
    wait_until("the daemon's end", || test_kill_process(pid).is_err());
}

fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(text(path)))
}

/// The kernel's list of FUSE connections, mounted for the test.
struct Connections(PathBuf);

impl Connections {
    fn mounted_at(path: PathBuf) -> Connections {
        fs::create_dir(&path).unwrap();
        run("mount", &["-t", "fusectl", "fusectl", text(&path)]).expect_success();
        Connections(path)
    }

    fn abort(&self, mountpoint: &Path) {
        let number = rustix::fs::minor(fs::metadata(mountpoint).unwrap().dev());
        fs::write(self.0.join(number.to_string()).join("abort"), "1").unwrap();
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).ok();
    }
}

fn aborted_under_load(options: &str) {
    let seed = seed();
    let mut mount = Mount::new(options);
    let connections = Connections::mounted_at(mount.beside("connections"));
    let mut writers = writers_in(&mount.path(), seed);
    for round in 0..3 {
        let what = format!("SEED={seed} abort {round}");
        let pid = pid_of(&mount);
        let mountpoint = mount.path();
        // A file that is open, and one whose last bytes nobody has asked to be durable.
        let open = File::create(mount.path().join("open")).unwrap();
        open.write_all_at(&pattern(3 << 20, round), 0).unwrap();
        open.sync_all().unwrap();
        work_until(&mut writers, 60, || connections.abort(&mountpoint));
        wait_for_end(pid);
        wait_until("removing the dead mount", || !is_mounted(&mountpoint));
        assert!(open.sync_all().is_err() && fs::read_dir(&mountpoint).unwrap().next().is_none(), "{what}");
        let found = mount.check();
        assert_eq!(found.code, 0, "{what}: {found:?}");
        mount.mount();
        writers.iter_mut().for_each(|writer| _ = writer.verify(&what));
        assert!(fs::read(mount.path().join("open")).unwrap() == pattern(3 << 20, round), "{what}");
    }
}

#[test]
fn an_abort_under_load_ends_the_daemon_and_loses_nothing_writeback() {
    aborted_under_load("cache=writeback");
}

#[test]
fn an_abort_under_load_ends_the_daemon_and_loses_nothing_none() {
    aborted_under_load("cache=none");
}

#[test]
fn a_busy_mount_stays_and_says_who_uses_it() {
    let seed = seed();
    let mut mount = Mount::new("");
    let mountpoint = mount.path();
    let mut writers = writers_in(&mountpoint, seed);
    let held = File::open(&mountpoint).unwrap();
    work_until(&mut writers, 40, || {
        for _ in 0..3 {
            let refused = run("umount", &[text(&mountpoint)]);
            assert!(refused.code == 32 && refused.stderr.contains("busy"), "{refused:?}");
            let me = format!("pid {}", std::process::id());
            sumfs(&["umount", text(&mountpoint)]).expect_failure(1, &["is busy", &me]);
        }
    });
    // Nothing has changed for anybody.
    work_until(&mut writers, 40, || ());
    writers.iter_mut().for_each(|writer| _ = writer.verify(&format!("SEED={seed} still mounted")));
    drop(held);
    mount.remount();
    writers.iter_mut().for_each(|writer| _ = writer.verify(&format!("SEED={seed} mounted again")));
}

/// `detach` takes the mount out of the tree; who works in it goes on, and the daemon ends with the last of them.
fn detached_under_load(options: &str, detach: fn(&Mount, Pid)) {
    let seed = seed();
    let mut mount = Mount::new(options);
    let mountpoint = mount.path();
    let pid = pid_of(&mount);
    let mut writers = writers_in(&mountpoint, seed);
    let places: Vec<PathBuf> = writers.iter().map(|writer| writer.directory.clone()).collect();
    let held: Vec<File> = places.iter().map(|place| File::open(place).unwrap()).collect();
    for (writer, held) in writers.iter_mut().zip(&held) {
        writer.directory = format!("/proc/self/fd/{}", held.as_raw_fd()).into();
    }
    work_until(&mut writers, 50, || {
        detach(&mount, pid);
        wait_until("detaching", || !is_mounted(&mountpoint));
    });
    assert!(test_kill_process(pid).is_ok(), "the daemon serves who is still there");
    let more = work_until(&mut writers, 100, || ());
    assert!(more >= 100);
    drop(held);
    wait_for_end(pid);
    let json = sumfs(&["check", text(&mount.store()), "--data", "--json"]).expect_success();
    let report: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(report["replayed_transactions"], 0, "the store was closed cleanly: {report}");
    mount.mount();
    for (writer, place) in writers.iter_mut().zip(places) {
        writer.directory = place;
        assert!(writer.verify(&format!("SEED={seed} detached")) > 0);
    }
}

fn lazily(mount: &Mount, _daemon: Pid) {
    run("umount", &["-l", text(&mount.path())]).expect_success();
}

/// The second signal ends the patience with those who keep the mount busy.
fn by_two_signals(mount: &Mount, daemon: Pid) {
    kill_process(daemon, Signal::TERM).unwrap();
    let log = mount.beside("log");
    wait_until("the first signal", || fs::read_to_string(&log).unwrap().contains("unmounting"));
    kill_process(daemon, Signal::TERM).unwrap();
}

#[test]
fn a_lazy_unmount_under_load_serves_to_the_end_writeback() {
    detached_under_load("cache=writeback", lazily);
}

#[test]
fn a_lazy_unmount_under_load_serves_to_the_end_none() {
    detached_under_load("cache=none", lazily);
}

#[test]
fn two_signals_under_load_detach_and_serve_to_the_end_writeback() {
    detached_under_load("cache=writeback", by_two_signals);
}

#[test]
fn two_signals_under_load_detach_and_serve_to_the_end_none() {
    detached_under_load("cache=none", by_two_signals);
}

/// Nor does a thread that waits for who asks for metrics.
#[test]
fn the_end_needs_no_file_descriptor() {
    let mut mount = Mount::new("metrics=127.0.0.1:0");
    let content = pattern(1 << 20, 1);
    fs::write(mount.path().join("file"), &content).unwrap();
    let daemon = pid_of(&mount);
    let entries = fs::read_dir(format!("/proc/{}/fd", daemon.as_raw_nonzero())).unwrap();
    let open: Vec<u64> = entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    let none = (0..).find(|number| !open.contains(number));
    prlimit(Some(daemon), Resource::Nofile, Rlimit { current: none, maximum: getrlimit(Resource::Nofile).maximum }).unwrap();
    run("umount", &[text(&mount.path())]).expect_success();
    wait_for_end(daemon);
    let found = mount.check();
    assert_eq!(found.code, 0, "{found:?}");
    mount.mount();
    assert!(fs::read(mount.path().join("file")).unwrap() == content);
}
