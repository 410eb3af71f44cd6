//! The `-o` list of mount. Our own options are in [`OPTIONS`], which is also what an error message and the help print; the generic
//! ones that mount(8), fstab and systemd pass along are taken and, where they mean something to a file system, obeyed.

use super::Failure;
use super::metrics::Target;
use crate::fs::{AccessTimes, Options, ReadOrder, WaitInline};
use crate::fuse::session::{CacheMode, Transport};
use crate::store::parse_size;
use crate::sys::MountFlags;
use std::path::PathBuf;

/// Our options and one line about each.
pub const OPTIONS: [(&str, &str); 24] = [
    ("ro | rw", "read-only changes no byte of the store"),
    ("degraded", "mount also without a device that is missing, if all data can be had without it"),
    ("cache=writeback|none", "who holds written data first: the kernel's page cache, or the daemon"),
    ("cache-size=SIZE", "memory for the daemon's caches (256M)"),
    ("commit=SECONDS", "the longest that anything stays uncommitted (5)"),
    ("nowait=on|off", "off: every data operation goes through the worker pool, for comparison (on)"),
    (
        "wait-inline=auto|idle|off",
        "when threads that read requests wait for devices themselves; idle, off: for comparison (auto)",
    ),
    ("csum-inline=SIZE", "checksum up to this much on the thread that has it, above on the checksum pool"),
    ("plug-bytes=SIZE", "with parity: gather direct writes into stripes up to this much; 0: do not, for comparison (8M)"),
    ("plug-us=N", "with parity: the longest that a direct write waits for the rest of a stripe, in microseconds (5000)"),
    (
        "read-order=submitted|reversed",
        "reversed: large reads are verified and answered the wrong way round, for comparison (submitted)",
    ),
    ("noatime | relatime | strictatime", "when reading updates access times (relatime)"),
    ("diratime | nodiratime", "listing updates the access time of a directory (diratime)"),
    ("acl | noacl", "access control lists; who does not own the top directory then asks for one in every path (acl)"),
    ("chattr | nochattr", "files may be made immutable or append-only, which costs a request at every open (nochattr)"),
    ("allow_other | noallow_other", "other users may enter (root: allow_other)"),
    ("transport=auto|uring|device", "how requests come: over io_uring, or out of /dev/fuse; auto: io_uring if possible (auto)"),
    ("threads=N", "threads that read requests out of /dev/fuse"),
    ("log=FILE", "where the daemon's messages go, instead of syslog"),
    ("fsname=NAME", "what the list of mounts shows as the source, instead of the store's path"),
    ("metrics=ADDRESS:PORT|FILE", "give metrics out in the text form of Prometheus"),
    ("suid | nosuid, dev | nodev, exec | noexec, sync", "as for every file system"),
    ("nofail", "it is no failure if the store is not there (for fstab)"),
    ("remount", "with ro, rw, nosuid and so on: change a mount that exists"),
];

/// Options without a value that mount(8) handles itself or that mean nothing here.
const IGNORED: [&str; 17] = [
    "defaults",
    "noauto",
    "auto",
    "user",
    "users",
    "nouser",
    "owner",
    "group",
    "_netdev",
    "async",
    "norelatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "silent",
    "loud",
    "default_permissions",
];

/// Options with a value that are taken and ignored; `x-anything` too. A remount hands back what the list of mounts shows.
const IGNORED_WITH_VALUE: [&str; 8] = ["user", "uhelper", "comment", "subtype", "user_id", "group_id", "max_read", "blksize"];

