//! Power cuts of the whole program: the real binary, a store on ext4, on a loop device, on a file that records every write and flush
//! ([`crate::recording_file`]). Several writers work and note what was acknowledged, and when. Afterwards the disk is made again as
//! it may have been at some moment, ext4 replays its journal, and the store must be clean and hold what was acknowledged by then (D8).
//!
//! What a cut at a position of the record leaves: all writes before the last flush, and of those behind it
//! - none (the cut lies right behind a flush),
//! - or any subset, writes torn at block borders, in the order in which they were made.
//!
//! `CUTS=` says how many; half lie behind flushes (evenly over the run, or all there are), a quarter anywhere, a quarter right behind
//! an acknowledgement. After every third the power goes once more, while the store recovers. `SEED=` repeats the operations and the
//! choices, but threads make every run different: of a cut that fails the disk is kept as a file.

mod disk;
mod rig;
mod verify;
mod writer;

use crate::recording_file::Record;
use crate::reference_model::{FileBytes, Node};
use disk::{Cut, Rebuilding, Tape};
use rig::Rig;
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use sumfs::units::{BLOCK, BLOCK_SIZE};
use verify::{Expected, Failure, verify};
use writer::{Clock, Writer};

const WRITERS: usize = 4;
const CUTS_DEFAULT: usize = 12;
/// Operations of each writer between two moments at which everything is synced.
const STEPS_PER_ROUND: usize = 15;
/// So many rounds end with unmounting, which is one of those moments.
const ROUNDS_PER_MOUNT: usize = 3;
const NOISE: &str = "noise";
const NOISE_PER_ROUND: usize = 300;
const NOISE_NAME_BYTES: usize = 200;
/// How many flushes a lying device forgets.
const FORGOTTEN_FLUSHES: usize = 24;
const LYING_TRIES: usize = 10;
/// After one of so many cuts the power goes a second time, while the store recovers.
const CUTS_PER_SECOND_CUT: usize = 3;

/// Small, and the same everywhere.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }
}

fn number_from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn seed() -> u64 {
    let now = || {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64 & 0xffff_ffff)
    };
    let seed = number_from_environment("SEED").unwrap_or_else(now);
    println!("SEED={seed}");
    seed
}

/// One round: all writers at once, and meanwhile names that nobody asks for later, but which fill the journal.
fn work(writers: &mut [Writer], noise: &Path, round: usize) {
    std::thread::scope(|scope| {
        for writer in writers {
            scope.spawn(|| (0..STEPS_PER_ROUND).try_for_each(|_| writer.step()).expect("nothing fails here"));
        }
        for number in 0..NOISE_PER_ROUND {
            let path = |round| noise.join(format!("{number}-{round:0width$}", width = NOISE_NAME_BYTES));
            File::create(path(round)).expect("a name that nobody asks for");
            if round > 0 {
                std::fs::rename(path(round - 1), noise.join(number.to_string())).expect("it was made in the round before");
            }
        }
    });
}

/// A run of the workload.
struct Recording {
    tape: Tape,
    /// The position at which mkfs had returned.
    formatted: usize,
    /// Checkpoints under load; those of unmounting are more.
    checkpoints: u64,
    /// The position at which the last round began.
    last_round: usize,
    /// The position at which the store had been unmounted for the last time.
    unmounted: usize,
    expected: Expected,
}

