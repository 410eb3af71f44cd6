//! The whole program on four loop devices of which one is pulled under load, and on devices that are added, replaced and removed: no
//! program notices, and replacing it and a scrub make all whole again.
//!
//! A device is pulled by making its file empty and telling the loop driver to look: from then on it has no bytes, and whoever holds it
//! open gets errors. The tools are required: one that is missing fails its test.

use crate::content::{assert_same, pattern};
use crate::mount::{Mount, Ran, run, scratch, sumfs};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const DEVICE_BYTES: u64 = 384 << 20;
const DETACH_PATIENCE: Duration = Duration::from_secs(60);
const FILE_BYTES: usize = 8 << 20;

/// A loop device over a file of its own.
struct Loop {
    device: PathBuf,
    image: PathBuf,
}

impl Loop {
    fn new(image: PathBuf) -> Loop {
        File::create(&image).unwrap().set_len(DEVICE_BYTES).unwrap();
        let ran = run("losetup", &["--find", "--show", image.to_str().unwrap()]);
        assert_ne!(ran.code, 127, "losetup is missing: as root, apt-get install mount");
        Loop { device: ran.expect_success().stdout.trim().into(), image }
    }

    fn text(&self) -> &str {
        self.device.to_str().unwrap()
    }

    fn pull(&self) {
        File::options().write(true).open(&self.image).unwrap().set_len(0).unwrap();
        run("losetup", &["--set-capacity", self.text()]).expect_success();
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach", self.text()]);
        let backing = Path::new("/sys/block").join(self.device.file_name().unwrap()).join("loop/backing_file");
        let begun = Instant::now();
        while backing.exists() && begun.elapsed() < DETACH_PATIENCE {
            std::thread::yield_now();
        }
    }
}

fn loops(directory: &Path, count: usize) -> Vec<Loop> {
    (0..count).map(|number| Loop::new(directory.join(format!("image.{number}")))).collect()
}

fn mounted(loops: &[&Loop], profile: &str, options: &str) -> Mount {
    let mut arguments = vec!["--data", profile];
    if profile == "raid5" {
        arguments.extend(["--stripe-unit", "64K"]);
    }
    loops.iter().for_each(|device| arguments.extend(["--device", device.text()]));
    Mount::made_with(&arguments, options)
}

fn device(action: &str, mount: &Mount, arguments: &[&str]) -> Ran {
    let at = mount.path().display().to_string();
    sumfs(&[&["device", action, &at], arguments].concat())
}

fn states(mount: &Mount) -> Vec<(u64, String)> {
    let ran = device("list", mount, &["--json"]).expect_success();
    let list: Value = serde_json::from_str(&ran.stdout).unwrap();
    let devices = list["devices"].as_array().unwrap();
    devices.iter().map(|device| (device["id"].as_u64().unwrap(), device["state"].as_str().unwrap().to_owned())).collect()
}

/// Writes at random, syncs, and reads back now and then, until told to end; what the file holds then.
fn write_and_verify(path: &Path, seed: u64, rounds: &AtomicU64, is_over: &AtomicBool) -> Vec<u8> {
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    let mut expected = pattern(FILE_BYTES, seed);
    file.write_all_at(&expected, 0).unwrap();
    let mut round = seed;
    while !is_over.load(Ordering::SeqCst) {
        round += 1;
        let new = pattern(1 + (round as usize * 7919) % 150_000, round);
        let at = (round as usize * 104_729) % (FILE_BYTES - new.len());
        file.write_all_at(&new, at as u64).unwrap();
        expected[at..at + new.len()].copy_from_slice(&new);
        file.sync_all().unwrap();
        if round.is_multiple_of(8) {
            assert_same(&fs::read(path).unwrap(), &expected, &path.display().to_string());
        }
        rounds.fetch_add(1, Ordering::SeqCst);
    }
    expected
}

/// fio writes and verifies what it wrote.
fn fio(directory: &Path, direct: bool) -> Ran {
    let directory = format!("--directory={}", directory.display());
    let direct = format!("--direct={}", u8::from(direct));
    let fixed = [
        "--name=job",
        "--rw=randwrite",
        "--bsrange=4k-256k",
        "--size=48M",
        "--fsync=16",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--do_verify=1",
        "--verify_state_save=0",
        "--ioengine=psync",
    ];
    let ran = run("fio", &[&fixed[..], &[&directory, &direct]].concat());
    assert_ne!(ran.code, 127, "fio is missing: as root, apt-get install fio");
    ran
}

