//! Between our types and those of the protocol: flags, kinds of files, and the only table from errors to errno.

use super::abi::{self, Fields, inode_flags};
use crate::error::Error;
use crate::fs::{Caller, FallocateMode, InodeFlags, ReadFlags, RenameMode, WriteFlags, XattrMode};
use crate::meta::records::FileKind;

/// The error number that the application sees. Exhaustive on purpose: a new error must say its number here.
pub fn errno(error: &Error) -> i32 {
    match error {
        Error::NotFound => libc::ENOENT,
        Error::Exists => libc::EEXIST,
        Error::NotEmpty => libc::ENOTEMPTY,
        Error::NotDirectory => libc::ENOTDIR,
        Error::IsDirectory => libc::EISDIR,
        Error::NoSpace => libc::ENOSPC,
        Error::NameTooLong => libc::ENAMETOOLONG,
        Error::FileTooLarge => libc::EFBIG,
        Error::ValueTooLarge => libc::E2BIG,
        Error::Invalid(_) => libc::EINVAL,
        Error::NoXattr => libc::ENODATA,
        Error::NotPermitted => libc::EPERM,
        Error::AccessDenied => libc::EACCES,
        Error::Stale => libc::ESTALE,
        Error::TooManyLinks => libc::EMLINK,
        Error::Unsupported => libc::EOPNOTSUPP,
        Error::CrossDevice => libc::EXDEV,
        Error::ReadOnly(_) => libc::EROFS,
        // Reported with all its circumstances where it was found.
        Error::Integrity { .. } => libc::EIO,
        Error::Corrupt(_) | Error::Io { .. } | Error::SetAside { .. } => {
            tracing::error!("answered with an input/output error: {error}");
            libc::EIO
        }
        Error::WouldBlock(_) | Error::Usage(_) => {
            tracing::error!("internal error: an answer to the kernel cannot be `{error}`");
            libc::EIO
        }
    }
}

/// The kind as a directory entry names it (DT_REG and so on).
pub fn entry_type(kind: FileKind) -> u32 {
    let kind = match kind {
        FileKind::Regular => libc::DT_REG,
        FileKind::Directory => libc::DT_DIR,
        FileKind::Symlink => libc::DT_LNK,
        FileKind::Fifo => libc::DT_FIFO,
        FileKind::Socket => libc::DT_SOCK,
        FileKind::CharDevice => libc::DT_CHR,
        FileKind::BlockDevice => libc::DT_BLK,
    };
    kind.into()
}

/// The flags of renameat2(2); whiteouts become the caller's. An exchange that leaves one, and bits unknown to us: EINVAL.
pub fn rename_mode(flags: u32, caller: Caller) -> Result<RenameMode, Error> {
    const WHITEOUT_NO_REPLACE: u32 = libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE;
    match flags {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        libc::RENAME_WHITEOUT => Ok(RenameMode::Whiteout { owner: caller, replaces: true }),
        WHITEOUT_NO_REPLACE => Ok(RenameMode::Whiteout { owner: caller, replaces: false }),
        _ => Err(Error::Invalid("rename flags")),
    }
}

/// The flags of setxattr(2), and whether it takes set-group-id away.
pub fn xattr_mode(flags: u32, kills_sgid: bool) -> Result<XattrMode, Error> {
    match flags.cast_signed() {
        0 if kills_sgid => Ok(XattrMode::ClearSgid),
        0 => Ok(XattrMode::Any),
        libc::XATTR_CREATE => Ok(XattrMode::Create),
        libc::XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(Error::Invalid("setxattr flags")),
    }
}

/// What chattr(1) sets, as ext4 has it.
pub fn flag_bits(flags: &InodeFlags) -> u32 {
    bits_of(flags, [inode_flags::IMMUTABLE, inode_flags::APPEND_ONLY, inode_flags::NO_ATIME])
}

/// The same, as XFS has it: flags, and numbers that are nothing here.
pub fn extended_flag_words(flags: &InodeFlags) -> [u32; inode_flags::EXTENDED_BYTES / 4] {
    let mut words = [0; inode_flags::EXTENDED_BYTES / 4];
    words[0] =
        bits_of(flags, [inode_flags::EXTENDED_IMMUTABLE, inode_flags::EXTENDED_APPEND_ONLY, inode_flags::EXTENDED_NO_ATIME]);
    words
}

/// What shall be set, as ext4 has it; flags that we do not have are EOPNOTSUPP.
pub fn flags_of_bits(input: &[u8]) -> Result<InodeFlags, Error> {
    let bits = Fields::new(input).u32().ok_or(Error::Invalid("flags that are cut short"))?;
    flags_from(bits, [inode_flags::IMMUTABLE, inode_flags::APPEND_ONLY, inode_flags::NO_ATIME])
}

/// The same, as XFS has it; of the numbers behind only the count of extents, which cannot be set, may be anything.
pub fn flags_of_extended(input: &[u8]) -> Result<InodeFlags, Error> {
    const CUT_SHORT: Error = Error::Invalid("flags that are cut short");
    let mut fields = Fields::new(input.get(..inode_flags::EXTENDED_BYTES).ok_or(CUT_SHORT)?);
    let mut next = || fields.u32().ok_or(CUT_SHORT);
    let (bits, extent_size, _extents, project, cow_extent_size) = (next()?, next()?, next()?, next()?, next()?);
    if extent_size | project | cow_extent_size != 0 {
        return Err(Error::Unsupported);
    }
    flags_from(bits, [inode_flags::EXTENDED_IMMUTABLE, inode_flags::EXTENDED_APPEND_ONLY, inode_flags::EXTENDED_NO_ATIME])
}

