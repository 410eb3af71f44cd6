//! Devices that come and go: missing ones, stale ones, and what is refused. Nothing that was acknowledged is ever lost with one device.

mod relocation;

use crate::memory_store::{MemoryStore, Shape};
use crate::operations::pattern;
use crate::simulated_disk::{Images, SimulatedPower, Survivors};
use crate::tree::read_bytes;
use serde_json::Value;
use std::sync::Arc;
use sumfs::disk::missing::MissingDisk;
use sumfs::disk::superblock::Superblock;
use sumfs::error::Error;
use sumfs::fs::{Caller, Filesystem, NewDevice, Options, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::InodeNumber;

const ROOT: InodeNumber = InodeNumber::ROOT;
const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const STORE_BYTES: u64 = 48 << 20;
const REDUNDANT: [Shape; 3] = [Shape::RAID1, Shape::RAID5, Shape::RAID5_OF_THREE];

/// A store that is open, with what its files hold.
pub struct Opened {
    pub power: SimulatedPower,
    pub store: MemoryStore,
    pub fs: Arc<Filesystem>,
    pub contents: Vec<Vec<u8>>,
}

impl Opened {
    /// A new one, with files in some groups.
    pub fn filled(shape: Shape) -> Opened {
        let power = SimulatedPower::new(1);
        let store = MemoryStore::shaped_on(&power, STORE_BYTES, shape);
        let fs = store.open();
        let mut opened = Opened { power, store, fs, contents: Vec::new() };
        (0..12).for_each(|number| opened.write_file(number));
        opened
    }

    /// What is on the images, without these devices.
    pub fn without(images: &Images, missing: &[usize], contents: &[Vec<u8>]) -> Result<Opened, Error> {
        let power = SimulatedPower::reopen(1, images);
        let mut store = MemoryStore::found_on(&power);
        let entries = Superblock::read(&*store.disks.superblock)?.superblock.devices;
        for (entry, disk) in entries.iter().zip(&mut store.disks.devices) {
            if missing.contains(&(entry.id as usize)) {
                *disk = Arc::new(MissingDisk::new(entry.id, format!("device {}", entry.id), entry.len));
            }
        }
        let fs = Filesystem::open(store.disks.clone(), Options { background: false, ..Options::default() })?;
        Ok(Opened { power, store, fs, contents: contents.to_vec() })
    }

    /// Writes a file of some MiB whole, and makes it durable.
    pub fn write_file(&mut self, number: usize) {
        let bytes = pattern(number as u64 + 77 * self.contents.len() as u64, (1 << 20) + 300_000 * (number % 5) + 77);
        let name = number.to_string();
        let file = match self.fs.lookup(ROOT, name.as_bytes()) {
            Ok(found) => found.inode,
            Err(_) => self.fs.mknod(&CALLER, ROOT, name.as_bytes(), 0o100_644, 0, 0).unwrap().inode,
        };
        let written = self.fs.write(&CALLER, file, 0, &bytes, WriteFlags::default(), Wait::Allowed);
        written.and_then(|_| self.fs.sync()).unwrap_or_else(|error| panic!("file {number}: {error}: {:#}", self.fs.status()));
        self.contents.resize(self.contents.len().max(number + 1), Vec::new());
        let old = std::mem::take(&mut self.contents[number]);
        self.contents[number] = [bytes.as_slice(), old.get(bytes.len()..).unwrap_or_default()].concat();
    }

    pub fn assert_whole(&self, when: &str) {
        for (number, content) in self.contents.iter().enumerate().filter(|(_, content)| !content.is_empty()) {
            let file = self.fs.lookup(ROOT, number.to_string().as_bytes()).unwrap().inode;
            let read = read_bytes(&self.fs, file, 0, content.len());
            assert!(read.as_ref().is_ok_and(|read| read == content), "{when}: file {number} reads otherwise: {:?}", read.err());
        }
    }

    pub fn device(&self, id: usize) -> Value {
        let devices = self.fs.device_status();
        devices.as_array().unwrap().iter().find(|device| device["id"] == id).unwrap_or(&Value::Null).clone()
    }

    /// A further device on a port of the machine, not a part of the store yet.
    pub fn new_device(&self, port: &str, bytes: u64) -> NewDevice {
        NewDevice { disk: self.power.port(port, bytes), path: port.to_owned() }
    }

    /// The ids of the devices that the superblock names.
    pub fn ids(&self) -> Vec<u32> {
        self.fs.superblock().devices.iter().map(|device| device.id).collect()
    }

    /// Moves until everything is moved.
    pub fn relocate(&self) {
        while self.fs.relocation_step().unwrap() {}
        assert_eq!(self.fs.relocation_status()["state"], "finished", "{}", self.fs.relocation_status());
    }

    pub fn scrub(&self) -> Value {
        self.fs.scrub_start(0).unwrap();
        while self.fs.scrub_step().unwrap() {}
        self.fs.scrub_status(true).unwrap()
    }

    /// Shut down, checked with all data; what is there then.
    pub fn closed(self) -> (Images, Vec<Vec<u8>>) {
        let Opened { power, mut store, fs, contents } = self;
        fs.shutdown().unwrap();
        // The list may be another one by now; what was missing stays so.
        let missing = store.disks.devices.iter().filter(|disk| disk.is_missing()).cloned().collect::<Vec<_>>();
        store.disks.devices = MemoryStore::found_on(&power).disks.devices;
        for (entry, disk) in fs.superblock().devices.iter().zip(&mut store.disks.devices) {
            if let Some(missing) = missing.iter().find(|missing| missing.name() == format!("device {}", entry.id)) {
                *disk = missing.clone();
            }
        }
        if let Err(wrong) = store.check() {
            panic!("after shutdown: {wrong}");
        }
        (power.cut_with(1, Survivors::Everything, false), contents)
    }
}

#[test]
fn a_device_may_be_missing_and_is_stale_when_it_is_back_until_a_scrub_has_mended_it() {
    for shape in REDUNDANT {
        let (images, contents) = Opened::filled(shape).closed();
        for missing in 0..shape.devices {
            let what = format!("{shape:?} without {missing}");
            let mut opened = Opened::without(&images, &[missing], &contents).unwrap();
            opened.assert_whole(&what);
            assert_eq!(opened.device(missing)["state"], "missing", "{what}");
            let before = opened.device(missing)["allocated_bytes"].clone();
            (3..18).for_each(|number| opened.write_file(number));
            opened.assert_whole(&what);
            assert_eq!(opened.device(missing)["allocated_bytes"], before, "{what}: no new group has a place there");
            let status = opened.scrub();
            assert_eq!(status["bad_blocks"], 0, "{what}: what is there is good: {status}");
            let (images, contents) = opened.closed();

            let opened = Opened::without(&images, &[], &contents).unwrap();
            let states: Vec<Value> = (0..shape.devices).map(|id| opened.device(id)["state"].clone()).collect();
            let expected: Vec<&str> = (0..shape.devices).map(|id| if id == missing { "stale" } else { "present" }).collect();
            assert_eq!(states, expected, "{what}");
            opened.assert_whole(&what);
            let status = opened.scrub();
            assert_eq!(status["bad_blocks"], status["repaired_blocks"], "{what}: {status}");
            assert_eq!(opened.device(missing)["state"], "present", "{what} after a scrub");
            let (images, contents) = opened.closed();

            // Any other one may go now.
            let opened = Opened::without(&images, &[(missing + 1) % shape.devices], &contents).unwrap();
            assert_eq!(opened.device(missing)["state"], "present", "{what} after a scrub and a mount");
            opened.assert_whole(&what);
        }
    }
}

#[test]
fn a_device_that_misses_nothing_is_not_stale() {
    let (images, contents) = Opened::filled(Shape::RAID5).closed();
    let power = SimulatedPower::reopen(1, &images);
    let mut store = MemoryStore::found_on(&power);
    store.disks.devices[1] = Arc::new(MissingDisk::new(1, "device 1", STORE_BYTES));
    let options = Options { read_only: true, background: false, ..Options::default() };
    let fs = Filesystem::open(store.disks.clone(), options).unwrap();
    fs.shutdown().unwrap();
    let opened = Opened::without(&power.cut_with(1, Survivors::Everything, false), &[], &contents).unwrap();
    assert_eq!(opened.device(1)["state"], "present");
}

#[test]
fn without_two_devices_a_store_is_refused_and_the_error_says_what_is_needed() {
    for shape in REDUNDANT {
        let (images, contents) = Opened::filled(shape).closed();
        let error = Opened::without(&images, &[0, 2], &contents).err().map(|error| error.to_string());
        let error = error.unwrap_or_else(|| panic!("{shape:?} was opened"));
        assert!(error.contains("group ") && error.contains("devices 0, 2") && error.contains("put one"), "{shape:?}: {error}");
    }
    let (images, contents) = Opened::filled(Shape::RAID0).closed();
    let error = Opened::without(&images, &[1], &contents).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("group 0 needs device 1"), "{error}");
}

#[test]
fn a_power_cut_without_a_device_loses_nothing() {
    for shape in REDUNDANT {
        let (images, contents) = Opened::filled(shape).closed();
        let mut opened = Opened::without(&images, &[1], &contents).unwrap();
        for number in 0..6 {
            opened.write_file(number);
            let images = opened.power.cut(number as u64);
            for missing in [&[1][..], &[]] {
                let again = Opened::without(&images, missing, &opened.contents).unwrap();
                again.assert_whole(&format!("{shape:?}, {missing:?} missing, cut after file {number}"));
                if missing.is_empty() {
                    assert_eq!(again.device(1)["state"], "stale", "{shape:?}, cut after file {number}");
                }
            }
        }
    }
}
