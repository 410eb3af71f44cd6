//! What people read when they ask for something impossible: every command, every kind of mistake. Always an exit code, the thing's name,
//! and a last line that says what to try.

use crate::json::all_commands;
use crate::mount::{Mount, Ran, SUMFS, require_root_and_fuse, run, scratch, sumfs};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Commands that are whole without an argument.
const NEED_NOTHING: [&str; 3] = ["help", "man", "systemd-units"];

/// What takes the store, mounted or not; `-` stands for it.
const OF_STORES: [&str; 10] = [
    "info -",
    "check -",
    "index rebuild -",
    "scrub start -",
    "scrub status -",
    "scrub pause -",
    "scrub resume -",
    "scrub cancel -",
    "damage list -",
    "damage clear -",
];
/// What takes a mount point.
const OF_MOUNTS: [&str; 3] = ["umount -", "sync -", "stats -"];
/// What takes a file in a mount.
const OF_FILES: [&str; 2] = ["map -", "read --ignore-checksum -"];

/// The words of a command with the thing in its place.
fn words(command: &str, thing: &Path) -> Vec<String> {
    let thing = thing.to_str().unwrap();
    command.split(' ').map(|word| if word == "-" { thing.to_owned() } else { word.to_owned() }).collect()
}

fn expect_complaint(command: &[String], ran: Ran, thing: &str) {
    let last = ran.stderr.lines().last().unwrap_or_default();
    assert!(ran.code > 0, "{command:?}: {ran:?}");
    assert!(ran.stderr.contains(thing), "{command:?} does not name {thing}: {ran:?}");
    assert!(last.strip_prefix("try: ").is_some_and(|cure| cure.len() > 3), "{command:?} says no way out: {ran:?}");
    assert!(!ran.stderr.contains('\u{1b}'), "{command:?}: colours without a terminal: {ran:?}");
}

#[test]
fn wrong_options_and_missing_arguments() {
    for command in all_commands() {
        let mut wrong = command.clone();
        wrong.push("--nonsense".to_owned());
        let ran = sumfs(&wrong);
        assert!(ran.stderr.contains(&format!("try: sumfs {} --help", command.join(" "))), "{ran:?}");
        expect_complaint(&wrong, ran, "--nonsense");
        if !NEED_NOTHING.contains(&command[0].as_str()) {
            expect_complaint(&command, sumfs(&command), &command[0]);
        }
    }
    expect_complaint(&[], sumfs::<&str>(&[]), "sumfs");
    let nonsense = vec!["nonsense".to_owned()];
    expect_complaint(&nonsense, sumfs(&nonsense), "nonsense");
}

#[test]
fn what_is_not_there_or_is_something_else() {
    require_root_and_fuse();
    let directory = scratch();
    let (absent, plain, file) = (directory.path().join("absent"), directory.path().join("plain"), directory.path().join("file"));
    fs::create_dir(&plain).unwrap();
    fs::write(&file, "x").unwrap();
    for command in OF_STORES.into_iter().chain(OF_MOUNTS) {
        for thing in [&absent, &plain, &file, &absent.join("below")] {
            let command = words(command, thing);
            expect_complaint(&command, sumfs(&command), thing.to_str().unwrap());
        }
    }
    for command in OF_FILES {
        for thing in [&absent, &plain, &file] {
            let command = words(command, thing);
            expect_complaint(&command, sumfs(&command), thing.to_str().unwrap());
        }
    }
    for (store, mountpoint, named) in
        [(&absent, &plain, &absent), (&file, &plain, &file), (&plain, &absent, &absent), (&plain, &file, &file)]
    {
        let command = ["mount".to_owned(), store.display().to_string(), mountpoint.display().to_string()];
        expect_complaint(&command, sumfs(&command), named.to_str().unwrap());
    }
    for (store, named) in [(&file, &file), (&absent.join("below"), &absent)] {
        let command = words("mkfs - --size 64M", store);
        expect_complaint(&command, sumfs(&command), named.to_str().unwrap());
    }
}

#[test]
fn what_is_in_use() {
    let mount = Mount::with_size("64M", "");
    let (store, at) = (mount.store(), mount.path());
    for command in ["check -", "mkfs - --force --size 64M"] {
        let command = words(command, &store);
        expect_complaint(&command, sumfs(&command), at.to_str().unwrap());
    }
    for command in OF_MOUNTS {
        let command = words(command, &store);
        expect_complaint(&command, sumfs(&command), at.to_str().unwrap());
    }
    let held = File::create(at.join("held")).unwrap();
    let command = words("umount -", &at);
    expect_complaint(&command, sumfs(&command), "busy");
    drop(held);
    // A scrub that is not there can be neither paused nor resumed.
    for action in ["pause", "resume", "cancel"] {
        let command = words(&format!("scrub {action} -"), &at);
        expect_complaint(&command, sumfs(&command), "scrub");
    }
}

#[test]
fn what_is_not_permitted() {
    let mount = Mount::with_size("64M", "");
    fs::write(mount.path().join("file"), "x").unwrap();
    // Where nobody may run it.
    let program = mount.beside("sumfs");
    fs::copy(SUMFS, &program).unwrap();
    let as_nobody = |command: &[String]| {
        let mut words: Vec<&str> = "setpriv --reuid=65534 --regid=65534 --clear-groups".split(' ').collect();
        words.push(program.to_str().unwrap());
        words.extend(command.iter().map(String::as_str));
        run("env", &words)
    };
    for command in OF_MOUNTS.iter().filter(|command| !command.starts_with("umount")) {
        let command = words(command, &mount.path());
        // Mount or store: whichever is closed to this user.
        expect_complaint(&command, as_nobody(&command), mount.path().parent().unwrap().to_str().unwrap());
    }
    let other = mount.beside("other");
    let made = words("mkfs - --size 64M", &other);
    sumfs(&made).expect_success();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o700)).unwrap();
    for command in OF_STORES {
        let command = words(command, &other);
        let ran = as_nobody(&command);
        assert!(ran.stderr.contains("root"), "{ran:?}");
        expect_complaint(&command, ran, other.to_str().unwrap());
    }
}

/// On a terminal the two words are bold, unless that is not wanted.
#[test]
fn colours_are_for_terminals() {
    let on_a_terminal = |environment: &str| {
        let call = format!("env {environment} {SUMFS} info /nowhere/at/all");
        run("script", &["-qec", &call, "/dev/null"]).stdout
    };
    let coloured = on_a_terminal("-u NO_COLOR");
    assert!(coloured.contains("\u{1b}[1mtry:\u{1b}[0m"), "{coloured:?}");
    let plain = on_a_terminal("NO_COLOR=1");
    assert!(plain.contains("try: ") && !plain.contains('\u{1b}'), "{plain:?}");
    let directory = scratch();
    let store = directory.path().join("store");
    sumfs(&words("mkfs - --size 64M", &store)).expect_success();
    // A label that is gone is warned of.
    let device = store.join("device.0");
    let bytes = fs::metadata(&device).unwrap().len();
    File::create(&device).unwrap().set_len(bytes).unwrap();
    let warned = sumfs(&["check", store.to_str().unwrap()]).stderr;
    assert!(warned.contains("WARN") && !warned.contains('\u{1b}'), "{warned:?}");
}
