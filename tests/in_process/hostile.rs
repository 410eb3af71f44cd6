//! Forged metadata: records whose checksums are right and whose contents no sumfs ever wrote. Each must be an error for what needs it,
//! never a panic, a wrapped number, a deadlock or an endless loop. What the fuzzer (`tests/fuzz`) finds gets a case here, or beside the
//! decoder that it was found in.

use crate::memory_store::MemoryStore;
use crate::operations::pattern;
use crate::tree::read_bytes;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use sumfs::error::{Error, Result};
use sumfs::fs::{Caller, FallocateMode, Filesystem, Options, RenameMode, SetAttributes, WriteFlags};
use sumfs::lock::Wait;
use sumfs::meta::index::Index;
use sumfs::meta::records::{
    CheckpointRecord, CookieRecord, CountersRecord, EntryRecord, FileKind, GroupRecord, InodeRecord, MapRecord, OrphanRecord,
    PROFILE_SINGLE, open, seal,
};
use sumfs::meta::redb_index::RedbIndex;
use sumfs::meta::schema::{self, Key};
use sumfs::units::{BLOCK, BLOCK_SIZE, BlockAddress, FILE_SIZE_MAX, InodeNumber};
use sumfs::verify::check::{CheckOptions, check};

const ROOT: InodeNumber = InodeNumber::ROOT;
const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const INDEX_CACHE_BYTES: usize = 8 << 20;
/// Longer than anything here takes: a deadlock or an endless loop.
const HANG: Duration = Duration::from_secs(60);

/// A closed store: the root has `file` (20 blocks of data) and the directories `upper` and, in that, `lower`.
struct Forged {
    store: MemoryStore,
    file: InodeNumber,
    upper: InodeNumber,
    lower: InodeNumber,
}

fn open_store(store: &MemoryStore) -> Result<Arc<Filesystem>> {
    Filesystem::open(store.disks.clone(), Options { background: false, ..Options::default() })
}

impl Forged {
    fn new() -> Forged {
        let store = MemoryStore::new(48 << 20);
        let fs = store.open();
        let file = fs.mknod(&CALLER, ROOT, b"file", 0o100_644, 0, 0).unwrap().inode;
        fs.write(&CALLER, file, 0, &pattern(1, 20 * BLOCK), WriteFlags::default(), Wait::Allowed).unwrap();
        let upper = fs.mkdir(&CALLER, ROOT, b"upper", 0o755, 0).unwrap().inode;
        let lower = fs.mkdir(&CALLER, upper, b"lower", 0o755, 0).unwrap().inode;
        store.close(&fs);
        Forged { store, file, upper, lower }
    }

    fn index(&self) -> RedbIndex {
        RedbIndex::open(self.store.disks.index.clone(), INDEX_CACHE_BYTES, false).unwrap()
    }

    /// Puts a record with a right checksum.
    fn put(&self, key: Key, record: Vec<u8>) {
        let value = seal(&key, record);
        self.index().apply(&mut std::iter::once((&key[..], Some(&value[..]))), true).unwrap();
    }

    fn change_inode(&self, inode: InodeNumber, change: impl FnOnce(&mut InodeRecord)) {
        let key = schema::inode(inode);
        let value = self.index().snapshot().unwrap().get(&key).unwrap().unwrap();
        let mut record = InodeRecord::decode(open(&key, &value).unwrap()).unwrap();
        change(&mut record);
        self.put(key, record.encode());
    }

    /// Runs `look` on the mounted store and the check on it, both in time.
    fn with(self, look: impl FnOnce(&Filesystem, &Forged) + Send + 'static) {
        let (done, ended) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = check(&self.store.disks, &CheckOptions { verify_data: true }, &mut |_, _| {});
            let fs = open_store(&self.store).unwrap();
            look(&fs, &self);
            let _ = fs.shutdown();
            let _ = check(&self.store.disks, &CheckOptions { verify_data: true }, &mut |_, _| {});
            drop(done);
        });
        if ended.recv_timeout(HANG) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            panic!("a hang");
        }
        thread.join().unwrap();
    }

    /// Mounting and checking end, the mount with an error.
    fn is_refused(&self, what: &str) {
        let _ = check(&self.store.disks, &CheckOptions { verify_data: true }, &mut |_, _| {});
        assert_damaged(open_store(&self.store).map(|_| ()), what);
    }
}

