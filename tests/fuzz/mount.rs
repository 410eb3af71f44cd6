//! The target `mount`: a store with mutated disks is checked, mounted, read, written to, closed, checked and mounted again.

use crate::metadata::{change_raw, change_sealed};
use crate::mutation::interesting;
use crate::runner::Target;
use crate::simulated_disk::Random;
use crate::store::{CALLER, Machine, NAMES, ROOT, Sample, options};
use crate::walk::{Found, NEW_BYTE, Oracle, walk};
use sumfs::fs::{FallocateMode, Filesystem, RenameMode, SetAttributes, WriteFlags, XattrMode};
use sumfs::lock::Wait;
use sumfs::units::{BLOCK, BLOCK_SIZE};
use sumfs::verify::check::{CheckOptions, check};

/// Mounts.
pub struct Mounts {
    samples: [Sample; 2],
}

impl Mounts {
    pub fn new() -> Mounts {
        Mounts { samples: [Sample::new(true), Sample::new(false)] }
    }
}

impl Target for Mounts {
    fn case(&mut self, random: &mut Random, steps: &mut Vec<String>) -> Result<bool, String> {
        let sample = &self.samples[random.below(2) as usize];
        let mut images = sample.images.clone();
        let is_sealed = random.once_in(2);
        if is_sealed {
            change_sealed(random, &mut images, sample, steps);
        }
        if !is_sealed || random.once_in(8) {
            for _ in 0..1 + random.below(8) {
                let disk = random.below(NAMES.len() as u64) as usize;
                change_raw(random, &mut images, sample, disk, steps);
            }
        }
        let machine = Machine::new(&images);
        look_over(&machine, steps);
        let read_only = random.once_in(4);
        let Ok(fs) = Filesystem::open(machine.disks(), options(read_only)) else { return Ok(false) };
        let oracle = if is_sealed { Oracle::Anything } else { Oracle::Versions(&sample.versions) };
        let found = walk(&fs, &oracle)?;
        if read_only {
            return Ok(true);
        }
        use_it(&fs, &found, random, steps);
        let oracle = if is_sealed { Oracle::Anything } else { Oracle::Changed(&sample.versions) };
        walk(&fs, &oracle)?;
        let _ = (fs.statfs(), fs.status());
        steps.push("shutdown".to_owned());
        let closed = fs.shutdown();
        steps.push(format!("closed: {closed:?}"));
        drop(fs);
        look_over(&machine, steps);
        steps.push("mounted again".to_owned());
        if let Ok(fs) = Filesystem::open(machine.disks(), options(false)) {
            walk(&fs, &oracle)?;
            let _ = fs.shutdown();
        }
        Ok(true)
    }
}

/// The check finds what it finds; it must end, and change nothing.
fn look_over(machine: &Machine, steps: &mut Vec<String>) {
    steps.push("check".to_owned());
    let report = check(&machine.disks(), &CheckOptions { verify_data: true }, &mut |_, _| {});
    steps.push(report.map_or_else(|error| format!("check: {error}"), |report| format!("{} issues", report.issues.len())));
}

/// Changes what was found, in all ways; what is refused is refused.
fn use_it(fs: &Filesystem, found: &[Found], random: &mut Random, steps: &mut Vec<String>) {
    if let Ok(file) = fs.mknod(&CALLER, ROOT, b"new file", 0o100_644, 0, 0) {
        let _ = fs.write(&CALLER, file.inode, 5, &vec![NEW_BYTE; 20_000], WriteFlags::default(), Wait::Allowed);
    }
    let _ = fs.mkdir(&CALLER, ROOT, b"new directory", 0o755, 0);
    for _ in 0..25.min(found.len()) {
        let entry = &found[random.below(found.len() as u64) as usize];
        let other = &found[random.below(found.len() as u64) as usize];
        let how = random.below(16);
        steps.push(format!("{how} on inode {} ({} in {})", entry.inode, entry.name.escape_ascii(), entry.parent));
        change(fs, entry, other, how, random);
    }
    let _ = fs.sync();
}

fn change(fs: &Filesystem, entry: &Found, other: &Found, how: u64, random: &mut Random) {
    let (inode, size) = (entry.inode, entry.size.min(i64::MAX as u64));
    let write = |offset: u64, len: usize, flags| {
        let _ = fs.write(&CALLER, inode, offset, &vec![NEW_BYTE; len], flags, Wait::Allowed);
    };
    let block = random.below(size / BLOCK_SIZE + 2) * BLOCK_SIZE;
    let allocate = |length: u64, mode| {
        let _ = fs.fallocate(&CALLER, inode, block, length, mode);
    };
    match how {
        0 => write(block, 3 * BLOCK, WriteFlags::default()),
        1 => write(block, 2 * BLOCK, WriteFlags { direct: true, ..WriteFlags::default() }),
        2 => write(size, 5000, WriteFlags { sync: true, ..WriteFlags::default() }),
        3 => {
            let size = [0, size / 2, size.saturating_sub(1), size + 1, interesting(random)][random.below(5) as usize];
            let _ = fs.setattr(&CALLER, inode, &SetAttributes { size: Some(size), ..SetAttributes::default() });
        }
        4 => allocate(1 + random.below(100_000), FallocateMode::PunchHole),
        5 => allocate(1 + random.below(100_000), FallocateMode::Allocate),
        6 => allocate(1 + random.below(100_000), FallocateMode::ZeroRange),
        7 => {
            let _ = fs.setxattr(&CALLER, inode, b"user.new", &[NEW_BYTE; 100], XattrMode::Any);
            let _ = fs.removexattr(&CALLER, inode, b"user.one");
        }
        8 | 9 => {
            let _ = fs.unlink(entry.parent, &entry.name);
            let _ = fs.rmdir(entry.parent, &entry.name);
        }
        10 => {
            let _ = fs.rename(entry.parent, &entry.name, other.parent, &other.name, RenameMode::Replace);
        }
        11 => {
            let _ = fs.rename(entry.parent, &entry.name, other.parent, &other.name, RenameMode::Exchange);
        }
        12 => {
            let linked = fs.link(inode, other.parent, b"new link");
            let _ = linked.map(|attributes| fs.forget(attributes.inode, 1));
        }
        13 => {
            let change = SetAttributes { mode: Some(0o600), uid: Some(5), ..SetAttributes::default() };
            let _ = fs.setattr(&CALLER, inode, &change);
        }
        14 => {
            let made = fs.mkdir(&CALLER, inode, b"new one", 0o755, 0);
            let _ = made.map(|attributes| fs.forget(attributes.inode, 1));
        }
        _ => fs.fsync(inode, false, Box::new(|_| {})),
    }
}
