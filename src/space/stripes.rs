//! Groups with parity: rows are allocated together, filled in the order of the cells and written with their parity, all at once.
//!
//! A *full stripe* has as many rows as a unit has blocks, so that each device gets one unit. What is left of a batch takes a *narrow
//! stripe* of fewer rows, with parity of its own; the cells for which it has no data are written as zeros (padding) and nobody's.
//! Nothing is read in order to write, and no row with anything live in it is written again (after RAID-Z, which has no write hole
//! for the same reason; and md-raid5, whose plugging this re-creates: what is gathered before is written in full stripes).

use super::groups::{Group, Space, State};
use super::layout::Layout;
use super::moving::Moving;
use super::pace::Direction;
use super::transfer::{Place, carve, nowhere};
use crate::disk::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::lock::assert_may_wait;
use crate::units::{BLOCK, BLOCK_SIZE, BlockAddress};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Written where a narrow stripe has no data.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Where the next search begins: group and row.
#[derive(Debug, Default)]
pub(super) struct RowCursors {
    full: (usize, u32),
    narrow: (usize, u32),
}

/// What was written to groups with parity.
#[derive(Debug, Default)]
pub struct StripeCounts {
    /// Stripes with all their rows and cells.
    pub full: AtomicU64,
    /// Stripes with fewer.
    pub narrow: AtomicU64,
    /// Bytes of zeros in narrow ones.
    pub padded_bytes: AtomicU64,
    /// Bytes read in order to write: there is no code that does.
    pub read_to_write_bytes: AtomicU64,
}

/// Rows of one stripe that were allocated together.
#[derive(Clone, Debug)]
pub struct Rows {
    layout: Arc<Layout>,
    /// Address of the first block of the group.
    group: u64,
    first: u32,
    count: u32,
    /// Data blocks that go there; the rest of the cells are padding.
    blocks: u32,
}

impl Rows {
    /// Data blocks that go there.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The runs of addresses for the data, in order: what follows in the file goes from one to the next.
    pub fn runs(&self) -> impl Iterator<Item = (BlockAddress, u32)> + use<'_> {
        (0..self.layout.data_columns()).map_while(|cell| {
            let before = cell * self.count;
            let count = self.blocks.checked_sub(before)?.min(self.count);
            let first = self.layout.block(self.first, cell);
            (count > 0).then_some((BlockAddress(self.group + u64::from(first)), count))
        })
    }

    fn cells(&self) -> u32 {
        self.count * self.layout.data_columns()
    }

    fn is_full(&self) -> bool {
        self.count == self.layout.unit() && self.blocks == self.cells()
    }
}

/// Rows with their data: slices of whole blocks, in the order of the cells.
#[derive(Debug)]
pub struct StripeWrite<'a> {
    /// See above.
    pub rows: Rows,
    /// `rows.blocks()` blocks in all.
    pub slices: Vec<&'a [u8]>,
}

/// Slices that go to one device one behind the other.
struct DeviceWrite<'a> {
    place: Place,
    slices: Vec<&'a [u8]>,
    bytes: u64,
    /// Which of the stripes have a part in it.
    stripes: Vec<usize>,
}

impl Space {
    /// Are new groups written in rows with parity?
    pub fn has_parity(&self) -> bool {
        self.plan.has_parity()
    }

    /// Data bytes of a full stripe in new groups.
    pub fn stripe_bytes(&self) -> u64 {
        self.plan.stripe_blocks() * BLOCK_SIZE
    }

    /// What was written to groups with parity, for `stats`; null where there are none.
    pub fn stripe_status(&self) -> Value {
        if !self.has_parity() {
            return Value::Null;
        }
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.stripe_counts;
        json!({
            "full": of(&counts.full),
            "narrow": of(&counts.narrow),
            "padded_bytes": of(&counts.padded_bytes),
            "read_to_write_bytes": of(&counts.read_to_write_bytes),
        })
    }

    /// Takes rows for `blocks`, out of the caller's reservation: whole stripes first.
    pub fn allocate_rows(&self, blocks: u32) -> Result<Vec<Rows>> {
        let mut state = self.state.lock();
        let mut found = Vec::new();
        let mut left = blocks;
        while left > 0 {
            let rows = state.find_rows(left, self.blocks_per_group);
            let mut rows = rows.ok_or_else(|| Error::corrupt("a reservation without free rows behind it"))?;
            rows.blocks = left.min(rows.cells());
            left -= rows.blocks;
            state.take_rows(&rows, self.blocks_per_group)?;
            found.push(rows);
        }
        debug_assert!(state.reserved >= u64::from(blocks));
        state.reserved = state.reserved.saturating_sub(u64::from(blocks));
        Ok(found)
    }

