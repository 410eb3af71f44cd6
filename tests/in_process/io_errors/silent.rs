//! Disks that go wrong and say nothing: the n-th write of a part of the store is lost, lands elsewhere or arrives with a flipped bit, the
//! n-th read comes from elsewhere or with a flipped bit. Data of the device is an error where it does not match, and never wrong (D4);
//! index and superblock have second copies, so that nobody notices.
//!
//! Not the journal: both copies of a record are one write, and when the last record is lost nothing tells that from one that was never
//! written. One that others follow is missed (`a_lost_journal_write_is_missed`).

use super::workload::{CALLER, How, MIXED, MODE, ROOT, Run, Step};
use super::{guarded, next_of};
use crate::memory_store::MemoryStore;
use crate::reference_model::{Model, Node};
use crate::simulated_disk::{Flaw, Silent, SimulatedPower, Survivors};
use crate::tree::read_bytes;
use sumfs::error::Error;
use sumfs::fs::{Filesystem, Options};
use sumfs::units::{BLOCK, BLOCK_SIZE, InodeNumber};
use sumfs::verify::check::{CheckOptions, check};
use sumfs::verify::issue::Severity;

const ALL: [Silent; 5] =
    [Silent::LostWrite, Silent::MisdirectedWrite, Silent::FlippedWrite, Silent::MisdirectedRead, Silent::FlippedRead];

#[derive(Clone, Copy, Debug)]
struct Case {
    port: &'static str,
    silent: Silent,
    nth: u64,
}

fn options() -> Options {
    Options { background: false, ..Options::default() }
}

impl Case {
    fn is_told(self, error: &Error) -> bool {
        self.port == "device" && matches!(error, Error::Integrity { .. })
    }

    /// Runs the workload with the flaw; steps on bad data may fail. True when the flaw was met.
    fn run(self) -> Result<bool, String> {
        let mut run = Run::new(self.nth, options());
        let Case { port, silent, nth } = self;
        run.power.go_wrong(Flaw { port: Some(port.to_owned()), silent, nth, for_good: false });
        for step in MIXED {
            match run.step(*step) {
                Err(error) if !self.is_told(&error) => return Err(format!("{step:?}: {error:?}")),
                _ => {}
            }
            if run.is_latched() {
                return Err(format!("latched by {step:?}: {:?}", run.fs().read_only_reason()));
            }
        }
        let is_met = run.power.failures() > 0;
        self.look(&run)?;
        Ok(is_met)
    }

    /// The closed store on a sound disk.
    fn look(self, run: &Run) -> Result<(), String> {
        let power = SimulatedPower::reopen(1, &run.power.cut_with(1, Survivors::Everything, false));
        let store = MemoryStore::found_on(&power);
        let fs = Filesystem::open(store.disks.clone(), options()).map_err(|error| format!("mounting again: {error}"))?;
        let bad_blocks = self.count_bad_blocks(&fs, &run.model)?;
        fs.shutdown().map_err(|error| format!("closing again: {error}"))?;
        let report = check(&store.disks, &CheckOptions { verify_data: true }, &mut |_, _| {}).expect("check");
        // A label's copy that was hit is written anew when the directory is opened, which is not done here.
        let is_sound = report.issues.iter().all(|issue| issue.severity() == Severity::Harmless);
        if is_sound == (bad_blocks == 0) {
            return Ok(());
        }
        Err(format!("{bad_blocks} blocks cannot be read, the check finds {:?}", report.issues))
    }

    /// Blocks that give an error; all others must be right.
    fn count_bad_blocks(self, fs: &Filesystem, model: &Model) -> Result<u64, String> {
        let mut bad = 0;
        for (directory, name, id) in model.entries() {
            let found = fs.lookup(InodeNumber(directory), &name).map_err(|error| format!("lookup of {id}: {error}"))?;
            let Some(bytes) = model.node(id).and_then(Node::file) else { continue };
            for block in bytes.block_indexes() {
                match read_bytes(fs, found.inode, block * BLOCK_SIZE, BLOCK) {
                    Ok(data) if data == bytes.read(block * BLOCK_SIZE, BLOCK) => {}
                    Ok(_) => return Err(format!("wrong data in block {block} of inode {id}")),
                    Err(error) if self.is_told(&error) => bad += 1,
                    Err(error) => return Err(format!("block {block} of inode {id}: {error:?}")),
                }
            }
        }
        Ok(bad)
    }
}

fn go_wrong_each(port: &'static str) {
    for silent in ALL {
        let (mut nth, mut met) = (1, 0);
        loop {
            let case = Case { port, silent, nth };
            if !guarded(&format!("{case:?}"), move || case.run()) {
                break;
            }
            met += 1;
            nth = next_of(nth);
        }
        println!("{silent:?} on {port}: {met} runs were touched, up to {nth}");
        assert!(met > 0, "{silent:?} on {port} was never met");
    }
}

#[test]
fn the_device_goes_wrong() {
    go_wrong_each("device");
}

#[test]
fn the_index_goes_wrong() {
    go_wrong_each("index");
}

#[test]
fn the_superblock_goes_wrong() {
    go_wrong_each("superblock");
}

#[test]
fn a_lost_journal_write_is_missed() {
    for silent in [Silent::LostWrite, Silent::MisdirectedWrite, Silent::FlippedWrite] {
        let mut run = Run::new(1, options());
        run.all(&[Step::Mount, Step::Create("a"), Step::Fsync("a")]).unwrap();
        run.power.go_wrong(Flaw { port: Some("journal".to_owned()), silent, nth: 1, for_good: false });
        for name in ["b", "c"] {
            let write = Step::Write { name, offset: 0, len: 5000, how: How::Sync };
            run.all(&[Step::Create(name), write]).unwrap();
        }
        assert_eq!(run.power.failures(), 1);
        let power = SimulatedPower::reopen(1, &run.power.cut_with(1, Survivors::Everything, false));
        let fs = Filesystem::open(MemoryStore::found_on(&power).disks, options()).unwrap();
        let reason = fs.read_only_reason();
        if silent == Silent::FlippedWrite {
            assert_eq!(reason, None, "one copy is bad, the other good");
            continue;
        }
        // What came before is there; nothing is changed on top of what is missing.
        assert!(reason.as_ref().is_some_and(|reason| reason.contains("journal record")), "{silent:?}: {reason:?}");
        fs.lookup(ROOT, b"a").unwrap();
        let refused = fs.mknod(&CALLER, ROOT, b"new", MODE, 0, 0);
        assert!(matches!(refused, Err(Error::ReadOnly(_))), "{refused:?}");
    }
}
