//! Random operations on the bytes of a few files, in the manner of fsx: buffered and direct, through two open files at a time,
//! with truncation, holes and preallocation, against a model in memory; now and then everything is mounted anew. With `nowait=off`
//! every data operation takes the way through the worker pool that otherwise only the refused ones take. fsx does it with mappings
//! too (C71).
//!
//! `SEED=n` repeats a run, `OPERATIONS=n` makes it longer.

use crate::content::{aligned, assert_same, pattern};
use crate::mount::Mount;
use crate::reference_model::FileBytes;
use rustix::fs::{FallocateFlags, OFlags, copy_file_range, fallocate};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const FILES: usize = 3;
const FILE_BYTES_MAX: u64 = 3 << 20;
const OPERATION_BYTES_MAX: u64 = 150_000;
const BLOCK: u64 = 4096;
const OPERATIONS: usize = 600;
/// One operation of so many is a remount.
const REMOUNT_EVERY: u64 = 120;

/// Numbers that follow from a seed.
pub struct Random(u64);

impl Random {
    /// Seeded by `SEED`, else by the clock; says which.
    pub fn from_environment(name: &str) -> Random {
        let clock = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 % 1_000_000;
        let seed = std::env::var("SEED").map_or_else(|_| clock(), |text| text.parse().expect("SEED is a number"));
        println!("{name}: SEED={seed} repeats this");
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next one.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    /// Less than `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Puts the items in another order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}

/// A file, open twice, and what it must hold.
struct Tested {
    buffered: File,
    direct: File,
    model: FileBytes,
}

impl Tested {
    fn open(path: &Path, model: FileBytes) -> Tested {
        let open = |flags: OFlags| {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false).custom_flags(flags.bits() as i32);
            options.open(path).unwrap()
        };
        Tested { buffered: open(OFlags::empty()), direct: open(OFlags::DIRECT), model }
    }

    /// One operation; what it was.
    fn step(&mut self, random: &mut Random) -> String {
        let at = random.below(FILE_BYTES_MAX);
        let length = 1 + random.below(OPERATION_BYTES_MAX);
        let whole = (at / BLOCK * BLOCK, length.next_multiple_of(BLOCK));
        match random.below(22) {
            0..=5 => self.write(false, at, length, random.next()),
            6..=8 => self.write(true, whole.0, whole.1, random.next()),
            9..=11 => self.read(false, at, length),
            12..=13 => self.read(true, whole.0, whole.1),
            14..=15 => self.truncate(at),
            16 => self.fallocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, length),
            17 => self.fallocate(FallocateFlags::ZERO_RANGE, at, length),
            18 => self.fallocate(FallocateFlags::empty(), at, length),
            19 => self.copy(at, random.below(FILE_BYTES_MAX), length),
            20 => self.copy(whole.0, random.below(FILE_BYTES_MAX) / BLOCK * BLOCK, length),
            _ => {
                self.buffered.sync_data().unwrap();
                "fdatasync".to_owned()
            }
        }
    }

    fn write(&mut self, is_direct: bool, at: u64, length: u64, seed: u64) -> String {
        let mut buffer = vec![0; (length + BLOCK) as usize];
        let part = aligned(&mut buffer, length as usize);
        part.copy_from_slice(&pattern(length as usize, seed));
        if is_direct { &self.direct } else { &self.buffered }.write_all_at(part, at).unwrap();
        self.model.write(at, part);
        format!("write of {length} bytes at {at}, direct {is_direct}")
    }

    fn read(&mut self, is_direct: bool, at: u64, length: u64) -> String {
        let what = format!("read of {length} bytes at {at}, direct {is_direct}");
        let expected = self.model.read(at, length as usize);
        let mut buffer = vec![0; (length + BLOCK) as usize];
        let part = aligned(&mut buffer, length as usize);
        let found = if is_direct { &self.direct } else { &self.buffered }.read_at(part, at).unwrap();
        assert_same(&part[..found], &expected, &what);
        what
    }

    fn truncate(&mut self, size: u64) -> String {
        self.buffered.set_len(size).unwrap();
        self.model.set_size(size);
        format!("truncate to {size}")
    }

    fn fallocate(&mut self, flags: FallocateFlags, at: u64, length: u64) -> String {
        fallocate(&self.buffered, flags, at, length).unwrap();
        if !flags.contains(FallocateFlags::KEEP_SIZE) && at + length > self.model.size() {
            self.model.set_size(at + length);
        }
        if !flags.is_empty() {
            self.model.zero(at, at + length);
        }
        format!("fallocate {flags:?} of {length} bytes at {at}")
    }

    /// Inside the file: shared by the daemon, or copied by the kernel where the places are no whole blocks.
    fn copy(&mut self, at: u64, to: u64, length: u64) -> String {
        // Up to the end: a first part of a copy may move that on.
        let bytes = self.model.read(at, length.min(at.abs_diff(to)) as usize);
        let length = bytes.len();
        let (mut from, mut into, mut left) = (at, to, length);
        while left > 0 {
            let copied = copy_file_range(&self.buffered, Some(&mut from), &self.buffered, Some(&mut into), left).unwrap();
            assert!(copied > 0, "copy from {at} to {to} ended {left} bytes before the end of {length}");
            left -= copied;
        }
        self.model.write(to, &bytes);
        format!("copy of {length} bytes from {at} to {to}")
    }

    fn compare(&self, when: &str) {
        let size = self.model.size();
        assert_eq!(self.buffered.metadata().unwrap().len(), size, "size {when}");
        let mut found = vec![0; size as usize + 1];
        let count = self.buffered.read_at(&mut found, 0).unwrap();
        assert_same(&found[..count], &self.model.read(0, size as usize), when);
    }
}

fn run_in(options: &str) {
    let mut mount = Mount::new(options);
    let mut random = Random::from_environment(options);
    let operations = std::env::var("OPERATIONS").map_or(OPERATIONS, |text| text.parse().expect("OPERATIONS is a number"));
    let open = |mount: &Mount, number: usize, model| Tested::open(&mount.path().join(format!("file-{number}")), model);
    let mut files: Vec<Tested> = (0..FILES).map(|number| open(&mount, number, FileBytes::default())).collect();
    for number in 0..operations {
        if random.below(REMOUNT_EVERY) == 0 {
            let models: Vec<FileBytes> = files.drain(..).map(|file| file.model).collect();
            mount.remount();
            files = models.into_iter().enumerate().map(|(number, model)| open(&mount, number, model)).collect();
            files.iter().for_each(|file| file.compare(&format!("after the remount, operation {number}")));
        }
        let at = random.below(FILES as u64) as usize;
        let what = files[at].step(&mut random);
        if number % 10 == 0 {
            files[at].compare(&format!("of file {at} after operation {number}, {what}"));
        }
    }
    files.iter().for_each(|file| file.compare("at the end"));
}

#[test]
fn writeback_cache() {
    run_in("cache=writeback");
}

#[test]
fn no_cache() {
    run_in("cache=none");
}

#[test]
fn writeback_cache_without_nowait() {
    run_in("cache=writeback,nowait=off");
}

#[test]
fn no_cache_without_nowait() {
    run_in("cache=none,nowait=off");
}
