//! `Wait::Never`: for every [`Reason`] the situation that makes exactly this refusal, and the proof that it changed nothing. The same
//! operation succeeds once the situation is over. A reason without a test does not compile.

use crate::memory_store::MemoryStore;
use crate::operations::pattern;
use parking_lot::{Condvar, Mutex};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::Duration;
use sumfs::disk::Disk;
use sumfs::disk::over::OverDisk;
use sumfs::error::{Error, Reason, Result};
use sumfs::fs::{Attributes, Caller, FallocateMode, Filesystem, Options, ReadFlags, WaitInline, WriteFlags};
use sumfs::fuse::dispatch::{Dispatcher, Read, Write};
use sumfs::lock::Wait;
use sumfs::units::InodeNumber;

const BLOCK: usize = 4096;
const ROOT: InodeNumber = InodeNumber::ROOT;
/// Whatever takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

macro_rules! refusals {
    ($($reason:ident => $test:ident by $case:ident,)*) => {
        /// A reason that is not in the list has no test.
        const _: fn(Reason) = |reason| match reason { $(Reason::$reason => {})* };
        $(
            #[test]
            fn $test() {
                $case(Reason::$reason);
            }
        )*
    };
}

refusals! {
    RangeLocked => a_locked_range_refuses by hold_the_range,
    NoReservation => no_free_space_refuses by exhaust_the_space,
    PartialBlockMissing => a_partial_block_that_is_not_here_refuses by drop_the_segment,
    DirtyLimit => the_dirty_limit_refuses by hold_writeback_back,
    JournalRoom => a_full_journal_refuses by fill_the_journal,
    NotCached => an_uncached_read_refuses by read_what_is_not_here,
    DeviceWait => synchronous_and_direct_writes_refuse by ask_for_the_device,
    InodeNotCached => an_inode_that_is_not_here_refuses by forget_the_inode,
    Disabled => nowait_off_refuses by switch_it_off,
}

/// Which accesses of a disk wait, and how many do.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    holds_reads: bool,
    holds_writes: bool,
    waiting: usize,
}

impl Gate {
    fn set(&self, holds_reads: bool, holds_writes: bool) {
        let mut state = self.state.lock();
        (state.holds_reads, state.holds_writes) = (holds_reads, holds_writes);
        self.changed.notify_all();
    }

    fn pass(&self, is_held: fn(&GateState) -> bool) {
        let mut state = self.state.lock();
        state.waiting += 1;
        self.changed.notify_all();
        while is_held(&state) {
            assert!(!self.changed.wait_for(&mut state, PATIENCE).timed_out(), "the gate stays closed");
        }
        state.waiting -= 1;
    }

    /// Waits until somebody is held.
    fn wait_for_one(&self) {
        let mut state = self.state.lock();
        while state.waiting == 0 {
            assert!(!self.changed.wait_for(&mut state, PATIENCE).timed_out(), "nobody comes to the gate");
        }
    }
}

/// A disk behind a gate.
#[derive(Debug)]
struct GatedDisk {
    inner: Arc<dyn Disk>,
    gate: Arc<Gate>,
}

impl OverDisk for GatedDisk {
    fn below(&self) -> &dyn Disk {
        &*self.inner
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.gate.pass(|state| state.holds_reads);
        self.inner.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.gate.pass(|state| state.holds_writes);
        self.inner.write_at(offset, from)
    }
}

/// A mounted store with its data device behind a gate. `close` must be called: it checks the store.
struct Scene {
    store: MemoryStore,
    fs: Arc<Filesystem>,
    gate: Arc<Gate>,
    options: Options,
}

impl Scene {
    fn new(change: impl FnOnce(&mut Options)) -> Scene {
        let mut options = Options { background: false, ..Options::default() };
        change(&mut options);
        let mut store = MemoryStore::new(64 << 20);
        let gate = Arc::new(Gate::default());
        for device in &mut store.disks.devices {
            *device = Arc::new(GatedDisk { inner: device.clone(), gate: gate.clone() });
        }
        Scene { fs: store.open_with(options.clone()), store, gate, options }
    }

    fn create(&self, name: &str) -> InodeNumber {
        self.fs.mknod(&Caller::ROOT, ROOT, name.as_bytes(), 0o100_644, 0, 0).unwrap().inode
    }

