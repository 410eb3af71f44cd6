//! `/lost+found`: the directory for what has no name any more. Each gets the name `#INODE`.

use super::draft::Draft;
use crate::clock;
use crate::error::{Error, Result};
use crate::meta::records::{EntryRecord, FileKind, InodeRecord};
use crate::meta::schema;
use crate::units::InodeNumber;
use crate::verify::findings::{Look, look};

const NAME: &str = "lost+found";

/// The directory, once it was needed.
#[derive(Default)]
pub(super) struct LostFound {
    directory: Option<InodeNumber>,
}

impl LostFound {
    /// Gives the inode a name there, and the record its place. The caller stores the record.
    pub(super) fn take(&mut self, draft: &mut Draft<'_>, inode: InodeNumber, record: &mut InodeRecord) -> Result<()> {
        let directory = match self.directory {
            Some(directory) => directory,
            None => *self.directory.insert(find_or_make(draft)?),
        };
        let mut name = format!("#{inode}");
        while !matches!(
            look(draft.metadata, &schema::entry_by_name(directory, name.as_bytes()), EntryRecord::decode)?,
            Look::Absent
        ) {
            name.push('~');
        }
        let cookie = add_entry(draft, directory, name.as_bytes(), inode, record.kind())?;
        (record.parent, record.cookie) = (directory, cookie);
        let kind = crate::verify::findings::kind_name(record.kind());
        let file = draft.file(inode);
        draft.say(Some(file), format!("gave inode {inode}, a {kind} without a name, the name {name} in /{NAME}"));
        Ok(())
    }
}

fn find_or_make(draft: &mut Draft<'_>) -> Result<InodeNumber> {
    let mut name = NAME.to_owned();
    loop {
        match look(draft.metadata, &schema::entry_by_name(InodeNumber::ROOT, name.as_bytes()), EntryRecord::decode)? {
            Look::There(entry) if entry.kind == FileKind::Directory => return Ok(entry.inode),
            Look::Absent => break,
            _ => name.push('~'),
        }
    }
    let inode = draft.metadata.new_inode_number();
    let now = clock::now();
    let cookie = add_entry(draft, InodeNumber::ROOT, name.as_bytes(), inode, FileKind::Directory)?;
    let record = InodeRecord {
        mode: FileKind::Directory.mode_bits() | 0o700,
        uid: 0,
        gid: 0,
        links: 2,
        size: 0,
        blocks: 0,
        accessed: now,
        modified: now,
        changed: now,
        created: now,
        rdev: 0,
        flags: 0,
        parent: InodeNumber::ROOT,
        cookie,
        next_cookie: 3,
    };
    draft.put_inode(inode, &record);
    draft.say(None, format!("made the directory /{name}"));
    Ok(inode)
}

/// A new entry; its cookie. The directory's own counts are made anew later.
fn add_entry(draft: &Draft<'_>, directory: InodeNumber, name: &[u8], inode: InodeNumber, kind: FileKind) -> Result<u64> {
    let Some(mut record) = draft.whole_inode(directory)? else {
        return Err(Error::corrupt(format!("directory {directory} has no record")));
    };
    let cookie = record.next_cookie;
    record.next_cookie += 1;
    draft.put_inode(directory, &record);
    draft.put_entry(directory, name, EntryRecord { inode, cookie, kind });
    Ok(cookie)
}
