//! The parts by themselves: checksums of blocks inline and on the pool, the index, a commit, and what the daemon does for small files
//! (`MICRO_ONLY=small_files`, `FILES=` how many). CPU time says what an operation costs; only the last column has clock time.

#[path = "bench.rs"]
mod bench;

use bench::{Samples, table, times};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use sumfs::disk::Disk;
use sumfs::disk::memory::MemoryDisk;
use sumfs::extent::checksum::Checksummer;
use sumfs::fs::{Caller, Filesystem, Options, RenameMode, WriteFlags};
use sumfs::lock::Wait;
use sumfs::meta::index::{Change, Index};
use sumfs::meta::redb_index::RedbIndex;
use sumfs::meta::schema;
use sumfs::stats::Stats;
use sumfs::store::{CreateOptions, StoreDirectory};
use sumfs::units::InodeNumber;

const PARTS: [(&str, fn()); 4] = [("checksums", checksums), ("index", index), ("commits", commits), ("small_files", small_files)];

fn main() {
    let only = std::env::var("MICRO_ONLY").ok();
    for (name, part) in PARTS {
        if only.as_deref().is_none_or(|only| only == name) {
            part();
        }
    }
}

/// Nanoseconds of one call, over about a twentieth of a second.
fn time_of(mut run: impl FnMut()) -> f64 {
    let begin = Instant::now();
    let mut calls = 0u32;
    while begin.elapsed().as_millis() < 50 {
        run();
        calls += 1;
    }
    begin.elapsed().as_nanos() as f64 / f64::from(calls)
}

fn checksums() {
    bench::headline("(e) crc32c of 4 KiB blocks, MiB/s", "cargo bench --bench micro");
    let stats = Stats::default();
    let (inline, pool) = (Checksummer::new(usize::MAX), Checksummer::new(0));
    let sizes = [4usize, 16, 64, 128, 256, 512, 1024, 4096];
    let mut samples = vec![[Samples::default(), Samples::default()]; sizes.len()];
    for _ in 0..bench::rounds() {
        for (kib, samples) in sizes.into_iter().zip(&mut samples) {
            let bytes: Vec<u8> = (0..kib << 10).map(|at| (at % 251) as u8).collect();
            for (checksummer, samples) in [&inline, &pool].into_iter().zip(samples) {
                let ns = time_of(|| drop(black_box(checksummer.sums(&[black_box(&bytes)], &stats))));
                samples.add(&[bytes.len() as f64 / f64::from(1 << 20) / (ns / 1e9)]);
            }
        }
    }
    let rows: Vec<Vec<String>> = sizes
        .into_iter()
        .zip(&samples)
        .map(|(kib, [inline, pool])| {
            let (inline, pool) = (inline.figure(0), pool.figure(0));
            vec![format!("{kib} KiB"), format!("{inline:.0}"), format!("{pool:.0}"), times(pool, inline)]
        })
        .collect();
    table(&["work", "inline", "pool", "pool / inline"], &rows);
}

/// Keys as file maps have them, with values of the size of a record.
fn records(from: u64, count: u64) -> Vec<(schema::Key, Vec<u8>)> {
    (from..from + count).map(|number| (schema::map(InodeNumber(2 + number / 1000), number % 1000 * 4096), vec![7; 40])).collect()
}

