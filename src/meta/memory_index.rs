//! The index in memory, for tests: an immutable list of sorted chunks, replaced by each apply. A snapshot is a reference to the
//! list; an apply copies only the list and the chunks it changes. Nothing survives the process, durable or not.

use super::index::{Change, Index, Snapshot, Visit};
use crate::error::Result;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;

/// Records in a chunk when it is cut in two.
const CHUNK_RECORDS_MAX: usize = 256;

type Record = (Arc<[u8]>, Arc<[u8]>);
type Chunk = Arc<Vec<Record>>;

/// All records in order; no chunk is empty.
#[derive(Clone, Default)]
struct Chunks(Vec<Chunk>);

impl Chunks {
    /// The chunk that has `key` or would take it.
    fn chunk_for(&self, key: &[u8]) -> usize {
        self.0.partition_point(|chunk| chunk.first().is_some_and(|(first, _)| **first <= *key)).saturating_sub(1)
    }

    fn set(&mut self, key: &[u8], value: Option<&[u8]>) {
        let at = self.chunk_for(key);
        if self.0.is_empty() {
            self.0.push(Chunk::default());
        }
        let chunk = Arc::make_mut(&mut self.0[at]);
        match (chunk.binary_search_by(|(known, _)| (**known).cmp(key)), value) {
            (Ok(found), Some(value)) => chunk[found].1 = value.into(),
            (Ok(found), None) => drop(chunk.remove(found)),
            (Err(gap), Some(value)) => chunk.insert(gap, (key.into(), value.into())),
            (Err(_), None) => {}
        }
        if chunk.len() > CHUNK_RECORDS_MAX {
            let upper = chunk.split_off(CHUNK_RECORDS_MAX / 2);
            self.0.insert(at + 1, Arc::new(upper));
        } else if chunk.is_empty() {
            self.0.remove(at);
        }
    }

    /// The records with `from <= key`, in order.
    fn records_from<'a>(&'a self, from: &'a [u8]) -> impl Iterator<Item = &'a Record> {
        let chunks = self.0.get(self.chunk_for(from)..).unwrap_or_default();
        chunks.iter().flat_map(|chunk| chunk.iter()).skip_while(move |(key, _)| **key < *from)
    }
}

/// An [`Index`] in memory.
#[derive(Default)]
pub struct MemoryIndex {
    chunks: RwLock<Arc<Chunks>>,
    applying: Mutex<()>,
}

impl MemoryIndex {
    /// An empty index.
    pub fn new() -> MemoryIndex {
        MemoryIndex::default()
    }
}

impl std::fmt::Debug for MemoryIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryIndex({} chunks)", self.chunks.read().0.len())
    }
}

impl Index for MemoryIndex {
    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(MemorySnapshot(Arc::clone(&self.chunks.read()))))
    }

    fn apply(&self, changes: &mut dyn Iterator<Item = Change<'_>>, _durable: bool) -> Result<()> {
        let _applying = self.applying.lock();
        let mut chunks = Chunks::clone(&self.chunks.read());
        for (key, value) in changes {
            chunks.set(key, value);
        }
        *self.chunks.write() = Arc::new(chunks);
        Ok(())
    }

    fn space_ahead_bytes(&self) -> u64 {
        u64::MAX
    }

    fn reserve_ahead(&self, _bytes: u64) -> Result<()> {
        Ok(())
    }

    fn verify_while(&self, _: &dyn Fn() -> bool) -> Result<Option<u64>> {
        Ok(Some(0))
    }

    fn healed_count(&self) -> u64 {
        0
    }

    fn disk_bytes(&self) -> u64 {
        0
    }
}

struct MemorySnapshot(Arc<Chunks>);

impl Snapshot for MemorySnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(chunk) = self.0.0.get(self.0.chunk_for(key)) else { return Ok(None) };
        let found = chunk.binary_search_by(|(known, _)| (**known).cmp(key)).ok().and_then(|at| chunk.get(at));
        Ok(found.map(|(_, value)| value.to_vec()))
    }

    fn range(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        for (key, value) in self.0.records_from(from).take_while(|(key, _)| **key < *to) {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let mut at = self.0.chunk_for(to);
        loop {
            let Some(chunk) = self.0.0.get(at) else { return Ok(None) };
            let before = chunk.partition_point(|(key, _)| **key < *to);
            if let Some((key, value)) = before.checked_sub(1).and_then(|last| chunk.get(last)) {
                return Ok((**key >= *from).then(|| (key.to_vec(), value.to_vec())));
            }
            let Some(previous) = at.checked_sub(1) else { return Ok(None) };
            at = previous;
        }
    }
}
