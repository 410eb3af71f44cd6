//! What statfs promises can be written (C91), to one percent: by one dd to ENOSPC, on a fresh store and on one that many files have come
//! and gone in. At 100 percent everything that frees space works, nothing latches, and ENOSPC comes where it belongs: at write with
//! cache=none, at write, fsync or close with cache=writeback. Twenty times filled and emptied, nothing is lost of the space.

use crate::content::{assert_same, pattern};
use crate::mount::{Mount, run, sumfs};
use crate::writers::{PATIENCE, Writer, seed};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

const AGEING_CYCLES: u64 = 5;
const AGEING_FILES: u64 = 120;
const AGEING_FILE_BYTES_MAX: u64 = 3 << 20;
const FILLS: u64 = 20;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn available(path: &Path) -> u64 {
    let status = rustix::fs::statvfs(path).unwrap();
    status.f_bavail * status.f_frsize
}

/// Makes durable what can be; what does not fit may be told once more here.
fn sync(path: &Path) {
    let synced = sumfs(&["sync", text(path)]);
    assert!(synced.code == 0 || synced.stderr.contains("No space"), "{synced:?}");
}

fn is_no_space<T>(result: &io::Result<T>) -> bool {
    result.as_ref().is_err_and(|error| error.raw_os_error() == Some(Errno::NOSPC.raw_os_error()))
}

fn assert_not_latched(mount: &Mount) {
    assert!(mount.info()["read_only_reason"].is_null(), "lack of space is no fault");
}

/// What deleting gives back comes in the background; the largest value is the one that stays.
fn settled(path: &Path, at_least: u64) -> u64 {
    let begin = Instant::now();
    loop {
        sync(path);
        let found = available(path);
        if found >= at_least {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "{found} bytes are available, {at_least} were before");
    }
}

/// One dd of more than fits; the bytes of the file whose blocks hold what was written. Not an endless one: with the kernel's cache
/// before us write(2) is told late.
fn dd(root: &Path, promised: u64) -> u64 {
    let target = root.join("large");
    let count = (promised >> 20) + 40;
    let ran = run("dd", &["if=/dev/urandom", &format!("of={}", text(&target)), "bs=1M", "conv=fsync", &format!("count={count}")]);
    assert!(ran.code == 1 && ran.stderr.contains("No space left"), "{ran:?}");
    sync(root);
    use std::os::unix::fs::MetadataExt;
    fs::metadata(&target).unwrap().blocks() * 512
}

fn dd_writes_what_was_promised(mount: &mut Mount, what: &str) {
    let root = mount.path();
    let promised = available(&root);
    let written = dd(&root, promised);
    println!("{what}: {promised} bytes promised, {written} written, {} left", available(&root));
    assert!(written.abs_diff(promised) <= promised / 100, "{what}: {written} bytes written, {promised} were promised");
    assert_not_latched(mount);
    mount.remount();
    use std::os::unix::fs::MetadataExt;
    let kept = fs::metadata(root.join("large")).unwrap().blocks() * 512;
    assert_eq!(kept, written, "{what}: after the remount");
    fs::remove_file(root.join("large")).unwrap();
    settled(&root, promised);
}

/// Files of all sizes come, change in the middle, and go.
fn age(root: &Path, chance: &mut Writer) {
    for cycle in 0..AGEING_CYCLES {
        for number in 0..AGEING_FILES {
            let path = root.join(format!("aged-{number}"));
            let most = AGEING_FILE_BYTES_MAX >> chance.random(8);
            let length = 1 + chance.random(most) as usize;
            match chance.random(4) {
                0 => _ = fs::remove_file(&path),
                1 if path.exists() => {
                    let file = File::options().write(true).open(&path).unwrap();
                    let inside = chance.random(file.metadata().unwrap().len().max(1));
                    file.write_all_at(&pattern(length / 4 + 1, cycle), inside).unwrap();
                }
                2 if path.exists() => {
                    let file = File::options().write(true).open(&path).unwrap();
                    let shorter = file.metadata().unwrap().len() / 2;
                    file.set_len(shorter).unwrap();
                }
                _ => fs::write(&path, pattern(length, cycle)).unwrap(),
            }
            if chance.random(20) == 0 {
                File::open(root).unwrap().sync_all().unwrap();
            }
        }
        sync(root);
    }
}

