//! An image in the mount as a loop device: random 4 KiB reads and writes, 64 in flight, with the loop driver's direct I/O on and off.

#[path = "bench.rs"]
mod bench;
#[path = "../common/mount.rs"]
#[allow(dead_code)]
mod mount;

use bench::{Samples, table};
use std::path::Path;

const DIRECTIONS: [&str; 2] = ["read", "write"];

/// An attached loop device.
struct Loop(String);

impl Loop {
    fn attach(image: &Path, direct: &str) -> Loop {
        let direct = format!("--direct-io={direct}");
        let ran = mount::run("losetup", &["--find", "--show", &direct, &image.to_string_lossy()]).expect_success();
        Loop(ran.stdout.trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        mount::run("losetup", &["--detach", &self.0]);
        // Detaching goes on after losetup has ended.
        mount::run("udevadm", &["settle"]);
    }
}

fn arguments(direction: &str, device: &str) -> Vec<String> {
    let job = format!(
        "--filename={device} --rw=rand{direction} --bs=4k --ioengine=libaio --direct=1 --iodepth=64 --time_based --runtime=1s \
         --ramp_time=200ms --randrepeat=0"
    );
    job.split_whitespace().map(str::to_owned).collect()
}

fn main() {
    let command = format!("losetup --direct-io=on|off MNT/image; fio {}", arguments("read|write", "/dev/loopN").join(" "));
    bench::headline("(d) loop device on an image in the mount, 4 KiB, QD 64", &command);
    let mounted = mount::Mount::new("");
    let image = mounted.path().join("image");
    let file = std::fs::File::create(&image).unwrap();
    let block = vec![0x33; 1 << 20];
    (0..256).for_each(|_| std::io::Write::write_all(&mut &file, &block).unwrap());
    file.sync_all().unwrap();
    drop(file);
    let mut rows = Vec::new();
    for direct in ["on", "off"] {
        let device = Loop::attach(&image, direct);
        let mut samples = vec![Samples::default(); DIRECTIONS.len()];
        for _ in 0..bench::rounds() {
            for (direction, samples) in DIRECTIONS.into_iter().zip(&mut samples) {
                let result = bench::fio(&arguments(direction, &device.0)).unwrap_or_else(|| bench::no_fio());
                let sum = |pointer| bench::fio_figures(&result, direction, pointer).iter().sum::<f64>();
                samples.add(&[sum("/iops"), sum("/clat_ns/mean") / 1e6, sum("/clat_ns/percentile/99.000000") / 1e6]);
            }
        }
        for (direction, samples) in DIRECTIONS.into_iter().zip(&samples) {
            rows.push(vec![
                format!("direct-io={direct}, rand{direction}"),
                format!("{:.1}", samples.figure(0) / 1000.0),
                format!("{:.2}", samples.figure(1)),
                format!("{:.2}", samples.figure(2)),
            ]);
        }
    }
    table(&["", "kIOPS", "mean clat ms", "p99 ms"], &rows);
}
