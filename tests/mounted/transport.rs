//! Requests over io_uring and out of /dev/fuse: both serve the same, the second where the first is not possible, and whatever ends a
//! mount that has rings (a kill, SIGTERM, a panic) ends it without anybody waiting for ever.

use crate::content::{self, assert_same, pattern};
use crate::mount::{Mount, require_root_and_fuse, run, scratch};
use crate::writers::PATIENCE;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use sumfs::disk::Disk;
use sumfs::disk::memory::MemoryDisk;
use sumfs::disk::over::OverDisk;
use sumfs::disk::superblock::SUPERBLOCK_BYTES;
use sumfs::error::Result;
use sumfs::fs::{Caller, Filesystem, Options, WaitInline, WriteFlags};
use sumfs::fuse::session::{self, SessionOptions, Transport};
use sumfs::lock::Wait;
use sumfs::store::{Disks, FormatOptions, format};
use sumfs::units::InodeNumber;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

fn pid_of(mount: &Mount) -> i32 {
    i32::try_from(mount.info()["pid"].as_i64().unwrap()).unwrap()
}

/// Threads of the daemon that take requests: of rings, and of /dev/fuse.
fn serving_threads(mount: &Mount) -> (usize, usize) {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid_of(mount))).unwrap();
    // Others may end while they are looked at.
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    let (rings, readers): (Vec<String>, Vec<String>) =
        names.filter(|name| name.starts_with("sumfs-serve-")).partition(|name| name.starts_with("sumfs-serve-r"));
    (rings.len(), readers.len())
}

/// Runs `work`, which may fail but must not hang.
fn ends(what: &str, work: impl FnOnce() + Send + 'static) {
    let (done, wait) = channel();
    std::thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    wait.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what} hangs"));
}

#[test]
fn both_transports_serve_the_same_store() {
    let mut mount = Mount::new("transport=uring,threads=3");
    let (rings, readers) = serving_threads(&mount);
    assert!(rings >= std::thread::available_parallelism().unwrap().get() && readers == 1, "{rings} rings, {readers} readers");
    content::write_and_read(&mount.path());
    fs::write(mount.path().join("from a ring"), pattern(3 << 20, 1)).unwrap();
    mount.set_options("transport=device,threads=3");
    mount.remount();
    assert_eq!(serving_threads(&mount), (0, 3));
    assert_same(&fs::read(mount.path().join("from a ring")).unwrap(), &pattern(3 << 20, 1), "written over a ring");
    content::overwrite_and_append(&mount.path());
}

#[test]
fn without_the_kernels_switch_requests_come_out_of_the_device() {
    let mut mount = Mount::new("transport=device");
    let (off, script) = (mount.beside("off"), mount.beside("script"));
    mount.umount();
    fs::write(&off, "N\n").unwrap();
    // In mounts of its own, where nobody can turn it on.
    let text = r#"set -e
        mount --bind "$OFF" "$SWITCH"; mount -o remount,ro,bind "$SWITCH"
        "$SUMFS" mount "$STORE" "$MNT" -o transport=auto --log "$LOG"
        echo hello > "$MNT/a"; test "$(cat "$MNT/a")" = hello
        "$SUMFS" umount "$MNT"
        grep -q "out of /dev/fuse" "$LOG"
        if "$SUMFS" mount "$STORE" "$MNT" -o transport=uring 2> "$LOG"; then exit 7; fi
        grep -q "io_uring is not possible here.*transport=auto" "$LOG"; ! findmnt "$MNT""#;
    fs::write(&script, text).unwrap();
    let paths = [("STORE", mount.store()), ("MNT", mount.path()), ("LOG", mount.beside("said")), ("OFF", off)];
    let mut arguments =
        vec!["-m".to_owned(), "env".to_owned(), format!("SWITCH={SWITCH}"), format!("SUMFS={}", crate::mount::SUMFS)];
    arguments.extend(paths.iter().map(|(name, path)| format!("{name}={}", path.display())));
    arguments.extend(["sh".to_owned(), script.display().to_string()]);
    run("unshare", &arguments).expect_success();
    mount.mount();
    assert_eq!(fs::read(mount.path().join("a")).unwrap(), b"hello\n");
}

#[test]
fn the_switch_is_put_back() {
    let before = fs::read(SWITCH).unwrap();
    let mount = Mount::new("transport=uring");
    // Another test may be mounting at this moment.
    let begin = Instant::now();
    while fs::read(SWITCH).unwrap() != before {
        assert!(begin.elapsed() < PATIENCE, "the switch stays on");
        std::thread::yield_now();
    }
    drop(mount);
}

