//! `sumfs check`: the offline check as fsck(8) is called, and its repair. The walk is [`crate::verify::check`], the repair
//! [`crate::verify::repair`].

use super::info::show_bytes;
use super::{Failure, LOCK_TIMEOUT, Outcome, WithCode, check_online, fields, mountinfo, progress_bar};
use crate::store::{OpenOptions, StoreDirectory};
use crate::units::BLOCK_SIZE;
use crate::verify::check::{CheckOptions, Report, check};
use crate::verify::issue::{Issue, Severity};
use crate::verify::repair::{Repaired, repair};
use serde_json::{Value, json};
use std::path::PathBuf;

const CODE_HEALED: u8 = 1;
const CODE_ERRORS_LEFT: u8 = 4;
pub(super) const CODE_FAILED: u8 = 8;

/// Arguments of `sumfs check`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = fields::CHECK)]
pub struct Arguments {
    /// The store, not mounted; or where it is mounted: then its metadata is checked while it is in use.
    store: PathBuf,
    /// Also read every block and compare it with its checksum.
    #[arg(long)]
    data: bool,
    /// Repair what can be repaired without guessing, and say each step. What has lost its name goes to /lost+found; data that is not
    /// there any more reads as an error, not as zeros, until it is written anew.
    #[arg(long, conflicts_with = "data")]
    repair: bool,
    /// Check also without a device that is missing: what is on it is left out if all data can be had without it.
    #[arg(long, conflicts_with = "repair")]
    degraded: bool,
    /// With --repair: say the same, but do not change anything.
    #[arg(long, requires = "repair")]
    dry_run: bool,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// Checks, prints what it found, and says so in the exit code.
pub fn run(arguments: &Arguments) -> Outcome {
    let shown = arguments.store.display();
    if let Some(mount) = check_online::mount_at(&arguments.store).or_code(CODE_FAILED)? {
        if arguments.repair {
            return Err(Failure::new(
                CODE_FAILED,
                format!("{shown} is mounted; to repair its store first run: sumfs umount {shown}"),
            ));
        }
        return check_online::run(&mount, arguments.data, arguments.json);
    }
    if let Some(mount) = mountinfo::mount_of_store(&arguments.store).or_code(CODE_FAILED)? {
        let at = mount.mountpoint.display();
        return Err(Failure::new(
            CODE_FAILED,
            format!("{shown} is mounted at {at}; first run: sumfs umount {at}, or check it in use: sumfs check {at}"),
        ));
    }
    let read_only = !arguments.repair || arguments.dry_run;
    let options = OpenOptions {
        read_only,
        wait_for_lock: Some(LOCK_TIMEOUT),
        allow_damage: true,
        degraded: arguments.degraded,
        ..OpenOptions::default()
    };
    let store = StoreDirectory::open_with(&arguments.store, options).or_code(CODE_FAILED)?;
    let bar = progress_bar("{bar:40} {percent}% {eta} left");
    if arguments.repair {
        let repaired = repair(store.disks(), arguments.dry_run, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        return Ok(tell_repair(&repaired.or_code(CODE_FAILED)?, &shown.to_string(), arguments));
    }
    let report = check(store.disks(), &CheckOptions { verify_data: arguments.data }, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let report = report.or_code(CODE_FAILED)?;
    let code = exit_code(&report);
    if arguments.json {
        println!("{}", as_json(&report, code));
    } else {
        print_report(&report, &shown.to_string(), code);
    }
    Ok(code)
}

/// Says what was wrong, each step, and what is left; the exit code.
fn tell_repair(repaired: &Repaired, store: &str, arguments: &Arguments) -> u8 {
    let left = repaired.after.issues.len() as u64 + repaired.after.issues_not_listed;
    let code = match (repaired.before.is_clean(), left == 0 && !arguments.dry_run) {
        (true, _) => exit_code(&repaired.before),
        (false, true) => CODE_HEALED,
        (false, false) => CODE_ERRORS_LEFT,
    };
    if arguments.json {
        let mut value = serde_json::to_value(repaired).unwrap_or_default();
        if let Some(object) = value.as_object_mut() {
            object.insert("exit_code".to_owned(), json!(code));
            object.insert("before".to_owned(), as_json(&repaired.before, exit_code(&repaired.before)));
            object.insert("after".to_owned(), as_json(&repaired.after, exit_code(&repaired.after)));
        }
        println!("{value}");
        return code;
    }
    repaired.before.issues.iter().for_each(|issue| println!("found: {issue}"));
    let doing = if arguments.dry_run { "would do" } else { "did" };
    repaired.steps.iter().for_each(|step| println!("{doing}: {}", step.message));
    repaired.after.issues.iter().for_each(|issue| println!("left: {issue}"));
    if repaired.after.lost_bytes > 0 {
        println!(
            "{store}: {} of files are lost and read as errors until they are written anew",
            show_bytes(repaired.after.lost_bytes)
        );
    }
    match (repaired.before.is_clean(), repaired.is_written, left) {
        (true, ..) => println!("{store}: clean, nothing to repair"),
        (_, true, 0) => println!("{store}: repaired in {} steps", repaired.steps.len()),
        (_, true, left) => println!("{store}: repaired in {} steps; {left} issues are left", repaired.steps.len()),
        (_, false, left) if repaired.steps.is_empty() => {
            println!("{store}: {left} issues, none of which can be repaired without guessing; nothing was changed");
        }
        (_, false, left) => println!("{store}: {} steps would leave {left} issues; nothing was changed", repaired.steps.len()),
    }
    code
}

/// Damaged copies that have a whole twin are no errors left: the next mount heals them.
pub(super) fn exit_code(report: &Report) -> u8 {
    match report.issues.iter().map(Issue::severity).max() {
        Some(Severity::Inconsistent | Severity::Damage) => CODE_ERRORS_LEFT,
        Some(Severity::Harmless) => CODE_HEALED,
        None if report.healed > 0 => CODE_HEALED,
        None => 0,
    }
}

/// The report's own fields, and for each issue the sentence that a person reads.
pub(super) fn as_json(report: &Report, code: u8) -> Value {
    let mut value = serde_json::to_value(report).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.insert("clean".to_owned(), json!(code == 0 || code == CODE_HEALED));
        object.insert("exit_code".to_owned(), json!(code));
        object.insert("messages".to_owned(), json!(report.issues.iter().map(ToString::to_string).collect::<Vec<_>>()));
    }
    value
}

fn print_report(report: &Report, store: &str, code: u8) {
    for issue in &report.issues {
        println!("{issue}");
    }
    if report.issues_not_listed > 0 {
        println!("and {} more", report.issues_not_listed);
    }
    let verified = match report.blocks_verified {
        0 => String::new(),
        blocks => format!(" ({} compared with checksums)", show_bytes(blocks * BLOCK_SIZE)),
    };
    println!(
        "{store}: {} files, {} directories, {} extents, {} of data{verified}",
        report.files,
        report.directories,
        report.extents,
        show_bytes(report.blocks_used * BLOCK_SIZE)
    );
    match code {
        0 => println!("{store}: clean"),
        CODE_HEALED => println!("{store}: clean, but some copies are damaged ({}); the next mount heals them", report.healed),
        _ => println!(
            "{store}: {} issues; nothing was changed (to see what can be repaired: --repair --dry-run)",
            report.issues.len() as u64 + report.issues_not_listed
        ),
    }
}