impl Recording {
    /// Makes a store on the rig, lets writers work in it, unmounts it. The rig is detached afterwards.
    fn make(rig: &mut Rig, seed: u64, rounds: usize) -> Recording {
        let mut random = Random::new(seed);
        let base = rig.file.start_recording();
        let clock = Clock::new(&rig.file);
        rig.format_store();
        let formatted = clock.now().position;
        rig.mount().unwrap();
        let mountpoint = rig.path();
        let writer = |number| Writer::new(clock.clone(), &mountpoint, number, Random::new(random.next()));
        let mut writers: Vec<Writer> = (0..WRITERS).map(writer).collect();
        std::fs::create_dir(mountpoint.join(NOISE)).unwrap();
        Rig::sync(&mountpoint).unwrap();
        let ready = clock.now().position;
        let (mut checkpoints, mut last_round, mut unmounted) = (0, ready, ready);
        for round in 0..rounds {
            last_round = clock.now().position;
            work(&mut writers, &mountpoint.join(NOISE), round);
            let (begun, is_last) = (clock.now(), round + 1 == rounds);
            let is_unmounted = is_last || round % ROUNDS_PER_MOUNT == 1;
            if is_unmounted {
                checkpoints += rig.checkpoints();
                writers.iter_mut().for_each(Writer::close);
                rig.umount().unwrap();
            } else {
                Rig::sync(&mountpoint).unwrap();
            }
            writers.iter_mut().for_each(|writer| writer.note_synced(begun));
            unmounted = clock.now().position;
            if is_unmounted && !is_last {
                rig.mount().unwrap();
            }
        }
        rig.detach().unwrap();
        let tape = Tape::new(base, rig.file.stop_recording());
        Recording { tape, formatted, checkpoints, last_round, unmounted, expected: Expected { writers, ready } }
    }

    /// So many cuts, in the order of their last flushes.
    fn cuts(&self, count: usize, random: &mut Random) -> Vec<Cut> {
        let flushes: Vec<usize> = self.tape.flushes.iter().copied().filter(|flush| *flush >= self.formatted).collect();
        let at_flushes = (count / 2).min(flushes.len());
        let mut cuts: Vec<Cut> = (0..at_flushes).map(|number| Cut::at(flushes[number * flushes.len() / at_flushes])).collect();
        while cuts.len() < count {
            let (position, kept) = if cuts.len().is_multiple_of(2) {
                let span = self.tape.log.len() - self.formatted;
                (self.formatted + random.below(span as u64 + 1) as usize, [100, 500, 900][random.below(3) as usize])
            } else {
                let writer = &self.expected.writers[random.below(WRITERS as u64) as usize];
                let at = random.below(writer.intervals.len() as u64) as usize;
                (writer.intervals[at].acknowledged.position, [0, 0, 300][random.below(3) as usize])
            };
            cuts.push(self.tape.cut(position, kept, random));
        }
        cuts.sort_by_key(|cut| cut.flushed);
        cuts
    }
}

/// Keeps a disk for whoever looks into the failure.
fn keep(image: &FileBytes, position: usize) -> PathBuf {
    let path = std::env::temp_dir().join(format!("sumfs-power-cut-{}-{position}.img", std::process::id()));
    let file = File::create(&path).unwrap();
    file.set_len(image.size()).unwrap();
    for index in image.block_indexes() {
        file.write_all_at(&image.read(index * BLOCK_SIZE, BLOCK), index * BLOCK_SIZE).unwrap();
    }
    path
}

/// Judges the disk that a cut leaves, and sometimes what another cut leaves when the power goes again while the store recovers.
fn cut_and_judge(rig: &mut Rig, image: FileBytes, expected: &Expected, cut: &Cut, is_cut_again: bool) -> Result<(), String> {
    let judge = |rig: &mut Rig, image: &FileBytes, what: &str| {
        verify(rig, image.clone(), expected, cut.position).map_err(|failure| {
            let kept = keep(image, cut.position);
            format!("{what}, disk kept as {}: {failure}", kept.display())
        })
    };
    let recovery = Tape::new(image.clone(), judge(rig, &image, &format!("{cut:?}"))?);
    if is_cut_again {
        let mut random = Random::new(cut.seed ^ cut.position as u64);
        let again = recovery.cut(random.below(recovery.log.len() as u64 + 1) as usize, 500, &mut random);
        judge(
            rig,
            &recovery.image(&again),
            &format!("{cut:?}, and again in {} records of recovery: {again:?}", recovery.log.len()),
        )?;
    }
    Ok(())
}

