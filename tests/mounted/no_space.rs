//! A full store, as public bug reports tell of it (C..: the number of the report's case): names that cannot be made leave nothing half
//! made, mapped files get their error where they can, what was acknowledged and then does not fit is told, and nothing hangs.

use crate::content::{assert_same, pattern};
use crate::mount::{Mount, run, sumfs};
use crate::promise::write_until_full;
use rustix::fs::{FallocateFlags, XattrFlags, fallocate, setxattr};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

const STORE: &str = "48M";

fn sync(path: &Path) {
    let synced = sumfs(&["sync", path.to_str().unwrap()]);
    assert!(synced.code == 0 || synced.stderr.contains("No space"), "{synced:?}");
}

#[track_caller]
fn is_done<T>(result: io::Result<T>) -> bool {
    if let Err(error) = &result {
        assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()), "{error}");
    }
    result.is_ok()
}

fn fill(root: &Path) {
    write_until_full(root);
    sync(root);
}

/// Links, directories, hard links, devices and attributes are made whole or not at all (C26); all goes away again at 100 % (C22).
fn names_are_made_whole_or_not_at_all(options: &str) {
    const COUNT: usize = 500;
    let mut mount = Mount::with_size(STORE, options);
    let root = mount.path();
    let directory = root.join("directory");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("file"), "x").unwrap();
    fill(&root);
    let target = "t".repeat(4000);
    let mut expected = 1;
    for number in 0..COUNT {
        let at = |kind: &str| directory.join(format!("{kind}-{number}"));
        expected += usize::from(is_done(symlink(&target, at("link"))));
        expected += usize::from(is_done(fs::create_dir(at("directory"))));
        expected += usize::from(is_done(fs::hard_link(directory.join("file"), at("hard"))));
        expected += usize::from(is_done(File::create(at("empty"))));
        let name = format!("user.{}", number % 50);
        is_done(setxattr(directory.join("file"), name.as_str(), &[7; 3000], XattrFlags::empty()).map_err(io::Error::from));
    }
    let look = |when: &str| {
        let names: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(names.len(), expected, "{when}");
        for path in &names {
            let metadata = fs::symlink_metadata(path).unwrap();
            if metadata.is_symlink() {
                assert_eq!(fs::read_link(path).unwrap().to_str().unwrap(), target);
            }
        }
        assert!(crate::names::xattrs(&directory.join("file")).values().all(|value| value == &[7; 3000]), "{when}");
    };
    look("before the remount");
    mount.remount();
    look("after the remount");
    fs::remove_dir_all(&directory).unwrap();
    sync(&root);
    assert!(mount.info()["read_only_reason"].is_null());
}

/// Preallocation on a full store is refused; a store into a hole of a mapped file ends its process or is kept, and nothing hangs or
/// is damaged elsewhere (C23).
fn mapped_files(options: &str) {
    let mut mount = Mount::with_size(STORE, options);
    let root = mount.path();
    let (hole, promised) = (root.join("hole"), root.join("promised"));
    File::create(&hole).unwrap().set_len(8 << 20).unwrap();
    fallocate(File::create(&promised).unwrap(), FallocateFlags::empty(), 0, 2 << 20).unwrap();
    fill(&root);
    let refused = fallocate(File::options().write(true).open(&hole).unwrap(), FallocateFlags::empty(), 0, 8 << 20);
    assert_eq!(refused, Err(Errno::NOSPC));
    let store = "import mmap, sys
with open(sys.argv[1], 'r+b') as file:
    mapped = mmap.mmap(file.fileno(), 0)
    for at in range(0, len(mapped), 4096):
        mapped[at:at + 4] = b'page'
    try:
        mapped.flush()
    except OSError as error:
        sys.exit(str(error))
    print('stored')";
    let into = |path: &Path| run("python3", &["-c", store, path.to_str().unwrap()]);
    into(&promised).expect_success();
    let ran = into(&hole);
    // SIGBUS ends it, or msync tells, or (without a word until fsync) what fitted is there.
    println!("{options}: {ran:?}");
    sync(&root);
    assert!(mount.info()["read_only_reason"].is_null());
    mount.remount();
    let pages = |path: &Path| {
        let content = fs::read(path).unwrap();
        content.chunks(4096).filter(|page| page.starts_with(b"page") && page[4..].iter().all(|byte| *byte == 0)).count()
    };
    assert_eq!(pages(&promised), 512, "what was promised");
    let content = fs::read(&hole).unwrap();
    let zeros = content.chunks(4096).filter(|page| page.iter().all(|byte| *byte == 0)).count();
    assert_eq!(pages(&hole) + zeros, 2048, "pages are whole or zeros");
    let filler = fs::read(root.join("filler-2")).unwrap();
    filler.chunks(64 << 10).for_each(|piece| assert_same(piece, &pattern(64 << 10, 2)[..piece.len()], "elsewhere"));
}

/// What write took and writeback has no space for is told at fsync (C25), or by the write itself; afterwards everything goes on.
fn told_at_the_latest_by_fsync(options: &str) {
    let mut mount = Mount::with_size(STORE, options);
    let root = mount.path();
    let file = File::create(root.join("large")).unwrap();
    let content = pattern(60 << 20, 4);
    let told = file.write_all_at(&content, 0).and_then(|()| file.sync_all());
    assert!(!is_done(told), "60 MiB do not fit 48");
    drop(file);
    fs::remove_file(root.join("large")).unwrap();
    sync(&root);
    assert!(mount.info()["read_only_reason"].is_null());
    mount.umount();
    mount.check().expect_success();
    mount.mount();
    let file = File::create(root.join("again")).unwrap();
    file.write_all_at(&content[..20 << 20], 0).unwrap();
    file.sync_all().unwrap();
    assert_same(&fs::read(root.join("again")).unwrap(), &content[..20 << 20], "again");
}

/// What statfs says is in the same unit everywhere, and holds together (C91; that it can be written: `promise`).
fn statfs_holds_together(options: &str) {
    let mount = Mount::with_size(STORE, options);
    let look = || {
        let status = rustix::fs::statvfs(mount.path()).unwrap();
        assert_eq!((status.f_bsize, status.f_frsize, status.f_namemax), (4096, 4096, 255));
        let (available, free) = (status.f_bavail, status.f_bfree);
        assert!(0 < available && available <= free && free <= status.f_blocks, "{available} {free} {}", status.f_blocks);
        assert!(0 < status.f_ffree && status.f_ffree <= status.f_files, "{} {}", status.f_ffree, status.f_files);
        status
    };
    let before = look();
    fs::write(mount.path().join("file"), pattern(10 << 20, 5)).unwrap();
    sync(&mount.path());
    let after = look();
    assert_eq!(before.f_blocks, after.f_blocks);
    assert_eq!(before.f_bfree - after.f_bfree, 2560);
}

macro_rules! in_both_cache_modes {
    ($($test:ident),* $(,)?) => {
        mod writeback {
            $(#[test]
            fn $test() {
                super::$test("cache=writeback");
            })*
        }
        mod none {
            $(#[test]
            fn $test() {
                super::$test("cache=none");
            })*
        }
    };
}

in_both_cache_modes![names_are_made_whole_or_not_at_all, mapped_files, told_at_the_latest_by_fsync, statfs_holds_together];
