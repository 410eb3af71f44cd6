//! What only the system can do: mounting and unmounting FUSE, what is mounted where, process state (IO_FLUSHER, sessions,
//! limits, how memory is kept), termination signals. The only file besides `disk/buffer.rs` with `unsafe`: the signal handler and
//! calls that rustix has no safe form of.
//!
//! Without the right to mount, mounting and unmounting go through the set-user-id program `fusermount3`, which passes the open
//! /dev/fuse back over a socket named by `_FUSE_COMMFD`.

#![allow(unsafe_code)]

use crate::error::{Error, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::mount::UnmountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

pub use rustix::mount::MountFlags;

/// The type under which mounts appear; the kernel takes the part before the dot.
pub const FILE_SYSTEM_TYPE: &str = "fuse.sumfs";
const SUBTYPE: &str = "sumfs";
/// Arenas of the allocator, at least and at most.
const ARENAS: (usize, usize) = (2, 8);
/// Allocations from here on are mapped by themselves, and given back when freed.
const MAPPED_BYTES_MIN: libc::c_int = 512 << 10;
/// Open files that a mount needs: disks, queues and readers of requests, control.
const OPEN_FILES_MIN: u64 = 64;
const MOUNT_LIST_PIECE_BYTES: usize = 64 << 10;
const FUSE_DEVICE: &str = "/dev/fuse";
/// `_IOR(229, 0, uint32_t)`.
const FUSE_DEV_IOC_CLONE: libc::Ioctl = 0x8004_e500;
const FUSERMOUNT: &str = "fusermount3";

/// What to mount, and where.
#[derive(Clone, Debug)]
pub struct FuseMount<'a> {
    /// An existing directory.
    pub mountpoint: &'a Path,
    /// What stands as source in the list of mounts: the store's path.
    pub source: &'a str,
    /// May users other than the one who mounts use it?
    pub allow_other: bool,
    /// `RDONLY`, `NOSUID`, `NODEV`, `NOEXEC`, `NOATIME`, `NODIRATIME`, `SYNCHRONOUS`.
    pub flags: MountFlags,
}

/// Mounts, and gives the open /dev/fuse on which INIT now waits. Permission checks are the kernel's (`default_permissions`).
pub fn mount_fuse(request: &FuseMount<'_>) -> Result<OwnedFd> {
    let device = match rustix::fs::open(FUSE_DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(device) => device,
        Err(Errno::ACCESS | Errno::PERM) => return mount_by_fusermount(request),
        Err(Errno::NOENT | Errno::NXIO | Errno::NODEV) => {
            return Err(Error::usage(format!(
                "there is no usable {FUSE_DEVICE}: load the module with `modprobe fuse`; for a container give it the device"
            )));
        }
        Err(error) => return Err(Error::io(format!("opening {FUSE_DEVICE}"), error.into())),
    };
    let doing = || format!("mounting {} on {}", request.source, request.mountpoint.display());
    let root = std::fs::metadata(request.mountpoint).map_err(|source| Error::io(doing(), source))?;
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let mut options = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        root.mode(),
        uid.as_raw(),
        gid.as_raw()
    );
    if request.allow_other {
        options.push_str(",allow_other");
    }
    let options = CString::new(options).map_err(|_| Error::Invalid("mount options"))?;
    match rustix::mount::mount(request.source, request.mountpoint, FILE_SYSTEM_TYPE, request.flags, options.as_c_str()) {
        Ok(()) => Ok(device),
        Err(Errno::PERM) => mount_by_fusermount(request),
        Err(Errno::NODEV) => Err(Error::usage("this kernel has no FUSE: load the module with `modprobe fuse`")),
        Err(error) => Err(Error::io(doing(), error.into())),
    }
}

