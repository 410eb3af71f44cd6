//! Writing the index disk, and why it survives a power cut at any moment.
//!
//! redb is copy-on-write: a page that its durable tree reaches is not written again before a later tree is durable. In redb 4.6:
//! a durable commit frees only pages that a tree at or before the last durable one stopped using (`process_freed_pages`; every
//! commit without durability pins its durable ancestor); such commits reclaim only pages that no durable commit knew
//! (`free_if_unpersisted`); what a commit's system tables give up is freed after its last sync; the saved allocator state is a
//! table written anew, in new pages, by each commit; and regions have no headers on the disk (`NO_HEADER`). Only page 0 is rewritten
//! in place: 320 bytes with two roots and a byte that says which of them counts.
//!
//! A sync with generation g+1 (g: that of the durable header) does
//!
//! 1. dirty pages to both copies; changed tables, with g+1, to the slot that does not hold their newest durable version
//! 2. **flush**
//! 3. a header with g+1, page 0, length and directory to the older header slot
//! 4. **flush**: now the new page 0 counts
//! 5. tables and header once more, to the other slots. These are durable only after a later flush, and the next sync writes to
//!    exactly these slots, so one good slot is never touched
//!
//! A cut before 4 is complete leaves the header g (or the whole of g+1: a header is valid only if all of it is there). The tree
//! of g is intact: none of its pages was written. Of each table the newest durable version (at most g) is still there, and a version
//! g+1, should it survive, was made from that one by changing only checksums of pages outside the tree. So it does not matter which
//! versions of which tables survive, and the newest valid one is taken. Pages outside the tree may match nothing; redb does not
//! read them before it has written them again (`redb_verify.rs` asks redb about those). Opening jumps to g+2 before anything
//! else is written, so a generation never names two versions of a table.
//!
//! With two flushes the order does not lean on redb's two phases: sync is atomic. One would do for the first phase of a commit,
//! whose page 0 still names the old root, but that would have to be read from redb's format to save some 0.2 ms in the background.
//!
//! Pages written out early, when too many are dirty, are outside the durable tree as well; their checksums follow at the sync.

use super::redb_backend::{Backend, State};
use super::redb_layout::{
    CHUNK_PAGES, Header, PAGE_ZERO_BYTES, chunk_of, encode_table, header_offset, page_offset, page_sum, table_offset,
};
use crate::disk::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::units::{BLOCK, BLOCK_SIZE};
use std::sync::Arc;

/// Pages gathered for one write.
const GATHER_PAGES: usize = 256;

/// A table on its way to the disk.
struct TableWrite {
    place: u32,
    slot: usize,
    block: Vec<u8>,
}

impl Backend {
    /// Makes everything written before durable, in one atomic step.
    pub(super) fn sync(&self) -> Result<()> {
        let _writing = self.writing.lock();
        // Before the dirty pages are taken: page 0 may be older than the pages on the disk, not newer.
        let (length, page_zero, changed) = {
            let mut state = self.state.lock();
            (state.length, state.page_zero, std::mem::take(&mut state.header_changed))
        };
        self.write_out()?;
        let (generation, slot, tables) = {
            let mut state = self.state.lock();
            let generation = state.durable.generation + 1;
            (generation, state.durable.slot ^ 1, self.take_dirty_tables(&mut state, generation))
        };
        if !changed && tables.is_empty() {
            return Ok(());
        }
        for table in &tables {
            self.disk.write_at(table_offset(table.place, table.slot), &table.block)?;
        }
        if !tables.is_empty() {
            self.disk.flush()?;
        }
        let header = self.write_header(generation, slot, length, page_zero)?;
        for table in &tables {
            self.disk.write_at(table_offset(table.place, table.slot ^ 1), &table.block)?;
        }
        self.disk.write_at(header_offset(slot ^ 1), &header)?;
        self.state.lock().space.reuse_released();
        self.keep_ahead();
        Ok(())
    }

    /// Makes a header durable in `slot` and the current one; its bytes.
    fn write_header(&self, generation: u64, slot: usize, length: u64, page_zero: [u8; PAGE_ZERO_BYTES]) -> Result<Vec<u8>> {
        let directory = self.state.lock().directory.clone();
        let bytes = Header { generation, length, page_zero, directory }.encode();
        self.disk.write_at(header_offset(slot), &bytes)?;
        self.disk.flush()?;
        let durable = &mut self.state.lock().durable;
        durable.generation = generation;
        durable.slot = slot;
        durable.length = length;
        durable.page_zero = page_zero;
        Ok(bytes)
    }

