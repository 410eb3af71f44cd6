//! The journal: a preallocated, zero-filled ring of records, each on its own 4 KiB blocks, each written twice in one write, so
//! that a flipped byte is healed from the copy. A record is chained to the one before by that one's checksum; the ring never
//! splits one: what does not fit before the end begins again at offset 0.
//!
//! Header, 64 bytes: magic 8, store id 16, sequence 8, payload bytes 4, previous checksum 4, flags 4, reserved 16, checksum 4
//! (over the header before it and the payload).

use crate::disk::Disk;
use crate::disk::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::meta::records::CheckpointRecord;
use crate::units::{BLOCK_NUMBER_MAX, BLOCK_SIZE, NUMBER_MAX, block_floor};
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"sumfsJR0";
const HEADER_BYTES: usize = 64;
const CHECKSUM_AT: usize = 60;
/// How many times the ring's bytes are read in search of one record.
const READ_RINGS_MAX: u64 = 4;

/// A position: where the record after `sequence` begins, and what it is chained to.
pub(crate) type Position = CheckpointRecord;

/// The ring. Not locked: the commit role owns it.
#[derive(Debug)]
pub(crate) struct Journal {
    disk: Arc<dyn Disk>,
    store_id: [u8; 16],
    len: u64,
    head: Position,
    /// What `headers` found; the ring does not change while it is replayed.
    headers: Option<Arc<Vec<(u64, Header)>>>,
    /// Copies that were bad when read.
    pub(crate) healed: u64,
}

/// What reading at a position gave.
pub(crate) enum Found {
    /// The next record, with its payload and the position behind it.
    Record(Vec<u8>, Position),
    /// The end: nothing valid follows.
    End,
    /// The next record is bad although a later one is valid.
    Damaged {
        /// Sequence number of the record that is missing.
        sequence: u64,
    },
}

/// Bytes that a record with `payload` bytes takes, both copies.
pub(crate) fn record_bytes(payload: usize) -> u64 {
    copy_bytes(payload) * 2
}

/// Bytes of a ring of `len` bytes between two positions, the gap at its end included.
pub(crate) fn used_between(len: u64, tail: Position, head: Position) -> u64 {
    if tail.sequence == head.sequence {
        0
    } else if head.journal_offset > tail.journal_offset {
        head.journal_offset - tail.journal_offset
    } else {
        len - tail.journal_offset + head.journal_offset
    }
}

fn copy_bytes(payload: usize) -> u64 {
    ((HEADER_BYTES + payload) as u64).next_multiple_of(BLOCK_SIZE)
}