/// What the `-o` lists say.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// For [`crate::fs::Filesystem::open`].
    pub filesystem: Options,
    /// Who caches writes first.
    pub cache: CacheMode,
    /// May users other than the one who mounted use it? None: root's mounts yes, others no.
    pub allow_other: Option<bool>,
    /// How requests come.
    pub transport: Transport,
    /// Threads that read requests; None: the session's default.
    pub threads: Option<usize>,
    /// The log file.
    pub log: Option<PathBuf>,
    /// The source that the list of mounts shows; None: the store's path.
    pub source_name: Option<String>,
    /// Where metrics go.
    pub metrics: Option<Target>,
    /// Obey set-user-id bits.
    pub suid: bool,
    /// Obey device nodes.
    pub dev: bool,
    /// Allow programs to run.
    pub exec: bool,
    /// Every write is a synchronous one.
    pub synchronous: bool,
    /// Change an existing mount instead.
    pub remount: bool,
    /// It is no failure if the store is not there.
    pub nofail: bool,
    /// Do without devices that are missing.
    pub degraded: bool,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            filesystem: Options::default(),
            cache: CacheMode::Writeback,
            allow_other: None,
            transport: Transport::Auto,
            threads: None,
            log: None,
            source_name: None,
            metrics: None,
            suid: true,
            dev: true,
            exec: true,
            synchronous: false,
            remount: false,
            nofail: false,
            degraded: false,
        }
    }
}

impl MountOptions {
    /// Reads comma-separated lists, later ones winning. `sloppy` (mount -s) ignores what it does not know. A failure names the
    /// option and what would be right.
    pub fn parse(lists: &[String], sloppy: bool) -> Result<MountOptions, Failure> {
        let mut options = MountOptions::default();
        for option in lists.iter().flat_map(|list| list.split(',')).map(str::trim).filter(|option| !option.is_empty()) {
            let known = match option.split_once('=') {
                Some((name, value)) => options.set_value(name, value)?,
                None => options.set_switch(option),
            };
            if !known && !sloppy {
                return Err(unknown(option));
            }
        }
        Ok(options)
    }

    /// The flags for a remount.
    pub fn mount_flags(&self) -> MountFlags {
        let noatime = matches!(self.filesystem.access_times, AccessTimes::Noatime);
        let flags = [
            (self.filesystem.read_only, MountFlags::RDONLY),
            (!self.suid, MountFlags::NOSUID),
            (!self.dev, MountFlags::NODEV),
            (!self.exec, MountFlags::NOEXEC),
            (noatime, MountFlags::NOATIME),
            (self.filesystem.nodiratime, MountFlags::NODIRATIME),
            (self.synchronous, MountFlags::SYNCHRONOUS),
        ];
        flags.into_iter().filter_map(|(wanted, flag)| wanted.then_some(flag)).collect()
    }

    /// False: not an option of ours.
    fn set_switch(&mut self, name: &str) -> bool {
        match name {
            "ro" => self.filesystem.read_only = true,
            "rw" => self.filesystem.read_only = false,
            "noatime" => self.filesystem.access_times = AccessTimes::Noatime,
            "relatime" | "atime" => self.filesystem.access_times = AccessTimes::Relatime,
            "strictatime" => self.filesystem.access_times = AccessTimes::Strictatime,
            "diratime" => self.filesystem.nodiratime = false,
            "nodiratime" => self.filesystem.nodiratime = true,
            "chattr" => self.filesystem.chattr = true,
            "nochattr" => self.filesystem.chattr = false,
            "acl" => self.filesystem.acl = true,
            "noacl" => self.filesystem.acl = false,
            "allow_other" => self.allow_other = Some(true),
            "noallow_other" => self.allow_other = Some(false),
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            "sync" => self.synchronous = true,
            "degraded" => self.degraded = true,
            "nofail" => self.nofail = true,
            "fail" => self.nofail = false,
            "remount" => self.remount = true,
            _ => return IGNORED.contains(&name) || name.starts_with("x-"),
        }
        true
    }

