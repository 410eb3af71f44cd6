//! What fsync costs: counted flushes of the devices and the journal, none when there is nothing to make durable, and one commit for all
//! who wait at once. A number that changes here changes the cost of every fsync: on purpose, or not at all.

use crate::memory_store::MemoryStore;
use crate::simulated_disk::{Counts, SimulatedPower};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;
use sumfs::error::Result;
use sumfs::fs::{Caller, Filesystem, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::InodeNumber;

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const ROOT: InodeNumber = InodeNumber::ROOT;
const TIMEOUT: Duration = Duration::from_secs(30);
const FILES: usize = 32;

/// Flushes and writes of one action.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    device_flushes: u64,
    journal_flushes: u64,
    device_writes: u64,
    journal_writes: u64,
    /// Of index and superblock, of any kind but reads.
    others: u64,
}

const NOTHING: Cost = Cost { device_flushes: 0, journal_flushes: 0, device_writes: 0, journal_writes: 0, others: 0 };

struct Traced {
    power: SimulatedPower,
    store: MemoryStore,
    fs: Arc<Filesystem>,
}

impl Traced {
    fn new() -> Traced {
        let power = SimulatedPower::new(1);
        let store = MemoryStore::on(&power, 64 << 20);
        let fs = store.open();
        // The first commit also records the first group.
        fs.sync().unwrap();
        Traced { power, store, fs }
    }

    fn create(&self, name: &str) -> InodeNumber {
        self.fs.mknod(&CALLER, ROOT, name.as_bytes(), 0o100_644, 0, 0).unwrap().inode
    }

    fn write_with(&self, file: InodeNumber, offset: u64, len: usize, flags: WriteFlags) {
        self.fs.write(&CALLER, file, offset, &vec![7; len], flags, Wait::Allowed).unwrap();
    }

    fn write(&self, file: InodeNumber, offset: u64, len: usize) {
        self.write_with(file, offset, len, WriteFlags::default());
    }

    fn fsync(&self, inode: InodeNumber) {
        begin_fsync(&self.fs, inode).recv_timeout(TIMEOUT).expect("fsync is answered").unwrap();
    }

    fn counts(&self) -> [Counts; 4] {
        ["device", "journal", "index", "superblock"].map(|port| self.power.counts(port))
    }

    /// What the action costs.
    fn cost(&self, action: impl FnOnce()) -> Cost {
        let before = self.counts();
        action();
        let after = self.counts();
        let changes = |of: &Counts| of.writes + of.flushes + of.others;
        Cost {
            device_flushes: after[0].flushes - before[0].flushes,
            journal_flushes: after[1].flushes - before[1].flushes,
            device_writes: after[0].writes - before[0].writes,
            journal_writes: after[1].writes - before[1].writes,
            others: (2..4).map(|port| changes(&after[port]) - changes(&before[port])).sum(),
        }
    }
}

fn begin_fsync(fs: &Filesystem, inode: InodeNumber) -> mpsc::Receiver<Result<()>> {
    let (answer, answered) = mpsc::channel();
    fs.fsync(inode, false, Box::new(move |result| drop(answer.send(result))));
    answered
}

#[test]
fn an_fsync_of_data_flushes_each_disk_once() {
    let traced = Traced::new();
    let once = Cost { device_flushes: 1, journal_flushes: 1, device_writes: 1, journal_writes: 1, others: 0 };
    let mut file = ROOT;
    let new = traced.cost(|| {
        file = traced.create("new");
        traced.write(file, 0, 10_000);
        traced.fsync(file);
    });
    assert_eq!(new, once, "create, write, fsync");
    let overwrite = traced.cost(|| {
        traced.write(file, 4096, 4096);
        traced.fsync(file);
    });
    assert_eq!(overwrite, once, "overwrite, fsync");
    let append = traced.cost(|| {
        traced.write(file, 10_000, 500_000);
        traced.fsync(file);
    });
    assert_eq!(append, once, "append, fsync");
    let sync = WriteFlags { sync: true, ..WriteFlags::default() };
    assert_eq!(traced.cost(|| traced.write_with(file, 0, 4096, sync)), once, "O_SYNC write");
    let direct = WriteFlags { direct: true, ..WriteFlags::default() };
    let direct_write = traced.cost(|| traced.write_with(file, 0, 4096, direct));
    assert_eq!(direct_write, Cost { device_writes: 1, ..NOTHING }, "O_DIRECT write");
    assert_eq!(traced.cost(|| traced.fsync(file)), Cost { device_writes: 0, ..once }, "fsync after it");
    traced.store.close(&traced.fs);
}

