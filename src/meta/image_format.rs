//! How a metadata image lies in its file: a header block, then frames, each on its own 4 KiB blocks.
//!
//! ```text
//!   header   magic, store, generation, when it was complete, checksum; written last
//!   frames   base 0, base 1, ... base end        all records of the index at one moment
//!            log 0, log 1, ...                   what was applied to the index since then, also while the base is written
//! ```
//! Base frames and log frames are two lists that may be mixed in the file. Each frame has its number in its list and the checksum of the
//! one before it there (the first, of a number in the header), so what is left behind the end of a log after a crash, or of an older use of the file, never follows. The
//! payload is that of a journal record without blocks. Header checksum and payload checksum are apart: a frame whose payload is bad still
//! says where the next one is.

use super::fields::Reader;
use super::journal;
use super::records::SEAL_BYTES;
use crate::disk::Disk;
use crate::disk::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::units::{BLOCK, BLOCK_SIZE};

const FILE_MAGIC: &[u8; 8] = b"sumfsIM0";
const FRAME_MAGIC: &[u8; 8] = b"sumfsIF0";
const FILE_HEADER_BYTES: usize = 48;
const FRAME_HEADER_BYTES: usize = 80;
const FRAME_RESERVED_BYTES: usize = 12;
/// Changes are gathered into frames of about this much.
pub(super) const FRAME_BYTES: usize = 1 << 20;
/// No frame that was written is larger: one record more than that at most.
const PAYLOAD_BYTES_MAX: u32 = 8 << 20;
/// Where the first frame is.
pub(super) const FRAMES_AT: u64 = BLOCK_SIZE;

/// One change of the index.
pub(super) type Record = (Vec<u8>, Option<Vec<u8>>);

/// What a file says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileHeader {
    /// Counts the images of the store.
    pub(super) generation: u64,
    /// When it was complete, in seconds since 1970.
    pub(super) completed: i64,
    /// What the first frame of each list is chained to: another number for each attempt to write an image.
    pub(super) nonce: u32,
}

impl FileHeader {
    pub(super) fn write(&self, disk: &dyn Disk, store: &[u8; 16]) -> Result<()> {
        let mut block = AlignedBuffer::zeroed(BLOCK);
        let mut bytes = Vec::with_capacity(FILE_HEADER_BYTES);
        bytes.extend(FILE_MAGIC);
        bytes.extend(store);
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend(self.completed.to_le_bytes());
        bytes.extend(self.nonce.to_le_bytes());
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        if let Some(place) = block.get_mut(..bytes.len()) {
            place.copy_from_slice(&bytes);
        }
        disk.write_at(0, &block)
    }

    /// The header of the file, if it is one of this store.
    pub(super) fn read(disk: &dyn Disk, store: &[u8; 16]) -> Result<Option<FileHeader>> {
        if disk.len()? < FRAMES_AT {
            return Ok(None);
        }
        let mut block = AlignedBuffer::zeroed(BLOCK);
        disk.read_at(0, &mut block)?;
        Ok(FileHeader::parse(&block, store).ok().flatten())
    }

    fn parse(block: &[u8], store: &[u8; 16]) -> Result<Option<FileHeader>> {
        let mut r = Reader::new("image", block);
        let is_ours = r.array::<8>()? == *FILE_MAGIC && r.array::<16>()? == *store;
        let header = FileHeader { generation: r.number()?, completed: r.i64()?, nonce: r.u32()? };
        let found = r.u32()?;
        let covered = block.get(..FILE_HEADER_BYTES - 4).unwrap_or_default();
        Ok((is_ours && found == crc32c::crc32c(covered)).then_some(header))
    }
}

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FrameKind {
    /// Records of the base.
    Base = 1,
    /// Nothing: the base ends here. `number` says how many frames it has.
    BaseEnd = 2,
    /// Changes.
    Log = 3,
    /// The last changes of a checkpoint, its record among them: with this frame the log says something whole.
    Checkpoint = 4,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<FrameKind> {
        use FrameKind::*;
        [Base, BaseEnd, Log, Checkpoint].into_iter().find(|kind| *kind as u8 == byte)
    }

    pub(super) fn is_log(self) -> bool {
        matches!(self, FrameKind::Log | FrameKind::Checkpoint)
    }
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: FrameKind,
    pub(super) generation: u64,
    /// In its list.
    pub(super) number: u64,
    /// Of a checkpoint: the last transaction that it holds.
    pub(super) sequence: u64,
    pub(super) payload: u32,
    /// Checksum of the frame before it in its list.
    pub(super) previous: u32,
    payload_checksum: u32,
    /// Of this header.
    pub(super) checksum: u32,
}

impl Frame {
    /// Bytes in the file.
    pub(super) fn bytes(&self) -> u64 {
        frame_bytes(self.payload as usize)
    }

    /// The frame in memory, with its checksums filled in.
    pub(super) fn encode(
        store: &[u8; 16],
        generation: u64,
        link: Link,
        kind: FrameKind,
        sequence: u64,
        payload: &[u8],
    ) -> (AlignedBuffer, Frame) {
        let mut frame = Frame {
            kind,
            generation,
            number: link.number,
            sequence,
            payload: payload.len() as u32,
            previous: link.previous,
            payload_checksum: crc32c::crc32c(payload),
            checksum: 0,
        };
        let mut header = Vec::with_capacity(FRAME_HEADER_BYTES);
        header.extend(FRAME_MAGIC);
        header.extend(store);
        for number in [frame.generation, frame.number, frame.sequence] {
            header.extend(number.to_le_bytes());
        }
        for number in [frame.payload, frame.previous, frame.payload_checksum, kind as u32] {
            header.extend(number.to_le_bytes());
        }
        header.extend([0; FRAME_RESERVED_BYTES]);
        frame.checksum = crc32c::crc32c(&header);
        header.extend(frame.checksum.to_le_bytes());
        let buffer = AlignedBuffer::filled_by(frame.bytes() as usize, |buffer| {
            let (head, rest) = buffer.split_at_mut(FRAME_HEADER_BYTES);
            head.copy_from_slice(&header);
            let (body, padding) = rest.split_at_mut(payload.len());
            body.copy_from_slice(payload);
            padding.fill(0);
        });
        (buffer, frame)
    }

