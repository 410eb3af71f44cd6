//! The workload of the I/O error tests: a fixed list of steps that touches every part of a store, run on a simulated machine beside a
//! model and a history, so that at any moment it is known what was acknowledged.

use crate::durability::History;
use crate::execution::{Effect, Event};
use crate::memory_store::MemoryStore;
use crate::operations::pattern;
use crate::reference_model::{Content, FileBytes, Id, Model, Node, REGULAR};
use crate::simulated_disk::SimulatedPower;
use crate::tree::Walk;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use sumfs::error::{Error, Result as FsResult};
use sumfs::fs::{Caller, Filesystem, Options, ReadFlags, RenameMode, SetAttributes, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::InodeNumber;

pub const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
pub const ROOT: InodeNumber = InodeNumber::ROOT;
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
pub const MODE: u32 = REGULAR | 0o644;

/// How a write reaches the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Cached,
    Direct,
    Sync,
}

/// One step; files are named by their names in the root directory. A step about a name that is not there does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Mount,
    Create(&'static str),
    Write { name: &'static str, offset: u64, len: usize, how: How },
    Read(&'static str),
    Fsync(&'static str),
    Rename(&'static str, &'static str),
    Unlink(&'static str),
    Truncate(&'static str, u64),
    Sync,
    Shutdown,
}

const fn write(name: &'static str, offset: u64, len: usize, how: How) -> Step {
    Step::Write { name, offset, len, how }
}

/// Everything that an error could hit: the first mount, new files, overwriting, partial blocks warm and cold, direct and synchronous
/// writes, renames over, deletion, checkpoints (every shutdown makes one) and mounting again.
pub const MIXED: &[Step] = &[
    Step::Mount,
    Step::Create("a"),
    write("a", 0, 100_000, How::Cached),
    Step::Fsync("a"),
    Step::Create("b"),
    write("b", 0, 50_000, How::Cached),
    Step::Rename("b", "a"),
    Step::Fsync("a"),
    Step::Create("c"),
    write("c", 10, 9_000, How::Cached),
    Step::Sync,
    Step::Truncate("a", 30_001),
    write("a", 28_000, 5_000, How::Cached),
    Step::Shutdown,
    Step::Mount,
    Step::Read("a"),
    write("c", 4_000, 200, How::Cached),
    Step::Fsync("c"),
    write("a", 8_192, 8_192, How::Direct),
    write("c", 0, 4_096, How::Sync),
    Step::Create("d"),
    write("d", 0, 1_100_000, How::Cached),
    Step::Fsync("d"),
    Step::Fsync("d"),
    Step::Truncate("d", 0),
    write("d", 4_000, 30_000, How::Cached),
    Step::Rename("d", "e"),
    Step::Unlink("c"),
    Step::Sync,
    Step::Create("f"),
    write("f", 0, 12_288, How::Cached),
    Step::Rename("f", "e"),
    Step::Create("g"),
    write("g", 0, 700, How::Direct),
    Step::Shutdown,
    Step::Mount,
    Step::Read("e"),
    Step::Read("g"),
    Step::Unlink("a"),
    Step::Fsync("g"),
    Step::Shutdown,
];

/// A store, what the user sees of it, and what it has promised.
pub struct Run {
    pub power: SimulatedPower,
    pub store: MemoryStore,
    /// None: not mounted.
    pub fs: Option<Arc<Filesystem>>,
    pub model: Model,
    pub history: History,
    /// The last step that was answered with success.
    pub complete: usize,
    options: Options,
    fill: u64,
}

impl Run {
    /// A new store, not mounted.
    pub fn new(seed: u64, options: Options) -> Run {
        let power = SimulatedPower::new(seed);
        let store = MemoryStore::on(&power, 48 << 20);
        let (model, history) = (Model::new(), History::new(Model::new()));
        Run { power, store, fs: None, model, history, complete: 0, options, fill: 0 }
    }

    pub fn fs(&self) -> &Arc<Filesystem> {
        self.fs.as_ref().expect("the store is mounted")
    }

    /// Runs the steps up to the first error.
    pub fn all(&mut self, steps: &[Step]) -> Result<(), (Step, Error)> {
        steps.iter().try_for_each(|step| self.step(*step).map_err(|error| (*step, error)))
    }

    /// One step. A write that failed may be there in parts, and is in the history as begun; other steps that fail change nothing.
    pub fn step(&mut self, step: Step) -> FsResult<()> {
        let before = self.durable_sequence();
        let mut next = self.model.clone();
        let Some((result, effect)) = self.act(step, &mut next) else { return Ok(()) };
        let has_committed = step == Step::Shutdown || self.durable_sequence() != before;
        match &result {
            Ok(()) => {
                self.model = next;
                self.complete = self.history.add(&self.model, effect, has_committed);
            }
            Err(_) if self.is_latched() && matches!(step, Step::Write { .. }) => {
                self.history.add(&next, not_acknowledged(effect), false);
            }
            Err(_) => {}
        }
        result
    }

    pub fn is_latched(&self) -> bool {
        self.fs.as_ref().is_some_and(|fs| fs.read_only_reason().is_some())
    }

    fn durable_sequence(&self) -> Option<u64> {
        self.fs.as_ref()?.status()["metadata"]["durable_sequence"].as_u64()
    }

    pub fn id(&self, name: &str) -> Option<Id> {
        self.model.lookup(ROOT.0, name.as_bytes()).ok()
    }

    /// What the step answers, and what it changes; `next` becomes the model after it. None: there is nothing to do.
    fn act(&mut self, step: Step, next: &mut Model) -> Option<(FsResult<()>, Effect)> {
        let touched = |nodes: &[Id], event: Option<Event>| Effect { touched: nodes.to_vec(), event };
        match step {
            Step::Mount => {
                let opened = Filesystem::open(self.store.disks.clone(), self.options.clone());
                *next = next.without_nameless();
                Some((opened.map(|fs| self.fs = Some(fs)), Effect::default()))
            }
            Step::Shutdown => {
                let result = self.fs().shutdown();
                if result.is_ok() {
                    self.fs = None;
                }
                Some((result, touched(&[], Some(Event::SyncedAll))))
            }
            Step::Sync => Some((self.fs().sync(), touched(&[], Some(Event::SyncedAll)))),
            Step::Create(name) => self.create(name, next),
            Step::Write { name, offset, len, how } => self.write(name, (offset, len, how), next),
            Step::Truncate(name, size) => {
                let file = self.id(name)?;
                next.set_size(file, size).ok()?;
                let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
                let result = self.fs().setattr(&CALLER, InodeNumber(file), &change);
                Some((result.map(|_| ()), touched(&[file], Some(Event::Resized { file }))))
            }
            Step::Fsync(name) => {
                let node = self.id(name)?;
                Some((fsync(self.fs(), InodeNumber(node)), touched(&[], Some(Event::Synced { node }))))
            }
            Step::Read(name) => Some((self.read(self.id(name)?), Effect::default())),
            Step::Rename(from, to) => self.rename(from, to, next),
            Step::Unlink(name) => {
                let file = next.unlink(ROOT.0, name.as_bytes()).ok()?;
                let result = self.fs().unlink(ROOT, name.as_bytes());
                if result.is_ok() {
                    self.forget(file, next);
                }
                Some((result, touched(&[ROOT.0, file], None)))
            }
        }
    }

    fn forget(&self, file: Id, next: &mut Model) {
        self.fs().forget(InodeNumber(file), 1);
        next.forget(file);
    }

    fn create(&self, name: &str, next: &mut Model) -> Option<(FsResult<()>, Effect)> {
        let made = self.fs().mknod(&CALLER, ROOT, name.as_bytes(), MODE, 0, 0);
        let id = made.as_ref().map_or(u64::MAX, |attributes| attributes.inode.0);
        next.create(ROOT.0, name.as_bytes(), id, Node::new(MODE, Content::File(FileBytes::default()))).ok()?;
        Some((made.map(|_| ()), Effect { touched: vec![ROOT.0, id], event: None }))
    }

    fn write(&mut self, name: &str, place: (u64, usize, How), next: &mut Model) -> Option<(FsResult<()>, Effect)> {
        let (file, (offset, len, how)) = (self.id(name)?, place);
        self.fill += 1;
        let data = pattern(self.fill, len);
        next.write(file, offset, &data).ok()?;
        let flags = WriteFlags { direct: how == How::Direct, sync: how == How::Sync, ..WriteFlags::default() };
        let result = self.fs().write(&CALLER, InodeNumber(file), offset, &data, flags, Wait::Allowed);
        let event = Event::Wrote { file, offset, end: offset + len as u64, is_durable: how == How::Sync };
        Some((result.map(|_| ()), Effect { touched: vec![file], event: Some(event) }))
    }

    /// Reads all of the file; other bytes than the model's are a panic, not an error.
    fn read(&self, file: Id) -> FsResult<()> {
        let expected = self.model.node(file).and_then(Node::file).expect("a file");
        let size = expected.size() as usize;
        let found = self.fs().read(InodeNumber(file), 0, size, ReadFlags::default(), Wait::Allowed)?;
        assert!(found.as_slice() == expected.read(0, size), "wrong bytes in inode {file}");
        Ok(())
    }

    fn rename(&self, from: &str, to: &str, next: &mut Model) -> Option<(FsResult<()>, Effect)> {
        let moved = self.id(from)?;
        let replaced = next.rename((ROOT.0, from.as_bytes()), (ROOT.0, to.as_bytes()), RenameMode::Replace).ok()?;
        let result = self.fs().rename(ROOT, from.as_bytes(), ROOT, to.as_bytes(), RenameMode::Replace);
        let mut effect = Effect { touched: vec![ROOT.0, moved], event: None };
        if let Some(file) = replaced {
            effect.touched.push(file);
            effect.event = Some(Event::Replaced { node: moved });
            if result.is_ok() {
                self.forget(file, next);
            }
        }
        Some((result, effect))
    }

    /// The tree as it reads now.
    pub fn tree(&self) -> Result<Model, String> {
        read_tree(self.fs(), &self.model)
    }
}

/// What a write that failed may have changed; it promised nothing.
fn not_acknowledged(effect: Effect) -> Effect {
    match effect.event {
        Some(Event::Wrote { file, offset, end, .. }) => {
            Effect { event: Some(Event::Wrote { file, offset, end, is_durable: false }), ..effect }
        }
        _ => effect,
    }
}

/// The tree of a file system, as far as `model` says where to look.
pub fn read_tree(fs: &Filesystem, model: &Model) -> Result<Model, String> {
    let interesting = |id| model.node(id).and_then(Node::file).map(|bytes| bytes.block_indexes().collect()).unwrap_or_default();
    Walk { fs, root: model.root(), nameless: &[], interesting: &interesting, direct: false }.read()
}

/// fsync, and its answer.
pub fn fsync(fs: &Filesystem, inode: InodeNumber) -> FsResult<()> {
    let (answer, answered) = mpsc::channel();
    fs.fsync(inode, false, Box::new(move |result| drop(answer.send(result))));
    answered.recv_timeout(REPLY_TIMEOUT).expect("fsync is answered")
}
