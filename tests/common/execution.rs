//! Runs operations on a [`Filesystem`] and on the reference model at once and compares each answer. It behaves like the kernel:
//! it uses an inode only while it holds lookups of it, and gives them back.

#[path = "nameless.rs"]
mod nameless;

pub use crate::durability::{Effect, Event};

use crate::operations::{How, Operation, Place, pattern};
use crate::reference_model::{Content, DIRECTORY, FileBytes, Id, Model, NAME_BYTES_MAX, Node, REGULAR, Refused, SYMLINK};
use crate::tree::Walk;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use sumfs::error::{Error, Result as FsResult};
use sumfs::fs::{
    Attributes, Caller, FallocateMode, Filesystem, ReadFlags, RenameMode, SetAttributes, SetTime, WriteFlags, XattrMode,
};
use sumfs::lock::Wait;
use sumfs::units::{BLOCK_SIZE, InodeNumber, Timestamp};

const ROOT_CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const UMASK: u32 = 0o022;
const CHAR_DEVICE: u32 = 0o020_000;
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
const XATTR_NAMES: [&[u8]; 5] = [b"user.a", b"user.b-rather-long-name", b"trusted.t", b"security.s", b"user.\xff\xfe"];

/// A file system, the model, and what the kernel would know.
pub struct Runner {
    pub fs: Arc<Filesystem>,
    pub model: Model,
    /// ENOSPC is no failure.
    pub may_be_full: bool,
    /// What nobody uses any more is gone only a moment later.
    pub deletes_later: bool,
    held: BTreeMap<Id, u64>,
    /// Made without a name and not linked yet.
    never_named: BTreeSet<Id>,
    effect: Effect,
}

type Outcome = Result<(), String>;

impl Runner {
    pub fn new(fs: Arc<Filesystem>, model: Model) -> Runner {
        Runner {
            fs,
            model,
            may_be_full: false,
            deletes_later: false,
            held: BTreeMap::new(),
            never_named: BTreeSet::new(),
            effect: Effect::default(),
        }
    }

    /// Goes on with another mount of the same store; what had no name is gone.
    pub fn remounted(&mut self, fs: Arc<Filesystem>) {
        self.fs = fs;
        self.held.clear();
        self.never_named.clear();
        self.model = self.model.without_nameless();
    }

    /// One operation, on both. An error says where they disagree.
    pub fn run(&mut self, operation: &Operation) -> Result<Effect, String> {
        self.effect = Effect::default();
        self.dispatch(operation).map_err(|error| format!("{operation:?}: {error}"))?;
        Ok(std::mem::take(&mut self.effect))
    }

    /// Compares the whole tree.
    pub fn compare(&self, direct: bool) -> Outcome {
        let nameless: Vec<Id> = self.model.nodes().filter(|(_, node)| node.links == 0).map(|(id, _)| id).collect();
        let interesting =
            |id: Id| self.model.node(id).and_then(Node::file).map(|bytes| bytes.block_indexes().collect()).unwrap_or_default();
        let walk = Walk { fs: &self.fs, root: self.model.root(), nameless: &nameless, interesting: &interesting, direct };
        let differences = self.model.differences(&walk.read()?, true);
        if differences.is_empty() { Ok(()) } else { Err(format!("the tree differs:\n  {}", differences.join("\n  "))) }
    }

