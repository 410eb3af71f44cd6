//! The paths of bytes between applications and devices: what is gathered and merged on the way, in which order what was read is verified,
//! what stays in the cache.

use crate::memory_store::MemoryStore;
use crate::simulated_disk::{Random, seed_from_environment};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use sumfs::disk::Disk;
use sumfs::error::{Error, Reason, Result};
use sumfs::fs::{Caller, Filesystem, Options, ReadFlags, ReadOrder, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::InodeNumber;

const BLOCK: usize = 4096;
const MIB: usize = 1 << 20;
const ROOT: InodeNumber = InodeNumber::ROOT;

/// Counts calls, however many slices they have.
#[derive(Debug)]
struct CountingDisk {
    inner: Arc<dyn Disk>,
    reads: AtomicU64,
    writes: AtomicU64,
}

impl Disk for CountingDisk {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn len(&self) -> Result<u64> {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.reads.fetch_add(1, Relaxed);
        self.inner.read_at(offset, into)
    }
    fn read_vectored_at(&self, offset: u64, slices: &mut [&mut [u8]]) -> Result<()> {
        self.reads.fetch_add(1, Relaxed);
        self.inner.read_vectored_at(offset, slices)
    }
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.writes.fetch_add(1, Relaxed);
        self.inner.write_at(offset, from)
    }
    fn write_vectored_at(&self, offset: u64, slices: &[&[u8]]) -> Result<()> {
        self.writes.fetch_add(1, Relaxed);
        self.inner.write_vectored_at(offset, slices)
    }
    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }
    fn set_len(&self, len: u64) -> Result<()> {
        self.inner.set_len(len)
    }
    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.allocate(offset, len)
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.discard(offset, len)
    }
}

struct Scene {
    store: MemoryStore,
    device: Arc<CountingDisk>,
    fs: Arc<Filesystem>,
}

impl Scene {
    fn new(change: impl FnOnce(&mut Options)) -> Scene {
        let mut store = MemoryStore::new(256 << 20);
        let inner = store.disks.devices.remove(0);
        let device = Arc::new(CountingDisk { inner, reads: AtomicU64::new(0), writes: AtomicU64::new(0) });
        store.disks.devices.push(device.clone());
        let mut options = Options { background: false, kernel_caches: true, ..Options::default() };
        change(&mut options);
        let fs = store.open_with(options);
        Scene { store, device, fs }
    }

    fn file(&self, name: &str) -> InodeNumber {
        self.fs.mknod(&Caller::ROOT, ROOT, name.as_bytes(), 0o100_644, 0, 0).unwrap().inode
    }

    fn write(&self, file: InodeNumber, offset: usize, data: &[u8], direct: bool) {
        let flags = WriteFlags { direct, ..WriteFlags::default() };
        assert_eq!(self.fs.write(&Caller::ROOT, file, offset as u64, data, flags, Wait::Allowed).unwrap(), data.len());
    }

    fn read(&self, file: InodeNumber, offset: usize, size: usize, wait: Wait) -> Result<Vec<u8>> {
        self.fs.read(file, offset as u64, size, ReadFlags::default(), wait).map(|data| data.as_slice().to_vec())
    }

    /// Calls that reach the device during `run`: reads, writes.
    fn calls(&self, run: impl FnOnce()) -> (u64, u64) {
        let before = (self.device.reads.load(Relaxed), self.device.writes.load(Relaxed));
        run();
        (self.device.reads.load(Relaxed) - before.0, self.device.writes.load(Relaxed) - before.1)
    }

    fn close(self) {
        self.store.close(&self.fs);
    }
}

/// Bytes that tell every block from every other.
fn content(len: usize) -> Vec<u8> {
    let mut random = Random::new(len as u64);
    let mut bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    bytes.chunks_mut(BLOCK).for_each(|block| block[0] = random.below(256) as u8);
    bytes
}

fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut random = Random::new(seed);
    let mut order: Vec<usize> = (0..count).collect();
    (1..count).for_each(|at| order.swap(at, random.below(at as u64 + 1) as usize));
    order
}

