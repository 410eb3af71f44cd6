//! What a crash may leave (D8): the history of a run, and the judgement of a tree that was found afterwards.
//!
//! - **Names and attributes** are those after some operation p: at the earliest the last change of what was acknowledged as
//!   durable, at the latest the operation that the crash interrupted.
//! - **Sizes that were set** belong to the attributes. A size that a write made is data: any size on the way is allowed.
//! - **Data**: for every block of a file the versions are collected that it had in memory after each change up to p; any one may
//!   be found, and an acknowledgement (fsync, sync, O_SYNC, a rename over an existing file, the first commit after a truncation
//!   to nothing) leaves exactly one. What was cut off is cut off in all versions: it never comes back (D6).
//!
//! Where several p have the same names, the data must fit one of them.

use crate::reference_model::{FileBytes, Id, Model, Node};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use sumfs::units::{BLOCK, BLOCK_SIZE};

/// What an operation did to data, for the test of what a crash may leave.
#[derive(Clone, Debug)]
pub enum Event {
    /// Bytes written. `is_durable`: acknowledged as such.
    Wrote { file: Id, offset: u64, end: u64, is_durable: bool },
    /// The size was set.
    Resized { file: Id },
    /// Zeroed or allocated.
    Allocated { file: Id, offset: u64, end: u64, zeroes: bool },
    /// fsync was acknowledged.
    Synced { node: Id },
    /// sync was acknowledged.
    SyncedAll,
    /// The node took the place of an existing one by a rename.
    Replaced { node: Id },
}

/// What an operation changed.
#[derive(Clone, Debug, Default)]
pub struct Effect {
    /// Nodes with new contents, names or attributes.
    pub touched: Vec<Id>,
    pub event: Option<Event>,
}

/// A block; None is zeros.
type Version = Option<Arc<[u8; BLOCK]>>;

/// One operation and the state after it.
struct Step {
    /// With what has no name.
    state: Model,
    named: Model,
    effect: Effect,
    /// Something was committed meanwhile.
    has_committed: bool,
}

/// All operations of a run, from formatting on. Step 0 is the empty tree.
pub struct History {
    steps: Vec<Step>,
}

impl History {
    pub fn new(empty: Model) -> History {
        let mut history = History { steps: Vec::new() };
        history.add(&empty, Effect::default(), false);
        history
    }

    /// An operation is complete. Its number.
    pub fn add(&mut self, state: &Model, effect: Effect, has_committed: bool) -> usize {
        self.steps.push(Step { state: state.clone(), named: state.without_nameless(), effect, has_committed });
        self.steps.len() - 1
    }

    /// The number of the last operation.
    pub fn last(&self) -> usize {
        self.steps.len() - 1
    }

    /// Forgets what came after operation `last` (the machine lost it) and goes on from `found`, all of which is durable.
    pub fn restart(found: &Model) -> History {
        let mut history = History::new(Model::new());
        history.add(found, Effect { touched: Vec::new(), event: Some(Event::SyncedAll) }, true);
        history
    }

    /// Blocks of a file that were ever written or zeroed.
    pub fn touched_blocks(&self, file: Id) -> Vec<u64> {
        let mut blocks = BTreeSet::new();
        for step in &self.steps {
            blocks.extend(step.state.node(file).and_then(Node::file).into_iter().flat_map(FileBytes::block_indexes));
        }
        blocks.into_iter().collect()
    }

    /// May this be found when operations up to `complete` were answered and those up to `last` had begun? The operation that it
    /// stands for.
    pub fn judge(&self, found: &Model, complete: usize, last: usize) -> Result<usize, String> {
        let first = self.floor(complete);
        let mut reasons = Vec::new();
        for step in (first..=last).rev().filter(|step| self.steps[*step].named.has_same_names(found)) {
            match self.judge_data(found, step, complete) {
                Ok(()) => return Ok(step),
                Err(reason) => reasons.push(format!("as after operation {step}: {reason}")),
            }
        }
        if reasons.is_empty() {
            let differences = |step: usize| self.steps[step].named.differences(found, false).join("\n    ");
            reasons.push(format!(
                "names and attributes are those of no operation from {first} to {last}; after {first} they differ in\n    {}\n  after {last} in\n    {}",
                differences(first),
                differences(last)
            ));
        }
        Err(format!("found after a crash ({complete} operations complete, {first} durable):\n  {}", reasons.join("\n  ")))
    }

