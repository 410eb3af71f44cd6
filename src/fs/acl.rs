//! POSIX access control lists. The kernel checks permissions by them; stored, inherited and kept in step with the mode they are here.
//! One is an extended attribute in the form in which the kernel hands it over: a version, then entries of tag, permissions and id,
//! little-endian, in the order of their tags.
//!
//! The mode and the list of one inode say the same: its entries of owner and others are the mode's, and the mode's group bits are those
//! of the mask, or without one of the group. A list that says no more than a mode is not stored.
//!
//! Without the mount option the attributes are hidden and nothing is inherited, but a chmod still changes a list that is there: on the
//! next mount with the option it counts again.

use super::Filesystem;
use super::inode::InodeState;
use crate::error::{Error, Result};
use crate::meta::records::{FileKind, INODE_HAS_XATTRS, InodeRecord};
use crate::meta::{Batch, schema};
use crate::units::InodeNumber;

/// Name of the attribute by which access is decided.
pub(super) const ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of a directory's attribute that what is made in it inherits.
pub(super) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;
const ALL: u16 = 7;
const SETGID: u32 = 0o2000;

/// Whom an entry is for; in the order in which they stand in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    Owner = 0x01,
    User = 0x02,
    OwningGroup = 0x04,
    Group = 0x08,
    Mask = 0x10,
    Others = 0x20,
}

impl Tag {
    fn from_number(number: u16) -> Option<Tag> {
        [Tag::Owner, Tag::User, Tag::OwningGroup, Tag::Group, Tag::Mask, Tag::Others]
            .into_iter()
            .find(|tag| *tag as u16 == number)
    }

    /// There may be many entries of it, for one id each.
    fn has_id(self) -> bool {
        matches!(self, Tag::User | Tag::Group)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: Tag,
    permissions: u16,
    id: u32,
}

/// A valid list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acl(Vec<Entry>);

impl Acl {
    /// The list in `bytes`. EINVAL for what is none; a list without entries means to remove the one that is there: None.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<Acl>> {
        const MALFORMED: Error = Error::Invalid("not an access control list");
        if bytes.is_empty() {
            return Ok(None);
        }
        let (version, entries) = bytes.split_first_chunk::<4>().ok_or(MALFORMED)?;
        if u32::from_le_bytes(*version) != VERSION || !entries.len().is_multiple_of(ENTRY_BYTES) {
            return Err(MALFORMED);
        }
        let entries = entries.chunks_exact(ENTRY_BYTES).map(entry).collect::<Option<Vec<Entry>>>().ok_or(MALFORMED)?;
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Acl(entries);
        if acl.is_valid() { Ok(Some(acl)) } else { Err(MALFORMED) }
    }

    /// In the order of tags; owner, group and others once, a mask at most once, and one if there are users or groups.
    fn is_valid(&self) -> bool {
        let count = |tag: Tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let has_named = self.0.iter().any(|entry| entry.tag.has_id());
        self.0.is_sorted_by_key(|entry| entry.tag)
            && [Tag::Owner, Tag::OwningGroup, Tag::Others].iter().all(|tag| count(*tag) == 1)
            && (usize::from(has_named)..=1).contains(&count(Tag::Mask))
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            bytes.extend_from_slice(&(entry.tag as u16).to_le_bytes());
            bytes.extend_from_slice(&entry.permissions.to_le_bytes());
            bytes.extend_from_slice(&entry.id.to_le_bytes());
        }
        bytes
    }

    fn permissions(&mut self, tag: Tag) -> Option<&mut u16> {
        self.0.iter_mut().find(|entry| entry.tag == tag).map(|entry| &mut entry.permissions)
    }

    /// What the mode's group bits say: the mask, or without one the owning group.
    fn group_class(&self) -> Tag {
        if self.0.iter().any(|entry| entry.tag == Tag::Mask) { Tag::Mask } else { Tag::OwningGroup }
    }

    /// The three entries that the mode shows, with the place of their bits in it.
    fn classes(&self) -> [(Tag, u32); 3] {
        [(Tag::Owner, 6), (self.group_class(), 3), (Tag::Others, 0)]
    }

    /// The permission bits that say the same as far as bits can.
    fn mode_bits(&mut self) -> u32 {
        self.classes().into_iter().filter_map(|(tag, shift)| Some(u32::from(*self.permissions(tag)?) << shift)).sum()
    }

    fn says_no_more_than_a_mode(&self) -> bool {
        self.0.len() == 3
    }

    /// After a chmod.
    fn follow(&mut self, mode: u32) {
        for (tag, shift) in self.classes() {
            if let Some(permissions) = self.permissions(tag) {
                *permissions = (mode >> shift) as u16 & ALL;
            }
        }
    }

    /// As a new inode's list: no more is allowed than `mode` allows. The mode that comes out.
    fn restrict(&mut self, mode: u32) -> u32 {
        for (tag, shift) in self.classes() {
            if let Some(permissions) = self.permissions(tag) {
                *permissions &= (mode >> shift) as u16 & ALL;
            }
        }
        mode & !0o777 | self.mode_bits()
    }
}

