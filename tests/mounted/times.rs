//! Times of files, as public bug reports tell of them (C..: the number of the report's case); each on a fresh mount, run by
//! [`smoke`](crate::smoke), which looks at modification and change times again after a remount.

use crate::content::aligned;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, copy_file_range, fallocate, futimens,
    utimensat,
};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

fn time(seconds: i64, nanoseconds: i64) -> Timespec {
    Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ }
}

fn set(path: &Path, accessed: Timespec, modified: Timespec) {
    let times = Timestamps { last_access: accessed, last_modification: modified };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn modified(path: &Path) -> (i64, i64) {
    let metadata = fs::symlink_metadata(path).unwrap();
    (metadata.mtime(), metadata.mtime_nsec())
}

fn accessed(path: &Path) -> (i64, i64) {
    let metadata = fs::symlink_metadata(path).unwrap();
    (metadata.atime(), metadata.atime_nsec())
}

fn sync(root: &Path) {
    crate::mount::sumfs(&["sync", root.to_str().unwrap()]).expect_success();
}

const OLD: (i64, i64) = (1_579_091_696, 123_456_789);

/// An old time that is set after a write stays, whatever writes back later (C28), also when it was set before the file was closed,
/// as cp -p and rsync -t do it (C29), and while the file is mapped, fsynced, and read.
pub fn old_times_stay(root: &Path) {
    let (by_path, by_file, synced) = (root.join("path"), root.join("file"), root.join("synced"));
    fs::write(&by_path, "written").unwrap();
    set(&by_path, time(OLD.0, OLD.1), time(OLD.0, OLD.1));
    let times = Timestamps { last_access: time(OLD.0, OLD.1), last_modification: time(OLD.0, OLD.1) };
    let mut file = File::create(&by_file).unwrap();
    file.write_all(&[7; 300_000]).unwrap();
    futimens(&file, &times).unwrap();
    drop(file);
    let file = File::create(&synced).unwrap();
    file.write_all_at(&[7; 10_000], 5000).unwrap();
    futimens(&file, &times).unwrap();
    file.sync_all().unwrap();
    let copied = root.join("copied");
    crate::mount::run("cp", &["-p".as_ref(), by_file.as_os_str(), copied.as_os_str()]).expect_success();
    for round in 0..3 {
        for path in [&by_path, &by_file, &synced, &copied] {
            assert_eq!(modified(path), OLD, "{} in round {round}", path.display());
        }
        sync(root);
        fs::read(&by_file).unwrap();
    }
}

/// Each of the two times set to a value, to now, or left alone, in all combinations (C31).
pub fn only_the_times_asked_for(root: &Path) {
    let path = root.join("file");
    let kinds = [time(5, 6), time(0, UTIME_NOW), time(0, UTIME_OMIT)];
    for (first, one) in kinds.iter().enumerate() {
        for (second, other) in kinds.iter().enumerate() {
            fs::write(&path, "x").unwrap();
            set(&path, time(100, 1), time(200, 2));
            let before = fs::metadata(&path).unwrap();
            set(&path, *one, *other);
            let what = format!("access {first}, modification {second}");
            let expect = |kind: usize, found: (i64, i64), old: (i64, i64)| match kind {
                0 => assert_eq!(found, (5, 6), "{what}"),
                1 => assert!(found.0 > 1_000_000_000, "{what}: {found:?}"),
                _ => assert_eq!(found, old, "{what}"),
            };
            expect(first, accessed(&path), (100, 1));
            expect(second, modified(&path), (200, 2));
            if (first, second) == (2, 2) {
                let after = fs::metadata(&path).unwrap();
                assert_eq!((after.ctime(), after.ctime_nsec()), (before.ctime(), before.ctime_nsec()), "nothing was asked for");
            }
        }
    }
}

/// Before 1970, with a fraction; as far back as 32 bits reach, and as far forward as ext4 does (C32).
pub fn times_far_away(root: &Path) {
    let far = [
        (-1, 500_000_000),
        (-1, 999_999_999),
        (-(1 << 31), 0),
        (-(1 << 31), 1),
        (0, 0),
        (0, 1),
        (1 << 31, 5),
        ((1 << 34) - (1 << 31) - 1, 7),
    ];
    std::os::unix::fs::symlink("nowhere", root.join("link")).unwrap();
    fs::create_dir(root.join("directory")).unwrap();
    for (number, (seconds, nanoseconds)) in far.into_iter().enumerate() {
        let path = root.join(format!("file-{number}"));
        fs::write(&path, "x").unwrap();
        for path in [path, root.join("link"), root.join("directory")] {
            set(&path, time(seconds, nanoseconds), time(seconds, nanoseconds));
            assert_eq!(
                (accessed(&path), modified(&path)),
                ((seconds, nanoseconds), (seconds, nanoseconds)),
                "{}",
                path.display()
            );
        }
    }
}

/// One operation gives modification and change time the same moment, and the change time is never behind (C34).
pub fn change_and_modification_agree(root: &Path) {
    let path = root.join("file");
    let both = |path: &Path| {
        let metadata = fs::metadata(path).unwrap();
        ((metadata.mtime(), metadata.mtime_nsec()), (metadata.ctime(), metadata.ctime_nsec()))
    };
    let file = File::create(&path).unwrap();
    let mut last = both(&path);
    for round in 0..200 {
        let (changes_content, what) = match round % 4 {
            0 => (file.write_all_at(b"x", round).is_ok(), "write"),
            1 => (file.set_len(round * 3).is_ok(), "truncate"),
            2 => (fs::set_permissions(&path, fs::Permissions::from_mode(0o600 + (round % 8) as u32)).is_err(), "chmod"),
            _ => (file.sync_all().is_err(), "fsync"),
        };
        let (modified, changed) = both(&path);
        assert!(changed >= modified, "{what}: changed {changed:?}, modified {modified:?}");
        assert!(changed >= last.1, "{what}: the change time went back from {:?} to {changed:?}", last.1);
        if changes_content {
            assert_eq!(changed, modified, "{what}");
        } else {
            assert_eq!(modified, last.0, "{what}");
        }
        last = (modified, changed);
    }
}

/// What changes content without the kernel's cache (holes, preallocation, copies, O_DIRECT) leaves the times that were shown,
/// whichever of kernel and daemon keeps them; the remount shows that. Many times, for they differ only when a clock tick is between.
pub fn times_of_changes_past_the_cache(root: &Path) {
    let source = root.join("source");
    fs::write(&source, [1; 16384]).unwrap();
    let source = File::open(source).unwrap();
    let mut buffer = vec![2; 3 * 4096];
    let block = aligned(&mut buffer, 4096);
    for number in 0..600 {
        let path = root.join(format!("file-{number}"));
        let file = File::create(&path).unwrap();
        file.write_all_at(&[3; 8192], 0).unwrap();
        file.sync_all().unwrap();
        match number % 4 {
            0 => fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096).unwrap(),
            1 => fallocate(&file, FallocateFlags::empty(), 0, 20_000).unwrap(),
            2 => assert_eq!(copy_file_range(&source, Some(&mut 0), &file, Some(&mut 4096), 8192), Ok(8192)),
            _ => {
                let direct = File::options().write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(&path).unwrap();
                direct.write_all_at(block, 4096).unwrap();
            }
        }
    }
}

/// Reading updates the access time when it is behind the modification, also by less than a second (C35). With O_DIRECT, because what
/// the kernel reads from its own cache it tells nobody.
pub fn access_follows_modification(root: &Path) {
    let path = root.join("file");
    let mut buffer = vec![0; 3 * 4096];
    let mut read = || {
        let file = File::options().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(&path).unwrap();
        file.read_exact_at(aligned(&mut buffer, 4096), 0).unwrap();
    };
    fs::write(&path, [7; 5000]).unwrap();
    read();
    let first = accessed(&path);
    // Until the clock has moved on, equal times prove nothing.
    while modified(&path) <= first {
        fs::write(&path, [8; 5000]).unwrap();
    }
    read();
    let second = accessed(&path);
    assert!(second >= modified(&path), "read at {second:?}, modified at {:?}", modified(&path));
    // Nothing was written since: relatime leaves it alone.
    read();
    assert_eq!(accessed(&path), second);
}
