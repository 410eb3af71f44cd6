//! redb as the [`Index`]: one table of byte strings in one database over our own storage (`redb_backend.rs`).
//!
//! Every durable apply is a two-phase commit with quick repair, so opening after a power cut reads the saved allocator state instead
//! of walking all pages. Other applies have `Durability::None`: they cost no I/O until redb's write buffer (half of the cache) is
//! full. redb keeps the pages of live snapshots, so callers replace theirs after each apply.
//!
//! After the first error redb answers everything with "previous I/O error"; the error behind it is kept and told instead. Panics
//! inside redb become errors, too. Dropping an index writes nothing: the durable state is that of the last durable apply.
//!
//! Lock: `applying` keeps the durable state still while a second redb looks at it.

use super::index::{Change, Index, Snapshot, Visit};
use super::redb_backend::{Backend, BackendHandle, Limits};
use super::redb_layout::CHUNK_BYTES;
use super::redb_overlay::Overlay;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::units::BLOCK;
use parking_lot::Mutex;
use redb::{Database, Durability, ReadOnlyTable, ReadableDatabase, TableDefinition};
use std::collections::HashSet;
use std::mem::ManuallyDrop;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

const TABLE: TableDefinition<'static, &'static [u8], &'static [u8]> = TableDefinition::new("metadata");
/// Cache of the second redb that answers which pages are reachable.
const VERIFY_CACHE_BYTES: usize = 16 << 20;

/// How an index uses memory and host space.
#[derive(Clone, Copy, Debug)]
pub struct RedbOptions {
    /// redb's cache in bytes; up to half of it holds pages not yet written.
    pub cache_bytes: usize,
    /// Host space in bytes kept set aside for growth; at least one chunk (8 MiB).
    pub ahead_bytes: u64,
    /// Bytes of written pages kept in memory, below redb's cache, before they go to the disk ahead of the next durable apply.
    pub dirty_bytes_max: usize,
}

impl RedbOptions {
    /// The usual bounds with a cache of `cache_bytes`.
    pub fn with_cache(cache_bytes: usize) -> RedbOptions {
        RedbOptions { cache_bytes, ahead_bytes: 16 << 20, dirty_bytes_max: 32 << 20 }
    }

    fn limits(&self) -> Limits {
        Limits {
            places_ahead: usize::try_from(self.ahead_bytes / CHUNK_BYTES).unwrap_or(usize::MAX).max(1),
            dirty_pages_max: (self.dirty_bytes_max / BLOCK).max(1),
        }
    }
}

/// An index in redb on one disk.
pub struct RedbIndex {
    /// None only while it is dropped.
    database: Option<Database>,
    backend: Arc<Backend>,
    applying: Mutex<()>,
    /// Pages, with their checksums, of which both copies are bad and that no tree reached when redb was asked.
    unused: Mutex<HashSet<(u64, u32)>>,
}

impl RedbIndex {
    /// Formats `disk` (its contents are lost, its length follows the index) and makes an empty index durable on it.
    pub fn create(disk: Arc<dyn Disk>, cache_bytes: usize) -> Result<RedbIndex> {
        RedbIndex::create_with(disk, &RedbOptions::with_cache(cache_bytes))
    }

    /// [`RedbIndex::create`] with other bounds.
    pub fn create_with(disk: Arc<dyn Disk>, options: &RedbOptions) -> Result<RedbIndex> {
        let backend = Backend::create(disk, options.limits())?;
        let database = open_database(&backend, BackendHandle(Arc::clone(&backend)), options.cache_bytes, false)?;
        let index = RedbIndex::new(database, backend);
        index.apply(&mut std::iter::empty(), true)?;
        Ok(index)
    }

    /// Opens the index on `disk` as of its last durable apply. `read_only`: not one byte of the disk is changed, not even to heal a
    /// page; applies work, and are gone when this is dropped.
    pub fn open(disk: Arc<dyn Disk>, cache_bytes: usize, read_only: bool) -> Result<RedbIndex> {
        RedbIndex::open_with(disk, &RedbOptions::with_cache(cache_bytes), read_only)
    }

    /// [`RedbIndex::open`] with other bounds.
    pub fn open_with(disk: Arc<dyn Disk>, options: &RedbOptions, read_only: bool) -> Result<RedbIndex> {
        let backend = Backend::open(disk, !read_only, options.limits())?;
        if backend.durable_length() == 0 {
            return Err(Error::corrupt(format!("the index on {} was never finished", backend.disk.name())));
        }
        let database = if read_only {
            open_database(&backend, Overlay::new(Arc::clone(&backend)), options.cache_bytes, false)?
        } else {
            open_database(&backend, BackendHandle(Arc::clone(&backend)), options.cache_bytes, false)?
        };
        Ok(RedbIndex::new(database, backend))
    }

