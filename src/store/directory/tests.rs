//! Tests of opening a store.

use super::*;
use crate::store::{CreateOptions, DataProfile};
use std::os::unix::fs::FileExt;

const SIZE: u64 = 20 << 20;

fn store() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    StoreDirectory::create(&path, CreateOptions { size: Some(SIZE), ..CreateOptions::default() }).unwrap();
    (directory, path)
}

fn error(path: &Path) -> String {
    StoreDirectory::open(path, false, None).expect_err("it opened").to_string()
}

fn file(path: &Path) -> std::fs::File {
    std::fs::File::options().read(true).write(true).open(path).unwrap()
}

#[test]
fn what_is_no_store_is_refused_with_the_way_out() {
    let directory = tempfile::tempdir().unwrap();
    assert!(error(directory.path()).contains("no sumfs store; make one with: sumfs mkfs"));
    assert!(error(&directory.path().join("none")).contains("does not exist; make a store there with"));
    std::fs::write(directory.path().join("file"), "").unwrap();
    assert!(error(&directory.path().join("file")).contains("not a directory"));
}

#[test]
fn only_one_has_the_store_also_for_reading() {
    let (_directory, path) = store();
    let first = StoreDirectory::open(&path, true, None).unwrap();
    assert!(error(&path).contains("in use by another process"));
    assert!(StoreDirectory::open(&path, true, None).is_err());
    assert_eq!(StoreDirectory::read_uuid(&path).unwrap(), first.uuid());
    drop(first);
    StoreDirectory::open(&path, false, None).unwrap();
}

#[test]
fn waits_for_the_one_before() {
    let (_directory, path) = store();
    let first = StoreDirectory::open(&path, false, None).unwrap();
    let (begun, waiting) = std::sync::mpsc::channel();
    let second = std::thread::spawn({
        let path = path.clone();
        move || {
            begun.send(()).unwrap();
            StoreDirectory::open(&path, false, Some(Duration::from_secs(600))).map(|store| store.uuid())
        }
    });
    waiting.recv().unwrap();
    let uuid = first.uuid();
    drop(first);
    assert_eq!(second.join().unwrap().unwrap(), uuid);
}

#[test]
fn missing_short_and_foreign_devices_are_named() {
    let (directory, path) = store();
    let device = path.join("device.0");
    let kept = directory.path().join("kept");
    std::fs::rename(&device, &kept).unwrap();
    let text = error(&path);
    assert!(text.contains("device 0") && text.contains("missing") && text.contains("device.0"), "{text}");

    std::fs::copy(&kept, &device).unwrap();
    file(&device).set_len(SIZE - 4096).unwrap();
    let text = error(&path);
    assert!(text.contains("device.0") && text.contains("should have 20 MiB"), "{text}");

    let (_other_directory, other) = store();
    std::fs::copy(other.join("device.0"), &device).unwrap();
    let text = error(&path);
    assert!(text.contains("is not a device of the store"), "{text}");

    file(&device).write_all_at(&[0; 4096], 0).unwrap();
    file(&device).write_all_at(&[0; 4096], SIZE - 4096).unwrap();
    assert!(error(&path).contains("no sumfs label"));
    let tolerant = OpenOptions { allow_damage: true, ..OpenOptions::default() };
    StoreDirectory::open_with(&path, tolerant).unwrap();
}

#[test]
fn swapped_devices_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let options = CreateOptions { size: Some(SIZE), devices: vec![at("a"), at("b")], ..CreateOptions::default() };
    StoreDirectory::create(&at("store"), options).unwrap();
    std::fs::rename(at("a"), at("c")).unwrap();
    std::fs::rename(at("b"), at("a")).unwrap();
    std::fs::rename(at("c"), at("b")).unwrap();
    let text = error(&at("store"));
    assert!(text.contains("is device 1") && text.contains("device 0"), "{text}");
}

#[test]
fn a_damaged_label_is_healed_but_not_by_reading() {
    let (_directory, path) = store();
    let device = file(&path.join("device.0"));
    let mut label = vec![0; 4096];
    device.read_exact_at(&mut label, 0).unwrap();
    device.write_all_at(&[9], 40).unwrap();
    let read = || {
        let mut found = vec![0; 4096];
        device.read_exact_at(&mut found, 0).unwrap();
        found
    };
    drop(StoreDirectory::open(&path, true, None).unwrap());
    assert!(read() != label, "opened for reading, and written to");
    drop(StoreDirectory::open(&path, false, None).unwrap());
    assert!(read() == label);
}

