//! Every inode against its names: what it says of them is made to agree with the directories. What has no name and is not deleted
//! goes to lost+found, and so does one directory of every circle; what has a name and should be deleted stays.

use super::draft::{Draft, opened};
use super::lost_found::LostFound;
use super::names::{Unknown, for_each_directory};
use crate::error::Result;
use crate::meta::records::{FileKind, InodeRecord, OrphanRecord};
use crate::meta::schema::{self, Item, Parsed};
use crate::units::InodeNumber;
use crate::verify::findings::{Items, Look};
use crate::verify::names::loops;

pub(super) fn repair(draft: &mut Draft<'_>, mut unknown: Unknown) -> Result<()> {
    let mut lost_found = LostFound::default();
    // Directories first, so that paths are right when files are spoken of. The list: what is made meanwhile needs no look.
    let mut directories = Vec::new();
    for_each_directory(draft, |_, number, _| {
        directories.push(number);
        Ok(())
    })?;
    directories.retain(|number| *number != InodeNumber::ROOT);
    for number in &directories {
        let names = unknown.remove(number).unwrap_or_default();
        repair_directory(draft, *number, names, &mut lost_found)?;
    }
    break_circles(draft, &mut lost_found)?;
    let mut items = draft.table(schema::INODES);
    while let Some((key, value)) = items.next()? {
        let Some(Parsed::Inode(inode)) = schema::parse(&key) else { continue };
        let Some(record) = opened(&key, &value, InodeRecord::decode)? else { continue };
        if record.kind() != FileKind::Directory {
            let names = unknown.remove(&inode).unwrap_or_default();
            repair_file(draft, inode, record, names, &mut lost_found)?;
        }
    }
    repair_orphans(draft)
}

/// Does the directory list the inode at the cookie?
fn is_name_of(draft: &Draft<'_>, inode: InodeNumber, (directory, cookie): (InodeNumber, u64)) -> Result<bool> {
    Ok(draft.listed(directory, cookie)?.is_some_and(|listed| listed.inode == inode))
}

/// Was it deleted, as far as the list of what is to be deleted says?
fn is_deleted(draft: &Draft<'_>, inode: InodeNumber, record: &InodeRecord) -> Result<bool> {
    Ok(match draft.orphan(inode)? {
        Look::There(orphan) => record.links == 0 || orphan == OrphanRecord::Unlinked,
        Look::Damaged => record.links == 0,
        Look::Absent => false,
    })
}

fn repair_directory(
    draft: &mut Draft<'_>,
    inode: InodeNumber,
    mut names: Vec<(InodeNumber, u64)>,
    lost_found: &mut LostFound,
) -> Result<()> {
    let Some(mut record) = draft.whole_inode(inode)? else { return Ok(()) };
    let before = record.clone();
    let first = (record.parent, record.cookie);
    let is_first_right = is_name_of(draft, inode, first)?;
    if !is_first_right && !names.is_empty() {
        (record.parent, record.cookie) = names.remove(0);
        draft.say_of(inode, |file| format!("{file}: corrected in which directory it lies"));
    }
    for (directory, cookie) in names {
        let Some(listed) = draft.listed(directory, cookie)? else { continue };
        draft.delete_entry(directory, &listed.name, cookie);
        draft.say_of(inode, |file| format!("{file}: dropped a second name of it in directory {directory}: a directory has one"));
    }
    let has_name = is_first_right || (record.parent, record.cookie) != first;
    if !has_name {
        if record.links == 0 && is_deleted(draft, inode, &record)? && is_empty(draft, inode)? {
            return Ok(());
        }
        lost_found.take(draft, inode, &mut record)?;
    }
    if record.links == 0 {
        record.links = 2;
        draft.say_of(inode, |file| format!("{file}: it was marked as deleted, but is not empty or has a name; kept it"));
    }
    keep(draft, inode)?;
    if record != before {
        draft.put_inode(inode, &record);
    }
    Ok(())
}

fn is_empty(draft: &Draft<'_>, directory: InodeNumber) -> Result<bool> {
    let (from, end) = (schema::items(directory, Item::EntryByName), schema::items_end(directory, Item::EntryByName));
    Ok(draft.metadata.first_key(&from, &end)?.is_none())
}

