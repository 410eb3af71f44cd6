//! The cases: for each issue a change to a sound store, and what the check must say.

use super::contents::{
    BLOCKS_PER_GROUP, Contents, DEVICE_BYTES, GROUP_0_AT, GROUP_BYTES, block_bytes, block_sum, inode_record, written,
};
use super::{ReadOnly, commit_a_file, mark_unclean};
use std::sync::Arc;
use sumfs::disk::label::{self, Label};
use sumfs::disk::superblock::Superblock;
use sumfs::meta::records::{
    CheckpointRecord, DeviceRecord, FileKind, GroupRecord, InodeRecord, MapRecord, OrphanRecord, PROFILE_DUP,
};
use sumfs::meta::schema;
use sumfs::store::Disks;
use sumfs::units::{BLOCK, BLOCK_SIZE, BlockAddress, InodeNumber};
use sumfs::verify::issue::{BlockPlace, File, Issue};

/// A fault and its issue (with reasons left out).
pub struct Case {
    contents: Contents,
    damage: fn(&mut Disks),
    pub expected: Issue,
}

impl Case {
    pub fn disks(&self) -> Disks {
        let mut disks = self.contents.write().unwrap();
        (self.damage)(&mut disks);
        disks
    }
}

/// The metadata is wrong.
fn records(change: impl FnOnce(&mut Contents), expected: Issue) -> Case {
    let mut contents = Contents::good();
    change(&mut contents);
    Case { contents, damage: |_| (), expected }
}

/// The disks are.
fn disks(damage: fn(&mut Disks), expected: Issue) -> Case {
    Case { contents: Contents::good(), damage, expected }
}

fn file(inode: u64, path: &str) -> File {
    File { inode, path: Some(path.to_owned()) }
}

fn nameless(inode: u64) -> File {
    File { inode, path: None }
}

