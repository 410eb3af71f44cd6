//! The small tables: keys of no known form go, devices are described anew from superblock and label, and what scrubs left unreadable
//! goes: the next scrub finds it again.

use super::draft::{Draft, opened};
use crate::error::Result;
use crate::meta::records::DeviceRecord;
use crate::meta::relocation_record::RelocationRecord;
use crate::meta::schema::{self, Parsed};
use crate::meta::scrub_records::{DamagedBlockRecord, DamagedValueRecord, ScrubRecord};
use crate::verify::findings::{Items, hex};
use crate::verify::opening::Opened;

pub(super) fn repair(draft: &mut Draft<'_>, found: &Opened) -> Result<()> {
    drop_unknown_keys(draft)?;
    repair_devices(draft, found)?;
    for table in [schema::SCRUB, schema::RELOCATION, schema::DAMAGED_BLOCKS, schema::DAMAGED_VALUES] {
        let mut items = draft.table(table);
        while let Some((key, value)) = items.next()? {
            let is_whole = match schema::parse(&key) {
                Some(Parsed::Scrub) => opened(&key, &value, ScrubRecord::decode)?.is_some(),
                Some(Parsed::Relocation) => opened(&key, &value, RelocationRecord::decode)?.is_some(),
                Some(Parsed::DamagedBlock { .. }) => opened(&key, &value, DamagedBlockRecord::decode)?.is_some(),
                Some(Parsed::DamagedValue(_)) => opened(&key, &value, DamagedValueRecord::decode)?.is_some(),
                _ => true,
            };
            if !is_whole {
                let what = draft.what(&key);
                draft
                    .say(None, format!("dropped the record of {what}, which is damaged; the next scrub finds anew what it said"));
                draft.delete(key);
            }
        }
    }
    let groups = draft.metadata.space().counts().groups;
    let mut items = draft.table(schema::BITMAPS);
    while let Some((key, _)) = items.next()? {
        if let Some(Parsed::Bitmap(group)) = schema::parse(&key)
            && group >= groups
        {
            draft.say(None, format!("dropped the bitmap of group {group}, which does not exist"));
            draft.delete(key);
        }
    }
    Ok(())
}

fn drop_unknown_keys(draft: &mut Draft<'_>) -> Result<()> {
    let mut items = Items::new(draft.metadata, vec![0], vec![u8::MAX; 16]);
    while let Some((key, _)) = items.next()? {
        if schema::parse(&key).is_none() {
            draft.say(None, format!("dropped the metadata key {}, which this format does not have", hex(&key)));
            draft.delete(key);
        }
    }
    Ok(())
}

fn repair_devices(draft: &mut Draft<'_>, found: &Opened) -> Result<()> {
    let mut items = draft.table(schema::DEVICES);
    let mut right = Vec::new();
    while let Some((key, value)) = items.next()? {
        let Some(Parsed::Device(id)) = schema::parse(&key) else { continue };
        let Some(area) = found.devices.iter().find(|area| u64::from(area.id) == id) else {
            draft.say(None, format!("dropped the record of device {id}, which the superblock does not name"));
            draft.delete(key);
            continue;
        };
        let record = opened(&key, &value, DeviceRecord::decode)?;
        let is_right = record.is_some_and(|record| {
            record.id == area.id && record.length == area.length && area.uuid.is_none_or(|uuid| uuid == record.uuid)
        });
        right.extend(is_right.then_some(area.id));
    }
    for (area, entry) in found.devices.iter().zip(&found.superblock.devices) {
        if right.contains(&area.id) {
            continue;
        }
        let Some(uuid) = area.uuid else { continue };
        let record = DeviceRecord { id: area.id, uuid, length: area.length, path: entry.path.clone() };
        draft.put(schema::device(area.id), record.encode());
        draft.say(None, format!("wrote the record of device {} anew from the superblock and its label", area.id));
    }
    Ok(())
}
