//! The plug of direct writes: on groups with parity, O_DIRECT writes that arrive while others are being written, or while one that is surely
//! part of a larger one waits for the rest, are gathered and written together, so that they fill stripes (md-raid5's plugging, which
//! brought its direct writes back from 77 to 200 MB/s in 2012).
//!
//! The first writer of a batch leads: it waits until the batch is full or there is nothing to wait for, writes it, and hands each
//! member its result. Members wait with their ranges locked; the leader takes no lock that they hold. What others have given is
//! copied, since no thread may lend its bytes to another; a batch of one is written from the request's own memory.

use super::{Cache, CachedFile};
use crate::disk::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::extent::store::DirtyRun;
use crate::space::pace::Direction;
use crate::sync::{Condvar, Mutex};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Batches under way at once: on a quick device one, so that the next one gathers meanwhile.
const WRITING_MAX_QUICK: usize = 1;
const WRITING_MAX: usize = 4;
/// A write of so many bytes is perhaps a part of a larger one: FUSE passes on no more in one request.
const SPLIT_BYTES: u64 = 1 << 20;
/// After so many waits in vain there are none for a while.
const VAIN_MAX: u64 = 3;
const VAIN_PAUSE: u64 = 64;

/// How long and how much to gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlugOptions {
    /// The most bytes of a batch; 0: nothing is gathered, for comparison.
    pub bytes_max: u64,
    /// The longest that one waits for more.
    pub hold: Duration,
}

impl Default for PlugOptions {
    fn default() -> PlugOptions {
        PlugOptions { bytes_max: 8 << 20, hold: Duration::from_millis(5) }
    }
}

/// One write. Its range is locked by who waits for it.
struct Member {
    file: Arc<CachedFile>,
    offset: u64,
    file_size: u64,
    /// None: the leader's own, which stays where it is.
    data: Option<AlignedBuffer>,
    bytes: u64,
}

#[derive(Default)]
struct Batch {
    members: Mutex<Vec<Member>>,
    results: Mutex<Option<Vec<Result<()>>>>,
}

#[derive(Default)]
struct State {
    forming: Option<Arc<Batch>>,
    forming_bytes: u64,
    /// Nobody waits for more: someone needs what is there.
    is_released: bool,
    writing: usize,
    /// Waits that brought nothing, one after the other; above the limit it counts the writes of the pause.
    vain: u64,
}

/// Batches released, by cause.
#[derive(Debug, Default)]
struct Causes {
    full: AtomicU64,
    time: AtomicU64,
    idle: AtomicU64,
    sync: AtomicU64,
}

/// See the head of this file. One leaf lock, never held across I/O; batches have locks of their own below it.
#[derive(Default)]
pub(super) struct DirectPlug {
    options: PlugOptions,
    state: Mutex<State>,
    changed: Condvar,
    causes: Causes,
}

impl std::fmt::Debug for DirectPlug {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DirectPlug({:?})", self.options)
    }
}

impl DirectPlug {
    pub(super) fn new(options: PlugOptions) -> DirectPlug {
        DirectPlug { options, ..DirectPlug::default() }
    }

    /// Is nothing gathered at all?
    pub(super) fn is_off(&self) -> bool {
        self.options.bytes_max == 0
    }

    /// Someone waits for what is gathered: it is written now.
    pub(super) fn release(&self) {
        let mut state = self.state.lock();
        if state.forming.is_some() {
            state.is_released = true;
            self.changed.notify_all();
        }
    }

    /// For `stats`.
    pub(super) fn status(&self) -> Value {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let causes = &self.causes;
        json!({
            "full": of(&causes.full),
            "time": of(&causes.time),
            "idle": of(&causes.idle),
            "sync": of(&causes.sync),
            "held_bytes": self.state.lock().forming_bytes,
        })
    }
}

