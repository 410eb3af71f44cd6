//! What a person reads when a command fails: a line `sumfs: what is wrong` and below it a line `try: what to do`.
//!
//! Failures travel as one line of text, `what is wrong; what to do`: through the pipe from a daemon that could not mount, over the
//! control socket, into the log. The second half is found again here. A line without one (what the system says about a file, or
//! the daemon about its disks) gets the cure of its kind from [`CURES`], and the rest the help of its command.

use clap::CommandFactory;
use std::ffi::OsString;
use std::io::IsTerminal;

/// What the system's and our own words ask for. The first that fits counts.
const CURES: [(&str, &str); 14] = [
    ("ermission denied", "run it as root, or as the user who owns the store and mounted it"),
    ("peration not permitted", "run it as root, or as the user who owns the store and mounted it"),
    ("No such file or directory", "correct the path"),
    ("no such file or directory", "correct the path"),
    ("not a directory", "name a directory"),
    ("Not a directory", "correct the path"),
    ("No space left", "make room: delete something, or give the file system that holds the store more"),
    ("ead-only", "`sumfs info` says why it is read-only; mount -o remount,rw when that is over"),
    ("not connected", "take the dead mount away with: sumfs umount MNT; then mount again"),
    ("connection abort", "take the dead mount away with: sumfs umount MNT; then mount again"),
    ("oo many open files", "raise the limit with: ulimit -n 65536"),
    ("damaged: ", "sumfs check STORE, which tells what else is; an intact copy of the store, if there is one"),
    ("nput/output error", "look at what the kernel says (dmesg), then run: sumfs check --data STORE"),
    ("in use", "again, when what uses it has ended"),
];

/// Prints a failure to standard error. `arguments` are those of the program.
pub fn print(message: &str, arguments: &[OsString]) {
    let (wrong, cure) = parts(message);
    let cure = cure.map_or_else(|| general_cure(wrong, arguments), str::to_owned);
    let (bold, plain) = if stderr_has_colours() { ("\u{1b}[1m", "\u{1b}[0m") } else { ("", "") };
    eprintln!("{bold}sumfs:{plain} {wrong}\n{bold}try:{plain} {cure}");
}

/// Prints what clap says about arguments that it does not understand, or the help and version that were asked for. True: that is a
/// failure.
pub fn print_usage(error: &clap::Error, arguments: &[OsString]) -> bool {
    if !error.use_stderr() {
        // Nothing sensible is left to do when the terminal itself is gone.
        error.print().ok();
        return false;
    }
    let text = error.render();
    let text = if stderr_has_colours() { text.ansi().to_string() } else { text.to_string() };
    // Its last line names no command; ours does.
    let text = text.trim_end().rsplit_once("\n\nFor more information").map_or(text.trim_end(), |(before, _)| before);
    eprintln!("{text}\n\ntry: {}", help_of(arguments));
    true
}

/// May standard error be coloured?
pub fn stderr_has_colours() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// What is wrong, and what to do if the line says that.
fn parts(message: &str) -> (&str, Option<&str>) {
    let Some((wrong, cure)) = message.rsplit_once("; ") else { return (message, None) };
    let cure = ["first run: ", "run: ", "try "].iter().find_map(|opening| cure.strip_prefix(opening)).unwrap_or(cure);
    (wrong, Some(cure))
}

fn general_cure(wrong: &str, arguments: &[OsString]) -> String {
    let known = CURES.iter().find(|(words, _)| wrong.contains(words));
    known.map_or_else(|| help_of(arguments), |(_, cure)| (*cure).to_owned())
}

/// The call that prints the help of the command that the arguments name.
fn help_of(arguments: &[OsString]) -> String {
    let mut call = "sumfs".to_owned();
    let mut command = super::Cli::command();
    for word in arguments.iter().skip(1).filter_map(|word| word.to_str()) {
        let Some(inner) = command.find_subcommand(word).cloned() else { break };
        call.push(' ');
        call.push_str(inner.get_name());
        command = inner;
    }
    call + " --help"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_cure_is_the_last_part_of_the_line() {
        assert_eq!(parts("/s is mounted at /m; first run: sumfs umount /m"), ("/s is mounted at /m", Some("sumfs umount /m")));
        assert_eq!(parts("a; b; try again"), ("a; b", Some("again")));
        assert_eq!(parts("opening /s: Permission denied"), ("opening /s: Permission denied", None));
    }

    #[test]
    fn a_line_without_a_cure_gets_that_of_its_kind_or_the_help() {
        let map = arguments("sumfs map /file");
        assert!(general_cure("opening /s: Permission denied (os error 13)", &map).contains("as root"));
        assert!(general_cure("damaged: superblock", &map).contains("sumfs check"));
        assert_eq!(general_cure("something new", &map), "sumfs map --help");
    }

    #[test]
    fn the_help_is_that_of_the_innermost_command() {
        for (line, help) in [
            ("sumfs", "sumfs --help"),
            ("sumfs nonsense", "sumfs --help"),
            ("sumfs scrub", "sumfs scrub --help"),
            ("sumfs scrub start --wrong /m", "sumfs scrub start --help"),
            ("sumfs mkfs mount", "sumfs mkfs --help"),
        ] {
            assert_eq!(help_of(&arguments(line)), help);
        }
    }
}
