//! `sumfs index`: `convert` ([`convert`]), and `rebuild`: a new index out of the metadata image and the journal, for a store that is not mounted.

use super::info::show_bytes;
use super::{Failure, LOCK_TIMEOUT, Outcome, WithCode, convert, fields, mountinfo, progress_bar};
use crate::meta::restore::{Missing, Source};
use crate::store::{RebuildOptions, Rebuilt, StoreDirectory};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Arguments of `sumfs index`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Make the index of a store anew from the metadata image and the journal. The old one is kept as `index.damaged`.
    #[command(after_long_help = fields::INDEX)]
    Rebuild(RebuildArguments),
    /// Have another engine keep the index.
    Convert(convert::Arguments),
}

#[derive(Debug, clap::Args)]
struct RebuildArguments {
    /// The store; not mounted.
    store: PathBuf,
    /// Also when transactions are known to be missing.
    #[arg(long)]
    allow_loss: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// `sumfs index`.
pub fn run(arguments: &Arguments) -> Outcome {
    let arguments = match &arguments.action {
        Action::Convert(arguments) => return convert::run(arguments),
        Action::Rebuild(arguments) => arguments,
    };
    let shown = arguments.store.display();
    if let Some(mount) = mountinfo::mount_of_store(&arguments.store).or_code(1)? {
        let at = mount.mountpoint.display();
        return Err(Failure::new(1, format!("{shown} is mounted at {at}; first run: sumfs umount {at}")));
    }
    let bar = progress_bar("{bar:40} {percent}% {msg}");
    let options = RebuildOptions { allow_loss: arguments.allow_loss, wait_for_lock: LOCK_TIMEOUT };
    let rebuilt = StoreDirectory::rebuild_index(&arguments.store, options, &mut |doing, done, total| {
        if bar.message() != doing {
            bar.set_message(doing.to_owned());
        }
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let rebuilt = rebuilt.or_code(1)?;
    if arguments.json {
        println!("{:#}", as_json(&rebuilt));
    } else {
        print!("{}", as_text(&rebuilt));
        println!("{shown}: the index is made anew; look at it with: sumfs check {shown}");
    }
    Ok(0)
}

fn missing(source: &Source) -> Option<String> {
    Some(match source.missing? {
        Missing::JournalRecord(record) => format!("transaction {record} and those behind it"),
        Missing::Until(last) => format!("transactions {} to {last}", source.sequence.saturating_add(1)),
    })
}

fn as_json(rebuilt: &Rebuilt) -> Value {
    let source = &rebuilt.source;
    json!({
        "image_generation": source.generation,
        "continued_by_generation": source.continued_by,
        "image_completed": source.completed,
        "image_sequence": source.image_sequence,
        "image_bad_frames": source.bad_frames,
        "journal_records": source.journal_records,
        "sequence": source.sequence,
        "missing": missing(source),
        "records": rebuilt.records,
        "index_bytes": rebuilt.index_bytes,
        "damaged_index": rebuilt.damaged.as_ref().map(|path| path.to_string_lossy().into_owned()),
    })
}

fn as_text(rebuilt: &Rebuilt) -> String {
    let source = &rebuilt.source;
    let continued = source.continued_by.map(|generation| format!(" and the log of generation {generation}")).unwrap_or_default();
    let mut rows = vec![
        ("image", format!("generation {}{continued}, up to transaction {}", source.generation, source.image_sequence)),
        ("journal", format!("{} transactions behind it, up to {}", source.journal_records, source.sequence)),
        ("index", format!("{} records, {}", rebuilt.records, show_bytes(rebuilt.index_bytes))),
    ];
    if source.bad_frames > 0 {
        rows.push(("bad frames", format!("{} met in the image files", source.bad_frames)));
    }
    if let Some(missing) = missing(source) {
        rows.push(("LOST", missing));
    }
    if let Some(damaged) = &rebuilt.damaged {
        rows.push(("old index", format!("kept as {}", damaged.display())));
    }
    rows.into_iter().map(|(name, value)| format!("{name:<11} {value}\n")).collect()
}
