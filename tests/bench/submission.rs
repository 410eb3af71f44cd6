//! How to hand I/O to the kernel: blocking calls from threads against io_uring, for what writeback and reads do, by themselves and
//! without sumfs around them. On a tmpfs, in a directory on a disk (`BENCH_DISK`), and on a loop device over the tmpfs (root only),
//! all with O_DIRECT. The threads exist beforehand and take their work from one list, as the daemon's do.
//!
//! Unsafe: a ring is given addresses of buffers; they live until the last completion was reaped.
#![allow(unsafe_code)]

#[path = "bench.rs"]
mod bench;
#[path = "../common/mount.rs"]
#[allow(dead_code)]
mod mount;

use bench::{Samples, table, times};
use io_uring::{IoUring, opcode, types};
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{Error, IoSlice, IoSliceMut, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use sumfs::disk::buffer::AlignedBuffer;

const FILE_BYTES: u64 = 256 << 20;
const IN_FLIGHT: usize = 16;
/// A job is run so often in a row.
const REPEATS: usize = 20;
const THREADS: usize = 4;

/// So many reads or writes of one size.
#[derive(Clone, Copy)]
struct Job {
    name: &'static str,
    is_write: bool,
    is_sequential: bool,
    count: usize,
    bytes: usize,
}

const JOBS: [Job; 3] = [
    Job { name: "64 writes of 1 MiB, in order", is_write: true, is_sequential: true, count: 64, bytes: 1 << 20 },
    Job { name: "256 random reads of 4 KiB", is_write: false, is_sequential: false, count: 256, bytes: 4096 },
    Job { name: "256 random writes of 4 KiB", is_write: true, is_sequential: false, count: 256, bytes: 4096 },
];

impl Job {
    fn offsets(&self) -> Vec<u64> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % (FILE_BYTES / self.bytes as u64)
        };
        let number = |at: usize| if self.is_sequential { at as u64 } else { random() };
        (0..self.count).map(number).map(|number| number * self.bytes as u64).collect()
    }

    fn buffer(&self) -> AlignedBuffer {
        AlignedBuffer::copy_of(&vec![0x5a; self.bytes])
    }
}

/// Something to read from and write to.
struct Place {
    name: String,
    file: std::result::Result<File, String>,
}

impl Place {
    fn open(name: String, path: &Path) -> Place {
        let mut options = File::options();
        options.read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32);
        Place { name, file: options.open(path).map_err(|error| format!("O_DIRECT: {error}")) }
    }
}

fn filled(path: &Path) {
    let file = File::create(path).unwrap();
    let block = vec![1; 1 << 20];
    (0..FILE_BYTES >> 20).for_each(|_| std::io::Write::write_all(&mut &file, &block).unwrap());
    file.sync_all().unwrap();
}

/// Seconds of one job done by `threads` threads with blocking calls.
fn with_threads(file: &File, job: &Job, threads: usize) -> f64 {
    let offsets = job.offsets();
    let barrier = Barrier::new(threads + 1);
    let next = AtomicUsize::new(usize::MAX);
    let work = || {
        let mut buffer = job.buffer();
        for _ in 0..REPEATS {
            barrier.wait();
            while let Some(offset) = offsets.get(next.fetch_add(1, Ordering::Relaxed)) {
                let done = if job.is_write {
                    rustix::io::pwritev(file, &[IoSlice::new(&buffer)], *offset)
                } else {
                    rustix::io::preadv(file, &mut [IoSliceMut::new(&mut buffer)], *offset)
                };
                assert_eq!(done.unwrap(), job.bytes, "a short transfer");
            }
            barrier.wait();
        }
    };
    let mut seconds = 0.0;
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| drop(scope.spawn(work)));
        for _ in 0..REPEATS {
            next.store(0, Ordering::Relaxed);
            let begin = Instant::now();
            barrier.wait();
            barrier.wait();
            seconds += begin.elapsed().as_secs_f64();
        }
    });
    seconds / REPEATS as f64
}