fn statfs_keeps_its_promise(options: &str) {
    let seed = seed();
    let mut mount = Mount::with_size("512M", options);
    let root = mount.path();
    sync(&root);
    let fresh = available(&root);
    dd_writes_what_was_promised(&mut mount, "fresh");
    let mut chance = Writer::new(PathBuf::new(), seed);
    age(&root, &mut chance);
    dd_writes_what_was_promised(&mut mount, &format!("SEED={seed} aged"));
    for entry in fs::read_dir(&root).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert_eq!(settled(&root, fresh), fresh, "SEED={seed} emptied");
}

/// A dd that knows no end, which with the kernel's cache in front no write(2) would stop.
fn an_endless_dd_ends(options: &str) {
    let mount = Mount::with_size("128M", options);
    let root = mount.path();
    let small = pattern(300_000, 1);
    fs::write(root.join("small"), &small).unwrap();
    let target = format!("of={}", text(&root.join("endless")));
    let ran = run("dd", &["if=/dev/zero", &target, "bs=1M"]);
    assert!(ran.code == 1 && ran.stderr.contains("No space left"), "{ran:?}");
    assert_same(&fs::read(root.join("small")).unwrap(), &small, "another file");
    sync(&root);
    assert_not_latched(&mount);
    fs::remove_file(root.join("endless")).unwrap();
    settled(&root, 64 << 20);
    fs::write(root.join("small"), pattern(3 << 20, 2)).unwrap();
    sumfs(&["sync", text(&root)]).expect_success();
    assert_same(&fs::read(root.join("small")).unwrap(), &pattern(3 << 20, 2), "room again");
}

#[test]
fn an_endless_dd_ends_writeback() {
    an_endless_dd_ends("cache=writeback");
}

#[test]
fn an_endless_dd_ends_none() {
    an_endless_dd_ends("cache=none");
}

#[test]
fn one_dd_writes_what_statfs_promised_fresh_and_aged_writeback() {
    statfs_keeps_its_promise("cache=writeback");
}

#[test]
fn one_dd_writes_what_statfs_promised_fresh_and_aged_none() {
    statfs_keeps_its_promise("cache=none");
}

/// Fills the store to the last block.
pub fn write_until_full(root: &Path) {
    for (number, piece) in [(1, 1 << 20), (2, 64 << 10), (3, 4096)] {
        let mut file = File::create(root.join(format!("filler-{number}"))).unwrap();
        let content = pattern(piece, number);
        // The kernel's cache takes more than fits: what counts is what fsync says.
        while available(root) > 0 && file.write_all(&content).is_ok() && file.sync_data().is_ok() {}
    }
}

fn fill_up(root: &Path) {
    write_until_full(root);
    sync(root);
    let left = available(root);
    assert!(left <= 128 << 10, "{left} bytes are still available");
}

fn at_one_hundred_percent(options: &str) {
    let mut mount = Mount::with_size("64M", options);
    let root = mount.path();
    let at = |name: &str| root.join(name);
    fs::create_dir(at("directory")).unwrap();
    for number in 0..8 {
        fs::write(at(&format!("file-{number}")), pattern(300_000, number)).unwrap();
    }
    sync(&root);
    for round in ["full", "full and mounted again"] {
        fill_up(&root);
        let file = File::options().write(true).open(at("file-0")).unwrap();
        file.sync_all().unwrap();
        fs::rename(at("file-1"), at("directory/moved")).unwrap();
        fs::rename(at("file-2"), at("file-3")).unwrap();
        File::options().write(true).open(at("file-4")).unwrap().set_len(100_001).unwrap();
        fs::remove_file(at("file-5")).unwrap();
        File::open(&root).unwrap().sync_all().unwrap();
        File::open(at("directory")).unwrap().sync_all().unwrap();
        drop(file);
        assert_not_latched(&mount);
        mount.remount();
        for (name, seed, length) in
            [("file-0", 0, 300_000), ("directory/moved", 1, 300_000), ("file-3", 2, 300_000), ("file-4", 4, 100_001)]
        {
            assert_same(&fs::read(at(name)).unwrap(), &pattern(300_000, seed)[..length], &format!("{round}: {name}"));
        }
        assert!(!at("file-1").exists() && !at("file-2").exists() && !at("file-5").exists(), "{round}");
        // As before, for the next round.
        (1..=3).for_each(|number| fs::remove_file(at(&format!("filler-{number}"))).unwrap());
        settled(&root, 10 << 20);
        for number in [1, 2, 4, 5] {
            fs::write(at(&format!("file-{number}")), pattern(300_000, number)).unwrap();
        }
        sync(&root);
    }
}

