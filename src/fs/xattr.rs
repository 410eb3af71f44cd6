//! Extended attributes: one record each, 64 KiB at most. The inode's flag says whether there are any, so that the common question
//! for one that has none costs no lookup.

use super::inode::{Inode, InodeState};
use super::types::{Caller, XattrMode};
use super::{Filesystem, NAME_BYTES_MAX};
use crate::clock::now;
use crate::error::{Error, Result};
use crate::meta::records::INODE_HAS_XATTRS;
use crate::meta::{Batch, schema};
use crate::units::InodeNumber;

/// Longest value in bytes, and longest list of names.
const VALUE_BYTES_MAX: usize = 64 << 10;

const CAPABILITY: &[u8] = b"security.capability";

fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(Error::Invalid("an attribute name of no or too many bytes"));
    }
    let known: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    match known.iter().find(|prefix| name.starts_with(prefix)) {
        Some(prefix) if name.len() > prefix.len() => Ok(()),
        Some(_) => Err(Error::Invalid("an attribute name that is only a prefix")),
        None => Err(Error::Unsupported),
    }
}

impl Filesystem {
    /// Sets an attribute.
    pub fn setxattr(&self, _caller: &Caller, inode: InodeNumber, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        check_name(name)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::ValueTooLarge);
        }
        self.begin_creating()?;
        let inode = self.inode(inode)?;
        let key = schema::xattr(inode.number, name);
        let mut state = inode.state.lock();
        let exists = has_any(&state) && self.meta.get(&key)?.is_some();
        match (mode, exists) {
            (XattrMode::Create, true) => return Err(Error::Exists),
            (XattrMode::Replace, false) => return Err(Error::NoXattr),
            _ => {}
        }
        if !exists && has_any(&state) && self.names_bytes(inode.number)? + name.len() + 1 > VALUE_BYTES_MAX {
            return Err(Error::NoSpace);
        }
        let mut batch = Batch::new();
        batch.put(key, value.to_vec());
        state.record.flags |= INODE_HAS_XATTRS;
        state.record.changed = now();
        self.append_states(batch, [(inode.number, &mut state)])
    }

    /// The value of an attribute.
    pub fn getxattr(&self, inode: InodeNumber, name: &[u8]) -> Result<Vec<u8>> {
        check_name(name)?;
        let found = self.inode(inode)?;
        if !has_any(&found.state.lock()) {
            return Err(Error::NoXattr);
        }
        self.meta.get(&schema::xattr(inode, name))?.ok_or(Error::NoXattr)
    }

    /// The names, each ended by NUL.
    pub fn listxattr(&self, inode: InodeNumber) -> Result<Vec<u8>> {
        let found = self.inode(inode)?;
        if !has_any(&found.state.lock()) {
            return Ok(Vec::new());
        }
        let mut list = Vec::new();
        self.each_xattr(inode, &mut |name| {
            list.extend_from_slice(name);
            list.push(0);
        })?;
        Ok(list)
    }

    /// Removes an attribute.
    pub fn removexattr(&self, _caller: &Caller, inode: InodeNumber, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.begin_changing()?;
        let inode = self.inode(inode)?;
        let key = schema::xattr(inode.number, name);
        let mut state = inode.state.lock();
        if !has_any(&state) || self.meta.get(&key)?.is_none() {
            return Err(Error::NoXattr);
        }
        let mut count = 0;
        self.each_xattr(inode.number, &mut |_| count += 1)?;
        let mut batch = Batch::new();
        batch.delete(key);
        if count == 1 {
            state.record.flags &= !INODE_HAS_XATTRS;
        }
        state.record.changed = now();
        self.append_states(batch, [(inode.number, &mut state)])
    }

    /// A file whose contents or owner change loses its capabilities, whoever changes them.
    pub(super) fn drop_capability(&self, inode: &Inode) -> Result<()> {
        if !has_any(&inode.state.lock()) {
            return Ok(());
        }
        match self.removexattr(&Caller::ROOT, inode.number, CAPABILITY) {
            Err(Error::NoXattr) => Ok(()),
            result => result,
        }
    }

    fn names_bytes(&self, inode: InodeNumber) -> Result<usize> {
        let mut bytes = 0;
        self.each_xattr(inode, &mut |name| bytes += name.len() + 1)?;
        Ok(bytes)
    }

    fn each_xattr(&self, inode: InodeNumber, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
        let (mut from, end) = (schema::items(inode, schema::Item::Xattr), schema::items_end(inode, schema::Item::Xattr));
        loop {
            let (items, next) = self.meta.scan(&from, &end, 256)?;
            for (key, _) in &items {
                if let Some(schema::Parsed::Xattr { name, .. }) = schema::parse(key) {
                    visit(name);
                }
            }
            match next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }
}

fn has_any(state: &InodeState) -> bool {
    state.record.flags & INODE_HAS_XATTRS != 0
}
