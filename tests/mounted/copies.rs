//! Copies on the mount share their data: what cp and copy_file_range(2) make takes no blocks, and stays what it is when the original
//! changes.

use crate::content::{assert_same, bytes_taken, pattern};
use crate::mount::{Mount, run};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

const BYTES: usize = 64 << 20;

fn free_blocks(mount: &Mount) -> u64 {
    crate::mount::sumfs(&["sync", mount.path().to_str().unwrap()]).expect_success();
    rustix::fs::statvfs(mount.path()).unwrap().f_bfree
}

fn in_mode(options: &str) {
    let mut mount = Mount::new(options);
    let (original, copy) = (mount.path().join("original"), mount.path().join("copy"));
    let bytes = pattern(BYTES, 1);
    fs::write(&original, &bytes).unwrap();
    let before = free_blocks(&mount);
    run("cp", &["--reflink=auto", "--sparse=never", original.to_str().unwrap(), copy.to_str().unwrap()]).expect_success();
    assert_eq!(before, free_blocks(&mount), "cp took blocks");
    assert_eq!(bytes_taken(&File::open(&copy).unwrap()), BYTES as u64);
    mount.remount();
    assert_same(&fs::read(&copy).unwrap(), &bytes, "the copy");

    // A copy over what the kernel has in its cache, dirty and clean, with an end inside a block.
    let file = File::options().read(true).write(true).open(&original).unwrap();
    let changed = pattern(1 << 20, 2);
    file.write_all_at(&changed, 4096).unwrap();
    let part = File::options().read(true).write(true).create_new(true).open(mount.path().join("part")).unwrap();
    part.write_all_at(&[7; 100_000], 0).unwrap();
    let (mut from, mut to, mut left) = (4096, 8192, 1_000_001);
    while left > 0 {
        let copied = rustix::fs::copy_file_range(&file, Some(&mut from), &part, Some(&mut to), left).unwrap();
        assert!(copied > 0);
        left -= copied;
    }
    let expected = [&[7; 8192][..], &changed[..1_000_001]].concat();
    assert_same(&fs::read(mount.path().join("part")).unwrap(), &expected, "a part");
    drop((file, part));
    mount.remount();
    assert_same(&fs::read(mount.path().join("part")).unwrap(), &expected, "a part after the remount");
    fs::remove_file(&original).unwrap();
    free_blocks(&mount);
    assert_same(&fs::read(&copy).unwrap(), &bytes, "the copy when the original is gone");
}

#[test]
fn writeback_cache() {
    in_mode("cache=writeback");
}

#[test]
fn no_cache() {
    in_mode("cache=none");
}
