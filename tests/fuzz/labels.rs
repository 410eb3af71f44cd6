//! The targets `superblock` and `label`: blocks with a checksum at their end, in two copies.

use crate::format::seal_block;
use crate::mutation::change_bytes;
use crate::runner::Target;
use crate::simulated_disk::Random;
use sumfs::disk::Disk;
use sumfs::disk::label::{self, Label};
use sumfs::disk::memory::{MemoryDisk, MemoryImage};
use sumfs::disk::superblock::{COPIES, DeviceEntry, INCOMPAT_UNSTABLE, SUPERBLOCK_BYTES, Superblock, VERSION};
use sumfs::units::{BLOCK, BLOCK_SIZE};

const DEVICE_BYTES: u64 = 2 << 20;

/// Changes one or both of the copies, sealed again half of the time; then perhaps the length of the disk.
fn mutate_copies(image: &mut MemoryImage, places: [u64; 2], random: &mut Random, steps: &mut Vec<String>) {
    for place in places {
        if random.once_in(4) {
            continue;
        }
        let mut block = vec![0; BLOCK];
        image.read(place, &mut block);
        for _ in 0..1 + random.below(4) {
            // Nearly all of the block is zeros behind a few fields.
            let upto = if random.once_in(5) { BLOCK } else { 160 };
            steps.push(format!("copy at {place}: {}", change_bytes(random, &mut block[..upto])));
        }
        if random.once_in(2) {
            seal_block(&mut block);
            steps.push("sealed".to_owned());
        }
        image.write(place, &block);
    }
    if random.once_in(20) {
        let len = [0, 1, BLOCK_SIZE, BLOCK_SIZE + 1, 3 * BLOCK_SIZE, image.len() - 1][random.below(6) as usize];
        image.set_len(len);
        steps.push(format!("the disk has {len} bytes"));
    }
}

/// The superblock.
pub struct Superblocks {
    samples: Vec<MemoryImage>,
}

impl Superblocks {
    pub fn new() -> Superblocks {
        let sample = |devices: u32, journal_path: Option<&str>| {
            let disk = MemoryDisk::new("superblock", SUPERBLOCK_BYTES);
            let mut superblock = Superblock {
                uuid: [7; 16],
                label: "label".to_owned(),
                version: VERSION,
                incompat: INCOMPAT_UNSTABLE,
                blocks_per_group: 256,
                journal_bytes: 1 << 20,
                devices: (0..devices).map(|id| DeviceEntry { id, len: 9 << 20, path: format!("device.{id}") }).collect(),
                journal_path: journal_path.map(str::to_owned),
                clean_sequence: Some(9),
                ..Superblock::default()
            };
            superblock.write(&disk).expect("a superblock");
            superblock.write(&disk).expect("a superblock");
            disk.image()
        };
        Superblocks { samples: vec![sample(1, None), sample(2, Some("/dev/journal")), sample(100, None)] }
    }
}

impl Target for Superblocks {
    fn case(&mut self, random: &mut Random, steps: &mut Vec<String>) -> Result<bool, String> {
        let mut image = self.samples[random.below(self.samples.len() as u64) as usize].clone();
        mutate_copies(&mut image, COPIES, random, steps);
        let disk = MemoryDisk::from_image("superblock", image);
        let Ok(found) = Superblock::read(&disk) else { return Ok(false) };
        let mut superblock = found.superblock;
        superblock.unknown_ro_compat();
        if superblock.write(&disk).is_ok() {
            let again = Superblock::read(&disk).map_err(|error| format!("what was written does not read: {error}"))?;
            if again.superblock != superblock {
                return Err(format!("{superblock:?} reads as {:?}", again.superblock));
            }
        }
        Ok(true)
    }
}

/// The labels of a device.
pub struct Labels {
    sample: MemoryImage,
}

impl Labels {
    pub fn new() -> Labels {
        let disk = MemoryDisk::new("device", DEVICE_BYTES);
        let label = Label { store: [3; 16], device_uuid: [4; 16], device_id: 1, device_bytes: DEVICE_BYTES, generation: 5 };
        label::write(&disk, &label).expect("labels");
        Labels { sample: disk.image() }
    }
}

impl Target for Labels {
    fn case(&mut self, random: &mut Random, steps: &mut Vec<String>) -> Result<bool, String> {
        let mut image = self.sample.clone();
        mutate_copies(&mut image, [0, DEVICE_BYTES - BLOCK_SIZE], random, steps);
        let disk = MemoryDisk::from_image("device", image);
        let Ok(found) = label::read(&disk, false) else { return Ok(false) };
        let area = label::data_area(found.label.device_bytes);
        if area.start > area.end {
            return Err(format!("the area {area:?}"));
        }
        let healed = label::read(&disk, true).map_err(|error| format!("healing: {error}"))?;
        let again = label::read(&disk, false).map_err(|error| format!("after healing: {error}"))?;
        if again.label != healed.label || disk.len().is_ok_and(|len| len > 2 * BLOCK_SIZE) && !again.damaged_copies.is_empty() {
            return Err(format!("{found:?} healed to {again:?}"));
        }
        Ok(true)
    }
}
