//! Where the data of a file lies, for `sumfs map`.

use super::Filesystem;
use crate::error::Result;
use crate::extent::FileExtents;
use crate::extent::load::Data;
use crate::units::{BLOCK_SIZE, InodeNumber, block_ceil};
use serde_json::{Value, json};

/// Ranges told in one answer; a file with more says so.
const RANGES_MAX: usize = 1 << 20;

impl Filesystem {
    /// The ranges of a file, after everything dirty is written back: offset and length in bytes, and for data the logical block,
    /// the device and the byte offset on it. Neighbours that lie side by side in one extent are one range.
    pub fn file_layout(&self, inode: InodeNumber) -> Result<Value> {
        let inode = self.inode(inode)?;
        let file = inode.regular()?;
        if !self.options.read_only {
            self.write_back(&inode, 0..u64::MAX)?;
            self.collect(&inode)?;
        }
        let size = file.size();
        let pieces = FileExtents::lock_loaded(&file.extents.map, &self.meta, 0, block_ceil(size))?.pieces(0, block_ceil(size));
        let extents = pieces.iter().filter(|piece| piece.data.is_some()).count();
        let mut ranges = Vec::new();
        for piece in pieces.iter().take(RANGES_MAX) {
            match &piece.data {
                None => ranges.push(json!({ "offset": piece.offset, "length": piece.length, "kind": "zeros" })),
                Some(data) if data.is_lost() => {
                    ranges.push(json!({ "offset": piece.offset, "length": data.valid, "kind": "lost" }));
                }
                Some(data) => self.add_ranges(piece.offset, data, &mut ranges)?,
            }
        }
        let mebibytes = (size.div_ceil(BLOCK_SIZE) * BLOCK_SIZE) as f64 / f64::from(1 << 20);
        Ok(json!({
            "inode": inode.number.0, "size": size, "extents": extents,
            "extents_per_mebibyte": if size == 0 { 0.0 } else { extents as f64 / mebibytes },
            "ranges": ranges,
        }))
    }

    /// A piece, cut where it goes on on another device.
    fn add_ranges(&self, mut offset: u64, data: &Data, ranges: &mut Vec<Value>) -> Result<()> {
        let (mut block, mut left) = (data.block(), data.valid);
        while left > 0 {
            let place = self.space.place(block)?;
            let blocks = self.space.blocks_in_one_place(block, left.div_ceil(BLOCK_SIZE))?;
            let length = left.min(blocks * BLOCK_SIZE);
            ranges.push(json!({
                "offset": offset, "length": length, "kind": "data", "block": block.0,
                "device": place.device, "device_offset": place.offset,
            }));
            (offset, left, block) = (offset + length, left - length, block.plus(blocks));
        }
        Ok(())
    }
}
