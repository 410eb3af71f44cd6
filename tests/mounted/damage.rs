//! Flipped bytes in every file of a store: what has a second copy is healed and reads back, what has none costs exactly that block,
//! what cannot be used is refused with a clear word.

use crate::content::{assert_same, pattern};
use crate::mount::{Mount, run, sumfs};
use crate::smoke::look;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use sumfs::disk::Disk;
use sumfs::disk::memory::MemoryDisk;
use sumfs::disk::superblock::{COPIES, SUPERBLOCK_BYTES, Superblock};

const BLOCK: usize = 4096;
const PLACES: usize = 40;
const CODE_MOUNT_FAILED: i32 = 32;

pub fn flip(path: &Path, offset: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[!byte[0]], offset).unwrap();
    file.sync_all().unwrap();
}

/// Where the only copy of `block` lies in a device.
fn find_block(device: &Path, block: &[u8]) -> u64 {
    let bytes = fs::read(device).unwrap();
    let places: Vec<usize> = (0..bytes.len() / BLOCK).map(|at| at * BLOCK).filter(|at| bytes[*at..][..BLOCK] == *block).collect();
    assert_eq!(places.len(), 1, "the block stands once on the device");
    places[0] as u64
}

/// Reads one block past every cache of the kernel's.
fn read_direct(path: &Path, block: usize) -> Result<Vec<u8>, Errno> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let mut buffer = sumfs::disk::buffer::AlignedBuffer::zeroed(BLOCK);
    let count = rustix::io::pread(&file, &mut buffer[..], (block * BLOCK) as u64)?;
    assert_eq!(count, BLOCK);
    Ok(buffer.to_vec())
}

fn read_buffered(path: &Path, block: usize) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; BLOCK];
    let file = File::open(path).unwrap();
    assert_eq!(rustix::io::pread(&file, &mut buffer[..], (block * BLOCK) as u64)?, BLOCK);
    Ok(buffer)
}

fn log_lines(mount: &Mount, part: &str) -> Vec<String> {
    let log = fs::read_to_string(mount.beside("log")).unwrap();
    log.lines().filter(|line| line.contains(part)).map(str::to_owned).collect()
}

/// Everything but reading that block works (C95).
fn a_damaged_data_block(options: &str) {
    const BAD: usize = 10;
    let mut mount = Mount::with_size("64M", options);
    let content = pattern(64 * BLOCK, 4711);
    let replaced = pattern(32 * BLOCK, 4712);
    fs::write(mount.path().join("victim"), &content).unwrap();
    fs::write(mount.path().join("replaced"), &replaced).unwrap();
    fs::write(mount.path().join("other"), pattern(100_000, 4713)).unwrap();
    let inode = fs::metadata(mount.path().join("victim")).unwrap().ino();
    mount.umount();
    let device = mount.store().join("device.0");
    let place = find_block(&device, &content[BAD * BLOCK..][..BLOCK]);
    flip(&device, place + 77);
    flip(&device, find_block(&device, &replaced[..BLOCK]));
    let found = mount.check();
    assert_eq!(found.code, 4, "{found:?}");
    assert!(found.stdout.contains("victim") && found.stdout.contains("replaced"), "{found:?}");
    assert!(!found.stdout.contains("other"), "{found:?}");

    mount.mount();
    let victim = mount.path().join("victim");
    for round in 0..2 {
        for (block, expected) in content.chunks(BLOCK).enumerate() {
            for read in [read_direct, read_buffered] {
                match read(&victim, block) {
                    Err(error) => assert_eq!((block, error), (BAD, Errno::IO), "round {round}"),
                    Ok(found) => assert!(block != BAD && found == expected, "block {block} round {round}"),
                }
            }
        }
    }
    assert_same(&fs::read(mount.path().join("other")).unwrap(), &pattern(100_000, 4713), "other");
    let lines = log_lines(&mount, &format!("inode {inode}"));
    assert_eq!(lines.len(), 1, "one line for one block: {lines:?}");
    let (offset, device_offset) = (format!("offset {},", BAD * BLOCK), format!("device offset {place}"));
    for part in [&*offset, &*device_offset, "device 0", "address ", "expected ", "found ", "path /victim"] {
        assert!(lines[0].contains(part), "no \"{part}\" in {lines:?}");
    }
    repairing_by_overwriting(&mut mount, options);
}