    fn dispatch(&mut self, operation: &Operation) -> Outcome {
        use Operation as Op;
        match *operation {
            Op::Create { directory, name, mode } => {
                self.make(directory, name, REGULAR | mode, Content::File(FileBytes::default()))
            }
            Op::Mkdir { directory, name, mode } => self.mkdir(directory, name, mode),
            Op::Symlink { directory, name, len } => self.symlink(directory, name, len),
            Op::Special { directory, name, kind } => {
                let kinds = [0o010_000, 0o140_000, 0o020_000, 0o060_000];
                self.make(directory, name, kinds[(kind % 4) as usize] | 0o644, Content::Special)
            }
            Op::Tmpfile { directory, mode } => self.tmpfile(directory, mode),
            Op::LinkNameless { node, directory, name } => self.link_nameless(node, directory, name),
            Op::Write { file, place, len, fill, how, nowait } => self.write(file, place, &pattern(fill, len), how, nowait),
            Op::Read { file, place, len, direct, nowait } => self.read(file, place, len, direct, nowait),
            Op::SetSize { file, place } => self.set_size(file, place),
            Op::Fallocate { file, place, len, mode } => self.fallocate(file, place, len, mode),
            Op::CopyRange { file, place, to, to_place, len, is_aligned } => {
                self.copy_range((file, place), (to, to_place), len, is_aligned)
            }
            Op::Rename { entry, directory, name, mode } => {
                let to = (self.directory(directory), name_of(name));
                self.rename(entry, to, mode)
            }
            Op::RenameOver { entry, other, mode } => match modulo(&self.model.entries(), other) {
                Some((directory, name, _)) => self.rename(entry, (directory, name), mode),
                None => Ok(()),
            },
            Op::Link { node, directory, name } => self.link(node, directory, name),
            Op::Unlink { entry } => self.remove(entry, false),
            Op::Rmdir { directory } => self.remove(directory, true),
            Op::Lookup { directory, name } => self.lookup(directory, name),
            Op::List { .. } => Ok(()),
            Op::Chmod { node, mode } => self.set_attributes(node, SetAttributes { mode: Some(mode), ..SetAttributes::default() }),
            Op::Chown { node, uid, gid } => self.set_attributes(node, SetAttributes { uid, gid, ..SetAttributes::default() }),
            Op::SetModified { node, seconds } => {
                let time = SetTime::To(Timestamp { seconds, nanoseconds: 999_999_999 });
                self.set_attributes(node, SetAttributes { modified: Some(time), ..SetAttributes::default() })
            }
            Op::SetXattr { node, name, len, fill, mode } => self.set_xattr(node, name, &pattern(fill, len), mode),
            Op::GetXattr { node, name } => self.get_xattr(node, name),
            Op::RemoveXattr { node, name } => self.remove_xattr(node, name),
            Op::Fsync { node, data_only } => self.fsync(node, data_only),
            Op::Sync => self.sync(),
            Op::ForgetNamed => self.forget(false),
            Op::ForgetAll => self.forget(true),
            // The owner of the disks does it.
            Op::Remount => Ok(()),
        }
    }

    /// Compares the answers; the model's new state counts if both did it. None: both refused, or the store is full.
    fn agree<T>(&mut self, found: FsResult<T>, next: Model, expected: Result<(), Refused>) -> Result<Option<T>, String> {
        match (found, expected) {
            (Ok(value), Ok(())) => {
                self.model = next;
                Ok(Some(value))
            }
            (Err(error), Err(refused)) if refused.allows(&error) => Ok(None),
            (Err(Error::NoSpace), _) if self.may_be_full => Ok(None),
            (Ok(_), Err(refused)) => Err(format!("succeeded, expected one of {:?}", refused.0)),
            (Err(error), Ok(())) => Err(format!("failed: {error} ({error:?})")),
            (Err(error), Err(refused)) => Err(format!("failed with {error:?}, expected one of {:?}", refused.0)),
        }
    }

    fn touch(&mut self, nodes: &[Id]) {
        self.effect.touched.extend_from_slice(nodes);
    }

    /// Holds a lookup of the node, as the kernel does before it uses one.
    fn hold(&mut self, id: Id) -> Result<InodeNumber, String> {
        if id != self.model.root() && !self.held.contains_key(&id) {
            let (directory, name) = self.model.name_of(id).ok_or(format!("inode {id} has no name and is not held"))?;
            let parent = self.hold(directory)?;
            match self.fs.lookup(parent, &name) {
                Ok(attributes) => self.note_lookup(&attributes, id)?,
                Err(error) => return Err(format!("lookup of {} in {directory}: {error}", name.escape_ascii())),
            }
        }
        Ok(InodeNumber(id))
    }

