//! Names: what directories say about inodes and inodes about their names, orphans, and whether every directory reaches the root.

use super::findings::{Findings, Items, Look, kind_name, look, readable};
use super::issue::Issue;
use crate::error::Result;
use crate::meta::records::{self, CookieRecord, EntryRecord, FileKind, InodeRecord, OrphanRecord};
use crate::meta::schema::{self, Item, Parsed};
use crate::units::InodeNumber;
use std::collections::HashSet;

/// What is remembered of names until the walk over the inodes is over.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Directories with their parents, in the order of their numbers.
    parents: Vec<(u64, u64)>,
    /// Directory and cookie of names whose listing is wrong, which is reported there.
    wrong_listings: HashSet<(u64, u64)>,
    /// Names that an inode has, and the issue if nothing of that name is in `wrong_listings`.
    missing: Vec<((u64, u64), Issue)>,
    has_root: bool,
}

/// What an entry turned out to be.
pub(super) struct Seen {
    /// The kind of the inode, or what the entry says when there is none.
    pub(super) kind: FileKind,
    /// A listing shows this name.
    pub(super) is_listed: bool,
}

impl Names {
    /// An entry by name: what it stands for, and whether a listing shows the same.
    pub(super) fn entry(
        &mut self,
        find: &mut Findings<'_>,
        directory: InodeNumber,
        name: &[u8],
        entry: &EntryRecord,
    ) -> Result<Seen> {
        let is_listed = self.compare_with_listing(find, directory, name, entry)?;
        let inode = entry.inode;
        let record = match look(find.metadata, &schema::inode(inode), InodeRecord::decode)? {
            Look::There(record) => record,
            Look::Damaged => return Ok(Seen { kind: entry.kind, is_listed }),
            Look::Absent => {
                let directory = find.file(directory);
                find.add(Issue::EntryWithoutInode { directory, name: readable(name), inode: inode.0 });
                return Ok(Seen { kind: entry.kind, is_listed });
            }
        };
        let kind = record.kind();
        if kind != entry.kind {
            let (recorded, found) = (kind_name(entry.kind), kind_name(kind));
            let directory = find.file(directory);
            find.add(Issue::EntryKind { directory, name: readable(name), inode: inode.0, recorded, found });
        }
        if record.links == 0 && inode != InodeNumber::ROOT {
            let directory = find.file(directory);
            find.add(Issue::EntryToDeleted { directory, name: readable(name), inode: inode.0 });
        } else if !knows_name(find, inode, &record, directory, entry.cookie)? {
            let (file, directory) = (find.file(inode), find.file(directory));
            find.add(Issue::EntryUnknownToInode { file, directory, name: readable(name) });
        }
        Ok(Seen { kind, is_listed })
    }

    /// Does the entry by cookie say the same as the one by name? True when it has this name.
    fn compare_with_listing(
        &mut self,
        find: &mut Findings<'_>,
        directory: InodeNumber,
        name: &[u8],
        entry: &EntryRecord,
    ) -> Result<bool> {
        let cookie = entry.cookie;
        let listed = match look(find.metadata, &schema::entry_by_cookie(directory, cookie), CookieRecord::decode)? {
            Look::Damaged => return Ok(false),
            Look::There(listed) if listed.name == name => Some(listed),
            Look::There(_) | Look::Absent => None,
        };
        let is_same = listed.as_ref().is_some_and(|listed| (listed.inode, listed.kind) == (entry.inode, entry.kind));
        if !is_same {
            self.wrong_listings.insert((directory.0, cookie));
            let (directory, name) = (find.file(directory), readable(name));
            find.add(match listed {
                Some(_) => Issue::EntryDiffers { directory, name },
                None => Issue::EntryWithoutCookie { directory, name, cookie },
            });
        }
        Ok(listed.is_some())
    }

    /// Names that are listed but cannot be looked up. Only needed where the numbers of both differ.
    pub(super) fn compare_listing(&mut self, find: &mut Findings<'_>, directory: InodeNumber) -> Result<()> {
        let (from, end) = (schema::items(directory, Item::EntryByCookie), schema::items_end(directory, Item::EntryByCookie));
        let mut items = Items::new(find.metadata, from, end);
        while let Some((key, value)) = items.next()? {
            let Some(Parsed::EntryByCookie { cookie, .. }) = schema::parse(&key) else { continue };
            let Ok(listed) = records::open(&key, &value).and_then(CookieRecord::decode) else { continue };
            let has_entry = match look(find.metadata, &schema::entry_by_name(directory, &listed.name), EntryRecord::decode)? {
                Look::There(entry) => entry.cookie == cookie,
                Look::Absent => false,
                Look::Damaged => true,
            };
            if !has_entry {
                let (directory, name) = (find.file(directory), readable(&listed.name));
                find.add(Issue::CookieWithoutEntry { directory, name, cookie });
            }
        }
        Ok(())
    }

    /// The first name of an inode that has links.
    pub(super) fn first_link(
        &mut self,
        find: &mut Findings<'_>,
        inode: InodeNumber,
        record: &InodeRecord,
        kind: FileKind,
    ) -> Result<()> {
        let (parent, cookie) = (record.parent, record.cookie);
        if kind == FileKind::Directory {
            self.parents.push((inode.0, parent.0));
        }
        if inode == InodeNumber::ROOT {
            self.has_root = true;
            let reason = match (kind, parent == inode) {
                (FileKind::Directory, true) => return Ok(()),
                (FileKind::Directory, false) => "it says that it lies in another directory",
                _ => "it is no directory",
            };
            find.add(Issue::RootWrong { reason });
        } else if !is_listed_at(find, inode, parent, cookie)? {
            let issue = Issue::NameMissing { file: find.file(inode), parent: parent.0, cookie };
            self.missing.push(((parent.0, cookie), issue));
        }
        Ok(())
    }

