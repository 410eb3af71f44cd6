//! Operations on the bytes of files, each on a fresh mount; run by [`smoke`](crate::smoke).

use crate::mount::run;
use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatxFlags, fallocate as host_fallocate};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes that differ from block to block and from seed to seed.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Compares without printing megabytes.
#[track_caller]
pub fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    if let Some(at) = found.iter().zip(expected).position(|(a, b)| a != b) {
        panic!("{what}: first difference at byte {at}: found {:02x}, expected {:02x}", found[at], expected[at]);
    }
}

/// Opens for reading and writing, and makes the file if need be.
pub fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// What a file takes of the store, asked of the daemon and not of the kernel's cache.
pub fn bytes_taken(file: &File) -> u64 {
    let status = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, StatxFlags::BLOCKS).unwrap();
    status.stx_blocks * 512
}

/// Sizes around blocks and extents, written in one piece and in odd pieces.
pub fn write_and_read(root: &Path) {
    for size in [0, 1, 511, 4095, 4096, 4097, 65_536, (1 << 20) - 1, 1 << 20, (1 << 20) + 3, (5 << 20) + 77] {
        let expected = pattern(size, size as u64);
        let (whole, pieces) = (root.join(format!("whole-{size}")), root.join(format!("pieces-{size}")));
        std::fs::write(&whole, &expected).unwrap();
        let mut file = File::create(&pieces).unwrap();
        for piece in expected.chunks(7919) {
            file.write_all(piece).unwrap();
        }
        file.sync_all().unwrap();
        assert_same(&std::fs::read(&whole).unwrap(), &expected, "whole");
        assert_same(&std::fs::read(&pieces).unwrap(), &expected, "pieces");
        let mut past = [7_u8; 16];
        assert_eq!(file.read_at(&mut past, size as u64 + 4096).map_err(|error| error.raw_os_error()), Err(Some(9)), "write-only");
        assert_eq!(File::open(&whole).unwrap().read_at(&mut past, size as u64).unwrap(), 0, "end of file");
    }
}

/// Writes over parts of blocks, before and after they are on the device.
pub fn overwrite_and_append(root: &Path) {
    let path = root.join("file");
    let mut expected = pattern(300_000, 1);
    let file = open(&path);
    file.write_all_at(&expected, 0).unwrap();
    for (round, (at, length)) in
        [(0, 1), (4095, 2), (4096, 4096), (100_001, 50_000), (299_999, 1), (8191, 12_290)].into_iter().enumerate()
    {
        if round % 2 == 0 {
            file.sync_data().unwrap();
        }
        let piece = pattern(length, 100 + round as u64);
        file.write_all_at(&piece, at as u64).unwrap();
        expected[at..at + length].copy_from_slice(&piece);
    }
    let mut appending = OpenOptions::new().append(true).open(&path).unwrap();
    for round in 0..50 {
        let piece = pattern(997, round);
        appending.write_all(&piece).unwrap();
        expected.extend_from_slice(&piece);
    }
    assert_same(&std::fs::read(&path).unwrap(), &expected, "after overwrites and appends");
    file.sync_all().unwrap();
    assert_same(&std::fs::read(&path).unwrap(), &expected, "after fsync");
}

/// A part of `buffer` that begins on a block, as O_DIRECT wants it.
pub fn aligned(buffer: &mut [u8], length: usize) -> &mut [u8] {
    let start = buffer.as_ptr().align_offset(4096);
    &mut buffer[start..start + length]
}

/// O_DIRECT and buffered I/O on the same file see each other.
pub fn direct_io(root: &Path) {
    let path = root.join("direct");
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(&path)
        .unwrap();
    let expected = pattern(2 << 20, 3);
    let mut buffer = vec![0; (2 << 20) + 4096];
    let block = aligned(&mut buffer, 2 << 20);
    block.copy_from_slice(&expected);
    direct.write_all_at(block, 0).unwrap();
    assert_same(&std::fs::read(&path).unwrap(), &expected, "buffered read of direct write");
    let buffered = open(&path);
    let piece = pattern(4096, 4);
    buffered.write_all_at(&piece, 8192).unwrap();
    let block = aligned(&mut buffer, 4096);
    block.fill(0);
    direct.read_exact_at(block, 8192).unwrap();
    assert_same(block, &piece, "direct read of buffered write");
    let block = aligned(&mut buffer, 4096);
    block.fill(0xa5);
    direct.write_all_at(block, 4096).unwrap();
    let mut found = vec![0; 4096];
    buffered.read_exact_at(&mut found, 4096).unwrap();
    assert_same(&found, &[0xa5; 4096], "buffered read of direct overwrite");
}

