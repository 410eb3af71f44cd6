//! How a new store keeps its data, and how large its groups are.

use super::size::show_size;
use super::{FormatOptions, GROUP_BYTES_MAX, GROUP_BYTES_MIN};
use crate::disk::label::data_area;
use crate::disk::superblock::{StripeProfile, Superblock};
use crate::error::{Error, Result};
use crate::meta::records::{COLUMNS_MAX, PROFILE_DUP, PROFILE_RAID0, PROFILE_RAID1, PROFILE_RAID5};
use crate::space::Plan;
use crate::units::BLOCK_SIZE;

/// A device shall have at least this many groups, as long as they do not get smaller than [`GROUP_BYTES_MIN`].
const GROUPS_WANTED: u64 = 16;
/// What each device gets of a stripe, if nothing is said, and the most.
const STRIPE_UNIT_BYTES: u64 = 512 << 10;
const STRIPE_UNIT_BYTES_MAX: u64 = 1 << 20;

/// How each block of data is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataProfile {
    /// Once.
    #[default]
    Single,
    /// Twice: on two devices if there are, else far apart on the one.
    Dup,
    /// Once, in units on all devices in turn.
    Raid0,
    /// Twice, always on two devices.
    Raid1,
    /// Once, in units on all devices in turn, with one of parity in each row.
    Raid5,
}

impl DataProfile {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            DataProfile::Single => "single",
            DataProfile::Dup => "dup",
            DataProfile::Raid0 => "raid0",
            DataProfile::Raid1 => "raid1",
            DataProfile::Raid5 => "raid5",
        }
    }

    /// That of new groups in a store.
    pub fn of(superblock: &Superblock) -> DataProfile {
        match Plan::of(superblock).profile {
            PROFILE_DUP => DataProfile::Dup,
            PROFILE_RAID0 => DataProfile::Raid0,
            PROFILE_RAID1 => DataProfile::Raid1,
            PROFILE_RAID5 => DataProfile::Raid5,
            _ => DataProfile::Single,
        }
    }

    /// On so many devices, can one of them be missing?
    pub fn survives_a_device(self, devices: usize) -> bool {
        match self {
            DataProfile::Single | DataProfile::Raid0 => false,
            DataProfile::Dup | DataProfile::Raid1 | DataProfile::Raid5 => devices > 1,
        }
    }

    /// The fewest devices, and the most.
    fn devices(self) -> (usize, usize) {
        match self {
            DataProfile::Single | DataProfile::Dup => (1, usize::MAX),
            DataProfile::Raid0 => (2, COLUMNS_MAX),
            DataProfile::Raid1 => (2, usize::MAX),
            DataProfile::Raid5 => (3, COLUMNS_MAX),
        }
    }

    /// For the superblock; None where its features say it.
    fn stripes(self, devices: usize, unit_bytes: u64) -> Option<StripeProfile> {
        let profile = match self {
            DataProfile::Single | DataProfile::Dup => return None,
            DataProfile::Raid1 => return Some(StripeProfile { profile: PROFILE_RAID1, unit_blocks: 0, columns: 2 }),
            DataProfile::Raid0 => PROFILE_RAID0,
            DataProfile::Raid5 => PROFILE_RAID5,
        };
        Some(StripeProfile { profile, unit_blocks: (unit_bytes / BLOCK_SIZE) as u32, columns: devices as u32 })
    }
}

/// The profile for the superblock, if it is named there, and the bytes of a group, for devices of these lengths.
pub(super) fn choose(options: &FormatOptions, lens: &[u64]) -> Result<(Option<StripeProfile>, u64)> {
    let stripes = choose_stripes(options, lens.len())?;
    // One device holds both copies of a group; of a striped one it holds a column.
    let copies_a_device = if options.data == DataProfile::Dup && lens.len() == 1 { 2 } else { 1 };
    let smallest = lens.iter().copied().min().unwrap_or(0);
    let group_bytes = match stripes.filter(|stripes| stripes.unit_blocks > 0) {
        None => choose_group_bytes(options.group_bytes, smallest, copies_a_device)?,
        Some(stripes) => choose_striped_group_bytes(options.group_bytes, smallest, stripes)?,
    };
    Ok((stripes, group_bytes))
}

/// Does the profile fit the devices, and its unit?
fn choose_stripes(options: &FormatOptions, devices: usize) -> Result<Option<StripeProfile>> {
    let (name, (least, most)) = (options.data.name(), options.data.devices());
    if devices < least {
        return Err(Error::usage(format!(
            "{name} needs at least {least} devices, but there {} {devices}; name more with --device, or choose another --data",
            if devices == 1 { "is" } else { "are" }
        )));
    }
    if devices > most {
        return Err(Error::usage(format!("{name} takes at most {most} devices, but there are {devices}; leave some out")));
    }
    let unit = options.stripe_unit.unwrap_or(STRIPE_UNIT_BYTES);
    if !(unit.is_power_of_two() && (BLOCK_SIZE..=STRIPE_UNIT_BYTES_MAX).contains(&unit)) {
        return Err(Error::usage(format!("a stripe unit of {}: use a power of two from 4K to 1M", show_size(unit))));
    }
    let stripes = options.data.stripes(devices, unit);
    if options.stripe_unit.is_some() && stripes.is_none_or(|stripes| stripes.unit_blocks == 0) {
        return Err(Error::usage(format!("{name} has no stripes: leave --stripe-unit out, or use --data raid0 or raid5")));
    }
    Ok(stripes)
}

