//! Writes, their ordered extents, and commits that others lead: what was acknowledged as durable is there after a loss of power at
//! any moment (D2, D8), and the store is whole.

use crate::machine::{BLOCK, Machine, create, fsync, read};
use crate::simulated_disk::Images;
use crate::{below, model, one_of, together};
use std::sync::{Arc, Mutex};
use sumfs::fs::{Caller, Filesystem, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::InodeNumber;

const THREADS: usize = 3;
const ROUNDS: u8 = 3;
const DEVICE_BYTES: u64 = 64 << 20;
/// Mounting takes time; each schedule looks at so many of its cuts.
const CUTS_MOUNTED_MAX: usize = 3;

/// What each thread's block may be after a cut: at least `durable`, at most `begun`. Never locked across a switch.
#[derive(Clone, Debug, Default)]
struct Known {
    begun: [u8; THREADS],
    durable: [u8; THREADS],
    /// What was done so far, for whom a failure is shown.
    log: Vec<String>,
}

struct Cuts {
    machine: Machine,
    known: Mutex<Known>,
    taken: Mutex<Vec<(Images, Known)>>,
}

impl Cuts {
    fn begin(&self, thread: usize, value: u8, how: &str) {
        let mut known = self.known.lock().unwrap();
        known.begun[thread] = value;
        known.log.push(format!("{thread} writes {value} {how}"));
    }

    fn acknowledge(&self, thread: usize, value: u8) {
        let mut known = self.known.lock().unwrap();
        known.durable[thread] = value;
        known.log.push(format!("{thread} has {value}"));
        drop(known);
        self.cut();
    }

    fn cut(&self) {
        let images = self.machine.power.cut(below(1 << 32));
        self.taken.lock().unwrap().push((images, self.known.lock().unwrap().clone()));
    }
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    Nothing,
    Fsync,
    Sync,
    SyncWrite,
}

fn run(fs: &Filesystem, file: InodeNumber, thread: usize, cuts: &Cuts) {
    for value in 1..=ROUNDS {
        let ending = one_of(&[Ending::Nothing, Ending::Fsync, Ending::Fsync, Ending::Sync, Ending::SyncWrite]);
        let sync = matches!(ending, Ending::SyncWrite);
        let flags = WriteFlags { direct: below(2) == 0, sync, ..WriteFlags::default() };
        cuts.begin(thread, value, &format!("{ending:?} direct {}", flags.direct));
        fs.write(&Caller::ROOT, file, thread as u64 * BLOCK, &[value; BLOCK as usize], flags, Wait::Allowed).unwrap();
        match ending {
            Ending::Nothing => {
                cuts.cut();
                continue;
            }
            Ending::Fsync => fsync(fs, file).unwrap(),
            Ending::Sync => fs.sync().unwrap(),
            Ending::SyncWrite => {}
        }
        cuts.acknowledge(thread, value);
    }
}

fn verify(images: &Images, known: &Known, file: InodeNumber) {
    let machine = Machine::found(images);
    machine.check();
    let fs = machine.open(false);
    for thread in 0..THREADS {
        let bytes = match fs.getattr(file) {
            Ok(_) => read(&fs, file, thread as u64 * BLOCK, BLOCK as usize),
            Err(_) => Vec::new(),
        };
        let value = bytes.first().copied().unwrap_or(0);
        assert!(bytes.iter().all(|byte| *byte == value), "the block of thread {thread} is torn");
        let allowed = known.durable[thread]..=known.begun[thread];
        assert!(
            allowed.contains(&value),
            "after a cut the block of thread {thread} has {value}, not one of {allowed:?}: {:#?}",
            known.log
        );
    }
    machine.close(&fs);
}

#[test]
fn what_was_acknowledged_as_durable_survives_every_cut() {
    model(|| {
        let machine = Machine::new(DEVICE_BYTES);
        let fs = machine.open(false);
        let file = create(&fs, "f");
        let cuts = Arc::new(Cuts { machine, known: Mutex::default(), taken: Mutex::default() });
        let body = |thread| {
            let (fs, cuts) = (fs.clone(), cuts.clone());
            Box::new(move || run(&fs, file, thread, &cuts)) as Box<dyn FnOnce() + Send>
        };
        together((0..THREADS).map(body).collect());
        cuts.machine.close(&fs);
        let mut taken = std::mem::take(&mut *cuts.taken.lock().unwrap());
        for _ in 0..CUTS_MOUNTED_MAX.min(taken.len()) {
            let (images, known) = taken.swap_remove(below(taken.len() as u64) as usize);
            verify(&images, &known, file);
        }
    });
}
