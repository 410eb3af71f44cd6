//! The transport over io_uring: one queue for each CPU, each with a ring and a thread of its own ([`thread`]). The kernel hands requests
//! over in memory of ours ([`raw`]); answers of other threads come through a [`queue`]; [`turn`] decides who waits, [`placement`] where
//! a thread runs, [`switch`] is the kernel's switch for all this.
//!
//! INIT, FORGET and INTERRUPT go on coming out of /dev/fuse, where a reader stays. Requests are held back by the kernel from INIT on until
//! every queue has a slot; if one is refused they come out of /dev/fuse.

pub mod placement;
pub mod queue;
pub mod raw;
pub mod switch;
pub mod thread;
pub mod turn;

use super::device::REQUEST_BYTES_MAX;
use super::serve::{Server, THREAD_PREFIX};
use queue::Queue;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use thread::Thread;

/// Requests in flight in one queue, at most; more wait in the kernel.
const DEPTH_MAX: usize = 32;
/// Memory of all payloads together (it is taken only when used), as long as every queue keeps [`DEPTH_MIN`] slots.
const PAYLOADS_BYTES_MAX: usize = 512 << 20;
const DEPTH_MIN: usize = 2;

/// Called when a thread of a ring ends although the connection has not: requests of its CPU would wait for ever.
pub type OnDeath = Arc<dyn Fn(&str) + Send + Sync>;

/// All rings of a mount.
pub struct Rings {
    queues: Vec<Arc<Queue>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

/// How many CPUs the kernel has queues for: all that can ever be there.
fn possible_cpus() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count_of(&text).ok_or_else(|| io::Error::other(format!("the list of possible CPUs is {text:?}")))
}

/// The length of a list like `0-3,8-11`.
fn count_of(list: &str) -> Option<usize> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        (last.checked_sub(first)?).checked_add(1)
    };
    list.trim().split(',').map(range).sum()
}

fn depth_for(cpus: usize) -> usize {
    (PAYLOADS_BYTES_MAX / REQUEST_BYTES_MAX / cpus.max(1)).clamp(DEPTH_MIN, DEPTH_MAX)
}

impl Rings {
    /// Starts a thread for each queue; when this returns the kernel has all slots, and requests come. An error: all come out of /dev/fuse.
    pub fn start(server: &Arc<Server>, device: &Arc<OwnedFd>, on_death: &OnDeath) -> io::Result<Rings> {
        let cpus = possible_cpus()?;
        let depth = depth_for(cpus);
        let mut rings = Rings { queues: Vec::new(), threads: Vec::new() };
        for number in 0..cpus {
            if let Err(error) = rings.start_one(number, depth, server, device, on_death) {
                rings.stop();
                return Err(error);
            }
        }
        tracing::info!("requests come over io_uring: {cpus} queues of {depth}");
        Ok(rings)
    }

    fn start_one(
        &mut self,
        number: usize,
        depth: usize,
        server: &Arc<Server>,
        device: &Arc<OwnedFd>,
        on_death: &OnDeath,
    ) -> io::Result<()> {
        let too_many = |_| io::Error::other("too many CPUs for rings");
        let (number, depth) = (u16::try_from(number).map_err(too_many)?, u16::try_from(depth).map_err(too_many)?);
        let queue = Arc::new(Queue::new()?);
        self.queues.push(queue.clone());
        let (server, device, on_death) = (server.clone(), device.clone(), on_death.clone());
        let (told, hears) = sync_channel(1);
        let body = move || serve(server, &device, queue, (number, depth), &told, &on_death);
        let name = format!("{THREAD_PREFIX}-r{number}");
        self.threads.push(std::thread::Builder::new().name(name).spawn(body)?);
        hears.recv().unwrap_or_else(|_| Err(io::Error::other("the thread of a ring ended at once")))
    }

    /// Ends the threads: the connection has ended, or is served without them.
    pub fn stop(&mut self) {
        self.queues.iter().for_each(|queue| queue.stop());
        for thread in self.threads.drain(..) {
            // What went wrong was said when it did.
            let _ = thread.join();
        }
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Body of a thread.
fn serve(
    server: Arc<Server>,
    device: &OwnedFd,
    queue: Arc<Queue>,
    (number, depth): (u16, u16),
    told: &SyncSender<io::Result<()>>,
    on_death: &OnDeath,
) -> io::Result<()> {
    let thread = match Thread::new(server, device.as_fd(), queue, number, depth) {
        Ok(thread) => thread,
        Err(error) => {
            let _ = told.send(Err(error));
            return Ok(());
        }
    };
    let _ = told.send(Ok(()));
    thread.run().inspect_err(|error| on_death(&format!("ring {number}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_however_many_cpus_there_are() {
        assert_eq!(depth_for(1), DEPTH_MAX);
        assert_eq!(depth_for(2), DEPTH_MAX);
        for cpus in [17, 64, 200] {
            assert!(depth_for(cpus) * cpus * REQUEST_BYTES_MAX <= PAYLOADS_BYTES_MAX, "{cpus}");
        }
        assert_eq!(depth_for(4096), DEPTH_MIN);
    }

    #[test]
    fn lists_of_cpus_are_counted() {
        let table = [("0\n", 1), ("0-1\n", 2), ("0-3,8-11", 8), ("0,2,4-5", 4)];
        table.iter().for_each(|(list, count)| assert_eq!(count_of(list), Some(*count), "{list}"));
        ["", "a", "3-1", "0-"].iter().for_each(|list| assert_eq!(count_of(list), None, "{list}"));
    }

    #[test]
    fn there_is_a_cpu() {
        assert!(possible_cpus().unwrap() >= std::thread::available_parallelism().unwrap().get());
    }
}
