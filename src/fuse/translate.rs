//! Between our types and those of the protocol: attributes, times, flags, and the only table from errors to errno.
//!
//! Times: fuser hands over the times of SETATTR as `SystemTime` and gets the sign of the nanoseconds wrong before 1970 (it
//! subtracts them, the kernel means them added to the floor second). [`timestamp_of_request`] undoes exactly that; the way back
//! is right in fuser, and [`system_time`] is plain.

use crate::error::Error;
use crate::fs::{Attributes, Caller, FallocateMode, ReadFlags, RenameMode, SetAttributes, SetTime, WriteFlags, XattrMode};
use crate::meta::records::FileKind;
use crate::units::{BLOCK_SIZE, InodeNumber, Timestamp};
use fuser::{Errno, FileAttr, FileType, INodeNo, OpenFlags, RenameFlags, TimeOrNow};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const NANOSECONDS: u32 = 1_000_000_000;

/// Our number for a node.
pub fn inode(number: INodeNo) -> InodeNumber {
    InodeNumber(number.0)
}

/// The error number that the application sees. Exhaustive on purpose: a new error must say its number here.
pub fn errno(error: &Error) -> Errno {
    match error {
        Error::NotFound => Errno::ENOENT,
        Error::Exists => Errno::EEXIST,
        Error::NotEmpty => Errno::ENOTEMPTY,
        Error::NotDirectory => Errno::ENOTDIR,
        Error::IsDirectory => Errno::EISDIR,
        Error::NoSpace => Errno::ENOSPC,
        Error::NameTooLong => Errno::ENAMETOOLONG,
        Error::FileTooLarge => Errno::EFBIG,
        Error::ValueTooLarge => Errno::E2BIG,
        Error::Invalid(_) => Errno::EINVAL,
        Error::NoXattr => Errno::NO_XATTR,
        Error::NotPermitted => Errno::EPERM,
        Error::AccessDenied => Errno::EACCES,
        Error::Stale => Errno::ESTALE,
        Error::TooManyLinks => Errno::EMLINK,
        Error::Unsupported => Errno::EOPNOTSUPP,
        Error::CrossDevice => Errno::EXDEV,
        Error::ReadOnly(_) => Errno::EROFS,
        // Reported with all its circumstances where it was found.
        Error::Integrity { .. } => Errno::EIO,
        Error::Corrupt(_) | Error::Io { .. } => {
            tracing::error!("answered with an input/output error: {error}");
            Errno::EIO
        }
        Error::WouldBlock(_) | Error::Usage(_) => {
            tracing::error!("internal error: an answer to the kernel cannot be `{error}`");
            Errno::EIO
        }
    }
}

/// A time for a reply. Saturates at the ends of what `SystemTime` holds.
pub fn system_time(time: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
    whole.and_then(|whole| whole.checked_add(Duration::from_nanos(time.nanoseconds.into()))).unwrap_or(UNIX_EPOCH)
}

/// A time out of a request (see the top of this file).
pub fn timestamp_of_request(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp { seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX), nanoseconds: after.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            Timestamp {
                seconds: 0i64.saturating_sub_unsigned(before.as_secs()),
                nanoseconds: before.subsec_nanos() % NANOSECONDS,
            }
        }
    }
}

/// The kind as the protocol names it.
pub fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// The attributes of a reply. A mode without a kind (records are checked when read, so it cannot be) shows as a regular file.
pub fn file_attr(attributes: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(attributes.inode.0),
        size: attributes.size,
        blocks: attributes.blocks_512,
        atime: system_time(attributes.accessed),
        mtime: system_time(attributes.modified),
        ctime: system_time(attributes.changed),
        crtime: system_time(attributes.created),
        kind: FileKind::from_mode(attributes.mode).map_or(FileType::RegularFile, file_type),
        perm: (attributes.mode & 0o7777) as u16,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.rdev,
        blksize: BLOCK_SIZE as u32,
        flags: 0,
    }
}

/// "There is no such name", to be remembered by the kernel: an entry with node number 0.
pub fn no_entry() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::To(timestamp_of_request(time)),
    }
}

