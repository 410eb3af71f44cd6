//! A small store made by hand: its records in a map that a test can change before they are sealed and written. It has one of
//! everything: directories, a hard link, a symlink, attributes, data, a shared and partly dead extent, preallocation behind the
//! end, a deleted open file and a truncation that has begun.
//!
//! ```text
//! /           1    /dir       2   /dir/hard  3 (same as /file)   /dir/sub  5 (empty)
//! /file       3    /link      4   /shared    6                   /cut      8 (truncated to 100)
//! (deleted)   7
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use sumfs::disk::Disk;
use sumfs::disk::memory::MemoryDisk;
use sumfs::disk::superblock::SUPERBLOCK_BYTES;
use sumfs::error::Result;
use sumfs::meta::index::{Change, Index};
use sumfs::meta::records::*;
use sumfs::meta::redb_index::RedbIndex;
use sumfs::meta::schema::{self, Key};
use sumfs::store::{Disks, FormatOptions, format};
use sumfs::units::{BLOCK, BLOCK_SIZE, BlockAddress, InodeNumber, Timestamp};

pub const DEVICE_BYTES: u64 = 16 << 20;
pub const GROUP_BYTES: u64 = 1 << 20;
pub const BLOCKS_PER_GROUP: u64 = GROUP_BYTES / BLOCK_SIZE;
/// Where the first group lies on the device.
pub const GROUP_0_AT: u64 = 1 << 20;
pub const INDEX_CACHE_BYTES: usize = 4 << 20;

/// What the blocks at an address hold.
pub fn block_bytes(address: u64) -> [u8; BLOCK] {
    std::array::from_fn(|at| (at as u64 * 31 + address * 7 + at as u64 / 251) as u8)
}

pub fn block_sum(address: u64) -> u32 {
    crc32c::crc32c(&block_bytes(address))
}

/// The records of a store, not sealed yet.
pub struct Contents {
    pub records: BTreeMap<Key, Vec<u8>>,
    /// Keys with stored values whose checksum need not be right.
    pub raw: BTreeMap<Key, Vec<u8>>,
    /// Keys that formatting makes and that are to be deleted.
    pub deleted: Vec<Key>,
    /// Blocks that the bitmaps call used.
    pub used: BTreeSet<u64>,
    pub counters: CountersRecord,
}

pub fn inode_record(kind: FileKind, parent: u64, cookie: u64) -> InodeRecord {
    let time = Timestamp { seconds: 1_700_000_000, nanoseconds: 5 };
    let is_directory = kind == FileKind::Directory;
    InodeRecord {
        mode: kind.mode_bits() | 0o644,
        uid: 0,
        gid: 0,
        links: if is_directory { 2 } else { 1 },
        size: 0,
        blocks: 0,
        accessed: time,
        modified: time,
        changed: time,
        created: time,
        rdev: 0,
        flags: 0,
        parent: InodeNumber(parent),
        cookie,
        next_cookie: if is_directory { 3 } else { 0 },
    }
}

pub fn written(extent: u64, first: u16, extent_blocks: u16, length: u64) -> MapRecord {
    MapRecord::Written { extent: BlockAddress(extent), first, extent_blocks, length }
}

impl Contents {
    /// The store described above; nothing is wrong with it.
    pub fn good() -> Contents {
        let counters = CountersRecord { next_inode: 9, unwritten_blocks: 0 };
        let mut good =
            Contents { records: BTreeMap::new(), raw: BTreeMap::new(), deleted: Vec::new(), used: BTreeSet::new(), counters };
        good.put_inode(1, &inode_record(FileKind::Directory, 1, 0));
        for (inode, parent, name, kind) in [
            (2, 1, "dir", FileKind::Directory),
            (3, 1, "file", FileKind::Regular),
            (4, 1, "link", FileKind::Symlink),
            (6, 1, "shared", FileKind::Regular),
            (8, 1, "cut", FileKind::Regular),
        ] {
            good.create(parent, name, inode, kind);
        }
        good.create(2, "sub", 5, FileKind::Directory);
        let cookie = good.add_entry(2, "hard", 3, FileKind::Regular);
        good.records.insert(schema::link(InodeNumber(3), InodeNumber(2), cookie), Vec::new());
        good.records.insert(schema::xattr(InodeNumber(3), b"user.a"), b"value".to_vec());
        good.change_inode(3, |file| (file.links, file.flags) = (2, INODE_HAS_XATTRS));
        good.records.insert(schema::symlink(InodeNumber(4)), b"target".to_vec());
        good.change_inode(4, |link| link.size = 6);
        good.put_inode(7, &InodeRecord { links: 0, ..inode_record(FileKind::Regular, 2, 77) });
        good.put_orphan(7, OrphanRecord::Unlinked);
        good.put_orphan(8, OrphanRecord::Truncating { size: 100 });
        good.add_data();
        good
    }

