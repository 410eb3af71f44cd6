//! The parts by themselves: checksums of blocks inline and on the pool, the index, a commit.

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
use sumfs::fs::{Caller, Filesystem, Options};
use sumfs::meta::index::{Change, Index};
use sumfs::meta::redb_index::RedbIndex;
use sumfs::meta::schema;
use sumfs::stats::Stats;
use sumfs::store::{CreateOptions, StoreDirectory};
use sumfs::units::InodeNumber;

fn main() {
    checksums();
    index();
    commits();
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
