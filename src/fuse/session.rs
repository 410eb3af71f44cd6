//! One mount from beginning to end: checks of the mount point, mount(2), INIT, the knobs of the kernel, reading threads,
//! unmounting on signals.
//!
//! Who unmounts decides when this ends; nothing is unmounted here once the session has ended, except after an abort from outside,
//! which leaves our dead mount behind.
//!
//! A panic in a handler is caught (`serve`). One outside would end a thread that serves requests and leave whoever sent one waiting
//! for ever, so it ends the mount.

use super::device::{self, Channel};
use super::dispatch::Dispatcher;
use super::handshake::{self, Agreed, Wishes};
use super::ring::switch::SwitchedOn;
use super::ring::{self, OnDeath, Rings};
use super::serve::{self, Server};
use crate::error::{Error, Result};
use crate::fs::Filesystem;
use crate::sys::{self, FuseMount, MountFlags, Signalled, TerminationSignals};
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long unmounting waits for users of a busy mount before it detaches it.
const BUSY_GRACE: Duration = Duration::from_secs(10);
/// How often a busy mount is tried again.
const BUSY_RETRY: Duration = Duration::from_millis(100);
/// Readahead of the kernel: one largest request.
const READ_AHEAD_KIB: &str = "1024";
/// Share of the kernel's dirty memory, in percent, that may be ours. Not all of it: our own files need some.
const DIRTY_PERCENT: &str = "40";

/// Who holds written data first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    /// The kernel's page cache (FUSE_WRITEBACK_CACHE): write(2) does not reach us.
    #[default]
    Writeback,
    /// The daemon: every write(2) is a request. The kernel still caches what was read.
    None,
}

/// How requests come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Over io_uring where that is possible, else out of /dev/fuse.
    #[default]
    Auto,
    /// Over io_uring, or not at all.
    Uring,
    /// Out of /dev/fuse.
    Device,
}

/// How to mount and serve.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// How requests come.
    pub transport: Transport,
    /// Who holds written data first.
    pub cache: CacheMode,
    /// Mount read-only.
    pub read_only: bool,
    /// May users other than the one who mounts use it?
    pub allow_other: bool,
    /// Obey set-user-id bits.
    pub suid: bool,
    /// Obey device nodes.
    pub dev: bool,
    /// Allow programs to run.
    pub exec: bool,
    /// Show `noatime` in the list of mounts (the file system's own option decides).
    pub noatime: bool,
    /// Show `nodiratime` there.
    pub nodiratime: bool,
    /// Every write is a synchronous one (mount option `sync`).
    pub synchronous: bool,
    /// What stands as source in the list of mounts: the absolute path of the store.
    pub source: String,
    /// Threads that read requests; None: as many as processors, 2 to 4.
    pub threads: Option<usize>,
    /// Threads that may wait for devices; None: 16.
    pub workers: Option<usize>,
    /// False: every data operation goes through the workers.
    pub nowait: bool,
    /// All files behind the store bypass the host's page cache, so writing back ours can never wait for theirs.
    pub host_is_direct: bool,
    /// Unmount on SIGTERM, SIGINT and SIGHUP.
    pub handle_signals: bool,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            transport: Transport::Auto,
            cache: CacheMode::Writeback,
            read_only: false,
            allow_other: false,
            suid: true,
            dev: true,
            exec: true,
            noatime: false,
            nodiratime: false,
            synchronous: false,
            source: String::from("sumfs"),
            threads: None,
            workers: None,
            nowait: true,
            host_is_direct: false,
            handle_signals: true,
        }
    }
}

impl SessionOptions {
    fn mount_flags(&self) -> MountFlags {
        let flags = [
            (self.read_only, MountFlags::RDONLY),
            (!self.suid, MountFlags::NOSUID),
            (!self.dev, MountFlags::NODEV),
            (!self.exec, MountFlags::NOEXEC),
            (self.noatime, MountFlags::NOATIME),
            (self.nodiratime, MountFlags::NODIRATIME),
            (self.synchronous, MountFlags::SYNCHRONOUS),
        ];
        flags.into_iter().filter_map(|(wanted, flag)| wanted.then_some(flag)).collect()
    }

