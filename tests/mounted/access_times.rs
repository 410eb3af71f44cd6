//! Access times as the mount options say, where the kernel's page cache could keep reads from the daemon.

use crate::mount::Mount;
use rustix::fs::{AtFlags, StatxFlags, Timespec};
use std::fs;
use std::path::Path;

fn accessed(path: &Path) -> Timespec {
    let found = rustix::fs::statx(rustix::fs::CWD, path, AtFlags::empty(), StatxFlags::ATIME).unwrap();
    Timespec { tv_sec: found.stx_atime.tv_sec, tv_nsec: found.stx_atime.tv_nsec.into() }
}

/// Files are stamped with the coarse clock: one access after another shows only when it has moved on.
fn wait_until_after(time: Timespec) {
    while rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse) <= time {
        std::thread::yield_now();
    }
}

/// How many of three accesses by programs that open, read and close moved the access time.
fn counted_accesses(options: &str) -> usize {
    let mount = Mount::with_size("64M", options);
    let path = mount.path().join("file");
    fs::write(&path, b"data").unwrap();
    let mut counted = 0;
    for _ in 0..3 {
        let before = accessed(&path);
        wait_until_after(before);
        assert_eq!(fs::read(&path).unwrap(), b"data");
        counted += usize::from(accessed(&path) != before);
    }
    counted
}

#[test]
fn strictatime_counts_every_access() {
    for cache in ["none", "writeback"] {
        assert_eq!(counted_accesses(&format!("cache={cache},strictatime")), 3, "{cache}");
    }
}

/// What the kernel still has of the file it reads without asking: with its write cache that is all of it.
#[test]
fn relatime_counts_the_first_and_noatime_none() {
    assert_eq!(counted_accesses("cache=none,relatime"), 1);
    for cache in ["none", "writeback"] {
        assert_eq!(counted_accesses(&format!("cache={cache},noatime")), 0, "{cache}");
    }
}

/// The list of mounts shows it, and listing leaves the time.
#[test]
fn nodiratime_is_for_directories() {
    for (options, is_counted) in [("cache=none", true), ("cache=none,nodiratime", false)] {
        let mount = Mount::with_size("64M", options);
        let path = mount.path().join("directory");
        fs::create_dir(&path).unwrap();
        let before = accessed(&path);
        wait_until_after(before);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        assert_eq!(accessed(&path) != before, is_counted, "{options}");
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = mounts.lines().find(|line| line.contains(mount.path().to_str().unwrap())).unwrap();
        assert_eq!(line.contains("nodiratime"), !is_counted, "{line}");
    }
}
