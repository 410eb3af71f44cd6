//! The checksums of the format, written a second time: to make them right again over bytes that were changed.

use sumfs::disk::memory::MemoryImage;
use sumfs::meta::records::CheckpointRecord;
use sumfs::units::{BLOCK, BLOCK_SIZE};

const JOURNAL_MAGIC: &[u8; 8] = b"sumfsJR0";
const JOURNAL_HEADER_BYTES: usize = 64;
const JOURNAL_SUM_AT: usize = 60;

const CHUNK_PAGES: u64 = 1016;
const HEADER_SLOT_BYTES: u64 = 256 << 10;
const CHUNKS_START: u64 = 2 * HEADER_SLOT_BYTES;
const TABLE_SUM_AT: usize = 24;
const TABLE_SUMS_AT: usize = 32;
const CHUNK_BYTES: u64 = 2 * (CHUNK_PAGES + 1) * BLOCK_SIZE;

/// The checksum of superblocks and labels: in the last four bytes.
pub fn seal_block(block: &mut [u8]) {
    let sum = crc32c::crc32c(&block[..BLOCK - 4]);
    block[BLOCK - 4..].copy_from_slice(&sum.to_le_bytes());
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// The payloads of the records behind `tail`, with which the journal's header begins, in order.
pub fn journal_payloads(image: &MemoryImage, tail: CheckpointRecord) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    let (mut offset, mut sequence) = (tail.journal_offset, tail.sequence);
    loop {
        let found = [offset, 0].into_iter().find_map(|at| {
            let mut header = [0; JOURNAL_HEADER_BYTES];
            image.read(at, &mut header);
            let number = u64::from_le_bytes(header[24..32].try_into().expect("8 bytes"));
            (header.starts_with(JOURNAL_MAGIC) && number == sequence + 1).then(|| (at, u32_at(&header, 32) as usize))
        });
        let Some((at, bytes)) = found else { return payloads };
        let mut payload = vec![0; bytes];
        image.read(at + JOURNAL_HEADER_BYTES as u64, &mut payload);
        payloads.push(payload);
        sequence += 1;
        offset = at + 2 * ((JOURNAL_HEADER_BYTES + bytes) as u64).next_multiple_of(BLOCK_SIZE);
    }
}

/// Writes records with these payloads behind `tail`, each twice and chained; `change` sees every header and payload before it is sealed.
/// What does not fit the ring is left out.
pub fn write_journal(
    image: &mut MemoryImage,
    store_id: &[u8; 16],
    tail: CheckpointRecord,
    payloads: &[Vec<u8>],
    change: &mut dyn FnMut(usize, &mut [u8]),
) {
    let (mut offset, mut before) = (tail.journal_offset, tail.record_checksum);
    for (number, payload) in payloads.iter().enumerate() {
        let bytes = (JOURNAL_HEADER_BYTES + payload.len()).next_multiple_of(BLOCK);
        if offset.saturating_add(2 * bytes as u64) > image.len() {
            offset = 0;
        }
        if 2 * bytes as u64 > image.len() {
            return;
        }
        let mut record = vec![0; bytes];
        record[..8].copy_from_slice(JOURNAL_MAGIC);
        record[8..24].copy_from_slice(store_id);
        record[24..32].copy_from_slice(&tail.sequence.wrapping_add(1 + number as u64).to_le_bytes());
        record[32..36].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        record[36..40].copy_from_slice(&before.to_le_bytes());
        record[JOURNAL_HEADER_BYTES..JOURNAL_HEADER_BYTES + payload.len()].copy_from_slice(payload);
        change(number, &mut record);
        let end = (JOURNAL_HEADER_BYTES + u32_at(&record, 32) as usize).min(bytes);
        let sum = crc32c::crc32c_append(crc32c::crc32c(&record[..JOURNAL_SUM_AT]), &record[JOURNAL_HEADER_BYTES..end]);
        record[JOURNAL_SUM_AT..JOURNAL_HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
        image.write(offset, &record);
        image.write(offset + bytes as u64, &record);
        (offset, before) = (offset + 2 * bytes as u64, sum);
    }
}

/// Changes both slots of the index's header, sealed again.
pub fn change_index_header(image: &mut MemoryImage, change: &mut dyn FnMut(&mut [u8])) {
    for slot in 0..2 {
        let mut header = vec![0; HEADER_SLOT_BYTES as usize];
        image.read(slot * HEADER_SLOT_BYTES, &mut header);
        let bytes = u32_at(&header, 12) as usize;
        if !(8..=header.len()).contains(&bytes) {
            continue;
        }
        change(&mut header[..bytes - 4]);
        let bytes = (u32_at(&header, 12) as usize).clamp(8, header.len());
        let sum = crc32c::crc32c(&header[..bytes - 4]);
        header[bytes - 4..bytes].copy_from_slice(&sum.to_le_bytes());
        image.write(slot * HEADER_SLOT_BYTES, &header[..bytes]);
    }
}

/// Pages of the index that were written: place of the chunk, and number in it.
pub fn index_pages(image: &MemoryImage) -> Vec<(u64, usize)> {
    let mut pages = Vec::new();
    for place in 0..image.len().saturating_sub(CHUNKS_START) / CHUNK_BYTES {
        for slot in 0..2 {
            let mut table = vec![0; BLOCK];
            image.read(table_offset(place, slot), &mut table);
            let sums = table[TABLE_SUMS_AT..].chunks_exact(4).enumerate();
            pages.extend(sums.filter(|(_, sum)| sum.iter().any(|byte| *byte != 0)).map(|(page, _)| (place, page)));
        }
    }
    pages.sort_unstable();
    pages.dedup();
    pages
}

fn table_offset(place: u64, slot: u64) -> u64 {
    CHUNKS_START + place * CHUNK_BYTES + slot * (CHUNK_PAGES + 1) * BLOCK_SIZE
}

/// Changes both copies of a page of the index, with the checksum in both tables.
pub fn change_index_page(image: &mut MemoryImage, (place, page): (u64, usize), change: &mut dyn FnMut(&mut [u8])) {
    let mut bytes = vec![0; BLOCK];
    let at = |copy| table_offset(place, copy) + (1 + page as u64) * BLOCK_SIZE;
    image.read(at(0), &mut bytes);
    change(&mut bytes);
    let sum = crc32c::crc32c(&bytes).max(1).to_le_bytes();
    for slot in 0..2 {
        image.write(at(slot), &bytes);
        let mut table = vec![0; BLOCK];
        image.read(table_offset(place, slot), &mut table);
        let sum_at = TABLE_SUMS_AT + 4 * page;
        table[sum_at..sum_at + 4].copy_from_slice(&sum);
        table[TABLE_SUM_AT..TABLE_SUM_AT + 4].fill(0);
        let head = crc32c::crc32c(&table[..TABLE_SUM_AT]);
        let sum_of_table = crc32c::crc32c_append(head, &table[TABLE_SUM_AT + 4..]);
        table[TABLE_SUM_AT..TABLE_SUM_AT + 4].copy_from_slice(&sum_of_table.to_le_bytes());
        image.write(table_offset(place, slot), &table);
    }
}
