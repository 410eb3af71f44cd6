//! Keys of everything the index holds, on one screen. A key is a table byte, then big-endian fields, so that the
//! order of bytes is the order of numbers. All items of one inode lie together.
//!
//! ```text
//! 01                                   counters (next inode number)
//! 02                                   checkpoint: where replay starts
//! 03                                   scrub: how far it is, or what the last one came to
//! 04                                   image: where the copy of the index in the image files ends
//! 05                                   relocation: which device is being emptied
//! 10 inode 01                          inode
//! 10 inode 02 name                     directory entry by name
//! 10 inode 03 cookie                   directory entry by cookie
//! 10 inode 04 name                     extended attribute
//! 10 inode 05                          symlink target
//! 10 inode 06 file-offset              file map
//! 10 inode 07 parent cookie            further hard link
//! 20 block-address                     extent
//! 21 block-address                     extent state
//! 30 inode                             orphan, or being truncated
//! 31 block-address copy                data block known to be damaged, or to have been
//! 32 key                               metadata value known to be damaged
//! 40 group                             group
//! 41 device                            device
//! 42 group                             bitmap of used blocks (written by checkpoints only)
//! ```

use crate::units::{BLOCK_NUMBER_MAX, BlockAddress, InodeNumber, NUMBER_MAX};

/// A key. Short ones are the rule (10 to 30 bytes); names make them longer.
pub type Key = Vec<u8>;

/// Counters.
pub const COUNTERS: u8 = 0x01;
/// Checkpoint.
pub const CHECKPOINT: u8 = 0x02;
/// Scrub.
pub const SCRUB: u8 = 0x03;
/// Image.
pub const IMAGE: u8 = 0x04;
/// Relocation.
pub const RELOCATION: u8 = 0x05;
/// Items of inodes.
pub const INODES: u8 = 0x10;
/// Extents.
pub const EXTENTS: u8 = 0x20;
/// Extent states.
pub const EXTENT_STATES: u8 = 0x21;
/// Orphans.
pub const ORPHANS: u8 = 0x30;
/// Damaged data blocks.
pub const DAMAGED_BLOCKS: u8 = 0x31;
/// Damaged metadata values.
pub const DAMAGED_VALUES: u8 = 0x32;
/// Groups.
pub const GROUPS: u8 = 0x40;
/// Devices.
pub const DEVICES: u8 = 0x41;
/// Bitmaps of used blocks.
pub const BITMAPS: u8 = 0x42;

/// Kinds of items of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Item {
    Inode = 1,
    EntryByName = 2,
    EntryByCookie = 3,
    Xattr = 4,
    Symlink = 5,
    Map = 6,
    Link = 7,
}

impl Item {
    /// From the byte in a key.
    pub fn from_byte(byte: u8) -> Option<Item> {
        Some(match byte {
            1 => Item::Inode,
            2 => Item::EntryByName,
            3 => Item::EntryByCookie,
            4 => Item::Xattr,
            5 => Item::Symlink,
            6 => Item::Map,
            7 => Item::Link,
            _ => return None,
        })
    }
}

fn item(inode: InodeNumber, kind: Item, extra: usize) -> Key {
    let mut key = Vec::with_capacity(10 + extra);
    key.push(INODES);
    key.extend_from_slice(&inode.0.to_be_bytes());
    key.push(kind as u8);
    key
}

fn with_u64(mut key: Key, number: u64) -> Key {
    key.extend_from_slice(&number.to_be_bytes());
    key
}

fn table(table: u8, number: u64) -> Key {
    with_u64(vec![table], number)
}

/// The counters record.
pub fn counters() -> Key {
    vec![COUNTERS]
}

/// The checkpoint record.
pub fn checkpoint() -> Key {
    vec![CHECKPOINT]
}

/// The scrub record.
pub fn scrub() -> Key {
    vec![SCRUB]
}

/// The image record.
pub fn image() -> Key {
    vec![IMAGE]
}

/// The relocation record.
pub fn relocation() -> Key {
    vec![RELOCATION]
}

/// A damaged copy of a data block.
pub fn damaged_block(address: BlockAddress, copy: u8) -> Key {
    let mut key = table(DAMAGED_BLOCKS, address.0);
    key.push(copy);
    key
}

/// The metadata value of `key` is damaged.
pub fn damaged_value(key: &[u8]) -> Key {
    [&[DAMAGED_VALUES], key].concat()
}

/// The inode record.
pub fn inode(inode: InodeNumber) -> Key {
    item(inode, Item::Inode, 0)
}

/// First key of an item kind of an inode; `items_end` is the first key behind them.
pub fn items(inode: InodeNumber, kind: Item) -> Key {
    item(inode, kind, 0)
}

/// First key behind the items of that kind.
pub fn items_end(inode: InodeNumber, kind: Item) -> Key {
    let mut key = item(inode, kind, 0);
    key[9] += 1;
    key
}

/// First key of an inode's items, whatever their kind.
pub fn inode_begin(inode: InodeNumber) -> Key {
    with_u64(vec![INODES], inode.0)
}

/// First key behind an inode's items.
pub fn inode_end(inode: InodeNumber) -> Key {
    inode.0.checked_add(1).map_or_else(|| table_end(INODES), |next| with_u64(vec![INODES], next))
}

