//! `sumfs mkfs`: the arguments, and what is said at the end. The work is [`StoreDirectory::create`].

use super::info::show_bytes;
use super::{Outcome, WithCode, fields};
use crate::store::{CreateOptions, DataProfile, Engine, StoreDirectory, parse_size};
use serde_json::json;
use std::path::PathBuf;

/// Arguments of `sumfs mkfs`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = fields::MKFS)]
pub struct Arguments {
    /// The directory to make the store in; made if it does not exist.
    store: PathBuf,
    /// How much data the store can hold, like 500M, 10G or 2T. Space is taken from the host as it is needed.
    #[arg(long, value_parser = parse_size_argument)]
    size: Option<u64>,
    /// A file or block device for the data, instead of a file in the store; may be given several times.
    #[arg(long = "device", value_name = "PATH")]
    devices: Vec<PathBuf>,
    /// A file or block device for the journal, instead of a file in the store.
    #[arg(long, value_name = "PATH")]
    journal: Option<PathBuf>,
    /// What keeps the metadata index: redb, or sled (slower, larger, and only on local file systems that write in place).
    #[arg(long, value_name = "redb|sled", default_value = "redb", value_parser = parse_engine_argument)]
    index: Engine,
    /// A name for the store, shown by `sumfs info`.
    #[arg(long)]
    label: Option<String>,
    /// How often data is kept: once, or twice (on two devices if there are, else far apart on the one); twice takes twice the space.
    #[arg(long, value_name = "PROFILE", default_value = "single")]
    data: Profile,
    /// Overwrite what is there, also a store.
    #[arg(long)]
    force: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The profiles as they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Profile {
    Single,
    Dup,
}

fn parse_size_argument(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|_| "not a size; write it like 500M, 10G or 2T".to_owned())
}

pub(super) fn parse_engine_argument(text: &str) -> Result<Engine, String> {
    text.parse().map_err(|_| "there are redb and sled".to_owned())
}

/// Makes the store and says how to mount it.
pub fn run(arguments: &Arguments) -> Outcome {
    let options = CreateOptions {
        size: arguments.size,
        devices: arguments.devices.clone(),
        journal: arguments.journal.clone(),
        engine: arguments.index,
        label: arguments.label.clone(),
        data: if arguments.data == Profile::Dup { DataProfile::Dup } else { DataProfile::Single },
        force: arguments.force,
    };
    let superblock = StoreDirectory::create(&arguments.store, options).or_code(1)?;
    let bytes: u64 = superblock.devices.iter().map(|device| device.len).sum();
    let store = arguments.store.display();
    if arguments.json {
        let made = json!({
            "store": store.to_string(),
            "uuid": uuid::Uuid::from_bytes(superblock.uuid).to_string(),
            "label": superblock.label,
            "size_bytes": bytes,
            "data_profile": if superblock.has_two_copies() { "dup" } else { "single" },
        });
        println!("{made:#}");
        return Ok(0);
    }
    let copies = if superblock.has_two_copies() { " for two copies of everything" } else { "" };
    println!("made the store {store}: {}{copies}, uuid {}", show_bytes(bytes), uuid::Uuid::from_bytes(superblock.uuid));
    println!("mount it with: sumfs mount {store} MNT");
    Ok(0)
}
