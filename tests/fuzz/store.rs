//! Stores to be mutated: small, with a bit of everything, closed or as a power cut leaves them; and what their files held at any time.

use crate::format;
use crate::reference_model::FileBytes;
use crate::simulated_disk::Random;
use std::collections::HashMap;
use std::sync::Arc;
use sumfs::disk::Disk;
use sumfs::disk::memory::{MemoryDisk, MemoryImage};
use sumfs::disk::superblock::{SUPERBLOCK_BYTES, Superblock};
use sumfs::fs::{Caller, FallocateMode, Filesystem, Options, RenameMode, SetAttributes, WriteFlags, XattrMode};
use sumfs::lock::Wait;
use sumfs::meta::index::Index;
use sumfs::meta::records::{CheckpointRecord, open as open_value};
use sumfs::meta::redb_index::RedbIndex;
use sumfs::meta::schema;
use sumfs::store::{Disks, FormatOptions, format};
use sumfs::units::{BLOCK, BLOCK_SIZE, InodeNumber};

pub const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
pub const ROOT: InodeNumber = InodeNumber::ROOT;
pub const NAMES: [&str; 5] = ["superblock", "journal", "index", "device 0", "device 1"];
pub const SUPERBLOCK: usize = 0;
pub const JOURNAL: usize = 1;
pub const INDEX: usize = 2;
pub const DEVICE: usize = 3;
pub const INDEX_CACHE_BYTES: usize = 4 << 20;
const DEVICE_BYTES: u64 = 12 << 20;
const JOURNAL_BYTES: u64 = 1 << 20;

/// The contents of the disks, in the order of [`NAMES`].
pub type Images = Vec<MemoryImage>;

/// Disks in memory that can be looked at again.
pub struct Machine(Vec<Arc<MemoryDisk>>);

impl Machine {
    pub fn new(images: &Images) -> Machine {
        let disk = |(name, image): (&&str, &MemoryImage)| Arc::new(MemoryDisk::from_image(*name, image.clone()));
        Machine(NAMES.iter().zip(images).map(disk).collect())
    }

    pub fn disk(&self, number: usize) -> Arc<dyn Disk> {
        self.0[number].clone()
    }

    pub fn disks(&self) -> Disks {
        Disks {
            superblock: self.disk(SUPERBLOCK),
            journal: self.disk(JOURNAL),
            index: self.disk(INDEX),
            sled: None,
            devices: vec![self.disk(DEVICE), self.disk(DEVICE + 1)],
            images: None,
        }
    }

    pub fn images(&self) -> Images {
        self.0.iter().map(|disk| disk.image()).collect()
    }
}

/// A good store.
pub struct Sample {
    pub images: Images,
    pub store_id: [u8; 16],
    /// Every record in the index: keys and sealed values.
    pub values: Vec<(Vec<u8>, Vec<u8>)>,
    pub tail: CheckpointRecord,
    /// Payloads of the journal behind the checkpoint.
    pub payloads: Vec<Vec<u8>>,
    /// What each file held at any time.
    pub versions: HashMap<InodeNumber, Vec<FileBytes>>,
    /// Written pages of the index.
    pub pages: Vec<(u64, usize)>,
    /// Blocks of each disk that are not all zeros, in order.
    pub blocks: Vec<Vec<u64>>,
}

/// Options for a mount without threads.
pub fn options(read_only: bool) -> Options {
    Options { read_only, background: false, cache_bytes: 24 << 20, ..Options::default() }
}

impl Sample {
    /// A store with a bit of everything; `is_closed` or cut off.
    pub fn new(is_closed: bool) -> Sample {
        let mut builder = Builder::new();
        builder.fill();
        if is_closed {
            builder.fs.shutdown().expect("closing a sample");
        } else {
            builder.fs.sync().expect("syncing a sample");
            builder.change();
            builder.fs.sync().expect("syncing a sample");
        }
        let images = builder.machine.images();
        drop(builder.fs);
        let machine = Machine::new(&images);
        let index = RedbIndex::open(machine.disk(INDEX), INDEX_CACHE_BYTES, true).expect("the index of a sample");
        let mut values = Vec::new();
        let snapshot = index.snapshot().expect("a snapshot");
        let visited = snapshot.range(&[], &[0xff], &mut |key, value| {
            values.push((key.to_vec(), value.to_vec()));
            std::ops::ControlFlow::Continue(())
        });
        visited.expect("reading the index of a sample");
        let key = schema::checkpoint();
        let value = snapshot.get(&key).expect("reading").expect("a checkpoint");
        let tail = CheckpointRecord::decode(open_value(&key, &value).expect("a good value")).expect("a checkpoint");
        let superblock = Superblock::read(&*machine.disk(SUPERBLOCK)).expect("a superblock").superblock;
        let payloads = format::journal_payloads(&images[JOURNAL], tail);
        assert_eq!(is_closed, payloads.is_empty(), "records in the journal");
        let pages = format::index_pages(&images[INDEX]);
        let blocks = images.iter().map(used_blocks).collect();
        Sample { store_id: superblock.uuid, values, tail, payloads, versions: builder.versions, pages, blocks, images }
    }
}

fn used_blocks(image: &MemoryImage) -> Vec<u64> {
    let is_used = |index: &u64| image.block(*index).is_some_and(|block| block.iter().any(|byte| *byte != 0));
    let mut blocks: Vec<u64> = image.block_indexes().filter(is_used).collect();
    blocks.sort_unstable();
    blocks
}

struct Builder {
    machine: Machine,
    fs: Arc<Filesystem>,
    versions: HashMap<InodeNumber, Vec<FileBytes>>,
    random: Random,
}

