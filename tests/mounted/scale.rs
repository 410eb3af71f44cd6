//! Many of each on a mount: names in a directory, extents of a file, open files. Content and counts, before and after a remount. The
//! large sizes are those of the benchmark `scale`.

use crate::mount::Mount;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const BLOCK: u64 = 4096;

fn listed(path: &Path) -> Vec<String> {
    std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Every name once.
fn assert_lists(path: &Path, expected: impl Iterator<Item = u64>) {
    let names = listed(path);
    let expected: BTreeSet<String> = expected.map(|number| format!("name{number}")).collect();
    assert_eq!(names.len(), expected.len());
    assert!(names.into_iter().collect::<BTreeSet<_>>() == expected, "other names than were made");
}

#[test]
fn a_directory_of_20_000_names() {
    const NAMES: u64 = 20_000;
    let mut mount = Mount::new("");
    let directory = mount.path().join("d");
    std::fs::create_dir(&directory).unwrap();
    let path = |number: u64| directory.join(format!("name{number}"));
    (0..NAMES).for_each(|number| drop(File::create_new(path(number)).unwrap()));
    assert_lists(&directory, 0..NAMES);
    mount.remount();
    assert_lists(&directory, 0..NAMES);
    // The index has them all; two of three go, in an order of their own, while they are listed.
    let entries = std::fs::read_dir(&directory).unwrap();
    let mut removed = 0;
    for entry in entries {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let number: u64 = name.trim_start_matches("name").parse().unwrap();
        if !number.is_multiple_of(3) {
            std::fs::remove_file(path(number)).unwrap();
            removed += 1;
        }
    }
    assert_eq!(removed, (0..NAMES).filter(|number| number % 3 > 0).count());
    assert_lists(&directory, (0..NAMES).filter(|number| number % 3 == 0));
    mount.remount();
    assert_lists(&directory, (0..NAMES).filter(|number| number % 3 == 0));
}

#[test]
fn a_file_of_5_000_scattered_extents() {
    const EXTENTS: u64 = 5000;
    let mut mount = Mount::new("");
    let path = mount.path().join("sparse");
    // A prime times an odd number of blocks: all of 64 GiB, out of order, each place once.
    let offset = |number: u64| number * 7919 % EXTENTS * 3355 * BLOCK;
    let content = |number: u64| [(number % 251) as u8 + 1; BLOCK as usize];
    let assert_content = |file: &File| {
        let mut block = [0; BLOCK as usize];
        for number in 0..EXTENTS {
            file.read_exact_at(&mut block, offset(number)).unwrap();
            assert!(block == content(number), "block {number}");
            let behind = offset(number) + BLOCK;
            if behind < file.metadata().unwrap().len() {
                file.read_exact_at(&mut block, behind).unwrap();
                assert!(block == [0; BLOCK as usize], "the hole behind block {number}");
            }
        }
    };
    let file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
    (0..EXTENTS).for_each(|number| file.write_all_at(&content(number), offset(number)).unwrap());
    file.sync_all().unwrap();
    assert_content(&file);
    drop(file);
    mount.remount();
    let map = crate::mount::sumfs(&["map".as_ref(), path.as_os_str(), "--json".as_ref()]).expect_success();
    let map: serde_json::Value = serde_json::from_str(&map.stdout).unwrap();
    assert_eq!(map["extents"], EXTENTS);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    assert_content(&file);
    // Half of it goes at once, the rest with the name.
    file.set_len(EXTENTS / 2 * 3355 * BLOCK).unwrap();
    file.sync_all().unwrap();
    let kept = (0..EXTENTS).filter(|number| offset(*number) < EXTENTS / 2 * 3355 * BLOCK).count() as u64;
    assert_eq!(std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()), kept * BLOCK / 512);
    drop(file);
    std::fs::remove_file(&path).unwrap();
    crate::mount::sumfs(&["sync".as_ref(), mount.path().as_os_str()]).expect_success();
    mount.remount();
    assert_eq!(mount.info()["used_bytes"], 0, "blocks of a deleted file");
}

#[test]
fn a_thousand_open_files() {
    const FILES: usize = 1000;
    let mut limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limits.current = limits.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limits).unwrap();
    let mut mount = Mount::new("");
    let root = mount.path();
    let path = |number: usize| root.join(format!("name{number}"));
    let files: Vec<File> =
        (0..FILES).map(|number| File::options().create_new(true).read(true).write(true).open(path(number)).unwrap()).collect();
    let content = |number: usize, round: usize| format!("round {round} of file {number}").into_bytes();
    for round in 0..3 {
        for (number, file) in files.iter().enumerate() {
            file.write_all_at(&content(number, round), round as u64 * 1000).unwrap();
        }
    }
    // Every other one loses its name and stays usable.
    (0..FILES).step_by(2).for_each(|number| std::fs::remove_file(path(number)).unwrap());
    for (number, file) in files.iter().enumerate() {
        let mut found = vec![0; content(number, 1).len()];
        file.read_exact_at(&mut found, 1000).unwrap();
        assert_eq!(found, content(number, 1));
    }
    drop(files);
    mount.remount();
    assert_lists(&mount.path(), (1..FILES as u64).step_by(2));
    for number in (1..FILES).step_by(2) {
        let bytes = std::fs::read(path(number)).unwrap();
        let found = &bytes[2000..];
        assert_eq!(found, content(number, 2));
    }
}
