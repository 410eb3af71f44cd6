//! One function per request: call one function of the file system, answer. No file-system logic, and nothing of how requests come.
//!
//! What is left out on purpose answers ENOSYS once and the kernel never asks again: OPEN and OPENDIR (files need no handles, the
//! node number says all), FLUSH (nothing to do at close), POLL (io_uring then runs O_DIRECT inline), LSEEK (under the writeback
//! cache we do not know what is dirty in the kernel, and "all data" is right), ACCESS, BMAP, INTERRUPT.
//!
//! A panic in a handler drops its reply, which answers EIO, and latches the store read-only.

use super::abi::{FS_IOC_SHUTDOWN, Message as Answer, inode_flags};
use super::device::Channel;
use super::dispatch::{Busy, Dispatcher, Read, Reading, Write};
use super::encode;
use super::refusals::Refusals;
use super::reply::Reply;
use super::request::{Body, Dialect, Message, Request, forgets};
use super::translate::{
    extended_flag_words, fallocate_mode, flag_bits, flags_of_bits, flags_of_extended, rename_mode, xattr_mode,
};
use crate::error::{Error, Result};
use crate::fs::{Attributes, Filesystem, InodeFlags, ReadData};
use crate::lock::Wait;
use crate::pool::panic_message;
use crate::stats::Stats;
use crate::units::InodeNumber;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

thread_local! {
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
    /// Where listings are put together.
    static LISTED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What the names of threads that serve requests begin with.
pub const THREAD_PREFIX: &str = "sumfs-serve";

/// Is this a thread that serves requests, outside the handlers? A panic there ends the thread and leaves a request without an
/// answer; one in a handler is caught.
pub fn is_serving_thread_outside_handler() -> bool {
    std::thread::current().name().is_some_and(|name| name.starts_with(THREAD_PREFIX)) && !IN_HANDLER.get()
}

/// What the caller of [`Server::serve`] does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Takes another request.
    Goes,
    /// Ends: the kernel says goodbye.
    End,
}

/// The file system as the kernel sees it. One per mount.
pub struct Server {
    fs: Arc<Filesystem>,
    stats: Arc<Stats>,
    dispatcher: Dispatcher,
    dialect: Dialect,
    notices: Option<Arc<Channel>>,
    refusals: Arc<Refusals>,
}

impl Server {
    /// Ready for requests in `dialect`.
    pub fn new(fs: Arc<Filesystem>, dispatcher: Dispatcher, dialect: Dialect) -> Server {
        Server { stats: fs.stats().clone(), fs, dispatcher, dialect, notices: None, refusals: Arc::default() }
    }

    /// The kernel hears over `channel` what it does not ask.
    pub fn with_notices(self, channel: Channel) -> Server {
        let channel = Arc::new(channel);
        Server { refusals: Arc::new(Refusals::told_through(channel.clone())), notices: Some(channel), ..self }
    }