#[test]
fn a_killed_daemon_leaves_nobody_waiting() {
    let mut mount = Mount::new("transport=uring,nowait=off,wait-inline=off");
    let root = mount.path();
    fs::write(root.join("kept"), pattern(100_000, 1)).unwrap();
    File::open(root.join("kept")).unwrap().sync_all().unwrap();
    let place = root.clone();
    let (begun, wait) = channel();
    let is_over = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..4)
        .map(|number| {
            let (place, begun) = (place.join(format!("worker-{number}")), begun.clone());
            let is_over = is_over.clone();
            // Until the mount is gone: what is written behind it, into the directory below, is no mistake of the mount's.
            std::thread::spawn(move || {
                let work = |round: u64| -> io::Result<()> {
                    fs::write(&place, pattern(300_000, round))?;
                    File::open(&place)?.sync_all()
                };
                let mut round = 0;
                while work(round).is_ok() && !is_over.load(SeqCst) {
                    round += 1;
                    let _ = begun.send(());
                }
            })
        })
        .collect();
    (0..8).for_each(|_| wait.recv_timeout(PATIENCE).unwrap());
    mount.kill();
    is_over.store(true, SeqCst);
    ends("a writer on a mount whose daemon was killed", move || workers.into_iter().for_each(|worker| worker.join().unwrap()));
    mount.mount();
    assert_same(&fs::read(root.join("kept")).unwrap(), &pattern(100_000, 1), "what was synced");
}

#[test]
fn sigterm_ends_rings_too() {
    let mut mount = Mount::new("transport=uring");
    fs::write(mount.path().join("file"), pattern(100_000, 2)).unwrap();
    let pid = Pid::from_raw(pid_of(&mount)).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let begin = Instant::now();
    while test_kill_process(pid).is_ok() {
        assert!(begin.elapsed() < PATIENCE, "the daemon does not end");
        std::thread::yield_now();
    }
    mount.mount();
    assert_same(&fs::read(mount.path().join("file")).unwrap(), &pattern(100_000, 2), "after SIGTERM");
}

#[test]
fn deep_queues_of_direct_io_are_right() {
    for options in ["transport=uring", "transport=uring,cache=none,wait-inline=off"] {
        let mount = Mount::new(options);
        let target = mount.path().join("target");
        let job = [
            "--name=deep",
            "--rw=randwrite",
            "--bs=4k",
            "--size=24M",
            "--direct=1",
            "--ioengine=libaio",
            "--iodepth=64",
            "--verify_state_save=0",
        ];
        let verify = ["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--randseed=7"];
        let file = format!("--filename={}", target.display());
        run("fio", &[&job[..], &verify[..], &[&file]].concat()).expect_success();
    }
}

#[test]
fn many_fsyncs_at_once_keep_what_they_promised() {
    const WRITERS: u64 = 8;
    const ROUNDS: u64 = 40;
    let mut mount = Mount::new("transport=uring");
    let root = mount.path();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let file = File::create(root.join(format!("log-{writer}"))).unwrap();
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    file.write_all_at(&pattern(4096, writer * ROUNDS + round), round * 4096).unwrap();
                    file.sync_data().unwrap();
                }
            });
        }
    });
    mount.kill();
    mount.mount();
    for writer in 0..WRITERS {
        let found = fs::read(root.join(format!("log-{writer}"))).unwrap();
        let expected: Vec<u8> = (0..ROUNDS).flat_map(|round| pattern(4096, writer * ROUNDS + round)).collect();
        assert_same(&found, &expected, &format!("writer {writer}"));
    }
}

#[test]
fn answers_of_workers_reach_their_rings() {
    let mount = Mount::new("transport=uring,cache=none,nowait=off,wait-inline=off");
    content::write_and_read(&mount.path());
    content::many_writers(&mount.path());
    content::direct_io(&mount.path());
    content::copy(&mount.path());
    assert!(mount.info()["counters"]["requests"]["worker_jobs"].as_u64().is_none_or(|jobs| jobs > 0));
}

/// A disk that panics when it is read, once, when told to.
#[derive(Debug)]
struct TrapDisk {
    inner: MemoryDisk,
    is_set: Arc<AtomicBool>,
}

impl OverDisk for TrapDisk {
    fn below(&self) -> &dyn Disk {
        &self.inner
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        assert!(!self.is_set.swap(false, SeqCst), "on purpose: the device is read");
        self.inner.read_at(offset, into)
    }
}

/// A store in memory with two files that are not in any cache, and the trap on its device.
fn trapped_store() -> (Arc<Filesystem>, Arc<AtomicBool>) {
    let is_set = Arc::new(AtomicBool::new(false));
    let device = TrapDisk { inner: MemoryDisk::new("device", 64 << 20), is_set: is_set.clone() };
    (store_on(device, Options::default()), is_set)
}