    fn reading_threads(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(2, |count| count.get().clamp(2, 4));
        self.threads.unwrap_or_else(processors).max(1)
    }
}

/// Mounts `fs` on `mountpoint` and serves it until it is unmounted, by umount(8), an abort or a signal. `ready` is called once
/// the mount answers requests. Nothing is synced at the end: the caller calls `Filesystem::shutdown`.
pub fn serve(fs: Arc<Filesystem>, mountpoint: &Path, options: &SessionOptions, ready: impl FnOnce()) -> Result<()> {
    let mountpoint = usable_mountpoint(mountpoint, &options.source)?;
    let threads = options.reading_threads();
    let dispatcher = Dispatcher::new(fs.clone(), threads, options.workers.unwrap_or(16), options.nowait)?;
    let signals = if options.handle_signals { Some(TerminationSignals::catch()?) } else { None };
    let request = FuseMount {
        mountpoint: &mountpoint,
        source: &options.source,
        allow_other: options.allow_other,
        flags: options.mount_flags(),
    };
    let switched_on = rings_possible(options.transport)?;
    let descriptor = sys::mount_fuse(&request)?;
    let removed = |doing: &'static str| |error| remove_mount(&mountpoint, doing, error);
    let wishes = Wishes { cache: options.cache, over_rings: switched_on.is_some(), acl: fs.options().acl };
    let introduced = handshake::introduce(descriptor, wishes);
    drop(switched_on);
    let agreed = introduced.map_err(removed("starting the FUSE session"))?;
    // Without its number (unmounted already, or no /proc) the mount works, with the kernel's default knobs.
    let device = sys::mount_at(&mountpoint).ok().flatten().map(|mounted| mounted.device);
    if let Some(device) = &device {
        set_kernel_knobs(device, options.host_is_direct || sys::is_io_flusher());
        end_mount_when_serving_thread_dies(EndMount { mountpoint: mountpoint.clone(), device: Some(device.clone()) });
    }
    let notices = agreed.device.try_clone().map_err(removed("sharing the FUSE device"))?;
    let server = Arc::new(Server::new(fs, dispatcher, agreed.dialect).with_notices(Channel::new(notices)));
    let end_mount = EndMount { mountpoint: mountpoint.clone(), device: device.clone() };
    let mut serving = Serving::start(&server, agreed, threads, options.transport, end_mount)
        .map_err(removed("starting the threads that take requests"))?;
    ready();
    let (place, device) = (mountpoint.as_path(), device.as_deref());
    let ended = std::thread::scope(|scope| {
        if let Some(signals) = signals {
            let unmounter = move || unmount_on_signal(signals, place, device);
            if let Err(error) = std::thread::Builder::new().name("sumfs-signals".into()).spawn_scoped(scope, unmounter) {
                tracing::error!("no thread to wait for signals: unmount with umount(8): {error}");
            }
        }
        let ended = serving.join();
        if let Some(signals) = signals {
            signals.stop();
        }
        ended
    });
    match ended {
        Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => {
            tracing::warn!("the connection to the kernel was aborted; removing the mount at {}", mountpoint.display());
            let _ = sys::unmount(&mountpoint, true);
            Ok(())
        }
        result => result.map_err(|source| Error::io(format!("serving {}", mountpoint.display()), source)),
    }
}

/// What it takes to end a mount that cannot be served any more.
#[derive(Clone)]
struct EndMount {
    mountpoint: PathBuf,
    /// The number of the file system: only that one is ended, not one mounted later at the same place.
    device: Option<String>,
}

impl EndMount {
    fn because(&self, why: &dyn Display) {
        tracing::error!("internal error outside the handlers, ending the mount at {}: {why}", self.mountpoint.display());
        let mounted = sys::mount_at(&self.mountpoint).ok().flatten();
        let is_ours = mounted.is_some_and(|mounted| Some(mounted.device) == self.device);
        if is_ours && sys::abort_mount(&self.mountpoint).is_err() {
            // Not root: the end of the process ends the connection. The store is as after a crash, which it is made for.
            std::process::abort();
        }
    }
}