    /// A further hard link of an inode.
    pub(super) fn further_link(
        &mut self,
        find: &mut Findings<'_>,
        inode: InodeNumber,
        parent: InodeNumber,
        cookie: u64,
    ) -> Result<()> {
        if !is_listed_at(find, inode, parent, cookie)? {
            let issue = Issue::LinkMissing { file: find.file(inode), parent: parent.0, cookie };
            self.missing.push(((parent.0, cookie), issue));
        }
        Ok(())
    }

    /// What can be said only when all inodes have been seen.
    pub(super) fn finish(self, find: &mut Findings<'_>) -> Result<()> {
        if !self.has_root && matches!(look(find.metadata, &schema::inode(InodeNumber::ROOT), InodeRecord::decode)?, Look::Absent)
        {
            find.add(Issue::RootWrong { reason: "it does not exist" });
        }
        for (place, issue) in self.missing {
            if !self.wrong_listings.contains(&place) {
                find.add(issue);
            }
        }
        for directory in loops(&self.parents) {
            let file = find.file(InodeNumber(directory));
            find.add(Issue::DirectoryLoop { file });
        }
        check_orphans(find)
    }
}

/// Does the inode say that it has this name?
fn knows_name(
    find: &Findings<'_>,
    inode: InodeNumber,
    record: &InodeRecord,
    directory: InodeNumber,
    cookie: u64,
) -> Result<bool> {
    if (record.parent, record.cookie) == (directory, cookie) && inode != InodeNumber::ROOT {
        return Ok(true);
    }
    let link = look(find.metadata, &schema::link(inode, directory, cookie), |_| Ok(()))?;
    Ok(!matches!(link, Look::Absent))
}

/// Is the inode what the directory lists under the cookie?
fn is_listed_at(find: &Findings<'_>, inode: InodeNumber, directory: InodeNumber, cookie: u64) -> Result<bool> {
    Ok(match look(find.metadata, &schema::entry_by_cookie(directory, cookie), CookieRecord::decode)? {
        Look::There(listed) => listed.inode == inode,
        Look::Absent => false,
        Look::Damaged => true,
    })
}

/// One directory of every circle of parents (the one with the lowest number). `parents` is sorted.
pub(super) fn loops(parents: &[(u64, u64)]) -> Vec<u64> {
    /// Not visited; else the number of the round that came by.
    const NEW: usize = usize::MAX;
    let mut rounds = vec![NEW; parents.len()];
    let position = |directory: u64| parents.binary_search_by_key(&directory, |(directory, _)| *directory).ok();
    let mut found = Vec::new();
    for start in 0..parents.len() {
        let mut at = Some(start);
        while let Some((place, (directory, parent))) = at.and_then(|at| Some((at, *parents.get(at)?))) {
            let Some(round) = rounds.get_mut(place) else { break };
            if *round != NEW {
                if *round == start && directory != InodeNumber::ROOT.0 {
                    found.push(lowest_of_circle(parents, place));
                }
                break;
            }
            *round = start;
            at = if directory == InodeNumber::ROOT.0 { None } else { position(parent) };
        }
    }
    found
}

fn lowest_of_circle(parents: &[(u64, u64)], start: usize) -> u64 {
    let mut lowest = u64::MAX;
    let mut at = Some(start);
    for _ in 0..parents.len() {
        let Some((directory, parent)) = at.and_then(|at| parents.get(at).copied()) else { break };
        lowest = lowest.min(directory);
        at = parents.binary_search_by_key(&parent, |(directory, _)| *directory).ok();
        if at == Some(start) {
            break;
        }
    }
    lowest
}

fn check_orphans(find: &mut Findings<'_>) -> Result<()> {
    let mut items = Items::of_table(find.metadata, schema::ORPHANS);
    while let Some((key, value)) = items.next()? {
        let Some(Parsed::Orphan(inode)) = schema::parse(&key) else {
            find.add(Issue::UnknownKey { key: super::findings::hex(&key) });
            continue;
        };
        let Some(orphan) = find.open(&key, &value, OrphanRecord::decode) else { continue };
        match look(find.metadata, &schema::inode(inode), InodeRecord::decode)? {
            Look::Damaged => {}
            Look::Absent => find.add(Issue::OrphanWithoutInode { inode: inode.0 }),
            Look::There(record) => {
                if orphan == OrphanRecord::Unlinked && record.links > 0 {
                    let file = find.file(inode);
                    find.add(Issue::OrphanStillLinked { file, links: record.links });
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_are_found_once_and_trees_are_none() {
        assert_eq!(loops(&[(1, 1), (2, 1), (3, 2), (9, 3)]), Vec::<u64>::new());
        assert_eq!(loops(&[(1, 1), (2, 7), (3, 2)]), Vec::<u64>::new(), "a parent that is missing is no circle");
        assert_eq!(loops(&[(1, 1), (4, 5), (5, 6), (6, 4), (7, 6), (8, 7)]), [4]);
        assert_eq!(loops(&[(1, 1), (2, 3), (3, 3), (4, 5), (5, 4)]), [3, 4]);
        assert_eq!(loops(&[(2, 3), (3, 4), (4, 3)]), [3], "reached from outside the circle first");
    }
}
