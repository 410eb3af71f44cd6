//! The storage below redb: a `StorageBackend` over one [`Disk`] that keeps every page twice and under a checksum.
//!
//! Why: redb trusts what it reads (a flipped bit becomes a wrong value or a panic), latches the first error it sees until it is
//! opened again, and rewrites its page 0 in place. So this layer never returns an error for what a second copy can heal, and
//! never returns a byte that does not match its checksum. The format is in `redb_layout.rs`, writing and its crash safety in
//! `redb_sync.rs`, places and host space in `redb_space.rs`, scrubbing in `redb_verify.rs`.
//!
//! Written pages stay in memory (`dirty`) until redb syncs or `dirty_pages_max` are waiting; while they are on their way they are
//! in `leaving`. A reader looks there first, then on the disk.
//!
//! Locks, in order: `writing` (everything that writes pages, tables, headers, or moves the length), `growing` (the length of
//! the disk), `state` (short, except that the table of a chunk is read under it the first time). Readers take only `state`;
//! one that heals a page takes `writing` first and looks again.

use super::redb_layout::{
    CHUNKS_MAX, Header, PAGE_ZERO_BYTES, Sums, chunk_of, decode_table, header_offset, no_sums, page_offset, page_sum,
    table_offset,
};
use super::redb_space::Space;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::units::{BLOCK, BLOCK_SIZE};
use parking_lot::Mutex;
use redb::StorageBackend;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// redb keeps a value in one piece, and its largest are the maps of its own free pages. More is asked for only by a damaged page number.
const READ_BYTES_MAX: usize = 64 << 20;

/// Bounds of a backend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Places kept ready for growth.
    pub(super) places_ahead: usize,
    /// Dirty pages that start an early write-out.
    pub(super) dirty_pages_max: usize,
}

/// The checksums of a chunk in memory.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) sums: Sums,
    /// The slot with the newest durable version; the next one goes to the other slot.
    pub(super) slot: usize,
    /// Differs from what is on the disk.
    pub(super) dirty: bool,
    /// One slot was unreadable, so this version may be an old one: pages it calls unwritten may have been written.
    pub(super) suspect: bool,
}

/// What the last durable header says, and where it is.
#[derive(Clone, Debug)]
pub(super) struct DurableHeader {
    pub(super) generation: u64,
    pub(super) slot: usize,
    pub(super) length: u64,
    pub(super) page_zero: [u8; PAGE_ZERO_BYTES],
}

/// Pages being written out, by number.
pub(super) type Leaving = Arc<Vec<(u64, Box<[u8]>)>>;

#[derive(Debug)]
pub(super) struct State {
    pub(super) length: u64,
    pub(super) page_zero: [u8; PAGE_ZERO_BYTES],
    /// Place of each chunk plus one; 0: none.
    pub(super) directory: Vec<u32>,
    pub(super) tables: Vec<Option<Table>>,
    pub(super) space: Space,
    pub(super) dirty: HashMap<u64, Box<[u8]>>,
    pub(super) leaving: Leaving,
    /// Length, page 0 or directory differ from the durable header.
    pub(super) header_changed: bool,
    pub(super) durable: DurableHeader,
}

impl State {
    /// The place of `chunk`, if a page of it was ever written.
    pub(super) fn place(&self, chunk: usize) -> Option<u32> {
        self.directory.get(chunk).and_then(|entry| entry.checked_sub(1))
    }

    fn in_memory(&self, page: u64) -> Option<&[u8]> {
        if let Some(bytes) = self.dirty.get(&page) {
            return Some(bytes);
        }
        let at = self.leaving.binary_search_by_key(&page, |(number, _)| *number).ok()?;
        self.leaving.get(at).map(|(_, bytes)| &**bytes)
    }
}

/// The pages of redb on a disk.
#[derive(Debug)]
pub(super) struct Backend {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) writable: bool,
    pub(super) limits: Limits,
    pub(super) writing: Mutex<()>,
    pub(super) growing: Mutex<()>,
    pub(super) state: Mutex<State>,
    healed: AtomicU64,
    reported: Mutex<HashSet<u64>>,
    detached: AtomicBool,
    gave_up: AtomicBool,
    failure: Mutex<Option<Error>>,
    write_failure: Mutex<Option<Error>>,
}

