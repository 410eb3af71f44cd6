//! The state of the simulated machine: what each port shows, what of it is durable, the list of changes in between, and the
//! choice of what survives. The fault model stands in `simulated_disk.rs`. No locks: the caller has the machine's mutex.

use super::{Counts, Fault, Flaw, Operation, Silent};
use std::collections::{BTreeMap, HashSet};
use std::io::ErrorKind;
use std::sync::Arc;
use sumfs::disk::memory::{BlockBytes, MemoryImage, pieces};
use sumfs::error::{Error, Result};
use sumfs::units::{BLOCK, BLOCK_SIZE};

/// A small generator of numbers (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

pub(super) enum Effect {
    Block { index: u64, after: Option<BlockBytes> },
    Len(u64),
}

pub(super) struct Change {
    pub(super) port: usize,
    pub(super) effect: Effect,
}

pub(super) struct HostSpace {
    pub(super) free_blocks: u64,
    pub(super) taken: HashSet<u64>,
}

pub(super) struct Port {
    pub(super) name: String,
    pub(super) live: MemoryImage,
    pub(super) durable: MemoryImage,
    pub(super) counts: Counts,
    pub(super) lies: bool,
    pub(super) host: Option<HostSpace>,
}

pub(super) struct State {
    pub(super) random: Random,
    pub(super) ports: Vec<Port>,
    pub(super) log: Vec<Change>,
    pub(super) faults: Vec<Fault>,
    pub(super) flaws: Vec<Flaw>,
    pub(super) failures: u64,
    pub(super) flushes_until_stop: Option<u64>,
    pub(super) flush_stop_comes_first: bool,
    pub(super) operations_until_stop: Option<u64>,
    pub(super) stopped: bool,
    pub(super) operations: u64,
}

impl Port {
    pub(super) fn new(name: &str, image: MemoryImage) -> Port {
        Port { name: name.to_owned(), durable: image.clone(), live: image, counts: Counts::default(), lies: false, host: None }
    }

    /// Takes host space for the blocks of the range that have none; false when there is too little.
    pub(super) fn take_space(&mut self, offset: u64, len: u64) -> bool {
        let Some(host) = &mut self.host else { return true };
        let blocks = offset / BLOCK_SIZE..(offset + len).div_ceil(BLOCK_SIZE);
        let missing: Vec<u64> = blocks.filter(|index| !host.taken.contains(index)).collect();
        let Some(free) = host.free_blocks.checked_sub(missing.len() as u64) else { return false };
        host.free_blocks = free;
        host.taken.extend(missing);
        true
    }

    pub(super) fn give_space_back(&mut self, blocks: std::ops::Range<u64>) {
        let Some(host) = &mut self.host else { return };
        let before = host.taken.len();
        host.taken.retain(|index| !blocks.contains(index));
        host.free_blocks += (before - host.taken.len()) as u64;
    }
}

impl State {
    pub(super) fn number(&self, name: &str) -> usize {
        self.ports.iter().position(|port| port.name == name).unwrap_or_else(|| panic!("no port {name}"))
    }

    pub(super) fn named(&mut self, name: &str) -> &mut Port {
        let number = self.number(name);
        &mut self.ports[number]
    }

    pub(super) fn failed(&self, number: usize, operation: Operation, why: &str) -> Error {
        Error::io(format!("{operation:?} on {}: {why}", self.ports[number].name), ErrorKind::Other.into())
    }

    /// Counts the operation; an error when the machine is stopped, Ok(true) when a fault says that it fails.
    pub(super) fn begin(&mut self, number: usize, operation: Operation) -> Result<bool> {
        let counts = &mut self.ports[number].counts;
        match operation {
            Operation::Read => counts.reads += 1,
            Operation::Write => counts.writes += 1,
            Operation::Flush => counts.flushes += 1,
            _ => counts.others += 1,
        }
        if operation != Operation::Read {
            self.operations += 1;
            match &mut self.operations_until_stop {
                Some(0) => self.stopped = true,
                Some(left) => *left -= 1,
                None => {}
            }
        }
        if self.stopped {
            return Err(self.failed(number, operation, "the power is off"));
        }
        let name = &self.ports[number].name;
        let mut fails = false;
        self.faults.retain_mut(|fault| {
            let matches =
                fault.port.as_ref().is_none_or(|port| port == name) && fault.operation.is_none_or(|kind| kind == operation);
            let (hits, stays) = count_down(matches, &mut fault.nth, fault.for_good);
            fails |= hits;
            stays
        });
        self.failures += u64::from(fails);
        Ok(fails)
    }

