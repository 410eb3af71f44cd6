//! Every value the index holds: explicit little-endian layouts, decode without panics, no I/O.
//!
//! A stored value is the encoded record and a crc32c over key and record ([`seal`], [`open`]), so that a value under a wrong
//! key is found as well as a flipped bit. Unknown kinds and wrong lengths are `Error::Corrupt`, never a guess.

use super::fields::Reader;
pub use super::space_records::{
    COLUMNS_MAX, DeviceRecord, GroupRecord, PROFILE_DUP, PROFILE_RAID0, PROFILE_RAID1, PROFILE_RAID5, PROFILE_SINGLE,
};
use crate::error::{Error, Result};
pub use crate::units::FileKind;
use crate::units::{BLOCK_NUMBER_MAX, BLOCK_SIZE, BlockAddress, EXTENT_BLOCKS_MAX, FILE_SIZE_MAX, InodeNumber, Timestamp};

/// Bytes that `seal` adds.
pub const SEAL_BYTES: usize = 4;

/// Appends the checksum over key and record.
pub fn seal(key: &[u8], mut record: Vec<u8>) -> Vec<u8> {
    let sum = crc32c::crc32c_append(crc32c::crc32c(key), &record);
    record.extend_from_slice(&sum.to_le_bytes());
    record
}

/// The record in a stored value, after its checksum matched.
pub fn open<'a>(key: &[u8], value: &'a [u8]) -> Result<&'a [u8]> {
    let damaged = || Error::corrupt(format!("metadata value of key {}", hex(key)));
    let at = value.len().checked_sub(SEAL_BYTES).ok_or_else(damaged)?;
    let (record, sum) = value.split_at(at);
    let found = crc32c::crc32c_append(crc32c::crc32c(key), record);
    if sum == found.to_le_bytes() { Ok(record) } else { Err(damaged()) }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Flag in [`InodeRecord::flags`]: the inode has extended attributes.
pub const INODE_HAS_XATTRS: u32 = 1;
/// Flag: some extent of the file may be shared with another file.
pub const INODE_MAY_SHARE: u32 = 2;
/// Flag: immutable (chattr +i).
pub const INODE_IMMUTABLE: u32 = 4;
/// Flag: append-only (chattr +a).
pub const INODE_APPEND_ONLY: u32 = 8;
/// Flag: reading does not change the access time (chattr +A).
pub const INODE_NO_ATIME: u32 = 16;
/// Flag: made without a name (O_TMPFILE) and not linked yet.
pub const INODE_NEVER_NAMED: u32 = 32;

/// Longest name in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The most links that a record may say: a directory has one for each subdirectory.
const LINKS_MAX: u32 = i32::MAX as u32;

/// An inode as committed. Sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeRecord {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links; a directory has 2 plus its subdirectories.
    pub links: u32,
    /// Files: length. Directories: number of entries. Symlinks: length of the target.
    pub size: u64,
    /// Blocks that the file map holds, written or promised.
    pub blocks: u64,
    /// Last access.
    pub accessed: Timestamp,
    /// Last change of contents.
    pub modified: Timestamp,
    /// Last change of attributes.
    pub changed: Timestamp,
    /// Creation.
    pub created: Timestamp,
    /// Device number of device nodes.
    pub rdev: u32,
    /// `INODE_*`.
    pub flags: u32,
    /// Directory of the first link (the root's is itself).
    pub parent: InodeNumber,
    /// Cookie of the first link in `parent`.
    pub cookie: u64,
    /// Directories: the cookie that the next new entry gets.
    pub next_cookie: u64,
}

fn put_time(out: &mut Vec<u8>, time: Timestamp) {
    out.extend_from_slice(&time.seconds.to_le_bytes());
    out.extend_from_slice(&time.nanoseconds.to_le_bytes());
}

fn get_time(reader: &mut Reader<'_>) -> Result<Timestamp> {
    let time = Timestamp { seconds: reader.i64()?, nanoseconds: reader.u32()? };
    if time.nanoseconds < 1_000_000_000 { Ok(time) } else { Err(reader.damaged()) }
}

impl InodeRecord {
    /// Bytes of an encoded inode.
    pub const BYTES: usize = 4 * 4 + 8 * 2 + 12 * 4 + 4 * 2 + 8 * 3;

