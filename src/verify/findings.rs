//! Where issues are collected, and the ways to look at records that may be damaged: a bad checksum of a value is an issue of
//! that key and never ends the check.

use super::issue::{File, Issue};
use crate::error::{Error, Result};
use crate::meta::Metadata;
use crate::meta::records::{self, CookieRecord, FileKind, InodeRecord};
use crate::meta::schema::{self, Key, Parsed};
use crate::units::InodeNumber;

/// Issues that are listed one by one; further ones are only counted, so that a lost device does not fill the memory.
pub(super) const LISTED_MAX: usize = 10_000;
/// Items taken from the metadata at once: few at first, for who wants no more, then twice as many each time, up to so many.
const FIRST_PAGE_ITEMS: usize = 32;
const PAGE_ITEMS_MAX: usize = 512;
/// Directories in each other that a path may have before it is taken for a loop.
const DEPTH_MAX: usize = 20_000;

/// A record that was looked up.
pub(super) enum Look<T> {
    There(T),
    Absent,
    /// The walk reports it when it comes to its key.
    Damaged,
}

/// Looks up and decodes one record. Only a failing device is an error.
pub(super) fn look<T>(metadata: &Metadata, key: &[u8], decode: fn(&[u8]) -> Result<T>) -> Result<Look<T>> {
    let found = match metadata.get(key) {
        Ok(Some(record)) => decode(&record),
        Ok(None) => return Ok(Look::Absent),
        Err(error) => Err(error),
    };
    match found {
        Ok(record) => Ok(Look::There(record)),
        Err(Error::Corrupt(_)) => Ok(Look::Damaged),
        Err(error) => Err(error),
    }
}

/// The sealed values of a range of keys, in order.
pub(super) struct Items<'a> {
    metadata: &'a Metadata,
    next: Option<Key>,
    end: Key,
    page: std::vec::IntoIter<(Key, Vec<u8>)>,
    /// Items of the next page.
    page_items: usize,
}

impl<'a> Items<'a> {
    pub(super) fn new(metadata: &'a Metadata, from: Key, end: Key) -> Items<'a> {
        Items { metadata, next: Some(from), end, page: Vec::new().into_iter(), page_items: FIRST_PAGE_ITEMS }
    }

    pub(super) fn of_table(metadata: &'a Metadata, table: u8) -> Items<'a> {
        Items::new(metadata, schema::table_begin(table), schema::table_end(table))
    }

    pub(super) fn next(&mut self) -> Result<Option<(Key, Vec<u8>)>> {
        loop {
            if let Some(item) = self.page.next() {
                return Ok(Some(item));
            }
            let Some(from) = self.next.take() else { return Ok(None) };
            let (page, next) = self.metadata.scan_sealed(&from, &self.end, self.page_items)?;
            self.page_items = (2 * self.page_items).min(PAGE_ITEMS_MAX);
            (self.page, self.next) = (page.into_iter(), next);
        }
    }
}

/// The issues found so far.
pub(super) struct Findings<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) issues: Vec<Issue>,
    /// How many more there are.
    pub(super) not_listed: u64,
}

impl<'a> Findings<'a> {
    pub(super) fn new(metadata: &'a Metadata, issues: Vec<Issue>) -> Findings<'a> {
        Findings { metadata, issues, not_listed: 0 }
    }

    pub(super) fn add(&mut self, issue: Issue) {
        if self.is_full() {
            self.not_listed += 1;
        } else {
            self.issues.push(issue);
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.issues.len() >= LISTED_MAX
    }

    /// The inode with its path.
    pub(super) fn file(&self, inode: InodeNumber) -> File {
        let path = if self.is_full() { None } else { path_of(self.metadata, inode) };
        File { inode: inode.0, path }
    }

    /// The record in a stored value; None when it is damaged, which is reported.
    pub(super) fn open<T>(&mut self, key: &[u8], value: &[u8], decode: fn(&[u8]) -> Result<T>) -> Option<T> {
        let opened = records::open(key, value).and_then(decode);
        if opened.is_err() {
            self.damaged(key);
        }
        opened.ok()
    }

    pub(super) fn damaged(&mut self, key: &[u8]) {
        let what = self.what(key);
        self.add(Issue::DamagedValue { what, key: hex(key) });
    }

    pub(super) fn what(&self, key: &[u8]) -> String {
        match schema::parse(key) {
            Some(Parsed::Counters) => "the counters".to_owned(),
            Some(Parsed::Checkpoint) => "the last checkpoint".to_owned(),
            Some(Parsed::Inode(inode)) => format!("inode {inode} (its attributes)"),
            Some(Parsed::EntryByName { directory, name }) => format!("the name {} in {}", readable(name), self.file(directory)),
            Some(Parsed::EntryByCookie { directory, cookie }) => {
                format!("the entry with cookie {cookie} in {}", self.file(directory))
            }
            Some(Parsed::Xattr { inode, name }) => format!("the extended attribute {} of {}", readable(name), self.file(inode)),
            Some(Parsed::Symlink(inode)) => format!("the target of {}", self.file(inode)),
            Some(Parsed::Map { inode, offset }) => format!("the file map of {} at byte {offset}", self.file(inode)),
            Some(Parsed::Link { inode, parent, .. }) => format!("a hard link of {} in directory {parent}", self.file(inode)),
            Some(Parsed::Extent(address)) => format!("extent {address}"),
            Some(Parsed::ExtentState(address)) => format!("the state of extent {address}"),
            Some(Parsed::Orphan(inode)) => format!("the deletion or truncation of inode {inode}"),
            Some(Parsed::Scrub) => "the last scrub".to_owned(),
            Some(Parsed::Image) => "the place of the metadata image".to_owned(),
            Some(Parsed::Relocation) => "what is moved off a device".to_owned(),
            Some(Parsed::DamagedBlock { address, .. }) => format!("the damage of block {address}"),
            Some(Parsed::DamagedValue(key)) => format!("the damage of {}", self.what(key)),
            Some(Parsed::Group(number)) => format!("group {number}"),
            Some(Parsed::Device(id)) => format!("device {id}"),
            Some(Parsed::Bitmap(group)) => format!("the bitmap of group {group}"),
            None => "an unknown key".to_owned(),
        }
    }
}

/// The path of an inode from the root of the store, through the parents and cookies of first links. None when a step is missing,
/// damaged or leads in a circle, and for inodes without a name.
pub fn path_of(metadata: &Metadata, inode: InodeNumber) -> Option<String> {
    let mut names = Vec::new();
    let mut at = inode;
    while at != InodeNumber::ROOT {
        let record = InodeRecord::decode(&metadata.get(&schema::inode(at)).ok()??).ok()?;
        if record.links == 0 || names.len() > DEPTH_MAX {
            return None;
        }
        let entry = metadata.get(&schema::entry_by_cookie(record.parent, record.cookie)).ok()??;
        let entry = CookieRecord::decode(&entry).ok().filter(|entry| entry.inode == at)?;
        names.push(readable(&entry.name));
        at = record.parent;
    }
    names.reverse();
    Some(format!("/{}", names.join("/")))
}

/// A name as a person can read it: control characters and what is no UTF-8 are escaped.
pub(super) fn readable(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter.is_control() || letter == '\\' { text.extend(letter.escape_default()) } else { text.push(letter) }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A kind of file in plain words.
pub(super) fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_readable() {
        assert_eq!(readable("grün e\u{301}".as_bytes()), "grün e\u{301}");
        assert_eq!(readable(b"a\nb\\c\xffd"), "a\\nb\\\\c\\xffd");
    }
}
