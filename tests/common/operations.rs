//! Random operations: what they are, how they are drawn from one seed, and how a failing list is made short.
//!
//! An operation names its objects by numbers that are taken modulo what exists when it runs. So every sub-list of a list of
//! operations can be run as well, and shrinking is leaving out.

use crate::simulated_disk::Random;
use sumfs::units::BLOCK_SIZE;

/// True in `of_100` of 100 cases.
fn percent(random: &mut Random, of_100: u64) -> bool {
    random.below(100) < of_100
}

/// One of the choices.
fn pick<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[random.below(choices.len() as u64) as usize]
}

/// `len` bytes that follow from `seed` and are nowhere zero for long.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// How data reaches the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Through the cache.
    Cached,
    /// Written back by the kernel's cache.
    FromKernel,
    /// O_DIRECT.
    Direct,
    /// O_SYNC.
    Sync,
}

/// Where in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    At(u64),
    /// So many bytes before the end (or 0).
    BeforeEnd(u64),
    /// So many bytes behind the end.
    BehindEnd(u64),
}

/// One operation. Objects: `file`, `directory`, `node`: among those with a name; `entry`: among all names; `name`: among a few
/// dozen names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    Create {
        directory: u64,
        name: u64,
        mode: u32,
    },
    Mkdir {
        directory: u64,
        name: u64,
        mode: u32,
    },
    Symlink {
        directory: u64,
        name: u64,
        len: usize,
    },
    Special {
        directory: u64,
        name: u64,
        kind: u64,
    },
    /// A file without a name.
    Tmpfile {
        directory: u64,
        mode: u32,
    },
    /// A name for a file that has none.
    LinkNameless {
        node: u64,
        directory: u64,
        name: u64,
    },
    Write {
        file: u64,
        place: Place,
        len: usize,
        fill: u64,
        how: How,
        nowait: bool,
    },
    Read {
        file: u64,
        place: Place,
        len: usize,
        direct: bool,
        nowait: bool,
    },
    SetSize {
        file: u64,
        place: Place,
    },
    Fallocate {
        file: u64,
        place: Place,
        len: u64,
        mode: u64,
    },
    /// By sharing. `is_aligned`: both places are rounded down to whole blocks.
    CopyRange {
        file: u64,
        place: Place,
        to: u64,
        to_place: Place,
        len: u64,
        is_aligned: bool,
    },
    Rename {
        entry: u64,
        directory: u64,
        name: u64,
        mode: u64,
    },
    /// Onto an existing entry.
    RenameOver {
        entry: u64,
        other: u64,
        mode: u64,
    },
    Link {
        node: u64,
        directory: u64,
        name: u64,
    },
    Unlink {
        entry: u64,
    },
    Rmdir {
        directory: u64,
    },
    /// A lookup of a name that is perhaps not there.
    Lookup {
        directory: u64,
        name: u64,
    },
    List {
        directory: u64,
    },
    Chmod {
        node: u64,
        mode: u32,
    },
    Chown {
        node: u64,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    SetModified {
        node: u64,
        seconds: i64,
    },
    SetXattr {
        node: u64,
        name: u64,
        len: usize,
        fill: u64,
        mode: u64,
    },
    GetXattr {
        node: u64,
        name: u64,
    },
    RemoveXattr {
        node: u64,
        name: u64,
    },
    Fsync {
        node: u64,
        data_only: bool,
    },
    Sync,
    /// The kernel drops what it knows of everything that has a name.
    ForgetNamed,
    /// The kernel drops everything; unlinked files go.
    ForgetAll,
    /// Shutdown and open. Skipped where the test does not want it.
    Remount,
}

/// Which operations a test draws, as shares.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    pub names: u64,
    pub data: u64,
    pub attributes: u64,
    /// fsync, sync.
    pub durability: u64,
    /// Forgetting and remounts.
    pub memory: u64,
    /// Bytes of the largest usual write; rare ones are larger.
    pub write_bytes_max: u64,
    /// Whether some files are sparse up to terabytes.
    pub has_far_offsets: bool,
}

/// Draws `count` operations.
pub fn draw(random: &mut Random, mix: &Mix, count: usize) -> Vec<Operation> {
    (0..count).map(|_| one(random, mix)).collect()
}

fn one(random: &mut Random, mix: &Mix) -> Operation {
    let shares = [mix.names, mix.data, mix.attributes, mix.durability, mix.memory];
    let mut ticket = random.below(shares.iter().sum());
    let mut class = 0;
    while ticket >= shares[class] {
        ticket -= shares[class];
        class += 1;
    }
    match class {
        0 => names(random),
        1 => data(random, mix),
        2 => attributes(random),
        3 => durability(random),
        _ => memory(random),
    }
}

fn names(random: &mut Random) -> Operation {
    let (directory, name, entry) = (random.next(), random.next(), random.next());
    let mode = pick(random, &[0o666, 0o777, 0o600, 0o755, 0o1777]);
    match random.below(100) {
        0..30 => Operation::Create { directory, name, mode },
        30..42 => Operation::Mkdir { directory, name, mode },
        42..46 => Operation::Symlink { directory, name, len: pick(random, &[1, 7, 300, 4095]) },
        46..49 => Operation::Special { directory, name, kind: random.next() },
        49..59 => Operation::Rename { entry, directory, name, mode: random.next() },
        59..69 => Operation::RenameOver { entry, other: random.next(), mode: random.next() },
        69..76 => Operation::Link { node: entry, directory, name },
        76..88 => Operation::Unlink { entry },
        88..91 => Operation::Rmdir { directory },
        91..94 => Operation::Tmpfile { directory, mode },
        94..96 => Operation::LinkNameless { node: entry, directory, name },
        96..98 => Operation::Lookup { directory, name },
        _ => Operation::List { directory },
    }
}