    /// The operation whose names must be there at least.
    fn floor(&self, complete: usize) -> usize {
        let mut touched: BTreeMap<Id, usize> = BTreeMap::new();
        let mut floor = 0;
        for (number, step) in self.steps.iter().enumerate().take(complete + 1) {
            touched.extend(step.effect.touched.iter().map(|id| (*id, number)));
            floor = match &step.effect.event {
                Some(Event::SyncedAll | Event::Wrote { is_durable: true, .. }) => number,
                // With nothing undurable about the node, fsync need not commit the rest.
                Some(Event::Synced { node }) => floor.max(touched.get(node).copied().unwrap_or(0)),
                _ => floor,
            };
        }
        floor
    }

    fn judge_data(&self, found: &Model, step: usize, complete: usize) -> Result<(), String> {
        for (id, node) in found.nodes() {
            if let Some(bytes) = node.file() {
                let possible = self.possible(id, step, complete);
                possible.allows(bytes).map_err(|reason| {
                    let event = possible.settled.map(|number| (number, &self.steps[number].effect.event));
                    format!("{}: {reason}; durable since {event:?}", found.label(id))
                })?;
            }
        }
        Ok(())
    }

    /// What the file may hold when the changes of attributes up to `step` are there.
    fn possible(&self, file: Id, step: usize, complete: usize) -> Possible {
        let mut possible = Possible::default();
        let mut before: Option<&FileBytes> = None;
        let mut is_replaced = false;
        for (number, now) in self.steps.iter().enumerate().take(complete.max(step) + 1) {
            let Some(bytes) = now.state.node(file).and_then(Node::file) else { continue };
            let is_there = number <= step;
            if let (true, true, Some(before)) = (now.has_committed && number <= complete && is_there, is_replaced, before) {
                possible.settle(before, number);
                is_replaced = false;
            }
            match &now.effect.event {
                Some(Event::Wrote { file: id, offset, end, is_durable }) if *id == file && is_there && offset < end => {
                    possible.write(*offset, *end, bytes);
                    if *is_durable && number <= complete {
                        possible.settle_range(*offset, *end, bytes);
                    }
                }
                Some(Event::Resized { file: id }) if *id == file && is_there => {
                    possible.resize(bytes.size());
                    let shrinks = before.is_some_and(|before| before.size() > 0);
                    is_replaced = bytes.size() == 0 && (shrinks || is_replaced) && !now.has_committed;
                }
                Some(Event::Allocated { file: id, offset, end, zeroes }) if *id == file && is_there => {
                    possible.allocate(*offset, *end, *zeroes, bytes);
                    // Zeroing and growing are two steps, and a commit that somebody else asked for may lie between them.
                    if number < step && before.is_none_or(|before| before.size() < bytes.size()) {
                        possible.size_low = possible.size_low.max(bytes.size());
                    }
                }
                Some(Event::Synced { node }) if *node == file && number <= complete => possible.settle(bytes, number),
                Some(Event::SyncedAll) if number <= complete => possible.settle(bytes, number),
                Some(Event::Replaced { node }) if *node == file && is_there => possible.settle(bytes, number),
                _ => {}
            }
            before = Some(bytes);
        }
        possible
    }
}

/// What one file may hold.
#[derive(Default)]
struct Possible {
    size_low: u64,
    size_high: u64,
    /// Sizes that are no whole number of blocks.
    sizes: BTreeSet<u64>,
    blocks: BTreeMap<u64, Vec<Version>>,
    /// The operation that made everything durable.
    settled: Option<usize>,
}

fn blocks_of(offset: u64, end: u64) -> std::ops::Range<u64> {
    offset / BLOCK_SIZE..end.div_ceil(BLOCK_SIZE)
}

/// The block with `from..to` zeroed.
fn zeroed(version: &Version, from: usize, to: usize) -> Version {
    let mut block = version.as_ref().map(|block| **block)?;
    block[from..to].fill(0);
    block.iter().any(|byte| *byte != 0).then(|| Arc::new(block))
}