/// Some pages in a row that lie in a row on the disk.
struct Run {
    page: u64,
    place: u32,
    index: usize,
    sums: Vec<u32>,
}

enum Located {
    /// Copied from memory, or zeros: this many pages.
    Filled(usize),
    OnDisk(Run),
}

impl Backend {
    /// Formats `disk`, whose contents are lost, for an empty redb.
    pub(super) fn create(disk: Arc<dyn Disk>, limits: Limits) -> Result<Arc<Backend>> {
        disk.set_len(0)?;
        disk.set_len(super::redb_layout::CHUNKS_START)?;
        disk.allocate(0, super::redb_layout::CHUNKS_START)?;
        let header = Header { generation: 1, length: 0, page_zero: [0; PAGE_ZERO_BYTES], directory: Vec::new() };
        let slot = header.encode();
        disk.write_at(header_offset(0), &slot)?;
        disk.write_at(header_offset(1), &slot)?;
        disk.flush()?;
        let backend = Backend::with_header(disk, header, 0, true, limits)?;
        backend.keep_ahead();
        Ok(Arc::new(backend))
    }

    /// Opens what `create` made. Not `writable`: the disk is never written to. Otherwise a new generation is made durable first:
    /// tables that a power cut left behind with generations above the header's must not meet new ones with the same number.
    pub(super) fn open(disk: Arc<dyn Disk>, writable: bool, limits: Limits) -> Result<Arc<Backend>> {
        let slots = [read_header(&*disk, 0), read_header(&*disk, 1)];
        let generation = |slot: &Option<Header>| slot.as_ref().map(|header| header.generation);
        let damaged = slots.iter().any(Option::is_none);
        let newest = usize::from(generation(&slots[1]) > generation(&slots[0]));
        let Some(header) = slots.into_iter().nth(newest).flatten() else {
            return Err(Error::corrupt(format!("both headers of the index on {}", disk.name())));
        };
        let backend = Backend::with_header(disk, header, newest, writable, limits)?;
        if damaged {
            backend.count_healed(1);
            tracing::warn!("{}: one of the two index headers was damaged; the other one is used", backend.disk.name());
        }
        if writable {
            backend.begin_generation()?;
            backend.keep_ahead();
        }
        Ok(Arc::new(backend))
    }

    fn with_header(disk: Arc<dyn Disk>, header: Header, slot: usize, writable: bool, limits: Limits) -> Result<Backend> {
        let space = Space::new(&header.directory, disk.len()?).ok_or_else(|| {
            Error::corrupt(format!("the index on {}: the disk is shorter than its directory says", disk.name()))
        })?;
        let Header { generation, length, page_zero, directory } = header;
        let state = State {
            length,
            page_zero,
            tables: directory.iter().map(|_| None).collect(),
            directory,
            space,
            dirty: HashMap::new(),
            leaving: Leaving::default(),
            header_changed: false,
            durable: DurableHeader { generation, slot, length, page_zero },
        };
        Ok(Backend {
            disk,
            writable,
            limits,
            writing: Mutex::new(()),
            growing: Mutex::new(()),
            state: Mutex::new(state),
            healed: AtomicU64::new(0),
            reported: Mutex::new(HashSet::new()),
            detached: AtomicBool::new(false),
            gave_up: AtomicBool::new(false),
            failure: Mutex::new(None),
            write_failure: Mutex::new(None),
        })
    }

    /// Bytes of redb's file in the durable header; 0 when redb never got to write one.
    pub(super) fn durable_length(&self) -> u64 {
        self.state.lock().durable.length
    }

    /// From now on redb can change nothing any more: what its close would write is refused. Reads still work.
    pub(super) fn detach(&self) {
        self.detached.store(true, Ordering::Release);
    }

    /// redb panicked.
    pub(super) fn note_panic(&self) {
        self.gave_up.store(true, Ordering::Release);
    }

    /// Has redb panicked?
    pub(super) fn has_panicked(&self) -> bool {
        self.gave_up.load(Ordering::Acquire)
    }

    /// Pages, tables and headers that were read from, and if possible rewritten from, their second copy.
    pub(super) fn healed(&self) -> u64 {
        self.healed.load(Ordering::Relaxed)
    }

