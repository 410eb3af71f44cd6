//! Rename: plain, without replacing, exchanging, leaving a whiteout. One batch; the moved entry keeps its cookie inside a directory.

use super::Filesystem;
use super::inode::{Inode, InodeState, lock_states};
use super::names::{
    NewInode, add_entry, bare_record, check_alive, check_name, check_new_name, lose_subdirectory, orphan, remove_entry, touch,
};
use super::protection::{may_add, may_remove};
use super::types::{Caller, RenameMode};
use crate::clock::now;
use crate::error::{Error, Result};
use crate::lock::RankedGuard;
use crate::meta::records::{EntryRecord, FileKind};
use crate::meta::{Batch, schema};
use crate::units::{InodeNumber, Timestamp};
use std::sync::Arc;

/// Directories in each other above one that something moves to, before they are taken for a circle.
const DEPTH_MAX: usize = 1_000_000;
/// A character device without permissions, number 0/0: what union mounts take for "no such name".
const WHITEOUT: NewInode<'static> = NewInode { mode: FileKind::CharDevice.mode_bits(), umask: 0, rdev: 0, target: None };

/// One end of a rename.
struct End<'a> {
    directory: Arc<Inode>,
    name: &'a [u8],
}

/// The states of all inodes that a rename changes, each locked once, found by number.
struct States<'a> {
    guards: Vec<(InodeNumber, RankedGuard<'a, InodeState>)>,
}

impl<'a> States<'a> {
    fn lock(inodes: impl Iterator<Item = &'a Arc<Inode>>) -> Result<States<'a>> {
        let mut sorted: Vec<&Arc<Inode>> = inodes.collect();
        sorted.sort_by_key(|inode| inode.number);
        sorted.dedup_by_key(|inode| inode.number);
        let guards = sorted.into_iter().map(|inode| {
            let [guard] = lock_states([&**inode])?;
            Ok((inode.number, guard))
        });
        Ok(States { guards: guards.collect::<Result<_>>()? })
    }

    fn of(&mut self, number: InodeNumber) -> Result<&mut InodeState> {
        let found = self.guards.iter_mut().find(|(other, _)| *other == number);
        found.map(|(_, guard)| &mut **guard).ok_or(Error::Stale)
    }

    fn may_remove(&mut self, directory: InodeNumber, inode: InodeNumber) -> Result<()> {
        let directory = self.of(directory)?.record.clone();
        may_remove(&directory, &self.of(inode)?.record)
    }
}

impl Filesystem {
    /// Moves `name` in `parent` to `new_name` in `new_parent`.
    pub fn rename(
        &self,
        parent: InodeNumber,
        name: &[u8],
        new_parent: InodeNumber,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        check_name(name)?;
        check_new_name(new_name)
            .map_err(|error| if matches!(error, Error::Exists) { Error::Invalid("cannot rename to . or ..") } else { error })?;
        if matches!(name, b"." | b"..") {
            return Err(Error::Invalid("cannot rename . or .."));
        }
        match mode {
            RenameMode::Whiteout { .. } => self.begin_creating()?,
            _ => self.begin_changing()?,
        }
        let from = End { directory: self.directory(parent)?, name };
        let to = End { directory: self.directory(new_parent)?, name: new_name };
        let names = self.names.lock();
        let source = self.entry(parent, name)?.ok_or(Error::NotFound)?;
        let target = self.entry(new_parent, new_name)?;
        self.check_not_below(source, new_parent)?;
        let replaced = match (mode, target) {
            (RenameMode::NoReplace | RenameMode::Whiteout { replaces: false, .. }, Some(_)) => return Err(Error::Exists),
            (RenameMode::Exchange, None) => return Err(Error::NotFound),
            (_, Some(target)) if target.inode == source.inode => return Ok(()),
            (RenameMode::Exchange, Some(target)) => {
                self.check_not_below(target, parent)?;
                return self.exchange(&from, &to, source, target);
            }
            (_, target) => target,
        };
        let moved = self.inode_of(&source)?;
        let replaced = match replaced {
            Some(entry) => Some((entry, self.inode_of(&entry)?)),
            None => None,
        };
        if replaced.is_some() {
            // The data acknowledged before a rename over an existing file goes with it (D8): it is in the transaction before the
            // rename is, so that no commit can take the one without the other.
            self.write_and_collect(&moved)?;
        }
        let whiteout = match mode {
            RenameMode::Whiteout { owner, .. } => Some(owner),
            _ => None,
        };
        self.move_entry(&from, &to, (source, &moved), replaced.as_ref(), whiteout)?;
        drop(names);
        if let Some((_, inode)) = &replaced {
            self.reap_if_unused(inode);
        }
        Ok(())
    }