/// Hooks into panics for the rest of the process's life (see the top of this file).
fn end_mount_when_serving_thread_dies(end: EndMount) {
    let earlier = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        earlier(panic);
        if serve::is_serving_thread_outside_handler() {
            end.because(panic);
        }
    }));
}

/// Is everything there that rings need? The kernel's switch is then on for as long as the result lives.
fn rings_possible(transport: Transport) -> Result<Option<SwitchedOn>> {
    if transport == Transport::Device {
        return Ok(None);
    }
    match ring::raw::probe().and_then(|()| SwitchedOn::now()) {
        Ok(switched_on) => Ok(Some(switched_on)),
        Err(error) if transport == Transport::Uring => Err(no_rings(&error)),
        Err(error) => {
            tracing::info!("requests come out of /dev/fuse, io_uring is not possible: {error}");
            Ok(None)
        }
    }
}

fn no_rings(why: &dyn Display) -> Error {
    Error::usage(format!("FUSE over io_uring is not possible here ({why}): mount with -o transport=auto"))
}

type Reading = JoinHandle<io::Result<()>>;

/// The threads that take requests.
struct Serving {
    readers: Vec<Reading>,
    rings: Option<Rings>,
}

impl Serving {
    /// Starts them; requests are answered from now on.
    fn start(
        server: &Arc<Server>,
        agreed: Agreed,
        threads: usize,
        transport: Transport,
        end_mount: EndMount,
    ) -> io::Result<Serving> {
        let rings = if agreed.over_rings {
            let device = Arc::new(agreed.device.try_clone()?);
            let on_death: OnDeath = Arc::new(move |why| end_mount.because(&why));
            Rings::start(server, &device, &on_death)
        } else {
            Err(io::Error::other("the kernel does not offer it"))
        };
        let rings = match rings {
            Ok(rings) => Some(rings),
            Err(error) if transport == Transport::Uring => return Err(io::Error::other(no_rings(&error).to_string())),
            Err(error) => {
                if agreed.over_rings {
                    ring::raw::give_up(agreed.device.as_fd())?;
                    tracing::warn!("requests come out of /dev/fuse, not over io_uring: {error}");
                }
                None
            }
        };
        let threads = if rings.is_some() { 1 } else { threads };
        let pause = rings.is_some().then_some(device::FORGETS_PAUSE);
        Ok(Serving { readers: start_reading(server, agreed.device, threads, pause)?, rings })
    }

    /// Waits for the end of the connection; the first error that one ended with.
    fn join(&mut self) -> io::Result<()> {
        let ended = self.readers.drain(..).map(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread that served requests ended by an internal error")))
        });
        // All of them, before the first error counts.
        let ended: Vec<io::Result<()>> = ended.collect();
        if let Some(rings) = &mut self.rings {
            rings.stop();
        }
        ended.into_iter().collect()
    }
}

/// Starts the threads that read requests out of /dev/fuse.
fn start_reading(server: &Arc<Server>, device: OwnedFd, threads: usize, pause: Option<Duration>) -> io::Result<Vec<Reading>> {
    let first = Channel::new(device);
    let mut channels = (1..threads).map(|_| first.another()).collect::<io::Result<Vec<Channel>>>()?;
    channels.push(first);
    let start = |(number, channel): (usize, Channel)| {
        let (server, channel) = (server.clone(), Arc::new(channel));
        let name = format!("{}-{number}", serve::THREAD_PREFIX);
        std::thread::Builder::new().name(name).spawn(move || device::serve(&server, &channel, pause))
    };
    channels.into_iter().enumerate().map(start).collect()
}

/// The mount is there but nobody will answer: take it away again.
fn remove_mount(mountpoint: &Path, doing: &str, error: io::Error) -> Error {
    let _ = sys::unmount(mountpoint, true);
    Error::io(format!("{doing} at {}", mountpoint.display()), error)
}

