//! A read through the cache: a hit is a slice of a segment; a miss loads, verified, what is not here.

use super::segment::{Segment, Segments, State};
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

/// What of a range is in the cache.
enum Resident<T> {
    /// All of it, in one segment.
    Whole(Arc<AlignedBuffer>, Range<usize>),
    /// All but the gaps; with what the copy gave.
    Parts(Vec<Range<u64>>, T),
}

impl Cache {
    /// Reads `range` (already cut to the size). Under `Allowed` the caller holds the whole blocks shared.
    pub fn read(&self, file: &Arc<CachedFile>, range: Range<u64>, keep: bool, wait: Wait) -> Result<ReadData> {
        if range.is_empty() {
            return Ok(ReadData::default());
        }
        let whole = whole_blocks(range.clone());
        let within = (range.start - whole.start) as usize..(range.end - whole.start) as usize;
        let length = (whole.end - whole.start) as usize;
        let assemble = |segments: &Segments| AlignedBuffer::filled_by(length, |buffer| segments.copy_out(whole.clone(), buffer));
        let (gaps, mut assembled) = match self.look(file, &range, wait, assemble)? {
            Resident::Whole(buffer, range) => return Ok(ReadData::new(buffer, range)),
            Resident::Parts(gaps, assembled) => (gaps, assembled),
        };
        self.load_gaps(file, whole.start, &gaps, &mut assembled)?;
        let assembled = Arc::new(assembled);
        if keep && self.keeps_clean && !gaps.is_empty() {
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
        match self.look(file, &range, wait, |segments| segments.copy_out(whole.clone(), blocks))? {
            Resident::Whole(buffer, part) => {
                if let (Some(found), Some(target)) = (buffer.get(part), blocks.get_mut(..bytes)) {
                    target.copy_from_slice(found);
                }
            }
            Resident::Parts(gaps, ()) => self.load_gaps(file, whole.start, &gaps, blocks)?,
        }
        Ok(bytes)
    }

    /// Looks for the range; what no single segment holds is copied with `copy` while the segments stand still. Gaps are refused under
    /// `Never`.
    fn look<T>(
        &self,
        file: &Arc<CachedFile>,
        range: &Range<u64>,
        wait: Wait,
        copy: impl FnOnce(&Segments) -> T,
    ) -> Result<Resident<T>> {
        let mut content = file.content.lock();
        let goes_on = content.note_read(range);
        let resident = match content.segments.single(range.clone(), goes_on) {
            Some((buffer, part)) => Resident::Whole(buffer, part),
            None => {
                let gaps = content.segments.gaps(whole_blocks(range.clone()));
                if !gaps.is_empty() && wait == Wait::Never {
                    return Err(Error::WouldBlock(Reason::NotCached));
                }
                let copied = copy(&content.segments);
                Resident::Parts(gaps, copied)
            }
        };
        drop(content);
        let is_miss = matches!(&resident, Resident::Parts(gaps, _) if !gaps.is_empty());
        let counter = if is_miss { &self.stats.cache_misses } else { &self.stats.cache_hits };
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(resident)
    }

    /// Loads the gaps of what begins at `start` in the file.
    fn load_gaps(&self, file: &Arc<CachedFile>, start: u64, gaps: &[Range<u64>], into: &mut [u8]) -> Result<()> {
        for gap in gaps {
            if let Some(target) = into.get_mut((gap.start - start) as usize..(gap.end - start) as usize) {
                self.extents.load(&file.extents, gap.start, target)?;
            }
        }
        Ok(())
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