    /// A file of `len` bytes of the pattern, durable and, with the option `kernel_caches`, not in the cache.
    fn stored(&self, name: &str, len: usize) -> InodeNumber {
        let file = self.create(name);
        self.write(file, 0, &pattern(0, len), WriteFlags::default(), Wait::Allowed).unwrap();
        self.fsync(file);
        file
    }

    fn write(&self, file: InodeNumber, offset: u64, data: &[u8], flags: WriteFlags, wait: Wait) -> Result<usize> {
        self.fs.write(&Caller::ROOT, file, offset, data, flags, wait)
    }

    fn try_write(&self, file: InodeNumber, offset: u64, data: &[u8]) -> Result<usize> {
        self.write(file, offset, data, WriteFlags::default(), Wait::Never)
    }

    fn read(&self, file: InodeNumber, offset: u64, len: usize, wait: Wait) -> Result<Vec<u8>> {
        Ok(self.fs.read(file, offset, len, ReadFlags { no_atime: true, ..ReadFlags::default() }, wait)?.as_slice().to_vec())
    }

    fn fsync(&self, file: InodeNumber) {
        let (answer, answered) = mpsc::channel();
        self.fs.fsync(file, false, Box::new(move |result| drop(answer.send(result))));
        answered.recv_timeout(PATIENCE).unwrap().unwrap();
    }

    /// Nothing is in memory afterwards but what mounting reads.
    fn remount(&mut self) {
        self.store.close(&self.fs);
        self.fs = self.store.open_with(self.options.clone());
    }

    fn lookup(&self, name: &str) -> InodeNumber {
        self.fs.lookup(ROOT, name.as_bytes()).unwrap().inode
    }

    fn figure(&self, pointer: &str) -> u64 {
        self.fs.status().pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no figure {pointer}"))
    }

    /// All that can be seen: every figure of cache, space, metadata and counters, and the attributes of these files.
    fn seen(&self, files: &[InodeNumber]) -> (Value, Vec<Attributes>) {
        // The figures come first: looking at the attributes of an inode loads it.
        (self.fs.status(), files.iter().map(|file| self.fs.getattr(*file).unwrap()).collect())
    }

    fn assert_refused<T: std::fmt::Debug>(&self, reason: Reason, files: &[InodeNumber], what: &str, run: impl Fn() -> Result<T>) {
        let before = self.seen(files);
        let result = run();
        assert!(matches!(result, Err(Error::WouldBlock(found)) if found == reason), "{what}: {result:?}, not {reason:?}");
        assert_eq!(self.seen(files), before, "{what}: a refusal has changed something");
    }

    fn close(self) {
        self.store.close(&self.fs);
    }
}

fn hold_the_range(reason: Reason) {
    let scene = Scene::new(|options| options.kernel_caches = true);
    let file = scene.stored("f", 16 * BLOCK);
    let mut expected = pattern(0, 16 * BLOCK);
    scene.gate.set(true, false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| scene.read(file, 0, 100, Wait::Allowed).unwrap());
        scene.gate.wait_for_one();
        scene.assert_refused(reason, &[file], "a write under a read", || scene.try_write(file, 0, &[1; 2 * BLOCK]));
        scene.assert_refused(reason, &[file], "a part of a block", || scene.try_write(file, 4000, &[1; 10]));
        assert_eq!(scene.try_write(file, BLOCK as u64, &[2; BLOCK]).unwrap(), BLOCK, "the neighbour is free");
        scene.gate.set(false, false);
        assert!(reader.join().unwrap() == pattern(0, 100), "the read saw a refused write");
    });
    expected[BLOCK..2 * BLOCK].fill(2);
    // The other way round: an O_DIRECT write is on its way.
    scene.gate.set(false, true);
    let flags = WriteFlags { direct: true, ..WriteFlags::default() };
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| scene.write(file, 0, &[3; BLOCK], flags, Wait::Allowed).unwrap());
        scene.gate.wait_for_one();
        scene.assert_refused(reason, &[file], "a write under a write", || scene.try_write(file, 0, &[1; BLOCK]));
        scene.gate.set(false, false);
        writer.join().unwrap();
    });
    expected[..BLOCK].fill(3);
    assert!(scene.read(file, 0, 20 * BLOCK, Wait::Allowed).unwrap() == expected);
    assert_eq!(scene.try_write(file, 0, &[4; BLOCK]).unwrap(), BLOCK, "the range is free again");
    scene.close();
}