fn assert_damaged<T>(result: Result<T>, what: &str) {
    match result {
        Err(Error::Corrupt(_)) => {}
        Err(error) => panic!("{what}: {error} instead of damage"),
        Ok(_) => panic!("{what}: taken as good"),
    }
}

#[test]
fn a_file_map_that_passes_the_largest_file_is_damage() {
    let records = [
        (FILE_SIZE_MAX - BLOCK_SIZE, MapRecord::Unwritten { length: 1 << 20 }),
        (1 << 20, MapRecord::Unwritten { length: u64::MAX }),
        (1 << 20, MapRecord::Unwritten { length: i64::MAX as u64 }),
        (u64::MAX - BLOCK_SIZE + 1, MapRecord::Unwritten { length: BLOCK_SIZE }),
        (1 << 20, MapRecord::Written { extent: BlockAddress(u64::MAX - 1), first: 3, extent_blocks: 4, length: BLOCK_SIZE }),
    ];
    for (offset, record) in records {
        let forged = Forged::new();
        forged.put(schema::map(forged.file, offset), record.encode());
        forged.change_inode(forged.file, |inode| inode.size = FILE_SIZE_MAX);
        forged.with(move |fs, forged| {
            let what = format!("{record:?} at {offset}");
            if offset <= FILE_SIZE_MAX {
                assert_damaged(read_bytes(fs, forged.file, offset, BLOCK), &what);
            }
            let cut = fs.setattr(&CALLER, forged.file, &SetAttributes { size: Some(5), ..SetAttributes::default() });
            assert_damaged(cut, &what);
            let _ = fs.fallocate(&CALLER, forged.file, 0, FILE_SIZE_MAX, FallocateMode::PunchHole);
            fs.unlink(ROOT, b"file").unwrap();
        });
    }
}

#[test]
fn overlapping_file_map_records_are_damage() {
    for (offset, length) in [(0, 21 * BLOCK_SIZE), (4 * BLOCK_SIZE, BLOCK_SIZE), (16 << 20, 32 << 20)] {
        let forged = Forged::new();
        forged.put(schema::map(forged.file, offset), MapRecord::Unwritten { length }.encode());
        forged.put(schema::map(forged.file, offset + BLOCK_SIZE), MapRecord::Unwritten { length: 40 << 20 }.encode());
        forged.change_inode(forged.file, |inode| inode.size = 100 << 20);
        forged.with(move |fs, forged| {
            assert_damaged(read_bytes(fs, forged.file, offset, BLOCK), "an overlap");
            let _ = fs.write(&CALLER, forged.file, offset, &[1; 3 * BLOCK], WriteFlags::default(), Wait::Allowed);
            let _ = fs.sync();
        });
    }
}

#[test]
fn numbers_out_of_bounds_in_an_inode_are_damage() {
    type Change = fn(&mut InodeRecord);
    let changes: [(&str, Change); 7] = [
        ("size", |inode| inode.size = u64::MAX),
        ("blocks", |inode| inode.blocks = u64::MAX),
        ("links", |inode| inode.links = u32::MAX),
        ("cookie", |inode| inode.cookie = u64::MAX),
        ("next cookie", |inode| inode.next_cookie = u64::MAX),
        ("parent", |inode| inode.parent = InodeNumber(u64::MAX)),
        ("nanoseconds", |inode| inode.modified.nanoseconds = 1_000_000_000),
    ];
    for (name, change) in changes {
        let forged = Forged::new();
        forged.change_inode(forged.upper, change);
        forged.with(move |fs, forged| {
            assert_damaged(fs.getattr(forged.upper), name);
            assert_damaged(fs.mkdir(&CALLER, forged.upper, b"new", 0o755, 0), name);
        });
    }
}

#[test]
fn any_access_time_can_be_read() {
    let forged = Forged::new();
    forged.change_inode(forged.file, |inode| inode.accessed.seconds = i64::MAX);
    forged.with(|fs, forged| assert_eq!(read_bytes(fs, forged.file, 0, BLOCK).unwrap(), pattern(1, 20 * BLOCK)[..BLOCK]));
}

