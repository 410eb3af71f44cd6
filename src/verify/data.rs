//! Reading every copy of every live block and comparing it with its checksum: large reads in the order of the devices, several at once.

use super::blocks::{self, Block, Run};
use super::extents::StoredExtents;
use super::findings::{Findings, LISTED_MAX};
use super::issue::{BlockPlace, Issue};
use super::references;
use super::tables::PlacedGroup;
use crate::disk::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::meta::Metadata;
use crate::space::Space;
use crate::units::BLOCK;
use crossbeam::channel::{Receiver, Sender, bounded, unbounded};
use std::collections::HashSet;

/// Threads that read and compare.
const READERS: usize = 4;
/// Runs that wait for them.
const QUEUED_RUNS: usize = 16;

/// A run of one copy.
struct Job {
    copy: usize,
    run: Run,
}

/// A block that is not as it should be.
struct Bad {
    block: Block,
    copy: usize,
    fault: Fault,
}

#[derive(Clone)]
enum Fault {
    Differs(u32),
    Unreadable(String),
}

/// What a reader says about a run.
struct Verified {
    blocks: u64,
    bad: Vec<Bad>,
}

/// Verifies the data of the groups, which are in device order. Returns the number of blocks read and compared; `progress`
/// hears it, too.
pub(super) fn verify(find: &mut Findings<'_>, groups: &[PlacedGroup], progress: &mut dyn FnMut(u64)) -> Result<u64> {
    let metadata = find.metadata;
    let mut tally = Tally { blocks: 0, bad: Vec::new(), not_listed: 0 };
    std::thread::scope(|scope| -> Result<()> {
        let (runs, work) = bounded::<Job>(QUEUED_RUNS);
        let (results, verified) = unbounded::<Verified>();
        for number in 0..READERS {
            let (work, results) = (work.clone(), results.clone());
            let reader = std::thread::Builder::new().name(format!("check-{number}"));
            reader
                .spawn_scoped(scope, move || read_runs(metadata.space(), &work, &results))
                .map_err(|error| Error::io("starting a thread for the check", error))?;
        }
        drop((work, results));
        for group in groups {
            send_group(metadata, *group, &mut |run| {
                // The readers end after this sender only.
                let _ = runs.send(Job { copy: group.copy, run });
                while let Ok(result) = verified.try_recv() {
                    tally.add(result);
                }
                progress(tally.blocks);
            })?;
        }
        drop(runs);
        for result in verified {
            tally.add(result);
            progress(tally.blocks);
        }
        Ok(())
    })?;
    find.not_listed += tally.not_listed;
    report(find, tally.bad)?;
    Ok(tally.blocks)
}

struct Tally {
    blocks: u64,
    bad: Vec<Bad>,
    not_listed: u64,
}

impl Tally {
    fn add(&mut self, result: Verified) {
        self.blocks += result.blocks;
        for bad in result.bad {
            if self.bad.len() < LISTED_MAX { self.bad.push(bad) } else { self.not_listed += 1 }
        }
    }
}

/// Cuts the live blocks of a group into runs. Damaged records are passed over: the walk over the extents has reported them.
fn send_group(metadata: &Metadata, group: PlacedGroup, send: &mut dyn FnMut(Run)) -> Result<()> {
    let blocks_per_group = metadata.space().blocks_per_group();
    let range = group.number * blocks_per_group..(group.number + 1) * blocks_per_group;
    let mut stored = StoredExtents::new(metadata, range.clone())?;
    let (mut runs, mut rows) = (Vec::new(), HashSet::new());
    let mut send = |run: Run| match group.copy {
        0 => send(run),
        _ => blocks::to_compute(metadata.space(), run, &mut rows).into_iter().for_each(&mut *send),
    };
    while let Some(stored) = stored.next_below(range.end)? {
        for block in blocks::live(&stored).into_iter().take_while(|block| block.address().0 < range.end) {
            blocks::add(&mut runs, block, blocks_per_group);
        }
        // The last one may go on.
        let full = runs.len().saturating_sub(1);
        runs.drain(..full).for_each(&mut send);
    }
    runs.into_iter().for_each(send);
    Ok(())
}

