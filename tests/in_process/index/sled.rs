//! sled as an index: a sorted map with snapshots that stay as they are, also while an apply runs; what a crash between two chunks of an
//! apply leaves; what a kill leaves in the directory. Crashes are copies of the directory made from inside an apply, when it asks for
//! the next change: at that moment nothing is being written.

use super::{Model, Random, assert_same, change, check_reads, contents, for_seeds, random_changes, with_changes};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use sumfs::error::Error;
use sumfs::meta::index::{Change, Index, Snapshot};
use sumfs::meta::schema;
use sumfs::meta::sled_index::SledIndex;

const CACHE_BYTES: usize = 8 << 20;

type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() { copy_directory(&entry.path(), &to) } else { assert!(fs::copy(entry.path(), to).is_ok()) }
    }
}

/// Every file below `directory` and what is in it.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let bytes = if entry.path().is_dir() { Vec::new() } else { fs::read(entry.path()).unwrap() };
        found.insert(name, bytes);
    }
    found
}

#[test]
fn the_sled_index_is_a_sorted_map_and_reopens_with_all_of_it() {
    for_seeds(3, |seed| {
        let random = &mut Random(seed);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("index.sled");
        let value_bytes = [30, 2000, 20_000][random.below(3)];
        let mut index = SledIndex::create(&path, CACHE_BYTES).unwrap();
        let mut model = Model::new();
        let mut older = Some((index.snapshot().unwrap(), model.clone()));
        for _ in 0..25 {
            let changes = random_changes(random, &model, 100, value_bytes);
            let before = index.snapshot().unwrap();
            index.apply(&mut changes.iter().map(change), random.one_in(4)).unwrap();
            check_reads(random, &*before, &model);
            drop(before);
            model = with_changes(&model, &changes);
            let snapshot = index.snapshot().unwrap();
            check_reads(random, &*snapshot, &model);
            if let Some((snapshot, model)) = &older {
                check_reads(random, &**snapshot, model);
            }
            if random.one_in(4) {
                older = Some((snapshot, model.clone()));
            } else {
                drop(snapshot);
            }
            if random.one_in(8) {
                // Snapshots keep the index open.
                older = None;
                drop(index);
                index = SledIndex::open(&path, CACHE_BYTES).unwrap();
                assert_same(&contents(&*index.snapshot().unwrap()).unwrap(), &model, "after opening again");
            }
        }
        drop(older);
        assert_eq!(index.kept_generations(), 0, "old values outlive the snapshots that need them");
        assert_eq!(index.verify().unwrap(), 0);
        assert!(index.disk_bytes() > 0);
        assert_eq!(fs::read_dir(path.join("blobs")).unwrap().count(), 0);
    });
}

#[test]
fn snapshots_stay_as_they_are_while_applies_run() {
    const NUMBER: &[u8] = b"00000";
    for_seeds(2, |seed| {
        let directory = tempfile::tempdir().unwrap();
        let index = SledIndex::create(&directory.path().join("index.sled"), CACHE_BYTES).unwrap();
        let models = Mutex::new(vec![Model::new()]);
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = |seed| {
                let (index, models, is_done) = (&index, &models, &is_done);
                move || {
                    let random = &mut Random(seed);
                    let mut seen = 0;
                    while !is_done.load(Ordering::Relaxed) || seen == 0 {
                        let snapshot = index.snapshot().unwrap();
                        let number =
                            snapshot.get(NUMBER).unwrap().map_or(0, |number| u32::from_le_bytes(number.try_into().unwrap()));
                        let model = models.lock().unwrap()[number as usize].clone();
                        check_reads(random, &*snapshot, &model);
                        check_reads(random, &*snapshot, &model);
                        seen += 1;
                    }
                }
            };
            let readers: Vec<_> = [seed ^ 1 << 32, seed ^ 1 << 33].map(|seed| scope.spawn(reader(seed))).into_iter().collect();
            let random = &mut Random(seed);
            for number in 1..=15u32 {
                let before = models.lock().unwrap().last().unwrap().clone();
                let mut changes = random_changes(random, &before, 250, 3000);
                changes.insert(NUMBER.to_vec(), Some(number.to_le_bytes().to_vec()));
                models.lock().unwrap().push(with_changes(&before, &changes));
                index.apply(&mut changes.iter().map(change), random.one_in(4)).unwrap();
            }
            is_done.store(true, Ordering::Relaxed);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
        assert_eq!(index.kept_generations(), 0);
    });
}

/// The number of the checkpoint that an index is as of; 0 without one.
fn checkpoint_of(snapshot: &dyn Snapshot) -> usize {
    snapshot.get(&schema::checkpoint()).unwrap().map_or(0, |number| usize::from(number[0]))
}

