//! A handler that panics answers EIO and makes the store read-only, and nothing hangs afterwards: what was synced is there when the
//! store is opened again. The real adapter and the real FUSE library run here; the kernel's part of the protocol is played over a
//! socket, and a disk below panics when it is told to.

use crate::memory_store::MemoryStore;
use crate::operations::pattern;
use parking_lot::Mutex;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;
use sumfs::disk::Disk;
use sumfs::disk::over::OverDisk;
use sumfs::error::Result;
use sumfs::fs::{Caller, Filesystem, Options, ReadFlags, WaitInline, WriteFlags};
use sumfs::fuse::device::{self, Channel};
use sumfs::fuse::dispatch::Dispatcher;
use sumfs::fuse::handshake::{self, Wishes};
use sumfs::fuse::serve::Server;
use sumfs::fuse::session::CacheMode;
use sumfs::lock::Wait;
use sumfs::units::InodeNumber;

const EIO: i32 = -5;
const EROFS: i32 = -30;
/// Whatever takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);
const STORE_BYTES: u64 = 64 << 20;
const FILE_BYTES: usize = 40_000;
const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    Flush,
}

/// Which disk panics next, and at what; it does so once.
#[derive(Debug, Default)]
struct Trap(Mutex<Option<(&'static str, Access)>>);

impl Trap {
    fn pass(&self, disk: &'static str, access: Access) {
        if self.0.lock().take_if(|set| *set == (disk, access)).is_some() {
            panic!("on purpose: {access:?} of {disk}");
        }
    }
}

#[derive(Debug)]
struct TrapDisk {
    inner: Arc<dyn Disk>,
    role: &'static str,
    trap: Arc<Trap>,
}

impl OverDisk for TrapDisk {
    fn below(&self) -> &dyn Disk {
        &*self.inner
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.trap.pass(self.role, Access::Read);
        self.inner.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.trap.pass(self.role, Access::Write);
        self.inner.write_at(offset, from)
    }

    fn flush(&self) -> Result<()> {
        self.trap.pass(self.role, Access::Flush);
        self.inner.flush()
    }
}

/// The kernel's end of the connection.
struct Kernel {
    socket: UnixStream,
    unique: u64,
}

impl Kernel {
    const GETATTR: u32 = 3;
    const READ: u32 = 15;
    const WRITE: u32 = 16;
    const STATFS: u32 = 17;
    const FSYNC: u32 = 20;
    const INIT: u32 = 26;

    fn send(&mut self, opcode: u32, node: u64, parts: &[&[u8]]) {
        self.unique += 1;
        let length = 40 + parts.iter().map(|part| part.len()).sum::<usize>() as u32;
        let mut message = Vec::new();
        message.extend(words(&[length, opcode]));
        message.extend(self.unique.to_le_bytes());
        message.extend(node.to_le_bytes());
        message.extend(words(&[0, 0, 1, 0]));
        parts.iter().for_each(|part| message.extend_from_slice(part));
        self.socket.write_all(&message).unwrap();
    }

    /// The error (0: none) and the payload of the answer to the last request.
    fn receive(&mut self, what: &str) -> (i32, Vec<u8>) {
        let mut message = vec![0; 2 << 20];
        let count = self.socket.read(&mut message).unwrap_or_else(|error| panic!("{what}: no answer: {error}"));
        message.truncate(count);
        assert_eq!(message[8..16], self.unique.to_le_bytes(), "{what}: the answer to another request");
        (i32::from_le_bytes(message[4..8].try_into().unwrap()), message.split_off(16))
    }

    fn ask(&mut self, what: &str, opcode: u32, node: InodeNumber, parts: &[&[u8]]) -> (i32, Vec<u8>) {
        self.send(opcode, node.0, parts);
        self.receive(what)
    }

    fn read(&mut self, node: InodeNumber, length: usize) -> (i32, Vec<u8>) {
        self.ask("READ", Kernel::READ, node, &[&[0; 16], &words(&[length as u32, 0, 0, 0, 0, 0])])
    }

    fn write(&mut self, node: InodeNumber, data: &[u8], flags: i32) -> i32 {
        let header = words(&[data.len() as u32, 0, 0, 0, flags as u32, 0]);
        self.ask("WRITE", Kernel::WRITE, node, &[&[0; 16], &header, data]).0
    }

    fn fsync(&mut self, node: InodeNumber) -> i32 {
        self.ask("FSYNC", Kernel::FSYNC, node, &[&[0; 16]]).0
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A served store that was opened afresh, so that nothing of it is in memory: `file` and `other` were synced before.
struct Scene {
    store: MemoryStore,
    fs: Arc<Filesystem>,
    trap: Arc<Trap>,
    kernel: Kernel,
    served: JoinHandle<std::io::Result<()>>,
    file: InodeNumber,
    other: InodeNumber,
}

impl Scene {
    fn new(wait_inline: WaitInline) -> Scene {
        let store = MemoryStore::new(STORE_BYTES);
        let fs = store.open();
        let make = |name: &str, seed| {
            let inode = fs.mknod(&CALLER, InodeNumber::ROOT, name.as_bytes(), libc::S_IFREG | 0o644, 0, 0).unwrap().inode;
            fs.write(&CALLER, inode, 0, &pattern(seed, FILE_BYTES), WriteFlags::default(), Wait::Allowed).unwrap();
            inode
        };
        let (file, other) = (make("file", 1), make("other", 2));
        store.close(&fs);
        drop(fs);
        let trap = Arc::new(Trap::default());
        let fs =
            Filesystem::open(trapped(&store, &trap), Options { background: false, wait_inline, ..Options::default() }).unwrap();
        let (kernel, served) = serve(&fs);
        Scene { store, fs, trap, kernel, served, file, other }
    }

    fn set(&self, disk: &'static str, access: Access) {
        *self.trap.0.lock() = Some((disk, access));
    }

    /// The panic has happened: the store is read-only and says why, every request is answered, what was synced is there.
    fn end(mut self, reason: &str) {
        assert!(self.trap.0.lock().is_none(), "nothing came to the trap");
        // Told after the reply was dropped.
        let begin = std::time::Instant::now();
        let found = loop {
            match self.fs.read_only_reason() {
                Some(found) => break found,
                None => assert!(begin.elapsed() < PATIENCE, "the store is not read-only"),
            }
            std::thread::yield_now();
        };
        assert!(self.fs.stats().panics.load(Relaxed) > 0, "the panic was not counted");
        assert!(found.contains(reason), "{found}");
        let kernel = &mut self.kernel;
        for node in [self.file, self.other] {
            assert_eq!(kernel.write(node, b"more", 0), EROFS);
            assert_eq!(kernel.ask("GETATTR", Kernel::GETATTR, node, &[&[0; 16]]).0, 0);
            // Whether it had something undurable decides what it says; that it says something is what counts.
            kernel.fsync(node);
        }
        assert_eq!(kernel.ask("STATFS", Kernel::STATFS, InodeNumber::ROOT, &[]).0, 0);
        let (error, data) = kernel.read(self.other, FILE_BYTES);
        assert_eq!((error, data == pattern(2, FILE_BYTES)), (0, true), "the file that had no part in it");
        drop(self.kernel);
        self.served.join().unwrap().unwrap();
        self.fs.shutdown().expect_err("a store with a fault is not closed cleanly");
        drop(self.fs);
        self.store.check().expect("after the panic");
        let fs = self.store.open();
        for (name, seed) in [("file", 1), ("other", 2)] {
            let inode = fs.lookup(InodeNumber::ROOT, name.as_bytes()).unwrap().inode;
            let read = fs.read(inode, 100, FILE_BYTES, ReadFlags::default(), Wait::Allowed).unwrap();
            assert!(read.as_slice() == &pattern(seed, FILE_BYTES)[100..], "{name}");
        }
        self.store.close(&fs);
    }
}

fn trapped(store: &MemoryStore, trap: &Arc<Trap>) -> sumfs::store::Disks {
    let wrap = |role: &'static str, inner: &Arc<dyn Disk>| -> Arc<dyn Disk> {
        Arc::new(TrapDisk { inner: inner.clone(), role, trap: trap.clone() })
    };
    let disks = &store.disks;
    sumfs::store::Disks {
        superblock: wrap("superblock", &disks.superblock),
        journal: wrap("journal", &disks.journal),
        index: wrap("index", &disks.index),
        sled: None,
        devices: disks.devices.iter().map(|device| wrap("device", device)).collect(),
        images: None,
    }
}

fn serve(fs: &Arc<Filesystem>) -> (Kernel, JoinHandle<std::io::Result<()>>) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    // One message a request, as from /dev/fuse.
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let socket = UnixStream::from(ours);
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut kernel = Kernel { socket, unique: 0 };
    kernel.send(Kernel::INIT, 0, &[&words(&[7, 36, 1 << 20, 0]), &[0; 48]]);
    let agreed = handshake::introduce(theirs, Wishes { cache: CacheMode::None, over_rings: false, acl: true }).unwrap();
    assert_eq!(kernel.receive("INIT").0, 0);
    // As if there were a second reading thread, so that `Idle` means this one.
    let dispatcher = Dispatcher::new(fs.clone(), 2, 2, true).unwrap();
    let server = Server::new(fs.clone(), dispatcher, agreed.dialect);
    let channel = Arc::new(Channel::new(agreed.device));
    (kernel, std::thread::spawn(move || device::serve(&server, &channel, None)))
}

#[test]
fn a_panic_on_a_reading_thread() {
    let mut scene = Scene::new(WaitInline::Idle);
    scene.set("device", Access::Read);
    assert_eq!(scene.kernel.read(scene.file, FILE_BYTES).0, EIO);
    scene.end("internal error in read: on purpose: Read of device");
}

#[test]
fn a_panic_on_a_worker() {
    let mut scene = Scene::new(WaitInline::Off);
    scene.set("device", Access::Read);
    assert_eq!(scene.kernel.read(scene.file, FILE_BYTES).0, EIO);
    scene.end("internal error in a worker: on purpose: Read of device");
}

#[test]
fn a_panic_in_a_synchronous_write() {
    let mut scene = Scene::new(WaitInline::Idle);
    scene.set("device", Access::Write);
    // The same bytes again, so that it does not matter which of them are left.
    assert_eq!(scene.kernel.write(scene.file, &pattern(1, FILE_BYTES), libc::O_SYNC), EIO);
    scene.end("on purpose: Write of device");
}

#[test]
fn a_panic_while_fsync_writes_back() {
    let mut scene = Scene::new(WaitInline::Idle);
    assert_eq!(scene.kernel.write(scene.file, &pattern(1, FILE_BYTES), 0), 0);
    scene.set("device", Access::Write);
    assert_eq!(scene.kernel.fsync(scene.file), EIO);
    scene.end("on purpose: Write of device");
}

#[test]
fn a_panic_in_a_commit() {
    for (disk, access) in [("device", Access::Flush), ("journal", Access::Write), ("journal", Access::Flush)] {
        let mut scene = Scene::new(WaitInline::Idle);
        assert_eq!(scene.kernel.write(scene.file, &pattern(1, FILE_BYTES), 0), 0);
        scene.set(disk, access);
        assert_eq!(scene.kernel.fsync(scene.file), EIO, "{access:?} of {disk}");
        scene.end(&format!("on purpose: {access:?} of {disk}"));
    }
}