    /// Puts the generation past everything that a power cut may have left on the disk: that is at most one above the header's.
    pub(super) fn begin_generation(&self) -> Result<()> {
        let _writing = self.writing.lock();
        let (generation, slot, length, page_zero) = {
            let state = self.state.lock();
            (state.durable.generation + 2, state.durable.slot ^ 1, state.length, state.page_zero)
        };
        let header = self.write_header(generation, slot, length, page_zero)?;
        self.disk.write_at(header_offset(slot ^ 1), &header)
    }

    fn take_dirty_tables(&self, state: &mut State, generation: u64) -> Vec<TableWrite> {
        let State { tables, directory, .. } = state;
        let mut writes = Vec::new();
        for (chunk, (table, entry)) in tables.iter_mut().zip(directory.iter()).enumerate() {
            if let (Some(table), Some(place)) = (table, entry.checked_sub(1))
                && table.dirty
            {
                table.dirty = false;
                table.slot ^= 1;
                writes.push(TableWrite { place, slot: table.slot, block: encode_table(generation, chunk, &table.sums) });
            }
        }
        writes
    }

    /// Writes all dirty pages to both copies, without a flush. The caller holds `writing`.
    pub(super) fn write_out(&self) -> Result<()> {
        let leaving = {
            let mut state = self.state.lock();
            let mut pages: Vec<_> = state.dirty.drain().collect();
            pages.sort_unstable_by_key(|(page, _)| *page);
            state.leaving = Arc::new(pages);
            Arc::clone(&state.leaving)
        };
        if leaving.is_empty() {
            return Ok(());
        }
        let mut gathered = AlignedBuffer::filled_by(GATHER_PAGES * BLOCK, |_| ());
        let mut rest: &[(u64, Box<[u8]>)] = &leaving;
        while let Some((first, _)) = rest.first() {
            let count = run_length(rest);
            let (run, behind) = rest.split_at(count);
            self.write_run(*first, run, &mut gathered)?;
            rest = behind;
        }
        self.state.lock().leaving = Arc::default();
        Ok(())
    }

    /// Writes pages that follow one another in one chunk.
    fn write_run(&self, first: u64, run: &[(u64, Box<[u8]>)], gathered: &mut AlignedBuffer) -> Result<()> {
        let (chunk, index) = chunk_of(first);
        let place = self.place_for_writing(chunk)?;
        let (bytes, _) = gathered.split_at_mut(run.len() * BLOCK);
        let mut sums = Vec::with_capacity(run.len());
        for ((_, page), target) in run.iter().zip(bytes.chunks_exact_mut(BLOCK)) {
            target.copy_from_slice(page);
            sums.push(page_sum(target));
        }
        self.disk.write_at(page_offset(place, 0, index), bytes)?;
        self.disk.write_at(page_offset(place, 1, index), bytes)?;
        let mut state = self.state.lock();
        let table = self.table(&mut state, chunk, place)?;
        table.sums.iter_mut().skip(index).zip(sums).for_each(|(known, sum)| *known = sum);
        table.dirty = true;
        Ok(())
    }

    /// The place of `chunk`, which gets one if it has none. Its table is in memory afterwards.
    fn place_for_writing(&self, chunk: usize) -> Result<u32> {
        {
            let mut state = self.state.lock();
            if let Some(place) = state.place(chunk) {
                self.table(&mut state, chunk, place)?;
                return Ok(place);
            }
        }
        let place = self.take_place()?;
        let mut state = self.state.lock();
        if state.directory.len() <= chunk {
            state.directory.resize(chunk + 1, 0);
            state.tables.resize_with(chunk + 1, || None);
        }
        let State { directory, tables, header_changed, .. } = &mut *state;
        match (directory.get_mut(chunk), tables.get_mut(chunk)) {
            (Some(entry), Some(table)) => {
                *entry = place + 1;
                *table = Some(Backend::new_table());
                *header_changed = true;
                Ok(place)
            }
            _ => Err(Error::corrupt(format!("index chunk {chunk} on {}", self.disk.name()))),
        }
    }