fn power_cuts(name: &str, options: &str) {
    let seed = seed();
    let count = number_from_environment("CUTS").map_or(CUTS_DEFAULT, |cuts| cuts as usize).div_ceil(2);
    let mut rig = Rig::new(options);
    let recording = Recording::make(&mut rig, seed, (count / 4).clamp(2, 25));
    let (tape, expected) = (&recording.tape, &recording.expected);
    let operations: usize = expected.writers.iter().map(|writer| writer.history.last()).sum();
    let (records, flushes) = (tape.log.len(), tape.flushes.len());
    println!("{name}: {operations} operations, {} checkpoints, {records} records, {flushes} flushes", recording.checkpoints);
    let mut rebuilding = Rebuilding::of(tape);
    for (number, cut) in recording.cuts(count, &mut Random::new(!seed)).iter().enumerate() {
        let judged = cut_and_judge(&mut rig, rebuilding.image(cut), expected, cut, number % CUTS_PER_SECOND_CUT == 0);
        judged.unwrap_or_else(|error| panic!("{name}, SEED={seed}, {error}"));
        if (number + 1) % 10 == 0 {
            println!("{name}: {} of {count} cuts", number + 1);
        }
    }
    println!("{name}: clean, {count} cuts");
}

#[test]
fn what_was_acknowledged_survives_power_cuts_writeback() {
    power_cuts("power cuts, writeback", "cache=writeback");
}

#[test]
fn what_was_acknowledged_survives_power_cuts_none() {
    power_cuts("power cuts, none", "cache=none,commit=0.1");
}

/// The whole disk, but for one block of a file that was acknowledged: the write that carried it last never happened.
fn without_one_data_block(recording: &Recording) -> FileBytes {
    let models = recording.expected.writers.iter().map(|writer| &writer.model);
    let files: Vec<&FileBytes> = models.flat_map(|model| model.nodes()).filter_map(|(_, node)| Node::file(node)).collect();
    let blocks: HashSet<&[u8]> = files
        .iter()
        .flat_map(|bytes| bytes.block_indexes().filter_map(|index| bytes.block(index)))
        .map(|block| &block[..])
        .collect();
    let carries = |record: &Record| record.blocks().into_iter().find(|(_, data)| blocks.contains(data)).map(|(offset, _)| offset);
    let found = recording.tape.log.iter().enumerate().rev().find_map(|(number, record)| Some((number, carries(record)?)));
    let (number, offset) = found.expect("all files were synced");
    let before = recording.tape.image(&Cut::at(number)).read(offset, BLOCK);
    let mut image = recording.tape.image(&Cut::at(recording.tape.log.len()));
    image.write(offset, &before);
    image
}

#[test]
fn a_device_that_loses_acknowledged_writes_is_noticed() {
    let seed = seed();
    let mut rig = Rig::new("cache=writeback");
    let recording = Recording::make(&mut rig, seed, 2);
    let (tape, expected, end) = (&recording.tape, &recording.expected, recording.tape.log.len());
    verify(&mut rig, tape.image(&Cut::at(end)), expected, end).unwrap();

    let lost = verify(&mut rig, without_one_data_block(&recording), expected, end).map(|_| ());
    assert!(matches!(lost, Err(Failure::Store(_))), "SEED={seed}: a lost data block: {lost:?}");

    // All of it is as it was earlier: nothing can be noticed but by comparing with what was acknowledged.
    let earlier = Cut::at(tape.flushed(recording.last_round, 0));
    verify(&mut rig, tape.image(&earlier), expected, earlier.position).unwrap();
    let old = verify(&mut rig, tape.image(&earlier), expected, recording.unmounted).map(|_| ());
    assert!(matches!(old, Err(Failure::Content(_))), "SEED={seed}: flushes that did nothing: {old:?}");

    let mut random = Random::new(seed);
    let mut lie = |_| {
        let position = end - random.below((end - recording.last_round) as u64) as usize;
        let cut = Cut { flushed: tape.flushed(position, FORGOTTEN_FLUSHES), position, kept: 400, seed: random.next() };
        match verify(&mut rig, tape.image(&cut), expected, position) {
            Ok(_) | Err(Failure::Host(_)) => false,
            Err(Failure::Store(what) | Failure::Content(what)) => {
                println!("noticed: {what}");
                true
            }
        }
    };
    assert!(
        (0..LYING_TRIES).any(&mut lie),
        "SEED={seed}: a device that lies about flushes was not noticed in {LYING_TRIES} tries"
    );
}
