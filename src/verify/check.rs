//! The offline check: opens the store without writing one byte, replays the journal in memory, and walks everything once.

use super::extents::Sweep;
use super::findings::Findings;
use super::issue::Issue;
use super::names::Names;
use super::opening::{self, Opened, Purpose};
use super::references::References;
use super::{data, inodes, tables};
use crate::error::{Error, Result};
use crate::store::Disks;
use serde::Serialize;

/// How much weight progress gives to a block that is only counted, as 1 / this, next to one that is read.
const COUNTED_BLOCKS_PER_STEP: u64 = 64;

/// What to check.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckOptions {
    /// Read every block and compare it with its checksum, too.
    pub verify_data: bool,
}

/// What was found, and how much was looked at.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Everything that is wrong, in the order in which it was found.
    pub issues: Vec<Issue>,
    /// Issues beyond those listed.
    pub issues_not_listed: u64,
    /// Inodes that are not directories.
    pub files: u64,
    /// Directories, the root among them.
    pub directories: u64,
    /// Extents.
    pub extents: u64,
    /// Blocks that hold data.
    pub blocks_used: u64,
    /// Blocks read and compared with their checksums.
    pub blocks_verified: u64,
    /// Index pages and journal records of which one copy is bad and the other good. They are still bad: a check writes nothing, a
    /// mount heals them.
    pub healed: u64,
    /// Bytes of files that a repair found lost; they read as errors until they are written anew. Known, so no issue.
    pub lost_bytes: u64,
    /// Transactions that were in the journal but not yet in the index.
    pub replayed_transactions: u64,
}

impl Report {
    /// Nothing is wrong?
    pub fn is_clean(&self) -> bool {
        self.issues.is_empty()
    }
}

/// Checks the store on `disks`, which nobody else may have open for writing. What is wrong with the store is in the report; an
/// error means that it could not be looked at (a disk fails, this is no store). `progress` hears steps done and all steps.
pub fn check(disks: &Disks, options: &CheckOptions, progress: &mut dyn FnMut(u64, u64)) -> Result<Report> {
    let mut issues = Vec::new();
    let Some(opened) = opening::open(disks, Purpose::Check, &mut issues)? else {
        return Ok(Report { issues, ..Report::default() });
    };
    let mut report = Report {
        healed: opened.bad_index_copies + opened.replayed.healed,
        replayed_transactions: opened.replayed.transactions,
        ..Report::default()
    };
    let mut find = Findings::new(&opened.metadata, issues);
    match walk(&opened, &mut find, options, &mut report, progress) {
        Err(Error::Corrupt(reason)) => find.add(Issue::IndexDamaged { reason }),
        result => result?,
    }
    report.issues = find.issues;
    report.issues_not_listed = find.not_listed;
    Ok(report)
}

pub(super) fn walk(
    opened: &Opened,
    find: &mut Findings<'_>,
    options: &CheckOptions,
    report: &mut Report,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let metadata = &opened.metadata;
    let counts = metadata.space().counts();
    let inode_steps = metadata.inode_numbers_used();
    let open_blocks = counts.groups * metadata.space().blocks_per_group();
    let extent_steps = open_blocks / COUNTED_BLOCKS_PER_STEP;
    let data_steps = if options.verify_data { open_blocks - counts.free } else { 0 };
    let total = inode_steps + extent_steps + data_steps;

    let mut names = Names::default();
    let mut references = References::new();
    let tally = inodes::walk(find, &mut names, &mut references, &mut |inode| progress(inode.min(inode_steps), total))?;
    (report.files, report.directories, report.lost_bytes) = (tally.files, tally.directories, tally.lost_bytes);
    names.finish(find)?;

    let mut sweep = Sweep::new(metadata, tally.has_damaged_maps)?;
    loop {
        let (held, end) = references.take();
        let mut at_block = |block: u64| {
            progress(inode_steps + (block / COUNTED_BLOCKS_PER_STEP).min(extent_steps), total);
        };
        sweep.run(find, held, end, &mut at_block)?;
        if !references.refill(metadata)? {
            break;
        }
    }
    sweep.finish(find);
    (report.extents, report.blocks_used) = (sweep.extents, sweep.blocks_used);

    let groups = tables::check_groups(find, &opened.devices)?;
    tables::check_rest(find, &opened.devices, &tally)?;
    if options.verify_data {
        let begin = inode_steps + extent_steps;
        report.blocks_verified = data::verify(find, &groups, &mut |blocks| progress(begin + blocks.min(data_steps), total))?;
    }
    progress(total, total);
    Ok(())
}