/// O_SYNC and O_DSYNC.
pub fn synchronous_writes(root: &Path) {
    for (name, flag) in [("sync", OFlags::SYNC), ("dsync", OFlags::DSYNC)] {
        let path = root.join(name);
        let file = OpenOptions::new().write(true).create_new(true).custom_flags(flag.bits() as i32).open(&path).unwrap();
        let expected = pattern(40_000, 5);
        for (index, piece) in expected.chunks(5000).enumerate() {
            file.write_all_at(piece, index as u64 * 5000).unwrap();
        }
        assert_same(&std::fs::read(&path).unwrap(), &expected, name);
    }
}

/// Shrinking inside a block and growing again must show zeros, never the old bytes.
pub fn truncate(root: &Path) {
    for synced in [false, true] {
        let path = root.join(format!("file-{synced}"));
        let file = open(&path);
        let mut expected = pattern(100_000, 6);
        file.write_all_at(&expected, 0).unwrap();
        for (shorter, longer) in [(50_001, 60_000), (4096, 9000), (1, 4097), (0, 30_000)] {
            if synced {
                file.sync_all().unwrap();
            }
            file.set_len(shorter).unwrap();
            file.set_len(longer).unwrap();
            expected.truncate(shorter as usize);
            expected.resize(longer as usize, 0);
            assert_same(&std::fs::read(&path).unwrap(), &expected, "after shrinking and growing");
            file.write_all_at(b"mark", longer - 2).unwrap();
            expected.resize(longer as usize - 2, 0);
            expected.extend_from_slice(b"mark");
            assert_same(&std::fs::read(&path).unwrap(), &expected, "after writing over the end");
        }
    }
}

/// Each mode, at byte offsets that are no block boundaries.
pub fn fallocate(root: &Path) {
    let file = open(&root.join("allocated"));
    host_fallocate(&file, FallocateFlags::empty(), 0, 100_000).unwrap();
    assert_eq!(file.metadata().unwrap().size(), 100_000);
    assert!(bytes_taken(&file) >= 100_000, "allocated space counts");
    assert_same(&std::fs::read(root.join("allocated")).unwrap(), &[0; 100_000], "allocated reads as zeros");
    file.write_all_at(b"in the middle", 50_000).unwrap();
    host_fallocate(&file, FallocateFlags::KEEP_SIZE, 100_000, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().size(), 100_000);

    for (name, flags) in
        [("punched", FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE), ("zeroed", FallocateFlags::ZERO_RANGE)]
    {
        let path = root.join(name);
        let file = open(&path);
        let mut expected = pattern(200_000, 7);
        file.write_all_at(&expected, 0).unwrap();
        for (at, length) in [(10, 20), (4000, 200), (8192, 4096), (20_001, 100_002), (199_000, 1000)] {
            host_fallocate(&file, flags, at as u64, length as u64).unwrap();
            expected[at..at + length].fill(0);
            assert_same(&std::fs::read(&path).unwrap(), &expected, name);
        }
    }
    let punched = open(&root.join("gives-back"));
    punched.write_all_at(&pattern(4 << 20, 8), 0).unwrap();
    punched.sync_all().unwrap();
    assert!(bytes_taken(&punched) >= 4 << 20);
    host_fallocate(&punched, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4 << 20).unwrap();
    punched.sync_all().unwrap();
    assert_eq!(bytes_taken(&punched), 0, "a hole takes no space");
    host_fallocate(open(&root.join("beyond")), FallocateFlags::ZERO_RANGE, 5000, 5000).unwrap();
    assert_eq!(std::fs::metadata(root.join("beyond")).unwrap().size(), 10_000);
}

/// One byte at each end of a file that is otherwise a hole.
pub fn sparse_to_eight_tebibytes(root: &Path) {
    let path = root.join("sparse");
    let file = open(&path);
    let end = 8_u64 << 40;
    file.write_all_at(b"first", 0).unwrap();
    file.write_all_at(b"last", end - 4).unwrap();
    file.write_all_at(b"middle", end / 2 + 1).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.metadata().unwrap().size(), end);
    assert!(bytes_taken(&file) < 1 << 20, "{} bytes for a few", bytes_taken(&file));
    let mut found = [1; 8];
    file.read_exact_at(&mut found, end / 2).unwrap();
    assert_eq!(&found, b"\0middle\0");
    file.read_exact_at(&mut found, end / 4).unwrap();
    assert_eq!(found, [0; 8]);
    file.read_exact_at(&mut found[..5], end - 5).unwrap();
    assert_eq!(&found[..5], b"\0last");
}