fn bits_of(flags: &InodeFlags, bits: [u32; 3]) -> u32 {
    let set = [flags.immutable, flags.append_only, flags.no_atime];
    bits.into_iter().zip(set).filter_map(|(bit, is_set)| is_set.then_some(bit)).sum()
}

fn flags_from(bits: u32, known: [u32; 3]) -> Result<InodeFlags, Error> {
    let [immutable, append_only, no_atime] = known.map(|bit| bits & bit != 0);
    if bits & !known.iter().sum::<u32>() != 0 {
        return Err(Error::Unsupported);
    }
    Ok(InodeFlags { immutable, append_only, no_atime })
}

/// The mode of fallocate(2); what we do not have is EOPNOTSUPP.
pub fn fallocate_mode(mode: u32) -> Result<FallocateMode, Error> {
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    match mode.cast_signed() {
        0 => Ok(FallocateMode::Allocate),
        libc::FALLOC_FL_KEEP_SIZE => Ok(FallocateMode::AllocateKeepSize),
        PUNCH => Ok(FallocateMode::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Ok(FallocateMode::ZeroRange),
        ZERO_KEEP => Ok(FallocateMode::ZeroRangeKeepSize),
        _ => Err(Error::Unsupported),
    }
}

fn has(open: u32, flag: i32) -> bool {
    open.cast_signed() & flag != 0
}

/// How a READ wants to be done, from the flags of the open file.
pub fn read_flags(open: u32) -> ReadFlags {
    ReadFlags { direct: has(open, libc::O_DIRECT), no_atime: has(open, libc::O_NOATIME) }
}

/// How a WRITE wants to be done, from its own flags and those of the open file. One out of the kernel's page cache belongs to no
/// open file: it is never direct and never synchronous (an FSYNC follows when somebody waits).
pub fn write_flags(kind: u32, open: u32) -> WriteFlags {
    let from_cache = kind & abi::WRITE_CACHE != 0;
    WriteFlags {
        from_cache,
        direct: !from_cache && has(open, libc::O_DIRECT),
        // O_SYNC contains O_DSYNC.
        sync: !from_cache && has(open, libc::O_DSYNC),
        kill_suid: kind & abi::WRITE_KILL_SUIDGID != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Reason;
    use crate::units::{BlockAddress, InodeNumber};
    use std::sync::Arc;

    #[test]
    fn every_kind_has_its_type() {
        let modes = [0o100_644, 0o041_777, 0o120_777, 0o010_600, 0o140_600, 0o020_600, 0o060_600];
        for mode in modes {
            // The numbers of DT_ are those of the type bits, four bits further down.
            assert_eq!(FileKind::from_mode(mode).map(entry_type), Some((mode & libc::S_IFMT) >> 12), "{mode:o}");
        }
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
            assert_eq!(errno(&error), number, "{error}");
        }
    }

    #[test]
    fn rename_flags() {
        let owner = Caller { uid: 7, gid: 8, pid: 9 };
        let mode = |bits| rename_mode(bits, owner);
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
        let mode = |bits: i32| fallocate_mode(bits.cast_unsigned());
        assert!(matches!(mode(0), Ok(FallocateMode::Allocate)));
        assert!(matches!(mode(keep), Ok(FallocateMode::AllocateKeepSize)));
        assert!(matches!(mode(punch | keep), Ok(FallocateMode::PunchHole)));
        assert!(matches!(mode(zero), Ok(FallocateMode::ZeroRange)));
        assert!(matches!(mode(zero | keep), Ok(FallocateMode::ZeroRangeKeepSize)));
        for other in [punch, libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE, 0x40, punch | zero | keep] {
            assert!(matches!(mode(other), Err(Error::Unsupported)), "{other:#x}");
        }
    }

    #[test]
    fn inode_flags_of_both_forms() {
        for (bits, extended) in [(0, 0), (0x10, 8), (0x20, 0x10), (0x80, 0x40), (0xb0, 0x58)] {
            let flags = flags_of_bits(&u32::to_ne_bytes(bits)).unwrap();
            assert_eq!((flag_bits(&flags), extended_flag_words(&flags)), (bits, [extended, 0, 0, 0, 0, 0, 0]));
            let words = |words: [u32; 7]| flags_of_extended(&words.map(u32::to_ne_bytes).concat());
            assert_eq!(words([extended, 0, 9, 0, 0, 0, 0]).unwrap(), flags);
            for wrong in [1, 3, 4] {
                let mut with = [extended, 0, 0, 0, 0, 0, 0];
                with[wrong] = 1;
                assert!(matches!(words(with), Err(Error::Unsupported)), "{wrong}");
            }
        }
        // No copy-on-write, no delays, compression.
        for other in [0x0080_0000, 0x08, 0x04] {
            assert!(matches!(flags_of_bits(&u32::to_ne_bytes(other | 0x10)), Err(Error::Unsupported)), "{other:#x}");
        }
        assert!(matches!(flags_of_bits(&[1, 2]), Err(Error::Invalid(_))));
        assert!(matches!(flags_of_extended(&[0; 27]), Err(Error::Invalid(_))));
    }

    #[test]
    fn writes_out_of_the_page_cache_are_neither_direct_nor_synchronous() {
        let open = (libc::O_DIRECT | libc::O_SYNC).cast_unsigned();
        let own = write_flags(abi::WRITE_KILL_SUIDGID, open);
        assert!(own.direct && own.sync && own.kill_suid && !own.from_cache);
        let cached = write_flags(abi::WRITE_CACHE, open);
        assert!(cached.from_cache && !cached.direct && !cached.sync && !cached.kill_suid);
        assert!(write_flags(0, libc::O_DSYNC.cast_unsigned()).sync);
        assert!(!write_flags(0, libc::O_WRONLY.cast_unsigned()).sync);
    }
}
