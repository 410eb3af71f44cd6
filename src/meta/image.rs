//! The metadata image: a second form of the index, from which it is rebuilt when both of its copies are lost.
//!
//! Two files, used in turn. In the current one lie all records of the index at one moment (the base), and behind them everything
//! that was applied since (the log). Each apply is logged before it, and a checkpoint makes the log durable before the index, and so before
//! the journal's tail moves: image + journal always hold all that was committed. Applying puts whole values, so what is logged twice, or
//! logged and not applied before a crash, does no harm; the record in the index (`ImageRecord`) says where its log ends, and what lies
//! behind is overwritten. When the log is longer than the base, a new base is written into the other file from a snapshot, piece by
//! piece (`Metadata::work_on_image`), while the log goes into both; the next checkpoint makes that file the current one.
//!
//! No failure here is one of the store: the image is stale then, which is said, and a new base is tried later.
//!
//! Lock: `state`, a leaf, not held across I/O. `append` and `settle` belong to who applies; base frames to one worker.

use super::image_format::{FRAME_BYTES, FRAMES_AT, FileHeader, Frame, FrameKind, ImageRecord, Link, frame_bytes};
use super::index::Snapshot;
use super::journal;
use super::merged::Merged;
use super::schema::{self, Key};
use crate::clock;
use crate::disk::Disk;
use crate::disk::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::sync::Mutex;
use crate::units::BLOCK_SIZE;
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Files grow in steps of this much.
const GROWTH_BYTES: u64 = 1 << 20;
/// Room that the image leaves to the index and to new groups on the host.
const HOST_ROOM_BYTES: u64 = 32 << 20;
/// So long after a failure there is no new attempt.
const RETRY: Duration = Duration::from_secs(60);
/// A log of fewer bytes is never replaced by a new base.
const LOG_BYTES_MIN: u64 = 16 << 20;

/// What is to be done about the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Nothing,
    /// Take a snapshot and begin a new base.
    Begin,
    /// Write the next frame of the base.
    Base,
    /// A checkpoint, which makes the new file the current one.
    Record,
}

/// A file that is appended to.
#[derive(Debug)]
struct File {
    record: ImageRecord,
    nonce: u32,
}

impl File {
    fn log_link(&self) -> Link {
        Link { number: self.record.log_number, previous: self.record.log_previous }
    }
}

/// The file that gets a new base.
struct Building {
    file: File,
    snapshot: Arc<dyn Snapshot>,
    /// The base has everything before this key.
    cursor: Key,
    base: Link,
    is_complete: bool,
}

#[derive(Default)]
struct State {
    current: Option<File>,
    building: Option<Building>,
    /// What the files say, if they are images.
    generations: [Option<u64>; 2],
    generation_max: u64,
    /// A scrub found damage in it.
    is_suspect: bool,
    /// Why it is stale, and since when.
    failure: Option<(String, Instant)>,
    logged_bytes: u64,
    base_bytes: u64,
}

/// The image of an open store.
pub(super) struct Image {
    store: [u8; 16],
    disks: [Arc<dyn Disk>; 2],
    log_bytes_min: u64,
    state: Mutex<State>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({})", self.status())
    }
}

impl Image {
    /// Goes on with the image that the index names, if it is there.
    pub(super) fn open(disks: [Arc<dyn Disk>; 2], store: [u8; 16], record: Option<ImageRecord>, journal_bytes: u64) -> Image {
        let headers = [0, 1].map(|place| {
            let header = disks.get(place).map(|disk| FileHeader::read(&**disk, &store));
            header.transpose().ok().flatten().flatten()
        });
        let generations = headers.map(|header| header.map(|header| header.generation));
        let mut state = State { generations, ..State::default() };
        let known = generations.into_iter().flatten().chain(record.map(|record| record.generation));
        state.generation_max = known.max().unwrap_or(0);
        if let Some(record) = record {
            let disk = disks.get(usize::from(record.place));
            let header = headers.get(usize::from(record.place)).copied().flatten();
            let header = header.filter(|header| header.generation == record.generation);
            match header.filter(|_| disk.is_some_and(|disk| disk.len().is_ok_and(|len| len >= record.end))) {
                Some(header) => state.current = Some(File { record, nonce: header.nonce }),
                None => tracing::warn!("the metadata image that the index names is not there; a new one is written"),
            }
        }
        let log_bytes_min = LOG_BYTES_MIN.min(journal_bytes / 4);
        Image { store, disks, log_bytes_min, state: Mutex::new(state) }
    }

