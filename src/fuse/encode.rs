//! The bodies of answers, as the protocol lays them out.
//!
//! We are the only writer, so what the kernel knows stays true: attributes, entries and missing names live for a year. Only the mode
//! of a set-user-id file does not: the kernel tells us to take the bits away and goes on showing and obeying what it knew.

use super::abi::{FOPEN_KEEP_CACHE, Message, STATX_MASK};
use super::translate::entry_type;
use crate::fs::{Attributes, DirectoryEntry, SpaceStatus};
use crate::units::{BLOCK_SIZE, Timestamp};

/// How long the kernel may believe what we said.
const TTL_SECONDS: u64 = 365 * 86_400;
/// Longest name, for statfs.
const NAME_BYTES_MAX: u32 = 255;
/// Length of an entry's body.
const ENTRY_BYTES: usize = 128;
/// Length of a directory entry before its name.
const DIRENT_BYTES: usize = 24;

fn attributes_ttl(attributes: &Attributes) -> u64 {
    let is_file = attributes.mode & libc::S_IFMT == libc::S_IFREG;
    if is_file && attributes.mode & (libc::S_ISUID | libc::S_ISGID) != 0 { 0 } else { TTL_SECONDS }
}

fn attributes_into<const N: usize>(message: &mut Message<N>, attributes: &Attributes) {
    let times = [attributes.accessed, attributes.modified, attributes.changed];
    for number in [attributes.inode.0, attributes.size, attributes.blocks_512] {
        message.u64(number);
    }
    times.iter().for_each(|time| message.u64(time.seconds.cast_unsigned()));
    times.iter().for_each(|time| message.u32(time.nanoseconds));
    let Attributes { mode, links, uid, gid, rdev, .. } = *attributes;
    for number in [mode, links, uid, gid, rdev, BLOCK_SIZE as u32, 0] {
        message.u32(number);
    }
}

fn entry_into<const N: usize>(message: &mut Message<N>, attributes: &Attributes) {
    // Numbers of inodes are never used again, so there is only one generation.
    for number in [attributes.inode.0, 0, TTL_SECONDS, attributes_ttl(attributes), 0] {
        message.u64(number);
    }
    attributes_into(message, attributes);
}

/// Answer to LOOKUP and to what makes something.
pub fn entry(attributes: &Attributes) -> Message<ENTRY_BYTES> {
    let mut message = Message::default();
    entry_into(&mut message, attributes);
    message
}

/// "There is no such name", to be remembered by the kernel: an entry with node number 0.
pub fn no_entry() -> Message<ENTRY_BYTES> {
    let mut message = Message::default();
    [0, 0, TTL_SECONDS].iter().for_each(|number| message.u64(*number));
    message.zeros(ENTRY_BYTES - 24);
    message
}

/// Answer to CREATE and TMPFILE: there are no handles.
pub fn created(attributes: &Attributes) -> Message<144> {
    let mut message = Message::default();
    entry_into(&mut message, attributes);
    message.u64(0);
    message.u32(FOPEN_KEEP_CACHE);
    message.u32(0);
    message
}

/// Answer to OPEN: no handle; does what is cached of the file stay?
pub fn opened(keeps_cache: bool) -> Message<16> {
    let mut message = Message::default();
    message.u64(0);
    message.u32(if keeps_cache { FOPEN_KEEP_CACHE } else { 0 });
    message.u32(0);
    message
}

/// Answer to an IOCTL that gives nothing back.
pub fn ioctl_done() -> Message<16> {
    let mut message = Message::default();
    message.zeros(16);
    message
}

/// Answer to an IOCTL that gives numbers back.
pub fn ioctl_words(words: &[u32]) -> Message<64> {
    let mut message = Message::default();
    message.zeros(16);
    words.iter().for_each(|word| message.u32(*word));
    message
}

/// Answer to GETATTR and SETATTR.
pub fn attributes(attributes: &Attributes) -> Message<104> {
    let mut message = Message::default();
    message.u64(attributes_ttl(attributes));
    message.u64(0);
    attributes_into(&mut message, attributes);
    message
}

