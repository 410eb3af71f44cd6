//! `sumfs index convert`: another engine for the index of a store that is not mounted. The work is [`StoreDirectory::convert_index`].

use super::info::show_bytes;
use super::mkfs::parse_engine_argument;
use super::{Failure, LOCK_TIMEOUT, Outcome, WithCode, mountinfo, progress_bar};
use crate::store::{Engine, StoreDirectory};
use std::path::PathBuf;

/// Arguments of `sumfs index convert`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// What is to keep the index.
    #[arg(long, value_name = "redb|sled", value_parser = parse_engine_argument)]
    to: Engine,
    /// The store; not mounted.
    store: PathBuf,
}

/// Converts, and says what became of the index.
pub fn run(arguments: &Arguments) -> Outcome {
    let shown = arguments.store.display();
    if let Some(mount) = mountinfo::mount_of_store(&arguments.store).or_code(1)? {
        let at = mount.mountpoint.display();
        return Err(Failure::new(1, format!("{shown} is mounted at {at}; first run: sumfs umount {at}")));
    }
    let bar = progress_bar("{bar:40} {percent}% {eta} left");
    let converted = StoreDirectory::convert_index(&arguments.store, arguments.to, LOCK_TIMEOUT, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let converted = converted.or_code(1)?;
    if converted.before == arguments.to {
        println!("{shown}: {} keeps the index already", arguments.to.name());
        return Ok(0);
    }
    let (old, new) = converted.bytes;
    println!(
        "{shown}: {} keeps the index now: {} records, {} ({} before, with {})",
        arguments.to.name(),
        converted.records,
        show_bytes(new),
        show_bytes(old),
        converted.before.name()
    );
    Ok(0)
}
