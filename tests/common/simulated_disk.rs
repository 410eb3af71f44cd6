//! A simulated machine: several disks with one power switch.
//!
//! # Fault model
//! - One ordered list of changes over all ports (devices, journal, index, superblock). A change is one 4 KiB block of a port
//!   as it was after a write, or a new length of a port. It is visible to reads at once.
//! - A flush of a port makes all its changes so far durable and takes them off the list; other ports' changes stay.
//! - `cut` is a loss of power: of every block that has changes on the list any one version survives, also the one from before;
//!   blocks are independent of each other, of lengths and across ports, so writes are reordered and lost in every way. A seed
//!   chooses; now and then everything survives, or nothing, or exactly what came before one moment.
//! - Asked for, blocks may also be torn: the first k * 512 bytes of a later version, the rest of an earlier one.
//! - A failed write leaves each of its blocks written or not. A failed flush makes durable what it likes, and what it did not
//!   is **not** tried by the next flush, though reads go on showing it (what Linux does after a failed fsync).
//! - Asked for, a write or a read goes wrong and nobody is told ([`Flaw`]): it is lost, lands or comes from elsewhere, or one bit
//!   of it is inverted on the way.
//! - A discarded block reads as zeros or as before, as the seed chooses, and that is a change like any other.
//! - A stopped machine fails every operation. A lying port says that a flush is done and does nothing: the canary, which a
//!   test suite that is worth anything must notice.
//! - With limited host space, `allocate` and writes take a block's space when they first touch it; `discard` and cutting give
//!   it back. What does not fit is `NoSpace` for `allocate` and an I/O error for a write (the latter breaks D5).
//!
//! Deterministic: the only chance is a generator with a seed, and there is no clock. Locks: one mutex for everything; the flush
//! hook runs before it is taken.

#![allow(dead_code)]

#[path = "simulated_machine.rs"]
mod machine;
#[cfg(test)]
#[path = "simulated_disk_tests.rs"]
mod tests;

pub use machine::Random;

use machine::{Effect, HostSpace, Port, State};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt::{Debug, Formatter};
use std::io::ErrorKind;
use std::sync::Arc;
use sumfs::disk::Disk;
use sumfs::disk::memory::MemoryImage;
use sumfs::error::{Error, Result};
use sumfs::units::{BLOCK, BLOCK_SIZE};

/// The contents of all ports by name. Copies share their blocks.
pub type Images = HashMap<String, MemoryImage>;

/// What is called before each flush takes effect, with the port's name. It may cut; it must not use the disks.
pub type FlushHook = Box<dyn FnMut(&SimulatedPower, &str) + Send>;

/// The seed for a test: SEED from the environment, else `default`. Printed, so that a failure can be repeated.
pub fn seed_from_environment(default: u64) -> u64 {
    let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    println!("SEED={seed}");
    seed
}

/// Kinds of operations, for faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    Flush,
    SetLen,
    Allocate,
    Discard,
}

/// Makes operations fail.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The port; None means any.
    pub port: Option<String>,
    /// The kind; None means any.
    pub operation: Option<Operation>,
    /// Which matching operation from now on; 1 is the next.
    pub nth: u64,
    /// All later ones too?
    pub for_good: bool,
}

/// What goes wrong without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silent {
    /// A write changes nothing.
    LostWrite,
    /// A write lands elsewhere on its port; what was to be overwritten stays.
    MisdirectedWrite,
    /// A write arrives with one bit inverted.
    FlippedWrite,
    /// A read gives what lies elsewhere on its port.
    MisdirectedRead,
    /// A read gives one bit inverted; the medium is good.
    FlippedRead,
}

impl Silent {
    fn operation(self) -> Operation {
        match self {
            Silent::LostWrite | Silent::MisdirectedWrite | Silent::FlippedWrite => Operation::Write,
            Silent::MisdirectedRead | Silent::FlippedRead => Operation::Read,
        }
    }
}

/// Makes operations go wrong silently.
#[derive(Clone, Debug)]
pub struct Flaw {
    /// The port; None means any.
    pub port: Option<String>,
    /// How.
    pub silent: Silent,
    /// Which matching operation from now on; 1 is the next.
    pub nth: u64,
    /// All later ones too?
    pub for_good: bool,
}

/// How many operations a port has seen, those that failed included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    /// Changes of length, allocations, discards.
    pub others: u64,
}

/// What survives a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivors {
    /// Any version of each block.
    Any,
    /// All changes before one moment and none after it.
    Prefix,
    /// Only what was flushed.
    Flushed,
    /// Everything.
    Everything,
}

struct Shared {
    state: Mutex<State>,
    hook: Mutex<Option<FlushHook>>,
}

/// The machine. Clones are the same machine.
#[derive(Clone)]
pub struct SimulatedPower {
    shared: Arc<Shared>,
}

impl SimulatedPower {
    /// A machine without ports.
    pub fn new(seed: u64) -> SimulatedPower {
        SimulatedPower::reopen(seed, &Images::new())
    }

