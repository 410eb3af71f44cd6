//! A file whose every write and flush is recorded in order: the hardware below a loop device in tests of power cuts. It is the only
//! file of a small FUSE file system that this process serves, and is kept in memory.
//!
//! The file is opened with FOPEN_DIRECT_IO, so that no page cache lies above the record: a WRITE is what the loop device was asked
//! to write, and an FSYNC is what it was asked to flush (REQ_OP_FLUSH; the kernel makes FUA writes into a write and a flush).
//!
//! Requests come from several threads. One lock gives each its place in the record and changes the image in the same step: a write
//! that was answered before a flush was asked for always stands before it.

use crate::reference_model::FileBytes;
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, MountOption,
    OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, Session, WriteFlags,
};
use parking_lot::Mutex;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, UNIX_EPOCH};
use sumfs::units::{BLOCK, BLOCK_SIZE};

const NAME: &str = "image";
const INODE: INodeNo = INodeNo(2);
/// Nothing changes but by the kernel's own requests.
const LIFETIME: Duration = Duration::from_secs(3600);
const THREADS: usize = 2;

/// What the file was asked to do.
pub enum Record {
    /// Bytes from an offset on.
    Write { offset: u64, data: Vec<u8> },
    /// Everything before is durable.
    Flush,
}

impl Record {
    /// Does what was recorded to another image.
    pub fn repeat(&self, image: &mut FileBytes) {
        if let Record::Write { offset, data } = self {
            image.write(*offset, data);
        }
    }

    /// The pieces of a write that a disk may tear apart: whole blocks, and what is left at both ends.
    pub fn blocks(&self) -> Vec<(u64, &[u8])> {
        let Record::Write { offset, data } = self else { return Vec::new() };
        let to_border = offset.next_multiple_of(BLOCK_SIZE) - offset;
        let (first, rest) = data.split_at((to_border as usize).min(data.len()));
        let rest = rest.chunks(BLOCK).zip(0..).map(|(block, number)| (offset + to_border + number * BLOCK_SIZE, block));
        std::iter::once((*offset, first)).filter(|(_, first)| !first.is_empty()).chain(rest).collect()
    }
}

#[derive(Default)]
struct State {
    image: FileBytes,
    log: Vec<Record>,
    is_recording: bool,
}

impl State {
    fn take(&mut self, record: Record) {
        record.repeat(&mut self.image);
        if self.is_recording {
            self.log.push(record);
        }
    }
}

/// See [`RecordingFile::counter`].
pub struct Counter(Arc<Mutex<State>>);

impl Counter {
    /// The number of records so far.
    pub fn position(&self) -> usize {
        self.0.lock().log.len()
    }
}

/// The mounted file. Dropping it unmounts; nobody may use it any more.
pub struct RecordingFile {
    state: Arc<Mutex<State>>,
    mountpoint: PathBuf,
    server: Option<JoinHandle<()>>,
}

impl RecordingFile {
    /// Mounts on `mountpoint` a file of that many bytes, all zeros. Nothing is recorded yet.
    pub fn mount(mountpoint: &Path, bytes: u64) -> RecordingFile {
        let mut state = State::default();
        state.image.set_size(bytes);
        let state = Arc::new(Mutex::new(state));
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        config.mount_options = vec![MountOption::FSName("recording-file".to_owned())];
        let session =
            Session::new(Server { state: state.clone(), bytes }, mountpoint, &config).expect("mounting the recording file");
        let serve = move || {
            // The kernel writes dirty memory through us: we must not wait for it to be written.
            sumfs::sys::become_io_flusher();
            session.run().expect("serving the recording file");
        };
        let server = std::thread::Builder::new().name("recording-file".to_owned()).spawn(serve).expect("a thread");
        RecordingFile { state, mountpoint: mountpoint.to_owned(), server: Some(server) }
    }

    /// Where the file is.
    pub fn path(&self) -> PathBuf {
        self.mountpoint.join(NAME)
    }

    /// Tells how far the record is.
    pub fn counter(&self) -> Counter {
        Counter(self.state.clone())
    }

    /// Records from now on; what the file holds at this moment.
    pub fn start_recording(&self) -> FileBytes {
        let mut state = self.state.lock();
        state.is_recording = true;
        state.image.clone()
    }

    /// Records no more; what was recorded.
    pub fn stop_recording(&self) -> Vec<Record> {
        let mut state = self.state.lock();
        state.is_recording = false;
        std::mem::take(&mut state.log)
    }

    /// Replaces what the file holds. Nobody has it open.
    pub fn show(&self, image: FileBytes) {
        self.state.lock().image = image;
    }
}

impl Drop for RecordingFile {
    fn drop(&mut self) {
        // In a test that failed somebody may still use it; then it ends with its last user.
        let flags =
            if std::thread::panicking() { rustix::mount::UnmountFlags::DETACH } else { rustix::mount::UnmountFlags::empty() };
        let unmounted = rustix::mount::unmount(&self.mountpoint, flags);
        if std::thread::panicking() {
            return;
        }
        unmounted.expect("unmounting the recording file");
        self.server.take().map(JoinHandle::join).transpose().expect("the server of the recording file");
    }
}

struct Server {
    state: Arc<Mutex<State>>,
    bytes: u64,
}

impl Server {
    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let is_file = inode == INODE;
        FileAttr {
            ino: inode,
            size: if is_file { self.bytes } else { 0 },
            blocks: if is_file { self.bytes / 512 } else { 0 },
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: BLOCK_SIZE as u32,
            flags: 0,
        }
    }
}

impl Filesystem for Server {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            reply.entry(&LIFETIME, &self.attributes(INODE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&LIFETIME, &self.attributes(inode));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let blocks = self.bytes / BLOCK_SIZE;
        reply.statfs(blocks, 0, 0, 1, 0, BLOCK_SIZE as u32, 255, BLOCK_SIZE as u32);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let data = self.state.lock().image.read(offset, size as usize);
        reply.data(&data);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if offset.saturating_add(data.len() as u64) > self.bytes {
            reply.error(Errno::EFBIG);
            return;
        }
        self.state.lock().take(Record::Write { offset, data: data.to_vec() });
        reply.written(data.len() as u32);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.state.lock().take(Record::Flush);
        reply.ok();
    }

    /// The loop device discards and zeroes with it, and goes on with writing when it is refused.
    fn fallocate(&self, _: &Request, _: INodeNo, _: FileHandle, _: u64, _: u64, _: i32, reply: ReplyEmpty) {
        reply.error(Errno::EOPNOTSUPP);
    }
}