/// What a SETATTR changes; nothing at all is possible and right (the kernel then asks for attributes only).
#[derive(Debug, Default)]
pub struct SetattrRequest {
    /// New permissions (and type bits, unchanged).
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New length in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<TimeOrNow>,
    /// Modification time.
    pub mtime: Option<TimeOrNow>,
    /// Change time: only the kernel itself sets it, with its writeback cache.
    pub ctime: Option<SystemTime>,
}

impl From<SetattrRequest> for SetAttributes {
    fn from(request: SetattrRequest) -> SetAttributes {
        SetAttributes {
            mode: request.mode,
            uid: request.uid,
            gid: request.gid,
            size: request.size,
            accessed: request.atime.map(set_time),
            modified: request.mtime.map(set_time),
            changed: request.ctime.map(timestamp_of_request),
        }
    }
}

/// The flags of renameat2(2); whiteouts become the caller's. An exchange that leaves one, and bits unknown to us: EINVAL.
pub fn rename_mode(flags: RenameFlags, caller: Caller) -> Result<RenameMode, Error> {
    let without_whiteout = flags.difference(RenameFlags::RENAME_WHITEOUT);
    if flags.is_empty() {
        Ok(RenameMode::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Ok(RenameMode::NoReplace)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Ok(RenameMode::Exchange)
    } else if without_whiteout.is_empty() || without_whiteout == RenameFlags::RENAME_NOREPLACE {
        Ok(RenameMode::Whiteout { owner: caller, replaces: without_whiteout.is_empty() })
    } else {
        Err(Error::Invalid("rename flags"))
    }
}

/// The flags of setxattr(2).
pub fn xattr_mode(flags: i32) -> Result<XattrMode, Error> {
    match flags {
        0 => Ok(XattrMode::Any),
        libc::XATTR_CREATE => Ok(XattrMode::Create),
        libc::XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(Error::Invalid("setxattr flags")),
    }
}

/// The mode of fallocate(2); what we do not have is EOPNOTSUPP.
pub fn fallocate_mode(mode: i32) -> Result<FallocateMode, Error> {
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    match mode {
        0 => Ok(FallocateMode::Allocate),
        libc::FALLOC_FL_KEEP_SIZE => Ok(FallocateMode::AllocateKeepSize),
        PUNCH => Ok(FallocateMode::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Ok(FallocateMode::ZeroRange),
        ZERO_KEEP => Ok(FallocateMode::ZeroRangeKeepSize),
        _ => Err(Error::Unsupported),
    }
}

/// How a READ wants to be done, from the flags of the open file.
pub fn read_flags(open: OpenFlags) -> ReadFlags {
    ReadFlags { direct: open.0 & libc::O_DIRECT != 0, no_atime: open.0 & libc::O_NOATIME != 0 }
}

/// How a WRITE wants to be done. One out of the kernel's page cache belongs to no open file: it is never direct and never
/// synchronous (an FSYNC follows when somebody waits).
pub fn write_flags(write: fuser::WriteFlags, open: OpenFlags) -> WriteFlags {
    let from_cache = write.contains(fuser::WriteFlags::FUSE_WRITE_CACHE);
    WriteFlags {
        from_cache,
        direct: !from_cache && open.0 & libc::O_DIRECT != 0,
        // O_SYNC contains O_DSYNC.
        sync: !from_cache && open.0 & libc::O_DSYNC != 0,
        kill_suid: write.contains(fuser::WriteFlags::FUSE_WRITE_KILL_SUIDGID),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Reason;
    use crate::units::BlockAddress;
    use std::sync::Arc;

    fn time(seconds: i64, nanoseconds: u32) -> Timestamp {
        Timestamp { seconds, nanoseconds }
    }

    const TIMES: [(i64, u32); 11] = [
        (0, 0),
        (0, 1),
        (1, 999_999_999),
        (-1, 0),
        (-1, 1),
        (-1, 999_999_999),
        (-2, 800_000_000),
        (i32::MIN as i64 - 1, 5),
        (u32::MAX as i64 + 1, 5),
        (i64::MAX, 999_999_999),
        (i64::MIN, 0),
    ];

    /// What fuser 0.18 makes of the times in a request.
    fn as_fuser_reads(time: Timestamp) -> SystemTime {
        if time.seconds >= 0 {
            UNIX_EPOCH + Duration::new(time.seconds as u64, time.nanoseconds)
        } else {
            UNIX_EPOCH - Duration::new(time.seconds.unsigned_abs(), time.nanoseconds)
        }
    }

    /// What fuser 0.18 writes into a reply.
    fn as_fuser_writes(time: SystemTime) -> Timestamp {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Timestamp { seconds: after.as_secs() as i64, nanoseconds: after.subsec_nanos() },
            Err(before) => {
                let before = before.duration();
                let floor = 0i64.saturating_sub_unsigned(before.as_secs());
                match before.subsec_nanos() {
                    0 => Timestamp { seconds: floor, nanoseconds: 0 },
                    nanoseconds => Timestamp { seconds: floor - 1, nanoseconds: NANOSECONDS - nanoseconds },
                }
            }
        }
    }

    #[test]
    fn times_of_requests_are_what_the_kernel_meant() {
        for (seconds, nanoseconds) in TIMES {
            assert_eq!(timestamp_of_request(as_fuser_reads(time(seconds, nanoseconds))), time(seconds, nanoseconds));
        }
    }

    #[test]
    fn times_of_replies_are_what_we_meant() {
        for (seconds, nanoseconds) in TIMES {
            assert_eq!(as_fuser_writes(system_time(time(seconds, nanoseconds))), time(seconds, nanoseconds));
        }
    }

    #[test]
    fn attributes_keep_every_field() {
        let attributes = Attributes {
            inode: InodeNumber(77),
            size: 12345,
            blocks_512: 32,
            accessed: time(-5, 250),
            modified: time(6, 7),
            changed: time(8, 9),
            created: time(10, 11),
            mode: 0o104_755,
            links: 3,
            uid: 1000,
            gid: 100,
            rdev: 0x801,
        };
        let attr = file_attr(&attributes);
        assert_eq!(attr.ino, INodeNo(77));
        assert_eq!((attr.size, attr.blocks), (12345, 32));
        assert_eq!(as_fuser_writes(attr.atime), attributes.accessed);
        assert_eq!(as_fuser_writes(attr.mtime), attributes.modified);
        assert_eq!(as_fuser_writes(attr.ctime), attributes.changed);
        assert_eq!(as_fuser_writes(attr.crtime), attributes.created);
        assert_eq!((attr.nlink, attr.uid, attr.gid, attr.rdev), (3, 1000, 100, 0x801));
        assert_eq!(attr.perm, 0o4755);
    }

    #[test]
    fn every_kind_has_its_type() {
        use FileType::*;
        let table = [
            (0o100_644, RegularFile),
            (0o041_777, Directory),
            (0o120_777, Symlink),
            (0o010_600, NamedPipe),
            (0o140_600, Socket),
            (0o020_600, CharDevice),
            (0o060_600, BlockDevice),
        ];
        for (mode, kind) in table {
            assert_eq!(FileKind::from_mode(mode).map(file_type), Some(kind), "{mode:o}");
        }
    }

    #[test]
    fn setattr_without_valid_bits_changes_nothing() {
        let change = SetAttributes::from(SetattrRequest::default());
        assert!(change.mode.is_none() && change.uid.is_none() && change.gid.is_none() && change.size.is_none());
        assert!(change.accessed.is_none() && change.modified.is_none() && change.changed.is_none());
    }

    #[test]
    fn setattr_keeps_every_field() {
        let change = SetAttributes::from(SetattrRequest {
            mode: Some(0o644),
            uid: Some(1),
            gid: Some(2),
            size: Some(3),
            atime: Some(TimeOrNow::Now),
            mtime: Some(TimeOrNow::SpecificTime(as_fuser_reads(time(-7, 5)))),
            ctime: Some(as_fuser_reads(time(9, 1))),
        });
        assert_eq!((change.mode, change.uid, change.gid, change.size), (Some(0o644), Some(1), Some(2), Some(3)));
        assert!(matches!(change.accessed, Some(SetTime::Now)));
        assert!(matches!(change.modified, Some(SetTime::To(set)) if set == time(-7, 5)));
        assert_eq!(change.changed, Some(time(9, 1)));
    }

    #[test]
    fn every_error_has_its_number() {
        let io = || Error::io("reading device 0", std::io::Error::from_raw_os_error(libc::ENOSPC));
        let integrity = Error::Integrity {
            inode: InodeNumber(2),
            offset: 0,
            device: 0,
            address: BlockAddress(1),
            device_offset: 4096,
            expected: 1,
            found: 2,
        };
        let table = [
            (Error::NotFound, libc::ENOENT),
            (Error::Exists, libc::EEXIST),
            (Error::NotEmpty, libc::ENOTEMPTY),
            (Error::NotDirectory, libc::ENOTDIR),
            (Error::IsDirectory, libc::EISDIR),
            (Error::NoSpace, libc::ENOSPC),
            (Error::NameTooLong, libc::ENAMETOOLONG),
            (Error::FileTooLarge, libc::EFBIG),
            (Error::ValueTooLarge, libc::E2BIG),
            (Error::Invalid("x"), libc::EINVAL),
            (Error::NoXattr, libc::ENODATA),
            (Error::NotPermitted, libc::EPERM),
            (Error::AccessDenied, libc::EACCES),
            (Error::Stale, libc::ESTALE),
            (Error::TooManyLinks, libc::EMLINK),
            (Error::Unsupported, libc::EOPNOTSUPP),
            (Error::CrossDevice, libc::EXDEV),
            (integrity, libc::EIO),
            (Error::corrupt("inode 5"), libc::EIO),
            // Never the number of the host: ENOSPC of a device is not "no space left" here.
            (io(), libc::EIO),
            (Error::ReadOnly(Arc::from("a flush failed")), libc::EROFS),
            (Error::WouldBlock(Reason::DirtyLimit), libc::EIO),
            (Error::usage("x"), libc::EIO),
        ];
        for (error, number) in table {
            assert_eq!(i32::from(errno(&error)), number, "{error}");
        }
    }

    #[test]
    fn rename_flags() {
        let owner = Caller { uid: 7, gid: 8, pid: 9 };
        let mode = |bits| rename_mode(RenameFlags::from_bits_retain(bits), owner);
        let (no_replace, exchange, whiteout) = (libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE, libc::RENAME_WHITEOUT);
        let table = [
            (0, RenameMode::Replace),
            (no_replace, RenameMode::NoReplace),
            (exchange, RenameMode::Exchange),
            (whiteout, RenameMode::Whiteout { owner, replaces: true }),
            (whiteout | no_replace, RenameMode::Whiteout { owner, replaces: false }),
        ];
        for (bits, expected) in table {
            assert_eq!(mode(bits).ok(), Some(expected), "{bits:#x}");
        }
        for bits in [no_replace | exchange, whiteout | exchange, whiteout | no_replace | exchange, 1 << 7, whiteout | 1 << 7] {
            assert!(matches!(mode(bits), Err(Error::Invalid(_))), "{bits:#x}");
        }
    }

    #[test]
    fn fallocate_modes() {
        let (keep, punch, zero) = (libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_ZERO_RANGE);
        assert!(matches!(fallocate_mode(0), Ok(FallocateMode::Allocate)));
        assert!(matches!(fallocate_mode(keep), Ok(FallocateMode::AllocateKeepSize)));
        assert!(matches!(fallocate_mode(punch | keep), Ok(FallocateMode::PunchHole)));
        assert!(matches!(fallocate_mode(zero), Ok(FallocateMode::ZeroRange)));
        assert!(matches!(fallocate_mode(zero | keep), Ok(FallocateMode::ZeroRangeKeepSize)));
        for other in [punch, libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE, 0x40, punch | zero | keep] {
            assert!(matches!(fallocate_mode(other), Err(Error::Unsupported)), "{other:#x}");
        }
    }

    #[test]
    fn writes_out_of_the_page_cache_are_neither_direct_nor_synchronous() {
        let open = OpenFlags(libc::O_DIRECT | libc::O_SYNC);
        let own = write_flags(fuser::WriteFlags::FUSE_WRITE_KILL_SUIDGID, open);
        assert!(own.direct && own.sync && own.kill_suid && !own.from_cache);
        let cached = write_flags(fuser::WriteFlags::FUSE_WRITE_CACHE, open);
        assert!(cached.from_cache && !cached.direct && !cached.sync && !cached.kill_suid);
        assert!(write_flags(fuser::WriteFlags::empty(), OpenFlags(libc::O_DSYNC)).sync);
        assert!(!write_flags(fuser::WriteFlags::empty(), OpenFlags(libc::O_WRONLY)).sync);
    }
}