    /// The file kind that the mode names.
    pub fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).unwrap_or(FileKind::Regular)
    }

    /// Layout: mode, uid, gid, links, size, blocks, four times, rdev, flags, parent, cookie, next cookie.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::BYTES + SEAL_BYTES);
        for field in [self.mode, self.uid, self.gid, self.links] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&self.size.to_le_bytes());
        out.extend_from_slice(&self.blocks.to_le_bytes());
        for time in [self.accessed, self.modified, self.changed, self.created] {
            put_time(&mut out, time);
        }
        out.extend_from_slice(&self.rdev.to_le_bytes());
        out.extend_from_slice(&self.flags.to_le_bytes());
        for field in [self.parent.0, self.cookie, self.next_cookie] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        debug_assert_eq!(out.len(), Self::BYTES);
        out
    }

    /// The inode in `record`.
    pub fn decode(record: &[u8]) -> Result<InodeRecord> {
        let mut r = Reader::new("inode", record);
        let inode = InodeRecord {
            mode: r.u32()?,
            uid: r.u32()?,
            gid: r.u32()?,
            links: r.u32()?,
            size: r.bounded(FILE_SIZE_MAX)?,
            blocks: r.bounded(BLOCK_NUMBER_MAX)?,
            accessed: get_time(&mut r)?,
            modified: get_time(&mut r)?,
            changed: get_time(&mut r)?,
            created: get_time(&mut r)?,
            rdev: r.u32()?,
            flags: r.u32()?,
            parent: InodeNumber(r.number()?),
            cookie: r.number()?,
            next_cookie: r.number()?,
        };
        if FileKind::from_mode(inode.mode).is_none() || inode.links > LINKS_MAX {
            return Err(r.damaged());
        }
        r.end()?;
        Ok(inode)
    }
}

/// A directory entry found by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRecord {
    /// What it names.
    pub inode: InodeNumber,
    /// Its place in listings.
    pub cookie: u64,
    /// The inode's kind.
    pub kind: FileKind,
}

impl EntryRecord {
    /// Layout: inode, cookie, kind.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(17 + SEAL_BYTES);
        out.extend_from_slice(&self.inode.0.to_le_bytes());
        out.extend_from_slice(&self.cookie.to_le_bytes());
        out.push(self.kind as u8);
        out
    }

    /// The entry in `record`.
    pub fn decode(record: &[u8]) -> Result<EntryRecord> {
        let mut r = Reader::new("directory entry", record);
        let entry = EntryRecord {
            inode: InodeNumber(r.number()?),
            cookie: r.number()?,
            kind: FileKind::from_byte(r.u8()?).ok_or_else(|| r.damaged())?,
        };
        r.end()?;
        Ok(entry)
    }
}

/// A directory entry found by cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CookieRecord {
    /// What it names.
    pub inode: InodeNumber,
    /// The inode's kind.
    pub kind: FileKind,
    /// Its name.
    pub name: Vec<u8>,
}

impl CookieRecord {
    /// Layout: inode, kind, name.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(9 + self.name.len() + SEAL_BYTES);
        out.extend_from_slice(&self.inode.0.to_le_bytes());
        out.push(self.kind as u8);
        out.extend_from_slice(&self.name);
        out
    }

    /// The entry in `record`.
    pub fn decode(record: &[u8]) -> Result<CookieRecord> {
        let mut r = Reader::new("directory cookie", record);
        let inode = InodeNumber(r.number()?);
        let kind = FileKind::from_byte(r.u8()?).ok_or_else(|| r.damaged())?;
        let name = r.rest().to_vec();
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
            return Err(r.damaged());
        }
        Ok(CookieRecord { inode, kind, name })
    }
}

/// What a range of a file is. Holes have no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapRecord {
    /// Data: `length` bytes, beginning at block `first` of the extent at `extent`, which has `extent_blocks` blocks. What the
    /// last block holds behind `length` reads as zeros (D6).
    Written {
        /// Address of the extent's first block.
        extent: BlockAddress,
        /// First block of the extent that this range uses.
        first: u16,
        /// Blocks of the whole extent.
        extent_blocks: u16,
        /// Bytes.
        length: u64,
    },
    /// Preallocated: reads as zeros; the space for one write of it is promised.
    Unwritten {
        /// Bytes.
        length: u64,
    },
}

/// The address in file maps of data that a repair found lost: no store reaches it, so nothing of it can be read. It is no extent
/// and has no references.
pub const LOST: BlockAddress = BlockAddress(BLOCK_NUMBER_MAX);

