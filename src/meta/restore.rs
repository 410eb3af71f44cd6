//! Making an index anew from the metadata image and the journal (`image.rs` says how these are kept).
//!
//! First it is settled what there is: both files are read and compared with their checksums, and for each way to put them together it is
//! looked whether the journal goes on where the log ends. The newest complete image with its log is the usual way; should its base or
//! its log be damaged, the older image with its log, and behind that the log of the newer one. Only then is an index filled; it is as of
//! the image's last checkpoint, and the next mount replays the journal onto it as ever.

use super::image_format::ImageRecord;
use super::image_scan::Scan;
use super::index::{Change, Index};
use super::journal::{Found, Journal};
use super::records::{self, CheckpointRecord, seal};
use super::schema;
use crate::disk::Disk;
use crate::error::{Error, Result};
use std::sync::Arc;

/// Hears what is being done, how far that is, and how far it will go.
pub type Progress<'a> = dyn FnMut(&str, u64, u64) + 'a;

/// What an index can be made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Generation of the image.
    pub generation: u64,
    /// Another image, whose log goes on behind that of the first.
    pub continued_by: Option<u64>,
    /// When its base was written, in seconds since 1970.
    pub completed: i64,
    /// The last transaction in base and log.
    pub image_sequence: u64,
    /// Transactions that the journal has behind it.
    pub journal_records: u64,
    /// The last of them.
    pub sequence: u64,
    /// Transactions are missing: the journal goes on later, or the store was closed later.
    pub missing: Option<Missing>,
    /// Bad frames that were met in the files.
    pub bad_frames: u64,
}

/// What is known to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// This record of the journal, although later ones are there.
    JournalRecord(u64),
    /// The store was closed with this sequence number.
    Until(u64),
}

/// The way that was found.
pub struct Restore {
    source: Source,
    scans: Vec<Scan>,
    /// Bytes to read.
    total: u64,
}

impl std::fmt::Debug for Restore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Restore({:?})", self.source)
    }
}

impl Restore {
    /// Reads images and journal of the store `store`, which nobody else may have open. `clean` is where it was closed last, if it was.
    pub fn find(
        images: &[Arc<dyn Disk>],
        journal: &Arc<dyn Disk>,
        store: [u8; 16],
        clean: Option<u64>,
        progress: &mut Progress<'_>,
    ) -> Result<Restore> {
        let mut scans = Vec::new();
        for (place, disk) in (0..).zip(images) {
            let len = disk.len()?;
            let mut at = |offset: u64| {
                progress("reading the image", offset.min(len), len);
                true
            };
            scans.extend(Scan::of(disk, place, &store, len, &mut at)?);
        }
        scans.sort_by_key(|scan| std::cmp::Reverse(scan.header.generation));
        let bad_frames = scans.iter().map(|scan| scan.bad).sum();
        let mut best: Option<(Source, usize)> = None;
        for (first, scan) in scans.iter().enumerate().filter(|(_, scan)| scan.is_complete) {
            let newer = first.checked_sub(1).and_then(|newer| scans.get(newer)).filter(|newer| goes_on(scan, newer));
            for newer in [None, newer].into_iter().take(1 + usize::from(newer.is_some())) {
                let Some(checkpoint) = newest_checkpoint(scan, newer)? else { continue };
                let source = Source { bad_frames, ..follow(journal, store, clean, checkpoint, scan, newer)? };
                let rank = |source: &Source| (source.missing.is_none(), source.sequence);
                if best.as_ref().is_none_or(|(known, _)| rank(&source) > rank(known)) {
                    best = Some((source, first));
                }
            }
        }
        let Some((source, first)) = best else {
            return Err(Error::corrupt("there is no complete metadata image to make the index from"));
        };
        // In the order in which they are read.
        let last = first + 1;
        let begin = if source.continued_by.is_some() { first.saturating_sub(1) } else { first };
        let scans: Vec<Scan> = scans.drain(begin..last).rev().collect();
        let total = scans.iter().map(Scan::log_bytes).chain(scans.first().map(Scan::base_bytes)).sum();
        Ok(Restore { source, scans, total })
    }

    /// What was found.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Fills `index`, which is empty, and makes it durable; the number of records that were put and deleted.
    pub fn fill(&self, index: &dyn Index, progress: &mut Progress<'_>) -> Result<u64> {
        let (mut count, mut done) = (0, 0);
        let mut take = |changes: Vec<(Vec<u8>, Option<Vec<u8>>)>, bytes: u64| {
            count += changes.len() as u64;
            done += bytes;
            let mut changes = changes.iter().map(|(key, value)| -> Change<'_> { (key, value.as_deref()) });
            index.apply(&mut changes, false)?;
            progress("making the index", done.min(self.total), self.total);
            Ok(())
        };
        if let Some(oldest) = self.scans.first() {
            oldest.each_base(&mut take)?;
        }
        self.scans.iter().try_for_each(|scan| scan.each_log(&mut take))?;
        let key = schema::image();
        let value = self.record().map(|record| seal(&key, record.encode()));
        index.apply(&mut std::iter::once((key.as_slice(), value.as_deref())), true)?;
        Ok(count)
    }

    /// The image that the index goes on with, if there is nothing wrong with it.
    fn record(&self) -> Option<ImageRecord> {
        let [scan] = self.scans.as_slice() else { return None };
        let link = scan.log_link();
        (self.source.bad_frames == 0).then_some(ImageRecord {
            place: scan.place,
            generation: scan.header.generation,
            end: scan.end,
            log_number: link.number,
            log_previous: link.previous,
            base_bytes: scan.base_bytes(),
            completed: scan.header.completed,
        })
    }
}

/// Does the log of `newer` begin before that of `older` ends, and lead further? Its first checkpoint is behind all that its base holds.
/// One that was complete and never became the current one leads less far.
fn goes_on(older: &Scan, newer: &Scan) -> bool {
    match (older.log_sequence(), newer.first_log_sequence(), newer.log_sequence()) {
        (Some(end), Some(begin), Some(further)) => begin <= end && end <= further,
        _ => false,
    }
}

fn newest_checkpoint(scan: &Scan, newer: Option<&Scan>) -> Result<Option<CheckpointRecord>> {
    let key = schema::checkpoint();
    let logged = newer.map(|newer| newer.newest_logged(&key)).transpose()?.flatten();
    let sealed = match logged {
        Some(sealed) => Some(sealed),
        None => scan.newest(&key)?,
    };
    sealed.map(|sealed| CheckpointRecord::decode(records::open(&key, &sealed)?)).transpose()
}

/// How far the journal leads from `checkpoint`.
fn follow(
    disk: &Arc<dyn Disk>,
    store: [u8; 16],
    clean: Option<u64>,
    checkpoint: CheckpointRecord,
    scan: &Scan,
    newer: Option<&Scan>,
) -> Result<Source> {
    let mut journal = Journal::new(disk.clone(), store, checkpoint)?;
    let mut missing = None;
    loop {
        match journal.read_next(journal.head())? {
            Found::Record(_, behind) => journal.set_head(behind),
            Found::End => break,
            Found::Damaged { sequence } => {
                missing = Some(Missing::JournalRecord(sequence));
                break;
            }
        }
    }
    let sequence = journal.head().sequence;
    Ok(Source {
        generation: scan.header.generation,
        continued_by: newer.map(|newer| newer.header.generation),
        completed: scan.header.completed,
        image_sequence: checkpoint.sequence,
        journal_records: sequence.saturating_sub(checkpoint.sequence),
        sequence,
        missing: missing.or(clean.filter(|clean| *clean > sequence).map(Missing::Until)),
        bad_frames: 0,
    })
}
