//! Listings: entries in the order of their cookies, which count up and are never used again, so that a listing can go on
//! behind any entry whatever was created or removed meanwhile. It ends at the cookie that was next when the directory was last
//! read from its start: files created while listing do not make it endless.

use super::Filesystem;
use super::inode::Inode;
use super::types::{Attributes, DirectoryEntry};
use crate::error::{Error, Result};
use crate::meta::records::{self, CookieRecord, EntryRecord, FileKind};
use crate::meta::schema::{self, Item, Parsed};
use crate::units::InodeNumber;
use std::sync::Arc;

const COOKIE_DOT: u64 = 1;
const COOKIE_DOT_DOT: u64 = 2;
const COOKIE_FIRST: u64 = 3;
const ENTRIES_AT_ONCE: usize = 128;

/// Told of entries, cookie and record, that are about to be visited.
type Prepare<'a> = dyn Fn(&[(u64, CookieRecord)]) -> Result<()> + 'a;

impl Filesystem {
    /// Lists `inode` behind `cookie` (0: from the start). `visit` gives false for an entry that it has no room for.
    pub fn readdir(&self, inode: InodeNumber, cookie: u64, visit: &mut dyn FnMut(DirectoryEntry<'_>) -> bool) -> Result<()> {
        self.list_entries(inode, cookie, &|_| Ok(()), visit)
    }

    /// `prepare` is told of the entries that are about to be visited.
    fn list_entries(
        &self,
        inode: InodeNumber,
        cookie: u64,
        prepare: &Prepare<'_>,
        visit: &mut dyn FnMut(DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        let directory = self.directory(inode)?;
        self.note_access(&directory);
        let (end, parent) = listing_end(&directory, cookie);
        for (dot, number, name) in [(COOKIE_DOT, inode, &b"."[..]), (COOKIE_DOT_DOT, parent, &b".."[..])] {
            let entry = DirectoryEntry { inode: number, next: dot, kind: FileKind::Directory, name };
            if cookie < dot && !visit(entry) {
                return Ok(());
            }
        }
        let mut from = schema::entry_by_cookie(inode, (cookie + 1).max(COOKIE_FIRST));
        let to = schema::entry_by_cookie(inode, end);
        loop {
            let (items, next) = self.meta.scan_sealed(&from, &to, ENTRIES_AT_ONCE)?;
            let mut entries = Vec::with_capacity(items.len());
            for (key, value) in &items {
                let Some(Parsed::EntryByCookie { cookie, .. }) = schema::parse(key) else { continue };
                match records::open(key, value).and_then(CookieRecord::decode) {
                    Ok(record) => entries.push((cookie, record)),
                    Err(Error::Corrupt(reason)) => {
                        entries.extend(self.damaged_entry(inode, cookie, &reason)?.map(|record| (cookie, record)));
                    }
                    Err(error) => return Err(error),
                }
            }
            prepare(&entries)?;
            for (cookie, record) in &entries {
                let entry = DirectoryEntry { inode: record.inode, next: *cookie, kind: record.kind, name: &record.name };
                if !visit(entry) {
                    return Ok(());
                }
            }
            match next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// What stood at a cookie whose record is damaged: the names say so too, one by one.
    fn damaged_entry(&self, directory: InodeNumber, cookie: u64, reason: &str) -> Result<Option<CookieRecord>> {
        let (mut from, to) = (schema::items(directory, Item::EntryByName), schema::items_end(directory, Item::EntryByName));
        loop {
            let (items, next) = self.meta.scan_sealed(&from, &to, ENTRIES_AT_ONCE)?;
            for (key, value) in &items {
                let Some(Parsed::EntryByName { name, .. }) = schema::parse(key) else { continue };
                let entry = records::open(key, value).and_then(EntryRecord::decode);
                if let Some(entry) = entry.ok().filter(|entry| entry.cookie == cookie) {
                    return Ok(Some(CookieRecord { inode: entry.inode, kind: entry.kind, name: name.to_vec() }));
                }
            }
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        tracing::warn!("directory {directory} does not list its entry with cookie {cookie}: {reason}");
        Ok(None)
    }

    /// As `readdir`, with attributes; the count of lookups of every entry taken rises, but for `.` and `..`.
    pub fn readdirplus(
        &self,
        inode: InodeNumber,
        cookie: u64,
        visit: &mut dyn FnMut(DirectoryEntry<'_>, &Attributes) -> bool,
    ) -> Result<()> {
        let mut failed = None;
        let prepare = |entries: &[(u64, CookieRecord)]| {
            self.table.load_together(entries.iter().map(|(_, record)| record.inode).collect(), &self.meta)
        };
        self.list_entries(inode, cookie, &prepare, &mut |entry| {
            let is_dot = entry.next < COOKIE_FIRST;
            let found = if is_dot { self.getattr(entry.inode) } else { self.meet(entry.inode) };
            let attributes = match found {
                Ok(attributes) => attributes,
                Err(error) => {
                    // Its own record is damaged: it is listed all the same, and says so to who asks for more.
                    if matches!(error, Error::Corrupt(_)) {
                        tracing::warn!("inode {} has no attributes: {error}", entry.inode);
                        return visit(entry, &Attributes::unknown());
                    }
                    // Unlinked meanwhile: not listed any more.
                    if !matches!(error, Error::Stale) {
                        failed = Some(error);
                        return false;
                    }
                    return true;
                }
            };
            let is_taken = visit(entry, &attributes);
            if !is_taken && !is_dot {
                self.forget(entry.inode, 1);
            }
            is_taken
        })?;
        failed.map_or(Ok(()), Err)
    }
}

fn listing_end(directory: &Arc<Inode>, cookie: u64) -> (u64, InodeNumber) {
    let mut state = directory.state.lock();
    let next = state.record.next_cookie;
    if cookie == 0 {
        state.listing_end = Some(next);
    }
    (state.listing_end.unwrap_or(next), state.record.parent)
}