fn entry(bytes: &[u8]) -> Option<Entry> {
    let (tag, rest) = bytes.split_first_chunk::<2>()?;
    let (permissions, id) = rest.split_first_chunk::<2>()?;
    let tag = Tag::from_number(u16::from_le_bytes(*tag))?;
    let permissions = u16::from_le_bytes(*permissions);
    let id = u32::from_le_bytes(*id.first_chunk::<4>()?);
    let is_valid = permissions <= ALL && (!tag.has_id() || id != u32::MAX);
    is_valid.then_some(Entry { tag, permissions, id })
}

/// Is this the name of a list?
pub(super) fn is_name(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// What setting a list does to the inode's record, and what is stored then; None: nothing, and what is stored goes.
pub(super) fn set(record: &mut InodeRecord, name: &[u8], value: &[u8], kills_sgid: bool) -> Result<Option<Vec<u8>>> {
    let acl = Acl::decode(value)?;
    if record.kind() == FileKind::Symlink {
        return Err(Error::Unsupported);
    }
    if name == DEFAULT {
        return match acl {
            Some(_) if record.kind() != FileKind::Directory => Err(Error::AccessDenied),
            acl => Ok(acl.map(|acl| acl.encode())),
        };
    }
    let Some(mut acl) = acl else { return Ok(None) };
    record.mode = record.mode & !0o777 | acl.mode_bits();
    if kills_sgid {
        record.mode &= !SETGID;
    }
    Ok((!acl.says_no_more_than_a_mode()).then(|| acl.encode()))
}

/// The lists of a new inode.
#[derive(Debug, Default)]
pub(super) struct Inherited {
    lists: Vec<(&'static [u8], Vec<u8>)>,
}

impl Inherited {
    /// Puts them beside the new inode's record.
    pub(super) fn put(self, batch: &mut Batch, number: InodeNumber, record: &mut InodeRecord) {
        for (name, list) in self.lists {
            record.flags |= INODE_HAS_XATTRS;
            batch.put(schema::xattr(number, name), list);
        }
    }
}

impl Filesystem {
    fn stored_acl(&self, number: InodeNumber, state: &InodeState, name: &[u8]) -> Result<Option<Acl>> {
        if state.record.flags & INODE_HAS_XATTRS == 0 {
            return Ok(None);
        }
        let Some(value) = self.meta.get(&schema::xattr(number, name))? else { return Ok(None) };
        Acl::decode(&value).map_err(|_| Error::corrupt(format!("inode {number} has an access control list that is none")))
    }

    /// The mode changed: the list that is stored says the same afterwards.
    pub(super) fn follow_mode(&self, batch: &mut Batch, number: InodeNumber, state: &InodeState) -> Result<()> {
        if let Some(mut acl) = self.stored_acl(number, state, ACCESS)? {
            acl.follow(state.record.mode);
            batch.put(schema::xattr(number, ACCESS), acl.encode());
        }
        Ok(())
    }

    /// What something new of `mode`, which becomes what it is to be, inherits from its directory. The directory's list takes the place
    /// of `umask`.
    pub(super) fn inherit(&self, directory: InodeNumber, state: &InodeState, mode: &mut u32, umask: u32) -> Result<Inherited> {
        let mut inherited = Inherited::default();
        let kind = FileKind::from_mode(*mode);
        if kind == Some(FileKind::Symlink) {
            return Ok(inherited);
        }
        let default = if self.options.acl { self.stored_acl(directory, state, DEFAULT)? } else { None };
        let Some(default) = default else {
            *mode &= !umask;
            return Ok(inherited);
        };
        let mut access = default.clone();
        *mode = access.restrict(*mode);
        if !access.says_no_more_than_a_mode() {
            inherited.lists.push((ACCESS, access.encode()));
        }
        if kind == Some(FileKind::Directory) {
            inherited.lists.push((DEFAULT, default.encode()));
        }
        Ok(inherited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: u32 = u32::MAX;

    fn bytes(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    const FULL: [(u16, u16, u32); 7] =
        [(1, 7, NOBODY), (2, 6, 5), (2, 4, 1000), (4, 5, NOBODY), (8, 7, 100), (16, 6, NOBODY), (32, 1, NOBODY)];

    fn full() -> Acl {
        Acl::decode(&bytes(&FULL)).unwrap().unwrap()
    }

    #[test]
    fn a_list_comes_back_as_it_was() {
        assert_eq!(full().encode(), bytes(&FULL));
        assert_eq!(full().mode_bits(), 0o761, "the mask stands for the group");
        assert!(!full().says_no_more_than_a_mode());
        let mut minimal = Acl::decode(&bytes(&[(1, 6, NOBODY), (4, 4, NOBODY), (32, 0, NOBODY)])).unwrap().unwrap();
        assert!(minimal.says_no_more_than_a_mode() && minimal.mode_bits() == 0o640);
        assert_eq!(Acl::decode(&bytes(&[])).unwrap(), None);
        assert_eq!(Acl::decode(&[]).unwrap(), None);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let mut wrong: Vec<Vec<u8>> = vec![
            vec![2, 0, 0],
            vec![1, 0, 0, 0],
            bytes(&FULL)[..bytes(&FULL).len() - 1].to_vec(),
            bytes(&[(1, 8, NOBODY), (4, 4, NOBODY), (32, 0, NOBODY)]),
            bytes(&[(1, 7, NOBODY), (3, 4, NOBODY), (4, 4, NOBODY), (32, 0, NOBODY)]),
            bytes(&[(1, 7, NOBODY), (2, 4, NOBODY), (4, 4, NOBODY), (16, 7, NOBODY), (32, 0, NOBODY)]),
            bytes(&[(1, 7, NOBODY), (32, 0, NOBODY), (4, 4, NOBODY)]),
            bytes(&[(1, 7, NOBODY), (4, 4, NOBODY), (16, 7, NOBODY), (16, 7, NOBODY), (32, 0, NOBODY)]),
        ];
        // Each of the entries that must be there missing once; the mask too, because there are users.
        for missing in [0, 3, 5, 6] {
            let mut entries = FULL.to_vec();
            entries.remove(missing);
            wrong.push(bytes(&entries));
        }
        for bytes in wrong {
            assert!(matches!(Acl::decode(&bytes), Err(Error::Invalid(_))), "{bytes:?}");
        }
    }

    #[test]
    fn a_mode_changes_the_mask_and_not_the_group() {
        let mut acl = full();
        acl.follow(0o100_640);
        assert_eq!(acl.mode_bits(), 0o640);
        assert_eq!(acl.permissions(Tag::OwningGroup), Some(&mut 5));
        assert_eq!(acl.permissions(Tag::User), Some(&mut 6));
    }

    #[test]
    fn something_new_is_allowed_no_more_than_it_asks() {
        let mut acl = full();
        assert_eq!(acl.restrict(0o102_644), 0o102_640, "others had no read in the list");
        assert_eq!(acl.mode_bits(), 0o640);
        assert_eq!(acl.permissions(Tag::Group), Some(&mut 7), "under the mask");
    }
}
