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
    /// How data is kept: `single`, once; `dup`, twice (on two devices if there are, else far apart on the one); `raid0`, once, in units
    /// on all devices in turn; `raid1`, twice, always on two devices; `raid5`, as raid0 with parity: any one device may be lost.
    #[arg(long, value_name = "PROFILE", default_value = "single")]
    data: Profile,
    /// raid0 and raid5: what each device gets before the next one's turn, a power of two from 4K to 1M.
    #[arg(long, value_name = "SIZE", value_parser = parse_size_argument)]
    stripe_unit: Option<u64>,
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
    Raid0,
    Raid1,
    Raid5,
}

impl From<Profile> for DataProfile {
    fn from(profile: Profile) -> DataProfile {
        match profile {
            Profile::Single => DataProfile::Single,
            Profile::Dup => DataProfile::Dup,
            Profile::Raid0 => DataProfile::Raid0,
            Profile::Raid1 => DataProfile::Raid1,
            Profile::Raid5 => DataProfile::Raid5,
        }
    }
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
        data: arguments.data.into(),
        stripe_unit: arguments.stripe_unit,
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
            "data_profile": DataProfile::of(&superblock).name(),
        });
        println!("{made:#}");
        return Ok(0);
    }
    let copies = match DataProfile::of(&superblock) {
        DataProfile::Single => "",
        DataProfile::Dup | DataProfile::Raid1 => " for two copies of everything",
        DataProfile::Raid0 => " on all devices in turn",
        DataProfile::Raid5 => " for data and parity",
    };
    println!("made the store {store}: {}{copies}, uuid {}", show_bytes(bytes), uuid::Uuid::from_bytes(superblock.uuid));
    println!("mount it with: sumfs mount {store} MNT");
    Ok(0)
}
