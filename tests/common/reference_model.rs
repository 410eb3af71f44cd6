//! What a POSIX tree is, in std collections: the reference that random operations are compared with. It knows nothing of blocks on
//! disks, caches or transactions. Files are sparse: blocks that are all zeros are not stored, so that holes, zeroed and never
//! written ranges are equal, as they are for a reader.
//!
//! Nodes have the inode numbers that the file system gave them, so that identity (hard links, remounts) is compared as well. A
//! clone shares all unchanged nodes: a history of states, one per operation, is cheap. Times are not modelled, except a
//! modification time that was set explicitly and not overwritten by a later change.

#[path = "file_bytes.rs"]
mod file_bytes;

pub use file_bytes::FileBytes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use sumfs::error::Error;
use sumfs::fs::{FallocateMode, RenameMode, XattrMode};
use sumfs::units::{BLOCK, BLOCK_SIZE, Timestamp};

/// An inode number.
pub type Id = u64;
/// The root directory.
pub const ROOT: Id = 1;
/// Longest name.
pub const NAME_BYTES_MAX: usize = 255;
/// Mode bits of the kinds.
pub const REGULAR: u32 = 0o100_000;
pub const DIRECTORY: u32 = 0o040_000;
pub const SYMLINK: u32 = 0o120_000;
const KIND: u32 = 0o170_000;

/// The errors that would be right; which of several applicable ones is seen depends on who looks first, the kernel or we.
#[derive(Clone, Debug)]
pub struct Refused(pub Vec<Error>);

impl Refused {
    /// Is `error` one of them (whatever its details)?
    pub fn allows(&self, error: &Error) -> bool {
        self.0.iter().any(|allowed| std::mem::discriminant(allowed) == std::mem::discriminant(error))
    }
}

fn refuse<T>(errors: &[Error]) -> Result<T, Refused> {
    Err(Refused(errors.to_vec()))
}

/// What a node holds beside its attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    File(FileBytes),
    Directory { entries: BTreeMap<Vec<u8>, Id>, parent: Id },
    Symlink(Vec<u8>),
    Special,
}

/// A node with its attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// With type bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    pub rdev: u32,
    /// Only while it is what was set explicitly.
    pub modified: Option<Timestamp>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub content: Content,
}

impl Node {
    /// A new node without links, owned by root.
    pub fn new(mode: u32, content: Content) -> Node {
        Node { mode, uid: 0, gid: 0, links: 0, rdev: 0, modified: None, xattrs: BTreeMap::new(), content }
    }

    pub fn is_directory(&self) -> bool {
        self.mode & KIND == DIRECTORY
    }

    pub fn is_file(&self) -> bool {
        self.mode & KIND == REGULAR
    }

