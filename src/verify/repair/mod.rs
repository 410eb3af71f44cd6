//! Repairing a store offline: what can be put right without guessing is, and everything done is said.
//!
//! ```text
//!   tables   keys that no one knows, devices, what scrubs left
//!   inodes   records, attributes, targets and file maps, one inode at a time
//!   names    the two lists of every directory against each other; then every inode against its names; then the counts
//!   space    extents against the file maps: references, what is lost or used by nobody, bitmaps, counters
//! ```
//! All changes are drafted in memory, where the passes behind see them. The draft is then checked as a store would be, and stored in
//! one step of the index (`meta::repair`): a crash leaves the store as it was, or repaired. A draft with more issues than the store
//! had is thrown away. Data that is not there any more becomes a range that reads as an error, never zeros.
//!
//! Memory: the damage, and all items of one inode; the references of a window, as in a check.

mod draft;
mod inodes;
mod links;
mod lost_found;
mod maps;
mod names;
mod space;
mod tables;

use self::draft::Draft;
use super::check::{CheckOptions, Report, walk};
use super::findings::Findings;
use super::issue::{File, Issue};
use super::opening::{self, Opened, Purpose};
use crate::disk::label;
use crate::error::{Error, Result};
use crate::store::Disks;
use serde::Serialize;

/// One thing that was put right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// The file or directory concerned, if it is one.
    pub file: Option<File>,
    /// What was done, in one sentence.
    pub message: String,
}

/// What a repair found, did and left.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Repaired {
    /// The store before it.
    pub before: Report,
    /// Everything that was done, or would be, in order.
    pub steps: Vec<Step>,
    /// The store behind it, as a check of it would say.
    pub after: Report,
    /// Was it written?
    pub is_written: bool,
}

/// Repairs the store on `disks`, which nobody else may have open. `dry_run`: not one byte is written, all else is the same. An error
/// means that it could not be looked at or written. `progress` hears steps done and all steps.
pub fn repair(disks: &Disks, dry_run: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<Repaired> {
    let mut issues = Vec::new();
    let purpose = if dry_run { Purpose::Plan } else { Purpose::Repair };
    let Some(mut opened) = opening::open(disks, purpose, &mut issues)? else {
        let report = Report { issues, ..Report::default() };
        return Ok(Repaired { before: report.clone(), after: report, ..Repaired::default() });
    };
    let before = look_over(&opened, issues.clone(), progress)?;
    if before.is_clean() || issues.iter().any(is_for_people) {
        return Ok(Repaired { after: before.clone(), before, ..Repaired::default() });
    }
    let mut draft = Draft::new(&opened.metadata);
    let passed = run_passes(&mut draft, &opened, &issues);
    let steps = draft.finish();
    match passed {
        Err(Error::Corrupt(_)) => return Ok(Repaired { after: before.clone(), before, ..Repaired::default() }),
        result => result?,
    }
    let left = issues.into_iter().filter(|issue| !is_cured_by_writing(issue)).collect();
    let after = look_over(&opened, left, progress)?;
    let count = |report: &Report| report.issues.len() as u64 + report.issues_not_listed;
    if count(&after) > count(&before) || steps.is_empty() {
        return Ok(Repaired { after: before.clone(), before, ..Repaired::default() });
    }
    if !dry_run {
        store(disks, &mut opened)?;
    }
    Ok(Repaired { before, steps, after, is_written: !dry_run })
}

/// What a check of the opened store says.
fn look_over(opened: &Opened, issues: Vec<Issue>, progress: &mut dyn FnMut(u64, u64)) -> Result<Report> {
    let mut report = Report {
        healed: opened.bad_index_copies + opened.replayed.healed,
        replayed_transactions: opened.replayed.transactions,
        ..Report::default()
    };
    let mut find = Findings::new(&opened.metadata, issues);
    match walk(opened, &mut find, &CheckOptions::default(), &mut report, progress) {
        Err(Error::Corrupt(reason)) => find.add(Issue::IndexDamaged { reason }),
        result => result?,
    }
    (report.issues, report.issues_not_listed) = (find.issues, find.not_listed);
    // What opening says of a value the walk says too.
    let mut seen = std::collections::HashSet::new();
    report.issues.retain(|issue| !matches!(issue, Issue::DamagedValue { .. }) || seen.insert(issue.to_string()));
    Ok(report)
}

/// Perhaps the wrong file or disk was given: what is taken for lost then would be lost for good.
fn is_for_people(issue: &Issue) -> bool {
    matches!(issue, Issue::LabelLost { .. } | Issue::DeviceForeign { .. } | Issue::DeviceShort { .. })
}

/// Is gone when the draft is stored, or when the passes have counted anew.
fn is_cured_by_writing(issue: &Issue) -> bool {
    use Issue::*;
    matches!(
        issue,
        SuperblockCopyDamaged { .. }
            | LabelCopyDamaged { .. }
            | SequenceDiffers { .. }
            | JournalDamaged { .. }
            | DamagedValue { .. }
    )
}

fn run_passes(draft: &mut Draft<'_>, opened: &Opened, issues: &[Issue]) -> Result<()> {
    for issue in issues {
        say_what_writing_cures(draft, issue);
    }
    tables::repair(draft, opened)?;
    let mut short = inodes::repair(draft)?;
    let unknown = names::repair(draft)?;
    links::repair(draft, unknown)?;
    names::count(draft)?;
    space::repair(draft, &mut short)?;
    for (inode, blocks) in short {
        if maps::lose_holes(draft, inode, blocks)? {
            continue;
        }
        let file = draft.file(inode);
        let message = format!("{file}: {blocks} blocks of it are in no file map any more; where they were reads as zeros");
        draft.say(Some(file), message);
    }
    Ok(())
}

fn say_what_writing_cures(draft: &mut Draft<'_>, issue: &Issue) {
    let message = match issue {
        Issue::SuperblockCopyDamaged { offset } => format!("wrote the superblock copy at byte {offset} anew from the other one"),
        Issue::LabelCopyDamaged { device, offset } => {
            format!("wrote the label of device {device} at byte {offset} anew from the other one")
        }
        Issue::SequenceDiffers { found, .. } => format!("took transaction {found} for the last one: what came after it is lost"),
        Issue::JournalDamaged { .. } => "gave up the transactions in the journal behind the damaged one".to_owned(),
        _ => return,
    };
    draft.say(None, message);
}

/// Writes everything: marked as in use before the step that counts, and as left clean behind it.
fn store(disks: &Disks, opened: &mut Opened) -> Result<()> {
    opened.superblock.clean_sequence = None;
    opened.superblock.write(&*disks.superblock)?;
    if disks.journal.len()? < opened.superblock.journal_bytes {
        disks.journal.set_len(opened.superblock.journal_bytes)?;
    }
    let sequence = opened.metadata.store_draft(space::unwritten_blocks(&opened.metadata)?)?;
    opened.superblock.clean_sequence = Some(sequence);
    opened.superblock.write(&*disks.superblock)?;
    for disk in &disks.devices {
        label::read(&**disk, true)?;
    }
    Ok(())
}
