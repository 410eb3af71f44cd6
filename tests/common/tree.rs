//! Reads the whole tree of a file system back, through its public functions only, into a [`Model`] that can be compared.
//!
//! Listings are taken in two ways (readdir with lookups, readdirplus) and must agree with themselves: kinds, `.` and `..`,
//! no name twice. Large sparse files are read around the blocks that the caller finds interesting.

use crate::reference_model::{Content, FileBytes, Id, Model, Node, ROOT};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use sumfs::error::Error;
use sumfs::fs::{Attributes, Filesystem, ReadFlags};
use sumfs::lock::Wait;
use sumfs::units::{BLOCK, BLOCK_SIZE, InodeNumber};

/// Files up to this size are read whole.
const WHOLE_BYTES_MAX: u64 = 3 << 20;
const READ_BYTES: usize = 256 << 10;

/// What the walk needs to know.
pub struct Walk<'a> {
    pub fs: &'a Filesystem,
    /// A directory that lies in the root directory, or that itself.
    pub root: Id,
    /// Nodes without a name that must still be there.
    pub nameless: &'a [Id],
    /// Blocks to look at in files too large to be read whole.
    pub interesting: &'a dyn Fn(Id) -> Vec<u64>,
    /// Read without the cache.
    pub direct: bool,
}

