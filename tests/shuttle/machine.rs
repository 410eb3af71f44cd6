//! A store on a simulated machine, for a model: each request to a device or the journal is a moment at which others may go on.

use crate::simulated_disk::{Images, SimulatedPower, Survivors};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use sumfs::disk::Disk;
use sumfs::disk::superblock::SUPERBLOCK_BYTES;
use sumfs::error::Result;
use sumfs::fs::{Caller, Filesystem, Options, ReadFlags, SetAttributes, WaitInline};
use sumfs::lock::Wait;
use sumfs::store::{Disks, FormatOptions, format};
use sumfs::units::InodeNumber;
use sumfs::verify::check::{CheckOptions, check};

pub const BLOCK: u64 = 4096;
/// So small that checkpoints happen.
const JOURNAL_BYTES: u64 = 256 << 10;

/// A disk whose requests take time. Not for the index: redb holds locks across its requests that a model cannot see.
#[derive(Debug)]
struct Slow(Arc<dyn Disk>);

impl Slow {
    fn request<T>(&self, request: impl FnOnce(&dyn Disk) -> T) -> T {
        shuttle::thread::yield_now();
        let result = request(&*self.0);
        shuttle::thread::yield_now();
        result
    }
}

impl Disk for Slow {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn len(&self) -> Result<u64> {
        self.0.len()
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.request(|disk| disk.read_at(offset, into))
    }
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.request(|disk| disk.write_at(offset, from))
    }
    fn flush(&self) -> Result<()> {
        self.request(|disk| disk.flush())
    }
    fn set_len(&self, len: u64) -> Result<()> {
        self.0.set_len(len)
    }
    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.request(|disk| disk.allocate(offset, len))
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.0.discard(offset, len)
    }
}

/// The machine of one schedule.
pub struct Machine {
    pub power: SimulatedPower,
    disks: Disks,
}

/// A fresh store for `bytes` of data; made once for all schedules.
fn formatted(bytes: u64) -> Images {
    static MADE: OnceLock<Mutex<HashMap<u64, Images>>> = OnceLock::new();
    let mut made = MADE.get_or_init(Mutex::default).lock().unwrap();
    let images = made.entry(bytes).or_insert_with(|| {
        let power = SimulatedPower::new(1);
        let disks = Disks {
            superblock: power.port("superblock", SUPERBLOCK_BYTES),
            journal: power.port("journal", JOURNAL_BYTES),
            index: power.port("index", 0),
            sled: None,
            devices: vec![power.port("device", bytes)],
            images: None,
        };
        format(&disks, &FormatOptions::default(), &["device".to_owned()], None).unwrap();
        power.cut_with(1, Survivors::Everything, false)
    });
    images.clone()
}

impl Machine {
    /// A machine with a fresh store for `bytes` of data.
    pub fn new(bytes: u64) -> Machine {
        Machine::found(&formatted(bytes))
    }

    /// A machine with what is on these disks.
    pub fn found(images: &Images) -> Machine {
        let power = SimulatedPower::reopen(1, images);
        let slow = |name: &str| -> Arc<dyn Disk> { Arc::new(Slow(power.port(name, 0))) };
        let (journal, device) = (slow("journal"), slow("device"));
        let disks = Disks {
            superblock: power.port("superblock", 0),
            journal,
            index: power.port("index", 0),
            sled: None,
            devices: vec![device],
            images: None,
        };
        Machine { power, disks }
    }

    /// Mounts. Every collect forgets the map of its file, so that it is loaded again while others change it.
    pub fn open(&self, background: bool) -> Arc<Filesystem> {
        // Whether a wait would be short depends on the clock, which no schedule repeats.
        let options = Options { background, cache_bytes: 0, wait_inline: WaitInline::Off, ..Options::default() };
        Filesystem::open(self.disks.clone(), options).expect("opening the store")
    }

    /// Unmounts, checks, and compares what is free with what a fresh mount finds: nothing is reserved or lost.
    pub fn close(&self, fs: &Filesystem) {
        fs.shutdown().expect("shutdown");
        let left = counts(fs);
        self.check();
        let again = self.open(false);
        assert_eq!(left, counts(&again), "(free, reserved, promised) blocks after shutdown and after mounting again");
        assert_eq!(left.1, 0, "reserved for nobody");
    }

    /// Checks the metadata. Data is compared by the models themselves: the check reads it with threads of its own.
    pub fn check(&self) {
        let report = check(&self.disks, &CheckOptions { verify_data: false }, &mut |_, _| {}).expect("check");
        assert!(report.is_clean(), "the check finds {:?}", report.issues);
    }
}

fn counts(fs: &Filesystem) -> (u64, u64, u64) {
    let status = fs.status();
    let count = |name: &str| status["space"][name].as_u64().unwrap();
    (count("free_blocks") + count("pinned_blocks"), count("reserved_blocks"), count("promised_blocks"))
}

/// A new file below the root.
pub fn create(fs: &Filesystem, name: &str) -> InodeNumber {
    fs.mknod(&Caller::ROOT, InodeNumber::ROOT, name.as_bytes(), 0o100_644, 0, 0).unwrap().inode
}

/// Up to `len` bytes of a file, read as the kernel's requests are: first without waiting.
pub fn read(fs: &Filesystem, file: InodeNumber, offset: u64, len: usize) -> Vec<u8> {
    let read = |wait| fs.read(file, offset, len, ReadFlags::default(), wait);
    read(Wait::Never).or_else(|_| read(Wait::Allowed)).unwrap().as_slice().to_vec()
}

pub fn truncate(fs: &Filesystem, file: InodeNumber, size: u64) -> Result<()> {
    fs.setattr(&Caller::ROOT, file, &SetAttributes { size: Some(size), ..SetAttributes::default() }).map(|_| ())
}

/// fsync, and its answer.
pub fn fsync(fs: &Filesystem, file: InodeNumber) -> Result<()> {
    let (answer, answered) = sumfs::sync::channel::bounded(1);
    fs.fsync(file, false, Box::new(move |result| drop(answer.send(result))));
    answered.recv().expect("fsync is not answered")
}
