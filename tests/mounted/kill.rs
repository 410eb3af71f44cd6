//! The daemon ends in the middle of work: killed (KILLS= times), or asked to with SIGTERM. Several writers create, write, rename and
//! unlink, and note what fsync acknowledged; afterwards the store is clean without repair and exactly that is there (D8).

mod programs;

use crate::mount::Mount;
use crate::writers::{PATIENCE, Writer, seed, work_until, writers_in};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

/// How often a test kills: its half of KILLS=, or of `few`; the first half is the larger one.
fn kills_of_half(half: u64, few: u64) -> u64 {
    let kills: u64 = std::env::var("KILLS").map_or(few, |text| text.parse().expect("KILLS is a number"));
    (kills / 2).max(1) + if half == 0 { kills % 2 } else { 0 }
}

fn kills(options: &str, half: u64) {
    let kills = kills_of_half(half, 5);
    let seed = seed();
    let mut mount = Mount::new(options);
    let mut writers = writers_in(&mount.path(), seed);
    let mut chance = Writer::new(PathBuf::new(), seed ^ 0x5eed);
    let (mut acknowledged, mut compared) = (0, 0);
    for round in 0..kills {
        let what = format!("SEED={seed} kill {round}");
        let until = 20 + chance.random(400);
        acknowledged += work_until(&mut writers, until, || mount.kill());
        // The lock is free when the daemon is gone; check waits for it.
        let found = mount.check();
        assert_eq!(found.code, 0, "{what}: {found:?}");
        mount.mount();
        for writer in &mut writers {
            compared += writer.verify(&what);
        }
    }
    let replayed = fs::read_to_string(mount.beside("log")).unwrap().matches("replayed").count();
    println!("{kills} kills ({options}): {acknowledged} operations acknowledged, {compared} names compared, {replayed} replays");
}

#[test]
fn what_fsync_acknowledged_survives_kills_under_load_writeback() {
    kills("cache=writeback", 0);
}

#[test]
fn what_fsync_acknowledged_survives_kills_under_load_none() {
    kills("cache=none", 1);
}

fn terminated_under_load(options: &str) {
    let seed = seed();
    let mut mount = Mount::new(options);
    let mut writers = writers_in(&mount.path(), seed);
    for round in 0..2 {
        let pid = Pid::from_raw(i32::try_from(mount.info()["pid"].as_i64().unwrap()).unwrap()).unwrap();
        work_until(&mut writers, 100, || {
            kill_process(pid, Signal::TERM).unwrap();
            let begin = Instant::now();
            while rustix::process::test_kill_process(pid).is_ok() {
                assert!(begin.elapsed() < PATIENCE, "the daemon does not end");
                std::thread::yield_now();
            }
        });
        for writer in &writers {
            assert!(!writer.directory.exists(), "still mounted");
        }
        let json = crate::mount::sumfs(&["check", mount.store().to_str().unwrap(), "--data", "--json"]).expect_success();
        let report: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
        assert_eq!(report["replayed_transactions"], 0, "a clean unmount leaves nothing to replay: {report}");
        mount.mount();
        for writer in &mut writers {
            writer.verify(&format!("SEED={seed} SIGTERM {round}"));
        }
    }
}

#[test]
fn sigterm_under_load_unmounts_cleanly_writeback() {
    terminated_under_load("cache=writeback");
}

#[test]
fn sigterm_under_load_unmounts_cleanly_none() {
    terminated_under_load("cache=none");
}
