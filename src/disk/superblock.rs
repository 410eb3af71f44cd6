//! The superblock: what a store is, where its parts are, which features it uses, and whether it was unmounted cleanly.
//!
//! Two copies, at 0 and 64 KiB of the superblock disk, 4 KiB each, with a checksum and a generation; the newest whole one
//! counts. A write replaces the damaged or older copy first and makes it durable before it touches the other one, so that
//! whatever the moment of a crash one copy is whole, and a damaged copy is healed by the next write.
//!
//! ```text
//!  0 magic (8)       8 version u32       12 blocks per group u32   16 UUID (16)
//! 32 compat u64     40 ro-compat u64     48 incompat u64           56 generation u64
//! 64 journal bytes u64   72 clean u8 (1: the next field counts)    73 clean sequence u64
//! 81 label, journal path: u16 length and bytes each (length 65535: no journal path)
//!    number of devices u16, each: id u32, bytes u64, path (u16 length and bytes)
//!    with the feature `profile`: profile of new groups u8, blocks of a unit u32, most columns u32
//! 4092 crc32c
//! ```
//! A store whose incompat bits or version this program does not know is refused before anything else is looked at.

use super::Disk;
use super::buffer::AlignedBuffer;
use super::label::{is_sealed, read_block, seal_block};
use crate::error::{Error, Result};
use crate::units::{BLOCK, BLOCK_SIZE, NUMBER_MAX};

/// First bytes of a superblock.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"sumfsSUP";
/// Offsets of the copies.
pub const COPIES: [u64; 2] = [0, 64 << 10];
/// Bytes that the superblock disk must have.
pub const SUPERBLOCK_BYTES: u64 = (64 << 10) + BLOCK_SIZE;
/// The format version that this program writes and reads.
pub const VERSION: u32 = 0;
/// Incompat bit: the format is not frozen yet.
pub const INCOMPAT_UNSTABLE: u64 = 1 << 0;
/// Incompat bit: groups with two copies; new ones get two.
pub const INCOMPAT_DUP: u64 = 1 << 1;
/// Read-only-compat bit: inodes that chattr(1) protects from changes.
pub const RO_COMPAT_PROTECTED: u64 = 1 << 0;
/// Incompat bit: sled keeps the index, not redb.
pub const INCOMPAT_SLED: u64 = 1 << 2;

/// Incompat bit: the profile of new groups is named at the end of the superblock.
pub const INCOMPAT_PROFILE: u64 = 1 << 3;

/// Blocks of the smallest and the largest group (1 and 256 MiB).
pub const GROUP_BLOCKS_MIN: u32 = 256;
/// See above.
pub const GROUP_BLOCKS_MAX: u32 = 1 << 16;

const NO_PATH: u16 = u16::MAX;
const SUM_AT: usize = BLOCK - 4;

/// What a program that does not know a feature may still do with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureKind {
    /// Everything.
    Compat,
    /// Mount it read-only.
    ReadOnlyCompat,
    /// Nothing.
    Incompat,
}

/// Every feature bit that this program knows, with its name for people.
pub const FEATURES: &[(FeatureKind, u64, &str)] = &[
    (FeatureKind::Incompat, INCOMPAT_UNSTABLE, "unstable"),
    (FeatureKind::Incompat, INCOMPAT_DUP, "dup"),
    (FeatureKind::ReadOnlyCompat, RO_COMPAT_PROTECTED, "protected"),
    (FeatureKind::Incompat, INCOMPAT_SLED, "sled"),
    (FeatureKind::Incompat, INCOMPAT_PROFILE, "profile"),
];

/// The names of the features in `bits`; bits that nobody knows are called `bit N`.
pub fn feature_names(kind: FeatureKind, bits: u64) -> Vec<String> {
    (0..u64::BITS)
        .map(|number| (number, 1u64 << number))
        .filter(|(_, bit)| bits & bit != 0)
        .map(|(number, bit)| match FEATURES.iter().find(|feature| feature.0 == kind && feature.1 == bit) {
            Some((_, _, name)) => (*name).to_owned(),
            None => format!("bit {number}"),
        })
        .collect()
}

fn unknown_bits(kind: FeatureKind, bits: u64) -> u64 {
    FEATURES.iter().filter(|feature| feature.0 == kind).fold(bits, |bits, feature| bits & !feature.1)
}