    /// Marks the calling thread of a ring awake while the result lives.
    pub fn awake(&self) -> Busy<'_> {
        self.dispatcher.awake()
    }

    /// Serves one request: counts it, marks the thread busy, survives its panic.
    pub fn serve(&self, message: &Message<'_>, reply: Reply) -> Next {
        let _busy: Option<Busy<'_>> = self.dispatcher.enter();
        let Some(request) = Request::decode(message, self.dialect) else {
            tracing::error!("the kernel sent a request that makes no sense: {:?}", message.header);
            reply.failure(libc::EIO);
            return Next::Goes;
        };
        let operation = request.body.operation();
        self.stats.count(operation);
        IN_HANDLER.set(true);
        let result = catch_unwind(AssertUnwindSafe(|| self.handle(&request, reply)));
        IN_HANDLER.set(false);
        result.unwrap_or_else(|panic| {
            self.dispatcher.panicked(operation, panic_message(&*panic));
            Next::Goes
        })
    }

    fn handle(&self, request: &Request<'_>, reply: Reply) -> Next {
        let (node, caller) = (request.node, &request.caller);
        match request.body {
            Body::Read { offset, size, flags } => {
                self.dispatcher.serve_read(Read { inode: node, offset, size, flags }, ReadReply { reply, apart: None });
            }
            Body::Write { offset, data, flags } => {
                let write = Write { caller: *caller, inode: node, offset, flags };
                let refusals = flags.from_cache.then(|| (self.refusals.clone(), data.len()));
                self.dispatcher.write(write, data, move |result| {
                    let refused = refusals.filter(|_| matches!(result, Err(Error::NoSpace)));
                    written(result, reply);
                    refused.into_iter().for_each(|(refusals, bytes)| refusals.note(node, bytes));
                });
            }
            Body::Fsync { data_only } => self.dispatcher.fsync(node, data_only, |result| reply.empty(result)),
            Body::Lookup { name } => match self.fs.lookup(node, name) {
                Err(Error::NotFound) => reply.body(encode::no_entry().as_slice()),
                result => entry(result, reply),
            },
            Body::Getattr { of_open_file: true } if self.refusals.take(node) => reply.error(&Error::NoSpace),
            Body::Getattr { .. } => attributes(self.fs.getattr(node), reply),
            Body::Statx => encoded(self.fs.getattr(node), encode::statx, reply),
            Body::Setattr(change) => attributes(self.fs.setattr(caller, node, &change), reply),
            Body::Forget { count } => {
                self.fs.forget(node, count);
                reply.none();
            }
            Body::BatchForget { pairs } => {
                forgets(pairs).for_each(|(node, count)| self.fs.forget(node, count));
                reply.none();
            }
            Body::Readdir { offset, size } => self.readdir(node, offset, size, false, reply),
            Body::Readdirplus { offset, size } => self.readdir(node, offset, size, true, reply),
            // Told once that there are no handles, the kernel opens without asking and keeps what it has cached.
            Body::Open { .. } if !self.fs.sees_opens() => reply.failure(libc::ENOSYS),
            // Where every access counts it is not told to keep anything, and reads come here.
            Body::Open { writes, appends } => {
                encoded(self.fs.open_file(node, writes, appends), |()| encode::opened(!self.fs.counts_every_access()), reply);
            }
            Body::Release => reply.ok(),
            Body::NotifyReply => reply.none(),
            Body::Destroy => {
                reply.ok();
                return Next::End;
            }
            Body::Other => reply.failure(libc::ENOSYS),
            _ => self.handle_rarer(request, reply),
        }
        Next::Goes
    }

    fn handle_rarer(&self, request: &Request<'_>, reply: Reply) {
        let (fs, node, caller) = (&self.fs, request.node, &request.caller);
        match request.body {
            Body::Create { name, mode, umask } => {
                let mode = mode & !libc::S_IFMT | libc::S_IFREG;
                encoded(fs.mknod(caller, node, name, mode, umask, 0), encode::created, reply);
            }
            Body::Mknod { name, mode, rdev, umask } => entry(fs.mknod(caller, node, name, mode, umask, rdev), reply),
            Body::Mkdir { name, mode, umask } => entry(fs.mkdir(caller, node, name, mode, umask), reply),
            Body::Symlink { name, target } => entry(fs.symlink(caller, node, name, target), reply),
            Body::Link { node: existing, new_name } => entry(fs.link(existing, node, new_name), reply),
            Body::Unlink { name } => reply.empty(fs.unlink(node, name)),
            Body::Rmdir { name } => reply.empty(fs.rmdir(node, name)),
            Body::Rename { name, new_parent, new_name, flags } => {
                let mode = rename_mode(flags, *caller);
                reply.empty(mode.and_then(|mode| fs.rename(node, name, new_parent, new_name, mode)));
            }
            Body::Readlink => match fs.readlink(node) {
                Ok(target) => reply.body(&target),
                Err(error) => reply.error(&error),
            },
            Body::Statfs => reply.body(encode::statfs(&fs.statfs()).as_slice()),
            Body::Syncfs => reply.empty(fs.sync()),
            Body::Tmpfile { mode, umask } => encoded(fs.tmpfile(caller, node, mode, umask), encode::created, reply),
            Body::Ioctl { command: FS_IOC_SHUTDOWN, .. } if caller.uid != 0 => reply.failure(libc::EPERM),
            Body::Ioctl { command: FS_IOC_SHUTDOWN, .. } => encoded(fs.go_down(), |()| encode::ioctl_done(), reply),
            Body::Ioctl { command, input, output_bytes } => self.handle_ioctl(node, (command, input, output_bytes), reply),
            _ => self.handle_attribute(request, reply),
        }
    }

    /// What chattr(1) and lsattr(1) ask for.
    fn handle_ioctl(&self, node: InodeNumber, (command, input, output_bytes): (u32, &[u8], usize), reply: Reply) {
        let fs = &self.fs;
        let set = |flags: Result<InodeFlags>| {
            fs.set_inode_flags(node, flags?)?;
            // The time of change that it shows; of files whose writes it caches it goes on showing its own.
            self.notices.iter().for_each(|channel| channel.forget_attributes(node));
            Ok(())
        };
        match command {
            inode_flags::GET if output_bytes >= 4 => {
                // As many bytes as were asked for: the kernel wants exactly these, an old program perhaps a long of 8.
                encoded(
                    fs.inode_flags(node),
                    |flags| encode::ioctl_words(&[flag_bits(flags), 0][..(output_bytes / 4).min(2)]),
                    reply,
                );
            }
            inode_flags::SET => encoded(set(flags_of_bits(input)), |()| encode::ioctl_done(), reply),
            inode_flags::GET_EXTENDED => {
                encoded(fs.inode_flags(node), |flags| encode::ioctl_words(&extended_flag_words(flags)), reply);
            }
            inode_flags::SET_EXTENDED => encoded(set(flags_of_extended(input)), |()| encode::ioctl_done(), reply),
            _ => reply.failure(libc::ENOTTY),
        }
    }

    /// Extended attributes, and what is done to ranges of files.
    fn handle_attribute(&self, request: &Request<'_>, reply: Reply) {
        let (fs, node, caller) = (&self.fs, request.node, &request.caller);
        match request.body {
            Body::Getxattr { name, size } => xattr(fs.getxattr(node, name), size, reply),
            Body::Listxattr { size } => xattr(fs.listxattr(node), size, reply),
            Body::Setxattr { name, value, flags, kills_sgid } => {
                reply.empty(xattr_mode(flags, kills_sgid).and_then(|mode| fs.setxattr(caller, node, name, value, mode)));
            }
            Body::Removexattr { name } => reply.empty(fs.removexattr(caller, node, name)),
            Body::Fallocate { offset, length, mode } => {
                reply.empty(fallocate_mode(mode).and_then(|mode| fs.fallocate(caller, node, offset, length, mode)));
            }
            Body::CopyFileRange { offset, to, to_offset, length, has_wide_answer } => {
                match fs.copy_range(caller, (node, offset), (to, to_offset), length) {
                    Ok(bytes) if has_wide_answer => reply.body(&encode::wide_count(bytes)),
                    copied => written(copied.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)), reply),
                }
            }
            _ => reply.failure(libc::ENOSYS),
        }
    }

    fn readdir(&self, node: InodeNumber, offset: u64, size: usize, has_attributes: bool, reply: Reply) {
        LISTED.with_borrow_mut(|bytes| {
            let mut listing = encode::Listing::new(bytes, size);
            let result = if has_attributes {
                self.fs.readdirplus(node, offset, &mut |entry, attributes| listing.add(&entry, Some(attributes)))
            } else {
                self.fs.readdir(node, offset, &mut |entry| listing.add(&entry, None))
            };
            match result {
                Ok(()) => reply.body(listing.as_slice()),
                Err(error) => reply.error(&error),
            }
        });
    }
}

