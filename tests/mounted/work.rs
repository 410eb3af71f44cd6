//! Real work in the mount, with the tools that people use: git, SQLite, tar, rsync, a compiler, cp, appending processes. Each runs in
//! both cache modes, and what it left is looked at again after a remount, when no cache can hide what the store holds.
//! The tools are required: one that is missing fails its test.

use crate::mount::{Mount, run};
use std::fs;
use std::path::Path;

/// Makes `files` files of different sizes in 20 directories below the working directory of a script.
const MAKE_FILES: &str = r#"make_files() {
    for i in $(seq "$1"); do
        mkdir -p "d$((i % 20))/sub"
        seq "$i" $((i * 9)) > "d$((i % 20))/file-$i"
        echo "$i" > "d$((i % 20))/sub/small-$i"
    done
}
"#;

/// Runs a bash script with `$1` = working directory; its standard output.
fn script(directory: &Path, text: &str) -> String {
    let whole = format!("cd \"$1\"\n{MAKE_FILES}\n{text}");
    let arguments = ["-euo", "pipefail", "-c", &whole, "bash", directory.to_str().unwrap()];
    run("bash", &arguments).expect_success().stdout
}

/// Runs a Python program with `argv[1]` = a directory.
fn python(directory: &Path, text: &str) -> String {
    run("python3", &["-c", text, directory.to_str().unwrap()]).expect_success().stdout
}

/// Works in a fresh mount, remounts, looks again.
fn in_mode(options: &str, work: fn(&Path), look: fn(&Path)) {
    let mut mount = Mount::new(options);
    work(&mount.path());
    look(&mount.path());
    mount.remount();
    look(&mount.path());
}

macro_rules! in_both_cache_modes {
    ($($work:ident, $look:ident;)*) => {
        mod writeback {
            $(#[test]
            fn $work() {
                super::in_mode("cache=writeback", super::$work, super::$look);
            })*
        }
        mod none {
            $(#[test]
            fn $work() {
                super::in_mode("cache=none", super::$work, super::$look);
            })*
        }
    };
}

in_both_cache_modes![
    git, git_is_whole;
    sqlite_with_four_writers, sqlite_is_whole;
    tar_round_trip, tar_trees_are_equal;
    rsync_twice, rsync_finds_nothing_to_do;
    compile, compiled_programs_run;
    hard_linked_copies, links_are_counted;
    parallel_copies, copies_are_equal;
    appending_processes, records_are_intact;
];

const GIT: &str = r"export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
";

/// Two commits of 800 files, clones with and without hard links, a repack.
fn git(root: &Path) {
    let work = r#"mkdir work && cd work && git init -q .
        make_files 400
        git add -A && git commit -qm first
        for i in $(seq 1 4 400); do echo more >> "d$((i % 20))/file-$i"; done
        git mv d3 moved && git commit -qam second
        cd .. && git clone -q work linked && git clone -q --no-local work sent
        git -C work gc -q --aggressive --prune=now"#;
    script(root, &format!("{GIT}{work}"));
}

fn git_is_whole(root: &Path) {
    let look = r#"for copy in work linked sent; do
            git -C $copy fsck --full --strict >&2
            test -z "$(git -C $copy status --porcelain)"
            test "$(git -C $copy rev-parse HEAD)" = "$(git -C work rev-parse HEAD)"
            diff -r --exclude=.git work $copy
        done
        git -C work ls-files | wc -l"#;
    assert_eq!(script(root, &format!("{GIT}{look}")).trim(), "800");
}

/// A database in WAL mode: shared memory, locks, many small fsyncs.
fn sqlite_with_four_writers(root: &Path) {
    python(
        root,
        r#"
import multiprocessing, sqlite3, sys
path = sys.argv[1] + "/database"
def connect():
    connection = sqlite3.connect(path, timeout=120, isolation_level=None)
    connection.execute("pragma synchronous=full")
    return connection
def write(worker):
    connection = connect()
    for batch in range(20):
        connection.execute("begin immediate")
        for row in range(10):
            connection.execute("insert into rows values (?, ?, ?)", (worker, batch * 10 + row, "x" * (row * 300)))
        connection.execute("commit")
    connection.close()
first = connect()
assert first.execute("pragma journal_mode=wal").fetchone()[0] == "wal"
first.execute("create table rows (worker int, number int, content text, unique (worker, number))")
workers = [multiprocessing.Process(target=write, args=(worker,)) for worker in range(4)]
[worker.start() for worker in workers]
[worker.join() for worker in workers]
assert [worker.exitcode for worker in workers] == [0] * 4
"#,
    );
}

