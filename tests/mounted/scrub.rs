//! `sumfs scrub`, `sumfs damage` and `sumfs read` on real mounts and on stores that are not mounted: what they find, repair, print and
//! return.

use crate::content::{assert_same, pattern};
use crate::damage::flip;
use crate::mount::{Mount, Ran, sumfs};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const BLOCK: usize = 4096;
const BLOCKS: usize = 300;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

/// Offsets of the copies of a block on a device.
fn places(device: &Path, block: &[u8]) -> Vec<u64> {
    let bytes = fs::read(device).unwrap();
    let all = (0..bytes.len() / BLOCK).map(|at| at * BLOCK);
    all.filter(|at| bytes[*at..][..BLOCK] == *block).map(|at| at as u64).collect()
}

fn made(profile: &str) -> (Mount, Vec<u8>) {
    let mount = Mount::made_with(&["--size", "64M", "--data", profile], "noatime");
    let content = pattern(BLOCKS * BLOCK, 99);
    fs::create_dir(mount.path().join("directory")).unwrap();
    fs::write(mount.path().join("directory/file"), &content).unwrap();
    fs::write(mount.path().join("other"), pattern(50_000, 98)).unwrap();
    (mount, content)
}

#[test]
fn two_copies_are_repaired_from_each_other_mounted_or_not() {
    let (mut mount, content) = made("dup");
    mount.umount();
    let device = mount.store().join("device.0");
    let copies = places(&device, &content[9 * BLOCK..10 * BLOCK]);
    assert_eq!(copies.len(), 2, "{copies:?}");
    for (round, copy) in copies.iter().enumerate() {
        flip(&device, copy + 100);
        assert_eq!(mount.check().code, 1, "a damaged copy with a whole twin");
        let target = if round == 0 { mount.path() } else { mount.store() };
        if round == 0 {
            mount.mount();
        }
        let report = sumfs(&["scrub", "start", text(&target), "--wait", "--json"]);
        assert_eq!(report.code, 1, "{report:?}");
        let report = json(&report);
        assert_eq!((&report["bad_blocks"], &report["repaired_blocks"]), (&1.into(), &1.into()), "{report}");
        let range = &report["damage"]["ranges"][0];
        assert_eq!((&range["file"]["path"], &range["device_offset"]), (&"/directory/file".into(), &(*copy).into()), "{report}");
        sumfs(&["scrub", "start", text(&target), "--wait"]).expect_success();
        if round == 0 {
            mount.umount();
        }
        mount.check().expect_success();
    }
    mount.mount();
    assert_same(&fs::read(mount.path().join("directory/file")).unwrap(), &content, "the file");
}

#[test]
fn damage_is_found_listed_salvaged_and_cured() {
    let (mut mount, content) = made("single");
    mount.umount();
    let device = mount.store().join("device.0");
    let place = places(&device, &content[7 * BLOCK..8 * BLOCK])[0];
    flip(&device, place + 5);
    mount.mount();
    let target = mount.path();
    let found = sumfs(&["scrub", "start", text(&target), "--wait"]);
    assert_eq!(found.code, 4, "{found:?}");
    let line =
        format!("/directory/file: bytes {}-{}: NOT repaired: wrong checksum (device 0, byte {place},", 7 * BLOCK, 8 * BLOCK - 1);
    assert!(found.stdout.contains(&line), "no \"{line}\" in {found:?}");
    for command in [vec!["scrub", "status"], vec!["damage", "list"]] {
        let listed = sumfs(&[command.as_slice(), &[text(&target)]].concat());
        assert!(listed.code == 4 && listed.stdout.contains(&line), "{listed:?}");
    }
    // What is left of the file.
    let file = target.join("directory/file");
    assert!(fs::read(&file).is_err());
    let salvage = |arguments: &[&str]| {
        let mut command = Command::new(crate::mount::SUMFS);
        command.args(["read", "--ignore-checksum", text(&file)]).args(arguments).output().unwrap()
    };
    let mut damaged = content.clone();
    damaged[7 * BLOCK + 5] = !damaged[7 * BLOCK + 5];
    let whole = salvage(&[]);
    assert!(whole.stdout == damaged, "{} bytes", whole.stdout.len());
    assert_eq!(whole.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&whole.stderr).contains(&format!("bytes {}-{}", 7 * BLOCK, 8 * BLOCK - 1)));
    let part = salvage(&["--range", "100-200"]);
    assert!(part.stdout == content[100..200] && part.status.success());
    assert!(fs::read(&file).is_err(), "it is in no cache");
    // Forgotten, found again, cured.
    sumfs(&["damage", "clear", text(&target)]).expect_success();
    assert!(sumfs(&["damage", "list", text(&target)]).expect_success().stdout.contains("no damage"));
    let handle = File::options().write(true).open(&file).unwrap();
    handle.write_all_at(&content[7 * BLOCK..8 * BLOCK], 7 * BLOCK as u64).unwrap();
    handle.sync_all().unwrap();
    drop(handle);
    assert_same(&fs::read(&file).unwrap(), &content, "the file");
    sumfs(&["scrub", "start", text(&target), "--wait"]).expect_success();
}

#[test]
fn a_scrub_is_paused_and_goes_on_after_a_mount_and_after_a_kill() {
    let (mut mount, _) = made("single");
    let target = mount.path();
    fs::write(target.join("large"), pattern(24 << 20, 97)).unwrap();
    let status = || json(&sumfs(&["scrub", "status", text(&target), "--json"]).expect_success());
    assert_eq!(status()["state"], "never");
    sumfs(&["scrub", "pause", text(&target)]).expect_failure(8, &["no scrub is running"]);
    sumfs(&["sync", text(&target)]).expect_success();
    sumfs(&["scrub", "start", text(&target), "--limit", "1M"]).expect_success();
    sumfs(&["scrub", "start", text(&target)]).expect_failure(8, &["under way"]);
    while status()["phase"] != "data" {}
    sumfs(&["scrub", "pause", text(&target)]).expect_success();
    mount.remount();
    assert_eq!(status()["state"], "paused");
    sumfs(&["scrub", "resume", text(&target)]).expect_success();
    sumfs(&["sync", text(&target)]).expect_success();
    mount.kill();
    assert_eq!(json(&sumfs(&["scrub", "status", text(&mount.store()), "--json"]).expect_success())["state"], "interrupted");
    mount.mount();
    // By itself.
    assert_eq!(status()["state"], "running");
    sumfs(&["scrub", "cancel", text(&target)]).expect_success();
    assert_eq!(status()["state"], "cancelled");
    mount.umount();
    let store = mount.store();
    let offline = json(&sumfs(&["scrub", "status", text(&store), "--json"]).expect_success());
    assert_eq!(offline["state"], "cancelled");
    let report = json(&sumfs(&["scrub", "start", text(&store), "--json"]).expect_success());
    assert_eq!((&report["state"], &report["bytes_done"]), (&"finished".into(), &report["bytes_total"]), "{report}");
    assert_eq!(sumfs(&["scrub", "begin", text(&store)]).code, 16, "wrong usage");
}
