//! The engines that keep the index: `sumfs index convert` both ways with everything as it was, killed on the way, what a killed one left
//! behind; where sled is refused; what is said when it does not open.

use crate::mount::{Mount, Ran, SUMFS, require_root_and_fuse, run, scratch, sumfs};
use crate::recording_file::RecordingFile;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DIRECTORIES: usize = 12;
const FILES: usize = 100;

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary directories have names in UTF-8")
}

fn fill(root: &Path) {
    for directory in 0..DIRECTORIES {
        let directory = root.join(format!("directory {directory}"));
        fs::create_dir(&directory).unwrap();
        for file in 0..FILES {
            fs::write(directory.join(format!("a file with quite a long name, number {file}")), format!("{file}").repeat(file))
                .unwrap();
        }
    }
    rustix::fs::setxattr(root, "user.large", &[7; 9000], rustix::fs::XattrFlags::empty()).unwrap();
}

/// Every name and what is in it.
fn look(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for directory in fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()) {
        for file in fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()) {
            found.push((file.clone(), fs::read(file).unwrap()));
        }
    }
    let mut large = vec![0; 10_000];
    let len = rustix::fs::getxattr(root, "user.large", &mut large).unwrap();
    large.truncate(len);
    found.push((root.to_owned(), large));
    found.sort();
    found
}

/// Fails with all this among what is said; there may be warnings before it.
fn expect_refusal(ran: &Ran, code: i32, parts: &[&str]) {
    assert_eq!(ran.code, code, "{ran:?}");
    for part in parts {
        assert!(ran.stderr.contains(part), "{part} is not in {ran:?}");
    }
}

fn convert(mount: &Mount, engine: &str) -> Ran {
    sumfs(&["index", "convert", "--to", engine, text(&mount.store())])
}

fn engine(mount: &Mount) -> String {
    let ran = sumfs(&["info", "--json", text(&mount.store())]).expect_success();
    let info: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    info["index"].as_str().unwrap_or_else(|| panic!("no index in {info}")).to_owned()
}

/// Which indexes lie in the store.
fn indexes(mount: &Mount) -> Vec<&'static str> {
    ["index", "index.sled"].into_iter().filter(|name| mount.store().join(name).exists()).collect()
}

fn check_data(mount: &Mount) {
    let checked = sumfs(&["check", "--data", text(&mount.store())]);
    assert_eq!(checked.code, 0, "{checked:?}");
}

#[test]
fn a_store_goes_from_one_engine_to_the_other_and_back() {
    let mut mount = Mount::made_with(&["--size", "256M", "--index", "redb"], "noatime");
    fill(&mount.path());
    let expected = look(&mount.path());
    convert(&mount, "sled").expect_failure(1, &["is mounted", "sumfs umount"]);
    sumfs(&["sync", text(&mount.path())]).expect_success();
    // A journal with records that no checkpoint has seen: they must come back from it with either engine.
    mount.kill();
    for (to, name) in [("sled", "index.sled"), ("redb", "index"), ("sled", "index.sled")] {
        let said = convert(&mount, to).expect_success().stdout;
        assert!(said.contains(to) && said.contains("records"), "{said}");
        assert_eq!((engine(&mount).as_str(), indexes(&mount)), (to, vec![name]));
        check_data(&mount);
        mount.mount();
        assert!(look(&mount.path()) == expected, "after converting to {to}");
        mount.kill();
    }
    assert!(convert(&mount, "sled").expect_success().stdout.contains("already"));
    check_data(&mount);
}

/// Bytes of the index that is being built.
fn built_bytes(store: &Path, engine: &str) -> u64 {
    let path = if engine == "sled" { store.join("index.sled/db") } else { store.join("index") };
    fs::metadata(path).map_or(0, |found| found.len())
}

#[test]
fn a_conversion_killed_on_the_way_leaves_the_old_index_or_the_new_one() {
    let mut mount = Mount::made_with(&["--size", "256M", "--index", "redb"], "noatime");
    fill(&mount.path());
    let expected = look(&mount.path());
    mount.umount();
    let mut killed = 0;
    // As soon as there is something of the new index, and at some sizes of it.
    for at_bytes in [0, 1, 300_000, 600_000, 1_000_000, 1_500_000] {
        for _ in 0..2 {
            let before = engine(&mount);
            let to = if before == "sled" { "redb" } else { "sled" };
            let mut child = Command::new(SUMFS)
                .args(["index", "convert", "--to", to, text(&mount.store())])
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            while child.try_wait().unwrap().is_none() && built_bytes(&mount.store(), to) < at_bytes {
                std::thread::yield_now();
            }
            child.kill().unwrap();
            killed += usize::from(!child.wait().unwrap().success());
            let after = engine(&mount);
            assert!(after == before || after == to, "{after}");
            let checked = sumfs(&["check", text(&mount.store())]);
            assert_eq!(checked.code, 0, "killed on the way to {to} at {at_bytes} bytes, now {after}: {checked:?}");
            mount.mount();
            assert!(look(&mount.path()) == expected, "killed on the way to {to} at {at_bytes} bytes, now {after}");
            mount.umount();
            convert(&mount, to).expect_success();
            assert_eq!((engine(&mount).as_str(), indexes(&mount).len()), (to, 1), "what the killed one left is gone");
        }
    }
    assert!(killed > 0, "every conversion ended before it could be killed");
    check_data(&mount);
}

