//! A store in a directory of its own, mounted with the built binary. Dropping it unmounts and runs `sumfs check --data`: whatever a test
//! did, the store must be clean afterwards. It needs root and /dev/fuse, and fails when they are missing: a test that did not run
//! must not look like one that passed.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The program under test.
pub const SUMFS: &str = env!("CARGO_BIN_EXE_sumfs");
/// A command that takes longer hangs.
const COMMAND_SECONDS_MAX: &str = "300";

/// How long a mount may be busy although the test has closed everything.
const BUSY_PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// What a command did.
#[derive(Debug)]
pub struct Ran {
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Ran {
    /// Panics unless the command succeeded.
    pub fn expect_success(self) -> Ran {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    /// Panics unless it failed with `code` and two lines on stderr, what is wrong and what to do, that contain all of `parts`.
    pub fn expect_failure(self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        let lines: Vec<&str> = self.stderr.lines().collect();
        let is_complaint = |lines: &[&str]| lines[0].starts_with("sumfs: ") && lines[1].starts_with("try: ");
        assert!(lines.len() == 2 && is_complaint(&lines), "what is wrong and what to do: {self:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "no \"{part}\" in {self:?}");
        }
    }
}

/// Runs a program to its end, also of its output: a daemon that kept our pipe would be found here.
pub fn run<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Ran {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", COMMAND_SECONDS_MAX, program]).args(arguments).env_remove("RUST_LOG");
    let output = command.output().unwrap_or_else(|error| panic!("running {program}: {error}"));
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let ran = Ran { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) };
    assert!(![124, 137].contains(&ran.code), "{program} hung: {ran:?}");
    ran
}

/// The transport for mounts that do not choose one: what SUMFS_TRANSPORT says, or half of the tests, chosen by their names, take
/// their requests out of /dev/fuse and the others over io_uring if that is possible. So both are proven by every run.
fn transport() -> String {
    let by_name = || {
        let name = std::thread::current().name().map_or(0, |name| name.bytes().map(usize::from).sum::<usize>());
        if name.is_multiple_of(2) { "auto" } else { "device" }.to_owned()
    };
    std::env::var("SUMFS_TRANSPORT").unwrap_or_else(|_| by_name())
}

/// Modules whose tests reach into the file in which redb keeps the index, or count the bytes that it takes on the host.
const WITH_REDB: [&str; 5] = ["damage", "no_space", "full", "io_errors", "scale"];

/// The index engine for stores that do not choose one: what SUMFS_TEST_INDEX says, or redb.
pub fn index_engine() -> String {
    let thread = std::thread::current();
    let module = thread.name().and_then(|name| name.split("::").next()).unwrap_or_default();
    let wanted = std::env::var("SUMFS_TEST_INDEX").ok().filter(|_| !WITH_REDB.contains(&module));
    wanted.unwrap_or_else(|| "redb".to_owned())
}

/// Runs sumfs.
pub fn sumfs<S: AsRef<OsStr>>(arguments: &[S]) -> Ran {
    run(SUMFS, arguments)
}

/// Panics with what is missing for tests that mount.
pub fn require_root_and_fuse() {
    assert!(rustix::process::geteuid().is_root(), "the mounted tests need root: run `sudo make mounted`");
    let fuse = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    assert!(
        fuse.is_ok(),
        "the mounted tests need /dev/fuse (modprobe fuse; in a container: --device /dev/fuse --privileged): {fuse:?}"
    );
}

