//! Mounts as the rest of a system makes them: lines of fstab through mount(8), remounts by it, and a user without privileges
//! through fusermount3. All in a mount namespace of its own, where /sbin has the helper, so that nothing of the machine is changed.

use crate::mount::{Ran, SUMFS, require_root_and_fuse, run, scratch, sumfs};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

/// A place with a store, where scripts run.
struct Machine {
    directory: TempDir,
}

/// Run first: the helper is where mount(8) looks for it, users may open /dev/fuse, and nothing stays mounted.
const PREPARE: &str = r#"
cd "$1"; SUMFS=$2
mount -t tmpfs -o mode=755 tmpfs over
mkdir over/upper over/work
sbin=$(readlink -f /sbin)
mount -t overlay overlay -o lowerdir="$sbin",upperdir=over/upper,workdir=over/work "$sbin"
ln -sf "$SUMFS" /sbin/mount.fuse.sumfs
mknod over/fuse c 10 229
chmod 666 over/fuse
mount --bind over/fuse /dev/fuse
trap 'while mountpoint -q mnt; do umount mnt || umount -l mnt; done' EXIT
flags() { findmnt -n -o OPTIONS mnt; }
"#;

impl Machine {
    fn new() -> Machine {
        require_root_and_fuse();
        let machine = Machine { directory: scratch() };
        for name in ["mnt", "over"] {
            fs::create_dir(machine.directory.path().join(name)).unwrap();
        }
        sumfs(&["mkfs", &machine.path("store"), "--size", "64M"]).expect_success();
        machine
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// Makes `options` the line of fstab for the store.
    fn fstab(&self, store: &str, options: &str) {
        let line = format!("{} {} fuse.sumfs {options} 0 0\n", self.path(store), self.path("mnt"));
        fs::write(self.path("fstab"), line).unwrap();
    }

    /// Runs a script there; it ends at the first command that fails.
    fn script(&self, script: &str) -> Ran {
        let script = format!("set -e\n{PREPARE}\n{script}");
        run("unshare", &["-m", "sh", "-c", &script, "sh", &self.directory.path().display().to_string(), SUMFS])
    }
}

#[test]
fn lines_of_fstab_are_understood() {
    let machine = Machine::new();
    let system = "noauto,nofail,_netdev,x-systemd.automount,x-systemd.device-timeout=5,x-gvfs-show,comment=mine";
    for (options, expected, absent) in [
        ("defaults", "rw", "noexec"),
        (&*format!("{system},user"), "nosuid,nodev,noexec", "ro,"),
        (&*format!("{system},user,exec,dev,suid"), "rw", "noexec"),
        ("ro,noatime", "ro,noatime", "rw"),
        ("nodiratime,cache=none", "nodiratime", "noatime"),
    ] {
        machine.fstab("store", options);
        let flags = machine.script(&format!("mount -T fstab {}; flags", machine.path("mnt"))).expect_success().stdout;
        assert!(flags.contains(expected) && !flags.contains(absent), "{options} gave {flags}");
        assert!(flags.contains("allow_other"), "root's mounts are for everybody: {flags}");
    }
}

#[test]
fn noauto_waits_and_nofail_forgives_only_what_is_not_there() {
    let machine = Machine::new();
    machine.fstab("store", "noauto");
    machine.script("mount -a -T fstab; ! mountpoint -q mnt").expect_success();
    machine.fstab("store", "nofail");
    machine.script("mount -a -T fstab; mountpoint -q mnt").expect_success();
    machine.fstab("nothing", "nofail");
    let ran = machine.script("mount -a -T fstab; ! mountpoint -q mnt").expect_success();
    assert!(ran.stderr.contains("nothing: does not exist"), "said all the same: {}", ran.stderr);
    machine.fstab("nothing", "defaults");
    machine.script("mount -a -T fstab").expect_failure(32, &["nothing: does not exist", "make it first"]);
    // The daemon of the script above may still be closing, and writes the superblock then; a check waits for it.
    sumfs(&["check", &machine.path("store")]).expect_success();
    // A store that is there and broken is no store that is not there.
    fs::write(machine.directory.path().join("store/superblock"), vec![7; 64 << 10]).unwrap();
    machine.fstab("store", "nofail");
    machine.script("mount -a -T fstab").expect_failure(32, &["superblock"]);
}

#[test]
fn mount_remounts() {
    let machine = Machine::new();
    machine.fstab("store", "defaults");
    let script = r#"
        mount -T fstab "$1/mnt"
        echo before > mnt/file
        mount -o remount,ro mnt
        ! touch mnt/other 2> error
        grep -q 'Read-only' error
        cat mnt/file
        mount -o remount,rw mnt
        touch mnt/other
        mount -T fstab -o remount,noexec,ro "$1/mnt"
        flags"#;
    let shown = machine.script(script).expect_success().stdout;
    assert!(shown.starts_with("before\nro,noexec"), "{shown}");
}

#[test]
fn a_user_without_privileges_mounts_and_is_told_what_is_lost() {
    let machine = Machine::new();
    if run("sh", &["-c", "command -v fusermount3"]).code != 0 {
        panic!("fusermount3 is missing: as root, apt-get install fuse3");
    }
    for name in ["", "mnt"] {
        fs::set_permissions(machine.path(name), fs::Permissions::from_mode(0o777)).unwrap();
    }
    let script = r#"
        mkdir -m 700 over/run
        chown 65534 over/run
        as_user() { XDG_RUNTIME_DIR="$PWD/over/run" setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
        as_user "$SUMFS" mkfs own --size 64M > made
        as_user "$SUMFS" mount own mnt -o log="$PWD/log"
        test "$(grep -c 'read_ahead_kb stays as it is (slower' log)" = 1
        as_user sh -c 'echo mine > mnt/file; cat mnt/file'
        # Root is another user, and it was not allowed in.
        ! cat mnt/file 2> error
        grep -q 'Permission denied' error
        as_user "$SUMFS" info mnt | grep -q "$PWD/own"
        as_user "$SUMFS" umount mnt
        ! mountpoint -q mnt
        as_user "$SUMFS" mount own mnt
        as_user cat mnt/file
        as_user fusermount3 -u mnt"#;
    let ran = machine.script(script).expect_success();
    assert_eq!(ran.stdout, "mine\nmine\n");
}
