//! `sumfs mount`: checks the arguments, then either serves in front (`-f`, see [`daemon`]) or starts itself again with
//! `-f` as a daemon and waits until that says that the mount is usable.
//!
//! Starting itself instead of forking means that nothing is ever forked after threads exist. The daemon's standard output is the
//! status pipe: it writes [`READY`], or one line that says what is wrong, and closes it. So when the daemon dies in between, the
//! pipe ends and nobody waits for ever.

use super::metrics::Target;
use super::options::{self, MountOptions};
use super::{Failure, Outcome, WithCode, daemon, mountinfo};
use crate::sys::{self, Mounted};
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What the daemon writes when the mount is usable.
pub const READY: &str = "ready";
/// mount(8): wrong usage.
const CODE_USAGE: u8 = 1;
/// mount(8): the mount failed.
pub const CODE_FAILED: u8 = 32;

/// Arguments of `sumfs mount`, and of mount.fuse.sumfs.
#[derive(Debug, clap::Args)]
#[command(after_help = options::help())]
pub struct Arguments {
    /// The store.
    store: PathBuf,
    /// The directory to mount it on.
    mountpoint: PathBuf,
    /// Options, separated by commas; see below.
    #[arg(short = 'o', value_name = "OPTIONS", allow_hyphen_values = true)]
    options: Vec<String>,
    /// Stay in front and serve until unmounted.
    #[arg(short = 'f', long)]
    foreground: bool,
    /// Where the daemon's messages go, instead of syslog.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Say what has been mounted.
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Ignore unknown options.
    #[arg(short = 's', long)]
    sloppy: bool,
    /// Check everything but do not mount.
    #[arg(long, hide = true)]
    fake: bool,
    /// This process is the daemon: standard output is the status pipe.
    #[arg(long, hide = true)]
    daemon: bool,
    #[arg(short = 'n', hide = true)]
    no_mtab: bool,
    #[arg(short = 't', hide = true)]
    file_system_type: Option<String>,
    #[arg(short = 'N', hide = true)]
    namespace: Option<String>,
}

/// A mount that can be tried: every path absolute, every option understood.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The store's directory.
    pub store: PathBuf,
    /// Where to mount it.
    pub mountpoint: PathBuf,
    /// The `-o` lists.
    pub options: MountOptions,
    /// Run as a daemon with a status pipe.
    pub daemon: bool,
}

/// Mounts.
pub fn run(arguments: &Arguments) -> Outcome {
    let options = MountOptions::parse(&arguments.options, arguments.sloppy)?;
    if options.remount {
        return remount(arguments, &options);
    }
    if options.nofail && arguments.store.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        eprintln!("sumfs: store {}: does not exist; nothing is mounted, as nofail asks", arguments.store.display());
        return Ok(0);
    }
    let plan = plan(arguments, options)?;
    if arguments.fake {
        return Ok(0);
    }
    match mountinfo::mount_of_store(&plan.store).or_code(CODE_FAILED)? {
        Some(mount) => mount_again(&plan, &mount, arguments.foreground)?,
        None if arguments.foreground => return daemon::run(&plan),
        None => start_daemon(arguments, &plan)?,
    }
    if arguments.verbose {
        println!("{} mounted on {}", plan.store.display(), plan.mountpoint.display());
    }
    Ok(0)
}

/// A store that is mounted elsewhere already, which a kernel's file system would show twice: so do we. The flags are those of this
/// mount, all else is what the first was told.
fn mount_again(plan: &Plan, mount: &Mounted, foreground: bool) -> Result<(), Failure> {
    let (store, at) = (plan.store.display(), mount.mountpoint.display());
    // Not to be served in front, there already, or its daemon is gone.
    let is_usable = !foreground && mount.mountpoint != plan.mountpoint && mount.root == Path::new("/");
    let state = rustix::fs::statvfs(&mount.mountpoint).ok().filter(|_| is_usable && rustix::process::geteuid().is_root());
    let Some(state) = state else {
        let message = format!("{store} is already mounted at {at}; use it there, or first run: sumfs umount {at}");
        return Err(Failure::new(CODE_FAILED, message));
    };
    if state.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) && !plan.options.filesystem.read_only {
        let message = format!(
            "{store} is already mounted at {at}, read-only; mount it with -o ro here too, or first run: sumfs umount {at}"
        );
        return Err(Failure::new(CODE_FAILED, message));
    }
    let second = &plan.mountpoint;
    sys::mount_again(&mount.mountpoint, second, plan.options.mount_flags())
        .map_err(|error| Failure::new(CODE_FAILED, format!("mounting {at} again on {}: {error}", second.display())))
}

