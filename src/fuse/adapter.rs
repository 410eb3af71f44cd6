//! One function per request: decode, call one function of the file system, answer. No file-system logic.
//!
//! What is left out on purpose answers ENOSYS once and the kernel never asks again: OPEN and OPENDIR (files need no handles, the
//! node number says all), FLUSH (nothing to do at close), POLL (io_uring then runs O_DIRECT inline), LSEEK (under the writeback
//! cache we do not know what is dirty in the kernel, and "all data" is right), ACCESS, BMAP.
//!
//! We are the only writer, so what the kernel knows stays true: attributes, entries and missing names live for a year.
//! A panic in a handler drops its reply, which answers EIO, and latches the store read-only.

use super::dispatch::{Busy, Dispatcher, Read, Write};
use super::session::CacheMode;
use super::translate::{
    SetattrRequest, errno, fallocate_mode, file_attr, file_type, inode, no_entry, read_flags, rename_mode, write_flags,
    xattr_mode,
};
use crate::error::{Error, Result};
use crate::fs::{Attributes, Caller, Filesystem, SetAttributes};
use crate::pool::panic_message;
use crate::stats::{Operation, Stats};
use crate::units::BLOCK_SIZE;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyBmap, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::cell::Cell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How long the kernel may believe what we said.
const TTL: Duration = Duration::from_secs(365 * 86_400);
/// Numbers of inodes are never used again, so there is only one generation.
const GENERATION: Generation = Generation(0);
/// There are no handles.
const NO_HANDLE: FileHandle = FileHandle(0);
/// Largest WRITE and, with the kernel's page limit, largest READ.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Asynchronous requests (writeback, readahead, asynchronous direct I/O) in flight.
const BACKGROUND_MAX: u16 = 512;
/// Longest name, for statfs.
const NAME_BYTES_MAX: u32 = 255;

/// The connection flags that we want; what the kernel does not offer is left out.
pub fn wanted_flags(cache: CacheMode) -> InitFlags {
    let wanted = InitFlags::FUSE_HANDLE_KILLPRIV_V2
        | InitFlags::FUSE_ASYNC_DIO
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_DONT_MASK
        | InitFlags::FUSE_EXPLICIT_INVAL_DATA
        | InitFlags::FUSE_CACHE_SYMLINKS
        | InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_READDIRPLUS_AUTO
        | InitFlags::FUSE_NO_OPEN_SUPPORT
        | InitFlags::FUSE_NO_OPENDIR_SUPPORT
        | InitFlags::FUSE_NO_EXPORT_SUPPORT
        | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP
        // An abort from outside then ends the session with ECONNABORTED: only then is the dead mount still ours to remove.
        | InitFlags::FUSE_ABORT_ERROR;
    match cache {
        CacheMode::Writeback => wanted | InitFlags::FUSE_WRITEBACK_CACHE,
        CacheMode::None => wanted,
    }
}

thread_local!(static IN_HANDLER: Cell<bool> = const { Cell::new(false) });

/// Is this a reading thread of the library's, outside our handlers? A panic there ends the thread and leaves its request without
/// an answer; one in a handler is caught.
pub fn is_reading_thread_outside_handler() -> bool {
    let is_reading = std::thread::current().name().is_some_and(|name| name.starts_with("fuser-") && name != "fuser-bg");
    is_reading && !IN_HANDLER.get()
}

/// The file system as fuser wants to see it.
pub struct Adapter {
    fs: Arc<Filesystem>,
    stats: Arc<Stats>,
    dispatcher: Dispatcher,
    cache: CacheMode,
}

impl Adapter {
    /// Ready for a session.
    pub fn new(fs: Arc<Filesystem>, dispatcher: Dispatcher, cache: CacheMode) -> Adapter {
        Adapter { stats: fs.stats().clone(), fs, dispatcher, cache }
    }

    /// Runs one handler: counts it, marks the thread busy, survives its panic.
    fn handle(&self, operation: Operation, run: impl FnOnce()) {
        let _busy: Busy<'_> = self.dispatcher.enter();
        self.stats.count(operation);
        IN_HANDLER.set(true);
        let result = catch_unwind(AssertUnwindSafe(run));
        IN_HANDLER.set(false);
        if let Err(panic) = result {
            self.dispatcher.panicked(operation, panic_message(&*panic));
        }
    }
}

fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

fn answer_entry(result: Result<Attributes>, reply: ReplyEntry) {
    match result {
        Ok(attributes) => reply.entry(&TTL, &file_attr(&attributes), GENERATION),
        Err(error) => reply.error(errno(&error)),
    }
}

fn answer_attributes(result: Result<Attributes>, reply: ReplyAttr) {
    match result {
        Ok(attributes) => reply.attr(&TTL, &file_attr(&attributes)),
        Err(error) => reply.error(errno(&error)),
    }
}

