//! Proof of detection. Blocks of devices, journal, index, superblock and labels are flipped, zeroed, swapped, written to the wrong place
//! or lost, one in each part of the store at a time. Then: no wrong byte is ever read; a scrub finds every damaged copy of live data,
//! and nothing else; with two copies everything is as it was before afterwards; with one exactly the damaged blocks are errors.
//!
//! The judge is the model, the places where the files lie, and `check`, whose code is not the scrub's. `DAMAGES=n` makes so many
//! (`make detection`: 5000), `SEED=n` runs one round.

use crate::execution::Runner;
use crate::memory_store::{MemoryStore, Shape};
use crate::operations::{Mix, Operation, draw};
use crate::reference_model::{Model, Node};
use crate::simulated_disk::{Images, Random, SimulatedPower, Survivors};
use crate::tree::{Walk, read_bytes};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use sumfs::disk::memory::{BlockBytes, MemoryImage};
use sumfs::fs::{Filesystem, Options};
use sumfs::units::{BLOCK, BLOCK_SIZE, InodeNumber};
use sumfs::verify::check::{CheckOptions, Report, check};
use sumfs::verify::issue::{Issue, Severity};

const STORE_BYTES: u64 = 48 << 20;
const OPERATIONS: usize = 150;
const DAMAGES_DEFAULT: u64 = 400;
/// Rounds on the same sample.
const ROUNDS_A_SAMPLE: u64 = 40;

const MIX: Mix =
    Mix { names: 35, data: 45, attributes: 10, durability: 8, memory: 2, write_bytes_max: 60_000, has_far_offsets: true };

/// What happens to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Flipped,
    Zeroed,
    /// Two blocks of one part change places.
    Swapped,
    /// The block holds what belongs elsewhere.
    Misdirected,
    /// The block holds what it held before its last write.
    Lost,
}

const KINDS: [Kind; 5] = [Kind::Flipped, Kind::Zeroed, Kind::Swapped, Kind::Misdirected, Kind::Lost];

/// A store to be damaged, and what it holds.
struct Sample {
    shape: Shape,
    images: Images,
    /// Some time before.
    older: Images,
    model: Model,
    /// Where the first copies of live data lie: port and block.
    live: BTreeSet<(&'static str, u64)>,
}

impl Sample {
    /// Closed, or as a power cut leaves it with records in the journal.
    fn new(seed: u64, shape: Shape, is_closed: bool) -> Sample {
        let power = SimulatedPower::new(seed);
        let store = MemoryStore::shaped_on(&power, STORE_BYTES, shape);
        let mut runner = Runner::new(store.open(), Model::new());
        let mut older = Images::new();
        for (number, operation) in draw(&mut Random::new(seed), &MIX, OPERATIONS).iter().enumerate() {
            if number == OPERATIONS / 2 {
                runner.run(&Operation::Sync).unwrap();
                older = power.cut_with(seed, Survivors::Flushed, false);
            }
            runner.run(operation).unwrap();
        }
        runner.run(&Operation::Sync).unwrap();
        let model = runner.model.without_nameless();
        let live = live_places(&runner.fs, &model, shape);
        if is_closed {
            store.close(&runner.fs);
        }
        Sample { shape, images: power.cut_with(seed, Survivors::Flushed, false), older, model, live }
    }

    fn ports(&self) -> Vec<&'static str> {
        ["superblock", "journal", "index"].iter().chain(self.shape.ports()).copied().collect()
    }
}

/// Regular files of the model, as the store knows them.
fn files(model: &Model) -> Vec<u64> {
    let ids: BTreeSet<u64> = model.entries().into_iter().map(|(_, _, id)| id).collect();
    ids.into_iter().filter(|id| model.node(*id).and_then(Node::file).is_some()).collect()
}

fn live_places(fs: &Filesystem, model: &Model, shape: Shape) -> BTreeSet<(&'static str, u64)> {
    let mut places = BTreeSet::new();
    for id in files(model) {
        let layout = fs.file_layout(InodeNumber(id)).unwrap();
        for range in layout["ranges"].as_array().unwrap().iter().filter(|range| range["kind"] == "data") {
            let number = |name: &str| range[name].as_u64().unwrap();
            let first = number("device_offset") / BLOCK_SIZE;
            let count = number("length").div_ceil(BLOCK_SIZE);
            places.extend((first..first + count).map(|block| (shape.ports()[number("device") as usize], block)));
        }
    }
    places
}