    /// A fresh machine whose ports have these contents, all durable; [`SimulatedPower::port`] gives them out by name.
    pub fn reopen(seed: u64, images: &Images) -> SimulatedPower {
        let mut names: Vec<&String> = images.keys().collect();
        names.sort();
        let ports = names.into_iter().map(|name| Port::new(name, images[name].clone())).collect();
        let state = State {
            random: Random::new(seed),
            ports,
            log: Vec::new(),
            faults: Vec::new(),
            flaws: Vec::new(),
            failures: 0,
            flushes_until_stop: None,
            flush_stop_comes_first: false,
            operations_until_stop: None,
            stopped: false,
            operations: 0,
        };
        SimulatedPower { shared: Arc::new(Shared { state: Mutex::new(state), hook: Mutex::new(None) }) }
    }

    /// The port `name`: what there is under this name (whatever its length), else a new one with `len` bytes of zeros.
    pub fn port(&self, name: &str, len: u64) -> Arc<dyn Disk> {
        let mut state = self.shared.state.lock();
        let number = state.ports.iter().position(|port| port.name == name).unwrap_or_else(|| {
            state.ports.push(Port::new(name, MemoryImage::new(len)));
            state.ports.len() - 1
        });
        Arc::new(SimulatedDisk { power: self.clone(), number, name: name.to_owned() })
    }

    /// Is there a port `name`?
    pub fn has_port(&self, name: &str) -> bool {
        self.shared.state.lock().ports.iter().any(|port| port.name == name)
    }

    /// What a loss of power now would leave, as `seed` chooses. The machine itself goes on.
    pub fn cut(&self, seed: u64) -> Images {
        let survivors = match Random::new(seed).below(16) {
            0 => Survivors::Flushed,
            1 => Survivors::Everything,
            2..=4 => Survivors::Prefix,
            _ => Survivors::Any,
        };
        self.cut_with(seed, survivors, false)
    }

    /// [`SimulatedPower::cut`] with a choice; `torn` tears blocks too.
    pub fn cut_with(&self, seed: u64, survivors: Survivors, torn: bool) -> Images {
        let state = self.shared.state.lock();
        let mut random = Random::new(seed ^ 0x5eed_0fc0);
        let images = (0..state.ports.len()).map(|number| match survivors {
            Survivors::Flushed => state.ports[number].durable.clone(),
            Survivors::Everything => state.replayed(number, state.log.len()),
            Survivors::Prefix => state.replayed(number, Random::new(seed).below(state.log.len() as u64 + 1) as usize),
            Survivors::Any => state.survivors(number, &mut random, torn),
        });
        state.ports.iter().map(|port| port.name.clone()).zip(images).collect()
    }

    /// Makes operations fail as described; adds to the faults that there are.
    pub fn fail(&self, fault: Fault) {
        self.shared.state.lock().faults.push(fault);
    }

    /// Makes operations go wrong silently as described; adds to the flaws that there are.
    pub fn go_wrong(&self, flaw: Flaw) {
        self.shared.state.lock().flaws.push(flaw);
    }

    /// Forgets all faults and flaws.
    pub fn clear_faults(&self) {
        let mut state = self.shared.state.lock();
        state.faults.clear();
        state.flaws.clear();
    }

    /// Operations so far that failed or went wrong because they were to.
    pub fn failures(&self) -> u64 {
        self.shared.state.lock().failures
    }

    /// Stops the machine right after the `count`th flush from now, over all ports, has taken effect.
    pub fn stop_after_flushes(&self, count: u64) {
        let mut state = self.shared.state.lock();
        (state.flushes_until_stop, state.flush_stop_comes_first) = (Some(count), false);
    }

    /// Stops the machine when the `count`th flush from now is asked for, before it takes effect.
    pub fn stop_before_flush(&self, count: u64) {
        let mut state = self.shared.state.lock();
        (state.flushes_until_stop, state.flush_stop_comes_first) = (Some(count), true);
    }

    /// Stops the machine after `count` more operations that are no reads.
    pub fn stop_after_operations(&self, count: u64) {
        self.shared.state.lock().operations_until_stop = Some(count);
    }

    /// Stops the machine now.
    pub fn stop(&self) {
        self.shared.state.lock().stopped = true;
    }

    /// Has it been stopped?
    pub fn is_stopped(&self) -> bool {
        self.shared.state.lock().stopped
    }

    /// Calls `hook` before each flush; None ends that.
    pub fn on_flush(&self, hook: Option<FlushHook>) {
        *self.shared.hook.lock() = hook;
    }

    /// From now on flushes of `port` (None: of every port) do nothing and say that they did.
    pub fn lie_about_flushes(&self, port: Option<&str>) {
        let mut state = self.shared.state.lock();
        state.ports.iter_mut().filter(|known| port.is_none_or(|name| known.name == name)).for_each(|port| port.lies = true);
    }

