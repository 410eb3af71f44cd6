//! Extended attributes: one record each, 64 KiB at most. The inode's flag says whether there are any, so that the common question
//! for one that has none costs no lookup.

use super::acl;
use super::inode::{Inode, InodeState};
use super::protection::may_change;
use super::types::{Caller, XattrMode};
use super::{Filesystem, NAME_BYTES_MAX};
use crate::clock::now;
use crate::error::{Error, Result};
use crate::meta::records::{INODE_HAS_XATTRS, InodeRecord};
use crate::meta::{Batch, schema};
use crate::units::InodeNumber;

/// Longest value in bytes, and longest list of names.
const VALUE_BYTES_MAX: usize = 64 << 10;

const CAPABILITY: &[u8] = b"security.capability";

/// `has_lists`: access control lists are no foreign attributes.
fn check_name(name: &[u8], has_lists: bool) -> Result<()> {
    if has_lists && acl::is_name(name) {
        return Ok(());
    }
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
        check_name(name, self.options.acl)?;
        if acl::is_name(name) {
            return self.set_acl(inode, name, value, mode == XattrMode::ClearSgid);
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::ValueTooLarge);
        }
        self.begin_creating()?;
        let inode = self.inode(inode)?;
        let key = schema::xattr(inode.number, name);
        let mut state = inode.state.lock();
        may_change(&state.record)?;
        let exists = has_any(&state) && self.meta.get(&key)?.is_some();
        match (mode, exists) {
            (XattrMode::Create, true) => return Err(Error::Exists),
            (XattrMode::Replace, false) => return Err(Error::NoXattr),
            _ => {}
        }
        if !exists && has_any(&state) && self.bytes_with(inode.number, name)? > VALUE_BYTES_MAX {
            return Err(Error::NoSpace);
        }
        let mut batch = Batch::new();
        batch.put(key, value.to_vec());
        state.record.flags |= INODE_HAS_XATTRS;
        state.record.changed = now();
        self.append_states(batch, [(inode.number, &mut state)])
    }

    /// Sets an access control list and the mode that goes with it, in one batch.
    fn set_acl(&self, inode: InodeNumber, name: &[u8], value: &[u8], kills_sgid: bool) -> Result<()> {
        self.begin_creating()?;
        let inode = self.inode(inode)?;
        let mut state = inode.state.lock();
        may_change(&state.record)?;
        let mut record = state.record.clone();
        let stored = acl::set(&mut record, name, value, kills_sgid)?;
        let key = schema::xattr(inode.number, name);
        let mut batch = Batch::new();
        match stored {
            Some(list) => {
                if self.bytes_with(inode.number, name)? > VALUE_BYTES_MAX {
                    return Err(Error::NoSpace);
                }
                batch.put(key, list);
                record.flags |= INODE_HAS_XATTRS;
            }
            None => self.delete_xattr(&mut batch, inode.number, name, &mut record)?,
        }
        record.changed = now();
        state.record = record;
        self.append_states(batch, [(inode.number, &mut state)])
    }

    /// Deletes an attribute that may be there, and clears the flag if it was the last one.
    fn delete_xattr(&self, batch: &mut Batch, inode: InodeNumber, name: &[u8], record: &mut InodeRecord) -> Result<()> {
        if record.flags & INODE_HAS_XATTRS == 0 {
            return Ok(());
        }
        let (mut is_there, mut others) = (false, 0);
        self.each_xattr(inode, &mut |found| if found == name { is_there = true } else { others += 1 })?;
        if is_there {
            batch.delete(schema::xattr(inode, name));
        }
        if others == 0 {
            record.flags &= !INODE_HAS_XATTRS;
        }
        Ok(())
    }

    /// The value of an attribute.
    pub fn getxattr(&self, inode: InodeNumber, name: &[u8]) -> Result<Vec<u8>> {
        check_name(name, self.options.acl)?;
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
            if self.options.acl || !acl::is_name(name) {
                list.extend_from_slice(name);
                list.push(0);
            }
        })?;
        Ok(list)
    }

    /// Removes an attribute.
    pub fn removexattr(&self, _caller: &Caller, inode: InodeNumber, name: &[u8]) -> Result<()> {
        check_name(name, self.options.acl)?;
        if acl::is_name(name) {
            return self.set_acl(inode, name, &[], false);
        }
        self.remove(inode, name, may_change)
    }

    fn remove(&self, inode: InodeNumber, name: &[u8], may: fn(&InodeRecord) -> Result<()>) -> Result<()> {
        self.begin_changing()?;
        let inode = self.inode(inode)?;
        let mut state = inode.state.lock();
        may(&state.record)?;
        if !has_any(&state) || self.meta.get(&schema::xattr(inode.number, name))?.is_none() {
            return Err(Error::NoXattr);
        }
        let mut batch = Batch::new();
        self.delete_xattr(&mut batch, inode.number, name, &mut state.record)?;
        state.record.changed = now();
        self.append_states(batch, [(inode.number, &mut state)])
    }

    /// A file whose contents or owner change loses its capabilities, whoever changes them.
    pub(super) fn drop_capability(&self, inode: &Inode) -> Result<()> {
        if !has_any(&inode.state.lock()) {
            return Ok(());
        }
        match self.remove(inode.number, CAPABILITY, |_| Ok(())) {
            Err(Error::NoXattr) => Ok(()),
            result => result,
        }
    }

    /// Length of the list of names that has this one, too.
    fn bytes_with(&self, inode: InodeNumber, name: &[u8]) -> Result<usize> {
        let mut bytes = name.len() + 1;
        self.each_xattr(inode, &mut |other| bytes += if other == name { 0 } else { other.len() + 1 })?;
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
