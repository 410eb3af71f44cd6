//! D10 in the moments in which it matters: the data moves on while a scrub has a bad block in its hand. The device lets the test act
//! right before it writes, or right after it has read, one place.

use crate::memory_store::{MemoryStore, Shape};
use crate::operations::pattern;
use crate::tree::read_bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use sumfs::disk::Disk;
use sumfs::disk::memory::MemoryDisk;
use sumfs::disk::over::OverDisk;
use sumfs::error::{Error, Result};
use sumfs::fs::{Caller, Filesystem, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::{BLOCK, BLOCK_SIZE, InodeNumber};

const ROOT: InodeNumber = InodeNumber::ROOT;
const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const STORE_BYTES: u64 = 17 << 20;
const FILE_BLOCKS: usize = 8;
const BAD: usize = 3;

/// Taken out before it runs, for it uses the disk itself.
type Act = Box<dyn FnOnce() + Send>;

struct Meddled {
    inner: MemoryDisk,
    /// Place and act.
    before_write: Mutex<Option<(u64, Act)>>,
    after_read: Mutex<Option<(u64, Act)>>,
}

impl std::fmt::Debug for Meddled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meddled")
    }
}

fn act(waiting: &Mutex<Option<(u64, Act)>>, offset: u64, bytes: usize) {
    let due = waiting.lock().take_if(|(place, _)| (offset..offset + bytes as u64).contains(place));
    if let Some((_, act)) = due {
        act();
    }
}

impl OverDisk for Meddled {
    fn below(&self) -> &dyn Disk {
        &self.inner
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.inner.read_at(offset, into)?;
        act(&self.after_read, offset, into.len());
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        act(&self.before_write, offset, from.len());
        self.inner.write_at(offset, from)
    }
}

/// A store with two copies and a file, the first copy of block `BAD` of which is damaged.
struct Scene {
    store: MemoryStore,
    disk: Arc<Meddled>,
    fs: Arc<Filesystem>,
    file: InodeNumber,
    place: u64,
}

impl Scene {
    fn new() -> Scene {
        let mut store = MemoryStore::shaped(STORE_BYTES, Shape::DUP_ONE);
        let len = store.disks.devices[0].len().unwrap();
        let inner = MemoryDisk::new("device", len);
        let mut block = vec![0; BLOCK];
        for at in [0, len - BLOCK_SIZE] {
            store.disks.devices[0].read_at(at, &mut block).unwrap();
            inner.write_at(at, &block).unwrap();
        }
        let disk = Arc::new(Meddled { inner, before_write: Mutex::default(), after_read: Mutex::default() });
        store.disks.devices[0] = disk.clone();
        let fs = store.open();
        let file = fs.mknod(&CALLER, ROOT, b"file", 0o100_644, 0, 0).unwrap().inode;
        write(&fs, file, 0, &pattern(1, FILE_BLOCKS * BLOCK)).unwrap();
        fs.sync().unwrap();
        let layout = fs.file_layout(file).unwrap();
        let place = layout["ranges"][0]["device_offset"].as_u64().unwrap() + (BAD * BLOCK) as u64;
        disk.inner.write_at(place + 7, b"damage").unwrap();
        Scene { store, disk, fs, file, place }
    }

    /// Overwrites the bad block, so that its old place is free once nobody reads it, and fills the store, which would take it.
    fn move_on(&self) -> Act {
        let (fs, file) = (self.fs.clone(), self.file);
        Box::new(move || {
            write(&fs, file, (BAD * BLOCK) as u64, &pattern(2, BLOCK)).unwrap();
            fs.sync().unwrap();
            let filler = fs.mknod(&CALLER, ROOT, b"filler", 0o100_644, 0, 0).unwrap().inode;
            let mut at = 0;
            while write(&fs, filler, at, &pattern(at, BLOCK)).is_ok() {
                at += BLOCK_SIZE;
            }
            assert!(at > STORE_BYTES / 2, "{at} bytes fill the store");
            fs.sync().unwrap();
        })
    }

    fn scrub(&self) -> serde_json::Value {
        self.fs.scrub_start(0).unwrap();
        while self.fs.scrub_step().unwrap() {}
        self.fs.scrub_status(true).unwrap()
    }

    /// Everything is what was written last.
    fn assert_sound(&self) {
        assert!(self.disk.before_write.lock().is_none() && self.disk.after_read.lock().is_none(), "the act has run");
        assert!(read_bytes(&self.fs, self.file, (BAD * BLOCK) as u64, BLOCK).unwrap() == pattern(2, BLOCK));
        let filler = self.fs.lookup(ROOT, b"filler").unwrap();
        for at in (0..filler.size).step_by(BLOCK) {
            assert!(read_bytes(&self.fs, filler.inode, at, BLOCK).unwrap() == pattern(at, BLOCK), "byte {at} of what came later");
        }
        self.store.close(&self.fs);
    }
}

fn write(fs: &Filesystem, file: InodeNumber, offset: u64, bytes: &[u8]) -> std::result::Result<(), Error> {
    fs.write(&CALLER, file, offset, bytes, WriteFlags::default(), Wait::Allowed).map(|_| ())
}

#[test]
fn a_repair_hits_nobody_when_the_data_moves_on_right_before_its_write() {
    let scene = Scene::new();
    *scene.disk.before_write.lock() = Some((scene.place, scene.move_on()));
    let status = scene.scrub();
    assert_eq!(status["repaired_blocks"], 1, "{status}");
    scene.assert_sound();
}

#[test]
fn a_bad_block_that_nobody_names_any_more_is_no_damage() {
    let scene = Scene::new();
    *scene.disk.after_read.lock() = Some((scene.place, scene.move_on()));
    let status = scene.scrub();
    assert_eq!((&status["bad_blocks"], &status["damage"]["ranges"]), (&0.into(), &serde_json::json!([])), "{status}");
    scene.assert_sound();
}