/// Writes blocks behind each other until one is refused; how many were accepted.
fn fill(scene: &Scene, file: InodeNumber) -> u64 {
    let mut blocks = 0;
    loop {
        match scene.try_write(file, blocks * BLOCK as u64, &[7; BLOCK]) {
            Ok(_) => blocks += 1,
            Err(Error::WouldBlock(Reason::NoReservation)) => return blocks,
            Err(error) => panic!("block {blocks}: {error:?}"),
        }
    }
}

fn exhaust_the_space(reason: Reason) {
    let scene = Scene::new(|_| {});
    // The first block opens a group; nobody opens another one without waiting.
    let file = scene.stored("f", BLOCK);
    let blocks = fill(&scene, file);
    assert!(blocks > 100, "a group has more than {blocks} blocks");
    let end = blocks * BLOCK as u64;
    scene.assert_refused(reason, &[file], "a block more", || scene.try_write(file, end, &[8; BLOCK]));
    scene.assert_refused(reason, &[file], "many blocks", || scene.try_write(file, end + 77, &[8; 300_000]));
    assert!(scene.read(file, end, 1, Wait::Never).unwrap().is_empty());
    scene.write(file, end, &[8; BLOCK], WriteFlags::default(), Wait::Allowed).unwrap();
    assert_eq!(scene.try_write(file, end + BLOCK as u64, &[8; BLOCK]).unwrap(), BLOCK, "there is space again");
    scene.fsync(file);
    let found = scene.read(file, 0, end as usize + 9 * BLOCK, Wait::Allowed).unwrap();
    assert!(found[..end as usize].iter().all(|byte| *byte == 7) && found[end as usize..] == [8; 2 * BLOCK]);
    scene.close();
}

fn drop_the_segment(reason: Reason) {
    let mut scene = Scene::new(|_| {});
    scene.stored("f", 10_000);
    scene.remount();
    let file = scene.lookup("f");
    // Within a block, at both ends of a longer write, and at the end of the file.
    let writes: [(u64, usize); 4] = [(5, 10), (4096, 5000), (4000, 4192), (10_000, 10)];
    for (offset, len) in writes {
        let what = format!("{len} bytes at {offset}");
        scene.assert_refused(reason, &[file], &what, || scene.try_write(file, offset, &vec![9; len]));
    }
    assert!(scene.read(file, 0, 20_000, Wait::Allowed).unwrap() == pattern(0, 10_000));
    let mut expected = pattern(0, 10_000);
    for (offset, len) in writes {
        assert_eq!(scene.try_write(file, offset, &vec![9; len]).unwrap(), len, "{len} bytes at {offset}, now resident");
        expected.resize(expected.len().max(offset as usize + len), 0);
        expected[offset as usize..][..len].fill(9);
    }
    assert!(scene.read(file, 0, 20_000, Wait::Never).unwrap() == expected);
    scene.close();
}

fn hold_writeback_back(reason: Reason) {
    let scene = Scene::new(|options| options.cache_bytes = 4 << 20);
    let file = scene.stored("f", 6 << 20);
    let mut offset = 0;
    let limit = scene.figure("/cache/dirty_bytes_max");
    while scene.figure("/cache/dirty_bytes") <= limit {
        assert_eq!(scene.write(file, offset, &[1; 65_536], WriteFlags::default(), Wait::Allowed).unwrap(), 65_536);
        offset += 65_536;
    }
    let refused = || scene.try_write(file, offset, &[2; BLOCK]);
    scene.assert_refused(reason, &[file], "half of the cache is dirty", refused);
    scene.gate.set(false, true);
    std::thread::scope(|scope| {
        scope.spawn(|| scene.fsync(file));
        scene.gate.wait_for_one();
        scene.assert_refused(reason, &[file], "it is on its way, not there", refused);
        assert!(scene.read(file, 0, 10, Wait::Never).unwrap() == [1; 10], "readers do not mind");
        scene.gate.set(false, false);
    });
    assert!(scene.read(file, offset, BLOCK, Wait::Allowed).unwrap() == pattern(0, 6 << 20)[offset as usize..][..BLOCK]);
    assert_eq!(scene.try_write(file, offset, &[2; BLOCK]).unwrap(), BLOCK, "clean again");
    scene.close();
}