#[test]
fn small_files_of_one_pass_leave_in_one_write() {
    let scene = Scene::new(|_| {});
    let files: Vec<InodeNumber> = (0..200).map(|number| scene.file(&format!("f{number}"))).collect();
    let text = content(200 * BLOCK);
    for (file, block) in files.iter().zip(text.chunks(BLOCK)) {
        scene.write(*file, 0, block, false);
    }
    let (_, writes) = scene.calls(|| scene.fs.sync().unwrap());
    assert!(writes <= 2, "{writes} writes for 200 files of one block");
    for (file, block) in files.iter().zip(text.chunks(BLOCK)) {
        assert!(scene.read(*file, 0, BLOCK, Wait::Allowed).unwrap() == block);
    }
    scene.close();
}

#[test]
fn scattered_blocks_of_a_pass_are_gathered_and_pieces_of_a_request_too() {
    let seed = seed_from_environment(1);
    let scene = Scene::new(|_| {});
    let file = scene.file("f");
    let text = content(8 * MIB);
    scene.write(file, 0, &vec![1; 8 * MIB], false);
    scene.fs.sync().unwrap();
    // Every second block, so that no two are one run.
    for block in shuffled(1024, seed).into_iter().map(|number| number * 2) {
        scene.write(file, block * BLOCK, &text[block * BLOCK..][..BLOCK], false);
    }
    let (_, writes) = scene.calls(|| scene.fs.sync().unwrap());
    assert!(writes <= 16, "SEED={seed}: {writes} writes for 1024 runs");
    // 1 MiB is 128 blocks of the old extent and 128 new ones, which lie together.
    let mut found = Vec::new();
    let (reads, _) = scene.calls(|| found = scene.read(file, MIB, MIB, Wait::Allowed).unwrap());
    assert!(reads <= 128 + 8, "SEED={seed}: {reads} reads for 256 pieces");
    for (number, block) in found.chunks(BLOCK).enumerate() {
        let expected = if number % 2 == 0 { &text[MIB + number * BLOCK..][..BLOCK] } else { &[1; BLOCK] };
        assert!(block == expected, "SEED={seed}: block {number}");
    }
    scene.close();
}

#[test]
fn pieces_that_lie_in_another_order_are_read_in_that_of_the_device() {
    let seed = seed_from_environment(1);
    let scene = Scene::new(|_| {});
    let (file, len) = (scene.file("f"), MIB / 2);
    let text = content(len);
    for block in shuffled(len / BLOCK, seed) {
        scene.write(file, block * BLOCK, &text[block * BLOCK..][..BLOCK], true);
    }
    scene.fs.sync().unwrap();
    let mut found = Vec::new();
    let (reads, _) = scene.calls(|| found = scene.read(file, 0, len, Wait::Allowed).unwrap());
    assert!(found == text, "SEED={seed}");
    assert!(reads <= 4, "SEED={seed}: {reads} reads for {} pieces", len / BLOCK);
    scene.close();
}

/// Both orders, checksums here and on the pool: the same bytes, and damage is found in every block of a large read.
#[test]
fn the_order_of_verifying_changes_nothing_but_speed() {
    for read_order in [ReadOrder::Submitted, ReadOrder::Reversed] {
        for checksum_inline_max_bytes in [0, usize::MAX] {
            let scene = Scene::new(|options| {
                (options.read_order, options.checksum_inline_max_bytes) = (read_order, checksum_inline_max_bytes);
            });
            let (file, text) = (scene.file("f"), content(3 * MIB + 777));
            scene.write(file, 0, &text, false);
            scene.fs.sync().unwrap();
            for (offset, size) in [(0, MIB), (MIB - 1, MIB), (2 * MIB + 5, MIB), (3 * MIB, MIB), (12345, 3 * MIB)] {
                let expected = &text[offset..text.len().min(offset + size)];
                assert!(scene.read(file, offset, size, Wait::Allowed).unwrap() == expected, "{read_order:?} {offset} {size}");
            }
            for damaged in [0, 63, 64, 255] {
                let error = with_damage(&scene, file, damaged, || scene.read(file, 0, MIB, Wait::Allowed).unwrap_err());
                let Error::Integrity { offset, .. } = error else { panic!("{error}") };
                assert_eq!(offset, (damaged * BLOCK) as u64, "{read_order:?}");
            }
            scene.close();
        }
    }
}