    /// Sets redb's length. Pages behind it are forgotten: should the length grow again they read as zeros.
    pub(super) fn set_length(&self, length: u64) -> Result<()> {
        let _writing = self.writing.lock();
        let mut state = self.state.lock();
        if length < state.length {
            self.forget_from(&mut state, length.div_ceil(BLOCK_SIZE))?;
        }
        state.length = length;
        state.header_changed = true;
        Ok(())
    }

    fn forget_from(&self, state: &mut State, first: u64) -> Result<()> {
        state.dirty.retain(|page, _| *page < first);
        let (mut chunk, index) = chunk_of(first);
        if index > 0 {
            if let Some(place) = state.place(chunk) {
                let table = self.table(state, chunk, place)?;
                for sum in table.sums.iter_mut().skip(index).filter(|sum| **sum != 0) {
                    *sum = 0;
                    table.dirty = true;
                }
            }
            chunk += 1;
        }
        let released: Vec<u32> = state.directory.drain(chunk.min(state.directory.len())..).collect();
        state.tables.truncate(chunk);
        for place in released.iter().filter_map(|entry| entry.checked_sub(1)) {
            state.space.release(place);
        }
        Ok(())
    }
}

/// How many of `pages` follow one another in one chunk, at most what one write takes.
fn run_length(pages: &[(u64, Box<[u8]>)]) -> usize {
    let Some((first, _)) = pages.first() else { return 0 };
    let most = GATHER_PAGES.min(CHUNK_PAGES - chunk_of(*first).1);
    (*first..).zip(pages).take(most).take_while(|(expected, (page, _))| expected == page).count()
}

#[cfg(test)]
mod tests {
    //! The backend alone under power cuts, fed as redb's rules allow at worst: one sync per commit, page 0 flipped in it.
    use super::*;
    use crate::meta::redb_backend::{BackendHandle, Limits};
    use parking_lot::Mutex;
    use redb::StorageBackend;
    use std::collections::HashMap;

    type Blocks = HashMap<usize, Arc<[u8]>>;

    #[derive(Debug, Default)]
    struct CutDisk(Mutex<Cut>);

    #[derive(Debug, Default)]
    struct Cut {
        len: u64,
        now: Blocks,
        durable: Blocks,
        versions: HashMap<usize, Vec<Arc<[u8]>>>,
        /// Writes, and flushes, until the power is gone.
        writes_left: Option<usize>,
        flushes_left: Option<usize>,
    }

    impl Cut {
        /// Of each block some version since the last flush, half of them torn.
        fn image(&self, random: &mut impl FnMut(usize) -> usize) -> Blocks {
            let mut image = self.durable.clone();
            let mut blocks: Vec<_> = self.versions.iter().collect();
            blocks.sort();
            let survivors = [1, 2, 4][random(3)];
            for (block, versions) in blocks {
                if random(survivors) == 0 {
                    let (version, sectors) = (&versions[random(versions.len())], [8, random(9)][random(2)]);
                    let mut bytes = image.get(block).map_or(vec![0; BLOCK], |bytes| bytes.to_vec());
                    bytes[..sectors * 512].copy_from_slice(&version[..sectors * 512]);
                    image.insert(*block, bytes.into());
                }
            }
            image
        }
    }

