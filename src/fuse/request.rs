//! Requests of the kernel, decoded: bytes in, one [`Request`] out, or nothing where the bytes are not what the protocol says. No byte
//! is believed, nothing is copied: names and data are parts of the message.
//!
//! A message comes in one piece from /dev/fuse and in three over a ring (header, fixed part, the rest); [`Message`] is both.

use super::abi::{self, Fields, GETATTR_FILE, IN_HEADER_BYTES, WRITE_IN_BYTES, fattr, opcode};
use super::translate::{read_flags, write_flags};
use crate::fs::{Caller, ReadFlags, SetAttributes, SetTime, WriteFlags};
use crate::stats::Operation;
use crate::units::{InodeNumber, Timestamp};

/// A request as it came.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The first 40 bytes.
    pub header: &'a [u8],
    /// What follows; over a ring only the operation's fixed part, with whatever stands behind it.
    pub fixed: &'a [u8],
    /// Over a ring: what follows the fixed part. None: it follows in `fixed`.
    pub rest: Option<&'a [u8]>,
}

impl<'a> Message<'a> {
    /// One out of /dev/fuse; None when it is shorter than a header.
    pub fn whole(bytes: &'a [u8]) -> Option<Message<'a>> {
        let (header, fixed) = bytes.split_at_checked(IN_HEADER_BYTES)?;
        Some(Message { header, fixed, rest: None })
    }

    /// The operation's fixed part of so many bytes, and what follows it.
    fn split(&self, fixed_bytes: usize) -> Option<(Fields<'a>, &'a [u8])> {
        let (fixed, behind) = self.fixed.split_at_checked(fixed_bytes)?;
        Some((Fields::new(fixed), self.rest.unwrap_or(behind)))
    }
}

/// A decoded request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its number, for the answer.
    pub unique: u64,
    /// The node it is about.
    pub node: InodeNumber,
    /// On whose behalf.
    pub caller: Caller,
    /// What is wanted.
    pub body: Body<'a>,
}

/// What is wanted, with what only this operation has.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Body<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        count: u64,
    },
    /// The pairs of node and count; [`forgets`] reads them.
    BatchForget {
        pairs: &'a [u8],
    },
    Getattr {
        of_open_file: bool,
    },
    Statx,
    /// Nothing at all is possible and right: who writes, or gives a file to nobody else, takes set-user-id away.
    Setattr(SetAttributes),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        name: &'a [u8],
        mode: u32,
        rdev: u32,
        umask: u32,
    },
    Mkdir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: InodeNumber,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        node: InodeNumber,
        new_name: &'a [u8],
    },
    Create {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    /// O_TMPFILE: a file without a name in the directory `node`.
    Tmpfile {
        mode: u32,
        umask: u32,
    },
    Read {
        offset: u64,
        size: usize,
        flags: ReadFlags,
    },
    Write {
        offset: u64,
        data: &'a [u8],
        flags: WriteFlags,
    },
    Fsync {
        data_only: bool,
    },
    Syncfs,
    Statfs,
    Readdir {
        offset: u64,
        size: usize,
    },
    Readdirplus {
        offset: u64,
        size: usize,
    },
    Setxattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
        kills_sgid: bool,
    },
    Getxattr {
        name: &'a [u8],
        size: usize,
    },
    Listxattr {
        size: usize,
    },
    Removexattr {
        name: &'a [u8],
    },
    Fallocate {
        offset: u64,
        length: u64,
        mode: u32,
    },
    CopyFileRange {
        offset: u64,
        to: InodeNumber,
        to_offset: u64,
        length: u64,
        has_wide_answer: bool,
    },
    Ioctl {
        command: u32,
        input: &'a [u8],
        output_bytes: usize,
    },
    Open {
        writes: bool,
        appends: bool,
    },
    /// RELEASE and RELEASEDIR: there is nothing to let go of.
    Release,
    Destroy,
    /// Answers to what we never send.
    NotifyReply,
    /// Everything that we leave to the kernel: ENOSYS, once.
    Other,
}

/// What was agreed on at INIT and changes how requests look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dialect {
    /// SETXATTR has its longer form.
    pub setxattr_ext: bool,
}

/// The number of a request, even of one whose rest makes no sense.
pub fn unique(header: &[u8]) -> Option<u64> {
    let mut fields = Fields::new(header);
    fields.skip(8)?;
    fields.u64()
}