    /// The contents, if it is a file.
    pub fn file(&self) -> Option<&FileBytes> {
        match &self.content {
            Content::File(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The entries, if it is a directory.
    pub fn entries(&self) -> Option<&BTreeMap<Vec<u8>, Id>> {
        match &self.content {
            Content::Directory { entries, .. } => Some(entries),
            _ => None,
        }
    }
}

/// The whole tree, and nodes without a name that are still in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    root: Id,
    nodes: BTreeMap<Id, Arc<Node>>,
}

impl Model {
    /// An empty tree.
    pub fn new() -> Model {
        Model::rooted(ROOT)
    }

    /// An empty tree below a directory of the root.
    pub fn rooted(id: Id) -> Model {
        let mut root = Node::new(DIRECTORY | 0o755, Content::Directory { entries: BTreeMap::new(), parent: ROOT });
        root.links = 2;
        Model { root: id, nodes: BTreeMap::from([(id, Arc::new(root))]) }
    }

    /// A tree out of nodes found elsewhere.
    pub fn from_nodes(root: Id, nodes: BTreeMap<Id, Arc<Node>>) -> Model {
        Model { root, nodes }
    }

    /// The top of the tree.
    pub fn root(&self) -> Id {
        self.root
    }

    pub fn node(&self, id: Id) -> Option<&Node> {
        self.nodes.get(&id).map(|node| &**node)
    }

    /// All nodes, also nameless ones, by number.
    pub fn nodes(&self) -> impl Iterator<Item = (Id, &Node)> {
        self.nodes.iter().map(|(id, node)| (*id, &**node))
    }

    /// (directory, name, node) of every entry, in a fixed order.
    pub fn entries(&self) -> Vec<(Id, Vec<u8>, Id)> {
        let directories = self.nodes().filter_map(|(id, node)| node.entries().map(|entries| (id, entries)));
        directories.flat_map(|(id, entries)| entries.iter().map(move |(name, child)| (id, name.clone(), *child))).collect()
    }

    /// Nodes that have a name, root included, for which `want` holds.
    pub fn named(&self, want: impl Fn(&Node) -> bool) -> Vec<Id> {
        self.nodes().filter(|(_, node)| node.links > 0 && want(node)).map(|(id, _)| id).collect()
    }

    /// Some directory and name of a node.
    pub fn name_of(&self, id: Id) -> Option<(Id, Vec<u8>)> {
        self.nodes().find_map(|(directory, node)| {
            let (name, _) = node.entries()?.iter().find(|(_, child)| **child == id)?;
            Some((directory, name.clone()))
        })
    }

    /// What a name stands for.
    pub fn lookup(&self, directory: Id, name: &[u8]) -> Result<Id, Refused> {
        let node = self.require(directory)?;
        let Some(entries) = node.entries() else { return refuse(&[Error::NotDirectory]) };
        if name.len() > NAME_BYTES_MAX {
            return refuse(&[Error::NameTooLong]);
        }
        entries.get(name).copied().ok_or(Refused(vec![Error::NotFound]))
    }

    /// May `name` be made in `directory`?
    pub fn may_create(&self, directory: Id, name: &[u8]) -> Result<(), Refused> {
        match self.lookup(directory, name) {
            Ok(_) => refuse(&[Error::Exists]),
            Err(refused) if refused.allows(&Error::NotFound) => Ok(()),
            Err(refused) => Err(refused),
        }
    }

    /// Makes a node under a name.
    pub fn create(&mut self, directory: Id, name: &[u8], id: Id, mut node: Node) -> Result<(), Refused> {
        self.may_create(directory, name)?;
        node.links = if node.is_directory() { 2 } else { 1 };
        assert!(self.nodes.insert(id, Arc::new(node)).is_none(), "inode number {id} was given out twice");
        self.enter(directory, name, id);
        Ok(())
    }

    /// Makes a file without a name.
    pub fn create_nameless(&mut self, id: Id, node: Node) {
        assert!(self.nodes.insert(id, Arc::new(node)).is_none(), "inode number {id} was given out twice");
    }

    /// A further name.
    pub fn link(&mut self, id: Id, directory: Id, name: &[u8]) -> Result<(), Refused> {
        let is_directory = self.require(id)?.is_directory();
        match self.may_create(directory, name) {
            Ok(()) if is_directory => return refuse(&[Error::NotPermitted]),
            Err(mut refused) if is_directory => {
                refused.0.push(Error::NotPermitted);
                return Err(refused);
            }
            result => result?,
        }
        self.change(id).links += 1;
        self.enter(directory, name, id);
        Ok(())
    }

    /// Removes a name of something that is no directory; the node stays until `forget`.
    pub fn unlink(&mut self, directory: Id, name: &[u8]) -> Result<Id, Refused> {
        let id = self.lookup(directory, name)?;
        if self.require(id)?.is_directory() {
            return refuse(&[Error::IsDirectory]);
        }
        self.leave(directory, name, id);
        Ok(id)
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, directory: Id, name: &[u8]) -> Result<Id, Refused> {
        let id = self.lookup(directory, name)?;
        match self.require(id)?.entries() {
            None => return refuse(&[Error::NotDirectory]),
            Some(entries) if !entries.is_empty() => return refuse(&[Error::NotEmpty]),
            Some(_) => self.leave(directory, name, id),
        }
        Ok(id)
    }

    /// Moves a name; a whiteout that stays is the caller's to make. The node that lost its last name by it, if any.
    pub fn rename(&mut self, from: (Id, &[u8]), to: (Id, &[u8]), mode: RenameMode) -> Result<Option<Id>, Refused> {
        let moved = self.lookup(from.0, from.1)?;
        let replaced = match self.lookup(to.0, to.1) {
            Ok(id) => Some(id),
            Err(refused) if refused.allows(&Error::NotFound) => None,
            Err(refused) => return Err(refused),
        };
        self.may_rename(moved, replaced, to.0, from.0, &mode)?;
        if replaced == Some(moved) {
            return Ok(None);
        }
        let lost = match (replaced, mode) {
            (Some(other), RenameMode::Exchange) => {
                self.take(from.0, from.1, moved);
                self.take(to.0, to.1, other);
                self.enter(to.0, to.1, moved);
                self.enter(from.0, from.1, other);
                None
            }
            (replaced, _) => {
                if let Some(other) = replaced {
                    self.leave(to.0, to.1, other);
                }
                self.take(from.0, from.1, moved);
                self.enter(to.0, to.1, moved);
                replaced.filter(|other| self.node(*other).is_some_and(|node| node.links == 0))
            }
        };
        Ok(lost)
    }

    fn may_rename(&self, moved: Id, replaced: Option<Id>, to: Id, from: Id, mode: &RenameMode) -> Result<(), Refused> {
        let is_exchange = matches!(mode, RenameMode::Exchange);
        let mut refused = Vec::new();
        if self.is_below(to, moved) {
            refused.push(Error::Invalid(""));
        }
        match replaced {
            Some(_) if matches!(mode, RenameMode::NoReplace | RenameMode::Whiteout { replaces: false, .. }) => {
                refused.push(Error::Exists)
            }
            None if is_exchange => refused.push(Error::NotFound),
            Some(other) if is_exchange && self.is_below(from, other) => refused.push(Error::Invalid("")),
            Some(other) if !is_exchange && other != moved => {
                let (moved, other) = (self.require(moved)?, self.require(other)?);
                match (moved.is_directory(), other.entries()) {
                    (true, None) => refused.push(Error::NotDirectory),
                    // The kernel says ENOTEMPTY when the target holds the source, before it looks at what they are.
                    (false, Some(entries)) if !entries.is_empty() => refused.extend([Error::IsDirectory, Error::NotEmpty]),
                    (false, Some(_)) => refused.push(Error::IsDirectory),
                    (true, Some(entries)) if !entries.is_empty() => refused.push(Error::NotEmpty),
                    _ => {}
                }
            }
            _ => {}
        }
        if refused.is_empty() { Ok(()) } else { Err(Refused(refused)) }
    }

    /// Is `id` the directory `top` or below it?
    fn is_below(&self, mut id: Id, top: Id) -> bool {
        loop {
            if id == top {
                return true;
            }
            match self.node(id).map(|node| &node.content) {
                Some(Content::Directory { parent, .. }) if *parent != id => id = *parent,
                _ => return false,
            }
        }
    }

    /// Writes to a file.
    pub fn write(&mut self, id: Id, offset: u64, data: &[u8]) -> Result<(), Refused> {
        self.change_file(id, |bytes| bytes.write(offset, data))
    }

    /// Sets the length of a file.
    pub fn set_size(&mut self, id: Id, size: u64) -> Result<(), Refused> {
        self.change_file(id, |bytes| bytes.set_size(size))
    }

    /// Allocation shows in the size only.
    pub fn fallocate(&mut self, id: Id, offset: u64, len: u64, mode: FallocateMode) -> Result<(), Refused> {
        self.change_file(id, |bytes| {
            let end = offset + len;
            if matches!(mode, FallocateMode::PunchHole | FallocateMode::ZeroRange | FallocateMode::ZeroRangeKeepSize) {
                bytes.zero(offset, end.min(bytes.size()));
            }
            if matches!(mode, FallocateMode::Allocate | FallocateMode::ZeroRange) && end > bytes.size() {
                bytes.set_size(end);
            }
        })
    }

    /// Copies by sharing whole blocks; how many bytes.
    pub fn copy_range(&mut self, from: (Id, u64), to: (Id, u64), len: u64) -> Result<u64, Refused> {
        let (Some(source), Some(target)) = (self.require(from.0)?.file(), self.require(to.0)?.file()) else {
            return refuse(&[Error::IsDirectory, Error::Invalid("")]);
        };
        let len = len.min(source.size().saturating_sub(from.1));
        if from.0 == to.0 && from.1 < to.1 + len && to.1 < from.1 + len {
            return refuse(&[Error::Invalid("")]);
        }
        // A block of the target cannot be partly shared and go on behind.
        let shared = if to.1 + len >= target.size() { len } else { len / BLOCK_SIZE * BLOCK_SIZE };
        let is_aligned = from.1.is_multiple_of(BLOCK_SIZE) && to.1.is_multiple_of(BLOCK_SIZE);
        if len > 0 && (shared == 0 || !is_aligned) {
            return refuse(&[Error::Unsupported]);
        }
        if shared > 0 {
            let bytes = source.read(from.1, shared as usize);
            self.write(to.0, to.1, &bytes)?;
        }
        Ok(shared)
    }

    /// Sets permission bits.
    pub fn set_mode(&mut self, id: Id, mode: u32) {
        let node = self.change(id);
        node.mode = node.mode & KIND | mode & 0o7777;
    }

    /// Sets the owner; None leaves it.
    pub fn set_owner(&mut self, id: Id, uid: Option<u32>, gid: Option<u32>) {
        let node = self.change(id);
        node.uid = uid.unwrap_or(node.uid);
        node.gid = gid.unwrap_or(node.gid);
    }

    /// Sets the modification time.
    pub fn set_modified(&mut self, id: Id, time: Timestamp) {
        self.change(id).modified = Some(time);
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&mut self, id: Id, name: &[u8], value: &[u8], mode: XattrMode) -> Result<(), Refused> {
        let exists = self.require(id)?.xattrs.contains_key(name);
        match mode {
            XattrMode::Create if exists => refuse(&[Error::Exists]),
            XattrMode::Replace if !exists => refuse(&[Error::NoXattr]),
            _ => {
                self.change(id).xattrs.insert(name.to_vec(), value.to_vec());
                Ok(())
            }
        }
    }

    /// An extended attribute.
    pub fn xattr(&self, id: Id, name: &[u8]) -> Result<Vec<u8>, Refused> {
        self.require(id)?.xattrs.get(name).cloned().ok_or(Refused(vec![Error::NoXattr]))
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&mut self, id: Id, name: &[u8]) -> Result<(), Refused> {
        self.xattr(id, name)?;
        self.change(id).xattrs.remove(name);
        Ok(())
    }

    /// Nobody uses the node any more: it is gone if it has no name.
    pub fn forget(&mut self, id: Id) {
        if self.node(id).is_some_and(|node| node.links == 0) {
            self.nodes.remove(&id);
        }
    }

    /// Only what has a name, as after a remount.
    pub fn without_nameless(&self) -> Model {
        Model {
            root: self.root,
            nodes: self.nodes.iter().filter(|(_, node)| node.links > 0).map(|(id, node)| (*id, node.clone())).collect(),
        }
    }

    /// Where `found` differs; contents of files only if `with_data`.
    pub fn differences(&self, found: &Model, with_data: bool) -> Vec<String> {
        let mut all = Vec::new();
        let ids: BTreeSet<Id> = self.nodes.keys().chain(found.nodes.keys()).copied().collect();
        for id in ids {
            match (self.node(id), found.node(id)) {
                (Some(expected), Some(found)) => node_differences(self.label(id), expected, found, with_data, &mut all),
                (Some(_), None) => all.push(format!("{} is missing", self.label(id))),
                (None, Some(_)) => all.push(format!("{} should not be there", found.label(id))),
                (None, None) => {}
            }
        }
        all
    }

    /// Is the tree the same, contents and lengths of files apart?
    pub fn has_same_names(&self, found: &Model) -> bool {
        self.nodes.len() == found.nodes.len()
            && self.nodes.iter().zip(&found.nodes).all(|((id, node), (found_id, found))| {
                let mut differences = Vec::new();
                if id == found_id && !Arc::ptr_eq(node, found) {
                    node_differences(String::new(), node, found, false, &mut differences);
                }
                id == found_id && differences.is_empty()
            })
    }

    /// A name of the node for messages.
    pub fn label(&self, id: Id) -> String {
        match self.name_of(id) {
            Some((directory, name)) => {
                let name = String::from_utf8_lossy(&name[..name.len().min(12)]).into_owned();
                format!("inode {id} ({name} in {directory})")
            }
            None => format!("inode {id}"),
        }
    }

    fn require(&self, id: Id) -> Result<&Node, Refused> {
        self.node(id).ok_or(Refused(vec![Error::Stale, Error::NotFound]))
    }

    fn change(&mut self, id: Id) -> &mut Node {
        Arc::make_mut(self.nodes.get_mut(&id).unwrap_or_else(|| panic!("the model has no inode {id}")))
    }

    fn change_file(&mut self, id: Id, change: impl FnOnce(&mut FileBytes)) -> Result<(), Refused> {
        self.require(id)?;
        let node = self.change(id);
        match &mut node.content {
            Content::File(bytes) => change(bytes),
            Content::Directory { .. } => return refuse(&[Error::IsDirectory, Error::Invalid("")]),
            _ => return refuse(&[Error::Invalid("")]),
        }
        node.modified = None;
        Ok(())
    }

    fn change_directory(&mut self, id: Id) -> &mut BTreeMap<Vec<u8>, Id> {
        let node = self.change(id);
        node.modified = None;
        match &mut node.content {
            Content::Directory { entries, .. } => entries,
            _ => panic!("inode {id} is no directory"),
        }
    }

    /// Puts an entry, without changing the node's links.
    fn enter(&mut self, directory: Id, name: &[u8], id: Id) {
        self.change_directory(directory).insert(name.to_vec(), id);
        if let Content::Directory { parent, .. } = &mut self.change(id).content {
            *parent = directory;
            self.change(directory).links += 1;
        }
    }

    /// Removes an entry, without changing the node's links.
    fn take(&mut self, directory: Id, name: &[u8], id: Id) {
        self.change_directory(directory).remove(name);
        if self.node(id).is_some_and(Node::is_directory) {
            self.change(directory).links -= 1;
        }
    }

    /// Removes an entry and with it one link.
    fn leave(&mut self, directory: Id, name: &[u8], id: Id) {
        self.take(directory, name, id);
        let node = self.change(id);
        node.links = if node.is_directory() { 0 } else { node.links - 1 };
    }
}

fn node_differences(label: String, expected: &Node, found: &Node, with_data: bool, all: &mut Vec<String>) {
    let attributes = |node: &Node| (node.mode, node.uid, node.gid, node.links, node.rdev);
    if attributes(expected) != attributes(found) {
        all.push(format!(
            "{label}: mode {:o}, uid, gid, links, rdev {:?}; found mode {:o}, {:?}",
            expected.mode,
            (expected.uid, expected.gid, expected.links, expected.rdev),
            found.mode,
            (found.uid, found.gid, found.links, found.rdev)
        ));
    }
    if let (Some(time), Some(found)) = (expected.modified, found.modified)
        && time != found
        && (with_data || expected.file().is_none())
    {
        all.push(format!("{label}: modified {time:?}, found {found:?}"));
    }
    if expected.xattrs != found.xattrs {
        let short = |node: &Node| {
            node.xattrs.iter().map(|(name, value)| (name.escape_ascii().to_string(), value.len())).collect::<Vec<_>>()
        };
        all.push(format!("{label}: xattrs (name, length) {:?}, found {:?}", short(expected), short(found)));
    }
    match (&expected.content, &found.content) {
        (Content::File(expected), Content::File(found)) if with_data => file_differences(&label, expected, found, all),
        (Content::File(_), Content::File(_)) => {}
        (Content::Directory { entries, .. }, Content::Directory { entries: found, .. }) if entries != found => {
            all.push(format!("{label}: entries {}, found {}", listing(entries), listing(found)));
        }
        (Content::Directory { .. }, Content::Directory { .. }) => {}
        (expected, found) if expected != found => all.push(format!("{label}: {expected:?}, found {found:?}")),
        _ => {}
    }
}

fn listing(entries: &BTreeMap<Vec<u8>, Id>) -> String {
    let each = entries.iter().map(|(name, id)| format!("{}={id}", name[..name.len().min(12)].escape_ascii()));
    each.collect::<Vec<_>>().join(" ")
}

fn file_differences(label: &str, expected: &FileBytes, found: &FileBytes, all: &mut Vec<String>) {
    if expected.size() != found.size() {
        all.push(format!("{label}: size {}, found {}", expected.size(), found.size()));
    }
    let indexes: BTreeSet<u64> = expected.block_indexes().chain(found.block_indexes()).collect();
    let differ: Vec<u64> = indexes.into_iter().filter(|index| expected.block(*index) != found.block(*index)).collect();
    if let Some(first) = differ.first() {
        let (zero, of) = ([0; BLOCK], |bytes: &FileBytes| bytes.block(*first).map(|block| **block));
        let (expected, found) = (of(expected).unwrap_or(zero), of(found).unwrap_or(zero));
        let at = expected.iter().zip(&found).position(|(expected, found)| expected != found).unwrap_or(0);
        let window = at..(at + 8).min(BLOCK);
        all.push(format!(
            "{label}: {} blocks differ, first at offset {}: {:02x?}, found {:02x?}",
            differ.len(),
            first * BLOCK_SIZE + at as u64,
            &expected[window.clone()],
            &found[window]
        ));
    }
}
