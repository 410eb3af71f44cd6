//! How commands talk to the daemon of a mounted store: a unix socket per store, JSON lines, one request and one reply a connection.
//!
//! ```text
//! -> {"command":"stats"}        <- {"ok":{...}}   or   {"error":"one line"}
//! ```
//! `wait` is answered twice: at once, and when the store is closed, with what closing it came to; `sumfs umount` uses it. The socket is named after the
//! store's UUID and lies in a directory that only its user can enter; the peer's uid is checked all the same: root and the daemon's
//! own user may ask, nobody else. Whoever holds the store's lock owns the socket's name, so a leftover one is simply replaced.
//!
//! Threads: one accepts (it sleeps in accept(2), so an idle daemon does nothing), one per connection answers, at most 16.

use crate::error::{Error, Result};
use parking_lot::{Mutex, RwLock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::{DirBuilder, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Connections answered at the same time; more are told to come again.
const CONNECTIONS_MAX: usize = 16;
/// The longest request line.
const REQUEST_BYTES_MAX: u64 = 16 << 10;
/// How long a client may take to send its line.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Before the next attempt to accept when that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// What may be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Command {
    /// All counters.
    Stats,
    /// What the store is.
    Info,
    /// Make everything durable, then reply.
    Sync,
    /// The daemon's process id.
    Pid,
    /// Reply at once, and again when the store is closed.
    Wait,
    /// Where the data of a file lies.
    Map {
        /// Its inode number.
        inode: u64,
    },
    /// The scrub.
    Scrub {
        /// What to do about it.
        action: ScrubAction,
        /// Bytes a second at most, for `Start` and `Resume`; 0: no limit.
        limit: Option<u64>,
    },
    /// The devices.
    Device(DeviceRequest),
    /// Check the metadata as the last commit left it.
    Check,
    /// What is known to be damaged.
    Damage {
        /// Forget it first.
        clear: bool,
    },
    /// A part of a file, whether or not it matches its checksums.
    Salvage {
        /// Its inode number.
        inode: u64,
        /// Byte offset.
        offset: u64,
        /// Bytes.
        length: u64,
    },
}

/// What is asked about the devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceRequest {
    /// All of them, and how it stands with each.
    List,
    /// One more.
    Add {
        /// Absolute.
        path: String,
        /// Bytes of a file that does not exist yet, and the most that is used of another.
        size: Option<u64>,
        /// Whatever it holds.
        force: bool,
    },
    /// Another one in the place of one.
    Replace {
        /// Id or path.
        old: String,
        /// As for `Add`.
        path: String,
        /// As for `Add`.
        size: Option<u64>,
        /// As for `Add`.
        force: bool,
    },
    /// One less.
    Remove {
        /// Id or path.
        old: String,
    },
    /// How far replacing or removing is.
    Status,
    /// Stop it for now.
    Pause,
    /// Go on with it.
    Resume,
    /// Stop it for good.
    Cancel,
}

/// What to do about the scrub. Every action is answered with its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScrubAction {
    /// Begin a new one.
    Start,
    /// Stop for now.
    Pause,
    /// Go on.
    Resume,
    /// Stop for good.
    Cancel,
    /// Nothing.
    Status,
    /// Nothing; and list all known damage.
    Report,
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    command: Command,
}

/// Answers a request; `Wait` never gets here.
pub type Answer = Arc<dyn Fn(Command) -> Result<Value> + Send + Sync>;

/// The directory for the sockets of this process's user.
pub fn socket_directory() -> Result<PathBuf> {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return Ok(PathBuf::from("/run/sumfs"));
    }
    let runtime =
        std::env::var_os("XDG_RUNTIME_DIR").map_or_else(|| PathBuf::from(format!("/run/user/{}", uid.as_raw())), PathBuf::from);
    if !runtime.is_dir() {
        return Err(Error::usage(format!("{} does not exist; set XDG_RUNTIME_DIR to a directory of yours", runtime.display())));
    }
    Ok(runtime.join("sumfs"))
}

/// The name of the socket of the store with this UUID.
pub fn socket_name(store_uuid: &uuid::Uuid) -> String {
    format!("{}.sock", store_uuid.as_hyphenated())
}