impl Journal {
    pub(crate) fn new(disk: Arc<dyn Disk>, store_id: [u8; 16], head: Position) -> Result<Journal> {
        let len = block_floor(disk.len()?);
        if head.journal_offset > len || !head.journal_offset.is_multiple_of(BLOCK_SIZE) {
            let at = head.journal_offset;
            return Err(Error::corrupt(format!("the checkpoint names offset {at} of the journal, which has {len} bytes")));
        }
        Ok(Journal { disk, store_id, len, head, headers: None, healed: 0 })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn head(&self) -> Position {
        self.head
    }

    /// Goes on appending behind `head`.
    pub(crate) fn set_head(&mut self, head: Position) {
        self.head = head;
    }

    /// A position that no record in the ring follows: the head, or one behind the numbers of all whole records that are there.
    pub(crate) fn position_behind_all(&mut self) -> Result<Position> {
        let head = self.head;
        // A record takes two blocks at least; what has a higher number was never written here.
        let highest = head.sequence.saturating_add(self.len / (2 * BLOCK_SIZE) + 1).min(NUMBER_MAX - 1);
        let headers = self.headers()?;
        let behind = headers.iter().map(|(_, header)| header.sequence).filter(|sequence| *sequence <= highest).max();
        Ok(match behind.filter(|sequence| *sequence > head.sequence) {
            None => head,
            Some(sequence) => Position { sequence, journal_offset: 0, record_checksum: !head.record_checksum },
        })
    }

    fn place(&self, offset: u64, bytes: u64) -> u64 {
        if offset + bytes > self.len { 0 } else { offset }
    }

    /// Bytes between a checkpoint and the head, the gap at the ring's end included.
    pub(crate) fn used_since(&self, tail: Position) -> u64 {
        used_between(self.len, tail, self.head)
    }

    /// Writes the next record and flushes. The caller has made sure of the room.
    pub(crate) fn append(&mut self, payload: &[u8]) -> Result<Position> {
        self.headers = None;
        let bytes = copy_bytes(payload.len());
        let offset = self.place(self.head.journal_offset, bytes * 2);
        let sequence = self.head.sequence + 1;
        let mut checksum = 0;
        let record = AlignedBuffer::filled_by(bytes as usize, |buffer| {
            let (header, rest) = buffer.split_at_mut(HEADER_BYTES);
            header.fill(0);
            header[0..8].copy_from_slice(MAGIC);
            header[8..24].copy_from_slice(&self.store_id);
            header[24..32].copy_from_slice(&sequence.to_le_bytes());
            header[32..36].copy_from_slice(&(payload.len() as u32).to_le_bytes());
            header[36..40].copy_from_slice(&self.head.record_checksum.to_le_bytes());
            checksum = crc32c::crc32c_append(crc32c::crc32c(&header[..CHECKSUM_AT]), payload);
            header[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
            rest[..payload.len()].copy_from_slice(payload);
            rest[payload.len()..].fill(0);
        });
        self.disk.write_vectored_at(offset, &[&record, &record])?;
        self.disk.flush()?;
        self.head = Position { sequence, journal_offset: offset + bytes * 2, record_checksum: checksum };
        Ok(self.head)
    }

    /// Reads the record that follows `at`.
    pub(crate) fn read_next(&mut self, at: Position) -> Result<Found> {
        let mut budget = self.len.saturating_mul(READ_RINGS_MAX);
        for offset in [at.journal_offset, 0] {
            if let Some((payload, checksum, bytes)) = self.read_copy(offset, at, &mut budget)? {
                if self.read_copy(offset + bytes, at, &mut budget)?.is_none() {
                    self.healed += 1;
                    let second = offset + bytes;
                    tracing::warn!("journal record {}: second copy at {second} is bad, the first is good", at.sequence + 1);
                }
                // A ring that was made shorter may have lost the second copy.
                let journal_offset = (offset + bytes * 2).min(self.len);
                return Ok(Found::Record(
                    payload,
                    Position { sequence: at.sequence + 1, journal_offset, record_checksum: checksum },
                ));
            }
        }
        // How long a bad first copy was, only the second one's header can tell.
        let headers = self.headers()?;
        for (second, _) in headers.iter().filter(|(_, header)| header.follows(at)) {
            if let Some((payload, checksum, bytes)) = self.read_copy(*second, at, &mut budget)?
                && [at.journal_offset, 0].iter().any(|first| first + bytes == *second)
            {
                self.healed += 1;
                let first = second - bytes;
                tracing::warn!("journal record {}: copy at {first} is bad, read from the second copy", at.sequence + 1);
                let journal_offset = second + bytes;
                return Ok(Found::Record(
                    payload,
                    Position { sequence: at.sequence + 1, journal_offset, record_checksum: checksum },
                ));
            }
        }
        for (offset, header) in headers.iter().filter(|(_, header)| header.sequence > at.sequence.saturating_add(1)) {
            let before =
                Position { sequence: header.sequence.wrapping_sub(1), journal_offset: *offset, record_checksum: header.previous };
            // So many bad records are no end that a crash could leave.
            if self.read_copy(*offset, before, &mut budget)?.is_some() || budget == 0 {
                return Ok(Found::Damaged { sequence: at.sequence + 1 });
            }
        }
        Ok(Found::End)
    }

    /// Every block of the ring that looks like the begin of a record of this store. The ring is read once, in large pieces, and only
    /// when the next record is not where it should be.
    fn headers(&mut self) -> Result<Arc<Vec<(u64, Header)>>> {
        const PIECE_BYTES: u64 = 1 << 20;
        if let Some(headers) = &self.headers {
            return Ok(headers.clone());
        }
        let mut headers = Vec::new();
        let mut piece_at = 0;
        while piece_at < self.len {
            let mut piece = AlignedBuffer::zeroed(PIECE_BYTES.min(self.len - piece_at) as usize);
            self.disk.read_at(piece_at, &mut piece)?;
            let blocks = piece.chunks(BLOCK_SIZE as usize).enumerate();
            headers.extend(blocks.filter_map(|(block, bytes)| {
                Some((piece_at + block as u64 * BLOCK_SIZE, Header::parse(bytes, &self.store_id)?))
            }));
            piece_at += PIECE_BYTES;
        }
        Ok(self.headers.insert(Arc::new(headers)).clone())
    }

    /// The copy at `offset`, if it is whole and follows `at`. Its bytes come out of `budget`: headers are easily forged, each of them with a
    /// long record to be read and found bad.
    fn read_copy(&self, offset: u64, at: Position, budget: &mut u64) -> Result<Option<(Vec<u8>, u32, u64)>> {
        let Some(header) = self.read_header(offset)? else { return Ok(None) };
        if !header.follows(at) {
            return Ok(None);
        }
        let bytes = copy_bytes(header.payload as usize);
        if offset + bytes > self.len {
            return Ok(None);
        }
        let Some(left) = budget.checked_sub(bytes) else {
            *budget = 0;
            return Ok(None);
        };
        *budget = left;
        let mut record = AlignedBuffer::zeroed(bytes as usize);
        self.disk.read_at(offset, &mut record)?;
        let payload = record.get(HEADER_BYTES..HEADER_BYTES + header.payload as usize);
        let (Some(payload), Some(head)) = (payload, record.get(..CHECKSUM_AT)) else { return Ok(None) };
        let found = crc32c::crc32c_append(crc32c::crc32c(head), payload);
        Ok((found == header.checksum).then(|| (payload.to_vec(), found, bytes)))
    }

    fn read_header(&self, offset: u64) -> Result<Option<Header>> {
        if offset + BLOCK_SIZE > self.len {
            return Ok(None);
        }
        let mut block = AlignedBuffer::zeroed(BLOCK_SIZE as usize);
        self.disk.read_at(offset, &mut block)?;
        Ok(Header::parse(&block, &self.store_id))
    }
}

#[derive(Clone, Copy, Debug)]
struct Header {
    sequence: u64,
    payload: u32,
    previous: u32,
    checksum: u32,
}

impl Header {
    fn follows(&self, at: Position) -> bool {
        at.sequence.checked_add(1) == Some(self.sequence) && self.previous == at.record_checksum
    }

    fn parse(block: &[u8], store_id: &[u8; 16]) -> Option<Header> {
        let number = |at: usize| Some(u32::from_le_bytes(block.get(at..at + 4)?.try_into().ok()?));
        if block.get(..8)? != MAGIC || block.get(8..24)? != store_id {
            return None;
        }
        Some(Header {
            sequence: u64::from_le_bytes(block.get(24..32)?.try_into().ok()?),
            payload: number(32)?,
            previous: number(36)?,
            checksum: number(CHECKSUM_AT)?,
        })
    }
}

/// Payload of a record: block changes and metadata changes of one transaction.
#[derive(Debug, Default)]
pub(crate) struct Payload {
    /// Blocks that the transaction put to use: first block, count.
    pub(crate) allocated: Vec<(u64, u32)>,
    /// Blocks that it freed.
    pub(crate) freed: Vec<(u64, u32)>,
    /// Sealed values.
    pub(crate) changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// Encodes a payload: counts, ranges, then key length, value length (u32::MAX deletes), key, value.
pub(crate) fn encode<'a>(
    allocated: &[(u64, u32)],
    freed: &[(u64, u32)],
    changes: impl Iterator<Item = (&'a Vec<u8>, &'a Option<Vec<u8>>)>,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + changes.size_hint().0 * 96);
    for list in [allocated, freed] {
        out.extend_from_slice(&(list.len() as u32).to_le_bytes());
        for (block, count) in list {
            out.extend_from_slice(&block.to_le_bytes());
            out.extend_from_slice(&count.to_le_bytes());
        }
    }
    let count_at = out.len();
    out.extend_from_slice(&0u32.to_le_bytes());
    let mut count = 0u32;
    for (key, value) in changes {
        count += 1;
        out.extend_from_slice(&(key.len() as u32).to_le_bytes());
        let length = value.as_ref().map_or(u32::MAX, |value| value.len() as u32);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(value.as_deref().unwrap_or_default());
    }
    if let Some(place) = out.get_mut(count_at..count_at + 4) {
        place.copy_from_slice(&count.to_le_bytes());
    }
    out
}

/// Decodes what `encode` made.
pub(crate) fn decode(payload: &[u8]) -> Result<Payload> {
    let mut rest = payload;
    let mut out = Payload::default();
    let mut take = |count: usize| -> Result<&[u8]> {
        let (head, tail) = rest.split_at_checked(count).ok_or_else(|| Error::corrupt("journal record has a wrong layout"))?;
        rest = tail;
        Ok(head)
    };
    fn u32_of(bytes: &[u8]) -> u32 {
        bytes.try_into().map_or(0, u32::from_le_bytes)
    }
    for list in [&mut out.allocated, &mut out.freed] {
        for _ in 0..u32_of(take(4)?) {
            let block = take(8)?.try_into().map_or(0, u64::from_le_bytes);
            if block > BLOCK_NUMBER_MAX {
                return Err(Error::corrupt("a journal record names a block that no store has"));
            }
            list.push((block, u32_of(take(4)?)));
        }
    }
    for _ in 0..u32_of(take(4)?) {
        let (key, value) = (u32_of(take(4)?), u32_of(take(4)?));
        let key = take(key as usize)?.to_vec();
        let value = if value == u32::MAX { None } else { Some(take(value as usize)?.to_vec()) };
        out.changes.push((key, value));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::memory::MemoryDisk;
    use crate::disk::over::OverDisk;
    use std::sync::atomic::{AtomicU64, Ordering};

    const STORE: [u8; 16] = [7; 16];
    const LEN: u64 = 4 << 20;

    /// Counts the bytes read.
    #[derive(Debug)]
    struct Counting(MemoryDisk, AtomicU64);

    impl OverDisk for Counting {
        fn below(&self) -> &dyn Disk {
            &self.0
        }

        fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
            self.1.fetch_add(into.len() as u64, Ordering::Relaxed);
            self.0.read_at(offset, into)
        }
    }

    /// A header of a record with the rest of the ring as its payload, and a wrong checksum, in every block.
    fn ring_of_forged_headers(sequence: u64) -> Arc<Counting> {
        let disk = MemoryDisk::new("journal", LEN);
        for offset in (0..LEN).step_by(BLOCK_SIZE as usize) {
            let mut header = [0; HEADER_BYTES];
            header[..8].copy_from_slice(MAGIC);
            header[8..24].copy_from_slice(&STORE);
            header[24..32].copy_from_slice(&sequence.to_le_bytes());
            let payload = (LEN - offset) as u32 - HEADER_BYTES as u32;
            header[32..36].copy_from_slice(&payload.to_le_bytes());
            disk.write_at(offset, &header).unwrap();
        }
        Arc::new(Counting(disk, AtomicU64::new(0)))
    }

    #[test]
    fn a_ring_of_forged_headers_is_damage_and_read_only_a_few_times() {
        for sequence in [1, 2, 50, u64::MAX] {
            let disk = ring_of_forged_headers(sequence);
            let mut journal = Journal::new(disk.clone(), STORE, Position::default()).unwrap();
            let found = journal.read_next(Position::default()).unwrap();
            assert!(!matches!(found, Found::Record(..)));
            assert_eq!(matches!(found, Found::Damaged { .. }), sequence > 1, "records {sequence}");
            let rings = disk.1.load(Ordering::Relaxed) / LEN;
            assert!(rings <= 4 * READ_RINGS_MAX, "records {sequence}: the ring was read {rings} times");
        }
    }

    #[test]
    fn a_position_outside_the_ring_is_damage() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new("journal", LEN));
        for journal_offset in [LEN + BLOCK_SIZE, 100, i64::MAX as u64 / BLOCK_SIZE * BLOCK_SIZE] {
            let position = Position { sequence: 3, journal_offset, record_checksum: 0 };
            assert!(matches!(Journal::new(disk.clone(), STORE, position), Err(Error::Corrupt(_))), "{journal_offset}");
        }
        let position = Position { sequence: 3, journal_offset: LEN, record_checksum: 0 };
        assert!(Journal::new(disk, STORE, position).is_ok(), "behind a record that fills the ring to its end");
    }

    #[test]
    fn behind_a_record_whose_second_copy_was_cut_off_the_ring_begins_again() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new("journal", LEN));
        let mut journal = Journal::new(disk.clone(), STORE, Position::default()).unwrap();
        let bytes = 20 * BLOCK_SIZE;
        journal.append(&vec![1; bytes as usize - HEADER_BYTES]).unwrap();
        disk.set_len(bytes + 100).unwrap();
        let mut journal = Journal::new(disk, STORE, Position::default()).unwrap();
        let Found::Record(payload, behind) = journal.read_next(Position::default()).unwrap() else { panic!("no record") };
        assert_eq!((payload.len() as u64, behind.journal_offset), (bytes - HEADER_BYTES as u64, bytes));
        journal.set_head(behind);
        assert!(journal.used_since(Position::default()) <= journal.len());
        assert_eq!(journal.append(&[5; 100]).unwrap().journal_offset, 2 * BLOCK_SIZE);
    }

    #[test]
    fn blocks_that_no_store_has_are_damage() {
        let none: std::collections::BTreeMap<Vec<u8>, Option<Vec<u8>>> = Default::default();
        for block in [u64::MAX, u64::MAX - 3, BLOCK_NUMBER_MAX + 1] {
            assert!(matches!(decode(&encode(&[(block, 5)], &[], none.iter())), Err(Error::Corrupt(_))), "{block}");
            assert!(matches!(decode(&encode(&[], &[(block, 5)], none.iter())), Err(Error::Corrupt(_))), "{block}");
        }
        assert_eq!(decode(&encode(&[(9, 5)], &[], none.iter())).unwrap().allocated, [(9, 5)]);
    }
}
