//! The walk over all inodes: every item once, in key order, so that all items of one inode come together and only one inode is
//! held at a time.
//!
//! Links are checked from both sides by point reads: each name must be known to its inode, each name that an inode knows must be
//! there. Together with the counts nothing of the size of the store needs to be remembered.

use super::findings::{Findings, Items, Look, kind_name, look};
use super::issue::Issue;
use super::names::Names;
use super::references::{Reference, References};
use crate::error::{Error, Result};
use crate::meta::records::{CookieRecord, EntryRecord, FileKind, INODE_HAS_XATTRS, InodeRecord, MapRecord, OrphanRecord};
use crate::meta::schema::{self, Parsed};
use crate::units::{BLOCK_SIZE, FILE_SIZE_MAX, InodeNumber, block_ceil, blocks_for};

/// What the walk counted.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) files: u64,
    pub(super) directories: u64,
    pub(super) highest_inode: u64,
    /// Blocks of all unwritten ranges.
    pub(super) unwritten_blocks: u64,
    /// Bytes of files that a repair found lost.
    pub(super) lost_bytes: u64,
    /// Some file map could not be read, so that references are missing.
    pub(super) has_damaged_maps: bool,
}

/// The inode whose items are being read.
struct Current {
    inode: InodeNumber,
    record: Option<InodeRecord>,
    is_record_damaged: bool,
    items: u64,
    /// Entries by name.
    entries: u64,
    /// Those of them that have their own entry by cookie.
    matched_entries: u64,
    cookies: u64,
    subdirectories: u64,
    has_damaged_entries: bool,
    xattrs: u64,
    /// Length of the target.
    symlink_bytes: Option<u64>,
    is_symlink_damaged: bool,
    maps: u64,
    /// End of the last file map record, in whole blocks.
    map_end: u64,
    blocks: u64,
    has_damaged_maps: bool,
    hard_links: u64,
}

impl Current {
    fn new(inode: InodeNumber) -> Current {
        Current {
            inode,
            record: None,
            is_record_damaged: false,
            items: 0,
            entries: 0,
            matched_entries: 0,
            cookies: 0,
            subdirectories: 0,
            has_damaged_entries: false,
            xattrs: 0,
            symlink_bytes: None,
            is_symlink_damaged: false,
            maps: 0,
            map_end: 0,
            blocks: 0,
            has_damaged_maps: false,
            hard_links: 0,
        }
    }
}

/// Walks all inodes. References to extents go to `references`, names to `names`; `progress` hears each inode number.
pub(super) fn walk(
    find: &mut Findings<'_>,
    names: &mut Names,
    references: &mut References,
    progress: &mut dyn FnMut(u64),
) -> Result<Tally> {
    let mut items = Items::of_table(find.metadata, schema::INODES);
    let mut walk = Walk { find, names, references, tally: Tally::default() };
    let mut current: Option<Current> = None;
    while let Some((key, value)) = items.next()? {
        let Some(parsed) = schema::parse(&key) else {
            walk.find.add(Issue::UnknownKey { key: super::findings::hex(&key) });
            continue;
        };
        let Some(inode) = inode_of(&parsed) else { continue };
        if current.as_ref().is_none_or(|current| current.inode != inode) {
            if let Some(done) = current.take() {
                walk.finish(done)?;
            }
            progress(inode.0);
        }
        let current = current.get_or_insert_with(|| Current::new(inode));
        current.items += 1;
        walk.item(current, &key, &value, &parsed)?;
    }
    if let Some(done) = current {
        walk.finish(done)?;
    }
    Ok(walk.tally)
}

fn inode_of(parsed: &Parsed<'_>) -> Option<InodeNumber> {
    match parsed {
        Parsed::Inode(inode) | Parsed::Symlink(inode) => Some(*inode),
        Parsed::EntryByName { directory, .. } | Parsed::EntryByCookie { directory, .. } => Some(*directory),
        Parsed::Xattr { inode, .. } | Parsed::Map { inode, .. } | Parsed::Link { inode, .. } => Some(*inode),
        _ => None,
    }
}