/// The daemon's side.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    path: PathBuf,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    listener: UnixListener,
    /// None: closing; nothing is asked of the file system any more.
    answer: RwLock<Option<Answer>>,
    stopping: AtomicBool,
    connections: AtomicUsize,
    /// Connections that asked to be told of the end.
    waiting: Mutex<Vec<UnixStream>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl Server {
    /// Listens at `directory/name` (the directory is made, for its user alone). The caller holds the store's lock.
    pub fn start(directory: &Path, name: &str, answer: Answer) -> Result<Server> {
        let failed = |doing: &str, path: &Path, source| Error::io(format!("{doing} {}", path.display()), source);
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(|source| failed("making", directory, source))?;
        let path = directory.join(name);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed("removing the old socket", &path, source));
            }
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(|source| failed("listening at", &path, source))?;
        let shared = Arc::new(Shared {
            listener,
            answer: RwLock::new(Some(answer)),
            stopping: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            waiting: Mutex::new(Vec::new()),
        });
        let accepting = std::thread::Builder::new().name("sumfs-control".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || accept_loop(&shared)
        });
        let accepting = accepting.map_err(|source| Error::io("starting the control thread", source))?;
        Ok(Server { shared, path, accepting: Some(accepting) })
    }

    /// No new requests, and none is being answered when this returns: the file system may now be closed.
    pub fn stop(&mut self) {
        let Some(accepting) = self.accepting.take() else { return };
        // Removed first: whoever finds the name later belongs to the next daemon.
        std::fs::remove_file(&self.path).ok();
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Wakes accept(2).
        rustix::net::shutdown(&self.shared.listener, rustix::net::Shutdown::Both).ok();
        accepting.join().ok();
        *self.shared.answer.write() = None;
    }

    /// Tells those who wait how closing the store went; its lock is free by now.
    pub fn finish(mut self, closed: &Result<()>) {
        self.stop();
        let reply = match closed {
            Ok(()) => json!({ "ok": null }),
            Err(error) => json!({ "error": error.to_string() }),
        };
        for stream in self.shared.waiting.lock().drain(..) {
            send(&stream, &reply);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn accept_loop(shared: &Arc<Shared>) {
    let (mut spare, mut is_told) = (spare_descriptor(), false);
    loop {
        let accepted = shared.listener.accept();
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        match accepted {
            Ok((stream, _)) => begin(shared, stream),
            Err(error) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!("control socket: {error}");
                }
                match spare.take().map(drop).map(|()| shared.listener.accept()) {
                    // One after another, as there is one descriptor for all of them.
                    Some(Ok((stream, _))) if !shared.stopping.load(Ordering::SeqCst) => serve(shared, stream),
                    Some(Ok(_)) => return,
                    // That passes.
                    _ => std::thread::sleep(ACCEPT_PAUSE),
                }
                spare = spare_descriptor();
            }
        }
    }
}

/// To be given up for a connection when there is no other left.
fn spare_descriptor() -> Option<File> {
    File::open("/dev/null").ok()
}

/// Gives the connection a thread of its own, so that a slow sync or a silent client holds up nobody.
fn begin(shared: &Arc<Shared>, stream: UnixStream) {
    let slot = Slot(Arc::clone(shared));
    if shared.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
        send(&stream, &json!({ "error": "busy; try again" }));
        return;
    }
    let spawned = std::thread::Builder::new().name("sumfs-control-answer".to_owned()).spawn(move || serve(&slot.0, stream));
    if let Err(error) = spawned {
        tracing::warn!("control socket: starting a thread: {error}");
    }
}

