//! Directories: a name is kept twice, to be looked up and to be listed, so that what one entry lost the other one says. Names of
//! inodes that do not exist go. In the end entries and links of directories are counted anew.

use super::draft::{Draft, opened};
use crate::error::Result;
use crate::meta::records::{CookieRecord, EntryRecord, FileKind, InodeRecord};
use crate::meta::schema::{self, Item, Parsed};
use crate::units::{InodeNumber, NUMBER_MAX};
use crate::verify::findings::{Items, Look, look, readable};
use std::collections::BTreeMap;

/// The first cookie of an entry.
const COOKIE_FIRST: u64 = 3;

/// Names, as directory and cookie, that their inodes do not know of.
pub(super) type Unknown = BTreeMap<InodeNumber, Vec<(InodeNumber, u64)>>;

/// One directory with its two lists; None for what is damaged.
struct Directory {
    number: InodeNumber,
    record: InodeRecord,
    names: BTreeMap<Vec<u8>, Option<EntryRecord>>,
    listed: BTreeMap<u64, Option<CookieRecord>>,
}

pub(super) fn repair(draft: &mut Draft<'_>) -> Result<Unknown> {
    let mut unknown = Unknown::new();
    for_each_directory(draft, |draft, number, record| {
        let mut directory = read(draft, number, record)?;
        let before = directory.record.next_cookie;
        restore_from_listing(draft, &mut directory)?;
        restore_listing(draft, &mut directory)?;
        drop_nameless(draft, &mut directory)?;
        if directory.record.next_cookie != before {
            draft.put_inode(number, &directory.record);
        }
        find_unknown(draft, &directory, &mut unknown)
    })?;
    Ok(unknown)
}