    /// `Ok(false)`: not an option of ours.
    fn set_value(&mut self, name: &str, value: &str) -> Result<bool, Failure> {
        let wrong = |expected: &str| Failure::new(1, format!("option {name}={value}: {expected}"));
        let size = || parse_size(value).map_err(|_| wrong("not a size; write it like 64M or 1G"));
        match name {
            "cache" => {
                self.cache = match value {
                    "writeback" => CacheMode::Writeback,
                    "none" => CacheMode::None,
                    _ => return Err(wrong("must be writeback or none")),
                }
            }
            "cache-size" => self.filesystem.cache_bytes = size()?,
            "commit" => {
                let seconds = value.parse::<f64>().ok().filter(|seconds| (0.05..=3600.0).contains(seconds));
                let seconds = seconds.ok_or_else(|| wrong("must be a number of seconds from 0.05 to 3600"))?;
                self.filesystem.commit_interval_ms = (seconds * 1000.0).round() as u64;
            }
            "nowait" => {
                self.filesystem.nowait = match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err(wrong("must be on or off")),
                }
            }
            "wait-inline" => {
                self.filesystem.wait_inline = parse_wait_inline(value).ok_or_else(|| wrong("must be auto, idle or off"))?;
            }
            "read-order" => {
                self.filesystem.read_order = match value {
                    "submitted" => ReadOrder::Submitted,
                    "reversed" => ReadOrder::Reversed,
                    _ => return Err(wrong("must be submitted or reversed")),
                }
            }
            "csum-inline" => {
                self.filesystem.checksum_inline_max_bytes =
                    usize::try_from(size()?).map_err(|_| wrong("too large; write it like 64K or 1M"))?;
            }
            "plug-bytes" => self.filesystem.plug.bytes_max = size()?,
            "plug-us" => {
                let hold = parse_hold(value).ok_or_else(|| wrong("must be a number of microseconds up to 1000000"))?;
                self.filesystem.plug.hold = hold;
            }
            "transport" => {
                self.transport = match value {
                    "auto" => Transport::Auto,
                    "uring" => Transport::Uring,
                    "device" => Transport::Device,
                    _ => return Err(wrong("must be auto, uring or device")),
                }
            }
            "threads" => {
                self.threads = Some(parse_threads(value).ok_or_else(|| wrong("must be a number from 1 to 256"))?);
            }
            "metrics" => {
                let target = Target::parse(value).ok_or_else(|| wrong("must be like 127.0.0.1:9100, or the path of a file"))?;
                self.metrics = Some(target);
            }
            "log" if value.is_empty() => return Err(wrong("the name of a file is missing")),
            "log" => self.log = Some(PathBuf::from(value)),
            // A path there names the store: another one would be taken for it.
            "fsname" if value.is_empty() || value.starts_with('/') => {
                return Err(wrong("must be a name, not empty and not a path"));
            }
            "fsname" => self.source_name = Some(value.to_owned()),
            _ => return Ok(IGNORED_WITH_VALUE.contains(&name) || name.starts_with("x-")),
        }
        Ok(true)
    }
}

fn parse_wait_inline(value: &str) -> Option<WaitInline> {
    match value {
        "auto" => Some(WaitInline::Auto),
        "idle" => Some(WaitInline::Idle),
        "off" => Some(WaitInline::Off),
        _ => None,
    }
}

fn parse_hold(value: &str) -> Option<std::time::Duration> {
    value.parse::<u64>().ok().filter(|micros| *micros <= 1_000_000).map(std::time::Duration::from_micros)
}

fn parse_threads(value: &str) -> Option<usize> {
    value.parse().ok().filter(|threads| (1..=256).contains(threads))
}

fn unknown(option: &str) -> Failure {
    let valid = OPTIONS.iter().map(|(names, _)| *names).collect::<Vec<_>>().join(", ");
    Failure::new(1, format!("unknown mount option \"{option}\"; valid are {valid}"))
}

