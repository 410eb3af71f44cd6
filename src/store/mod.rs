//! A store as a whole: its disks, how they are formatted, and the directory on the host that holds them.
//!
//! [`format()`] works on any [`Disks`], also simulated ones; [`StoreDirectory`] is the only place that knows about paths. Its
//! parts: `directory` (opening, the lock), `devices` (which of them are there), `create` (mkfs), `rebuild` (a new index from the image), `engine` (redb or sled), `profile` (how data is kept, the size of groups), `convert`
//! (from one to the other), `host` (what the host says about a path), `signature` (what a device already holds), `size` (sizes as
//! people write them).

mod convert;
mod create;
mod devices;
mod directory;
mod engine;
mod host;
mod profile;
mod rebuild;
mod signature;
mod size;

pub use convert::{Converted, Progress};
pub use create::{CreateOptions, JOURNAL_BYTES_MIN, STORE_BYTES_DEFAULT, STORE_BYTES_MIN};
pub use devices::prepare_device;
pub use directory::{OpenOptions, StoreDirectory};
pub use engine::{Engine, open_index};
pub use profile::DataProfile;
pub use rebuild::{RebuildOptions, Rebuilt};
pub use size::parse_size;

use crate::clock;
use crate::disk::Disk;
use crate::disk::buffer::AlignedBuffer;
use crate::disk::label::{self, Label};
use crate::disk::superblock::{
    DeviceEntry, GROUP_BLOCKS_MAX, GROUP_BLOCKS_MIN, INCOMPAT_DUP, INCOMPAT_PROFILE, INCOMPAT_UNSTABLE, Superblock, VERSION,
};
use crate::error::{Error, Result};
use crate::meta::index::Change;
use crate::meta::records::{CheckpointRecord, CountersRecord, DeviceRecord, FileKind, InodeRecord, seal};
use crate::meta::schema::{self, Key};
use crate::units::{BLOCK_SIZE, InodeNumber, block_floor};
use std::path::PathBuf;
use std::sync::Arc;

/// Largest and default size of a group.
pub const GROUP_BYTES_MAX: u64 = GROUP_BLOCKS_MAX as u64 * BLOCK_SIZE;
/// Smallest size of a group.
pub const GROUP_BYTES_MIN: u64 = GROUP_BLOCKS_MIN as u64 * BLOCK_SIZE;
/// The index's cache while formatting.
const INDEX_CACHE_BYTES: usize = 16 << 20;
const ZEROS_BYTES: usize = 1 << 20;
/// Cookies 1 and 2 stand for `.` and `..`.
const FIRST_COOKIE: u64 = 3;

/// The disks of one store.
#[derive(Clone, Debug)]
pub struct Disks {
    /// Two copies of the superblock.
    pub superblock: Arc<dyn Disk>,
    /// The journal, over its whole length.
    pub journal: Arc<dyn Disk>,
    /// The metadata index; grows. Nothing is in it when sled keeps the index.
    pub index: Arc<dyn Disk>,
    /// The directory of sled's index, if it is sled that keeps it.
    pub sled: Option<PathBuf>,
    /// The data devices, in the order of the superblock's list.
    pub devices: Vec<Arc<dyn Disk>>,
    /// Two files for the metadata image, which grow; None: no image is kept.
    pub images: Option<[Arc<dyn Disk>; 2]>,
}

impl Disks {
    /// Does everything that is written while mounted bypass the host's page cache? Then our writeback can never wait for the
    /// host's.
    pub fn bypass_host_cache(&self) -> bool {
        let images = self.images.iter().flatten();
        let mut disks = [&self.journal, &self.index].into_iter().chain(images).chain(&self.devices);
        self.sled.is_none() && disks.all(|disk| disk.bypasses_host_cache())
    }
}

/// What [`format()`] lets one choose.
#[derive(Clone, Debug, Default)]
pub struct FormatOptions {
    /// A name for people.
    pub label: String,
    /// Bytes in a group, a power of two; None chooses by the size of the devices.
    pub group_bytes: Option<u64>,
    /// How data is kept.
    pub data: DataProfile,
    /// Striped profiles: bytes that follow each other on one device; None: 512 KiB.
    pub stripe_unit: Option<u64>,
}

