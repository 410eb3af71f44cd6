//! The workload: writers, each with a directory of its own, who note what they did, and when. "When" is both a tick of a clock that
//! all share and a position in the record of the file below: what was acknowledged before a power cut is known for each of them.
//!
//! Files stay open, so that the kernel holds dirty pages of them (cache=writeback) over many operations.

use super::Random;
use super::rig::{Outcome, Rig};
use crate::content::pattern;
use crate::durability::{Effect, Event, History};
use crate::recording_file::{Counter, RecordingFile};
use crate::reference_model::{Content, FileBytes, Id, Model, Node, ROOT};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use sumfs::fs::RenameMode;

const NAMES: u64 = 8;
const FILE_BYTES_MAX: u64 = 2 << 20;
const WRITE_BYTES_MIN: usize = 4096;

/// A moment of the run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moment {
    /// Of the clock; no two are equal.
    pub tick: u64,
    /// Records of the file at that time, or a moment later.
    pub position: usize,
}

/// The clock of a run.
pub struct Clock {
    counter: Counter,
    ticks: AtomicU64,
}

impl Clock {
    pub fn new(file: &RecordingFile) -> Arc<Clock> {
        Arc::new(Clock { counter: file.counter(), ticks: AtomicU64::new(0) })
    }

    pub fn now(&self) -> Moment {
        Moment { tick: self.ticks.fetch_add(1, Ordering::SeqCst), position: self.counter.position() }
    }
}

/// When an operation of a history began and when it was answered.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    pub begun: Moment,
    pub acknowledged: Moment,
}

/// One writer.
pub struct Writer {
    clock: Arc<Clock>,
    mountpoint: PathBuf,
    pub name: String,
    random: Random,
    pub model: Model,
    pub history: History,
    /// By the numbers of the history.
    pub intervals: Vec<Interval>,
    open: BTreeMap<Id, File>,
}