/// A directory that other users may enter too; removed when dropped.
pub fn scratch() -> TempDir {
    let directory = tempfile::Builder::new().prefix("sumfs-test-").tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

/// The mounted store.
#[derive(Debug)]
pub struct Mount {
    // Order of fields is order of dropping; the directory goes last, after our own drop has unmounted.
    options: String,
    mounted: bool,
    directory: TempDir,
}

impl Mount {
    /// Makes a store of 1 GiB and mounts it with these `-o` options.
    pub fn new(options: &str) -> Mount {
        Mount::with_size("1G", options)
    }

    /// Makes a store of `size` and mounts it.
    pub fn with_size(size: &str, options: &str) -> Mount {
        Mount::made_with(&["--size", size], options)
    }

    /// Makes a store with these arguments of mkfs and mounts it.
    pub fn made_with(arguments: &[&str], options: &str) -> Mount {
        require_root_and_fuse();
        let mut mount = Mount { options: options.to_owned(), mounted: false, directory: scratch() };
        std::fs::create_dir(mount.path()).unwrap();
        let store = mount.store();
        let mut mkfs = vec![OsStr::new("mkfs"), store.as_os_str()];
        mkfs.extend(arguments.iter().map(OsStr::new));
        let engine = index_engine();
        if !arguments.contains(&"--index") {
            mkfs.extend([OsStr::new("--index"), OsStr::new(&engine)]);
        }
        sumfs(&mkfs).expect_success();
        mount.mount();
        mount
    }

    /// The mount point.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    /// The store.
    pub fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    /// A path beside store and mount point, on the host.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Changes the options of later mounts.
    pub fn set_options(&mut self, options: &str) {
        options.clone_into(&mut self.options);
    }

    /// Mounts; the store is not mounted.
    pub fn mount(&mut self) {
        let paths = [self.store(), self.path(), "--log".into(), self.beside("log")];
        let mut arguments = vec![OsStr::new("mount").to_owned()];
        arguments.extend(paths.map(PathBuf::into_os_string));
        if !self.options.contains("transport=") {
            arguments.extend(["-o".into(), format!("transport={}", transport()).into()]);
        }
        if !self.options.is_empty() {
            arguments.extend(["-o".into(), self.options.clone().into()]);
        }
        sumfs(&arguments).expect_success();
        self.mounted = true;
    }

    /// Unmounts and waits for the daemon.
    pub fn umount(&mut self) {
        let mountpoint = self.path();
        let begin = std::time::Instant::now();
        loop {
            let ran = sumfs(&[OsStr::new("umount"), mountpoint.as_os_str()]);
            // A process that another test's thread starts at this moment holds our files until it runs its program.
            if !ran.stderr.contains(" is busy") || begin.elapsed() > BUSY_PATIENCE {
                ran.expect_success();
                break;
            }
        }
        self.mounted = false;
    }

    /// Unmounts and mounts again: nothing comes from a cache any more.
    pub fn remount(&mut self) {
        self.umount();
        self.mount();
    }

    /// What `sumfs info --json` says.
    pub fn info(&self) -> serde_json::Value {
        let mountpoint = self.path();
        let ran = sumfs(&[OsStr::new("info"), mountpoint.as_os_str(), OsStr::new("--json")]).expect_success();
        serde_json::from_str(&ran.stdout).unwrap()
    }

    /// Ends the daemon as a crash would, and takes the dead mount away. Nothing is written any more.
    pub fn kill(&mut self) {
        let pid = self.info().get("pid").and_then(serde_json::Value::as_i64).expect("info names the daemon");
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        self.bury();
    }

    /// Takes a mount away whose daemon was killed.
    pub fn bury(&mut self) {
        // Not `sumfs umount`: that would rightly say that the store was not closed. The next mount waits for the store's lock.
        rustix::mount::unmount(self.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
        self.mounted = false;
    }

    /// The offline check of every block; the store is not mounted.
    pub fn check(&self) -> Ran {
        check(&self.store())
    }
}

/// `sumfs check --data`.
pub fn check(store: &Path) -> Ran {
    sumfs(&[OsStr::new("check"), store.as_os_str(), OsStr::new("--data")])
}

impl Drop for Mount {
    fn drop(&mut self) {
        let mountpoint = self.path();
        if std::thread::panicking() {
            // The test has failed already; leave nothing mounted, say what the daemon said.
            eprintln!("the daemon's log:\n{}", std::fs::read_to_string(self.beside("log")).unwrap_or_default());
            if self.mounted {
                rustix::mount::unmount(&mountpoint, rustix::mount::UnmountFlags::DETACH).ok();
            }
            return;
        }
        if self.mounted {
            self.umount();
        }
        self.check().expect_success();
    }
}