#[test]
fn a_short_or_missing_journal_is_an_error_that_names_check() {
    let (_directory, path) = store();
    let journal = path.join("journal");
    file(&journal).set_len(4096).unwrap();
    let text = error(&path);
    assert!(text.contains("journal") && text.contains("4 KiB") && text.contains("sumfs check --repair"), "{text}");
    std::fs::remove_file(&journal).unwrap();
    let text = error(&path);
    assert!(text.contains("does not exist") && text.contains("sumfs check --repair"), "{text}");
    let tolerant = OpenOptions { allow_damage: true, ..OpenOptions::default() };
    let store = StoreDirectory::open_with(&path, tolerant).unwrap();
    assert_eq!(store.disks().journal.len().unwrap(), store.superblock().journal_bytes);
}

#[test]
fn a_missing_or_empty_index_and_lost_superblocks_are_named() {
    let (_directory, path) = store();
    file(&path.join("index")).set_len(0).unwrap();
    assert!(error(&path).contains("index"));
    std::fs::remove_file(path.join("index")).unwrap();
    assert!(error(&path).contains("the index of the store"));
    let superblock = file(&path.join("superblock"));
    superblock.write_all_at(&[1], 100).unwrap();
    superblock.write_all_at(&[1], (64 << 10) + 100).unwrap();
    assert!(error(&path).contains("both copies of the superblock"));
}

#[test]
fn features_that_can_only_be_read_need_a_read_only_mount() {
    let (_directory, path) = store();
    let store = StoreDirectory::open(&path, false, None).unwrap();
    let mut superblock = store.superblock().clone();
    superblock.ro_compat = 4;
    superblock.write(store.disks().superblock.as_ref()).unwrap();
    drop(store);
    assert!(error(&path).contains("-o ro"));
    StoreDirectory::open(&path, true, None).unwrap();
}

#[test]
fn reading_changes_no_byte() {
    let (_directory, path) = store();
    let contents = || -> Vec<Vec<u8>> {
        ["superblock", "index", "journal", "device.0"].iter().map(|name| std::fs::read(path.join(name)).unwrap()).collect()
    };
    let before = contents();
    drop(StoreDirectory::open(&path, true, None).unwrap());
    assert!(contents() == before);
}

#[test]
fn without_a_device_a_redundant_store_says_how_to_go_on_and_opens_when_told_to() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for (data, has_way_out) in [(DataProfile::Raid1, true), (DataProfile::Raid0, false)] {
        let store = at(data.name());
        let devices: Vec<PathBuf> = ["a", "b"].map(|name| at(&format!("{}.{name}", data.name()))).into();
        let gone = devices[1].clone();
        let options = CreateOptions { size: Some(SIZE), devices, data, ..CreateOptions::default() };
        StoreDirectory::create(&store, options).unwrap();
        let degraded = OpenOptions { degraded: true, ..OpenOptions::default() };
        let opened = StoreDirectory::open_with(&store, degraded).unwrap();
        assert!(opened.disks().devices.iter().all(|disk| !disk.is_missing()));
        drop(opened);

        // Somebody else has it: that is not missing.
        let user = FileDisk::open(&gone, OpenMode::ReadWrite, false).unwrap();
        assert!(user.lock_exclusive().unwrap());
        let error_of = |options| StoreDirectory::open_with(&store, options).expect_err("it opened").to_string();
        assert!(error_of(degraded).contains("is in use"));
        drop(user);

        std::fs::rename(&gone, at("kept")).unwrap();
        let text = error(&store);
        assert!(text.contains("device 1") && text.contains(&gone.display().to_string()), "{text}");
        assert_eq!(text.contains("-o degraded") && text.contains("device replace MNT 1"), has_way_out, "{text}");
        let missing = |path: &Path| {
            let opened = StoreDirectory::open_with(path, degraded).unwrap();
            opened.disks().devices.iter().map(|disk| disk.is_missing()).collect::<Vec<bool>>()
        };
        assert_eq!(missing(&store), [false, true]);
        // A foreign one in its place counts as missing, and one that lost its labels.
        std::fs::copy(at(&format!("{}.a", data.name())), &gone).unwrap();
        assert_eq!(missing(&store), [false, true]);
        std::fs::write(&gone, vec![0; SIZE as usize]).unwrap();
        assert_eq!(missing(&store), [false, true]);
        std::fs::rename(at("kept"), &gone).unwrap();
        assert_eq!(missing(&store), [false, false]);
    }
}
