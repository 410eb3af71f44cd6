//! The index implementations against a sorted map, power cuts and damaged blocks.
//!
//! `SEED=n` repeats one run, `SEEDS=n` makes that many.

mod cut_disk;
#[cfg(feature = "sled")]
mod sled;

use cut_disk::CutDisk;
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use sumfs::disk::Disk;
use sumfs::error::{Error, Result};
use sumfs::meta::index::{Change, Index, Snapshot};
use sumfs::meta::memory_index::MemoryIndex;
use sumfs::meta::redb_index::{RedbIndex, RedbOptions};

const BLOCK: usize = 4096;
const HEADER_BYTES: usize = 256 << 10;
const CHUNK_PAGES: usize = 1016;
/// A table and one copy of its pages.
const HALF_BYTES: usize = (1 + CHUNK_PAGES) * BLOCK;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// Runs `test` for `SEED`, or for each of `count` seeds.
fn for_seeds(count: u64, test: impl Fn(u64)) {
    let seeds = match std::env::var("SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("SEED is a number");
            seed..seed + 1
        }
        Err(_) => {
            let count = std::env::var("SEEDS").map_or(count, |count| count.parse().expect("SEEDS is a number"));
            1..count + 1
        }
    };
    for seed in seeds {
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(seed)));
        if let Err(panic) = run {
            eprintln!("failed with SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

fn options(cache_bytes: usize, dirty_bytes_max: usize) -> RedbOptions {
    RedbOptions { cache_bytes, ahead_bytes: 0, dirty_bytes_max }
}

fn change<'a>((key, value): (&'a Vec<u8>, &'a Option<Vec<u8>>)) -> Change<'a> {
    (key, value.as_deref())
}

/// Some changes of `model`: overwrites, new keys, deletes, now and then deletes of a whole range.
fn random_changes(random: &mut Random, model: &Model, most: usize, value_bytes: usize) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
    let mut changes = BTreeMap::new();
    for _ in 0..random.below(most + 1) {
        let key = format!("{:05}", random.below(1500)).into_bytes();
        let value = vec![random.next() as u8; random.below(value_bytes)];
        changes.insert(key, (!random.one_in(4)).then_some(value));
    }
    if random.one_in(20) {
        let start = format!("{:05}", random.below(3000)).into_bytes();
        changes.extend(model.range(start..).take(random.below(2000)).map(|(key, _)| (key.clone(), None)));
    }
    changes
}

fn with_changes(model: &Model, changes: &BTreeMap<Vec<u8>, Option<Vec<u8>>>) -> Model {
    let mut changed = model.clone();
    for (key, value) in changes {
        match value {
            Some(value) => drop(changed.insert(key.clone(), value.clone())),
            None => drop(changed.remove(key)),
        }
    }
    changed
}

fn contents(snapshot: &dyn Snapshot) -> Result<Model> {
    let mut all = Model::new();
    snapshot.range(&[], &[0xFF; 8], &mut |key, value| {
        all.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(all)
}

fn assert_same(found: &Model, expected: &Model, what: &str) {
    assert!(found == expected, "{what}: {} records found, {} expected", found.len(), expected.len());
}

/// Point reads, range ends and stopping, against the map.
fn check_reads(random: &mut Random, snapshot: &dyn Snapshot, model: &Model) {
    assert_same(&contents(snapshot).unwrap(), model, "all");
    for _ in 0..10 {
        let [from, to] = [0, 1].map(|_| format!("{:05}", random.below(3000)).into_bytes());
        assert_eq!(snapshot.get(&from).unwrap().as_ref(), model.get(&from));
        let inside: Vec<_> = if from < to { model.range(from.clone()..to.clone()).collect() } else { Vec::new() };
        let last = snapshot.last(&from, &to).unwrap();
        assert_eq!(last.as_ref().map(|(key, value)| (key, value)), inside.last().copied());
        let most = 1 + random.below(5);
        let mut seen = Vec::new();
        let mut visit = |key: &[u8], value: &[u8]| {
            seen.push((key.to_vec(), value.to_vec()));
            if seen.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        snapshot.range(&from, &to, &mut visit).unwrap();
        let expected: Vec<_> = inside.into_iter().take(most).map(|(key, value)| (key.clone(), value.clone())).collect();
        assert_eq!(seen, expected);
    }
}

#[test]
fn the_memory_index_is_a_sorted_map() {
    for_seeds(20, |seed| {
        let random = &mut Random(seed);
        let index = MemoryIndex::new();
        let mut model = Model::new();
        for _ in 0..60 {
            let before = index.snapshot().unwrap();
            let changes = random_changes(random, &model, 300, 30);
            index.apply(&mut changes.iter().map(change), random.one_in(3)).unwrap();
            assert_same(&contents(&*before).unwrap(), &model, "an older snapshot");
            model = with_changes(&model, &changes);
            check_reads(random, &*index.snapshot().unwrap(), &model);
        }
    });
}

#[test]
fn the_redb_index_is_a_sorted_map_and_reopens_as_of_the_last_durable_apply() {
    for_seeds(12, |seed| {
        let random = &mut Random(seed);
        let disk = CutDisk::with(Vec::new());
        let value_bytes = [30, 2000, 20_000][random.below(3)];
        let options = options([0, 256 << 10, 8 << 20][random.below(3)], [4096, 64 << 10, 32 << 20][random.below(3)]);
        let mut index = RedbIndex::create_with(disk.clone(), &options).unwrap();
        let (mut model, mut durable) = (Model::new(), Model::new());
        let mut snapshot = index.snapshot().unwrap();
        for _ in 0..60 {
            let changes = random_changes(random, &model, 200, value_bytes);
            let is_durable = random.one_in(4);
            index.apply(&mut changes.iter().map(change), is_durable).unwrap();
            assert_same(&contents(&*snapshot).unwrap(), &model, "an older snapshot");
            model = with_changes(&model, &changes);
            snapshot = index.snapshot().unwrap();
            check_reads(random, &*snapshot, &model);
            if is_durable {
                durable = model.clone();
            }
            if random.one_in(10) {
                drop(index);
                index = RedbIndex::open_with(disk.clone(), &options, false).unwrap();
                model = durable.clone();
                snapshot = index.snapshot().unwrap();
                assert_same(&contents(&*snapshot).unwrap(), &durable, "after opening again");
            }
            if random.one_in(10) {
                assert_eq!(index.verify().unwrap(), 0);
            }
        }
        assert_eq!(index.healed_count(), 0);
        assert_eq!(index.disk_bytes(), disk.len().unwrap());
    });
}

/// Changes until the power goes; what the index must hold afterwards: the last durable state or the one under way.
fn run_until_cut(random: &mut Random, index: &RedbIndex, disk: &CutDisk, start: &Model) -> [Model; 2] {
    let mut durable = start.clone();
    let mut model = start.clone();
    loop {
        let changes = random_changes(random, &model, 120, 1500);
        let next = with_changes(&model, &changes);
        let is_durable = random.one_in(4);
        match index.apply(&mut changes.iter().map(change), is_durable) {
            Ok(()) if is_durable => durable = next.clone(),
            Ok(()) => {}
            Err(error) => {
                assert!(disk.is_off(), "an error while there was power: {error}");
                return if is_durable { [durable, next] } else { [durable.clone(), durable] };
            }
        }
        model = next;
        if random.one_in(4) {
            let snapshot = index.snapshot().unwrap();
            assert_same(&contents(&*snapshot).unwrap(), &model, "before the cut");
        }
    }
}

#[test]
fn after_a_power_cut_the_index_is_as_of_the_last_durable_apply() {
    for_seeds(25, |seed| {
        let random = &mut Random(seed);
        let bounds = options([0, 128 << 10, 4 << 20][random.below(3)], [4096, 128 << 10, 32 << 20][random.below(3)]);
        let mut disk = CutDisk::with(Vec::new());
        drop(RedbIndex::create_with(disk.clone(), &bounds).unwrap());
        let mut possible = [Model::new(), Model::new()];
        // Torn blocks are damage, which may be noticed rounds later.
        let mut torn = false;
        for round in 0..6 {
            // Opening is part of it: it may be cut itself.
            disk.cut_after(if random.one_in(3) { random.below(30) } else { random.below(3000) } as u64);
            match RedbIndex::open_with(disk.clone(), &bounds, false) {
                Ok(index) => {
                    let found = contents(&*index.snapshot().unwrap()).unwrap();
                    assert!(possible.contains(&found), "round {round}: neither the last durable state nor the next one");
                    possible = run_until_cut(random, &index, &disk, &found);
                }
                Err(error) => assert!(disk.is_off(), "round {round}: opening: {error}"),
            }
            torn |= random.one_in(5);
            disk = CutDisk::with(disk.after_cut(random, torn));
            let reader = RedbIndex::open_with(CutDisk::with(disk.image()), &bounds, random.one_in(2)).unwrap();
            let found = contents(&*reader.snapshot().unwrap()).unwrap();
            assert!(possible.contains(&found), "round {round}: neither the last durable state nor the next one");
            let healed = reader.verify().unwrap() + reader.healed_count();
            assert!(torn || healed == 0, "round {round}: nothing is damaged, but {healed} were healed");
        }
    });
}

/// A closed index with two chunks, some changes after the first durable state, and what is in it.
fn sample() -> (Vec<u8>, Model) {
    let random = &mut Random(7);
    let disk = CutDisk::with(Vec::new());
    let index = RedbIndex::create_with(disk.clone(), &options(1 << 20, 1 << 20)).unwrap();
    let mut model = Model::new();
    for _ in 0..4 {
        let changes: BTreeMap<_, _> = (0..600)
            .map(|_| (format!("{:05}", random.below(1500)).into_bytes(), Some(vec![random.next() as u8; random.below(3500)])))
            .collect();
        index.apply(&mut changes.iter().map(change), true).unwrap();
        model = with_changes(&model, &changes);
    }
    drop(index);
    (disk.image(), model)
}

/// Byte ranges on the disk of the two copies of something.
type Copies = [std::ops::Range<usize>; 2];

/// Headers, tables and written pages of an image, each with what it is.
fn structures(image: &[u8]) -> Vec<(String, Copies)> {
    let header_bytes = u32::from_le_bytes(image[12..16].try_into().unwrap()) as usize;
    let mut all = vec![("header".to_string(), [0..header_bytes, HEADER_BYTES..HEADER_BYTES + header_bytes])];
    let mut chunk = 2 * HEADER_BYTES;
    while chunk + 2 * HALF_BYTES <= image.len() {
        let block = |at: usize| at..at + BLOCK;
        if image[chunk..].starts_with(b"sumfsSUM") {
            all.push(("table".to_string(), [block(chunk), block(chunk + HALF_BYTES)]));
            for page in 1..=CHUNK_PAGES {
                let copies = [block(chunk + page * BLOCK), block(chunk + HALF_BYTES + page * BLOCK)];
                if image[copies[0].clone()].iter().any(|byte| *byte != 0) {
                    all.push((format!("page {}", page - 1), copies));
                }
            }
        }
        chunk += 2 * HALF_BYTES;
    }
    all
}

#[test]
fn a_flipped_byte_anywhere_is_healed_and_counted_and_changes_nothing() {
    let (image, model) = sample();
    let random = &mut Random(1);
    let all = structures(&image);
    let tables = all.iter().filter(|(what, _)| what == "table").count();
    assert!(tables >= 2, "the sample is too small: {tables} chunks");
    assert!(all.len() > 1000);
    let (mut pages, mut used) = (0, 0);
    for (at, (what, copies)) in all.iter().enumerate() {
        for (copy, range) in copies.iter().enumerate() {
            let is_page = what.starts_with("page");
            if is_page && at % 40 > 0 {
                continue;
            }
            let mut damaged = image.clone();
            let byte = range.start + random.below(range.len());
            damaged[byte] ^= 1 << random.below(8);
            let disk = CutDisk::with(damaged);
            let index = RedbIndex::open_with(disk.clone(), &options(1 << 20, 1 << 20), false).unwrap();
            let found = contents(&*index.snapshot().unwrap()).unwrap();
            assert_same(&found, &model, &format!("{what}, copy {copy}, byte {byte}"));
            let before = index.healed_count();
            let healed = before + index.verify().unwrap();
            assert_eq!(index.healed_count(), healed);
            if is_page {
                // Pages that redb does not use at the moment are mended without a word.
                assert!(healed <= 1, "{what}, copy {copy}, byte {byte}: {healed}");
                pages += 1;
                used += healed;
            } else {
                assert_eq!(healed, 1, "{what}, copy {copy}, byte {byte}");
            }
            assert_eq!(index.verify().unwrap(), 0, "{what}, copy {copy}, byte {byte}: not healed");
            drop(index);
            let index = RedbIndex::open_with(disk, &options(1 << 20, 1 << 20), true).unwrap();
            assert_eq!(index.verify().unwrap(), 0, "{what}, copy {copy}, byte {byte}: not healed on the disk");
            assert_eq!(index.healed_count(), 0);
        }
    }
    assert!(used > pages / 3, "{used} of {pages} pages were in use");
}

#[test]
fn both_copies_bad_is_an_error_and_never_a_wrong_value() {
    let (image, model) = sample();
    let random = &mut Random(2);
    let mut errors: HashMap<String, u32> = HashMap::new();
    for (at, (what, copies)) in structures(&image).iter().enumerate() {
        if what.starts_with("page") && at % 40 > 0 {
            continue;
        }
        let mut damaged = image.clone();
        for range in copies {
            damaged[range.start + random.below(range.len())] ^= 1 << random.below(8);
        }
        let read_only = random.one_in(2);
        let read = RedbIndex::open_with(CutDisk::with(damaged), &options(1 << 20, 1 << 20), read_only).and_then(|index| {
            let found = contents(&*index.snapshot()?);
            let verified = index.verify();
            if found.is_err() {
                assert!(verified.is_err(), "{what}: an unreadable page passed verification");
                let again = index.snapshot().and_then(|snapshot| contents(&*snapshot));
                assert!(matches!(again, Err(Error::Corrupt(_))), "{what}: {again:?}");
            }
            let found = found?;
            verified.map(|_| found)
        });
        let kind = what.split(' ').next().unwrap_or_default().to_string();
        match read {
            Ok(found) => assert_same(&found, &model, what),
            Err(Error::Corrupt(text)) => {
                assert!(text.contains("cut disk"), "{text}");
                *errors.entry(kind).or_default() += 1;
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }
    assert!(errors["header"] == 1 && errors["table"] >= 2 && errors["page"] > 20, "{errors:?}");
}

#[test]
fn reading_only_changes_no_byte() {
    let (mut image, model) = sample();
    // Something to heal, and something that a cut left unfinished.
    image[HEADER_BYTES + 20] ^= 1;
    image[2 * HEADER_BYTES + 40] ^= 1;
    let disk = CutDisk::with(image.clone());
    {
        let index = RedbIndex::open_with(disk.clone(), &options(256 << 10, 4096), true).unwrap();
        assert_same(&contents(&*index.snapshot().unwrap()).unwrap(), &model, "read-only");
        let changes: BTreeMap<_, _> = (0..2000).map(|at| (format!("{at:05}").into_bytes(), Some(vec![1; 3000]))).collect();
        index.apply(&mut changes.iter().map(change), false).unwrap();
        index.apply(&mut changes.iter().take(1000).map(|(key, _)| (&key[..], None)), true).unwrap();
        index.reserve_ahead(1 << 30).unwrap();
        assert!(index.verify().unwrap() > 0);
        let found = contents(&*index.snapshot().unwrap()).unwrap();
        assert_eq!(found.len(), model.keys().chain(changes.keys()).collect::<std::collections::BTreeSet<_>>().len() - 1000);
    }
    assert_eq!(disk.changes(), 0);
    assert!(disk.image() == image);
}

#[test]
fn dropping_an_index_writes_nothing_and_its_snapshots_only_fail() {
    let disk = CutDisk::with(Vec::new());
    let index = RedbIndex::create_with(disk.clone(), &options(1 << 20, 1 << 20)).unwrap();
    let records: Model = (0..500).map(|at: u32| (at.to_be_bytes().to_vec(), vec![1; 500])).collect();
    index.apply(&mut records.iter().map(|(key, value)| (&key[..], Some(&value[..]))), true).unwrap();
    index.apply(&mut records.keys().map(|key| (&key[..], None)), false).unwrap();
    let snapshot = index.snapshot().unwrap();
    let changes = disk.changes();
    drop(index);
    assert_eq!(disk.changes(), changes);
    if let Ok(found) = snapshot.get(b"x") {
        assert_eq!(found, None);
    }
    drop(snapshot);
    assert_eq!(disk.changes(), changes);
    let index = RedbIndex::open(disk, 1 << 20, false).unwrap();
    assert_same(&contents(&*index.snapshot().unwrap()).unwrap(), &records, "what was durable");
}

#[test]
fn growth_within_reserved_space_needs_nothing_from_a_full_host() {
    let disk = CutDisk::with(Vec::new());
    let index = RedbIndex::create_with(disk.clone(), &options(1 << 20, 1 << 20)).unwrap();
    index.reserve_ahead(40 << 20).unwrap();
    let ahead = index.space_ahead_bytes();
    assert!(ahead >= 40 << 20);
    disk.set_full(true);
    assert!(matches!(index.reserve_ahead(80 << 20), Err(Error::NoSpace)));
    assert_eq!(index.space_ahead_bytes(), ahead, "a refused reservation changes nothing");
    for round in 0..5u8 {
        let records: Model = (0..2000u32).map(|at| ([&[round][..], &at.to_be_bytes()].concat(), vec![round; 1000])).collect();
        index.apply(&mut records.iter().map(|(key, value)| (&key[..], Some(&value[..]))), round % 2 == 0).unwrap();
    }
    assert!(index.space_ahead_bytes() < ahead);
    assert_eq!(contents(&*index.snapshot().unwrap()).unwrap().len(), 10_000);
    // What it gives up is there for the next growth.
    disk.set_full(false);
    index.apply(&mut std::iter::empty(), true).unwrap();
    assert_eq!(index.verify().unwrap(), 0);
}

#[test]
fn without_space_the_error_names_the_cause_until_the_index_is_opened_again() {
    let disk = CutDisk::with(Vec::new());
    let index = RedbIndex::create_with(disk.clone(), &options(256 << 10, 4096)).unwrap();
    let records: Model = (0..4000u32).map(|at| (at.to_be_bytes().to_vec(), vec![7; 3000])).collect();
    let apply = |index: &RedbIndex| index.apply(&mut records.iter().map(|(key, value)| (&key[..], Some(&value[..]))), true);
    disk.set_full(true);
    let first = apply(&index).unwrap_err();
    let second = apply(&index).unwrap_err();
    assert!(matches!((&first, &second), (Error::NoSpace, Error::NoSpace)), "{first}; {second}");
    disk.set_full(false);
    drop(index);
    let index = RedbIndex::open(disk, 1 << 20, false).unwrap();
    assert_same(&contents(&*index.snapshot().unwrap()).unwrap(), &Model::new(), "nothing was made durable");
    apply(&index).unwrap();
    assert_same(&contents(&*index.snapshot().unwrap()).unwrap(), &records, "after there was space again");
}

#[test]
fn a_compacted_index_gives_its_space_back_and_grows_again() {
    let disk = CutDisk::with(Vec::new());
    let mut index = RedbIndex::create_with(disk.clone(), &options(1 << 20, 1 << 20)).unwrap();
    let mut most = 0;
    for round in 0..3u8 {
        let records: Model = (0..12_000u32).map(|at| (at.to_be_bytes().to_vec(), vec![round; 2000])).collect();
        index.apply(&mut records.iter().map(|(key, value)| (&key[..], Some(&value[..]))), true).unwrap();
        assert_same(&contents(&*index.snapshot().unwrap()).unwrap(), &records, "grown");
        most = most.max(disk.len().unwrap());
        index.apply(&mut records.keys().map(|key| (&key[..], None)), true).unwrap();
        assert_eq!(index.verify().unwrap(), 0);
        index.compact().unwrap();
        assert_same(&contents(&*index.snapshot().unwrap()).unwrap(), &Model::new(), "compacted");
        assert!(disk.len().unwrap() < most / 2, "{} of {most} bytes are left", disk.len().unwrap());
        assert_eq!(disk.len().unwrap(), index.disk_bytes());
        drop(index);
        index = RedbIndex::open_with(disk.clone(), &options(1 << 20, 1 << 20), false).unwrap();
        assert_same(&contents(&*index.snapshot().unwrap()).unwrap(), &Model::new(), "emptied");
    }
}

#[test]
fn a_disk_without_a_finished_index_is_refused() {
    for image in [Vec::new(), vec![0; 1 << 20], vec![0xAB; 20 << 20]] {
        let opened = RedbIndex::open(CutDisk::with(image), 1 << 20, false);
        assert!(matches!(opened, Err(Error::Corrupt(_))), "{opened:?}");
    }
    let (mut image, _) = sample();
    image.truncate(image.len() / 2);
    let opened = RedbIndex::open(CutDisk::with(image), 1 << 20, false);
    assert!(matches!(opened, Err(Error::Corrupt(_))), "{opened:?}");
}