    /// What goes wrong with this operation without an error.
    fn flaw(&mut self, number: usize, operation: Operation) -> Option<Silent> {
        let name = &self.ports[number].name;
        let mut found = None;
        self.flaws.retain_mut(|flaw| {
            let matches = flaw.port.as_ref().is_none_or(|port| port == name) && flaw.silent.operation() == operation;
            let (hits, stays) = count_down(matches, &mut flaw.nth, flaw.for_good);
            found = found.or(hits.then_some(flaw.silent));
            stays
        });
        self.failures += u64::from(found.is_some());
        found
    }

    /// Another place of the port for `len` bytes, mostly one that is in use; the same one where there is no other.
    fn elsewhere(&mut self, number: usize, offset: u64, len: u64) -> u64 {
        let live = &self.ports[number].live;
        let last = live.len().saturating_sub(len) / BLOCK_SIZE;
        let own = (offset / BLOCK_SIZE).min(last);
        let mut used: Vec<u64> = live.block_indexes().filter(|index| *index != own && *index <= last).collect();
        used.sort_unstable();
        let block = match used.len() as u64 {
            count if count > 0 && !self.random.once_in(4) => used[self.random.below(count) as usize],
            _ if last > 0 => (own + 1 + self.random.below(last)) % (last + 1),
            _ => 0,
        };
        block * BLOCK_SIZE
    }

    pub(super) fn check_range(&self, number: usize, operation: Operation, offset: u64, len: usize) -> Result<()> {
        let image = &self.ports[number].live;
        if image.contains(offset, len as u64) {
            return Ok(());
        }
        Err(self.failed(number, operation, &format!("{len} bytes at offset {offset} pass the end at {}", image.len())))
    }

    pub(super) fn put_block(&mut self, number: usize, index: u64, after: Option<BlockBytes>) {
        self.ports[number].live.set_block(index, after.clone());
        self.log.push(Change { port: number, effect: Effect::Block { index, after } });
    }

    /// Reads, if nothing goes wrong.
    pub(super) fn read(&mut self, number: usize, offset: u64, into: &mut [u8]) {
        let flaw = self.flaw(number, Operation::Read);
        let offset = match flaw {
            Some(Silent::MisdirectedRead) => self.elsewhere(number, offset, into.len() as u64),
            _ => offset,
        };
        self.ports[number].live.read(offset, into);
        if flaw == Some(Silent::FlippedRead) {
            self.flip_bit(into);
        }
    }