/// As `choose_group_bytes`, for groups that lie in columns on all devices; each is large enough for a stripe.
fn choose_striped_group_bytes(wanted: Option<u64>, device_bytes: u64, stripes: StripeProfile) -> Result<u64> {
    let room = data_area(device_bytes);
    let room = room.end - room.start;
    let parity = u32::from(stripes.profile == PROFILE_RAID5);
    let columns = u64::from(stripes.columns - parity);
    let least = (columns * u64::from(stripes.unit_blocks) * BLOCK_SIZE).next_power_of_two().max(GROUP_BYTES_MIN);
    let bytes = wanted.map_or_else(|| largest_group_bytes(room, columns, least), |wanted| wanted.max(least));
    if room < bytes / columns {
        let unit = show_size(u64::from(stripes.unit_blocks) * BLOCK_SIZE);
        return Err(Error::usage(format!("a device of {device_bytes} bytes has no room for stripes in units of {unit}")));
    }
    Ok(bytes)
}

/// The size of groups for devices of which the smallest has `device_bytes`, and holds so many copies of each group.
fn choose_group_bytes(wanted: Option<u64>, device_bytes: u64, copies: u64) -> Result<u64> {
    let room = data_area(device_bytes);
    let room = (room.end - room.start) / copies;
    if let Some(bytes) = wanted
        && !(bytes.is_power_of_two() && (GROUP_BYTES_MIN..=GROUP_BYTES_MAX).contains(&bytes))
    {
        return Err(Error::usage(format!("a group of {bytes} bytes: use a power of two from 1 MiB to 256 MiB")));
    }
    let bytes = wanted.unwrap_or_else(|| largest_group_bytes(room, 1, GROUP_BYTES_MIN));
    if room < bytes {
        return Err(Error::usage(format!("a device of {device_bytes} bytes has no room for a group of {bytes} bytes")));
    }
    Ok(bytes)
}

/// As large as `GROUPS_WANTED` of them allow on a device that holds a part of each, one of so many; at least `least`.
fn largest_group_bytes(room: u64, parts: u64, least: u64) -> u64 {
    let mut bytes = GROUP_BYTES_MAX.max(least);
    while bytes > least && room / (bytes / parts) < GROUPS_WANTED {
        bytes /= 2;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_as_large_as_sixteen_of_them_allow() {
        for (device_bytes, group_bytes) in
            [(16 << 20, 1 << 20), (40 << 20, 2 << 20), (1 << 30, 32 << 20), (10 << 30, 256 << 20), (1 << 44, 256 << 20)]
        {
            assert_eq!(choose_group_bytes(None, device_bytes, 1).unwrap(), group_bytes, "{device_bytes}");
        }
        assert_eq!(choose_group_bytes(Some(4 << 20), 16 << 20, 1).unwrap(), 4 << 20);
        assert!(choose_group_bytes(Some(3 << 20), 16 << 20, 1).is_err());
        assert!(choose_group_bytes(Some(512 << 20), 1 << 40, 1).is_err());
        assert!(choose_group_bytes(Some(16 << 20), 16 << 20, 1).is_err());
        assert!(choose_group_bytes(None, 1 << 20, 1).is_err());
        assert_eq!(choose_group_bytes(None, 40 << 20, 2).unwrap(), 1 << 20, "both copies on the one device");
    }

    #[test]
    fn what_does_not_fit_the_devices_is_refused_and_stripes_fit_their_groups() {
        let options = |data, stripe_unit| FormatOptions { data, stripe_unit, ..FormatOptions::default() };
        let large = [1 << 30; 4];
        for (data, unit, devices, why) in [
            (DataProfile::Raid5, None, 2, "raid5 needs at least 3 devices, but there are 2"),
            (DataProfile::Raid1, None, 1, "raid1 needs at least 2 devices, but there is 1"),
            (DataProfile::Raid0, Some(3000), 2, "a stripe unit of 3000 bytes"),
            (DataProfile::Raid5, Some(2 << 20), 3, "a stripe unit of 2 MiB"),
            (DataProfile::Single, Some(4096), 1, "single has no stripes"),
        ] {
            let error = choose(&options(data, unit), &large[..devices]).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let error = choose(&options(DataProfile::Raid5, None), &[1 << 30; 17]).unwrap_err().to_string();
        assert!(error.contains("at most 16"), "{error}");
        let (stripes, group_bytes) = choose(&options(DataProfile::Raid5, None), &large).unwrap();
        assert_eq!(stripes, Some(StripeProfile { profile: PROFILE_RAID5, unit_blocks: 128, columns: 4 }));
        assert_eq!(group_bytes, 128 << 20, "16 columns of a third of it on each device");
        let (_, group_bytes) = choose(&options(DataProfile::Raid5, None), &[16 << 20; 4]).unwrap();
        assert_eq!(group_bytes, 2 << 20, "room for one stripe");
    }
}