    fn add_data(&mut self) {
        self.put_extent(0, 3, 3);
        self.add_map(3, 0, written(0, 0, 3, 10_000));
        self.change_inode(3, |file| file.size = 10_000);
        self.add_map(3, 16_384, MapRecord::Unwritten { length: 8000 });
        self.put_extent(8, 4, 6);
        self.put_state(8, &[2, 1, 0, 0]);
        self.used.extend([0, 1, 2, 8, 9, 10]);
        self.add_map(6, 0, written(8, 0, 4, 8192));
        self.add_map(6, 8192, written(8, 0, 4, 4096));
        self.change_inode(6, |shared| shared.size = 12_288);
        self.put_extent(256, 1, 7);
        self.add_map(7, 0, written(256, 0, 1, 4096));
        // In a dead block of the extent in front of it.
        self.put_extent(10, 1, 7);
        self.add_map(7, 4096, written(10, 0, 1, 4096));
        self.change_inode(7, |deleted| deleted.size = 8192);
        self.put_extent(257, 2, 8);
        self.add_map(8, 0, written(257, 0, 2, 8192));
        self.change_inode(8, |cut| cut.size = 100);
        self.used.extend([256, 257, 258]);
        self.put_group(0, GROUP_0_AT);
        self.put_group(1, GROUP_0_AT + GROUP_BYTES);
    }

    pub fn put_inode(&mut self, inode: u64, record: &InodeRecord) {
        self.records.insert(schema::inode(InodeNumber(inode)), record.encode());
    }

    pub fn change_inode(&mut self, inode: u64, change: impl FnOnce(&mut InodeRecord)) {
        let key = schema::inode(InodeNumber(inode));
        let mut record = InodeRecord::decode(&self.records[&key]).unwrap();
        change(&mut record);
        self.records.insert(key, record.encode());
    }

    /// An inode with one name.
    pub fn create(&mut self, parent: u64, name: &str, inode: u64, kind: FileKind) {
        let cookie = self.add_entry(parent, name, inode, kind);
        self.put_inode(inode, &inode_record(kind, parent, cookie));
        self.counters.next_inode = self.counters.next_inode.max(inode + 1);
    }

    /// A name, counted in the directory; its cookie.
    pub fn add_entry(&mut self, directory: u64, name: &str, inode: u64, kind: FileKind) -> u64 {
        let mut cookie = 0;
        self.change_inode(directory, |record| {
            cookie = record.next_cookie;
            record.next_cookie += 1;
            record.size += 1;
            record.links += u32::from(kind == FileKind::Directory);
        });
        self.put_name(directory, name, inode, cookie, kind);
        self.put_cookie(directory, name, inode, cookie, kind);
        cookie
    }

    /// Takes a name away, and counts.
    pub fn remove_entry(&mut self, directory: u64, name: &str) {
        let key = schema::entry_by_name(InodeNumber(directory), name.as_bytes());
        let entry = EntryRecord::decode(&self.records.remove(&key).unwrap()).unwrap();
        self.records.remove(&schema::entry_by_cookie(InodeNumber(directory), entry.cookie)).unwrap();
        self.change_inode(directory, |record| {
            record.size -= 1;
            record.links -= u32::from(entry.kind == FileKind::Directory);
        });
    }

    pub fn put_name(&mut self, directory: u64, name: &str, inode: u64, cookie: u64, kind: FileKind) {
        let entry = EntryRecord { inode: InodeNumber(inode), cookie, kind };
        self.records.insert(schema::entry_by_name(InodeNumber(directory), name.as_bytes()), entry.encode());
    }

    pub fn put_cookie(&mut self, directory: u64, name: &str, inode: u64, cookie: u64, kind: FileKind) {
        let entry = CookieRecord { inode: InodeNumber(inode), kind, name: name.as_bytes().to_vec() };
        self.records.insert(schema::entry_by_cookie(InodeNumber(directory), cookie), entry.encode());
    }