    pub(super) fn store(&self) -> &[u8; 16] {
        &self.store
    }

    fn disk(&self, place: u8) -> &Arc<dyn Disk> {
        let [first, second] = &self.disks;
        if place == 0 { first } else { second }
    }

    /// Where the files' next frames go. Grows the file if need be.
    fn reserve(&self, file: &mut File, bytes: u64) -> Result<u64> {
        let disk = self.disk(file.record.place);
        let (offset, len) = (file.record.end, disk.len()?);
        let end = offset + bytes;
        if end > len {
            let wanted = end.next_multiple_of(GROWTH_BYTES);
            if disk.host_free_bytes().is_some_and(|free| free < HOST_ROOM_BYTES + wanted - len) {
                return Err(Error::NoSpace);
            }
            disk.set_len(wanted)?;
        }
        file.record.end = end;
        Ok(offset)
    }

    /// Logs what is about to be applied: `sequence` is that of a checkpoint, whose record is among the changes.
    pub(super) fn append(&self, changes: Merged<'_>, sequence: Option<u64>) {
        if !self.is_logging() {
            return;
        }
        let mut gathered = Vec::new();
        let mut bytes = 0;
        for (key, value) in changes {
            let more = key.len() + value.as_ref().map_or(0, Vec::len) + 8;
            if bytes + more > FRAME_BYTES && !gathered.is_empty() {
                self.append_frame(FrameKind::Log, 0, &journal::encode(&[], &[], gathered.drain(..)));
                bytes = 0;
            }
            bytes += more;
            gathered.push((key, value));
        }
        let kind = if sequence.is_some() { FrameKind::Checkpoint } else { FrameKind::Log };
        if sequence.is_some() || !gathered.is_empty() {
            self.append_frame(kind, sequence.unwrap_or(0), &journal::encode(&[], &[], gathered.drain(..)));
        }
    }

    fn is_logging(&self) -> bool {
        let state = self.state.lock();
        state.current.is_some() || state.building.is_some()
    }

    fn append_frame(&self, kind: FrameKind, sequence: u64, payload: &[u8]) {
        let files: Vec<u8> = {
            let state = self.state.lock();
            let building = state.building.as_ref().map(|building| &building.file);
            state.current.iter().chain(building).map(|file| file.record.place).collect()
        };
        for place in files {
            let outcome = self.append_to(place, kind, sequence, payload);
            if let Err(error) = outcome {
                self.fail(place, "logging changes", &error);
            }
        }
    }

    fn append_to(&self, place: u8, kind: FrameKind, sequence: u64, payload: &[u8]) -> Result<()> {
        let (offset, buffer) = {
            let mut state = self.state.lock();
            let State { current, building, logged_bytes, .. } = &mut *state;
            let files = current.iter_mut().chain(building.as_mut().map(|building| &mut building.file));
            let mut files = files.filter(|file| file.record.place == place);
            let Some(file) = files.next() else { return Ok(()) };
            let offset = self.reserve(file, frame_bytes(payload.len()))?;
            let (buffer, frame) = Frame::encode(&self.store, file.record.generation, file.log_link(), kind, sequence, payload);
            let next = Link::behind(&frame);
            (file.record.log_number, file.record.log_previous) = (next.number, next.previous);
            *logged_bytes += frame.bytes();
            (offset, buffer)
        };
        self.disk(place).write_at(offset, &buffer)
    }