/// Another descriptor of the connection that `device` belongs to, with a list of its own of requests that wait for their answer.
pub fn clone_fuse_device(device: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let clone = rustix::fs::open(FUSE_DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let number: u32 = device.as_raw_fd().cast_unsigned();
    // SAFETY: the request reads one number of 32 bits, which lives through the call.
    if unsafe { libc::ioctl(clone.as_raw_fd(), FUSE_DEV_IOC_CLONE, &raw const number) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(clone)
}

fn mount_by_fusermount(request: &FuseMount<'_>) -> Result<OwnedFd> {
    let doing = || format!("mounting {} on {} with {FUSERMOUNT}", request.source, request.mountpoint.display());
    let failed = |source: io::Error| Error::io(doing(), source);
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).map_err(|error| failed(error.into()))?;
    let child = Command::new(FUSERMOUNT)
        .arg("-o")
        .arg(fusermount_options(request))
        .arg("--")
        .arg(request.mountpoint)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let child = match child {
        Ok(child) => child,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Error::usage(format!("mounting takes root or {FUSERMOUNT}: install the package fuse3, or run as root")));
        }
        Err(error) => return Err(failed(error)),
    };
    drop(theirs);
    let device = receive_descriptor(&ours);
    drop(ours);
    let output = child.wait_with_output().map_err(failed)?;
    match device {
        Ok(Some(device)) => Ok(device),
        Ok(None) => {
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let cure = if text.contains("user_allow_other") { " (or mount with -o noallow_other)" } else { "" };
            Err(Error::usage(format!("{}: {text}{cure}", doing())))
        }
        Err(error) => Err(failed(error)),
    }
}

fn fusermount_options(request: &FuseMount<'_>) -> String {
    // fusermount3 takes a backslash as the escape of commas and backslashes in this one option.
    let source = request.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut options = format!("default_permissions,subtype={SUBTYPE},fsname={source}");
    let names = [
        (request.allow_other, "allow_other"),
        (request.flags.contains(MountFlags::RDONLY), "ro"),
        (request.flags.contains(MountFlags::NOEXEC), "noexec"),
        (request.flags.contains(MountFlags::NOATIME), "noatime"),
        (request.flags.contains(MountFlags::SYNCHRONOUS), "sync"),
    ];
    for (_, name) in names.iter().filter(|(wanted, _)| *wanted) {
        options.push(',');
        options.push_str(name);
    }
    options
}

/// The descriptor that comes with the next message; None when the other end closed without one.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0u8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

/// Unmounts what is on top at `mountpoint`: now (EBUSY while it is in use), or lazily: out of the tree now, gone when its last
/// user is gone. EINVAL when nothing is mounted there.
pub fn unmount(mountpoint: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(mountpoint, flags | UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) => unmount_by_fusermount(mountpoint, lazy),
        result => Ok(result?),
    }
}

/// Ends the mount at once, whoever uses it: everything that waits for an answer, and all later requests, fail. Root only.
pub fn abort_mount(mountpoint: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(mountpoint, UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?)
}

fn unmount_by_fusermount(mountpoint: &Path, lazy: bool) -> io::Result<()> {
    let mut command = Command::new(FUSERMOUNT);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(mountpoint).stdin(Stdio::null());
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if text.contains("busy") { Err(Errno::BUSY.into()) } else { Err(io::Error::other(text)) }
}

/// Shows the file system mounted at `mountpoint` at `second` too, there with these flags. Root only.
pub fn mount_again(mountpoint: &Path, second: &Path, flags: MountFlags) -> io::Result<()> {
    rustix::mount::mount_bind(mountpoint, second)?;
    rustix::mount::mount_remount(second, flags | MountFlags::BIND, "").inspect_err(|_| {
        unmount(second, false).ok();
    })?;
    Ok(())
}

/// Makes the file system mounted at `mountpoint` read-only for the kernel too, keeping its other flags. EBUSY while files are
/// open for writing. The kernel first writes its dirty pages out, so this is never called from a thread that answers requests.
pub fn remount_read_only(mountpoint: &Path) -> io::Result<()> {
    let options = mount_at(mountpoint)?.map(|mounted| mounted.options).unwrap_or_default();
    Ok(rustix::mount::mount_remount(mountpoint, flags_of(&options) | MountFlags::RDONLY, "")?)
}

/// The flags behind the names in the list of mounts.
fn flags_of(options: &str) -> MountFlags {
    options
        .split(',')
        .map(|name| match name {
            "ro" => MountFlags::RDONLY,
            "nosuid" => MountFlags::NOSUID,
            "nodev" => MountFlags::NODEV,
            "noexec" => MountFlags::NOEXEC,
            "noatime" => MountFlags::NOATIME,
            "nodiratime" => MountFlags::NODIRATIME,
            "relatime" => MountFlags::RELATIME,
            "nosymfollow" => MountFlags::NOSYMFOLLOW,
            _ => MountFlags::empty(),
        })
        .collect()
}