fn fill_the_journal(reason: Reason) {
    let scene = Scene::new(|_| {});
    let file = scene.stored("f", BLOCK);
    let refused = || scene.try_write(file, 0, &[1; BLOCK]);
    let mut names = 0..100_000;
    let mut create = || scene.create(&format!("name{}", names.next().unwrap()));
    // A running transaction that is to be committed first.
    let limit = scene.figure("/metadata/journal_bytes") / 16;
    while scene.figure("/metadata/running_bytes") <= limit {
        create();
    }
    scene.assert_refused(reason, &[file], "a large transaction", refused);
    scene.fs.sync().unwrap();
    assert_eq!(refused().unwrap(), BLOCK, "committed");
    // A journal that a checkpoint must empty first.
    let half = scene.figure("/metadata/journal_bytes") / 2;
    while scene.figure("/metadata/journal_used_bytes") <= half {
        (0..50).for_each(|_| {
            create();
        });
        scene.fs.sync().unwrap();
    }
    scene.assert_refused(reason, &[file], "a journal that is half full", refused);
    create();
    assert_eq!(refused().unwrap(), BLOCK, "after a checkpoint");
    assert!(scene.read(file, 0, BLOCK, Wait::Never).unwrap() == [1; BLOCK]);
    scene.close();
}

fn read_what_is_not_here(reason: Reason) {
    let mut scene = Scene::new(|_| {});
    scene.stored("f", 10_000);
    scene.remount();
    let file = scene.lookup("f");
    scene.assert_refused(reason, &[file], "a read", || scene.read(file, 100, 9000, Wait::Never));
    assert!(scene.read(file, 0, 5000, Wait::Allowed).unwrap() == pattern(0, 5000));
    scene.assert_refused(reason, &[file], "a part is not here", || scene.read(file, 100, 9000, Wait::Never));
    assert!(scene.read(file, 100, 4900, Wait::Never).unwrap() == pattern(0, 5000)[100..], "what is here is read");
    assert!(scene.read(file, 10_000, 10, Wait::Never).unwrap().is_empty(), "the end needs no cache");
    scene.close();
}

fn ask_for_the_device(reason: Reason) {
    let scene = Scene::new(|_| {});
    let file = scene.stored("f", BLOCK);
    for (what, direct, sync) in [("O_DIRECT", true, false), ("O_SYNC", false, true), ("both", true, true)] {
        let flags = WriteFlags { direct, sync, ..WriteFlags::default() };
        scene.assert_refused(reason, &[file], what, || scene.write(file, 0, &[1; BLOCK], flags, Wait::Never));
        assert!(scene.read(file, 0, BLOCK, Wait::Allowed).unwrap() == pattern(0, BLOCK), "{what}");
    }
    scene.close();
}

fn forget_the_inode(reason: Reason) {
    let mut scene = Scene::new(|_| {});
    let file = scene.stored("f", BLOCK);
    let attributes = scene.fs.getattr(file).unwrap();
    scene.remount();
    scene.assert_refused(reason, &[], "a write", || scene.try_write(file, 0, &[1; BLOCK]));
    scene.assert_refused(reason, &[], "a read", || scene.read(file, 0, 10, Wait::Never));
    assert_eq!(scene.fs.getattr(file).unwrap(), attributes);
    assert!(scene.read(file, 0, BLOCK, Wait::Allowed).unwrap() == pattern(0, BLOCK));
    assert_eq!(scene.try_write(file, 0, &[1; BLOCK]).unwrap(), BLOCK, "it is in memory now");
    scene.close();
}

fn switch_it_off(reason: Reason) {
    let scene = Scene::new(|options| options.nowait = false);
    let file = scene.stored("f", BLOCK);
    scene.assert_refused(reason, &[file], "a write", || scene.try_write(file, 0, &[1; BLOCK]));
    scene.assert_refused(reason, &[file], "a read", || scene.read(file, 0, 10, Wait::Never));
    assert!(scene.read(file, 0, BLOCK, Wait::Allowed).unwrap() == pattern(0, BLOCK));
    scene.close();
}

