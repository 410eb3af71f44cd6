//! Eight streaming readers, each of a file of its own, from the device: throughput of all, and how long a read takes until it is
//! complete: mean, spread, and how far the slowest reader is behind.

#[path = "bench.rs"]
mod bench;
#[path = "../common/mount.rs"]
#[allow(dead_code)]
mod mount;

use bench::{Samples, table};

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

fn main() {
    let command = format!("fio {}   (remounted before each run)", arguments("VARIANT", "MNT").join(" "));
    bench::headline("(c) eight streaming readers", &command);
    let mut mounted = mount::Mount::with_size("2G", "cache-size=64M");
    let directory = mounted.path().to_string_lossy().into_owned();
    let block: Vec<u8> = (0..1 << 20).map(|at: u32| (at * 7 % 251) as u8).collect();
    for number in 0..8 {
        let file = std::fs::File::create(mounted.path().join(format!("r{number}"))).unwrap();
        (0..96).for_each(|_| std::io::Write::write_all(&mut &file, &block).unwrap());
        file.sync_all().unwrap();
    }
    let mut samples = vec![Samples::default(); VARIANTS.len()];
    for _ in 0..bench::rounds() {
        for ((_, variant), samples) in VARIANTS.iter().zip(&mut samples) {
            mounted.remount();
            let result = bench::fio(&arguments(variant, &directory)).unwrap_or_else(|| bench::no_fio());
            let bytes = bench::fio_figures(&result, "read", "/bw_bytes");
            let mean = |pointer| {
                let figures = bench::fio_figures(&result, "read", pointer);
                figures.iter().sum::<f64>() / figures.len() as f64 / 1e6
            };
            let slowest = bytes.iter().copied().fold(f64::INFINITY, f64::min);
            let total: f64 = bytes.iter().sum();
            samples.add(&[
                total / f64::from(1 << 20),
                mean("/clat_ns/mean"),
                mean("/clat_ns/stddev"),
                mean("/clat_ns/percentile/99.000000"),
                slowest * 8.0 / total,
            ]);
        }
    }
    let rows: Vec<Vec<String>> = VARIANTS
        .iter()
        .zip(&samples)
        .map(|((name, _), samples)| {
            let mut row = vec![(*name).to_owned(), format!("{:.0}", samples.figure(0))];
            row.extend((1..4).map(|at| format!("{:.2}", samples.figure(at))));
            row.push(format!("{:.2}", samples.figure(4)));
            row
        })
        .collect();
    table(&["", "MiB/s", "mean clat ms", "stddev ms", "p99 ms", "slowest / mean reader"], &rows);
}
