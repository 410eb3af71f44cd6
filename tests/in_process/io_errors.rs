//! Disks that report errors. The n-th read, write, flush or allocation of each part of a store fails, once or from then on, for every n
//! that a fixed workload reaches: no panic, no hang, the right error at the right call, the latch (D7) when it must be set and only
//! then; and after a power cut a healthy disk has everything that was acknowledged (D8).
//!
//! `IO_ERRORS=all` takes every n; without it those of long runs are sampled.

mod host_full;
mod silent;
mod workload;
mod writeback;

use crate::memory_store::{MemoryStore, PORTS};
use crate::simulated_disk::{Fault, Operation, SimulatedPower};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;
use sumfs::error::Error;
use sumfs::fs::{Filesystem, Options, WriteFlags};
use sumfs::lock::Wait;
use sumfs::units::InodeNumber;
use workload::{CALLER, How, MIXED, ROOT, Run, Step, read_tree};

/// A run takes some 10 ms.
const HANG: Duration = Duration::from_secs(60);
/// All n up to here are tried, further ones in growing steps.
const DENSE: u64 = 40;

/// Power cuts after the step that met the fault.
const CUTS_WHEN_MET: u64 = 3;

/// What fails.
#[derive(Clone, Copy, Debug)]
struct Case {
    port: &'static str,
    operation: Operation,
    nth: u64,
    for_good: bool,
    /// With threads that commit, write back, apply and delete by themselves.
    background: bool,
}

impl Case {
    /// Is this what may become of a step that was not run on a latched store?
    fn allows(&self, step: Step, error: &Error) -> Result<(), String> {
        // A thread may have met the fault before: then the store is read-only already.
        let is_late = self.background && matches!(error, Error::ReadOnly(_));
        let is_fault = matches!(error, Error::Io { .. } | Error::Corrupt(_));
        // Steps that wait for a device; the others only change memory.
        let waits = match step {
            Step::Mount | Step::Shutdown | Step::Sync | Step::Fsync(_) => true,
            Step::Write { how, .. } => how != How::Cached,
            // Over an existing file it takes the data along.
            Step::Rename(..) => true,
            _ => false,
        };
        let is_right = match self.operation {
            Operation::Read => is_fault,
            Operation::Allocate => matches!(error, Error::NoSpace) && matches!(step, Step::Create(_) | Step::Write { .. }),
            // A place that cannot be written is another one's turn.
            Operation::Write if self.port == "device" && !self.for_good => false,
            _ => is_fault && waits,
        };
        if is_right || is_late { Ok(()) } else { Err(format!("{step:?} failed with {error:?}")) }
    }

    /// Runs the workload. True when the fault was met.
    fn run(self) -> Result<bool, String> {
        let options = Options { background: self.background, commit_interval_ms: 2, ..Options::default() };
        let mut run = Run::new(self.nth, options);
        run.power.fail(self.fault());
        let (mut is_over, mut is_met) = (false, false);
        for step in MIXED {
            match run.step(*step) {
                Ok(()) => {}
                Err(error) => {
                    self.allows(*step, &error)?;
                    is_over = run.is_latched() || matches!(step, Step::Mount | Step::Shutdown);
                }
            }
            if !is_met && run.power.failures() > 0 {
                is_met = true;
                // What was acknowledged although something failed: later steps may hide that it was not durable.
                (0..CUTS_WHEN_MET).try_for_each(|seed| recover(&run, seed))?;
            }
            if is_over {
                break;
            }
            // Without an error for anybody nothing may have become read-only.
            if run.is_latched() && !self.background {
                return Err(format!("latched without an error, at {step:?}: {:?}", run.fs().read_only_reason()));
            }
        }
        if run.is_latched() {
            self.probe(&mut run)?;
        }
        self.judge_latch(&run, is_over)?;
        recover(&run, CUTS_WHEN_MET)?;
        Ok(is_met || run.power.failures() > 0)
    }

    fn fault(&self) -> Fault {
        Fault { port: Some(self.port.to_owned()), operation: Some(self.operation), nth: self.nth, for_good: self.for_good }
    }

    fn judge_latch(&self, run: &Run, is_over: bool) -> Result<(), String> {
        // What cannot be had of the host is ENOSPC and nothing else.
        if self.operation == Operation::Allocate && is_over {
            return Err(format!("the workload ended: {:?}", run.fs.as_ref().and_then(|fs| fs.read_only_reason())));
        }
        Ok(())
    }