/// Blocks of a port that are not zeros.
fn used_blocks(image: &MemoryImage) -> Vec<u64> {
    let is_used = |index: &u64| image.block(*index).is_some_and(|block| block.iter().any(|byte| *byte != 0));
    let mut used: Vec<u64> = image.block_indexes().filter(is_used).collect();
    used.sort_unstable();
    used
}

fn bytes_of(image: &MemoryImage, index: u64) -> BlockBytes {
    image.block(index).cloned().unwrap_or_else(|| Arc::new([0; BLOCK]))
}

/// One block of a port that is not what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Damaged {
    port: &'static str,
    block: u64,
    kind: Kind,
}

/// Damages one place of the port, most often one that holds live data.
fn damage(sample: &Sample, images: &mut Images, port: &'static str, random: &mut Random) -> Vec<Damaged> {
    let image = images.get_mut(port).unwrap();
    let used = used_blocks(image);
    let live: Vec<u64> = sample.live.iter().filter(|(live, _)| *live == port).map(|(_, block)| *block).collect();
    let choose = |list: &[u64], random: &mut Random| list[random.below(list.len() as u64) as usize];
    let first = if live.is_empty() || random.once_in(3) { choose(&used, random) } else { choose(&live, random) };
    let second = choose(&used, random);
    let mut kind = KINDS[random.below(KINDS.len() as u64) as usize];
    if port == "journal" && kind == Kind::Swapped {
        // It could take both copies of a record, and that of the last one nothing tells from one that was never written.
        kind = Kind::Misdirected;
    }
    let mut after = vec![(first, bytes_of(image, first))];
    match kind {
        Kind::Flipped => {
            let at = random.below(BLOCK_SIZE) as usize;
            Arc::make_mut(&mut after[0].1)[at] ^= 1 << random.below(8);
        }
        Kind::Zeroed => after[0].1 = Arc::new([0; BLOCK]),
        Kind::Swapped => after = vec![(first, bytes_of(image, second)), (second, bytes_of(image, first))],
        Kind::Misdirected => after[0].1 = bytes_of(image, second),
        Kind::Lost => after[0].1 = bytes_of(&sample.older[port], first),
    }
    after.retain(|(index, bytes)| bytes_of(image, *index) != *bytes);
    for (index, bytes) in &after {
        image.set_block(*index, Some(bytes.clone()));
    }
    after.into_iter().map(|(block, _)| Damaged { port, block, kind }).collect()
}

fn report(store: &MemoryStore) -> Result<Report, String> {
    check(&store.disks, &CheckOptions { verify_data: true }, &mut |_, _| {}).map_err(|error| format!("check: {error}"))
}

/// Copies of blocks that a check calls bad, by device and offset.
#[derive(Debug, Default)]
struct Bad {
    all: BTreeSet<(u64, u64)>,
    /// Those of files with names: what has none is deleted by the mount.
    named: BTreeSet<(u64, u64)>,
    /// Of these, the ones without a good twin.
    lost: BTreeSet<(u64, u64)>,
}

impl Bad {
    fn of(report: &Report) -> Bad {
        let mut bad = Bad::default();
        for issue in &report.issues {
            let (Issue::BadBlock { file, place, .. } | Issue::BadCopy { file, place, .. }) = issue else { continue };
            let place = (u64::from(place.device), place.device_offset);
            bad.all.insert(place);
            if file.as_ref().is_some_and(|file| file.path.is_some()) {
                bad.named.insert(place);
                bad.lost.extend(matches!(issue, Issue::BadBlock { .. }).then_some(place));
            }
        }
        bad
    }
}

/// Device and offset of every block that the scrub lists; `left`: only what it could not repair.
fn listed_places(status: &Value, left: bool) -> BTreeSet<(u64, u64)> {
    let mut places = BTreeSet::new();
    for range in status["damage"]["ranges"].as_array().unwrap().iter().filter(|range| !left || range["repaired"] == false) {
        let number = |name: &str| range[name].as_u64().unwrap();
        let blocks = (0..number("length")).step_by(BLOCK);
        places.extend(blocks.map(|at| (number("device"), number("device_offset") + at)));
    }
    places
}

