//! Segments: the cache of one file as an interval map of whole blocks.
//!
//! ```text
//!            insert_clean                write                    freeze (writeback)
//!  nothing ---------------> Clean ----------------> Dirty ----------------------------> InFlight
//!     ^                       |                       ^ write lays a new Dirty over it      |
//!     +------- evict ---------+<---- finished (unchanged since frozen) --------------------+
//! ```
//! A segment shows a part of a buffer. A Dirty segment whose buffer nobody else holds is written in place; everything else
//! is covered by a new one. So a frozen buffer never changes (D9).

use crate::disk::buffer::AlignedBuffer;
use crate::units::{BLOCK_SIZE, EXTENT_BYTES_MAX};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// State of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// As on the device.
    Clean,
    /// Newer than the device; holds a reservation.
    Dirty,
    /// Being written by the ordered extent with this number.
    InFlight(u64),
}

/// A part of a buffer that stands for a range of the file.
#[derive(Clone, Debug)]
pub struct Segment {
    buffer: Arc<AlignedBuffer>,
    /// Where in the buffer the segment begins.
    begin: usize,
    /// Bytes, whole blocks.
    len: usize,
    /// See [`State`].
    pub state: State,
    /// Used again since it came, or since it was last aged: hot.
    pub is_referenced: bool,
}

impl Segment {
    /// All of `buffer`.
    pub fn new(buffer: AlignedBuffer, state: State) -> Segment {
        Segment::shared(Arc::new(buffer), state)
    }

    /// All of `buffer`, which others hold too.
    pub fn shared(buffer: Arc<AlignedBuffer>, state: State) -> Segment {
        let len = buffer.len();
        Segment { buffer, begin: 0, len, state, is_referenced: false }
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// No bytes?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.get(self.begin..self.begin + self.len).unwrap_or_default()
    }

    /// The buffer and the part of it that is this segment.
    pub fn share(&self) -> (Arc<AlignedBuffer>, Range<usize>) {
        (self.buffer.clone(), self.begin..self.begin + self.len)
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.state != State::Dirty {
            return None;
        }
        Arc::get_mut(&mut self.buffer)?.get_mut(self.begin..self.begin + self.len)
    }
}

/// The segments of one file; the caller's lock (rank Segments) protects them. Offsets are bytes in the file.
#[derive(Debug, Default)]
pub struct Segments {
    map: BTreeMap<u64, Segment>,
    /// Bytes of Dirty segments.
    pub dirty_bytes: u64,
    /// Bytes of all segments.
    pub total_bytes: u64,
}