impl<'a> Request<'a> {
    /// Decodes; None where the message is too short or a name has no end.
    pub fn decode(message: &Message<'a>, dialect: Dialect) -> Option<Request<'a>> {
        let mut header = Fields::new(message.header);
        let _length = header.u32()?;
        let opcode = header.u32()?;
        let unique = header.u64()?;
        let node = InodeNumber(header.u64()?);
        let caller = Caller { uid: header.u32()?, gid: header.u32()?, pid: header.u32()? };
        Some(Request { unique, node, caller, body: Body::decode(opcode, message, dialect)? })
    }
}

impl<'a> Body<'a> {
    fn decode(opcode: u32, message: &Message<'a>, dialect: Dialect) -> Option<Body<'a>> {
        Some(match opcode {
            opcode::READ => read(message)?,
            opcode::WRITE => write(message)?,
            opcode::GETATTR => Body::Getattr { of_open_file: message.split(16)?.0.u32()? & GETATTR_FILE != 0 },
            opcode::STATX => Body::Statx,
            opcode::SETATTR => Body::Setattr(setattr(message.split(88)?.0)?),
            opcode::FSYNC | opcode::FSYNCDIR => fsync(message)?,
            opcode::FORGET => Body::Forget { count: message.split(8)?.0.u64()? },
            opcode::BATCH_FORGET => batch_forget(message)?,
            opcode::STATFS => Body::Statfs,
            opcode::SYNCFS => Body::Syncfs,
            opcode::READDIR | opcode::READDIRPLUS => {
                let (offset, size) = offset_and_size(&mut message.split(40)?.0)?;
                if opcode == opcode::READDIR { Body::Readdir { offset, size } } else { Body::Readdirplus { offset, size } }
            }
            opcode::FALLOCATE => fallocate(message)?,
            opcode::COPY_FILE_RANGE => copy_file_range(message, false)?,
            opcode::COPY_FILE_RANGE_64 => copy_file_range(message, true)?,
            opcode::IOCTL => ioctl(message)?,
            opcode::OPEN => open(message.split(8)?.0.u32()?),
            opcode::RELEASE | opcode::RELEASEDIR => Body::Release,
            opcode::DESTROY => Body::Destroy,
            opcode::NOTIFY_REPLY => Body::NotifyReply,
            _ => return Body::decode_named(opcode, message, dialect),
        })
    }

    /// The operations with names.
    fn decode_named(opcode: u32, message: &Message<'a>, dialect: Dialect) -> Option<Body<'a>> {
        let only_name = || message.split(0).and_then(|(_, rest)| text(rest)).map(|(name, _)| name);
        Some(match opcode {
            opcode::LOOKUP => Body::Lookup { name: only_name()? },
            opcode::UNLINK => Body::Unlink { name: only_name()? },
            opcode::RMDIR => Body::Rmdir { name: only_name()? },
            opcode::REMOVEXATTR => Body::Removexattr { name: only_name()? },
            opcode::READLINK => Body::Readlink,
            opcode::SYMLINK => {
                let (name, rest) = text(message.split(0)?.1)?;
                Body::Symlink { name, target: text(rest)?.0 }
            }
            opcode::MKNOD => {
                let (mut fixed, rest) = message.split(16)?;
                let (mode, rdev, umask) = (fixed.u32()?, fixed.u32()?, fixed.u32()?);
                Body::Mknod { name: text(rest)?.0, mode, rdev, umask }
            }
            opcode::MKDIR => {
                let (mut fixed, rest) = message.split(8)?;
                Body::Mkdir { mode: fixed.u32()?, umask: fixed.u32()?, name: text(rest)?.0 }
            }
            opcode::CREATE | opcode::TMPFILE => create(message, opcode)?,
            opcode::RENAME => rename(message.split(8)?, false)?,
            opcode::RENAME2 => rename(message.split(16)?, true)?,
            opcode::LINK => {
                let (mut fixed, rest) = message.split(8)?;
                Body::Link { node: InodeNumber(fixed.u64()?), new_name: text(rest)?.0 }
            }
            opcode::SETXATTR => setxattr(message, dialect)?,
            opcode::GETXATTR => {
                let (mut fixed, rest) = message.split(8)?;
                Body::Getxattr { size: fixed.u32()? as usize, name: text(rest)?.0 }
            }
            opcode::LISTXATTR => Body::Listxattr { size: message.split(8)?.0.u32()? as usize },
            _ => Body::Other,
        })
    }

    /// How it is counted.
    pub fn operation(&self) -> Operation {
        match self {
            Body::Lookup { .. } => Operation::Lookup,
            Body::Forget { .. } | Body::BatchForget { .. } => Operation::Forget,
            Body::Getattr { .. } | Body::Statx => Operation::Getattr,
            Body::Setattr(_) => Operation::Setattr,
            Body::Readlink => Operation::Readlink,
            Body::Symlink { .. } => Operation::Symlink,
            Body::Mknod { .. } => Operation::Mknod,
            Body::Mkdir { .. } => Operation::Mkdir,
            Body::Unlink { .. } => Operation::Unlink,
            Body::Rmdir { .. } => Operation::Rmdir,
            Body::Rename { .. } => Operation::Rename,
            Body::Link { .. } => Operation::Link,
            Body::Create { .. } | Body::Tmpfile { .. } => Operation::Create,
            Body::Read { .. } => Operation::Read,
            Body::Write { .. } => Operation::Write,
            Body::Fsync { .. } | Body::Syncfs => Operation::Fsync,
            Body::Statfs => Operation::Statfs,
            Body::Readdir { .. } => Operation::Readdir,
            Body::Readdirplus { .. } => Operation::Readdirplus,
            Body::Setxattr { .. } => Operation::Setxattr,
            Body::Getxattr { .. } => Operation::Getxattr,
            Body::Listxattr { .. } => Operation::Listxattr,
            Body::Removexattr { .. } => Operation::Removexattr,
            Body::Fallocate { .. } => Operation::Fallocate,
            Body::CopyFileRange { .. } => Operation::CopyFileRange,
            Body::Ioctl { .. } | Body::Open { .. } | Body::Release | Body::Destroy | Body::NotifyReply | Body::Other => {
                Operation::Other
            }
        }
    }
}

/// Bytes up to a zero, and what follows it.
fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    Some((bytes.get(..end)?, bytes.get(end + 1..)?))
}

/// The beginning of a READ, WRITE or READDIR: handle, offset, size.
fn offset_and_size(fixed: &mut Fields<'_>) -> Option<(u64, usize)> {
    fixed.skip(8)?;
    Some((fixed.u64()?, fixed.u32()? as usize))
}

fn read<'a>(message: &Message<'a>) -> Option<Body<'a>> {
    let (mut fixed, _) = message.split(40)?;
    let (offset, size) = offset_and_size(&mut fixed)?;
    fixed.skip(12)?;
    Some(Body::Read { offset, size, flags: read_flags(fixed.u32()?) })
}

