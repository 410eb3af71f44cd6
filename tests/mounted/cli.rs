//! The command line from outside: exit codes, one-line messages that say the way out, output for programs.

use crate::mount::{Mount, Ran, SUMFS, require_root_and_fuse, run, scratch, sumfs};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A small store that is not mounted, and a place to mount it.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Place {
        require_root_and_fuse();
        let place = Place { directory: scratch() };
        fs::create_dir(place.mountpoint()).unwrap();
        sumfs(&[OsStr::new("mkfs"), place.store().as_os_str(), OsStr::new("--size"), OsStr::new("64M")]).expect_success();
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn store(&self) -> PathBuf {
        self.at("store")
    }

    fn mountpoint(&self) -> PathBuf {
        self.at("mnt")
    }

    fn mount(&self, more: &[&str]) -> Ran {
        mount(&self.store(), &self.mountpoint(), more)
    }

    fn umount(&self) -> Ran {
        sumfs(&[OsStr::new("umount"), self.mountpoint().as_os_str()])
    }
}

impl Drop for Place {
    /// After a failure a daemon may be left.
    fn drop(&mut self) {
        for mountpoint in [self.mountpoint(), self.at("second"), self.at("other")] {
            rustix::mount::unmount(mountpoint, rustix::mount::UnmountFlags::DETACH).ok();
        }
    }
}

