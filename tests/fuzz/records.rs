//! The target `record`: keys, sealed values and the layout of every record. What decodes must encode, and decode to the same again.

use crate::mutation::{change, interesting};
use crate::runner::Target;
use crate::simulated_disk::Random;
use std::fmt::Debug;
use sumfs::error::Result as Decoded;
use sumfs::meta::records::{
    ALGORITHM_CRC32C, CheckpointRecord, CookieRecord, CountersRecord, DeviceRecord, EntryRecord, ExtentRecord, ExtentStateRecord,
    FileKind, GroupRecord, InodeRecord, MapRecord, OrphanRecord, PROFILE_SINGLE, open, seal,
};
use sumfs::meta::schema;
use sumfs::units::{BlockAddress, InodeNumber, Timestamp};

/// One of each record, with a key that such a record has.
pub fn samples() -> Vec<(Vec<u8>, Vec<u8>)> {
    let time = Timestamp { seconds: 1_700_000_000, nanoseconds: 7 };
    let inode = InodeRecord {
        mode: 0o100_644,
        uid: 1000,
        gid: 100,
        links: 1,
        size: 5000,
        blocks: 2,
        accessed: time,
        modified: time,
        changed: time,
        created: time,
        rdev: 0,
        flags: 0,
        parent: InodeNumber(1),
        cookie: 3,
        next_cookie: 3,
    };
    let directory = InodeRecord { mode: 0o040_755, links: 2, size: 1, blocks: 0, next_cookie: 4, ..inode.clone() };
    let (file, address) = (InodeNumber(2), BlockAddress(40));
    let kind = FileKind::Regular;
    let written = MapRecord::Written { extent: address, first: 1, extent_blocks: 4, length: 5000 };
    let extent = ExtentRecord { algorithm: ALGORITHM_CRC32C, owner: file, owner_offset: 4096, sums: vec![1, 2, 3, 4] };
    let device = DeviceRecord { id: 0, uuid: [9; 16], length: 8 << 20, path: "device.0".to_owned() };
    vec![
        (schema::counters(), CountersRecord { next_inode: 9, unwritten_blocks: 4 }.encode()),
        (schema::checkpoint(), CheckpointRecord { sequence: 4, journal_offset: 8192, record_checksum: 77 }.encode()),
        (schema::inode(file), inode.encode()),
        (schema::inode(InodeNumber(1)), directory.encode()),
        (schema::entry_by_name(InodeNumber(1), b"name"), EntryRecord { inode: file, cookie: 3, kind }.encode()),
        (schema::entry_by_cookie(InodeNumber(1), 3), CookieRecord { inode: file, kind, name: b"name".to_vec() }.encode()),
        (schema::xattr(file, b"user.a"), b"value".to_vec()),
        (schema::symlink(InodeNumber(4)), b"target".to_vec()),
        (schema::map(file, 4096), written.encode()),
        (schema::map(file, 16_384), MapRecord::Unwritten { length: 8192 }.encode()),
        (schema::link(file, InodeNumber(1), 5), Vec::new()),
        (schema::extent(address), extent.encode()),
        (schema::extent_state(address), ExtentStateRecord { references: vec![1, 0, 1, 1] }.encode()),
        (schema::extent_state(BlockAddress(60)), ExtentStateRecord { references: vec![1, 2, 0] }.encode()),
        (schema::orphan(file), OrphanRecord::Unlinked.encode()),
        (schema::orphan(InodeNumber(3)), OrphanRecord::Truncating { size: 4096 }.encode()),
        (
            schema::group(0),
            GroupRecord { profile: PROFILE_SINGLE, copies: vec![(0, 1 << 20)], ..GroupRecord::default() }.encode(),
        ),
        (schema::device(0), device.encode()),
        (schema::bitmap(0), vec![0xff; 32]),
    ]
}

/// The records.
pub struct Records {
    samples: Vec<(Vec<u8>, Vec<u8>)>,
    records: Vec<Vec<u8>>,
    keys: Vec<Vec<u8>>,
}

impl Records {
    pub fn new() -> Records {
        let samples = samples();
        let (keys, records) = samples.iter().cloned().unzip();
        Records { samples, records, keys }
    }
}

fn round<R: PartialEq + Debug>(
    record: &[u8],
    decode: impl Fn(&[u8]) -> Decoded<R>,
    encode: impl Fn(&R) -> Vec<u8>,
) -> Result<bool, String> {
    let Ok(first) = decode(record) else { return Ok(false) };
    match decode(&encode(&first)) {
        Ok(second) if second == first => Ok(true),
        other => Err(format!("{first:?} encodes to what decodes as {other:?}")),
    }
}

/// Through every decoder: a record under the key of another kind is no reason to panic either.
fn decode_all(record: &[u8]) -> Result<bool, String> {
    let mut is_any = round(record, InodeRecord::decode, InodeRecord::encode)?;
    is_any |= round(record, EntryRecord::decode, EntryRecord::encode)?;
    is_any |= round(record, CookieRecord::decode, CookieRecord::encode)?;
    is_any |= round(record, MapRecord::decode, MapRecord::encode)?;
    is_any |= round(record, ExtentRecord::decode, ExtentRecord::encode)?;
    is_any |= round(record, ExtentStateRecord::decode, ExtentStateRecord::encode)?;
    is_any |= round(record, OrphanRecord::decode, OrphanRecord::encode)?;
    is_any |= round(record, GroupRecord::decode, GroupRecord::encode)?;
    is_any |= round(record, CountersRecord::decode, CountersRecord::encode)?;
    is_any |= round(record, CheckpointRecord::decode, CheckpointRecord::encode)?;
    is_any |= round(record, DeviceRecord::decode, DeviceRecord::encode)?;
    Ok(is_any)
}

/// Ends of ranges are made from numbers in keys.
fn ranges_of(key: &[u8]) {
    use schema::Parsed;
    match schema::parse(key) {
        Some(Parsed::Inode(inode) | Parsed::Symlink(inode) | Parsed::Orphan(inode)) => {
            assert!(schema::inode_begin(inode) < schema::inode_end(inode));
        }
        Some(Parsed::EntryByName { directory: inode, .. } | Parsed::EntryByCookie { directory: inode, .. }) => {
            assert!(schema::inode_begin(inode) < schema::inode_end(inode));
        }
        _ => {}
    }
}

impl Target for Records {
    fn case(&mut self, random: &mut Random, steps: &mut Vec<String>) -> Result<bool, String> {
        let (key, record) = &self.samples[random.below(self.samples.len() as u64) as usize];
        let (mut key, mut record) = (key.clone(), record.clone());
        for _ in 0..1 + random.below(4) {
            steps.push(change(random, &mut record, &self.records));
        }
        if random.once_in(2) {
            steps.push(format!("key: {}", change(random, &mut key, &self.keys)));
        }
        if random.once_in(4) && key.len() >= 9 {
            key[1..9].copy_from_slice(&interesting(random).to_be_bytes());
        }
        ranges_of(&key);
        let mut value = seal(&key, record.clone());
        if open(&key, &value).ok() != Some(&record[..]) {
            return Err("a sealed value does not open".to_owned());
        }
        let damage = change(random, &mut value, &self.records);
        if value != seal(&key, record.clone()) && open(&key, &value).is_ok_and(|opened| opened == record) {
            return Err(format!("a damaged value opens: {damage}"));
        }
        decode_all(&record)
    }
}
