//! All operations at once: many threads on few names in a store that is nearly full and a cache that is too small, with the background
//! threads running, so that ENOSPC, eviction, checkpoints and forgotten maps meet. Afterwards the store is whole. Built with debug
//! assertions (`make stress`) every lock asserts its rank. STRESS_SECONDS says how long.

use crate::memory_store::MemoryStore;
use crate::simulated_disk::{Random, seed_from_environment};
use std::sync::{RwLock, mpsc};
use std::time::{Duration, Instant};
use sumfs::error::{Error, Result};
use sumfs::fs::{Caller, FallocateMode, Filesystem, Options, ReadFlags, RenameMode, SetAttributes, WriteFlags, XattrMode};
use sumfs::lock::Wait;
use sumfs::units::InodeNumber;

const THREADS: u64 = 8;
const NAMES: u64 = 12;
const STORE_BYTES: u64 = 24 << 20;
const FILE_BYTES_MAX: u64 = 6 << 20;
const SECONDS: u64 = 3;
const ROOT: InodeNumber = InodeNumber::ROOT;
const CALLER: Caller = Caller::ROOT;

struct Worker<'a> {
    fs: &'a Filesystem,
    /// The kernel lets nobody change a directory while another looks a name up in it.
    directory: &'a RwLock<()>,
    random: Random,
}

impl Worker<'_> {
    fn name(&mut self) -> Vec<u8> {
        format!("f{}", self.random.below(NAMES)).into_bytes()
    }

    fn step(&mut self) -> Result<()> {
        let name = self.name();
        match self.random.below(16) {
            0 => {
                let _changing = self.directory.write().unwrap();
                let made = self.fs.mknod(&CALLER, ROOT, &name, 0o100_644, 0, 0)?;
                self.fs.forget(made.inode, 1);
                Ok(())
            }
            1 => {
                let _changing = self.directory.write().unwrap();
                self.fs.unlink(ROOT, &name)
            }
            2 => {
                let (to, mode) = (self.name(), self.random.below(3));
                let mode = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange][mode as usize];
                let _changing = self.directory.write().unwrap();
                self.fs.rename(ROOT, &name, ROOT, &to, mode)
            }
            3 => {
                let _looking = self.directory.read().unwrap();
                self.fs.readdirplus(ROOT, 0, &mut |entry, _| {
                    if entry.name != b"." && entry.name != b".." {
                        self.fs.forget(entry.inode, 1);
                    }
                    true
                })
            }
            4 if self.random.below(8) == 0 => self.fs.sync(),
            5 => {
                let to = self.name();
                let _changing = self.directory.write().unwrap();
                let found = self.fs.lookup(ROOT, &name)?.inode;
                self.link(found, &to)
            }
            6 => {
                let made = self.fs.tmpfile(&CALLER, ROOT, 0o600, 0)?.inode;
                let used = self.use_file(made);
                let _changing = self.directory.write().unwrap();
                self.link(made, &name).and(used)
            }
            _ => {
                let looking = self.directory.read().unwrap();
                let found = self.fs.lookup(ROOT, &name)?.inode;
                drop(looking);
                let result = self.use_file(found);
                self.fs.forget(found, 1);
                result
            }
        }
    }

    /// Gives a file that is known once one more name, and forgets it.
    fn link(&self, file: InodeNumber, name: &[u8]) -> Result<()> {
        let linked = self.fs.link(file, ROOT, name);
        self.fs.forget(file, 1 + u64::from(linked.is_ok()));
        linked.map(|_| ())
    }

    fn use_file(&mut self, file: InodeNumber) -> Result<()> {
        let offset = self.random.below(FILE_BYTES_MAX);
        let whole = offset / 4096 * 4096;
        let magnitude = 6 + self.random.below(13);
        let len = 1 + self.random.below(1 << magnitude);
        match self.random.below(10) {
            0..4 => self.write(file, offset, whole, len),
            4 | 5 => self.fs.read(file, offset, len as usize, ReadFlags::default(), Wait::Allowed).map(|_| ()),
            6 => {
                let size = Some(self.random.below(2) * offset);
                self.fs.setattr(&CALLER, file, &SetAttributes { size, ..SetAttributes::default() }).map(|_| ())
            }
            7 => {
                use FallocateMode::{Allocate, AllocateKeepSize, PunchHole, ZeroRange};
                let mode = [Allocate, AllocateKeepSize, PunchHole, ZeroRange][self.random.below(4) as usize];
                self.fs.fallocate(&CALLER, file, offset, len, mode)
            }
            8 => {
                let (answer, answered) = mpsc::channel();
                self.fs.fsync(file, false, Box::new(move |result| drop(answer.send(result))));
                answered.recv_timeout(Duration::from_secs(300)).expect("fsync is not answered")
            }
            _ => {
                self.fs.setxattr(&CALLER, file, b"user.x", &[1; 40], XattrMode::Any)?;
                self.fs.removexattr(&CALLER, file, b"user.x")
            }
        }
    }

    fn write(&mut self, file: InodeNumber, offset: u64, whole: u64, len: u64) -> Result<()> {
        let flags = WriteFlags {
            direct: self.random.below(3) == 0,
            sync: self.random.below(16) == 0,
            from_cache: false,
            kill_suid: false,
        };
        let (at, len) = if flags.direct { (whole, len.next_multiple_of(4096)) } else { (offset, len) };
        let data = vec![self.random.below(256) as u8; len as usize];
        let write = |wait| self.fs.write(&CALLER, file, at, &data, flags, wait);
        match write(Wait::Never) {
            Err(Error::WouldBlock(_)) => write(Wait::Allowed).map(|_| ()),
            result => result.map(|_| ()),
        }
    }
}

/// Answers that the others' operations explain.
fn is_expected(result: &Result<()>) -> bool {
    use Error::{Exists, NoSpace, NoXattr, NotFound, Stale};
    matches!(result, Ok(()) | Err(Exists | NoSpace | NotFound | Stale | NoXattr))
}

#[test]
fn all_operations_at_once_leave_the_store_whole() {
    let seed = seed_from_environment(1);
    let seconds = std::env::var("STRESS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SECONDS);
    let store = MemoryStore::new(STORE_BYTES);
    let fs = store.open_with(Options { cache_bytes: 1 << 16, commit_interval_ms: 200, ..Options::default() });
    let directory = RwLock::new(());
    let until = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (fs, directory) = (&fs, &directory);
            scope.spawn(move || {
                let mut worker = Worker { fs, directory, random: Random::new(seed * THREADS + number) };
                while Instant::now() < until {
                    let result = worker.step();
                    assert!(is_expected(&result), "SEED={seed}: {result:?}; read-only: {:?}", fs.read_only_reason());
                }
            });
        }
    });
    println!("{}", fs.status());
    assert_eq!(fs.read_only_reason(), None, "SEED={seed}");
    store.close(&fs);
}
