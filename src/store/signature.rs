//! What a device already holds: known magic numbers, so that mkfs does not destroy a file system by a mistyped name.

use crate::disk::Disk;
use crate::disk::label::LABEL_MAGIC;
use crate::disk::superblock::SUPERBLOCK_MAGIC;
use crate::error::Result;
use crate::units::{BLOCK_SIZE, block_floor};

/// Offset, bytes, and what they announce. The more exact ones come first: a partition table's mark is in other formats too.
const SIGNATURES: &[(u64, &[u8], &str)] = &[
    (0, &LABEL_MAGIC, "a device of another sumfs store"),
    (0, &SUPERBLOCK_MAGIC, "the superblock of a sumfs store"),
    (0, b"LUKS\xba\xbe", "a LUKS container"),
    (0, b"XFSB", "an XFS file system"),
    (0, b"hsqs", "a squashfs file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (512, b"LABELONE", "an LVM physical volume"),
    (1024, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (4096 + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", "a bcachefs file system"),
    (0, b"\xfc\x4e\x2b\xa9", "a RAID member"),
    (4096, b"\xfc\x4e\x2b\xa9", "a RAID member"),
    (4086, b"SWAPSPACE2", "swap space"),
    (4086, b"SWAP-SPACE", "swap space"),
    (32769, b"CD001", "an ISO 9660 file system"),
    (65536 + 64, b"_BHRfS_M", "a btrfs file system"),
    (512, b"EFI PART", "a partition table (GPT)"),
    (4096, b"EFI PART", "a partition table (GPT)"),
    (510, b"\x55\xaa", "a partition table or boot sector"),
];

/// What `disk` seems to hold; None when no signature is known.
pub(super) fn find(disk: &dyn Disk) -> Result<Option<&'static str>> {
    let len = disk.len()?;
    for (offset, magic, name) in SIGNATURES {
        if matches(disk, len, *offset, magic)? {
            return Ok(Some(name));
        }
    }
    let last = block_floor(len).saturating_sub(BLOCK_SIZE);
    Ok(matches(disk, len, last, &LABEL_MAGIC)?.then_some("a device of another sumfs store"))
}

fn matches(disk: &dyn Disk, len: u64, offset: u64, magic: &[u8]) -> Result<bool> {
    if offset + magic.len() as u64 > len {
        return Ok(false);
    }
    let mut found = vec![0; magic.len()];
    disk.read_at(offset, &mut found)?;
    Ok(found == magic)
}

/// Are the first `bytes` all zeros (as far as the disk goes)?
pub(super) fn is_blank(disk: &dyn Disk, bytes: u64) -> Result<bool> {
    let mut block = vec![0; 64 << 10];
    let end = disk.len()?.min(bytes);
    let mut at = 0;
    while at < end {
        let count = (end - at).min(block.len() as u64);
        let Some(into) = block.get_mut(..count as usize) else { break };
        disk.read_at(at, into)?;
        if into.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += count;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::memory::MemoryDisk;

    #[test]
    fn every_signature_is_found_where_it_belongs() {
        for (offset, magic, name) in SIGNATURES {
            let disk = MemoryDisk::new("device", 1 << 20);
            disk.write_at(*offset, magic).unwrap();
            assert_eq!(find(&disk).unwrap(), Some(*name));
        }
        let disk = MemoryDisk::new("device", (1 << 20) + 9);
        disk.write_at((1 << 20) - BLOCK_SIZE, &LABEL_MAGIC).unwrap();
        assert_eq!(find(&disk).unwrap(), Some("a device of another sumfs store"));
    }

    #[test]
    fn blank_and_short_disks_hold_nothing() {
        for len in [0, 1, 511, 5000, 1 << 20] {
            let disk = MemoryDisk::new("device", len);
            assert_eq!(find(&disk).unwrap(), None);
            assert!(is_blank(&disk, 1 << 20).unwrap());
        }
        let disk = MemoryDisk::new("device", 200_000);
        disk.write_at(150_000, &[1]).unwrap();
        assert!(!is_blank(&disk, 1 << 20).unwrap());
        assert!(is_blank(&disk, 150_000).unwrap());
    }
}