/// The answer to a READ: put together in its place, if it has one.
struct ReadReply {
    reply: Reply,
    apart: Option<ReadData>,
}

impl Reading for ReadReply {
    fn attempt(&mut self, fs: &Filesystem, read: &Read, wait: Wait) -> Result<usize> {
        if let Some(place) = self.reply.place() {
            return fs.read_into(read.inode, (read.offset, read.size), read.flags, wait, place);
        }
        let data = fs.read(read.inode, read.offset, read.size, read.flags, wait)?;
        Ok(self.apart.insert(data).as_slice().len())
    }

    fn answer(self, result: Result<usize>) {
        match (result, self.apart) {
            (Ok(_), Some(data)) => self.reply.body(data.as_slice()),
            (Ok(bytes), None) => self.reply.placed(bytes),
            (Err(error), _) => self.reply.error(&error),
        }
    }
}

fn encoded<T, const N: usize>(result: Result<T>, encode: impl FnOnce(&T) -> Answer<N>, reply: Reply) {
    match result {
        Ok(value) => reply.body(encode(&value).as_slice()),
        Err(error) => reply.error(&error),
    }
}

fn entry(result: Result<Attributes>, reply: Reply) {
    encoded(result, encode::entry, reply);
}

fn attributes(result: Result<Attributes>, reply: Reply) {
    encoded(result, encode::attributes, reply);
}

fn written(result: Result<usize>, reply: Reply) {
    encoded(result, |bytes| encode::count(*bytes), reply);
}

/// A size of 0 asks how long the value is; a value longer than the size is ERANGE.
fn xattr(result: Result<Vec<u8>>, size: usize, reply: Reply) {
    match result {
        Ok(value) if size == 0 => reply.body(encode::count(value.len()).as_slice()),
        Ok(value) if value.len() > size => reply.failure(libc::ERANGE),
        Ok(value) => reply.body(&value),
        Err(error) => reply.error(&error),
    }
}