/// One of the connections; given back when dropped.
struct Slot(Arc<Shared>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

fn serve(shared: &Shared, stream: UnixStream) {
    let reply = match receive(&stream) {
        Ok(Command::Wait) => {
            let mut waiting = shared.waiting.lock();
            waiting.retain(|stream| !has_left(stream));
            send(&stream, &json!({ "ok": null }));
            waiting.push(stream);
            return;
        }
        Ok(command) => match shared.answer.read().as_ref() {
            Some(answer) => answer(command).map_err(|error| error.to_string()),
            None => Err("the store is being closed".to_owned()),
        },
        Err(message) => Err(message),
    };
    match reply {
        Ok(value) => send(&stream, &json!({ "ok": value })),
        Err(message) => send(&stream, &json!({ "error": message })),
    }
}

/// Who could not unmount what is busy waits for nothing any more, and takes no descriptor of ours with him.
fn has_left(stream: &UnixStream) -> bool {
    let mut peer = [PollFd::new(stream, PollFlags::empty())];
    poll(&mut peer, Some(&Timespec::default())).is_ok() && peer.iter().any(|peer| peer.revents().contains(PollFlags::HUP))
}

/// Checks who asks, then reads the one line.
fn receive(stream: &UnixStream) -> std::result::Result<Command, String> {
    let peer = rustix::net::sockopt::socket_peercred(stream).map_err(|error| format!("asking who calls: {error}"))?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return Err("permission denied: only root and the user who mounted may ask".to_owned());
    }
    stream.set_read_timeout(Some(REQUEST_TIMEOUT)).map_err(|error| error.to_string())?;
    let mut line = String::new();
    BufReader::new(stream.take(REQUEST_BYTES_MAX))
        .read_line(&mut line)
        .map_err(|error| format!("reading the request: {error}"))?;
    let request: Request = serde_json::from_str(&line).map_err(|error| format!("not a request: {error}"))?;
    Ok(request.command)
}

/// The peer may be gone; that is its business.
fn send(mut stream: &UnixStream, reply: &Value) {
    let mut line = reply.to_string();
    line.push('\n');
    stream.set_write_timeout(Some(REQUEST_TIMEOUT)).and_then(|()| stream.write_all(line.as_bytes())).ok();
}

/// A connection to a daemon that has been asked something.
#[derive(Debug)]
pub struct Pending {
    stream: BufReader<UnixStream>,
}

impl Pending {
    /// Asks the daemon of the store with this UUID. `Ok(None)`: no daemon listens.
    pub fn send(store_uuid: &uuid::Uuid, command: Command) -> Result<Option<Pending>> {
        let name = socket_name(store_uuid);
        let Some(stream) = directories().iter().find_map(|directory| UnixStream::connect(directory.join(&name)).ok()) else {
            return Ok(None);
        };
        let mut line =
            serde_json::to_string(&Request { command }).map_err(|error| Error::io("writing a request", error.into()))?;
        line.push('\n');
        (&stream).write_all(line.as_bytes()).map_err(|source| Error::io("asking the daemon", source))?;
        Ok(Some(Pending { stream: BufReader::new(stream) }))
    }

    /// The next reply; an error when it is one, when the daemon ends without, and after `timeout`.
    pub fn reply(&mut self, timeout: Option<Duration>) -> Result<Value> {
        let failed = |source| Error::io("waiting for the daemon's reply", source);
        self.stream.get_ref().set_read_timeout(timeout).map_err(failed)?;
        let mut line = String::new();
        if self.stream.read_line(&mut line).map_err(failed)? == 0 {
            return Err(Error::usage("the daemon ended without a reply"));
        }
        let mut reply: Value = serde_json::from_str(&line).map_err(|error| failed(error.into()))?;
        match reply.get("error").and_then(Value::as_str) {
            Some(message) => Err(Error::usage(message)),
            None => Ok(reply.get_mut("ok").map(Value::take).unwrap_or_default()),
        }
    }
}

/// Sends a request and waits for the reply. `Ok(None)`: no daemon listens.
pub fn ask(store_uuid: &uuid::Uuid, command: Command) -> Result<Option<Value>> {
    Pending::send(store_uuid, command)?.map(|mut pending| pending.reply(None)).transpose()
}

/// The stores that daemons within our reach have a socket for.
pub fn known_stores() -> Vec<uuid::Uuid> {
    let entries = directories().into_iter().filter_map(|directory| std::fs::read_dir(directory).ok()).flatten().flatten();
    let name_of = |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_suffix(".sock")?.parse().ok();
    entries.filter_map(name_of).collect()
}

