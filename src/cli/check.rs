//! `sumfs check`: the offline check as fsck(8) is called. The walk is [`crate::verify::check`].

use super::info::show_bytes;
use super::{Failure, LOCK_TIMEOUT, Outcome, WithCode, fields, mountinfo, progress_bar};
use crate::store::{OpenOptions, StoreDirectory};
use crate::units::BLOCK_SIZE;
use crate::verify::check::{CheckOptions, Report, check};
use crate::verify::issue::{Issue, Severity};
use serde_json::{Value, json};
use std::path::PathBuf;

const CODE_HEALED: u8 = 1;
const CODE_ERRORS_LEFT: u8 = 4;
const CODE_FAILED: u8 = 8;

/// Arguments of `sumfs check`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = fields::CHECK)]
pub struct Arguments {
    /// The store; not mounted.
    store: PathBuf,
    /// Also read every block and compare it with its checksum.
    #[arg(long)]
    data: bool,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// Checks, prints what it found, and says so in the exit code.
pub fn run(arguments: &Arguments) -> Outcome {
    let shown = arguments.store.display();
    if let Some(mount) = mountinfo::mount_of_store(&arguments.store).or_code(CODE_FAILED)? {
        let at = mount.mountpoint.display();
        return Err(Failure::new(CODE_FAILED, format!("{shown} is mounted at {at}; first run: sumfs umount {at}")));
    }
    let options =
        OpenOptions { read_only: true, wait_for_lock: Some(LOCK_TIMEOUT), allow_damage: true, ..OpenOptions::default() };
    let store = StoreDirectory::open_with(&arguments.store, options).or_code(CODE_FAILED)?;
    let bar = progress_bar("{bar:40} {percent}% {eta} left");
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

/// Damaged copies that have a whole twin are no errors left: the next mount heals them.
fn exit_code(report: &Report) -> u8 {
    match report.issues.iter().map(Issue::severity).max() {
        Some(Severity::Inconsistent | Severity::Damage) => CODE_ERRORS_LEFT,
        Some(Severity::Harmless) => CODE_HEALED,
        None if report.healed > 0 => CODE_HEALED,
        None => 0,
    }
}

/// The report's own fields, and for each issue the sentence that a person reads.
fn as_json(report: &Report, code: u8) -> Value {
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
        _ => println!("{store}: {} issues; nothing was changed", report.issues.len() as u64 + report.issues_not_listed),
    }
}
