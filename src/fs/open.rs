//! Opening and closing a store.

use super::background::Signals;
use super::inode_table::InodeTable;
use super::{Filesystem, Options};
use crate::cache::Cache;
use crate::disk::label;
use crate::disk::superblock::Superblock;
use crate::error::{Error, Result};
use crate::extent::Extents;
use crate::extent::checksum::Checksummer;
use crate::lock::{Rank, RankedMutex};
use crate::meta::latch::Latch;
use crate::meta::records::DeviceRecord;
use crate::meta::schema;
use crate::meta::{Metadata, Parts};
use crate::space::Plan;
use crate::stats::Stats;
use crate::store::{Disks, open_index};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Share of the cache budget that the index has, and its bounds in bytes.
const INDEX_CACHE_SHARE: u64 = 4;
const INDEX_CACHE_BYTES: (u64, u64) = (8 << 20, 128 << 20);

impl Filesystem {
    /// Opens a store: replays the journal, finishes truncations, starts the threads. With `read_only` no byte is written.
    pub fn open(disks: Disks, options: Options) -> Result<Arc<Filesystem>> {
        let found = Superblock::read(&*disks.superblock)?;
        let superblock = found.superblock;
        for copy in &found.damaged_copies {
            tracing::warn!(
                "superblock copy at {copy} is damaged; the other one is used{}",
                if options.read_only { "" } else { " and it is written anew" }
            );
        }
        let stats = Arc::new(Stats::default());
        let latch = Arc::new(Latch::default());
        let index_bytes = (options.cache_bytes / INDEX_CACHE_SHARE).clamp(INDEX_CACHE_BYTES.0, INDEX_CACHE_BYTES.1);
        let index = open_index(&disks, index_bytes as usize, options.read_only).map_err(|error| with_way_out(&disks, error))?;
        let mut devices = Vec::new();
        for (entry, disk) in superblock.devices.iter().zip(&disks.devices) {
            let area = label::data_area(entry.len);
            devices.push((entry.id, disk.clone(), (area.start, area.end)));
        }
        let (mut meta, replayed) = Metadata::open(Parts {
            store_id: superblock.uuid,
            index,
            journal: disks.journal.clone(),
            devices,
            blocks_per_group: superblock.blocks_per_group,
            plan: Plan::of(&superblock),
            stats: stats.clone(),
            latch: latch.clone(),
        })
        .map_err(|error| if matches!(error, Error::Corrupt(_)) { with_way_out(&disks, error) } else { error })?;
        meta.space().check_not_lost()?;
        refuse_others(&meta)?;
        meta.space().compare_generations();
        if let Some(images) = disks.images.clone().filter(|_| !options.read_only) {
            meta.keep_image(images, superblock.uuid)?;
        }
        if replayed.transactions > 0 {
            tracing::info!("replayed {} transactions from the journal", replayed.transactions);
        }
        if options.read_only {
            latch.set("mounted read-only", false);
        }
        let filesystem = Arc::new(Self::assemble(meta, stats, superblock, &disks, options, index_bytes));
        filesystem.begin_use()?;
        Ok(filesystem)
    }

    fn assemble(
        meta: Metadata,
        stats: Arc<Stats>,
        superblock: Superblock,
        disks: &Disks,
        options: Options,
        index_bytes: u64,
    ) -> Filesystem {
        let meta = Arc::new(meta);
        let space = meta.space().clone();
        let extents = Arc::new(Extents {
            meta: meta.clone(),
            space: space.clone(),
            checksummer: Checksummer::new(options.checksum_inline_max_bytes),
            stats: stats.clone(),
            read_order: options.read_order,
        });
        let budget = options.cache_bytes.saturating_sub(index_bytes).max(8 << 20);
        let cache = Cache::new(extents.clone(), stats.clone(), budget, !options.kernel_caches, options.plug);
        Filesystem {
            meta,
            space,
            extents,
            cache: Arc::new(cache),
            stats,
            options,
            table: InodeTable::default(),
            names: RankedMutex::new(Rank::Names, ()),
            listed: Default::default(),
            role: Default::default(),
            reap_queue: Default::default(),
            activity: Default::default(),
            is_commit_asked: Default::default(),
            signals: Signals::default(),
            scrub: Default::default(),
            relocation: Default::default(),
            image_worker: Default::default(),
            threads: Default::default(),
            superblock: superblock.into(),
            superblock_disk: disks.superblock.clone(),
            reported: Default::default(),
            is_host_full: Default::default(),
            is_finding_space: Default::default(),
        }
    }

    fn begin_use(self: &Arc<Filesystem>) -> Result<()> {
        self.load_scrub()?;
        self.load_relocation()?;
        if self.meta.latch().check().is_err() {
            return Ok(());
        }
        {
            let mut superblock = self.superblock.lock();
            superblock.clean_sequence = None;
            superblock.write(&*self.superblock_disk)?;
        }
        self.settle_devices()?;
        if self.space.counts().groups == 0 {
            self.open_group()?;
        }
        self.take_up_orphans()?;
        if self.options.background {
            self.start_threads()?;
        }
        Ok(())
    }

    /// Makes everything durable, checkpoints and marks the store as cleanly closed. Nothing may be called afterwards. With
    /// the latch set, what is acknowledged is in the journal already, and the reason is returned.
    pub fn shutdown(&self) -> Result<()> {
        self.stop_threads();
        if self.options.read_only {
            return Ok(());
        }
        self.meta.latch().check()?;
        self.reap_all()?;
        self.sync()?;
        self.meta.checkpoint()?;
        self.meta.finish_image()?;
        let mut superblock = self.superblock.lock();
        superblock.clean_sequence = Some(self.meta.durable_sequence());
        superblock.write(&*self.superblock_disk)?;
        self.stats.healed_index_pages.store(self.meta.index().healed_count(), Ordering::Relaxed);
        Ok(())
    }
}

/// A device that was replaced or removed may come back under the path, and even the number, of another one.
fn refuse_others(meta: &Metadata) -> Result<()> {
    for (id, disk) in meta.space().disks().iter().filter(|(_, disk)| !disk.is_missing()) {
        let record = meta.get(&schema::device(*id)).ok().flatten().and_then(|record| DeviceRecord::decode(&record).ok());
        let (Ok(found), Some(record)) = (label::read(&**disk, false), record) else { continue };
        if found.label.device_uuid != record.uuid {
            return Err(Error::usage(format!(
                "{} is not the device {id} that the store knows: its label has another UUID, as that of one that was replaced or removed; \
                 put the right one there",
                disk.name()
            )));
        }
    }
    Ok(())
}

/// An index of which both copies are lost need not be the end.
fn with_way_out(disks: &Disks, error: Error) -> Error {
    let store = Path::new(disks.index.name()).parent().map_or_else(|| "STORE".into(), Path::to_string_lossy);
    let way_out = format!("an index can be made anew from the metadata image with: sumfs index rebuild {store}");
    match error {
        Error::Corrupt(what) => Error::Corrupt(format!("{what}; {way_out}")),
        Error::Io { doing, source } => {
            Error::Io { doing: format!("{doing} (if that cannot be read any more: {way_out})"), source }
        }
        error => error,
    }
}