/// The damaged file can be deleted; overwriting the other one's damaged block makes it whole.
fn repairing_by_overwriting(mount: &mut Mount, options: &str) {
    fs::remove_file(mount.path().join("victim")).unwrap();
    let replaced = mount.path().join("replaced");
    assert_eq!(read_direct(&replaced, 0), Err(Errno::IO));
    let fresh = pattern(32 * BLOCK, 5000);
    let file = File::options().write(true).open(&replaced).unwrap();
    file.write_all_at(&fresh, 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_same(&fs::read(&replaced).unwrap(), &fresh, options);
    mount.remount();
    assert_same(&fs::read(&replaced).unwrap(), &fresh, options);
    mount.umount();
    mount.check().expect_success();
}

#[test]
fn a_damaged_data_block_costs_that_block_writeback() {
    a_damaged_data_block("cache=writeback");
}

#[test]
fn a_damaged_data_block_costs_that_block_none() {
    a_damaged_data_block("cache=none");
}

/// A store that was put aside, to be damaged again and again.
struct Original {
    store: PathBuf,
    copy: PathBuf,
}

impl Original {
    fn of(mount: &Mount) -> Original {
        let original = Original { store: mount.store(), copy: mount.beside("original") };
        run("cp", &["-a", "--sparse=always", text(&original.store), text(&original.copy)]).expect_success();
        original
    }

    fn restore(&self) {
        fs::remove_dir_all(&self.store).unwrap();
        run("cp", &["-a", "--sparse=always", text(&self.copy), text(&self.store)]).expect_success();
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn fill_with_names(root: &Path) {
    for index in 0..400 {
        let directory = root.join(format!("directory-{}", index % 10));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join(format!("file-{index}-{}", "n".repeat(index % 100)));
        fs::write(&path, pattern(index * 13, index as u64)).unwrap();
        rustix::fs::setxattr(&path, "user.note", &pattern(index, 3), rustix::fs::XattrFlags::empty()).unwrap();
    }
}

/// Offsets of the blocks of a file that are not all zeros.
fn blocks_in_use(path: &Path) -> Vec<u64> {
    let bytes = fs::read(path).unwrap();
    let used = bytes.chunks(BLOCK).enumerate().filter(|(_, block)| block.iter().any(|byte| *byte != 0));
    used.map(|(number, _)| (number * BLOCK) as u64).collect()
}

#[test]
fn a_flipped_byte_anywhere_in_the_index_is_healed() {
    let mut mount = Mount::with_size("64M", "noatime");
    fill_with_names(&mount.path());
    let expected = look(&mount.path());
    mount.umount();
    // Made anew in one go: else it has the more pages that redb has let go of the more commits fell into the filling.
    for engine in ["sled", "redb"] {
        sumfs(&["index", "convert", "--to", engine, text(&mount.store())]).expect_success();
    }
    let original = Original::of(&mount);
    let index = mount.store().join("index");
    let blocks = blocks_in_use(&index);
    assert!(blocks.len() > PLACES, "{} blocks in use", blocks.len());
    let mut unnoticed = Vec::new();
    for sample in 0..PLACES {
        let place = blocks[sample * blocks.len() / PLACES] + (sample as u64 * 997) % BLOCK as u64;
        original.restore();
        flip(&index, place);
        let found = sumfs(&["check", text(&mount.store())]);
        assert!(found.code <= 1, "byte {place}: {found:?}");
        mount.mount();
        assert!(look(&mount.path()) == expected, "byte {place} of the index changed what is seen");
        let healed = stats(&mount)["counters"]["healed"]["healed_index_pages"].as_u64();
        let is_logged = !log_lines(&mount, "index").is_empty();
        mount.umount();
        if found.code == 0 && !is_logged && healed == Some(0) {
            unnoticed.push(place);
        }
        fs::remove_file(mount.beside("log")).unwrap();
        let left = sumfs(&["check", text(&mount.store()), "--data"]);
        assert!(left.code <= 1, "byte {place}: {left:?}");
    }
    println!("{} of {PLACES} places were not noticed: {unnoticed:?} of {} blocks", unnoticed.len(), blocks.len());
    // Pages that redb has let go of, and the older of two headers or tables, are nobody's loss, and a block does not tell.
    assert!(unnoticed.len() <= PLACES / 4, "damage that nobody noticed: {unnoticed:?}");
    original.restore();
}

fn stats(mount: &Mount) -> serde_json::Value {
    let ran = sumfs(&["stats", text(&mount.path()), "--json"]).expect_success();
    serde_json::from_str(&ran.stdout).unwrap()
}

/// One copy of a journal record: where it begins, how long it is, which record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecordCopy {
    offset: u64,
    bytes: u64,
    sequence: u64,
}

/// The records in a journal file, both copies, in the order of sequence numbers.
fn records(journal: &Path) -> Vec<[RecordCopy; 2]> {
    let bytes = fs::read(journal).unwrap();
    let mut copies: Vec<RecordCopy> = Vec::new();
    for (number, block) in bytes.chunks(BLOCK).enumerate().filter(|(_, block)| block.starts_with(b"sumfsJR0")) {
        let sequence = u64::from_le_bytes(block[24..32].try_into().unwrap());
        let payload = u64::from(u32::from_le_bytes(block[32..36].try_into().unwrap()));
        copies.push(RecordCopy {
            offset: (number * BLOCK) as u64,
            bytes: (64 + payload).next_multiple_of(BLOCK as u64),
            sequence,
        });
    }
    copies.sort_by_key(|copy| (copy.sequence, copy.offset));
    let pairs = copies.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect::<Vec<_>>();
    assert!(pairs.iter().all(|[one, two]| one.sequence == two.sequence && one.offset + one.bytes == two.offset), "{pairs:?}");
    pairs
}

/// A store whose journal holds synced transactions that are not in the index: killed right after them.
fn killed_store() -> (Mount, Vec<[RecordCopy; 2]>) {
    let mut mount = Mount::with_size("64M", "noatime");
    for round in 0..6 {
        for index in 0..40 {
            fs::write(mount.path().join(format!("file-{round}-{index}")), pattern(3000, round * 100 + index)).unwrap();
        }
        sumfs(&["sync", text(&mount.path())]).expect_success();
    }
    mount.kill();
    // The store's lock is free when the daemon is gone; check waits for it.
    let found = mount.check().expect_success();
    let records = records(&mount.store().join("journal"));
    assert!(records.len() >= 6, "{found:?} {records:?}");
    (mount, records)
}

fn assert_all_there(mount: &Mount) {
    for round in 0..6 {
        for index in 0..40 {
            let name = format!("file-{round}-{index}");
            assert_same(&fs::read(mount.path().join(&name)).unwrap(), &pattern(3000, round * 100 + index), &name);
        }
    }
}

#[test]
fn a_flipped_byte_in_one_copy_of_a_journal_record_is_healed() {
    let (mut mount, records) = killed_store();
    let original = Original::of(&mount);
    let journal = mount.store().join("journal");
    let last = records.len() - 1;
    for (number, pair) in records.iter().enumerate().skip(records.len().saturating_sub(5)) {
        for copy in pair {
            for within in [3, 30, 34, 61, 70, copy.bytes / 2] {
                original.restore();
                flip(&journal, copy.offset + within);
                let what = format!("record {} of {last}, copy at {}, byte {within}", pair[0].sequence, copy.offset);
                let found = sumfs(&["check", text(&mount.store())]);
                assert!(found.code <= 1, "{what}: {found:?}");
                // Past the payload of a record nothing is checked, nothing is used.
                if number == last {
                    assert_eq!(found.code, 1, "{what}: {found:?}");
                }
                mount.mount();
                assert!(mount.info()["read_only_reason"].is_null(), "{what}");
                assert_all_there(&mount);
                let healed = stats(&mount)["counters"]["healed"]["healed_journal_records"].as_u64().unwrap();
                assert_eq!(healed, u64::from(found.code == 1), "{what}");
                mount.umount();
                mount.check().expect_success();
            }
        }
    }
}

#[test]
fn a_lost_journal_record_before_others_makes_the_store_read_only() {
    let (mut mount, records) = killed_store();
    let original = Original::of(&mount);
    let lost = records[records.len() - 2];
    for copy in lost {
        flip(&mount.store().join("journal"), copy.offset + 70);
    }
    let found = mount.check();
    assert_eq!(found.code, 4, "{found:?}");
    assert!(found.stdout.contains(&format!("{}", lost[0].sequence)), "{found:?}");
    mount.mount();
    let reason = mount.info()["read_only_reason"].as_str().unwrap().to_owned();
    assert!(reason.contains(&format!("journal record {}", lost[0].sequence)), "{reason}");
    assert_eq!(fs::write(mount.path().join("new"), "x").unwrap_err().raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    assert_same(&fs::read(mount.path().join("file-0-0")).unwrap(), &pattern(3000, 0), "the first file");
    rustix::mount::unmount(mount.path(), rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!(mount.check().code, 4);
    original.restore();
    mount.mount();
    assert_all_there(&mount);
}

#[test]
fn a_truncated_journal_is_refused() {
    let mut mount = Mount::with_size("64M", "");
    fs::write(mount.path().join("file"), "x").unwrap();
    mount.umount();
    let original = Original::of(&mount);
    let journal = mount.store().join("journal");
    let bytes = fs::metadata(&journal).unwrap().len();
    for left in [bytes / 2, 0] {
        File::options().write(true).open(&journal).unwrap().set_len(left).unwrap();
        sumfs(&["mount", text(&mount.store()), text(&mount.path())]).expect_failure(CODE_MOUNT_FAILED, &["journal"]);
        let found = mount.check();
        assert!(found.code >= 4 && format!("{found:?}").contains("journal"), "{found:?}");
    }
    fs::remove_file(&journal).unwrap();
    sumfs(&["mount", text(&mount.store()), text(&mount.path())]).expect_failure(CODE_MOUNT_FAILED, &["journal"]);
    original.restore();
}

#[test]
fn one_copy_of_the_superblock_is_enough() {
    let mut mount = Mount::with_size("64M", "");
    fs::write(mount.path().join("file"), "content").unwrap();
    mount.umount();
    let superblock = mount.store().join("superblock");
    for copy in COPIES {
        for within in [0, 9, 50, 60, 1000, 4095] {
            flip(&superblock, copy + within);
            let found = sumfs(&["check", text(&mount.store())]);
            assert!(found.code == 0 || found.code == 1, "{found:?}");
            let before = log_lines(&mount, &format!("superblock copy at {copy} is damaged")).len();
            mount.mount();
            assert_eq!(fs::read_to_string(mount.path().join("file")).unwrap(), "content");
            let after = log_lines(&mount, &format!("superblock copy at {copy} is damaged")).len();
            assert_eq!(after, before + 1, "byte {within} of the copy at {copy}: {found:?}");
            mount.umount();
            mount.check().expect_success();
        }
    }
}

#[test]
fn without_a_superblock_the_store_is_refused() {
    let mut mount = Mount::with_size("64M", "");
    mount.umount();
    let original = Original::of(&mount);
    for copy in COPIES {
        flip(&mount.store().join("superblock"), copy + 40);
    }
    let refused = sumfs(&["mount", text(&mount.store()), text(&mount.path())]);
    refused.expect_failure(CODE_MOUNT_FAILED, &["both copies of the superblock", "superblock"]);
    let found = mount.check();
    assert!(found.code >= 4 && format!("{found:?}").contains("superblock"), "{found:?}");
    original.restore();
}

#[test]
fn an_unknown_incompatible_feature_is_refused_by_name() {
    let mut mount = Mount::with_size("64M", "");
    mount.umount();
    let original = Original::of(&mount);
    let path = mount.store().join("superblock");
    let disk = MemoryDisk::new("superblock", SUPERBLOCK_BYTES);
    disk.write_at(0, &fs::read(&path).unwrap()[..SUPERBLOCK_BYTES as usize]).unwrap();
    let mut superblock = Superblock::read(&disk).unwrap().superblock;
    superblock.incompat |= 1 << 41;
    let block = superblock.encode().unwrap();
    let mut file = File::options().write(true).open(&path).unwrap();
    for copy in COPIES {
        file.write_all_at(&block, copy).unwrap();
    }
    file.flush().unwrap();
    for mode in ["rw", "ro"] {
        let refused = sumfs(&["mount", text(&mount.store()), text(&mount.path()), "-o", mode]);
        refused.expect_failure(CODE_MOUNT_FAILED, &["bit 41", "newer sumfs"]);
    }
    let found = mount.check();
    assert!(found.code >= 4 && format!("{found:?}").contains("bit 41"), "{found:?}");
    original.restore();
}
