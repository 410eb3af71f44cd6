//! The target `index`: header, tables and pages of the index, changed as they are, or the header with its checksum made right again. Opened
//! to be read and to be written, verified, read from end to end.
//!
//! The target `page` makes the checksums of redb's pages right, too. redb trusts its pages. Its panics become errors,
//! but for two that end the process: a page that says that it is gigabytes long, and a forged page of the pages that it freed, where a
//! destructor panics while another panic unwinds. That is known and left to redb, so this target runs only when it is asked for.

use crate::mutation::change_bytes;
use crate::runner::Target;
use crate::simulated_disk::Random;
use crate::store::{INDEX, INDEX_CACHE_BYTES, Images, Machine, Sample};
use crate::{format, metadata};
use std::ops::ControlFlow;
use sumfs::meta::index::Index;
use sumfs::meta::redb_index::RedbIndex;

/// Indexes.
pub struct Indexes {
    sample: Sample,
    forges_pages: bool,
}

impl Indexes {
    pub fn new(forges_pages: bool) -> Indexes {
        Indexes { sample: Sample::new(true), forges_pages }
    }
}

/// Changes the header or the beginning of redb's page 0, which is in it; sealed again.
pub fn change_header(random: &mut Random, images: &mut Images, steps: &mut Vec<String>) {
    let from = [0, 16, 40][random.below(3) as usize];
    let mut state = random.next();
    format::change_index_header(&mut images[INDEX], &mut |header| {
        // Both slots alike, or the good one would be taken.
        let mut random = Random::new(state);
        let upto = header.len().min(from + 400);
        steps.push(format!("index header, sealed: from {from} on: {}", change_bytes(&mut random, &mut header[from..upto])));
        state ^= random.below(8) / 7;
    });
}

/// Changes a page of redb, sealed as our layer does.
fn change_page(random: &mut Random, images: &mut Images, sample: &Sample, steps: &mut Vec<String>) {
    let page = sample.pages[random.below(sample.pages.len() as u64) as usize];
    format::change_index_page(&mut images[INDEX], page, &mut |bytes| {
        for _ in 0..1 + random.below(3) {
            let upto = if random.once_in(2) { 64 } else { bytes.len() };
            steps.push(format!("index page {page:?}, sealed: {}", change_bytes(random, &mut bytes[..upto])));
        }
    });
}

impl Target for Indexes {
    fn case(&mut self, random: &mut Random, steps: &mut Vec<String>) -> Result<bool, String> {
        let mut images = self.sample.images.clone();
        let is_sealed = random.once_in(2);
        for _ in 0..1 + random.below(4) {
            if is_sealed {
                match self.forges_pages && !random.once_in(4) {
                    true => change_page(random, &mut images, &self.sample, steps),
                    false => change_header(random, &mut images, steps),
                }
            } else {
                metadata::change_raw(random, &mut images, &self.sample, INDEX, steps);
            }
        }
        let mut is_taken = false;
        for read_only in [true, false] {
            let machine = Machine::new(&images);
            let Ok(index) = RedbIndex::open(machine.disk(INDEX), INDEX_CACHE_BYTES, read_only) else { continue };
            is_taken = true;
            let _ = index.verify();
            let Ok(snapshot) = index.snapshot() else { continue };
            let mut values = Vec::new();
            let read = snapshot.range(&[], &[0xff], &mut |key, value| {
                values.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            });
            if !is_sealed && read.is_ok() && values != self.sample.values {
                return Err("the index reads as something else, without an error".to_owned());
            }
            for (key, _) in self.sample.values.iter().step_by(20) {
                let _ = snapshot.get(key);
            }
            let _ = snapshot.last(&[], &[0xff]);
            drop(snapshot);
            let mut changes = self.sample.values.iter().step_by(7).map(|(key, value)| (&key[..], Some(&value[..])));
            let _ = index.apply(&mut changes, false);
            let _ = index.apply(&mut self.sample.values.iter().step_by(3).map(|(key, _)| (&key[..], None)), true);
            let _ = index.snapshot().and_then(|snapshot| snapshot.get(b"none"));
        }
        Ok(is_taken)
    }
}