/// The key of an item.
fn hex(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

const ROOT: InodeNumber = InodeNumber::ROOT;

/// All of them.
pub fn all() -> Vec<Case> {
    [
        parts(),
        journal_and_index(),
        groups(),
        values(),
        inodes(),
        entries(),
        links(),
        orphans(),
        attributes(),
        maps(),
        extents(),
        states(),
        data(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn change_label(disks: &mut Disks, change: fn(&mut Label)) {
    let mut label = label::read(&*disks.devices[0], false).unwrap().label;
    change(&mut label);
    label::write(&*disks.devices[0], &label).unwrap();
}

fn parts() -> Vec<Case> {
    let last = DEVICE_BYTES - BLOCK_SIZE;
    let reason = String::new;
    vec![
        disks(
            |disks| disks.superblock.write_at((64 << 10) + 300, &[9]).unwrap(),
            Issue::SuperblockCopyDamaged { offset: 64 << 10 },
        ),
        disks(
            |disks| disks.devices[0].write_at(DEVICE_BYTES - 9, &[9]).unwrap(),
            Issue::LabelCopyDamaged { device: 0, offset: last },
        ),
        disks(
            |disks| [0, DEVICE_BYTES - BLOCK_SIZE].iter().for_each(|at| disks.devices[0].write_at(*at, &[9]).unwrap()),
            Issue::LabelLost { device: 0, reason: reason() },
        ),
        disks(|disks| change_label(disks, |label| label.store = [1; 16]), Issue::DeviceForeign { device: 0, reason: reason() }),
        disks(|disks| change_label(disks, |label| label.device_id = 3), Issue::DeviceForeign { device: 0, reason: reason() }),
        disks(
            |disks| disks.devices[0].set_len(DEVICE_BYTES / 2).unwrap(),
            Issue::DeviceShort { device: 0, expected: DEVICE_BYTES, found: DEVICE_BYTES / 2 },
        ),
        disks(
            |disks| change_label(disks, |label| label.device_uuid = [1; 16]),
            Issue::DeviceRecord { device: 0, reason: "its label has another UUID" },
        ),
        records(|contents| contents.deleted.push(schema::device(0)), Issue::DeviceRecord { device: 0, reason: "there is none" }),
        records(
            |contents| {
                let record = DeviceRecord { id: 1, uuid: [1; 16], length: 4096, path: "x".to_owned() };
                contents.records.insert(schema::device(1), record.encode());
            },
            Issue::DeviceRecord { device: 1, reason: "the superblock does not name it" },
        ),
        disks(
            |disks| {
                let mut superblock = Superblock::read(&*disks.superblock).unwrap().superblock;
                superblock.clean_sequence = Some(5);
                superblock.write(&*disks.superblock).unwrap();
            },
            Issue::SequenceDiffers { clean: 5, found: 0 },
        ),
    ]
}

/// Two transactions of which the first is bad in both copies.
fn lose_a_journal_record(disks: &mut Disks) {
    mark_unclean(disks);
    commit_a_file(disks);
    let mut first = vec![0; BLOCK];
    disks.journal.read_at(0, &mut first).unwrap();
    let metadata = super::mounted(disks);
    let mut batch = sumfs::meta::Batch::new();
    batch.delete(schema::xattr(InodeNumber(3), b"user.b"));
    metadata.append(batch).unwrap();
    metadata.commit().unwrap();
    let copies = (0..(1 << 20)).step_by(BLOCK).filter(|at| {
        let mut block = vec![0; BLOCK];
        disks.journal.read_at(*at, &mut block).unwrap();
        block == first
    });
    let copies: Vec<u64> = copies.collect();
    assert_eq!(copies.len(), 2);
    copies.iter().for_each(|at| disks.journal.write_at(at + 100, &[0xaa; 8]).unwrap());
}

fn journal_and_index() -> Vec<Case> {
    let reason = String::new;
    vec![
        disks(lose_a_journal_record, Issue::JournalDamaged { reason: reason() }),
        disks(|disks| disks.journal.set_len(512 << 10).unwrap(), Issue::JournalDamaged { reason: reason() }),
        disks(
            |disks| {
                let len = disks.index.len().unwrap();
                disks.index.write_at(0, &vec![0xaa; len as usize]).unwrap();
            },
            Issue::IndexDamaged { reason: reason() },
        ),
        records(|contents| contents.deleted.push(schema::checkpoint()), Issue::MetadataUnusable { reason: reason() }),
        records(
            |contents| {
                contents.records.insert(schema::checkpoint(), CheckpointRecord::default().encode());
                contents.damage(schema::checkpoint());
            },
            Issue::MetadataUnusable { reason: reason() },
        ),
    ]
}

fn groups() -> Vec<Case> {
    vec![
        records(
            |contents| contents.put_group(2, DEVICE_BYTES - GROUP_BYTES),
            Issue::GroupOutsideDevice { group: 2, device: 0, offset: DEVICE_BYTES - GROUP_BYTES },
        ),
        records(
            |contents| contents.put_group(2, GROUP_0_AT + GROUP_BYTES + BLOCK_SIZE),
            Issue::GroupsOverlap { first: 1, second: 2, device: 0 },
        ),
        records(|contents| drop(contents.records.insert(schema::bitmap(7), vec![0; 32])), Issue::StrayBitmap { group: 7 }),
    ]
}

fn damaged(key: Vec<u8>, what: &str) -> Case {
    let expected = Issue::DamagedValue { what: what.to_owned(), key: hex(&key) };
    records(|contents| contents.damage(key), expected)
}

fn unknown(key: Vec<u8>) -> Case {
    let expected = Issue::UnknownKey { key: hex(&key) };
    records(|contents| drop(contents.records.insert(key, vec![1])), expected)
}

fn values() -> Vec<Case> {
    vec![
        damaged(schema::xattr(InodeNumber(3), b"user.a"), "the extended attribute user.a of /file (inode 3)"),
        damaged(schema::inode(InodeNumber(5)), "inode 5 (its attributes)"),
        damaged(schema::entry_by_name(ROOT, b"dir"), "the name dir in / (inode 1)"),
        damaged(schema::entry_by_cookie(ROOT, 4), "the entry with cookie 4 in / (inode 1)"),
        damaged(schema::symlink(InodeNumber(4)), "the target of /link (inode 4)"),
        damaged(schema::map(InodeNumber(3), 0), "the file map of /file (inode 3) at byte 0"),
        damaged(schema::map(InodeNumber(3), 16_384), "the file map of /file (inode 3) at byte 16384"),
        damaged(schema::link(InodeNumber(3), InodeNumber(2), 4), "a hard link of /file (inode 3) in directory 2"),
        damaged(schema::extent(BlockAddress(8)), "extent 8"),
        damaged(schema::extent_state(BlockAddress(8)), "the state of extent 8"),
        damaged(schema::orphan(InodeNumber(7)), "the deletion or truncation of inode 7"),
        unknown(vec![0x50, 1]),
        unknown(vec![0x00]),
        unknown([schema::inode_begin(InodeNumber(3)), vec![9]].concat()),
        unknown(vec![schema::EXTENTS, 1]),
        unknown(vec![schema::ORPHANS, 1]),
        unknown(vec![schema::GROUPS, 1]),
        records(|contents| contents.counters.next_inode = 8, Issue::NextInodeTooLow { next_inode: 8, highest: 8 }),
        records(|contents| contents.counters.unwritten_blocks = 9, Issue::UnwrittenCount { recorded: 9, counted: 2 }),
    ]
}

fn inodes() -> Vec<Case> {
    let misplaced = |inode, path, kind, item| Issue::MisplacedItem { file: file(inode, path), kind, item };
    vec![
        records(
            |contents| contents.change_inode(1, |root| root.parent = InodeNumber(2)),
            Issue::RootWrong { reason: "it says that it lies in another directory" },
        ),
        records(
            |contents| {
                contents.records.remove(&schema::inode(ROOT));
                contents.deleted.push(schema::inode(ROOT));
            },
            Issue::RootWrong { reason: "it does not exist" },
        ),
        records(
            |contents| drop(contents.records.insert(schema::xattr(InodeNumber(50), b"user.a"), Vec::new())),
            Issue::ItemsWithoutInode { inode: 50, items: 1 },
        ),
        records(
            |contents| drop(contents.records.insert(schema::symlink(InodeNumber(3)), b"x".to_vec())),
            misplaced(3, "/file", "regular file", "symlink target"),
        ),
        records(
            |contents| drop(contents.records.insert(schema::link(InodeNumber(5), InodeNumber(2), 3), Vec::new())),
            misplaced(5, "/dir/sub", "directory", "hard link"),
        ),
        records(
            |contents| contents.add_map(5, 0, MapRecord::Unwritten { length: 10 }),
            misplaced(5, "/dir/sub", "directory", "file map"),
        ),
        records(
            |contents| {
                contents.create(6, "inside", 9, FileKind::Regular);
                contents.change_inode(6, |inode| inode.size = 12_288);
            },
            misplaced(6, "/shared", "regular file", "directory entry"),
        ),
    ]
}

fn entries() -> Vec<Case> {
    let root = || file(1, "/");
    let sub = || file(5, "/dir/sub");
    let name = |name: &str| name.to_owned();
    vec![
        records(
            |contents| {
                contents.add_entry(5, "ghost\n", 40, FileKind::Regular);
            },
            Issue::EntryWithoutInode { directory: sub(), name: name("ghost\\n"), inode: 40 },
        ),
        records(
            |contents| {
                contents.put_name(1, "file", 3, 4, FileKind::Symlink);
                contents.put_cookie(1, "file", 3, 4, FileKind::Symlink);
            },
            Issue::EntryKind { directory: root(), name: name("file"), inode: 3, recorded: "symlink", found: "regular file" },
        ),
        records(
            |contents| {
                contents.add_entry(5, "gone", 7, FileKind::Regular);
            },
            Issue::EntryToDeleted { directory: sub(), name: name("gone"), inode: 7 },
        ),
        records(
            |contents| drop(contents.records.remove(&schema::entry_by_cookie(ROOT, 4))),
            Issue::EntryWithoutCookie { directory: root(), name: name("file"), cookie: 4 },
        ),
        records(
            |contents| {
                contents.records.remove(&schema::entry_by_name(ROOT, b"file"));
                contents.change_inode(1, |root| root.size -= 1);
            },
            Issue::CookieWithoutEntry { directory: root(), name: name("file"), cookie: 4 },
        ),
        records(
            |contents| contents.put_cookie(1, "file", 3, 4, FileKind::Symlink),
            Issue::EntryDiffers { directory: root(), name: name("file") },
        ),
        records(
            |contents| contents.change_inode(1, |root| root.next_cookie = 7),
            Issue::CookieOutOfRange { directory: root(), cookie: 7, next_cookie: 7 },
        ),
        records(
            |contents| {
                contents.records.remove(&schema::link(InodeNumber(3), InodeNumber(2), 4));
                contents.change_inode(3, |inode| inode.links = 1);
            },
            Issue::EntryUnknownToInode { file: file(3, "/file"), directory: file(2, "/dir"), name: name("hard") },
        ),
    ]
}

fn links() -> Vec<Case> {
    vec![
        records(|contents| contents.remove_entry(1, "shared"), Issue::NameMissing { file: nameless(6), parent: 1, cookie: 6 }),
        records(|contents| contents.remove_entry(2, "hard"), Issue::LinkMissing { file: file(3, "/file"), parent: 2, cookie: 4 }),
        records(
            |contents| contents.change_inode(3, |inode| inode.links = 3),
            Issue::LinkCount { file: file(3, "/file"), recorded: 3, counted: 2 },
        ),
        records(
            |contents| contents.change_inode(2, |inode| inode.links = 2),
            Issue::LinkCount { file: file(2, "/dir"), recorded: 2, counted: 3 },
        ),
        records(
            |contents| contents.change_inode(2, |inode| inode.size = 3),
            Issue::DirectorySize { file: file(2, "/dir"), recorded: 3, counted: 2 },
        ),
        records(
            |contents| {
                contents.remove_entry(1, "dir");
                let cookie = contents.add_entry(5, "dir", 2, FileKind::Directory);
                contents.change_inode(2, |inode| (inode.parent, inode.cookie) = (InodeNumber(5), cookie));
            },
            Issue::DirectoryLoop { file: nameless(2) },
        ),
    ]
}

fn orphans() -> Vec<Case> {
    vec![
        records(|contents| drop(contents.records.remove(&schema::orphan(InodeNumber(7)))), Issue::Unreachable { inode: 7 }),
        records(
            |contents| {
                contents.put_inode(9, &InodeRecord { links: 0, ..inode_record(FileKind::Directory, 1, 50) });
                contents.put_orphan(9, OrphanRecord::Unlinked);
                contents.create(9, "left", 10, FileKind::Regular);
            },
            Issue::DeletedNotEmpty { inode: 9, entries: 1 },
        ),
        records(|contents| contents.put_orphan(40, OrphanRecord::Unlinked), Issue::OrphanWithoutInode { inode: 40 }),
        records(
            |contents| contents.put_orphan(3, OrphanRecord::Unlinked),
            Issue::OrphanStillLinked { file: file(3, "/file"), links: 2 },
        ),
    ]
}

fn attributes() -> Vec<Case> {
    vec![
        records(
            |contents| contents.change_inode(3, |inode| inode.flags = 0),
            Issue::XattrFlag { file: file(3, "/file"), flagged: false, found: 1 },
        ),
        records(
            |contents| contents.change_inode(6, |inode| inode.flags = 1),
            Issue::XattrFlag { file: file(6, "/shared"), flagged: true, found: 0 },
        ),
        records(
            |contents| contents.change_inode(4, |inode| inode.size = 7),
            Issue::SymlinkTarget { file: file(4, "/link"), size: 7, found: Some(6) },
        ),
        records(
            |contents| drop(contents.records.remove(&schema::symlink(InodeNumber(4)))),
            Issue::SymlinkTarget { file: file(4, "/link"), size: 6, found: None },
        ),
    ]
}

fn maps() -> Vec<Case> {
    let shared = || file(6, "/shared");
    vec![
        records(
            |contents| contents.add_map(6, 100, MapRecord::Unwritten { length: 5 }),
            Issue::MapOutOfBounds { file: shared(), offset: 100, length: 5 },
        ),
        records(
            |contents| contents.add_map(6, 16_384, MapRecord::Unwritten { length: u64::MAX }),
            Issue::MapOutOfBounds { file: shared(), offset: 16_384, length: u64::MAX },
        ),
        records(
            |contents| contents.add_map(3, 8192, MapRecord::Unwritten { length: 4096 }),
            Issue::MapOverlap { file: file(3, "/file"), offset: 8192, previous_end: 12_288 },
        ),
        records(
            |contents| drop(contents.records.remove(&schema::orphan(InodeNumber(8)))),
            Issue::MapBehindEnd { file: file(8, "/cut"), offset: 0, end: 8192, size: 100 },
        ),
        records(
            |contents| contents.change_inode(3, |inode| inode.blocks = 3),
            Issue::BlockCount { file: file(3, "/file"), recorded: 3, counted: 5 },
        ),
        records(
            |contents| {
                contents.add_map(6, 12_288, written(100, 0, 1, 4096));
                contents.change_inode(6, |inode| inode.size = 16_384);
            },
            Issue::MapWithoutExtent { file: shared(), offset: 12_288, extent: 100 },
        ),
        records(
            |contents| drop(contents.records.insert(schema::map(InodeNumber(6), 0), written(8, 0, 5, 8192).encode())),
            Issue::MapExtentLength { file: shared(), offset: 0, extent: 8, recorded: 5, found: 4 },
        ),
    ]
}

fn extents() -> Vec<Case> {
    let last = 2 * BLOCKS_PER_GROUP - 1;
    vec![
        records(
            |contents| {
                contents.put_extent(20, 2, 3);
                contents.used.extend([20, 21]);
            },
            Issue::ExtentUnreferenced { extent: 20, blocks: 2, owner: file(3, "/file") },
        ),
        records(
            |contents| {
                contents.put_extent(2, 1, 6);
                contents.add_map(6, 12_288, written(2, 0, 1, 4096));
                contents.change_inode(6, |inode| inode.size = 16_384);
            },
            Issue::ExtentOverlap { extent: 2, block: 2 },
        ),
        records(
            |contents| {
                contents.put_extent(last, 2, 6);
                contents.used.insert(last);
                contents.add_map(6, 12_288, written(last, 0, 2, 8192));
                contents.change_inode(6, |inode| inode.size = 20_480);
            },
            Issue::ExtentOutsideGroup { extent: last, blocks: 2 },
        ),
        records(|contents| contents.used.extend([50, 51]), Issue::UsedWithoutData { first: 50, count: 2 }),
        records(
            |contents| contents.used.retain(|block| ![257, 258].contains(block)),
            Issue::DataNotUsed { first: 257, count: 2 },
        ),
    ]
}

fn states() -> Vec<Case> {
    vec![
        records(
            |contents| contents.put_state(8, &[3, 1, 0, 0]),
            Issue::ReferenceCount { extent: 8, block: 0, recorded: 3, counted: 2, blocks: 1 },
        ),
        records(
            |contents| {
                contents.add_map(6, 12_288, written(256, 0, 1, 4096));
                contents.change_inode(6, |inode| inode.size = 16_384);
            },
            Issue::ReferenceCount { extent: 256, block: 0, recorded: 1, counted: 2, blocks: 1 },
        ),
        records(|contents| contents.put_state(0, &[1; 3]), Issue::StateNeedless { extent: 0, references: 1 }),
        records(|contents| contents.put_state(30, &[1, 0]), Issue::StateWithoutExtent { extent: 30 }),
        records(|contents| contents.put_state(8, &[2, 1, 0, 0, 0]), Issue::StateLength { extent: 8, recorded: 5, found: 4 }),
    ]
}

fn data() -> Vec<Case> {
    let place = BlockPlace { address: 1, device: 0, device_offset: GROUP_0_AT + BLOCK_SIZE };
    let mut flipped = block_bytes(1);
    flipped[7] ^= 1;
    let found = crc32c::crc32c(&flipped);
    let owner = || Some(file(3, "/file"));
    vec![
        disks(
            |disks| disks.devices[0].write_at(GROUP_0_AT + BLOCK_SIZE + 7, &[block_bytes(1)[7] ^ 1]).unwrap(),
            Issue::BadBlock { file: owner(), offset: 4096, place, expected: block_sum(1), found },
        ),
        disks(
            |disks| {
                let disk = disks.devices[0].clone();
                let begin = GROUP_0_AT + BLOCK_SIZE;
                disks.devices[0] = Arc::new(ReadOnly { disk, unreadable: begin..begin + 1 });
            },
            Issue::UnreadableBlock { file: owner(), offset: 4096, place, reason: String::new() },
        ),
        Case {
            contents: twice(),
            damage: |disks| disks.devices[0].write_at(GROUP_0_AT + BLOCK_SIZE + 7, &[block_bytes(1)[7] ^ 1]).unwrap(),
            expected: Issue::BadCopy { file: owner(), offset: 4096, place, reason: String::new() },
        },
    ]
}

/// The sound store with two copies of the first group.
fn twice() -> Contents {
    let mut contents = Contents::good();
    let record = GroupRecord {
        profile: PROFILE_DUP,
        copies: vec![(0, GROUP_0_AT), (0, GROUP_0_AT + 7 * GROUP_BYTES)],
        ..GroupRecord::default()
    };
    contents.records.insert(schema::group(0), record.encode());
    contents
}
