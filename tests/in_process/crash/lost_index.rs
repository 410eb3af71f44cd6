//! Power cuts that take the index with them: half of the machines that are switched on again find it gone in both copies, and make it
//! anew from the metadata image and the journal. All that was acknowledged must be there (D8), as if nothing had been lost. New
//! images are begun, and go on by steps, between the operations, so that cuts meet every moment of writing one.

use super::{Setting, must_notice, run_seeds};
use crate::memory_store::MemoryStore;
use crate::simulated_disk::{Random, SimulatedPower};
use sumfs::disk::superblock::Superblock;
use sumfs::fs::Filesystem;
use sumfs::meta::redb_index::RedbIndex;
use sumfs::meta::restore::Restore;

const INDEX_CACHE_BYTES: usize = 8 << 20;
const SEEDS: u64 = 6;

/// The store with a first image: before there is one, an index that is lost is lost.
pub(super) fn begin(store: MemoryStore, power: &SimulatedPower) -> Result<MemoryStore, String> {
    let store = store.with_images(power);
    let options = sumfs::fs::Options { background: false, ..sumfs::fs::Options::default() };
    let fs = store.open_with(options);
    fs.shutdown().map_err(|error| format!("shutdown of the empty store: {error}"))?;
    Ok(store)
}

/// Now and then the next step of a new image, or the wish for one.
pub(super) fn work_on_image(fs: &Filesystem, setting: &Setting, random: &mut Random) -> Result<(), String> {
    if !setting.keeps_image {
        return Ok(());
    }
    if random.once_in(8) {
        fs.renew_image();
    }
    if random.once_in(3) && !setting.options.background {
        fs.image_step().map_err(|error| format!("a step of the image: {error}"))?;
    }
    Ok(())
}

/// Loses the index, in one of several ways, and makes it anew.
pub(super) fn lose_and_rebuild(store: &MemoryStore, seed: u64) -> Result<(), String> {
    let text = |error: sumfs::error::Error| error.to_string();
    let disks = &store.disks;
    disks.index.set_len(0).map_err(text)?;
    let superblock = Superblock::read(&*disks.superblock).map_err(text)?.superblock;
    let images = disks.images.as_ref().ok_or("no image is kept")?;
    let found = Restore::find(images, &disks.journal, superblock.uuid, superblock.clean_sequence, &mut |_, _, _| {});
    let found = found.map_err(text)?;
    if let Some(missing) = found.source().missing {
        return Err(format!("{missing:?} is missing: {:?} (seed {seed})", found.source()));
    }
    let index = RedbIndex::create(disks.index.clone(), INDEX_CACHE_BYTES).map_err(text)?;
    found.fill(&index, &mut |_, _, _| {}).map_err(text)?;
    Ok(())
}

fn setting(background: bool) -> Setting {
    Setting { keeps_image: true, seeds: SEEDS, ..Setting::new(background) }
}

#[test]
fn an_index_lost_at_any_moment_is_made_anew_with_all_that_was_acknowledged() {
    run_seeds("lost index", &setting(false));
}

#[test]
fn an_index_lost_under_background_threads_is_made_anew() {
    run_seeds("lost index, background", &setting(true));
}

#[test]
fn canary_no_flush_of_the_images() {
    must_notice(setting(false), &["image.0", "image.1"]);
}