fn answer_empty(result: Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

/// A size of 0 asks how long the value is; a value longer than the size is ERANGE.
fn answer_xattr(result: Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match result {
        // Values and lists have at most 64 KiB.
        Ok(value) if size == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno(&error)),
    }
}

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let refused = |what: &str| std::io::Error::other(format!("the FUSE library refused {what}"));
        let wanted = wanted_flags(self.cache);
        let missing = wanted.difference(config.capabilities());
        if !missing.is_empty() {
            tracing::info!("this kernel's FUSE lacks {missing:?}: slower, nothing else");
        }
        config.add_capabilities(wanted.intersection(config.capabilities())).map_err(|_| refused("the connection flags"))?;
        config.set_max_write(REQUEST_BYTES_MAX).map_err(|_| refused("max_write"))?;
        config.set_max_background(BACKGROUND_MAX).map_err(|_| refused("max_background"))?;
        config.set_congestion_threshold(BACKGROUND_MAX).map_err(|_| refused("congestion_threshold"))?;
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.handle(Operation::Lookup, || match self.fs.lookup(inode(parent), name.as_bytes()) {
            Err(Error::NotFound) => reply.entry(&TTL, &no_entry(), GENERATION),
            result => answer_entry(result, reply),
        });
    }

    fn forget(&self, _request: &Request, node: INodeNo, count: u64) {
        self.handle(Operation::Forget, || self.fs.forget(inode(node), count));
    }

    fn getattr(&self, _request: &Request, node: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        self.handle(Operation::Getattr, || answer_attributes(self.fs.getattr(inode(node)), reply));
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.handle(Operation::Setattr, || {
            let change: SetAttributes = SetattrRequest { mode, uid, gid, size, atime, mtime, ctime }.into();
            answer_attributes(self.fs.setattr(&caller(request), inode(node), &change), reply);
        });
    }

    fn readlink(&self, _request: &Request, node: INodeNo, reply: ReplyData) {
        self.handle(Operation::Readlink, || match self.fs.readlink(inode(node)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn mknod(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        self.handle(Operation::Mknod, || {
            answer_entry(self.fs.mknod(&caller(request), inode(parent), name.as_bytes(), mode, umask, rdev), reply);
        });
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        self.handle(Operation::Mkdir, || {
            answer_entry(self.fs.mkdir(&caller(request), inode(parent), name.as_bytes(), mode, umask), reply);
        });
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.handle(Operation::Unlink, || answer_empty(self.fs.unlink(inode(parent), name.as_bytes()), reply));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.handle(Operation::Rmdir, || answer_empty(self.fs.rmdir(inode(parent), name.as_bytes()), reply));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        self.handle(Operation::Symlink, || {
            let target = target.as_os_str().as_bytes();
            answer_entry(self.fs.symlink(&caller(request), inode(parent), name.as_bytes(), target), reply);
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.handle(Operation::Rename, || {
            let result = rename_mode(flags, caller(request))
                .and_then(|mode| self.fs.rename(inode(parent), name.as_bytes(), inode(new_parent), new_name.as_bytes(), mode));
            answer_empty(result, reply);
        });
    }

    fn link(&self, _request: &Request, node: INodeNo, new_parent: INodeNo, new_name: &OsStr, reply: ReplyEntry) {
        self.handle(Operation::Link, || {
            answer_entry(self.fs.link(inode(node), inode(new_parent), new_name.as_bytes()), reply);
        });
    }

    fn create(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, _flags: i32, reply: ReplyCreate) {
        self.handle(Operation::Create, || {
            let mode = mode & !libc::S_IFMT | libc::S_IFREG;
            match self.fs.mknod(&caller(request), inode(parent), name.as_bytes(), mode, umask, 0) {
                Ok(made) => reply.created(&TTL, &file_attr(&made), GENERATION, NO_HANDLE, FopenFlags::FOPEN_KEEP_CACHE),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn read(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.handle(Operation::Read, || {
            let read = Read { inode: inode(node), offset, size: size as usize, flags: read_flags(flags) };
            self.dispatcher.read(read, |result| match result {
                Ok(data) => reply.data(data.as_slice()),
                Err(error) => reply.error(errno(&error)),
            });
        });
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.handle(Operation::Write, || {
            let write = Write { caller: caller(request), inode: inode(node), offset, flags: write_flags(write, flags) };
            self.dispatcher.write(write, data, |result| match result {
                // A request carries 1 MiB at most.
                Ok(bytes) => reply.written(u32::try_from(bytes).unwrap_or(u32::MAX)),
                Err(error) => reply.error(errno(&error)),
            });
        });
    }

    fn fsync(&self, _request: &Request, node: INodeNo, _handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        self.handle(Operation::Fsync, || self.dispatcher.fsync(inode(node), data_only, |result| answer_empty(result, reply)));
    }

    fn fsyncdir(&self, _request: &Request, node: INodeNo, _handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        self.handle(Operation::Fsync, || self.dispatcher.fsync(inode(node), data_only, |result| answer_empty(result, reply)));
    }

    fn readdir(&self, _request: &Request, node: INodeNo, _handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.handle(Operation::Readdir, || {
            let result = self.fs.readdir(inode(node), offset, &mut |entry| {
                !reply.add(INodeNo(entry.inode.0), entry.next, file_type(entry.kind), OsStr::from_bytes(entry.name))
            });
            match result {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn readdirplus(&self, _request: &Request, node: INodeNo, _handle: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        self.handle(Operation::Readdirplus, || {
            let result = self.fs.readdirplus(inode(node), offset, &mut |entry, attributes| {
                let (node, name) = (INodeNo(entry.inode.0), OsStr::from_bytes(entry.name));
                !reply.add(node, entry.next, name, &TTL, &file_attr(attributes), GENERATION)
            });
            match result {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn statfs(&self, _request: &Request, _node: INodeNo, reply: ReplyStatfs) {
        self.handle(Operation::Statfs, || {
            let (space, block) = (self.fs.statfs(), BLOCK_SIZE as u32);
            let (blocks, free, available) = (space.blocks, space.free, space.available);
            reply.statfs(blocks, free, available, space.inodes, space.inodes_free, block, NAME_BYTES_MAX, block);
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.handle(Operation::Setxattr, || {
            let result =
                xattr_mode(flags).and_then(|mode| self.fs.setxattr(&caller(request), inode(node), name.as_bytes(), value, mode));
            answer_empty(result, reply);
        });
    }

    fn getxattr(&self, _request: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.handle(Operation::Getxattr, || answer_xattr(self.fs.getxattr(inode(node), name.as_bytes()), size, reply));
    }

    fn listxattr(&self, _request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        self.handle(Operation::Listxattr, || answer_xattr(self.fs.listxattr(inode(node)), size, reply));
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.handle(Operation::Removexattr, || {
            answer_empty(self.fs.removexattr(&caller(request), inode(node), name.as_bytes()), reply);
        });
    }

    fn fallocate(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.handle(Operation::Fallocate, || {
            let result =
                fallocate_mode(mode).and_then(|mode| self.fs.fallocate(&caller(request), inode(node), offset, length, mode));
            answer_empty(result, reply);
        });
    }

    fn open(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.handle(Operation::Other, || reply.error(Errno::ENOSYS));
    }

    fn opendir(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.handle(Operation::Other, || reply.error(Errno::ENOSYS));
    }

    fn release(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.handle(Operation::Other, || reply.ok());
    }

    fn releasedir(&self, _request: &Request, _node: INodeNo, _handle: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.handle(Operation::Other, || reply.ok());
    }

    fn flush(&self, _request: &Request, _node: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        self.handle(Operation::Other, || reply.error(Errno::ENOSYS));
    }

    fn access(&self, _request: &Request, _node: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        self.handle(Operation::Other, || reply.error(Errno::ENOSYS));
    }

    fn bmap(&self, _request: &Request, _node: INodeNo, _block_bytes: u32, _index: u64, reply: ReplyBmap) {
        self.handle(Operation::Other, || reply.error(Errno::ENOSYS));
    }

    fn lseek(&self, _request: &Request, _node: INodeNo, _handle: FileHandle, _offset: i64, _whence: i32, reply: ReplyLseek) {
        self.handle(Operation::Other, || reply.error(Errno::ENOSYS));
    }

    fn poll(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        self.handle(Operation::Other, || reply.error(Errno::ENOSYS));
    }

    fn ioctl(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _input: &[u8],
        _output_bytes: u32,
        reply: ReplyIoctl,
    ) {
        self.handle(Operation::Other, || reply.error(Errno::ENOTTY));
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: INodeNo,
        _from_handle: FileHandle,
        from_offset: u64,
        to: INodeNo,
        _to_handle: FileHandle,
        to_offset: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.handle(Operation::CopyFileRange, || {
            let (from, to) = ((inode(from), from_offset), (inode(to), to_offset));
            match self.fs.copy_range(&caller(request), from, to, length) {
                // One call shares much less than 4 GiB.
                Ok(bytes) => reply.written(u32::try_from(bytes).unwrap_or(u32::MAX)),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_would_hurt_are_never_wanted() {
        let never = InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_AUTO_INVAL_DATA
            | InitFlags::FUSE_POSIX_LOCKS
            | InitFlags::FUSE_FLOCK_LOCKS
            | InitFlags::FUSE_SETXATTR_EXT
            | InitFlags::FUSE_SECURITY_CTX
            | InitFlags::FUSE_CREATE_SUPP_GROUP
            | InitFlags::FUSE_PASSTHROUGH
            | InitFlags::FUSE_HANDLE_KILLPRIV
            | InitFlags::FUSE_ALLOW_IDMAP
            | InitFlags::FUSE_OVER_IO_URING;
        for cache in [CacheMode::Writeback, CacheMode::None] {
            assert!(wanted_flags(cache).intersection(never).is_empty());
        }
    }

    #[test]
    fn only_the_writeback_mode_wants_the_writeback_cache() {
        assert!(wanted_flags(CacheMode::Writeback).contains(InitFlags::FUSE_WRITEBACK_CACHE));
        assert!(!wanted_flags(CacheMode::None).contains(InitFlags::FUSE_WRITEBACK_CACHE));
    }
}