    fn note_lookup(&mut self, attributes: &Attributes, expected: Id) -> Outcome {
        *self.held.entry(attributes.inode.0).or_default() += 1;
        if attributes.inode.0 != expected {
            return Err(format!("inode {} instead of {expected}", attributes.inode));
        }
        let (found, node) = (attributes, self.model.node(expected).ok_or(format!("inode {expected} is not in the model"))?);
        let size = node.file().map_or(found.size, FileBytes::size);
        if (found.mode, found.uid, found.gid, found.links, found.size) != (node.mode, node.uid, node.gid, node.links, size) {
            return Err(format!(
                "wrong attributes of {}: {found:?}, expected size {size} and {node:.0?}",
                self.model.label(expected)
            ));
        }
        Ok(())
    }

    fn directory(&self, number: u64) -> Id {
        modulo(&self.model.named(Node::is_directory), number).unwrap_or(self.model.root())
    }

    /// A file, also one that has no name any more; None if there is none.
    fn file(&self, number: u64) -> Option<Id> {
        modulo(&self.model.nodes().filter(|(_, node)| node.is_file()).map(|(id, _)| id).collect::<Vec<_>>(), number)
    }

    fn offset(&self, file: Id, place: Place) -> u64 {
        let size = self.model.node(file).and_then(Node::file).map_or(0, FileBytes::size);
        match place {
            Place::At(offset) => offset,
            Place::BeforeEnd(bytes) => size.saturating_sub(bytes),
            Place::BehindEnd(bytes) => size + bytes,
        }
    }

    fn make(&mut self, directory: u64, name: u64, mode: u32, content: Content) -> Outcome {
        let (directory, name) = (self.directory(directory), name_of(name));
        let parent = self.hold(directory)?;
        let rdev = if [0o020_000, 0o060_000].contains(&(mode & 0o170_000)) { 0x1234 } else { 0 };
        let found = self.fs.mknod(&ROOT_CALLER, parent, &name, mode, UMASK, rdev);
        let mut node = Node::new(mode & !UMASK, content);
        node.rdev = rdev;
        self.made(directory, &name, found, node)
    }

    fn mkdir(&mut self, directory: u64, name: u64, mode: u32) -> Outcome {
        let (directory, name) = (self.directory(directory), name_of(name));
        let parent = self.hold(directory)?;
        let found = self.fs.mkdir(&ROOT_CALLER, parent, &name, mode, UMASK);
        let content = Content::Directory { entries: BTreeMap::new(), parent: directory };
        self.made(directory, &name, found, Node::new(DIRECTORY | mode & !UMASK, content))
    }

    fn symlink(&mut self, directory: u64, name: u64, len: usize) -> Outcome {
        let (directory, name) = (self.directory(directory), name_of(name));
        let parent = self.hold(directory)?;
        let target = vec![b'x'; len];
        let found = self.fs.symlink(&ROOT_CALLER, parent, &name, &target);
        self.made(directory, &name, found, Node::new(SYMLINK | 0o777, Content::Symlink(target)))
    }

    fn made(&mut self, directory: Id, name: &[u8], found: FsResult<Attributes>, node: Node) -> Outcome {
        let mut next = self.model.clone();
        let expected = match &found {
            Ok(attributes) => next.create(directory, name, attributes.inode.0, node),
            Err(_) => next.may_create(directory, name),
        };
        if let Some(attributes) = self.agree(found, next, expected)? {
            let id = attributes.inode.0;
            self.note_lookup(&attributes, id)?;
            self.touch(&[directory, id]);
        }
        Ok(())
    }