fn mount(store: &Path, mountpoint: &Path, more: &[&str]) -> Ran {
    let mut arguments = vec![OsStr::new("mount"), store.as_os_str(), mountpoint.as_os_str()];
    arguments.extend(more.iter().map(OsStr::new));
    sumfs(&arguments)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn mkfs_says_what_it_made_and_refuses_what_is_there() {
    let directory = scratch();
    let store = directory.path().join("store");
    let made = sumfs(&["mkfs", text(&store), "--size", "64M", "--label", "test"]).expect_success();
    assert!(made.stdout.contains("sumfs mount") && made.stdout.contains("64.0 MiB"), "{made:?}");
    sumfs(&["mkfs", text(&store), "--size", "64M"]).expect_failure(1, &[text(&store), "--force"]);
    sumfs(&["mkfs", text(&store), "--size", "64M", "--force"]).expect_success();
    let small = directory.path().join("small");
    sumfs(&["mkfs", text(&small), "--size", "1M"]).expect_failure(1, &["16 MiB"]);
    assert!(!small.join("superblock").exists());
    let nonsense = sumfs(&["mkfs", text(&small), "--size", "large"]);
    assert_eq!(nonsense.code, 2);
    assert!(nonsense.stderr.contains("10G"), "{nonsense:?}");
}

#[test]
fn mkfs_and_check_leave_a_mounted_store_alone() {
    let mount = Mount::with_size("64M", "");
    sumfs(&["mkfs", text(&mount.store()), "--force"]).expect_failure(1, &[text(&mount.path()), "sumfs umount"]);
    sumfs(&["check", text(&mount.store())]).expect_failure(8, &[text(&mount.path()), "sumfs umount"]);
}

#[test]
fn a_store_on_a_sumfs_is_refused() {
    let mount = Mount::with_size("256M", "");
    let inner = mount.path().join("inner");
    sumfs(&["mkfs", text(&inner), "--size", "16M"]).expect_failure(1, &[text(&inner), "sumfs"]);
}

/// What each command must say, and with what code it ends.
const WRONG: &[(&str, i32, &[&str])] = &[
    ("info nothing", 1, &["nothing does not exist", "sumfs mkfs nothing"]),
    ("info plain", 1, &["plain is no sumfs store", "sumfs mkfs"]),
    ("info file", 1, &["file is not a directory", "sumfs mkfs DIRECTORY"]),
    ("check nothing", 8, &["nothing does not exist", "sumfs mkfs nothing"]),
    ("check file", 8, &["file is not a directory", "sumfs mkfs DIRECTORY"]),
    ("scrub start plain", 8, &["plain is no sumfs store", "sumfs mkfs"]),
    ("scrub status nothing", 8, &["nothing does not exist", "sumfs mkfs nothing"]),
    ("scrub pause store", 8, &["no scrub is running", "scrub start"]),
    ("scrub resume store", 8, &["no scrub is paused", "scrub start"]),
    ("scrub cancel store", 8, &["no scrub to cancel", "scrub status"]),
    ("damage list nothing", 8, &["nothing does not exist", "sumfs mkfs nothing"]),
    ("device list nothing", 1, &["nothing does not exist", "sumfs mkfs nothing"]),
    ("device list plain", 1, &["plain is no sumfs store", "sumfs mkfs"]),
    ("device add store file", 1, &["store is not mounted", "mount it first"]),
    ("device replace store 0 file", 1, &["store is not mounted", "mount it first"]),
    ("device remove store 0", 1, &["store is not mounted", "mount it first"]),
    ("device pause store", 1, &["store is not mounted", "mount it first"]),
    ("mkfs new --size 64M --data raid5", 1, &["raid5 needs at least 3 devices", "--device"]),
    ("mkfs new --size 64M --stripe-unit 64K", 1, &["single has no stripes", "--stripe-unit"]),
    ("stats plain", 1, &["plain is not a mount point", "findmnt"]),
    ("top --once nothing", 1, &["nothing is not a mount point", "findmnt"]),
    ("top --once store", 1, &["store", "findmnt"]),
    ("sync /proc", 1, &["/proc is a mount of type proc", "findmnt"]),
    ("umount plain", 1, &["plain is not a mount point", "findmnt"]),
    ("map nothing", 1, &["nothing: No such file", "name a file in a sumfs mount"]),
    ("map plain", 1, &["plain is not a regular file", "name one"]),
    ("map file", 1, &["file is not in a sumfs mount", "findmnt"]),
    ("read --ignore-checksum file", 1, &["file is not in a sumfs mount", "findmnt"]),
    ("index rebuild nothing", 1, &["nothing does not exist", "sumfs mkfs nothing"]),
    ("mkfs store --size 64M", 1, &["store is a store already", "--force"]),
    ("mkfs plain/x/y --size 64M", 1, &["plain/x does not exist", "make it first"]),
    ("mkfs new --size 1K", 1, &["16 MiB"]),
    ("mkfs file --size 64M", 1, &["file is not a directory", "directory of its own"]),
    ("mkfs new --data dup --device /nowhere", 1, &["/nowhere does not exist", "--size"]),
    ("mkfs new --size many", 2, &["many", "500M"]),
    ("mount nothing mnt", 32, &["nothing: does not exist", "make it first"]),
    ("mount file mnt", 32, &["file: is not a directory", "name the directory of a store"]),
    ("mount store file", 32, &["file: is not a directory", "one to mount it on"]),
    ("mount plain mnt", 32, &["plain is no sumfs store", "sumfs mkfs"]),
    ("mount store mnt -o cache=bogus", 1, &["cache=bogus", "writeback or none"]),
    ("mount store mnt -o bogus", 1, &["bogus", "valid are ro"]),
    ("mount store", 1, &["<MOUNTPOINT>", "--help"]),
    ("man --dir file/x", 1, &["file/x", "name a directory"]),
    ("systemd-units --dir file/x", 1, &["file/x", "name a directory"]),
    ("completions csh", 2, &["csh", "bash"]),
    ("top store -n 0", 2, &["0", "seconds from 0.1"]),
    ("read file", 2, &["--ignore-checksum", "Usage"]),
    ("frobnicate", 2, &["frobnicate", "--help"]),
];

#[test]
fn whatever_is_wrong_is_named_with_the_way_out() {
    let place = Place::new();
    fs::create_dir(place.at("plain")).unwrap();
    fs::write(place.at("file"), "x").unwrap();
    // What the first opening makes is there.
    place.mount(&[]).expect_success();
    place.umount().expect_success();
    let mut commands = WRONG.iter().filter_map(|(line, ..)| line.split(' ').next()).collect::<Vec<_>>();
    commands.dedup();
    let help = sumfs(&["--help"]).expect_success().stdout;
    let offered = help.lines().filter_map(|line| line.strip_prefix("  ").and_then(|line| line.split(' ').next()));
    let forgotten: Vec<&str> = offered.filter(|name| name.starts_with(char::is_lowercase) && *name != "help").collect();
    assert!(forgotten.len() > 10 && forgotten.iter().all(|name| commands.contains(name)), "{forgotten:?} and {commands:?}");
    for (line, code, parts) in WRONG {
        let before = fs::read_dir(place.store()).unwrap().count();
        let (directory, program) = (place.directory.path().display(), SUMFS);
        let ran = run("sh", &["-c", &format!("cd '{directory}'; '{program}' {line}")]);
        assert_eq!((ran.code, ran.stdout.as_str()), (*code, ""), "{line}: {}", ran.stderr);
        assert!(parts.iter().all(|part| ran.stderr.contains(part)), "{line}: {}", ran.stderr);
        assert_eq!(fs::read_dir(place.store()).unwrap().count(), before, "{line} changed the store");
    }
}

#[test]
fn mounting_what_cannot_be_mounted() {
    let place = Place::new();
    let (store, mountpoint) = (place.store(), place.mountpoint());
    fs::create_dir(place.at("plain")).unwrap();
    fs::write(place.at("file"), "x").unwrap();
    mount(&place.at("plain"), &mountpoint, &[]).expect_failure(32, &[text(&place.at("plain")), "sumfs mkfs"]);
    mount(&place.at("absent"), &mountpoint, &[]).expect_failure(32, &[text(&place.at("absent")), "does not exist"]);
    mount(&place.at("file"), &mountpoint, &[]).expect_failure(32, &[text(&place.at("file")), "not a directory"]);
    mount(&store, &place.at("absent"), &[]).expect_failure(32, &["mount point", text(&place.at("absent")), "does not exist"]);
    mount(&store, &place.at("file"), &[]).expect_failure(32, &["mount point", text(&place.at("file")), "not a directory"]);
    mount(&store, place.directory.path(), &[]).expect_failure(32, &["below the mount point"]);
    mount(&store, &store, &[]).expect_failure(32, &[text(&store)]);
    fs::write(place.at("plain").join("superblock"), vec![0; 100_000]).unwrap();
    fs::write(place.at("plain").join("lock"), "").unwrap();
    mount(&place.at("plain"), &mountpoint, &[]).expect_failure(32, &["superblock"]);
}

#[test]
fn mounting_with_options_that_are_wrong() {
    let place = Place::new();
    place.mount(&["-o", "cahce=none"]).expect_failure(1, &["cahce=none", "cache=writeback|none", "commit=SECONDS"]);
    place.mount(&["-o", "cache=maybe"]).expect_failure(1, &["cache=maybe", "writeback or none"]);
    place.mount(&["-o", "cache-size=lots"]).expect_failure(1, &["cache-size=lots", "64M"]);
    let log = place.mountpoint().join("log");
    place.mount(&["--log", text(&log)]).expect_failure(1, &[text(&log), "below the mount point"]);
    let log = place.at("no-such-directory/log");
    place.mount(&["-o", &format!("log={}", text(&log))]).expect_failure(32, &[text(&log)]);
    for wrong in [&["mount"][..], &["mount", "only-a-store"], &["mount", "a", "b", "c"], &["mount", "a", "b", "--nonsense"]] {
        assert_eq!(sumfs(wrong).code, 1, "{wrong:?}");
    }
    assert_eq!(sumfs(&["check"]).code, 16);
    assert_eq!(sumfs(&["nonsense"]).code, 2);
    assert_eq!(sumfs(&["--help"]).code, 0);
    let help = sumfs(&["mount", "--help"]).expect_success();
    assert!(help.stdout.contains("csum-inline=SIZE"), "{help:?}");
}

#[test]
fn a_second_mount_at_the_same_place_is_refused_and_the_first_is_unharmed() {
    let mount = Mount::with_size("64M", "");
    fs::write(mount.path().join("file"), "x").unwrap();
    // Also through another name of the store.
    let alias = mount.beside("alias");
    symlink(mount.store(), &alias).unwrap();
    for store in [&mount.store(), &alias] {
        let ran = sumfs(&["mount", text(store), text(&mount.path())]);
        ran.expect_failure(32, &[text(&mount.path()), "already mounted", "sumfs umount"]);
    }
    // To serve it in front takes the store itself.
    let other = mount.beside("other");
    fs::create_dir(&other).unwrap();
    let ran = sumfs(&["mount", text(&mount.store()), text(&other), "-f"]);
    ran.expect_failure(32, &["already mounted", text(&mount.path())]);
    assert_eq!(fs::read_to_string(mount.path().join("file")).unwrap(), "x");
}

/// As with a file system of the kernel's, a second mount elsewhere shows the same files, with flags of its own.
#[test]
fn a_second_mount_elsewhere_shows_the_same() {
    let place = Place::new();
    let (first, second) = (place.mountpoint(), place.at("second"));
    fs::create_dir(&second).unwrap();
    place.mount(&[]).expect_success();
    mount(&place.store(), &second, &["-o", "ro,nosuid"]).expect_success();
    fs::write(first.join("file"), "x").unwrap();
    assert_eq!(fs::read_to_string(second.join("file")).unwrap(), "x");
    let refused = fs::write(second.join("file"), "y").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
    mount(&place.store(), &second, &["-o", "remount,rw"]).expect_success();
    fs::rename(second.join("file"), second.join("renamed")).unwrap();
    assert_eq!(fs::read_to_string(first.join("renamed")).unwrap(), "x");
    for mountpoint in [&first, &second] {
        assert!(sumfs(&["info", text(mountpoint)]).expect_success().stdout.contains(text(mountpoint)));
    }
    // The one that began it goes first; the store stays in use until the other has gone too.
    place.umount().expect_success();
    assert_eq!(fs::read_to_string(second.join("renamed")).unwrap(), "x");
    sumfs(&["check", text(&place.store())]).expect_failure(8, &[text(&second)]);
    sumfs(&["umount", text(&second)]).expect_success();
    let lock = File::open(place.store().join("lock")).unwrap();
    assert_eq!(rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive), Ok(()));
    drop(lock);
    // What is read-only as a whole cannot be written elsewhere.
    place.mount(&["-o", "ro"]).expect_success();
    mount(&place.store(), &second, &[]).expect_failure(32, &["read-only", "-o ro"]);
    place.umount().expect_success();
    // A signal to the daemon takes both away.
    place.mount(&[]).expect_success();
    mount(&place.store(), &second, &[]).expect_success();
    let info = sumfs(&["info", text(&second), "--json"]).expect_success();
    let pid = serde_json::from_str::<serde_json::Value>(&info.stdout).unwrap()["pid"].as_i64().unwrap();
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let lock = File::open(place.store().join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert!(!first.join("renamed").exists() && !second.join("renamed").exists());
    drop(lock);
    sumfs(&["check", text(&place.store()), "--data"]).expect_success();
}

#[test]
fn a_store_in_use_is_named() {
    let place = Place::new();
    let lock = File::open(place.store().join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    sumfs(&["info", text(&place.store())]).expect_failure(1, &[text(&place.store()), "in use"]);
}

#[test]
fn umount_of_a_busy_mount_says_who_uses_it() {
    let mut mount = Mount::with_size("64M", "");
    let held = File::create(mount.path().join("held")).unwrap();
    let pid = std::process::id().to_string();
    sumfs(&["umount", text(&mount.path())]).expect_failure(1, &["busy", &pid]);
    fs::write(mount.path().join("still"), "works").unwrap();
    drop(held);
    mount.umount();
    let inner = mount.path().join("inner");
    mount.mount();
    fs::create_dir(&inner).unwrap();
    run("mount", &["-t", "tmpfs", "tmpfs", text(&inner)]).expect_success();
    let ran = sumfs(&["umount", text(&mount.path())]);
    run("umount", &[text(&inner)]).expect_success();
    ran.expect_failure(1, &["busy", text(&inner)]);
}

#[test]
fn umount_of_what_is_not_mounted() {
    let place = Place::new();
    place.umount().expect_failure(1, &[text(&place.mountpoint()), "not a mount point"]);
    sumfs(&["umount", "/proc"]).expect_failure(1, &["/proc", "not of sumfs"]);
    place.mount(&[]).expect_success();
    sumfs(&["umount", text(&place.store())]).expect_failure(1, &[text(&place.mountpoint())]);
    sumfs(&["stats", text(&place.store())]).expect_failure(1, &[text(&place.mountpoint())]);
    place.umount().expect_success();
}

#[test]
fn umount_returns_when_the_store_is_free() {
    let mut mount = Mount::with_size("256M", "");
    for round in 0..10 {
        fs::write(mount.path().join(format!("file-{round}")), vec![round; 1 << 20]).unwrap();
        mount.umount();
        let lock = File::open(mount.store().join("lock")).unwrap();
        assert_eq!(rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive), Ok(()), "round {round}");
        drop(lock);
        mount.mount();
    }
    // umount(8) does not wait; the next mount does.
    for _ in 0..10 {
        fs::write(mount.path().join("file"), vec![7; 1 << 20]).unwrap();
        run("umount", &[text(&mount.path())]).expect_success();
        mount.mount();
        assert_eq!(fs::read(mount.path().join("file")).unwrap(), vec![7; 1 << 20]);
    }
}

#[test]
fn signals_unmount_cleanly() {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT, rustix::process::Signal::HUP] {
        let place = Place::new();
        let mut daemon = Command::new(SUMFS)
            .args(["mount", text(&place.store()), text(&place.mountpoint()), "-f"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let marker = place.mountpoint().join("marker");
        // In front there is no word when it is ready: the mount is there when a file made in it is on another device.
        let outside = rustix::fs::stat(place.directory.path()).unwrap().st_dev;
        while rustix::fs::stat(place.mountpoint()).map_or(outside, |stat| stat.st_dev) == outside {
            assert!(daemon.try_wait().unwrap().is_none(), "it did not mount");
            std::thread::yield_now();
        }
        fs::write(&marker, "written").unwrap();
        let pid = rustix::process::Pid::from_child(&daemon);
        rustix::process::kill_process(pid, signal).unwrap();
        assert!(daemon.wait().unwrap().success(), "{signal:?}");
        assert!(!marker.exists());
        place.mount(&["-o", "ro"]).expect_success();
        assert_eq!(fs::read_to_string(&marker).unwrap(), "written");
        place.umount().expect_success();
    }
}

#[test]
fn the_mount_helper_form_and_the_bare_form() {
    let place = Place::new();
    let (store, mountpoint) = (place.store(), place.mountpoint());
    let helper = place.at("mount.fuse.sumfs");
    symlink(SUMFS, &helper).unwrap();
    run(text(&helper), &[text(&store), text(&mountpoint), "-n", "-o", "rw,noatime,nosuid,x-mine,_netdev"]).expect_success();
    let listed = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = listed.lines().find(|line| line.contains(text(&mountpoint))).unwrap();
    assert!(line.starts_with(&format!("{} {} fuse.sumfs rw,nosuid", text(&store), text(&mountpoint))), "{line}");
    assert!(line.contains("noatime"), "{line}");
    // -f pretends.
    place.umount().expect_success();
    run(text(&helper), &["-f", text(&store), text(&mountpoint)]).expect_success();
    place.umount().expect_failure(1, &["not a mount point"]);
    run(text(&helper), &[text(&store), text(&mountpoint), "-o", "nonsense"]).expect_failure(1, &["nonsense"]);
    run(text(&helper), &["-s", text(&store), text(&mountpoint), "-o", "nonsense"]).expect_success();
    place.umount().expect_success();
    sumfs(&[text(&store), text(&mountpoint), "-o", "ro"]).expect_success();
    assert!(fs::write(mountpoint.join("file"), "x").is_err());
    place.umount().expect_success();
}

#[test]
fn remounting_changes_the_flags() {
    let mount = Mount::with_size("64M", "");
    fs::write(mount.path().join("file"), "x").unwrap();
    let remount = |options: &str| sumfs(&["mount", text(&mount.store()), text(&mount.path()), "-o", options]);
    remount("remount,ro").expect_success();
    let error = fs::write(mount.path().join("file"), "y").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
    remount("remount,rw").expect_success();
    fs::write(mount.path().join("file"), "z").unwrap();
    let place = Place::new();
    place.mount(&["-o", "remount,ro"]).expect_failure(32, &["not mounted"]);
}

/// With `fsname=` the list of mounts shows a name; everything still finds the mount by its store, and umount(8) by the name.
#[test]
fn a_mount_with_a_name() {
    let place = Place::new();
    let (store, mountpoint) = (place.store(), place.mountpoint());
    let name = format!("named-{}", std::process::id());
    place.mount(&["-o", "fsname=/dev/sdb"]).expect_failure(1, &["fsname", "not a path"]);
    place.mount(&["-o", &format!("fsname={name}")]).expect_success();
    let listed = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(listed.contains(&format!("{name} {} fuse.sumfs", text(&mountpoint))), "{listed}");
    for target in [&store, &mountpoint] {
        let info = sumfs(&["info", text(target)]).expect_success();
        assert!(info.stdout.contains(text(&store)) && info.stdout.contains(text(&mountpoint)), "{info:?}");
    }
    sumfs(&["sync", text(&mountpoint)]).expect_success();
    sumfs(&["stats", text(&mountpoint)]).expect_success();
    sumfs(&["check", text(&store)]).expect_failure(8, &[text(&mountpoint), "sumfs umount"]);
    mount(&store, &mountpoint, &[]).expect_failure(32, &["already mounted", text(&mountpoint)]);
    sumfs(&["mount", "another", text(&mountpoint), "-o", "remount,ro"]).expect_failure(32, &["another", "not mounted"]);
    place.mount(&["-o", "remount,ro"]).expect_success();
    assert!(fs::write(mountpoint.join("file"), "x").is_err());
    sumfs(&["mount", &name, text(&mountpoint), "-o", "remount,rw"]).expect_success();
    fs::write(mountpoint.join("file"), "x").unwrap();
    run("umount", &[&name]).expect_success();
    place.mount(&["-o", &format!("fsname={name}")]).expect_success();
    place.umount().expect_success();
    sumfs(&["check", text(&store), "--data"]).expect_success();
}

#[test]
fn info_and_stats_for_people_and_programs() {
    let mount = Mount::with_size("256M", "");
    fs::write(mount.path().join("file"), vec![1; 3 << 20]).unwrap();
    sumfs(&["sync", text(&mount.path())]).expect_success();
    let mounted = mount.info();
    assert_eq!(mounted["store"].as_str(), Some(text(&mount.store())));
    assert_eq!(mounted["mountpoint"].as_str(), Some(text(&mount.path())));
    assert!(mounted["used_bytes"].as_u64().unwrap() >= 3 << 20, "{mounted}");
    assert!(mounted["size_bytes"].as_u64().unwrap() <= 256 << 20, "{mounted}");
    assert!(mounted["read_only_reason"].is_null(), "{mounted}");
    let people = sumfs(&["info", text(&mount.path())]).expect_success();
    assert!(people.stdout.contains(mounted["uuid"].as_str().unwrap()), "{people:?}");
    // A store that is mounted is asked as well.
    let by_store = sumfs(&["info", text(&mount.store()), "--json"]).expect_success();
    assert!(by_store.stdout.contains(text(&mount.path())), "{by_store:?}");
    let stats = sumfs(&["stats", text(&mount.path()), "--json"]).expect_success();
    assert!(serde_json::from_str::<serde_json::Value>(&stats.stdout).unwrap().is_object());
    assert!(!sumfs(&["stats", text(&mount.path())]).expect_success().stdout.is_empty());
}

#[test]
fn info_of_a_store_that_is_not_mounted() {
    let place = Place::new();
    let ran = sumfs(&["info", text(&place.store()), "--json"]).expect_success();
    let info: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(info["features"]["incompat"], serde_json::json!(["unstable"]));
    assert!(info["pid"].is_null() && info["mountpoint"].is_null());
    sumfs(&["info", text(&place.mountpoint())]).expect_failure(1, &["no sumfs store"]);
}

#[test]
fn check_of_clean_and_of_damaged_stores() {
    let place = Place::new();
    let store = place.store();
    let clean = sumfs(&["check", text(&store)]).expect_success();
    assert!(clean.stdout.contains("clean"), "{clean:?}");
    let json = sumfs(&["check", text(&store), "--data", "--json"]).expect_success();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&json.stdout).unwrap()["clean"], true);
    sumfs(&["check", text(&place.mountpoint())]).expect_failure(8, &["no sumfs store"]);

    place.mount(&[]).expect_success();
    let content = crate::content::pattern(100_000, 77);
    fs::write(place.mountpoint().join("victim"), &content).unwrap();
    fs::write(place.mountpoint().join("other"), "untouched").unwrap();
    place.umount().expect_success();
    flip_first_byte_of(&store.join("device.0"), &content[..4096]);
    sumfs(&["check", text(&store)]).expect_success();
    let found = sumfs(&["check", text(&store), "--data"]);
    assert_eq!(found.code, 4, "{found:?}");
    assert!(found.stdout.contains("victim"), "{found:?}");
    // Exactly that block is lost, and the file can still be removed.
    place.mount(&[]).expect_success();
    let mut block = [0; 4096];
    let victim = File::open(place.mountpoint().join("victim")).unwrap();
    let error = rustix::io::pread(&victim, &mut block, 0).unwrap_err();
    assert_eq!(error, rustix::io::Errno::IO);
    assert_eq!(fs::read_to_string(place.mountpoint().join("other")).unwrap(), "untouched");
    drop(victim);
    fs::remove_file(place.mountpoint().join("victim")).unwrap();
    place.umount().expect_success();
    sumfs(&["check", text(&store), "--data"]).expect_success();
}

