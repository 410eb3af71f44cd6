//! The metadata image: what a file of it that fails, is full or is damaged costs (nothing but the image), which generation an index is
//! made from, and a rebuilding that is broken off. Power cuts with a lost index are in `crash/lost_index.rs`.

use crate::memory_store::MemoryStore;
use crate::simulated_disk::{Fault, Operation, SimulatedPower, seed_from_environment};
use std::path::Path;
use std::sync::Arc;
use sumfs::disk::superblock::Superblock;
use sumfs::error::Result;
use sumfs::fs::{Caller, Filesystem};
use sumfs::meta::redb_index::RedbIndex;
use sumfs::meta::restore::{Restore, Source};
use sumfs::store::{CreateOptions, RebuildOptions, StoreDirectory};
use sumfs::units::InodeNumber;

const CALLER: Caller = Caller { pid: 1, uid: 0, gid: 0 };
const INDEX_CACHE_BYTES: usize = 8 << 20;
const STORE_BYTES: u64 = 48 << 20;

struct Machine {
    power: SimulatedPower,
    store: MemoryStore,
}

impl Machine {
    fn new() -> Machine {
        let power = SimulatedPower::new(seed_from_environment(1));
        let store = MemoryStore::on(&power, STORE_BYTES).with_images(&power);
        Machine { power, store }
    }

    fn open(&self) -> Arc<Filesystem> {
        self.store.open()
    }

    /// Makes a new image, from the first step to the checkpoint that names it.
    fn renew(&self, fs: &Filesystem) {
        let before = image(fs)["generation"].as_u64();
        fs.renew_image();
        while fs.image_step().unwrap() {}
        assert!(image(fs)["generation"].as_u64() > before, "{}", image(fs));
    }

    /// Loses the index and makes it anew; from what.
    fn rebuild(&self) -> Result<Source> {
        let disks = &self.store.disks;
        let superblock = Superblock::read(&*disks.superblock)?.superblock;
        let images = disks.images.as_ref().unwrap();
        let found = Restore::find(images, &disks.journal, superblock.uuid, superblock.clean_sequence, &mut |_, _, _| {})?;
        disks.index.set_len(0)?;
        found.fill(&RedbIndex::create(disks.index.clone(), INDEX_CACHE_BYTES)?, &mut |_, _, _| {})?;
        Ok(*found.source())
    }

    fn fail_writes(&self, port: &str) {
        let fault = Fault { port: Some(port.to_owned()), operation: Some(Operation::Write), nth: 1, for_good: true };
        self.power.fail(fault);
    }
}

fn image(fs: &Filesystem) -> serde_json::Value {
    fs.status()["metadata"]["image"].clone()
}

fn make(fs: &Filesystem, name: &str) {
    fs.mknod(&CALLER, InodeNumber::ROOT, name.as_bytes(), 0o100_644, 0, 0).unwrap();
}

fn has(fs: &Filesystem, name: &str) -> bool {
    fs.lookup(InodeNumber::ROOT, name.as_bytes()).is_ok()
}

fn long_name(round: usize, number: usize) -> String {
    format!("name-{round}-{number}-{}", "x".repeat(150))
}

/// Changes so much that the journal's ring is written over and over.
fn go_round(fs: &Filesystem) {
    for round in 0..40 {
        (0..200).for_each(|number| make(fs, &long_name(round, number)));
        fs.sync().unwrap();
    }
}

/// These names, each made durable and checkpointed.
fn make_all(fs: &Filesystem, names: &[&str]) {
    for name in names {
        make(fs, name);
        fs.sync().unwrap();
        fs.scrub_start(0).ok();
        while fs.scrub_step().unwrap() {}
    }
}

#[test]
fn a_base_that_is_damaged_is_replaced_by_the_older_one_and_both_logs() {
    let machine = Machine::new();
    let fs = machine.open();
    machine.renew(&fs);
    make_all(&fs, &["a", "b"]);
    machine.renew(&fs);
    make_all(&fs, &["c"]);
    // The journal alone does not lead on from the end of the older log.
    go_round(&fs);
    make_all(&fs, &["d"]);
    fs.shutdown().unwrap();
    // The second image is in the second file; its first frame holds the base.
    machine.power.flip_byte("image.1", 4096 + 300);
    let source = machine.rebuild().unwrap();
    assert_eq!((source.generation, source.continued_by, source.missing), (1, Some(2), None), "{source:?}");
    let fs = machine.open();
    assert!(["a", "b", "c", "d"].iter().all(|name| has(&fs, name)));
    machine.store.close(&fs);
}