/// One line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// `major:minor` of the file system, the name of its directory in /sys/class/bdi.
    pub device: String,
    /// Which of its directories is seen there; all of it: `/`.
    pub root: PathBuf,
    /// Where.
    pub mountpoint: PathBuf,
    /// The flags of this mount: `rw,nosuid,...`.
    pub options: String,
    /// The type with the subtype.
    pub file_system_type: String,
    /// What: for a sumfs mount the store's path, or the name that `fsname=` gave it.
    pub source: PathBuf,
}

/// All mounts that this process sees, the topmost of a stack last. Asks no mounted file system anything.
pub fn mounts() -> io::Result<Vec<Mounted>> {
    // Kept open: a daemon that has no descriptor left must still find out what to unmount.
    static LIST: OnceLock<File> = OnceLock::new();
    let list = match LIST.get() {
        Some(list) => list,
        None => {
            let opened = File::open("/proc/self/mountinfo")?;
            LIST.get_or_init(|| opened)
        }
    };
    let (mut text, mut piece) = (Vec::new(), vec![0; MOUNT_LIST_PIECE_BYTES]);
    loop {
        match list.read_at(&mut piece, text.len() as u64) {
            Ok(0) => break,
            Ok(count) => text.extend_from_slice(piece.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(text.split(|byte| *byte == b'\n').filter_map(parse_mount).collect())
}

/// The topmost mount at exactly `mountpoint` (an absolute path without links).
pub fn mount_at(mountpoint: &Path) -> io::Result<Option<Mounted>> {
    Ok(mounts()?.into_iter().rfind(|mounted| mounted.mountpoint == mountpoint))
}

/// `36 35 98:0 /root /mnt rw,noatime master:1 - ext3 /dev/sda rw`; the fields before the lone dash vary in number.
fn parse_mount(line: &[u8]) -> Option<Mounted> {
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let mut fields = line.split(|byte| *byte == b' ');
    let device = text(fields.nth(2)?);
    let root = fields.next()?;
    let mountpoint = fields.next()?;
    let options = text(fields.next()?);
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let file_system_type = text(rest.next()?);
    let source = rest.next()?;
    Some(Mounted {
        device,
        root: PathBuf::from(unescape(root)),
        mountpoint: PathBuf::from(unescape(mountpoint)),
        options,
        file_system_type,
        source: PathBuf::from(unescape(source)),
    })
}

/// A field of mountinfo: space, tab, newline and backslash are written as `\040` and so on.
pub(crate) fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

/// Asks the kernel to treat this thread, and those it starts from now on, as part of the path by which dirty memory is
/// written: their allocations do not wait for writeback, which may be waiting for us. Call it before any other thread exists.
/// False (said once in the log) when we may not.
pub fn become_io_flusher() -> bool {
    match rustix::process::configure_io_flusher_behavior(true) {
        Ok(()) => true,
        Err(error) => {
            tracing::info!("no IO_FLUSHER state ({error}): the kernel will hold back writers earlier");
            false
        }
    }
}

/// Tells the C library's allocator how a daemon of many threads and large buffers wants its memory. Before any thread exists.
pub fn keep_memory_together() {
    #[cfg(target_env = "gnu")]
    {
        let processors = std::thread::available_parallelism().map_or(2, |count| count.get());
        let arenas = processors.clamp(ARENAS.0, ARENAS.1) as libc::c_int;
        // SAFETY: sets two numbers of the allocator, which checks them.
        unsafe {
            // Each arena keeps what its threads needed at their worst.
            libc::mallopt(libc::M_ARENA_MAX, arenas);
            // By default the first large buffer that is freed raises the bound to 32 MiB, and later ones leave holes in the heap.
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN);
        }
    }
}

/// Gives memory that is free back to the system. Takes milliseconds: for quiet moments.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: changes nothing that is allocated.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Is this thread in the state that [`become_io_flusher`] asks for?
pub fn is_io_flusher() -> bool {
    rustix::process::is_io_flusher().unwrap_or(false)
}

/// Makes the calling thread, and those that it starts, give way to others: a lower priority for the processor and the lowest ordinary
/// one for devices. Not the idle class: who waits for a lock that such a thread holds would starve with it.
pub fn step_back() {
    const BEST_EFFORT_LOWEST: libc::c_int = 2 << 13 | 7;
    const THIS_THREAD: libc::c_int = 1;
    rustix::process::setpriority_process(None, 10).ok();
    // SAFETY: the call takes three numbers and touches no memory of ours. It fails at worst, and then nothing is lost but manners.
    unsafe { libc::syscall(libc::SYS_ioprio_set, THIS_THREAD, 0, BEST_EFFORT_LOWEST) };
}

/// The further groups of a process; none for one that is gone or that we may not see.
pub fn further_groups(process: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    groups.split_whitespace().filter_map(|group| group.parse().ok()).collect()
}

/// Leaves the terminal and the process group of whoever started us.
pub fn new_session() -> io::Result<()> {
    rustix::process::setsid()?;
    Ok(())
}

/// Raises the limit of open files to what the system allows; an error when that is fewer than a mount needs.
pub fn raise_open_files_limit() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let found = getrlimit(Resource::Nofile);
    let Some(maximum) = found.maximum else { return Ok(()) };
    let wanted = maximum.max(OPEN_FILES_MIN);
    // Above its maximum only with the right to do so.
    let limit = |count| Rlimit { current: Some(count), maximum: Some(count) };
    let raised = setrlimit(Resource::Nofile, limit(wanted)).or_else(|_| setrlimit(Resource::Nofile, limit(maximum)));
    if let Err(error) = raised {
        tracing::info!("the limit of open files stays as it is: {error}");
    }
    match getrlimit(Resource::Nofile).current {
        Some(count) if count < OPEN_FILES_MIN => Err(Error::usage(format!(
            "only {count} open files are allowed here and a mount needs {OPEN_FILES_MIN}; raise the limit (ulimit -Hn, LimitNOFILE= of the service)"
        ))),
        _ => Ok(()),
    }
}

/// From now on a write to a pipe that nobody reads ends the process quietly, as with every other tool in a pipeline. Not for daemons.
pub fn end_when_output_closes() {
    // SAFETY: restores the default action of one signal, before any other thread exists.
    if unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) } == libc::SIG_ERR {
        tracing::debug!("SIGPIPE stays ignored: {}", io::Error::last_os_error());
    }
}

