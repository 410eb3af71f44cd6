//! Tests of mkfs.

use super::*;
use crate::store::OpenOptions;

const SIZE: u64 = 20 << 20;

fn options() -> CreateOptions {
    CreateOptions { size: Some(SIZE), label: Some("files".to_owned()), ..CreateOptions::default() }
}

fn create(path: &Path, options: CreateOptions) -> Result<Superblock> {
    create_waiting(path, &options, Duration::ZERO)
}

fn refusal(path: &Path, options: CreateOptions) -> String {
    match create(path, options) {
        Err(Error::Usage(text)) => text,
        other => panic!("no refusal: {other:?}"),
    }
}

fn names(path: &Path) -> Vec<String> {
    let mut names = list(path).unwrap();
    names.sort();
    names
}

fn put(path: &Path, offset: u64, bytes: &[u8], len: u64) {
    let file = std::fs::File::options().write(true).create(true).truncate(false).open(path).unwrap();
    file.set_len(len).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, offset).unwrap();
}

#[test]
fn a_store_in_a_new_directory_opens() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let made = create(&path, options()).unwrap();
    assert_eq!(names(&path), ["device.0", "index", "journal", "lock", "superblock"]);
    let store = StoreDirectory::open(&path, false, None).unwrap();
    assert_eq!(*store.superblock(), made);
    assert_eq!((made.label.as_str(), made.journal_bytes), ("files", JOURNAL_BYTES_MIN));
    assert_eq!(store.disks().devices[0].len().unwrap(), SIZE);
    assert_eq!(store.disks().journal.len().unwrap(), JOURNAL_BYTES_MIN);
    assert_eq!(StoreDirectory::read_uuid(&path).unwrap(), store.uuid());
}

#[test]
fn an_empty_directory_and_the_root_of_a_new_file_system_are_fine() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join(LOST_AND_FOUND)).unwrap();
    create(directory.path(), options()).unwrap();
}

#[test]
fn sizes() {
    assert_eq!(default_journal_bytes(10 << 30), 128 << 20);
    assert_eq!(default_journal_bytes(1 << 30), 32 << 20);
    assert_eq!(default_journal_bytes((256 << 20) + 4096 * 33), (8 << 20) + 8192);
    assert_eq!(default_journal_bytes(64 << 20), JOURNAL_BYTES_MIN);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let text = refusal(&path, CreateOptions { size: Some((16 << 20) - 1), ..options() });
    assert!(text.contains("at least 16 MiB"), "{text}");
    assert!(!path.exists());
}

#[test]
fn a_store_is_overwritten_only_by_force_and_never_while_open() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let first = create(path, options()).unwrap();
    assert!(refusal(path, options()).contains("--force"));
    let force = CreateOptions { force: true, ..options() };
    let open = StoreDirectory::open(path, false, None).unwrap();
    assert!(refusal(path, force.clone()).contains("in use"));
    assert_eq!(open.superblock().uuid, first.uuid);
    drop(open);
    let second = create(path, force).unwrap();
    assert_ne!(first.uuid, second.uuid);
    assert_eq!(names(path), ["device.0", "index", "journal", "lock", "superblock"]);
    StoreDirectory::open(path, false, None).unwrap();
}

#[test]
fn other_contents_are_always_refused_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("thesis.tex"), "x").unwrap();
    let text = refusal(directory.path(), CreateOptions { force: true, ..options() });
    assert!(text.contains("thesis.tex") && text.contains("empty directory"), "{text}");
    assert_eq!(names(directory.path()), ["thesis.tex"]);
    let text = refusal(&directory.path().join("thesis.tex"), options());
    assert!(text.contains("not a directory"), "{text}");
    assert!(refusal(&directory.path().join("no/store"), options()).contains("does not exist"));
}

#[test]
fn what_a_broken_off_mkfs_left_needs_force() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("superblock.new"), "x").unwrap();
    assert!(refusal(directory.path(), options()).contains("broken off"));
    assert_eq!(names(directory.path()), ["superblock.new"]);
    create(directory.path(), CreateOptions { force: true, ..options() }).unwrap();
}

#[test]
fn devices_and_journal_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    put(&at("old"), 0, &[], 33 << 20);
    let elsewhere = CreateOptions { devices: vec![at("old"), at("new")], journal: Some(at("j")), ..options() };
    let made = create(&at("store"), elsewhere).unwrap();
    assert_eq!(names(&at("store")), ["index", "lock", "superblock"]);
    let lens: Vec<u64> = made.devices.iter().map(|device| device.len).collect();
    assert_eq!(lens, [SIZE, SIZE]);
    let real = at("").canonicalize().unwrap();
    assert_eq!(made.journal_path.as_deref(), real.join("j").to_str());
    assert_eq!(made.journal_bytes, default_journal_bytes(2 * SIZE));
    let store = StoreDirectory::open(&at("store"), false, None).unwrap();
    assert_eq!(store.disks().devices.len(), 2);
    let text = refusal(&at("other"), CreateOptions { devices: vec![at("new")], force: true, ..options() });
    assert!(text.contains("in use"), "{text}");
    drop(store);
    let text = refusal(&at("other"), CreateOptions { devices: vec![at("new")], ..options() });
    assert!(text.contains("another sumfs store"), "{text}");
    assert!(!at("other").exists());
}

#[test]
fn devices_that_cannot_be_are_refused_and_nothing_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let with = |devices: &[&str]| CreateOptions { devices: devices.iter().map(|name| at(name)).collect(), ..options() };
    put(&at("ext4"), 1080, b"\x53\xef", SIZE);
    put(&at("data"), 5000, b"data", SIZE);
    put(&at("small"), 0, &[], 1 << 20);
    std::fs::create_dir(at("directory")).unwrap();
    let before = names(directory.path());
    for (devices, word) in [
        (&["ext4"][..], "ext4 file system; to overwrite it use --force"),
        (&["data"], "holds data"),
        (&["small"], "at least 16 MiB"),
        (&["new", "new"], "named twice"),
        (&["store/device.0"], "inside the store"),
        (&["directory"], "neither a file nor a block device"),
        (&["no/device"], "does not exist"),
        (&["new", "ext4"], "--force"),
    ] {
        let text = match create(&at("store"), with(devices)) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{devices:?} taken"),
        };
        assert!(text.contains(word), "{devices:?}: {text}");
        assert_eq!(names(directory.path()), before, "{devices:?}");
    }
    let text = refusal(&at("store"), CreateOptions { size: None, ..with(&["new"]) });
    assert!(text.contains("give --size"), "{text}");
    create(&at("store"), CreateOptions { force: true, ..with(&["ext4", "data"]) }).unwrap();
    let disk = FileDisk::open(&at("ext4"), OpenMode::ReadOnly, false).unwrap();
    let mut magic = [1; 2];
    disk.read_at(1080, &mut magic).unwrap();
    assert_eq!(magic, [0; 2], "the old signature is still there");
}

#[test]
fn a_device_longer_than_recorded_is_used_as_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    create(&at("store"), CreateOptions { devices: vec![at("d")], ..options() }).unwrap();
    std::fs::File::options().write(true).open(at("d")).unwrap().set_len(SIZE * 2).unwrap();
    let options = OpenOptions { direct: false, ..OpenOptions::default() };
    let store = StoreDirectory::open_with(&at("store"), options).unwrap();
    assert_eq!(store.disks().devices[0].len().unwrap(), SIZE);
}
