//! The target `journal`: the ring of a store behind an index in memory, mutated as bytes or payload by payload with the chain of checksums
//! made right again, then replayed.

use crate::format::write_journal;
use crate::metadata::change_payload;
use crate::mutation::{change_bytes, changed_number};
use crate::runner::Target;
use crate::simulated_disk::Random;
use crate::store::{DEVICE, JOURNAL, Machine, Sample};
use std::sync::Arc;
use sumfs::meta::index::Index;
use sumfs::meta::latch::Latch;
use sumfs::meta::memory_index::MemoryIndex;
use sumfs::meta::records::{CheckpointRecord, seal};
use sumfs::meta::schema;
use sumfs::meta::{Metadata, Parts};
use sumfs::stats::Stats;
use sumfs::units::BLOCK;

/// Journals.
pub struct Journals {
    sample: Sample,
}

impl Journals {
    pub fn new() -> Journals {
        Journals { sample: Sample::new(false) }
    }

    /// An index in memory with the sample's records, and this checkpoint.
    fn index(&self, tail: CheckpointRecord) -> MemoryIndex {
        let index = MemoryIndex::new();
        let mut values = self.sample.values.clone();
        let key = schema::checkpoint();
        let value = seal(&key, tail.encode());
        values.retain(|(known, _)| *known != key);
        values.push((key, value));
        values.sort();
        let mut changes = values.iter().map(|(key, value)| (&key[..], Some(&value[..])));
        index.apply(&mut changes, true).expect("filling an index");
        index
    }
}

impl Target for Journals {
    fn case(&mut self, random: &mut Random, steps: &mut Vec<String>) -> Result<bool, String> {
        let sample = &self.sample;
        let mut images = sample.images.clone();
        let mut tail = sample.tail;
        if random.once_in(8) {
            tail.sequence = changed_number(random, tail.sequence);
            tail.journal_offset = changed_number(random, tail.journal_offset);
            steps.push(format!("the checkpoint is {tail:?}"));
        }
        if random.once_in(2) {
            let mut payloads = sample.payloads.clone();
            for _ in 0..1 + random.below(3) {
                let number = random.below(payloads.len() as u64) as usize;
                steps.push(format!("payload {number}: {}", change_payload(random, &mut payloads[number], &sample.values)));
            }
            write_journal(&mut images[JOURNAL], &sample.store_id, tail, &payloads, &mut |_, record| {
                if random.once_in(12) {
                    steps.push(format!("header, sealed: {}", change_bytes(random, &mut record[24..60])));
                }
            });
        }
        for _ in 0..random.below(4) {
            let blocks = &sample.blocks[JOURNAL];
            let block = blocks[random.below(blocks.len() as u64) as usize];
            let mut bytes = vec![0; BLOCK];
            images[JOURNAL].read(block * BLOCK as u64, &mut bytes);
            steps.push(format!("block {block}: {}", change_bytes(random, &mut bytes)));
            images[JOURNAL].write(block * BLOCK as u64, &bytes);
        }
        let machine = Machine::new(&images);
        let parts = Parts {
            store_id: sample.store_id,
            index: Arc::new(self.index(tail)),
            journal: machine.disk(JOURNAL),
            devices: (0..2).map(|id| (id, machine.disk(DEVICE + id as usize), (1 << 20, 11 << 20))).collect(),
            blocks_per_group: 256,
            plan: sumfs::space::Plan::default(),
            stats: Arc::new(Stats::default()),
            latch: Arc::new(Latch::default()),
        };
        let Ok((metadata, replayed)) = Metadata::open(parts) else { return Ok(false) };
        let (mut from, end) = (schema::table_begin(0), schema::table_end(0xfe));
        while let Ok((_, Some(next))) = metadata.scan(&from, &end, 100) {
            from = next;
        }
        // What was replayed can be taken on.
        let _ = metadata.commit().and_then(|_| metadata.checkpoint());
        Ok(replayed.transactions > 0)
    }
}
