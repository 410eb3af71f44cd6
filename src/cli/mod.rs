//! The command line. One file per command (`info` and `stats` share one, `umount` and `sync`, `scrub` and `damage` too, and all
//! that writes something out for other programs); beside them
//! [`invocation`] (the forms in which mount(8) and fstab call us), [`options`] (the `-o` list), [`mountinfo`] (what is
//! mounted where) and [`logging`].
//!
//! Every failure is a line on stderr, `sumfs: what is wrong`, another with `try: what to do` (`complaint.rs`), and an exit code:
//!
//! | command | codes |
//! |---|---|
//! | mount | 0 usable, 1 wrong usage or option, 32 the mount failed (mount(8)) |
//! | check | 0 clean, 1 something was healed or repaired, 4 errors left, 8 could not check, 16 wrong usage (fsck(8)) |
//! | scrub, damage list | 0 clean, 1 all damage was repaired, 4 damage left, 8 could not scrub, 16 wrong usage |
//! | read | 0 all matched, 1 failed, 2 wrong usage, 4 some of it matches no checksum |
//! | the others | 0 done, 1 failed, 2 wrong usage |

pub mod check;
mod check_online;
mod complaint;
mod convert;
pub mod daemon;
pub mod device;
mod fields;
mod generate;
mod index;
pub mod info;
pub mod invocation;
pub mod logging;
mod map;
pub mod metrics;
pub mod mkfs;
pub mod mount;
pub mod mountinfo;
pub mod options;
mod read;
mod scrub;
mod top;
pub mod umount;

use crate::error::Error;
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Why a command ends without success: its exit code and the line for the person (empty: all has been said).
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// One line, `what is wrong; what to do`, without the leading `sumfs: `.
    pub message: String,
}

impl Failure {
    /// A failure with this exit code and line.
    pub fn new(code: u8, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(1, error.to_string())
    }
}

/// What a command returns: its exit code, or why it failed.
pub type Outcome = Result<u8, Failure>;

/// How long to wait for the lock of a store, which a daemon may still be closing.
const LOCK_TIMEOUT: Duration = Duration::from_secs(120);

/// Between looks at work that is waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// For commands that ask the daemon of a mount, or look into a store themselves.
#[derive(Debug, clap::Args)]
struct TargetArguments {
    /// A mount point, or a store that is not mounted.
    #[arg(value_name = "MNT|STORE")]
    target: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Hidden by itself when stderr is no terminal.
fn progress_bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template(template);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// Shows, on a terminal, that something is waited for; gone when dropped.
fn waiting(what: String) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_finish(ProgressFinish::AndClear).with_message(what);
    let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})");
    spinner.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    spinner.enable_steady_tick(Duration::from_millis(200));
    spinner
}

/// Gives errors the exit code of the command that met them.
pub trait WithCode<T> {
    /// The error's text with `code`.
    fn or_code(self, code: u8) -> Result<T, Failure>;
}

impl<T> WithCode<T> for crate::error::Result<T> {
    fn or_code(self, code: u8) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(code, error.to_string()))
    }
}

#[derive(Debug, Parser)]
#[command(name = "sumfs", version, about = "A checksummed, copy-on-write file system in user space.", max_term_width = 110)]
#[command(after_help = "Also: sumfs STORE MNT [-o OPTIONS], the form in which mount(8) calls /sbin/mount.fuse.sumfs.\n\
    In /etc/fstab: STORE MNT fuse.sumfs OPTIONS 0 0")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a store: the directory that holds a file system.
    Mkfs(mkfs::Arguments),
    /// Mount a store; returns when the mount is usable.
    Mount(mount::Arguments),
    /// Unmount, and wait until everything is durable and the daemon is gone.
    Umount(umount::Arguments),
    /// Make everything written to a mount durable.
    Sync(umount::SyncArguments),
    /// Show what a store or mount is: size, use, devices, features.
    Info(info::Arguments),
    /// Show the counters of a mount.
    Stats(info::StatsArguments),
    /// Watch what a mount does, or print one look at it.
    Top(top::Arguments),
    /// Show where the data of a file lies, and in how many extents.
    Map(map::Arguments),
    /// Check a store that is not mounted. Exit codes as in fsck(8).
    Check(check::Arguments),
    /// Compare everything with its checksums, mounted or not, and repair what has a good copy.
    Scrub(scrub::Arguments),
    /// Show or forget what is known to be damaged.
    Damage(scrub::DamageArguments),
    /// Show and change what a store lies on.
    Device(device::Arguments),
    /// Work on the index of a store that is not mounted: make it anew, or have another engine keep it.
    Index(index::Arguments),
    /// Write a damaged file to standard output, as well as it can be had.
    Read(read::Arguments),
    /// Print what a shell needs to complete these command lines.
    Completions(generate::CompletionArguments),
    /// Write the manual pages.
    Man(generate::ManArguments),
    /// Write units for systemd: a monthly scrub, and examples of a mount and an automount.
    SystemdUnits(generate::UnitArguments),
}

/// The whole program: parses the arguments, runs the command, prints its failure, returns its exit code.
pub fn main() -> ExitCode {
    let arguments = invocation::normalize(std::env::args_os().collect());
    let usage_code = usage_code(arguments.get(1).map(OsString::as_os_str));
    let outcome = match Cli::try_parse_from(&arguments) {
        Ok(cli) => run(cli.command),
        Err(error) if complaint::print_usage(&error, &arguments) => Ok(usage_code),
        Err(_) => Ok(0),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if !failure.message.is_empty() {
                complaint::print(&failure.message, &arguments);
            }
            ExitCode::from(failure.code)
        }
    }
}

fn run(command: Command) -> Outcome {
    // The daemon chooses its own place for the log.
    if !matches!(command, Command::Mount(_)) {
        logging::to_stderr();
        crate::sys::end_when_output_closes();
    }
    match command {
        Command::Mkfs(arguments) => mkfs::run(&arguments),
        Command::Mount(arguments) => mount::run(&arguments),
        Command::Umount(arguments) => umount::run(&arguments),
        Command::Sync(arguments) => umount::sync(&arguments),
        Command::Info(arguments) => info::run(&arguments),
        Command::Stats(arguments) => info::stats(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Map(arguments) => map::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Scrub(arguments) => scrub::run(&arguments),
        Command::Damage(arguments) => scrub::damage(&arguments),
        Command::Device(arguments) => device::run(&arguments),
        Command::Index(arguments) => index::run(&arguments),
        Command::Read(arguments) => read::run(&arguments),
        Command::Completions(arguments) => generate::completions(&arguments),
        Command::Man(arguments) => generate::manual(&arguments),
        Command::SystemdUnits(arguments) => generate::units(&arguments),
    }
}

/// mount(8) and fsck(8) each say what wrong usage is called.
fn usage_code(command: Option<&OsStr>) -> u8 {
    match command.and_then(OsStr::to_str) {
        Some("mount") => 1,
        Some("check" | "scrub" | "damage") => 16,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_command_is_taken_for_a_store() {
        for command in Cli::command().get_subcommands() {
            assert!(invocation::COMMANDS.contains(&command.get_name()), "{}", command.get_name());
        }
    }

    #[test]
    fn wrong_usage_has_the_code_of_the_neighbours() {
        assert_eq!(usage_code(Some(OsStr::new("mount"))), 1);
        assert_eq!(usage_code(Some(OsStr::new("check"))), 16);
        assert_eq!(usage_code(Some(OsStr::new("scrub"))), 16);
        assert_eq!(usage_code(Some(OsStr::new("mkfs"))), 2);
        assert_eq!(usage_code(None), 2);
    }
}
