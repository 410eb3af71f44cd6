//! The scrub of an open store: its thread, its pace, what it leaves in the metadata, and the list of known damage.
//!
//! The walk is `verify::scrub`, step by step. Each step's cursor and findings go into the running transaction as one batch, so a crash
//! or an unmount costs at most the steps since the last commit; while the record says `Running`, the next mount goes on by itself.
//!
//! Whoever waits for the store comes first: as long as requests arrive, a step is small, on one thread, and the thread sleeps nineteen
//! times as long as the step took. Nobody waits for the scrub; no lock is held across a step, except that one thread does steps.

use super::Filesystem;
use crate::clock::now;
use crate::disk::label;
use crate::disk::superblock::Superblock;
use crate::error::{Error, Result};
use crate::meta::Batch;
use crate::meta::schema::{self, Key, Parsed};
use crate::meta::scrub_records::{DamagedBlockRecord, DamagedValueRecord, ScrubRecord};
use crate::meta::work_state::WorkState;
use crate::sync::Mutex;
use crate::units::{BLOCK_SIZE, BlockAddress};
use crate::verify::scrub::{self, Effort, Found, Surroundings};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Blocks of a step while nobody else wants anything, and while somebody does.
const IDLE_STEP_BLOCKS: u64 = (32 << 20) / BLOCK_SIZE;
const BUSY_STEP_BLOCKS: u64 = (1 << 20) / BLOCK_SIZE;
/// Threads of a step, at most.
const THREADS_MAX: usize = 8;
/// So long after the last request the store counts as idle.
const BUSY: Duration = Duration::from_millis(200);
/// While others want something the thread sleeps so many times as long as a step took, and at most so long.
const BUSY_PAUSE: u32 = 19;
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often what was done is made durable.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// Records of damage that are kept; what is found beyond is only counted.
const DAMAGE_MAX: u64 = 50_000;
/// Records that are looked at, or deleted, at once.
const PAGE: usize = 2000;

/// The scrub as this process knows it.
#[derive(Debug, Default)]
pub(super) struct Scrub {
    held: Mutex<Held>,
    /// Held by who does a step.
    stepping: Mutex<()>,
}

#[derive(Debug, Default)]
struct Held {
    record: ScrubRecord,
    /// Why it could not go on.
    failure: Option<String>,
    /// It began while this process had all devices, which then are as they should be if it leaves nothing bad: what they had missed by
    /// then.
    covers_missed: Option<u64>,
    /// Since when this process works on it, and how many blocks it had done by then: for the rate.
    since: Option<(Instant, u64)>,
    /// Requests seen, and when they were last more than before.
    requests: u64,
    busy_until: Option<Instant>,
    committed: Option<Instant>,
}

/// All damage that is recorded.
#[derive(Debug, Default)]
struct Damage {
    blocks: Vec<(BlockAddress, u8, DamagedBlockRecord)>,
    values: Vec<(Key, DamagedValueRecord)>,
}

impl Filesystem {
    /// When opening: takes up what the last process left.
    pub(super) fn load_scrub(&self) -> Result<()> {
        if let Some(record) = self.meta.get(&schema::scrub())? {
            self.scrub.held.lock().record = ScrubRecord::decode(&record)?;
        }
        Ok(())
    }

    /// Begins a new scrub with at most `limit` bytes a second (0: no limit).
    pub fn scrub_start(&self, limit: u64) -> Result<()> {
        let missed = self.space.set_aside_devices().is_empty().then(|| self.space.missed_count());
        self.change_scrub(|record| match record.state {
            WorkState::Running => Err(Error::usage("a scrub is under way already; see: sumfs scrub status")),
            WorkState::Paused => Err(Error::usage("a scrub is paused; resume or cancel it first")),
            _ => {
                let (number, state) = (record.number.saturating_add(1), WorkState::Running);
                *record = ScrubRecord { number, state, limit, began: now().seconds, ..ScrubRecord::default() };
                Ok(())
            }
        })?;
        self.scrub.held.lock().covers_missed = missed;
        Ok(())
    }

    /// Ends it for now.
    pub fn scrub_pause(&self) -> Result<()> {
        self.change_scrub(|record| match record.state {
            WorkState::Running => {
                record.state = WorkState::Paused;
                Ok(())
            }
            state => {
                Err(Error::usage(format!("no scrub is running (the last one: {}); sumfs scrub start begins one", state.name())))
            }
        })
    }

    /// Goes on where it was, also with one that was broken off by the end of a process.
    pub fn scrub_resume(&self, limit: Option<u64>) -> Result<()> {
        self.change_scrub(|record| match record.state {
            WorkState::Running | WorkState::Paused => {
                record.state = WorkState::Running;
                record.limit = limit.unwrap_or(record.limit);
                Ok(())
            }
            state => {
                Err(Error::usage(format!("no scrub is paused (the last one: {}); sumfs scrub start begins one", state.name())))
            }
        })
    }

