//! A map that is too large for memory is forgotten and read again while others write the same file: nothing older comes back.

use crate::memory_store::MemoryStore;
use crate::simulated_disk::{Random, seed_from_environment};
use std::sync::Mutex;
use sumfs::fs::{Caller, Options, ReadFlags, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::InodeNumber;

const BLOCK: u64 = 4096;
const BLOCKS_PER_WRITER: u64 = 2048;
const WRITERS: u64 = 4;

#[test]
fn parallel_writes_over_a_map_that_is_forgotten_again_and_again() {
    let seed = seed_from_environment(1);
    let store = MemoryStore::new(256 << 20);
    // So few bytes that every collect forgets the map.
    let options = Options { cache_bytes: 4096, ..Options::default() };
    let fs = store.open_with(options);
    let file = fs.mknod(&Caller::ROOT, InodeNumber::ROOT, b"f", 0o100_644, 0, 0).unwrap().inode;
    let expected = Mutex::new(vec![0u8; (BLOCKS_PER_WRITER * WRITERS) as usize]);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (fs, expected) = (&fs, &expected);
            scope.spawn(move || {
                let mut random = Random::new(seed * 100 + writer);
                for step in 0..4000u64 {
                    // Writers take turns block by block, so they share chunks of the map but no block.
                    let block = random.below(BLOCKS_PER_WRITER) * WRITERS + writer;
                    let value = (step % 255 + 1) as u8;
                    let flags = WriteFlags { direct: step % 3 != 0, ..WriteFlags::default() };
                    fs.write(&Caller::ROOT, file, block * BLOCK, &[value; BLOCK as usize], flags, Wait::Allowed).unwrap();
                    expected.lock().unwrap()[block as usize] = value;
                    if step % 100 == 0 {
                        fs.sync().unwrap();
                    }
                }
            });
        }
    });
    for (block, value) in expected.into_inner().unwrap().into_iter().enumerate() {
        let data = fs.read(file, block as u64 * BLOCK, BLOCK as usize, ReadFlags::default(), Wait::Allowed).unwrap();
        assert!(data.as_slice().iter().all(|byte| *byte == value), "SEED={seed}: block {block} is not {value}");
    }
    store.close(&fs);
}