fn sqlite_is_whole(root: &Path) {
    let found = python(
        root,
        r#"
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1] + "/database")
print(connection.execute("pragma integrity_check").fetchone()[0])
print(connection.execute("select count(*), count(distinct worker * 1000 + number), sum(length(content)) from rows").fetchone())
"#,
    );
    assert_eq!(found, "ok\n(800, 800, 1080000)\n");
}

/// Sparse files (C19), extended attributes, hard and symbolic links, odd modes and names, into an archive and out again.
fn tar_round_trip(root: &Path) {
    let work = r#"mkdir tree && cd tree && make_files 200
        truncate -s 100M sparse && echo here | dd of=sparse bs=1 seek=50000000 conv=notrunc status=none
        ln d1/file-1 hard && ln -s d1/file-1 soft && ln -s nowhere dangling && mkfifo fifo
        chmod 4755 d2/file-2 && chmod 1777 d2 && chmod 000 d2/file-22 && chown 1234:4321 d3/file-3
        touch -d '1971-01-01 00:00:00.123456789' d4/file-4
        setfattr -n user.note -v hello d1/file-1 && setfattr -n user.empty d1 && setfattr -n trusted.t -v deep d5/file-5
        setfattr -n user.large -v "$(head -c 3000 /dev/zero | tr '\0' x)" d5/file-5
        echo odd > $'new\nline and "quotes"'
        cd .. && tar --sparse --xattrs --xattrs-include='*' -cf archive.tar tree
        mkdir out && tar -C out --xattrs --xattrs-include='*' -xpf archive.tar"#;
    script(root, work);
}

fn tar_trees_are_equal(root: &Path) {
    let look = r#"test "$(stat -c %b out/tree/sparse)" -lt 100
        test "$(stat -c %s archive.tar)" -lt 10000000
        test "$(stat -c %h out/tree/hard)" = 2
        diff <(cd tree && getfattr -R -P -h -d -m - .) <(cd out/tree && getfattr -R -P -h -d -m - .)
        test "$(cd tree && getfattr -R -P -h -d -m - . | grep -c =)" = 5
        rsync -naHAX --checksum --delete --itemize-changes tree/ out/tree/"#;
    assert_eq!(script(root, look), "", "rsync finds differences");
}

/// A copy of a tree with hard links and attributes; the second one finds nothing to do (C49).
fn rsync_twice(root: &Path) {
    let work = r"mkdir from && cd from && make_files 300
        for name in security.capability trusted.overlay; do setfattr -n $name -v 0sAQAAAgAgAAAAAAAAAAAAAAAAAAA= d7/file-7; done
        for i in $(seq 50); do ln d$((i % 20))/file-$i link-$i; setfattr -n user.number -v $i d$((i % 20))/file-$i; done
        cd .. && rsync -aHX from/ to/";
    script(root, work);
}

fn rsync_finds_nothing_to_do(root: &Path) {
    assert_eq!(script(root, "rsync -aHX --itemize-changes from/ to/; rsync -naHX --checksum --itemize-changes from/ to/"), "");
    assert_eq!(script(root, "stat -c %h to/link-7; getfattr --only-values -n user.number to/link-7"), "2\n7");
}

/// A C and a Rust program, run at once (C79).
fn compile(root: &Path) {
    fs::write(root.join("hello.c"), "#include <stdio.h>\nint main(void) { return printf(\"hello from C\\n\") < 0; }\n").unwrap();
    fs::write(root.join("hello.rs"), "fn main() { println!(\"hello from Rust\"); }\n").unwrap();
    script(root, "export TMPDIR=$PWD; gcc -O1 -o hello-c hello.c; rustc -o hello-rust hello.rs");
}

fn compiled_programs_run(root: &Path) {
    assert_eq!(script(root, "./hello-c; ./hello-rust"), "hello from C\nhello from Rust\n");
}