    fn move_entry(
        &self,
        from: &End<'_>,
        to: &End<'_>,
        (source, moved): (EntryRecord, &Arc<Inode>),
        replaced: Option<&(EntryRecord, Arc<Inode>)>,
        whiteout: Option<Caller>,
    ) -> Result<()> {
        let (old, new) = (from.directory.number, to.directory.number);
        let inodes = [&from.directory, &to.directory, moved].into_iter().chain(replaced.map(|(_, inode)| inode));
        let mut states = States::lock(inodes)?;
        check_alive(states.of(new)?)?;
        states.may_remove(old, moved.number)?;
        may_add(&states.of(new)?.record)?;
        let time = now();
        let mut batch = Batch::new();
        let is_directory = source.kind == FileKind::Directory;
        if let Some((entry, inode)) = replaced {
            states.may_remove(new, inode.number)?;
            check_replaceable(is_directory, entry.kind, states.of(inode.number)?)?;
            remove_entry(&mut batch, new, &mut states.of(new)?.record, to.name, entry.cookie);
            if is_directory {
                lose_subdirectory(new, &mut states.of(new)?.record)?;
                orphan(&mut batch, inode.number, states.of(inode.number)?, time);
            } else {
                let state = states.of(inode.number)?;
                self.remove_link(&mut batch, inode, state, new, entry.cookie, time)?;
            }
        }
        remove_entry(&mut batch, old, &mut states.of(old)?.record, from.name, source.cookie);
        let cookie = if old == new { source.cookie } else { states.of(new)?.record.next_cookie };
        add_entry(&mut batch, new, &mut states.of(new)?.record, to.name, source.inode, source.kind, cookie);
        relink(&mut batch, source.inode, states.of(source.inode)?, (old, source.cookie), (new, cookie));
        if let Some(owner) = whiteout {
            self.leave_whiteout(&mut batch, from, states.of(old)?, &owner, time);
        }
        if is_directory && old != new {
            lose_subdirectory(old, &mut states.of(old)?.record)?;
            states.of(new)?.record.links += 1;
        }
        touch(&mut states.of(old)?.record, time);
        touch(&mut states.of(new)?.record, time);
        states.of(source.inode)?.record.changed = time;
        self.append_all(batch, states)
    }

    /// What stays where the source was.
    fn leave_whiteout(&self, batch: &mut Batch, from: &End<'_>, state: &mut InodeState, owner: &Caller, time: Timestamp) {
        let (number, parent) = (self.meta.new_inode_number(), from.directory.number);
        let record = bare_record(owner, parent, &state.record, &WHITEOUT, time);
        add_entry(batch, parent, &mut state.record, from.name, number, FileKind::CharDevice, record.cookie);
        batch.put(schema::inode(number), record.encode());
    }

    fn exchange(&self, from: &End<'_>, to: &End<'_>, source: EntryRecord, target: EntryRecord) -> Result<()> {
        let (old, new) = (from.directory.number, to.directory.number);
        let (moved, other) = (self.inode_of(&source)?, self.inode_of(&target)?);
        let mut states = States::lock([&from.directory, &to.directory, &moved, &other].into_iter())?;
        states.may_remove(old, moved.number)?;
        states.may_remove(new, other.number)?;
        let time = now();
        let mut batch = Batch::new();
        for (directory, name, entry, comes) in [(old, from.name, source, target), (new, to.name, target, source)] {
            let record = &mut states.of(directory)?.record;
            remove_entry(&mut batch, directory, record, name, entry.cookie);
            add_entry(&mut batch, directory, record, name, comes.inode, comes.kind, entry.cookie);
            touch(record, time);
        }
        relink(&mut batch, source.inode, states.of(source.inode)?, (old, source.cookie), (new, target.cookie));
        relink(&mut batch, target.inode, states.of(target.inode)?, (new, target.cookie), (old, source.cookie));
        for (inode, was, becomes, kind) in [(source.inode, old, new, source.kind), (target.inode, new, old, target.kind)] {
            states.of(inode)?.record.changed = time;
            if kind == FileKind::Directory && was != becomes {
                lose_subdirectory(was, &mut states.of(was)?.record)?;
                states.of(becomes)?.record.links += 1;
            }
        }
        self.append_all(batch, states)
    }

    fn append_all(&self, mut batch: Batch, mut states: States<'_>) -> Result<()> {
        for (number, state) in &states.guards {
            batch.put(schema::inode(*number), state.record.encode());
        }
        let sequence = self.meta.append(batch)?;
        for (_, state) in &mut states.guards {
            state.sequence = sequence;
            state.is_dirty = false;
        }
        Ok(())
    }

    /// A directory must not move below itself.
    fn check_not_below(&self, moved: EntryRecord, directory: InodeNumber) -> Result<()> {
        if moved.kind != FileKind::Directory {
            return Ok(());
        }
        let mut at = directory;
        for _ in 0..DEPTH_MAX {
            if at == moved.inode {
                return Err(Error::Invalid("a directory cannot move below itself"));
            }
            if at == InodeNumber::ROOT {
                return Ok(());
            }
            at = self.inode(at)?.state.lock().record.parent;
        }
        Err(Error::corrupt(format!("directory {directory} is in a circle, or more than {DEPTH_MAX} deep")))
    }
}

fn check_replaceable(is_directory: bool, target: FileKind, state: &InodeState) -> Result<()> {
    match (is_directory, target == FileKind::Directory) {
        (true, false) => Err(Error::NotDirectory),
        (false, true) => Err(Error::IsDirectory),
        (true, true) if state.record.size != 0 => Err(Error::NotEmpty),
        _ => Ok(()),
    }
}

/// The inode's link at `was` is at `becomes` now.
fn relink(batch: &mut Batch, inode: InodeNumber, state: &mut InodeState, was: (InodeNumber, u64), becomes: (InodeNumber, u64)) {
    let record = &mut state.record;
    if (record.parent, record.cookie) == was {
        (record.parent, record.cookie) = becomes;
    } else if was != becomes {
        batch.delete(schema::link(inode, was.0, was.1));
        batch.put(schema::link(inode, becomes.0, becomes.1), Vec::new());
    }
}