fn add(versions: &mut Vec<Version>, version: Version) {
    if !versions.contains(&version) {
        versions.push(version);
    }
}

impl Possible {
    /// All of it is durable as it is, because of operation `number`.
    fn settle(&mut self, bytes: &FileBytes, number: usize) {
        self.settled = Some(number);
        for index in bytes.block_indexes() {
            self.blocks.entry(index).or_default();
        }
        for (index, versions) in &mut self.blocks {
            *versions = vec![bytes.block(*index).cloned()];
        }
        (self.size_low, self.size_high) = (bytes.size(), bytes.size());
        self.sizes = BTreeSet::from([bytes.size()]);
    }

    /// A part of it is durable.
    fn settle_range(&mut self, offset: u64, end: u64, bytes: &FileBytes) {
        for index in blocks_of(offset, end) {
            self.blocks.insert(index, vec![bytes.block(index).cloned()]);
        }
        self.size_low = self.size_low.max(end.min(bytes.size()));
    }

    fn write(&mut self, offset: u64, end: u64, bytes: &FileBytes) {
        for index in blocks_of(offset, end) {
            add(self.blocks.entry(index).or_insert_with(|| vec![None]), bytes.block(index).cloned());
        }
        self.size_high = self.size_high.max(bytes.size());
        self.sizes.insert(bytes.size());
    }

    fn resize(&mut self, size: u64) {
        for (index, versions) in self.blocks.range_mut(size / BLOCK_SIZE..) {
            let keep = size.saturating_sub(index * BLOCK_SIZE).min(BLOCK_SIZE) as usize;
            let mut cut = Vec::new();
            for version in &*versions {
                add(&mut cut, zeroed(version, keep, BLOCK));
            }
            *versions = cut;
        }
        (self.size_low, self.size_high) = (size, size);
        self.sizes = BTreeSet::from([size]);
    }

    fn allocate(&mut self, offset: u64, end: u64, zeroes: bool, bytes: &FileBytes) {
        if zeroes {
            let touched: Vec<u64> = self.blocks.range(blocks_of(offset, end)).map(|(index, _)| *index).collect();
            for index in touched {
                let from = offset.saturating_sub(index * BLOCK_SIZE).min(BLOCK_SIZE) as usize;
                let to = end.saturating_sub(index * BLOCK_SIZE).min(BLOCK_SIZE) as usize;
                let versions = self.blocks.entry(index).or_default();
                for version in versions.clone() {
                    add(versions, zeroed(&version, from, to));
                }
                add(versions, bytes.block(index).cloned());
            }
        }
        self.size_high = self.size_high.max(bytes.size());
        self.sizes.insert(bytes.size());
    }

    fn allows(&self, found: &FileBytes) -> Result<(), String> {
        let size = found.size();
        let is_on_the_way = self.sizes.contains(&size) || size.is_multiple_of(BLOCK_SIZE) || size == self.size_low;
        if !(self.size_low..=self.size_high).contains(&size) || !is_on_the_way {
            return Err(format!("size {size}, expected {} to {}, one of {:?}", self.size_low, self.size_high, self.sizes));
        }
        let indexes: BTreeSet<u64> = self.blocks.keys().copied().chain(found.block_indexes()).collect();
        for index in indexes.into_iter().filter(|index| index * BLOCK_SIZE < size) {
            let keep = (size - index * BLOCK_SIZE).min(BLOCK_SIZE) as usize;
            let found = found.block(index).cloned();
            let is_possible = match self.blocks.get(&index) {
                None => found.is_none(),
                Some(versions) => versions.iter().any(|version| zeroed(version, keep, BLOCK) == found),
            };
            if !is_possible {
                let versions = self.blocks.get(&index).map_or(0, Vec::len);
                let start = found.map_or([0; 8], |block| std::array::from_fn(|at| block[at]));
                return Err(format!(
                    "block {index} (begins with {start:02x?}) is none of {versions} versions it may have (size {size})"
                ));
            }
        }
        Ok(())
    }
}
