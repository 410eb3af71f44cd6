//! The job of the 2015 thread on asynchronous checksums, as printed there: sequential O_DIRECT writes, 64 in flight, submitted and
//! reaped in batches. Checksums on the pool always, by the default, and never.

#[path = "bench.rs"]
mod bench;
#[path = "../common/mount.rs"]
#[allow(dead_code)]
mod mount;

use bench::{Samples, table, times};

const BLOCK_SIZES: [&str; 8] = ["4k", "8k", "16k", "32k", "64k", "128k", "256k", "512k"];
/// Name and mount options.
const VARIANTS: [(&str, &str); 3] = [("pool", "csum-inline=0"), ("default", ""), ("inline", "csum-inline=1G")];

fn arguments(block_size: &str, file: &str) -> Vec<String> {
    let job = format!(
        "--filename={file} --rw=write --bs={block_size} --size=128m --ioengine=libaio --direct=1 --iodepth=64 --iodepth_batch=64 \
         --iodepth_low=64 --iodepth_batch_complete=64 --fallocate=posix --time_based --runtime=500ms"
    );
    job.split_whitespace().map(str::to_owned).collect()
}

fn main() {
    let command = format!("fio {}   (mounted with csum-inline=)", arguments("SIZE", "MNT/f").join(" "));
    bench::headline("(b) the job of 2015: asynchronous against inline checksums, O_DIRECT, MiB/s", &command);
    let mounts: Vec<mount::Mount> = VARIANTS.iter().map(|(_, options)| mount::Mount::new(options)).collect();
    let mut samples = vec![vec![Samples::default(); VARIANTS.len()]; BLOCK_SIZES.len()];
    for _ in 0..bench::rounds() {
        for (block_size, samples) in BLOCK_SIZES.into_iter().zip(&mut samples) {
            for (mounted, samples) in mounts.iter().zip(samples) {
                let file = mounted.path().join("f");
                let result = bench::fio(&arguments(block_size, &file.to_string_lossy())).unwrap_or_else(|| bench::no_fio());
                let bytes: f64 = bench::fio_figures(&result, "write", "/bw_bytes").iter().sum();
                samples.add(&[bytes / f64::from(1 << 20)]);
                std::fs::remove_file(&file).unwrap();
            }
        }
    }
    let mut rows = Vec::new();
    for (block_size, samples) in BLOCK_SIZES.into_iter().zip(&samples) {
        let figures: Vec<f64> = samples.iter().map(|samples| samples.figure(0)).collect();
        let mut row = vec![block_size.to_owned()];
        row.extend(figures.iter().map(|figure| format!("{figure:.0}")));
        row.push(times(figures[0], figures[2]));
        row.push(times(figures[1], figures[2]));
        rows.push(row);
    }
    table(&["bs", "pool", "default", "inline", "pool / inline", "default / inline"], &rows);
}
