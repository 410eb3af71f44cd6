//! The process that serves a mount, in front (`mount -f`) or as a daemon.
//!
//! The order matters: what must happen while there is one thread comes first (session, directory, IO_FLUSHER), then
//! the store is locked and opened, then the mount, last the caller is told and let go. On the way out: unmounted, store closed,
//! those who wait are told, lock free. All errors before the mount is usable go to the caller, later ones to the log.

use super::metrics::{self, Exporter};
use super::mount::{CODE_FAILED, Plan, READY};
use super::{Failure, LOCK_TIMEOUT, Outcome, WithCode, check_online, device, info, logging, mountinfo, read, scrub};
use crate::control::{self, Command};
use crate::error::Error;
use crate::fs::{AccessTimes, Filesystem, Options};
use crate::fuse::session::{self, CacheMode, SessionOptions};
use crate::store::{OpenOptions, StoreDirectory};
use crate::sys;
use serde_json::{Value, json};
use std::cell::Cell;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Between attempts to make a mount read-only that has files open for writing.
const REMOUNT_PAUSE: Duration = Duration::from_millis(200);

/// Serves until unmounted.
pub fn run(plan: &Plan) -> Outcome {
    let usable = Cell::new(false);
    let Err(failure) = serve(plan, &usable) else { return Ok(0) };
    if usable.get() || plan.options.log.is_some() {
        tracing::error!("{}", failure.message);
    }
    if usable.get() {
        // The caller is long gone.
        return Err(Failure::new(failure.code, ""));
    }
    if plan.daemon {
        // The pipe's other end prints it.
        println!("{}", failure.message);
        return Err(Failure::new(failure.code, ""));
    }
    Err(failure)
}

fn serve(plan: &Plan, usable: &Cell<bool>) -> std::result::Result<(), Failure> {
    if plan.daemon {
        // Cannot fail: a process just started by another one leads no group.
        sys::new_session().ok();
    }
    match &plan.options.log {
        Some(log) => logging::to_file(log).or_code(CODE_FAILED)?,
        None if plan.daemon => logging::to_stderr_then_syslog(),
        None => logging::to_stderr(),
    }
    rustix::process::chdir("/").map_err(|error| Failure::new(CODE_FAILED, format!("changing to /: {error}")))?;
    sys::become_io_flusher();
    sys::keep_memory_together();
    sys::raise_open_files_limit().or_code(CODE_FAILED)?;

    let opening = OpenOptions {
        read_only: plan.options.filesystem.read_only,
        wait_for_lock: Some(LOCK_TIMEOUT),
        degraded: plan.options.degraded,
        ..OpenOptions::default()
    };
    let mut store = StoreDirectory::open_with(&plan.store, opening).or_code(CODE_FAILED)?;
    let mut description = info::describe_store(&store);
    description["mountpoint"] = json!(plan.mountpoint.to_string_lossy());
    let kernel_caches = plan.options.cache == CacheMode::Writeback;
    let options = Options { kernel_caches, ..plan.options.filesystem.clone() };
    let filesystem = Filesystem::open(store.disks().clone(), options).or_code(CODE_FAILED)?;
    let host_is_direct = store.disks().bypass_host_cache();
    store.release_devices();
    let mut control = start_control(plan, &store, description, &filesystem);
    let metrics = start_metrics(plan, &filesystem).inspect_err(|_| {
        // Nothing has been done to it; the reason that is told is the first one.
        filesystem.shutdown().ok();
    })?;

    let mut options = SessionOptions { host_is_direct, ..session_options(plan) };
    options.read_only |= filesystem.read_only_reason().is_some();
    remount_when_latched(plan, &filesystem);
    let served = session::serve(Arc::clone(&filesystem), &plan.mountpoint, &options, || {
        usable.set(true);
        announce(plan);
    });
    if let Some(control) = &mut control {
        control.stop();
    }
    drop(metrics);
    let closed = filesystem.shutdown();
    // All that is open, before the word that the store is free.
    drop((filesystem, store));
    if let Some(control) = control {
        control.finish(&closed);
    }
    if let (Err(_), Err(error)) = (&served, &closed) {
        tracing::error!("closing {}: {error}", plan.store.display());
    }
    served.and(closed).or_code(CODE_FAILED)
}

/// A store that a fault makes read-only shows it in its mount (D7). On a thread of its own: remounting makes the kernel write
/// back first, which needs the threads that answer it.
fn remount_when_latched(plan: &Plan, filesystem: &Filesystem) {
    let mountpoint = plan.mountpoint.clone();
    filesystem.set_latch_hook(Box::new(move |_| {
        let mountpoint = mountpoint.clone();
        let remount = move || remount_read_only(&mountpoint);
        if let Err(error) = std::thread::Builder::new().name("remount".into()).spawn(remount) {
            tracing::warn!("no thread to remount with: {error}");
        }
    }));
}