impl Segments {
    /// Segments that overlap `range`, in order.
    pub fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &Segment)> {
        let begin = self
            .map
            .range(..=range.start)
            .next_back()
            .filter(|(offset, segment)| **offset + segment.len() > range.start)
            .map_or(range.start, |(offset, _)| *offset);
        self.map.range(begin..range.end.max(begin)).map(|(offset, segment)| (*offset, segment))
    }

    /// The parts of `range` that no segment covers.
    pub fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        for (offset, segment) in self.overlapping(range.clone()) {
            if offset > at {
                gaps.push(at..offset.min(range.end));
            }
            at = at.max(offset + segment.len());
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }

    /// Is every byte of `range` here?
    pub fn covers(&self, range: Range<u64>) -> bool {
        self.gaps(range).is_empty()
    }

    /// Dirty bytes within `range`.
    pub fn dirty_within(&self, range: Range<u64>) -> u64 {
        let dirty = self.overlapping(range.clone()).filter(|(_, segment)| segment.state == State::Dirty);
        dirty.map(|(offset, segment)| (offset + segment.len()).min(range.end) - offset.max(range.start)).sum()
    }

    /// The block at `at` by itself, as something clean, if it is here.
    pub fn block(&self, at: u64) -> Option<Segment> {
        let (offset, segment) = self.map.range(..=at).next_back()?;
        if offset + segment.len() <= at {
            return None;
        }
        let (buffer, begin, len) = (segment.buffer.clone(), segment.begin + (at - offset) as usize, BLOCK_SIZE as usize);
        Some(Segment { buffer, begin, len, state: State::Clean, is_referenced: false })
    }

    /// The segment that alone covers `range`, marked as hot unless the read only goes on where the last one ended.
    pub fn single(&mut self, range: Range<u64>, goes_on: bool) -> Option<(Arc<AlignedBuffer>, Range<usize>)> {
        let (offset, segment) = self.map.range_mut(..=range.start).next_back()?;
        if *offset + segment.len() < range.end {
            return None;
        }
        segment.is_referenced |= !goes_on;
        let begin = segment.begin + (range.start - offset) as usize;
        Some((segment.buffer.clone(), begin..begin + (range.end - range.start) as usize))
    }

    /// Copies `range`, which must be covered, into `into`.
    pub fn copy_out(&self, range: Range<u64>, into: &mut [u8]) {
        for (offset, segment) in self.overlapping(range.clone()) {
            let (start, end) = (offset.max(range.start), (offset + segment.len()).min(range.end));
            let source = segment.bytes().get((start - offset) as usize..(end - offset) as usize);
            let target = into.get_mut((start - range.start) as usize..(end - range.start) as usize);
            if let (Some(source), Some(target)) = (source, target) {
                target.copy_from_slice(source);
            }
        }
    }

    /// Writes `data` at `offset`. Its first and last block are resident where they are only partly written. Bytes that became
    /// dirty by this (whole blocks that were not dirty before).
    pub fn write(&mut self, offset: u64, data: &[u8]) -> u64 {
        let end = offset + data.len() as u64;
        let whole = crate::extent::load::whole_blocks(offset..end);
        let dirty_before = self.dirty_bytes;
        if self.write_in_place(offset, data) || self.append_to_tail(offset, data) {
            return self.dirty_bytes - dirty_before;
        }
        let length = (whole.end - whole.start) as usize;
        let buffer = if whole == (offset..end) {
            AlignedBuffer::copy_of(data)
        } else {
            let mut buffer = AlignedBuffer::zeroed(length);
            self.copy_out(whole.clone(), &mut buffer);
            let begin = (offset - whole.start) as usize;
            if let Some(target) = buffer.get_mut(begin..begin + data.len()) {
                target.copy_from_slice(data);
            }
            buffer
        };
        self.insert(whole.start, Segment::new(buffer, State::Dirty));
        self.dirty_bytes.saturating_sub(dirty_before)
    }

    fn write_in_place(&mut self, offset: u64, data: &[u8]) -> bool {
        let Some((begin, segment)) = self.map.range_mut(..=offset).next_back() else { return false };
        let within = (offset - begin) as usize;
        if within + data.len() > segment.len {
            return false;
        }
        let Some(bytes) = segment.bytes_mut() else { return false };
        match bytes.get_mut(within..within + data.len()) {
            Some(target) => {
                target.copy_from_slice(data);
                true
            }
            None => false,
        }
    }

    /// Small sequential writes fill spare room in the buffer of the dirty segment before them, which grows by doubling up to one
    /// extent: one copy, no allocation for most of them.
    fn append_to_tail(&mut self, offset: u64, data: &[u8]) -> bool {
        let len = data.len();
        if !offset.is_multiple_of(BLOCK_SIZE) || !(len as u64).is_multiple_of(BLOCK_SIZE) || len as u64 > EXTENT_BYTES_MAX / 4 {
            return false;
        }
        let is_free = self.map.range(offset..offset + len as u64).next().is_none();
        let Some((begin, tail)) = self.map.range_mut(..offset).next_back() else { return false };
        if !is_free || begin + tail.len() != offset || tail.state != State::Dirty || tail.len + len > EXTENT_BYTES_MAX as usize {
            return false;
        }
        let used = tail.begin + tail.len;
        let room = Arc::get_mut(&mut tail.buffer).and_then(|buffer| buffer.get_mut(used..used + len));
        match room {
            Some(room) => room.copy_from_slice(data),
            None => {
                let capacity = ((tail.len + len) * 4).next_power_of_two().min(EXTENT_BYTES_MAX as usize);
                let buffer = AlignedBuffer::filled_by(capacity, |buffer| {
                    let (old, rest) = buffer.split_at_mut(tail.len);
                    old.copy_from_slice(tail.bytes());
                    rest[..len].copy_from_slice(data);
                });
                tail.buffer = Arc::new(buffer);
                tail.begin = 0;
            }
        }
        tail.len += len;
        self.dirty_bytes += len as u64;
        self.total_bytes += len as u64;
        true
    }

    /// Puts `segment` at `offset`, over whatever is there.
    pub fn insert(&mut self, offset: u64, segment: Segment) {
        self.remove(offset..offset + segment.len());
        self.total_bytes += segment.len();
        if segment.state == State::Dirty {
            self.dirty_bytes += segment.len();
        }
        self.map.insert(offset, segment);
    }

    /// Removes `range` (whole blocks); the dirty bytes that were in it.
    pub fn remove(&mut self, range: Range<u64>) -> u64 {
        self.split_at(range.start);
        self.split_at(range.end);
        let keys: Vec<u64> = self.map.range(range).map(|(offset, _)| *offset).collect();
        let mut dirty = 0;
        for key in keys {
            if let Some(segment) = self.map.remove(&key) {
                self.total_bytes -= segment.len();
                if segment.state == State::Dirty {
                    self.dirty_bytes -= segment.len();
                    dirty += segment.len();
                }
            }
        }
        dirty
    }

    fn split_at(&mut self, at: u64) {
        debug_assert!(at.is_multiple_of(BLOCK_SIZE) || at >= u64::MAX - BLOCK_SIZE, "a border inside a block: {at}");
        let Some((&offset, segment)) = self.map.range_mut(..at).next_back() else { return };
        if offset + segment.len() <= at {
            return;
        }
        let left = (at - offset) as usize;
        let mut right = segment.clone();
        right.begin += left;
        right.len -= left;
        segment.len = left;
        self.map.insert(at, right);
    }

    /// Zeros the bytes from `size` to the end of its block, when that block is here.
    pub fn zero_tail(&mut self, size: u64) {
        let block = crate::units::block_floor(size);
        if block == size {
            return;
        }
        let within = (size - block) as usize;
        let Some((offset, segment)) = self.map.range(..=block).next_back() else { return };
        if *offset + segment.len() <= block {
            return;
        }
        let state = segment.state;
        let mut buffer = AlignedBuffer::zeroed(BLOCK_SIZE as usize);
        self.copy_out(block..block + BLOCK_SIZE, &mut buffer);
        if let Some(tail) = buffer.get_mut(within..) {
            tail.fill(0);
        }
        self.insert(block, Segment::new(buffer, state));
    }

    /// Where the first dirty segment in `range` begins.
    pub fn first_dirty(&self, range: Range<u64>) -> Option<u64> {
        let first = self.overlapping(range.clone()).find(|(_, segment)| segment.state == State::Dirty);
        first.map(|(offset, _)| offset.max(range.start))
    }

    /// Freezes the run of adjacent dirty segments that begins at `start` (where a segment begins), up to `end` and up to one
    /// extent, and marks it with `number`.
    pub fn freeze_run(&mut self, start: u64, end: u64, number: u64) -> Vec<Frozen> {
        self.split_at(start);
        self.split_at(end);
        let mut parts = Vec::new();
        let mut at = start;
        while at < end && at - start < EXTENT_BYTES_MAX {
            let Some(segment) = self.map.get(&at) else { break };
            if segment.state != State::Dirty {
                break;
            }
            let room = EXTENT_BYTES_MAX - (at - start);
            if segment.len() > room {
                self.split_at(at + room);
            }
            let Some(segment) = self.map.get_mut(&at) else { break };
            segment.state = State::InFlight(number);
            self.dirty_bytes -= segment.len();
            let (buffer, range) = segment.share();
            at += segment.len();
            parts.push(Frozen { buffer, range });
        }
        parts
    }

    /// The ordered extent `number` over `range` is done: what still belongs to it becomes clean, dirty again (`failed`), or is
    /// dropped (`keep` false). Bytes that became dirty again.
    pub fn finish(&mut self, range: Range<u64>, number: u64, failed: bool, keep: bool) -> u64 {
        let keys: Vec<u64> = self.overlapping(range).map(|(offset, _)| offset).collect();
        let mut dirty = 0;
        for key in keys {
            let Some(segment) = self.map.get_mut(&key) else { continue };
            if segment.state != State::InFlight(number) {
                continue;
            }
            let len = segment.len();
            if failed {
                segment.state = State::Dirty;
                self.dirty_bytes += len;
                dirty += len;
            } else if keep {
                segment.state = State::Clean;
            } else {
                self.map.remove(&key);
                self.total_bytes -= len;
            }
        }
        dirty
    }

    /// Drops clean segments that are not hot, at most `budget` bytes; bytes dropped. With `ages`, hot ones are cold afterwards.
    pub fn evict(&mut self, budget: u64, ages: bool) -> u64 {
        let mut dropped = 0;
        self.map.retain(|_, segment| {
            let keep = segment.state != State::Clean || segment.is_referenced || dropped >= budget;
            segment.is_referenced &= !ages;
            if !keep {
                dropped += segment.len();
            }
            keep
        });
        self.total_bytes -= dropped;
        dropped
    }

    /// Number of segments.
    pub fn count(&self) -> usize {
        self.map.len()
    }
}

/// A frozen part of an ordered extent.
#[derive(Clone, Debug)]
pub struct Frozen {
    buffer: Arc<AlignedBuffer>,
    range: Range<usize>,
}

impl Frozen {
    /// The bytes, which nobody can change.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.get(self.range.clone()).unwrap_or_default()
    }
}
