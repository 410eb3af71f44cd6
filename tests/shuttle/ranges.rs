//! Range locks: who has a range alone has it alone, and everybody gets it in the end.

use crate::{below, model, together};
use std::sync::{Arc, Mutex};
use sumfs::fs::range_lock::RangeLock;

const BLOCKS: u64 = 4;
const ALONE: i32 = -1;

#[test]
fn ranges_exclude_and_no_wakeup_is_lost() {
    model(|| {
        let lock = Arc::new(RangeLock::default());
        // Holders of each block; never locked across a switch.
        let holders = Arc::new(Mutex::new([0i32; BLOCKS as usize]));
        let body = |_| {
            let (lock, holders) = (lock.clone(), holders.clone());
            Box::new(move || {
                for _ in 0..3 {
                    hold(&lock, &holders);
                }
            }) as Box<dyn FnOnce() + Send>
        };
        together((0..3).map(body).collect());
        assert!(lock.try_lock(0..BLOCKS, false).is_some(), "nobody holds anything any more");
    });
}

fn hold(lock: &RangeLock, holders: &Mutex<[i32; BLOCKS as usize]>) {
    let start = below(BLOCKS);
    let range = start..start + 1 + below(BLOCKS - start);
    let (is_shared, tries) = (below(2) == 0, below(3) == 0);
    let guard = if tries { lock.try_lock(range.clone(), is_shared) } else { Some(lock.lock(range.clone(), is_shared)) };
    if guard.is_none() {
        return;
    }
    let blocks = range.start as usize..range.end as usize;
    for holder in &mut holders.lock().unwrap()[blocks.clone()] {
        assert!(if is_shared { *holder >= 0 } else { *holder == 0 }, "a block is held by others");
        *holder += if is_shared { 1 } else { ALONE };
    }
    shuttle::thread::yield_now();
    holders.lock().unwrap()[blocks].iter_mut().for_each(|holder| *holder -= if is_shared { 1 } else { ALONE });
}