impl Cache {
    /// Writes whole blocks of a file with others that arrive meanwhile. As `Extents::store` for one run.
    pub(super) fn write_gathered(&self, file: &Arc<CachedFile>, offset: u64, data: &[u8], file_size: u64) -> Result<()> {
        let bytes = data.len() as u64;
        let mut member = Member { file: file.clone(), offset, file_size, data: None, bytes };
        let plug = &self.plug;
        let mut state = plug.state.lock();
        if let Some(batch) = state.forming.clone().filter(|_| state.forming_bytes + bytes <= plug.options.bytes_max) {
            state.forming_bytes += bytes;
            // The copy is made under the lock: a batch must not leave without it, and others would wait for it anyway.
            member.data = Some(AlignedBuffer::copy_of(data));
            let index = {
                let mut members = batch.members.lock();
                members.push(member);
                members.len() - 1
            };
            plug.changed.notify_all();
            loop {
                if let Some(results) = batch.results.lock().as_ref() {
                    return results.get(index).cloned().unwrap_or_else(|| Err(Error::corrupt("a batch without a result")));
                }
                plug.changed.wait(&mut state);
            }
        }
        let batch = Arc::new(Batch::default());
        batch.members.lock().push(member);
        // A batch that is full already goes on without those that come now.
        let is_listed = state.forming.is_none();
        if is_listed {
            state.forming = Some(batch.clone());
            state.forming_bytes = bytes;
            state.is_released = false;
            self.wait_for_more(&mut state, bytes);
            state.forming = None;
            state.forming_bytes = 0;
        }
        state.writing += 1;
        drop(state);
        let members = std::mem::take(&mut *batch.members.lock());
        let results = self.write_batch(&members, data);
        let own = results.first().cloned().unwrap_or_else(|| Err(Error::corrupt("a batch without a result")));
        let mut state = plug.state.lock();
        state.writing -= 1;
        *batch.results.lock() = Some(results);
        plug.changed.notify_all();
        own
    }

    /// Waits until the forming batch is to be written.
    fn wait_for_more(&self, state: &mut crate::sync::MutexGuard<'_, State>, first_bytes: u64) {
        let (plug, space) = (&self.plug, &self.extents.space);
        let stripe = space.stripe_bytes().max(1);
        let writing_max = if space.pace.is_quick(Direction::Write) { WRITING_MAX_QUICK } else { WRITING_MAX };
        let is_pausing = state.vain >= VAIN_MAX;
        if is_pausing {
            state.vain = if state.vain >= VAIN_MAX + VAIN_PAUSE { 0 } else { state.vain + 1 };
        }
        let holds = first_bytes == SPLIT_BYTES && !first_bytes.is_multiple_of(stripe) && !is_pausing;
        let deadline = Instant::now() + plug.options.hold;
        let cause = loop {
            let is_whole = state.forming_bytes.is_multiple_of(stripe) || state.forming_bytes >= plug.options.bytes_max;
            if state.writing < writing_max {
                if is_whole {
                    break &plug.causes.full;
                }
                if state.is_released {
                    break &plug.causes.sync;
                }
                if !holds {
                    break &plug.causes.idle;
                }
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break &plug.causes.time;
                }
                plug.changed.wait_for(state, left);
            } else {
                plug.changed.wait(state);
            }
        };
        if holds {
            state.vain = if state.forming_bytes == first_bytes { state.vain + 1 } else { 0 };
        }
        cause.fetch_add(1, Ordering::Relaxed);
    }

    fn write_batch(&self, members: &[Member], own: &[u8]) -> Vec<Result<()>> {
        let runs: Vec<DirtyRun<'_>> = members
            .iter()
            .map(|member| DirtyRun {
                file: &member.file.extents,
                offset: member.offset,
                end: member.offset + member.bytes,
                slices: vec![member.data.as_deref().unwrap_or(own)],
                file_size: member.file_size,
            })
            .collect();
        self.store(&runs)
    }
}