    fn write(&mut self, file: u64, place: Place, data: &[u8], how: How, nowait: bool) -> Outcome {
        let Some(file) = self.file(file) else { return Ok(()) };
        let offset = self.offset(file, place);
        let inode = self.hold(file)?;
        let (from_cache, direct, sync) = (how == How::FromKernel, how == How::Direct, how == How::Sync);
        let flags = WriteFlags { from_cache, direct, sync, kill_suid: false };
        let mut found = Err(Error::WouldBlock(sumfs::error::Reason::Disabled));
        if nowait {
            let before = self.fs.getattr(inode).map_err(|error| error.to_string())?;
            found = self.fs.write(&ROOT_CALLER, inode, offset, data, flags, Wait::Never);
            let after = self.fs.getattr(inode).map_err(|error| error.to_string())?;
            // Not the blocks: others may write back meanwhile.
            let same = (before.size, before.modified) == (after.size, after.modified);
            if matches!(found, Err(Error::WouldBlock(_))) && !same {
                return Err(format!("a refused write changed {before:?} to {after:?}"));
            }
        }
        if matches!(found, Err(Error::WouldBlock(_))) {
            found = self.fs.write(&ROOT_CALLER, inode, offset, data, flags, Wait::Allowed);
        }
        let written = match &found {
            Ok(count) if *count == data.len() || self.may_be_full && *count < data.len() => *count,
            Ok(count) => return Err(format!("wrote {count} of {} bytes at {offset}", data.len())),
            Err(_) => data.len(),
        };
        let mut next = self.model.clone();
        let expected = next.write(file, offset, &data[..written]);
        if self.agree(found, next, expected)?.is_some() {
            self.touch(&[file]);
            self.effect.event = Some(Event::Wrote { file, offset, end: offset + written as u64, is_durable: sync });
        }
        Ok(())
    }

    fn read(&mut self, file: u64, place: Place, len: usize, direct: bool, nowait: bool) -> Outcome {
        let Some(file) = self.file(file) else { return Ok(()) };
        let offset = self.offset(file, place);
        let inode = self.hold(file)?;
        let flags = ReadFlags { direct, no_atime: false };
        let wait = if nowait { Wait::Never } else { Wait::Allowed };
        let mut found = self.fs.read(inode, offset, len, flags, wait);
        if nowait && matches!(found, Err(Error::WouldBlock(_))) {
            found = self.fs.read(inode, offset, len, flags, Wait::Allowed);
        }
        let found = found.map_err(|error| format!("failed: {error}"))?;
        let expected = self.model.node(file).and_then(Node::file).map(|bytes| bytes.read(offset, len)).unwrap_or_default();
        let found = found.as_slice();
        if found.len() != expected.len() {
            return Err(format!("inode {file} at {offset}: {} bytes, expected {}", found.len(), expected.len()));
        }
        match found.iter().zip(&expected).position(|(found, expected)| found != expected) {
            Some(at) => Err(format!("inode {file}: wrong bytes from {} on (read at {offset}, {len} bytes)", offset + at as u64)),
            None => Ok(()),
        }
    }

    fn set_size(&mut self, file: u64, place: Place) -> Outcome {
        let Some(file) = self.file(file) else { return Ok(()) };
        let size = self.offset(file, place);
        let inode = self.hold(file)?;
        let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
        let found = self.fs.setattr(&ROOT_CALLER, inode, &change);
        let mut next = self.model.clone();
        let expected = next.set_size(file, size);
        if let Some(attributes) = self.agree(found, next, expected)? {
            if attributes.size != size {
                return Err(format!("size {size} was set, {} is answered", attributes.size));
            }
            self.touch(&[file]);
            self.effect.event = Some(Event::Resized { file });
        }
        Ok(())
    }

    fn fallocate(&mut self, file: u64, place: Place, len: u64, mode: u64) -> Outcome {
        let Some(file) = self.file(file) else { return Ok(()) };
        let offset = self.offset(file, place);
        let inode = self.hold(file)?;
        let mode = || match mode % 6 {
            0 => FallocateMode::Allocate,
            1 => FallocateMode::AllocateKeepSize,
            2 | 3 => FallocateMode::PunchHole,
            4 => FallocateMode::ZeroRange,
            _ => FallocateMode::ZeroRangeKeepSize,
        };
        let found = self.fs.fallocate(&ROOT_CALLER, inode, offset, len, mode());
        let mut next = self.model.clone();
        let expected = next.fallocate(file, offset, len, mode());
        if self.agree(found, next, expected)?.is_some() {
            self.touch(&[file]);
            let zeroes = !matches!(mode(), FallocateMode::Allocate | FallocateMode::AllocateKeepSize);
            self.effect.event = Some(Event::Allocated { file, offset, end: offset + len, zeroes });
        }
        Ok(())
    }

