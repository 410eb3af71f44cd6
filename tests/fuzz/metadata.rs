//! Mutations of a store that know what lies where: raw blocks of any disk, and metadata with right checksums: records in the index and in
//! the journal, superblock, labels.

use crate::format::{seal_block, write_journal};
use crate::mutation::{change, change_bytes, changed_number};
use crate::simulated_disk::Random;
use crate::store::{DEVICE, INDEX, INDEX_CACHE_BYTES, Images, JOURNAL, Machine, NAMES, SUPERBLOCK, Sample};
use crate::{index, records};
use std::collections::BTreeMap;
use sumfs::disk::superblock::COPIES;
use sumfs::meta::index::Index;
use sumfs::meta::records::{SEAL_BYTES, seal};
use sumfs::meta::redb_index::RedbIndex;
use sumfs::units::{BLOCK, BLOCK_SIZE};

fn pick<'a, T>(random: &mut Random, from: &'a [T]) -> &'a T {
    &from[random.below(from.len() as u64) as usize]
}

/// Changes a block of a disk, or its length; no checksum is made right.
pub fn change_raw(random: &mut Random, images: &mut Images, sample: &Sample, disk: usize, steps: &mut Vec<String>) {
    let (name, image) = (NAMES[disk], &mut images[disk]);
    let block = *pick(random, &sample.blocks[disk]);
    let at = block * BLOCK_SIZE;
    let mut bytes = vec![0; BLOCK];
    match random.below(16) {
        0 => {
            let len = [0, BLOCK_SIZE, at, at + 1, image.len().saturating_sub(1), image.len().saturating_sub(BLOCK_SIZE)];
            let len = *pick(random, &len);
            image.set_len(len);
            steps.push(format!("{name}: {len} bytes long"));
        }
        1 => {
            // The journal is read to its end; a store's directory cuts it to the length that the superblock says.
            let most = if disk == JOURNAL { 4 } else { 5 };
            image.set_len(image.len() + [1, 511, BLOCK_SIZE, 1 << 20, 1 << 40][random.below(most) as usize]);
            steps.push(format!("{name}: {} bytes long", image.len()));
        }
        2 | 3 => {
            let other = *pick(random, &sample.blocks[disk]);
            let (one, two) = (image.block(block).cloned(), image.block(other).cloned());
            if random.once_in(2) {
                image.set_block(other, one);
            }
            image.set_block(block, two);
            steps.push(format!("{name}: block {other} to {block}"));
        }
        4 => {
            image.set_block(block, None);
            steps.push(format!("{name}: block {block} is zeros"));
        }
        _ => {
            image.read(at, &mut bytes);
            for _ in 0..1 + random.below(3) {
                let upto = if random.once_in(3) { 128 } else { BLOCK };
                steps.push(format!("{name}: block {block}: {}", change_bytes(random, &mut bytes[..upto])));
            }
            if at + BLOCK_SIZE <= image.len() {
                image.write(at, &bytes);
            }
        }
    }
}

/// Changes a record as what it is: numbers in it, more often than its length.
fn change_record(random: &mut Random, record: &mut Vec<u8>, others: &[Vec<u8>]) -> String {
    if random.once_in(6) { change(random, record, others) } else { change_bytes(random, record) }
}

/// Changes one number of a key.
fn change_key(random: &mut Random, key: &mut [u8]) {
    let numbers = key.len().saturating_sub(1) / 8;
    if numbers == 0 {
        return;
    }
    // The table byte, then a number; items of inodes have a kind byte before the second.
    let second = if key[0] == 0x10 { 10 } else { 9 };
    let at = if random.once_in(2) && key.len() >= second + 8 { second } else { 1 };
    if let Some(bytes) = key.get_mut(at..at + 8) {
        let number = changed_number(random, u64::from_be_bytes(bytes.try_into().expect("8 bytes")));
        bytes.copy_from_slice(&number.to_be_bytes());
    }
}