/// Answer to STATX: what GETATTR says, and when the file was made.
pub fn statx(attributes: &Attributes) -> Message<288> {
    let mut message = Message::default();
    message.u64(attributes_ttl(attributes));
    message.zeros(24);
    message.u32(STATX_MASK);
    message.u32(BLOCK_SIZE as u32);
    message.u64(0);
    [attributes.links, attributes.uid, attributes.gid].iter().for_each(|number| message.u32(*number));
    // The mode has 16 bits.
    message.u16(attributes.mode as u16);
    message.u16(0);
    for number in [attributes.inode.0, attributes.size, attributes.blocks_512, 0] {
        message.u64(number);
    }
    for Timestamp { seconds, nanoseconds } in [attributes.accessed, attributes.created, attributes.changed, attributes.modified] {
        message.u64(seconds.cast_unsigned());
        message.u32(nanoseconds);
        message.u32(0);
    }
    let rdev = attributes.rdev;
    message.u32((rdev & 0x000f_ff00) >> 8);
    message.u32(rdev & 0xff | (rdev >> 12) & 0x000f_ff00);
    message.zeros(8 + 14 * 8);
    message
}

/// Answer to STATFS.
pub fn statfs(space: &SpaceStatus) -> Message<80> {
    let mut message = Message::default();
    for number in [space.blocks, space.free, space.available, space.inodes, space.inodes_free] {
        message.u64(number);
    }
    for number in [BLOCK_SIZE as u32, NAME_BYTES_MAX, BLOCK_SIZE as u32] {
        message.u32(number);
    }
    message.zeros(28);
    message
}

/// Answer to WRITE and COPY_FILE_RANGE, and to a question how long an extended attribute is.
pub fn count(bytes: usize) -> Message<8> {
    let mut message = Message::default();
    // A request carries 1 MiB at most; one copy shares much less than 4 GiB.
    message.u32(u32::try_from(bytes).unwrap_or(u32::MAX));
    message.u32(0);
    message
}

/// Answer to COPY_FILE_RANGE_64.
pub fn wide_count(bytes: u64) -> [u8; 8] {
    bytes.to_ne_bytes()
}

/// Entries of a directory, up to the size that was asked for.
#[derive(Debug)]
pub struct Listing<'a> {
    bytes: &'a mut Vec<u8>,
    size: usize,
}