/// Makes an empty file system on `disks`: zeros in the whole journal, labels, a new index, and last the superblock, so that
/// what was broken off is no store. `device_paths` has one path per device, as the superblock shall name it; `journal_path` is
/// None when the journal has its usual place.
pub fn format(disks: &Disks, options: &FormatOptions, device_paths: &[String], journal_path: Option<String>) -> Result<()> {
    if disks.devices.is_empty() || disks.devices.len() != device_paths.len() {
        return Err(Error::usage("a store needs at least one device, and a path for each"));
    }
    let lens = disks.devices.iter().map(|device| Ok(block_floor(device.len()?))).collect::<Result<Vec<u64>>>()?;
    let (stripes, group_bytes) = profile::choose(options, &lens)?;
    let uuid = new_uuid();
    let devices: Vec<DeviceRecord> = (0..)
        .zip(lens.iter().zip(device_paths))
        .map(|(id, (length, path))| DeviceRecord { id, uuid: new_uuid(), length: *length, path: path.clone() })
        .collect();
    let mut superblock = Superblock {
        uuid,
        label: options.label.clone(),
        version: VERSION,
        incompat: INCOMPAT_UNSTABLE
            | if options.data == DataProfile::Dup { INCOMPAT_DUP } else { 0 }
            | if stripes.is_some() { INCOMPAT_PROFILE } else { 0 }
            | if disks.sled.is_some() { Engine::Sled.incompat() } else { 0 },
        blocks_per_group: u32::try_from(group_bytes / BLOCK_SIZE).map_err(|_| Error::Invalid("group size"))?,
        journal_bytes: disks.journal.len()?,
        devices: devices
            .iter()
            .map(|device| DeviceEntry { id: device.id, len: device.length, path: device.path.clone() })
            .collect(),
        journal_path,
        profile: stripes,
        clean_sequence: Some(0),
        ..Superblock::default()
    };
    // Says now whether all the names fit, before anything is overwritten.
    superblock.encode()?;
    fill_with_zeros(disks.journal.as_ref(), 0, superblock.journal_bytes)?;
    disks.journal.flush()?;
    for (device, record) in disks.devices.iter().zip(&devices) {
        let label =
            Label { store: uuid, device_uuid: record.uuid, device_id: record.id, device_bytes: record.length, generation: 1 };
        label::write(device.as_ref(), &label)?;
    }
    fill_index(disks, &devices)?;
    superblock.write(disks.superblock.as_ref())
}

fn new_uuid() -> [u8; 16] {
    uuid::Uuid::new_v4().into_bytes()
}

/// Writes zeros over `len` bytes of `disk` from `offset` on; does not flush.
fn fill_with_zeros(disk: &dyn Disk, offset: u64, len: u64) -> Result<()> {
    let zeros = AlignedBuffer::zeroed(ZEROS_BYTES);
    let mut done = 0;
    while done < len {
        let count = (len - done).min(ZEROS_BYTES as u64);
        disk.write_at(offset + done, zeros.get(..count as usize).unwrap_or_default())?;
        done += count;
    }
    Ok(())
}