#[test]
fn an_fsync_of_names_flushes_the_journal_alone() {
    let traced = Traced::new();
    let journal = Cost { journal_flushes: 1, journal_writes: 1, ..NOTHING };
    let made = traced.cost(|| {
        let file = traced.create("file");
        traced.fsync(file);
    });
    assert_eq!(made, journal, "create, fsync of the file");
    let renamed = traced.cost(|| {
        traced.fs.rename(ROOT, b"file", ROOT, b"renamed", sumfs::fs::RenameMode::Replace).unwrap();
        traced.fsync(ROOT);
    });
    assert_eq!(renamed, journal, "rename, fsync of the directory");
    traced.store.close(&traced.fs);
}

#[test]
fn an_fsync_with_nothing_to_do_costs_nothing() {
    let traced = Traced::new();
    let (one, other) = (traced.create("one"), traced.create("other"));
    traced.write(one, 0, 10_000);
    traced.fsync(one);
    assert_eq!(traced.cost(|| traced.fsync(one)), NOTHING, "a second time");
    assert_eq!(traced.cost(|| traced.fsync(ROOT)), NOTHING, "the directory went with it");
    traced.write(other, 0, 10_000);
    assert_eq!(traced.cost(|| traced.fsync(one)), NOTHING, "what others have dirty is theirs");
    traced.fsync(other);
    assert_eq!(traced.cost(|| traced.fs.sync().unwrap()), NOTHING, "sync after everything");
    traced.store.close(&traced.fs);
}

/// A gate that flushes of the device stop at.
#[derive(Default)]
struct Gate {
    state: Mutex<(bool, u64)>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock();
        state.1 += 1;
        self.changed.notify_all();
        while state.0 {
            self.changed.wait(&mut state);
        }
    }

    fn close(&self) {
        self.state.lock().0 = true;
    }

    fn open(&self) {
        self.state.lock().0 = false;
        self.changed.notify_all();
    }

    fn wait_for_arrivals(&self, count: u64) {
        let mut state = self.state.lock();
        while state.1 < count {
            assert!(!self.changed.wait_for(&mut state, TIMEOUT).timed_out(), "no flush begins");
        }
    }
}

#[test]
fn one_commit_serves_all_who_wait() {
    let traced = Traced::new();
    let files: Vec<InodeNumber> = (0..FILES).map(|number| traced.create(&format!("file{number}"))).collect();
    traced.fs.sync().unwrap();
    files.iter().for_each(|file| traced.write(*file, 0, 4096));
    let gate = Arc::new(Gate::default());
    gate.close();
    let before = traced.fs.stats().commits.load(Ordering::Relaxed);
    let hook_gate = gate.clone();
    traced.power.on_flush(Some(Box::new(move |_, port| {
        if port == "device" {
            hook_gate.pass();
        }
    })));
    let cost = traced.cost(|| {
        std::thread::scope(|scope| {
            // The first one leads, and stops in the device's flush.
            let leader = scope.spawn(|| begin_fsync(&traced.fs, files[0]));
            gate.wait_for_arrivals(1);
            // The others leave their answer and have their threads back while it is under way.
            let waiting: Vec<_> = files[1..].iter().map(|file| begin_fsync(&traced.fs, *file)).collect();
            assert!(waiting.iter().all(|answer| answer.try_recv().is_err()), "answered before the flush");
            gate.open();
            for answer in waiting.into_iter().chain([leader.join().unwrap()]) {
                answer.recv_timeout(TIMEOUT).expect("fsync is answered").unwrap();
            }
        });
    });
    traced.power.on_flush(None);
    assert_eq!(traced.fs.stats().commits.load(Ordering::Relaxed) - before, 2);
    assert_eq!((cost.device_flushes, cost.journal_flushes, cost.device_writes), (2, 2, FILES as u64));
    traced.store.close(&traced.fs);
}