/// A data device as the superblock knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceEntry {
    /// Number in the store, as in the device's label.
    pub id: u32,
    /// Bytes that the store uses, whole blocks.
    pub len: u64,
    /// Where it is: relative to the store's directory, or absolute.
    pub path: String,
}

/// The profile of new groups on several devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeProfile {
    /// `PROFILE_*` of `meta::records`.
    pub profile: u8,
    /// Blocks that follow each other on one column; 0 where nothing is striped.
    pub unit_blocks: u32,
    /// The most columns of a group.
    pub columns: u32,
}

/// The superblock's contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Superblock {
    /// UUID of the store.
    pub uuid: [u8; 16],
    /// Name given by the user, may be empty.
    pub label: String,
    /// Format version.
    pub version: u32,
    /// Features that others may ignore.
    pub compat: u64,
    /// Features that others may ignore when they only read.
    pub ro_compat: u64,
    /// Features that must be known.
    pub incompat: u64,
    /// Counts the writes.
    pub generation: u64,
    /// Blocks of 4 KiB in a group.
    pub blocks_per_group: u32,
    /// Length of the journal in bytes.
    pub journal_bytes: u64,
    /// The data devices.
    pub devices: Vec<DeviceEntry>,
    /// Where the journal is, if not in the store's directory.
    pub journal_path: Option<String>,
    /// What new groups get, where that is neither one copy nor two anywhere.
    pub profile: Option<StripeProfile>,
    /// Sequence of the last transaction before a clean unmount; None while mounted for writing, or after a crash.
    pub clean_sequence: Option<u64>,
}

/// A superblock that was read.
#[derive(Clone, Debug)]
pub struct FoundSuperblock {
    /// The newest whole copy.
    pub superblock: Superblock,
    /// Offsets of the copies that are damaged or unreadable (not those that are only older). The next write heals them.
    pub damaged_copies: Vec<u64>,
}

fn put_text(out: &mut Vec<u8>, text: &str) -> Result<()> {
    let len = u16::try_from(text.len()).ok().filter(|len| usize::from(*len) < BLOCK);
    let len = len.ok_or_else(|| Error::usage(format!("a name or path of {} bytes does not fit the superblock", text.len())))?;
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

/// Reads fields in order; None when the block ends or a text is not UTF-8.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }
    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.array()?))
    }
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.array()?))
    }
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.array()?))
    }
    fn optional_text(&mut self) -> Option<Option<String>> {
        match self.u16()? {
            NO_PATH => Some(None),
            len => Some(Some(std::str::from_utf8(self.bytes(usize::from(len))?).ok()?.to_owned())),
        }
    }
    fn text(&mut self) -> Option<String> {
        self.optional_text()?
    }
}

impl Superblock {
    /// The newest of the two copies on `disk`. Refuses (`Error::Usage`) versions and features that this program does not know;
    /// `Error::Corrupt` when neither copy is whole. Writes nothing.
    pub fn read(disk: &dyn Disk) -> Result<FoundSuperblock> {
        let copies = read_copies(disk);
        let newest = copies.iter().flatten().max_by_key(|copy| copy.generation);
        let Some(newest) = newest else {
            return Err(Error::corrupt(format!(
                "both copies of the superblock in {}: this is no sumfs store or its superblock is lost; \
                 put back a copy of that file",
                disk.name()
            )));
        };
        newest.check_known(disk.name())?;
        let superblock = newest.decode().ok_or_else(|| Error::corrupt(format!("layout of the superblock in {}", disk.name())))?;
        let damaged = COPIES.iter().zip(&copies).filter(|(_, copy)| copy.is_none());
        let damaged_copies: Vec<u64> = damaged.map(|(place, _)| *place).collect();
        for place in &damaged_copies {
            tracing::warn!("the superblock copy at offset {place} of {} is damaged; the other one is good", disk.name());
        }
        Ok(FoundSuperblock { superblock, damaged_copies })
    }