impl Builder {
    fn new() -> Builder {
        let lens = [SUPERBLOCK_BYTES, JOURNAL_BYTES, 0, DEVICE_BYTES, DEVICE_BYTES];
        let machine = Machine::new(&lens.into_iter().map(MemoryImage::new).collect());
        let paths = ["device.0".to_owned(), "device.1".to_owned()];
        format(&machine.disks(), &FormatOptions::default(), &paths, None).expect("formatting a sample");
        let fs = Filesystem::open(machine.disks(), options(false)).expect("opening a sample");
        Builder { machine, fs, versions: HashMap::new(), random: Random::new(11) }
    }

    fn file(&mut self, parent: InodeNumber, name: &str) -> InodeNumber {
        self.fs.mknod(&CALLER, parent, name.as_bytes(), 0o100_644, 0, 0).expect("a file").inode
    }

    fn directory(&mut self, parent: InodeNumber, name: &str) -> InodeNumber {
        self.fs.mkdir(&CALLER, parent, name.as_bytes(), 0o755, 0).expect("a directory").inode
    }

    /// The file changes, and its contents from now on are one more version.
    fn changed(&mut self, file: InodeNumber, change: impl FnOnce(&mut FileBytes)) {
        let versions = self.versions.entry(file).or_default();
        let mut next = versions.last().cloned().unwrap_or_default();
        change(&mut next);
        versions.push(next);
    }

    fn write(&mut self, file: InodeNumber, offset: u64, len: usize) {
        let mut data = Vec::with_capacity(len + 8);
        while data.len() < len {
            data.extend_from_slice(&self.random.next().to_le_bytes());
        }
        data.truncate(len);
        self.fs.write(&CALLER, file, offset, &data, WriteFlags::default(), Wait::Allowed).expect("a write");
        self.changed(file, |bytes| bytes.write(offset, &data));
    }

    fn allocate(&mut self, file: InodeNumber, offset: u64, len: u64, mode: FallocateMode) {
        self.fs.fallocate(&CALLER, file, offset, len, mode).expect("fallocate");
        self.changed(file, |bytes| match mode {
            FallocateMode::PunchHole | FallocateMode::ZeroRangeKeepSize => bytes.zero(offset, offset + len),
            FallocateMode::AllocateKeepSize => {}
            _ => bytes.set_size(bytes.size().max(offset + len)),
        });
    }

    fn truncate(&mut self, file: InodeNumber, size: u64) {
        let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
        self.fs.setattr(&CALLER, file, &change).expect("truncate");
        self.changed(file, |bytes| bytes.set_size(size));
    }

    fn fill(&mut self) {
        let upper = self.directory(ROOT, "upper");
        let lower = self.directory(upper, "lower");
        self.directory(ROOT, "empty");
        for (number, len) in [0, 1, 100, BLOCK, BLOCK + 1, 30_000, 70_000].into_iter().enumerate() {
            for (parent, kind) in [(ROOT, "a"), (upper, "b"), (lower, "c")] {
                let file = self.file(parent, &format!("{kind}{number}"));
                self.write(file, 0, len);
            }
        }
        let big = self.file(ROOT, "big");
        (0..6).for_each(|piece| self.write(big, piece * (256 << 10), 256 << 10));
        self.fs.sync().expect("sync");
        self.write(big, 300_000, 50_000);
        self.allocate(big, 700_000, 90_000, FallocateMode::PunchHole);
        let sparse = self.file(upper, "sparse");
        [5000, 20 << 20, 1 << 30, 1 << 40].into_iter().for_each(|offset| self.write(sparse, offset, 9000));
        let promised = self.file(lower, "promised");
        self.allocate(promised, 0, 300_000, FallocateMode::Allocate);
        self.write(promised, 100_000, 20_000);
        self.allocate(promised, 500_000, 100_000, FallocateMode::AllocateKeepSize);
        self.fs.link(big, lower, b"big too").expect("a link");
        self.fs.link(big, upper, b"big as well").expect("a link");
        self.fs.symlink(&CALLER, upper, b"symbolic", b"lower/big too").expect("a symbolic link");
        self.fs.mknod(&CALLER, upper, b"fifo", 0o010_644, 0, 0).expect("a fifo");
        self.fs.mknod(&CALLER, upper, b"null", 0o020_644, 0, 259).expect("a device node");
        for (inode, name) in [(big, &b"user.one"[..]), (big, b"user.two"), (lower, b"user.three"), (sparse, b"security.four")] {
            self.fs.setxattr(&CALLER, inode, name, &[b'x'; 300], XattrMode::Any).expect("an xattr");
        }
        (0..150).for_each(|number| _ = self.file(lower, &format!("many {number}")));
        let orphan = self.file(ROOT, "orphan");
        self.write(orphan, 0, 50_000);
        self.fs.unlink(ROOT, b"orphan").expect("unlink");
        self.fs.sync().expect("sync");
    }

    /// What is in the journal only.
    fn change(&mut self) {
        let late = self.file(ROOT, "late");
        self.write(late, 0, 100_000);
        self.fs.sync().expect("sync");
        let big = self.fs.lookup(ROOT, b"big").expect("a file").inode;
        self.write(big, BLOCK_SIZE * 3, 60_000);
        self.truncate(big, 1_200_001);
        self.fs.sync().expect("sync");
        self.fs.rename(ROOT, b"a5", ROOT, b"a6", RenameMode::Replace).expect("rename");
        let orphan = self.file(ROOT, "second orphan");
        self.write(orphan, 0, 9000);
        self.fs.sync().expect("sync");
        self.fs.unlink(ROOT, b"second orphan").expect("unlink");
        let promised = self.fs.lookup(ROOT, b"a4").expect("a file").inode;
        self.allocate(promised, 8192, 50_000, FallocateMode::Allocate);
    }
}
