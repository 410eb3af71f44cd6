//! The one error type. Families, in order: what the caller asked is impossible; the disk lied; the disk
//! failed; internal. `fuse/translate.rs` holds the only table from these to errno.

use crate::units::{BlockAddress, InodeNumber};
use std::sync::Arc;

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation with `Wait::Never` was refused. Counted one by one in `stats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Reason {
    /// The byte range is locked by another operation.
    RangeLocked,
    /// No free space could be had without waiting for a commit.
    NoReservation,
    /// A partial block of the write is not in the cache.
    PartialBlockMissing,
    /// Too many dirty bytes.
    DirtyLimit,
    /// The journal is too full: a checkpoint must come first.
    JournalRoom,
    /// The bytes to read are not in the cache.
    NotCached,
    /// The operation must wait for a device (O_DIRECT, O_SYNC).
    DeviceWait,
    /// The inode is not in memory.
    InodeNotCached,
    /// `nowait=off`.
    Disabled,
}

impl Reason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Reason; 9] = [
        Reason::RangeLocked,
        Reason::NoReservation,
        Reason::PartialBlockMissing,
        Reason::DirtyLimit,
        Reason::JournalRoom,
        Reason::NotCached,
        Reason::DeviceWait,
        Reason::InodeNotCached,
        Reason::Disabled,
    ];

    /// The name in `sumfs stats`.
    pub fn name(self) -> &'static str {
        match self {
            Reason::RangeLocked => "range_locked",
            Reason::NoReservation => "no_reservation",
            Reason::PartialBlockMissing => "partial_block_missing",
            Reason::DirtyLimit => "dirty_limit",
            Reason::JournalRoom => "journal_room",
            Reason::NotCached => "not_cached",
            Reason::DeviceWait => "device_wait",
            Reason::InodeNotCached => "inode_not_cached",
            Reason::Disabled => "disabled",
        }
    }
}

/// Everything that can go wrong.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// No such entry (ENOENT).
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken (EEXIST).
    #[error("file exists")]
    Exists,
    /// A directory still has entries (ENOTEMPTY).
    #[error("directory not empty")]
    NotEmpty,
    /// ENOTDIR.
    #[error("not a directory")]
    NotDirectory,
    /// EISDIR.
    #[error("is a directory")]
    IsDirectory,
    /// ENOSPC.
    #[error("no space left")]
    NoSpace,
    /// ENAMETOOLONG.
    #[error("name too long")]
    NameTooLong,
    /// EFBIG.
    #[error("file too large")]
    FileTooLarge,
    /// E2BIG (xattr values and lists).
    #[error("value too large")]
    ValueTooLarge,
    /// EINVAL, with what was wrong.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// ENODATA.
    #[error("no such attribute")]
    NoXattr,
    /// EPERM.
    #[error("operation not permitted")]
    NotPermitted,
    /// EACCES.
    #[error("permission denied")]
    AccessDenied,
    /// ESTALE: the inode is gone.
    #[error("stale file handle")]
    Stale,
    /// EMLINK.
    #[error("too many links")]
    TooManyLinks,
    /// EOPNOTSUPP.
    #[error("operation not supported")]
    Unsupported,
    /// EXDEV.
    #[error("cross-device link")]
    CrossDevice,
    /// A block does not match its checksum and there is no good copy (EIO).
    #[error(
        "checksum mismatch: inode {inode}, offset {offset}, device {device}, address {address}, \
         device offset {device_offset}: expected {expected:08x}, found {found:08x}"
    )]
    Integrity {
        /// The file that was read.
        inode: InodeNumber,
        /// Byte offset of the block in the file.
        offset: u64,
        /// Device id.
        device: u32,
        /// Logical block.
        address: BlockAddress,
        /// Byte offset on the device.
        device_offset: u64,
        /// The recorded checksum.
        expected: u32,
        /// The checksum of what was read.
        found: u32,
    },
    /// A structure on disk is damaged (EIO).
    #[error("damaged: {0}")]
    Corrupt(String),
    /// A device is missing, or failed too often, and nothing is asked of it (EIO).
    #[error("device {device} is missing or was set aside; replace it with: sumfs device replace")]
    SetAside {
        /// Device id.
        device: u32,
    },
    /// A device failed (EIO).
    #[error("{doing}: {source}")]
    Io {
        /// What was being done to what.
        doing: String,
        /// The system's word.
        source: Arc<std::io::Error>,
    },
    /// The store is read-only, and why (EROFS).
    #[error("read-only: {0}")]
    ReadOnly(Arc<str>),
    /// Internal: refused because the caller must not wait. Consumed in `fuse/dispatch.rs` only.
    #[error("would block: {0:?}")]
    WouldBlock(Reason),
    /// A message for the person at the command line; says what to do.
    #[error("{0}")]
    Usage(String),
}

impl Error {
    /// An I/O error with what was being done.
    pub fn io(doing: impl Into<String>, source: std::io::Error) -> Error {
        Error::Io { doing: doing.into(), source: Arc::new(source) }
    }

    /// A damaged structure.
    pub fn corrupt(what: impl Into<String>) -> Error {
        Error::Corrupt(what.into())
    }

    /// A message for a person.
    pub fn usage(message: impl Into<String>) -> Error {
        Error::Usage(message.into())
    }
}