    fn count_down(left: &mut Option<usize>) -> Result<()> {
        match left {
            Some(0) => return Err(Error::io("using a disk without power", std::io::ErrorKind::BrokenPipe.into())),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(())
    }

    impl crate::disk::Disk for CutDisk {
        fn name(&self) -> &str {
            "cut disk"
        }
        fn len(&self) -> Result<u64> {
            Ok(self.0.lock().len)
        }
        fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
            let cut = self.0.lock();
            for (block, bytes) in (offset as usize / BLOCK..).zip(into.chunks_mut(BLOCK)) {
                match cut.now.get(&block) {
                    Some(known) => bytes.copy_from_slice(known),
                    None => bytes.fill(0),
                }
            }
            Ok(())
        }
        fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
            let cut = &mut *self.0.lock();
            for (block, bytes) in (offset as usize / BLOCK..).zip(from.chunks(BLOCK)) {
                count_down(&mut cut.writes_left)?;
                let bytes: Arc<[u8]> = bytes.into();
                cut.now.insert(block, bytes.clone());
                cut.versions.entry(block).or_default().push(bytes);
            }
            Ok(())
        }
        fn flush(&self) -> Result<()> {
            let cut = &mut *self.0.lock();
            if cut.writes_left == Some(0) {
                cut.flushes_left = Some(0);
            }
            count_down(&mut cut.flushes_left).inspect_err(|_| cut.writes_left = Some(0))?;
            for (block, _) in cut.versions.drain() {
                cut.durable.insert(block, cut.now[&block].clone());
            }
            Ok(())
        }
        fn set_len(&self, len: u64) -> Result<()> {
            self.0.lock().len = len;
            Ok(())
        }
        fn allocate(&self, _: u64, _: u64) -> Result<()> {
            Ok(())
        }
        fn discard(&self, _: u64, _: u64) -> Result<()> {
            Ok(())
        }
    }

    const PAGES: usize = 2 * CHUNK_PAGES + 100;
    type Tree = HashMap<u64, u8>;

    fn check(backend: &BackendHandle, trees: &[(u64, Tree)]) -> (u64, Tree) {
        let mut number = [0; 8];
        backend.read(16, &mut number).unwrap();
        let number = u64::from_le_bytes(number);
        let Some((_, tree)) = trees.iter().find(|(commit, _)| *commit == number) else {
            panic!("commit {number} is neither the durable nor the next one");
        };
        for (page, byte) in tree {
            let mut bytes = [0; BLOCK];
            backend.read(page * BLOCK_SIZE, &mut bytes).unwrap();
            assert!(bytes.iter().all(|found| found == byte), "commit {number}, page {page}");
        }
        (number, tree.clone())
    }

    /// Commits until the power goes; the durable tree and the next one.
    fn commit_until_cut(
        backend: &BackendHandle,
        mut durable: (u64, Tree),
        random: &mut impl FnMut(usize) -> usize,
    ) -> [(u64, Tree); 2] {
        loop {
            let mut next = durable.1.clone();
            let start = random(PAGES - 40);
            let mut cut = false;
            for _ in 0..random(60) {
                let page = (1 + start + random(38)) as u64;
                if durable.1.contains_key(&page) {
                    next.remove(&page);
                } else {
                    let byte = random(255) as u8;
                    next.insert(page, byte);
                    cut |= backend.write(page * BLOCK_SIZE, &[byte; BLOCK]).is_err();
                }
            }
            let next = (durable.0 + 1, next);
            cut = cut || backend.write(16, &next.0.to_le_bytes()).is_err() || backend.sync_data().is_err();
            if cut {
                return [durable, next];
            }
            durable = next;
        }
    }

    #[test]
    fn a_sync_is_atomic_whatever_a_power_cut_leaves() {
        let seeds = match std::env::var("SEED") {
            Ok(seed) => vec![seed.parse::<u64>().unwrap()],
            Err(_) => (1..=60).collect(),
        };
        for seed in seeds {
            println!("SEED={seed}");
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut random = |limit: usize| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 20) as usize % limit
            };
            let limits = Limits { places_ahead: 1, dirty_pages_max: [1, 20, 1000][random(3)] };
            let mut disk = Arc::new(CutDisk::default());
            let backend = BackendHandle(Backend::create(disk.clone(), limits).unwrap());
            backend.set_len(PAGES as u64 * BLOCK_SIZE).unwrap();
            backend.sync_data().unwrap();
            let mut trees = [(0, Tree::new()), (0, Tree::new())];
            for _ in 0..12 {
                match random(2) {
                    0 => disk.0.lock().writes_left = Some([random(40), random(700)][random(2)]),
                    _ => disk.0.lock().flushes_left = Some(random(20)),
                }
                if let Ok(backend) = Backend::open(disk.clone(), true, limits) {
                    let backend = BackendHandle(backend);
                    let durable = check(&backend, &trees);
                    trees = commit_until_cut(&backend, durable, &mut random);
                }
                let len = disk.0.lock().len;
                let image = disk.0.lock().image(&mut random);
                disk = Arc::new(CutDisk(Mutex::new(Cut { len, durable: image.clone(), now: image, ..Cut::default() })));
                let reader = Backend::open(disk.clone(), false, limits).unwrap();
                check(&BackendHandle(reader), &trees);
            }
        }
    }
}