/// Programs started from now on get no open file of ours or of our caller's but the standard streams: a daemon that kept the
/// pipe of some caller would let it wait for the end of that pipe for as long as the mount lives.
pub fn keep_files_from_children() {
    // SAFETY: the call sets a flag on open descriptors, it closes none and touches no memory.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result != 0 {
        tracing::debug!("descriptors of the caller stay open: {}", io::Error::last_os_error());
    }
}

/// SIGTERM, SIGINT and SIGHUP as something a thread can wait for. The handler stays for the life of the process: a second
/// signal does not kill a daemon that is writing its last commit (SIGKILL does, and costs nothing but the clean flag).
#[derive(Clone, Copy, Debug)]
pub struct TerminationSignals(&'static SignalPipe);

#[derive(Debug)]
struct SignalPipe {
    read: OwnedFd,
    write: OwnedFd,
}

/// What [`TerminationSignals::wait`] saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signalled {
    /// The signal of that number.
    Signal(i32),
    /// [`TerminationSignals::stop`] was called.
    Stopped,
    /// Nothing within the time.
    Nothing,
}

static SIGNAL_PIPE: OnceLock<SignalPipe> = OnceLock::new();
/// The pipe's write end for the handler, which may only do what is async-signal-safe.
static SIGNAL_PIPE_WRITE: AtomicI32 = AtomicI32::new(-1);

extern "C" fn note_signal(signal: libc::c_int) {
    let byte = signal as u8;
    // SAFETY: write(2) is async-signal-safe, the byte lives on this stack, the descriptor is never closed; errno is put back
    // for the code that was interrupted.
    unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        libc::write(SIGNAL_PIPE_WRITE.load(Ordering::Relaxed), (&raw const byte).cast(), 1);
        *errno = saved;
    }
}