impl MapRecord {
    /// Data of which nothing is left: reading it is an error, writing it anew cures it.
    pub fn lost(length: u64) -> MapRecord {
        MapRecord::Written { extent: LOST, first: 0, extent_blocks: EXTENT_BLOCKS_MAX as u16, length }
    }

    /// Is it that?
    pub fn is_lost(&self) -> bool {
        matches!(self, MapRecord::Written { extent: LOST, .. })
    }

    /// Bytes covered.
    pub fn length(&self) -> u64 {
        match self {
            MapRecord::Written { length, .. } | MapRecord::Unwritten { length } => *length,
        }
    }

    /// Layout: kind (1 written, 2 unwritten), length; written: extent, first, extent blocks.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(21 + SEAL_BYTES);
        match self {
            MapRecord::Written { extent, first, extent_blocks, length } => {
                out.push(1);
                out.extend_from_slice(&length.to_le_bytes());
                out.extend_from_slice(&extent.0.to_le_bytes());
                out.extend_from_slice(&first.to_le_bytes());
                out.extend_from_slice(&extent_blocks.to_le_bytes());
            }
            MapRecord::Unwritten { length } => {
                out.push(2);
                out.extend_from_slice(&length.to_le_bytes());
            }
        }
        out
    }

    /// The record in `record`; ranges are checked against the extent's length.
    pub fn decode(record: &[u8]) -> Result<MapRecord> {
        let mut r = Reader::new("file map", record);
        let kind = r.u8()?;
        let length = r.u64()?;
        let map = match kind {
            1 => {
                let extent = BlockAddress(r.bounded(BLOCK_NUMBER_MAX)?);
                let (first, extent_blocks) = (r.u16()?, r.u16()?);
                let blocks = length.div_ceil(BLOCK_SIZE);
                if u32::from(extent_blocks) > EXTENT_BLOCKS_MAX || u64::from(first) + blocks > u64::from(extent_blocks) {
                    return Err(r.damaged());
                }
                MapRecord::Written { extent, first, extent_blocks, length }
            }
            2 => MapRecord::Unwritten { length },
            _ => return Err(r.damaged()),
        };
        if length == 0 {
            return Err(r.damaged());
        }
        r.end()?;
        Ok(map)
    }
}

/// The algorithm id of crc32c in [`ExtentRecord`].
pub const ALGORITHM_CRC32C: u8 = 1;

/// An extent: written once, deleted once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentRecord {
    /// Checksum algorithm.
    pub algorithm: u8,
    /// The file it was written for (a hint for messages and repair).
    pub owner: InodeNumber,
    /// Byte offset in that file.
    pub owner_offset: u64,
    /// One checksum per block; as many as the extent has blocks.
    pub sums: Vec<u32>,
}

impl ExtentRecord {
    /// Layout: algorithm, owner, offset, then one checksum per block.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(17 + self.sums.len() * 4 + SEAL_BYTES);
        out.push(self.algorithm);
        out.extend_from_slice(&self.owner.0.to_le_bytes());
        out.extend_from_slice(&self.owner_offset.to_le_bytes());
        for sum in &self.sums {
            out.extend_from_slice(&sum.to_le_bytes());
        }
        out
    }

    /// The extent in `record`.
    pub fn decode(record: &[u8]) -> Result<ExtentRecord> {
        let mut r = Reader::new("extent", record);
        let algorithm = r.u8()?;
        let owner = InodeNumber(r.u64()?);
        let owner_offset = r.u64()?;
        let count = r.rest().len() / 4;
        if algorithm != ALGORITHM_CRC32C || count == 0 || count > EXTENT_BLOCKS_MAX as usize {
            return Err(r.damaged());
        }
        let mut sums = Vec::with_capacity(count);
        for _ in 0..count {
            sums.push(r.u32()?);
        }
        r.end()?;
        Ok(ExtentRecord { algorithm, owner, owner_offset, sums })
    }
}

/// Blocks of the extent in a stored (sealed) value, without opening it.
pub(crate) fn extent_blocks_of_sealed(value: &[u8]) -> u32 {
    (value.len().saturating_sub(SEAL_BYTES + 17) / 4) as u32
}

/// How often each block of an extent is referenced by file maps. Without a record every block has one reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentStateRecord {
    /// One count per block of the extent.
    pub references: Vec<u32>,
}

