//! `sumfs read --ignore-checksum`: what is left of a damaged file, to standard output, and on standard error what of it matches no
//! checksum.

use super::umount::no_daemon;
use super::{Failure, Outcome, WithCode, map, mountinfo, progress_bar};
use crate::control::{self, Command};
use crate::units::EXTENT_BYTES_MAX;
use indicatif::ProgressBar;
use serde_json::Value;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

/// Some of what was written matches no checksum, or stands for what could not be read.
const CODE_DAMAGE_LEFT: u8 = 4;

/// Arguments of `sumfs read`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// A file in a mount.
    file: PathBuf,
    /// Write damaged bytes as the device gives them, and zeros for what it does not give. (Without damage to care about use cat.)
    #[arg(long, required = true)]
    ignore_checksum: bool,
    /// Only these bytes, the last one not included, like 4096-8192; without an end up to the end of the file.
    #[arg(long, value_name = "FROM-TO", value_parser = parse_range)]
    range: Option<(u64, u64)>,
}

fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let wrong = || "not a range; write it like 4096-8192 or 4096-".to_owned();
    let (from, to) = text.split_once('-').ok_or_else(wrong)?;
    let from = from.parse().map_err(|_| wrong())?;
    let to = if to.is_empty() { u64::MAX } else { to.parse().map_err(|_| wrong())? };
    if from < to { Ok((from, to)) } else { Err("the range ends before it begins".to_owned()) }
}

/// Writes the file, or a range of it, to standard output.
pub fn run(arguments: &Arguments) -> Outcome {
    let (mount, inode) = map::file_in_mount(&arguments.file)?;
    let uuid = mountinfo::store_uuid(&mount).or_code(1)?;
    let (begin, end) = arguments.range.unwrap_or((0, u64::MAX));
    let mut at = begin;
    let mut output = std::io::stdout().lock();
    let mut is_damaged = false;
    // Between bytes on the same terminal it would only be in the way.
    let bar = if output.is_terminal() { ProgressBar::hidden() } else { progress_bar("{bar:40} {percent}% {eta} left") };
    while at < end {
        let length = EXTENT_BYTES_MAX.min(end - at);
        let part = control::ask(&uuid, Command::Salvage { inode, offset: at, length }).or_code(1)?;
        let Some(part) = part else { return Err(no_daemon(&mount)) };
        let bytes =
            part["bytes"].as_str().and_then(from_hex).ok_or_else(|| Failure::new(1, "the daemon's answer is no bytes"))?;
        for (list, what) in [("unverified", "does not match its checksum"), ("unreadable", "cannot be read: zeros instead")] {
            for range in part[list].as_array().into_iter().flatten() {
                is_damaged = true;
                let edge = |at: usize| range[at].as_u64().unwrap_or(0);
                bar.suspend(|| eprintln!("bytes {}-{}: {what}", edge(0), edge(1).saturating_sub(1)));
            }
        }
        if bytes.is_empty() {
            break;
        }
        output.write_all(&bytes).map_err(|error| Failure::new(1, format!("writing to standard output: {error}")))?;
        at += bytes.len() as u64;
        bar.set_length(part["size"].as_u64().unwrap_or(0).min(end).saturating_sub(begin));
        bar.set_position(at - begin);
    }
    bar.finish_and_clear();
    output.flush().map_err(|error| Failure::new(1, format!("writing to standard output: {error}")))?;
    Ok(if is_damaged { CODE_DAMAGE_LEFT } else { 0 })
}

/// The daemon's answer: bytes as hexadecimal digits, and ranges as pairs.
pub fn answer(salvaged: &crate::fs::Salvaged) -> Value {
    let pairs = |ranges: &[std::ops::Range<u64>]| ranges.iter().map(|range| [range.start, range.end]).collect::<Vec<_>>();
    serde_json::json!({
        "bytes": to_hex(&salvaged.bytes),
        "unverified": pairs(&salvaged.unverified),
        "unreadable": pairs(&salvaged.unreadable),
        "size": salvaged.size,
    })
}

fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_the_way_through_json() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&bytes)).unwrap(), bytes);
        assert_eq!(from_hex("0g"), None);
        assert_eq!(from_hex("012"), None);
    }

    #[test]
    fn ranges_as_people_write_them() {
        assert_eq!(parse_range("4096-8192"), Ok((4096, 8192)));
        assert_eq!(parse_range("1-"), Ok((1, u64::MAX)));
        for wrong in ["", "5", "a-b", "9-9", "9-2", "-5"] {
            assert!(parse_range(wrong).is_err(), "{wrong}");
        }
    }
}