/// A new index with what every store has.
fn fill_index(disks: &Disks, devices: &[DeviceRecord]) -> Result<()> {
    let mut records: Vec<(Key, Vec<u8>)> = vec![
        (schema::counters(), CountersRecord { next_inode: InodeNumber::ROOT.0 + 1, unwritten_blocks: 0 }.encode()),
        (schema::checkpoint(), CheckpointRecord::default().encode()),
        (schema::inode(InodeNumber::ROOT), root_directory().encode()),
    ];
    records.extend(devices.iter().map(|device| (schema::device(device.id), device.encode())));
    let mut changes: Vec<(Key, Vec<u8>)> = records
        .into_iter()
        .map(|(key, record)| {
            let value = seal(&key, record);
            (key, value)
        })
        .collect();
    changes.sort();
    let index = engine::create_index(disks, INDEX_CACHE_BYTES)?;
    let mut changes = changes.iter().map(|(key, value)| -> Change<'_> { (key, Some(value)) });
    index.apply(&mut changes, true)
}

fn root_directory() -> InodeRecord {
    let now = clock::now();
    InodeRecord {
        mode: FileKind::Directory.mode_bits() | 0o755,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        links: 2,
        size: 0,
        blocks: 0,
        accessed: now,
        modified: now,
        changed: now,
        created: now,
        rdev: 0,
        flags: 0,
        parent: InodeNumber::ROOT,
        cookie: 0,
        next_cookie: FIRST_COOKIE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::memory::MemoryDisk;
    use crate::disk::superblock::SUPERBLOCK_BYTES;
    use crate::meta::index::Index;
    use crate::meta::records;
    use crate::meta::redb_index::RedbIndex;

    fn memory_disks(device_bytes: &[u64]) -> Disks {
        let disk = |name: &str, len| -> Arc<dyn Disk> { Arc::new(MemoryDisk::new(name, len)) };
        Disks {
            superblock: disk("superblock", SUPERBLOCK_BYTES),
            journal: disk("journal", 2 << 20),
            index: disk("index", 0),
            sled: None,
            devices: device_bytes.iter().map(|len| disk("device", *len)).collect(),
            images: None,
        }
    }

    #[test]
    fn a_formatted_store_has_everything_that_a_mount_looks_for() {
        let disks = memory_disks(&[(32 << 20) + 77, 64 << 20]);
        disks.journal.write_at(1_500_000, b"old").unwrap();
        let options = FormatOptions { label: "files".to_owned(), ..FormatOptions::default() };
        format(&disks, &options, &["a".to_owned(), "b".to_owned()], Some("j".to_owned())).unwrap();

        let superblock = Superblock::read(disks.superblock.as_ref()).unwrap().superblock;
        assert_eq!((superblock.label.as_str(), superblock.journal_bytes), ("files", 2 << 20));
        assert_eq!((superblock.clean_sequence, superblock.journal_path.as_deref()), (Some(0), Some("j")));
        assert_eq!(superblock.devices[0], DeviceEntry { id: 0, len: 32 << 20, path: "a".to_owned() });
        let mut journal = vec![1; 2 << 20];
        disks.journal.read_at(0, &mut journal).unwrap();
        assert!(journal.iter().all(|byte| *byte == 0));

        let index = RedbIndex::open(disks.index.clone(), INDEX_CACHE_BYTES, true).unwrap();
        let snapshot = index.snapshot().unwrap();
        let get = |key: Key| {
            let value = snapshot.get(&key).unwrap().expect("a record");
            records::open(&key, &value).unwrap().to_vec()
        };
        let root = InodeRecord::decode(&get(schema::inode(InodeNumber::ROOT))).unwrap();
        assert_eq!((root.mode, root.links, root.parent, root.next_cookie), (0o040_755, 2, InodeNumber::ROOT, 3));
        let counters = CountersRecord::decode(&get(schema::counters())).unwrap();
        assert_eq!(counters, CountersRecord { next_inode: 2, unwritten_blocks: 0 });
        assert_eq!(CheckpointRecord::decode(&get(schema::checkpoint())).unwrap(), CheckpointRecord::default());
        for (entry, disk) in superblock.devices.iter().zip(&disks.devices) {
            let record = DeviceRecord::decode(&get(schema::device(entry.id))).unwrap();
            let label = label::read(disk.as_ref(), false).unwrap().label;
            assert_eq!((record.length, record.path.as_str()), (entry.len, entry.path.as_str()));
            assert_eq!((label.store, label.device_id, label.device_uuid), (superblock.uuid, entry.id, record.uuid));
        }
    }

    #[test]
    fn a_device_without_a_path_and_a_store_without_devices_are_refused() {
        let options = FormatOptions::default();
        assert!(format(&memory_disks(&[]), &options, &[], None).is_err());
        assert!(format(&memory_disks(&[16 << 20]), &options, &[], None).is_err());
    }
}