fn scrub(fs: &Filesystem) -> Result<Value, String> {
    fs.scrub_start(0).map_err(|error| format!("scrub: {error}"))?;
    while fs.scrub_step().map_err(|error| format!("scrub: {error}"))? {}
    fs.scrub_status(true).map_err(|error| format!("status: {error}"))
}

/// Reads every block of every file: it is right, or an error. How many errors.
fn read_all(fs: &Filesystem, model: &Model) -> Result<u64, String> {
    let mut errors = 0;
    for (directory, name, id) in model.entries() {
        let found = fs.lookup(InodeNumber(directory), &name).map_err(|error| format!("lookup of inode {id}: {error}"))?;
        let Some(bytes) = model.node(id).and_then(Node::file) else { continue };
        // What the map has as data counts too where the model knows only zeros.
        let layout = fs.file_layout(found.inode).map_err(|error| format!("layout of inode {id}: {error}"))?;
        let number = |range: &Value, name: &str| range[name].as_u64().unwrap();
        let stored = layout["ranges"].as_array().unwrap().iter().filter(|range| range["kind"] == "data");
        let mut blocks: BTreeSet<u64> = bytes.block_indexes().collect();
        blocks.extend(stored.flat_map(|range| {
            let first = number(range, "offset") / BLOCK_SIZE;
            first..first + number(range, "length").div_ceil(BLOCK_SIZE)
        }));
        for block in blocks {
            match read_bytes(fs, found.inode, block * BLOCK_SIZE, BLOCK) {
                Ok(data) if data == bytes.read(block * BLOCK_SIZE, BLOCK) => {}
                Ok(_) => return Err(format!("WRONG DATA in block {block} of inode {id}")),
                Err(_) => errors += 1,
            }
        }
    }
    Ok(errors)
}

fn compare_tree(fs: &Filesystem, model: &Model) -> Result<(), String> {
    let interesting = |id| model.node(id).and_then(Node::file).map(|bytes| bytes.block_indexes().collect()).unwrap_or_default();
    let found = Walk { fs, root: model.root(), nameless: &[], interesting: &interesting, direct: false }.read()?;
    let differences = model.differences(&found, true);
    if differences.is_empty() { Ok(()) } else { Err(differences.join("\n")) }
}

/// What a round saw.
#[derive(Debug, Default)]
struct Tally {
    kinds: BTreeMap<Kind, u64>,
    damages: u64,
    /// Copies of live data among them, all found; and how many of these were repaired.
    live: u64,
    repaired: u64,
    /// Bad copies of index pages, tables, journal records, superblocks, labels; all mended.
    healed: u64,
}

fn round(sample: &Sample, seed: u64, tally: &mut Tally) -> Result<(), String> {
    let mut random = Random::new(seed);
    let mut images = sample.images.clone();
    let ports = sample.ports().into_iter();
    let damages: Vec<Damaged> = ports.flat_map(|port| damage(sample, &mut images, port, &mut random)).collect();
    let context = |error: String| format!("{damages:?}: {error}");
    let store = MemoryStore::found_on(&SimulatedPower::reopen(seed, &images));
    let before = report(&store)?;
    let bad = Bad::of(&before);
    is_expected(sample, &damages, &before, &bad).map_err(context)?;
    let fs = open(&store).map_err(context)?;
    let reads_first = random.once_in(2);
    if reads_first {
        let errors = read_all(&fs, &sample.model).map_err(context)?;
        if bad.lost.is_empty() != (errors == 0) {
            return Err(context(format!("{:?} are lost and {errors} reads are errors", bad.lost)));
        }
    }
    let status = scrub(&fs).map_err(context)?;
    let (found, left) = (listed_places(&status, false), listed_places(&status, true));
    // A read repairs what it meets in front of the scrub.
    let must_find = if reads_first { &bad.lost } else { &bad.named };
    if !must_find.is_subset(&found) || !found.is_subset(&bad.all) || left != bad.lost {
        return Err(context(format!("the check finds {bad:?}, the scrub {found:?}, of which {left:?} are left")));
    }
    let errors = read_all(&fs, &sample.model).map_err(context)?;
    if bad.lost.is_empty() != (errors == 0) {
        return Err(context(format!("{:?} are lost and afterwards {errors} reads are errors", bad.lost)));
    }
    fs.shutdown().map_err(|error| context(format!("shutdown: {error}")))?;
    let after = report(&store)?;
    let is_bad_block = |issue: &Issue| matches!(issue, Issue::BadBlock { .. });
    if Bad::of(&after).all != left || !after.issues.iter().all(is_bad_block) || after.healed > 0 {
        return Err(context(format!("{left:?} are left, and afterwards the check finds {:?}", after.issues)));
    }
    if left.is_empty() {
        let fs = open(&store).map_err(context)?;
        compare_tree(&fs, &sample.model).map_err(context)?;
    }
    damages.iter().for_each(|damage| *tally.kinds.entry(damage.kind).or_default() += 1);
    tally.damages += damages.len() as u64;
    tally.live += bad.named.len() as u64;
    tally.repaired += (bad.named.len() - left.len()) as u64;
    let copies =
        before.issues.iter().filter(|issue| issue.severity() == Severity::Harmless && !matches!(issue, Issue::BadCopy { .. }));
    tally.healed += before.healed + copies.count() as u64;
    Ok(())
}

