//! How the blocks of a group lie on devices: copies of the whole group, or units in turn on columns, with or without parity.
//!
//! ```text
//!   raid5, four columns, unit 2:     column 0   column 1   column 2   column 3
//!     stripe 0   row 0               0          2          4          P
//!                row 1               1          3          5          P
//!     stripe 1   row 2               8          10         P          6
//!                row 3               9          11         P          7
//! ```
//! A *row* is one block of each column: the parity block is the exclusive or of the others. A row is written as a whole and not
//! again before nothing in it is used any more, so that nothing live shares parity with what is being written: there is no write
//! hole, and nothing is ever read in order to write. Pure; no locks.

use super::transfer::Place;
use crate::error::{Error, Result};
use crate::meta::records::{GroupRecord, PROFILE_RAID0, PROFILE_RAID5};
use crate::units::BLOCK_SIZE;
use std::ops::Range;

/// Where a group lies, or could: device and byte offset of each copy or column.
pub(super) type Slot = Vec<(u32, u64)>;

/// See the head of this file.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// Of each copy, or each column.
    pub(super) places: Slot,
    striping: Option<Striping>,
    /// Blocks that the group holds.
    blocks: u32,
}

#[derive(Clone, Copy, Debug)]
struct Striping {
    /// Blocks that follow each other on one column.
    unit: u32,
    /// Blocks of a column.
    column: u32,
    has_parity: bool,
}

/// Blocks of a group that lie behind each other on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// First block, counted in the group.
    pub(super) block: u32,
    pub(super) count: u32,
}

impl Layout {
    /// `blocks_per_group`: addresses that a group takes; a group with copies holds as many blocks.
    pub(super) fn of(record: &GroupRecord, blocks_per_group: u32) -> Result<Layout> {
        let places = record.copies.clone();
        let has_parity = match record.profile {
            PROFILE_RAID0 => false,
            PROFILE_RAID5 => true,
            _ => return Ok(Layout { places, striping: None, blocks: blocks_per_group }),
        };
        let (unit, column) = (record.unit_blocks, record.column_blocks);
        let data = (places.len() as u32).saturating_sub(u32::from(has_parity));
        let blocks = data.checked_mul(column).filter(|blocks| *blocks > 0 && *blocks <= blocks_per_group);
        match blocks {
            Some(blocks) if unit > 0 && column.is_multiple_of(unit) => {
                Ok(Layout { places, striping: Some(Striping { unit, column, has_parity }), blocks })
            }
            _ => Err(Error::corrupt(format!("a group of {} columns of {column} blocks in units of {unit}", places.len()))),
        }
    }

    /// Blocks that the group holds; addresses behind them are no blocks.
    pub(super) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Blocks that it takes on each device.
    pub(super) fn column_blocks(&self) -> u32 {
        self.striping.map_or(self.blocks, |striping| striping.column)
    }

    pub(super) fn is_striped(&self) -> bool {
        self.striping.is_some()
    }

    pub(super) fn has_parity(&self) -> bool {
        self.striping.is_some_and(|striping| striping.has_parity)
    }

    /// So many of its places can be lost.
    pub(super) fn spare_places(&self) -> usize {
        match self.striping {
            Some(striping) => usize::from(striping.has_parity),
            None => self.places.len().saturating_sub(1),
        }
    }

    /// Columns with data in each row.
    pub(super) fn data_columns(&self) -> u32 {
        match self.striping {
            None => 1,
            Some(striping) => self.places.len() as u32 - u32::from(striping.has_parity),
        }
    }

    /// Rows of a stripe.
    pub(super) fn unit(&self) -> u32 {
        self.striping.map_or(self.blocks, |striping| striping.unit)
    }

    /// The row of a block.
    pub(super) fn row(&self, block: u32) -> u32 {
        let unit = self.unit();
        block / (unit * self.data_columns()) * unit + block % unit
    }

    /// Which of the data blocks of its row a block is.
    pub(super) fn cell(&self, block: u32) -> u32 {
        block / self.unit() % self.data_columns()
    }

    /// The block that is number `cell` of a row.
    pub(super) fn block(&self, row: u32, cell: u32) -> u32 {
        let unit = self.unit();
        (row / unit * self.data_columns() + cell) * unit + row % unit
    }

    /// The column of the parity of a row.
    pub(super) fn parity_column(&self, row: u32) -> usize {
        let columns = self.places.len();
        columns - 1 - (row / self.unit()) as usize % columns
    }

