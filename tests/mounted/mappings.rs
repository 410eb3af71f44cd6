//! Mapped files, and memory that changes while it is written, as public bug reports tell of them (C..: the number of the report's
//! case); each on a fresh mount, run by [`smoke`](crate::smoke), which also checks every checksum at the end. Python does it, because
//! mapping files needs unsafe code.

use crate::mount::run;
use std::path::Path;

const COMMON: &str = r#"
import ctypes, mmap, multiprocessing, os, random, sys
os.chdir(sys.argv[1])

def join(workers):
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert [worker.exitcode for worker in workers] == [0] * len(workers), [worker.exitcode for worker in workers]
"#;

fn python(root: &Path, text: &str) {
    run("python3", &["-c", &format!("{COMMON}{text}"), root.to_str().unwrap()]).expect_success();
}

/// Four processes append while another one maps the tail: every record that the size covers is whole in the mapping too (C04).
pub fn a_mapped_tail_of_appends(root: &Path) {
    python(
        root,
        r#"
RECORDS = 1000
def write(worker):
    file = os.open("records", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for number in range(RECORDS):
        assert os.write(file, b"%d %06d " % (worker, number) + b"." * 90 + b"\n") == 100
def read(_):
    file = os.open("records", os.O_RDONLY | os.O_CREAT, 0o644)
    at = 0
    while at < 4 * RECORDS * 100:
        # Not fstat: beside an append the kernel hands on the daemon's size before it can be read (fuse_change_attributes).
        size = os.lseek(file, 0, os.SEEK_END)
        assert size % 100 == 0, size
        if size == at:
            continue
        begin = at // 4096 * 4096
        with mmap.mmap(file, size - begin, prot=mmap.PROT_READ, offset=begin) as tail:
            for record in range(at - begin, size - begin, 100):
                found = tail[record:record + 100]
                assert found.endswith(b"." * 90 + b"\n") and found[:1] in b"0123", (begin + record, found)
        at = size
os.close(os.open("records", os.O_WRONLY | os.O_CREAT, 0o644))
join([multiprocessing.Process(target=write, args=(worker,)) for worker in range(4)] + [multiprocessing.Process(target=read, args=(0,))])
next_of = [0] * 4
for line in open("records", "rb"):
    worker, number = line.split()[:2]
    assert int(number) == next_of[int(worker)], line
    next_of[int(worker)] += 1
assert next_of == [RECORDS] * 4
"#,
    );
}

/// Stores all over a mapping and msync, many times: all is there, and it takes no time for each page (C70).
pub fn scattered_stores(root: &Path) {
    python(
        root,
        r#"
SIZE = 10 << 20
chance = random.Random(1)
expected = bytearray(SIZE)
file = os.open("mapped", os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(file, SIZE)
with mmap.mmap(file, SIZE) as mapped:
    for round in range(20):
        for _ in range(500):
            at = chance.randrange(SIZE - 9)
            piece = b"%09d" % at
            mapped[at:at + 9] = piece
            expected[at:at + 9] = piece
        if round % 2:
            mapped.flush()
        else:
            at = chance.randrange(SIZE // 4096) * 4096
            mapped.flush(at, min(65536, SIZE - at))
        at = chance.randrange(SIZE - 5000)
        assert os.pread(file, 5000, at) == expected[at:at + 5000], (round, at)
        os.pwrite(file, b"written", at)
        expected[at:at + 7] = b"written"
        assert mapped[at:at + 7] == b"written", (round, at)
assert open("mapped", "rb").read() == expected
"#,
    );
}

/// A mapping of a file that is cut and grown: what comes back is zeros.
pub fn mappings_over_the_end(root: &Path) {
    python(
        root,
        r#"
for cut in (0, 1, 4096, 5000, 8191, 12288):
    file = os.open(f"mapped-{cut}", os.O_RDWR | os.O_CREAT, 0o644)
    os.pwrite(file, b"x" * 12345, 0)
    with mmap.mmap(file, 12345) as mapped:
        # The rest of the last page is memory that nobody sees again.
        assert mapped[12344:12345] == b"x"
        os.ftruncate(file, cut)
        os.ftruncate(file, 20000)
        assert mapped[:12345] == b"x" * cut + bytes(12345 - cut), cut
        mapped[12000:12005] = b"again"
        mapped.flush()
    found = os.pread(file, 30000, 0)
    expected = bytearray(b"x" * cut + bytes(20000 - cut))
    expected[12000:12005] = b"again"
    assert found == expected, cut
    os.close(file)
"#,
    );
}

/// O_DIRECT writes from memory that another process scribbles on at the same time: each block is some mixture, and its checksum is
/// right (C73): it can be read, before and after the remount, and the check of all data finds nothing.
pub fn scribbled_buffers(root: &Path) {
    python(
        root,
        r#"
SIZE = 256 << 10
buffer, stop = mmap.mmap(-1, SIZE), mmap.mmap(-1, 4096)
def scribble(seed):
    chance = random.Random(seed)
    while not stop[0]:
        at = chance.randrange(SIZE // 512) * 512
        buffer[at:at + 512] = bytes([chance.randrange(1, 256)]) * 512
buffer[:] = b"\1" * SIZE
scribbling = [multiprocessing.Process(target=scribble, args=(seed,)) for seed in range(2)]
[worker.start() for worker in scribbling]
file = os.open("direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
buffered = os.open("buffered", os.O_RDWR | os.O_CREAT, 0o644)
try:
    for round in range(100):
        at = round % 8 * SIZE
        length = [SIZE, 4096, 65536][round % 3]
        assert os.pwritev(file, [memoryview(buffer)[:length]], at) == length
        assert os.pwritev(buffered, [memoryview(buffer)[:length]], at) == length
        if round % 10 == 9:
            os.fsync(buffered)
finally:
    stop[0] = 1
    [worker.join() for worker in scribbling]
os.close(file)
for name in ("direct", "buffered"):
    found = open(name, "rb").read()
    assert len(found) == 8 * SIZE
    for round in range(8):
        assert all(found[round * SIZE:round * SIZE + 4096]), name
"#,
    );
}

/// Ways to ask for writing out and for reading ahead, which all may be asked of files, and fsync of directories (C76).
pub fn syncing_and_advice(root: &Path) {
    python(
        root,
        r#"
libc = ctypes.CDLL(None, use_errno=True)
file = os.open("file", os.O_RDWR | os.O_CREAT, 0o644)
os.pwrite(file, b"y" * 1000000, 0)
for flags in range(8):
    assert libc.sync_file_range(file, ctypes.c_longlong(4096), ctypes.c_longlong(500000), flags) == 0, (flags, ctypes.get_errno())
assert libc.readahead(file, ctypes.c_longlong(0), ctypes.c_size_t(1000000)) == 0, ctypes.get_errno()
for advice in range(6):
    os.posix_fadvise(file, 0, 0, advice)
assert os.pread(file, 2000000, 0) == b"y" * 1000000
os.fsync(file)
os.fdatasync(file)
os.mkdir("directory")
for name in (".", "directory"):
    directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.fdatasync(directory)
    assert libc.syncfs(directory) == 0
    os.close(directory)
os.symlink("nowhere", "link")
os.mkfifo("fifo")
"#,
    );
}
