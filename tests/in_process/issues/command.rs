//! `sumfs check --repair` as it is called: what it prints, its exit codes, and that a dry run changes nothing. And the word for a store
//! with two copies of which one device is gone.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use sumfs::meta::index::Index;
use sumfs::meta::records::seal;
use sumfs::meta::redb_index::RedbIndex;
use sumfs::store::StoreDirectory;

fn sumfs(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sumfs")).args(arguments).output().unwrap()
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn put_unknown_key(store: &Path) {
    let store = StoreDirectory::open(store, false, None).unwrap();
    let index = RedbIndex::open(store.disks().index.clone(), 4 << 20, false).unwrap();
    let value = seal(&[0x77, 1], vec![1, 2, 3]);
    index.apply(&mut [(&[0x77, 1][..], Some(value.as_slice()))].into_iter(), true).unwrap();
}

#[test]
fn check_repair_says_each_step_and_ends_with_the_codes_of_fsck() {
    let place = tempfile::Builder::new().prefix("sumfs-test-").tempdir().unwrap();
    let store = place.path().join("store");
    let path = store.to_str().unwrap();
    assert_eq!(code(&sumfs(&["mkfs", "--size", "64M", path])), Some(0));
    let clean = sumfs(&["check", "--repair", path]);
    assert_eq!(code(&clean), Some(0), "{}", text(&clean));
    put_unknown_key(&store);
    for arguments in [&["check", path][..], &["check", "--repair", "--dry-run", path]] {
        let found = sumfs(arguments);
        assert_eq!(code(&found), Some(4), "{}", text(&found));
        assert!(text(&found).contains("7701"), "{}", text(&found));
    }
    let planned = sumfs(&["check", "--repair", "--dry-run", "--json", path]);
    let planned: serde_json::Value = serde_json::from_slice(&planned.stdout).unwrap();
    assert_eq!((&planned["is_written"], &planned["exit_code"]), (&false.into(), &4.into()), "{planned}");
    let message = planned["steps"][0]["message"].as_str().unwrap();
    assert!(message.contains("7701"), "{planned}");
    let done = sumfs(&["check", "--repair", path]);
    assert_eq!(code(&done), Some(1), "{}", text(&done));
    assert!(text(&done).contains(&format!("did: {message}")), "{}", text(&done));
    for arguments in [&["check", "--data", path][..], &["check", "--repair", path]] {
        assert_eq!(code(&sumfs(arguments)), Some(0));
    }
    assert_eq!(code(&sumfs(&["check", "--dry-run", path])), Some(16));
}

#[test]
fn a_store_with_two_copies_and_one_device_names_the_other() {
    let place = tempfile::Builder::new().prefix("sumfs-test-").tempdir().unwrap();
    let (store, mountpoint) = (place.path().join("store"), place.path().join("mnt"));
    let devices = ["one", "two"].map(|name| place.path().join(name));
    fs::create_dir(&mountpoint).unwrap();
    devices.iter().for_each(|device| fs::File::create(device).unwrap().set_len(64 << 20).unwrap());
    let [one, two] = [&devices[0], &devices[1]].map(|device| device.to_str().unwrap());
    let path = store.to_str().unwrap();
    let made = sumfs(&["mkfs", "--data", "dup", "--device", one, "--device", two, path]);
    assert_eq!(code(&made), Some(0), "{}", text(&made));
    let whole = fs::read(&devices[1]).unwrap();
    for is_empty in [false, true] {
        fs::remove_file(&devices[1]).unwrap();
        if is_empty {
            fs::write(&devices[1], "").unwrap();
        }
        let refused = sumfs(&["mount", path, mountpoint.to_str().unwrap()]);
        let said = text(&refused);
        assert_eq!(code(&refused), Some(32), "{said}");
        assert!(said.contains(two) && said.contains("device 1") && said.contains("back"), "{said}");
        fs::write(&devices[1], &whole).unwrap();
    }
    let whole = sumfs(&["check", path]);
    assert_eq!(code(&whole), Some(0), "{}", text(&whole));
}