    fn copy_range(&mut self, from: (u64, Place), to: (u64, Place), len: u64, is_aligned: bool) -> Outcome {
        let (Some(source), Some(target)) = (self.file(from.0), self.file(to.0)) else { return Ok(()) };
        let unit = if is_aligned { BLOCK_SIZE } else { 1 };
        let offset = |file, place| self.offset(file, place) / unit * unit;
        let (offset, to) = (offset(source, from.1), offset(target, to.1));
        let (from, into) = (self.hold(source)?, self.hold(target)?);
        let found = self.fs.copy_range(&ROOT_CALLER, (from, offset), (into, to), len);
        let mut next = self.model.clone();
        let expected = next.copy_range((source, offset), (target, to), len);
        let wanted = expected.as_ref().ok().copied();
        if let Some(copied) = self.agree(found, next, expected.map(|_| ()))? {
            if Some(copied) != wanted {
                return Err(format!("{copied} bytes were copied, expected {wanted:?}"));
            }
            if copied > 0 {
                self.touch(&[target]);
                self.effect.event = Some(Event::Wrote { file: target, offset: to, end: to + copied, is_durable: false });
            }
        }
        Ok(())
    }

    fn rename(&mut self, entry: u64, to: (Id, Vec<u8>), mode: u64) -> Outcome {
        let Some((directory, name, moved)) = modulo(&self.model.entries(), entry) else { return Ok(()) };
        let (from, into) = (self.hold(directory)?, self.hold(to.0)?);
        // The kernel looks both names up first.
        self.hold(moved)?;
        let replaced = self.model.lookup(to.0, &to.1).ok();
        if let Some(other) = replaced {
            self.hold(other)?;
        }
        let mode = match mode % 8 {
            0 => RenameMode::NoReplace,
            1 => RenameMode::Exchange,
            at @ 2..4 => RenameMode::Whiteout { owner: ROOT_CALLER, replaces: at == 2 },
            _ => RenameMode::Replace,
        };
        let found = self.fs.rename(from, &name, into, &to.1, mode);
        let mut next = self.model.clone();
        let renamed = next.rename((directory, &name), (to.0, &to.1), mode);
        // Between two names of one file nothing happens.
        if self.agree(found, next, renamed.map(|_| ()))?.is_some() && replaced != Some(moved) {
            self.touch(&[directory, to.0, moved]);
            self.effect.touched.extend(replaced);
            self.effect.event = (replaced.is_some() && mode != RenameMode::Exchange).then_some(Event::Replaced { node: moved });
            if matches!(mode, RenameMode::Whiteout { .. }) {
                let found = self.fs.lookup(from, &name);
                self.made(directory, &name, found, Node::new(CHAR_DEVICE, Content::Special))?;
            }
        }
        Ok(())
    }

    fn link(&mut self, node: u64, directory: u64, name: u64) -> Outcome {
        let Some((_, _, id)) = modulo(&self.model.entries(), node) else { return Ok(()) };
        let (directory, name) = (self.directory(directory), name_of(name));
        let (inode, parent) = (self.hold(id)?, self.hold(directory)?);
        let found = self.fs.link(inode, parent, &name);
        let mut next = self.model.clone();
        let expected = next.link(id, directory, &name);
        if let Some(attributes) = self.agree(found, next, expected)? {
            self.note_lookup(&attributes, id)?;
            self.touch(&[directory, id]);
        }
        Ok(())
    }

