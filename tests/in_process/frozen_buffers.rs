//! A checksum is computed over memory that nobody can change any more (D9): while the device takes its time over a write, the same blocks
//! are written again. What is on the device must still match the checksums, and the newer bytes must come after it.

use crate::memory_store::MemoryStore;
use crate::operations::pattern;
use crate::tree::read_bytes;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use sumfs::disk::Disk;
use sumfs::disk::over::OverDisk;
use sumfs::error::Result;
use sumfs::fs::{Caller, Filesystem, Options, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::{BLOCK, InodeNumber};

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const ROOT: InodeNumber = InodeNumber::ROOT;
const TIMEOUT: Duration = Duration::from_secs(30);
const BLOCKS: usize = 16;

/// A device whose writes stop at a closed gate, with what they are to write in their hands.
#[derive(Debug)]
struct Gated {
    inner: Arc<dyn Disk>,
    /// Is it closed, and how many writes stand there?
    gate: Mutex<(bool, u64)>,
    changed: Condvar,
}

impl Gated {
    fn pass(&self) {
        let mut gate = self.gate.lock();
        gate.1 += 1;
        self.changed.notify_all();
        while gate.0 {
            self.changed.wait(&mut gate);
        }
        gate.1 -= 1;
    }

    fn close(&self) {
        self.gate.lock().0 = true;
    }

    fn open(&self) {
        self.gate.lock().0 = false;
        self.changed.notify_all();
    }

    fn wait_for_a_write(&self) {
        let mut gate = self.gate.lock();
        while gate.1 == 0 {
            assert!(!self.changed.wait_for(&mut gate, TIMEOUT).timed_out(), "nothing is written");
        }
    }
}

impl OverDisk for Gated {
    fn below(&self) -> &dyn Disk {
        &*self.inner
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.pass();
        self.inner.write_at(offset, from)
    }
}

fn write(fs: &Filesystem, file: InodeNumber, offset: usize, data: &[u8], wait: Wait) {
    fs.write(&CALLER, file, offset as u64, data, WriteFlags::default(), wait).unwrap();
}

fn begin_fsync(fs: &Filesystem, file: InodeNumber) -> mpsc::Receiver<Result<()>> {
    let (answer, answered) = mpsc::channel();
    fs.fsync(file, false, Box::new(move |result| drop(answer.send(result))));
    answered
}

#[test]
fn what_is_on_its_way_to_the_device_does_not_change() {
    for wait in [Wait::Allowed, Wait::Never] {
        let mut store = MemoryStore::new(64 << 20);
        let inner = store.disks.devices[0].clone();
        let gated = Arc::new(Gated { inner, gate: Mutex::default(), changed: Condvar::new() });
        store.disks.devices[0] = gated.clone();
        let fs = store.open_with(Options { background: false, ..Options::default() });
        let file = fs.mknod(&CALLER, ROOT, b"file", 0o100_644, 0, 0).unwrap().inode;
        let mut expected = pattern(1, BLOCKS * BLOCK);
        write(&fs, file, 0, &expected, Wait::Allowed);
        gated.close();
        std::thread::scope(|scope| {
            let syncing = scope.spawn(|| begin_fsync(&fs, file));
            gated.wait_for_a_write();
            // Whole blocks, parts of one, over a border, and a second time over what came meanwhile.
            for (offset, len) in [(3 * BLOCK, BLOCK), (5 * BLOCK + 100, 50), (8 * BLOCK - 10, 20), (3 * BLOCK + 7, 9)] {
                let data = pattern(offset as u64, len);
                write(&fs, file, offset, &data, wait);
                expected[offset..offset + len].copy_from_slice(&data);
            }
            let found = read_bytes(&fs, file, 0, expected.len()).unwrap();
            gated.open();
            syncing.join().unwrap().recv_timeout(TIMEOUT).expect("fsync is answered").unwrap();
            assert!(found == expected, "a read during the write");
        });
        // As a crash right now would leave it.
        store.check().unwrap_or_else(|wrong| panic!("{wait:?}: after the first fsync: {wrong}"));
        begin_fsync(&fs, file).recv_timeout(TIMEOUT).expect("fsync is answered").unwrap();
        store.close(&fs);
        let fs = store.open();
        assert!(read_bytes(&fs, file, 0, expected.len()).unwrap() == expected, "{wait:?}: after a remount");
        store.close(&fs);
    }
}
