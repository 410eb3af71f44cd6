//! Files made without a name (O_TMPFILE), on both sides, and the name that they may get once.

use super::{Outcome, ROOT_CALLER, Runner, UMASK, modulo, name_of};
use crate::reference_model::{Content, FileBytes, Id, Node, REGULAR, Refused};
use sumfs::error::Error;
use sumfs::units::InodeNumber;

impl Runner {
    pub(super) fn tmpfile(&mut self, directory: u64, mode: u32) -> Outcome {
        let directory = self.directory(directory);
        let parent = self.hold(directory)?;
        let found = self.fs.tmpfile(&ROOT_CALLER, parent, mode, UMASK);
        let mut next = self.model.clone();
        if let Ok(attributes) = &found {
            next.create_nameless(attributes.inode.0, Node::new(REGULAR | mode & !UMASK, Content::File(FileBytes::default())));
        }
        if let Some(attributes) = self.agree(found, next, Ok(()))? {
            self.note_lookup(&attributes, attributes.inode.0)?;
            self.never_named.insert(attributes.inode.0);
            self.touch(&[attributes.inode.0]);
        }
        Ok(())
    }

    /// Only a file that was made without a name gets one.
    pub(super) fn link_nameless(&mut self, node: u64, directory: u64, name: u64) -> Outcome {
        let nameless: Vec<Id> =
            self.held.keys().copied().filter(|id| self.model.node(*id).is_some_and(|node| node.links == 0)).collect();
        let Some(id) = modulo(&nameless, node) else { return Ok(()) };
        let (directory, name) = (self.directory(directory), name_of(name));
        let parent = self.hold(directory)?;
        let found = self.fs.link(InodeNumber(id), parent, &name);
        let mut next = self.model.clone();
        let mut expected = next.link(id, directory, &name);
        if !self.never_named.contains(&id) {
            let mut allowed = expected.err().map(|refused| refused.0).unwrap_or_default();
            allowed.push(Error::NotFound);
            expected = Err(Refused(allowed));
        }
        if let Some(attributes) = self.agree(found, next, expected)? {
            self.never_named.remove(&id);
            self.note_lookup(&attributes, id)?;
            self.touch(&[directory, id]);
        }
        Ok(())
    }
}