/// Visits every directory. What it changes is its own directory, or inodes made meanwhile.
pub(super) fn for_each_directory(
    draft: &mut Draft<'_>,
    mut visit: impl FnMut(&mut Draft<'_>, InodeNumber, InodeRecord) -> Result<()>,
) -> Result<()> {
    let mut items = draft.table(schema::INODES);
    while let Some((key, value)) = items.next()? {
        let Some(Parsed::Inode(inode)) = schema::parse(&key) else { continue };
        let Some(record) = opened(&key, &value, InodeRecord::decode)? else { continue };
        if record.kind() == FileKind::Directory {
            visit(draft, inode, record)?;
        }
    }
    Ok(())
}

fn read(draft: &Draft<'_>, number: InodeNumber, record: InodeRecord) -> Result<Directory> {
    let mut directory = Directory { number, record, names: BTreeMap::new(), listed: BTreeMap::new() };
    let (from, end) = (schema::items(number, Item::EntryByName), schema::items_end(number, Item::EntryByCookie));
    let mut items = Items::new(draft.metadata, from, end);
    while let Some((key, value)) = items.next()? {
        match schema::parse(&key) {
            Some(Parsed::EntryByName { name, .. }) => {
                let entry = opened(&key, &value, EntryRecord::decode)?;
                directory.names.insert(name.to_vec(), entry);
            }
            Some(Parsed::EntryByCookie { cookie, .. }) => {
                let entry = opened(&key, &value, CookieRecord::decode)?;
                directory.listed.insert(cookie, entry);
            }
            _ => {}
        }
    }
    Ok(directory)
}

/// Names that are listed and cannot be looked up, or differ.
fn restore_from_listing(draft: &mut Draft<'_>, directory: &mut Directory) -> Result<()> {
    let number = directory.number;
    let listed: Vec<(u64, CookieRecord)> =
        directory.listed.iter().filter_map(|(cookie, entry)| Some((*cookie, entry.clone()?))).collect();
    for (cookie, listing) in listed {
        let shown = readable(&listing.name);
        let from_listing = EntryRecord { inode: listing.inode, cookie, kind: listing.kind };
        match directory.names.get(&listing.name).copied().flatten() {
            Some(entry) if entry == from_listing => {}
            Some(entry) if entry.cookie == cookie => {
                let is_listing_known = knows(draft, listing.inode, number, cookie)?;
                let is_entry_known = knows(draft, entry.inode, number, cookie)?;
                let right = if is_listing_known && !is_entry_known { from_listing } else { entry };
                draft.put_entry(number, &listing.name, right);
                directory.names.insert(listing.name.clone(), Some(right));
                let listed = CookieRecord { inode: right.inode, kind: right.kind, ..listing };
                directory.listed.insert(cookie, Some(listed));
                let inode = right.inode;
                draft.say_of(number, |file| format!("{file}: the name {shown} stands for inode {inode} in both its lists now"));
            }
            Some(_) => {
                draft.delete(schema::entry_by_cookie(number, cookie));
                directory.listed.remove(&cookie);
                draft.say_of(number, |file| format!("{file}: dropped a second listing of the name {shown} (cookie {cookie})"));
            }
            None => {
                draft.put_entry(number, &listing.name, from_listing);
                directory.names.insert(listing.name, Some(from_listing));
                draft.say_of(number, |file| format!("{file}: the name {shown} can be looked up again, from its listing"));
            }
        }
    }
    Ok(())
}

/// Names that can be looked up and are not listed, or at a cookie that cannot be.
fn restore_listing(draft: &mut Draft<'_>, directory: &mut Directory) -> Result<()> {
    let number = directory.number;
    let highest = directory.listed.keys().copied().filter(|cookie| *cookie < NUMBER_MAX / 2).max();
    let raised = highest.map_or(COOKIE_FIRST, |highest| highest + 1).max(COOKIE_FIRST);
    if directory.record.next_cookie < raised {
        directory.record.next_cookie = raised;
        draft.say_of(number, |file| format!("{file}: corrected the cookie of the next new entry to {raised}"));
    }
    let names: Vec<(Vec<u8>, EntryRecord)> =
        directory.names.iter().filter_map(|(name, entry)| Some((name.clone(), (*entry)?))).collect();
    for (name, mut entry) in names {
        let shown = readable(&name);
        let at = directory.listed.get(&entry.cookie);
        let is_possible = (COOKIE_FIRST..NUMBER_MAX / 2).contains(&entry.cookie);
        let is_taken = matches!(at, Some(Some(other)) if other.name != name);
        if is_possible && matches!(at, Some(Some(other)) if other.name == name) {
            continue;
        }
        if !is_possible || is_taken {
            if !is_taken {
                draft.delete(schema::entry_by_cookie(number, entry.cookie));
                directory.listed.remove(&entry.cookie);
            }
            entry.cookie = directory.record.next_cookie;
        }
        directory.record.next_cookie = directory.record.next_cookie.max(entry.cookie + 1);
        draft.put_entry(number, &name, entry);
        directory.listed.insert(entry.cookie, Some(CookieRecord { inode: entry.inode, kind: entry.kind, name: name.clone() }));
        directory.names.insert(name, Some(entry));
        let cookie = entry.cookie;
        draft.say_of(number, |file| format!("{file}: the name {shown} is listed again (cookie {cookie})"));
    }
    Ok(())
}

/// Entries that say nothing any more, names of what does not exist, and kinds.
fn drop_nameless(draft: &mut Draft<'_>, directory: &mut Directory) -> Result<()> {
    let number = directory.number;
    for (cookie, _) in directory.listed.iter().filter(|(_, entry)| entry.is_none()) {
        draft.delete(schema::entry_by_cookie(number, *cookie));
        draft.say_of(number, |file| format!("{file}: dropped the damaged listing at cookie {cookie}: which name it had is lost"));
    }
    let names: Vec<(Vec<u8>, Option<EntryRecord>)> = directory.names.iter().map(|(name, entry)| (name.clone(), *entry)).collect();
    for (name, entry) in names {
        let shown = readable(&name);
        let Some(entry) = entry else {
            draft.delete(schema::entry_by_name(number, &name));
            directory.names.remove(&name);
            draft.say_of(number, |file| format!("{file}: dropped the name {shown}: what it stood for is lost"));
            continue;
        };
        let record = draft.whole_inode(entry.inode)?.filter(|_| entry.inode != InodeNumber::ROOT && entry.inode != number);
        match record {
            None => {
                draft.delete_entry(number, &name, entry.cookie);
                directory.names.remove(&name);
                let inode = entry.inode;
                draft.say_of(number, |file| {
                    format!("{file}: dropped the name {shown}: inode {inode} does not exist, or cannot be there")
                });
            }
            Some(record) if record.kind() != entry.kind => {
                let entry = EntryRecord { kind: record.kind(), ..entry };
                draft.put_entry(number, &name, entry);
                directory.names.insert(name, Some(entry));
                draft.say_of(number, |file| format!("{file}: corrected the kind of file that the name {shown} says"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn find_unknown(draft: &Draft<'_>, directory: &Directory, unknown: &mut Unknown) -> Result<()> {
    for entry in directory.names.values().flatten() {
        if !knows(draft, entry.inode, directory.number, entry.cookie)? {
            unknown.entry(entry.inode).or_default().push((directory.number, entry.cookie));
        }
    }
    Ok(())
}

/// Does the inode say that it has this name?
fn knows(draft: &Draft<'_>, inode: InodeNumber, directory: InodeNumber, cookie: u64) -> Result<bool> {
    let Some(record) = draft.whole_inode(inode)? else { return Ok(false) };
    if (record.parent, record.cookie) == (directory, cookie) {
        return Ok(true);
    }
    Ok(!matches!(look(draft.metadata, &schema::link(inode, directory, cookie), |_| Ok(()))?, Look::Absent))
}

/// Entries and links of every directory that has a name.
pub(super) fn count(draft: &mut Draft<'_>) -> Result<()> {
    for_each_directory(draft, |draft, number, record| {
        if record.links == 0 && number != InodeNumber::ROOT {
            return Ok(());
        }
        let (mut size, mut subdirectories) = (0, 0u32);
        let (from, end) = (schema::items(number, Item::EntryByName), schema::items_end(number, Item::EntryByName));
        let mut items = Items::new(draft.metadata, from, end);
        while let Some((key, value)) = items.next()? {
            size += 1;
            let entry = opened(&key, &value, EntryRecord::decode)?;
            subdirectories += u32::from(entry.is_some_and(|entry| entry.kind == FileKind::Directory));
        }
        let links = subdirectories.saturating_add(2);
        if (record.links, record.size) != (links, size) {
            draft.put_inode(number, &InodeRecord { links, size, ..record });
            draft.say_of(number, |file| format!("{file}: corrected its counts: {size} entries, {links} links"));
        }
        Ok(())
    })
}
