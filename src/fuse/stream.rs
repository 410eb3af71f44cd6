//! Large reads of one stream are done in parallel and answered in the order in which they came: who reads a file from front to back
//! waits for the oldest first, so an answer that overtakes it helps nobody and takes memory and a core from it.
//!
//! Reads belong to one stream while each begins where the one before ended and at least one is not answered. Others stand alone.
//! One short lock, held neither while answering nor while anything is read.

use crate::sync::Mutex;
use crate::units::InodeNumber;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Smaller reads are answered as they come.
pub const LARGE_BYTES: usize = 128 << 10;

type Answer = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Stream {
    /// Where the next read must begin.
    end: u64,
    issued: u64,
    answered: u64,
    /// Done, but older ones are not.
    held: BTreeMap<u64, Answer>,
}

/// The streams that have reads in flight.
#[derive(Default)]
pub struct Streams {
    files: Mutex<HashMap<InodeNumber, Stream>>,
}

/// A read's place in its stream. Dropped without an answer (a panic) it gives the place up.
pub struct Ticket {
    streams: Arc<Streams>,
    file: InodeNumber,
    number: u64,
    is_used: bool,
}

impl Streams {
    /// A place behind the reads that this one continues; None when it continues none although some are in flight.
    pub fn enter(self: &Arc<Streams>, file: InodeNumber, offset: u64, bytes: usize) -> Option<Ticket> {
        let mut files = self.files.lock();
        let stream = files.entry(file).or_insert_with(|| Stream { end: offset, ..Stream::default() });
        if stream.end != offset {
            return None;
        }
        stream.end = offset.saturating_add(bytes as u64);
        let number = stream.issued;
        stream.issued += 1;
        Some(Ticket { streams: self.clone(), file, number, is_used: false })
    }

    /// Runs `answer`, and those held behind it, if all older ones have been answered; else holds it.
    fn finish(&self, file: InodeNumber, number: u64, answer: impl FnOnce() + Send + 'static) {
        {
            let mut files = self.files.lock();
            let Some(stream) = files.get_mut(&file) else { return };
            if stream.answered != number {
                stream.held.insert(number, Box::new(answer));
                return;
            }
        }
        answer();
        while let Some(next) = self.next_held(file) {
            next();
        }
    }

    /// One more is answered: the next one, if it is done.
    fn next_held(&self, file: InodeNumber) -> Option<Answer> {
        let mut files = self.files.lock();
        let stream = files.get_mut(&file)?;
        stream.answered += 1;
        if stream.answered == stream.issued {
            files.remove(&file);
            return None;
        }
        stream.held.remove(&stream.answered)
    }
}

impl Ticket {
    /// Answers when it is this read's turn: now, or on the thread that ends the read before it.
    pub fn answer(mut self, answer: impl FnOnce() + Send + 'static) {
        self.is_used = true;
        self.streams.finish(self.file, self.number, answer);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_used {
            self.streams.finish(self.file, self.number, || {});
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const FILE: InodeNumber = InodeNumber(7);

    #[test]
    fn answers_come_in_the_order_of_the_stream() {
        let streams = Arc::new(Streams::default());
        let mut tickets: Vec<Ticket> = (0..5).map(|number| streams.enter(FILE, number * 10, 10).unwrap()).collect();
        let (said, heard) = channel();
        // Ended in this order; what each end makes known.
        for (ended, expected) in [(3, vec![]), (1, vec![]), (0, vec![0, 1]), (4, vec![]), (2, vec![2, 3, 4])] {
            let ticket = tickets.remove(tickets.iter().position(|ticket| ticket.number == ended).unwrap());
            let said = said.clone();
            ticket.answer(move || said.send(ended).unwrap());
            assert_eq!(heard.try_iter().collect::<Vec<_>>(), expected, "after {ended}");
        }
        assert!(streams.files.lock().is_empty());
    }

    #[test]
    fn a_read_elsewhere_stands_alone_and_other_files_do_too() {
        let streams = Arc::new(Streams::default());
        let first = streams.enter(FILE, 0, 10).unwrap();
        assert!(streams.enter(FILE, 50, 10).is_none());
        let other = streams.enter(InodeNumber(8), 10, 10).unwrap();
        let (said, heard) = channel();
        other.answer(move || said.send(()).unwrap());
        heard.try_recv().unwrap();
        drop(first);
        assert!(streams.enter(FILE, 50, 10).is_some(), "nothing is in flight: a new stream");
    }

    #[test]
    fn a_read_that_never_answers_holds_nobody_up() {
        let streams = Arc::new(Streams::default());
        let (first, second) = (streams.enter(FILE, 0, 1).unwrap(), streams.enter(FILE, 1, 1).unwrap());
        let (said, heard) = channel();
        second.answer(move || said.send(()).unwrap());
        assert!(heard.try_recv().is_err());
        drop(first);
        heard.try_recv().unwrap();
    }
}
