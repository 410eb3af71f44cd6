//! What goes in and out of the file system: plain values, no protocol.

pub use crate::extent::ReadOrder;

use crate::cache::PlugOptions;
use crate::error::Result;
use crate::meta::records::FileKind;
use crate::units::{InodeNumber, Timestamp};

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Process.
    pub pid: u32,
}

impl Caller {
    /// root.
    pub const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0 };

    /// May it leave set-group-id on a file of this group? Its further groups are not in requests, so its process is asked for them.
    pub(super) fn may_keep_sgid(&self, group: u32) -> bool {
        self.uid == 0 || self.gid == group || crate::sys::further_groups(self.pid).contains(&group)
    }
}

/// Attributes of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Attributes {
    pub inode: InodeNumber,
    /// Bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks_512: u64,
    pub accessed: Timestamp,
    pub modified: Timestamp,
    pub changed: Timestamp,
    pub created: Timestamp,
    /// With type bits.
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
}

impl Attributes {
    /// Of an entry in a listing whose attributes cannot be had: number 0 says so to the kernel, too.
    pub fn unknown() -> Attributes {
        let time = Timestamp::default();
        Attributes {
            inode: InodeNumber(0),
            size: 0,
            blocks_512: 0,
            accessed: time,
            modified: time,
            changed: time,
            created: time,
            mode: 0,
            links: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
        }
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time.
    Now,
    /// This time.
    To(Timestamp),
}

/// Attributes to set; None leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SetAttributes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub accessed: Option<SetTime>,
    pub modified: Option<SetTime>,
    pub changed: Option<Timestamp>,
    /// Clear suid and sgid: who asks may not keep them.
    pub kill_suid: bool,
}

/// What rename does about an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// Fails.
    NoReplace,
    /// Exchanges the two.
    Exchange,
    /// Leaves a whiteout, a character device 0/0 by which a union mount knows that the name is gone, where the source was.
    Whiteout {
        /// Whose it becomes.
        owner: Caller,
        /// May an existing target be replaced?
        replaces: bool,
    },
}

/// What setxattr does about an existing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum XattrMode {
    Any,
    Create,
    Replace,
    /// `Any`, for an access control list: set-group-id goes, because whoever sets the list is not of the group.
    ClearSgid,
}

/// Modes of fallocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum FallocateMode {
    Allocate,
    AllocateKeepSize,
    PunchHole,
    ZeroRange,
    ZeroRangeKeepSize,
}

/// How to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadFlags {
    /// O_DIRECT: do not keep it in the cache.
    pub direct: bool,
    /// O_NOATIME.
    pub no_atime: bool,
}

/// How to write.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteFlags {
    /// From the kernel's cache: the times are the kernel's if it caches writes (`kernel_caches`).
    pub from_cache: bool,
    /// O_DIRECT: on the device before it returns.
    pub direct: bool,
    /// O_SYNC or O_DSYNC: durable before it returns.
    pub sync: bool,
    /// Clear suid and sgid.
    pub kill_suid: bool,
}

/// What chattr(1) sets of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeFlags {
    /// i: nothing of it changes.
    pub immutable: bool,
    /// a: it only grows.
    pub append_only: bool,
    /// A: reading leaves its access time.
    pub no_atime: bool,
}

/// An entry of a listing.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryEntry<'a> {
    /// What it names.
    pub inode: InodeNumber,
    /// The cookie with which to go on behind it.
    pub next: u64,
    /// The inode's kind.
    pub kind: FileKind,
    /// The name.
    pub name: &'a [u8],
}

/// For statfs, in blocks of 4096 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SpaceStatus {
    pub blocks: u64,
    pub free: u64,
    pub available: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// Answers an fsync, at once or from another thread.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// When reading changes access times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AccessTimes {
    Relatime,
    Noatime,
    Strictatime,
}

/// When a thread that reads requests does itself what the first try was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitInline {
    /// While another one is idle, or when the device answers sooner than a hand-over would take.
    Auto,
    /// Only while another one is idle.
    Idle,
    /// Never: the workers do it.
    Off,
}

/// How to open a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Write nothing.
    pub read_only: bool,
    /// One budget for segments and index cache, in bytes.
    pub cache_bytes: u64,
    /// Longest time that something stays uncommitted.
    pub commit_interval_ms: u64,
    /// Data operations first try without waiting.
    pub nowait: bool,
    /// When reading threads wait themselves.
    pub wait_inline: WaitInline,
    /// Larger work is checksummed on the pool.
    pub checksum_inline_max_bytes: usize,
    /// In which order large reads are verified and answered.
    pub read_order: ReadOrder,
    /// How direct writes are gathered where there is parity.
    pub plug: PlugOptions,
    /// Access times.
    pub access_times: AccessTimes,
    /// Listing a directory leaves its access time.
    pub nodiratime: bool,
    /// Access control lists are stored and inherited; the kernel obeys them.
    pub acl: bool,
    /// Files may be made immutable or append-only, for which every open must be seen.
    pub chattr: bool,
    /// The kernel caches the same pages: keep nothing clean here.
    pub kernel_caches: bool,
    /// Threads for writeback, commit, apply, reaping. Without them all that happens inline, in calls.
    pub background: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            read_only: false,
            cache_bytes: 256 << 20,
            commit_interval_ms: 5000,
            nowait: true,
            wait_inline: WaitInline::Auto,
            checksum_inline_max_bytes: usize::MAX,
            read_order: ReadOrder::Submitted,
            plug: PlugOptions::default(),
            access_times: AccessTimes::Relatime,
            nodiratime: false,
            acl: true,
            chattr: false,
            kernel_caches: false,
            background: true,
        }
    }
}
