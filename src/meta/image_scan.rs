//! Reading an image file: which frames it has, which are bad, how far base and log reach. Believes nothing that is not covered by a
//! checksum; what follows a bad frame is looked for block by block.

use super::image_format::{FRAMES_AT, FileHeader, Frame, FrameKind, Link, Record};
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::units::BLOCK_SIZE;
use std::sync::Arc;

/// One file, as it was found.
pub(super) struct Scan {
    disk: Arc<dyn Disk>,
    pub(super) place: u8,
    pub(super) header: FileHeader,
    /// Offsets of the base frames, in order.
    base: Vec<(u64, Frame)>,
    /// Offsets of the log frames, in order, up to the last checkpoint that all before it are there for.
    log: Vec<(u64, Frame)>,
    /// All of the base is there.
    pub(super) is_complete: bool,
    /// Frames that are bad, or pieces in which none was found although there are some behind.
    pub(super) bad: u64,
    /// Behind the last frame of base and log.
    pub(super) end: u64,
    /// What a frame behind the last log frame would follow, be that of a checkpoint or not.
    pub(super) last_log: Link,
}

impl Scan {
    /// What is in the file, up to `limit`; None when it is no image of this store. `at` hears how far it is.
    pub(super) fn of(
        disk: &Arc<dyn Disk>,
        place: u8,
        store: &[u8; 16],
        limit: u64,
        at: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<Scan>> {
        let Some(header) = FileHeader::read(&**disk, store)? else { return Ok(None) };
        let disk = disk.clone();
        let end = FRAMES_AT;
        let (base, log, last_log) = (Vec::new(), Vec::new(), Link::first(header.nonce));
        let mut scan = Scan { disk, place, header, base, log, is_complete: false, bad: 0, end, last_log };
        scan.read_frames(store, limit, at)?;
        let whole = scan.log.iter().rposition(|(_, frame)| frame.kind == FrameKind::Checkpoint).map_or(0, |last| last + 1);
        scan.log.truncate(whole);
        let behind = |(offset, frame): &(u64, Frame)| offset + frame.bytes();
        let ends = scan.log.last().map(behind).into_iter().chain(scan.base.last().map(behind));
        scan.end = ends.fold(FRAMES_AT, u64::max);
        Ok(Some(scan))
    }

    fn read_frames(&mut self, store: &[u8; 16], limit: u64, at: &mut dyn FnMut(u64) -> bool) -> Result<()> {
        let first = Link::first(self.header.nonce);
        let (mut base, mut log) = (first, first);
        let (mut offset, mut is_lost) = (FRAMES_AT, false);
        let (mut is_base_whole, mut is_log_whole) = (true, true);
        let limit = limit.min(self.disk.len()?);
        while offset < limit && at(offset) {
            let found = Frame::read(&*self.disk, store, offset)?.filter(|frame| frame.generation == self.header.generation);
            let Some(frame) = found else {
                is_lost = true;
                offset += BLOCK_SIZE;
                continue;
            };
            let link = if frame.kind.is_log() { &mut log } else { &mut base };
            let follows = (frame.number, frame.previous) == (link.number, link.previous);
            if !follows && frame.number <= link.number {
                // Left behind by an older end of the log.
                is_lost = true;
                offset += BLOCK_SIZE;
                continue;
            }
            let is_good = frame.read_payload(&*self.disk, offset)?.is_some();
            self.bad += u64::from(!is_good) + u64::from(std::mem::take(&mut is_lost) && !frame.kind.is_log());
            let is_whole = if frame.kind.is_log() { &mut is_log_whole } else { &mut is_base_whole };
            *is_whole &= follows && is_good;
            *link = Link::behind(&frame);
            match frame.kind {
                FrameKind::BaseEnd => {
                    self.is_complete = is_base_whole;
                    self.base.push((offset, frame));
                }
                FrameKind::Base => self.base.push((offset, frame)),
                FrameKind::Log | FrameKind::Checkpoint if is_log_whole => self.log.push((offset, frame)),
                FrameKind::Log | FrameKind::Checkpoint => self.bad += 1,
            }
            offset += frame.bytes();
        }
        self.last_log = log;
        Ok(())
    }

    /// The last transaction in base and log; None when the log has no checkpoint.
    pub(super) fn log_sequence(&self) -> Option<u64> {
        self.log.last().map(|(_, frame)| frame.sequence)
    }

    /// The log's first checkpoint.
    pub(super) fn first_log_sequence(&self) -> Option<u64> {
        self.log.iter().find(|(_, frame)| frame.kind == FrameKind::Checkpoint).map(|(_, frame)| frame.sequence)
    }

    /// What the next log frame follows.
    pub(super) fn log_link(&self) -> Link {
        self.log.last().map_or(Link::first(self.header.nonce), |(_, frame)| Link::behind(frame))
    }

    pub(super) fn base_bytes(&self) -> u64 {
        self.base.iter().map(|(_, frame)| frame.bytes()).sum()
    }

    pub(super) fn log_bytes(&self) -> u64 {
        self.log.iter().map(|(_, frame)| frame.bytes()).sum()
    }

    /// Hands the records of the base to `take`, frame by frame.
    pub(super) fn each_base(&self, take: &mut dyn FnMut(Vec<Record>, u64) -> Result<()>) -> Result<()> {
        self.each(&self.base, take)
    }

    /// Hands the changes of the log to `take`, frame by frame.
    pub(super) fn each_log(&self, take: &mut dyn FnMut(Vec<Record>, u64) -> Result<()>) -> Result<()> {
        self.each(&self.log, take)
    }

    fn each(&self, frames: &[(u64, Frame)], take: &mut dyn FnMut(Vec<Record>, u64) -> Result<()>) -> Result<()> {
        for (offset, frame) in frames.iter().filter(|(_, frame)| frame.kind != FrameKind::BaseEnd) {
            match frame.read_records(&*self.disk, *offset)? {
                Some(records) => take(records, frame.bytes())?,
                None => {
                    return Err(Error::corrupt(format!("the frame at {offset} of {} was whole and is not", self.disk.name())));
                }
            }
        }
        Ok(())
    }

    /// The newest value of `key`, which each checkpoint writes, in the log, else in the base.
    pub(super) fn newest(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.newest_logged(key)? {
            None => self.find_in(self.base.iter(), key),
            found => Ok(found),
        }
    }

    /// The newest value of `key`, which each checkpoint writes, in the log.
    pub(super) fn newest_logged(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.find_in(self.log.iter().rev().filter(|(_, frame)| frame.kind == FrameKind::Checkpoint), key)
    }

    fn find_in<'a>(&self, frames: impl Iterator<Item = &'a (u64, Frame)>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        for (offset, frame) in frames {
            let records = frame.read_records(&*self.disk, *offset)?.unwrap_or_default();
            if let Some((_, Some(value))) = records.into_iter().find(|(known, _)| known == key) {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }
}
