//! `sumfs scrub` and `sumfs damage`. A mounted store is asked through its control socket, where the daemon's own thread does the work;
//! any other is opened here, and scrubbed by this process until it is done.
//!
//! Exit codes as in fsck(8), like those of `check`: 0 clean, 1 damage was found and all of it repaired, 4 damage is left, 8 it could
//! not be scrubbed.

use super::info::show_bytes;
use super::umount::ask_daemon;
use super::{Failure, LOCK_TIMEOUT, LOOK_AGAIN, Outcome, TargetArguments, WithCode, fields, mountinfo, progress_bar};
use crate::control::{Command, ScrubAction};
use crate::error::Result;
use crate::fs::{Filesystem, Options};
use crate::store::{OpenOptions, StoreDirectory, parse_size};
use crate::sys::Mounted;
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const CODE_REPAIRED: u8 = 1;
const CODE_DAMAGE_LEFT: u8 = 4;
const CODE_FAILED: u8 = 8;
/// Ranges that are printed one by one, unless it is JSON.
const LISTED_MAX: usize = 200;

/// Arguments of `sumfs scrub`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Begin to read everything and compare it with its checksums, repairing what has a good copy.
    #[command(after_long_help = fields::SCRUB)]
    Start(StartArguments),
    /// Show how far it is, or what the last one found.
    #[command(after_long_help = fields::SCRUB)]
    Status(TargetArguments),
    /// Stop for now; survives unmounting.
    #[command(after_long_help = fields::SCRUB)]
    Pause(TargetArguments),
    /// Go on where it was, also with one that the end of a process broke off.
    #[command(after_long_help = fields::SCRUB)]
    Resume(StartArguments),
    /// Stop for good.
    #[command(after_long_help = fields::SCRUB)]
    Cancel(TargetArguments),
}

#[derive(Debug, clap::Args)]
struct StartArguments {
    /// A mount point, or a store that is not mounted.
    #[arg(value_name = "MNT|STORE")]
    target: PathBuf,
    /// Wait until it has ended, and say what it found. A store that is not mounted is always waited for.
    #[arg(long)]
    wait: bool,
    /// A store that is not mounted: go on without a device that is missing, if all data can be had without it.
    #[arg(long)]
    degraded: bool,
    /// Read at most so much a second, like 200M; 0 for no limit.
    #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
    limit: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `sumfs damage`.
#[derive(Debug, clap::Args)]
pub struct DamageArguments {
    #[command(subcommand)]
    action: DamageAction,
}

#[derive(Debug, clap::Subcommand)]
enum DamageAction {
    /// Show all damage that reads and scrubs have met and that still counts.
    #[command(after_long_help = fields::DAMAGE)]
    List(TargetArguments),
    /// Forget it; what is still there is found again.
    #[command(after_long_help = fields::DAMAGE)]
    Clear(TargetArguments),
}

fn parse_limit(text: &str) -> std::result::Result<u64, String> {
    if text == "0" {
        return Ok(0);
    }
    parse_size(text).map_err(|_| "not a size; write it like 200M".to_owned())
}

/// Who can be asked.
enum Target {
    Mounted(Mounted),
    /// Opened here; closed by [`Target::close`].
    Opened(std::sync::Arc<Filesystem>, Box<StoreDirectory>),
}

impl Target {
    fn find(path: &Path, read_only: bool, degraded: bool) -> std::result::Result<Target, Failure> {
        if let Some(mount) = mountinfo::mount_at_or_of(path).or_code(CODE_FAILED)? {
            return Ok(Target::Mounted(mount));
        }
        let options = OpenOptions { read_only, wait_for_lock: Some(LOCK_TIMEOUT), degraded, ..OpenOptions::default() };
        let store = StoreDirectory::open_with(path, options).or_code(CODE_FAILED)?;
        let options = Options { read_only, background: false, ..Options::default() };
        let filesystem = Filesystem::open(store.disks().clone(), options).or_code(CODE_FAILED)?;
        Ok(Target::Opened(filesystem, store.into()))
    }