    /// Writes the stripes, what lies side by side on a device in one call. One result for each: it failed when more was not written
    /// than can be computed from the rest.
    pub fn write_stripes(&self, stripes: &[StripeWrite<'_>]) -> Vec<Result<()>> {
        assert_may_wait("writing a device");
        let parities: Vec<AlignedBuffer> = stripes.iter().map(parity_of).collect();
        let moving = self.moving.read();
        let mut writes = Vec::new();
        for (number, (stripe, parity)) in stripes.iter().zip(&parities).enumerate() {
            columns_of(number, stripe, &self.layout_now(&stripe.rows), parity, &mut writes);
        }
        let writes = merged(writes);
        let outcomes = self.write_devices(moving.as_ref(), &writes);
        drop(moving);
        let mut failed: Vec<Vec<Error>> = stripes.iter().map(|_| Vec::new()).collect();
        for (write, outcome) in writes.iter().zip(outcomes) {
            let Err(error) = outcome else { continue };
            if !matches!(error, Error::SetAside { .. }) {
                self.note_missed(write.place.device);
            }
            for stripe in &write.stripes {
                if let Some(failed) = failed.get_mut(*stripe) {
                    failed.push(error.clone());
                }
            }
        }
        stripes.iter().zip(failed).map(|(stripe, failed)| self.judge(stripe, failed)).collect()
    }

    /// The layout of the group that the rows are in: a place of it may have moved since they were allocated.
    fn layout_now(&self, rows: &Rows) -> Arc<Layout> {
        let mut state = self.state.lock();
        state.group_mut(rows.group, self.blocks_per_group).map_or_else(|_| rows.layout.clone(), |(group, _)| group.layout.clone())
    }

    /// One column can be lost.
    fn judge(&self, stripe: &StripeWrite<'_>, mut failed: Vec<Error>) -> Result<()> {
        if failed.len() > 1
            && let Some(error) = failed.pop()
        {
            return Err(error);
        }
        let rows = &stripe.rows;
        let counter = if rows.is_full() { &self.stripe_counts.full } else { &self.stripe_counts.narrow };
        counter.fetch_add(1, Ordering::Relaxed);
        let padded = u64::from(rows.cells() - rows.blocks) * BLOCK_SIZE;
        self.stripe_counts.padded_bytes.fetch_add(padded, Ordering::Relaxed);
        Ok(())
    }

    /// On devices that take their time all at once, else one after the other: a thread would cost more than the write.
    fn write_devices(&self, moving: Option<&Moving>, writes: &[DeviceWrite<'_>]) -> Vec<Result<()>> {
        let one = |write: &DeviceWrite<'_>| self.write_place(moving, write.place, &write.slices, write.bytes as usize);
        if writes.len() < 2 || self.pace.is_quick(Direction::Write) {
            return writes.iter().map(one).collect();
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = writes.iter().map(|write| scope.spawn(move || one(write))).collect();
            let ended = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            ended.map(|result| result.unwrap_or_else(|_| Err(Error::corrupt("a thread that wrote a device panicked")))).collect()
        })
    }

    /// Computes what lies from `block` on in a group with parity from the other columns. One piece, see `Layout::pieces`.
    pub(super) fn compute(&self, layout: &Layout, block: u32, into: &mut [u8]) -> Result<()> {
        into.fill(0);
        self.add_columns(layout, &[layout.column_of(block)], layout.row(block), into)
    }

    /// Writes the parity of the row of `block` anew, whose bytes these are. All other blocks of the row are good: the caller has made sure.
    pub(super) fn mend_parity(&self, moving: Option<&Moving>, layout: &Layout, block: u32, bytes: &[u8]) -> Result<()> {
        let row = layout.row(block);
        let mut parity = AlignedBuffer::copy_of(bytes);
        self.add_columns(layout, &[layout.column_of(block), layout.parity_column(row)], row, &mut parity)?;
        let place = layout.parity_place(row).ok_or_else(nowhere)?;
        self.write_place(moving, place, &[&parity], BLOCK)
    }

    /// Adds (exclusive or) what all columns but some have from `row` on to `sum`.
    pub(super) fn add_columns(&self, layout: &Layout, left_out: &[usize], row: u32, sum: &mut [u8]) -> Result<()> {
        let mut buffer = AlignedBuffer::zeroed(sum.len());
        for column in (0..layout.places.len()).filter(|column| !left_out.contains(column)) {
            self.read_column_at(layout, column, row, &mut buffer)?;
            add(sum, &buffer);
        }
        Ok(())
    }

    /// What one column, or copy, has from `row` on.
    pub(super) fn read_column_at(&self, layout: &Layout, column: usize, row: u32, into: &mut [u8]) -> Result<()> {
        self.read_present(layout.place_in(column, row).ok_or_else(nowhere)?, into)
    }

    /// The rows of the blocks of a run, as numbers that no two rows share; None where there is no parity.
    pub fn row_numbers(&self, first: BlockAddress, count: u32) -> Option<Vec<u64>> {
        let mut state = self.state.lock();
        let (group, in_group) = state.group_mut(first.0, self.blocks_per_group).ok()?;
        let layout = &group.layout;
        let begin = first.0 - u64::from(in_group);
        layout.has_parity().then(|| (in_group..in_group + count).map(|block| begin + u64::from(layout.row(block))).collect())
    }

    /// The other blocks whose parity is also that of `block`; empty where there is none.
    pub fn row_mates(&self, block: BlockAddress) -> Result<Vec<BlockAddress>> {
        let mut state = self.state.lock();
        let (group, in_group) = state.group_mut(block.0, self.blocks_per_group)?;
        let layout = &group.layout;
        if !layout.has_parity() {
            return Ok(Vec::new());
        }
        let (row, cell) = (layout.row(in_group), layout.cell(in_group));
        let begin = block.0 - u64::from(in_group);
        let others = (0..layout.data_columns()).filter(|other| *other != cell);
        Ok(others.map(|other| BlockAddress(begin + u64::from(layout.block(row, other)))).collect())
    }
}

impl State {
    fn find_rows(&mut self, blocks: u32, blocks_per_group: u64) -> Option<Rows> {
        self.find_stripe(blocks).or_else(|| self.find_narrow(blocks)).map(|(group, first, count)| {
            let layout = self.groups[group].layout.clone();
            Rows { layout, group: group as u64 * blocks_per_group, first, count, blocks: 0 }
        })
    }

