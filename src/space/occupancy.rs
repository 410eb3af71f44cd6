//! What lies on each device: bytes of groups, and of these in use.

use super::groups::Space;
use crate::units::BLOCK_SIZE;
use std::collections::HashMap;

/// What groups have of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Bytes of the groups that have a place there.
    pub allocated: u64,
    /// Bytes of these in use, parity included. In groups that are striped without parity, an even share.
    pub used: u64,
}

impl Space {
    /// By device id; devices without groups are not named.
    pub fn occupancy(&self) -> HashMap<u32, Occupancy> {
        let mut found: HashMap<u32, Occupancy> = HashMap::new();
        let state = self.state.lock();
        for group in &state.groups {
            let layout = &group.layout;
            let used = u64::from(layout.blocks() - group.free) / u64::from(layout.data_columns()).max(1);
            for (device, _) in &layout.places {
                let of_device = found.entry(*device).or_default();
                of_device.allocated += u64::from(layout.column_blocks()) * BLOCK_SIZE;
                of_device.used += used * BLOCK_SIZE;
            }
        }
        found
    }
}