#[test]
fn a_directory_that_holds_itself_cannot_be_changed() {
    for (kind, claimed) in [(FileKind::Directory, FileKind::Directory), (FileKind::Directory, FileKind::Regular)] {
        let forged = Forged::new();
        let (upper, cookie) = (forged.upper, 90);
        forged.put(schema::entry_by_name(upper, b"self"), EntryRecord { inode: upper, cookie, kind: claimed }.encode());
        let by_cookie = CookieRecord { inode: upper, kind: claimed, name: b"self".to_vec() };
        forged.put(schema::entry_by_cookie(upper, cookie), by_cookie.encode());
        forged.change_inode(upper, |inode| (inode.next_cookie, inode.size) = (91, 0));
        forged.with(move |fs, forged| {
            let what = format!("a {kind:?} called {claimed:?}");
            let upper = forged.upper;
            assert!(fs.unlink(upper, b"self").is_err() && fs.rmdir(upper, b"self").is_err(), "{what}");
            let _ = fs.rename(upper, b"self", ROOT, b"new", RenameMode::Replace);
            let _ = fs.rename(ROOT, b"upper", upper, b"self", RenameMode::Replace);
            let _ = fs.rename(ROOT, b"file", upper, b"self", RenameMode::Exchange);
        });
    }
}

#[test]
fn an_entry_of_another_kind_than_its_inode_cannot_be_removed() {
    let forged = Forged::new();
    forged.put(
        schema::entry_by_name(ROOT, b"upper"),
        EntryRecord { inode: forged.upper, cookie: 4, kind: FileKind::Regular }.encode(),
    );
    forged.with(|fs, _| {
        assert_damaged(fs.unlink(ROOT, b"upper"), "a directory called a file");
        assert_damaged(fs.rename(ROOT, b"file", ROOT, b"upper", RenameMode::Replace), "a file over a directory called a file");
    });
}

#[test]
fn directories_in_a_circle_end_a_rename_with_an_error() {
    let forged = Forged::new();
    let lower = forged.lower;
    forged.change_inode(forged.upper, |inode| inode.parent = lower);
    forged.with(|fs, forged| {
        let other = fs.mkdir(&CALLER, ROOT, b"other", 0o755, 0).unwrap();
        assert_damaged(fs.rename(ROOT, b"other", forged.lower, b"other", RenameMode::Replace), "a circle");
        assert_ne!(other.inode, forged.upper);
    });
}

#[test]
fn a_directory_with_too_few_links_loses_a_subdirectory_with_an_error() {
    let forged = Forged::new();
    forged.change_inode(forged.upper, |inode| inode.links = 0);
    forged.with(|fs, forged| {
        assert!(fs.rmdir(forged.upper, b"lower").is_err());
        assert!(fs.rename(forged.upper, b"lower", ROOT, b"lower", RenameMode::Replace).is_err());
    });
}

#[test]
fn positions_and_counters_out_of_bounds_are_refused_by_the_mount() {
    let checkpoint = |sequence, journal_offset| CheckpointRecord { sequence, journal_offset, record_checksum: 1 }.encode();
    let counters = |next_inode, unwritten_blocks| CountersRecord { next_inode, unwritten_blocks }.encode();
    let cases = [
        (schema::checkpoint(), checkpoint(u64::MAX, 0)),
        (schema::checkpoint(), checkpoint(5, u64::MAX)),
        (schema::checkpoint(), checkpoint(5, 1 << 40)),
        (schema::checkpoint(), checkpoint(5, 100)),
        (schema::counters(), counters(u64::MAX, 0)),
        (schema::counters(), counters(50, u64::MAX)),
        (
            schema::group(0),
            GroupRecord { profile: PROFILE_SINGLE, copies: vec![(0, u64::MAX - 4095)], ..GroupRecord::default() }.encode(),
        ),
    ];
    for (key, record) in cases {
        let forged = Forged::new();
        forged.put(key.clone(), record.clone());
        forged.is_refused(&format!("{} {record:02x?}", key.escape_ascii()));
    }
}

#[test]
fn a_truncation_to_a_size_that_cannot_be_costs_only_itself() {
    let forged = Forged::new();
    forged.put(schema::orphan(InodeNumber(2)), OrphanRecord::Truncating { size: u64::MAX }.encode());
    forged.with(|fs, _| {
        assert!(fs.getattr(InodeNumber(2)).unwrap().size <= FILE_SIZE_MAX);
        assert!(fs.read_only_reason().is_none());
    });
}

#[test]
fn items_of_the_last_inode_number_are_no_inodes() {
    let last = InodeNumber(u64::MAX);
    assert!(schema::inode_begin(last) < schema::inode_end(last));
    assert_eq!(schema::parse(&schema::inode(last)), None);
    let forged = Forged::new();
    forged.put(schema::orphan(last), OrphanRecord::Unlinked.encode());
    forged.with(|fs, _| drop(fs.getattr(InodeNumber(u64::MAX)).unwrap_err()));
}
