//! What `--json` prints is what the help of the command says: every field of every answer stands there.

use crate::mount::{Mount, Ran, sumfs};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Names whose members are names of counters, which need no explanation each, or the fields of another answer.
const OPEN: [&str; 14] = [
    "space",
    "metadata",
    "cache",
    "operations",
    "requests",
    "refused",
    "io",
    "checksum",
    "transaction",
    "healed",
    "latency",
    "issues",
    "damage",
    "image",
];

/// The names of fields, as deep as they are fixed.
fn names(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, inner) in object {
                found.insert(name.clone());
                if !OPEN.contains(&name.as_str()) {
                    names(inner, found);
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|inner| names(inner, found)),
        _ => {}
    }
}

/// Exit code 0, 1 or 4 (damage), an object, and a help that names all of its fields.
fn expect_documented(command: &str, ran: Ran) -> Value {
    assert!([0, 1, 4].contains(&ran.code) && ran.stderr.is_empty(), "{command}: {ran:?}");
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{command}: {error}: {ran:?}"));
    let mut words: Vec<&str> = command.split(' ').collect();
    words.push("--help");
    let help = sumfs(&words).expect_success().stdout;
    let help = help.split_once("Fields of --json").unwrap_or_else(|| panic!("{command}: no fields in its help")).1;
    let known: BTreeSet<&str> = help.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
    let mut found = BTreeSet::new();
    names(&answer, &mut found);
    let missing: Vec<&String> = found.iter().filter(|name| !known.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "the help of {command} does not name {missing:?}");
    assert!(found.len() >= 2, "{command}: {answer}");
    answer
}

#[test]
fn every_field_stands_in_the_help() {
    let mut mount = Mount::made_with(&["--size", "128M", "--data", "dup"], "");
    let (at, store) = (mount.path().display().to_string(), mount.store().display().to_string());
    let file = mount.path().join("file");
    fs::write(&file, crate::content::pattern(8 << 20, 5)).unwrap();
    sumfs(&["sync", &at]).expect_success();
    let other = mount.beside("other").display().to_string();
    let made = expect_documented("mkfs", sumfs(&["mkfs", &other, "--size", "64M", "--label", "l", "--json"]));
    assert_eq!(made["label"], "l");
    let ask = |command: &str, target: &str| {
        let words: Vec<&str> = command.split(' ').chain([target, "--json"]).collect();
        expect_documented(command, sumfs(&words))
    };
    ask("info", &at);
    ask("stats", &at);
    let map = ask("map", file.to_str().unwrap());
    // One block of one copy is damaged, so that scrub and damage have something to say.
    let place = map["ranges"][0]["device_offset"].as_u64().unwrap();
    let device = File::options().write(true).open(mount.store().join("device.0")).unwrap();
    device.write_all_at(&[0xa5; 64], place).unwrap();
    device.sync_all().unwrap();
    drop(device);
    mount.remount();
    let report = expect_documented("scrub start", sumfs(&["scrub", "start", "--wait", &at, "--json"]));
    assert_eq!(report["repaired_blocks"], 1, "{report}");
    assert_eq!(report["damage"]["ranges"].as_array().unwrap().len(), 1, "{report}");
    ask("scrub status", &at);
    ask("damage list", &at);
    ask("damage clear", &at);
    // So slow that it is not over before it is paused.
    let begun = expect_documented("scrub start", sumfs(&["scrub", "start", &at, "--limit", "1", "--json"]));
    assert_eq!(begun["state"], "running");
    ask("scrub pause", &at);
    expect_documented("scrub resume", sumfs(&["scrub", "resume", &at, "--json"]));
    ask("scrub cancel", &at);
    mount.umount();
    ask("info", &store);
    ask("check", &store);
    ask("index rebuild", &store);
    mount.mount();
}

/// The commands that a help text lists.
fn listed(help: &[&str]) -> Vec<String> {
    let text = sumfs(help).expect_success().stdout;
    let list = text.split("Commands:\n").nth(1).unwrap_or_default().lines().take_while(|line| line.starts_with("  "));
    let names = list.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    names.map(str::to_owned).collect()
}

/// Every command, those below others too.
pub fn all_commands() -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for command in listed(&["--help"]).into_iter().filter(|command| command != "help") {
        let inner = listed(&[&command, "--help"]);
        found.extend(inner.iter().filter(|inner| *inner != "help").map(|inner| vec![command.clone(), inner.clone()]));
        found.push(vec![command]);
    }
    assert!(found.len() > 15, "the search for commands is broken: {found:?}");
    found
}

/// Fields may be added to `--json`, and what prints it says what they are.
#[test]
fn who_prints_json_explains_it() {
    for command in all_commands() {
        let mut words = command.clone();
        words.push("--help".to_owned());
        let help = sumfs(&words).expect_success().stdout;
        assert_eq!(help.contains("--json\n"), help.contains("Fields of --json"), "{command:?}");
    }
}
