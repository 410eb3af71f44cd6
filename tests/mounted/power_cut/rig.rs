//! The machine whose power is cut: a store on ext4, on a loop device, on the recording file. What the file shows can be replaced
//! while nothing is attached, so the same rig runs the workload and looks at what each power cut left.
//!
//! Whatever fails on the way, `detach` leaves nothing mounted or attached.

use crate::mount::{run, scratch, sumfs};
use crate::recording_file::RecordingFile;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const IMAGE_BYTES: u64 = 768 << 20;
/// Small, so that the journal is half full soon, which makes a checkpoint, and freed blocks are soon used again.
const STORE_BYTES: &str = "32M";
/// How long a mount may be busy although the test has closed everything: a process that another test's thread starts holds our
/// files until it runs its program.
const BUSY_PATIENCE: Duration = Duration::from_secs(10);

pub type Outcome<T = ()> = Result<T, String>;

/// Runs a program; an error is what it said.
fn try_run(program: &str, arguments: &[&str]) -> Outcome<String> {
    let ran = run(program, arguments);
    if ran.code == 0 { Ok(ran.stdout) } else { Err(format!("{program} {}: {}: {}", arguments.join(" "), ran.code, ran.stderr)) }
}

/// The same, again while something is busy.
fn try_while_busy(program: &str, arguments: &[&str]) -> Outcome {
    let begin = Instant::now();
    loop {
        match try_run(program, arguments) {
            Err(error) if error.contains("busy") && begin.elapsed() < BUSY_PATIENCE => {}
            result => return result.map(|_| ()),
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary directories have names in UTF-8")
}

/// The machine.
pub struct Rig {
    options: String,
    loop_device: Option<String>,
    is_host_mounted: bool,
    is_mounted: bool,
    // Order of fields is order of dropping: the file is unmounted before the directory goes.
    pub file: RecordingFile,
    directory: TempDir,
}

impl Rig {
    /// An ext4 without anything in it, attached. `options` are those of later mounts of the store.
    pub fn new(options: &str) -> Rig {
        crate::mount::require_root_and_fuse();
        let directory = scratch();
        for name in ["file", "host", "mnt"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        let file = RecordingFile::mount(&directory.path().join("file"), IMAGE_BYTES);
        let mut rig =
            Rig { options: options.to_owned(), loop_device: None, is_host_mounted: false, is_mounted: false, file, directory };
        let device = rig.attach_loop_device().unwrap();
        // The tables at once: a mount need not go on formatting in the background.
        let format = ["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", &device];
        try_run("mkfs.ext4", &format).unwrap();
        rig.mount_host().unwrap();
        rig
    }

    fn host(&self) -> PathBuf {
        self.directory.path().join("host")
    }

    /// The store on ext4.
    pub fn store(&self) -> PathBuf {
        self.host().join("store")
    }

    /// Where the store is mounted.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    /// What the daemon said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Makes the store.
    pub fn format_store(&self) {
        let index = crate::mount::index_engine();
        sumfs(&["mkfs", text(&self.store()), "--size", STORE_BYTES, "--index", &index]).expect_success();
    }

    fn attach_loop_device(&mut self) -> Outcome<String> {
        let device = try_run("losetup", &["--find", "--show", "--direct-io=on", text(&self.file.path())])?.trim().to_owned();
        self.loop_device = Some(device.clone());
        Ok(device)
    }

    fn mount_host(&mut self) -> Outcome {
        let device = self.loop_device.clone().ok_or("no loop device")?;
        try_run("mount", &["-t", "ext4", &device, text(&self.host())])?;
        self.is_host_mounted = true;
        Ok(())
    }

    /// Attaches what the file shows and mounts ext4, which replays its journal.
    pub fn attach(&mut self) -> Outcome {
        self.attach_loop_device()?;
        self.mount_host()
    }

    /// Mounts the store.
    pub fn mount(&mut self) -> Outcome {
        let (store, path, log) = (self.store(), self.path(), self.directory.path().join("log"));
        let ran = sumfs(&["mount", text(&store), text(&path), "--log", text(&log), "-o", &self.options]);
        self.is_mounted = ran.code == 0;
        if self.is_mounted { Ok(()) } else { Err(format!("mount: {}: {}", ran.code, ran.stderr)) }
    }

    /// Unmounts the store and waits for the daemon.
    pub fn umount(&mut self) -> Outcome {
        try_while_busy(crate::mount::SUMFS, &["umount", text(&self.path())])?;
        self.is_mounted = false;
        Ok(())
    }

    /// Makes everything in the store durable.
    pub fn sync(path: &Path) -> Outcome {
        try_run(crate::mount::SUMFS, &["sync", text(path)]).map(|_| ())
    }

    /// How many checkpoints there were since mounting.
    pub fn checkpoints(&self) -> u64 {
        let ran = sumfs(&["stats", text(&self.path()), "--json"]).expect_success();
        let stats: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        stats["counters"]["transaction"]["checkpoints"].as_u64().unwrap_or_else(|| panic!("no checkpoints in {stats}"))
    }

    /// `check --data` of the store; its exit code is one of `codes`.
    pub fn check(&self, codes: &[i32]) -> Outcome {
        let ran = crate::mount::check(&self.store());
        if codes.contains(&ran.code) { Ok(()) } else { Err(format!("check: {ran:?}")) }
    }

    /// Unmounts and detaches everything above the file.
    pub fn detach(&mut self) -> Outcome {
        let mut result = if self.is_mounted { self.umount() } else { Ok(()) };
        if result.is_err() {
            // The mount must go, or nothing below it can.
            rustix::mount::unmount(self.path(), rustix::mount::UnmountFlags::FORCE | rustix::mount::UnmountFlags::DETACH).ok();
            self.is_mounted = false;
        }
        if std::mem::take(&mut self.is_host_mounted) {
            result = result.and(try_while_busy("umount", &[text(&self.host())]));
        }
        if let Some(device) = self.loop_device.take() {
            result = result.and(try_run("losetup", &["--detach", &device]).map(|_| ()));
        }
        result
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
        let detached = self.detach();
        if !std::thread::panicking() {
            detached.unwrap();
        }
    }
}