    /// A whole stripe, if there is one and it will be full.
    fn find_stripe(&mut self, blocks: u32) -> Option<(usize, u32, u32)> {
        let (group, first) = self.search_rows(self.rows.full, |group, from| {
            let unit = group.layout.unit();
            if blocks < unit * group.layout.data_columns() { None } else { free_stripe(group, from) }
        })?;
        let unit = self.groups[group].layout.unit();
        self.rows.full = (group, first + unit);
        Some((group, first, unit))
    }

    /// Rows behind the last narrow stripe; else the first of a whole free one; else what there is.
    fn find_narrow(&mut self, blocks: u32) -> Option<(usize, u32, u32)> {
        let (group, row) = self.rows.narrow;
        let here = self.groups.get(group).and_then(|group| {
            let rows = group.rows.as_ref().filter(|_| group.takes_new)?;
            let (unit, wanted) = (group.layout.unit(), blocks.div_ceil(group.layout.data_columns()));
            let left = if row.is_multiple_of(unit) { 0 } else { unit - row % unit };
            let free = rows.free_run(row, wanted.min(left));
            // Not the last few rows for the begin of a long batch: its pieces would be many.
            (free >= wanted || (free > 0 && free >= unit / 4)).then_some((row, free))
        });
        let found = match here {
            Some((row, count)) => Some((group, row, count)),
            None => match self.search_rows(self.rows.full, free_stripe) {
                Some((group, first)) => {
                    let layout = &self.groups[group].layout;
                    let count = blocks.div_ceil(layout.data_columns()).min(layout.unit());
                    self.rows.full = (group, first + layout.unit());
                    Some((group, first, count))
                }
                None => self.search_rows(self.rows.narrow, |group, from| group.rows.as_ref()?.next_free(from)).map(
                    |(group, first)| {
                        let (layout, rows) = (&self.groups[group].layout, self.groups[group].rows.as_ref());
                        let left = layout.unit() - first % layout.unit();
                        let wanted = blocks.div_ceil(layout.data_columns()).min(left);
                        (group, first, rows.map_or(0, |rows| rows.free_run(first, wanted)))
                    },
                ),
            },
        };
        let (group, first, count) = found.filter(|found| found.2 > 0)?;
        self.rows.narrow = (group, first + count);
        Some((group, first, count))
    }

