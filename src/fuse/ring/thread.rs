//! The thread of one queue: takes what has come, serves it, sends the answers of a batch in one system call that also waits for more.
//!
//! The kernel gives a request to the queue of the CPU on which it was made. As long as requests come one at a time, the thread stays
//! on that CPU: who asks sleeps until the answer is there, so the two take turns without waking another CPU. When many come at once,
//! the thread may run anywhere, beside those who ask.

use super::placement::Placement;
use super::queue::{Answer, Body, Queue, Slot};
use super::raw::{COMMIT_ID_START, FIXED_START, HEADER_BYTES, PAYLOAD_BYTES_START, Payload, Raw, WAKE};
use super::turn;
use crate::fuse::abi::{IN_HEADER_BYTES, opcode, out_header};
use crate::fuse::device::REQUEST_BYTES_MAX;
use crate::fuse::reply::Reply;
use crate::fuse::request::{self, Message};
use crate::fuse::serve::Server;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Answers wait at most about so long for others of their batch.
const HELD_BACK_MAX: Duration = Duration::from_micros(50);

/// Slots that the kernel gets first: few, because what a large request moves stays in a core's cache only if the memory that it moves
/// through is used again soon. It gets as many more whenever half of those it has wait for other threads: a slow device wants many
/// requests at once. (When none is left it is too late: a request that found none waits for the next answer even if slots come.)
const SLOTS_STEP: usize = 8;

/// Requests from this size on are moved by somebody who does not wait for each: the page cache, or a direct one that the copying
/// dominates.
const LARGE_BYTES: usize = 64 << 10;
/// They count as so many.
const LARGE_WEIGHT: usize = 16;
/// Where the size of a READ stands.
const READ_SIZE_START: usize = FIXED_START + 16;

/// What the kernel says about a slot whose connection has ended.
const ENDED: [i32; 3] = [-libc::ENOTCONN, -libc::ECONNABORTED, -libc::ECANCELED];

/// One queue's thread, from within.
pub struct Thread {
    raw: Raw,
    queue: Arc<Queue>,
    server: Arc<Server>,
    /// The payloads of slots; None: with a reply.
    payloads: Vec<Option<Payload>>,
    /// The numbers under which requests are committed, by slot.
    commit_ids: Vec<u64>,
    /// Slots that the kernel has been given.
    given: usize,
    /// Slots that it still takes.
    live: usize,
    /// Slots whose requests are not answered.
    lent: usize,
    /// Why one was lost although the connection has not ended.
    lost: Option<io::Error>,
    placement: Placement,
    /// How many the requests of the batch count for.
    weight: usize,
    /// Names and values of a request, so that its payload is free for the answer.
    copied: Vec<u8>,
    answers: Vec<Answer>,
}

