//! Writers of the killing tests: each has a directory in which it creates, appends, renames and unlinks, and notes what fsync
//! acknowledged. Afterwards exactly that must be there (D8). They stop at their first error.

use crate::content::pattern;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WRITERS: u64 = 4;
const NAMES: u64 = 30;
const FILE_BYTES_MAX: u64 = 300_000;
/// Whatever takes longer hangs.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// What a name must show.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Acknowledged: no such name.
    Absent,
    /// Acknowledged: this content, as seed and length.
    Holds(u64, usize),
    /// An operation on it was not acknowledged: anything that is whole.
    Open,
}

/// A rename that was not acknowledged: its content is at one of two names.
#[derive(Clone, Debug)]
struct Moving {
    from: String,
    to: String,
    content: State,
}

/// A writer: its directory and what it knows of it.
pub struct Writer {
    pub directory: PathBuf,
    random: u64,
    states: BTreeMap<String, State>,
    moving: Option<Moving>,
}

impl Writer {
    pub fn new(directory: PathBuf, seed: u64) -> Writer {
        Writer { directory, random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, states: BTreeMap::new(), moving: None }
    }

    pub fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below
    }

    fn some_name(&mut self) -> String {
        format!("file-{}", self.random(NAMES))
    }

    fn state(&self, name: &str) -> State {
        self.states.get(name).cloned().unwrap_or(State::Absent)
    }

    fn set(&mut self, name: &str, state: State) {
        self.states.insert(name.to_owned(), state);
    }

    /// One operation up to its acknowledgement. An error leaves what it touched open.
    fn step(&mut self) -> io::Result<()> {
        match self.random(10) {
            0..=4 => self.replace_content(),
            5 => self.write_unsynced(),
            6 => self.append(),
            7 | 8 => self.rename(),
            _ => self.unlink(),
        }
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }

    fn replace_content(&mut self) -> io::Result<()> {
        let name = self.some_name();
        let (seed, length) = (self.random(1 << 40), self.random(FILE_BYTES_MAX) as usize);
        self.set(&name, State::Open);
        let file = File::create(self.directory.join(&name))?;
        file.write_all_at(&pattern(length, seed), 0)?;
        file.sync_all()?;
        self.set(&name, State::Holds(seed, length));
        Ok(())
    }

    /// Load that nobody acknowledges.
    fn write_unsynced(&mut self) -> io::Result<()> {
        let name = format!("unsynced-{}", self.random(5));
        let length = self.random(4 * FILE_BYTES_MAX) as usize;
        fs::write(self.directory.join(name), pattern(length, 3))
    }

    fn append(&mut self) -> io::Result<()> {
        let name = self.some_name();
        let State::Holds(seed, length) = self.state(&name) else { return Ok(()) };
        let more = self.random(50_000) as usize;
        self.set(&name, State::Open);
        let file = File::options().write(true).open(self.directory.join(&name))?;
        file.write_all_at(&pattern(length + more, seed)[length..], length as u64)?;
        file.sync_data()?;
        self.set(&name, State::Holds(seed, length + more));
        Ok(())
    }

    fn rename(&mut self) -> io::Result<()> {
        let (from, to) = (self.some_name(), self.some_name());
        let content = self.state(&from);
        if from == to || !matches!(content, State::Holds(..)) {
            return Ok(());
        }
        self.set(&from, State::Open);
        self.set(&to, State::Open);
        self.moving = Some(Moving { from: from.clone(), to: to.clone(), content: content.clone() });
        fs::rename(self.directory.join(&from), self.directory.join(&to))?;
        self.sync_directory()?;
        self.moving = None;
        self.set(&from, State::Absent);
        self.set(&to, content);
        Ok(())
    }

    fn unlink(&mut self) -> io::Result<()> {
        let name = self.some_name();
        if !matches!(self.state(&name), State::Holds(..)) {
            return Ok(());
        }
        self.set(&name, State::Open);
        fs::remove_file(self.directory.join(&name))?;
        self.sync_directory()?;
        self.set(&name, State::Absent);
        Ok(())
    }

    /// Compares the directory with what was acknowledged, and takes up what is there where nothing was. Returns how many names
    /// were compared.
    pub fn verify(&mut self, what: &str) -> u64 {
        if let Some(Moving { from, to, content }) = self.moving.take() {
            let State::Holds(seed, length) = content else { unreachable!("only files with content are renamed") };
            let is_at = |name: &str| fs::read(self.directory.join(name)).is_ok_and(|found| found == pattern(length, seed));
            let (at_from, at_to) = (is_at(&from), is_at(&to));
            assert!(at_from || at_to, "{what}: {} renamed from {from} to {to} is at neither", self.directory.display());
            let from_is_gone = !self.directory.join(&from).exists();
            assert!(at_from || from_is_gone, "{what}: {from} is half renamed");
            self.set(&from, if at_from { State::Holds(seed, length) } else { State::Absent });
            if at_to {
                self.set(&to, State::Holds(seed, length));
            }
        }
        let mut compared = 0;
        for (name, state) in &mut self.states {
            let path = self.directory.join(name);
            let shown = path.display();
            match state {
                State::Absent => assert!(!path.exists(), "{what}: {shown} was deleted and is there"),
                State::Holds(seed, length) => {
                    let found = fs::read(&path).unwrap_or_else(|error| panic!("{what}: {shown}: {error}"));
                    assert_eq!(found.len(), *length, "{what}: {shown}: length");
                    let expected = pattern(*length, *seed);
                    let differs = found.iter().zip(&expected).position(|(one, two)| one != two);
                    assert_eq!(differs, None, "{what}: {shown}: first difference");
                }
                State::Open => {
                    // Whatever it holds can be read; it is made anew later.
                    if path.exists() {
                        fs::read(&path).unwrap_or_else(|error| panic!("{what}: {shown}: {error}"));
                    }
                    continue;
                }
            }
            compared += 1;
        }
        compared
    }
}

/// SEED= or one of the clock's, printed.
pub fn seed() -> u64 {
    let given = std::env::var("SEED").ok().map(|text| text.parse().expect("SEED is a number"));
    let now = || {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64 & 0xffff_ffff)
    };
    let seed = given.unwrap_or_else(now);
    println!("SEED={seed}");
    seed
}

/// Lets all writers work until `acknowledged` operations are done, calls `end`, and waits for the writers, who stop at their first
/// error. Returns the number of acknowledged operations.
pub fn work_until(writers: &mut [Writer], acknowledged: u64, end: impl FnOnce()) -> u64 {
    let count = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in writers.iter_mut() {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) && writer.step().is_ok() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let begin = Instant::now();
        while count.load(Ordering::Relaxed) < acknowledged {
            if begin.elapsed() > PATIENCE {
                is_over.store(true, Ordering::Relaxed);
                panic!("{} of {acknowledged} operations", count.load(Ordering::Relaxed));
            }
            std::thread::yield_now();
        }
        // A panic must end the writers too, who are waited for.
        let ended = catch_unwind(AssertUnwindSafe(end));
        is_over.store(true, Ordering::Relaxed);
        ended.unwrap_or_else(|panic| resume_unwind(panic));
    });
    count.load(Ordering::Relaxed)
}

/// A directory and a writer each, durable.
pub fn writers_in(root: &Path, seed: u64) -> Vec<Writer> {
    let writer = |number| {
        let directory = root.join(format!("writer-{number}"));
        fs::create_dir(&directory).unwrap();
        Writer::new(directory, seed.wrapping_add(number))
    };
    let writers = (0..WRITERS).map(writer).collect();
    File::open(root).unwrap().sync_all().unwrap();
    writers
}