impl Walk<'_> {
    /// The tree as it is now. An error says what could not be read or is inconsistent in itself.
    pub fn read(&self) -> Result<Model, String> {
        let mut nodes = BTreeMap::new();
        let mut waiting = vec![(self.root, Some(ROOT))];
        let mut looked_up = Vec::new();
        while let Some((id, parent)) = waiting.pop() {
            if nodes.contains_key(&id) {
                continue;
            }
            let node = self.node(id, parent, &mut looked_up)?;
            if let Content::Directory { entries, .. } = &node.content {
                waiting.extend(entries.values().map(|child| (*child, Some(id))));
            }
            nodes.insert(id, Arc::new(node));
        }
        for id in self.nameless {
            nodes.insert(*id, Arc::new(self.node(*id, None, &mut looked_up)?));
        }
        for id in looked_up {
            self.fs.forget(InodeNumber(id), 1);
        }
        Ok(Model::from_nodes(self.root, nodes))
    }

    fn node(&self, id: Id, parent: Option<Id>, looked_up: &mut Vec<Id>) -> Result<Node, String> {
        let inode = InodeNumber(id);
        let attributes = self.fs.getattr(inode).map_err(|error| format!("getattr of inode {id}: {error}"))?;
        if attributes.inode != inode {
            return Err(format!("getattr of inode {id} answers for inode {}", attributes.inode));
        }
        let content = match attributes.mode & 0o170_000 {
            0o040_000 => Content::Directory { entries: self.directory(id, parent, looked_up)?, parent: parent.unwrap_or(ROOT) },
            0o100_000 => Content::File(self.file(id, attributes.size)?),
            0o120_000 => {
                let target = self.fs.readlink(inode).map_err(|error| format!("readlink of inode {id}: {error}"))?;
                if attributes.size != target.len() as u64 {
                    return Err(format!("inode {id}: a target of {} bytes, size {}", target.len(), attributes.size));
                }
                Content::Symlink(target)
            }
            _ => Content::Special,
        };
        let mut node = Node::new(attributes.mode, content);
        (node.uid, node.gid, node.links, node.rdev) = (attributes.uid, attributes.gid, attributes.links, attributes.rdev);
        node.modified = Some(attributes.modified);
        node.xattrs = self.xattrs(inode)?;
        Ok(node)
    }

    fn xattrs(&self, inode: InodeNumber) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, String> {
        let list = self.fs.listxattr(inode).map_err(|error| format!("listxattr of inode {inode}: {error}"))?;
        let mut xattrs = BTreeMap::new();
        for name in list.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let value = self.fs.getxattr(inode, name);
            let value = value.map_err(|error| format!("xattr {} of inode {inode}: {error}", name.escape_ascii()))?;
            if xattrs.insert(name.to_vec(), value).is_some() {
                return Err(format!("inode {inode} lists xattr {} twice", name.escape_ascii()));
            }
        }
        Ok(xattrs)
    }

    fn directory(&self, id: Id, parent: Option<Id>, looked_up: &mut Vec<Id>) -> Result<BTreeMap<Vec<u8>, Id>, String> {
        let plain = self.listing(id, parent)?;
        let mut plus = BTreeMap::new();
        let mut wrong = None;
        let mut note = |name: &[u8], attributes: &Attributes, inode: Id, mode_bits: u32| {
            if attributes.inode.0 != inode || attributes.mode & 0o170_000 != mode_bits {
                wrong =
                    Some(format!("entry {} of directory {id}: inode {inode}, attributes {attributes:?}", name.escape_ascii()));
            }
            if name != b"." && name != b".." {
                looked_up.push(inode);
                plus.insert(name.to_vec(), inode);
            }
        };
        // In small bites, to go through the cookies.
        let mut cookie = 0;
        loop {
            let mut taken = 0;
            let listed = self.fs.readdirplus(InodeNumber(id), cookie, &mut |entry, attributes| {
                if taken == 7 {
                    return false;
                }
                taken += 1;
                cookie = entry.next;
                note(entry.name, attributes, entry.inode.0, entry.kind.mode_bits());
                true
            });
            listed.map_err(|error| format!("readdirplus of inode {id}: {error}"))?;
            if taken == 0 {
                break;
            }
        }
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        if plain != plus {
            return Err(format!("directory {id}: readdir lists {plain:?}, readdirplus {plus:?}"));
        }
        for (name, child) in plain.iter().take(3) {
            match self.fs.lookup(InodeNumber(id), name) {
                Ok(attributes) => {
                    looked_up.push(attributes.inode.0);
                    if attributes.inode.0 != *child {
                        return Err(format!(
                            "{} in {id} is listed as {child}, looked up as {}",
                            name.escape_ascii(),
                            attributes.inode
                        ));
                    }
                }
                Err(error) => return Err(format!("lookup of listed {} in {id}: {error}", name.escape_ascii())),
            }
        }
        Ok(plain)
    }

    /// By readdir, in one go.
    fn listing(&self, id: Id, parent: Option<Id>) -> Result<BTreeMap<Vec<u8>, Id>, String> {
        let (mut all, mut cookies) = (Vec::new(), BTreeSet::new());
        let mut is_cookie_twice = false;
        let listed = self.fs.readdir(InodeNumber(id), 0, &mut |entry| {
            is_cookie_twice |= !cookies.insert(entry.next);
            all.push((entry.name.to_vec(), entry.inode.0));
            true
        });
        listed.map_err(|error| format!("readdir of inode {id}: {error}"))?;
        let count = all.len();
        let mut entries: BTreeMap<Vec<u8>, Id> = all.into_iter().collect();
        if entries.len() != count || is_cookie_twice {
            return Err(format!("directory {id} lists a name or a cookie twice"));
        }
        let dots = (entries.remove(b".".as_slice()), entries.remove(b"..".as_slice()));
        // What a removed directory lists as its parent is of no interest.
        if dots.0 != Some(id) || dots.1.is_none() || parent.is_some() && dots.1 != parent {
            return Err(format!("directory {id} below {parent:?}: . and .. are {dots:?}"));
        }
        Ok(entries)
    }

    fn file(&self, id: Id, size: u64) -> Result<FileBytes, String> {
        let mut bytes = FileBytes::default();
        bytes.set_size(size);
        if size <= WHOLE_BYTES_MAX {
            let mut offset = 0;
            while offset < size {
                let data = self.read_at(id, offset, READ_BYTES, size)?;
                bytes.write(offset, &data);
                offset += data.len() as u64;
            }
            return Ok(bytes);
        }
        let last = (size - 1) / BLOCK_SIZE;
        let mut blocks: BTreeSet<u64> = BTreeSet::from([0, last / 2, last]);
        for block in (self.interesting)(id) {
            blocks.extend([block.saturating_sub(1), block, block + 1]);
        }
        for block in blocks.into_iter().filter(|block| *block <= last) {
            let data = self.read_at(id, block * BLOCK_SIZE, BLOCK, size)?;
            bytes.write(block * BLOCK_SIZE, &data);
        }
        Ok(bytes)
    }

    fn read_at(&self, id: Id, offset: u64, len: usize, size: u64) -> Result<Vec<u8>, String> {
        let flags = ReadFlags { direct: self.direct, no_atime: true };
        let expected = (len as u64).min(size - offset) as usize;
        match self.fs.read(InodeNumber(id), offset, len, flags, Wait::Allowed) {
            Ok(data) if data.as_slice().len() == expected => Ok(data.as_slice().to_vec()),
            Ok(data) => Err(format!("reading inode {id} at {offset}: {} bytes instead of {expected}", data.as_slice().len())),
            Err(error) => Err(format!("reading inode {id} at {offset}: {error}")),
        }
    }
}

/// Reads until the expected error or the bytes: a shorthand for tests.
pub fn read_bytes(fs: &Filesystem, inode: InodeNumber, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
    Ok(fs.read(inode, offset, len, ReadFlags::default(), Wait::Allowed)?.as_slice().to_vec())
}