fn index() {
    bench::headline(
        "(e) the index on a disk in memory: 100 000 records of 40 bytes in batches of 10 000",
        "cargo bench --bench micro",
    );
    const RECORDS: u64 = 100_000;
    const BATCH: u64 = 10_000;
    let mut samples = Samples::default();
    for _ in 0..bench::rounds() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new("index", 0));
        let index = RedbIndex::create(disk, 64 << 20).unwrap();
        let (mut apply_ns, mut checkpoint_ns) = (0.0, 0.0);
        for from in (0..RECORDS).step_by(BATCH as usize) {
            let records = records(from, BATCH);
            index.reserve_ahead(16 << 20).unwrap();
            let begin = Instant::now();
            index.apply(&mut records.iter().map(|(key, value)| -> Change<'_> { (key, Some(value)) }), false).unwrap();
            apply_ns += begin.elapsed().as_nanos() as f64;
            let begin = Instant::now();
            index.apply(&mut std::iter::empty(), true).unwrap();
            checkpoint_ns += begin.elapsed().as_nanos() as f64;
        }
        let snapshot = index.snapshot().unwrap();
        let mut at = 0;
        let get_ns = time_of(|| {
            at = (at + 7919) % RECORDS;
            let key = schema::map(InodeNumber(2 + at / 1000), at % 1000 * 4096);
            assert!(black_box(snapshot.get(&key).unwrap()).is_some());
        });
        samples.add(&[apply_ns / RECORDS as f64, checkpoint_ns / (RECORDS / BATCH) as f64 / 1e6, get_ns]);
    }
    let row = |name: &str, figure: String| vec![name.to_owned(), figure];
    table(
        &["", "median"],
        &[
            row("apply, us a record", format!("{:.2}", samples.figure(0) / 1000.0)),
            row("making a batch durable, ms", format!("{:.2}", samples.figure(1))),
            row("get, us", format!("{:.2}", samples.figure(2) / 1000.0)),
        ],
    );
}

/// New names, then one commit: fold, flush, append to the journal.
fn commits() {
    bench::headline("(e) a commit: so many new files, then sync", "cargo bench --bench micro");
    let sizes = [1u64, 10, 100, 1000];
    let mut samples = vec![Samples::default(); sizes.len()];
    for _ in 0..bench::rounds() {
        let directory = tempfile::tempdir_in(bench::directory()).unwrap();
        let path = directory.path().join("store");
        StoreDirectory::create(&path, CreateOptions { size: Some(1 << 30), ..CreateOptions::default() }).unwrap();
        let store = StoreDirectory::open(&path, false, None).unwrap();
        let fs = Filesystem::open(store.disks().clone(), Options { background: false, ..Options::default() }).unwrap();
        let mut number = 0;
        for (files, samples) in sizes.into_iter().zip(&mut samples) {
            let (mut create_ns, mut commit_ns) = (0.0, 0.0);
            let before = fs.stats().journal_bytes.load(Relaxed);
            for _ in 0..20 {
                let begin = Instant::now();
                for _ in 0..files {
                    number += 1;
                    fs.mknod(&Caller::ROOT, InodeNumber::ROOT, format!("{number}").as_bytes(), 0o100_644, 0, 0).unwrap();
                }
                create_ns += begin.elapsed().as_nanos() as f64;
                let begin = Instant::now();
                fs.sync().unwrap();
                commit_ns += begin.elapsed().as_nanos() as f64;
            }
            let journal_bytes = (fs.stats().journal_bytes.load(Relaxed) - before) as f64;
            samples.add(&[create_ns / 20.0 / files as f64 / 1000.0, commit_ns / 20.0 / 1000.0, journal_bytes / 20.0 / 1024.0]);
        }
        fs.shutdown().unwrap();
    }
    let rows: Vec<Vec<String>> = sizes
        .into_iter()
        .zip(&samples)
        .map(|(files, samples)| {
            let mut row = vec![format!("{files} files")];
            row.extend((0..3).map(|at| format!("{:.1}", samples.figure(at))));
            row
        })
        .collect();
    table(&["", "create, us a file", "commit, us", "journal, KiB a commit"], &rows);
}

/// CPU time in seconds: of this thread, of the process.
fn cpu_seconds() -> [f64; 2] {
    use rustix::time::{ClockId, clock_gettime};
    [ClockId::ThreadCPUTime, ClockId::ProcessCPUTime].map(|clock| {
        let time = clock_gettime(clock);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    })
}

