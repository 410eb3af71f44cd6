//! A file that lost its last name, or never had one, and that the kernel does not know: its deletion against a lookup of it. Either the
//! lookup comes too late, or the file stays, with all its data, until it is forgotten again.

use crate::machine::{BLOCK, Machine, fsync, read};
use crate::{model, together};
use std::sync::Arc;
use sumfs::error::{Error, Result};
use sumfs::fs::{Attributes, Caller, Filesystem, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::InodeNumber;

const DEVICE_BYTES: u64 = 64 << 20;
const ROOT: InodeNumber = InodeNumber::ROOT;
const VALUE: u8 = 7;

type Deletes = fn(&Filesystem, InodeNumber);
type Finds = fn(&Filesystem, InodeNumber) -> Result<Attributes>;

/// A new file with or without a name, known to the kernel once; `deletes` and `finds` at the same time.
fn one_file(background: bool, is_named: bool, deletes: Deletes, finds: Finds) {
    let machine = Arc::new(Machine::new(DEVICE_BYTES));
    let fs = machine.open(background);
    let made = match is_named {
        true => fs.mknod(&Caller::ROOT, ROOT, b"name", 0o100_600, 0, 0),
        false => fs.tmpfile(&Caller::ROOT, ROOT, 0o600, 0),
    };
    let file = made.unwrap().inode;
    fs.write(&Caller::ROOT, file, 0, &[VALUE; BLOCK as usize], WriteFlags::default(), Wait::Allowed).unwrap();
    fsync(&fs, file).unwrap();
    let threads: Vec<Box<dyn FnOnce() -> Option<Result<Attributes>> + Send>> = vec![
        Box::new({
            let fs = fs.clone();
            move || {
                deletes(&fs, file);
                None
            }
        }),
        Box::new({
            let fs = fs.clone();
            move || Some(finds(&fs, file))
        }),
    ];
    for found in together(threads).into_iter().flatten() {
        match found {
            Ok(_) => {
                assert_eq!(read(&fs, file, 0, BLOCK as usize), [VALUE; BLOCK as usize], "found, and its data is gone");
                fs.getattr(file).expect("found, and gone");
                if !is_named {
                    fs.link(file, ROOT, b"first").expect("found, and takes no name");
                    fs.forget(file, 1);
                }
                fs.forget(file, 1);
            }
            Err(error) => assert!(matches!(error, Error::NotFound | Error::Stale), "{error}"),
        }
    }
    machine.close(&fs);
}

fn unlink(fs: &Filesystem, file: InodeNumber) {
    fs.forget(file, 1);
    fs.unlink(ROOT, b"name").unwrap();
}

fn forget(fs: &Filesystem, file: InodeNumber) {
    fs.forget(file, 1);
}

#[test]
fn what_is_being_deleted_is_not_found_by_its_name() {
    model(|| one_file(false, true, unlink, |fs, _| fs.lookup(ROOT, b"name")));
}

#[test]
fn what_is_being_deleted_is_not_listed() {
    model(|| {
        one_file(false, true, unlink, |fs, _| {
            let mut found = Err(Error::NotFound);
            fs.readdirplus(ROOT, 0, &mut |entry, attributes| {
                if entry.name == b"name" {
                    found = Ok(attributes.clone());
                }
                true
            })?;
            found
        });
    });
}

#[test]
fn what_is_being_deleted_is_not_found_by_its_number() {
    model(|| one_file(false, false, forget, |fs, file| fs.lookup(file, b".")));
}

#[test]
fn what_is_being_deleted_is_not_found_by_its_number_with_the_background_threads() {
    model(|| one_file(true, false, forget, |fs, file| fs.lookup(file, b".")));
}
