//! A read through the cache: a hit is a slice of a segment; a miss loads, verified, what is not here.

use super::segment::{Segment, State};
use super::{Cache, CachedFile};
use crate::disk::buffer::AlignedBuffer;
use crate::error::{Error, Reason, Result};
use crate::extent::load::whole_blocks;
use crate::lock::Wait;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes for a reply: a part of a shared buffer.
#[derive(Clone, Debug, Default)]
pub struct ReadData {
    buffer: Option<Arc<AlignedBuffer>>,
    range: Range<usize>,
}

impl ReadData {
    fn new(buffer: Arc<AlignedBuffer>, range: Range<usize>) -> ReadData {
        ReadData { buffer: Some(buffer), range }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.buffer.as_deref().and_then(|buffer| buffer.get(self.range.clone())).unwrap_or_default()
    }
}

impl Cache {
    /// Reads `range` (already cut to the size). Under `Allowed` the caller holds the whole blocks shared.
    pub fn read(&self, file: &Arc<CachedFile>, range: Range<u64>, keep: bool, wait: Wait) -> Result<ReadData> {
        if range.is_empty() {
            return Ok(ReadData::default());
        }
        let whole = whole_blocks(range.clone());
        let within = (range.start - whole.start) as usize..(range.end - whole.start) as usize;
        let (gaps, mut assembled) = {
            let mut content = file.content.lock();
            let goes_on = content.note_read(&range);
            if let Some((buffer, range)) = content.segments.single(range.clone(), goes_on) {
                self.stats.cache_hits.fetch_add(1, Ordering::Relaxed);
                return Ok(ReadData::new(buffer, range));
            }
            let gaps = content.segments.gaps(whole.clone());
            if !gaps.is_empty() && wait == Wait::Never {
                return Err(Error::WouldBlock(Reason::NotCached));
            }
            let length = (whole.end - whole.start) as usize;
            let assembled = AlignedBuffer::filled_by(length, |buffer| content.segments.copy_out(whole.clone(), buffer));
            (gaps, assembled)
        };
        if gaps.is_empty() {
            self.stats.cache_hits.fetch_add(1, Ordering::Relaxed);
            return Ok(ReadData::new(Arc::new(assembled), within));
        }
        self.stats.cache_misses.fetch_add(1, Ordering::Relaxed);
        for gap in &gaps {
            let part = (gap.start - whole.start) as usize..(gap.end - whole.start) as usize;
            if let Some(target) = assembled.get_mut(part) {
                self.extents.load(&file.extents, gap.start, target)?;
            }
        }
        let assembled = Arc::new(assembled);
        if keep && self.keeps_clean {
            self.keep_loaded(file, &whole, &gaps, &assembled);
        }
        Ok(ReadData::new(assembled, within))
    }

    /// As `read`, into memory of the caller's, and without a copy between where it is loaded: there must be room for whole blocks. How
    /// many bytes of `target` are the range.
    pub fn read_into(
        &self,
        file: &Arc<CachedFile>,
        range: Range<u64>,
        keep: bool,
        wait: Wait,
        target: &mut [u8],
    ) -> Result<usize> {
        let whole = whole_blocks(range.clone());
        let bytes = (range.end - range.start) as usize;
        let blocks = target.get_mut(..(whole.end - whole.start) as usize);
        let Some(blocks) = blocks.filter(|_| range.start == whole.start && bytes > 0 && !(keep && self.keeps_clean)) else {
            let data = self.read(file, range, keep, wait)?;
            let data = data.as_slice();
            target.get_mut(..data.len()).ok_or(Error::Invalid("a read larger than its room"))?.copy_from_slice(data);
            return Ok(data.len());
        };
        let gaps = {
            let mut content = file.content.lock();
            let goes_on = content.note_read(&range);
            if let Some((buffer, part)) = content.segments.single(range.clone(), goes_on) {
                drop(content);
                self.stats.cache_hits.fetch_add(1, Ordering::Relaxed);
                if let (Some(found), Some(target)) = (buffer.get(part), blocks.get_mut(..bytes)) {
                    target.copy_from_slice(found);
                }
                return Ok(bytes);
            }
            let gaps = content.segments.gaps(whole.clone());
            if !gaps.is_empty() && wait == Wait::Never {
                return Err(Error::WouldBlock(Reason::NotCached));
            }
            content.segments.copy_out(whole.clone(), blocks);
            gaps
        };
        let counter = if gaps.is_empty() { &self.stats.cache_hits } else { &self.stats.cache_misses };
        counter.fetch_add(1, Ordering::Relaxed);
        for gap in &gaps {
            let part = (gap.start - whole.start) as usize..(gap.end - whole.start) as usize;
            if let Some(target) = blocks.get_mut(part) {
                self.extents.load(&file.extents, gap.start, target)?;
            }
        }
        Ok(bytes)
    }

    /// Enters what was loaded into the cache, where nothing newer came meanwhile.
    fn keep_loaded(&self, file: &Arc<CachedFile>, whole: &Range<u64>, gaps: &[Range<u64>], bytes: &Arc<AlignedBuffer>) {
        let (before, after) = {
            let mut content = file.content.lock();
            let before = content.segments.total_bytes;
            for gap in gaps {
                if content.segments.gaps(gap.clone()) != [gap.clone()] {
                    continue;
                }
                let part = bytes.get((gap.start - whole.start) as usize..(gap.end - whole.start) as usize);
                let segment = match part {
                    _ if gap == whole => Segment::shared(bytes.clone(), State::Clean),
                    Some(part) => Segment::new(AlignedBuffer::copy_of(part), State::Clean),
                    None => continue,
                };
                content.segments.insert(gap.start, segment);
            }
            (before, content.segments.total_bytes)
        };
        self.account(before, after);
        self.queue_for_eviction(file);
        if self.total_bytes() > self.budget_bytes {
            self.evict();
        }
    }
}