fn read_runs(space: &Space, work: &Receiver<Job>, results: &Sender<Verified>) {
    for job in work {
        // Who listens has gone only when the check has failed.
        let _ = results.send(read_run(space, &job));
    }
}

fn read_run(space: &Space, Job { copy, run }: &Job) -> Verified {
    let mut buffer = AlignedBuffer::zeroed(run.blocks.len() * BLOCK);
    let is_whole = space.read_copy(run.first, *copy, &mut buffer).is_ok();
    let mut bad = Vec::new();
    for (block, bytes) in run.blocks.iter().zip(buffer.chunks_exact(BLOCK)) {
        // After an error each block gets a chance of its own.
        let found = if is_whole {
            Ok(crc32c::crc32c(bytes))
        } else {
            space.read_block(block.address(), *copy).map(|bytes| crc32c::crc32c(&bytes))
        };
        let fault = match found {
            Ok(found) if found == block.expected => continue,
            Ok(found) => Fault::Differs(found),
            // What is on a device that is not there is on others too, or is found to be lost there.
            Err(Error::SetAside { .. }) if matches!(blocks::good_copy(space, block, *copy), Ok(Some(_))) => continue,
            Err(error) => Fault::Unreadable(error.to_string()),
        };
        bad.push(Bad { block: *block, copy: *copy, fault });
    }
    Verified { blocks: run.blocks.len() as u64, bad }
}

/// One issue for each place in a file that a bad block appears in. The extent's owner is only a hint, so the file maps are read.
fn report(find: &mut Findings<'_>, mut bad: Vec<Bad>) -> Result<()> {
    if bad.is_empty() {
        return Ok(());
    }
    bad.sort_unstable_by_key(|bad| (bad.block.extent, bad.block.in_extent));
    let mut is_used = vec![false; bad.len()];
    references::for_each(find.metadata, |reference| {
        let (first, end) = (u32::from(reference.first), u32::from(reference.first) + u32::from(reference.count));
        let begin = bad.partition_point(|bad| (bad.block.extent, bad.block.in_extent) < (reference.extent, first));
        for (bad, is_used) in bad.iter().zip(&mut is_used).skip(begin) {
            if bad.block.extent != reference.extent || bad.block.in_extent >= end {
                break;
            }
            *is_used = true;
            let offset = reference.offset.saturating_add(u64::from(bad.block.in_extent - first) * BLOCK as u64);
            let file = Some(find.file(reference.inode));
            add(find, bad, file, offset);
        }
    })?;
    for (bad, _) in bad.iter().zip(&is_used).filter(|(_, is_used)| !**is_used) {
        add(find, bad, None, 0);
    }
    Ok(())
}

fn add(find: &mut Findings<'_>, bad: &Bad, file: Option<super::issue::File>, offset: u64) {
    let space: &Space = find.metadata.space();
    let address = bad.block.address();
    let places = space.places(address).ok();
    let place = match places.as_ref().and_then(|places| places.get(bad.copy)) {
        Some(place) => BlockPlace { address: address.0, device: place.device, device_offset: place.offset },
        None => BlockPlace { address: address.0, device: u32::MAX, device_offset: 0 },
    };
    if bad.copy > 0 && blocks::has_bad_mate(find.metadata, address).unwrap_or(false) {
        // That one is reported, and the parity cannot be judged.
        return;
    }
    if matches!(blocks::good_copy(space, &bad.block, bad.copy), Ok(Some(_))) {
        let reason = match &bad.fault {
            Fault::Differs(found) => format!("checksum {found:08x}, expected {:08x}", bad.block.expected),
            Fault::Unreadable(reason) => reason.clone(),
        };
        return find.add(Issue::BadCopy { file, offset, place, reason });
    }
    find.add(match bad.fault.clone() {
        Fault::Differs(found) => Issue::BadBlock { file, offset, place, expected: bad.block.expected, found },
        Fault::Unreadable(reason) => Issue::UnreadableBlock { file, offset, place, reason },
    });
}
