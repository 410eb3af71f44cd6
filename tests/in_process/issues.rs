//! Every issue that a check can report, made on purpose: a store with exactly that fault gives exactly that issue. A new variant
//! does not compile here before it has a number, and the numbers are complete only when each has a case.

mod cases;
mod command;
mod contents;
mod one_item;
mod repair;

use contents::{BLOCKS_PER_GROUP, Contents, GROUP_0_AT, INDEX_CACHE_BYTES, block_bytes, written};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use sumfs::disk::Disk;
use sumfs::disk::label::data_area;
use sumfs::disk::superblock::Superblock;
use sumfs::error::{Error, Result};
use sumfs::meta::latch::Latch;
use sumfs::meta::records::FileKind;
use sumfs::meta::redb_index::RedbIndex;
use sumfs::meta::{Batch, Metadata, Parts, schema};
use sumfs::stats::Stats;
use sumfs::store::Disks;
use sumfs::units::{BLOCK, BLOCK_SIZE, InodeNumber};
use sumfs::verify::check::{CheckOptions, Report, check};
use sumfs::verify::issue::{Issue, Severity};

/// How many kinds of issues there are; `number` names them.
const KINDS: usize = 57;

#[rustfmt::skip]
fn number(issue: &Issue) -> usize {
    use Issue::*;
    match issue {
        SuperblockCopyDamaged { .. } => 0, LabelCopyDamaged { .. } => 1, LabelLost { .. } => 2, DeviceForeign { .. } => 3,
        DeviceShort { .. } => 4, DeviceRecord { .. } => 5, SequenceDiffers { .. } => 6, JournalDamaged { .. } => 7,
        IndexDamaged { .. } => 8, MetadataUnusable { .. } => 9, GroupOutsideDevice { .. } => 10, GroupsOverlap { .. } => 11,
        StrayBitmap { .. } => 12, DamagedValue { .. } => 13, UnknownKey { .. } => 14, NextInodeTooLow { .. } => 15,
        UnwrittenCount { .. } => 16, RootWrong { .. } => 17, ItemsWithoutInode { .. } => 18, UnreadableBlock { .. } => 19,
        MisplacedItem { .. } => 20, EntryWithoutInode { .. } => 21, EntryKind { .. } => 22, EntryToDeleted { .. } => 23,
        EntryWithoutCookie { .. } => 24, CookieWithoutEntry { .. } => 25, EntryDiffers { .. } => 26, CookieOutOfRange { .. } => 27,
        EntryUnknownToInode { .. } => 28, NameMissing { .. } => 29, LinkMissing { .. } => 30, LinkCount { .. } => 31,
        DirectorySize { .. } => 32, DirectoryLoop { .. } => 33, Unreachable { .. } => 34, DeletedNotEmpty { .. } => 35,
        OrphanWithoutInode { .. } => 36, OrphanStillLinked { .. } => 37, XattrFlag { .. } => 38, SymlinkTarget { .. } => 39,
        MapOutOfBounds { .. } => 40, MapOverlap { .. } => 41, MapBehindEnd { .. } => 42, BlockCount { .. } => 43,
        MapWithoutExtent { .. } => 44, MapExtentLength { .. } => 45, ExtentUnreferenced { .. } => 46, ExtentOverlap { .. } => 47,
        ExtentOutsideGroup { .. } => 48, ReferenceCount { .. } => 49, StateNeedless { .. } => 50, StateWithoutExtent { .. } => 51,
        StateLength { .. } => 52, UsedWithoutData { .. } => 53, DataNotUsed { .. } => 54, BadBlock { .. } => 55,
        BadCopy { .. } => 56,
    }
}

/// Reasons are for people; a test does not hold them to the letter.
fn without_reason(mut issue: Issue) -> Issue {
    use Issue::*;
    match &mut issue {
        LabelLost { reason, .. }
        | DeviceForeign { reason, .. }
        | JournalDamaged { reason }
        | IndexDamaged { reason }
        | MetadataUnusable { reason }
        | UnreadableBlock { reason, .. }
        | BadCopy { reason, .. } => {
            assert!(!reason.is_empty());
            reason.clear();
        }
        _ => {}
    }
    issue
}

