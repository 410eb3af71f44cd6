//! A store without files: formatted on disks in memory or on a simulated machine, opened without background threads, and checked
//! whenever it is closed.

use crate::simulated_disk::SimulatedPower;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use sumfs::disk::Disk;
use sumfs::disk::memory::MemoryDisk;
use sumfs::disk::superblock::{SUPERBLOCK_BYTES, Superblock};
use sumfs::fs::{Filesystem, Options};
use sumfs::store::{DataProfile, Disks, FormatOptions, format};
use sumfs::units::BLOCK;
use sumfs::verify::check::{CheckOptions, Report, check};

/// Small enough that the ring goes round and checkpoints happen.
pub const JOURNAL_BYTES: u64 = 2 << 20;

/// The ports of a store on a simulated machine.
pub const PORTS: [&str; 4] = ["superblock", "journal", "index", "device"];

/// The ports of the metadata image, for stores that keep one.
pub const IMAGE_PORTS: [&str; 2] = ["image.0", "image.1"];

/// How many devices a store has, and how often it keeps data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub devices: usize,
    pub data: DataProfile,
}

impl Shape {
    pub const SINGLE: Shape = Shape { devices: 1, data: DataProfile::Single };
    /// Two copies on one device.
    pub const DUP_ONE: Shape = Shape { devices: 1, data: DataProfile::Dup };
    /// Two copies on two devices.
    pub const DUP_TWO: Shape = Shape { devices: 2, data: DataProfile::Dup };

    /// Two copies, always on two devices.
    pub const RAID1: Shape = Shape { devices: 3, data: DataProfile::Raid1 };
    /// Units on devices in turn.
    pub const RAID0: Shape = Shape { devices: 3, data: DataProfile::Raid0 };
    /// The same with parity.
    pub const RAID5: Shape = Shape { devices: 4, data: DataProfile::Raid5 };
    /// With the fewest devices.
    pub const RAID5_OF_THREE: Shape = Shape { devices: 3, data: DataProfile::Raid5 };

    /// The names of the devices' ports.
    pub fn ports(self) -> &'static [&'static str] {
        &DEVICE_PORTS[..self.devices]
    }
}

const DEVICE_PORTS: [&str; 4] = ["device", "device.1", "device.2", "device.3"];

/// The disks of a store.
#[derive(Clone)]
pub struct MemoryStore {
    pub disks: Disks,
}

impl MemoryStore {
    /// A new store for about `bytes` of data, in memory.
    pub fn new(bytes: u64) -> MemoryStore {
        MemoryStore::shaped(bytes, Shape::SINGLE)
    }

    /// A new store of this shape, in memory.
    pub fn shaped(bytes: u64, shape: Shape) -> MemoryStore {
        MemoryStore::formatted(&|name, len| Arc::new(MemoryDisk::new(name, len)), bytes, shape)
    }

    /// A new store on the ports of a machine.
    pub fn on(power: &SimulatedPower, bytes: u64) -> MemoryStore {
        MemoryStore::shaped_on(power, bytes, Shape::SINGLE)
    }

    /// A new store of this shape on the ports of a machine.
    pub fn shaped_on(power: &SimulatedPower, bytes: u64, shape: Shape) -> MemoryStore {
        MemoryStore::formatted(&|name, len| power.port(name, len), bytes, shape)
    }

    /// The store that is on the ports already, with the devices that its superblock names.
    pub fn found_on(power: &SimulatedPower) -> MemoryStore {
        let mut disks = MemoryStore::disks(&|name, len| power.port(name, len), 0, 0);
        // A store that was broken off while it was made has none yet.
        if let Ok(found) = Superblock::read(&*disks.superblock) {
            disks.devices = found.superblock.devices.iter().map(|entry| power.port(&entry.path, 0)).collect();
        }
        let store = MemoryStore { disks };
        if power.has_port(IMAGE_PORTS[0]) { store.with_images(power) } else { store }
    }

    /// The store, keeping a metadata image on two more ports.
    pub fn with_images(mut self, power: &SimulatedPower) -> MemoryStore {
        self.disks.images = Some(IMAGE_PORTS.map(|name| power.port(name, 0)));
        self
    }

    fn disks(disk: &dyn Fn(&str, u64) -> Arc<dyn Disk>, device_bytes: u64, devices: usize) -> Disks {
        Disks {
            superblock: disk("superblock", SUPERBLOCK_BYTES),
            journal: disk("journal", JOURNAL_BYTES),
            index: disk("index", 0),
            sled: None,
            devices: DEVICE_PORTS[..devices].iter().map(|name| disk(name, device_bytes)).collect(),
            images: None,
        }
    }

    fn formatted(disk: &dyn Fn(&str, u64) -> Arc<dyn Disk>, bytes: u64, shape: Shape) -> MemoryStore {
        let device_bytes = if shape.data == DataProfile::Dup && shape.devices == 1 { 2 * bytes } else { bytes };
        let disks = MemoryStore::disks(disk, device_bytes, shape.devices);
        let paths: Vec<String> = shape.ports().iter().map(|name| (*name).to_owned()).collect();
        // Small units, so that small stores have many stripes.
        let is_striped = matches!(shape.data, DataProfile::Raid0 | DataProfile::Raid5);
        let stripe_unit = is_striped.then_some(32 << 10);
        format(&disks, &FormatOptions { data: shape.data, stripe_unit, ..FormatOptions::default() }, &paths, None)
            .expect("formatting a store");
        MemoryStore { disks }
    }

    /// Mounts without background threads: everything happens when a call asks for it, so a seed says all.
    pub fn open(&self) -> Arc<Filesystem> {
        self.open_with(Options { background: false, ..Options::default() })
    }

    pub fn open_with(&self, options: Options) -> Arc<Filesystem> {
        Filesystem::open(self.disks.clone(), options).expect("opening the store")
    }

    /// Shuts down and checks, data included; panics with what is wrong.
    pub fn close(&self, fs: &Filesystem) {
        fs.shutdown().expect("shutdown");
        if let Err(wrong) = self.check() {
            panic!("after shutdown: {wrong}");
        }
    }

    /// Checks, data included; an error lists the issues.
    pub fn check(&self) -> Result<Report, String> {
        let report =
            check(&self.disks, &CheckOptions { verify_data: true }, &mut |_, _| {}).map_err(|error| format!("check: {error}"))?;
        if report.is_clean() {
            return Ok(report);
        }
        let issues: Vec<String> = report.issues.iter().map(|issue| format!("{issue} ({issue:?})")).collect();
        Err(format!("the check finds:\n  {}", issues.join("\n  ")))
    }

    /// A number that differs when any byte of any disk does.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let disks = &self.disks;
        for disk in [&disks.superblock, &disks.journal, &disks.index].into_iter().chain(&disks.devices) {
            let len = disk.len().unwrap();
            len.hash(&mut hasher);
            let mut block = vec![0; 256 * BLOCK];
            let mut offset = 0;
            while offset < len {
                let count = (len - offset).min(block.len() as u64) as usize;
                disk.read_at(offset, &mut block[..count]).unwrap();
                block[..count].hash(&mut hasher);
                offset += count as u64;
            }
        }
        hasher.finish()
    }
}
