//! The forms in which others call us, turned into `sumfs mount ...`.
//!
//! - As `mount.fuse.sumfs` or `mount.sumfs` (a link in /sbin) mount(8) calls `HELPER STORE MNT [-sfnv] [-N NS]
//!   [-o OPTIONS] [-t TYPE]`; there `-f` means "only pretend", not "stay in front".
//! - `sumfs STORE MNT [-o OPTIONS] [-f]` is what the FUSE world is used to; `-f` stays in front.
//!
//! A store called like a command is reached as `./check`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What is no store in the bare form.
pub(super) const COMMANDS: [&str; 18] = [
    "mkfs",
    "mount",
    "umount",
    "sync",
    "info",
    "stats",
    "top",
    "map",
    "check",
    "scrub",
    "damage",
    "device",
    "index",
    "read",
    "completions",
    "man",
    "systemd-units",
    "help",
];

/// Rewrites the arguments (the first is the name we were called by) so that clap sees a command.
pub fn normalize(arguments: Vec<OsString>) -> Vec<OsString> {
    let called = arguments.first().map(|name| Path::new(name).file_name().unwrap_or_default().to_owned()).unwrap_or_default();
    if called == "mount.fuse.sumfs" || called == "mount.sumfs" {
        return from_mount_helper(&arguments);
    }
    let Some(first) = arguments.get(1) else { return arguments };
    let bare_form = match first.as_bytes() {
        bytes if bytes.starts_with(b"-o") => true,
        bytes if bytes.starts_with(b"-") => false,
        _ => arguments.len() > 2 && !COMMANDS.iter().any(|command| first == OsStr::new(command)),
    };
    if !bare_form {
        return arguments;
    }
    let mut rewritten = vec![OsString::from("sumfs"), OsString::from("mount")];
    rewritten.extend(arguments.into_iter().skip(1));
    rewritten
}

/// `-f` becomes `--fake`; everything else means the same in both worlds.
fn from_mount_helper(arguments: &[OsString]) -> Vec<OsString> {
    let mut rewritten = vec![OsString::from("sumfs"), OsString::from("mount")];
    let mut value_follows = false;
    for argument in arguments.iter().skip(1) {
        let bytes = argument.as_bytes();
        if value_follows || bytes.len() < 2 || bytes.first() != Some(&b'-') || bytes.starts_with(b"--") {
            value_follows = false;
            rewritten.push(argument.clone());
            continue;
        }
        let flags = bytes.get(1..).unwrap_or_default();
        // In a cluster such as `-nf` a flag that takes a value ends the cluster.
        let (switches, valued) = flags.split_at(flags.iter().position(|flag| b"oNt".contains(flag)).unwrap_or(flags.len()));
        for switch in switches {
            rewritten.push(if *switch == b'f' {
                OsString::from("--fake")
            } else {
                OsString::from(format!("-{}", char::from(*switch)))
            });
        }
        if !valued.is_empty() {
            value_follows = valued.len() == 1;
            let mut option = OsString::from("-");
            option.push(OsStr::from_bytes(valued));
            rewritten.push(option);
        }
    }
    rewritten
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalized(line: &str) -> String {
        let words = normalize(line.split(' ').map(OsString::from).collect());
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn commands_stay_as_they_are() {
        for line in
            ["sumfs", "sumfs --help", "sumfs mkfs /s --size 1G", "sumfs mount /s /m -f", "sumfs umount /m", "sumfs nonsense"]
        {
            assert_eq!(normalized(line), line);
        }
    }

    #[test]
    fn the_bare_form_becomes_mount() {
        assert_eq!(normalized("/usr/bin/sumfs /s /m -o ro"), "sumfs mount /s /m -o ro");
        assert_eq!(normalized("sumfs -o ro /s /m"), "sumfs mount -o ro /s /m");
        assert_eq!(normalized("sumfs /s /m -f"), "sumfs mount /s /m -f");
    }

    #[test]
    fn as_a_mount_helper_f_means_fake() {
        assert_eq!(normalized("/sbin/mount.fuse.sumfs /s /m -o rw,noatime"), "sumfs mount /s /m -o rw,noatime");
        assert_eq!(normalized("mount.sumfs /s /m -f -n -v -s"), "sumfs mount /s /m --fake -n -v -s");
        assert_eq!(normalized("mount.fuse.sumfs -nf /s /m -orw -t fuse.sumfs"), "sumfs mount -n --fake /s /m -orw -t fuse.sumfs");
        assert_eq!(normalized("mount.fuse.sumfs /s /m -o -f"), "sumfs mount /s /m -o -f");
    }
}