/// The mount point as an absolute path without links, if one can mount there.
fn usable_mountpoint(path: &Path, source: &str) -> Result<PathBuf> {
    let shown = path.display();
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) => {
            return Err(match error.raw_os_error() {
                Some(libc::ENOTCONN | libc::ECONNABORTED) => dead_mount(path),
                Some(libc::ENOENT) => {
                    Error::usage(format!("the mount point {shown} does not exist: make it with `mkdir -p {shown}`"))
                }
                _ => Error::io(format!("looking at the mount point {shown}"), error),
            });
        }
    };
    if !found.is_dir() {
        return Err(Error::usage(format!("the mount point {shown} is not a directory: name one that is")));
    }
    let failed = |error| Error::io(format!("looking at the mount point {shown}"), error);
    let absolute = path.canonicalize().map_err(failed)?;
    let on_top = sys::mount_at(&absolute).map_err(failed)?;
    if let Some(mounted) = on_top.filter(|mounted| mounted.file_system_type == sys::FILE_SYSTEM_TYPE) {
        // Attributes live so long in the kernel that only a question that is never answered from memory tells a dead mount.
        if let Err(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED) = rustix::fs::statfs(&absolute) {
            return Err(dead_mount(path));
        }
        if mounted.source == Path::new(source) {
            return Err(Error::usage(format!("{source} is already mounted on {shown}: `umount {shown}` ends that")));
        }
    }
    Ok(absolute)
}

fn dead_mount(path: &Path) -> Error {
    let shown = path.display();
    Error::usage(format!(
        "{shown} is the mount point of a file system whose daemon is gone: \
         take it away with `umount -l {shown}` (without root: `fusermount3 -uz {shown}`), then mount again"
    ))
}

/// Larger readahead; and, only when our own writing cannot be held back by the dirty pages that it is to clean, the
/// ordinary dirty limits instead of one percent.
fn set_kernel_knobs(device: &str, cannot_be_held_back: bool) {
    let mut knobs = vec![("read_ahead_kb", READ_AHEAD_KIB)];
    if cannot_be_held_back {
        knobs.extend([("strict_limit", "0"), ("max_ratio", DIRTY_PERCENT)]);
    } else {
        tracing::info!(
            "neither IO_FLUSHER nor only O_DIRECT files: the kernel's strict dirty limit stays, buffered writes are slower"
        );
    }
    for (knob, value) in knobs {
        let path = format!("/sys/class/bdi/{device}/{knob}");
        if let Err(error) = std::fs::write(&path, value) {
            tracing::info!("{path} stays as it is (slower, nothing else): {error}");
        }
    }
}

/// How an unmount went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// Gone.
    Now,
    /// Out of the tree, still serving those who have files open there.
    Lazily,
    /// It was not mounted (any more).
    NotMounted,
}

/// Unmounts `mountpoint`: at once when nobody uses it, else as soon as that is so, and after a grace of ten seconds lazily. The
/// daemon ends when its last user is gone.
pub fn request_unmount(mountpoint: &Path) -> Result<Unmounted> {
    let result = unmount_with_grace(mountpoint, None, &mut |pause| {
        std::thread::sleep(pause);
        Patience::Left
    });
    result.map_err(|error| Error::io(format!("unmounting {}", mountpoint.display()), error))
}

/// What a pause between two tries to unmount brought.
enum Patience {
    /// Nothing: try again, as long as the grace lasts.
    Left,
    /// Somebody is in a hurry: detach now.
    Gone,
    /// The session has ended by itself: what is mounted there now is not ours.
    Needless,
}

