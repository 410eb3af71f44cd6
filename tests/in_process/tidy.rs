//! Rules of the tree that no compiler keeps: layers, sizes, words, what lies at the top. Each rule lists everything that breaks it, so
//! that one run shows all. The tables come first; change them on purpose, not to silence a finding.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What each part of src may use beside itself and [`SHARED`]. The order is the order of the data path; nothing looks upward.
const LAYERS: [(&str, &[&str]); 12] = [
    ("cli", &["control", "store", "fuse", "fs", "verify", "meta", "disk"]),
    ("fuse", &["fs", "meta", "disk"]),
    ("fs", &["cache", "extent", "space", "meta", "disk", "store", "verify"]),
    ("cache", &["extent", "space", "disk"]),
    ("extent", &["space", "meta", "disk"]),
    ("meta", &["space", "disk"]),
    ("space", &["meta", "disk"]),
    ("disk", &[]),
    ("verify", &["extent", "space", "meta", "disk", "store"]),
    ("store", &["space", "meta", "disk"]),
    ("control", &[]),
    ("sys", &[]),
];

/// Where only some modules of a lower layer may be seen: the allocator is told what a transaction changed and stores group records; the
/// kernel's replies need the kinds of files; what moves bytes needs the memory that O_DIRECT wants.
const NARROW: [(&str, &str, &[&str]); 4] = [
    ("space", "meta", &["batch", "index", "records", "schema"]),
    ("fuse", "meta", &["records"]),
    ("fuse", "disk", &["buffer"]),
    ("cache", "disk", &["buffer"]),
];

/// Used by everybody; use each other only.
const SHARED: [&str; 8] = ["error", "units", "lock", "sync", "pool", "stats", "clock", "sys"];

/// Files that may say `unsafe`; the benchmark because handing buffers to a ring is.
const UNSAFE_FILES: [&str; 4] = ["src/disk/buffer.rs", "src/sys.rs", "src/fuse/ring/raw.rs", "tests/bench/submission.rs"];

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;

/// Unfinished work and names that say nothing. Split, so that this file passes.
const BANNED: [&str; 7] = [
    concat!("to", "do!"),
    concat!("TO", "DO"),
    concat!("unimple", "mented!"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("ut", "ils"),
    concat!("Man", "ager"),
];

/// What a visitor sees first.
const TOP_LEVEL: [&str; 8] = ["Cargo.lock", "Cargo.toml", "Makefile", "README.md", "src", "target", "tests", "xfstests-config"];

/// A Rust file of the project.
struct Source {
    /// Relative to the top.
    path: String,
    text: String,
}

impl Source {
    /// The part of src that it belongs to: a folder, or a file at the top of src.
    fn part(&self) -> Option<&str> {
        let below = self.path.strip_prefix("src/")?;
        Some(below.split_once('/').map_or_else(|| below.trim_end_matches(".rs"), |(folder, _)| folder))
    }

    /// The text without comment lines and without the unit tests at the end.
    fn code(&self) -> String {
        let before_tests = self.text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
        before_tests.lines().filter(|line| !line.trim_start().starts_with("//")).map(|line| format!("{line}\n")).collect()
    }
}

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![top().join("src"), top().join("tests")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push(Source { path: path.strip_prefix(top()).unwrap().to_str().unwrap().to_owned(), text });
            }
        }
    }
    assert!(found.len() > 30, "the search for sources is broken: {} found", found.len());
    found
}

fn assert_none(rule: &str, mut findings: Vec<String>) {
    findings.sort();
    assert!(findings.is_empty(), "{rule}:\n  {}", findings.join("\n  "));
}

/// Every `crate::a::b` in the code, also inside `use crate::{a::{b, c}, d}`, as (a, b or "").
fn crate_paths(code: &str) -> BTreeSet<(String, String)> {
    let mut paths = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        for branch in branches(rest) {
            let (first, tail) = leading_name(branch);
            let inner = tail.strip_prefix("::").map(branches).unwrap_or_default();
            if inner.is_empty() {
                paths.insert((first.to_owned(), String::new()));
            }
            for branch in inner {
                paths.insert((first.to_owned(), leading_name(branch).0.to_owned()));
            }
        }
    }
    paths
}

/// `{a::b, c}...` as its members, anything else as itself.
fn branches(text: &str) -> Vec<&str> {
    let Some(inside) = text.strip_prefix('{') else { return vec![text] };
    let (mut depth, mut start, mut members) = (0, 0, Vec::new());
    for (at, letter) in inside.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            '}' | ',' if depth == 0 => {
                members.push(inside[start..at].trim());
                start = at + 1;
                if letter == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    members.retain(|member| !member.is_empty());
    members
}

fn leading_name(text: &str) -> (&str, &str) {
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len());
    text.split_at(end)
}