fn write<'a>(message: &Message<'a>) -> Option<Body<'a>> {
    let (mut fixed, rest) = message.split(WRITE_IN_BYTES)?;
    let (offset, size) = offset_and_size(&mut fixed)?;
    let kind = fixed.u32()?;
    fixed.skip(8)?;
    let flags = write_flags(kind, fixed.u32()?);
    Some(Body::Write { offset, data: rest.get(..size)?, flags })
}

fn open<'a>(flags: u32) -> Body<'a> {
    let flags = flags.cast_signed();
    Body::Open { writes: flags & libc::O_ACCMODE != libc::O_RDONLY, appends: flags & libc::O_APPEND != 0 }
}

fn fsync<'a>(message: &Message<'a>) -> Option<Body<'a>> {
    let (mut fixed, _) = message.split(16)?;
    fixed.skip(8)?;
    Some(Body::Fsync { data_only: fixed.u32()? & abi::FSYNC_DATA_ONLY != 0 })
}

fn setattr(mut fixed: Fields<'_>) -> Option<SetAttributes> {
    let valid = fixed.u32()?;
    fixed.skip(12)?;
    let size = fixed.u64()?;
    fixed.skip(8)?;
    let seconds = [fixed.i64()?, fixed.i64()?, fixed.i64()?];
    let nanoseconds = [fixed.u32()?, fixed.u32()?, fixed.u32()?];
    let mode = fixed.u32()?;
    fixed.skip(4)?;
    let (uid, gid) = (fixed.u32()?, fixed.u32()?);
    let has = |bit: u32| valid & bit != 0;
    let [accessed, modified, changed] =
        [0, 1, 2].map(|at: usize| Timestamp { seconds: seconds[at], nanoseconds: nanoseconds[at].min(999_999_999) });
    let time = |bit, now_bit, time| has(bit).then(|| if has(now_bit) { SetTime::Now } else { SetTime::To(time) });
    Some(SetAttributes {
        mode: has(fattr::MODE).then_some(mode),
        uid: has(fattr::UID).then_some(uid),
        gid: has(fattr::GID).then_some(gid),
        size: has(fattr::SIZE).then_some(size),
        accessed: time(fattr::ATIME, fattr::ATIME_NOW, accessed),
        modified: time(fattr::MTIME, fattr::MTIME_NOW, modified),
        changed: has(fattr::CTIME).then_some(changed),
        // A chown(2) that names nobody comes without a bit, or with the time of change alone, and so does a write that takes the bits.
        kill_suid: has(fattr::KILL_SUIDGID) || valid & fattr::BY_NAME == 0,
    })
}

