//! Sockets, fifos and what watches files, as public bug reports tell of them (C..: the number of the report's case); each on a fresh
//! mount, run by [`smoke`](crate::smoke).

use crate::mount::run;
use rustix::fs::inotify;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;

/// Unix sockets of both kinds can be bound and connected to (C85).
pub fn unix_sockets(root: &Path) {
    // A path of a socket has at most 107 bytes: go there.
    let path = root.join("s");
    let listener = UnixListener::bind(&path).unwrap();
    assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket());
    std::thread::scope(|scope| {
        scope.spawn(|| listener.accept().unwrap().0.write_all(b"through the socket").unwrap());
        let mut found = String::new();
        UnixStream::connect(&path).unwrap().read_to_string(&mut found).unwrap();
        assert_eq!(found, "through the socket");
    });
    assert!(UnixListener::bind(&path).is_err(), "the name is taken");
    fs::rename(&path, root.join("r")).unwrap();
    UnixStream::connect(root.join("r")).unwrap();
    fs::hard_link(root.join("r"), root.join("h")).unwrap();
    UnixStream::connect(root.join("h")).unwrap();
    drop(listener);
    let refused = UnixStream::connect(root.join("h")).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let (one, other) = (UnixDatagram::bind(root.join("1")).unwrap(), UnixDatagram::bind(root.join("2")).unwrap());
    one.send_to(b"datagram", root.join("2")).unwrap();
    let mut found = [0; 20];
    assert_eq!(other.recv(&mut found).unwrap(), 8);
    assert!(File::open(root.join("1")).is_err(), "a socket cannot be opened");
}

/// Fifos without privilege, devices not (C85).
pub fn special_files_without_privilege(root: &Path) {
    fs::set_permissions(root, fs::Permissions::from_mode(0o777)).unwrap();
    let as_nobody = |arguments: &[&str]| {
        let who = ["--reuid=65534", "--regid=65534", "--clear-groups", "--", "env", "-C", root.to_str().unwrap()];
        run("setpriv", &[&who[..], arguments].concat())
    };
    as_nobody(&["mkfifo", "fifo"]).expect_success();
    assert!(fs::symlink_metadata(root.join("fifo")).unwrap().file_type().is_fifo());
    for (name, kind) in [("character", "c"), ("block", "b")] {
        let refused = as_nobody(&["mknod", name, kind, "1", "3"]);
        assert!(refused.code != 0 && refused.stderr.contains("Operation not permitted"), "{refused:?}");
        assert!(!root.join(name).exists());
    }
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Who watches a directory sees everything that happens through the same mount, in order (C86).
pub fn watching_a_directory(root: &Path) {
    use inotify::{ReadFlags as Event, WatchFlags};
    let (watched, other) = (root.join("watched"), root.join("other"));
    fs::create_dir(&watched).unwrap();
    fs::create_dir(&other).unwrap();
    let watching = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watching, &watched, WatchFlags::ALL_EVENTS & !WatchFlags::ACCESS).unwrap();
    let (one, two) = (watched.join("one"), watched.join("two"));
    fs::write(&one, "one").unwrap();
    fs::set_permissions(&one, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(&one, &two).unwrap();
    fs::rename(&two, other.join("away")).unwrap();
    fs::rename(other.join("away"), &one).unwrap();
    fs::hard_link(&one, &two).unwrap();
    fs::create_dir(watched.join("directory")).unwrap();
    fs::remove_dir(watched.join("directory")).unwrap();
    fs::read(&one).unwrap();
    fs::remove_file(&one).unwrap();
    let mut buffer = [MaybeUninit::uninit(); 16 << 10];
    let mut reader = inotify::Reader::new(&watching, &mut buffer);
    let mut seen = Vec::new();
    while let Ok(event) = reader.next() {
        let name = event.file_name().map(|name| name.to_str().unwrap().to_owned()).unwrap_or_default();
        seen.push((event.events() & !Event::ISDIR, name));
    }
    let expected = [
        (Event::CREATE, "one"),
        (Event::OPEN, "one"),
        (Event::MODIFY, "one"),
        (Event::CLOSE_WRITE, "one"),
        (Event::ATTRIB, "one"),
        (Event::MOVED_FROM, "one"),
        (Event::MOVED_TO, "two"),
        (Event::MOVED_FROM, "two"),
        (Event::MOVED_TO, "one"),
        (Event::CREATE, "two"),
        (Event::CREATE, "directory"),
        (Event::DELETE, "directory"),
        (Event::OPEN, "one"),
        (Event::CLOSE_NOWRITE, "one"),
        (Event::DELETE, "one"),
    ];
    let seen: Vec<(Event, &str)> = seen.iter().map(|(event, name)| (*event, name.as_str())).collect();
    assert_eq!(seen, expected);
}