/// The kernel refuses while a file is open for writing, so it is tried again as long as the mount is there.
fn remount_read_only(mountpoint: &Path) {
    let at = mountpoint.display();
    let device = || mountinfo::mount_at(mountpoint).ok().flatten().filter(mountinfo::is_sumfs).map(|mount| mount.device);
    let own = device();
    let mut is_told = false;
    while own.is_some() && device() == own {
        match sys::remount_read_only(mountpoint) {
            Ok(()) => return,
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!("{at} turns read-only when no file is open for writing any more; writes are refused");
                }
                std::thread::sleep(REMOUNT_PAUSE);
            }
            Err(error) => return tracing::warn!("remounting {at} read-only: {error}"),
        }
    }
}

fn session_options(plan: &Plan) -> SessionOptions {
    let options = &plan.options;
    SessionOptions {
        cache: options.cache,
        transport: options.transport,
        read_only: options.filesystem.read_only,
        allow_other: options.allow_other.unwrap_or_else(|| rustix::process::geteuid().is_root()),
        suid: options.suid,
        dev: options.dev,
        exec: options.exec,
        noatime: matches!(options.filesystem.access_times, AccessTimes::Noatime),
        nodiratime: options.filesystem.nodiratime,
        synchronous: options.synchronous,
        source: options.source_name.clone().unwrap_or_else(|| plan.store.to_string_lossy().into_owned()),
        threads: options.threads,
        nowait: options.filesystem.nowait,
        ..SessionOptions::default()
    }
}

/// A mount without control works; what is lost is said once.
fn start_control(
    plan: &Plan,
    store: &StoreDirectory,
    description: Value,
    filesystem: &Arc<Filesystem>,
) -> Option<control::Server> {
    let (filesystem, path) = (Arc::clone(filesystem), store.path().to_owned());
    let answer: control::Answer = Arc::new(move |command| match command {
        Command::Stats => Ok(filesystem.status()),
        Command::Info => Ok(info::with_status(description.clone(), &filesystem)),
        Command::Map { inode } => filesystem.file_layout(crate::units::InodeNumber(inode)),
        Command::Scrub { .. } | Command::Damage { .. } => scrub::answer(&filesystem, command),
        Command::Salvage { inode, offset, length } => {
            filesystem.salvage(crate::units::InodeNumber(inode), offset, length).map(|salvaged| read::answer(&salvaged))
        }
        Command::Device(request) => device::answer(&filesystem, &path, &request),
        Command::Check => check_online::answer(&filesystem),
        Command::Sync => filesystem.sync().map(|()| Value::Null),
        Command::Pid | Command::Wait => Ok(json!(std::process::id())),
    });
    let started = control::socket_directory().and_then(|directory| {
        if directory.starts_with(&plan.mountpoint) {
            return Err(Error::usage(format!("{} would lie below the mount point", directory.display())));
        }
        control::Server::start(&directory, &control::socket_name(&store.uuid()), answer)
    });
    started
        .inspect_err(|error| tracing::warn!("no control socket, so sumfs stats and sync will not reach this mount: {error}"))
        .ok()
}

fn start_metrics(plan: &Plan, filesystem: &Arc<Filesystem>) -> std::result::Result<Option<Exporter>, Failure> {
    let Some(target) = &plan.options.metrics else { return Ok(None) };
    let filesystem = Arc::clone(filesystem);
    Exporter::start(target, move || metrics::text(&filesystem)).or_code(CODE_FAILED).map(Some)
}

/// Lets go of everything of the caller's, then tells it. The other way round, a caller that waits for the end of our output could
/// hang as long as the mount lives.
fn announce(plan: &Plan) {
    tracing::info!("{} mounted on {}", plan.store.display(), plan.mountpoint.display());
    if !plan.daemon {
        return;
    }
    let told = File::options().read(true).write(true).open("/dev/null").and_then(|null| {
        rustix::stdio::dup2_stdin(&null)?;
        logging::detach();
        rustix::stdio::dup2_stderr(&null)?;
        let mut caller = std::io::stdout();
        let told = writeln!(caller, "{READY}").and_then(|()| caller.flush());
        rustix::stdio::dup2_stdout(&null)?;
        told
    });
    if let Err(error) = told {
        // Whoever asked for the mount is gone (killed, timed out); a mount that nobody knows of is worse than none.
        tracing::warn!("nobody waits for {} any more ({error}); unmounting", plan.mountpoint.display());
        session::request_unmount(&plan.mountpoint).ok();
    }
}