    /// What a latched store answers, and what it shows.
    fn probe(&self, run: &mut Run) -> Result<(), String> {
        let fs = run.fs().clone();
        let reason = fs.read_only_reason().unwrap_or_default();
        if fs.status()["read_only_reason"].as_str() != Some(&reason) || !reason.contains(self.port) {
            return Err(format!("status says {}, the latch {reason:?}, {} failed", fs.status()["read_only_reason"], self.port));
        }
        let refused = |what: &str, result: Result<(), Error>| match result {
            Err(Error::ReadOnly(_)) => Ok(()),
            other => Err(format!("latched, {what}: {other:?}")),
        };
        refused("create", fs.mknod(&CALLER, ROOT, b"probe", 0o100_644, 0, 0).map(|_| ()))?;
        refused("unlink", fs.unlink(ROOT, b"probe"))?;
        refused("sync", fs.sync())?;
        if let Some(id) = run.id("a") {
            let written = fs.write(&CALLER, InodeNumber(id), 0, b"probe", WriteFlags::default(), Wait::Allowed);
            refused("write", written.map(|_| ()))?;
        }
        // Success would be a promise; the history keeps it for the judgement.
        for name in ["a", "b", "c", "d", "e", "f", "g"] {
            if let Err(error) = run.step(Step::Fsync(name))
                && !matches!(error, Error::ReadOnly(_) | Error::Io { .. } | Error::Corrupt(_))
            {
                return Err(format!("latched, fsync of {name}: {error:?}"));
            }
        }
        if self.operation != Operation::Read {
            run.tree().map_err(|error| format!("latched, reading: {error}"))?;
        }
        refused("shutdown", fs.shutdown())
    }
}

/// A power cut, a healthy disk: mounts, is clean, has all that was acknowledged.
fn recover(run: &Run, seed: u64) -> Result<(), String> {
    let images = run.power.cut(seed);
    let power = SimulatedPower::reopen(1, &images);
    let store = MemoryStore::found_on(&power);
    let options = Options { background: false, ..Options::default() };
    let fs = Filesystem::open(store.disks.clone(), options).map_err(|error| format!("opening afterwards: {error}"))?;
    if let Some(reason) = fs.read_only_reason() {
        return Err(format!("read-only afterwards: {reason}"));
    }
    let found = read_tree(&fs, &run.model).map_err(|error| format!("reading afterwards: {error}"))?;
    run.history.judge(&found, run.complete, run.history.last())?;
    fs.shutdown().map_err(|error| format!("shutdown afterwards: {error}"))?;
    store.check().map(|_| ())
}

/// Runs a case on a thread of its own: a panic or a hang is a failure like any other.
fn guarded(case: &str, run: impl FnOnce() -> Result<bool, String> + Send + 'static) -> bool {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err("a panic".to_owned()));
        drop(sender.send(outcome));
    });
    match receiver.recv_timeout(HANG) {
        Ok(outcome) => outcome.unwrap_or_else(|wrong| panic!("{case}: {wrong}")),
        Err(_) => panic!("{case}: hangs"),
    }
}

/// The n to try after `nth`.
fn next_of(nth: u64) -> u64 {
    let takes_all = std::env::var("IO_ERRORS").as_deref() == Ok("all");
    nth + if takes_all || nth < DENSE { 1 } else { nth / 10 }
}

/// Each n until the workload is untouched.
fn fail_each(operation: Operation) {
    for port in PORTS {
        for for_good in [false, true] {
            let (mut nth, mut met) = (1, 0);
            loop {
                let case = Case { port, operation, nth, for_good, background: false };
                if !guarded(&format!("{case:?}"), move || case.run()) {
                    break;
                }
                met += 1;
                nth = next_of(nth);
            }
            println!("{operation:?} on {port}, for good {for_good}: {met} runs were touched, up to {nth}");
        }
    }
}

#[test]
fn each_read_fails() {
    fail_each(Operation::Read);
}

#[test]
fn each_write_fails() {
    fail_each(Operation::Write);
}

#[test]
fn each_flush_fails() {
    fail_each(Operation::Flush);
}

#[test]
fn each_allocation_fails() {
    fail_each(Operation::Allocate);
}

#[test]
fn errors_under_background_threads() {
    let mut met = 0;
    for port in PORTS {
        for operation in [Operation::Read, Operation::Write, Operation::Flush, Operation::Allocate] {
            for (nth, for_good) in [(1, false), (2, true), (4, false), (5, true), (7, false), (11, true), (16, false), (25, true)]
            {
                let case = Case { port, operation, nth, for_good, background: true };
                met += u64::from(guarded(&format!("{case:?}"), move || case.run()));
            }
        }
    }
    println!("{met} runs were touched");
    assert!(met > 50, "only {met} runs were touched");
}