/// A shared writable mapping and read(2) see each other. Python does it, because mapping files needs unsafe code.
pub fn shared_mapping(root: &Path) {
    let path = root.join("mapped");
    std::fs::write(&path, pattern(50_000, 9)).unwrap();
    let script = "import mmap, os, sys\n\
        f = open(sys.argv[1], 'r+b')\n\
        m = mmap.mmap(f.fileno(), 50000)\n\
        before = bytes(m[40000:40010])\n\
        assert os.pread(f.fileno(), 10, 40000) == before\n\
        m[4090:4106] = b'over a page edge'\n\
        os.pwrite(f.fileno(), b'by write', 30000)\n\
        assert m[30000:30008] == b'by write'\n\
        assert os.pread(f.fileno(), 16, 4090) == b'over a page edge'\n\
        m.flush()\n";
    run("python3", &["-c", script, path.to_str().unwrap()]).expect_success();
    let mut expected = pattern(50_000, 9);
    expected[4090..4106].copy_from_slice(b"over a page edge");
    expected[30_000..30_008].copy_from_slice(b"by write");
    assert_same(&std::fs::read(&path).unwrap(), &expected, "after the mapping is gone");
}

/// 5 is CLOCK_REALTIME_COARSE, which stamps files: a change in the same tick would not show.
const WRITE_THROUGH_A_MAPPING: &str = r#"
import mmap, os, sys, time
path = sys.argv[1]
for read_first, at in ((False, 10), (True, 10), (True, 30000)):
    os.utime(path, (1000, 1000))
    before = os.stat(path)
    while time.clock_gettime_ns(5) <= before.st_ctime_ns: pass
    with open(path, 'r+b') as f, mmap.mmap(f.fileno(), 0) as m:
        read_first and m[at]
        m[at:at + 4] = b'over'
    after = os.stat(path)
    assert before.st_mtime == 1000 and after.st_mtime > 1000, (read_first, at)
    assert after.st_ctime_ns > before.st_ctime_ns, (read_first, at)
"#;

/// What a program writes through a mapping moves the times of the file, whether it read the page before or not.
pub fn a_mapping_stamps_its_file(root: &Path) {
    let path = root.join("stamped");
    std::fs::write(&path, pattern(50_000, 9)).unwrap();
    run("python3", &["-c", WRITE_THROUGH_A_MAPPING, path.to_str().unwrap()]).expect_success();
}

/// copy_file_range inside the mount (std::fs::copy uses it).
pub fn copy(root: &Path) {
    let expected = pattern((3 << 20) + 5, 10);
    std::fs::write(root.join("from"), &expected).unwrap();
    std::fs::copy(root.join("from"), root.join("to")).unwrap();
    assert_same(&std::fs::read(root.join("to")).unwrap(), &expected, "the copy");
    std::fs::write(root.join("from"), b"changed").unwrap();
    assert_same(&std::fs::read(root.join("to")).unwrap(), &expected, "the copy after its source changed");
}

/// Eight threads write interleaved blocks of one file and one file each.
pub fn many_writers(root: &Path) {
    let shared = open(&root.join("shared"));
    std::thread::scope(|scope| {
        for writer in 0..8_u64 {
            let shared = &shared;
            scope.spawn(move || {
                let mut own = File::create(root.join(format!("own-{writer}"))).unwrap();
                for round in 0..64 {
                    let piece = pattern(6000, writer * 1000 + round);
                    shared.write_all_at(&piece, (round * 8 + writer) * 6000).unwrap();
                    own.write_all(&piece).unwrap();
                }
                own.sync_all().unwrap();
            });
        }
    });
    let found = std::fs::read(root.join("shared")).unwrap();
    let expected: Vec<u8> =
        (0..64).flat_map(|round| (0..8).flat_map(move |writer| pattern(6000, writer * 1000 + round))).collect();
    assert_same(&found, &expected, "interleaved");
}

/// A file without a name lives until it is closed, and can be changed as before (C55).
pub fn unlinked_but_open(root: &Path) {
    let path = root.join("temporary");
    let mut file = open(&path);
    let expected = pattern(100_000, 11);
    file.write_all(&expected).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(!path.exists());
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all(b"more").unwrap();
    file.sync_all().unwrap();
    file.set_permissions(std::fs::Permissions::from_mode(0o604)).unwrap();
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o604);
    file.set_len(16_384).unwrap();
    file.write_all_at(&expected, 0).unwrap();
    file.write_all_at(b"more", 100_000).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut found = Vec::new();
    file.read_to_end(&mut found).unwrap();
    assert_same(&found[..100_000], &expected, "without a name");
    assert_eq!(&found[100_000..], b"more");
    // The name is free for another file meanwhile.
    std::fs::write(&path, b"another").unwrap();
    assert_eq!(found.len() as u64, file.metadata().unwrap().size());
}