    fn new(database: Database, backend: Arc<Backend>) -> RedbIndex {
        RedbIndex { database: Some(database), backend, applying: Mutex::new(()), unused: Mutex::new(HashSet::new()) }
    }

    /// Moves pages of the index to its front and gives the space behind them back to the host; otherwise redb uses free pages again but
    /// hardly ever gives them back. Makes everything that was applied durable. There must be no snapshot. For offline use: takes seconds
    /// for large indexes, and after a power cut meanwhile the next open reads the whole index.
    pub fn compact(&mut self) -> Result<()> {
        let RedbIndex { database, backend, .. } = self;
        let database = database.as_mut();
        guarded(backend, "compacting the index", || Ok(database.map_or(Ok(false), Database::compact).map(|_| ())?))?;
        // redb leaves the allocator state to its close, which we do not let it have; this records it and trims the disk.
        self.apply(&mut std::iter::empty(), true)
    }

    /// Asks a second redb which pages the durable trees reach. An error when one of them has no good copy.
    fn reached_pages(&self) -> Result<HashSet<u64>> {
        let _applying = self.applying.lock();
        let overlay = Overlay::recording(Arc::clone(&self.backend));
        let reached = overlay.reached();
        drop_guarded(&self.backend, open_database(&self.backend, overlay, VERIFY_CACHE_BYTES, true)?);
        let reached = std::mem::take(&mut *reached.lock());
        Ok(reached)
    }

    fn database(&self) -> std::result::Result<&Database, redb::Error> {
        self.database.as_ref().ok_or(redb::Error::DatabaseClosed)
    }

    fn try_apply(&self, changes: &mut dyn Iterator<Item = Change<'_>>, durable: bool) -> std::result::Result<(), redb::Error> {
        let mut transaction = self.database()?.begin_write()?;
        if durable {
            transaction.set_durability(Durability::Immediate)?;
            transaction.set_two_phase_commit(true);
            transaction.set_quick_repair(true);
        } else {
            transaction.set_durability(Durability::None)?;
        }
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, value) in changes {
                match value {
                    Some(value) => drop(table.insert(key, value)?),
                    None => drop(table.remove(key)?),
                }
            }
        }
        Ok(transaction.commit()?)
    }
}

impl Index for RedbIndex {
    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        let table = guarded(&self.backend, "beginning a snapshot of the index", || {
            Ok(self.database()?.begin_read()?.open_table(TABLE)?)
        })?;
        Ok(Arc::new(RedbSnapshot { table: Some(table), backend: Arc::clone(&self.backend) }))
    }

    fn apply(&self, changes: &mut dyn Iterator<Item = Change<'_>>, durable: bool) -> Result<()> {
        let _applying = self.applying.lock();
        let doing = if durable { "making changes of the index durable" } else { "applying changes to the index" };
        guarded(&self.backend, doing, || self.try_apply(changes, durable))
    }

    /// In bytes of index (a byte of index takes two on the disk), as for `reserve_ahead`.
    fn space_ahead_bytes(&self) -> u64 {
        self.backend.space_ahead_bytes()
    }

    fn reserve_ahead(&self, bytes: u64) -> Result<()> {
        self.backend.reserve_ahead(bytes)
    }

    fn verify_while(&self, goes_on: &dyn Fn() -> bool) -> Result<Option<u64>> {
        let before = self.backend.healed();
        let Some(found) = self.backend.scrub(goes_on)? else { return Ok(None) };
        let lost: HashSet<(u64, u32)> = found.lost.into_iter().collect();
        let mut unused = self.unused.lock();
        unused.retain(|known| lost.contains(known));
        if !found.mended.is_empty() || unused.len() < lost.len() {
            let reached = self.reached_pages()?;
            for (page, copy) in found.mended.into_iter().filter(|(page, _)| reached.contains(page)) {
                self.backend.report_healed(page, copy);
            }
            *unused = lost;
        }
        Ok(Some(self.backend.healed() - before))
    }

    fn healed_count(&self) -> u64 {
        self.backend.healed()
    }

    fn disk_bytes(&self) -> u64 {
        self.backend.disk_bytes()
    }
}

