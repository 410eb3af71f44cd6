//! Where things lie on the index disk, and how they are encoded. Nothing here does I/O.
//!
//! redb sees a flat file of 4 KiB pages. On the disk that is
//!
//! ```text
//! header slot 0 | header slot 1 | chunk 0 | chunk 1 | ...
//! chunk:  table slot 0 | 1016 pages, copy 1 | table slot 1 | 1016 pages, copy 2
//! ```
//!
//! - A **header** holds a generation, redb's logical length, redb's page 0 and the directory. Page 0 is the only page redb
//!   rewrites in place; here it lives and changes together with the length, under one checksum, in two alternating slots.
//! - The **directory** says which chunk of the disk holds which 1016 pages of redb (0: none yet). A chunk gets its place when
//!   the first page in it is written, so that host space can be set aside for growth wherever redb puts its next page.
//! - A **table** holds one crc32c per page of its chunk, in two alternating slots with a generation. 0 means that the page was
//!   never written (a checksum that happens to be 0 is stored as 1).
//!
//! All numbers are little-endian. A slot that does not decode counts as absent.

use crate::units::{BLOCK, BLOCK_SIZE};

/// Pages in a chunk: as many as one table block has checksums for.
pub(super) const CHUNK_PAGES: usize = (BLOCK - TABLE_SUMS_AT) / 4;
/// Bytes of redb that one chunk holds.
pub(super) const CHUNK_DATA_BYTES: u64 = CHUNK_PAGES as u64 * BLOCK_SIZE;
/// Bytes of one chunk on the disk: two tables, two copies of each page.
pub(super) const CHUNK_BYTES: u64 = 2 * (CHUNK_DATA_BYTES + BLOCK_SIZE);
/// Bytes of one header slot.
pub(super) const HEADER_SLOT_BYTES: usize = 256 << 10;
/// Where chunk 0 begins.
pub(super) const CHUNKS_START: u64 = 2 * HEADER_SLOT_BYTES as u64;
/// Bytes of redb's page 0 that are kept; redb 4 uses 320, the rest reads as zeros.
pub(super) const PAGE_ZERO_BYTES: usize = 512;
/// The most chunks that the directory has room for (about 254 GiB of index).
pub(super) const CHUNKS_MAX: usize = (HEADER_SLOT_BYTES - HEADER_FIXED_BYTES - 4) / 4;

const HEADER_MAGIC: [u8; 8] = *b"sumfsIDX";
const HEADER_VERSION: u32 = 0;
const HEADER_FIXED_BYTES: usize = 40 + PAGE_ZERO_BYTES;
const TABLE_MAGIC: [u8; 8] = *b"sumfsSUM";
const TABLE_CHECKSUM_AT: usize = 24;
const TABLE_SUMS_AT: usize = 32;

/// Where header slot 0 or 1 begins.
pub(super) fn header_offset(slot: usize) -> u64 {
    slot as u64 * HEADER_SLOT_BYTES as u64
}

/// Where table slot 0 or 1 of the chunk in place `place` lies.
pub(super) fn table_offset(place: u32, slot: usize) -> u64 {
    CHUNKS_START + u64::from(place) * CHUNK_BYTES + slot as u64 * (CHUNK_DATA_BYTES + BLOCK_SIZE)
}

/// Where copy 0 or 1 of page `index` of the chunk in place `place` lies.
pub(super) fn page_offset(place: u32, copy: usize, index: usize) -> u64 {
    table_offset(place, copy) + BLOCK_SIZE + index as u64 * BLOCK_SIZE
}

/// Length of the disk when it has `places` chunks.
pub(super) fn disk_len(places: u32) -> u64 {
    CHUNKS_START + u64::from(places) * CHUNK_BYTES
}

/// Whole chunks on a disk of `len` bytes.
pub(super) fn places_in(len: u64) -> u32 {
    u32::try_from(len.saturating_sub(CHUNKS_START) / CHUNK_BYTES).unwrap_or(u32::MAX)
}