    /// Ends it for good. What it found stays listed.
    pub fn scrub_cancel(&self) -> Result<()> {
        self.change_scrub(|record| match record.state {
            WorkState::Running | WorkState::Paused => {
                record.state = WorkState::Cancelled;
                record.ended = now().seconds;
                Ok(())
            }
            state => Err(Error::usage(format!(
                "there is no scrub to cancel (the last one: {}); sumfs scrub status says what it found",
                state.name()
            ))),
        })
    }

    fn change_scrub(&self, change: impl FnOnce(&mut ScrubRecord) -> Result<()>) -> Result<()> {
        self.begin_changing()?;
        {
            let mut held = self.scrub.held.lock();
            let mut record = held.record.clone();
            change(&mut record)?;
            let mut batch = Batch::new();
            batch.put(schema::scrub(), record.encode());
            self.meta.append(batch)?;
            held.since = Some((Instant::now(), record.blocks));
            held.failure = None;
            held.record = record;
        }
        self.note_activity();
        self.signals.scrub.wake();
        Ok(())
    }

    /// Is there a scrub that should go on?
    pub fn is_scrubbing(&self) -> bool {
        let held = self.scrub.held.lock();
        held.record.state == WorkState::Running && held.failure.is_none()
    }

    /// Does the next step of the scrub on this thread; false when there is none left. What is returned as an error has ended it.
    pub fn scrub_step(&self) -> Result<bool> {
        let _stepping = self.scrub.stepping.lock();
        if !self.is_scrubbing() {
            return Ok(false);
        }
        let result = self.do_scrub_step();
        if let Err(error) = &result {
            tracing::error!("scrub: {error}");
            self.scrub.held.lock().failure = Some(error.to_string());
        }
        result?;
        Ok(self.is_scrubbing())
    }

    fn do_scrub_step(&self) -> Result<()> {
        self.relieve_inside()?;
        let begin = Instant::now();
        let before = self.scrub.held.lock().record.clone();
        let mut record = before.clone();
        let around = Surroundings {
            metadata: &self.meta,
            stats: &self.stats,
            structures: &|| self.scrub_structures(),
            goes_on: &|| self.is_scrubbing() && !self.signals.scrub.is_stopped(),
            now: now().seconds,
        };
        let found = scrub::step(&mut record, &around, self.scrub_effort(before.limit))?;
        record.blocks_total = record.blocks_total.max(record.blocks).max(self.blocks_to_scrub());
        record.milliseconds += u64::try_from(begin.elapsed().as_millis()).unwrap_or(0);
        if record.state == WorkState::Finished {
            record.blocks_total = record.blocks;
            self.forget_damage(|scrub| scrub < record.number)?;
            self.renew_devices(&record);
        }
        self.keep_step(&before, record, found)
    }

    /// After a scrub that compared everything and left nothing bad no device is stale.
    fn renew_devices(&self, record: &ScrubRecord) {
        let is_clean = record.bad_blocks == record.repaired_blocks && self.space.set_aside_devices().is_empty();
        let covers = self.scrub.held.lock().covers_missed == Some(self.space.missed_count());
        if is_clean && covers && !self.options.read_only {
            self.space.renew_generations();
        }
    }

    /// Records what a step came to, unless another scrub began meanwhile.
    fn keep_step(&self, before: &ScrubRecord, mut record: ScrubRecord, found: Found) -> Result<()> {
        let mut held = self.scrub.held.lock();
        if held.record.number != before.number {
            return Ok(());
        }
        if held.record.state != WorkState::Running {
            // Paused or cancelled in the middle: what it did counts all the same.
            (record.state, record.ended) = (held.record.state, held.record.ended);
        }
        record.limit = held.record.limit;
        let mut batch = Batch::new();
        if before.bad_blocks < DAMAGE_MAX {
            for (address, copy, damage) in &found.blocks {
                batch.put(schema::damaged_block(*address, *copy), damage.encode());
            }
        }
        if before.damaged_values < DAMAGE_MAX {
            for (key, damage) in &found.values {
                batch.put(schema::damaged_value(key), damage.encode());
            }
        }
        batch.put(schema::scrub(), record.encode());
        self.meta.append(batch)?;
        let is_due = held.committed.is_none_or(|at| at.elapsed() > COMMIT_INTERVAL) || record.state != WorkState::Running;
        held.record = record;
        if is_due {
            held.committed = Some(Instant::now());
            self.signals.commit.wake_if_asleep();
        }
        drop(held);
        self.log_found(&found);
        Ok(())
    }