impl Drop for RedbIndex {
    /// redb would make everything durable that was applied: not what callers of `apply` were told, and it takes time and can fail.
    fn drop(&mut self) {
        self.backend.detach();
        drop_guarded(&self.backend, self.database.take());
    }
}

impl std::fmt::Debug for RedbIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RedbIndex({})", self.backend.disk.name())
    }
}

/// A read transaction.
struct RedbSnapshot {
    /// None only while it is dropped.
    table: Option<RedbTable>,
    backend: Arc<Backend>,
}

type RedbTable = ReadOnlyTable<&'static [u8], &'static [u8]>;

impl RedbSnapshot {
    fn table(&self) -> std::result::Result<&RedbTable, redb::Error> {
        self.table.as_ref().ok_or(redb::Error::DatabaseClosed)
    }
}

impl Drop for RedbSnapshot {
    fn drop(&mut self) {
        drop_guarded(&self.backend, self.table.take());
    }
}

const READING: &str = "reading the index";

impl Snapshot for RedbSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        guarded(&self.backend, READING, || Ok(self.table()?.get(key)?.map(|value| value.value().to_vec())))
    }

    fn range(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let mut failed = None;
        guarded(&self.backend, READING, || {
            for item in self.table()?.range(from..to)? {
                let (key, value) = item?;
                let (key, value) = (key.value(), value.value());
                // What the visitor does wrong is not redb's fault.
                match catch_unwind(AssertUnwindSafe(|| visit(key, value))) {
                    Ok(ControlFlow::Continue(())) => {}
                    Ok(ControlFlow::Break(())) => break,
                    Err(panic) => {
                        failed = Some(panic);
                        break;
                    }
                }
            }
            Ok(())
        })?;
        failed.map_or(Ok(()), |panic| resume_unwind(panic))
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        if from >= to {
            return Ok(None);
        }
        guarded(&self.backend, READING, || {
            let last = self.table()?.range(from..to)?.next_back().transpose()?;
            Ok(last.map(|(key, value)| (key.value().to_vec(), value.value().to_vec())))
        })
    }
}

/// A redb over `storage`. `check` reads and verifies all of its trees first.
fn open_database(backend: &Backend, storage: impl redb::StorageBackend, cache_bytes: usize, check: bool) -> Result<Database> {
    guarded(backend, "opening the index", move || {
        let mut builder = Database::builder();
        builder.set_cache_size(cache_bytes).set_check_integrity_on_open(check);
        Ok(builder.create_with_backend(storage)?)
    })
}

/// Runs a step of redb; its errors, and panics, are ours then.
fn guarded<T>(backend: &Backend, doing: &str, step: impl FnOnce() -> std::result::Result<T, redb::Error>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(step)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(ours(backend, doing, error)),
        Err(panic) => {
            backend.note_panic();
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            let text = text.unwrap_or("a panic");
            Err(Error::corrupt(format!("{doing} on {}: redb gave up: {text}", backend.disk.name())))
        }
    }
}

/// Drops something of redb's. After a panic inside it that would panic, too, on the locks that it left poisoned, and a second time in
/// the destructors that run then, which ends the process: it is kept instead.
fn drop_guarded<T>(backend: &Backend, owned: T) {
    if backend.has_panicked() {
        let _kept = ManuallyDrop::new(owned);
        return;
    }
    if catch_unwind(AssertUnwindSafe(|| drop(owned))).is_err() {
        tracing::warn!("redb gave up while closing an index that it had found damaged");
    }
}

fn ours(backend: &Backend, doing: &str, error: redb::Error) -> Error {
    let doing = format!("{doing} on {}", backend.disk.name());
    let cause = match &error {
        redb::Error::Io(error) => error.get_ref().and_then(|error| error.downcast_ref::<Error>()).cloned(),
        redb::Error::PreviousIo => backend.failure(),
        _ => None,
    };
    match (cause, error) {
        (Some(Error::Io { doing: step, source }), _) => Error::Io { doing: format!("{doing}: {step}"), source },
        (Some(Error::Corrupt(what)), _) => Error::Corrupt(format!("{doing}: {what}")),
        (Some(error), _) => error,
        (None, redb::Error::Io(error)) => Error::io(doing, error),
        (None, error @ (redb::Error::PreviousIo | redb::Error::DatabaseClosed | redb::Error::TransactionInProgress)) => {
            Error::io(doing, std::io::Error::other(error.to_string()))
        }
        (None, error) => Error::Corrupt(format!("{doing}: {error}")),
    }
}