/// Seconds of one job by one thread with a ring, `IN_FLIGHT` at a time.
fn with_ring(file: &File, job: &Job) -> Result<f64> {
    let mut ring = IoUring::new(IN_FLIGHT as u32 * 2)?;
    let offsets = job.offsets();
    let mut buffers: Vec<AlignedBuffer> = (0..IN_FLIGHT).map(|_| job.buffer()).collect();
    let begin = Instant::now();
    for _ in 0..REPEATS {
        let mut left = offsets.iter();
        let mut idle: Vec<usize> = (0..IN_FLIGHT).collect();
        loop {
            while let Some(slot) = idle.pop() {
                let Some(offset) = left.next() else {
                    idle.push(slot);
                    break;
                };
                let (fd, at) = (types::Fd(file.as_raw_fd()), buffers[slot].as_mut_ptr());
                let entry = if job.is_write {
                    opcode::Write::new(fd, at, job.bytes as u32).offset(*offset).build()
                } else {
                    opcode::Read::new(fd, at, job.bytes as u32).offset(*offset).build()
                };
                // SAFETY: the buffer of a slot outlives the ring's use of it: the slot is idle again only after its completion
                // was reaped, and the loop ends only when all are idle. The file is borrowed for as long.
                unsafe { ring.submission().push(&entry.user_data(slot as u64)) }.map_err(Error::other)?;
            }
            if idle.len() == IN_FLIGHT {
                break;
            }
            ring.submit_and_wait(1)?;
            for completion in ring.completion() {
                assert_eq!(completion.result(), job.bytes as i32, "a short or failed transfer");
                idle.push(completion.user_data() as usize);
            }
        }
    }
    Ok(begin.elapsed().as_secs_f64() / REPEATS as f64)
}

fn fstype(path: &Path) -> String {
    let ran = mount::run("df", &["--output=fstype", &path.to_string_lossy()]);
    ran.stdout.lines().last().unwrap_or("unknown").trim().to_owned()
}

/// An attached loop device.
struct Loop(PathBuf);

impl Loop {
    fn attach(image: &Path) -> std::result::Result<Loop, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root".to_owned());
        }
        let ran = mount::run("losetup", &["--find", "--show", "--direct-io=on", &image.to_string_lossy()]);
        if ran.code == 0 { Ok(Loop(ran.stdout.trim().into())) } else { Err(ran.stderr.trim().to_owned()) }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        mount::run("losetup", &["--detach", &self.0.to_string_lossy()]);
    }
}

/// The rows of one place.
fn measure(place: &Place) -> Vec<Vec<String>> {
    let explain = |text: &str| vec![place.name.clone(), text.to_owned(), "-".into(), "-".into(), "-".into()];
    let file = match &place.file {
        Ok(file) => file,
        Err(reason) => return vec![explain(reason)],
    };
    let refused = IoUring::new(2).err().map(|error| explain(&format!("io_uring refused: {error}")));
    let has_ring = refused.is_none();
    let mut rows: Vec<Vec<String>> = refused.into_iter().collect();
    for job in &JOBS {
        let mut samples = [Samples::default(), Samples::default(), Samples::default()];
        for _ in 0..bench::rounds() {
            let [one, several, ring] = &mut samples;
            one.add(&[with_threads(file, job, 1)]);
            several.add(&[with_threads(file, job, THREADS)]);
            if has_ring {
                ring.add(&[with_ring(file, job).unwrap()]);
            }
        }
        let [one, several, ring] = samples.map(|samples| samples.figure(0));
        let mut row = vec![format!("{}: {}", place.name, job.name)];
        row.extend([one, several, ring].map(|seconds| if seconds > 0.0 { format!("{:.0}", seconds * 1e6) } else { "-".into() }));
        row.push(times(one.min(several), ring));
        rows.push(row);
    }
    rows
}

fn main() {
    bench::headline(
        &format!("threads against io_uring, O_DIRECT, {IN_FLIGHT} in flight in the ring: microseconds for the whole job"),
        "BENCH_DISK=DIRECTORY cargo bench --bench submission",
    );
    let disk = std::env::var_os("BENCH_DISK").map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from);
    let (memory, disk) = (tempfile::tempdir_in(bench::directory()).unwrap(), tempfile::tempdir_in(disk).unwrap());
    let mut places = Vec::new();
    for directory in [memory.path(), disk.path()] {
        let path = directory.join("file");
        filled(&path);
        places.push(Place::open(fstype(directory), &path));
    }
    let attached = Loop::attach(&memory.path().join("file"));
    let name = format!("loop on {}", fstype(memory.path()));
    places.push(match &attached {
        Ok(device) => Place::open(name, &device.0),
        Err(reason) => Place { name, file: Err(reason.clone()) },
    });
    let rows: Vec<Vec<String>> = places.iter().flat_map(measure).collect();
    let several = format!("{THREADS} threads");
    table(&["", "1 thread", &several, "io_uring", "better threads / io_uring"], &rows);
}