    fn log_found(&self, found: &Found) {
        for (address, copy, damage) in found.blocks.iter().take(20) {
            let outcome = if damage.is_repaired { "repaired" } else { "NOT repaired" };
            tracing::warn!("scrub: copy {copy} of block {address} is bad: {outcome}");
        }
        if found.blocks.len() > 20 {
            tracing::warn!("scrub: and {} more", found.blocks.len() - 20);
        }
        found.values.iter().for_each(|(key, _)| tracing::error!("scrub: the metadata value of key {key:02x?} is damaged"));
    }

    /// Superblock and labels, with bad copies written anew; and a checkpoint, so that the journal holds nothing that counts.
    fn scrub_structures(&self) -> Result<u64> {
        let mut healed = 0;
        {
            let mut superblock = self.superblock.lock();
            let damaged = Superblock::read(&*self.superblock_disk)?.damaged_copies.len() as u64;
            if damaged > 0 {
                superblock.write(&*self.superblock_disk)?;
                healed += damaged;
            }
        }
        for (device, disk) in self.space.disks() {
            match label::read(&*disk, true) {
                Ok(found) => healed += found.damaged_copies.len() as u64,
                Err(error) => tracing::error!("scrub: the label of device {device}: {error}"),
            }
        }
        self.meta.commit()?;
        self.meta.checkpoint()?;
        Ok(healed)
    }

    /// Copies of blocks that hold data now.
    fn blocks_to_scrub(&self) -> u64 {
        let counts = self.space.counts();
        let used = (counts.groups * self.space.blocks_per_group()).saturating_sub(counts.free + counts.pinned);
        used * self.space.copies_of_new_groups()
    }

    fn scrub_effort(&self, limit: u64) -> Effort {
        let is_busy = self.is_busy_with_others();
        let threads =
            if is_busy { 1 } else { std::thread::available_parallelism().map_or(1, |count| count.get()).min(THREADS_MAX) };
        let most = if is_busy { BUSY_STEP_BLOCKS } else { IDLE_STEP_BLOCKS };
        let blocks = if limit == 0 { most } else { most.min(limit / 4 / BLOCK_SIZE).max(1) };
        Effort { blocks, threads }
    }

    /// Did requests arrive lately?
    pub(super) fn is_busy_with_others(&self) -> bool {
        let requests = self.stats.operations.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        let mut held = self.scrub.held.lock();
        if std::mem::replace(&mut held.requests, requests) != requests {
            held.busy_until = Some(Instant::now() + BUSY);
        }
        held.busy_until.is_some_and(|until| Instant::now() < until)
    }

    /// The body of the scrub's thread.
    pub(super) fn run_scrub(&self) {
        crate::sys::step_back();
        while self.signals.scrub.sleep_unless(|| self.is_scrubbing()) {
            {
                let mut held = self.scrub.held.lock();
                held.since = Some((Instant::now(), held.record.blocks));
            }
            while self.is_scrubbing() {
                let (begin, before) = (Instant::now(), self.blocks_scrubbed());
                let is_over = !self.scrub_step().unwrap_or(false);
                let blocks = self.blocks_scrubbed().saturating_sub(before);
                let pause = if is_over { Duration::ZERO } else { self.scrub_pause_after(begin.elapsed(), blocks) };
                if !self.signals.scrub.sleep_for(pause) {
                    return;
                }
            }
        }
    }

    fn blocks_scrubbed(&self) -> u64 {
        self.scrub.held.lock().record.blocks
    }

    /// How long to leave the devices to others after a step.
    fn scrub_pause_after(&self, took: Duration, blocks: u64) -> Duration {
        let limit = self.scrub.held.lock().record.limit;
        let polite = if self.is_busy_with_others() { (took * BUSY_PAUSE).min(PAUSE_MAX) } else { Duration::ZERO };
        if limit == 0 {
            return polite;
        }
        let least = Duration::from_secs_f64((blocks * BLOCK_SIZE) as f64 / limit as f64);
        polite.max(least.saturating_sub(took))
    }

    /// A read met a block without a good copy: it belongs on the list.
    pub(super) fn note_damage(&self, address: BlockAddress, expected: u32, found: Option<u32>, device: u32) {
        let places = self.space.places(address).ok();
        let copy = places.and_then(|places| places.iter().position(|place| place.device == device)).unwrap_or(0);
        let scrub = self.scrub.held.lock().record.number;
        let damage = DamagedBlockRecord { scrub, found_at: now().seconds, expected, found, is_repaired: false };
        let mut batch = Batch::new();
        batch.put(schema::damaged_block(address, u8::try_from(copy).unwrap_or(u8::MAX)), damage.encode());
        // On a store that is read-only it is in the log only.
        if self.meta.append(batch).is_ok() {
            self.note_activity();
        }
    }