/// Before anything is mended: the check finds damage in copies only, and all that is known to be there.
fn is_expected(sample: &Sample, damages: &[Damaged], report: &Report, bad: &Bad) -> Result<(), String> {
    let is_other = |issue: &&Issue| issue.severity() != Severity::Harmless && !matches!(issue, Issue::BadBlock { .. });
    if let Some(issue) = report.issues.iter().find(is_other) {
        return Err(format!("the check finds {issue}"));
    }
    if sample.shape == Shape::SINGLE && bad.named != bad.lost {
        return Err("a second copy of what has one".to_owned());
    }
    let is_missed = |damaged: &&Damaged| {
        let device = sample.shape.ports().iter().position(|port| *port == damaged.port);
        let is_live = sample.live.contains(&(damaged.port, damaged.block));
        is_live && device.is_none_or(|device| !bad.named.contains(&(device as u64, damaged.block * BLOCK_SIZE)))
    };
    damages.iter().find(is_missed).map_or(Ok(()), |missed| Err(format!("the check misses {missed:?}")))
}

fn open(store: &MemoryStore) -> Result<Arc<Filesystem>, String> {
    let options = Options { background: false, ..Options::default() };
    let fs = Filesystem::open(store.disks.clone(), options).map_err(|error| format!("opening: {error}"))?;
    fs.read_only_reason().map_or(Ok(fs), |reason| Err(format!("read-only: {reason}")))
}

fn number_from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn prove(name: &str, shape: Shape) {
    let wanted = number_from_environment("DAMAGES").unwrap_or(DAMAGES_DEFAULT) / 3;
    let only = number_from_environment("SEED");
    let mut tally = Tally::default();
    let mut seed = only.unwrap_or(0);
    let mut sample: Option<(u64, Sample)> = None;
    while tally.damages < wanted {
        let number = seed / ROUNDS_A_SAMPLE;
        if sample.as_ref().is_none_or(|(known, _)| *known != number) {
            sample = Some((number, Sample::new(number, shape, number.is_multiple_of(2))));
        }
        let (_, sample) = sample.as_ref().unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| round(sample, seed, &mut tally)));
        match outcome {
            Ok(result) => result.unwrap_or_else(|wrong| panic!("{name}, SEED={seed}: {wrong}")),
            Err(_) => panic!("{name}, SEED={seed}: a panic"),
        }
        seed += 1;
        if only.is_some() {
            break;
        }
    }
    println!("{name}: {tally:?}; no wrong byte, all damage in live data found");
    assert!(only.is_some() || tally.live > 0 && tally.healed > 0 && tally.kinds.len() == KINDS.len(), "{tally:?}");
}

#[test]
fn damage_with_one_copy_is_found_and_never_read() {
    prove("single", Shape::SINGLE);
}

#[test]
fn damage_with_two_copies_on_one_device_is_found_and_repaired() {
    prove("dup on one device", Shape::DUP_ONE);
}

#[test]
fn damage_with_two_copies_on_two_devices_is_found_and_repaired() {
    prove("dup on two devices", Shape::DUP_TWO);
}