    /// Writes both copies with the next generation, each durable before the next; the one that is damaged or older goes first.
    /// After an error at least one copy, old or new, is whole.
    pub fn write(&mut self, disk: &dyn Disk) -> Result<()> {
        let copies = read_copies(disk);
        let newest = copies.iter().flatten().map(|copy| copy.generation).max().unwrap_or(0);
        self.generation = newest.max(self.generation).saturating_add(1);
        let block = AlignedBuffer::copy_of(&self.encode()?);
        let mut order: Vec<_> = COPIES.iter().zip(&copies).collect();
        order.sort_by_key(|(_, copy)| copy.as_ref().map(|copy| copy.generation));
        for (place, _) in order {
            disk.write_at(*place, &block)?;
            disk.flush()?;
        }
        Ok(())
    }

    /// Names of the read-only-compatible features that this program does not know; such a store may only be read.
    pub fn unknown_ro_compat(&self) -> Vec<String> {
        feature_names(FeatureKind::ReadOnlyCompat, unknown_bits(FeatureKind::ReadOnlyCompat, self.ro_compat))
    }

    /// Are new groups to have two copies, wherever?
    pub fn has_two_copies(&self) -> bool {
        self.incompat & INCOMPAT_DUP != 0
    }

    /// The block for one copy. `Error::Usage` when paths and label are too long for it.
    pub fn encode(&self) -> Result<[u8; BLOCK]> {
        let mut bytes = Vec::with_capacity(BLOCK);
        bytes.extend_from_slice(&SUPERBLOCK_MAGIC);
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes.extend_from_slice(&self.blocks_per_group.to_le_bytes());
        bytes.extend_from_slice(&self.uuid);
        for field in [self.compat, self.ro_compat, self.incompat, self.generation, self.journal_bytes] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes.push(u8::from(self.clean_sequence.is_some()));
        bytes.extend_from_slice(&self.clean_sequence.unwrap_or(0).to_le_bytes());
        put_text(&mut bytes, &self.label)?;
        match &self.journal_path {
            Some(path) => put_text(&mut bytes, path)?,
            None => bytes.extend_from_slice(&NO_PATH.to_le_bytes()),
        }
        let count = u16::try_from(self.devices.len()).map_err(|_| Error::usage("too many devices for the superblock"))?;
        bytes.extend_from_slice(&count.to_le_bytes());
        for device in &self.devices {
            bytes.extend_from_slice(&device.id.to_le_bytes());
            bytes.extend_from_slice(&device.len.to_le_bytes());
            put_text(&mut bytes, &device.path)?;
        }
        if let Some(profile) = self.profile.filter(|_| self.incompat & INCOMPAT_PROFILE != 0) {
            bytes.push(profile.profile);
            bytes.extend_from_slice(&profile.unit_blocks.to_le_bytes());
            bytes.extend_from_slice(&profile.columns.to_le_bytes());
        }
        if bytes.len() > SUM_AT {
            return Err(Error::usage(format!(
                "the label and the paths of the devices and the journal take {} bytes and the superblock holds {SUM_AT}; \
                 use shorter ones",
                bytes.len()
            )));
        }
        bytes.resize(BLOCK, 0);
        let mut block = [0; BLOCK];
        block.copy_from_slice(&bytes);
        seal_block(&mut block);
        Ok(block)
    }
}

/// A copy whose checksum matches, not understood yet: a newer program may have written it.
struct SealedCopy {
    block: [u8; BLOCK],
    version: u32,
    incompat: u64,
    generation: u64,
}

fn read_copies(disk: &dyn Disk) -> [Option<SealedCopy>; 2] {
    COPIES.map(|place| SealedCopy::of(read_block(disk, place).ok()?))
}

impl SealedCopy {
    fn of(block: [u8; BLOCK]) -> Option<SealedCopy> {
        let mut fields = Fields(&block);
        if fields.array()? != SUPERBLOCK_MAGIC || !is_sealed(&block) {
            return None;
        }
        let version = fields.u32()?;
        fields.bytes(4 + 16 + 8 + 8)?;
        let (incompat, generation) = (fields.u64()?, fields.u64()?);
        Some(SealedCopy { block, version, incompat, generation })
    }

    fn check_known(&self, name: &str) -> Result<()> {
        if self.version != VERSION {
            return Err(Error::usage(format!(
                "{name} says format version {}; this sumfs knows version {VERSION} only: use the sumfs that made the store",
                self.version
            )));
        }
        let unknown = unknown_bits(FeatureKind::Incompat, self.incompat);
        if unknown == 0 {
            return Ok(());
        }
        let names = feature_names(FeatureKind::Incompat, unknown).join(", ");
        Err(Error::usage(format!("{name} uses features that this sumfs does not know (incompat {names}): use a newer sumfs")))
    }