    fn damage(&self) -> Result<Damage> {
        let mut damage = Damage::default();
        self.each_damage(|key, record| {
            match schema::parse(key) {
                Some(Parsed::DamagedBlock { address, copy }) => {
                    damage.blocks.push((address, copy, DamagedBlockRecord::decode(record)?));
                }
                Some(Parsed::DamagedValue(key)) => damage.values.push((key.to_vec(), DamagedValueRecord::decode(record)?)),
                _ => {}
            }
            Ok(())
        })?;
        Ok(damage)
    }

    fn each_damage(&self, mut visit: impl FnMut(&Key, &[u8]) -> Result<()>) -> Result<()> {
        let (mut from, end) = (schema::table_begin(schema::DAMAGED_BLOCKS), schema::table_end(schema::DAMAGED_VALUES));
        loop {
            let (items, next) = self.meta.scan(&from, &end, PAGE)?;
            items.iter().try_for_each(|(key, record)| visit(key, record))?;
            match next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// Deletes the records of damage whose scrub is one that `is_old`.
    fn forget_damage(&self, is_old: impl Fn(u64) -> bool) -> Result<()> {
        let mut old = Vec::new();
        self.each_damage(|key, record| {
            let scrub = match schema::parse(key) {
                Some(Parsed::DamagedBlock { .. }) => DamagedBlockRecord::decode(record)?.scrub,
                _ => DamagedValueRecord::decode(record)?.scrub,
            };
            if is_old(scrub) {
                old.push(key.clone());
            }
            Ok(())
        })?;
        for keys in old.chunks(PAGE) {
            let mut batch = Batch::new();
            keys.iter().for_each(|key| batch.delete(key.clone()));
            self.meta.append(batch)?;
            self.relieve_inside()?;
        }
        Ok(())
    }

    /// Forgets all known damage, repaired or not: what is still there is found again by the next read or scrub.
    pub fn damage_clear(&self) -> Result<()> {
        self.begin_changing()?;
        self.forget_damage(|_| true)?;
        self.reported.lock().clear();
        self.note_activity();
        Ok(())
    }

    /// All known damage that still counts: ranges of files, and metadata values.
    pub fn damage_list(&self) -> Result<Value> {
        let damage = self.damage()?;
        let ranges = scrub::damaged_ranges(&self.meta, &damage.blocks)?;
        let keys: Vec<Key> = damage.values.iter().map(|(key, _)| key.clone()).filter(|key| self.meta.get(key).is_err()).collect();
        Ok(json!({ "ranges": ranges, "values": scrub::damaged_values(&self.meta, &keys) }))
    }

    /// How far the scrub is, or what the last one came to. `with_damage`: with all known damage.
    pub fn scrub_status(&self, with_damage: bool) -> Result<Value> {
        let (record, failure, since) = {
            let held = self.scrub.held.lock();
            (held.record.clone(), held.failure.clone(), held.since)
        };
        let is_running = record.state == WorkState::Running && failure.is_none();
        let done = record.blocks * BLOCK_SIZE;
        let total = record.blocks_total.max(if is_running { self.blocks_to_scrub() } else { 0 }).max(record.blocks) * BLOCK_SIZE;
        let rate = since.map_or(0.0, |(begin, blocks)| {
            (record.blocks.saturating_sub(blocks) * BLOCK_SIZE) as f64 / begin.elapsed().as_secs_f64().max(0.001)
        });
        let left = (is_running && rate > 0.0).then(|| ((total - done) as f64 / rate).ceil() as u64);
        let or_null = |seconds: i64| if seconds == 0 { Value::Null } else { seconds.into() };
        let mut status = json!({
            "state": if failure.is_some() { "failed" } else { record.state.name() },
            "error": failure,
            "number": record.number,
            "phase": if is_running { json!(record.phase.name()) } else { Value::Null },
            "began": or_null(record.began),
            "ended": or_null(record.ended),
            "limit_bytes_per_second": if record.limit == 0 { Value::Null } else { record.limit.into() },
            "bytes_done": done,
            "bytes_total": total,
            "bytes_per_second": if is_running { json!(rate as u64) } else { Value::Null },
            "seconds_left": left,
            "seconds_worked": record.milliseconds as f64 / 1000.0,
            "values_done": record.values,
            "bad_blocks": record.bad_blocks,
            "repaired_blocks": record.repaired_blocks,
            "damaged_values": record.damaged_values,
            "healed_copies": record.healed,
        });
        if with_damage && let Some(object) = status.as_object_mut() {
            object.insert("damage".to_owned(), self.damage_list()?);
        }
        Ok(status)
    }
}
