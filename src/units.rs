//! The units that cross module borders: inode numbers, block addresses, block arithmetic.
//!
//! A *block* (4 KiB) is the unit of checksums and allocation. A [`BlockAddress`] is logical: it names a
//! block of a group, and only `space` knows which device and offset that is.

/// Bytes in a block.
pub const BLOCK_SIZE: u64 = 4096;
/// The same as a `usize`, for slices.
pub const BLOCK: usize = 4096;
/// Most blocks in one extent (1 MiB): what one checksum list and one I/O cover.
pub const EXTENT_BLOCKS_MAX: u32 = 256;
/// Most bytes in one extent.
pub const EXTENT_BYTES_MAX: u64 = EXTENT_BLOCKS_MAX as u64 * BLOCK_SIZE;
/// The largest file (the largest offset that fits a signed 64-bit `off_t`, in whole blocks).
pub const FILE_SIZE_MAX: u64 = (i64::MAX as u64) / BLOCK_SIZE * BLOCK_SIZE;

/// The largest number that metadata may hold where numbers count up (inodes, cookies, transactions) or are offsets of a disk: far
/// from what any store reaches, and so far below the end of a `u64` that sums of a few cannot wrap. Decoders refuse larger ones.
pub const NUMBER_MAX: u64 = i64::MAX as u64;
/// The same for logical blocks and counts of blocks.
pub const BLOCK_NUMBER_MAX: u64 = 1 << 56;

/// The number of an inode. Counts up, is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeNumber(pub u64);

impl InodeNumber {
    /// The root directory (FUSE fixes this number).
    pub const ROOT: InodeNumber = InodeNumber(1);
}

impl std::fmt::Display for InodeNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A logical block number: group number times blocks per group, plus the block in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockAddress(pub u64);

impl BlockAddress {
    /// The block `count` blocks further on.
    pub fn plus(self, count: u64) -> BlockAddress {
        BlockAddress(self.0 + count)
    }
}

impl std::fmt::Display for BlockAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// `bytes` rounded down to a whole block.
pub fn block_floor(bytes: u64) -> u64 {
    bytes & !(BLOCK_SIZE - 1)
}

/// `bytes` rounded up to a whole block.
pub fn block_ceil(bytes: u64) -> u64 {
    block_floor(bytes.saturating_add(BLOCK_SIZE - 1))
}

/// Blocks needed to hold `bytes`.
pub fn blocks_for(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_SIZE)
}

/// Seconds and nanoseconds since the epoch (seconds may be negative).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Whole seconds, floor.
    pub seconds: i64,
    /// Nanoseconds on top, below 1e9.
    pub nanoseconds: u32,
}

/// The kind of an inode, as stored in directory entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum FileKind {
    Regular = 1,
    Directory = 2,
    Symlink = 3,
    Fifo = 4,
    Socket = 5,
    CharDevice = 6,
    BlockDevice = 7,
}

impl FileKind {
    /// From the type bits of a mode.
    pub fn from_mode(mode: u32) -> Option<FileKind> {
        Some(match mode & 0o170_000 {
            0o100_000 => FileKind::Regular,
            0o040_000 => FileKind::Directory,
            0o120_000 => FileKind::Symlink,
            0o010_000 => FileKind::Fifo,
            0o140_000 => FileKind::Socket,
            0o020_000 => FileKind::CharDevice,
            0o060_000 => FileKind::BlockDevice,
            _ => return None,
        })
    }

    /// The type bits of a mode.
    pub const fn mode_bits(self) -> u32 {
        match self {
            FileKind::Regular => 0o100_000,
            FileKind::Directory => 0o040_000,
            FileKind::Symlink => 0o120_000,
            FileKind::Fifo => 0o010_000,
            FileKind::Socket => 0o140_000,
            FileKind::CharDevice => 0o020_000,
            FileKind::BlockDevice => 0o060_000,
        }
    }

    /// From the byte in a directory entry.
    pub fn from_byte(byte: u8) -> Option<FileKind> {
        Some(match byte {
            1 => FileKind::Regular,
            2 => FileKind::Directory,
            3 => FileKind::Symlink,
            4 => FileKind::Fifo,
            5 => FileKind::Socket,
            6 => FileKind::CharDevice,
            7 => FileKind::BlockDevice,
            _ => return None,
        })
    }
}