fn wait_for(rounds: &AtomicU64, count: u64) {
    let before = rounds.load(Ordering::SeqCst);
    while rounds.load(Ordering::SeqCst) < before + count {
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn one_of_four_is_pulled(options: &str, direct: bool) {
    let directory = scratch();
    let all = loops(directory.path(), 5);
    let ([a, b, c, d], spare) = ([&all[0], &all[1], &all[2], &all[3]], &all[4]);
    let mut mount = mounted(&[a, b, c, d], "raid5", options);
    let path = mount.path();
    let (rounds, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let contents = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|number| {
                let (file, rounds, is_over) = (path.join(format!("file.{number}")), &rounds, &is_over);
                scope.spawn(move || write_and_verify(&file, number * 1000, rounds, is_over))
            })
            .collect();
        let load = scope.spawn(|| fio(&path, direct));
        wait_for(&rounds, 10);
        c.pull();
        wait_for(&rounds, 40);
        load.join().unwrap().expect_success();
        assert_eq!(states(&mount)[2], (2, "set aside".to_owned()), "{:?}", states(&mount));
        // Replaced under the same load.
        let load = scope.spawn(|| {
            fs::create_dir(path.join("more")).unwrap();
            fio(&path.join("more"), direct)
        });
        device("replace", &mount, &["--wait", "2", spare.text()]).expect_success();
        load.join().unwrap().expect_success();
        is_over.store(true, Ordering::SeqCst);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
    });
    let present: Vec<(u64, String)> = [0, 1, 3, 4].map(|id| (id, "present".to_owned())).into();
    assert_eq!(states(&mount), present);
    let at = path.display().to_string();
    let scrub = sumfs(&["scrub", "start", "--wait", &at]);
    assert!([0, 1].contains(&scrub.code), "{scrub:?}");
    sumfs(&["scrub", "start", "--wait", &at]).expect_success();
    mount.remount();
    for (number, content) in contents.iter().enumerate() {
        assert_same(&fs::read(path.join(format!("file.{number}"))).unwrap(), content, "after the remount");
    }
    // All is whole again: another one may be missing.
    mount.umount();
    mount.check().expect_success();
    a.pull();
    let refused = sumfs(&["mount", mount.store().to_str().unwrap(), &at]);
    refused.expect_failure(32, &["device 0", a.text(), "-o degraded"]);
    mount.set_options(&format!("degraded,{options}"));
    mount.mount();
    for (number, content) in contents.iter().enumerate() {
        assert_same(&fs::read(path.join(format!("file.{number}"))).unwrap(), content, "without another device");
    }
    assert_eq!(states(&mount)[0], (0, "missing".to_owned()));
    let fresh = Loop::new(directory.path().join("fresh"));
    device("replace", &mount, &["--wait", a.text(), fresh.text()]).expect_success();
    mount.set_options(options);
    mount.remount();
    drop(mount);
}

#[test]
fn one_of_four_is_pulled_under_buffered_load() {
    one_of_four_is_pulled("cache=writeback", false);
}

#[test]
fn one_of_four_is_pulled_under_direct_load() {
    one_of_four_is_pulled("cache=none", true);
}

#[test]
fn devices_come_and_go_and_what_goes_is_free() {
    let directory = scratch();
    let all = loops(directory.path(), 4);
    let mut mount = mounted(&[&all[0], &all[1]], "raid1", "");
    let file = mount.path().join("file");
    let bytes = pattern(40 << 20, 3);
    fs::write(&file, &bytes).unwrap();
    device("remove", &mount, &["1"]).expect_failure(1, &["device 1 holds", "add a device first"]);
    device("replace", &mount, &["7", all[2].text()]).expect_failure(1, &["no device 7", "device list"]);
    device("add", &mount, &[all[0].text()]).expect_failure(1, &[all[0].text(), "in use"]);
    device("add", &mount, &[all[2].text()]).expect_success();
    device("remove", &mount, &["--wait", all[0].text()]).expect_success();
    assert_same(&fs::read(&file).unwrap(), &bytes, "after a device was removed");
    // Another store may have it now.
    let other = mount.beside("other");
    let made = sumfs(&["mkfs", other.to_str().unwrap(), "--device", all[0].text()]);
    made.expect_success();
    // What holds something is not overwritten.
    device("replace", &mount, &["1", all[0].text()]).expect_failure(1, &[all[0].text(), "--force"]);
    device("replace", &mount, &["--wait", "1", all[3].text(), "--json"]).expect_success();
    assert_eq!(states(&mount), [(2, "present".to_owned()), (3, "present".to_owned())]);
    let info = mount.info();
    assert_eq!(info["devices"].as_array().unwrap().len(), 2, "{info}");
    mount.remount();
    assert_same(&fs::read(&file).unwrap(), &bytes, "after the remount");
    drop(mount);
}

#[test]
fn replacing_goes_on_after_a_pause_a_mount_and_a_kill() {
    let directory = scratch();
    let all = loops(directory.path(), 4);
    let mut mount = mounted(&[&all[0], &all[1], &all[2]], "raid5", "");
    let file = mount.path().join("file");
    let bytes = pattern(200 << 20, 5);
    fs::write(&file, &bytes).unwrap();
    sumfs(&["sync", mount.path().to_str().unwrap()]).expect_success();
    device("replace", &mount, &["0", all[3].text()]).expect_success();
    let state = |mount: &Mount| {
        let ran = device("status", mount, &["--json"]).expect_success();
        let status: Value = serde_json::from_str(&ran.stdout).unwrap();
        status["state"].as_str().unwrap().to_owned()
    };
    // It may have ended already; then there is nothing to pause.
    let paused = device("pause", &mount, &[]).code == 0;
    mount.remount();
    assert_eq!(state(&mount) == "paused", paused);
    if paused {
        device("resume", &mount, &[]).expect_success();
    }
    mount.kill();
    mount.mount();
    while state(&mount) == "running" {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(state(&mount), "finished");
    assert_eq!(states(&mount).iter().map(|state| state.0).collect::<Vec<_>>(), [1, 2, 3]);
    mount.remount();
    assert_same(&fs::read(&file).unwrap(), &bytes, "after all that");
    drop(mount);
}
