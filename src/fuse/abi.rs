//! The numbers and layouts of the FUSE protocol (include/uapi/linux/fuse.h, 7.45), as far as they are used here, and the two small
//! types with which messages are taken apart and put together. Nothing is cast onto memory: every field is read at its place,
//! checked, and everything is in the byte order of the machine, as the kernel writes it.

/// Length of what every request begins with.
pub const IN_HEADER_BYTES: usize = 40;
/// Length of what every answer begins with.
pub const OUT_HEADER_BYTES: usize = 16;
/// Length of the fixed part of a WRITE: its data stands behind this and the header.
pub const WRITE_IN_BYTES: usize = 40;

/// Opcodes.
#[allow(missing_docs)]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Which fields a SETATTR sets.
#[allow(missing_docs)]
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
    /// What somebody asked for by name.
    pub const BY_NAME: u32 = MODE | UID | GID | SIZE | ATIME | MTIME;
}

/// Command of an IOCTL, `_IOR('X', 125, u32)`: stop now, which ext4, XFS and btrfs each have under a name of their own.
pub const FS_IOC_SHUTDOWN: u32 = 0x8004_587d;
/// Commands of an IOCTL for what chattr(1) sets, in the form of ext4 (which the kernel gives 4 bytes) and in that of XFS.
#[allow(missing_docs)]
pub mod inode_flags {
    pub const GET: u32 = 0x8008_6601;
    pub const SET: u32 = 0x4008_6602;
    pub const GET_EXTENDED: u32 = 0x801c_581f;
    pub const SET_EXTENDED: u32 = 0x401c_5820;
    pub const EXTENDED_BYTES: usize = 28;
    pub const IMMUTABLE: u32 = 0x10;
    pub const APPEND_ONLY: u32 = 0x20;
    pub const NO_ATIME: u32 = 0x80;
    pub const EXTENDED_IMMUTABLE: u32 = 0x08;
    pub const EXTENDED_APPEND_ONLY: u32 = 0x10;
    pub const EXTENDED_NO_ATIME: u32 = 0x40;
}
/// Flag of a GETATTR: of an open file, for a write or read of it; not for stat(2).
pub const GETATTR_FILE: u32 = 1 << 0;
/// What stands in the place of an error where the kernel is told something that it did not ask.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// Flag of a WRITE: out of the kernel's page cache.
pub const WRITE_CACHE: u32 = 1 << 0;
/// Flag of a WRITE: clear set-user-id and set-group-id.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// Flag of an FSYNC: data only.
pub const FSYNC_DATA_ONLY: u32 = 1 << 0;
/// Flag of a SETXATTR (where the extended form was agreed on): the new ACL takes set-group-id away.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// Flag of an answer to CREATE: what the kernel has cached of the file stays true.
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// All fields of a statx(2) that stat(2) has too, and the time of birth.
pub const STATX_MASK: u32 = 0x7ff | 0x800;

/// Takes fields out of a message from the front; None past its end.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// All of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    /// The next 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    /// The next 64 bits.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    /// The next 64 bits with a sign.
    pub fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_ne_bytes)
    }

    /// Leaves fields out.
    pub fn skip(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }
}

/// Puts a message of at most `N` bytes together.
#[derive(Clone, Copy, Debug)]
pub struct Message<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Default for Message<N> {
    fn default() -> Message<N> {
        Message { bytes: [0; N], length: 0 }
    }
}

impl<const N: usize> Message<N> {
    /// Appends bytes. What does not fit is left out; the sizes are all known here, and the tests look at them.
    pub fn put(&mut self, field: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.length..self.length + field.len()) {
            place.copy_from_slice(field);
            self.length += field.len();
        }
    }

    /// Appends 16 bits.
    pub fn u16(&mut self, value: u16) {
        self.put(&value.to_ne_bytes());
    }

    /// Appends 32 bits.
    pub fn u32(&mut self, value: u32) {
        self.put(&value.to_ne_bytes());
    }

    /// Appends 64 bits.
    pub fn u64(&mut self, value: u64) {
        self.put(&value.to_ne_bytes());
    }

    /// Appends zeros.
    pub fn zeros(&mut self, bytes: usize) {
        self.length = (self.length + bytes).min(N);
    }

    /// What has been put so far.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// What every answer begins with. `error` is negative or 0.
pub fn out_header(unique: u64, error: i32, body_bytes: usize) -> [u8; OUT_HEADER_BYTES] {
    let mut header = [0; OUT_HEADER_BYTES];
    // A body has at most 1 MiB.
    let length = u32::try_from(OUT_HEADER_BYTES + body_bytes).unwrap_or(u32::MAX);
    header[..4].copy_from_slice(&length.to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_end_where_the_message_does() {
        let mut fields = Fields::new(&[1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 9]);
        assert_eq!(fields.u32(), Some(1));
        assert_eq!(fields.u64(), Some(2));
        assert_eq!(fields.u32(), None);
        assert_eq!(fields.skip(2), None);
        assert_eq!(fields.skip(1), Some(()));
        assert_eq!(fields.skip(0), Some(()));
    }

    #[test]
    fn a_message_holds_what_was_put() {
        let mut message = Message::<10>::default();
        message.u32(7);
        message.zeros(2);
        message.u16(1);
        message.u64(5);
        assert_eq!(message.as_slice(), [7, 0, 0, 0, 0, 0, 1, 0], "what does not fit is left out");
    }

    #[test]
    fn an_out_header() {
        assert_eq!(out_header(3, -5, 4), [20, 0, 0, 0, 251, 255, 255, 255, 3, 0, 0, 0, 0, 0, 0, 0]);
    }
}