/// A changed value of one of `values`, perhaps under another key: key, sealed value or None to delete, and what it is.
fn hostile_value(random: &mut Random, values: &[(Vec<u8>, Vec<u8>)]) -> (Vec<u8>, Option<Vec<u8>>, String) {
    let (key, value) = pick_kind(random, values);
    let (mut key, mut record) = (key.clone(), value[..value.len().saturating_sub(SEAL_BYTES)].to_vec());
    let name = |key: &[u8]| key.escape_ascii().to_string();
    let step = match random.below(10) {
        0 => {
            let step = format!("{} deleted", name(&key));
            return (key, None, step);
        }
        1 => {
            let mut value = value.clone();
            let step = format!("{}, not sealed: {}", name(&key), change_bytes(random, &mut value));
            return (key, Some(value), step);
        }
        2 => {
            let old = name(&key);
            change_key(random, &mut key);
            format!("{old} also as {}", name(&key))
        }
        3 => {
            let samples = records::samples();
            let (other_key, other) = pick(random, &samples);
            record.clone_from(other);
            if random.once_in(2) {
                key.clone_from(other_key);
                change_key(random, &mut key);
            }
            format!("{}: {record:02x?}", name(&key))
        }
        _ => format!("{}: {}", name(&key), change_record(random, &mut record, std::slice::from_ref(value))),
    };
    let value = seal(&key, record);
    (key, Some(value), step)
}

/// One of the values, every kind as likely as another: most records are entries of directories.
fn pick_kind<'a>(random: &mut Random, values: &'a [(Vec<u8>, Vec<u8>)]) -> &'a (Vec<u8>, Vec<u8>) {
    let kind = |key: &[u8]| {
        if key.first() == Some(&0x10) {
            0x100 + u32::from(key.get(9).copied().unwrap_or(0))
        } else {
            u32::from(key.first().copied().unwrap_or(0))
        }
    };
    let mut kinds: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, (key, _)) in values.iter().enumerate() {
        kinds.entry(kind(key)).or_default().push(at);
    }
    let number = random.below(kinds.len() as u64) as usize;
    let places = kinds.values().nth(number).expect("a kind");
    &values[*pick(random, places)]
}

/// Changes records in the index, sealed. The images are of a good store.
pub fn change_index_records(random: &mut Random, images: &mut Images, sample: &Sample, steps: &mut Vec<String>) {
    let machine = Machine::new(images);
    let mut changes = BTreeMap::new();
    for _ in 0..1 + random.below(8) {
        let (key, value, step) = hostile_value(random, &sample.values);
        changes.insert(key, value);
        steps.push(format!("index record {step}"));
    }
    let index = RedbIndex::open(machine.disk(INDEX), INDEX_CACHE_BYTES, false).expect("the index of a sample");
    index.apply(&mut changes.iter().map(|(key, value)| (&key[..], value.as_deref())), true).expect("changing records");
    drop(index);
    images[INDEX] = machine.images().swap_remove(INDEX);
}

/// Changes records in the journal, or makes records where there are none; all sealed and chained.
pub fn change_journal_records(random: &mut Random, images: &mut Images, sample: &Sample, steps: &mut Vec<String>) {
    let mut payloads = sample.payloads.clone();
    if payloads.is_empty() || random.once_in(4) {
        payloads.push(vec![0; 12]);
    }
    for _ in 0..1 + random.below(4) {
        let number = random.below(payloads.len() as u64) as usize;
        let step = change_payload(random, &mut payloads[number], &sample.values);
        steps.push(format!("journal payload {number}: {step}"));
    }
    write_journal(&mut images[JOURNAL], &sample.store_id, sample.tail, &payloads, &mut |_, _| {});
}

