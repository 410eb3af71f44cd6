//! The check of a mounted store: the walk of the offline check over the state after a commit. It holds no lock and keeps nobody from
//! writing. Data is not read: blocks of that state may be freed and used again meanwhile, and the scrub looks at data anyway.

use super::check::{self, CheckOptions, Report};
use super::findings::Findings;
use super::issue::Issue;
use super::opening::{self, Opened};
use crate::disk::superblock::Superblock;
use crate::error::{Error, Result};
use crate::meta::{Metadata, Replayed};

/// Checks the metadata of a store that is in use. `progress` hears steps done and all steps.
pub fn check_online(metadata: &Metadata, superblock: &Superblock, progress: &mut dyn FnMut(u64, u64)) -> Result<Report> {
    let mut issues = Vec::new();
    let mut devices = Vec::new();
    for (id, disk) in metadata.space().disks() {
        if let Some(entry) = superblock.devices.iter().find(|entry| entry.id == id) {
            devices.push(opening::open_device(superblock, entry, &*disk, &mut issues)?);
        }
    }
    let metadata = metadata.frozen()?;
    let opened = Opened { metadata, devices, replayed: Replayed::default(), bad_index_copies: 0, superblock: superblock.clone() };
    let mut report = Report::default();
    let mut find = Findings::new(&opened.metadata, issues);
    match check::walk(&opened, &mut find, &CheckOptions::default(), &mut report, progress) {
        Err(Error::Corrupt(reason)) => find.add(Issue::IndexDamaged { reason }),
        result => result?,
    }
    report.issues_not_listed = find.not_listed;
    report.issues = find.issues;
    Ok(report)
}