    fn remove(&mut self, entry: u64, as_directory: bool) -> Outcome {
        let mut entries = self.model.entries();
        if as_directory {
            // Mostly directories: files only to be refused.
            let directories: Vec<_> =
                entries.iter().filter(|entry| self.model.node(entry.2).is_some_and(Node::is_directory)).cloned().collect();
            if !entry.is_multiple_of(8) && !directories.is_empty() {
                entries = directories;
            }
        }
        let Some((directory, name, id)) = modulo(&entries, entry) else { return Ok(()) };
        let parent = self.hold(directory)?;
        self.hold(id)?;
        let mut next = self.model.clone();
        let (found, expected) = if as_directory {
            (self.fs.rmdir(parent, &name), next.rmdir(directory, &name))
        } else {
            (self.fs.unlink(parent, &name), next.unlink(directory, &name))
        };
        if self.agree(found, next, expected.map(|_| ()))?.is_some() {
            self.touch(&[directory, id]);
        }
        Ok(())
    }

    fn lookup(&mut self, directory: u64, name: u64) -> Outcome {
        let (directory, name) = (self.directory(directory), name_of(name));
        let parent = self.hold(directory)?;
        let found = self.fs.lookup(parent, &name);
        let expected = self.model.lookup(directory, &name);
        let id = expected.as_ref().ok().copied();
        let next = self.model.clone();
        match (self.agree(found, next, expected.map(|_| ()))?, id) {
            (Some(attributes), Some(id)) => self.note_lookup(&attributes, id),
            _ => Ok(()),
        }
    }

    fn named_node(&mut self, number: u64) -> Result<Id, String> {
        let id = modulo(&self.model.named(|_| true), number).unwrap_or(self.model.root());
        self.hold(id)?;
        Ok(id)
    }

    fn set_attributes(&mut self, node: u64, change: SetAttributes) -> Outcome {
        let id = self.named_node(node)?;
        if self.model.node(id).is_some_and(|node| node.mode & 0o170_000 == SYMLINK) && change.mode.is_some() {
            return Ok(());
        }
        let found = self.fs.setattr(&ROOT_CALLER, InodeNumber(id), &change);
        let mut next = self.model.clone();
        if let Some(mode) = change.mode {
            next.set_mode(id, mode);
        }
        next.set_owner(id, change.uid, change.gid);
        if let Some(SetTime::To(time)) = change.modified {
            next.set_modified(id, time);
        }
        if let Some(attributes) = self.agree(found, next, Ok(()))? {
            let node = self.model.node(id).ok_or("the node is gone")?;
            let found = (attributes.mode, attributes.uid, attributes.gid, attributes.modified);
            let expected = (node.mode, node.uid, node.gid, node.modified.unwrap_or(attributes.modified));
            if found != expected {
                return Err(format!("inode {id}: mode, owner, mtime {expected:?} expected, {found:?} answered"));
            }
            // Without any field it is only a question.
            if change != SetAttributes::default() {
                self.touch(&[id]);
            }
        }
        Ok(())
    }

    /// A node and a name that the kernel would let through: no `user.` on what is neither file nor directory.
    fn xattr_place(&mut self, node: u64, name: u64) -> Result<Option<(Id, &'static [u8])>, String> {
        let id = self.named_node(node)?;
        let name = XATTR_NAMES[(name % XATTR_NAMES.len() as u64) as usize];
        let is_usual = self.model.node(id).is_some_and(|node| node.is_file() || node.is_directory());
        Ok((is_usual || !name.starts_with(b"user.")).then_some((id, name)))
    }

    fn set_xattr(&mut self, node: u64, name: u64, value: &[u8], mode: u64) -> Outcome {
        let Some((id, name)) = self.xattr_place(node, name)? else { return Ok(()) };
        let mode = || match mode % 5 {
            0 => XattrMode::Create,
            1 => XattrMode::Replace,
            _ => XattrMode::Any,
        };
        let found = self.fs.setxattr(&ROOT_CALLER, InodeNumber(id), name, value, mode());
        let mut next = self.model.clone();
        let expected = next.set_xattr(id, name, value, mode());
        if self.agree(found, next, expected)?.is_some() {
            self.touch(&[id]);
        }
        Ok(())
    }

