//! Repairs: of each issue alone, of stores with several random faults (SEED= gives one, FAULTS= how many stores), and cut off at every
//! write. What a repair does not speak of must be as it was, byte by byte.

use super::contents::Contents;
use super::{cases, checked};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use sumfs::disk::Disk;
use sumfs::error::{Error, Result};
use sumfs::fs::{Filesystem, Options, ReadFlags};
use sumfs::lock::Wait;
use sumfs::meta::records::seal;
use sumfs::meta::schema::{self, Parsed};
use sumfs::store::Disks;
use sumfs::units::InodeNumber;
use sumfs::verify::check::Report;
use sumfs::verify::issue::Issue;
use sumfs::verify::repair::{Repaired, repair};

fn repaired(disks: &Disks, dry_run: bool) -> Repaired {
    repair(disks, dry_run, &mut |_, _| {}).unwrap()
}

/// Faults that a repair tells of and leaves: it could only guess, or the wrong device was given, or another command repairs them.
fn is_left(issue: &Issue) -> bool {
    use Issue::*;
    matches!(
        issue,
        LabelLost { .. }
            | DeviceForeign { .. }
            | DeviceShort { .. }
            | IndexDamaged { .. }
            | MetadataUnusable { .. }
            | GroupOutsideDevice { .. }
            | GroupsOverlap { .. }
            | ExtentOverlap { .. }
            | BadBlock { .. }
            | BadCopy { .. }
            | UnreadableBlock { .. }
    )
}

fn said(repaired: &Repaired) -> Vec<&str> {
    repaired.steps.iter().map(|step| step.message.as_str()).collect()
}

#[test]
fn each_issue_is_repaired_or_left_as_it_was() {
    let mut wrong = Vec::new();
    for case in cases::all() {
        let disks = case.disks();
        let planned = repaired(&disks, true);
        assert!(!planned.is_written);
        let report = checked(&disks);
        assert_eq!(report.issues.len(), 1, "a dry run changed the store of {:?}", case.expected);
        let done = repaired(&disks, false);
        if said(&planned) != said(&done) {
            wrong.push(format!("{:?}: a dry run says {:?}, the repair {:?}", case.expected, said(&planned), said(&done)));
        }
        let after = checked(&disks);
        if is_left(&case.expected) {
            if done.is_written || after.issues != report.issues {
                wrong.push(format!("{:?} was not left: {:?}, then {:?}", case.expected, said(&done), after.issues));
            }
        } else if !done.is_written || !after.is_clean() || !done.after.is_clean() {
            let left = (&done.after.issues, &after.issues);
            wrong.push(format!("{:?} was not repaired: {:?}, then {left:?}", case.expected, said(&done)));
        } else if !repaired(&disks, false).steps.is_empty() {
            wrong.push(format!("{:?}: a second repair found something", case.expected));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Small numbers from a seed (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// Which faults are made.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Faults {
    /// Records that vanish, and values with a wrong checksum.
    Seen,
    /// As well values that are wrong and whose checksum is right: some of these no check can see.
    Any,
}

/// Tables that a store cannot be opened without, which an index rebuilt from its image has again.
fn is_needed(key: &[u8]) -> bool {
    matches!(schema::parse(key), Some(Parsed::Checkpoint | Parsed::Group(_)))
}

fn damaged(random: &mut Random, faults: Faults) -> (Contents, Vec<String>) {
    let mut contents = Contents::good();
    let keys: Vec<_> = contents.records.keys().filter(|key| !is_needed(key)).cloned().collect();
    let mut made = Vec::new();
    for _ in 0..1 + random.below(4) {
        let key = keys[random.below(keys.len())].clone();
        let Some(record) = contents.records.get(&key).cloned() else { continue };
        let kinds = if faults == Faults::Seen { 2 } else { 4 };
        let kind = random.below(kinds);
        made.push(format!("{kind} {:?}", schema::parse(&key)));
        match kind {
            0 => {
                contents.records.remove(&key);
                contents.deleted.push(key);
            }
            1 => contents.damage(key),
            2 => {
                let mut record = record;
                if !record.is_empty() {
                    let at = random.below(record.len());
                    record[at] ^= 1 << random.below(8);
                }
                let value = seal(&key, record);
                contents.records.remove(&key);
                contents.raw.insert(key, value);
            }
            _ => {
                let others: Vec<_> = keys.iter().filter(|other| other[0] == key[0] && other.get(9) == key.get(9)).collect();
                let other = others[random.below(others.len())].clone();
                contents.records.remove(&other);
                let value = seal(&other, record);
                contents.raw.insert(other, value);
            }
        }
    }
    (contents, made)
}

/// What every path reads as: the kind, and for files the contents or that it is an error.
fn tree(disks: &Disks) -> BTreeMap<String, (u64, Option<Vec<u8>>)> {
    let fs = Filesystem::open(disks.clone(), Options { background: false, read_only: true, ..Options::default() }).unwrap();
    let mut found = BTreeMap::new();
    let mut todo = vec![(InodeNumber::ROOT, String::new())];
    while let Some((directory, path)) = todo.pop() {
        let mut names = Vec::new();
        fs.readdir(directory, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })
        .unwrap();
        for name in names.into_iter().filter(|name| name != b"." && name != b"..") {
            let attributes = fs.lookup(directory, &name).unwrap();
            let path = format!("{path}/{}", String::from_utf8_lossy(&name));
            let bytes = match attributes.mode & 0o170_000 {
                0o040_000 => {
                    todo.push((attributes.inode, path.clone()));
                    Some(Vec::new())
                }
                0o120_000 => fs.readlink(attributes.inode).ok(),
                _ => fs
                    .read(attributes.inode, 0, attributes.size.min(1 << 20) as usize, ReadFlags::default(), Wait::Allowed)
                    .ok()
                    .map(|data| data.as_slice().to_vec()),
            };
            found.insert(path, (attributes.inode.0, bytes));
        }
    }
    found
}

/// Is the file, or its name, in one of the steps?
fn is_named(repaired: &Repaired, path: &str, inode: u64) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    repaired.steps.iter().any(|step| {
        step.file.as_ref().is_some_and(|file| file.inode == inode)
            || step.message.contains(&format!("inode {inode}"))
            || step.message.contains(&format!("name {name} "))
            || step.message.contains(&format!("name {name}:"))
    })
}

fn seeds() -> Vec<u64> {
    if let Ok(seed) = std::env::var("SEED") {
        return vec![seed.parse().unwrap()];
    }
    // The same ones each time, and one of which the root's record was another's; FAULTS= looks for new ones.
    let (first, count) = match std::env::var("FAULTS") {
        Ok(count) => (std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64, count.parse().unwrap()),
        Err(_) => (9_720_157_268_135_119_169, 60),
    };
    (0..count).map(|number: u64| first.wrapping_add(number * 0x9e37_79b9_7f4a_7c15) | 1).collect()
}

#[test]
fn random_faults_are_repaired_and_what_is_whole_stays() {
    let good = tree(&Contents::good().write().unwrap());
    assert!(good.len() >= 7, "{good:?}");
    for seed in seeds() {
        let mut random = Random(seed);
        let faults = if random.below(2) == 0 { Faults::Seen } else { Faults::Any };
        let (contents, made) = damaged(&mut random, faults);
        let disks = contents.write().unwrap();
        let before = checked(&disks);
        let done = repaired(&disks, false);
        let after = checked(&disks);
        let about = format!("SEED={seed} {made:?}\nbefore {:?}\nsteps {:#?}", before.issues, said(&done));
        assert!(unmended(&after), "{about}\nleft {:?}", after.issues);
        assert!(repaired(&disks, false).steps.is_empty() || !after.is_clean(), "{about}\na second repair found something");
        if faults == Faults::Seen {
            let now = tree(&disks);
            for (path, was) in good.iter().filter(|(path, was)| !is_named(&done, path, was.0)) {
                assert_eq!(now.get(path), Some(was), "{about}\n{path} changed, and no step says so");
            }
        }
    }
}

/// Nothing is left but what a repair leaves to people.
fn unmended(report: &Report) -> bool {
    report.issues.iter().all(is_left)
}

/// A disk that fails every write after some, on whichever disk of the store they were.
#[derive(Debug)]
struct Failing {
    disk: Arc<dyn Disk>,
    left: Arc<AtomicI64>,
}

impl Failing {
    fn change(&self) -> Result<()> {
        match self.left.fetch_sub(1, Ordering::Relaxed) > 0 {
            true => Ok(()),
            false => Err(Error::io("writing the test's disk", std::io::Error::other("it was cut off"))),
        }
    }
}

impl Disk for Failing {
    fn name(&self) -> &str {
        self.disk.name()
    }
    fn len(&self) -> Result<u64> {
        self.disk.len()
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.disk.read_at(offset, into)
    }
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.change()?;
        self.disk.write_at(offset, from)
    }
    fn flush(&self) -> Result<()> {
        self.change()?;
        self.disk.flush()
    }
    fn set_len(&self, len: u64) -> Result<()> {
        self.change()?;
        self.disk.set_len(len)
    }
    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.disk.allocate(offset, len)
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.disk.discard(offset, len)
    }
}