    /// Searches groups with parity from a cursor, once around.
    fn search_rows(&self, (start, row): (usize, u32), find: impl Fn(&Group, u32) -> Option<u32>) -> Option<(usize, u32)> {
        let groups = self.groups.len();
        (0..=groups).find_map(|step| {
            let number = (start + step) % groups.max(1);
            let group = self.groups.get(number).filter(|group| group.free > 0 && group.takes_new && group.rows.is_some())?;
            find(group, if step == 0 { row } else { 0 }).map(|row| (number, row))
        })
    }

    fn take_rows(&mut self, rows: &Rows, blocks_per_group: u64) -> Result<()> {
        for (first, count) in rows.runs() {
            self.set_used(first.0, count, true, blocks_per_group)?;
        }
        // Rows of which the data begins further on in the same batch are taken too: every row has data in its first cell.
        debug_assert!(rows.blocks >= rows.count);
        Ok(())
    }
}

/// The first row of a stripe at or behind `from` of which nothing is used.
fn free_stripe(group: &Group, from: u32) -> Option<u32> {
    let (rows, unit) = (group.rows.as_ref()?, group.layout.unit());
    let mut at = from.next_multiple_of(unit);
    while at + unit <= rows.len() {
        if rows.free_run(at, unit) == unit {
            return Some(at);
        }
        at += unit;
    }
    None
}

/// Adds (exclusive or) `bytes` to `sum`.
fn add(sum: &mut [u8], bytes: &[u8]) {
    for (sum, byte) in sum.iter_mut().zip(bytes) {
        *sum ^= byte;
    }
}

fn parity_of(stripe: &StripeWrite<'_>) -> AlignedBuffer {
    let column = stripe.rows.count as usize * BLOCK;
    let mut parity = AlignedBuffer::zeroed(column);
    let mut at = 0;
    for slice in &stripe.slices {
        let mut rest = *slice;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(column - at));
            add(parity.get_mut(at..).unwrap_or_default(), now);
            at = (at + now.len()) % column;
            rest = later;
        }
    }
    parity
}

/// What each device gets of a stripe.
fn columns_of<'a>(
    number: usize,
    stripe: &StripeWrite<'a>,
    layout: &Layout,
    parity: &'a AlignedBuffer,
    writes: &mut Vec<DeviceWrite<'a>>,
) {
    let rows = &stripe.rows;
    let column = rows.count as usize * BLOCK;
    let data = rows.blocks as usize * BLOCK;
    for cell in 0..layout.data_columns() {
        let begin = cell as usize * column;
        let mut parts = carve(&stripe.slices, begin, begin + column);
        let mut padding = (begin + column).saturating_sub(data.max(begin));
        while padding > 0 {
            let zeros = ZEROS.get(..padding).unwrap_or(&ZEROS);
            parts.push(zeros);
            padding -= zeros.len();
        }
        if let Some(place) = layout.data_place(layout.block(rows.first, cell)) {
            writes.push(DeviceWrite { place, slices: parts, bytes: column as u64, stripes: vec![number] });
        }
    }
    if let Some(place) = layout.parity_place(rows.first) {
        writes.push(DeviceWrite { place, slices: vec![parity], bytes: column as u64, stripes: vec![number] });
    }
}

/// What lies side by side on a device, in one.
fn merged(mut writes: Vec<DeviceWrite<'_>>) -> Vec<DeviceWrite<'_>> {
    writes.sort_by_key(|write| (write.place.device, write.place.offset));
    let mut merged: Vec<DeviceWrite<'_>> = Vec::with_capacity(writes.len());
    for write in writes {
        match merged.last_mut() {
            Some(last) if last.place.device == write.place.device && last.place.offset + last.bytes == write.place.offset => {
                last.slices.extend(write.slices);
                last.bytes += write.bytes;
                last.stripes.extend(write.stripes);
            }
            _ => merged.push(write),
        }
    }
    merged
}