/// Takes the inode off the list of what is to be deleted.
fn keep(draft: &mut Draft<'_>, inode: InodeNumber) -> Result<()> {
    if matches!(draft.orphan(inode)?, Look::There(OrphanRecord::Unlinked) | Look::Damaged) {
        draft.delete(schema::orphan(inode));
        draft.say_of(inode, |file| format!("{file}: took it off the list of what is to be deleted"));
    }
    Ok(())
}

/// Directories that lie in themselves.
fn break_circles(draft: &mut Draft<'_>, lost_found: &mut LostFound) -> Result<()> {
    let mut parents = Vec::new();
    for_each_directory(draft, |_, number, record| {
        parents.push((number.0, record.parent.0));
        Ok(())
    })?;
    for number in loops(&parents) {
        let inode = InodeNumber(number);
        let Some(mut record) = draft.whole_inode(inode)? else { continue };
        if let Some(listed) = draft.listed(record.parent, record.cookie)?.filter(|listed| listed.inode == inode) {
            draft.delete_entry(record.parent, &listed.name, record.cookie);
        }
        draft.say(None, format!("took directory {number} out of the circle of directories that it closed"));
        lost_found.take(draft, inode, &mut record)?;
        draft.put_inode(inode, &record);
    }
    Ok(())
}

fn repair_file(
    draft: &mut Draft<'_>,
    inode: InodeNumber,
    mut record: InodeRecord,
    names: Vec<(InodeNumber, u64)>,
    lost_found: &mut LostFound,
) -> Result<()> {
    let before = record.clone();
    let mut further = further_links(draft, inode)?;
    for name in names {
        draft.put(schema::link(inode, name.0, name.1), Vec::new());
        further.push(name);
        draft.say_of(inode, |file| format!("{file}: it knows of its name in directory {} again", name.0));
    }
    let first = (record.parent, record.cookie);
    let is_first_right = is_name_of(draft, inode, first)?;
    further.retain(|name| !is_first_right || *name != first);
    if !is_first_right && !further.is_empty() {
        let name = further.remove(0);
        (record.parent, record.cookie) = name;
        draft.delete(schema::link(inode, name.0, name.1));
        draft.say_of(inode, |file| format!("{file}: corrected which of its names is the first"));
    } else if !is_first_right && is_deleted(draft, inode, &record)? && record.links == 0 {
        return Ok(());
    } else if !is_first_right {
        lost_found.take(draft, inode, &mut record)?;
    }
    keep(draft, inode)?;
    let links = u32::try_from(further.len()).unwrap_or(u32::MAX - 1) + 1;
    if links != record.links {
        let recorded = record.links;
        record.links = links;
        draft.say_of(inode, |file| format!("{file}: corrected its number of links from {recorded} to {links}"));
    }
    if record != before {
        draft.put_inode(inode, &record);
    }
    Ok(())
}

/// The further hard links that are names; the records of others go.
fn further_links(draft: &mut Draft<'_>, inode: InodeNumber) -> Result<Vec<(InodeNumber, u64)>> {
    let mut further = Vec::new();
    let mut items = Items::new(draft.metadata, schema::items(inode, Item::Link), schema::items_end(inode, Item::Link));
    while let Some((key, _)) = items.next()? {
        let Some(Parsed::Link { parent, cookie, .. }) = schema::parse(&key) else { continue };
        if is_name_of(draft, inode, (parent, cookie))? {
            further.push((parent, cookie));
        } else {
            draft.delete(key);
            draft.say_of(inode, |file| format!("{file}: dropped a hard link in directory {parent} that is not its name"));
        }
    }
    Ok(further)
}

/// What is to be deleted or cut: damaged records, and those of nothing.
fn repair_orphans(draft: &mut Draft<'_>) -> Result<()> {
    let mut items = draft.table(schema::ORPHANS);
    while let Some((key, value)) = items.next()? {
        let Some(Parsed::Orphan(inode)) = schema::parse(&key) else { continue };
        let is_whole = opened(&key, &value, OrphanRecord::decode)?.is_some();
        match draft.whole_inode(inode)? {
            None => {
                draft.delete(key);
                draft.say(None, format!("dropped the deletion or truncation of inode {inode}, which does not exist"));
            }
            Some(record) if !is_whole && record.links == 0 => {
                draft.put(key, OrphanRecord::Unlinked.encode());
                draft.say(
                    None,
                    format!("inode {inode} has no name; its deletion, whose record is damaged, is finished at the next mount"),
                );
            }
            Some(_) if !is_whole => {
                draft.delete(key);
                draft.say_of(inode, |file| format!("{file}: dropped a damaged record of its deletion or truncation"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}