impl TerminationSignals {
    /// Catches the signals from now on, except those that are ignored (nohup).
    pub fn catch() -> Result<TerminationSignals> {
        let doing = "setting up termination signals";
        let pipe = match SIGNAL_PIPE.get() {
            Some(pipe) => pipe,
            None => {
                let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK)
                    .map_err(|error| Error::io(doing, error.into()))?;
                SIGNAL_PIPE.get_or_init(|| SignalPipe { read, write })
            }
        };
        SIGNAL_PIPE_WRITE.store(pipe.write.as_raw_fd(), Ordering::Relaxed);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            catch(signal).map_err(|error| Error::io(doing, error))?;
        }
        Ok(TerminationSignals(pipe))
    }

    /// Waits for the next signal, at most `timeout`.
    pub fn wait(&self, timeout: Option<Duration>) -> Signalled {
        let timeout = timeout.and_then(|timeout| timeout.try_into().ok());
        loop {
            let mut ready = [PollFd::new(&self.0.read, PollFlags::IN)];
            match poll(&mut ready, timeout.as_ref()) {
                Ok(0) => return Signalled::Nothing,
                Ok(_) => {}
                Err(_) => continue,
            }
            let mut byte = [0u8];
            match rustix::io::read(&self.0.read, &mut byte) {
                Ok(1) if byte == [0] => return Signalled::Stopped,
                Ok(1) => return Signalled::Signal(byte[0].into()),
                // Somebody else's wait took it.
                _ => {}
            }
        }
    }

    /// Ends the wait of another thread.
    pub fn stop(&self) {
        // Full: then there is something to wake up from as well.
        let _ = rustix::io::write(&self.0.write, &[0]);
    }
}

fn catch(signal: libc::c_int) -> io::Result<()> {
    // SAFETY: a zeroed sigaction is a valid one (default action, empty mask); both pointers live through the calls; the handler
    // is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal, std::ptr::null(), &raw mut action) != 0 {
            return Err(io::Error::last_os_error());
        }
        if action.sa_sigaction == libc::SIG_IGN {
            return Ok(());
        }
        action = std::mem::zeroed();
        action.sa_sigaction = note_signal as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        if libc::sigaction(signal, &raw const action, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_line_with_optional_fields_and_escapes() {
        let line = br"36 35 0:52 / /mnt/my\040files ro,nosuid shared:1 master:2 - fuse.sumfs /var/lib/a\134b rw,user_id=0";
        let mounted = parse_mount(line).unwrap();
        assert_eq!(mounted.device, "0:52");
        assert_eq!(mounted.root, Path::new("/"));
        assert_eq!(mounted.mountpoint, Path::new("/mnt/my files"));
        assert_eq!(mounted.source, Path::new(r"/var/lib/a\b"));
        assert_eq!(mounted.file_system_type, FILE_SYSTEM_TYPE);
        assert_eq!(flags_of(&mounted.options), MountFlags::RDONLY | MountFlags::NOSUID);
        for line in [&b""[..], b"36 35", b"36 35 0:52 / /mnt rw shared:1", b"36 35 0:52 / /mnt rw -"] {
            assert_eq!(parse_mount(line), None);
        }
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(mount_at(Path::new("/")).unwrap().is_some());
        assert_eq!(mount_at(Path::new("/no such mount")).unwrap(), None);
    }

    #[test]
    fn options_for_fusermount_escape_the_source() {
        let request = FuseMount {
            mountpoint: Path::new("/mnt"),
            source: r"/a,b\c",
            allow_other: true,
            flags: MountFlags::RDONLY | MountFlags::NOSUID,
        };
        assert_eq!(fusermount_options(&request), r"default_permissions,subtype=sumfs,fsname=/a\,b\\c,allow_other,ro");
    }

    #[test]
    fn a_descriptor_passes_through_a_socket() {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        let descriptors = [std::os::fd::AsFd::as_fd(&file)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(&theirs, &[io::IoSlice::new(b"x")], &mut ancillary, SendFlags::empty()).unwrap();
        let received = std::fs::File::from(receive_descriptor(&ours).unwrap().unwrap());
        assert_eq!(received.metadata().unwrap().ino(), file.metadata().unwrap().ino());
        drop(theirs);
        assert!(receive_descriptor(&ours).unwrap().is_none());
    }

    #[test]
    fn unmounting_nothing_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        assert!(unmount(directory.path(), false).is_err());
    }
}