    /// A file map record, counted in the inode and the counters.
    pub fn add_map(&mut self, inode: u64, offset: u64, map: MapRecord) {
        let blocks = map.length().div_ceil(BLOCK_SIZE);
        self.change_inode(inode, |record| record.blocks += blocks);
        if matches!(map, MapRecord::Unwritten { .. }) {
            self.counters.unwritten_blocks += blocks;
        }
        self.records.insert(schema::map(InodeNumber(inode), offset), map.encode());
    }

    pub fn put_extent(&mut self, address: u64, blocks: u64, owner: u64) {
        let sums = (address..address + blocks).map(block_sum).collect();
        let record = ExtentRecord { algorithm: ALGORITHM_CRC32C, owner: InodeNumber(owner), owner_offset: 0, sums };
        self.records.insert(schema::extent(BlockAddress(address)), record.encode());
    }

    pub fn put_state(&mut self, address: u64, references: &[u32]) {
        let record = ExtentStateRecord { references: references.to_vec() };
        self.records.insert(schema::extent_state(BlockAddress(address)), record.encode());
    }

    pub fn put_orphan(&mut self, inode: u64, record: OrphanRecord) {
        self.records.insert(schema::orphan(InodeNumber(inode)), record.encode());
    }

    pub fn put_group(&mut self, number: u64, offset: u64) {
        let record = GroupRecord { profile: PROFILE_SINGLE, copies: vec![(0, offset)], ..GroupRecord::default() };
        self.records.insert(schema::group(number), record.encode());
    }

    /// Flips a bit of the stored value, as a device may do.
    pub fn damage(&mut self, key: Key) {
        let mut value = seal(&key, self.records.remove(&key).unwrap());
        let middle = value.len() / 2;
        value[middle] ^= 4;
        self.raw.insert(key, value);
    }

    fn bitmap(&self, group: u64) -> Vec<u8> {
        let mut bytes = vec![0; (BLOCKS_PER_GROUP / 8) as usize];
        for block in self.used.iter().filter(|block| **block / BLOCKS_PER_GROUP == group) {
            bytes[(block % BLOCKS_PER_GROUP / 8) as usize] |= 1 << (block % 8);
        }
        bytes
    }

    /// Formats disks in memory and puts everything there.
    pub fn write(&self) -> Result<Disks> {
        let disk = |name: &str, len| -> Arc<dyn Disk> { Arc::new(MemoryDisk::new(name, len)) };
        let disks = Disks {
            superblock: disk("superblock", SUPERBLOCK_BYTES),
            journal: disk("journal", 1 << 20),
            index: disk("index", 0),
            sled: None,
            devices: vec![disk("device", DEVICE_BYTES)],
            images: None,
        };
        let options = FormatOptions { group_bytes: Some(GROUP_BYTES), ..FormatOptions::default() };
        format(&disks, &options, &["device.0".to_owned()], None)?;
        for address in 0..2 * BLOCKS_PER_GROUP {
            disks.devices[0].write_at(GROUP_0_AT + address * BLOCK_SIZE, &block_bytes(address))?;
            // Where a second copy of the first group would lie.
            if address < BLOCKS_PER_GROUP {
                disks.devices[0].write_at(GROUP_0_AT + 7 * GROUP_BYTES + address * BLOCK_SIZE, &block_bytes(address))?;
            }
        }
        self.fill_index(&RedbIndex::open(disks.index.clone(), INDEX_CACHE_BYTES, false)?)?;
        Ok(disks)
    }

    fn fill_index(&self, index: &RedbIndex) -> Result<()> {
        let mut records = self.records.clone();
        records.insert(schema::counters(), self.counters.encode());
        for group in 0..2 {
            records.insert(schema::bitmap(group), self.bitmap(group));
        }
        let mut values: BTreeMap<Key, Option<Vec<u8>>> = self.deleted.iter().map(|key| (key.clone(), None)).collect();
        values.extend(records.into_iter().map(|(key, record)| {
            let value = seal(&key, record);
            (key, Some(value))
        }));
        values.extend(self.raw.iter().map(|(key, value)| (key.clone(), Some(value.clone()))));
        let mut changes = values.iter().map(|(key, value)| -> Change<'_> { (key, value.as_deref()) });
        index.apply(&mut changes, true)
    }
}