    pub(super) fn count_healed(&self, count: u64) {
        self.healed.fetch_add(count, Ordering::Relaxed);
    }

    /// Warns about a page once.
    pub(super) fn report_healed(&self, page: u64, copy: usize) {
        self.count_healed(1);
        if self.reported.lock().insert(page) {
            tracing::warn!("{}: copy {} of index page {page} was damaged, the other one is good", self.disk.name(), copy + 1);
        }
    }

    /// The first error that redb was given; it answers later operations without saying why.
    pub(super) fn failure(&self) -> Option<Error> {
        self.failure.lock().clone()
    }

    /// Runs a step that changes the disk. A failed one is the last: redb does not take every error of a write seriously.
    fn change(&self, step: impl FnOnce() -> Result<()>) -> io::Result<()> {
        let done = self.check_writable().and_then(|()| {
            step().inspect_err(|error| {
                self.write_failure.lock().get_or_insert_with(|| error.clone());
            })
        });
        done.map_err(|error| self.fail(error))
    }

    /// Remembers `error` and turns it into what redb takes.
    pub(super) fn fail(&self, error: Error) -> io::Error {
        self.failure.lock().get_or_insert_with(|| error.clone());
        let kind = match &error {
            Error::Io { source, .. } => source.kind(),
            Error::Corrupt(_) => io::ErrorKind::InvalidData,
            Error::NoSpace => io::ErrorKind::StorageFull,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }

    /// Nothing is written after the first failed write: what it was to write is still in memory, and stays readable there.
    fn check_writable(&self) -> Result<()> {
        if let Some(error) = self.write_failure.lock().clone() {
            return Err(error);
        }
        if self.writable && !self.detached.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(Error::io(format!("writing to the index on {}, which is closed", self.disk.name()), io::ErrorKind::BrokenPipe.into()))
    }

    /// The table of `chunk` in `place`, read the first time. A damaged slot is healed from the other one.
    pub(super) fn table<'a>(&self, state: &'a mut State, chunk: usize, place: u32) -> Result<&'a mut Table> {
        let Some(known) = state.tables.get_mut(chunk) else {
            return Err(Error::corrupt(format!("index chunk {chunk} on {}", self.disk.name())));
        };
        match known {
            Some(table) => Ok(table),
            empty => Ok(empty.insert(self.load_table(chunk, place)?)),
        }
    }

    fn load_table(&self, chunk: usize, place: u32) -> Result<Table> {
        let mut blocks = [vec![0u8; BLOCK], vec![0u8; BLOCK]];
        let mut decoded = [None, None];
        for (slot, (block, decoded)) in blocks.iter_mut().zip(&mut decoded).enumerate() {
            if self.disk.read_at(table_offset(place, slot), block).is_ok() {
                *decoded = decode_table(block, chunk);
            }
        }
        // A slot of zeros has not been written yet: the mirror of a first version that a power cut took.
        let damaged = |slot: usize| decoded[slot].is_none() && blocks[slot].iter().any(|byte| *byte != 0);
        let generation = |slot: usize| decoded[slot].as_ref().map(|(generation, _)| *generation);
        let newest = usize::from(generation(1) > generation(0));
        let suspect = damaged(newest ^ 1);
        if suspect {
            self.count_healed(1);
            tracing::warn!("{}: one of the two checksum tables of index chunk {chunk} was damaged", self.disk.name());
        }
        if decoded[newest ^ 1].is_none() && decoded[newest].is_some() && self.writable {
            // Best effort: the good slot stays what it is.
            let _ = self.disk.write_at(table_offset(place, newest ^ 1), &blocks[newest]);
        }
        let Some((_, sums)) = decoded.into_iter().nth(newest).flatten() else {
            return Err(Error::corrupt(format!("both checksum tables of index chunk {chunk} on {}", self.disk.name())));
        };
        Ok(Table { sums, slot: newest, dirty: false, suspect })
    }

    /// A chunk that gets its first page: it has no table on the disk, whatever lies in its place.
    pub(super) fn new_table() -> Table {
        Table { sums: no_sums(), slot: 1, dirty: true, suspect: false }
    }

    /// Fills `into`, whole pages, with the pages from `first` on, except page 0. Does not look at the length.
    pub(super) fn read_pages(&self, first: u64, into: &mut [u8]) -> Result<()> {
        let mut page = first;
        let mut rest = into;
        while !rest.is_empty() {
            let count = match self.locate(page, rest)? {
                Located::Filled(count) => count,
                Located::OnDisk(run) => {
                    let (head, _) = rest.split_at_mut(run.sums.len() * BLOCK);
                    self.read_run(&run, head)?;
                    run.sums.len()
                }
            };
            page += count as u64;
            rest = rest.split_at_mut(count * BLOCK).1;
        }
        Ok(())
    }

    /// Copies the first pages of `into` from memory, or says where they are on the disk.
    fn locate(&self, first: u64, into: &mut [u8]) -> Result<Located> {
        let mut state = self.state.lock();
        let mut run: Option<Run> = None;
        let mut filled = 0;
        for (page, bytes) in (first..).zip(into.chunks_exact_mut(BLOCK)) {
            let (chunk, index) = chunk_of(page);
            let in_memory = state.in_memory(page).is_some();
            if let Some(place) = state.place(chunk).filter(|_| !in_memory) {
                if filled > 0 || run.as_ref().is_some_and(|run| run.place != place) {
                    break;
                }
                let table = self.table(&mut state, chunk, place)?;
                let sum = table.sums.get(index).copied().unwrap_or_default();
                if sum != 0 {
                    run.get_or_insert_with(|| Run { page, place, index, sums: Vec::new() }).sums.push(sum);
                    continue;
                }
                if table.suspect {
                    return Err(Error::corrupt(format!("index page {page} on {}: its checksum is lost", self.disk.name())));
                }
            }
            if run.is_some() {
                break;
            }
            match state.in_memory(page) {
                Some(found) => bytes.copy_from_slice(found),
                None => bytes.fill(0),
            }
            filled += 1;
        }
        Ok(run.map_or(Located::Filled(filled), Located::OnDisk))
    }

    fn read_run(&self, run: &Run, into: &mut [u8]) -> Result<()> {
        let whole = self.disk.read_at(page_offset(run.place, 0, run.index), into).is_ok();
        for (at, (bytes, sum)) in into.chunks_exact_mut(BLOCK).zip(&run.sums).enumerate() {
            let index = run.index + at;
            let readable = whole || self.disk.read_at(page_offset(run.place, 0, index), bytes).is_ok();
            if !readable || page_sum(bytes) != *sum {
                self.read_second(run.page + at as u64, run.place, index, *sum, bytes)?;
            }
        }
        Ok(())
    }

    fn read_second(&self, page: u64, place: u32, index: usize, sum: u32, into: &mut [u8]) -> Result<()> {
        let readable = self.disk.read_at(page_offset(place, 1, index), into);
        if readable.is_err() || page_sum(into) != sum {
            return Err(Error::corrupt(format!("both copies of index page {page} on {}", self.disk.name())));
        }
        self.report_healed(page, 0);
        let _writing = self.writing.lock();
        self.heal_page(page, 0, sum, into);
        Ok(())
    }

    /// Writes `good` over copy `copy` of `page`, if `sum` is still its checksum. The caller holds `writing`.
    pub(super) fn heal_page(&self, page: u64, copy: usize, sum: u32, good: &[u8]) {
        if self.check_writable().is_err() {
            return;
        }
        let (chunk, index) = chunk_of(page);
        let place = {
            let state = self.state.lock();
            let known = state.tables.get(chunk).and_then(Option::as_ref).and_then(|table| table.sums.get(index));
            state.place(chunk).filter(|_| known == Some(&sum))
        };
        if let Some(place) = place
            && let Err(error) = self.disk.write_at(page_offset(place, copy, index), good)
        {
            tracing::warn!("{}: rewriting index page {page}: {error}", self.disk.name());
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let (length, page_zero) = {
            let state = self.state.lock();
            (state.length, (offset < BLOCK_SIZE).then_some(state.page_zero))
        };
        check_range(&*self.disk, length, offset, out.len())?;
        if out.len() > READ_BYTES_MAX {
            return Err(Error::corrupt(format!("{} bytes of the index on {} in one piece", out.len(), self.disk.name())));
        }
        read_bytes(offset, out, page_zero.as_ref(), |first, into| self.read_pages(first, into))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let waiting = {
            let mut state = self.state.lock();
            check_range(&*self.disk, state.length, offset, data.len())?;
            if offset < BLOCK_SIZE {
                write_page_zero(&mut state.page_zero, offset, data)?;
                state.header_changed = true;
            } else {
                check_whole_pages(offset, data)?;
                for (page, bytes) in (offset / BLOCK_SIZE..).zip(data.chunks_exact(BLOCK)) {
                    state.dirty.entry(page).and_modify(|known| known.copy_from_slice(bytes)).or_insert_with(|| bytes.into());
                }
            }
            state.dirty.len()
        };
        if waiting >= self.limits.dirty_pages_max {
            let _writing = self.writing.lock();
            self.write_out()?;
        }
        Ok(())
    }
}