fn raw(record: &[u8]) -> Result<Vec<u8>> {
    Ok(record.to_vec())
}

fn nothing(record: &[u8]) -> Result<()> {
    if record.is_empty() { Ok(()) } else { Err(Error::corrupt("a hard link record that is not empty")) }
}

struct Walk<'w, 'a> {
    find: &'w mut Findings<'a>,
    names: &'w mut Names,
    references: &'w mut References,
    tally: Tally,
}

impl Walk<'_, '_> {
    fn item(&mut self, current: &mut Current, key: &[u8], value: &[u8], parsed: &Parsed<'_>) -> Result<()> {
        match *parsed {
            Parsed::Inode(_) => {
                current.record = self.find.open(key, value, InodeRecord::decode);
                current.is_record_damaged = current.record.is_none();
            }
            Parsed::EntryByName { directory, name } => {
                current.entries += 1;
                match self.find.open(key, value, EntryRecord::decode) {
                    None => current.has_damaged_entries = true,
                    Some(entry) => {
                        let seen = self.names.entry(self.find, directory, name, &entry)?;
                        current.matched_entries += u64::from(seen.is_listed);
                        current.subdirectories += u64::from(seen.kind == FileKind::Directory);
                    }
                }
            }
            Parsed::EntryByCookie { cookie, .. } => {
                current.cookies += 1;
                self.find.open(key, value, CookieRecord::decode);
                let next = current.record.as_ref().filter(|record| record.kind() == FileKind::Directory);
                if let Some(next_cookie) = next.map(|record| record.next_cookie).filter(|next| cookie < 3 || cookie >= *next) {
                    let directory = self.find.file(current.inode);
                    self.find.add(Issue::CookieOutOfRange { directory, cookie, next_cookie });
                }
            }
            Parsed::Xattr { .. } => {
                current.xattrs += 1;
                self.find.open(key, value, raw);
            }
            Parsed::Symlink(_) => {
                current.symlink_bytes = self.find.open(key, value, raw).map(|target| target.len() as u64);
                current.is_symlink_damaged = current.symlink_bytes.is_none();
            }
            Parsed::Map { offset, .. } => {
                current.maps += 1;
                match self.find.open(key, value, MapRecord::decode) {
                    None => {
                        current.has_damaged_maps = true;
                        self.tally.has_damaged_maps = true;
                    }
                    Some(map) => self.map(current, offset, &map)?,
                }
            }
            Parsed::Link { inode, parent, cookie } => {
                current.hard_links += 1;
                self.find.open(key, value, nothing);
                self.names.further_link(self.find, inode, parent, cookie)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn map(&mut self, current: &mut Current, offset: u64, map: &MapRecord) -> Result<()> {
        let (inode, length) = (current.inode, map.length());
        let blocks = blocks_for(length);
        current.blocks = current.blocks.saturating_add(blocks);
        match Reference::of(inode, offset, map) {
            Some(reference) => self.references.add(reference),
            None if map.is_lost() => self.tally.lost_bytes = self.tally.lost_bytes.saturating_add(length),
            None => self.tally.unwritten_blocks = self.tally.unwritten_blocks.saturating_add(blocks),
        }
        let end = offset.saturating_add(length);
        if !offset.is_multiple_of(BLOCK_SIZE) || end > FILE_SIZE_MAX {
            let file = self.find.file(inode);
            self.find.add(Issue::MapOutOfBounds { file, offset, length });
            return Ok(());
        }
        if offset < current.map_end {
            let file = self.find.file(inode);
            self.find.add(Issue::MapOverlap { file, offset, previous_end: current.map_end });
        }
        current.map_end = current.map_end.max(block_ceil(end));
        let size = current.record.as_ref().map_or(u64::MAX, |record| record.size);
        let is_data = matches!(map, MapRecord::Written { .. });
        if is_data && end > block_ceil(size) && matches!(self.orphan(inode)?, Look::Absent) {
            let file = self.find.file(inode);
            self.find.add(Issue::MapBehindEnd { file, offset, end, size });
        }
        Ok(())
    }

    fn orphan(&self, inode: InodeNumber) -> Result<Look<OrphanRecord>> {
        look(self.find.metadata, &schema::orphan(inode), OrphanRecord::decode)
    }

    /// All items of the inode have been seen.
    fn finish(&mut self, current: Current) -> Result<()> {
        let inode = current.inode;
        if current.cookies != current.matched_entries {
            self.names.compare_listing(self.find, inode)?;
        }
        let Some(record) = &current.record else {
            if !current.is_record_damaged && inode != InodeNumber::ROOT {
                self.find.add(Issue::ItemsWithoutInode { inode: inode.0, items: current.items });
            }
            return Ok(());
        };
        self.tally.highest_inode = self.tally.highest_inode.max(inode.0);
        let kind = record.kind();
        match kind {
            FileKind::Directory => self.tally.directories += 1,
            _ => self.tally.files += 1,
        }
        self.check_items(&current, kind);
        self.check_contents(&current, record, kind);
        self.check_links(&current, record, kind)
    }

    fn check_items(&mut self, current: &Current, kind: FileKind) {
        let is_directory = kind == FileKind::Directory;
        let has_target = current.symlink_bytes.is_some() || current.is_symlink_damaged;
        for (is_misplaced, item) in [
            (!is_directory && current.entries + current.cookies > 0, "directory entry"),
            (kind != FileKind::Symlink && has_target, "symlink target"),
            (kind != FileKind::Regular && current.maps > 0, "file map"),
            (is_directory && current.hard_links > 0, "hard link"),
        ] {
            if is_misplaced {
                let file = self.find.file(current.inode);
                self.find.add(Issue::MisplacedItem { file, kind: kind_name(kind), item });
            }
        }
    }

    fn check_contents(&mut self, current: &Current, record: &InodeRecord, kind: FileKind) {
        let file = |walk: &Self| walk.find.file(current.inode);
        let flagged = record.flags & INODE_HAS_XATTRS != 0;
        if flagged != (current.xattrs > 0) {
            let issue = Issue::XattrFlag { file: file(self), flagged, found: current.xattrs };
            self.find.add(issue);
        }
        if kind == FileKind::Symlink && !current.is_symlink_damaged && current.symlink_bytes != Some(record.size) {
            let issue = Issue::SymlinkTarget { file: file(self), size: record.size, found: current.symlink_bytes };
            self.find.add(issue);
        }
        if kind == FileKind::Directory && record.links > 0 && current.entries != record.size {
            let issue = Issue::DirectorySize { file: file(self), recorded: record.size, counted: current.entries };
            self.find.add(issue);
        }
        if !current.has_damaged_maps && current.blocks != record.blocks {
            let issue = Issue::BlockCount { file: file(self), recorded: record.blocks, counted: current.blocks };
            self.find.add(issue);
        }
    }

    fn check_links(&mut self, current: &Current, record: &InodeRecord, kind: FileKind) -> Result<()> {
        let inode = current.inode;
        let is_directory = kind == FileKind::Directory;
        if record.links == 0 && inode != InodeNumber::ROOT {
            if is_directory && current.entries > 0 {
                self.find.add(Issue::DeletedNotEmpty { inode: inode.0, entries: current.entries });
            }
            if matches!(self.orphan(inode)?, Look::Absent) {
                self.find.add(Issue::Unreachable { inode: inode.0 });
            }
        } else {
            self.names.first_link(self.find, inode, record, kind)?;
        }
        let counted = match (is_directory, record.links) {
            (true, 0) if inode != InodeNumber::ROOT => 0,
            (true, _) => 2 + current.subdirectories,
            (false, 0) => current.hard_links,
            (false, _) => 1 + current.hard_links,
        };
        let is_known = !(is_directory && current.has_damaged_entries);
        if is_known && counted != u64::from(record.links) {
            let file = self.find.file(inode);
            self.find.add(Issue::LinkCount { file, recorded: record.links, counted });
        }
        Ok(())
    }
}
