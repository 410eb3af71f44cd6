//! A file or block device of the host as a [`Disk`].
//!
//! Data devices are opened with O_DIRECT where the host can do it: the daemon has its own cache, and a direct write is on
//! the device when it returns, so a flush has little left to do. A second, buffered descriptor of the same file takes every
//! transfer that O_DIRECT cannot (unaligned offset or length) and all of them once the host has refused a direct one with
//! EINVAL. Both go through one inode, so one fdatasync covers both.
//!
//! Invariants: the length is what `open` or the last `set_len` said; reading or writing past it is an error and never grows
//! the file. A file opened read-only is never changed, nor are its times by us. No locks: the kernel orders the transfers.

use super::Disk;
use super::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::units::BLOCK_SIZE;
use rustix::fs::{CWD, FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Slices that one pwritev takes (IOV_MAX).
const SLICES_MAX: usize = 1024;
const ZEROS_BYTES: usize = 1 << 20;

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// It must exist.
    ReadWrite,
    /// It must exist and is not changed.
    ReadOnly,
    /// It must not exist; it is made, empty, for its owner only.
    Create,
}

/// A file or block device. Block devices are claimed for as long as this lives: nobody can mount them meanwhile.
#[derive(Debug)]
pub struct FileDisk {
    name: String,
    buffered: OwnedFd,
    direct: Option<OwnedFd>,
    direct_works: AtomicBool,
    allocation_works: AtomicBool,
    writable: bool,
    is_block_device: bool,
    len: AtomicU64,
}

impl FileDisk {
    /// Opens `path`; see [`FileDisk::open_at`].
    pub fn open(path: &Path, mode: OpenMode, direct: bool) -> Result<FileDisk> {
        FileDisk::open_at(CWD, path, path.display().to_string(), mode, direct)
    }

    /// Opens `path`, if relative then below `directory`, with `name` for messages. `direct` asks for O_DIRECT; where the host
    /// cannot do it the file is used through the page cache. Fails on anything but regular files and block devices.
    pub fn open_at(directory: BorrowedFd<'_>, path: &Path, name: String, mode: OpenMode, direct: bool) -> Result<FileDisk> {
        let failed = |doing: &str, errno: Errno| Error::io(format!("{doing} {name}"), errno.into());
        let access = if mode == OpenMode::ReadOnly { OFlags::RDONLY } else { OFlags::RDWR } | OFlags::CLOEXEC;
        let create = if mode == OpenMode::Create { OFlags::CREATE | OFlags::EXCL } else { OFlags::empty() };
        // NONBLOCK: a FIFO must not hang us before we see what it is.
        let flags = access | create | OFlags::NONBLOCK;
        let open = |flags| retry(|| rustix::fs::openat(directory, path, flags, Mode::RUSR | Mode::WUSR));
        let no_device = || Error::usage(format!("{name} is neither a file nor a block device"));
        let mut buffered = open(flags).map_err(|errno| match errno {
            Errno::ISDIR | Errno::NXIO => no_device(),
            _ => failed("opening", errno),
        })?;
        let status = rustix::fs::fstat(&buffered).map_err(|errno| failed("looking at", errno))?;
        let kind = FileType::from_raw_mode(status.st_mode);
        if kind == FileType::BlockDevice {
            // EXCL without CREATE claims a block device; EBUSY says that somebody else has it.
            buffered = open(access | OFlags::EXCL).map_err(|errno| failed("opening for exclusive use", errno))?;
        } else if kind != FileType::RegularFile {
            return Err(no_device());
        }
        let len = rustix::fs::seek(&buffered, SeekFrom::End(0)).map_err(|errno| failed("measuring", errno))?;
        let direct = if direct { open(access | OFlags::DIRECT).ok().filter(|fd| same_file(fd, &buffered)) } else { None };
        Ok(FileDisk {
            buffered,
            direct_works: AtomicBool::new(direct.is_some()),
            direct,
            allocation_works: AtomicBool::new(true),
            writable: mode != OpenMode::ReadOnly,
            is_block_device: kind == FileType::BlockDevice,
            len: AtomicU64::new(len),
            name,
        })
    }