/// Where to look: our own directory; root looks into those of the users as well.
fn directories() -> Vec<PathBuf> {
    let mut directories: Vec<PathBuf> = socket_directory().into_iter().collect();
    if rustix::process::geteuid().is_root() {
        let users = std::fs::read_dir("/run/user").into_iter().flatten().flatten();
        directories.extend(users.map(|user| user.path().join("sumfs")));
    }
    directories
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(directory: &Path, name: &str) -> Server {
        let answer: Answer = Arc::new(|command| match command {
            Command::Stats => Ok(json!({ "reads": 7 })),
            Command::Sync => Err(Error::usage("the disk is gone")),
            _ => Ok(Value::Null),
        });
        Server::start(directory, name, answer).unwrap()
    }

    fn exchange(path: &Path, line: &str) -> String {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    #[test]
    fn requests_are_answered_errors_are_errors_and_nonsense_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let server = start(directory.path(), "a");
        let path = directory.path().join("a");
        assert_eq!(exchange(&path, "{\"command\":\"stats\"}\n"), "{\"ok\":{\"reads\":7}}\n");
        assert_eq!(exchange(&path, "{\"command\":\"sync\"}\n"), "{\"error\":\"the disk is gone\"}\n");
        assert!(exchange(&path, "{\"command\":\"destroy\"}\n").contains("not a request"));
        assert!(exchange(&path, &"x".repeat(REQUEST_BYTES_MAX as usize)).contains("not a request"));
        drop(server);
        assert!(!path.exists());
    }

    #[test]
    fn who_waits_is_told_how_the_end_went() {
        let directory = tempfile::tempdir().unwrap();
        for (closed, expected) in [(Ok(()), "ok"), (Err(Error::usage("flush failed")), "flush failed")] {
            let server = start(directory.path(), "b");
            let mut stream = UnixStream::connect(directory.path().join("b")).unwrap();
            stream.write_all(b"{\"command\":\"wait\"}\n").unwrap();
            let mut replies = BufReader::new(stream).lines();
            assert_eq!(replies.next().unwrap().unwrap(), "{\"ok\":null}");
            server.finish(&closed);
            assert!(replies.next().unwrap().unwrap().contains(expected));
            assert!(replies.next().is_none());
        }
    }

    #[test]
    fn who_waits_no_longer_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let server = start(directory.path(), "e");
        let wait = || {
            let mut stream = UnixStream::connect(directory.path().join("e")).unwrap();
            stream.write_all(b"{\"command\":\"wait\"}\n").unwrap();
            BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            stream
        };
        (0..5).for_each(|_| drop(wait()));
        let waits = wait();
        assert_eq!(server.shared.waiting.lock().len(), 1);
        drop(waits);
    }

    #[test]
    fn stopping_waits_for_the_answer_in_progress_and_gives_the_closure_back() {
        let directory = tempfile::tempdir().unwrap();
        let (begun, begins) = std::sync::mpsc::channel();
        let (may_end, ends) = std::sync::mpsc::channel();
        let ends = Mutex::new(ends);
        let done = Arc::new(AtomicBool::new(false));
        let answer: Answer = Arc::new({
            let done = Arc::clone(&done);
            move |_| {
                begun.send(()).unwrap();
                ends.lock().recv().unwrap();
                done.store(true, Ordering::SeqCst);
                Ok(Value::Null)
            }
        });
        let mut server = Server::start(directory.path(), "d", answer).unwrap();
        let path = directory.path().join("d");
        let asking = std::thread::spawn(move || exchange(&path, "{\"command\":\"sync\"}\n"));
        begins.recv().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| may_end.send(()).unwrap());
            server.stop();
        });
        assert!(done.load(Ordering::SeqCst));
        assert_eq!(Arc::strong_count(&done), 1);
        assert!(asking.join().unwrap().contains("ok"));
    }

    #[test]
    fn a_leftover_socket_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        drop(UnixListener::bind(directory.path().join("c")).unwrap());
        let _server = start(directory.path(), "c");
        assert!(exchange(&directory.path().join("c"), "{\"command\":\"pid\"}\n").contains("ok"));
    }
}