    /// Makes the log durable, for a checkpoint, in a new file if one is complete. What the index is to say of it; None: it is stale.
    pub(super) fn settle(&self) -> Option<ImageRecord> {
        let record = {
            let mut state = self.state.lock();
            if let Some(building) = state.building.take_if(|building| building.is_complete) {
                let record = &building.file.record;
                if let Some(known) = state.generations.get_mut(usize::from(record.place)) {
                    *known = Some(record.generation);
                }
                state.current = Some(building.file);
                state.is_suspect = false;
                if state.failure.take().is_some() {
                    tracing::info!("the metadata image is up to date again");
                }
            }
            state.current.as_ref()?.record
        };
        match self.disk(record.place).flush() {
            Ok(()) => Some(record),
            Err(error) => {
                self.fail(record.place, "flushing", &error);
                None
            }
        }
    }

    /// Gives a file up. The first failure is said; it ends with the next complete base.
    fn fail(&self, place: u8, doing: &str, error: &Error) {
        let mut state = self.state.lock();
        let is_current = state.current.as_ref().is_some_and(|file| file.record.place == place);
        if is_current {
            state.current = None;
        } else {
            state.building = None;
        }
        let reason = format!("{doing}: {error}");
        if state.failure.is_none() {
            let outcome = if state.current.is_some() { "no new base is written" } else { "it is stale" };
            tracing::warn!("metadata image: {reason}; {outcome} until that works (tried again every minute)");
        }
        state.failure = Some((reason, Instant::now()));
    }

    /// What is to be done now.
    pub(super) fn work(&self) -> Work {
        let state = self.state.lock();
        match (&state.building, &state.current) {
            (Some(building), _) if building.is_complete => Work::Record,
            (Some(_), _) => Work::Base,
            _ if state.failure.as_ref().is_some_and(|(_, since)| since.elapsed() < RETRY) => Work::Nothing,
            (None, None) => Work::Begin,
            (None, Some(_)) if state.is_suspect => Work::Begin,
            (None, Some(file)) if file.record.log_bytes() > self.log_bytes_min.max(file.record.base_bytes) => Work::Begin,
            (None, Some(_)) => Work::Nothing,
        }
    }

    /// Is there an image to rely on, or a failure that keeps it from being written now?
    pub(super) fn is_settled(&self) -> bool {
        let state = self.state.lock();
        state.current.is_some() && !state.is_suspect || state.failure.is_some()
    }

    /// A scrub found it damaged: a new base is due.
    pub(super) fn suspect(&self) {
        self.state.lock().is_suspect = true;
    }

    /// What the current file should be.
    pub(super) fn current(&self) -> Option<(ImageRecord, Arc<dyn Disk>)> {
        let record = self.state.lock().current.as_ref()?.record;
        Some((record, self.disk(record.place).clone()))
    }

    /// Empties the file that gets the next base: the other one, or the older one if none is current.
    pub(super) fn prepare(&self) -> Option<u8> {
        let place = {
            let mut state = self.state.lock();
            let [first, second] = state.generations;
            let place = state.current.as_ref().map_or(u8::from(first > second), |file| 1 - file.record.place);
            if let Some(known) = state.generations.get_mut(usize::from(place)) {
                *known = None;
            }
            place
        };
        match self.disk(place).set_len(0) {
            Ok(()) => Some(place),
            Err(error) => {
                self.fail(place, "emptying the older file", &error);
                None
            }
        }
    }

    /// Begins a base from `snapshot`. The caller has the apply role: whatever is applied afterwards is logged in both files.
    pub(super) fn begin(&self, place: u8, snapshot: Arc<dyn Snapshot>) {
        let mut state = self.state.lock();
        state.generation_max += 1;
        let generation = state.generation_max;
        let nonce = uuid::Uuid::new_v4().as_fields().0;
        let first = Link::first(nonce);
        let record = ImageRecord { place, generation, end: FRAMES_AT, log_previous: first.previous, ..ImageRecord::default() };
        let file = File { record, nonce };
        state.building = Some(Building { file, snapshot, cursor: Key::new(), base: first, is_complete: false });
    }

