//! What the thread of a ring shares with those who answer its requests. An answer given on that thread itself goes into a list of its
//! own; any other thread puts it, under one short lock, into the queue's list, and wakes the thread if that sleeps.

use super::raw::Payload;
use crate::sync::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Longest body of an answer to a request whose payload stays with the ring's thread.
const SMALL_BYTES: usize = 8;

/// An answer on its way to the kernel.
#[derive(Debug)]
pub struct Answer {
    /// Which slot.
    pub slot: u16,
    /// 0, or negative.
    pub error: i32,
    /// Length of the body.
    pub body_bytes: u32,
    /// The payload with the body, or the body.
    pub body: Body,
}

/// Where a body is.
#[derive(Debug)]
pub enum Body {
    /// In the payload, which comes back.
    Payload(Payload),
    /// Here; the payload was lent to nobody.
    Small([u8; SMALL_BYTES]),
}

/// Between the thread of one ring and all others.
#[derive(Debug)]
pub struct Queue {
    answers: Mutex<Vec<Answer>>,
    wake: OwnedFd,
    is_asleep: AtomicBool,
    is_stopped: AtomicBool,
}

thread_local! {
    /// The queue whose thread this is.
    static OWN: Cell<*const Queue> = const { Cell::new(std::ptr::null()) };
    /// Answers given on this thread to requests of its own queue.
    static GIVEN: RefCell<Vec<Answer>> = const { RefCell::new(Vec::new()) };
}

impl Queue {
    /// An empty one.
    pub fn new() -> io::Result<Queue> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Queue { answers: Mutex::default(), wake, is_asleep: AtomicBool::new(false), is_stopped: AtomicBool::new(false) })
    }

    /// The calling thread is this queue's.
    pub fn adopt(&self) {
        OWN.set(std::ptr::from_ref(self));
    }

    /// What wakes the thread.
    pub fn eventfd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    fn wake(&self) {
        if self.is_asleep.swap(false, SeqCst) {
            // Fails only when full, and then there is something to wake up from.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    fn give(&self, answer: Answer) {
        if std::ptr::eq(OWN.get(), self) {
            GIVEN.with_borrow_mut(|given| given.push(answer));
        } else {
            self.answers.lock().push(answer);
            self.wake();
        }
    }

    /// Takes the answers given on this thread.
    pub fn take_own(into: &mut Vec<Answer>) {
        GIVEN.with_borrow_mut(|given| into.append(given));
    }

    /// Takes the answers given elsewhere.
    pub fn take(&self, into: &mut Vec<Answer>) {
        into.append(&mut self.answers.lock());
    }

    /// Says that the thread will sleep; false: it must not, there is something to do. Whoever gives an answer after this wakes it.
    pub fn may_sleep(&self) -> bool {
        self.is_asleep.store(true, SeqCst);
        let may = self.answers.lock().is_empty() && !self.is_stopped();
        if !may {
            self.is_asleep.store(false, SeqCst);
        }
        may
    }

    /// The thread is awake.
    pub fn woke(&self) {
        self.is_asleep.store(false, SeqCst);
    }

    /// The connection has ended: so shall the thread.
    pub fn stop(&self) {
        self.is_stopped.store(true, SeqCst);
        self.wake();
    }

    /// Was it stopped?
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(SeqCst)
    }
}

/// A request's place in a ring, held by its reply.
#[derive(Debug)]
pub struct Slot {
    queue: Arc<Queue>,
    number: u16,
    /// None: the request's data in it is still being looked at.
    payload: Option<Payload>,
}

impl Slot {
    /// The slot of a request, with its payload unless that holds the data of a WRITE.
    pub fn new(queue: &Arc<Queue>, number: u16, payload: Option<Payload>) -> Slot {
        Slot { queue: queue.clone(), number, payload }
    }

    /// Where the body may be put together.
    pub fn place(&mut self) -> Option<&mut [u8]> {
        self.payload.as_deref_mut()
    }

    /// Answers with so many bytes of [`Slot::place`].
    pub fn answer_in_place(self, bytes: usize) {
        match self.payload {
            Some(payload) if bytes <= payload.len() => {
                let answer = Answer { slot: self.number, error: 0, body_bytes: bytes as u32, body: Body::Payload(payload) };
                self.queue.give(answer);
            }
            payload => Slot { payload, ..self }.answer(-libc::EIO, &[]),
        }
    }

    /// Answers. The body must fit: the kernel asks for no more than a payload holds.
    pub fn answer(self, error: i32, body: &[u8]) {
        let (mut error, mut body_bytes) = (error, body.len());
        let body = match self.payload {
            Some(mut payload) => {
                match payload.get_mut(..body.len()) {
                    Some(place) => place.copy_from_slice(body),
                    None => (error, body_bytes) = (-libc::EIO, 0),
                }
                Body::Payload(payload)
            }
            None => {
                let mut small = [0; SMALL_BYTES];
                match small.get_mut(..body.len()) {
                    Some(place) => place.copy_from_slice(body),
                    None => (error, body_bytes) = (-libc::EIO, 0),
                }
                Body::Small(small)
            }
        };
        self.queue.give(Answer { slot: self.number, error, body_bytes: body_bytes as u32, body });
    }
}
