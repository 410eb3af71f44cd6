//! Eight streaming readers, each of a file of its own, from the device: throughput of all, and how long a read takes until it is
//! complete: mean, spread, and how far the slowest reader is behind. In the order submitted against reversed (large reads verified
//! from the end, the newest request first), as the btrfs thread compared the order in which read pages are finished.

#[path = "bench.rs"]
mod bench;
#[path = "../common/mount.rs"]
#[allow(dead_code)]
mod mount;

use bench::{Samples, table, times};
use std::path::Path;

/// Name and fio's words for it. Buffered readers live on the kernel's readahead, direct ones keep eight requests in flight.
const VARIANTS: [(&str, &str); 3] = [
    ("buffered, 128k reads", "--ioengine=psync --direct=0 --bs=128k"),
    ("O_DIRECT, 128k, QD 8", "--ioengine=libaio --direct=1 --bs=128k --iodepth=8"),
    ("O_DIRECT, 1m, QD 8", "--ioengine=libaio --direct=1 --bs=1m --iodepth=8"),
];

fn arguments(variant: &str, directory: &str) -> Vec<String> {
    let job = format!(
        "--directory={directory} --filename_format=r$jobnum --numjobs=8 --rw=read --size=96m {variant} --time_based --runtime=1s \
         --fallocate=none --invalidate=1"
    );
    job.split_whitespace().map(str::to_owned).collect()
}

const ORDERS: [&str; 2] = ["submitted", "reversed"];

fn main() {
    let command =
        format!("fio {}   (mounted with read-order=, remounted before each run)", arguments("VARIANT", "MNT").join(" "));
    bench::headline("(c) eight streaming readers, in order against reversed", &command);
    let mut mounts = ORDERS.map(|order| mount::Mount::with_size("2G", &format!("cache-size=64M,read-order={order}")));
    mounts.iter().for_each(|mounted| fill(&mounted.path()));
    let mut samples = vec![[Samples::default(), Samples::default()]; VARIANTS.len()];
    for _ in 0..bench::rounds() {
        for ((_, variant), samples) in VARIANTS.iter().zip(&mut samples) {
            for (mounted, samples) in mounts.iter_mut().zip(samples) {
                mounted.remount();
                samples.add(&run(variant, &mounted.path()));
            }
        }
    }
    let mut rows = Vec::new();
    for ((name, _), samples) in VARIANTS.iter().zip(&samples) {
        for (order, figures) in ORDERS.iter().zip(samples) {
            let mut row = vec![format!("{name}, {order}"), format!("{:.0}", figures.figure(0))];
            row.extend((1..5).map(|at| format!("{:.2}", figures.figure(at))));
            rows.push(row);
        }
    }
    table(&["", "MiB/s", "mean clat ms", "stddev ms", "p99 ms", "slowest / mean reader"], &rows);
    println!();
    for ((name, _), [ordered, reversed]) in VARIANTS.iter().zip(&samples) {
        let [throughput, mean, spread] = [0, 1, 2].map(|at| times(ordered.figure(at), reversed.figure(at)));
        println!("{name}: submitted / reversed: MiB/s {throughput}, mean {mean}, spread {spread}");
    }
}

fn fill(directory: &Path) {
    let block: Vec<u8> = (0..1 << 20).map(|at: u32| (at * 7 % 251) as u8).collect();
    for number in 0..8 {
        let file = std::fs::File::create(directory.join(format!("r{number}"))).unwrap();
        (0..96).for_each(|_| std::io::Write::write_all(&mut &file, &block).unwrap());
        file.sync_all().unwrap();
    }
}

/// MiB/s of all; mean, spread and 99th percentile of completion in ms; the slowest reader's share of the mean.
fn run(variant: &str, directory: &Path) -> [f64; 5] {
    let arguments = arguments(variant, &directory.to_string_lossy());
    let result = bench::fio(&arguments).unwrap_or_else(|| bench::no_fio());
    let bytes = bench::fio_figures(&result, "read", "/bw_bytes");
    let mean = |pointer| {
        let figures = bench::fio_figures(&result, "read", pointer);
        figures.iter().sum::<f64>() / figures.len() as f64 / 1e6
    };
    let slowest = bytes.iter().copied().fold(f64::INFINITY, f64::min);
    let total: f64 = bytes.iter().sum();
    [
        total / f64::from(1 << 20),
        mean("/clat_ns/mean"),
        mean("/clat_ns/stddev"),
        mean("/clat_ns/percentile/99.000000"),
        slowest * 8.0 / total,
    ]
}
