//! Scale on a real mount: many files, one large directory, a file of many extents, many open files, a file overwritten again and
//! again. Rates by tenths (what grows with the size shows as a falling rate), the slowest creates, memory of the daemon, sizes of
//! index and journal, times to mount. `SCALE=1000000` is the size (default 100 000), `SCALE_ONLY=tree,directory,...` chooses parts,
//! `SCALE_OPTIONS` are mount options. Nothing here asserts a time.

#[path = "bench.rs"]
mod bench;
#[path = "../common/mount.rs"]
#[allow(dead_code)]
mod mount;

use bench::table;
use mount::Mount;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

type Part = (&'static str, fn(u64));
const PARTS: [Part; 5] =
    [("tree", tree), ("directory", directory), ("scattered", scattered), ("open", open_files), ("overwrite", overwrite)];
/// Directories of the tree.
const DIRECTORIES: u64 = 1000;
const BLOCK: u64 = 4096;
const MIB: f64 = 1048576.0;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

fn main() {
    let count = variable("SCALE").map_or(100_000, |text| text.parse().expect("SCALE is a number"));
    let only = variable("SCALE_ONLY");
    bench::headline(&format!("Scale: {count}"), &format!("SCALE={count} cargo bench --bench scale"));
    for (name, part) in PARTS {
        if only.as_ref().is_none_or(|only| only.split(',').any(|wanted| wanted == name)) {
            part(count);
        }
    }
}

fn mounted(size: &str) -> Mount {
    Mount::with_size(size, &variable("SCALE_OPTIONS").unwrap_or_default())
}

/// Scattered numbers below `limit`, each once: multiples of an odd number that has no factor in common with it.
fn scattered_number(at: u64, limit: u64) -> u64 {
    let step = (limit as f64 * 0.618) as u64 | 1;
    let step = (step..).step_by(2).find(|step| gcd(*step, limit) == 1).unwrap_or(1);
    (u128::from(at) * u128::from(step) % u128::from(limit)) as u64
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// How long each of many steps took: rates by tenths, and the slowest.
struct Steps {
    tenths: Vec<f64>,
    latencies_us: Vec<u32>,
}

impl Steps {
    /// Runs `step` for all numbers below `count`; `settle` ends each tenth and counts in its time.
    fn run(count: u64, mut step: impl FnMut(u64), mut settle: impl FnMut()) -> Steps {
        let mut steps = Steps { tenths: Vec::new(), latencies_us: Vec::with_capacity(count as usize) };
        for tenth in 0..10 {
            let begin = Instant::now();
            let range = count * tenth / 10..count * (tenth + 1) / 10;
            let number = range.end - range.start;
            for at in range {
                let begin = Instant::now();
                step(at);
                steps.latencies_us.push(begin.elapsed().as_micros() as u32);
            }
            settle();
            steps.tenths.push(number as f64 / begin.elapsed().as_secs_f64());
        }
        steps.latencies_us.sort_unstable();
        steps
    }

    fn percentile(&self, share: f64) -> u32 {
        let at = (self.latencies_us.len() as f64 * share) as usize;
        self.latencies_us.get(at.min(self.latencies_us.len().saturating_sub(1))).copied().unwrap_or_default()
    }

    fn print(&self, what: &str) {
        let tenths: Vec<String> = self.tenths.iter().map(|rate| format!("{:.1}", rate / 1000.0)).collect();
        let ratio = self.tenths[9] / self.tenths[1];
        println!("{what}, thousands a second by tenths: {}; last / second {ratio:.2}", tenths.join(" "));
        let [median, p99, p999, worst] = [0.5, 0.99, 0.999, 1.0].map(|share| self.percentile(share));
        println!("  each, us: median {median}, p99 {p99}, p99.9 {p999}, worst {worst}");
    }
}

fn daemon(mount: &Mount) -> i64 {
    mount.info()["pid"].as_i64().expect("info names the daemon")
}

/// Peak and present memory of the daemon, MiB.
fn memory(mount: &Mount) -> (f64, f64) {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon(mount))).unwrap_or_default();
    let figure = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().next().and_then(|text| text.parse().ok()).map_or(0.0, |kib: f64| kib / 1024.0)
    };
    (figure("VmHWM:"), figure("VmRSS:"))
}

