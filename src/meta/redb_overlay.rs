//! A redb storage in memory over the durable state of a [`Backend`]: what redb writes, and that includes opening a database,
//! stays here and is gone with it. For mounts and checks that must not change a byte (`-o ro`), and to ask a second redb about the
//! durable state (which pages it reaches) while the first one runs.
//!
//! The durable trees must not change below: nothing is made durable on the backend meanwhile.

use super::redb_backend::{Backend, check_range, check_whole_pages, read_bytes, write_page_zero};
use super::redb_layout::PAGE_ZERO_BYTES;
use crate::error::Result;
use crate::units::{BLOCK, BLOCK_SIZE};
use parking_lot::Mutex;
use redb::StorageBackend;
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;

/// The storage; redb owns it.
#[derive(Debug)]
pub(super) struct Overlay {
    base: Arc<Backend>,
    state: Mutex<Written>,
    reached: Option<Reached>,
}

/// Pages of the base that redb has read.
pub(super) type Reached = Arc<Mutex<HashSet<u64>>>;

#[derive(Debug)]
struct Written {
    length: u64,
    /// Pages from here on are not those of the base any more.
    base_pages: u64,
    page_zero: [u8; PAGE_ZERO_BYTES],
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl Overlay {
    /// Over what the last durable header of `base` says.
    pub(super) fn new(base: Arc<Backend>) -> Overlay {
        let durable = base.state.lock().durable.clone();
        let written = Written {
            length: durable.length,
            base_pages: durable.length / BLOCK_SIZE,
            page_zero: durable.page_zero,
            pages: BTreeMap::new(),
        };
        Overlay { base, state: Mutex::new(written), reached: None }
    }

    /// The same, noting what redb reads.
    pub(super) fn recording(base: Arc<Backend>) -> Overlay {
        Overlay { reached: Some(Reached::default()), ..Overlay::new(base) }
    }

    /// What redb has read, if this is recording.
    pub(super) fn reached(&self) -> Reached {
        self.reached.clone().unwrap_or_default()
    }

    fn read_whole(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let state = self.state.lock();
        check_range(&*self.base.disk, state.length, offset, out.len())?;
        read_bytes(offset, out, Some(&state.page_zero), |first, into| {
            for (page, bytes) in (first..).zip(into.chunks_exact_mut(BLOCK)) {
                match state.pages.get(&page) {
                    Some(known) => bytes.copy_from_slice(known),
                    None if page < state.base_pages => {
                        if let Some(reached) = &self.reached {
                            reached.lock().insert(page);
                        }
                        self.base.read_pages(page, bytes)?;
                    }
                    None => bytes.fill(0),
                }
            }
            Ok(())
        })
    }

    fn write_whole(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        check_range(&*self.base.disk, state.length, offset, data.len())?;
        if offset < BLOCK_SIZE {
            return write_page_zero(&mut state.page_zero, offset, data);
        }
        check_whole_pages(offset, data)?;
        for (page, bytes) in (offset / BLOCK_SIZE..).zip(data.chunks_exact(BLOCK)) {
            state.pages.insert(page, bytes.into());
        }
        Ok(())
    }
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_whole(offset, out).map_err(|error| self.base.fail(error))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        let pages = len.div_ceil(BLOCK_SIZE);
        state.length = len;
        state.base_pages = state.base_pages.min(pages);
        state.pages.split_off(&pages);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write_whole(offset, data).map_err(|error| self.base.fail(error))
    }
}