/// A store in memory on this device, with two files that are not in any cache.
fn store_on(device: impl Disk + 'static, options: Options) -> Arc<Filesystem> {
    let memory = |name: &str, len| -> Arc<dyn Disk> { Arc::new(MemoryDisk::new(name, len)) };
    let disks = Disks {
        superblock: memory("superblock", SUPERBLOCK_BYTES),
        journal: memory("journal", 2 << 20),
        index: memory("index", 0),
        sled: None,
        devices: vec![Arc::new(device)],
        images: None,
    };
    format(&disks, &FormatOptions::default(), &["device".to_owned()], None).unwrap();
    let fs = Filesystem::open(disks.clone(), Options::default()).unwrap();
    for name in ["a", "b"] {
        let made = fs.mknod(&Caller::ROOT, InodeNumber::ROOT, name.as_bytes(), libc::S_IFREG | 0o644, 0, 0).unwrap();
        fs.write(&Caller::ROOT, made.inode, 0, &pattern(50_000, 3), WriteFlags::default(), Wait::Allowed).unwrap();
    }
    fs.shutdown().unwrap();
    Filesystem::open(disks, Options { kernel_caches: true, ..options }).unwrap()
}

/// A disk that answers no read before so many are waiting.
#[derive(Debug)]
struct GatheringDisk {
    inner: MemoryDisk,
    to_come: Arc<AtomicUsize>,
}

impl OverDisk for GatheringDisk {
    fn below(&self) -> &dyn Disk {
        &self.inner
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let _ = self.to_come.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        let begin = Instant::now();
        while self.to_come.load(SeqCst) > 0 {
            assert!(begin.elapsed() < PATIENCE / 2, "{} reads have not come", self.to_come.load(SeqCst));
            std::thread::sleep(Duration::from_millis(1));
        }
        self.inner.read_at(offset, into)
    }
}

#[test]
fn one_cpu_has_as_many_requests_at_the_device_as_there_are_workers() {
    const READERS: usize = 14;
    require_root_and_fuse();
    let directory = scratch();
    let mountpoint = directory.path().canonicalize().unwrap();
    let to_come = Arc::new(AtomicUsize::new(0));
    let device = GatheringDisk { inner: MemoryDisk::new("device", 64 << 20), to_come: to_come.clone() };
    let fs = store_on(device, Options { wait_inline: WaitInline::Off, ..Options::default() });
    let options = SessionOptions { transport: Transport::Uring, handle_signals: false, ..SessionOptions::default() };
    let (said, ready) = channel();
    let (served, place) = (fs.clone(), mountpoint.clone());
    let server = std::thread::spawn(move || session::serve(served, &place, &options, || said.send(()).unwrap()));
    ready.recv_timeout(PATIENCE).unwrap();
    to_come.store(READERS, SeqCst);
    // No file has more than half of the workers.
    let files = ["a", "b"].map(|name| mountpoint.join(name));
    ends("reading with many threads on one CPU", move || {
        std::thread::scope(|scope| {
            for others in 0..READERS {
                let file = &files[others % files.len()];
                while to_come.load(SeqCst) > READERS - others {
                    std::thread::yield_now();
                }
                scope.spawn(move || {
                    let here = sched_getaffinity(None).unwrap();
                    let mut one = CpuSet::new();
                    one.set((0..CpuSet::MAX_CPU).find(|cpu| here.is_set(*cpu)).unwrap());
                    sched_setaffinity(None, &one).unwrap();
                    assert_eq!(direct_read(file).unwrap(), 4096);
                });
            }
        });
    });
    session::request_unmount(&mountpoint).unwrap();
    ends("unmounting", move || server.join().unwrap().unwrap());
    fs.shutdown().unwrap();
}

fn direct_read(path: &Path) -> io::Result<usize> {
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let mut space = vec![0; 2 * 4096];
    file.read_at(content::aligned(&mut space, 4096), 0)
}

#[test]
fn a_panic_on_a_ring_answers_with_an_error() {
    require_root_and_fuse();
    let directory = scratch();
    let mountpoint = directory.path().canonicalize().unwrap();
    for transport in [Transport::Uring, Transport::Device] {
        let (fs, is_set) = trapped_store();
        let options = SessionOptions { transport, handle_signals: false, ..SessionOptions::default() };
        let (said, ready) = channel();
        let (served, place) = (fs.clone(), mountpoint.clone());
        let server = std::thread::spawn(move || session::serve(served, &place, &options, || said.send(()).unwrap()));
        ready.recv_timeout(PATIENCE).unwrap();
        assert_eq!(direct_read(&mountpoint.join("b")).unwrap(), 4096);
        is_set.store(true, SeqCst);
        let error = direct_read(&mountpoint.join("a")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{transport:?}");
        assert_eq!(direct_read(&mountpoint.join("a")).unwrap(), 4096, "the thread goes on");
        // The error is answered while the panic unwinds, the latch set behind it.
        let begin = Instant::now();
        while fs.read_only_reason().is_none() {
            assert!(begin.elapsed() < PATIENCE, "{transport:?}: the store goes on as if nothing had been");
            std::thread::yield_now();
        }
        assert!(fs::write(mountpoint.join("c"), "x").is_err(), "read-only from then on");
        assert!(fs.read_only_reason().unwrap().contains("the device is read"), "{transport:?}");
        session::request_unmount(&mountpoint).unwrap();
        ends("unmounting after a panic", move || server.join().unwrap().unwrap());
        fs.shutdown().unwrap_err();
    }
}