    fn flip_bit(&mut self, bytes: &mut [u8]) {
        if !bytes.is_empty() {
            let bit = self.random.below(bytes.len() as u64 * 8);
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
    }

    /// Writes; with `fails` each block only perhaps.
    pub(super) fn write(&mut self, number: usize, offset: u64, from: &[u8], fails: bool) {
        match self.flaw(number, Operation::Write) {
            Some(Silent::LostWrite) => {}
            Some(Silent::MisdirectedWrite) => {
                let offset = self.elsewhere(number, offset, from.len() as u64);
                self.write_blocks(number, offset, from, fails);
            }
            Some(Silent::FlippedWrite) => {
                let mut from = from.to_vec();
                self.flip_bit(&mut from);
                self.write_blocks(number, offset, &from, fails);
            }
            _ => self.write_blocks(number, offset, from, fails),
        }
    }

    fn write_blocks(&mut self, number: usize, offset: u64, from: &[u8], fails: bool) {
        for (index, within, range) in pieces(offset, from.len()) {
            if fails && self.random.once_in(2) {
                continue;
            }
            let port = &mut self.ports[number];
            port.live.write(index * BLOCK_SIZE + within as u64, &from[range]);
            let after = port.live.block(index).cloned();
            self.log.push(Change { port: number, effect: Effect::Block { index, after } });
        }
    }

    pub(super) fn set_len(&mut self, number: usize, len: u64) {
        let live = &mut self.ports[number].live;
        let is_shorter = len < live.len();
        let mut touched: Vec<u64> = live.block_indexes().filter(|index| *index >= len / BLOCK_SIZE).collect();
        touched.sort_unstable();
        live.set_len(len);
        if is_shorter {
            for index in touched {
                let after = self.ports[number].live.block(index).cloned();
                self.log.push(Change { port: number, effect: Effect::Block { index, after } });
            }
            self.ports[number].give_space_back(len.div_ceil(BLOCK_SIZE)..u64::MAX);
        }
        self.log.push(Change { port: number, effect: Effect::Len(len) });
    }

    pub(super) fn flush(&mut self, number: usize, fails: bool) {
        if self.ports[number].lies {
            return;
        }
        let durable = if fails {
            let mut random = self.random.clone();
            let survivors = self.survivors(number, &mut random, false);
            self.random = random;
            survivors
        } else {
            self.replayed(number, self.log.len())
        };
        self.ports[number].durable = durable;
        self.log.retain(|change| change.port != number);
    }

    /// The port after the first `count` changes of the list.
    pub(super) fn replayed(&self, number: usize, count: usize) -> MemoryImage {
        let mut image = self.ports[number].durable.clone();
        for change in self.log[..count].iter().filter(|change| change.port == number) {
            match &change.effect {
                Effect::Block { index, after } => image.set_block(*index, after.clone()),
                Effect::Len(len) => image.set_len(*len),
            }
        }
        image
    }

    /// The port with any version of each changed block, and of the length.
    pub(super) fn survivors(&self, number: usize, random: &mut Random, torn: bool) -> MemoryImage {
        let mut image = self.ports[number].durable.clone();
        let mut lens = vec![image.len()];
        let mut versions: BTreeMap<u64, Vec<Option<BlockBytes>>> = BTreeMap::new();
        for change in self.log.iter().filter(|change| change.port == number) {
            match &change.effect {
                Effect::Block { index, after } => {
                    versions.entry(*index).or_insert_with(|| vec![image.block(*index).cloned()]).push(after.clone());
                }
                Effect::Len(len) => lens.push(*len),
            }
        }
        // How much survives differs from cut to cut.
        let lost_in_eight = random.below(9);
        for (index, versions) in versions {
            let choose = |random: &mut Random| {
                let newest = versions.len() as u64 - 1;
                if random.below(8) < lost_in_eight { random.below(newest) } else { newest }
            };
            let chosen = choose(random);
            let tear = torn && random.once_in(8);
            let other = if tear { choose(random) } else { chosen };
            let (older, newer) = (&versions[chosen.min(other) as usize], &versions[chosen.max(other) as usize]);
            let sectors = random.below(7) + 1;
            let block = if tear { torn_block(older, newer, sectors as usize * 512) } else { newer.clone() };
            image.set_block(index, block);
        }
        let len = lens[random.below(lens.len() as u64) as usize];
        // Blocks behind the old end count too when the new length survives.
        image.set_len(u64::MAX);
        image.set_len(len);
        image
    }
}

/// Counts one operation for a fault: does it hit, and does the fault stay?
fn count_down(matches: bool, nth: &mut u64, for_good: bool) -> (bool, bool) {
    if !matches {
        return (false, true);
    }
    *nth = nth.saturating_sub(1);
    (*nth == 0, *nth > 0 || for_good)
}

fn torn_block(older: &Option<BlockBytes>, newer: &Option<BlockBytes>, bytes: usize) -> Option<BlockBytes> {
    let mut block = older.as_ref().map_or([0; BLOCK], |block| **block);
    match newer {
        Some(newer) => block[..bytes].copy_from_slice(&newer[..bytes]),
        None => block[..bytes].fill(0),
    }
    Some(Arc::new(block))
}
