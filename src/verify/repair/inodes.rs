//! Inodes, one at a time with all their items: a lost record is made anew from what is left, items that an inode of its kind cannot
//! have go, and attributes, targets and maps are put right. Who a file belonged to cannot be known again: it then belongs to root,
//! and nobody else may touch it.

use super::draft::{Draft, opened};
use super::maps;
use crate::clock;
use crate::error::{Error, Result};
use crate::meta::records::{CookieRecord, EntryRecord, FileKind, INODE_HAS_XATTRS, InodeRecord, MapRecord, OrphanRecord};
use crate::meta::schema::{self, Item, Key, Parsed};
use crate::units::{InodeNumber, NUMBER_MAX};
use crate::verify::findings::{Look, kind_name, readable};
use std::collections::BTreeMap;

/// Blocks that inodes count and no file map has.
pub(super) type Short = BTreeMap<InodeNumber, u64>;

/// Where a name of an inode without a record is, and what it says.
struct Claim {
    kind: FileKind,
    directory: InodeNumber,
    cookie: u64,
}

/// All items of one inode.
type Held = Vec<(Key, Vec<u8>)>;

pub(super) fn repair(draft: &mut Draft<'_>) -> Result<Short> {
    let claims = claims(draft)?;
    let mut short = Short::new();
    let mut highest = InodeNumber::ROOT;
    let mut has_root = false;
    let mut held: Option<(InodeNumber, Held)> = None;
    let mut items = draft.table(schema::INODES);
    loop {
        let next = items.next()?;
        let inode = next.as_ref().and_then(|(key, _)| inode_of(key));
        if held.as_ref().is_some_and(|(number, _)| Some(*number) != inode)
            && let Some((number, items)) = held.take()
        {
            has_root |= number == InodeNumber::ROOT;
            highest = highest.max(number);
            repair_inode(draft, number, items, claims.get(&number), &mut short)?;
        }
        match (next, inode) {
            (None, _) => break,
            (Some(item), Some(inode)) => held.get_or_insert_with(|| (inode, Held::new())).1.push(item),
            (Some(_), None) => {}
        }
    }
    if !has_root {
        repair_inode(draft, InodeNumber::ROOT, Held::new(), None, &mut short)?;
    }
    draft.metadata.raise_inode_numbers(InodeNumber(highest.0.min(NUMBER_MAX - 1)));
    Ok(short)
}

fn inode_of(key: &[u8]) -> Option<InodeNumber> {
    match schema::parse(key)? {
        Parsed::Inode(inode) | Parsed::Symlink(inode) => Some(inode),
        Parsed::EntryByName { directory, .. } | Parsed::EntryByCookie { directory, .. } => Some(directory),
        Parsed::Xattr { inode, .. } | Parsed::Map { inode, .. } | Parsed::Link { inode, .. } => Some(inode),
        _ => None,
    }
}

/// What names say about inodes without a whole record.
fn claims(draft: &Draft<'_>) -> Result<BTreeMap<InodeNumber, Claim>> {
    let mut claims = BTreeMap::new();
    let mut items = draft.table(schema::INODES);
    while let Some((key, value)) = items.next()? {
        let (inode, claim) = match schema::parse(&key) {
            Some(Parsed::EntryByName { directory, .. }) => {
                let Some(entry) = opened(&key, &value, EntryRecord::decode)? else { continue };
                (entry.inode, Claim { kind: entry.kind, directory, cookie: entry.cookie })
            }
            Some(Parsed::EntryByCookie { directory, cookie }) => {
                let Some(entry) = opened(&key, &value, CookieRecord::decode)? else { continue };
                (entry.inode, Claim { kind: entry.kind, directory, cookie })
            }
            _ => continue,
        };
        if draft.whole_inode(inode)?.is_none() {
            claims.entry(inode).or_insert(claim);
        }
    }
    Ok(claims)
}