    fn ask(&self, command: Command) -> std::result::Result<Value, Failure> {
        match self {
            Target::Mounted(mount) => ask_daemon(mount, command, CODE_FAILED),
            Target::Opened(filesystem, _) => answer(filesystem, command).or_code(CODE_FAILED),
        }
    }

    /// Works, or waits, until the scrub has ended.
    fn wait(&self, bar: &ProgressBar) -> std::result::Result<Value, Failure> {
        loop {
            match self {
                Target::Opened(filesystem, _) => {
                    // What ended it is in the status.
                    filesystem.scrub_step().ok();
                }
                Target::Mounted(_) => std::thread::sleep(LOOK_AGAIN),
            }
            let status = self.ask(Command::Scrub { action: ScrubAction::Status, limit: None })?;
            bar.set_length(status["bytes_total"].as_u64().unwrap_or(0));
            bar.set_position(status["bytes_done"].as_u64().unwrap_or(0));
            bar.set_message(progress(&status));
            if status["state"] != "running" {
                bar.finish_and_clear();
                return self.ask(Command::Scrub { action: ScrubAction::Report, limit: None });
            }
        }
    }

    fn close(self) -> std::result::Result<(), Failure> {
        match self {
            Target::Mounted(_) => Ok(()),
            Target::Opened(filesystem, _store) => filesystem.shutdown().or_code(CODE_FAILED),
        }
    }
}

/// What the daemon answers; the same for a store opened here.
pub fn answer(filesystem: &Filesystem, command: Command) -> Result<Value> {
    match command {
        Command::Scrub { action, limit } => {
            match action {
                ScrubAction::Start => filesystem.scrub_start(limit.unwrap_or(0))?,
                ScrubAction::Resume => filesystem.scrub_resume(limit)?,
                ScrubAction::Pause => filesystem.scrub_pause()?,
                ScrubAction::Cancel => filesystem.scrub_cancel()?,
                ScrubAction::Status | ScrubAction::Report => {}
            }
            filesystem.scrub_status(action == ScrubAction::Report)
        }
        Command::Damage { clear } => {
            if clear {
                filesystem.damage_clear()?;
            }
            filesystem.damage_list()
        }
        _ => Ok(Value::Null),
    }
}

/// `sumfs scrub`.
pub fn run(arguments: &Arguments) -> Outcome {
    match &arguments.action {
        Action::Start(start) => begin(start, ScrubAction::Start),
        Action::Resume(start) => begin(start, ScrubAction::Resume),
        Action::Status(target) => {
            let found = Target::find(&target.target, true, true)?;
            let mut report = found.ask(Command::Scrub { action: ScrubAction::Report, limit: None })?;
            if matches!(found, Target::Opened(..)) && report["state"] == "running" {
                // Nobody works on it: the next mount will, or `resume`.
                report["state"] = json!("interrupted");
            }
            found.close()?;
            show(&report, target.json);
            Ok(exit_code(&report))
        }
        Action::Pause(target) => change(target, ScrubAction::Pause),
        Action::Cancel(target) => change(target, ScrubAction::Cancel),
    }
}

fn begin(start: &StartArguments, action: ScrubAction) -> Outcome {
    let target = Target::find(&start.target, false, start.degraded)?;
    let begun = target.ask(Command::Scrub { action, limit: start.limit })?;
    if !start.wait && matches!(target, Target::Mounted(_)) {
        show(&begun, start.json);
        return Ok(0);
    }
    let report = target.wait(&progress_bar("{bar:30} {percent}% {msg}"))?;
    target.close()?;
    show(&report, start.json);
    Ok(exit_code(&report))
}

fn change(target: &TargetArguments, action: ScrubAction) -> Outcome {
    let found = Target::find(&target.target, false, false)?;
    let status = found.ask(Command::Scrub { action, limit: None })?;
    found.close()?;
    show(&status, target.json);
    Ok(0)
}

/// `sumfs damage`.
pub fn damage(arguments: &DamageArguments) -> Outcome {
    let (target, clear) = match &arguments.action {
        DamageAction::List(target) => (target, false),
        DamageAction::Clear(target) => (target, true),
    };
    let found = Target::find(&target.target, !clear, !clear)?;
    let damage = found.ask(Command::Damage { clear })?;
    found.close()?;
    if target.json {
        println!("{damage:#}");
    } else if !clear {
        let lines = damage_lines(&damage);
        println!("{}", if lines.is_empty() { "no damage is known".to_owned() } else { lines.join("\n") });
    }
    Ok(if !clear && has_damage_left(&damage) { CODE_DAMAGE_LEFT } else { 0 })
}

fn number(status: &Value, name: &str) -> u64 {
    status[name].as_u64().unwrap_or(0)
}

/// The phase, or for data the rate and the time that is left.
fn progress(status: &Value) -> String {
    let phase = status["phase"].as_str().unwrap_or("");
    let left = status["seconds_left"].as_u64();
    match left {
        Some(seconds) if phase == "data" => {
            let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
            let rate = show_bytes(number(status, "bytes_per_second"));
            format!("{rate}/s, {hours}:{minutes:02}:{seconds:02} left, {} bad", number(status, "bad_blocks"))
        }
        _ => phase.to_owned(),
    }
}

fn has_damage_left(damage: &Value) -> bool {
    let is_left = |range: &Value| range["repaired"] != true;
    damage["ranges"].as_array().is_some_and(|ranges| ranges.iter().any(is_left))
        || damage["values"].as_array().is_some_and(|values| !values.is_empty())
}

fn exit_code(report: &Value) -> u8 {
    let (bad, repaired) = (number(report, "bad_blocks"), number(report, "repaired_blocks"));
    match report["state"].as_str() {
        Some("failed") => CODE_DAMAGE_LEFT,
        _ if bad > repaired || number(report, "damaged_values") > 0 => CODE_DAMAGE_LEFT,
        _ if bad > 0 || number(report, "healed_copies") > 0 => CODE_REPAIRED,
        _ => 0,
    }
}

fn show(report: &Value, as_json: bool) {
    if as_json {
        let mut report = report.clone();
        let code = exit_code(&report);
        if let Some(object) = report.as_object_mut() {
            object.insert("exit_code".to_owned(), json!(code));
        }
        println!("{report:#}");
    } else {
        print!("{}", report_text(report));
    }
}

/// The report for a person.
fn report_text(report: &Value) -> String {
    let state = report["state"].as_str().unwrap_or("unknown");
    if state == "never" {
        return "scrub       never\n".to_owned();
    }
    let (done, total) = (number(report, "bytes_done"), number(report, "bytes_total"));
    let (bad, repaired) = (number(report, "bad_blocks"), number(report, "repaired_blocks"));
    let mut rows = vec![("scrub", format!("{state} (number {})", number(report, "number")))];
    if let Some(error) = report["error"].as_str() {
        rows.push(("error", error.to_owned()));
    }
    if state == "running" {
        rows.push(("now", progress(report)));
    }
    rows.push(("data", format!("{} of {} compared", show_bytes(done), show_bytes(total))));
    rows.push(("metadata", format!("{} values compared", number(report, "values_done"))));
    rows.push(("worked", format!("{:.1} s", report["seconds_worked"].as_f64().unwrap_or(0.0))));
    if number(report, "healed_copies") > 0 {
        rows.push(("healed", format!("{} copies of index pages, superblock, labels", number(report, "healed_copies"))));
    }
    let verdict = match exit_code(report) {
        0 => "none found".to_owned(),
        CODE_REPAIRED => format!("{bad} copies of blocks, all repaired"),
        _ => {
            let values = number(report, "damaged_values");
            let left = bad.saturating_sub(repaired);
            format!("{bad} copies of blocks, {repaired} repaired, {left} left; {values} metadata values")
        }
    };
    rows.push(("damage", verdict));
    let mut text: String = rows.into_iter().map(|(name, value)| format!("{name:<11} {value}\n")).collect();
    for line in damage_lines(&report["damage"]) {
        text.push_str(&format!("  {line}\n"));
    }
    text
}

fn damage_lines(damage: &Value) -> Vec<String> {
    let ranges = damage["ranges"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut lines: Vec<String> = ranges.iter().take(LISTED_MAX).map(range_line).collect();
    if ranges.len() > LISTED_MAX {
        lines.push(format!("and {} more (--json lists all)", ranges.len() - LISTED_MAX));
    }
    let values = damage["values"].as_array().into_iter().flatten();
    lines.extend(values.filter_map(Value::as_str).map(|what| format!("the metadata of {what}: NOT repaired")));
    lines
}

fn range_line(range: &Value) -> String {
    let file = &range["file"];
    let named = match (file["path"].as_str(), file["inode"].as_u64()) {
        (Some(path), _) => path.to_owned(),
        (None, Some(inode)) => format!("inode {inode}"),
        (None, None) => "no file".to_owned(),
    };
    let (offset, length) = (number(range, "offset"), number(range, "length"));
    let what = if range["unreadable"] == true { "unreadable" } else { "wrong checksum" };
    let outcome = if range["repaired"] == true { "repaired" } else { "NOT repaired" };
    let (device, at, address) = (number(range, "device"), number(range, "device_offset"), number(range, "address"));
    format!("{named}: bytes {offset}-{}: {outcome}: {what} (device {device}, byte {at}, block {address})", offset + length - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(bad: u64, repaired: u64) -> Value {
        json!({ "state": "finished", "number": 2, "bytes_done": 8192, "bytes_total": 8192, "bad_blocks": bad, "repaired_blocks": repaired })
    }

    #[test]
    fn exit_codes_say_what_is_left() {
        assert_eq!(exit_code(&report(0, 0)), 0);
        assert_eq!(exit_code(&report(2, 2)), 1);
        assert_eq!(exit_code(&report(2, 1)), 4);
        let mut healed = report(0, 0);
        healed["healed_copies"] = json!(1);
        assert_eq!(exit_code(&healed), 1);
        healed["damaged_values"] = json!(1);
        assert_eq!(exit_code(&healed), 4);
    }

    #[test]
    fn the_report_names_files_ranges_and_places() {
        let mut report = report(2, 1);
        let range = |repaired: bool| {
            json!({ "file": { "inode": 5, "path": "/a/b" }, "offset": 4096, "length": 8192, "copy": 0, "address": 7, "device": 1,
                "device_offset": 12288, "unreadable": false, "repaired": repaired })
        };
        report["damage"] = json!({ "ranges": [range(true), range(false)], "values": ["inode 9 (its attributes)"] });
        let text = report_text(&report);
        for part in [
            "finished (number 2)",
            "8.0 KiB of 8.0 KiB compared",
            "2 copies of blocks, 1 repaired, 1 left",
            "/a/b: bytes 4096-12287: repaired: wrong checksum (device 1, byte 12288, block 7)",
            "bytes 4096-12287: NOT repaired",
            "inode 9",
        ] {
            assert!(text.contains(part), "no \"{part}\" in\n{text}");
        }
        assert_eq!(report_text(&json!({ "state": "never" })), "scrub       never\n");
    }

    #[test]
    fn progress_has_rate_and_time_left() {
        let status = json!({ "phase": "data", "seconds_left": 3725, "bytes_per_second": 2 << 20, "bad_blocks": 3 });
        assert_eq!(progress(&status), "2.0 MiB/s, 1:02:05 left, 3 bad");
        assert_eq!(progress(&json!({ "phase": "index" })), "index");
    }
}
