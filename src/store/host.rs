//! What the host says about a path: what is mounted, what lies on a sumfs (directly or through loop devices), what is in use.
//!
//! A store on a sumfs mount would wait for itself under memory pressure, and with its own mount for ever. Everything here is
//! read from /proc and /sys and never from the mounts themselves, since a mount whose daemon is gone answers nobody.

use crate::sys::unescape;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The type under which sumfs mounts appear.
const SUMFS_TYPE: &str = "fuse.sumfs";
/// Devices upon files upon devices: more levels than anybody builds.
const LEVELS_MAX: u32 = 16;
/// Magic numbers of statfs(2): btrfs, bcachefs, ZFS.
const COPY_ON_WRITE_HOSTS: [(u64, &str); 3] = [(0x9123_683e, "btrfs"), (0xca45_1a4e, "bcachefs"), (0x2fc1_2fc1, "ZFS")];

/// Magic numbers of file systems over a network or in user space: NFS, SMB (twice), CephFS, AFS, 9P, FUSE.
const DISTANT_HOSTS: [(u64, &str); 7] = [
    (0x6969, "NFS"),
    (0xff53_4d42, "SMB"),
    (0xfe53_4d42, "SMB"),
    (0x00c3_6400, "CephFS"),
    (0x5346_414f, "AFS"),
    (0x0102_1997, "9P"),
    (0x6573_5546, "FUSE"),
];

/// Major and minor number.
type DeviceNumber = (u32, u32);

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    device: DeviceNumber,
    mountpoint: PathBuf,
    file_system_type: String,
    source: PathBuf,
}

/// A look at the host's mounts.
#[derive(Debug)]
pub(super) struct Host {
    mounts: Vec<Mount>,
    sysfs: PathBuf,
}

impl Host {
    /// The host now. What cannot be read counts as absent.
    pub(super) fn look() -> Host {
        let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        Host::new(&text, PathBuf::from("/sys"))
    }

    fn new(mountinfo: &[u8], sysfs: PathBuf) -> Host {
        let mounts = mountinfo.split(|byte| *byte == b'\n').filter_map(parse_mount).collect();
        Host { mounts, sysfs }
    }

    /// Where the store in the directory `store` (canonical) is mounted.
    pub(super) fn mountpoint_of_store(&self, store: &Path) -> Option<&Path> {
        let found = self.mounts.iter().rfind(|mount| mount.file_system_type == SUMFS_TYPE && mount.source == store)?;
        Some(&found.mountpoint)
    }

    /// The store that is mounted at exactly `path`.
    pub(super) fn store_mounted_at(&self, path: &Path) -> Option<&Path> {
        let found = self.mounts.iter().rfind(|mount| mount.mountpoint == path)?;
        Some(found.source.as_path()).filter(|_| found.file_system_type == SUMFS_TYPE)
    }

    /// Where the block device at `path` is mounted.
    pub(super) fn mountpoint_of_device(&self, path: &Path) -> Option<&Path> {
        let device = block_device_number(path)?;
        self.mounts.iter().rfind(|mount| mount.device == device).map(|mount| mount.mountpoint.as_path())
    }

    /// Is `path` (canonical) in a file system that the system makes (/dev)?
    pub(super) fn is_in_devtmpfs(&self, path: &Path) -> bool {
        self.mount_holding(path).is_some_and(|mount| mount.file_system_type == "devtmpfs")
    }

    /// The mount point of the sumfs that the file, directory or block device at `path` (canonical) lies on, if it does.
    pub(super) fn sumfs_below(&self, path: &Path) -> Option<&Path> {
        self.sumfs_below_path(path, LEVELS_MAX)
    }

