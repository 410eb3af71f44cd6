//! The metadata's side of its image (`image.rs`): logging what is applied, the steps of a new base, looking whether all of it is as it was
//! written. Holds the apply role only to log and to take a snapshot, never while a base is written.

use super::image::{Image, Work};
use super::image_format::{ImageRecord, Link};
use super::image_scan::Scan;
use super::layers::Overlay;
use super::merged::Merged;
use super::records::{self, CheckpointRecord};
use super::schema;
use super::transaction::Metadata;
use crate::disk::Disk;
use crate::error::Result;
use serde_json::{Value, json};
use std::sync::Arc;

impl Metadata {
    /// From now on keeps an image in these files, going on with the one that the index names. For a store that is opened for writing.
    pub fn keep_image(&mut self, disks: [Arc<dyn Disk>; 2], store: [u8; 16]) -> Result<()> {
        let record = self.layers.get(&schema::image())?.map(|record| ImageRecord::decode(&record)).transpose();
        let record = record.inspect_err(|error| tracing::warn!("{error}")).ok().flatten();
        self.image = Some(Image::open(disks, store, record, self.journal_bytes));
        Ok(())
    }

    /// Figures of the image: of the open one, else of what the index says of it.
    pub(super) fn image_status(&self) -> Value {
        if let Some(image) = &self.image {
            return image.status();
        }
        let record = self.index.snapshot().and_then(|snapshot| snapshot.get(&schema::image())).ok().flatten();
        match record.and_then(|record| ImageRecord::decode(&record).ok()) {
            Some(record) => json!({
                "state": "current",
                "generation": record.generation,
                "completed": record.completed,
                "base_bytes": record.base_bytes,
                "log_bytes": record.log_bytes(),
            }),
            None => json!({ "state": "none" }),
        }
    }

    /// Is a complete image waiting to become the current one?
    pub(super) fn has_image_to_record(&self) -> bool {
        self.image.as_ref().is_some_and(|image| image.work() == Work::Record)
    }

    /// Logs what is about to be applied; for a checkpoint makes that durable and adds to `extra` where the image ends.
    pub(super) fn log_to_image(&self, overlays: &[Overlay], extra: &mut Overlay, checkpoint: Option<CheckpointRecord>) {
        let key = schema::image();
        let Some(image) = &self.image else {
            // Another program may have opened the store without its image files: what the index says of them would be wrong.
            if checkpoint.is_some() {
                extra.insert(key, None);
            }
            return;
        };
        let newest_first = std::iter::once(&*extra).chain(overlays.iter().rev());
        image.append(Merged::new(newest_first, ..), checkpoint.map(|position| position.sequence));
        if checkpoint.is_some() {
            let value = image.settle().map(|record| records::seal(&key, record.encode()));
            extra.insert(key, value);
        }
    }

    /// Is there something to do for the image?
    pub fn has_image_work(&self) -> bool {
        self.image.as_ref().is_some_and(|image| image.work() != Work::Nothing)
    }

    /// Does the next step for the image. Its own failures are no errors of the store's; an error comes from the index.
    pub fn work_on_image(&self) -> Result<()> {
        let Some(image) = &self.image else { return Ok(()) };
        match image.work() {
            Work::Nothing => {}
            Work::Begin => {
                let Some(place) = image.prepare() else { return Ok(()) };
                let _role = self.apply.lock();
                self.latch.check()?;
                image.begin(place, self.index.snapshot()?);
            }
            Work::Base => image.write_base(),
            Work::Record => self.checkpoint()?,
        }
        Ok(())
    }

    /// The image is not to be relied upon: a new base is due.
    pub fn suspect_image(&self) {
        if let Some(image) = &self.image {
            image.suspect();
        }
    }

    /// Writes an image now if there is none that can be relied upon: before the store is closed.
    pub fn finish_image(&self) -> Result<()> {
        while self.image.as_ref().is_some_and(|image| !image.is_settled()) && self.has_image_work() {
            self.work_on_image()?;
        }
        Ok(())
    }

    /// Reads all of the current image, as long as `goes_on`: how many of its frames are bad (then a new base is due); None when
    /// `goes_on` ended it.
    pub fn verify_image_while(&self, goes_on: &dyn Fn() -> bool) -> Result<Option<u64>> {
        let Some(image) = &self.image else { return Ok(Some(0)) };
        let found = {
            // Who applies may be writing a frame: what was reserved before is written then.
            let _role = self.apply.lock();
            image.current()
        };
        let Some((record, disk)) = found else { return Ok(Some(0)) };
        let bad = match self.bad_frames(image, record, &disk, goes_on) {
            Ok(None) => return Ok(None),
            Ok(Some(bad)) => bad,
            Err(error) => {
                tracing::warn!("reading the metadata image: {error}");
                1
            }
        };
        if bad > 0 && image.current().is_some_and(|(now, _)| now.generation == record.generation) {
            tracing::warn!("{bad} frames of the metadata image {} are bad; it is written anew", disk.name());
            image.suspect();
        }
        Ok(Some(bad))
    }

    fn bad_frames(
        &self,
        image: &Image,
        record: ImageRecord,
        disk: &Arc<dyn Disk>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Option<u64>> {
        let mut is_ended = false;
        let scan = Scan::of(disk, record.place, image.store(), record.end, &mut |_| {
            is_ended = !goes_on();
            !is_ended
        })?;
        if is_ended {
            return Ok(None);
        }
        let Some(scan) = scan.filter(|scan| scan.header.generation == record.generation) else { return Ok(Some(1)) };
        let ends_right = scan.last_log == Link { number: record.log_number, previous: record.log_previous };
        Ok(Some(scan.bad.max(u64::from(!scan.is_complete || !ends_right))))
    }
}
