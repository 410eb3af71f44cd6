//! Disks as a power cut may leave them, made again from the record of all writes and flushes.

use super::Random;
use crate::recording_file::Record;
use crate::reference_model::FileBytes;

/// What was recorded, and what the disk held before.
pub struct Tape {
    base: FileBytes,
    pub log: Vec<Record>,
    /// Positions behind each flush.
    pub flushes: Vec<usize>,
}

impl Tape {
    pub fn new(base: FileBytes, log: Vec<Record>) -> Tape {
        let is_flush = |index: &usize| matches!(log[*index], Record::Flush);
        let flushes = (0..log.len()).filter(is_flush).map(|index| index + 1).collect();
        Tape { base, log, flushes }
    }

    /// The position behind the last flush before `position`, or behind the one so many flushes earlier.
    pub fn flushed(&self, position: usize, earlier: usize) -> usize {
        let before = self.flushes.partition_point(|flush| *flush <= position);
        before.checked_sub(1 + earlier).map_or(0, |at| self.flushes[at])
    }

    /// The power goes when `position` is reached; of what was not flushed the disk keeps a part.
    pub fn cut(&self, position: usize, kept: u64, random: &mut Random) -> Cut {
        Cut { flushed: self.flushed(position, 0), position, kept, seed: random.next() }
    }

    /// The disk that one cut leaves.
    pub fn image(&self, cut: &Cut) -> FileBytes {
        Rebuilding::of(self).image(cut)
    }
}

/// A moment, and what of the writes that were not flushed the disk keeps.
#[derive(Debug)]
pub struct Cut {
    /// Everything before this position is there.
    pub flushed: usize,
    /// Nothing from this position on.
    pub position: usize,
    /// Of a thousand writes between, how many are whole; of the rest as many are torn.
    pub kept: u64,
    pub seed: u64,
}

impl Cut {
    /// Everything before `position`, and nothing else.
    pub fn at(position: usize) -> Cut {
        Cut { flushed: position, position, kept: 0, seed: 0 }
    }
}

/// Disks, each made from the one before.
pub struct Rebuilding<'a> {
    log: &'a [Record],
    image: FileBytes,
    position: usize,
}

impl Rebuilding<'_> {
    pub fn of(tape: &Tape) -> Rebuilding<'_> {
        Rebuilding { log: &tape.log, image: tape.base.clone(), position: 0 }
    }

    /// The disk that the cut leaves; none with an earlier flush can be asked for afterwards.
    pub fn image(&mut self, cut: &Cut) -> FileBytes {
        assert!(self.position <= cut.flushed, "cuts are sorted");
        self.log[self.position..cut.flushed].iter().for_each(|record| record.repeat(&mut self.image));
        self.position = cut.flushed;
        let (mut image, mut random) = (self.image.clone(), Random::new(cut.seed));
        for record in &self.log[cut.flushed..cut.position] {
            let fate = random.below(1000);
            if fate < cut.kept {
                record.repeat(&mut image);
            } else if fate < 2 * cut.kept {
                let kept = record.blocks().into_iter().filter(|_| random.below(2) == 0);
                kept.for_each(|(offset, data)| image.write(offset, data));
            }
        }
        image
    }
}