fn batch_forget<'a>(message: &Message<'a>) -> Option<Body<'a>> {
    let (mut fixed, rest) = message.split(8)?;
    let bytes = (fixed.u32()? as usize).checked_mul(16)?;
    Some(Body::BatchForget { pairs: rest.get(..bytes)? })
}

/// The nodes and counts of a [`Body::BatchForget`].
pub fn forgets(pairs: &[u8]) -> impl Iterator<Item = (InodeNumber, u64)> {
    pairs.chunks_exact(16).filter_map(|pair| {
        let mut fields = Fields::new(pair);
        Some((InodeNumber(fields.u64()?), fields.u64()?))
    })
}

fn create<'a>(message: &Message<'a>, opcode: u32) -> Option<Body<'a>> {
    let (mut fixed, rest) = message.split(16)?;
    fixed.skip(4)?;
    let (mode, umask) = (fixed.u32()?, fixed.u32()?);
    let name = text(rest)?.0;
    Some(if opcode == opcode::TMPFILE { Body::Tmpfile { mode, umask } } else { Body::Create { name, mode, umask } })
}

fn rename<'a>((mut fixed, rest): (Fields<'a>, &'a [u8]), has_flags: bool) -> Option<Body<'a>> {
    let new_parent = InodeNumber(fixed.u64()?);
    let flags = if has_flags { fixed.u32()? } else { 0 };
    let (name, rest) = text(rest)?;
    Some(Body::Rename { name, new_parent, new_name: text(rest)?.0, flags })
}

fn setxattr<'a>(message: &Message<'a>, dialect: Dialect) -> Option<Body<'a>> {
    let (mut fixed, rest) = message.split(if dialect.setxattr_ext { 16 } else { 8 })?;
    let (size, flags) = (fixed.u32()? as usize, fixed.u32()?);
    let kills_sgid = dialect.setxattr_ext && fixed.u32()? & abi::SETXATTR_ACL_KILL_SGID != 0;
    let (name, rest) = text(rest)?;
    Some(Body::Setxattr { name, value: rest.get(..size)?, flags, kills_sgid })
}

fn fallocate<'a>(message: &Message<'a>) -> Option<Body<'a>> {
    let (mut fixed, _) = message.split(32)?;
    fixed.skip(8)?;
    Some(Body::Fallocate { offset: fixed.u64()?, length: fixed.u64()?, mode: fixed.u32()? })
}

fn copy_file_range<'a>(message: &Message<'a>, has_wide_answer: bool) -> Option<Body<'a>> {
    let (mut fixed, _) = message.split(56)?;
    fixed.skip(8)?;
    let (offset, to) = (fixed.u64()?, InodeNumber(fixed.u64()?));
    fixed.skip(8)?;
    Some(Body::CopyFileRange { offset, to, to_offset: fixed.u64()?, length: fixed.u64()?, has_wide_answer })
}

fn ioctl<'a>(message: &Message<'a>) -> Option<Body<'a>> {
    let (mut fixed, rest) = message.split(32)?;
    fixed.skip(12)?;
    let command = fixed.u32()?;
    fixed.skip(8)?;
    let (input_bytes, output_bytes) = (fixed.u32()? as usize, fixed.u32()? as usize);
    Some(Body::Ioctl { command, input: rest.get(..input_bytes)?, output_bytes })
}

#[cfg(test)]
mod tests;