#[test]
fn a_crash_inside_an_apply_leaves_what_replay_from_its_checkpoint_makes_whole() {
    for_seeds(3, |seed| {
        let random = &mut Random(seed);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("index.sled");
        let index = SledIndex::create(&path, CACHE_BYTES).unwrap();
        let mut model = Model::new();
        let mut history: Vec<Changes> = Vec::new();
        let mut partial = 0;
        for number in 1..=8usize {
            let mut changes = random_changes(random, &model, 150, 6000);
            changes.insert(schema::checkpoint(), Some(vec![number as u8]));
            let after = with_changes(&model, &changes);
            let crash_at = random.below(changes.len() + 1);
            let crashed = directory.path().join(format!("crashed {number}"));
            let mut asked = changes.iter().enumerate().map(|(at, one)| -> Change<'_> {
                if at == crash_at {
                    copy_directory(&path, &crashed);
                }
                change(one)
            });
            index.apply(&mut asked, true).unwrap();
            if !crashed.exists() {
                copy_directory(&path, &crashed);
            }
            history.push(changes);
            let left = SledIndex::open(&crashed, CACHE_BYTES).unwrap();
            let snapshot = left.snapshot().unwrap();
            let found = checkpoint_of(&*snapshot);
            assert!(found == number || found == number - 1, "checkpoint {found} of {number}");
            assert!(found < number || crash_at >= history[number - 1].len(), "the checkpoint of an apply that was not complete");
            let found_contents = contents(&*snapshot).unwrap();
            partial += usize::from(found_contents != model && found_contents != after);
            let replayed = history[found..].iter().fold(found_contents, |model, changes| with_changes(&model, changes));
            assert_same(&replayed, &after, "after replay");
            let earlier: Vec<usize> = left.earlier_checkpoints().unwrap().iter().map(|number| usize::from(number[0])).collect();
            let expected: Vec<usize> = (1..found).rev().take(left.checkpoints_kept()).collect();
            assert_eq!(earlier, expected);
            model = after;
        }
        assert!(partial > 0, "no crash hit the middle of an apply");
    });
}

fn sample(path: &Path) -> Model {
    let index = SledIndex::create(path, CACHE_BYTES).unwrap();
    let model = with_changes(&Model::new(), &random_changes(&mut Random(3), &Model::new(), 400, 5000));
    index.apply(&mut model.iter().map(|(key, value)| -> Change<'_> { (key, Some(value)) }), true).unwrap();
    model
}

#[test]
fn what_a_kill_leaves_in_the_directory_is_mended_and_what_is_missing_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("index.sled");
    let model = sample(&path);
    let opened = || contents(&*SledIndex::open(&path, CACHE_BYTES).unwrap().snapshot().unwrap()).unwrap();
    fs::write(path.join("snap.0000000000000FFF.generating"), b"half a snapsh").unwrap();
    assert_same(&opened(), &model, "with an unfinished snapshot");
    let snapshots: Vec<String> = files(&path).into_keys().filter(|name| name.starts_with("snap.")).collect();
    assert!(!snapshots.is_empty() && !snapshots.iter().any(|name| name.ends_with(".generating")), "{snapshots:?}");
    for name in &snapshots {
        fs::write(path.join(name), b"cut short").unwrap();
    }
    assert_same(&opened(), &model, "with broken snapshots");

    fs::write(path.join("blobs/77"), b"a value").unwrap();
    assert!(matches!(SledIndex::open(&path, CACHE_BYTES), Err(Error::Corrupt(_))));
    fs::remove_file(path.join("blobs/77")).unwrap();
    assert_same(&opened(), &model, "without blobs");
    for name in ["db", "conf"] {
        let kept = fs::read(path.join(name)).unwrap();
        fs::remove_file(path.join(name)).unwrap();
        assert!(matches!(SledIndex::open(&path, CACHE_BYTES), Err(Error::Corrupt(_))), "without {name}");
        fs::write(path.join(name), kept).unwrap();
    }
    fs::write(path.join("db"), b"").unwrap();
    assert!(matches!(SledIndex::open(&path, CACHE_BYTES), Err(Error::Corrupt(_))), "an empty log");
}

#[test]
fn reading_a_copy_changes_no_byte() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("index.sled");
    let model = sample(&path);
    let before = files(&path);
    let index = SledIndex::open_copy(&path, CACHE_BYTES).unwrap();
    assert_same(&contents(&*index.snapshot().unwrap()).unwrap(), &model, "the copy");
    let key: &[u8] = b"new";
    index.apply(&mut std::iter::once((key, Some(key))), true).unwrap();
    assert_eq!(index.snapshot().unwrap().get(key).unwrap().as_deref(), Some(key));
    drop(index);
    assert!(files(&path) == before, "the original has changed");
}