/// Finds the only place of `block` in a device and changes its first byte.
fn flip_first_byte_of(device: &Path, block: &[u8]) {
    use std::os::unix::fs::FileExt;
    let bytes = fs::read(device).unwrap();
    let places: Vec<usize> = (0..bytes.len() / 4096).filter(|at| bytes[at * 4096..][..4096] == *block).collect();
    assert_eq!(places.len(), 1, "the block stands once on the device");
    let file = File::options().write(true).open(device).unwrap();
    file.write_all_at(&[!block[0]], places[0] as u64 * 4096).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn a_closed_pipe_ends_a_tool_quietly() {
    let mount = Mount::with_size("256M", "");
    fs::write(mount.path().join("file"), vec![1; 3 << 20]).unwrap();
    for command in ["info", "stats", "map"] {
        let place = if command == "map" { mount.path().join("file") } else { mount.path() };
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut tool = Command::new(SUMFS);
        let ran = tool.arg(command).arg(place).arg("--json").stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert!(ran.stderr.is_empty() && ran.status.code().is_none(), "{command}: {ran:?}");
    }
}

#[test]
fn metrics_are_given_out_in_the_text_form_of_prometheus() {
    let place = Place::new();
    let file = place.at("sumfs.prom");
    place.mount(&["-o", &format!("metrics={}", text(&file))]).expect_success();
    let metrics = fs::read_to_string(&file).unwrap();
    for part in ["# TYPE sumfs_commit_seconds histogram", "sumfs_operations_total{operation=\"read\"} 0", "{state=\"never\"} 1"] {
        assert!(metrics.contains(part), "no \"{part}\" in\n{metrics}");
    }
    fs::write(place.mountpoint().join("file"), "x").unwrap();
    place.umount().expect_success();
    // The last word: written when the mount ends.
    let metrics = fs::read_to_string(&file).unwrap();
    assert!(!metrics.contains("sumfs_operations_total{operation=\"write\"} 0\n"), "{metrics}");
    let below = place.mountpoint().join("metrics");
    place.mount(&["-o", &format!("metrics={}", text(&below))]).expect_failure(1, &["below the mount point"]);
    place.mount(&["-o", "metrics=9100"]).expect_failure(1, &["127.0.0.1:9100"]);
}