    fn get_xattr(&mut self, node: u64, name: u64) -> Outcome {
        let Some((id, name)) = self.xattr_place(node, name)? else { return Ok(()) };
        let found = self.fs.getxattr(InodeNumber(id), name);
        let expected = self.model.xattr(id, name);
        let value = expected.as_ref().ok().cloned();
        let next = self.model.clone();
        match self.agree(found, next, expected.map(|_| ()))? {
            Some(found) if Some(&found) != value.as_ref() => Err(format!("inode {id}: wrong value of {}", name.escape_ascii())),
            _ => Ok(()),
        }
    }

    fn remove_xattr(&mut self, node: u64, name: u64) -> Outcome {
        let Some((id, name)) = self.xattr_place(node, name)? else { return Ok(()) };
        let found = self.fs.removexattr(&ROOT_CALLER, InodeNumber(id), name);
        let mut next = self.model.clone();
        let expected = next.remove_xattr(id, name);
        if self.agree(found, next, expected)?.is_some() {
            self.touch(&[id]);
        }
        Ok(())
    }

    fn fsync(&mut self, node: u64, data_only: bool) -> Outcome {
        // Also files without a name.
        let candidates: Vec<Id> =
            self.model.nodes().filter(|(_, node)| node.is_file() || node.is_directory()).map(|(id, _)| id).collect();
        let id = modulo(&candidates, node).unwrap_or(self.model.root());
        let inode = self.hold(id)?;
        let (answer, answered) = mpsc::channel();
        self.fs.fsync(inode, data_only, Box::new(move |result| drop(answer.send(result))));
        match answered.recv_timeout(REPLY_TIMEOUT) {
            Ok(Ok(())) => {
                self.effect.event = Some(Event::Synced { node: id });
                Ok(())
            }
            Ok(Err(Error::NoSpace)) if self.may_be_full => Ok(()),
            Ok(Err(error)) => Err(format!("fsync of inode {id}: {error}")),
            Err(_) => Err(format!("fsync of inode {id} is not answered")),
        }
    }

    fn sync(&mut self) -> Outcome {
        self.fs.sync().map_err(|error| format!("failed: {error}"))?;
        self.effect.event = Some(Event::SyncedAll);
        Ok(())
    }

    /// Gives lookups back: of what has a name, or of everything.
    fn forget(&mut self, also_nameless: bool) -> Outcome {
        let held = std::mem::take(&mut self.held);
        for (id, count) in held {
            let is_nameless = self.model.node(id).is_none_or(|node| node.links == 0);
            if is_nameless && !also_nameless {
                self.held.insert(id, count);
                continue;
            }
            self.fs.forget(InodeNumber(id), count);
            self.model.forget(id);
            self.never_named.remove(&id);
            if is_nameless
                && !self.deletes_later
                && !matches!(self.fs.getattr(InodeNumber(id)), Err(Error::Stale | Error::NotFound))
            {
                return Err(format!("inode {id} is still there, without a name and forgotten"));
            }
        }
        Ok(())
    }
}

/// The `number`-th of `all`, counted round and round.
fn modulo<T: Clone>(all: &[T], number: u64) -> Option<T> {
    let index = number.checked_rem(all.len() as u64)?;
    all.get(index as usize).cloned()
}

/// A name out of a few dozen: short, of several bytes a letter, as long as can be.
pub fn name_of(number: u64) -> Vec<u8> {
    match number % 24 {
        long @ 0..2 => vec![b'l' + long as u8; NAME_BYTES_MAX],
        2 => "größe-名".as_bytes().to_vec(),
        3 if (number / 24).is_multiple_of(16) => vec![b't'; NAME_BYTES_MAX + 1],
        short => format!("n{short}").into_bytes(),
    }
}
