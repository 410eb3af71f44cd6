//! The disk of the index tests: memory that loses its power. Between two flushes every block may afterwards hold any version that was
//! written, whole or torn, and the file any length it had.

use super::{BLOCK, Random};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use sumfs::disk::Disk;
use sumfs::error::{Error, Result};

/// Memory that loses its power.
#[derive(Debug, Default)]
pub(super) struct CutDisk(Mutex<CutState>);

#[derive(Debug, Default)]
struct CutState {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Versions of each block since the last flush.
    versions: HashMap<usize, Vec<Box<[u8]>>>,
    lengths: Vec<usize>,
    changes: u64,
    /// How many writes and flushes until the power is gone.
    left: Option<u64>,
    full: bool,
}

impl CutState {
    fn change(&mut self) -> Result<()> {
        self.changes += 1;
        match &mut self.left {
            Some(0) => return Err(Error::io("using a disk without power", std::io::ErrorKind::BrokenPipe.into())),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(())
    }
}

impl CutDisk {
    pub(super) fn with(image: Vec<u8>) -> Arc<CutDisk> {
        let state = CutState { durable: image.clone(), now: image, ..CutState::default() };
        Arc::new(CutDisk(Mutex::new(state)))
    }

    /// The host has no space left to set aside, or has again.
    pub(super) fn set_full(&self, full: bool) {
        self.0.lock().full = full;
    }

    pub(super) fn image(&self) -> Vec<u8> {
        self.0.lock().now.clone()
    }

    pub(super) fn changes(&self) -> u64 {
        self.0.lock().changes
    }

    pub(super) fn cut_after(&self, changes: u64) {
        self.0.lock().left = Some(changes);
    }

    pub(super) fn is_off(&self) -> bool {
        self.0.lock().left == Some(0)
    }

    /// One of the images that a power cut now can leave. `torn`: of some blocks only some sectors were written.
    pub(super) fn after_cut(&self, random: &mut Random, torn: bool) -> Vec<u8> {
        let state = self.0.lock();
        let mut image = state.durable.clone();
        let lengths = state.lengths.len();
        let len = if lengths == 0 { image.len() } else { state.lengths[random.below(lengths)] };
        let style = random.below(4);
        let mut blocks: Vec<_> = state.versions.iter().collect();
        blocks.sort_by_key(|(block, _)| **block);
        for (block, versions) in blocks {
            let survives = match style {
                0 => false,
                1 => true,
                _ => random.one_in(2),
            };
            if survives {
                let version = if style == 1 { versions.len() - 1 } else { random.below(versions.len()) };
                let end = (block + 1) * BLOCK;
                image.resize(image.len().max(end), 0);
                for at in (0..BLOCK).step_by(512) {
                    if !torn || !random.one_in(4) {
                        image[end - BLOCK + at..end - BLOCK + at + 512].copy_from_slice(&versions[version][at..at + 512]);
                    }
                }
            }
        }
        image.resize(len.max(state.durable.len().min(len)), 0);
        image
    }
}

impl Disk for CutDisk {
    fn name(&self) -> &str {
        "cut disk"
    }

    fn len(&self) -> Result<u64> {
        Ok(self.0.lock().now.len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let state = self.0.lock();
        let from = state.now.get(offset as usize..offset as usize + into.len());
        let from = from.ok_or_else(|| Error::io("reading past the end", std::io::ErrorKind::UnexpectedEof.into()))?;
        into.copy_from_slice(from);
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        assert!(offset.is_multiple_of(BLOCK as u64) && from.len().is_multiple_of(BLOCK), "not whole blocks");
        let state = &mut *self.0.lock();
        for (at, block) in from.chunks_exact(BLOCK).enumerate() {
            state.change()?;
            let start = offset as usize + at * BLOCK;
            let Some(target) = state.now.get_mut(start..start + BLOCK) else {
                return Err(Error::io("writing past the end", std::io::ErrorKind::UnexpectedEof.into()));
            };
            target.copy_from_slice(block);
            state.versions.entry(start / BLOCK).or_default().push(block.into());
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let state = &mut *self.0.lock();
        state.change()?;
        let (durable, now) = (&mut state.durable, &state.now);
        durable.resize(now.len(), 0);
        for (block, _) in state.versions.drain() {
            if let Some(bytes) = now.get(block * BLOCK..(block + 1) * BLOCK) {
                durable[block * BLOCK..(block + 1) * BLOCK].copy_from_slice(bytes);
            }
        }
        state.lengths.clear();
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let state = &mut *self.0.lock();
        state.change()?;
        if state.lengths.is_empty() {
            let before = state.now.len();
            state.lengths.push(before);
        }
        state.lengths.push(len as usize);
        state.now.resize(len as usize, 0);
        Ok(())
    }

    fn allocate(&self, _offset: u64, _len: u64) -> Result<()> {
        if self.0.lock().full { Err(Error::NoSpace) } else { Ok(()) }
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }
}