    fn decode(&self) -> Option<Superblock> {
        let mut fields = Fields(self.block.get(SUPERBLOCK_MAGIC.len()..SUM_AT)?);
        let mut superblock = Superblock {
            version: fields.u32()?,
            blocks_per_group: fields.u32()?,
            uuid: fields.array()?,
            compat: fields.u64()?,
            ro_compat: fields.u64()?,
            incompat: fields.u64()?,
            generation: fields.u64()?,
            journal_bytes: fields.u64()?,
            ..Superblock::default()
        };
        let [clean] = fields.array()?;
        let sequence = fields.u64()?;
        superblock.clean_sequence = (clean == 1).then_some(sequence);
        superblock.label = fields.text()?;
        superblock.journal_path = fields.optional_text()?;
        for _ in 0..fields.u16()? {
            superblock.devices.push(DeviceEntry { id: fields.u32()?, len: fields.u64()?, path: fields.text()? });
        }
        if superblock.incompat & INCOMPAT_PROFILE != 0 {
            let [profile] = fields.array()?;
            superblock.profile = Some(StripeProfile { profile, unit_blocks: fields.u32()?, columns: fields.u32()? });
        }
        let fits = superblock.blocks_per_group.is_power_of_two()
            && (GROUP_BLOCKS_MIN..=GROUP_BLOCKS_MAX).contains(&superblock.blocks_per_group)
            && superblock.devices.iter().all(|device| device.len <= NUMBER_MAX);
        (fits && clean <= 1).then_some(superblock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::memory::MemoryDisk;
    use crate::disk::over::OverDisk;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn sample() -> Superblock {
        Superblock {
            uuid: *b"0123456789abcdef",
            label: "my files".to_owned(),
            version: VERSION,
            compat: 6,
            ro_compat: 0,
            incompat: INCOMPAT_UNSTABLE,
            generation: 0,
            profile: None,
            blocks_per_group: 256,
            journal_bytes: 1 << 20,
            devices: vec![
                DeviceEntry { id: 1, len: 1 << 30, path: "device.0".to_owned() },
                DeviceEntry { id: 2, len: 4096, path: "/dev/sdx".to_owned() },
            ],
            journal_path: Some("/dev/sdy".to_owned()),
            clean_sequence: Some(77),
        }
    }

    fn disk() -> MemoryDisk {
        MemoryDisk::new("superblock", SUPERBLOCK_BYTES)
    }

    #[test]
    fn the_profile_of_new_groups_comes_back_and_goes_with_its_feature() {
        let profile = Some(StripeProfile { profile: 5, unit_blocks: 128, columns: 4 });
        let disk = MemoryDisk::new("superblock", SUPERBLOCK_BYTES);
        let mut superblock = Superblock { profile, incompat: INCOMPAT_UNSTABLE | INCOMPAT_PROFILE, ..sample() };
        superblock.write(&disk).unwrap();
        assert_eq!(Superblock::read(&disk).unwrap().superblock.profile, profile);
    }

    #[test]
    fn reads_back_what_was_written() {
        let disk = disk();
        for change in 0..3u64 {
            let mut written = sample();
            written.clean_sequence = (change != 1).then_some(change);
            written.journal_path = (change != 2).then(|| "j".to_owned());
            written.write(&disk).unwrap();
            let found = Superblock::read(&disk).unwrap();
            assert_eq!(found.superblock, written);
            assert_eq!(found.superblock.generation, change + 1);
            assert!(found.damaged_copies.is_empty());
        }
    }

    #[test]
    fn one_damaged_copy_is_reported_and_healed_by_the_next_write() {
        for place in COPIES {
            let disk = disk();
            sample().write(&disk).unwrap();
            disk.write_at(place + 300, &[9]).unwrap();
            let mut found = Superblock::read(&disk).unwrap();
            assert_eq!(found.damaged_copies, vec![place]);
            found.superblock.write(&disk).unwrap();
            assert_eq!(Superblock::read(&disk).unwrap().damaged_copies, Vec::<u64>::new());
        }
    }

    #[test]
    fn both_damaged_is_a_clear_error() {
        let disk = disk();
        let error = Superblock::read(&disk).unwrap_err();
        assert!(matches!(&error, Error::Corrupt(text) if text.contains("both copies")), "{error}");
        assert!(Superblock::read(&MemoryDisk::new("empty", 0)).is_err());
    }

    #[test]
    fn numbers_that_no_store_has_are_damage() {
        let changes: [fn(&mut Superblock); 4] = [
            |superblock| superblock.blocks_per_group = 1 << 31,
            |superblock| superblock.blocks_per_group = 1,
            |superblock| superblock.blocks_per_group = 300,
            |superblock| superblock.devices[1].len = u64::MAX,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let disk = disk();
            let mut forged = sample();
            change(&mut forged);
            forged.write(&disk).unwrap();
            assert!(matches!(Superblock::read(&disk), Err(Error::Corrupt(_))), "change {number}");
        }
    }

    #[test]
    fn the_highest_generation_can_be_followed() {
        let disk = disk();
        let mut forged = sample();
        forged.generation = u64::MAX - 1;
        forged.write(&disk).unwrap();
        forged.label = "new".to_owned();
        forged.write(&disk).unwrap();
        assert_eq!(Superblock::read(&disk).unwrap().superblock.label, "new");
    }

    #[test]
    fn every_flipped_byte_of_a_copy_is_noticed() {
        let block = sample().encode().unwrap();
        for at in 0..BLOCK {
            let mut bad = block;
            bad[at] ^= 1;
            assert!(SealedCopy::of(bad).is_none(), "byte {at}");
        }
    }

    #[test]
    fn unknown_features_and_versions_are_refused_by_name() {
        let disk = disk();
        let mut superblock = Superblock { incompat: INCOMPAT_UNSTABLE | 1 << 5 | 1 << 63, ..sample() };
        superblock.write(&disk).unwrap();
        let error = Superblock::read(&disk).unwrap_err().to_string();
        assert!(error.contains("bit 5, bit 63") && !error.contains("unstable"), "{error}");
        let mut superblock = Superblock { version: 9, ..sample() };
        superblock.write(&disk).unwrap();
        assert!(Superblock::read(&disk).unwrap_err().to_string().contains("version 9"));
        let superblock = Superblock { ro_compat: 8, ..sample() };
        assert_eq!(superblock.unknown_ro_compat(), vec!["bit 3"]);
        assert_eq!(feature_names(FeatureKind::Incompat, 0b10_0111), vec!["unstable", "dup", "sled", "bit 5"]);
    }

    #[test]
    fn too_long_paths_are_refused() {
        let mut superblock = sample();
        superblock.devices = (0..40).map(|id| DeviceEntry { id, len: 1, path: "x".repeat(100) }).collect();
        assert!(superblock.write(&disk()).unwrap_err().to_string().contains("use shorter ones"));
        superblock.devices = vec![DeviceEntry { id: 1, len: 1, path: "x".repeat(70_000) }];
        assert!(superblock.write(&disk()).is_err());
    }

    /// Tears the write that follows after `left` whole ones, and fails from then on.
    #[derive(Debug)]
    struct TearingDisk {
        inner: MemoryDisk,
        left: AtomicU64,
    }

    impl OverDisk for TearingDisk {
        fn below(&self) -> &dyn Disk {
            &self.inner
        }

        fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
            match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
                Ok(_) => self.inner.write_at(offset, from),
                Err(_) => {
                    self.inner.write_at(offset, &from[..512])?;
                    Err(Error::corrupt("torn"))
                }
            }
        }
    }

    #[test]
    fn a_torn_write_always_leaves_one_whole_copy() {
        for damaged in [None, Some(COPIES[0]), Some(COPIES[1])] {
            for left in 0..2 {
                let disk = TearingDisk { inner: disk(), left: AtomicU64::new(2 + left) };
                let mut superblock = sample();
                superblock.write(&disk).unwrap();
                if let Some(place) = damaged {
                    disk.inner.write_at(place + 900, &[5]).unwrap();
                }
                superblock.label = "new".to_owned();
                assert!(superblock.write(&disk).is_err());
                let found = Superblock::read(&disk).unwrap().superblock;
                assert_eq!(found.label, if left == 0 { "my files" } else { "new" }, "damaged {damaged:?}");
            }
        }
    }
}