/// The options for the help text of mount.
pub fn help() -> String {
    let mut text = String::from("Options for -o, separated by commas:\n");
    for (names, meaning) in OPTIONS {
        text.push_str(&format!("  {names}\n      {meaning}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<MountOptions, Failure> {
        MountOptions::parse(&[list.to_owned()], false)
    }

    #[test]
    fn every_option_of_the_file_system() {
        let options = parse(
            "ro,cache=none,cache-size=64M,commit=0.5,nowait=off,wait-inline=idle,csum-inline=16K,plug-bytes=2M,plug-us=70,read-order=reversed,noatime,nodiratime,noacl,chattr,allow_other,threads=3,transport=device,log=/var/log/s,fsname=data,nosuid,nodev,noexec,sync",
        )
        .unwrap();
        assert!(options.filesystem.read_only && !options.filesystem.nowait && options.synchronous);
        assert!(
            options.filesystem.nodiratime
                && options.filesystem.chattr
                && !options.filesystem.acl
                && parse("noacl,acl").unwrap().filesystem.acl
        );
        assert_eq!(options.filesystem.cache_bytes, 64 << 20);
        assert_eq!(options.filesystem.commit_interval_ms, 500);
        assert_eq!(options.filesystem.checksum_inline_max_bytes, 16 << 10);
        let plug = options.filesystem.plug;
        assert_eq!((plug.bytes_max, plug.hold.as_micros()), (2 << 20, 70));
        assert_eq!(options.filesystem.wait_inline, WaitInline::Idle);
        assert_eq!(options.filesystem.read_order, ReadOrder::Reversed);
        assert!(matches!(options.filesystem.access_times, AccessTimes::Noatime));
        assert!(matches!(options.cache, CacheMode::None));
        assert_eq!(options.transport, Transport::Device);
        assert_eq!((options.allow_other, options.threads), (Some(true), Some(3)));
        assert_eq!(options.log, Some(PathBuf::from("/var/log/s")));
        assert_eq!(options.source_name.as_deref(), Some("data"));
        assert!(!options.suid && !options.dev && !options.exec);
    }

    #[test]
    fn what_mount_and_fstab_add_is_taken() {
        let options =
            parse("rw,defaults,nofail,_netdev,x-systemd.automount,x-systemd.device-timeout=5s,user=root,comment=mine,noauto,,")
                .unwrap();
        assert!(!options.filesystem.read_only && options.suid);
    }

    #[test]
    fn later_options_win_across_lists() {
        let options = MountOptions::parse(&["ro,nosuid".to_owned(), "suid,rw".to_owned()], false).unwrap();
        assert!(!options.filesystem.read_only && options.suid);
    }

    #[test]
    fn an_unknown_option_is_named_with_the_valid_ones() {
        for option in ["cahce=none", "turbo"] {
            let failure = parse(&format!("ro,{option}")).unwrap_err();
            assert_eq!(failure.code, 1);
            assert!(failure.message.contains(option) && failure.message.contains("cache-size=SIZE"), "{}", failure.message);
            assert!(!failure.message.contains('\n'));
            assert!(MountOptions::parse(&[option.to_owned()], true).is_ok());
        }
    }

    #[test]
    fn wrong_values_are_named_with_what_would_be_right() {
        for (option, hint) in [
            ("cache=yes", "writeback or none"),
            ("cache-size=much", "64M"),
            ("commit=-1", "0.05 to 3600"),
            ("commit=NaN", "0.05 to 3600"),
            ("nowait=1", "on or off"),
            ("wait-inline=on", "auto, idle or off"),
            ("read-order=any", "submitted or reversed"),
            ("threads=0", "1 to 256"),
            ("transport=tcp", "auto, uring or device"),
            ("csum-inline=big", "64M"),
            ("log=", "missing"),
            ("fsname=/dev/sdb", "not a path"),
            ("metrics=9100", "127.0.0.1:9100"),
        ] {
            let failure = parse(option).unwrap_err();
            assert!(failure.message.contains(option) && failure.message.contains(hint), "{}", failure.message);
        }
    }
}