fn number(header: &[u8; HEADER_BYTES], start: usize) -> u32 {
    header[start..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

fn wide_number(header: &[u8; HEADER_BYTES], start: usize) -> u64 {
    header[start..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

impl Thread {
    /// Makes the ring and gives the kernel its slots. Must be called on the thread itself.
    pub fn new(server: Arc<Server>, device: BorrowedFd<'_>, queue: Arc<Queue>, number: u16, depth: u16) -> io::Result<Thread> {
        queue.adopt();
        let (raw, payloads) = Raw::new(device, number, depth, REQUEST_BYTES_MAX)?;
        let mut thread = Thread {
            raw,
            queue,
            server,
            payloads: payloads.into_iter().map(Some).collect(),
            commit_ids: vec![0; depth.into()],
            given: 0,
            live: 0,
            lent: 0,
            lost: None,
            placement: Placement::new(number.into()),
            weight: 0,
            copied: Vec::new(),
            answers: Vec::new(),
        };
        thread.give_slots()?;
        thread.raw.queue_wake(thread.queue.eventfd())?;
        // A slot that is refused says so at once.
        thread.raw.enter(0)?;
        let mut refused = Vec::new();
        thread.raw.completions(&mut refused);
        match refused.iter().find(|(_, result)| *result < 0) {
            Some((_, error)) => Err(io::Error::from_raw_os_error(-error)),
            None => Ok(thread),
        }
    }

    /// Gives the kernel more slots, up to all.
    fn give_slots(&mut self) -> io::Result<()> {
        for _ in 0..SLOTS_STEP {
            let Some(Some(payload)) = self.payloads.get_mut(self.given) else { return Ok(()) };
            self.raw.queue_register(self.given as u16, payload)?;
            self.given += 1;
            self.live += 1;
        }
        Ok(())
    }

    /// Serves until the connection ends.
    pub fn run(mut self) -> io::Result<()> {
        let mut completed = Vec::new();
        let server = self.server.clone();
        while self.live > 0 && !self.queue.is_stopped() {
            let may_sleep = self.queue.may_sleep();
            self.raw.enter(usize::from(may_sleep))?;
            self.queue.woke();
            let _awake = server.awake();
            self.raw.completions(&mut completed);
            self.weight = completed.len();
            self.serve_batch(&mut completed)?;
            self.placement.note(self.weight);
            self.take_answers()?;
            if self.lent * 2 >= self.live {
                self.give_slots()?;
            }
        }
        // With the last slot lost, whoever makes requests on this CPU would wait for ever.
        self.lost.filter(|_| !self.queue.is_stopped()).map_or(Ok(()), Err)
    }

    fn serve_batch(&mut self, completed: &mut Vec<(u64, i32)>) -> io::Result<()> {
        let is_alone = completed.len() == 1;
        let mut begin = (!is_alone).then(Instant::now);
        for (slot, result) in completed.drain(..) {
            if slot == WAKE {
                self.raw.queue_wake(self.queue.eventfd())?;
                continue;
            }
            let slot = slot as u16;
            if result < 0 {
                self.lose(slot, result);
                continue;
            }
            turn::begin(is_alone && !self.raw.has_more());
            self.serve(slot);
            Queue::take_own(&mut self.answers);
            self.commit_all()?;
            if turn::has_waited() && self.raw.has_more() {
                turn::kept_others_waiting();
            }
            if let Some(begin) = begin.as_mut().filter(|begin| begin.elapsed() > HELD_BACK_MAX) {
                self.raw.enter(0)?;
                *begin = Instant::now();
            }
        }
        Ok(())
    }

    /// The kernel takes nothing more in this slot.
    fn lose(&mut self, slot: u16, error: i32) {
        self.live -= 1;
        if !ENDED.contains(&error) {
            let error = io::Error::from_raw_os_error(-error);
            tracing::warn!("slot {slot} of a ring is lost: {error}");
            self.lost = Some(error);
        }
    }

    fn serve(&mut self, slot: u16) {
        let header = self.raw.header(slot);
        let Some(place) = self.payloads.get_mut(usize::from(slot)) else { return };
        let Some(payload) = place.take() else {
            return tracing::error!("internal error: a request in slot {slot}, which has not been answered");
        };
        if let Some(commit_id) = self.commit_ids.get_mut(usize::from(slot)) {
            *commit_id = wide_number(&header, COMMIT_ID_START);
        }
        self.lent += 1;
        let came = payload.get(..number(&header, PAYLOAD_BYTES_START) as usize).unwrap_or_default();
        let is_write = number(&header, 4) == opcode::WRITE;
        let is_read = number(&header, 4) == opcode::READ;
        if came.len() >= LARGE_BYTES || is_read && number(&header, READ_SIZE_START) as usize >= LARGE_BYTES {
            self.weight += LARGE_WEIGHT;
        }
        let fixed = header.get(FIXED_START..FIXED_START + 128).unwrap_or_default();
        let head = header.get(..IN_HEADER_BYTES).unwrap_or_default();
        let unique = request::unique(head).unwrap_or_default();
        if is_write {
            let message = Message { header: head, fixed, rest: Some(came) };
            self.server.serve(&message, Reply::to_ring(Slot::new(&self.queue, slot, None), unique));
            *place = Some(payload);
        } else {
            self.copied.clear();
            self.copied.extend_from_slice(came);
            let message = Message { header: head, fixed, rest: Some(&self.copied) };
            self.server.serve(&message, Reply::to_ring(Slot::new(&self.queue, slot, Some(payload)), unique));
        }
    }

    /// Answers from other threads.
    fn take_answers(&mut self) -> io::Result<()> {
        self.queue.take(&mut self.answers);
        self.commit_all()
    }

    fn commit_all(&mut self) -> io::Result<()> {
        let mut answers = std::mem::take(&mut self.answers);
        for answer in answers.drain(..) {
            self.commit(answer)?;
        }
        self.answers = answers;
        Ok(())
    }

    fn commit(&mut self, answer: Answer) -> io::Result<()> {
        let Answer { slot, error, body_bytes, body } = answer;
        let Some(place) = self.payloads.get_mut(usize::from(slot)) else { return Ok(()) };
        match body {
            Body::Payload(payload) => *place = Some(payload),
            Body::Small(small) => {
                let small = small.get(..body_bytes as usize).unwrap_or_default();
                if let Some(target) = place.as_mut().and_then(|payload| payload.get_mut(..small.len())) {
                    target.copy_from_slice(small);
                }
            }
        }
        self.lent = self.lent.saturating_sub(1);
        let commit_id = self.commit_ids.get(usize::from(slot)).copied().unwrap_or_default();
        self.raw.queue_commit(slot, commit_id, &out_header(commit_id, error, body_bytes as usize), body_bytes)
    }
}