    /// Limits the host space of `port`: what it holds now is taken, `free_bytes` more may be.
    pub fn limit_host_space(&self, port: &str, free_bytes: u64) {
        let mut state = self.shared.state.lock();
        let port = state.named(port);
        port.host = Some(HostSpace { free_blocks: free_bytes / BLOCK_SIZE, taken: port.live.block_indexes().collect() });
    }

    /// Inverts one byte on the medium, in every version that there is.
    pub fn flip_byte(&self, port: &str, offset: u64) {
        let mut state = self.shared.state.lock();
        let flip = |image: &mut MemoryImage| {
            let mut byte = [0];
            image.read(offset, &mut byte);
            image.write(offset, &[!byte[0]]);
        };
        let number = state.number(port);
        flip(&mut state.ports[number].live);
        flip(&mut state.ports[number].durable);
        let (wanted, within) = (offset / BLOCK_SIZE, (offset % BLOCK_SIZE) as usize);
        for change in state.log.iter_mut().filter(|change| change.port == number) {
            if let Effect::Block { index, after } = &mut change.effect
                && *index == wanted
            {
                let byte = &mut Arc::make_mut(after.get_or_insert_with(|| Arc::new([0; BLOCK])))[within];
                *byte = !*byte;
            }
        }
    }

    /// Operations of `port` so far.
    pub fn counts(&self, port: &str) -> Counts {
        self.shared.state.lock().named(port).counts
    }

    /// Operations of all ports so far that are no reads.
    pub fn operations(&self) -> u64 {
        self.shared.state.lock().operations
    }

    /// Changes that are not durable, over all ports.
    pub fn unflushed_changes(&self) -> usize {
        self.shared.state.lock().log.len()
    }
}

impl Debug for SimulatedPower {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("SimulatedPower")
    }
}

/// A port.
#[derive(Debug)]
struct SimulatedDisk {
    power: SimulatedPower,
    number: usize,
    name: String,
}

impl SimulatedDisk {
    fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.power.shared.state.lock()
    }
}

impl Disk for SimulatedDisk {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> Result<u64> {
        Ok(self.state().ports[self.number].live.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let mut state = self.state();
        if state.begin(self.number, Operation::Read)? {
            return Err(state.failed(self.number, Operation::Read, "simulated fault"));
        }
        state.check_range(self.number, Operation::Read, offset, into.len())?;
        state.read(self.number, offset, into);
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.write_vectored_at(offset, &[from])
    }

    /// One operation, however many slices.
    fn write_vectored_at(&self, offset: u64, slices: &[&[u8]]) -> Result<()> {
        let from = slices.concat();
        let mut state = self.state();
        let fails = state.begin(self.number, Operation::Write)?;
        state.check_range(self.number, Operation::Write, offset, from.len())?;
        if !state.ports[self.number].take_space(offset, from.len() as u64) {
            let what = format!("Write on {} at offset {offset}", self.name);
            return Err(Error::io(what, ErrorKind::StorageFull.into()));
        }
        state.write(self.number, offset, &from, fails);
        if fails { Err(state.failed(self.number, Operation::Write, "simulated fault")) } else { Ok(()) }
    }

    fn flush(&self) -> Result<()> {
        if !self.power.is_stopped()
            && let Some(hook) = self.power.shared.hook.lock().as_mut()
        {
            hook(&self.power, &self.name);
        }
        let mut state = self.state();
        let fails = state.begin(self.number, Operation::Flush)?;
        let mut is_last = false;
        if let Some(left) = &mut state.flushes_until_stop {
            *left = left.saturating_sub(1);
            is_last = *left == 0;
        }
        if is_last && state.flush_stop_comes_first {
            state.stopped = true;
            return Err(state.failed(self.number, Operation::Flush, "the power goes off"));
        }
        state.flush(self.number, fails);
        state.stopped |= is_last;
        if fails { Err(state.failed(self.number, Operation::Flush, "simulated fault")) } else { Ok(()) }
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let mut state = self.state();
        if state.begin(self.number, Operation::SetLen)? {
            return Err(state.failed(self.number, Operation::SetLen, "simulated fault"));
        }
        state.set_len(self.number, len);
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        let mut state = self.state();
        let fails = state.begin(self.number, Operation::Allocate)?;
        if fails || !state.ports[self.number].take_space(offset, len) { Err(Error::NoSpace) } else { Ok(()) }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let mut state = self.state();
        let fails = state.begin(self.number, Operation::Discard)?;
        state.check_range(self.number, Operation::Discard, offset, len as usize)?;
        if fails {
            return Ok(());
        }
        let blocks = offset.div_ceil(BLOCK_SIZE)..(offset + len) / BLOCK_SIZE;
        for index in blocks.clone() {
            if state.random.once_in(2) {
                state.put_block(self.number, index, None);
            }
        }
        state.ports[self.number].give_space_back(blocks);
        Ok(())
    }

    fn host_free_bytes(&self) -> Option<u64> {
        Some(self.state().ports[self.number].host.as_ref()?.free_blocks * BLOCK_SIZE)
    }
}