/// Bytes on the host of everything in the store, MiB.
fn on_host(path: &Path) -> f64 {
    let blocks = |path: PathBuf| std::fs::metadata(path).map_or(0, |metadata| metadata.blocks());
    let entries = std::fs::read_dir(path).unwrap();
    entries.map(|entry| blocks(entry.unwrap().path())).sum::<u64>() as f64 * 512.0 / MIB
}

/// Counters and state of the daemon.
fn stats(mount: &Mount) -> serde_json::Value {
    let mountpoint = mount.path();
    let ran = mount::sumfs(&["stats".as_ref(), mountpoint.as_os_str(), "--json".as_ref()]).expect_success();
    serde_json::from_str(&ran.stdout).unwrap()
}

/// What is true after a moment of rest: memory, index, journal, the store's size on the host.
fn print_state(mount: &Mount) {
    let (peak, working) = memory(mount);
    time("sync", || mount::sumfs(&["sync".as_ref(), mount.path().as_os_str()]).expect_success());
    let mut before = -1.0;
    let stats = loop {
        std::thread::sleep(Duration::from_secs(1));
        let stats = stats(mount);
        let now = on_host(&mount.store()) + stats["metadata"]["journal_used_bytes"].as_f64().unwrap_or_default();
        if now == std::mem::replace(&mut before, now) {
            break stats;
        }
    };
    let mib = |pointer: &str| stats.pointer(pointer).and_then(serde_json::Value::as_f64).unwrap_or_default() / MIB;
    let (peak_idle, now) = memory(mount);
    println!(
        "  memory MiB: peak {peak:.0}, at the end of it {working:.0}, idle {now:.0} (peak {peak_idle:.0}); segments {:.0}; \
              inodes in memory {}, known to the kernel {}",
        mib("/cache/total_bytes"),
        stats["cache"]["inodes_cached"],
        stats["cache"]["inodes_known_to_kernel"]
    );
    println!(
        "  index {:.0} MiB on disk, journal in use {:.0} of {:.0} MiB; store on the host {:.0} MiB",
        mib("/metadata/index_bytes"),
        mib("/metadata/journal_used_bytes"),
        mib("/metadata/journal_bytes"),
        on_host(&mount.store())
    );
}

fn time<T>(what: &str, run: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = run();
    println!("  {what}: {:.2} s", begin.elapsed().as_secs_f64());
    result
}

/// Unmounts and mounts, then once more after kill -9 in the middle of `work`.
fn print_mounting(mount: &mut Mount, work: impl FnOnce(&Path)) {
    time("unmount", || mount.umount());
    time("mount after a clean unmount", || mount.mount());
    work(&mount.path());
    mount.kill();
    time("mount after kill -9", || mount.mount());
}

fn create(path: &Path) {
    let data = [b'x'; 1024];
    let file = File::create_new(path).unwrap();
    file.write_all_at(&data, 0).unwrap();
}

fn tree(count: u64) {
    println!("\n### {count} files of 1 KiB in {DIRECTORIES} directories\n");
    let mut mount = mounted("8G");
    let root = mount.path();
    (0..DIRECTORIES).for_each(|number| std::fs::create_dir(root.join(number.to_string())).unwrap());
    let path = |root: &Path, at: u64| root.join(format!("{}/f{at}", at % DIRECTORIES));
    Steps::run(count, |at| create(&path(&root, at)), || ()).print("create, write, close");
    print_state(&mount);
    let listed = time("list all", || (0..DIRECTORIES).map(|number| names(&root.join(number.to_string()))).sum::<u64>());
    assert_eq!(listed, count);
    print_mounting(&mut mount, |root| (count..count + count / 4).for_each(|at| create(&path(root, at))));
    Steps::run(count.min(100_000), |at| _ = std::fs::metadata(path(&root, at)).unwrap(), || ()).print("stat, cold");
    print_state(&mount);
}

fn names(path: &Path) -> u64 {
    std::fs::read_dir(path).unwrap().map(Result::unwrap).fold(0, |count, _| count + 1)
}

fn directory(count: u64) {
    println!("\n### One directory of {count}\n");
    let mut mount = mounted("8G");
    let root = mount.path().join("d");
    std::fs::create_dir(&root).unwrap();
    let path = |root: &Path, at: u64| root.join(format!("f{at}"));
    Steps::run(count, |at| drop(File::create_new(path(&root, at)).unwrap()), || ()).print("create, close");
    print_state(&mount);
    assert_eq!(time("list", || names(&root)), count);
    mount.remount();
    assert_eq!(time("list, cold", || names(&root)), count);
    Steps::run(count, |at| std::fs::remove_file(path(&root, scattered_number(at, count))).unwrap(), || ()).print("unlink");
    assert_eq!(names(&root), 0);
    print_state(&mount);
}

