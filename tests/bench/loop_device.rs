//! An image in the mount as a loop device: random 4 KiB reads and writes, 64 in flight, with the loop driver's direct I/O on and off;
//! on sumfs and, in the same run, on btrfs on a loop device of its own.

#[path = "bench.rs"]
mod bench;
#[path = "../common/mount.rs"]
#[allow(dead_code)]
mod mount;

use bench::{Samples, table, times};
use std::path::{Path, PathBuf};

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

/// btrfs on an image in the directory of the benchmarks.
struct Btrfs {
    directory: tempfile::TempDir,
}

impl Btrfs {
    fn new() -> Btrfs {
        let directory = tempfile::tempdir_in(bench::directory()).unwrap();
        let (image, place) = (directory.path().join("image"), directory.path().join("mnt"));
        std::fs::File::create(&image).unwrap().set_len(2 << 30).unwrap();
        std::fs::create_dir(&place).unwrap();
        mount::run("mkfs.btrfs", &["-q", "-f", &image.to_string_lossy()]).expect_success();
        mount::run("mount", &["-o", "loop", &image.to_string_lossy(), &place.to_string_lossy()]).expect_success();
        Btrfs { directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }
}

impl Drop for Btrfs {
    fn drop(&mut self) {
        mount::run("umount", &[self.path()]);
    }
}

fn main() {
    let command = format!("losetup --direct-io=on|off MNT/image; fio {}", arguments("read|write", "/dev/loopN").join(" "));
    bench::headline("(d) loop device on an image in the mount, 4 KiB, QD 64", &command);
    let (sumfs, btrfs) = (mount::Mount::with_size("2G", ""), Btrfs::new());
    let images = [sumfs.path().join("image"), btrfs.path().join("image")];
    images.iter().for_each(|image| fill(image));
    let mut rows = Vec::new();
    for direct in ["on", "off"] {
        let mut samples = vec![[Samples::default(), Samples::default()]; DIRECTIONS.len()];
        for _ in 0..bench::rounds() {
            for (at, image) in images.iter().enumerate() {
                let device = Loop::attach(image, direct);
                for (direction, samples) in DIRECTIONS.into_iter().zip(&mut samples) {
                    // What the writes before have left dirty is not to be written back while the reads are measured.
                    std::fs::File::open(image).and_then(|image| image.sync_all()).unwrap();
                    std::fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
                    let result = bench::fio(&arguments(direction, &device.0)).unwrap_or_else(|| bench::no_fio());
                    let sum = |pointer| bench::fio_figures(&result, direction, pointer).iter().sum::<f64>();
                    samples[at].add(&[sum("/iops"), sum("/clat_ns/mean") / 1e6, sum("/clat_ns/percentile/99.000000") / 1e6]);
                }
            }
        }
        for (direction, [sumfs, btrfs]) in DIRECTIONS.into_iter().zip(&samples) {
            rows.push(vec![
                format!("direct-io={direct}, rand{direction}"),
                format!("{:.1}", sumfs.figure(0) / 1000.0),
                format!("{:.1}", btrfs.figure(0) / 1000.0),
                times(sumfs.figure(0), btrfs.figure(0)),
                format!("{:.2}", sumfs.figure(1)),
                format!("{:.2}", sumfs.figure(2)),
            ]);
        }
    }
    table(&["", "kIOPS", "btrfs kIOPS", "sumfs / btrfs", "mean clat ms", "p99 ms"], &rows);
}

fn fill(image: &Path) {
    let file = std::fs::File::create(image).unwrap();
    let block = vec![0x33; 1 << 20];
    (0..1024).for_each(|_| std::io::Write::write_all(&mut &file, &block).unwrap());
    file.sync_all().unwrap();
}