/// Everything that can be found wrong before anything is touched.
fn plan(arguments: &Arguments, mut options: MountOptions) -> Result<Plan, Failure> {
    let failed = |message: String| Failure::new(CODE_FAILED, message);
    let mountpoint = existing_mountpoint(&arguments.mountpoint)?;
    let store =
        existing_directory(&arguments.store).map_err(|why| failed(format!("store {}: {why}", arguments.store.display())))?;
    if store.starts_with(&mountpoint) {
        return Err(failed(format!(
            "the store {} lies below the mount point {}, which would hide it; choose another mount point",
            store.display(),
            mountpoint.display()
        )));
    }
    if mountpoint.starts_with(&store) {
        return Err(failed(format!("the mount point {} lies in the store; choose another one", mountpoint.display())));
    }
    if let Some(log) = arguments.log.as_ref().or(options.log.as_ref()) {
        let log = mountinfo::absolute(log).or_code(CODE_FAILED)?;
        if log.starts_with(&mountpoint) {
            let (log, mountpoint) = (log.display(), mountpoint.display());
            let message = format!(
                "the log {log} lies below the mount point {mountpoint}: the daemon would wait for itself; choose another file"
            );
            return Err(Failure::new(CODE_USAGE, message));
        }
        options.log = Some(log);
    }
    if let Some(Target::File(path)) = &mut options.metrics {
        *path = mountinfo::absolute(path).or_code(CODE_FAILED)?;
        if path.starts_with(&mountpoint) {
            let (path, mountpoint) = (path.display(), mountpoint.display());
            let message = format!("the metrics file {path} lies below the mount point {mountpoint}; choose another file");
            return Err(Failure::new(CODE_USAGE, message));
        }
    }
    Ok(Plan { store, mountpoint, options, daemon: arguments.daemon })
}

fn existing_mountpoint(path: &Path) -> Result<PathBuf, Failure> {
    existing_directory(path).map_err(|why| Failure::new(CODE_FAILED, format!("mount point {}: {why}", path.display())))
}

/// The directory's absolute path, or what is wrong with it and what to do.
fn existing_directory(path: &Path) -> Result<PathBuf, String> {
    let found = path.canonicalize().and_then(|absolute| Ok((std::fs::metadata(&absolute)?.is_dir(), absolute)));
    match found {
        Ok((true, absolute)) => Ok(absolute),
        Ok((false, _)) => Err("is not a directory; name the directory of a store, and one to mount it on".to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => Err("does not exist; make it first, or correct the path".to_owned()),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            Err(format!("a file system whose daemon is gone is mounted there; first run: sumfs umount {}", path.display()))
        }
        Err(error) => Err(error.to_string()),
    }
}

fn start_daemon(arguments: &Arguments, plan: &Plan) -> Result<(), Failure> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("sumfs").arg("mount").arg(&plan.store).arg(&plan.mountpoint).args(["-f", "--daemon"]);
    if arguments.sloppy {
        command.arg("-s");
    }
    for list in &arguments.options {
        command.arg("-o").arg(list);
    }
    if let Some(log) = &plan.options.log {
        command.arg("--log").arg(log);
    }
    sys::keep_files_from_children();
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let daemon = spawned.map_err(|error| Failure::new(CODE_FAILED, format!("starting the daemon: {error}")))?;
    wait_until_usable(daemon)
}

fn wait_until_usable(mut daemon: Child) -> Result<(), Failure> {
    let lines = daemon.stdout.take().into_iter().flat_map(|pipe| BufReader::new(pipe).lines().map_while(Result::ok));
    let mut message = String::new();
    for line in lines {
        if line == READY {
            return Ok(());
        }
        message = line;
    }
    let status = daemon.wait().map_err(|error| Failure::new(CODE_FAILED, format!("waiting for the daemon: {error}")))?;
    if message.is_empty() {
        message = format!("the daemon ended before the mount was usable ({status}); with -f, which shows what it says");
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
    Err(Failure::new(code.unwrap_or(CODE_FAILED), message))
}

/// `-o remount`: the kernel keeps the flags of a mount, the daemon has no part in it. mount(8), told only the mount point, names what
/// the list of mounts shows, which with `fsname=` is no path.
fn remount(arguments: &Arguments, options: &MountOptions) -> Outcome {
    let mountpoint = existing_mountpoint(&arguments.mountpoint)?;
    let at = mountpoint.display();
    let entry = mountinfo::mount_at(&mountpoint).or_code(CODE_FAILED)?.filter(mountinfo::is_sumfs);
    let named = mountinfo::mount_of_store(&arguments.store).ok().flatten();
    let is_named = |entry: Mounted| entry.source == arguments.store || named.is_some_and(|named| named.device == entry.device);
    if !entry.is_some_and(is_named) {
        return Err(Failure::new(
            CODE_FAILED,
            format!("{} is not mounted at {at}; mount it without the option remount", arguments.store.display()),
        ));
    }
    if arguments.fake {
        return Ok(0);
    }
    rustix::mount::mount_remount(&mountpoint, options.mount_flags(), "")
        .map_err(|error| Failure::new(CODE_FAILED, format!("remounting {at}: {error}")))?;
    Ok(0)
}