/// The disks, all of which fail after `writes` changes.
fn failing(disks: &Disks, writes: i64) -> (Disks, Arc<AtomicI64>) {
    let left = Arc::new(AtomicI64::new(writes));
    let wrap = |disk: &Arc<dyn Disk>| -> Arc<dyn Disk> { Arc::new(Failing { disk: disk.clone(), left: left.clone() }) };
    let failing = Disks {
        superblock: wrap(&disks.superblock),
        journal: wrap(&disks.journal),
        index: wrap(&disks.index),
        devices: disks.devices.iter().map(wrap).collect(),
        sled: None,
        images: None,
    };
    (failing, left)
}

#[test]
fn a_repair_that_is_cut_off_leaves_the_store_as_before_or_after() {
    let mut contents = Contents::good();
    contents.damage(schema::inode(InodeNumber(6)));
    contents.damage(schema::entry_by_cookie(InodeNumber(1), 3));
    contents.change_inode(3, |file| file.links = 7);
    contents.used.extend([50, 51]);
    let issues = checked(&contents.write().unwrap()).issues;
    assert!(issues.len() >= 4, "{issues:?}");
    let (mut before, mut after) = (0, 0);
    for writes in 0..10_000 {
        let disks = contents.write().unwrap();
        let (cut, left) = failing(&disks, writes);
        let result = repair(&cut, false, &mut |_, _| {});
        drop(cut);
        let mut report = checked(&disks);
        // Written to while it is marked as not clean: of the two copies of the superblock one may be older.
        report.issues.retain(|issue| !matches!(issue, Issue::SuperblockCopyDamaged { .. }));
        match report.issues.as_slice() {
            [] => after += 1,
            left if left == issues => before += 1,
            other => panic!("cut off after {writes} writes it is neither as before nor as after: {other:?}"),
        }
        if left.load(Ordering::Relaxed) > 0 {
            assert!(result.unwrap().is_written);
            break;
        }
    }
    assert!(before > 1 && after > 1, "cut off {before} times before the step that counts, {after} times behind it");
}