/// Runs with one byte of a block of the file flipped on the device.
fn with_damage<T>(scene: &Scene, file: InodeNumber, block: usize, run: impl FnOnce() -> T) -> T {
    let good = scene.read(file, block * BLOCK, BLOCK, Wait::Allowed).unwrap();
    let device = &scene.device.inner;
    let place = (0..device.len().unwrap()).step_by(BLOCK).find(|offset| {
        let mut bytes = [0; BLOCK];
        device.read_at(*offset, &mut bytes).unwrap();
        bytes == good[..]
    });
    let place = place.expect("the block is not on the device");
    let mut bad = good.clone();
    bad[100] ^= 1;
    device.write_at(place, &bad).unwrap();
    let result = run();
    device.write_at(place, &good).unwrap();
    result
}

#[test]
fn a_stream_does_not_displace_what_is_used_again_and_again() {
    let scene = Scene::new(|options| (options.kernel_caches, options.cache_bytes) = (false, 16 << 20));
    let budget = scene.fs.status()["cache"]["dirty_bytes_max"].as_u64().unwrap() as usize * 2;
    let (hot, stream) = (scene.file("hot"), scene.file("stream"));
    let text = content(budget / 4);
    scene.write(hot, 0, &text, false);
    let step = MIB;
    for offset in (0..budget * 3).step_by(step) {
        scene.write(stream, offset, &vec![7; step], false);
        scene.fs.sync().unwrap();
    }
    let read_hot = |wait| (0..text.len()).step_by(BLOCK * 16).rev().try_for_each(|at| scene.read(hot, at, BLOCK, wait).map(drop));
    read_hot(Wait::Allowed).unwrap();
    read_hot(Wait::Allowed).unwrap();
    for size in [step, BLOCK] {
        for offset in (0..budget * 3).step_by(size) {
            scene.read(stream, offset, size, Wait::Allowed).unwrap();
        }
        read_hot(Wait::Never).unwrap_or_else(|error| panic!("after a stream of reads of {size}: {error}"));
    }
    let error = scene.read(stream, 0, BLOCK, Wait::Never).unwrap_err();
    assert!(matches!(error, Error::WouldBlock(Reason::NotCached)), "the stream itself was kept: {error}");
    scene.close();
}

/// Direct writes of parts of blocks, whose neighbours are written and written back at the same time.
#[test]
fn parts_of_a_block_written_side_by_side_are_all_there() {
    const SECTOR: usize = 512;
    const WRITERS: usize = BLOCK / SECTOR;
    for kernel_caches in [true, false] {
        // The smallest cache: clean segments go at once.
        let scene = Scene::new(|options| (options.kernel_caches, options.cache_bytes) = (kernel_caches, 0));
        let file = scene.file("f");
        let blocks = 16;
        scene.write(file, 0, &vec![0xff; blocks * BLOCK], true);
        for round in 0..200_u8 {
            std::thread::scope(|scope| {
                for writer in 0..WRITERS {
                    let scene = &scene;
                    scope.spawn(move || {
                        for block in 0..blocks {
                            let data = [round.wrapping_mul(8).wrapping_add(writer as u8); SECTOR];
                            scene.write(file, block * BLOCK + writer * SECTOR, &data, true);
                        }
                    });
                }
            });
            let found = scene.read(file, 0, blocks * BLOCK, Wait::Allowed).unwrap();
            for (number, sector) in found.chunks(SECTOR).enumerate() {
                let expected = round.wrapping_mul(8).wrapping_add((number % WRITERS) as u8);
                assert!(sector.iter().all(|byte| *byte == expected), "round {round}, sector {number}: {:?}", &sector[..4]);
            }
        }
        scene.close();
    }
}