/// The chunk of a page and its place in it.
pub(super) fn chunk_of(page: u64) -> (usize, usize) {
    let pages = CHUNK_PAGES as u64;
    (usize::try_from(page / pages).unwrap_or(usize::MAX), (page % pages) as usize)
}

/// The checksum of a page as tables hold it: never 0.
pub(super) fn page_sum(page: &[u8]) -> u32 {
    crc32c::crc32c(page).max(1)
}

/// What a header slot says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Counts up; the higher of two valid slots is the current one.
    pub(super) generation: u64,
    /// Bytes redb last set as the length of its file.
    pub(super) length: u64,
    /// The beginning of redb's page 0.
    pub(super) page_zero: [u8; PAGE_ZERO_BYTES],
    /// Place of each chunk plus one; 0 for a chunk without a written page.
    pub(super) directory: Vec<u32>,
}

impl Header {
    /// The slot, in whole blocks. Layout: magic, version, bytes, generation, length, entries of the directory, 4 unused bytes,
    /// page 0, directory, checksum.
    pub(super) fn encode(&self) -> Vec<u8> {
        let bytes = HEADER_FIXED_BYTES + self.directory.len() * 4 + 4;
        let mut out = Vec::with_capacity(bytes.next_multiple_of(BLOCK));
        out.extend_from_slice(&HEADER_MAGIC);
        out.extend_from_slice(&HEADER_VERSION.to_le_bytes());
        out.extend_from_slice(&(bytes as u32).to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&self.length.to_le_bytes());
        out.extend_from_slice(&(self.directory.len() as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.page_zero);
        for entry in &self.directory {
            out.extend_from_slice(&entry.to_le_bytes());
        }
        out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
        out.resize(out.len().next_multiple_of(BLOCK), 0);
        out
    }

    /// Bytes of the slot that begins with `first`, if that can be a header at all.
    pub(super) fn encoded_bytes(first: &[u8]) -> Option<usize> {
        if first.get(..8)? != HEADER_MAGIC || u32_at(first, 8)? != HEADER_VERSION {
            return None;
        }
        let bytes = u32_at(first, 12)? as usize;
        (HEADER_FIXED_BYTES + 4..=HEADER_SLOT_BYTES).contains(&bytes).then_some(bytes)
    }

    /// The header in `slot`.
    pub(super) fn decode(slot: &[u8]) -> Option<Header> {
        let bytes = Header::encoded_bytes(slot)?;
        let entries = u32_at(slot, 32)? as usize;
        if bytes != HEADER_FIXED_BYTES + entries.checked_mul(4)? + 4 {
            return None;
        }
        let (body, checksum) = (slot.get(..bytes - 4)?, u32_at(slot, bytes - 4)?);
        if crc32c::crc32c(body) != checksum {
            return None;
        }
        let length = u64_at(slot, 24)?;
        if length > CHUNKS_MAX as u64 * CHUNK_DATA_BYTES {
            return None;
        }
        let directory = body.get(HEADER_FIXED_BYTES..)?.chunks_exact(4).map(|entry| u32_at(entry, 0)).collect::<Option<_>>()?;
        Some(Header {
            generation: u64_at(slot, 16)?,
            length,
            page_zero: slot.get(40..40 + PAGE_ZERO_BYTES)?.try_into().ok()?,
            directory,
        })
    }
}

/// The checksums of one chunk's pages.
pub(super) type Sums = Box<[u32; CHUNK_PAGES]>;

/// Checksums of a chunk without a written page.
pub(super) fn no_sums() -> Sums {
    Box::new([0; CHUNK_PAGES])
}

/// A table block. Layout: magic, generation, chunk, 4 unused bytes, checksum, 4 unused bytes, checksums of the pages.
pub(super) fn encode_table(generation: u64, chunk: usize, sums: &[u32; CHUNK_PAGES]) -> Vec<u8> {
    let mut out = Vec::with_capacity(BLOCK);
    out.extend_from_slice(&TABLE_MAGIC);
    out.extend_from_slice(&generation.to_le_bytes());
    out.extend_from_slice(&(chunk as u32).to_le_bytes());
    out.extend_from_slice(&[0; TABLE_SUMS_AT - 20]);
    for sum in sums {
        out.extend_from_slice(&sum.to_le_bytes());
    }
    let checksum = table_checksum(&out).unwrap_or_default().to_le_bytes();
    out.splice(TABLE_CHECKSUM_AT..TABLE_CHECKSUM_AT + 4, checksum);
    out
}

/// Generation and checksums of the table block of `chunk`; None when it is damaged, absent or of another chunk.
pub(super) fn decode_table(block: &[u8], chunk: usize) -> Option<(u64, Sums)> {
    if block.get(..8)? != TABLE_MAGIC || u32_at(block, 16)? as usize != chunk {
        return None;
    }
    if table_checksum(block)? != u32_at(block, TABLE_CHECKSUM_AT)? {
        return None;
    }
    let mut sums = no_sums();
    for (sum, bytes) in sums.iter_mut().zip(block.get(TABLE_SUMS_AT..)?.chunks_exact(4)) {
        *sum = u32_at(bytes, 0)?;
    }
    Some((u64_at(block, 8)?, sums))
}

/// Over the block without the checksum itself.
fn table_checksum(block: &[u8]) -> Option<u32> {
    let before = crc32c::crc32c(block.get(..TABLE_CHECKSUM_AT)?);
    Some(crc32c::crc32c_append(before, block.get(TABLE_CHECKSUM_AT + 4..BLOCK)?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_back_and_every_flipped_byte_shows() {
        for entries in [0, 3, 2000, CHUNKS_MAX] {
            let directory = (0..entries as u32).collect();
            let header = Header { generation: 7, length: 99 << 12, page_zero: [5; PAGE_ZERO_BYTES], directory };
            let mut slot = header.encode();
            assert!(slot.len() <= HEADER_SLOT_BYTES && slot.len().is_multiple_of(BLOCK));
            assert_eq!(Header::decode(&slot).as_ref(), Some(&header));
            let bytes = HEADER_FIXED_BYTES + entries * 4 + 4;
            for at in (0..bytes).step_by(1 + bytes / 700) {
                slot[at] ^= 0x10;
                assert_eq!(Header::decode(&slot), None, "byte {at} of {bytes}");
                slot[at] ^= 0x10;
            }
        }
    }

    #[test]
    fn a_length_beyond_the_directory_is_no_header() {
        let header = |length| Header { generation: 7, length, page_zero: [5; PAGE_ZERO_BYTES], directory: vec![1] };
        let longest = CHUNKS_MAX as u64 * CHUNK_DATA_BYTES;
        assert!(Header::decode(&header(longest).encode()).is_some());
        for length in [longest + 1, u64::MAX] {
            assert_eq!(Header::decode(&header(length).encode()), None);
        }
    }

    #[test]
    fn a_table_reads_back_and_every_flipped_byte_shows() {
        let mut sums = no_sums();
        for (at, sum) in sums.iter_mut().enumerate() {
            *sum = at as u32 * 77;
        }
        let mut block = encode_table(9, 4, &sums);
        assert_eq!(block.len(), BLOCK);
        assert_eq!(decode_table(&block, 4), Some((9, sums)));
        assert_eq!(decode_table(&block, 5), None, "a table of another chunk");
        for at in 0..BLOCK {
            block[at] ^= 0x10;
            assert_eq!(decode_table(&block, 4), None, "byte {at}");
            block[at] ^= 0x10;
        }
    }

    #[test]
    fn nothing_overlaps() {
        assert_eq!(CHUNK_PAGES, 1016);
        assert_eq!(page_offset(0, 0, CHUNK_PAGES), table_offset(0, 1));
        assert_eq!(page_offset(0, 1, CHUNK_PAGES), table_offset(1, 0));
        assert_eq!(disk_len(1), table_offset(1, 0));
        assert_eq!(places_in(disk_len(3)), 3);
        assert_eq!(places_in(disk_len(3) - 1), 2);
        assert_eq!(chunk_of(CHUNK_PAGES as u64), (1, 0));
    }
}