/// A disk for a check: every change is a failure of the test; reads of a range fail.
#[derive(Debug)]
struct ReadOnly {
    disk: Arc<dyn Disk>,
    unreadable: Range<u64>,
}

impl Disk for ReadOnly {
    fn name(&self) -> &str {
        self.disk.name()
    }
    fn len(&self) -> Result<u64> {
        self.disk.len()
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        if offset < self.unreadable.end && offset + into.len() as u64 > self.unreadable.start {
            return Err(Error::io("reading the test's device", std::io::Error::other("a bad sector")));
        }
        self.disk.read_at(offset, into)
    }
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        panic!("the check wrote {} bytes at {offset} of {}", from.len(), self.name())
    }
    fn flush(&self) -> Result<()> {
        panic!("the check flushed {}", self.name())
    }
    fn set_len(&self, len: u64) -> Result<()> {
        panic!("the check made {} {len} bytes long", self.name())
    }
    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        panic!("the check allocated {len} bytes at {offset} of {}", self.name())
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        panic!("the check discarded {len} bytes at {offset} of {}", self.name())
    }
}

fn read_only(disk: &Arc<dyn Disk>) -> Arc<dyn Disk> {
    Arc::new(ReadOnly { disk: disk.clone(), unreadable: 0..0 })
}

/// A full check that may not change anything.
fn checked(disks: &Disks) -> Report {
    let disks = Disks {
        superblock: read_only(&disks.superblock),
        journal: read_only(&disks.journal),
        index: read_only(&disks.index),
        sled: None,
        devices: disks.devices.iter().map(read_only).collect(),
        images: None,
    };
    let mut last = (0, 0);
    let report = check(&disks, &CheckOptions { verify_data: true }, &mut |done, total| {
        assert!(done >= last.0 && done <= total, "progress went from {last:?} to {:?}", (done, total));
        last = (done, total);
    });
    report.unwrap()
}

#[test]
fn a_sound_store_gives_no_issues() {
    let report = checked(&Contents::good().write().unwrap());
    assert_eq!(report.issues, []);
    assert_eq!((report.files, report.directories, report.extents), (5, 3, 5));
    assert_eq!((report.blocks_used, report.blocks_verified, report.healed), (9, 9, 0));
}

#[test]
fn a_dead_first_block_stays_used_while_its_extent_lives() {
    for is_kept in [false, true] {
        let mut contents = Contents::good();
        contents.put_extent(20, 3, 6);
        contents.put_state(20, &[0, 1, 0]);
        contents.add_map(6, 12_288, written(20, 1, 3, 4096));
        contents.change_inode(6, |inode| inode.size = 16_384);
        contents.used.insert(21);
        contents.used.extend(is_kept.then_some(20));
        let report = checked(&contents.write().unwrap());
        let expected = if is_kept { vec![] } else { vec![Issue::DataNotUsed { first: 20, count: 1 }] };
        assert_eq!(report.issues, expected, "kept: {is_kept}");
    }
}

