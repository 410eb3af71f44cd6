//! What makes the command line whole: a look at a mount that is busy, completions, manual pages, units for systemd, and their
//! installation.

use crate::content::pattern;
use crate::mount::{Mount, SUMFS, run, scratch, sumfs};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn top_shows_a_mount_at_work() {
    let mount = Mount::new("");
    let ended = AtomicBool::new(false);
    let shown = std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = mount.path().join("file");
            while !ended.load(SeqCst) {
                fs::write(&file, pattern(100_000, 1)).unwrap();
                fs::File::open(&file).unwrap().sync_all().unwrap();
            }
        });
        let mountpoint = mount.path().display().to_string();
        // Without a terminal --once is not needed.
        let shown = sumfs(&["top", &mountpoint, "-n", "0.5"]);
        ended.store(true, SeqCst);
        shown.expect_success()
    });
    let line =
        |name: &str| shown.stdout.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{}", shown.stdout));
    assert!(line(&mount.path().display().to_string()).contains(&mount.store().display().to_string()));
    assert!(line("requests").contains(" fsync ") && line("requests").contains(" write "), "{}", shown.stdout);
    assert!(!line("data").contains("written 0 bytes"), "{}", shown.stdout);
    assert!(!line("  fsync").contains(" 0/s"), "{}", shown.stdout);
    assert!(!shown.stdout.contains('\u{1b}'), "no control characters where there is no terminal");
    sumfs(&["top", "/"]).expect_failure(1, &["/", "sumfs"]);
}

#[test]
fn shells_are_told_all_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = sumfs(&["completions", shell]).expect_success().stdout;
        for command in ["mkfs", "scrub", "systemd-units", "--ignore-checksum"] {
            assert!(script.contains(command.trim_start_matches('-')), "{shell}: {command}");
        }
    }
    let bash = sumfs(&["completions", "bash"]).expect_success().stdout;
    let directory = scratch();
    let script = directory.path().join("sumfs");
    fs::write(&script, bash).unwrap();
    let complete = "source $0; COMP_WORDS=(sumfs sc); COMP_CWORD=1; _sumfs sumfs sc sumfs; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let offered = run("bash", &["-c", complete, script.to_str().unwrap()]).expect_success().stdout;
    assert_eq!(offered.trim(), "scrub");
}

#[test]
fn every_command_has_its_page_and_units_are_right() {
    let directory = scratch();
    let (pages, units) = (directory.path().join("man1"), directory.path().join("units"));
    sumfs(&["man", "--dir", pages.to_str().unwrap()]).expect_success();
    for command in ["", "-mkfs", "-mount", "-scrub", "-scrub-start", "-top", "-check"] {
        assert!(text(&pages.join(format!("sumfs{command}.1"))).contains(".SH SYNOPSIS"), "{command}");
    }
    sumfs(&["systemd-units", "--dir", units.to_str().unwrap()]).expect_success();
    assert!(text(&units.join("sumfs-scrub@.service")).contains(&format!("ExecStart={SUMFS} scrub start --wait %f")));
    sumfs(&["man", "--dir", "/proc/nowhere"]).expect_failure(1, &["/proc/nowhere", "directory"]);
    if run("sh", &["-c", "command -v systemd-analyze"]).code != 0 {
        println!("systemd-analyze is missing: the units were written, not verified");
        return;
    }
    for unit in ["sumfs-scrub@mnt-data.timer", "sumfs-scrub@mnt-data.service", "mnt-sumfs.mount", "mnt-sumfs.automount"] {
        let unit = units.join(unit);
        let verified = run("systemd-analyze", &["verify", "--man=no", unit.to_str().unwrap()]).expect_success();
        assert_eq!(verified.stderr, "", "{}", unit.display());
    }
}

#[test]
fn install_puts_all_in_place_and_uninstall_takes_it_away() {
    let directory = scratch();
    let (top, stage) = (env!("CARGO_MANIFEST_DIR"), directory.path().display());
    // A program that is there need not be built.
    let arguments = [&format!("SUMFS={SUMFS}"), &format!("DESTDIR={stage}"), &"PREFIX=/usr".to_owned()];
    let make = |target: &str| {
        let mut all = vec!["-C", top, target];
        all.extend(arguments.iter().map(|argument| argument.as_str()));
        run("make", &all).expect_success();
    };
    make("install-files");
    let at = |name: &str| directory.path().join(name);
    for name in [
        "usr/bin/sumfs",
        "usr/share/man/man1/sumfs-scrub.1",
        "usr/share/bash-completion/completions/sumfs",
        "usr/share/zsh/site-functions/_sumfs",
        "usr/share/fish/vendor_completions.d/sumfs.fish",
        "usr/lib/systemd/system/sumfs-scrub@.timer",
    ] {
        assert!(at(name).is_file(), "{name}");
    }
    assert!(text(&at("usr/lib/systemd/system/sumfs-scrub@.service")).contains("ExecStart=/usr/bin/sumfs "));
    assert_eq!(fs::read_link(at("sbin/mount.fuse.sumfs")).unwrap(), Path::new("/usr/bin/sumfs"));
    assert!(!at("usr/lib/systemd/system/mnt-sumfs.mount").exists(), "an example, not for every machine");
    make("uninstall");
    let left = run("find", &[directory.path().to_str().unwrap(), "-not", "-type", "d"]).expect_success();
    assert_eq!(left.stdout, "");
}