#[test]
fn at_one_hundred_percent_what_frees_works_writeback() {
    at_one_hundred_percent("cache=writeback");
}

#[test]
fn at_one_hundred_percent_what_frees_works_none() {
    at_one_hundred_percent("cache=none");
}

#[test]
fn without_a_cache_no_space_is_told_by_write_and_by_nothing_else() {
    let mut mount = Mount::with_size("64M", "cache=none");
    let mut file = File::create(mount.path().join("large")).unwrap();
    let mut taken = 0;
    let error = loop {
        match file.write(&pattern(1 << 20, 1)) {
            Ok(count) => taken += count,
            Err(error) => break Err::<(), _>(error),
        }
    };
    assert!(is_no_space(&error), "{error:?}");
    file.sync_all().unwrap();
    sumfs(&["sync", text(&mount.path())]).expect_success();
    assert_not_latched(&mount);
    drop(file);
    mount.remount();
    let found = fs::read(mount.path().join("large")).unwrap();
    assert_eq!(found.len(), taken);
    found.chunks(1 << 20).for_each(|piece| assert_same(piece, &pattern(1 << 20, 1)[..piece.len()], "acknowledged"));
}

/// Tells which call says ENOSPC when twice of what fits is written and nothing calls fsync before close.
const WRITE_AND_CLOSE: &str = r#"
import errno, os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
calls = [("write", lambda: os.write(file, b"x" * (1 << 20)))] * 128
if sys.argv[2] == "fsync":
    calls.append(("fsync", lambda: os.fsync(file)))
calls.append(("close", lambda: os.close(file)))
for name, call in calls:
    try:
        call()
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
        print(name)
        break
"#;

#[test]
fn with_writeback_no_space_is_told_before_close_returns() {
    for last in ["fsync", "close"] {
        let mount = Mount::with_size("64M", "cache=writeback");
        let target = mount.path().join("large");
        let told = run("python3", &["-c", WRITE_AND_CLOSE, text(&target), last]).expect_success().stdout;
        println!("{last}: told by {told}");
        assert!(["write\n", "fsync\n", "close\n"].contains(&&*told), "{last}: told by {told:?}");
        sync(&mount.path());
        assert_not_latched(&mount);
        fs::write(mount.path().join("small"), "x").unwrap_or_else(|error| assert!(is_no_space::<()>(&Err(error))));
        fs::remove_file(&target).unwrap();
        settled(&mount.path(), 40 << 20);
    }
}

fn filling_and_emptying(options: &str) {
    let seed = seed();
    let mut mount = Mount::with_size("48M", options);
    let root = mount.path();
    let mut chance = Writer::new(PathBuf::new(), seed);
    sync(&root);
    let before = available(&root);
    for cycle in 0..FILLS {
        let what = format!("SEED={seed} cycle {cycle}");
        let mut number = 0;
        loop {
            let content = pattern(chance.random(4 << 20) as usize, cycle);
            let written = File::create(root.join(format!("file-{number}")))
                .and_then(|mut file| file.write_all(&content).and_then(|()| file.sync_all()));
            if written.is_err() {
                assert!(is_no_space(&written), "{what}: {written:?}");
                break;
            }
            number += 1;
        }
        for entry in fs::read_dir(&root).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        assert_eq!(settled(&root, before), before, "{what}");
        assert_not_latched(&mount);
        if cycle % 5 == 4 {
            mount.umount();
            mount.check().expect_success();
            mount.mount();
            assert_eq!(available(&root), before, "{what}, mounted again");
        }
    }
}

#[test]
fn twenty_fillings_leak_nothing_writeback() {
    filling_and_emptying("cache=writeback");
}

#[test]
fn twenty_fillings_leak_nothing_none() {
    filling_and_emptying("cache=none");
}
