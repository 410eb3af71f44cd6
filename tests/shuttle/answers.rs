//! The worker pool, ordered streams and the dispatcher: every request is answered exactly once, also by a job that panics and when the
//! pool ends with work in its queue; jobs of a file begin in order; a stream is answered in order.

use crate::machine::{Machine, create};
use crate::simulated_disk::Survivors;
use crate::{below, model, together};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use sumfs::fs::{Caller, ReadFlags, WriteFlags};
use sumfs::fuse::dispatch::{Dispatcher, Read, Write};
use sumfs::fuse::stream::{LARGE_BYTES, Streams};
use sumfs::pool::{NextJob, Pool};
use sumfs::units::InodeNumber;

/// Answers in the order in which they came. Never locked across a switch.
type Log = Arc<Mutex<Vec<u64>>>;

/// Stands for a reply: answers when dropped.
struct Reply {
    log: Log,
    number: u64,
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.log.lock().unwrap().push(self.number);
    }
}

fn assert_each_once(log: &Log, count: u64) {
    let mut answered = log.lock().unwrap().clone();
    answered.sort_unstable();
    assert_eq!(answered, (0..count).collect::<Vec<_>>(), "answers");
}

#[test]
fn every_job_of_a_pool_answers_once() {
    const SUBMITTERS: u64 = 2;
    const JOBS: u64 = 4;
    const KEYS: u64 = 2;
    model(|| {
        let (answers, begun) = (Log::default(), Arc::new(Mutex::new(BTreeMap::<_, Vec<u64>>::new())));
        let panics = Arc::new(AtomicUsize::new(0));
        let told = panics.clone();
        let on_panic = Arc::new(move |_: &str| {
            told.fetch_add(1, SeqCst);
        });
        // Room for two jobs: submitters wait. One job of a key at a time: they begin in order.
        let pool = Arc::new(Pool::new("worker", 2, 8192, NextJob::Oldest, on_panic).unwrap());
        let body = |submitter: u64| {
            let (pool, answers, begun) = (pool.clone(), answers.clone(), begun.clone());
            Box::new(move || {
                for job in 0..JOBS {
                    let reply = Reply { log: answers.clone(), number: submitter * JOBS + job };
                    let (key, fails, begun) = (job % KEYS, below(4) == 0, begun.clone());
                    pool.reserve(4096).submit(key, move || {
                        begun.lock().unwrap().entry((key, submitter)).or_default().push(reply.number);
                        shuttle::thread::yield_now();
                        let _answered = reply;
                        if fails {
                            // As a panic, without the hook that would take it for the end of the model.
                            std::panic::resume_unwind(Box::new("on purpose"));
                        }
                    });
                }
            }) as Box<dyn FnOnce() + Send>
        };
        together((0..SUBMITTERS).map(body).collect());
        drop(Arc::into_inner(pool).unwrap());
        assert_each_once(&answers, SUBMITTERS * JOBS);
        assert!(begun.lock().unwrap().values().all(|jobs| jobs.is_sorted()), "jobs of a key begin in order");
        assert!(panics.load(SeqCst) as u64 <= SUBMITTERS * JOBS);
    });
}

#[test]
fn a_stream_is_answered_in_order_and_completely() {
    const FILE: InodeNumber = InodeNumber(7);
    const READS: u64 = 4;
    model(|| {
        let (streams, answers) = (Arc::new(Streams::default()), Log::default());
        let body = |number: u64| {
            let (ticket, log) = (streams.enter(FILE, number * 10, 10).unwrap(), answers.clone());
            Box::new(move || {
                if below(5) == 0 {
                    // The read panicked: its reply answers, and its place is given up.
                    drop(ticket);
                } else {
                    ticket.answer(move || log.lock().unwrap().push(number));
                }
            }) as Box<dyn FnOnce() + Send>
        };
        together((0..READS).map(body).collect());
        let answered = answers.lock().unwrap().clone();
        assert!(answered.is_sorted(), "{answered:?}");
        assert!(streams.enter(FILE, 1000, 10).is_some(), "nothing is in flight, so a read elsewhere begins a stream");
    });
}

#[test]
fn the_dispatcher_answers_every_request_once_and_streams_in_order() {
    const READS: u64 = 3;
    model(|| {
        let machine = Machine::new(64 << 20);
        let fs = machine.open(false);
        let file = create(&fs, "f");
        let bytes = vec![1; READS as usize * LARGE_BYTES];
        fs.write(&Caller::ROOT, file, 0, &bytes, WriteFlags::default(), sumfs::lock::Wait::Allowed).unwrap();
        fs.sync().unwrap();
        // Mounted again: nothing is cached, so every read is refused at first.
        let machine = Machine::found(&machine.power.cut_with(1, Survivors::Flushed, false));
        let fs = machine.open(false);
        let (answers, stream) = (Log::default(), Log::default());
        let dispatcher = Arc::new(Dispatcher::new(fs.clone(), 1, 2, below(2) == 0).unwrap());
        let reading = {
            let (dispatcher, answers, stream) = (dispatcher.clone(), answers.clone(), stream.clone());
            move || {
                // Busy: the only reading thread must not wait.
                let _busy = dispatcher.enter();
                for number in 0..READS {
                    let offset = number * LARGE_BYTES as u64;
                    let reply = Reply { log: answers.clone(), number };
                    let stream = stream.clone();
                    let read = Read { inode: file, offset, size: LARGE_BYTES, flags: ReadFlags::default() };
                    dispatcher.read(read, move |data| {
                        assert_eq!(data.unwrap().as_slice().len(), LARGE_BYTES);
                        stream.lock().unwrap().push(number);
                        drop(reply);
                    });
                }
            }
        };
        let writing = {
            let (dispatcher, answers) = (dispatcher.clone(), answers.clone());
            move || {
                let _busy = dispatcher.enter();
                let (written, synced) =
                    (Reply { log: answers.clone(), number: READS }, Reply { log: answers.clone(), number: READS + 1 });
                let flags = WriteFlags { direct: below(2) == 0, ..WriteFlags::default() };
                let write = Write { caller: Caller::ROOT, inode: file, offset: 0, flags };
                dispatcher.write(write, &[2; 4096], move |result| {
                    result.unwrap();
                    drop(written);
                });
                dispatcher.fsync(file, false, move |result| {
                    result.unwrap();
                    drop(synced);
                });
            }
        };
        together(vec![Box::new(reading) as Box<dyn FnOnce() + Send>, Box::new(writing)]);
        drop(Arc::into_inner(dispatcher).unwrap());
        assert_each_once(&answers, READS + 2);
        let answered = stream.lock().unwrap().clone();
        assert!(answered.is_sorted(), "a stream answered as {answered:?}");
        machine.close(&fs);
    });
}
