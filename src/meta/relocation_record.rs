//! The value that says which device is being emptied, and onto which: what `device replace` and `device remove` go on with after a
//! mount. Which groups are done the records of the groups say.

use super::fields::Reader;
use super::work_state::WorkState;
use crate::error::Result;

/// What is being moved, or was last. A change of the list of devices that a crash broke off is undone or ended by the next mount; `from`
/// and `to` name the devices that it may be about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelocationRecord {
    /// See there.
    pub state: WorkState,
    /// The device that is emptied; None: one was only added.
    pub from: Option<u32>,
    /// The device that takes its place; None: any.
    pub to: Option<u32>,
    /// When it began and ended (0: not yet), in seconds since 1970.
    pub began: i64,
    /// See above.
    pub ended: i64,
    /// Copies or columns of groups that were moved.
    pub moved_groups: u64,
    /// Bytes copied for them.
    pub moved_bytes: u64,
    /// Blocks of them that could neither be read nor be computed.
    pub unreadable_blocks: u64,
}

/// Stands for no device.
const NONE: u32 = u32::MAX;

impl RelocationRecord {
    /// Layout: state, from, to, began, ended, groups, bytes, unreadable blocks.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.state as u8];
        for device in [self.from, self.to] {
            out.extend(device.unwrap_or(NONE).to_le_bytes());
        }
        out.extend(self.began.to_le_bytes());
        out.extend(self.ended.to_le_bytes());
        for number in [self.moved_groups, self.moved_bytes, self.unreadable_blocks] {
            out.extend(number.to_le_bytes());
        }
        out
    }

    /// What is in `record`.
    pub fn decode(record: &[u8]) -> Result<RelocationRecord> {
        let mut r = Reader::new("relocation", record);
        let device = |id: u32| (id != NONE).then_some(id);
        let relocation = RelocationRecord {
            state: WorkState::from_byte(r.u8()?).ok_or_else(|| r.damaged())?,
            from: device(r.u32()?),
            to: device(r.u32()?),
            began: r.i64()?,
            ended: r.i64()?,
            moved_groups: r.number()?,
            moved_bytes: r.number()?,
            unreadable_blocks: r.number()?,
        };
        r.end()?;
        Ok(relocation)
    }

    /// Is it about this device?
    pub fn names(&self, device: u32) -> bool {
        self.from == Some(device) || self.to == Some(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_all_else_is_refused() {
        for (state, from, to) in
            [(WorkState::Running, Some(3), None), (WorkState::Finished, None, Some(0)), (WorkState::Never, None, None)]
        {
            let record =
                RelocationRecord { state, from, to, began: -5, ended: 7, moved_groups: 1, moved_bytes: 2, unreadable_blocks: 3 };
            let bytes = record.encode();
            assert_eq!(RelocationRecord::decode(&bytes).unwrap(), record);
            assert!(RelocationRecord::decode(&bytes[1..]).is_err());
            assert!(RelocationRecord::decode(&[&bytes[..], &[0]].concat()).is_err());
            assert!(RelocationRecord::decode(&[&[9], &bytes[1..]].concat()).is_err());
        }
    }
}
