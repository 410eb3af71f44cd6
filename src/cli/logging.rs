//! Where messages go. A command writes them to stderr. A daemon writes them to its log file from the start (`log=`), or to stderr
//! until the mount is usable and from then on to syslog (/dev/log), because by then nobody reads its stderr.
//! `RUST_LOG` chooses what is written; without it warnings and errors, into a log file also what is informative.

use crate::error::{Error, Result};
use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Set once the daemon has let go of its caller's terminal.
static DETACHED: AtomicBool = AtomicBool::new(false);

/// Messages to stderr; for commands and for `mount -f` without a log.
pub fn to_stderr() {
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter("warn")).with_writer(std::io::stderr).with_target(false);
    let subscriber = subscriber.with_ansi(super::complaint::stderr_has_colours());
    // Tests may have installed another subscriber; then that one serves.
    subscriber.without_time().try_init().ok();
}

/// Messages appended to the file at `path`, which is made if need be.
pub fn to_file(path: &Path) -> Result<()> {
    let opened = File::options().append(true).create(true).open(path);
    let file = opened.map_err(|source| Error::io(format!("opening the log {}", path.display()), source))?;
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter("info")).with_writer(Arc::new(file)).with_ansi(false);
    subscriber.with_target(false).try_init().ok();
    Ok(())
}

/// Messages to stderr now, to syslog after [`detach`].
pub fn to_stderr_then_syslog() {
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter("warn")).with_writer(StderrThenSyslog).with_ansi(false);
    subscriber.with_target(false).without_time().try_init().ok();
}

/// From now on stderr is nobody's.
pub fn detach() {
    DETACHED.store(true, Ordering::Relaxed);
}

fn filter(default: &str) -> EnvFilter {
    EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default))
}

#[derive(Clone, Copy, Debug)]
struct StderrThenSyslog;

impl<'a> MakeWriter<'a> for StderrThenSyslog {
    type Writer = StderrThenSyslog;

    fn make_writer(&'a self) -> StderrThenSyslog {
        StderrThenSyslog
    }
}

impl Write for StderrThenSyslog {
    /// Called once per message.
    fn write(&mut self, message: &[u8]) -> std::io::Result<usize> {
        if DETACHED.load(Ordering::Relaxed) {
            // A full or absent syslog must never stop the file system.
            syslog(message).ok();
        } else {
            std::io::stderr().write_all(message)?;
        }
        Ok(message.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// One datagram in the form of RFC 3164: `<facility * 8 + severity>tag[pid]: text`.
fn syslog(message: &[u8]) -> std::io::Result<()> {
    const DAEMON_WARNING: u32 = 3 * 8 + 4;
    static SOCKET: OnceLock<Option<UnixDatagram>> = OnceLock::new();
    let socket = SOCKET.get_or_init(|| {
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_nonblocking(true).ok()?;
        Some(socket)
    });
    let Some(socket) = socket else { return Ok(()) };
    let mut datagram = format!("<{DAEMON_WARNING}>sumfs[{}]: ", std::process::id()).into_bytes();
    datagram.extend_from_slice(message.trim_ascii());
    // Addressed each time: the syslog daemon may have been restarted meanwhile.
    socket.send_to(&datagram, "/dev/log").map(|_| ())
}
