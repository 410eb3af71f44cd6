//! Rename over a file that others have open and write, against unlink, sync and the reaper, with the power cut at some moment: a
//! name never shows a file that lost the data it was renamed with (D8), and what lost its last name and user is gone.

use crate::machine::{BLOCK, Machine, create, fsync, read, truncate};
use crate::simulated_disk::Images;
use crate::{below, model, one_of, together};
use std::sync::Arc;
use sumfs::error::Error;
use sumfs::fs::{Caller, Filesystem, RenameMode, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::InodeNumber;

const DEVICE_BYTES: u64 = 64 << 20;
const ROOT: InodeNumber = InodeNumber::ROOT;
const OLD: u8 = 1;
const NEW: u8 = 2;
const OVERWRITTEN: u8 = 3;

fn write(fs: &Filesystem, file: InodeNumber, value: u8) {
    let flags = WriteFlags { direct: below(3) == 0, ..WriteFlags::default() };
    let written = fs.write(&Caller::ROOT, file, 0, &[value; BLOCK as usize], flags, Wait::Allowed);
    assert!(matches!(written, Ok(_) | Err(Error::Stale)), "{written:?}");
}

/// Writes the new file and puts it in the place of the old one.
fn replace(fs: &Filesystem, new: InodeNumber) {
    write(fs, new, NEW);
    fs.rename(ROOT, b"new", ROOT, b"name", RenameMode::Replace).unwrap();
    fs.forget(new, 1);
}

/// Has the old file open.
fn use_old(fs: &Filesystem, old: InodeNumber) {
    write(fs, old, OVERWRITTEN);
    match below(3) {
        0 => fsync(fs, old).unwrap(),
        1 => truncate(fs, old, one_of(&[0, 100])).unwrap(),
        _ => {}
    }
    fs.forget(old, 1);
}

/// Whatever else goes on; what the power leaves at some moment of it.
fn disturb(fs: &Filesystem, machine: &Machine, unlinks: bool) -> Images {
    for _ in 0..below(4) {
        match below(4) {
            0 => fs.sync().unwrap(),
            1 => {
                if let Ok(found) = fs.lookup(ROOT, b"name") {
                    write(fs, found.inode, OVERWRITTEN);
                    fs.forget(found.inode, 1);
                }
            }
            2 if unlinks => {
                let removed = fs.unlink(ROOT, b"name");
                assert!(matches!(removed, Ok(()) | Err(Error::NotFound)), "{removed:?}");
            }
            _ => shuttle::thread::yield_now(),
        }
    }
    machine.power.cut(below(1 << 32))
}

fn verify(images: &Images, old: InodeNumber, new: InodeNumber, unlinks: bool) {
    let machine = Machine::found(images);
    machine.check();
    let fs = machine.open(false);
    if let Ok(found) = fs.lookup(ROOT, b"name") {
        let bytes = read(&fs, found.inode, 0, BLOCK as usize);
        assert!(found.inode == old || found.inode == new);
        // Where an unlink came first nothing was renamed over, and the data may come later than the name.
        if found.inode == new && !unlinks {
            let first = bytes.first().copied();
            assert!([Some(NEW), Some(OVERWRITTEN)].contains(&first), "renamed over, and then {first:?}");
            assert!(bytes.len() == BLOCK as usize && bytes.iter().all(|byte| Some(*byte) == first), "torn");
        }
        fs.forget(found.inode, 1);
    }
    machine.close(&fs);
}

fn one_name(background: bool) {
    let machine = Arc::new(Machine::new(DEVICE_BYTES));
    let fs = machine.open(background);
    let (old, new) = (create(&fs, "name"), create(&fs, "new"));
    write(&fs, old, OLD);
    fs.sync().unwrap();
    let unlinks = below(2) == 0;
    let threads: Vec<Box<dyn FnOnce() -> Option<Images> + Send>> = vec![
        Box::new({
            let fs = fs.clone();
            move || {
                replace(&fs, new);
                None
            }
        }),
        Box::new({
            let fs = fs.clone();
            move || {
                use_old(&fs, old);
                None
            }
        }),
        Box::new({
            let (fs, machine) = (fs.clone(), machine.clone());
            move || Some(disturb(&fs, &machine, unlinks))
        }),
    ];
    let cuts: Vec<Images> = together(threads).into_iter().flatten().collect();
    if !background {
        assert!(matches!(fs.getattr(old), Err(Error::Stale)), "replaced and not in use: gone");
    }
    machine.close(&fs);
    cuts.iter().for_each(|images| verify(images, old, new, unlinks));
}

#[test]
fn a_name_never_loses_what_it_was_renamed_with() {
    model(|| one_name(false));
}

#[test]
fn a_name_with_the_background_threads() {
    model(|| one_name(true));
}