impl Writer {
    /// Makes the writer's directory. It counts as there from the first moment on: sync before a cut.
    pub fn new(clock: Arc<Clock>, mountpoint: &Path, number: usize, random: Random) -> Writer {
        let name = format!("writer-{number}");
        let directory = mountpoint.join(&name);
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        let model = Model::rooted(fs::metadata(&directory).unwrap().ino());
        let (history, now) = (History::new(model.clone()), clock.now());
        let intervals = vec![Interval { begun: now, acknowledged: now }];
        Writer { clock, mountpoint: mountpoint.to_owned(), name, random, model, history, intervals, open: BTreeMap::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mountpoint.join(&self.name).join(name)
    }

    /// An operation that began at `begun` was acknowledged just now; the model is what it left.
    fn note(&mut self, begun: Moment, touched: &[Id], event: Option<Event>) {
        let acknowledged = self.clock.now();
        self.history.add(&self.model, Effect { touched: touched.to_vec(), event }, false);
        self.intervals.push(Interval { begun, acknowledged });
    }

    /// Somebody synced everything, or unmounted, while this writer did nothing.
    pub fn note_synced(&mut self, begun: Moment) {
        self.note(begun, &[], Some(Event::SyncedAll));
    }

    /// Closes all files.
    pub fn close(&mut self) {
        self.open.clear();
    }

    /// One operation, or a few that belong together.
    pub fn step(&mut self) -> io::Result<()> {
        match self.random.below(100) {
            0..25 => self.write_some(),
            25..45 => self.sync_file(),
            45..56 => self.write_synchronously(),
            56..66 => self.create(),
            66..76 => self.replace(),
            76..80 => self.rename(),
            80..85 => self.unlink(),
            85..92 => self.truncate(),
            92..97 => self.sync_directory(),
            _ => self.sync_all(),
        }
    }

    fn entries(&self) -> Vec<(String, Id)> {
        let entries = self.model.entries().into_iter();
        entries.map(|(_, name, id)| (String::from_utf8(name).expect("our names are UTF-8"), id)).collect()
    }

    fn some_file(&mut self) -> Option<(String, Id)> {
        let mut entries = self.entries();
        if entries.is_empty() {
            return None;
        }
        let at = self.random.below(entries.len() as u64) as usize;
        Some(entries.swap_remove(at))
    }

    fn some_name(&mut self) -> String {
        format!("file-{}", self.random.below(NAMES))
    }

    fn id_of(&self, name: &str) -> Option<Id> {
        self.model.lookup(self.model.root(), name.as_bytes()).ok()
    }

    fn size_of(&self, id: Id) -> u64 {
        self.model.node(id).and_then(Node::file).map_or(0, FileBytes::size)
    }

    /// The open file; opens it if it is not.
    fn opened(&mut self, name: &str, id: Id) -> io::Result<&File> {
        let path = self.path(name);
        Ok(match self.open.entry(id) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(OpenOptions::new().write(true).read(true).open(path)?)
            }
        })
    }

    /// A place in the file or a little behind its end, mostly on block borders, and data for it, more often short than long.
    fn draw_write(&mut self, id: Id, doublings_max: u64) -> (u64, Vec<u8>) {
        let (one, other) = (self.random.below(doublings_max), self.random.below(doublings_max));
        let mut length = WRITE_BYTES_MIN << if self.random.below(3) == 0 { one } else { one.min(other) };
        let mut offset = self.random.below(self.size_of(id).min(FILE_BYTES_MAX / 2) + (64 << 10));
        if self.random.below(3) == 0 {
            length -= self.random.below(WRITE_BYTES_MIN as u64) as usize;
        } else {
            offset -= offset % WRITE_BYTES_MIN as u64;
        }
        (offset, pattern(length, self.random.next()))
    }

    fn write_to(&mut self, id: Id, offset: u64, data: &[u8], begun: Moment, is_durable: bool) {
        self.model.write(id, offset, data).expect("it is a file");
        let end = offset + data.len() as u64;
        self.note(begun, &[id], Some(Event::Wrote { file: id, offset, end, is_durable }));
    }

    fn write_some(&mut self) -> io::Result<()> {
        let Some((name, id)) = self.some_file() else { return self.create() };
        let (offset, data) = self.draw_write(id, 9);
        let begun = self.clock.now();
        self.opened(&name, id)?.write_all_at(&data, offset)?;
        self.write_to(id, offset, &data, begun, false);
        Ok(())
    }

    /// With O_SYNC or O_DSYNC.
    fn write_synchronously(&mut self) -> io::Result<()> {
        let Some((name, id)) = self.some_file() else { return Ok(()) };
        let (offset, data) = self.draw_write(id, 5);
        let flag = if self.random.below(2) == 0 { libc::O_SYNC } else { libc::O_DSYNC };
        let file = OpenOptions::new().write(true).custom_flags(flag).open(self.path(&name))?;
        let begun = self.clock.now();
        file.write_all_at(&data, offset)?;
        self.write_to(id, offset, &data, begun, true);
        Ok(())
    }

    fn sync_file(&mut self) -> io::Result<()> {
        let Some((name, id)) = self.some_file() else { return Ok(()) };
        let data_only = self.random.below(2) == 0;
        let begun = self.clock.now();
        let file = self.opened(&name, id)?;
        if data_only {
            file.sync_data()?
        } else {
            file.sync_all()?
        };
        self.note(begun, &[], Some(Event::Synced { node: id }));
        Ok(())
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        let begun = self.clock.now();
        File::open(self.path(""))?.sync_all()?;
        self.note(begun, &[], Some(Event::Synced { node: self.model.root() }));
        Ok(())
    }

    /// `sumfs sync`, for what this writer did.
    fn sync_all(&mut self) -> io::Result<()> {
        let begun = self.clock.now();
        Rig::sync(&self.mountpoint).map_err(io::Error::other)?;
        self.note(begun, &[], Some(Event::SyncedAll));
        Ok(())
    }

    /// A new file under a name that is free; None if there was one.
    fn create_at(&mut self, name: &str) -> io::Result<Option<Id>> {
        if self.id_of(name).is_some() {
            return Ok(None);
        }
        let begun = self.clock.now();
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(self.path(name))?;
        let attributes = file.metadata()?;
        let id = attributes.ino();
        self.open.insert(id, file);
        let (root, node) = (self.model.root(), Node::new(attributes.mode(), Content::File(FileBytes::default())));
        self.model.create(root, name.as_bytes(), id, node).expect("the name is free");
        self.note(begun, &[root, id], None);
        Ok(Some(id))
    }

    fn create(&mut self) -> io::Result<()> {
        let name = self.some_name();
        self.create_at(&name).map(|_| ())
    }

    /// As careful programs do it: a new file, written, sometimes synced, renamed over the old one.
    fn replace(&mut self) -> io::Result<()> {
        let Some(id) = self.create_at("new")? else { return Ok(()) };
        let (_, data) = self.draw_write(id, 9);
        let begun = self.clock.now();
        self.opened("new", id)?.write_all_at(&data, 0)?;
        self.write_to(id, 0, &data, begun, false);
        if self.random.below(2) == 0 {
            let begun = self.clock.now();
            self.opened("new", id)?.sync_all()?;
            self.note(begun, &[], Some(Event::Synced { node: id }));
        }
        let to = self.some_name();
        self.rename_to("new", id, &to)
    }

    fn rename(&mut self) -> io::Result<()> {
        let Some((name, id)) = self.some_file() else { return Ok(()) };
        let to = self.some_name();
        if name == to { Ok(()) } else { self.rename_to(&name, id, &to) }
    }

    fn rename_to(&mut self, name: &str, id: Id, to: &str) -> io::Result<()> {
        // What the kernel still holds reaches the daemon when the file is closed; a rename carries what the daemon has.
        self.open.remove(&id);
        let replaced = self.id_of(to);
        let begun = self.clock.now();
        fs::rename(self.path(name), self.path(to))?;
        let root = self.model.root();
        let renamed = self.model.rename((root, name.as_bytes()), (root, to.as_bytes()), RenameMode::Replace);
        let lost = renamed.expect("both are files");
        self.note(begun, &[root, id], replaced.map(|_| Event::Replaced { node: id }));
        if let Some(lost) = lost {
            self.forget(lost);
        }
        Ok(())
    }

    fn unlink(&mut self) -> io::Result<()> {
        let Some((name, id)) = self.some_file() else { return Ok(()) };
        let begun = self.clock.now();
        fs::remove_file(self.path(&name))?;
        let root = self.model.root();
        self.model.unlink(root, name.as_bytes()).expect("it is a file");
        self.note(begun, &[root, id], None);
        self.forget(id);
        Ok(())
    }

    /// Closes what has no name any more.
    fn forget(&mut self, id: Id) {
        self.open.remove(&id);
        self.model.forget(id);
    }

    fn truncate(&mut self) -> io::Result<()> {
        let Some((name, id)) = self.some_file() else { return Ok(()) };
        let size = match self.random.below(4) {
            0 => 0,
            1 => self.size_of(id) + self.random.below(100_000),
            _ => self.random.below(self.size_of(id) + 1),
        };
        let begun = self.clock.now();
        self.opened(&name, id)?.set_len(size)?;
        self.model.set_size(id, size).expect("it is a file");
        self.note(begun, &[id], Some(Event::Resized { file: id }));
        Ok(())
    }

    /// What the writer's directory holds in this mount, as a model.
    pub fn found(&self) -> Outcome<Model> {
        let directory = self.path("");
        let failed = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
        let attributes = fs::metadata(&directory).map_err(|error| failed(&directory, error))?;
        let (mut entries, mut nodes) = (BTreeMap::new(), BTreeMap::new());
        for entry in fs::read_dir(&directory).map_err(|error| failed(&directory, error))? {
            let entry = entry.map_err(|error| failed(&directory, error))?;
            let (id, node) = read_file(&entry).map_err(|error| failed(&entry.path(), error))?;
            entries.insert(entry.file_name().into_encoded_bytes(), id);
            nodes.insert(id, Arc::new(node));
        }
        let root = node_of(&attributes, Content::Directory { entries, parent: ROOT });
        nodes.insert(attributes.ino(), Arc::new(root));
        Ok(Model::from_nodes(attributes.ino(), nodes))
    }
}

fn node_of(attributes: &fs::Metadata, content: Content) -> Node {
    let mut node = Node::new(attributes.mode(), content);
    (node.uid, node.gid, node.links) = (attributes.uid(), attributes.gid(), attributes.nlink() as u32);
    node
}

fn read_file(entry: &fs::DirEntry) -> io::Result<(Id, Node)> {
    let attributes = entry.metadata()?;
    let content = fs::read(entry.path())?;
    if content.len() as u64 != attributes.size() {
        return Err(io::Error::other(format!("{} bytes can be read, the size is {}", content.len(), attributes.size())));
    }
    let mut bytes = FileBytes::default();
    bytes.write(0, &content);
    Ok((attributes.ino(), node_of(&attributes, Content::File(bytes))))
}