impl ExtentStateRecord {
    /// Layout: kind 1 and a bitmap when no count is above one, else kind 2 and a count per block.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(3 + 32 + SEAL_BYTES);
        let count = self.references.len() as u16;
        if self.references.iter().all(|count| *count <= 1) {
            out.push(1);
            out.extend_from_slice(&count.to_le_bytes());
            let mut bits = vec![0u8; self.references.len().div_ceil(8)];
            for (block, _) in self.references.iter().enumerate().filter(|(_, count)| **count == 1) {
                bits[block / 8] |= 1 << (block % 8);
            }
            out.extend_from_slice(&bits);
        } else {
            out.push(2);
            out.extend_from_slice(&count.to_le_bytes());
            for count in &self.references {
                out.extend_from_slice(&count.to_le_bytes());
            }
        }
        out
    }

    /// The state in `record`.
    pub fn decode(record: &[u8]) -> Result<ExtentStateRecord> {
        let mut r = Reader::new("extent state", record);
        let kind = r.u8()?;
        let count = usize::from(r.u16()?);
        if count == 0 || count > EXTENT_BLOCKS_MAX as usize {
            return Err(r.damaged());
        }
        let references = match kind {
            1 => {
                let bits = r.bytes(count.div_ceil(8))?;
                (0..count).map(|block| u32::from(bits.get(block / 8).is_some_and(|byte| byte >> (block % 8) & 1 == 1))).collect()
            }
            2 => {
                let mut references = Vec::with_capacity(count);
                for _ in 0..count {
                    references.push(r.u32()?);
                }
                references
            }
            _ => return Err(r.damaged()),
        };
        r.end()?;
        Ok(ExtentStateRecord { references })
    }
}

/// Why an inode is in the orphan table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrphanRecord {
    /// No name is left; the reaper deletes it when nobody has it open, and after a crash.
    Unlinked,
    /// Truncation to this size has begun; map records behind it are still to be deleted.
    Truncating {
        /// The size in bytes.
        size: u64,
    },
}

impl OrphanRecord {
    /// Layout: kind (1 unlinked, 2 truncating), size.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, size) = match self {
            OrphanRecord::Unlinked => (1u8, 0),
            OrphanRecord::Truncating { size } => (2, *size),
        };
        let mut out = vec![kind];
        out.extend_from_slice(&size.to_le_bytes());
        out
    }

    /// The orphan in `record`.
    pub fn decode(record: &[u8]) -> Result<OrphanRecord> {
        let mut r = Reader::new("orphan", record);
        let (kind, size) = (r.u8()?, r.u64()?);
        let orphan = match kind {
            1 => OrphanRecord::Unlinked,
            2 if size <= FILE_SIZE_MAX => OrphanRecord::Truncating { size },
            _ => return Err(r.damaged()),
        };
        r.end()?;
        Ok(orphan)
    }
}

/// Store-wide counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountersRecord {
    /// The number that the next new inode gets.
    pub next_inode: u64,
    /// Blocks promised to unwritten ranges of file maps.
    pub unwritten_blocks: u64,
}

impl CountersRecord {
    /// Layout: next inode, unwritten blocks.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 + SEAL_BYTES);
        out.extend_from_slice(&self.next_inode.to_le_bytes());
        out.extend_from_slice(&self.unwritten_blocks.to_le_bytes());
        out
    }

    /// The counters in `record`.
    pub fn decode(record: &[u8]) -> Result<CountersRecord> {
        let mut r = Reader::new("counters", record);
        let counters = CountersRecord { next_inode: r.number()?, unwritten_blocks: r.bounded(BLOCK_NUMBER_MAX)? };
        r.end()?;
        Ok(counters)
    }
}

/// Where replay of the journal starts: the last record that the index contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointRecord {
    /// Sequence number of the last transaction in the index.
    pub sequence: u64,
    /// Journal offset behind its record, where the next one begins (or at 0 after a wrap).
    pub journal_offset: u64,
    /// Checksum of its record, to which the next one is chained.
    pub record_checksum: u32,
}

impl CheckpointRecord {
    /// Layout: sequence, offset, checksum.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(20 + SEAL_BYTES);
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.journal_offset.to_le_bytes());
        out.extend_from_slice(&self.record_checksum.to_le_bytes());
        out
    }

    /// The checkpoint in `record`.
    pub fn decode(record: &[u8]) -> Result<CheckpointRecord> {
        let mut r = Reader::new("checkpoint", record);
        let checkpoint = CheckpointRecord { sequence: r.number()?, journal_offset: r.number()?, record_checksum: r.u32()? };
        r.end()?;
        Ok(checkpoint)
    }
}
