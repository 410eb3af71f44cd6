//! One file, several threads: buffered and direct writes, reads, writeback, truncate, holes, preallocation. What the reads saw and
//! what the file is at the end must be what some order of the operations gives, each of them whole but for the making of holes.

use crate::machine::{BLOCK, Machine, create, fsync, read, truncate};
use crate::simulated_disk::Survivors;
use crate::{below, model, one_of, together};
use sumfs::error::Error;
use sumfs::fs::{Caller, FallocateMode, Filesystem, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::InodeNumber;

const THREADS: u64 = 3;
const STEPS_MAX: u64 = 3;
const DEVICE_BYTES: u64 = 64 << 20;

/// The bytes that a read gave.
#[derive(Clone, Default)]
struct Saw(Vec<u8>);

impl std::fmt::Debug for Saw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&summary(&self.0))
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write { offset: u64, len: u64, value: u8, direct: bool },
    Truncate { size: u64 },
    Punch { offset: u64, len: u64 },
    Allocate { offset: u64, len: u64 },
    Read { offset: u64, len: u64, saw: Saw },
    Fsync,
    Sync,
}

impl Step {
    fn choose(value: u8) -> Step {
        let offset = below(4) * BLOCK + one_of(&[0, 0, 100]);
        let len = one_of(&[BLOCK, BLOCK, 2 * BLOCK, 300]);
        match below(10) {
            0..3 => Step::Write { offset, len, value, direct: false },
            3 => Step::Write { offset: offset / BLOCK * BLOCK, len: BLOCK, value, direct: true },
            4 | 5 => Step::Truncate { size: offset },
            6 => one_of(&[Step::Punch { offset, len }, Step::Allocate { offset, len }]),
            7 => Step::Read { offset: 0, len: 8 * BLOCK, saw: Saw::default() },
            8 => Step::Fsync,
            _ => Step::Sync,
        }
    }

    fn run(&mut self, fs: &Filesystem, file: InodeNumber) {
        match self {
            Step::Write { offset, len, value, direct } => {
                let data = vec![*value; *len as usize];
                let flags = WriteFlags { direct: *direct, ..WriteFlags::default() };
                let write = |wait| fs.write(&Caller::ROOT, file, *offset, &data, flags, wait);
                let written = match write(Wait::Never) {
                    Err(Error::WouldBlock(_)) => write(Wait::Allowed),
                    result => result,
                };
                assert_eq!(written.unwrap() as u64, *len);
            }
            Step::Truncate { size } => truncate(fs, file, *size).unwrap(),
            Step::Punch { offset, len } => {
                fs.fallocate(&Caller::ROOT, file, *offset, *len, FallocateMode::PunchHole).unwrap();
            }
            Step::Allocate { offset, len } => {
                fs.fallocate(&Caller::ROOT, file, *offset, *len, FallocateMode::Allocate).unwrap();
            }
            Step::Read { offset, len, saw } => saw.0 = read(fs, file, *offset, *len as usize),
            Step::Fsync => fsync(fs, file).unwrap(),
            Step::Sync => fs.sync().unwrap(),
        }
    }

    /// What others may see of it one by one: a read that does not wait can meet a hole that is half made.
    fn parts(&self) -> Vec<Step> {
        let Step::Punch { offset, len } = *self else { return vec![self.clone()] };
        let borders = (offset / BLOCK..=(offset + len).div_ceil(BLOCK)).map(|block| (block * BLOCK).clamp(offset, offset + len));
        let borders: Vec<u64> = borders.collect();
        borders.windows(2).map(|pair| Step::Punch { offset: pair[0], len: pair[1] - pair[0] }).collect()
    }

    /// What it makes of the contents; false when it cannot have come here: it saw something else.
    fn apply(&self, contents: &mut Vec<u8>) -> bool {
        let cut = |offset: u64, len: u64, size: usize| (offset as usize).min(size)..((offset + len) as usize).min(size);
        match self {
            Step::Write { offset, len, value, .. } => {
                contents.resize(contents.len().max((offset + len) as usize), 0);
                contents[*offset as usize..(offset + len) as usize].fill(*value);
            }
            Step::Truncate { size } => contents.resize(*size as usize, 0),
            Step::Punch { offset, len } => {
                let range = cut(*offset, *len, contents.len());
                contents[range].fill(0);
            }
            Step::Allocate { offset, len } => contents.resize(contents.len().max((offset + len) as usize), 0),
            Step::Read { offset, len, saw } => return contents[cut(*offset, *len, contents.len())] == saw.0[..],
            Step::Fsync | Step::Sync => {}
        }
        true
    }
}

/// Is there an order of the threads' steps that ends with `found`?
fn explains(threads: &[&[Step]], contents: &[u8], found: &[u8]) -> bool {
    if threads.iter().all(|steps| steps.is_empty()) {
        return contents == found;
    }
    (0..threads.len()).any(|next| {
        let Some((step, rest)) = threads[next].split_first() else { return false };
        let mut contents = contents.to_vec();
        let mut threads = threads.to_vec();
        threads[next] = rest;
        step.apply(&mut contents) && explains(&threads, &contents, found)
    })
}

fn summary(contents: &[u8]) -> String {
    let parts = contents.chunk_by(|one, next| one == next).map(|part| format!("{}x{}", part[0], part.len()));
    parts.collect::<Vec<_>>().join(" ")
}

fn one_file(background: bool) {
    let machine = Machine::new(DEVICE_BYTES);
    let fs = machine.open(background);
    let file = create(&fs, "f");
    let mut before = Vec::new();
    for mut step in [
        Step::Write { offset: 0, len: 3 * BLOCK, value: 1, direct: false },
        Step::Sync,
        Step::Write { offset: BLOCK, len: BLOCK, value: 2, direct: false },
    ] {
        step.run(&fs, file);
        step.apply(&mut before);
    }
    let body = |thread: u64| {
        let fs = fs.clone();
        let count = 1 + below(STEPS_MAX);
        let mut steps: Vec<Step> = (0..count).map(|step| Step::choose((10 * (thread + 1) + step) as u8)).collect();
        Box::new(move || {
            steps.iter_mut().for_each(|step| step.run(&fs, file));
            steps
        }) as Box<dyn FnOnce() -> Vec<Step> + Send>
    };
    let threads = together((0..THREADS).map(body).collect());
    let found = read(&fs, file, 0, 16 * BLOCK as usize);
    let parts: Vec<Vec<Step>> = threads.iter().map(|steps| steps.iter().flat_map(Step::parts).collect()).collect();
    let steps: Vec<&[Step]> = parts.iter().map(Vec::as_slice).collect();
    assert!(explains(&steps, &before, &found), "no order of {threads:?} explains {}", summary(&found));
    fs.sync().unwrap();
    let found_again = Machine::found(&machine.power.cut_with(1, Survivors::Flushed, false));
    let durable = read(&found_again.open(false), file, 0, 16 * BLOCK as usize);
    assert!(durable == found, "after sync and a cut {}, before {}", summary(&durable), summary(&found));
    machine.close(&fs);
}

#[test]
fn one_file_is_what_some_order_of_the_operations_makes_it() {
    model(|| one_file(false));
}

#[test]
fn one_file_with_the_background_threads() {
    model(|| one_file(true));
}
