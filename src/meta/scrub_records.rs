//! The values in which a scrub keeps how far it is and what it found: explicit little-endian layouts like those of `records.rs`.

use super::fields::Reader;
use super::records::SEAL_BYTES;
use super::schema::Key;
use super::work_state::WorkState;
use crate::error::Result;

/// Longest cursor: a key with a name in it, and some room.
const CURSOR_BYTES_MAX: usize = 1024;

/// What a scrub is looking at; in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum ScrubPhase {
    /// Superblock, labels, journal.
    #[default]
    Structures = 0,
    /// Pages of the index, both copies.
    Index = 1,
    /// Metadata values.
    Values = 2,
    /// Data, every copy.
    Data = 3,
}

impl ScrubPhase {
    fn from_byte(byte: u8) -> Option<ScrubPhase> {
        use ScrubPhase::*;
        [Structures, Index, Values, Data].into_iter().find(|phase| *phase as u8 == byte)
    }

    /// The name in `sumfs scrub status`.
    pub fn name(self) -> &'static str {
        match self {
            ScrubPhase::Structures => "structures",
            ScrubPhase::Index => "index",
            ScrubPhase::Values => "values",
            ScrubPhase::Data => "data",
        }
    }
}

/// Declares [`ScrubRecord`] with its counters, which are stored in the order of the list.
macro_rules! scrub_record {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// How far a scrub is and what it came to so far.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct ScrubRecord {
            /// What it is doing.
            pub state: WorkState,
            /// What it is looking at.
            pub phase: ScrubPhase,
            /// Where it goes on: the key of a value, or of an extent.
            pub cursor: Key,
            /// When it began and when it ended (0: not yet), in seconds since 1970.
            pub began: i64,
            /// See above.
            pub ended: i64,
            $($(#[$doc])* pub $name: u64,)*
        }

        impl ScrubRecord {
            /// Layout: state, phase, began, ended, counters, then the cursor.
            pub fn encode(&self) -> Vec<u8> {
                let mut out = Vec::with_capacity(128 + self.cursor.len() + SEAL_BYTES);
                out.extend([self.state as u8, self.phase as u8]);
                out.extend(self.began.to_le_bytes());
                out.extend(self.ended.to_le_bytes());
                $(out.extend(self.$name.to_le_bytes());)*
                out.extend(&self.cursor);
                out
            }

            /// The scrub in `record`.
            pub fn decode(record: &[u8]) -> Result<ScrubRecord> {
                let mut r = Reader::new("scrub", record);
                let scrub = ScrubRecord {
                    state: WorkState::from_byte(r.u8()?).ok_or_else(|| r.damaged())?,
                    phase: ScrubPhase::from_byte(r.u8()?).ok_or_else(|| r.damaged())?,
                    began: r.i64()?,
                    ended: r.i64()?,
                    $($name: r.number()?,)*
                    cursor: r.rest().to_vec(),
                };
                if scrub.cursor.len() > CURSOR_BYTES_MAX { Err(r.damaged()) } else { Ok(scrub) }
            }
        }
    };
}

scrub_record! {
    /// Counts the scrubs of the store.
    number,
    /// Bytes a second at most; 0: no limit.
    limit,
    /// Copies of blocks looked at.
    blocks,
    /// Copies of blocks to look at in all, as well as that was known at the last step.
    blocks_total,
    /// Copies of blocks that did not match or could not be read.
    bad_blocks,
    /// Of these, those written anew from another copy.
    repaired_blocks,
    /// Metadata values looked at.
    values,
    /// Metadata values that are damaged.
    damaged_values,
    /// Superblocks, labels and index pages of which one copy was bad; written anew.
    healed,
    /// Milliseconds that it ran.
    milliseconds,
}

/// A copy of a data block that was found damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedBlockRecord {
    /// The scrub that found it or that ran last: the next one that ends without finding it again forgets it.
    pub scrub: u64,
    /// When, in seconds since 1970.
    pub found_at: i64,
    /// The recorded checksum.
    pub expected: u32,
    /// That of what was read; None: it could not be read.
    pub found: Option<u32>,
    /// Was it written anew from another copy?
    pub is_repaired: bool,
}

impl DamagedBlockRecord {
    /// Layout: scrub, time, expected, kind (1 differs, 2 unreadable), found, repaired.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(26 + SEAL_BYTES);
        out.extend(self.scrub.to_le_bytes());
        out.extend(self.found_at.to_le_bytes());
        out.extend(self.expected.to_le_bytes());
        out.push(if self.found.is_some() { 1 } else { 2 });
        out.extend(self.found.unwrap_or(0).to_le_bytes());
        out.push(u8::from(self.is_repaired));
        out
    }

    /// The damage in `record`.
    pub fn decode(record: &[u8]) -> Result<DamagedBlockRecord> {
        let mut r = Reader::new("damaged block", record);
        let (scrub, found_at, expected, kind, found, repaired) = (r.number()?, r.i64()?, r.u32()?, r.u8()?, r.u32()?, r.u8()?);
        if !(1..=2).contains(&kind) || repaired > 1 {
            return Err(r.damaged());
        }
        r.end()?;
        let found = (kind == 1).then_some(found);
        Ok(DamagedBlockRecord { scrub, found_at, expected, found, is_repaired: repaired == 1 })
    }
}

/// A metadata value that was found damaged; its key is in the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedValueRecord {
    /// As in [`DamagedBlockRecord`].
    pub scrub: u64,
    /// As in [`DamagedBlockRecord`].
    pub found_at: i64,
}

impl DamagedValueRecord {
    /// Layout: scrub, time.
    pub fn encode(&self) -> Vec<u8> {
        [self.scrub.to_le_bytes(), self.found_at.to_le_bytes()].concat()
    }

    /// The damage in `record`.
    pub fn decode(record: &[u8]) -> Result<DamagedValueRecord> {
        let mut r = Reader::new("damaged value", record);
        let damage = DamagedValueRecord { scrub: r.number()?, found_at: r.i64()? };
        r.end()?;
        Ok(damage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_were() {
        let scrub = ScrubRecord {
            state: WorkState::Paused,
            phase: ScrubPhase::Values,
            cursor: b"a key".to_vec(),
            began: -5,
            ended: 7,
            limit: 9,
            milliseconds: 11,
            ..ScrubRecord::default()
        };
        assert_eq!(ScrubRecord::decode(&scrub.encode()).unwrap(), scrub);
        for found in [None, Some(0), Some(8)] {
            let damage = DamagedBlockRecord { scrub: 3, found_at: 4, expected: 5, found, is_repaired: found.is_none() };
            assert_eq!(DamagedBlockRecord::decode(&damage.encode()).unwrap(), damage);
        }
        let value = DamagedValueRecord { scrub: 1, found_at: 2 };
        assert_eq!(DamagedValueRecord::decode(&value.encode()).unwrap(), value);
    }

    #[test]
    fn what_is_no_record_is_damage() {
        assert!(ScrubRecord::decode(&[1, 1]).is_err());
        let mut record = ScrubRecord::default().encode();
        record[0] = 9;
        assert!(ScrubRecord::decode(&record).is_err());
        record[0] = 0;
        record.extend([0; 2 * CURSOR_BYTES_MAX]);
        assert!(ScrubRecord::decode(&record).is_err());
        assert!(DamagedBlockRecord::decode(&[3; 26]).is_err());
        assert!(DamagedValueRecord::decode(&[0; 17]).is_err());
    }
}
