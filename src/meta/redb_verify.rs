//! Scrubbing the index disk: reads every header, table and page, both copies, and heals one from the other.
//!
//! A page with bad copies is not yet damage: after a power cut, pages that redb was writing for the next tree may match no checksum,
//! and stay like that until redb uses them. So pages are not judged here: the caller asks redb which ones it reaches
//! (`RedbIndex::verify`).
//!
//! The caller may go on reading and writing: each chunk is looked at under `writing`, in which checksums and disk agree.

use super::redb_backend::{Backend, read_header};
use super::redb_layout::{CHUNK_PAGES, Sums, decode_table, header_offset, page_offset, page_sum, table_offset};
use crate::disk::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::units::BLOCK;

/// Pages read at once.
const READ_PAGES: usize = 256;

/// Pages that do not match their checksums.
#[derive(Debug, Default)]
pub(super) struct Scrubbed {
    /// Page and the number of its bad copy, which was rewritten from the other one (not on a disk that is only read). Not counted.
    pub(super) mended: Vec<(u64, usize)>,
    /// Pages without a good copy, with the checksum they should have.
    pub(super) lost: Vec<(u64, u32)>,
}

impl Backend {
    /// Looks at everything as long as `goes_on`; None when that ended it. Damaged headers and tables are counted as healed.
    pub(super) fn scrub(&self, goes_on: &dyn Fn() -> bool) -> Result<Option<Scrubbed>> {
        self.scrub_headers()?;
        let mut found = Scrubbed::default();
        let mut buffers = [0, 1].map(|_| AlignedBuffer::filled_by(READ_PAGES * BLOCK, |_| ()));
        let mut chunk = 0;
        while chunk < self.state.lock().directory.len() {
            if !goes_on() {
                return Ok(None);
            }
            let _writing = self.writing.lock();
            self.scrub_chunk(chunk, &mut buffers, &mut found)?;
            chunk += 1;
        }
        Ok(Some(found))
    }

    fn scrub_headers(&self) -> Result<()> {
        let _writing = self.writing.lock();
        let generation = self.state.lock().durable.generation;
        let slots = [read_header(&*self.disk, 0), read_header(&*self.disk, 1)];
        let good = slots.iter().flatten().find(|header| header.generation == generation);
        let Some(good) = good.map(super::redb_layout::Header::encode) else {
            return Err(Error::corrupt(format!("both headers of the index on {}", self.disk.name())));
        };
        for (slot, header) in slots.iter().enumerate() {
            if header.as_ref().is_some_and(|header| header.generation == generation) {
                continue;
            }
            if header.is_none() {
                self.count_healed(1);
                tracing::warn!("{}: index header {slot} was damaged, the other one is good", self.disk.name());
            }
            if self.writable {
                // The next header goes here: the good slot stays until that one is durable.
                self.state.lock().durable.slot = slot ^ 1;
                self.disk.write_at(header_offset(slot), &good)?;
            }
        }
        Ok(())
    }

    fn scrub_chunk(&self, chunk: usize, buffers: &mut [AlignedBuffer; 2], found: &mut Scrubbed) -> Result<()> {
        let (place, sums) = {
            let mut state = self.state.lock();
            let Some(place) = state.place(chunk) else { return Ok(()) };
            (place, self.table(&mut state, chunk, place)?.sums.clone())
        };
        self.scrub_tables(chunk, place)?;
        for first in (0..CHUNK_PAGES).step_by(READ_PAGES) {
            self.scrub_pages(chunk, place, first, &sums, buffers, found);
        }
        Ok(())
    }

    /// The table in memory came from the disk or will be written; here only what lies in the two slots matters.
    fn scrub_tables(&self, chunk: usize, place: u32) -> Result<()> {
        let mut blocks = [vec![0u8; BLOCK], vec![0u8; BLOCK]];
        let mut good = [false; 2];
        for (slot, (block, good)) in blocks.iter_mut().zip(&mut good).enumerate() {
            *good = self.disk.read_at(table_offset(place, slot), block).is_ok() && decode_table(block, chunk).is_some();
        }
        let [first, second] = &blocks;
        let (bad, damaged, source) = match good {
            [true, true] => return Ok(()),
            [true, false] => (1, second, first),
            [false, true] => (0, first, second),
            // Placed a moment ago, not synced yet; or both damaged now, and then the next sync writes what is in memory.
            [false, false] => return Ok(()),
        };
        if damaged.iter().any(|byte| *byte != 0) {
            self.count_healed(1);
            tracing::warn!("{}: checksum table {bad} of index chunk {chunk} was damaged", self.disk.name());
        }
        if !self.writable {
            return Ok(());
        }
        // The next version goes here: the good slot stays until that one is durable.
        if let Some(Some(table)) = self.state.lock().tables.get_mut(chunk) {
            table.slot = bad ^ 1;
        }
        self.disk.write_at(table_offset(place, bad), source)
    }