/// The header in a slot, if it is a valid one.
pub(super) fn read_header(disk: &dyn Disk, slot: usize) -> Option<Header> {
    let mut bytes = vec![0; BLOCK];
    disk.read_at(header_offset(slot), &mut bytes).ok()?;
    let len = Header::encoded_bytes(&bytes)?.next_multiple_of(BLOCK);
    if len > BLOCK {
        bytes.resize(len, 0);
        disk.read_at(header_offset(slot), &mut bytes).ok()?;
    }
    Header::decode(&bytes)
}

/// An error when the range passes `length`.
pub(super) fn check_range(disk: &dyn Disk, length: u64, offset: u64, len: usize) -> Result<()> {
    if offset.checked_add(len as u64).is_some_and(|end| end <= length) {
        return Ok(());
    }
    let what = format!("{len} bytes at offset {offset} of the index on {}, which ends at {length}", disk.name());
    Err(Error::io(what, io::ErrorKind::UnexpectedEof.into()))
}

/// redb writes whole pages, except page 0.
pub(super) fn check_whole_pages(offset: u64, data: &[u8]) -> Result<()> {
    if offset.is_multiple_of(BLOCK_SIZE) && data.len().is_multiple_of(BLOCK) {
        return Ok(());
    }
    Err(Error::Invalid("redb wrote part of a page"))
}

