//! What is made for other programs and `make install` puts in place: completions for shells, manual pages and units for systemd.

use super::{Cli, Failure, Outcome};
use clap::CommandFactory;
use clap_complete::Shell;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Where a unit names the program.
const PROGRAM: &str = "@SUMFS@";

const UNITS: [(&str, &str); 4] = [
    ("sumfs-scrub@.service", include_str!("units/sumfs-scrub@.service")),
    ("sumfs-scrub@.timer", include_str!("units/sumfs-scrub@.timer")),
    ("mnt-sumfs.mount", include_str!("units/mnt-sumfs.mount")),
    ("mnt-sumfs.automount", include_str!("units/mnt-sumfs.automount")),
];

/// Arguments of `sumfs completions`.
#[derive(Debug, clap::Args)]
pub struct CompletionArguments {
    /// The shell.
    shell: Shell,
}

/// Arguments of `sumfs man`.
#[derive(Debug, clap::Args)]
pub struct ManArguments {
    /// Where the pages go, one for each command.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

/// Arguments of `sumfs systemd-units`.
#[derive(Debug, clap::Args)]
pub struct UnitArguments {
    /// Where the units go: a timer for scrubs, and an example of a mount and an automount.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The program that they call; this one if not said.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
}

fn failed<'a>(what: &'a str, path: &'a Path) -> impl Fn(std::io::Error) -> Failure + use<'a> {
    move |error| Failure::new(1, format!("{what} {}: {error}; name a directory that can be written to", path.display()))
}

/// Prints what a shell needs to complete our command lines.
pub fn completions(arguments: &CompletionArguments) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "sumfs", &mut script);
    let printed = std::io::stdout().write_all(&script);
    printed.map_err(|error| Failure::new(1, format!("printing the completions: {error}; is there room?")))?;
    Ok(0)
}

/// Writes the manual: a page for the program and one for each command.
pub fn manual(arguments: &ManArguments) -> Outcome {
    let dir = &arguments.dir;
    std::fs::create_dir_all(dir).map_err(failed("making the directory", dir))?;
    clap_mangen::generate_to(Cli::command(), dir).map_err(failed("writing the manual to", dir))?;
    Ok(0)
}

/// Writes the units.
pub fn units(arguments: &UnitArguments) -> Outcome {
    let dir = &arguments.dir;
    let program = match &arguments.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().map_err(failed("finding the program for the units in", dir))?,
    };
    std::fs::create_dir_all(dir).map_err(failed("making the directory", dir))?;
    for (name, text) in UNITS {
        let path = dir.join(name);
        let text = text.replace(PROGRAM, &program.to_string_lossy());
        std::fs::write(&path, text).map_err(failed("writing", &path))?;
    }
    Ok(0)
}