/// The parts of a payload.
struct Payload {
    runs: [Vec<(u64, u32)>; 2],
    changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// Changes a journal record's payload: mostly as what it is, sometimes as bytes.
pub fn change_payload(random: &mut Random, payload: &mut Vec<u8>, values: &[(Vec<u8>, Vec<u8>)]) -> String {
    let Some(mut parts) = parse_payload(payload).filter(|_| !random.once_in(6)) else {
        return change(random, payload, &[]);
    };
    let step = if random.once_in(4) {
        let runs = &mut parts.runs[random.below(2) as usize];
        if runs.is_empty() || random.once_in(3) {
            runs.push((random.below(4000), 1 + random.below(300) as u32));
        }
        let at = random.below(runs.len() as u64) as usize;
        runs[at].0 = changed_number(random, runs[at].0);
        runs[at].1 = changed_number(random, u64::from(runs[at].1)) as u32;
        format!("a run of blocks is {:?}", runs[at])
    } else {
        let known: Vec<(Vec<u8>, Vec<u8>)> =
            parts.changes.iter().filter_map(|(key, value)| Some((key.clone(), value.clone()?))).collect();
        let (key, value, step) = hostile_value(random, if known.is_empty() { values } else { &known });
        parts.changes.retain(|(old, _)| *old != key);
        parts.changes.push((key, value));
        step
    };
    *payload = encode_payload(&parts);
    step
}

fn parse_payload(payload: &[u8]) -> Option<Payload> {
    let mut rest = payload;
    let mut take = |count: usize| {
        let (head, tail) = rest.split_at_checked(count)?;
        rest = tail;
        Some(head)
    };
    let u32_of = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
    let mut parts = Payload { runs: [Vec::new(), Vec::new()], changes: Vec::new() };
    for runs in &mut parts.runs {
        for _ in 0..u32_of(take(4)?) {
            let first = u64::from_le_bytes(take(8)?.try_into().expect("8 bytes"));
            runs.push((first, u32_of(take(4)?)));
        }
    }
    for _ in 0..u32_of(take(4)?) {
        let (key, value) = (u32_of(take(4)?), u32_of(take(4)?));
        let key = take(key as usize)?.to_vec();
        let value = if value == u32::MAX { None } else { Some(take(value as usize)?.to_vec()) };
        parts.changes.push((key, value));
    }
    Some(parts)
}

fn encode_payload(parts: &Payload) -> Vec<u8> {
    let mut out = Vec::new();
    for runs in &parts.runs {
        out.extend_from_slice(&(runs.len() as u32).to_le_bytes());
        for (first, count) in runs {
            out.extend_from_slice(&first.to_le_bytes());
            out.extend_from_slice(&count.to_le_bytes());
        }
    }
    out.extend_from_slice(&(parts.changes.len() as u32).to_le_bytes());
    for (key, value) in &parts.changes {
        out.extend_from_slice(&(key.len() as u32).to_le_bytes());
        out.extend_from_slice(&value.as_ref().map_or(u32::MAX, |value| value.len() as u32).to_le_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(value.as_deref().unwrap_or_default());
    }
    out
}

/// Changes superblock or label, both copies, sealed.
fn change_block(random: &mut Random, images: &mut Images, steps: &mut Vec<String>) {
    let disk = if random.once_in(2) { SUPERBLOCK } else { DEVICE + random.below(2) as usize };
    let image = &mut images[disk];
    let places = if disk == SUPERBLOCK { COPIES } else { [0, image.len() / BLOCK_SIZE * BLOCK_SIZE - BLOCK_SIZE] };
    let mut block = vec![0; BLOCK];
    image.read(places[0], &mut block);
    for _ in 0..1 + random.below(2) {
        // Not the magic, version, UUID and features: what is refused at once shows little.
        let from = if random.once_in(6) { 0 } else { 56 };
        let step = change_bytes(random, &mut block[from..128]);
        steps.push(format!("{}, sealed: {step}", NAMES[disk]));
    }
    if disk == SUPERBLOCK && random.once_in(4) {
        let blocks = 1u32 << random.below(32);
        block[12..16].copy_from_slice(&blocks.to_le_bytes());
        steps.push(format!("groups of {blocks} blocks"));
    }
    seal_block(&mut block);
    places.into_iter().for_each(|place| image.write(place, &block));
}

/// Changes metadata with right checksums, in one or two ways.
pub fn change_sealed(random: &mut Random, images: &mut Images, sample: &Sample, steps: &mut Vec<String>) {
    let is_both = random.once_in(5);
    let how = random.below(10);
    if how < 5 || is_both {
        change_index_records(random, images, sample, steps);
    }
    match how {
        5 | 6 => change_journal_records(random, images, sample, steps),
        7 | 8 => change_block(random, images, steps),
        9 => index::change_header(random, images, steps),
        _ => {}
    }
}