#[test]
fn each_fault_gives_exactly_its_issue() {
    let mut seen = BTreeSet::new();
    let mut names = BTreeSet::new();
    let mut wrong = Vec::new();
    for case in cases::all() {
        let report = checked(&case.disks());
        let found: Vec<Issue> = report.issues.into_iter().map(without_reason).collect();
        if found != [case.expected.clone()] {
            wrong.push(format!("expected {:?}\n     got {found:?}", case.expected));
        }
        seen.insert(number(&case.expected));
        let json = serde_json::to_value(&case.expected).unwrap();
        names.insert(json["issue"].as_str().unwrap().to_owned());
        assert!(case.expected.to_string().len() > 20, "{}", case.expected);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(seen, (0..KINDS).collect(), "an issue without a case");
    assert_eq!(names.len(), KINDS, "two issues share a name in JSON");
}

#[test]
fn a_damaged_copy_of_an_index_page_is_counted_and_is_no_issue() {
    let disks = Contents::good().write().unwrap();
    let len = disks.index.len().unwrap();
    let damaged = (0..len / BLOCK_SIZE).find(|block| {
        let mut before = vec![0; BLOCK];
        disks.index.read_at(block * BLOCK_SIZE, &mut before).unwrap();
        disks.index.write_at(block * BLOCK_SIZE, &[0x5a; BLOCK]).unwrap();
        let report = checked(&disks);
        assert_eq!(report.issues, [], "index block {block}");
        disks.index.write_at(block * BLOCK_SIZE, &before).unwrap();
        report.healed > 0
    });
    assert!(damaged.is_some(), "no block of the index was missed");
}

/// The metadata as a mount opens it.
fn mounted(disks: &Disks) -> Metadata {
    let superblock = Superblock::read(&*disks.superblock).unwrap().superblock;
    let area = data_area(superblock.devices[0].len);
    let parts = Parts {
        store_id: superblock.uuid,
        index: Arc::new(RedbIndex::open(disks.index.clone(), INDEX_CACHE_BYTES, false).unwrap()),
        journal: disks.journal.clone(),
        devices: vec![(0, disks.devices[0].clone(), (area.start, area.end))],
        blocks_per_group: superblock.blocks_per_group,
        plan: sumfs::space::Plan::default(),
        stats: Arc::new(Stats::default()),
        latch: Arc::new(Latch::default()),
    };
    Metadata::open(parts).unwrap().0
}

fn mark_unclean(disks: &Disks) {
    let mut superblock = Superblock::read(&*disks.superblock).unwrap().superblock;
    superblock.clean_sequence = None;
    superblock.write(&*disks.superblock).unwrap();
}

/// Commits what a file of two blocks at the end of group 1 needs, without a checkpoint.
fn commit_a_file(disks: &Disks) {
    let mut after = Contents::good();
    let before = after.records.clone();
    after.create(5, "new", 9, FileKind::Regular);
    after.put_extent(BLOCKS_PER_GROUP + 100, 2, 9);
    after.add_map(9, 0, written(BLOCKS_PER_GROUP + 100, 0, 2, 5000));
    after.change_inode(9, |file| file.size = 5000);
    let metadata = mounted(disks);
    assert_eq!(metadata.new_inode_number(), InodeNumber(9));
    let mut batch = Batch::new();
    for (key, record) in after.records.iter().filter(|(key, record)| before.get(*key) != Some(record)) {
        batch.put(key.clone(), record.clone());
    }
    metadata.append(batch).unwrap();
    metadata.commit().unwrap();
}

#[test]
fn what_is_only_in_the_journal_is_seen() {
    let disks = Contents::good().write().unwrap();
    mark_unclean(&disks);
    commit_a_file(&disks);
    let report = checked(&disks);
    assert_eq!(report.issues, []);
    assert_eq!((report.replayed_transactions, report.files, report.blocks_verified), (1, 6, 11));

    let address = GROUP_0_AT + (BLOCKS_PER_GROUP + 101) * BLOCK_SIZE;
    disks.devices[0].write_at(address, &block_bytes(1)).unwrap();
    let issues = checked(&disks).issues;
    let [Issue::BadBlock { file: Some(file), offset: 4096, place, .. }] = issues.as_slice() else { panic!("{issues:?}") };
    assert_eq!((file.path.as_deref(), place.device_offset), (Some("/dir/sub/new"), address));
}

#[test]
fn severities_are_in_order_and_every_case_has_one() {
    assert!(Severity::Harmless < Severity::Inconsistent && Severity::Inconsistent < Severity::Damage);
    let severities: BTreeSet<Severity> = cases::all().iter().map(|case| case.expected.severity()).collect();
    assert_eq!(severities.len(), 3);
}

#[test]
fn no_record_can_vanish_unseen() {
    // Not one record of a sound store may vanish unseen.
    let keys: Vec<_> = Contents::good().records.keys().cloned().collect();
    for key in keys {
        let mut contents = Contents::good();
        contents.records.remove(&key);
        contents.deleted.push(key.clone());
        let report = checked(&contents.write().unwrap());
        assert!(!report.is_clean(), "without {:?}", schema::parse(&key));
    }
}