fn data(random: &mut Random, mix: &Mix) -> Operation {
    let file = random.next();
    match random.below(100) {
        0..45 => write(random, mix, file),
        45..55 => {
            let (place, to_place) = (place(random, mix, false), place(random, mix, false));
            let (len, is_aligned) = (length(random, mix, false), percent(random, 90));
            Operation::CopyRange { file, place, to: random.next(), to_place, len, is_aligned }
        }
        55..75 => {
            let direct = percent(random, 30);
            let len = length(random, mix, false) as usize;
            Operation::Read { file, place: place(random, mix, false), len, direct, nowait: percent(random, 30) }
        }
        75..87 => Operation::SetSize { file, place: if percent(random, 25) { Place::At(0) } else { place(random, mix, false) } },
        _ => {
            let is_aligned = percent(random, 50);
            let len = length(random, mix, is_aligned);
            Operation::Fallocate { file, place: place(random, mix, false), len: len.max(1), mode: random.next() }
        }
    }
}

fn write(random: &mut Random, mix: &Mix, file: u64) -> Operation {
    let how = match random.below(100) {
        0..55 => How::Cached,
        55..70 => How::FromKernel,
        70..88 => How::Direct,
        _ => How::Sync,
    };
    let is_aligned = how == How::Direct && !percent(random, 5) || percent(random, 30);
    let (place, len) = (place(random, mix, is_aligned), length(random, mix, is_aligned) as usize);
    Operation::Write { file, place, len, fill: random.next(), how, nowait: percent(random, 40) }
}

fn place(random: &mut Random, mix: &Mix, is_aligned: bool) -> Place {
    let near = |random: &mut Random| pick(random, &[0, 1, 100, 4095, 4096, 5000, 70_000]);
    if is_aligned {
        return Place::At(random.below(mix.write_bytes_max / BLOCK_SIZE + 1) * BLOCK_SIZE);
    }
    match random.below(100) {
        0..25 => Place::BehindEnd(0),
        25..35 => Place::BehindEnd(near(random)),
        35..50 => Place::BeforeEnd(near(random)),
        50..60 => Place::At(0),
        60..62 if mix.has_far_offsets => Place::At(pick(random, &[1 << 32, (1 << 40) + 17, (8 << 40) - 5000, 8 << 40])),
        60..80 => Place::At(random.below(20_000)),
        _ => Place::At(random.below(mix.write_bytes_max * 2)),
    }
}

fn length(random: &mut Random, mix: &Mix, is_aligned: bool) -> u64 {
    let len = match random.below(100) {
        0..30 => random.below(200) + 1,
        30..60 => random.below(3 * BLOCK_SIZE) + 1,
        60..70 => pick(random, &[BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 65_536]),
        70..98 => random.below(mix.write_bytes_max) + 1,
        _ => mix.write_bytes_max * 5,
    };
    if is_aligned { len.next_multiple_of(BLOCK_SIZE) } else { len }
}

fn attributes(random: &mut Random) -> Operation {
    let (node, name) = (random.next(), random.next());
    match random.below(100) {
        0..15 => Operation::Chmod { node, mode: pick(random, &[0o644, 0o700, 0o000, 0o777]) },
        15..25 => {
            let uid = percent(random, 60).then(|| pick(random, &[0, 1000, 65_534]));
            Operation::Chown { node, uid, gid: percent(random, 60).then(|| pick(random, &[0, 100, 1000])) }
        }
        25..40 => Operation::SetModified { node, seconds: pick(random, &[0, -5, 1, 1_000_000_000, 1 << 33, -(1 << 31)]) },
        40..75 => {
            let len = pick(random, &[0, 1, 20, 300, 5000, 65_536]);
            Operation::SetXattr { node, name, len, fill: random.next(), mode: random.next() }
        }
        75..90 => Operation::GetXattr { node, name },
        _ => Operation::RemoveXattr { node, name },
    }
}

fn durability(random: &mut Random) -> Operation {
    match random.below(100) {
        0..85 => Operation::Fsync { node: random.next(), data_only: percent(random, 30) },
        _ => Operation::Sync,
    }
}

fn memory(random: &mut Random) -> Operation {
    match random.below(100) {
        0..50 => Operation::ForgetNamed,
        50..75 => Operation::ForgetAll,
        _ => Operation::Remount,
    }
}

/// Leaves out operations as long as `fails` says that the rest still fails; at most `tries_max` tries.
pub fn shrink(mut failing: Vec<Operation>, tries_max: usize, mut fails: impl FnMut(&[Operation]) -> bool) -> Vec<Operation> {
    let mut tries = 0;
    let mut chunk = failing.len() / 2;
    while chunk > 0 {
        let mut at = 0;
        while at < failing.len() && tries < tries_max {
            let mut rest = failing.clone();
            rest.drain(at..(at + chunk).min(failing.len()));
            tries += 1;
            if fails(&rest) {
                failing = rest;
            } else {
                at += chunk;
            }
        }
        chunk /= 2;
    }
    failing
}
