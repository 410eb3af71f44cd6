//! Places on the index disk: which are in use, which wait for growth. Host space is set aside place by place, before redb can
//! need it, because redb keeps failing after the first error: an index that finds no space while it writes is lost to the mount.
//!
//! redb grows by doubling and may put its next page anywhere in the new half, so space is not kept behind a highest page: a chunk
//! of redb takes any waiting place when its first page is written (`directory` in the header).
//!
//! A place that redb's shrinking frees is used again only after a header without it is durable. Guarded by `Backend::state`; the
//! length of the disk changes only under `Backend::growing`.

use super::redb_backend::{Backend, State};
use super::redb_layout::{CHUNK_DATA_BYTES, disk_len, places_in};
use crate::error::Result;
use std::collections::BTreeSet;

/// All places of a disk.
#[derive(Debug)]
pub(super) struct Space {
    /// How many the disk has.
    places: u32,
    /// Set aside on the host, not in use.
    waiting: BTreeSet<u32>,
    /// Not in use any more once the next header is durable.
    released: Vec<u32>,
    /// How many the caller last asked for; as many are kept when space is given back.
    reserved: usize,
}

impl Space {
    /// The places of a disk of `len` bytes; None when the directory names one twice or one behind the end. Those not in use count
    /// as waiting only after [`Backend::keep_ahead`].
    pub(super) fn new(directory: &[u32], len: u64) -> Option<Space> {
        let on_disk = places_in(len);
        let mut used = BTreeSet::new();
        for place in directory.iter().filter_map(|entry| entry.checked_sub(1)) {
            if place >= on_disk || !used.insert(place) {
                return None;
            }
        }
        let places = used.last().map_or(0, |last| last + 1);
        let waiting = (0..places).filter(|place| !used.contains(place)).collect();
        Some(Space { places, waiting, released: Vec::new(), reserved: 0 })
    }

    /// `place` is not named by the next header.
    pub(super) fn release(&mut self, place: u32) {
        self.released.push(place);
    }

    /// A header without the released places is durable.
    pub(super) fn reuse_released(&mut self) {
        self.waiting.extend(self.released.drain(..));
    }

    fn take(&mut self) -> Option<u32> {
        self.waiting.pop_first()
    }
}

impl Backend {
    /// Bytes of redb that the waiting places can hold.
    pub(super) fn space_ahead_bytes(&self) -> u64 {
        self.state.lock().space.waiting.len() as u64 * CHUNK_DATA_BYTES
    }

    /// Sets places aside until `bytes` of redb fit in those that wait.
    pub(super) fn reserve_ahead(&self, bytes: u64) -> Result<()> {
        let wanted = usize::try_from(bytes.div_ceil(CHUNK_DATA_BYTES)).unwrap_or(usize::MAX);
        if !self.writable {
            return Ok(());
        }
        self.grow(wanted)?;
        self.state.lock().space.reserved = wanted;
        Ok(())
    }

    /// Bytes of the disk that the index takes, with what is set aside.
    pub(super) fn disk_bytes(&self) -> u64 {
        disk_len(self.state.lock().space.places)
    }

    /// A place for a chunk that has none.
    pub(super) fn take_place(&self) -> Result<u32> {
        loop {
            if let Some(place) = self.state.lock().space.take() {
                return Ok(place);
            }
            self.grow(1)?;
        }
    }

    /// Makes at least `wanted` places wait; all of the missing ones or none.
    fn grow(&self, wanted: usize) -> Result<()> {
        let _growing = self.growing.lock();
        let (places, missing) = {
            let state = self.state.lock();
            (state.space.places, wanted.saturating_sub(state.space.waiting.len()))
        };
        if missing == 0 {
            return Ok(());
        }
        let more = places.saturating_add(u32::try_from(missing).unwrap_or(u32::MAX));
        let (from, to) = (disk_len(places), disk_len(more));
        let len = self.disk.len()?;
        if len < to {
            self.disk.set_len(to)?;
        }
        if let Err(error) = self.disk.allocate(from, to - from) {
            if len < to {
                self.disk.set_len(len)?;
            }
            return Err(error);
        }
        let mut state = self.state.lock();
        state.space.places = more;
        state.space.waiting.extend(places..more);
        Ok(())
    }

    /// Sets the usual number of places aside, and gives back many more than that at the end of the disk. Best effort: the caller
    /// watches `space_ahead_bytes`.
    pub(super) fn keep_ahead(&self) {
        if let Err(error) = self.grow(self.limits.places_ahead).and_then(|()| self.trim()) {
            tracing::debug!("{}: space for growth of the index: {error}", self.disk.name());
        }
    }

    fn trim(&self) -> Result<()> {
        let _growing = self.growing.lock();
        let places = {
            let mut state = self.state.lock();
            let State { space, .. } = &mut *state;
            let keep = space.reserved.max(2 * self.limits.places_ahead);
            while space.waiting.len() > keep && space.waiting.last().is_some_and(|last| last + 1 == space.places) {
                space.waiting.pop_last();
                space.places -= 1;
            }
            space.places
        };
        if disk_len(places) < self.disk.len()? { self.disk.set_len(disk_len(places)) } else { Ok(()) }
    }
}