    /// Writes the next frame of the base, or its end.
    pub(super) fn write_base(&self) {
        let Some((place, snapshot, cursor)) = ({
            let state = self.state.lock();
            state.building.as_ref().map(|now| (now.file.record.place, now.snapshot.clone(), now.cursor.clone()))
        }) else {
            return;
        };
        if let Err(error) = self.write_base_from(&*snapshot, cursor) {
            self.fail(place, "writing a base", &error);
        }
    }

    fn write_base_from(&self, snapshot: &dyn Snapshot, cursor: Key) -> Result<()> {
        let (records, next) = gather(snapshot, &cursor)?;
        let kind = if next.is_some() { FrameKind::Base } else { FrameKind::BaseEnd };
        let payload = journal::encode(&[], &[], records.iter().map(|(key, value)| (key, value)));
        let Some((place, offset, buffer)) = self.reserve_base(kind, &payload, next.clone())? else { return Ok(()) };
        let disk = self.disk(place);
        disk.write_at(offset, &buffer)?;
        if next.is_none() { self.complete(place) } else { Ok(()) }
    }

    fn reserve_base(&self, kind: FrameKind, payload: &[u8], next: Option<Key>) -> Result<Option<(u8, u64, AlignedBuffer)>> {
        let mut state = self.state.lock();
        let State { building: Some(building), base_bytes, .. } = &mut *state else { return Ok(None) };
        let offset = self.reserve(&mut building.file, frame_bytes(payload.len()))?;
        let record = &mut building.file.record;
        let (buffer, frame) = Frame::encode(&self.store, record.generation, building.base, kind, 0, payload);
        building.base = Link::behind(&frame);
        building.cursor = next.unwrap_or_default();
        record.base_bytes += frame.bytes();
        *base_bytes += frame.bytes();
        Ok(Some((record.place, offset, buffer)))
    }

    /// The header comes last: a file with one has had its whole base written.
    fn complete(&self, place: u8) -> Result<()> {
        let header = {
            let mut state = self.state.lock();
            let Some(building) = &mut state.building else { return Ok(()) };
            let completed = clock::now().seconds;
            building.file.record.completed = completed;
            FileHeader { generation: building.file.record.generation, completed, nonce: building.file.nonce }
        };
        let disk = self.disk(place);
        header.write(&**disk, &self.store)?;
        disk.flush()?;
        if let Some(building) = &mut self.state.lock().building {
            building.is_complete = true;
        }
        Ok(())
    }

    /// Figures for `info` and `stats`.
    pub(super) fn status(&self) -> Value {
        let state = self.state.lock();
        let failure = state.failure.as_ref().map(|(reason, _)| reason.as_str());
        let what = match (&state.current, &state.building) {
            (Some(_), _) if state.is_suspect => "damaged",
            (Some(_), _) => "current",
            (None, Some(_)) => "being written",
            (None, None) if failure.is_some() => "stale",
            (None, None) => "none yet",
        };
        let record = state.current.as_ref().map(|file| file.record).unwrap_or_default();
        json!({
            "state": what,
            "generation": record.generation,
            "completed": record.completed,
            "base_bytes": record.base_bytes,
            "log_bytes": state.current.as_ref().map_or(0, |file| file.record.log_bytes()),
            "is_base_being_written": state.building.is_some(),
            "written_log_bytes": state.logged_bytes,
            "written_base_bytes": state.base_bytes,
            "failure": failure,
        })
    }
}

/// Records with whole values, and where the next begin.
type Gathered = (Vec<(Key, Option<Vec<u8>>)>, Option<Key>);

/// As many records from `cursor` on as fit a frame, and where the next frame begins; no records and None at the end.
fn gather(snapshot: &dyn Snapshot, cursor: &[u8]) -> Result<Gathered> {
    let mut records = Vec::new();
    let mut bytes = 0;
    let own = schema::image();
    snapshot.range(cursor, &schema::table_end(u8::MAX - 1), &mut |key, value| {
        if *key != own {
            bytes += key.len() + value.len() + 8;
            records.push((key.to_vec(), Some(value.to_vec())));
        }
        if bytes < FRAME_BYTES - BLOCK_SIZE as usize { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    let next = records.last().map(|(key, _)| [key.as_slice(), &[0]].concat());
    Ok((records, next))
}