    fn scrub_pages(
        &self,
        chunk: usize,
        place: u32,
        first: usize,
        sums: &Sums,
        buffers: &mut [AlignedBuffer; 2],
        found: &mut Scrubbed,
    ) {
        let sums = sums.get(first..CHUNK_PAGES.min(first + READ_PAGES)).unwrap_or_default();
        if sums.iter().all(|sum| *sum == 0) {
            return;
        }
        let mut good = [[false; READ_PAGES]; 2];
        for (copy, (buffer, good)) in buffers.iter_mut().zip(&mut good).enumerate() {
            let (bytes, _) = buffer.split_at_mut(sums.len() * BLOCK);
            let whole = self.disk.read_at(page_offset(place, copy, first), bytes).is_ok();
            for (at, (page, (good, sum))) in bytes.chunks_exact_mut(BLOCK).zip(good.iter_mut().zip(sums)).enumerate() {
                let readable = whole || (*sum != 0 && self.disk.read_at(page_offset(place, copy, first + at), page).is_ok());
                *good = readable && page_sum(page) == *sum;
            }
        }
        let [one, two] = buffers;
        let [good_one, good_two] = good;
        let copies = one.chunks_exact(BLOCK).zip(two.chunks_exact(BLOCK)).zip(good_one.into_iter().zip(good_two));
        for (at, (((one, two), good), sum)) in copies.zip(sums).enumerate().filter(|(_, (_, sum))| **sum != 0) {
            let page = (chunk * CHUNK_PAGES + first + at) as u64;
            let (bad, source) = match good {
                (true, true) => continue,
                (true, false) => (1, one),
                (false, true) => (0, two),
                (false, false) => {
                    found.lost.push((page, *sum));
                    continue;
                }
            };
            found.mended.push((page, bad));
            self.heal_page(page, bad, *sum, source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;
    use crate::disk::memory::MemoryDisk;
    use crate::disk::over::OverDisk;
    use crate::meta::redb_backend::{BackendHandle, Limits};
    use crate::units::BLOCK_SIZE;
    use parking_lot::Mutex;
    use redb::StorageBackend;
    use std::sync::Arc;

    type Act = Box<dyn FnOnce() + Send>;

    /// Memory that lets the test act right after the read of one place.
    struct Meddled {
        inner: MemoryDisk,
        after_read: Mutex<Option<(u64, Act)>>,
    }

    impl std::fmt::Debug for Meddled {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Meddled")
        }
    }

    impl OverDisk for Meddled {
        fn below(&self) -> &dyn Disk {
            &self.inner
        }

        fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
            self.inner.read_at(offset, into)?;
            let act = self.after_read.lock().take_if(|(place, _)| *place == offset);
            if let Some((_, act)) = act {
                act();
            }
            Ok(())
        }
    }

    #[test]
    fn a_page_written_anew_while_it_is_healed_keeps_its_new_bytes() {
        const PAGE: u64 = 5;
        let places = [0, 1].map(|copy| page_offset(0, copy, PAGE as usize));
        let disk = Arc::new(Meddled { inner: MemoryDisk::new("index", 0), after_read: Mutex::default() });
        let limits = Limits { places_ahead: 1, dirty_pages_max: 100 };
        let backend = Backend::create(disk.clone(), limits).unwrap();
        let writer = BackendHandle(Arc::clone(&backend));
        writer.set_len(20 * BLOCK_SIZE).unwrap();
        writer.write(PAGE * BLOCK_SIZE, &[1; BLOCK]).unwrap();
        writer.sync_data().unwrap();
        disk.inner.write_at(places[0], &[9; BLOCK]).unwrap();
        // The good copy has been read, the bad one is about to be healed.
        let write_anew = move || {
            writer.write(PAGE * BLOCK_SIZE, &[2; BLOCK]).unwrap();
            writer.sync_data().unwrap();
        };
        *disk.after_read.lock() = Some((places[1], Box::new(write_anew)));
        let mut found = [0; BLOCK];
        BackendHandle(Arc::clone(&backend)).read(PAGE * BLOCK_SIZE, &mut found).unwrap();
        assert_eq!((found[0], backend.healed()), (1, 1));
        assert!(disk.after_read.lock().is_none(), "the second copy was read");
        for (copy, place) in places.into_iter().enumerate() {
            disk.inner.read_at(place, &mut found).unwrap();
            assert_eq!(found, [2; BLOCK], "copy {copy}");
        }
    }
}