/// What each of many steps costs: CPU of the calling thread and of the others by tenths, and the slowest steps.
fn steps(name: &str, count: u64, mut step: impl FnMut(u64)) -> Vec<String> {
    let mut latencies_ns = Vec::with_capacity(count as usize);
    let mut tenths = Vec::new();
    let begin = cpu_seconds();
    for tenth in 0..10 {
        let before = cpu_seconds()[0];
        for at in count * tenth / 10..count * (tenth + 1) / 10 {
            let begin = Instant::now();
            step(at);
            latencies_ns.push(begin.elapsed().as_nanos() as u32);
        }
        tenths.push((cpu_seconds()[0] - before) * 1e7 / count as f64);
    }
    let [own, all] = cpu_seconds();
    let (own, all) = ((own - begin[0]) * 1e6 / count as f64, (all - begin[1]) * 1e6 / count as f64);
    latencies_ns.sort_unstable();
    let us = |share: f64| f64::from(latencies_ns[(share * (count - 1) as f64) as usize]) / 1000.0;
    let mut row = vec![name.to_owned(), format!("{own:.2}"), format!("{:.2}", all - own)];
    row.push(format!("{:.2} / {:.2}", tenths[1], tenths[9]));
    row.push(format!("{:.1} / {:.1} / {:.1} / {:.0}", us(0.5), us(0.99), us(0.999), us(1.0)));
    row
}

/// What the daemon does for small files, without FUSE, its background threads running: 1 KiB each, in 1,000 directories.
fn small_files() {
    let count = std::env::var("FILES").ok().and_then(|text| text.parse().ok()).unwrap_or(100_000u64);
    bench::headline(&format!("(e) the daemon's share of {count} small files"), "cargo bench --bench micro");
    let directory = tempfile::tempdir_in(bench::directory()).unwrap();
    let path = directory.path().join("store");
    StoreDirectory::create(&path, CreateOptions { size: Some(8 << 30), ..CreateOptions::default() }).unwrap();
    let store = StoreDirectory::open(&path, false, None).unwrap();
    let options = Options { kernel_caches: true, ..Options::default() };
    let fs = Filesystem::open(store.disks().clone(), options).unwrap();
    let caller = Caller::ROOT;
    let made = (0..1000).map(|number| fs.mkdir(&caller, InodeNumber::ROOT, format!("d{number}").as_bytes(), 0o755, 0).unwrap());
    let parents: Vec<InodeNumber> = made.map(|attributes| attributes.inode).collect();
    let parent = |at: u64| parents[at as usize % parents.len()];
    let name = |at: u64| format!("f{at}").into_bytes();
    let flags = WriteFlags { from_cache: true, ..WriteFlags::default() };
    let mut inodes = Vec::new();
    let mut rows = vec![steps("create, write 1 KiB", count, |at| {
        let inode = fs.mknod(&caller, parent(at), &name(at), 0o100_644, 0, 0).unwrap().inode;
        fs.write(&caller, inode, 0, &[b'x'; 1024], flags, Wait::Never)
            .or_else(|_| fs.write(&caller, inode, 0, &[b'x'; 1024], flags, Wait::Allowed))
            .unwrap();
        inodes.push(inode);
    })];
    rows.push(steps("sync", 10, |_| fs.sync().unwrap()));
    rows.push(steps("lookup, cold", count, |at| _ = fs.lookup(parent(at), &name(at)).unwrap()));
    let mut listed = 0;
    rows.push(steps("readdirplus of a directory", 1000, |at| {
        fs.readdirplus(parent(at), 0, &mut |_, _| {
            listed += 1;
            true
        })
        .unwrap();
    }));
    rows.push(steps("rename", count, |at| {
        let to = format!("g{at}").into_bytes();
        fs.rename(parent(at), &name(at), parent(at), &to, RenameMode::Replace).unwrap();
    }));
    rows.push(steps("unlink, forget", count, |at| {
        fs.unlink(parent(at), &format!("g{at}").into_bytes()).unwrap();
        fs.forget(inodes[at as usize], 3);
    }));
    rows.push(steps("sync", 10, |_| fs.sync().unwrap()));
    table(&["", "CPU us", "CPU us of others", "2nd / last tenth", "us: median / p99 / p99.9 / worst"], &rows);
    println!(
        "\n{listed} entries listed; index {:.0} MiB on disk",
        fs.status()["metadata"]["index_bytes"].as_f64().unwrap() / 1048576.0
    );
    fs.shutdown().unwrap();
}