    /// The head of the frame at `offset` of a file, if a whole one is there.
    pub(super) fn read(disk: &dyn Disk, store: &[u8; 16], offset: u64) -> Result<Option<Frame>> {
        let len = disk.len()?;
        if offset.checked_add(BLOCK_SIZE).is_none_or(|end| end > len) {
            return Ok(None);
        }
        let mut block = AlignedBuffer::zeroed(BLOCK);
        disk.read_at(offset, &mut block)?;
        let frame = Frame::parse(&block, store).ok().flatten();
        Ok(frame.filter(|frame| offset + frame.bytes() <= len))
    }

    fn parse(block: &[u8], store: &[u8; 16]) -> Result<Option<Frame>> {
        let mut r = Reader::new("image frame", block);
        let is_ours = r.array::<8>()? == *FRAME_MAGIC && r.array::<16>()? == *store;
        let (generation, number, sequence) = (r.number()?, r.number()?, r.number()?);
        let (payload, previous, payload_checksum) = (r.u32()?, r.u32()?, r.u32()?);
        let kind = u8::try_from(r.u32()?).ok().and_then(FrameKind::from_byte);
        r.bytes(FRAME_RESERVED_BYTES)?;
        let checksum = r.u32()?;
        let covered = block.get(..FRAME_HEADER_BYTES - 4).unwrap_or_default();
        let is_whole = is_ours && checksum == crc32c::crc32c(covered) && payload <= PAYLOAD_BYTES_MAX;
        Ok(kind.filter(|_| is_whole).map(|kind| Frame {
            kind,
            generation,
            number,
            sequence,
            payload,
            previous,
            payload_checksum,
            checksum,
        }))
    }

    /// The payload of the frame, which is at `offset`; None when it is bad.
    pub(super) fn read_payload(&self, disk: &dyn Disk, offset: u64) -> Result<Option<AlignedBuffer>> {
        let mut buffer = AlignedBuffer::zeroed(self.bytes() as usize);
        disk.read_at(offset, &mut buffer)?;
        Ok((crc32c::crc32c(self.payload_in(&buffer)) == self.payload_checksum).then_some(buffer))
    }

    fn payload_in<'a>(&self, buffer: &'a [u8]) -> &'a [u8] {
        buffer.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + self.payload as usize).unwrap_or_default()
    }

    /// The changes in the frame, which is at `offset`; None when it is bad.
    pub(super) fn read_records(&self, disk: &dyn Disk, offset: u64) -> Result<Option<Vec<Record>>> {
        let Some(buffer) = self.read_payload(disk, offset)? else { return Ok(None) };
        Ok(Some(journal::decode(self.payload_in(&buffer))?.changes))
    }
}

/// What the next frame of a list follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) number: u64,
    pub(super) previous: u32,
}

impl Link {
    /// Before the first frame.
    pub(super) fn first(nonce: u32) -> Link {
        Link { number: 0, previous: nonce }
    }

    pub(super) fn behind(frame: &Frame) -> Link {
        Link { number: frame.number.saturating_add(1), previous: frame.checksum }
    }
}

/// Bytes of a frame in the file.
pub(super) fn frame_bytes(payload: usize) -> u64 {
    ((FRAME_HEADER_BYTES + payload) as u64).next_multiple_of(BLOCK_SIZE)
}

/// What the index keeps of its image: written with each checkpoint, so that it and the index tell of the same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageRecord {
    /// Which of the two files.
    pub place: u8,
    /// Counts the images of the store.
    pub generation: u64,
    /// Where the next frame goes.
    pub end: u64,
    /// Number of the next log frame.
    pub log_number: u64,
    /// What it is chained to.
    pub log_previous: u32,
    /// Bytes of the base.
    pub base_bytes: u64,
    /// When its base was complete, in seconds since 1970.
    pub completed: i64,
}

impl ImageRecord {
    /// Bytes of the log.
    pub fn log_bytes(&self) -> u64 {
        self.end.saturating_sub(FRAMES_AT + self.base_bytes)
    }

    /// Layout: the fields in their order.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(45 + SEAL_BYTES);
        out.push(self.place);
        out.extend(self.generation.to_le_bytes());
        out.extend(self.end.to_le_bytes());
        out.extend(self.log_number.to_le_bytes());
        out.extend(self.log_previous.to_le_bytes());
        out.extend(self.base_bytes.to_le_bytes());
        out.extend(self.completed.to_le_bytes());
        out
    }

    /// The image in `record`.
    pub fn decode(record: &[u8]) -> Result<ImageRecord> {
        let mut r = Reader::new("image", record);
        let image = ImageRecord {
            place: r.u8()?,
            generation: r.number()?,
            end: r.number()?,
            log_number: r.number()?,
            log_previous: r.u32()?,
            base_bytes: r.number()?,
            completed: r.i64()?,
        };
        r.end()?;
        if image.place > 1 || !image.end.is_multiple_of(BLOCK_SIZE) {
            return Err(Error::corrupt("image record has a wrong layout"));
        }
        Ok(image)
    }
}