    fn sumfs_below_path(&self, path: &Path, levels: u32) -> Option<&Path> {
        let levels = levels.checked_sub(1)?;
        let mount = self.mount_holding(path)?;
        if mount.file_system_type == SUMFS_TYPE {
            return Some(&mount.mountpoint);
        }
        if let Some(device) = block_device_number(path) {
            return self.sumfs_below_device(device, levels);
        }
        // Some file systems (btrfs) have no device number of their own; their source is a device all the same.
        let device = if mount.device.0 == 0 { block_device_number(&mount.source)? } else { mount.device };
        self.sumfs_below_device(device, levels)
    }

    fn sumfs_below_device(&self, (major, minor): DeviceNumber, levels: u32) -> Option<&Path> {
        let levels = levels.checked_sub(1)?;
        let directory = self.sysfs.join(format!("dev/block/{major}:{minor}")).canonicalize().ok()?;
        if let Some(file) = backing_file(&directory) {
            return self.sumfs_below_path(&file, levels);
        }
        // A partition lies in its disk; device mapper and RAID name what they are made of.
        let whole = directory.join("partition").exists().then(|| directory.parent().map(Path::to_owned)).flatten();
        let parts = std::fs::read_dir(directory.join("slaves")).into_iter().flatten().flatten().map(|entry| entry.path());
        whole.into_iter().chain(parts).find_map(|below| self.sumfs_below_device(device_number_in(&below)?, levels))
    }

    /// The loop device that uses the file at `path` (canonical).
    pub(super) fn loop_device_of(&self, path: &Path) -> Option<PathBuf> {
        let devices = std::fs::read_dir(self.sysfs.join("block")).ok()?;
        let found = devices.flatten().find(|entry| backing_file(&entry.path()).as_deref() == Some(path))?;
        Some(Path::new("/dev").join(found.file_name()))
    }

    /// The last of the mounts with the longest mount point above `path`.
    fn mount_holding(&self, path: &Path) -> Option<&Mount> {
        let above = self.mounts.iter().filter(|mount| path.starts_with(&mount.mountpoint));
        above.max_by_key(|mount| mount.mountpoint.components().count())
    }
}

/// The name of the copy-on-write file system that holds `path`, if it is one: space set aside there is not promised.
pub(super) fn copy_on_write_host(path: &Path) -> Option<&'static str> {
    host_among(&COPY_ON_WRITE_HOSTS, magic_of(path)?)
}

/// The name of the file system that holds `path`, if an index of sled is not safe there.
pub(super) fn unsafe_for_sled(path: &Path) -> Option<&'static str> {
    let magic = magic_of(path)?;
    host_among(&COPY_ON_WRITE_HOSTS, magic).or_else(|| host_among(&DISTANT_HOSTS, magic))
}

fn magic_of(path: &Path) -> Option<u64> {
    Some(rustix::fs::statfs(path).ok()?.f_type as u64 & 0xffff_ffff)
}

