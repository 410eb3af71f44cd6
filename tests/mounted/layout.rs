//! Where data ends up: small O_DIRECT writes that arrive out of order, many at a time, become few extents.

use crate::content::{aligned, assert_same, pattern};
use crate::mount::{Mount, sumfs};
use crate::random::Random;
use rustix::fs::OFlags;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

const FILE_BYTES: usize = 64 << 20;
const BLOCK: usize = 4096;
/// Writes are out of order within so many.
const DEPTH: usize = 64;
const THREADS: usize = 16;
const EXTENTS_PER_MEBIBYTE_MAX: f64 = 1.5;

/// Writes the blocks of `bytes` in `order`; each thread takes the next when its last is done.
fn write_in_order(path: &Path, order: &[usize], bytes: &[u8]) {
    let mut options = File::options();
    let file = options.write(true).create_new(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path).unwrap();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut buffer = vec![0; 2 * BLOCK];
                let block = aligned(&mut buffer, BLOCK);
                while let Some(number) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let range = number * BLOCK..(number + 1) * BLOCK;
                    block.copy_from_slice(&bytes[range.clone()]);
                    file.write_all_at(block, range.start as u64).unwrap();
                }
            });
        }
    });
}

fn few_extents(options: &str) {
    // A commit cuts extents where writes are missing; how many there are in the meantime depends on the machine.
    let mut mount = Mount::new(&format!("{options},commit=3600"));
    let mut random = Random::from_environment("out of order");
    let mut order: Vec<usize> = (0..FILE_BYTES / BLOCK).collect();
    order.chunks_mut(DEPTH).for_each(|window| random.shuffle(window));
    let (path, bytes) = (mount.path().join("file"), pattern(FILE_BYTES, 1));
    write_in_order(&path, &order, &bytes);
    mount.remount();
    let ran = sumfs(&["map", path.to_str().unwrap(), "--json"]).expect_success();
    let map: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let per_mebibyte = map["extents_per_mebibyte"].as_f64().unwrap();
    println!("{options}: {per_mebibyte:.2} extents per MiB");
    assert!((1.0..=EXTENTS_PER_MEBIBYTE_MAX).contains(&per_mebibyte), "{options}: {per_mebibyte} extents per MiB");
    assert_same(&std::fs::read(&path).unwrap(), &bytes, "the file");
}

#[test]
fn out_of_order_writes_become_few_extents_with_writeback_cache() {
    few_extents("cache=writeback");
}

#[test]
fn out_of_order_writes_become_few_extents_without_cache() {
    few_extents("cache=none");
}
