//! The draft of a repair: changes go into the running layer of the metadata, where every later look sees them, and each is told in
//! one sentence.

use super::Step;
use crate::error::{Error, Result};
use crate::meta::Metadata;
use crate::meta::records::{self, CookieRecord, EntryRecord, InodeRecord, OrphanRecord};
use crate::meta::schema::{self, Key};
use crate::units::InodeNumber;
use crate::verify::findings::{Findings, Items, Look, look};
use crate::verify::issue::File;

/// Changes and what was said of them.
pub(super) struct Draft<'a> {
    pub(super) metadata: &'a Metadata,
    steps: Vec<Step>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(metadata: &'a Metadata) -> Draft<'a> {
        Draft { metadata, steps: Vec::new() }
    }

    pub(super) fn finish(self) -> Vec<Step> {
        self.steps
    }

    pub(super) fn say(&mut self, file: Option<File>, message: String) {
        self.steps.push(Step { file, message });
    }

    /// Says it of an inode: `message` is told its name.
    pub(super) fn say_of(&mut self, inode: InodeNumber, message: impl FnOnce(&File) -> String) {
        let file = self.file(inode);
        let message = message(&file);
        self.say(Some(file), message);
    }

    pub(super) fn put(&self, key: Key, record: Vec<u8>) {
        self.metadata.draft(key, Some(record));
    }

    pub(super) fn delete(&self, key: Key) {
        self.metadata.draft(key, None);
    }

    /// The inode with its path, as far as that is known now.
    pub(super) fn file(&self, inode: InodeNumber) -> File {
        Findings::new(self.metadata, Vec::new()).file(inode)
    }

    /// What a key stands for, in words.
    pub(super) fn what(&self, key: &[u8]) -> String {
        Findings::new(self.metadata, Vec::new()).what(key)
    }

    pub(super) fn inode(&self, inode: InodeNumber) -> Result<Look<InodeRecord>> {
        look(self.metadata, &schema::inode(inode), InodeRecord::decode)
    }

    /// The record of an inode that is there and whole.
    pub(super) fn whole_inode(&self, inode: InodeNumber) -> Result<Option<InodeRecord>> {
        Ok(match self.inode(inode)? {
            Look::There(record) => Some(record),
            Look::Absent | Look::Damaged => None,
        })
    }

    pub(super) fn put_inode(&self, inode: InodeNumber, record: &InodeRecord) {
        self.put(schema::inode(inode), record.encode());
    }

    pub(super) fn orphan(&self, inode: InodeNumber) -> Result<Look<OrphanRecord>> {
        look(self.metadata, &schema::orphan(inode), OrphanRecord::decode)
    }

    /// Both entries of a name.
    pub(super) fn put_entry(&self, directory: InodeNumber, name: &[u8], entry: EntryRecord) {
        self.put(schema::entry_by_name(directory, name), entry.encode());
        let listed = CookieRecord { inode: entry.inode, kind: entry.kind, name: name.to_vec() };
        self.put(schema::entry_by_cookie(directory, entry.cookie), listed.encode());
    }

    /// Takes both entries of a name away.
    pub(super) fn delete_entry(&self, directory: InodeNumber, name: &[u8], cookie: u64) {
        self.delete(schema::entry_by_name(directory, name));
        self.delete(schema::entry_by_cookie(directory, cookie));
    }

    /// What a directory lists at a cookie, if it is whole.
    pub(super) fn listed(&self, directory: InodeNumber, cookie: u64) -> Result<Option<CookieRecord>> {
        Ok(match look(self.metadata, &schema::entry_by_cookie(directory, cookie), CookieRecord::decode)? {
            Look::There(listed) => Some(listed),
            Look::Absent | Look::Damaged => None,
        })
    }

    pub(super) fn table(&self, table: u8) -> Items<'a> {
        Items::of_table(self.metadata, table)
    }
}

/// The record in a stored value, or None when it is damaged.
pub(super) fn opened<T>(key: &[u8], value: &[u8], decode: fn(&[u8]) -> Result<T>) -> Result<Option<T>> {
    match records::open(key, value).and_then(decode) {
        Ok(record) => Ok(Some(record)),
        Err(Error::Corrupt(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
