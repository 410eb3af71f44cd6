//! overlayfs with upper and work directories on the mount. The kernel takes a FUSE file system for one that others may change behind
//! its back, and as an upper layer only if renames can leave whiteouts and extended attributes can be set (C62).

use crate::mount::{Mount, run};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A mounted overlay; unmounted when dropped, for the mount below must not be busy.
struct Overlay {
    merged: PathBuf,
}

impl Overlay {
    /// Over `lower` of the host, with upper and work below `root`.
    fn mount(lower: &Path, root: &Path, merged: PathBuf) -> Overlay {
        for directory in [&root.join("upper"), &root.join("work"), &merged] {
            fs::create_dir_all(directory).unwrap();
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.display(),
            root.join("upper").display(),
            root.join("work").display()
        );
        run("mount", &["-t", "overlay", "overlay", "-o", &options, merged.to_str().unwrap()]).expect_success();
        Overlay { merged }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.merged.join(name)).unwrap()
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let unmounted = rustix::mount::unmount(&self.merged, rustix::mount::UnmountFlags::empty());
        if !std::thread::panicking() {
            unmounted.unwrap();
        }
    }
}

fn in_mode(options: &str) {
    let mut mount = Mount::new(options);
    let lower = mount.beside("lower");
    fs::create_dir_all(lower.join("directory/sub")).unwrap();
    for name in ["kept", "changed", "removed", "moved", "directory/inner", "directory/sub/deep"] {
        fs::write(lower.join(name), format!("lower {name}")).unwrap();
    }
    let overlay = Overlay::mount(&lower, &mount.path(), mount.beside("merged"));
    let at = |name: &str| overlay.merged.join(name);
    fs::write(at("changed"), "upper").unwrap();
    fs::write(at("new"), "new").unwrap();
    fs::remove_file(at("removed")).unwrap();
    fs::rename(at("moved"), at("directory/moved")).unwrap();
    fs::remove_dir_all(at("directory/sub")).unwrap();
    fs::create_dir(at("directory/sub")).unwrap();
    fs::rename(at("new"), at("newer")).unwrap();
    drop(overlay);
    mount.remount();

    for name in ["removed", "moved"] {
        let metadata = fs::symlink_metadata(mount.path().join("upper").join(name)).unwrap();
        assert!(metadata.file_type().is_char_device() && metadata.rdev() == 0, "{name}: {metadata:?}");
    }
    let overlay = Overlay::mount(&lower, &mount.path(), mount.beside("merged"));
    let expected = [
        ("kept", "lower kept"),
        ("changed", "upper"),
        ("newer", "new"),
        ("directory/moved", "lower moved"),
        ("directory/inner", "lower directory/inner"),
    ];
    for (name, content) in expected {
        assert_eq!(overlay.read(name), content, "{name}");
    }
    for name in ["removed", "moved", "new", "directory/sub/deep"] {
        assert!(!overlay.merged.join(name).exists(), "{name} is there again");
    }
    assert_eq!(fs::read_dir(overlay.merged.join("directory/sub")).unwrap().count(), 0, "an opaque directory");
}

#[test]
fn writeback_cache() {
    in_mode("cache=writeback");
}

#[test]
fn no_cache() {
    in_mode("cache=none");
}