    /// Uses only the first `len` bytes: everything behind does not exist for users of this disk.
    pub fn limited_to(self, len: u64) -> FileDisk {
        self.len.fetch_min(len, Ordering::Relaxed);
        self
    }

    /// Is it a block device?
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Do aligned transfers bypass the host's page cache?
    pub fn is_direct(&self) -> bool {
        self.direct_works.load(Ordering::Relaxed)
    }

    /// Takes the file's flock until this is dropped; false when another open file has it.
    pub fn lock_exclusive(&self) -> Result<bool> {
        match retry(|| rustix::fs::flock(&self.buffered, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(Error::io(format!("locking {}", self.name), errno.into())),
        }
    }

    fn failed(&self, doing: &str, offset: u64, len: usize, errno: Errno) -> Error {
        Error::io(format!("{doing} {len} bytes at offset {offset} of {}", self.name), errno.into())
    }

    fn check_range(&self, doing: &str, offset: u64, len: u64) -> Result<()> {
        let end = self.len.load(Ordering::Relaxed);
        if offset.checked_add(len).is_some_and(|last| last <= end) {
            return Ok(());
        }
        let what = format!("{doing} {len} bytes at offset {offset} of {}, which ends at {end}", self.name);
        Err(Error::io(what, std::io::ErrorKind::UnexpectedEof.into()))
    }

    fn check_writable(&self, doing: &str) -> Result<()> {
        if self.writable {
            return Ok(());
        }
        Err(Error::io(format!("{doing} {}, which is open for reading only", self.name), Errno::ROFS.into()))
    }

    /// The O_DIRECT descriptor, if a transfer at `offset` of `len` bytes may use it.
    fn direct_for(&self, offset: u64, len: usize) -> Option<&OwnedFd> {
        let usable = offset.is_multiple_of(BLOCK_SIZE) && is_aligned(len) && self.is_direct();
        self.direct.as_ref().filter(|_| usable)
    }

    /// One transfer: on the direct descriptor when possible, else (also when the host refuses it) on the buffered one.
    fn transfer(
        &self,
        offset: u64,
        len: usize,
        mut once: impl FnMut(BorrowedFd<'_>) -> rustix::io::Result<usize>,
    ) -> rustix::io::Result<usize> {
        if let Some(direct) = self.direct_for(offset, len) {
            match retry(|| once(direct.as_fd())) {
                Err(Errno::INVAL) => self.direct_works.store(false, Ordering::Relaxed),
                done => return done,
            }
        }
        retry(|| once(self.buffered.as_fd()))
    }

    /// `into` has aligned memory, or the transfer does not go through O_DIRECT.
    fn read_whole(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let (at, len) = (offset + done as u64, rest.len());
            match self.transfer(at, len, |fd| rustix::io::pread(fd, &mut *rest, at)) {
                Ok(0) => return Err(Error::io(self.past_end("reading", at), std::io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => done += count,
                Err(errno) => return Err(self.failed("reading", at, len, errno)),
            }
        }
        Ok(())
    }

    fn past_end(&self, doing: &str, offset: u64) -> String {
        format!("{doing} at offset {offset} of {}: the file was made shorter", self.name)
    }

    fn write_whole(&self, offset: u64, from: &[u8]) -> Result<()> {
        let mut done = 0;
        while let Some(rest) = from.get(done..).filter(|rest| !rest.is_empty()) {
            let at = offset + done as u64;
            match self.transfer(at, rest.len(), |fd| rustix::io::pwrite(fd, rest, at)) {
                Ok(0) => return Err(self.failed("writing", at, rest.len(), Errno::IO)),
                Ok(count) => done += count,
                Err(errno) => return Err(self.failed("writing", at, rest.len(), errno)),
            }
        }
        Ok(())
    }

    /// Writes one batch of at most [`SLICES_MAX`] slices.
    fn write_batch(&self, offset: u64, mut slices: &mut [IoSlice<'_>]) -> Result<u64> {
        let mut at = offset;
        while !slices.is_empty() {
            let len = slices.iter().map(|slice| slice.len()).sum();
            // Lengths that O_DIRECT would refuse go through the page cache; callers with data have none of these.
            let fits = slices.iter().all(|slice| is_aligned(slice.len()) && is_aligned(slice.as_ptr().addr()));
            let written = if fits {
                self.transfer(at, len, |fd| rustix::io::pwritev(fd, slices, at))
            } else {
                retry(|| rustix::io::pwritev(&self.buffered, slices, at))
            };
            match written {
                Ok(0) => return Err(self.failed("writing", at, len, Errno::IO)),
                Ok(count) => {
                    at += count as u64;
                    IoSlice::advance_slices(&mut slices, count);
                }
                Err(errno) => return Err(self.failed("writing", at, len, errno)),
            }
        }
        Ok(at)
    }

    /// Reads one batch of at most [`SLICES_MAX`] slices.
    fn read_batch(&self, offset: u64, mut slices: &mut [IoSliceMut<'_>]) -> Result<u64> {
        let mut at = offset;
        while !slices.is_empty() {
            let len = slices.iter().map(|slice| slice.len()).sum();
            match self.transfer(at, len, |fd| rustix::io::preadv(fd, slices, at)) {
                Ok(0) => return Err(Error::io(self.past_end("reading", at), std::io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => {
                    at += count as u64;
                    IoSliceMut::advance_slices(&mut slices, count);
                }
                Err(errno) => return Err(self.failed("reading", at, len, errno)),
            }
        }
        Ok(at)
    }

    /// Where the host has no fallocate: zeros over the holes of the range make it real. Nobody may write to it meanwhile.
    fn zero_holes(&self, offset: u64, len: u64) -> Result<()> {
        let zeros = AlignedBuffer::zeroed(ZEROS_BYTES);
        let end = offset.saturating_add(len).min(self.len.load(Ordering::Relaxed));
        let mut at = offset;
        while at < end {
            let Ok(hole) = rustix::fs::seek(&self.buffered, SeekFrom::Hole(at)) else { return Ok(()) };
            let data = match rustix::fs::seek(&self.buffered, SeekFrom::Data(hole)) {
                Ok(data) => data.min(end),
                Err(_) => end,
            };
            at = hole;
            while at < data {
                let count = (data - at).min(ZEROS_BYTES as u64);
                self.write_whole(at, zeros.get(..count as usize).unwrap_or_default())?;
                at += count;
            }
        }
        Ok(())
    }
}

impl Disk for FileDisk {
    fn name(&self) -> &str {
        &self.name
    }

    fn bypasses_host_cache(&self) -> bool {
        self.is_direct()
    }

    fn len(&self) -> Result<u64> {
        Ok(self.len.load(Ordering::Relaxed))
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.check_range("reading", offset, into.len() as u64)?;
        if is_aligned(into.as_ptr().addr()) || self.direct_for(offset, into.len()).is_none() {
            return self.read_whole(offset, into);
        }
        let mut bounce = AlignedBuffer::zeroed(into.len());
        self.read_whole(offset, &mut bounce)?;
        into.copy_from_slice(&bounce);
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.check_writable("writing to")?;
        self.check_range("writing", offset, from.len() as u64)?;
        if is_aligned(from.as_ptr().addr()) || self.direct_for(offset, from.len()).is_none() {
            return self.write_whole(offset, from);
        }
        self.write_whole(offset, &AlignedBuffer::copy_of(from))
    }

    fn write_vectored_at(&self, offset: u64, slices: &[&[u8]]) -> Result<()> {
        self.check_writable("writing to")?;
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        self.check_range("writing", offset, total as u64)?;
        if !slices.iter().all(|slice| is_aligned(slice.as_ptr().addr())) && self.direct_for(offset, total).is_some() {
            return self.write_whole(offset, &AlignedBuffer::copy_of(&slices.concat()));
        }
        let mut slices: Vec<IoSlice<'_>> =
            slices.iter().filter(|slice| !slice.is_empty()).map(|slice| IoSlice::new(slice)).collect();
        let mut at = offset;
        for batch in slices.chunks_mut(SLICES_MAX) {
            at = self.write_batch(at, batch)?;
        }
        Ok(())
    }

    fn read_vectored_at(&self, offset: u64, slices: &mut [&mut [u8]]) -> Result<()> {
        let is_direct = |slice: &[u8]| is_aligned(slice.len()) && is_aligned(slice.as_ptr().addr());
        if !offset.is_multiple_of(BLOCK_SIZE) || !slices.iter().all(|slice| is_direct(slice)) {
            let mut at = offset;
            for slice in slices {
                self.read_at(at, slice)?;
                at += slice.len() as u64;
            }
            return Ok(());
        }
        self.check_range("reading", offset, slices.iter().map(|slice| slice.len() as u64).sum())?;
        let mut slices: Vec<IoSliceMut<'_>> =
            slices.iter_mut().filter(|slice| !slice.is_empty()).map(|slice| IoSliceMut::new(slice)).collect();
        let mut at = offset;
        for batch in slices.chunks_mut(SLICES_MAX) {
            at = self.read_batch(at, batch)?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        if !self.writable {
            return Ok(());
        }
        retry(|| rustix::fs::fdatasync(&self.buffered))
            .map_err(|errno| Error::io(format!("flushing {}", self.name), errno.into()))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.check_writable("resizing")?;
        if self.is_block_device {
            return Err(Error::io(format!("resizing {}, a block device", self.name), Errno::INVAL.into()));
        }
        retry(|| rustix::fs::ftruncate(&self.buffered, len))
            .map_err(|errno| Error::io(format!("resizing {} to {len} bytes", self.name), errno.into()))?;
        self.len.store(len, Ordering::Relaxed);
        Ok(())
    }

    /// [`Error::NoSpace`] when the host has too little. The length stays; space behind it can be set aside too, except on
    /// hosts without fallocate, which can promise nothing there.
    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.check_writable("setting space aside in")?;
        if self.is_block_device || len == 0 {
            return Ok(());
        }
        if self.allocation_works.load(Ordering::Relaxed) {
            match retry(|| rustix::fs::fallocate(&self.buffered, FallocateFlags::KEEP_SIZE, offset, len)) {
                Ok(()) => return Ok(()),
                Err(Errno::NOSPC | Errno::DQUOT) => return Err(Error::NoSpace),
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.allocation_works.store(false, Ordering::Relaxed),
                Err(errno) => {
                    return Err(Error::io(
                        format!("setting {len} bytes aside at offset {offset} of {}", self.name),
                        errno.into(),
                    ));
                }
            }
        }
        match self.zero_holes(offset, len) {
            Err(Error::Io { source, .. }) if is_full(&source) => Err(Error::NoSpace),
            done => done,
        }
    }

    /// Punches a hole, which also gives up what `allocate` had set aside in a file.
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check_writable("discarding in")?;
        self.check_range("discarding", offset, len)?;
        if len > 0 {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if let Err(errno) = retry(|| rustix::fs::fallocate(&self.buffered, punch, offset, len)) {
                tracing::debug!("discarding {len} bytes at offset {offset} of {}: {errno}", self.name);
            }
        }
        Ok(())
    }

    fn host_free_bytes(&self) -> Option<u64> {
        if self.is_block_device {
            return None;
        }
        let status = rustix::fs::fstatvfs(&self.buffered).ok()?;
        Some(status.f_bavail.saturating_mul(status.f_frsize))
    }
}

fn is_aligned(number: usize) -> bool {
    (number as u64).is_multiple_of(BLOCK_SIZE)
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// The path may have been replaced between two opens.
fn same_file(one: &OwnedFd, other: &OwnedFd) -> bool {
    match (rustix::fs::fstat(one), rustix::fs::fstat(other)) {
        (Ok(one), Ok(other)) => one.st_dev == other.st_dev && one.st_ino == other.st_ino,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::BLOCK;

    fn file(len: u64, direct: bool) -> (tempfile::TempDir, FileDisk) {
        let directory = tempfile::tempdir().unwrap();
        let disk = FileDisk::open(&directory.path().join("device"), OpenMode::Create, direct).unwrap();
        disk.set_len(len).unwrap();
        (directory, disk)
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at / 7 + at % 251) as u8).collect()
    }

    #[test]
    fn every_alignment_reads_back_what_was_written() {
        for direct in [false, true] {
            let (_directory, disk) = file(64 << 10, direct);
            let mut expected = vec![0u8; 64 << 10];
            let data = AlignedBuffer::copy_of(&pattern(3 * BLOCK));
            // (offset, start of the memory, length): aligned; memory not aligned; offset and length not aligned.
            for (offset, start, len) in [(4096, 0, 8192), (8192, 512, 4096), (5000, 3, 3333), (0, 1, 8192), (61440, 0, 4096)] {
                let slice = &data[start..start + len];
                disk.write_at(offset, slice).unwrap();
                expected[offset as usize..][..len].copy_from_slice(slice);
                let mut found = AlignedBuffer::zeroed(len + 1);
                disk.read_at(offset, &mut found[..len]).unwrap();
                assert_eq!(&found[..len], slice, "direct {direct}, offset {offset}");
                disk.read_at(offset, &mut found[1..]).unwrap();
                assert_eq!(&found[1..], slice, "direct {direct}, offset {offset}, memory not aligned");
            }
            let mut whole = AlignedBuffer::zeroed(64 << 10);
            disk.read_at(0, &mut whole).unwrap();
            assert!(whole[..] == expected[..], "direct {direct}");
            disk.flush().unwrap();
        }
    }

    #[test]
    fn more_slices_than_one_call_takes() {
        for direct in [false, true] {
            let slice_bytes = if direct { BLOCK } else { 5 };
            let count = SLICES_MAX * 2 + 3;
            let data = AlignedBuffer::copy_of(&pattern(slice_bytes * count));
            let (_directory, disk) = file(data.len() as u64, direct);
            let slices: Vec<&[u8]> = data.chunks(slice_bytes).collect();
            disk.write_vectored_at(0, &slices).unwrap();
            let mut found = AlignedBuffer::zeroed(data.len());
            disk.read_at(0, &mut found).unwrap();
            assert!(found[..] == data[..], "direct {direct}");
        }
    }

    #[test]
    fn vectored_slices_that_are_not_aligned_and_empty_ones() {
        let (_directory, disk) = file(16 << 10, true);
        let data = pattern(10_000);
        disk.write_vectored_at(100, &[&data[..1], &[], &data[1..5000], &data[5000..]]).unwrap();
        let mut found = vec![0; 10_000];
        disk.read_at(100, &mut found).unwrap();
        assert!(found == data);
    }

    #[test]
    fn past_the_end_is_an_error_that_names_file_and_offset_and_nothing_grows() {
        let (directory, disk) = file(8192, false);
        let error = disk.read_at(8000, &mut [0; 200]).unwrap_err().to_string();
        assert!(error.contains("offset 8000") && error.contains("device"), "{error}");
        assert!(disk.write_at(8192, &[1]).is_err());
        assert!(disk.write_vectored_at(8190, &[&[1], &[2, 3]]).is_err());
        assert!(disk.write_at(u64::MAX, &[1]).is_err());
        assert_eq!(std::fs::metadata(directory.path().join("device")).unwrap().len(), 8192);
        // Somebody cuts the file under us.
        std::fs::File::options().write(true).open(directory.path().join("device")).unwrap().set_len(4096).unwrap();
        let error = disk.read_at(4096, &mut [0; 10]).unwrap_err().to_string();
        assert!(error.contains("offset 4096") && error.contains("shorter"), "{error}");
    }

    #[test]
    fn read_only_changes_nothing() {
        let (directory, disk) = file(8192, false);
        drop(disk);
        let disk = FileDisk::open(&directory.path().join("device"), OpenMode::ReadOnly, true).unwrap();
        assert!(disk.write_at(0, &[1]).unwrap_err().to_string().contains("reading only"));
        assert!(disk.write_vectored_at(0, &[&[1]]).is_err());
        assert!(disk.set_len(1).is_err() && disk.allocate(0, 4096).is_err() && disk.discard(0, 4096).is_err());
        disk.flush().unwrap();
        disk.read_at(0, &mut [0; 8192]).unwrap();
    }

    #[test]
    fn allocate_makes_space_real_and_keeps_contents_and_length() {
        use std::os::unix::fs::MetadataExt;
        let (directory, disk) = file(1 << 20, false);
        let blocks = || std::fs::metadata(directory.path().join("device")).unwrap().blocks() * 512;
        disk.write_at(4096, &pattern(BLOCK)).unwrap();
        disk.allocate(0, 2 << 20).unwrap();
        assert!(blocks() >= 2 << 20);
        assert_eq!(std::fs::metadata(directory.path().join("device")).unwrap().len(), 1 << 20);
        let mut found = vec![0; BLOCK];
        disk.read_at(4096, &mut found).unwrap();
        assert!(found == pattern(BLOCK));
        disk.discard(4096, 4096).unwrap();
        assert!(blocks() < 2 << 20, "the hole was not punched");
        assert!(disk.host_free_bytes().unwrap() > 0);
    }

    #[test]
    fn without_fallocate_zeros_go_over_holes_only() {
        use std::os::unix::fs::MetadataExt;
        let (directory, disk) = file(3 << 20, false);
        disk.allocation_works.store(false, Ordering::Relaxed);
        disk.write_at(1 << 20, &pattern(BLOCK)).unwrap();
        disk.allocate(0, 4 << 20).unwrap();
        let status = std::fs::metadata(directory.path().join("device")).unwrap();
        assert_eq!(status.len(), 3 << 20);
        assert!(status.blocks() * 512 >= 3 << 20);
        let mut found = vec![0; BLOCK];
        disk.read_at(1 << 20, &mut found).unwrap();
        assert!(found == pattern(BLOCK));
    }

    #[test]
    fn create_refuses_what_exists_and_open_refuses_what_is_no_file() {
        let (directory, _disk) = file(0, false);
        assert!(FileDisk::open(&directory.path().join("device"), OpenMode::Create, false).is_err());
        assert!(FileDisk::open(&directory.path().join("none"), OpenMode::ReadWrite, false).is_err());
        for mode in [OpenMode::ReadOnly, OpenMode::ReadWrite] {
            let error = FileDisk::open(directory.path(), mode, false).unwrap_err().to_string();
            assert!(error.contains("neither a file nor a block device"), "{error}");
        }
    }

    #[test]
    fn a_limited_disk_ends_earlier_and_a_lock_is_exclusive() {
        let (directory, disk) = file(8192, false);
        let disk = disk.limited_to(4096);
        assert_eq!(disk.len().unwrap(), 4096);
        assert!(disk.read_at(4096, &mut [0]).is_err());
        let other = FileDisk::open(&directory.path().join("device"), OpenMode::ReadOnly, false).unwrap();
        assert!(disk.lock_exclusive().unwrap());
        assert!(!other.lock_exclusive().unwrap());
        drop(disk);
        assert!(other.lock_exclusive().unwrap());
    }
}