#[test]
fn an_image_that_was_never_named_is_no_newer_log() {
    let machine = Machine::new();
    let fs = machine.open();
    machine.renew(&fs);
    fs.renew_image();
    assert!(fs.image_step().unwrap());
    make_all(&fs, &["a"]);
    // All but the last step: the file is complete, and no checkpoint names it.
    assert!(fs.image_step().unwrap() && fs.image_step().unwrap());
    drop(fs);
    let fs = machine.open();
    assert_eq!(image(&fs)["generation"], 1);
    go_round(&fs);
    fs.shutdown().unwrap();
    let source = machine.rebuild().unwrap();
    assert_eq!((source.generation, source.continued_by, source.missing), (1, None, None), "{source:?}");
    let fs = machine.open();
    assert!(has(&fs, "a") && has(&fs, &long_name(39, 199)));
    machine.store.close(&fs);
}

#[test]
fn an_image_that_cannot_be_written_is_stale_and_costs_nothing_else() {
    let machine = Machine::new();
    let fs = machine.open();
    machine.renew(&fs);
    assert_eq!(image(&fs)["state"], "current");
    machine.fail_writes("image.0");
    make_all(&fs, &["a", "b"]);
    assert_eq!(image(&fs)["state"], "stale", "{}", image(&fs));
    assert!(image(&fs)["failure"].as_str().is_some_and(|reason| reason.contains("logging changes")), "{}", image(&fs));
    assert_eq!(fs.read_only_reason(), None);
    fs.shutdown().unwrap();
    machine.store.check().unwrap();
    // With the next mount it is tried again, in the file that does not fail.
    machine.power.clear_faults();
    let fs = machine.open();
    while fs.image_step().unwrap() {}
    assert_eq!(image(&fs)["state"], "current", "{}", image(&fs));
    fs.shutdown().unwrap();
    assert_eq!(machine.rebuild().unwrap().missing, None);
    let fs = machine.open();
    assert!(has(&fs, "a") && has(&fs, "b"));
    machine.store.close(&fs);
}

#[test]
fn what_is_missing_is_said() {
    let machine = Machine::new();
    let fs = machine.open();
    machine.renew(&fs);
    machine.fail_writes("image.0");
    // What the image does not have is nowhere any more.
    go_round(&fs);
    fs.shutdown().unwrap();
    let source = machine.rebuild().unwrap();
    assert!(source.missing.is_some(), "{source:?}");
}

#[test]
fn a_scrub_notices_every_flipped_frame() {
    let machine = Machine::new();
    let fs = machine.open();
    machine.renew(&fs);
    make_all(&fs, &["a", "b"]);
    let end = image(&fs)["base_bytes"].as_u64().unwrap() + image(&fs)["log_bytes"].as_u64().unwrap();
    for block in 0..=end / 4096 {
        let place = if image(&fs)["generation"].as_u64().unwrap() % 2 == 1 { "image.0" } else { "image.1" };
        if block * 4096 + 40 >= 4096 + image(&fs)["base_bytes"].as_u64().unwrap() + image(&fs)["log_bytes"].as_u64().unwrap() {
            break;
        }
        machine.power.flip_byte(place, block * 4096 + 40);
        make_all(&fs, &[&format!("after-{block}")]);
        assert_eq!(image(&fs)["state"], "damaged", "block {block}: {}", image(&fs));
        while fs.image_step().unwrap() {}
        assert_eq!(image(&fs)["state"], "current", "block {block}");
    }
    machine.store.close(&fs);
    assert_eq!(machine.rebuild().unwrap().missing, None);
}

#[test]
fn a_rebuilding_that_was_broken_off_can_be_begun_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    StoreDirectory::create(&path, CreateOptions { size: Some(32 << 20), ..CreateOptions::default() }).unwrap();
    let with = |work: &dyn Fn(&Filesystem)| {
        let store = StoreDirectory::open(&path, false, None).unwrap();
        let options = sumfs::fs::Options { background: false, ..sumfs::fs::Options::default() };
        let fs = Filesystem::open(store.disks().clone(), options).unwrap();
        work(&fs);
        fs.shutdown().unwrap();
    };
    with(&|fs| make(fs, "a"));
    let rebuild = || StoreDirectory::rebuild_index(&path, RebuildOptions::default(), &mut |_, _, _| {}).unwrap();
    let at = |name: &str| path.join(name);
    // In the middle of filling; between keeping the old one aside and naming the new one; both.
    let breaks: [&dyn Fn(); 3] = [
        &|| std::fs::write(at("index.new"), vec![7; 100_000]).unwrap(),
        &|| std::fs::hard_link(at("index"), at("index.damaged")).unwrap(),
        &|| std::fs::rename(at("index"), at("index.new")).unwrap(),
    ];
    for (round, leave) in breaks.into_iter().enumerate() {
        remove(&at("index.damaged"));
        leave();
        let made = rebuild();
        assert_eq!((made.source.missing, at("index.new").exists()), (None, false), "round {round}");
        with(&|fs| {
            assert!(has(fs, "a"), "round {round}");
            make(fs, &format!("round-{round}"));
        });
    }
    with(&|fs| assert!((0..3).all(|round| has(fs, &format!("round-{round}")))));
}

fn remove(path: &Path) {
    std::fs::remove_file(path).ok();
}