#[test]
fn each_layer_uses_only_what_stands_below_it() {
    let mut findings = Vec::new();
    for source in sources() {
        let Some(part) = source.part().filter(|part| !["lib", "main"].contains(part)) else { continue };
        let allowed: &[&str] = match LAYERS.iter().find(|(name, _)| *name == part) {
            Some((_, allowed)) => allowed,
            None if SHARED.contains(&part) => &[],
            None => {
                findings.push(format!("{}: {part} stands in no layer", source.path));
                continue;
            }
        };
        for (used, inner) in crate_paths(&source.code()) {
            let narrow = NARROW.iter().find(|(from, to, _)| *from == part && *to == used);
            let fits = narrow.is_none_or(|(_, _, modules)| modules.contains(&inner.as_str()));
            if used != part && !SHARED.contains(&used.as_str()) && !(allowed.contains(&used.as_str()) && fits) {
                findings.push(format!("{} uses crate::{used}::{inner}", source.path));
            }
        }
    }
    assert_none("imports that go past their layer", findings);
}

#[test]
fn the_reader_of_imports_sees_all_forms() {
    let code = "use crate::error::{Error, Result};\nuse crate::{fs::{read, write}, disk};\nlet a = crate::meta::schema::KEY;";
    let expected = [("disk", ""), ("error", "Error"), ("error", "Result"), ("fs", "read"), ("fs", "write"), ("meta", "schema")];
    let expected: BTreeSet<(String, String)> = expected.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
    assert_eq!(crate_paths(code), expected);
}

#[test]
fn files_open_with_their_purpose_and_stay_short() {
    let mut findings = Vec::new();
    for source in sources() {
        let lines = source.text.lines().count();
        if lines > FILE_LINES_MAX {
            findings.push(format!("{}: {lines} lines, at most {FILE_LINES_MAX}", source.path));
        }
        let first = source.text.lines().next().unwrap_or_default();
        if !first.starts_with("//! ") || first.contains("(being written)") {
            findings.push(format!("{}: does not open with //! and what it is", source.path));
        }
    }
    assert_none("files", findings);
}

/// (line, length) of every function; relies on rustfmt: the closing brace stands alone, indented like the `fn`.
fn functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        let mut words = code
            .split(' ')
            .skip_while(|word| ["pub", "const", "unsafe", "async", "extern", "\"C\""].contains(word) || word.starts_with("pub("));
        if words.next() != Some("fn") || code.ends_with(';') || code.ends_with('}') {
            continue;
        }
        let end = lines[start..].iter().position(|line| line.strip_prefix(indent) == Some("}"));
        found.push((start + 1, end.map_or(0, |length| length + 1)));
    }
    found
}

#[test]
fn functions_stay_short() {
    let mut findings = Vec::new();
    let mut seen = 0;
    for source in sources() {
        for (line, length) in functions(&source.text) {
            seen += 1;
            if length > FUNCTION_LINES_MAX {
                findings.push(format!("{}:{line}: {length} lines, at most {FUNCTION_LINES_MAX}", source.path));
            }
        }
    }
    assert!(seen > 100, "the search for functions is broken: {seen} found");
    assert_none("functions", findings);
}

#[test]
fn no_banned_words() {
    let mut findings = Vec::new();
    for source in sources() {
        for (number, line) in source.text.lines().enumerate() {
            for word in BANNED.iter().filter(|word| line.contains(**word)) {
                findings.push(format!("{}:{}: {word}", source.path, number + 1));
            }
        }
    }
    assert_none("words", findings);
}

#[test]
fn unsafe_is_where_it_may_be() {
    let pardon = concat!("allow(", "unsafe_code)");
    let findings =
        sources().into_iter().filter(|source| source.text.contains(pardon) && !UNSAFE_FILES.contains(&source.path.as_str()));
    assert_none("files that allow unsafe code", findings.map(|source| source.path).collect());
}

#[test]
fn the_top_shows_only_what_it_should() {
    let names = std::fs::read_dir(top()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let stray = names.filter(|name| !name.starts_with('.') && !TOP_LEVEL.contains(&name.as_str()));
    assert_none("at the top of the tree", stray.collect());
}

/// Names in the code of `Stats` that stand alone on a line (counters), or are histograms.
fn counters(code: &str) -> Vec<&str> {
    let name = |line: &str| line.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_');
    let alone = code.lines().filter_map(|line| line.trim().strip_suffix(',').filter(|line| name(line)));
    let histograms = code.lines().filter_map(|line| line.trim().strip_prefix("pub ")?.strip_suffix(": Histogram,"));
    alone.chain(histograms).collect()
}

#[test]
fn every_counter_counts_something() {
    let sources = sources();
    let code = |path: &str| sources.iter().find(|source| source.path == path).unwrap().code();
    let stats = code("src/stats.rs");
    let names = counters(&stats);
    assert!(names.contains(&"bytes_read") && names.contains(&"fsync_latency"), "the search for counters is broken: {names:?}");
    let all = sources.iter().filter(|source| source.path.starts_with("src/") && source.path != "src/cli/metrics.rs");
    let elsewhere = all.map(|source| source.code().split_whitespace().collect::<String>()).collect::<String>();
    // Used in another way than to be shown.
    let is_counted = |name: &&str| {
        elsewhere.match_indices(&format!(".{name}")).any(|(start, found)| {
            let behind = &elsewhere[start + found.len()..];
            let is_longer = behind.starts_with(|next: char| next == '_' || next.is_ascii_alphanumeric());
            !is_longer && !behind.starts_with(".load(") && !behind.starts_with(".to_json(")
        })
    };
    assert_none(
        "counters that nothing counts",
        names.iter().filter(|name| !is_counted(name)).map(|name| (*name).to_owned()).collect(),
    );
}