fn scattered(count: u64) {
    println!("\n### {count} extents of 4 KiB scattered over a file of 64 GiB\n");
    let mut mount = mounted("8G");
    let path = mount.path().join("sparse");
    let file = File::create_new(&path).unwrap();
    let slots = 64 << 30 >> 12;
    let offset = |at: u64| scattered_number(at, slots) * BLOCK;
    let write = |at: u64| file.write_all_at(&[at as u8; BLOCK as usize], offset(at)).unwrap();
    Steps::run(count, write, || file.sync_data().unwrap()).print("4 KiB write, fdatasync after each tenth");
    print_state(&mount);
    drop(file);
    print_mounting(&mut mount, |_| ());
    let file = File::open(&path).unwrap();
    let mut block = [0; BLOCK as usize];
    let read = |at: u64| {
        file.read_exact_at(&mut block, offset(at)).unwrap();
        assert_eq!(block[9], at as u8);
    };
    Steps::run(count, read, || ()).print("4 KiB read, cold");
    drop(file);
    time("unlink", || std::fs::remove_file(&path).unwrap());
    print_state(&mount);
}

fn open_files(count: u64) {
    let count = count.min(100_000);
    println!("\n### {count} open files\n");
    let limit = Some(count + 1000);
    let limits = rustix::process::Rlimit { current: limit, maximum: limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limits).expect("so many open files are allowed");
    let mount = mounted("4G");
    let root = mount.path();
    let mut files = Vec::new();
    Steps::run(count, |at| files.push(File::create_new(root.join(at.to_string())).unwrap()), || ()).print("create");
    let write = |at: u64| files[at as usize].write_all_at(&[1; 1024], 0).unwrap();
    Steps::run(count, write, || ()).print("write 1 KiB");
    print_state(&mount);
    time("close", || drop(files));
}

fn overwrite(_: u64) {
    println!("\n### A file of 1 GiB overwritten 10 times in random order\n");
    let mut mount = mounted("8G");
    let path = mount.path().join("file");
    let file = File::create_new(&path).unwrap();
    let chunk = vec![1; 1 << 20];
    (0..1024).for_each(|at| file.write_all_at(&chunk, at << 20).unwrap());
    file.sync_all().unwrap();
    drop(file);
    print_state(&mount);
    let mut rows = vec![figures(&mut mount, &path, "written once")];
    let blocks = (1 << 30) / BLOCK;
    let file = File::options().write(true).open(&path).unwrap();
    for pass in 1..=10u64 {
        let begin = Instant::now();
        for at in 0..blocks {
            let block = scattered_number(at, blocks - pass * 2 + 1);
            file.write_all_at(&[pass as u8; BLOCK as usize], block * BLOCK).unwrap();
        }
        file.sync_all().unwrap();
        println!("pass {pass}: {:.0} thousand writes a second", blocks as f64 / begin.elapsed().as_secs_f64() / 1000.0);
    }
    drop(file);
    print_state(&mount);
    rows.push(figures(&mut mount, &path, "overwritten 10 times"));
    table(&["", "extents", "cold read, MiB/s", "device on the host, MiB"], &rows);
}

fn figures(mount: &mut Mount, path: &Path, name: &str) -> Vec<String> {
    let map = mount::sumfs(&["map".as_ref(), path.as_os_str(), "--json".as_ref()]).expect_success();
    let map: serde_json::Value = serde_json::from_str(&map.stdout).unwrap();
    let extents = map["extents"].to_string();
    let size = std::fs::metadata(mount.store().join("device.0")).unwrap().blocks() as f64 * 512.0 / MIB;
    mount.remount();
    let begin = Instant::now();
    let mut file = File::open(path).unwrap();
    let bytes = std::io::copy(&mut file, &mut std::io::sink()).unwrap();
    let rate = bytes as f64 / MIB / begin.elapsed().as_secs_f64();
    vec![name.to_owned(), extents, format!("{rate:.0}"), format!("{size:.0}")]
}