/// Puts `data` into page 0.
pub(super) fn write_page_zero(page_zero: &mut [u8; PAGE_ZERO_BYTES], offset: u64, data: &[u8]) -> Result<()> {
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let Some(target) = page_zero.get_mut(start..start.saturating_add(data.len())) else {
        return Err(Error::Invalid("redb wrote past the known part of its page 0"));
    };
    target.copy_from_slice(data);
    Ok(())
}

/// Fills `out` with the bytes from `offset` on; `read_pages` reads whole pages except page 0, of which `page_zero` is what counts.
pub(super) fn read_bytes(
    offset: u64,
    out: &mut [u8],
    page_zero: Option<&[u8; PAGE_ZERO_BYTES]>,
    read_pages: impl Fn(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let (page, skipped) = (offset / BLOCK_SIZE, (offset % BLOCK_SIZE) as usize);
    if page > 0 && skipped == 0 && out.len().is_multiple_of(BLOCK) {
        return read_pages(page, out);
    }
    let mut whole = vec![0; (skipped + out.len()).max(1).next_multiple_of(BLOCK)];
    match page_zero {
        Some(page_zero) if page == 0 => {
            let (first, rest) = whole.split_at_mut(BLOCK);
            first.iter_mut().zip(page_zero).for_each(|(to, from)| *to = *from);
            read_pages(1, rest)?;
        }
        _ => read_pages(page, &mut whole)?,
    }
    out.iter_mut().zip(whole.iter().skip(skipped)).for_each(|(to, from)| *to = *from);
    Ok(())
}

/// What redb holds: it wants to own its backend.
#[derive(Debug)]
pub(super) struct BackendHandle(pub(super) Arc<Backend>);

impl StorageBackend for BackendHandle {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.state.lock().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out).map_err(|error| self.0.fail(error))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let fits = len.div_ceil(super::redb_layout::CHUNK_DATA_BYTES) <= CHUNKS_MAX as u64;
        self.0.change(|| if fits { self.0.set_length(len) } else { Err(Error::NoSpace) })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.change(|| self.0.sync())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.change(|| self.0.write(offset, data))
    }
}
