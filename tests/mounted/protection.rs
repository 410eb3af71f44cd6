//! chattr(1): files that do not change or only grow, through the kernel, which knows nothing of them.

use crate::mount::{Mount, Ran, run};
use rustix::fs::Timespec;
use rustix::time::{ClockId, clock_gettime};
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

fn chattr(flags: &str, path: &Path) -> Ran {
    run("chattr", &[flags, path.to_str().unwrap()])
}

/// What lsattr(1) shows, without the dashes.
fn lsattr(path: &Path) -> String {
    let shown = run("lsattr", &["-d", path.to_str().unwrap()]).expect_success().stdout;
    shown.split(' ').next().unwrap().replace('-', "")
}

fn is_refused<T>(result: std::io::Result<T>) -> bool {
    matches!(result, Err(error) if error.kind() == ErrorKind::PermissionDenied)
}

fn append_to(path: &Path, text: &str) -> std::io::Result<()> {
    OpenOptions::new().append(true).open(path)?.write_all(text.as_bytes())
}

#[test]
fn immutable_and_append_only() {
    for cache in ["cache=writeback", "cache=none"] {
        let mut mount = Mount::with_size("64M", &format!("{cache},chattr"));
        let (fixed, log, place) = (mount.path().join("fixed"), mount.path().join("log"), mount.path().join("place"));
        fs::write(&fixed, "contents").unwrap();
        fs::write(&log, "one\n").unwrap();
        fs::create_dir(&place).unwrap();
        // What is held by the kernel at this moment goes through.
        chattr("+i", &fixed).expect_success();
        chattr("+a", &log).expect_success();
        chattr("+i", &place).expect_success();
        for option in ["", "noatime"] {
            assert_eq!([lsattr(&fixed), lsattr(&log), lsattr(&place)], ["i", "a", "i"], "{cache}");
            assert_eq!(fs::read_to_string(&fixed).unwrap(), "contents");
            for path in [&fixed, &log] {
                assert!(is_refused(OpenOptions::new().write(true).open(path)));
                assert!(is_refused(OpenOptions::new().write(true).truncate(true).open(path)));
                assert!(is_refused(fs::remove_file(path)));
                assert!(is_refused(fs::rename(path, mount.path().join("elsewhere"))));
                assert!(is_refused(fs::hard_link(path, mount.path().join("link"))));
                assert!(is_refused(fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777))));
            }
            assert!(is_refused(append_to(&fixed, "more")));
            append_to(&log, "two\n").unwrap();
            assert!(is_refused(fs::write(place.join("new"), "")));
            mount.set_options(&format!("{cache},{option}"));
            mount.remount();
        }
        assert_eq!(fs::read_to_string(&log).unwrap(), "one\ntwo\ntwo\n");
        for path in [&fixed, &log, &place] {
            chattr("-ia", path).expect_success();
        }
        fs::remove_file(&fixed).unwrap();
        fs::write(&log, "").unwrap();
        fs::write(place.join("new"), "").unwrap();
    }
}

#[test]
fn who_may_and_what_there_is() {
    let mut mount = Mount::with_size("64M", "chattr");
    let file = mount.path().join("file");
    fs::write(&file, "").unwrap();
    let path = file.to_str().unwrap();
    let without =
        |flags: &str| run("setpriv", &["--bounding-set=-linux_immutable", "--inh-caps=-linux_immutable", "chattr", flags, path]);
    assert_ne!(without("+i").code, 0, "it takes CAP_LINUX_IMMUTABLE");
    without("+A").expect_success();
    chattr("+i", &file).expect_success();
    assert_ne!(without("-i").code, 0);
    chattr("-i", &file).expect_success();
    // No copy-on-write, compression, synchronous updates: not here.
    for flags in ["+C", "+c", "+S", "+d"] {
        assert_ne!(chattr(flags, &file).code, 0, "{flags}");
    }
    assert_eq!(lsattr(&file), "A");
    mount.remount();
    assert_eq!(lsattr(&file), "A");
    // A store that never had one is spared the requests for opens, and says so.
    let plain = Mount::with_size("64M", "");
    let file = plain.path().join("file");
    fs::write(&file, "").unwrap();
    for flags in ["+i", "+a"] {
        assert!(chattr(flags, &file).stderr.contains("not supported"));
    }
    chattr("+A", &file).expect_success();
    assert_eq!(lsattr(&file), "A");
}

/// With its write cache the kernel shows the times of files as it knows them; directories are ours in both modes.
#[test]
fn the_time_of_change_shows_at_once() {
    for (cache, names) in [("cache=none", &["file", "directory"][..]), ("cache=writeback", &["directory"])] {
        let mount = Mount::with_size("64M", cache);
        fs::write(mount.path().join("file"), "").unwrap();
        fs::create_dir(mount.path().join("directory")).unwrap();
        for name in names {
            let path = mount.path().join(name);
            let changed = || {
                let found = path.metadata().unwrap();
                Timespec { tv_sec: found.ctime(), tv_nsec: found.ctime_nsec() }
            };
            let before = changed();
            // Times are those of a coarse clock, which has to move on first.
            while clock_gettime(ClockId::RealtimeCoarse) <= before {
                std::thread::yield_now();
            }
            chattr("+A", &path).expect_success();
            assert!(changed() > before, "{cache}, {name}");
        }
    }
}
