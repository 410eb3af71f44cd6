//! The table of the 2022 series (buffered writes with nowait): 4 KiB sequential buffered writes at queue depth 1, nowait on and off.
//! In process, without the kernel: the caller stands for a reading thread and for the application, so a write that the pool does costs
//! two hand-overs, as it did in the kernel. And over FUSE, where each request costs two context switches whatever we do.

#[path = "bench.rs"]
mod bench;
#[path = "../common/mount.rs"]
#[allow(dead_code)]
mod mount;

use bench::{Samples, table, times};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use sumfs::fs::{Caller, Filesystem, Options, WriteFlags};
use sumfs::fuse::dispatch::{Dispatcher, Write};
use sumfs::store::{CreateOptions, StoreDirectory};
use sumfs::units::InodeNumber;

const BLOCK: usize = 4096;
/// The file is written over and over.
const FILE_BYTES: u64 = 64 << 20;
const IN_PROCESS: Duration = Duration::from_millis(500);
/// Short runs, so more of them.
const RUNS_PER_ROUND: usize = 3;

fn main() {
    in_process();
    over_fuse();
}

fn in_process() {
    bench::headline(
        "(a) 4 KiB sequential buffered writes, QD 1, in process (dispatch without FUSE)",
        "cargo bench --bench nowait",
    );
    let mut samples = [Samples::default(), Samples::default()];
    for _ in 0..RUNS_PER_ROUND * bench::rounds() {
        for (nowait, samples) in [true, false].into_iter().zip(&mut samples) {
            samples.add(&write_in_process(nowait));
        }
    }
    let row = |name: &str, samples: &Samples| {
        let mut row = vec![name.to_owned(), format!("{:.0}", samples.figure(0) / 1000.0)];
        row.extend((1..5).map(|at| format!("{:.2}", samples.figure(at))));
        row
    };
    table(
        &["nowait", "kIOPS", "mean completion us", "median us", "CPU us a write", "refused %"],
        &[row("on", &samples[0]), row("off", &samples[1])],
    );
    let [iops, median, cpu] = [0, 2, 3].map(|at| times(samples[0].figure(at), samples[1].figure(at)));
    let faster = times(samples[1].figure(2), samples[0].figure(2));
    println!("\non / off: IOPS {iops}, median completion {median} ({faster} times as fast), CPU {cpu}");
    println!("(IOPS and means of a busy machine say little; the median and the CPU time hold on it too. CPU counts writeback.)");
}

/// CPU time of this process so far, in microseconds (in steps of clock ticks).
fn cpu_us() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let behind_name: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: f64 = behind_name[11..13].iter().filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    ticks * 10_000.0
}

/// IOPS; mean and median time to completion, and CPU time of a write, in microseconds; percent that were refused at first.
fn write_in_process(nowait: bool) -> [f64; 5] {
    let directory = tempfile::tempdir_in(bench::directory()).unwrap();
    let path = directory.path().join("store");
    StoreDirectory::create(&path, CreateOptions { size: Some(4 << 30), ..CreateOptions::default() }).unwrap();
    let store = StoreDirectory::open(&path, false, None).unwrap();
    let fs = Filesystem::open(store.disks().clone(), Options { nowait, ..Options::default() }).unwrap();
    let file = fs.mknod(&Caller::ROOT, InodeNumber::ROOT, b"f", 0o100_644, 0, 0).unwrap().inode;
    let dispatcher = Dispatcher::new(fs.clone(), 1, 16, nowait).unwrap();
    let data = vec![0x5a; BLOCK];
    let (done, completed) = mpsc::channel();
    let begin = Instant::now();
    let cpu_before = cpu_us();
    let mut writes = 0u64;
    let mut completion_us: Vec<f64> = Vec::with_capacity(1 << 20);
    while begin.elapsed() < IN_PROCESS {
        let _busy = dispatcher.enter();
        let asked = Instant::now();
        let done = done.clone();
        let offset = writes * BLOCK as u64 % FILE_BYTES;
        let write = Write { caller: Caller::ROOT, inode: file, offset, flags: WriteFlags::default() };
        dispatcher.write(write, &data, move |result| drop(done.send(result)));
        completed.recv().unwrap().unwrap();
        completion_us.push(asked.elapsed().as_nanos() as f64 / 1000.0);
        writes += 1;
    }
    let iops = writes as f64 / begin.elapsed().as_secs_f64();
    let cpu = (cpu_us() - cpu_before) / writes as f64;
    let refused: u64 = fs.stats().refusals.iter().map(|count| count.load(Relaxed)).sum();
    drop(dispatcher);
    fs.shutdown().unwrap();
    let mean = completion_us.iter().sum::<f64>() / writes as f64;
    [iops, mean, bench::median(completion_us), cpu, refused as f64 * 100.0 / writes as f64]
}

const ENGINES: [&str; 3] = ["psync", "libaio", "io_uring"];

fn arguments(engine: &str, file: &str) -> Vec<String> {
    let job = format!(
        "--filename={file} --rw=write --bs=4k --size=128m --ioengine={engine} --iodepth=1 --direct=0 --time_based --runtime=1s \
         --ramp_time=200ms --fallocate=none"
    );
    job.split_whitespace().map(str::to_owned).collect()
}

fn over_fuse() {
    let command = format!("fio {}   (mounted with cache=, nowait=)", arguments("ENGINE", "MNT/f").join(" "));
    bench::headline("(a) 4 KiB sequential buffered writes, QD 1, over FUSE", &command);
    let mut rows = Vec::new();
    for cache in ["none", "writeback"] {
        let mounts: Vec<mount::Mount> =
            ["on", "off"].into_iter().map(|nowait| mount::Mount::new(&format!("cache={cache},nowait={nowait}"))).collect();
        let mut samples = vec![[Samples::default(), Samples::default()]; ENGINES.len()];
        for _ in 0..bench::rounds() {
            for (engine, samples) in ENGINES.into_iter().zip(&mut samples) {
                for (mounted, samples) in mounts.iter().zip(samples) {
                    let file = mounted.path().join("f");
                    let result = bench::fio(&arguments(engine, &file.to_string_lossy())).unwrap_or_else(|| bench::no_fio());
                    let first = |pointer| bench::fio_figures(&result, "write", pointer).first().copied().unwrap_or_default();
                    samples.add(&[first("/iops"), first("/lat_ns/mean") / 1000.0]);
                }
            }
        }
        for (engine, [on, off]) in ENGINES.into_iter().zip(&samples) {
            rows.push(vec![
                format!("cache={cache}, {engine}"),
                format!("{:.1}", on.figure(0) / 1000.0),
                format!("{:.1}", off.figure(0) / 1000.0),
                times(on.figure(0), off.figure(0)),
                format!("{:.1}", on.figure(1)),
                format!("{:.1}", off.figure(1)),
            ]);
        }
    }
    table(&["", "kIOPS on", "kIOPS off", "on / off", "mean us on", "mean us off"], &rows);
}