/// Directory entry by name.
pub fn entry_by_name(directory: InodeNumber, name: &[u8]) -> Key {
    let mut key = item(directory, Item::EntryByName, name.len());
    key.extend_from_slice(name);
    key
}

/// Directory entry by cookie.
pub fn entry_by_cookie(directory: InodeNumber, cookie: u64) -> Key {
    with_u64(item(directory, Item::EntryByCookie, 8), cookie)
}

/// Extended attribute.
pub fn xattr(inode: InodeNumber, name: &[u8]) -> Key {
    let mut key = item(inode, Item::Xattr, name.len());
    key.extend_from_slice(name);
    key
}

/// Symlink target.
pub fn symlink(inode: InodeNumber) -> Key {
    item(inode, Item::Symlink, 0)
}

/// File map record that begins at `offset` (bytes, block aligned).
pub fn map(inode: InodeNumber, offset: u64) -> Key {
    with_u64(item(inode, Item::Map, 8), offset)
}

/// A further hard link, by the directory and the cookie of its entry.
pub fn link(inode: InodeNumber, parent: InodeNumber, cookie: u64) -> Key {
    with_u64(with_u64(item(inode, Item::Link, 16), parent.0), cookie)
}

/// Extent.
pub fn extent(address: BlockAddress) -> Key {
    table(EXTENTS, address.0)
}

/// Extent state.
pub fn extent_state(address: BlockAddress) -> Key {
    table(EXTENT_STATES, address.0)
}

/// Orphan or file being truncated.
pub fn orphan(inode: InodeNumber) -> Key {
    table(ORPHANS, inode.0)
}

/// Group.
pub fn group(number: u64) -> Key {
    table(GROUPS, number)
}

/// Device.
pub fn device(id: u32) -> Key {
    table(DEVICES, u64::from(id))
}

/// Bitmap of a group.
pub fn bitmap(group: u64) -> Key {
    table(BITMAPS, group)
}

/// First key of a table.
pub fn table_begin(table: u8) -> Key {
    vec![table]
}

/// First key behind a table.
pub fn table_end(table: u8) -> Key {
    vec![table + 1]
}

/// A key taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Parsed<'a> {
    Counters,
    Checkpoint,
    Scrub,
    Image,
    Relocation,
    Inode(InodeNumber),
    EntryByName { directory: InodeNumber, name: &'a [u8] },
    EntryByCookie { directory: InodeNumber, cookie: u64 },
    Xattr { inode: InodeNumber, name: &'a [u8] },
    Symlink(InodeNumber),
    Map { inode: InodeNumber, offset: u64 },
    Link { inode: InodeNumber, parent: InodeNumber, cookie: u64 },
    Extent(BlockAddress),
    ExtentState(BlockAddress),
    Orphan(InodeNumber),
    DamagedBlock { address: BlockAddress, copy: u8 },
    DamagedValue(&'a [u8]),
    Group(u64),
    Device(u64),
    Bitmap(u64),
}

fn any_number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

fn number(bytes: &[u8]) -> Option<u64> {
    any_number(bytes).filter(|number| *number <= NUMBER_MAX)
}

fn address(bytes: &[u8]) -> Option<BlockAddress> {
    any_number(bytes).filter(|number| *number <= BLOCK_NUMBER_MAX).map(BlockAddress)
}

/// Takes a key apart; None when it is none of ours, which one with a number that no store reaches is not either.
pub fn parse(key: &[u8]) -> Option<Parsed<'_>> {
    let (&table, rest) = key.split_first()?;
    Some(match table {
        COUNTERS if rest.is_empty() => Parsed::Counters,
        CHECKPOINT if rest.is_empty() => Parsed::Checkpoint,
        SCRUB if rest.is_empty() => Parsed::Scrub,
        IMAGE if rest.is_empty() => Parsed::Image,
        RELOCATION if rest.is_empty() => Parsed::Relocation,
        INODES => {
            let inode = InodeNumber(number(rest.get(..8)?)?);
            let kind = Item::from_byte(*rest.get(8)?)?;
            let tail = rest.get(9..)?;
            match kind {
                Item::Inode if tail.is_empty() => Parsed::Inode(inode),
                Item::EntryByName => Parsed::EntryByName { directory: inode, name: tail },
                Item::EntryByCookie => Parsed::EntryByCookie { directory: inode, cookie: number(tail)? },
                Item::Xattr => Parsed::Xattr { inode, name: tail },
                Item::Symlink if tail.is_empty() => Parsed::Symlink(inode),
                Item::Map => Parsed::Map { inode, offset: any_number(tail)? },
                Item::Link => {
                    Parsed::Link { inode, parent: InodeNumber(number(tail.get(..8)?)?), cookie: number(tail.get(8..)?)? }
                }
                _ => return None,
            }
        }
        EXTENTS => Parsed::Extent(address(rest)?),
        EXTENT_STATES => Parsed::ExtentState(address(rest)?),
        ORPHANS => Parsed::Orphan(InodeNumber(number(rest)?)),
        DAMAGED_BLOCKS => {
            let (copy, rest) = rest.split_last()?;
            Parsed::DamagedBlock { address: address(rest)?, copy: *copy }
        }
        DAMAGED_VALUES => Parsed::DamagedValue(rest),
        GROUPS => Parsed::Group(number(rest)?),
        DEVICES => Parsed::Device(number(rest)?),
        BITMAPS => Parsed::Bitmap(number(rest)?),
        _ => return None,
    })
}