fn repair_inode(
    draft: &mut Draft<'_>,
    inode: InodeNumber,
    mut items: Held,
    claim: Option<&Claim>,
    short: &mut Short,
) -> Result<()> {
    let stored = match draft.inode(inode)? {
        Look::There(record) => Some(record),
        Look::Absent | Look::Damaged => None,
    };
    let is_new = stored.is_none();
    let record = stored.clone().or_else(|| made_anew(inode, &items, claim));
    let Some(mut record) = record.filter(|record| inode == InodeNumber::ROOT || is_usable(record.kind(), inode, &items)) else {
        draft.say_of(inode, |file| format!("dropped {file}: what it was is lost"));
        drop_all(draft, inode, &items);
        return Ok(());
    };
    if inode == InodeNumber::ROOT && (record.kind() != FileKind::Directory || record.parent != inode) {
        record.mode = if record.kind() == FileKind::Directory { record.mode } else { FileKind::Directory.mode_bits() | 0o755 };
        record.parent = inode;
        draft.say_of(inode, |_| "made the root a directory that lies in itself again".to_owned());
    }
    drop_misplaced(draft, inode, record.kind(), &mut items);
    repair_attributes(draft, inode, &mut record, &items)?;
    if record.kind() == FileKind::Symlink {
        repair_target_length(draft, inode, &mut record, &items, is_new)?;
    }
    let blocks = if record.kind() == FileKind::Regular { maps::repair(draft, inode, &mut record, &items, is_new)? } else { 0 };
    if blocks != record.blocks {
        if !is_new && blocks < record.blocks {
            short.insert(inode, record.blocks - blocks);
        }
        if !is_new {
            let recorded = record.blocks;
            draft.say_of(inode, |file| format!("{file}: corrected its number of blocks from {recorded} to {blocks}"));
        }
        record.blocks = blocks;
    }
    if is_new {
        let kind = kind_name(record.kind());
        draft.say_of(inode, |file| format!("made the lost attributes of {file} anew: a {kind} of root that nobody else may use"));
    }
    if stored.as_ref() != Some(&record) {
        draft.put_inode(inode, &record);
    }
    Ok(())
}

/// A symlink needs a target.
fn is_usable(kind: FileKind, inode: InodeNumber, items: &Held) -> bool {
    let has_target = || {
        items
            .iter()
            .any(|(key, value)| *key == schema::symlink(inode) && opened(key, value, bytes).is_ok_and(|found| found.is_some()))
    };
    kind != FileKind::Symlink || has_target()
}

pub(super) fn bytes(record: &[u8]) -> Result<Vec<u8>> {
    Ok(record.to_vec())
}

/// A record for an inode that has none: its items, or else its name, say of which kind it is.
fn made_anew(inode: InodeNumber, items: &Held, claim: Option<&Claim>) -> Option<InodeRecord> {
    let has = |kind: Item| items.iter().any(|(key, _)| key.get(9) == Some(&(kind as u8)));
    let kind = if inode == InodeNumber::ROOT || has(Item::EntryByName) || has(Item::EntryByCookie) {
        FileKind::Directory
    } else if has(Item::Symlink) {
        FileKind::Symlink
    } else if has(Item::Map) {
        FileKind::Regular
    } else {
        claim?.kind
    };
    let mode = match kind {
        // Which device it stood for is lost.
        FileKind::CharDevice | FileKind::BlockDevice => return None,
        FileKind::Directory if inode == InodeNumber::ROOT => 0o755,
        FileKind::Directory => 0o700,
        FileKind::Symlink => 0o777,
        _ => 0o600,
    };
    let is_directory = kind == FileKind::Directory;
    let now = clock::now();
    let (parent, cookie) = claim.map_or((InodeNumber::ROOT, 0), |claim| (claim.directory, claim.cookie));
    Some(InodeRecord {
        mode: kind.mode_bits() | mode,
        uid: 0,
        gid: 0,
        links: if is_directory { 2 } else { 1 },
        size: 0,
        blocks: 0,
        accessed: now,
        modified: now,
        changed: now,
        created: now,
        rdev: 0,
        flags: 0,
        parent,
        cookie,
        next_cookie: if is_directory { 3 } else { 0 },
    })
}

fn drop_all(draft: &Draft<'_>, inode: InodeNumber, items: &Held) {
    items.iter().for_each(|(key, _)| draft.delete(key.clone()));
    draft.delete(schema::inode(inode));
    draft.delete(schema::orphan(inode));
}