/// `pause` waits for the time given. With `device`, only that file system is unmounted, not one mounted later at the same place.
fn unmount_with_grace(
    mountpoint: &Path,
    device: Option<&str>,
    pause: &mut dyn FnMut(Duration) -> Patience,
) -> io::Result<Unmounted> {
    let is_ours = || -> io::Result<bool> {
        let mounted = sys::mount_at(mountpoint)?;
        Ok(mounted.is_some_and(|mounted| device.is_none_or(|device| mounted.device == device)))
    };
    let deadline = Instant::now() + BUSY_GRACE;
    loop {
        if !is_ours()? {
            return Ok(Unmounted::NotMounted);
        }
        match sys::unmount(mountpoint, false) {
            Ok(()) => return Ok(Unmounted::Now),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return if is_ours()? { Err(error) } else { Ok(Unmounted::NotMounted) },
        }
        match pause(BUSY_RETRY) {
            Patience::Left if Instant::now() < deadline => {}
            Patience::Left | Patience::Gone => break,
            Patience::Needless => return Ok(Unmounted::NotMounted),
        }
    }
    if !is_ours()? {
        return Ok(Unmounted::NotMounted);
    }
    sys::unmount(mountpoint, true).map(|()| Unmounted::Lazily)
}

/// Body of the signal thread: the first signal unmounts, a second one stops waiting for users of the mount.
fn unmount_on_signal(signals: TerminationSignals, mountpoint: &Path, device: Option<&str>) {
    loop {
        match signals.wait(None) {
            Signalled::Stopped => return,
            Signalled::Nothing => continue,
            Signalled::Signal(signal) => tracing::info!("signal {signal}: unmounting {}", mountpoint.display()),
        }
        for place in places_of(mountpoint, device) {
            let mut stopped = false;
            let result = unmount_with_grace(&place, device, &mut |pause| match signals.wait(Some(pause)) {
                Signalled::Nothing => Patience::Left,
                Signalled::Signal(_) => Patience::Gone,
                Signalled::Stopped => {
                    stopped = true;
                    Patience::Needless
                }
            });
            let shown = place.display();
            match result {
                Ok(Unmounted::Lazily) => tracing::warn!(
                    "{shown} is in use: detached; the daemon goes on until the last user has closed its files there"
                ),
                Ok(_) => {}
                Err(error) => tracing::error!("cannot unmount {shown}: {error}"),
            }
            if stopped {
                return;
            }
        }
    }
}

/// Everywhere that the file system is mounted, the last one first.
fn places_of(mountpoint: &Path, device: Option<&str>) -> Vec<PathBuf> {
    let mounts = sys::mounts().unwrap_or_default().into_iter().rev();
    let found: Vec<PathBuf> =
        mounts.filter(|mount| Some(mount.device.as_str()) == device).map(|mount| mount.mountpoint).collect();
    if found.is_empty() { vec![mountpoint.to_owned()] } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(path: &Path) -> String {
        usable_mountpoint(path, "/store").unwrap_err().to_string()
    }

    #[test]
    fn bad_mount_points_say_the_cure() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("missing");
        assert!(message(&missing).contains("mkdir -p"));
        let file = directory.path().join("file");
        std::fs::write(&file, b"").unwrap();
        assert!(message(&file).contains("not a directory"));
        assert!(message(&file.join("below")).contains("below"));
    }

    #[test]
    fn a_good_mount_point_is_absolute_and_without_links() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().canonicalize().unwrap();
        let link = real.join("link");
        std::os::unix::fs::symlink(".", &link).unwrap();
        assert_eq!(usable_mountpoint(&link, "/store").unwrap(), real);
    }

    #[test]
    fn flags_follow_the_options() {
        assert_eq!(SessionOptions::default().mount_flags(), MountFlags::empty());
        let options = SessionOptions { read_only: true, suid: false, noatime: true, ..SessionOptions::default() };
        assert_eq!(options.mount_flags(), MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOATIME);
    }

    #[test]
    fn there_are_two_to_four_reading_threads_unless_told() {
        assert!((2..=4).contains(&SessionOptions::default().reading_threads()));
        assert_eq!(SessionOptions { threads: Some(7), ..SessionOptions::default() }.reading_threads(), 7);
        assert_eq!(SessionOptions { threads: Some(0), ..SessionOptions::default() }.reading_threads(), 1);
    }

    #[test]
    fn what_is_not_mounted_is_not_unmounted() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(request_unmount(&directory.path().canonicalize().unwrap()).unwrap(), Unmounted::NotMounted);
    }
}