fn host_among(hosts: &[(u64, &'static str)], magic: u64) -> Option<&'static str> {
    hosts.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}

fn block_device_number(path: &Path) -> Option<DeviceNumber> {
    let status = std::fs::metadata(path).ok().filter(|status| status.file_type().is_block_device())?;
    Some((rustix::fs::major(status.rdev()), rustix::fs::minor(status.rdev())))
}

fn device_number_in(directory: &Path) -> Option<DeviceNumber> {
    parse_device_number(std::fs::read(directory.join("dev")).ok()?.trim_ascii_end())
}

fn parse_device_number(text: &[u8]) -> Option<DeviceNumber> {
    let (major, minor) = std::str::from_utf8(text).ok()?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn backing_file(directory: &Path) -> Option<PathBuf> {
    let mut text = std::fs::read(directory.join("loop/backing_file")).ok()?;
    while text.last() == Some(&b'\n') {
        text.pop();
    }
    Some(PathBuf::from(OsString::from_vec(text)))
}

/// `36 35 98:0 /root /mountpoint options optional... - type source options` (proc_pid_mountinfo(5)).
fn parse_mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = parse_device_number(fields.nth(2)?)?;
    let mountpoint = PathBuf::from(unescape(fields.nth(1)?));
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let file_system_type = String::from_utf8_lossy(rest.next()?).into_owned();
    Some(Mount { device, mountpoint, file_system_type, source: PathBuf::from(unescape(rest.next()?)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = b"20 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
        21 20 0:5 / /dev rw - devtmpfs devtmpfs rw\n\
        30 20 0:52 / /mnt/my\\040files rw - fuse.sumfs /srv/a\\134store rw\n\
        31 20 7:3 / /mnt/loop rw shared:2 master:1 - ext4 /dev/loop3 rw\n\
        32 20 7:4 / /mnt/fine rw - ext4 /dev/loop4 rw\n\
        33 20 252:0 / /mnt/mapped rw - xfs /dev/dm-0 rw\n\
        34 20 259:1 / /mnt/partition rw - xfs /dev/loop3p1 rw\n\
        35 30 0:60 / /mnt/my\\040files/over rw - tmpfs tmpfs rw\nnonsense\n";

    fn host() -> (tempfile::TempDir, Host) {
        let sysfs = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = sysfs.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("block/loop3/loop/backing_file", "/mnt/my files/image\n");
        put("block/loop3/dev", "7:3\n");
        put("block/loop3/loop3p1/partition", "1\n");
        put("block/loop4/loop/backing_file", "/srv/image\n");
        put("block/dm-0/slaves/loop3/dev", "7:3\n");
        std::fs::create_dir_all(sysfs.path().join("dev/block")).unwrap();
        for (number, target) in
            [("7:3", "loop3"), ("7:4", "loop4"), ("252:0", "dm-0"), ("259:1", "loop3/loop3p1"), ("8:1", "none")]
        {
            let link = sysfs.path().join("dev/block").join(number);
            std::os::unix::fs::symlink(format!("../../block/{target}"), link).unwrap();
        }
        let host = Host::new(MOUNTS, sysfs.path().to_owned());
        (sysfs, host)
    }

    #[test]
    fn a_path_on_a_sumfs_is_found_through_loops_mappers_and_partitions() {
        let (_sysfs, host) = host();
        let sumfs = Some(Path::new("/mnt/my files"));
        for path in ["/mnt/my files", "/mnt/my files/deep/store", "/mnt/loop/store", "/mnt/mapped/x", "/mnt/partition"] {
            assert_eq!(host.sumfs_below(Path::new(path)), sumfs, "{path}");
        }
        for path in ["/", "/srv/store", "/mnt/fine/store", "/mnt/my files2", "/mnt/my files/over/store", "/dev/x"] {
            assert_eq!(host.sumfs_below(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn stores_mounts_and_loops_are_found_by_path() {
        let (_sysfs, host) = host();
        assert_eq!(host.mountpoint_of_store(Path::new(r"/srv/a\store")), Some(Path::new("/mnt/my files")));
        assert_eq!(host.mountpoint_of_store(Path::new("/srv")), None);
        assert_eq!(host.store_mounted_at(Path::new("/mnt/my files")), Some(Path::new(r"/srv/a\store")));
        assert_eq!(host.store_mounted_at(Path::new("/mnt/loop")), None);
        assert_eq!(host.loop_device_of(Path::new("/srv/image")), Some(PathBuf::from("/dev/loop4")));
        assert_eq!(host.loop_device_of(Path::new("/srv/other")), None);
        assert!(host.is_in_devtmpfs(Path::new("/dev/sdz")) && !host.is_in_devtmpfs(Path::new("/srv")));
    }

    #[test]
    fn a_ring_of_devices_ends() {
        let (sysfs, _) = host();
        std::fs::write(sysfs.path().join("block/loop4/loop/backing_file"), "/mnt/fine/image\n").unwrap();
        let host = Host::new(MOUNTS, sysfs.path().to_owned());
        assert_eq!(host.sumfs_below(Path::new("/mnt/fine/store")), None);
    }

    #[test]
    fn the_real_host_can_be_looked_at() {
        assert!(Host::look().mount_holding(Path::new("/")).is_some());
    }
}
