//! References from file maps to extents, collected while the inodes are walked and then held against the extents in address
//! order. Memory is bounded by a window of addresses: what does not fit is left for another round over the file maps.

use super::findings::Items;
use crate::error::Result;
use crate::meta::Metadata;
use crate::meta::records::{self, MapRecord};
use crate::meta::schema::{self, Parsed};
use crate::units::{InodeNumber, blocks_for};
use std::ops::Range;

/// References held at once (32 bytes each).
const HELD_MAX: usize = 4 << 20;

/// One file map record that holds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    /// Address of the extent.
    pub(super) extent: u64,
    /// First block used.
    pub(super) first: u16,
    /// Blocks used.
    pub(super) count: u16,
    /// Blocks that the extent should have.
    pub(super) extent_blocks: u16,
    pub(super) inode: InodeNumber,
    /// Byte offset in the file.
    pub(super) offset: u64,
}

impl Reference {
    /// None for preallocated and for lost ranges.
    pub(super) fn of(inode: InodeNumber, offset: u64, map: &MapRecord) -> Option<Reference> {
        match *map {
            MapRecord::Unwritten { .. } => None,
            _ if map.is_lost() => None,
            MapRecord::Written { extent, first, extent_blocks, length } => {
                // Decoding has made sure that the blocks fit the extent's 256.
                let count = u16::try_from(blocks_for(length)).ok()?;
                Some(Reference { extent: extent.0, first, count, extent_blocks, inode, offset })
            }
        }
    }
}

/// The references to extents within a window of addresses.
#[derive(Debug)]
pub(super) struct References {
    held: Vec<Reference>,
    /// An end of `u64::MAX` holds that address too.
    window: Range<u64>,
    held_max: usize,
    /// What is held when the window is made narrower; more than `held_max` only where halving did not help.
    narrow_at: usize,
}

impl References {
    pub(super) fn new() -> References {
        References::with_room(HELD_MAX)
    }

    fn with_room(held_max: usize) -> References {
        References { held: Vec::new(), window: 0..u64::MAX, held_max, narrow_at: held_max }
    }

    fn is_in_window(&self, reference: &Reference) -> bool {
        self.window.contains(&reference.extent) || (self.window.end == u64::MAX && reference.extent == u64::MAX)
    }

    pub(super) fn add(&mut self, reference: Reference) {
        if !self.is_in_window(&reference) {
            return;
        }
        self.held.push(reference);
        if self.held.len() > self.narrow_at {
            self.narrow();
        }
    }

    /// Halves what is held, by giving up the upper addresses. An extent with more references than fit is kept whole.
    fn narrow(&mut self) {
        let middle = self.held.len() / 2;
        let (_, reference, _) = self.held.select_nth_unstable_by_key(middle, |reference| reference.extent);
        let middle = reference.extent;
        let lowest = self.held.iter().map(|reference| reference.extent).min().unwrap_or(middle);
        self.window.end = if lowest < middle { middle } else { middle.saturating_add(1) };
        let mut held = std::mem::take(&mut self.held);
        held.retain(|reference| self.is_in_window(reference));
        self.narrow_at = self.held_max.max(2 * held.len());
        self.held = held;
    }

    /// The references in address order, and the address up to which they are complete (`u64::MAX`: all).
    pub(super) fn take(&mut self) -> (Vec<Reference>, u64) {
        let mut held = std::mem::take(&mut self.held);
        self.narrow_at = self.held_max;
        held.sort_unstable_by_key(|reference| (reference.extent, reference.inode, reference.offset));
        (held, self.window.end)
    }

    /// Goes on to the next window and fills it from the file maps; false when there is none.
    pub(super) fn refill(&mut self, metadata: &Metadata) -> Result<bool> {
        if self.window.end == u64::MAX {
            return Ok(false);
        }
        self.window = self.window.end..u64::MAX;
        for_each(metadata, |reference| self.add(reference))?;
        Ok(true)
    }
}

/// Visits the references of all files; damaged records are left out.
pub(super) fn for_each(metadata: &Metadata, mut visit: impl FnMut(Reference)) -> Result<()> {
    let mut items = Items::of_table(metadata, schema::INODES);
    while let Some((key, value)) = items.next()? {
        let Some(Parsed::Map { inode, offset }) = schema::parse(&key) else { continue };
        let map = records::open(&key, &value).and_then(MapRecord::decode);
        if let Some(reference) = map.ok().and_then(|map| Reference::of(inode, offset, &map)) {
            visit(reference);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(extent: u64) -> Reference {
        Reference { extent, first: 0, count: 1, extent_blocks: 1, inode: InodeNumber(2), offset: 0 }
    }

    /// All rounds over the same references, as `refill` makes them.
    fn rounds(extents: &[u64], held_max: usize) -> (usize, Vec<u64>) {
        let mut references = References::with_room(held_max);
        let (mut seen, mut count) = (Vec::new(), 0);
        loop {
            extents.iter().for_each(|extent| references.add(reference(*extent)));
            let (held, end) = references.take();
            seen.extend(held.iter().map(|reference| reference.extent));
            count += 1;
            if end == u64::MAX {
                return (count, seen);
            }
            references.window = end..u64::MAX;
        }
    }

    #[test]
    fn every_reference_comes_once_and_in_order_however_little_fits() {
        let extents: Vec<u64> = (0..500u64).map(|number| number * 7919 % 211).collect();
        let mut sorted = extents.clone();
        sorted.sort_unstable();
        for held_max in [2, 3, 10, 100, 499, 500, 1000] {
            let (count, seen) = rounds(&extents, held_max);
            assert_eq!(seen, sorted, "room for {held_max}");
            assert_eq!(count == 1, held_max >= 500, "room for {held_max} took {count} rounds");
        }
    }

    #[test]
    fn one_extent_with_more_references_than_fit_is_kept_whole() {
        let (_, seen) = rounds(&[5; 50], 4);
        assert_eq!(seen, [5; 50]);
    }
}