#[test]
fn preallocation_needs_no_free_space_once_its_map_is_loaded() {
    let mut scene = Scene::new(|_| {});
    let file = scene.create("preallocated");
    scene.fs.fallocate(&Caller::ROOT, file, 0, 1 << 20, FallocateMode::Allocate).unwrap();
    let filler = scene.stored("filler", BLOCK);
    fill(&scene, filler);
    assert_eq!(scene.try_write(file, 0, &[1; BLOCK]).unwrap(), BLOCK, "the map of a new file is whole");
    scene.fsync(filler);
    scene.remount();
    let (file, filler) = (scene.lookup("preallocated"), scene.lookup("filler"));
    fill(&scene, filler);
    let at = 16 * BLOCK as u64;
    let refused = || scene.try_write(file, at, &[2; 2 * BLOCK]);
    scene.assert_refused(Reason::NoReservation, &[file], "the map is not loaded", refused);
    assert!(scene.read(file, at, 2 * BLOCK, Wait::Allowed).unwrap() == [0; 2 * BLOCK], "reading loads it");
    assert_eq!(refused().unwrap(), 2 * BLOCK);
    scene.assert_refused(Reason::NoReservation, &[file], "a promise is kept once", refused);
    let behind = || scene.try_write(file, 1 << 20, &[2; BLOCK]);
    scene.assert_refused(Reason::NoReservation, &[file], "behind it nothing is promised", behind);
    scene.fsync(file);
    let mut expected = vec![0; 1 << 20];
    expected[..BLOCK].fill(1);
    expected[at as usize..][..2 * BLOCK].fill(2);
    assert!(scene.read(file, 0, 2 << 20, Wait::Allowed).unwrap() == expected);
    scene.close();
}

/// Runs one operation and waits until it is done; what it answered, and on a thread of which name.
fn finish<T: Send + 'static>(run: impl FnOnce(Box<dyn FnOnce(Result<T>) + Send>)) -> (Result<T>, String) {
    let (answer, answered) = mpsc::channel();
    run(Box::new(move |result| {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        drop(answer.send((result, thread)));
    }));
    answered.recv_timeout(PATIENCE).unwrap()
}

#[test]
fn what_is_refused_is_counted_and_done_elsewhere() {
    use WaitInline::{Auto, Idle, Off};
    // Reading threads, nowait, wait-inline, O_DIRECT; then where a write must end, and the reason counted. The device is memory.
    let rows = [
        (1, true, Auto, false, "here", None),
        (1, true, Idle, true, "worker", Some(Reason::DeviceWait)),
        (2, true, Idle, true, "here", Some(Reason::DeviceWait)),
        (2, true, Off, true, "worker", Some(Reason::DeviceWait)),
        (1, true, Auto, true, "here", Some(Reason::DeviceWait)),
        (2, false, Auto, false, "worker", Some(Reason::Disabled)),
    ];
    for row @ (threads, nowait, wait_inline, direct, place, reason) in rows {
        let scene = Scene::new(|options| (options.nowait, options.wait_inline) = (nowait, wait_inline));
        let file = scene.stored("f", BLOCK);
        let dispatcher = Dispatcher::new(scene.fs.clone(), threads, 1, nowait).unwrap();
        let _busy = dispatcher.enter();
        let flags = WriteFlags { direct, ..WriteFlags::default() };
        let write = Write { caller: Caller::ROOT, inode: file, offset: 0, flags };
        let (result, thread) = finish(|done| dispatcher.write(write, &[5; BLOCK], done));
        assert_eq!(result.unwrap(), BLOCK);
        let here = std::thread::current();
        let expected = if place == "worker" { "sumfs-worker-0" } else { here.name().unwrap_or_default() };
        assert_eq!(thread, expected, "{row:?}");
        let stats = scene.fs.stats();
        let refused: Vec<Reason> = Reason::ALL.into_iter().filter(|r| stats.refusals[*r as usize].load(Relaxed) > 0).collect();
        assert_eq!(refused, Vec::from_iter(reason));
        assert_eq!(stats.fast_writes.load(Relaxed), u64::from(reason.is_none()));
        let read = Read { inode: file, offset: 0, size: BLOCK, flags: ReadFlags::default() };
        let (result, _) = finish(|done| dispatcher.read(read, done));
        assert!(result.unwrap().as_slice() == [5; BLOCK]);
        drop(_busy);
        drop(dispatcher);
        scene.close();
    }
}