#[test]
fn a_conversion_that_fails_leaves_everything_as_it_was() {
    let mut mount = Mount::made_with(&["--size", "64M", "--index", "redb"], "noatime");
    fs::write(mount.path().join("file"), "text").unwrap();
    mount.umount();
    // The name is taken by something that is neither a file nor to be removed like one.
    let blocked = mount.store().join("index.sled");
    fs::write(&blocked, "no directory").unwrap();
    convert(&mount, "sled").expect_failure(1, &[text(&blocked)]);
    assert_eq!(engine(&mount), "redb");
    fs::remove_file(&blocked).unwrap();
    mount.mount();
    assert_eq!(fs::read_to_string(mount.path().join("file")).unwrap(), "text");
}

#[test]
fn sled_is_refused_on_file_systems_in_user_space() {
    require_root_and_fuse();
    let directory = scratch();
    let _file = RecordingFile::mount(directory.path(), 1 << 20);
    let store = directory.path().join("store");
    sumfs(&["mkfs", text(&store), "--index", "sled"]).expect_failure(1, &["FUSE", "power cuts", "--index redb"]);
}

/// A btrfs on a loop device; gone when dropped.
struct Btrfs(tempfile::TempDir);

impl Btrfs {
    fn new() -> Btrfs {
        let host = Btrfs(scratch());
        fs::File::create(host.image()).unwrap().set_len(256 << 20).unwrap();
        fs::create_dir(host.path()).unwrap();
        run("mkfs.btrfs", &["-q", text(&host.image())]).expect_success();
        run("mount", &["-o", "loop", text(&host.image()), text(&host.path())]).expect_success();
        host
    }

    fn image(&self) -> PathBuf {
        self.0.path().join("image")
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("btrfs")
    }
}

impl Drop for Btrfs {
    fn drop(&mut self) {
        run("umount", &[text(&self.path())]);
    }
}

#[test]
fn sled_is_refused_on_copy_on_write_file_systems() {
    require_root_and_fuse();
    let host = Btrfs::new();
    let store = host.path().join("store");
    sumfs(&["mkfs", text(&store), "--size", "64M", "--index", "sled"])
        .expect_failure(1, &["btrfs", "power cuts", "--index redb"]);
    sumfs(&["mkfs", text(&store), "--size", "64M"]).expect_success();
    expect_refusal(&sumfs(&["index", "convert", "--to", "sled", text(&store)]), 1, &["btrfs", "power cuts"]);

    // One that was copied there can be read, and be given another engine.
    let elsewhere = scratch();
    let (made, copied) = (elsewhere.path().join("store"), host.path().join("copied"));
    sumfs(&["mkfs", text(&made), "--size", "64M", "--index", "sled"]).expect_success();
    run("cp", &["-r", "--sparse=always", text(&made), text(&copied)]).expect_success();
    let mountpoint = elsewhere.path().join("mnt");
    fs::create_dir(&mountpoint).unwrap();
    let mount = ["mount", text(&copied), text(&mountpoint)];
    expect_refusal(&sumfs(&mount), 32, &["btrfs", "index convert --to redb"]);
    sumfs(&["index", "convert", "--to", "redb", text(&copied)]).expect_success();
    sumfs(&mount).expect_success();
    sumfs(&["umount", text(&mountpoint)]).expect_success();
}

#[test]
fn an_index_that_sled_cannot_open_is_made_anew_by_the_command_that_the_error_names() {
    let mut mount = Mount::made_with(&["--size", "64M", "--index", "sled"], "noatime");
    fs::write(mount.path().join("file"), "text").unwrap();
    mount.umount();
    fs::write(mount.store().join("index.sled/db"), "").unwrap();
    let way_out = format!("sumfs index rebuild {}", mount.store().display());
    let at = mount.path();
    expect_refusal(&sumfs(&["mount", text(&mount.store()), text(&at)]), 32, &["index.sled", &way_out]);
    sumfs(&["index", "rebuild", text(&mount.store())]).expect_success();
    mount.mount();
    assert_eq!(fs::read(mount.path().join("file")).unwrap(), b"text");
    assert_eq!(mount.info()["index"], "sled");
    assert!(mount.store().join("index.sled.damaged/db").is_file(), "what was damaged is kept aside");
}