fn drop_misplaced(draft: &mut Draft<'_>, inode: InodeNumber, kind: FileKind, items: &mut Held) {
    let (is_directory, is_regular) = (kind == FileKind::Directory, kind == FileKind::Regular);
    let mut dropped = 0;
    items.retain(|(key, _)| {
        let is_fitting = match schema::parse(key) {
            Some(Parsed::EntryByName { .. } | Parsed::EntryByCookie { .. }) => is_directory,
            Some(Parsed::Symlink(_)) => kind == FileKind::Symlink,
            Some(Parsed::Map { .. }) => is_regular,
            Some(Parsed::Link { .. }) => !is_directory,
            _ => true,
        };
        if !is_fitting {
            draft.delete(key.clone());
            dropped += 1;
        }
        is_fitting
    });
    if dropped > 0 {
        draft.say_of(inode, |file| format!("dropped {dropped} items of {file} that a {} cannot have", kind_name(kind)));
    }
}

/// Extended attributes, their flag, and the records of hard links, whose keys say everything.
fn repair_attributes(draft: &mut Draft<'_>, inode: InodeNumber, record: &mut InodeRecord, items: &Held) -> Result<()> {
    let mut xattrs = 0;
    for (key, value) in items {
        match schema::parse(key) {
            Some(Parsed::Xattr { name, .. }) => {
                if opened(key, value, bytes)?.is_some() {
                    xattrs += 1;
                    continue;
                }
                let name = readable(name);
                draft.delete(key.clone());
                draft.say_of(inode, |file| format!("dropped the extended attribute {name} of {file}, which is damaged"));
            }
            Some(Parsed::Link { parent, .. }) if opened(key, value, nothing)?.is_none() => {
                draft.put(key.clone(), Vec::new());
                draft.say_of(inode, |file| format!("wrote a hard link record of {file} in directory {parent} anew"));
            }
            _ => {}
        }
    }
    if (record.flags & INODE_HAS_XATTRS != 0) != (xattrs > 0) {
        record.flags ^= INODE_HAS_XATTRS;
        draft.say_of(inode, |file| format!("{file}: corrected the flag for extended attributes: it has {xattrs}"));
    }
    Ok(())
}

fn nothing(record: &[u8]) -> Result<()> {
    if record.is_empty() { Ok(()) } else { Err(Error::corrupt("a hard link record that is not empty")) }
}

fn repair_target_length(
    draft: &mut Draft<'_>,
    inode: InodeNumber,
    record: &mut InodeRecord,
    items: &Held,
    is_new: bool,
) -> Result<()> {
    let target = items.iter().find(|(key, _)| *key == schema::symlink(inode));
    let Some(target) = target.map(|(key, value)| opened(key, value, bytes)).transpose()?.flatten() else { return Ok(()) };
    if target.len() as u64 != record.size {
        record.size = target.len() as u64;
        if !is_new {
            draft.say_of(inode, |file| format!("{file}: corrected the length of its target to {} bytes", target.len()));
        }
    }
    Ok(())
}

/// Is the file being cut to a size? A record that is damaged, or says that a file with links is deleted, is written anew for the size
/// that the inode has: what lies behind that is not seen again.
pub(super) fn is_being_cut(draft: &mut Draft<'_>, inode: InodeNumber, record: &InodeRecord) -> Result<bool> {
    Ok(match draft.orphan(inode)? {
        Look::Absent => false,
        Look::There(OrphanRecord::Truncating { .. }) => true,
        Look::There(_) | Look::Damaged if record.links == 0 => true,
        Look::There(_) | Look::Damaged => {
            draft.put(schema::orphan(inode), OrphanRecord::Truncating { size: record.size }.encode());
            draft.say_of(inode, |file| {
                format!("{file}: the record of its deletion or truncation is wrong; it stays, cut to its {} bytes", record.size)
            });
            true
        }
    })
}

/// The file map records of an inode in order; None for a damaged one.
pub(super) fn map_records(items: &[(Key, Vec<u8>)]) -> Result<Vec<(u64, Option<MapRecord>)>> {
    let mut found = Vec::new();
    for (key, value) in items {
        if let Some(Parsed::Map { offset, .. }) = schema::parse(key) {
            found.push((offset, opened(key, value, MapRecord::decode)?));
        }
    }
    Ok(found)
}