    /// The column of a block.
    pub(super) fn column_of(&self, block: u32) -> usize {
        let (row, cell) = (self.row(block), self.cell(block));
        if self.has_parity() { (self.parity_column(row) + 1 + cell as usize) % self.places.len() } else { cell as usize }
    }

    pub(super) fn place_in(&self, column: usize, row: u32) -> Option<Place> {
        let (device, begin) = self.places.get(column)?;
        Some(Place { device: *device, offset: begin + u64::from(row) * BLOCK_SIZE })
    }

    /// Where a block of a striped group lies.
    pub(super) fn data_place(&self, block: u32) -> Option<Place> {
        self.place_in(self.column_of(block), self.row(block))
    }

    /// Where the parity of a row lies.
    pub(super) fn parity_place(&self, row: u32) -> Option<Place> {
        self.place_in(self.parity_column(row), row)
    }

    /// A run of blocks cut where the next one lies on another device.
    pub(super) fn pieces(&self, block: u32, count: u32) -> impl Iterator<Item = Piece> + use<> {
        let (unit, end) = (self.unit(), block + count);
        let mut at = block;
        std::iter::from_fn(move || {
            let upto = end.min((at / unit + 1) * unit);
            let piece = Piece { block: at, count: upto - at };
            at = upto;
            (piece.count > 0).then_some(piece)
        })
    }

    /// The rows that a run of blocks touches, as ranges, some perhaps twice.
    pub(super) fn rows(&self, block: u32, count: u32) -> impl Iterator<Item = Range<u32>> + use<'_> {
        self.pieces(block, count).map(|piece| {
            let row = self.row(piece.block);
            row..row + piece.count
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn layout(profile: u8, columns: u32, unit: u32, column: u32) -> Layout {
        let copies = (0..columns).map(|device| (device, u64::from(device) << 30)).collect();
        let record = GroupRecord { profile, copies, unit_blocks: unit, column_blocks: column };
        Layout::of(&record, 1 << 16).unwrap()
    }

    #[test]
    fn every_block_and_every_parity_has_a_place_of_its_own() {
        for (profile, columns, unit, column) in [
            (PROFILE_RAID5, 4, 2, 8),
            (PROFILE_RAID5, 3, 128, 256),
            (PROFILE_RAID5, 16, 1, 5),
            (PROFILE_RAID0, 3, 4, 12),
            (PROFILE_RAID5, 2, 4, 8),
        ] {
            let layout = layout(profile, columns, unit, column);
            let data = columns - u32::from(layout.has_parity());
            assert_eq!((layout.blocks(), layout.data_columns()), (data * column, data));
            let mut places = HashSet::new();
            for block in 0..layout.blocks() {
                let place = layout.data_place(block).unwrap();
                assert!(places.insert((place.device, place.offset)), "{block} lies where another does");
                assert_eq!(layout.block(layout.row(block), layout.cell(block)), block);
                let in_column = (place.offset - (u64::from(place.device) << 30)) / BLOCK_SIZE;
                assert_eq!(in_column, u64::from(layout.row(block)), "rows lie side by side");
            }
            if layout.has_parity() {
                for row in 0..column {
                    let place = layout.parity_place(row).unwrap();
                    assert!(places.insert((place.device, place.offset)), "parity of {row} lies where another does");
                }
            }
            assert_eq!(places.len() as u32, columns * column, "no place is left over");
        }
    }

    #[test]
    fn parity_takes_the_columns_in_turn_and_units_lie_in_one_piece() {
        let layout = layout(PROFILE_RAID5, 4, 2, 8);
        let columns: Vec<u32> = (0..8).map(|row| layout.parity_place(row).unwrap().device).collect();
        assert_eq!(columns, [3, 3, 2, 2, 1, 1, 0, 0]);
        let pieces: Vec<_> = layout.pieces(1, 6).map(|piece| (piece.block, piece.count)).collect();
        assert_eq!(pieces, [(1, 1), (2, 2), (4, 2), (6, 1)]);
        assert_eq!(layout.rows(1, 6).collect::<Vec<_>>(), [1..2, 0..2, 0..2, 2..3]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let record = |copies: u32, unit_blocks, column_blocks| GroupRecord {
            profile: PROFILE_RAID5,
            copies: (0..copies).map(|device| (device, 0)).collect(),
            unit_blocks,
            column_blocks,
        };
        for record in [record(3, 0, 8), record(3, 3, 8), record(1, 1, 8), record(3, 8, u32::MAX / 8 * 8), record(3, 8, 0)] {
            assert!(Layout::of(&record, 1 << 16).is_err(), "{record:?}");
        }
    }
}