/// Five times the names of 1000 files.
fn hard_linked_copies(root: &Path) {
    script(
        root,
        "mkdir first && cd first && make_files 500; cd ..; for i in $(seq 5); do cp -al first copy-$i; done; rm -r copy-2 copy-4",
    );
}

fn links_are_counted(root: &Path) {
    let look = r"find first copy-* -type f | wc -l; find first -type f -links 4 | wc -l; diff -r first copy-5
        find first copy-* -type f -printf '%i\n' | sort -u | wc -l";
    assert_eq!(script(root, look), "4000\n1000\n1000\n");
}

/// Eight loops of cp and cmp at the same time, nothing synced (C01).
fn parallel_copies(root: &Path) {
    let work = r#"head -c 3000001 /dev/urandom > source
        loop() {
            for round in $(seq 6); do
                cp --reflink=auto source "copy-$1-$round" && cmp source "copy-$1-$round" || exit 1
                cp --reflink=auto "copy-$1-$round" "again-$1" && cmp source "again-$1" || exit 1
            done
        }
        pids=""
        for i in $(seq 8); do loop "$i" & pids="$pids $!"; done
        for pid in $pids; do wait "$pid"; done"#;
    script(root, work);
}

fn copies_are_equal(root: &Path) {
    assert_eq!(script(root, "for copy in copy-* again-*; do cmp source $copy; done; ls | wc -l").trim(), "57");
}

/// Four processes append 10 000 records of 100 bytes to one file (C04).
fn appending_processes(root: &Path) {
    python(
        root,
        r#"
import multiprocessing, os, sys
def write(worker):
    file = os.open(sys.argv[1] + "/records", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for number in range(2500):
        record = f"{worker} {number:06d} ".encode()
        assert os.write(file, record + b"." * (99 - len(record)) + b"\n") == 100
workers = [multiprocessing.Process(target=write, args=(worker,)) for worker in range(4)]
[worker.start() for worker in workers]
[worker.join() for worker in workers]
assert [worker.exitcode for worker in workers] == [0] * 4
"#,
    );
}

fn records_are_intact(root: &Path) {
    let text = fs::read_to_string(root.join("records")).unwrap();
    assert_eq!(text.len(), 1_000_000);
    let mut next = [0; 4];
    for line in text.lines() {
        assert_eq!(line.len(), 99, "{line:?}");
        let (worker, rest) = line.split_once(' ').unwrap();
        let (number, dots) = rest.split_once(' ').unwrap();
        let worker: usize = worker.parse().unwrap();
        assert_eq!(number.parse(), Ok(next[worker]), "{line:?}");
        assert!(dots.bytes().all(|byte| byte == b'.'), "{line:?}");
        next[worker] += 1;
    }
    assert_eq!(next, [2500; 4]);
}

/// Context switches of every thread of a process, by thread.
fn context_switches(pid: i64) -> Vec<(String, String)> {
    let mut threads = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let directory = task.unwrap().path();
        let status = fs::read_to_string(directory.join("status")).unwrap();
        let count = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap().to_owned();
        let name = fs::read_to_string(directory.join("comm")).unwrap();
        threads.push((format!("{} {}", directory.display(), name.trim()), count));
    }
    threads.sort();
    threads
}

fn an_idle_daemon_sleeps(options: &str) {
    let mount = Mount::with_size("256M", options);
    for index in 0..50 {
        fs::write(mount.path().join(format!("file-{index}")), vec![7; 50_000]).unwrap();
    }
    let pid = mount.info()["pid"].as_i64().unwrap();
    // Nothing can be waited for: what is looked for is that nothing happens. It may take 15 s to settle.
    let mut differences = Vec::new();
    for _ in 0..4 {
        let before = context_switches(pid);
        std::thread::sleep(std::time::Duration::from_secs(5));
        let after = context_switches(pid);
        if before == after {
            return;
        }
        differences.push(after.into_iter().filter(|thread| !before.contains(thread)).collect::<Vec<_>>());
    }
    panic!("an idle daemon does not sleep; threads that woke in each 5 s: {differences:#?}");
}

#[test]
fn an_idle_daemon_makes_no_context_switch_writeback() {
    an_idle_daemon_sleeps("cache=writeback");
}

#[test]
fn an_idle_daemon_makes_no_context_switch_none() {
    an_idle_daemon_sleeps("cache=none");
}