impl Listing<'_> {
    /// An empty one of at most `size` bytes, in memory that is used again.
    pub fn new(bytes: &mut Vec<u8>, size: usize) -> Listing<'_> {
        bytes.clear();
        Listing { bytes, size }
    }

    /// False: no room.
    pub fn add(&mut self, entry: &DirectoryEntry<'_>, attributes: Option<&Attributes>) -> bool {
        let head = if attributes.is_some() { ENTRY_BYTES + DIRENT_BYTES } else { DIRENT_BYTES };
        let length = (head + entry.name.len()).next_multiple_of(8);
        let end = self.bytes.len() + length;
        if end > self.size {
            return false;
        }
        let mut message = Message::<{ ENTRY_BYTES + DIRENT_BYTES }>::default();
        if let Some(attributes) = attributes {
            entry_into(&mut message, attributes);
        }
        message.u64(entry.inode.0);
        message.u64(entry.next);
        // A name has at most 255 bytes.
        message.u32(entry.name.len() as u32);
        message.u32(entry_type(entry.kind));
        self.bytes.extend_from_slice(message.as_slice());
        self.bytes.extend_from_slice(entry.name);
        self.bytes.resize(end, 0);
        true
    }

    /// The entries so far.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::abi::Fields;
    use crate::meta::records::FileKind;
    use crate::units::InodeNumber;

    fn time(seconds: i64, nanoseconds: u32) -> Timestamp {
        Timestamp { seconds, nanoseconds }
    }

    fn some_attributes() -> Attributes {
        Attributes {
            inode: InodeNumber(77),
            size: 12345,
            blocks_512: 32,
            accessed: time(-5, 250),
            modified: time(6, 7),
            changed: time(i64::MIN, 9),
            created: time(10, 11),
            mode: 0o104_755,
            links: 3,
            uid: 1000,
            gid: 100,
            rdev: 0x1234_5678,
        }
    }

    fn assert_attributes(bytes: &[u8]) {
        let mut fields = Fields::new(bytes);
        assert_eq!([fields.u64(), fields.u64(), fields.u64()], [Some(77), Some(12345), Some(32)]);
        assert_eq!([fields.i64(), fields.i64(), fields.i64()], [Some(-5), Some(6), Some(i64::MIN)]);
        let rest = [250, 7, 9, 0o104_755, 3, 1000, 100, 0x1234_5678, 4096, 0].map(Some);
        assert_eq!([0; 10].map(|_| fields.u32()), rest);
        assert_eq!(fields.u32(), None);
    }

    #[test]
    fn attributes_keep_every_field() {
        assert_attributes(&attributes(&some_attributes()).as_slice()[16..]);
        let entry = entry(&some_attributes());
        assert_attributes(&entry.as_slice()[40..]);
        assert_eq!(Fields::new(entry.as_slice()).u64(), Some(77));
        assert_attributes(&created(&some_attributes()).as_slice()[40..128]);
    }

    #[test]
    fn only_the_attributes_of_set_user_id_files_do_not_live() {
        let lives = |mode: u32| {
            let found = Attributes { mode, ..some_attributes() };
            let (entry, attributes, statx) = (entry(&found), attributes(&found), statx(&found));
            let at = |bytes: &[u8], place: usize| Fields::new(&bytes[place..]).u64().unwrap();
            assert_eq!(at(entry.as_slice(), 16), TTL_SECONDS, "the name lives");
            [at(entry.as_slice(), 24), at(attributes.as_slice(), 0), at(statx.as_slice(), 0)]
        };
        assert_eq!(lives(0o104_755), [0; 3]);
        assert_eq!(lives(0o102_755), [0; 3]);
        assert_eq!(lives(0o100_755), [TTL_SECONDS; 3]);
        assert_eq!(lives(0o042_755), [TTL_SECONDS; 3], "a directory keeps the bit");
    }

    #[test]
    fn bodies_have_the_sizes_of_the_protocol() {
        let attributes_ = some_attributes();
        assert_eq!(entry(&attributes_).as_slice().len(), 128);
        assert_eq!(no_entry().as_slice().len(), 128);
        assert_eq!(created(&attributes_).as_slice().len(), 144);
        assert_eq!(opened(true).as_slice().len(), 16);
        assert_eq!(ioctl_words(&[1; 7]).as_slice().len(), 16 + 28);
        assert_eq!(attributes(&attributes_).as_slice().len(), 104);
        assert_eq!(statx(&attributes_).as_slice().len(), 288);
        assert_eq!(statfs(&SpaceStatus::default()).as_slice().len(), 80);
    }

    #[test]
    fn statx_tells_the_birth_and_the_device() {
        let message = statx(&some_attributes());
        let field = |at: usize| Fields::new(&message.as_slice()[at..]);
        assert_eq!((field(32).u32(), field(36).u32()), (Some(0xfff), Some(4096)));
        assert_eq!((field(48).u32(), field(52).u32(), field(56).u32()), (Some(3), Some(1000), Some(100)));
        assert_eq!(field(60).u32(), Some(0o104_755));
        assert_eq!((field(64).u64(), field(72).u64(), field(80).u64()), (Some(77), Some(12345), Some(32)));
        assert_eq!((field(96).i64(), field(104).u32()), (Some(-5), Some(250)), "access");
        assert_eq!((field(112).i64(), field(120).u32()), (Some(10), Some(11)), "birth");
        assert_eq!((field(128).i64(), field(136).u32()), (Some(i64::MIN), Some(9)), "change");
        assert_eq!((field(144).i64(), field(152).u32()), (Some(6), Some(7)), "modification");
        assert_eq!((field(160).u32(), field(164).u32()), (Some(0x456), Some(0x12378)));
    }

    #[test]
    fn a_listing_ends_where_there_is_no_room() {
        let mut bytes = vec![9; 5];
        let entry = |name| DirectoryEntry { inode: InodeNumber(5), next: 8, kind: FileKind::Directory, name };
        let mut listing = Listing::new(&mut bytes, 72);
        assert!(listing.add(&entry(b"eight888"), None));
        assert!(listing.add(&entry(b"nine_9999"), None));
        assert!(!listing.add(&entry(b""), None));
        let mut fields = Fields::new(&listing.as_slice()[32..]);
        assert_eq!((fields.u64(), fields.u64(), fields.u32(), fields.u32()), (Some(5), Some(8), Some(9), Some(4)));
        assert_eq!(listing.as_slice().len(), 72);
        assert_eq!(listing.as_slice()[56..], *b"nine_9999\0\0\0\0\0\0\0");
        let mut listing = Listing::new(&mut bytes, 159);
        assert!(!listing.add(&entry(b"12345678"), Some(&some_attributes())));
        assert!(listing.add(&entry(b""), Some(&some_attributes())));
        assert_attributes(&listing.as_slice()[40..128]);
    }
}
