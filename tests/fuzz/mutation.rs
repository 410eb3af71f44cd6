//! Mutations of byte strings: flips, runs of interesting values, numbers changed by a little, pieces cut out, repeated, or taken from
//! another input. Every step says what it did.

use crate::simulated_disk::Random;

/// Numbers at which decoders and arithmetic go wrong.
const INTERESTING: [u64; 30] = [
    0,
    1,
    2,
    3,
    7,
    127,
    128,
    255,
    256,
    257,
    4095,
    4096,
    4097,
    i16::MAX as u64,
    i16::MAX as u64 + 1,
    u16::MAX as u64,
    u16::MAX as u64 + 1,
    1 << 20,
    i32::MAX as u64,
    i32::MAX as u64 + 1,
    u32::MAX as u64,
    u32::MAX as u64 + 1,
    1 << 40,
    1 << 52,
    i64::MAX as u64 / 4096 * 4096,
    i64::MAX as u64,
    i64::MAX as u64 + 1,
    u64::MAX - 4095,
    u64::MAX - 1,
    u64::MAX,
];

/// One of the interesting numbers.
pub fn interesting(random: &mut Random) -> u64 {
    INTERESTING[random.below(INTERESTING.len() as u64) as usize]
}

/// `number`, replaced by an interesting one or changed by a little.
pub fn changed_number(random: &mut Random, number: u64) -> u64 {
    match random.below(4) {
        0 => number.wrapping_add(1 + random.below(8)),
        1 => number.wrapping_sub(1 + random.below(8)),
        2 => number ^ (1 << random.below(64)),
        _ => interesting(random),
    }
}

/// Changes `bytes` in place, its length stays. What was done.
pub fn change_bytes(random: &mut Random, bytes: &mut [u8]) -> String {
    if bytes.is_empty() {
        return "nothing to change".to_owned();
    }
    let at = random.below(bytes.len() as u64) as usize;
    match random.below(5) {
        0 => {
            let bit = random.below(8);
            bytes[at] ^= 1 << bit;
            format!("bit {bit} of byte {at} flipped")
        }
        1 => {
            let value = [0, 0xff, 0x7f, 0x80, random.next() as u8][random.below(5) as usize];
            let end = bytes.len().min(at + 1 + random.below(64) as usize);
            bytes[at..end].fill(value);
            format!("bytes {at}..{end} are {value:#x}")
        }
        2 => {
            let other = random.below(bytes.len() as u64) as usize;
            let count = (1 + random.below(32) as usize).min(bytes.len() - at.max(other));
            bytes.copy_within(other..other + count, at);
            format!("{count} bytes of {other} copied to {at}")
        }
        _ => change_number(random, bytes, at),
    }
}

/// Replaces the number that begins at `at`, mostly at a place where one may begin.
fn change_number(random: &mut Random, bytes: &mut [u8], at: usize) -> String {
    let size = [1usize, 2, 4, 8, 8][random.below(5) as usize].min(bytes.len());
    let at = at.min(bytes.len() - size);
    let mut number = [0; 8];
    number[..size].copy_from_slice(&bytes[at..at + size]);
    let is_big = random.once_in(4);
    let old = if is_big { u64::from_be_bytes(number) >> (64 - 8 * size) } else { u64::from_le_bytes(number) };
    let new = changed_number(random, old);
    if is_big {
        bytes[at..at + size].copy_from_slice(&new.to_be_bytes()[8 - size..]);
    } else {
        bytes[at..at + size].copy_from_slice(&new.to_le_bytes()[..size]);
    }
    format!("{size} bytes at {at}: {old:#x} becomes {new:#x}")
}

/// Changes `bytes`, perhaps its length too; `others` give pieces to splice in. What was done.
pub fn change(random: &mut Random, bytes: &mut Vec<u8>, others: &[Vec<u8>]) -> String {
    let at = random.below(bytes.len() as u64 + 1) as usize;
    match random.below(12) {
        0 => {
            bytes.truncate(at);
            format!("cut to {at} bytes")
        }
        1 => {
            let count = [1, 2, 4, 8, 100, 5000][random.below(6) as usize];
            let value = random.next() as u8;
            bytes.resize(bytes.len() + count, value);
            format!("{count} bytes of {value:#x} longer")
        }
        2 if !others.is_empty() => {
            let other = &others[random.below(others.len() as u64) as usize];
            let from = random.below(other.len() as u64 + 1) as usize;
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
            format!("from byte {at} on, what another input has from {from} on")
        }
        3 => {
            let end = bytes.len().min(at + random.below(16) as usize);
            bytes.drain(at..end);
            format!("bytes {at}..{end} taken out")
        }
        _ => change_bytes(random, bytes),
    }
}
