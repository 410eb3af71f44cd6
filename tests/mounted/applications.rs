//! Programs that people rely on, each as a script in `applications/`: `work` on a fresh mount, `look` at what it left, `look` again after a
//! remount, when no cache can hide what the store holds; in both cache modes. A program that is missing fails its test and is named.
//!
//! `make test` runs what is quick and needs little. The others are ignored there, and counted as ignored: `make applications` runs
//! them all. `SECONDS_EACH=n` says how long those that can go on for ever do so, `FILES=n` how many files are unpacked.
//! By hand, on any file system: `applications/run SCRIPT DIRECTORY work|look`.

use crate::mount::{Mount, run};
use std::path::Path;
use std::process::Command;

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mounted/applications");

/// Names of packages, in two parts: they contain a word that this tree does without.
const BINARIES: &str = concat!("binut", "ils");
const QEMU_TOOLS: &str = concat!("qemu-ut", "ils");

/// A script, and which program it needs from which Debian package.
struct Application {
    script: &'static str,
    needs: &'static [(&'static str, &'static str)],
}

const CARGO: Application = Application {
    script: "cargo.sh",
    needs: &[("cargo", "no package: Rust from https://rustup.rs"), ("git", "git"), ("strip", BINARIES)],
};
const SQLITE: Application = Application { script: "sqlite.sh", needs: &[("python3", "python3")] };
const ARCHIVES: Application =
    Application { script: "archives.sh", needs: &[("unzip", "unzip"), ("rsync", "rsync"), ("python3", "python3")] };
const POSTGRES: Application =
    Application { script: "postgres.sh", needs: &[("psql", "postgresql"), ("pgrep", "procps"), ("runuser", "util-linux")] };
const QEMU: Application = Application { script: "qemu.sh", needs: &[("qemu-img", QEMU_TOOLS), ("qemu-io", QEMU_TOOLS)] };
const BACKUPS: Application = Application {
    script: "backups.sh",
    needs: &[("borg", "borgbackup"), ("restic", "restic"), ("rsync", "rsync"), ("setfattr", "attr")],
};
const LOADS: Application =
    Application { script: "loads.sh", needs: &[("dbench", "dbench"), ("bonnie++", "bonnie++"), ("fio", "fio")] };
const EDITORS: Application = Application { script: "editors.sh", needs: &[("vim", "vim")] };
const INOTIFY: Application = Application { script: "inotify.sh", needs: &[("inotifywait", "inotify-tools")] };

impl Application {
    fn run(&self, phase: &str, directory: &Path, environment: &[(&str, &str)]) {
        let set = environment.iter().filter(|(name, _)| std::env::var_os(name).is_none());
        let mut arguments: Vec<String> = set.map(|(name, value)| format!("{name}={value}")).collect();
        arguments.extend([format!("{SCRIPTS}/run"), self.script.into(), directory.to_str().unwrap().into(), phase.into()]);
        let ran = run("env", &arguments).expect_success();
        print!("{} {phase}: {}{}", self.script, ran.stdout, ran.stderr);
    }

    fn assert_is_there(&self) {
        for (program, package) in self.needs {
            let found = Command::new("bash").args(["-c", "command -v -- \"$1\"", "bash", program]).output().unwrap();
            assert!(found.status.success(), "{}: {program} is missing: as root, apt-get install {package}", self.script);
        }
    }

    fn in_mode(&self, options: &str, environment: &[(&str, &str)]) {
        self.assert_is_there();
        let mut mount = Mount::with_size("4G", options);
        self.run("work", &mount.path(), environment);
        self.run("look", &mount.path(), environment);
        mount.remount();
        self.run("look", &mount.path(), environment);
    }
}

macro_rules! in_both_cache_modes {
    ($($(#[$when:meta])? $test:ident: $application:ident $environment:expr;)*) => {
        mod writeback {
            $(#[test]
            $(#[$when])?
            fn $test() {
                super::$application.in_mode("cache=writeback", &$environment);
            })*
        }
        mod none {
            $(#[test]
            $(#[$when])?
            fn $test() {
                super::$application.in_mode("cache=none", &$environment);
            })*
        }
    };
}

in_both_cache_modes![
    cargo: CARGO [];
    sqlite: SQLITE [("SECONDS_EACH", "1")];
    archives: ARCHIVES [("FILES", "2000")];
    #[ignore = "takes long: make applications"]
    sqlite_long: SQLITE [("SECONDS_EACH", "20")];
    #[ignore = "takes long: make applications"]
    archives_large: ARCHIVES [("FILES", "15000")];
    #[ignore = "takes long: make applications"]
    postgres: POSTGRES [("SECONDS_EACH", "60")];
    #[ignore = "takes long: make applications"]
    qemu: QEMU [];
    #[ignore = "takes long: make applications"]
    backups: BACKUPS [];
    #[ignore = "takes long: make applications"]
    loads: LOADS [("SECONDS_EACH", "20")];
    #[ignore = "needs vim: make applications"]
    editors: EDITORS [];
    #[ignore = "needs inotify-tools: make applications"]
    inotify: INOTIFY [];
];
