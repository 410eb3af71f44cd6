//! Looks at everything that a mounted store has, takes errors as they come, and holds every byte against what the files ever held.

use crate::reference_model::FileBytes;
use crate::store::ROOT;
use std::collections::{BTreeSet, HashMap};
use sumfs::fs::{Filesystem, ReadFlags};
use sumfs::lock::Wait;
use sumfs::units::{BLOCK, BLOCK_SIZE, InodeNumber};

/// Entries that are looked at in one directory: its records are no more than some thousands.
const ENTRIES_MAX: usize = 20_000;
const INODES_MAX: usize = 2000;
/// Files up to this size are read whole.
const WHOLE_BYTES_MAX: u64 = 3 << 20;
const READ_BYTES: u64 = 256 << 10;
/// What the fuzzer writes.
pub const NEW_BYTE: u8 = b'n';

/// What may be read.
pub enum Oracle<'a> {
    /// Anything: the metadata was forged.
    Anything,
    /// What the file held at some time, block by block.
    Versions(&'a HashMap<InodeNumber, Vec<FileBytes>>),
    /// The same, in part overwritten or cut off since.
    Changed(&'a HashMap<InodeNumber, Vec<FileBytes>>),
}

/// A file, directory or whatever it is.
pub struct Found {
    pub parent: InodeNumber,
    pub name: Vec<u8>,
    pub inode: InodeNumber,
    pub mode: u32,
    pub size: u64,
}

/// Everything that can be reached from the root. An error is wrong data, or a listing without end.
pub fn walk(fs: &Filesystem, oracle: &Oracle<'_>) -> Result<Vec<Found>, String> {
    let mut found = Vec::new();
    let mut waiting = vec![ROOT];
    let mut seen = BTreeSet::from([ROOT]);
    while let Some(directory) = waiting.pop() {
        for entry in list(fs, directory)? {
            let _ = fs.lookup(directory, &entry.name).map(|attributes| fs.forget(attributes.inode, 1));
            if seen.len() < INODES_MAX && seen.insert(entry.inode) {
                look_at(fs, &entry, oracle)?;
                if entry.mode & 0o170_000 == 0o040_000 {
                    waiting.push(entry.inode);
                }
            }
            found.push(entry);
        }
    }
    Ok(found)
}

fn list(fs: &Filesystem, directory: InodeNumber) -> Result<Vec<Found>, String> {
    let mut found = Vec::new();
    let mut cookie = 0;
    loop {
        let mut taken = 0;
        let listed = fs.readdirplus(directory, cookie, &mut |entry, attributes| {
            if taken == 50 {
                return false;
            }
            taken += 1;
            cookie = entry.next;
            if entry.name != b"." && entry.name != b".." {
                let (inode, name) = (entry.inode, entry.name.to_vec());
                found.push(Found { parent: directory, name, inode, mode: attributes.mode, size: attributes.size });
            }
            true
        });
        if listed.is_err() || taken == 0 {
            break;
        }
        if found.len() > ENTRIES_MAX {
            return Err(format!("directory {directory} lists without end"));
        }
    }
    found.iter().for_each(|entry| fs.forget(entry.inode, 1));
    Ok(found)
}

fn look_at(fs: &Filesystem, entry: &Found, oracle: &Oracle<'_>) -> Result<(), String> {
    let inode = entry.inode;
    if let Ok(names) = fs.listxattr(inode) {
        for name in names.split(|byte| *byte == 0) {
            let _ = fs.getxattr(inode, name);
        }
    }
    let _ = fs.readlink(inode);
    let _ = fs.readdir(inode, u64::MAX / 2, &mut |_| true);
    if entry.mode & 0o170_000 != 0o100_000 {
        return Ok(());
    }
    let size = entry.size;
    let mut offsets: BTreeSet<u64> = [20 << 20, 1 << 30, 1 << 40, size / 2, size.saturating_sub(READ_BYTES), size].into();
    let whole = size.min(WHOLE_BYTES_MAX).div_ceil(READ_BYTES);
    offsets.extend((0..whole).map(|piece| piece * READ_BYTES));
    for offset in offsets.into_iter().filter(|offset| *offset <= size.min(i64::MAX as u64)) {
        // What a long read does not give because of one block, shorter ones may.
        if !read(fs, inode, offset, READ_BYTES as usize, oracle)? {
            for block in 0..READ_BYTES / BLOCK_SIZE {
                read(fs, inode, offset.saturating_add(block * BLOCK_SIZE), BLOCK, oracle)?;
            }
        }
    }
    Ok(())
}

/// Reads and compares; false when there is an error.
fn read(fs: &Filesystem, inode: InodeNumber, offset: u64, size: usize, oracle: &Oracle<'_>) -> Result<bool, String> {
    let flags = ReadFlags { direct: offset % 3 == 1, no_atime: false };
    let Ok(data) = fs.read(inode, offset, size, flags, Wait::Allowed) else { return Ok(false) };
    let (versions, is_changed) = match oracle {
        Oracle::Anything => return Ok(true),
        Oracle::Versions(versions) => (versions, false),
        Oracle::Changed(versions) => (versions, true),
    };
    let none = Vec::new();
    let versions = versions.get(&inode).unwrap_or(&none);
    let mut at = offset;
    for piece in cut(data.as_slice(), offset) {
        let is_zeros = piece.iter().all(|byte| *byte == 0);
        let fits = |version: &FileBytes| {
            let mut held = version.read(at, piece.len());
            held.resize(piece.len(), 0);
            let is_new = |byte: u8| is_changed && (byte == 0 || byte == NEW_BYTE);
            held == piece || piece.iter().zip(&held).all(|(found, held)| found == held || is_new(*found))
        };
        let is_only_new = is_changed && piece.iter().all(|byte| [0, NEW_BYTE].contains(byte));
        if !is_zeros && !is_only_new && !versions.iter().any(fits) {
            return Err(format!("wrong data in inode {inode} at {at}, {} bytes", piece.len()));
        }
        at += piece.len() as u64;
    }
    Ok(true)
}

/// Pieces of `data` that end at block borders of the file.
fn cut(data: &[u8], offset: u64) -> Vec<&[u8]> {
    let first = (BLOCK - (offset % BLOCK_SIZE) as usize).min(data.len());
    let (head, rest) = data.split_at(first);
    std::iter::once(head).chain(rest.chunks(BLOCK)).collect()
}