/// Writing, truncating and changing the owner take set-user-id away (C37).
///
/// Only the mode is asked for: the kernel answers that from memory as long as it may.
pub fn set_user_id_is_cleared_by_writes(root: &Path) {
    let mode = |path: &Path| {
        let found = rustix::fs::statx(rustix::fs::CWD, path, rustix::fs::AtFlags::empty(), rustix::fs::StatxFlags::MODE);
        u32::from(found.unwrap().stx_mode) & 0o7777
    };
    let make = |name: &str| {
        let path = root.join(name);
        std::fs::write(&path, b"#!/bin/true\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o6777)).unwrap();
        assert_eq!(mode(&path), 0o6777);
        path
    };
    let as_nobody = |script: &str, path: &Path| {
        let who = ["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script, "sh"];
        run("setpriv", &[&who[..], &[path.to_str().unwrap()]].concat()).expect_success();
    };
    let written = make("written");
    as_nobody("echo more >> \"$1\"", &written);
    assert_eq!(mode(&written), 0o777);
    let directly = make("directly");
    as_nobody("dd if=/dev/zero of=\"$1\" bs=4096 count=1 oflag=direct conv=notrunc status=none", &directly);
    assert_eq!(mode(&directly), 0o777);
    // Who is not of the group loses set-group-id even where it only asks for locks.
    let allocated = make("allocated");
    std::fs::set_permissions(&allocated, std::fs::Permissions::from_mode(0o6666)).unwrap();
    as_nobody("fallocate -l 8192 \"$1\"", &allocated);
    assert_eq!(mode(&allocated), 0o666);
    let truncated = make("truncated");
    as_nobody("truncate -s 3 \"$1\"", &truncated);
    assert_eq!(mode(&truncated), 0o777);
    let given = make("given");
    std::os::unix::fs::chown(&given, Some(1000), Some(1000)).unwrap();
    assert_eq!(mode(&given), 0o777);
    // Naming neither owner nor group does it too; a directory keeps the bits.
    let kept = make("kept");
    std::os::unix::fs::chown(&kept, None, None).unwrap();
    assert_eq!(mode(&kept), 0o777);
    std::fs::set_permissions(&kept, std::fs::Permissions::from_mode(0o6767)).unwrap();
    std::os::unix::fs::chown(&kept, None, None).unwrap();
    assert_eq!(mode(&kept), 0o2767, "without group execute it is no set-group-id");
    let directory = root.join("directory");
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o6777)).unwrap();
    std::os::unix::fs::chown(&directory, None, None).unwrap();
    assert_eq!(mode(&directory), 0o6777);
}

/// statfs and st_blocks follow what is written and removed.
pub fn space_is_counted(root: &Path) {
    let free = || rustix::fs::statvfs(root).unwrap().f_bfree * 4096;
    let total = rustix::fs::statvfs(root).unwrap().f_blocks * 4096;
    assert!((900 << 20..=1 << 30).contains(&total), "{total} bytes in a store of 1 GiB");
    let before = free();
    let path = root.join("large");
    let file = open(&path);
    file.write_all_at(&pattern(64 << 20, 12), 0).unwrap();
    file.sync_all().unwrap();
    assert!(bytes_taken(&file) >= 64 << 20, "{} bytes taken", bytes_taken(&file));
    assert!(before - free() >= 64 << 20, "written bytes are not free");
    // What the kernel remembers of the file follows within seconds, so that du(1) is right.
    let begun = Instant::now();
    while file.metadata().unwrap().blocks() * 512 < 64 << 20 {
        assert!(begun.elapsed() < Duration::from_secs(60), "stat shows {} blocks", file.metadata().unwrap().blocks());
        std::thread::yield_now();
    }
    drop(file);
    std::fs::remove_file(&path).unwrap();
    // Freed space comes back with the commit that freed it, and forgetting the inode is the kernel's, so it may take several.
    for _ in 0..500 {
        crate::mount::sumfs(&["sync", root.to_str().unwrap()]).expect_success();
        if before - free().min(before) < 4 << 20 {
            return;
        }
    }
    panic!("{} bytes did not come back", before - free());
}
