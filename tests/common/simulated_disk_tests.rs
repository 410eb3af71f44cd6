//! The simulated machine against its own fault model: a test double that is wrong proves nothing.

use super::*;
use std::collections::HashSet;

const LEN: u64 = 64 << 10;

fn block(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK]
}

fn first_byte(image: &MemoryImage, index: u64) -> u8 {
    let mut byte = [0];
    image.read(index * BLOCK_SIZE, &mut byte);
    byte[0]
}

fn fault(port: Option<&str>, operation: Operation, nth: u64, for_good: bool) -> Fault {
    Fault { port: port.map(str::to_owned), operation: Some(operation), nth, for_good }
}

#[test]
fn flushed_changes_always_survive_and_the_others_in_every_combination() {
    let power = SimulatedPower::new(1);
    let (data, journal) = (power.port("data", LEN), power.port("journal", LEN));
    data.write_at(0, &block(1)).unwrap();
    data.flush().unwrap();
    data.write_at(0, &block(2)).unwrap();
    data.write_at(0, &block(3)).unwrap();
    data.write_at(BLOCK_SIZE, &block(4)).unwrap();
    journal.write_at(0, &block(5)).unwrap();
    let mut seen = HashSet::new();
    for seed in 0..400 {
        let images = power.cut_with(seed, Survivors::Any, false);
        let (data, journal) = (&images["data"], &images["journal"]);
        seen.insert((first_byte(data, 0), first_byte(data, 1), first_byte(journal, 0)));
    }
    let mut possible = HashSet::new();
    for first in [1, 2, 3] {
        for second in [0, 4] {
            possible.extend([(first, second, 0), (first, second, 5)]);
        }
    }
    assert_eq!(seen, possible);
    data.flush().unwrap();
    for seed in 0..50 {
        let images = power.cut(seed);
        assert_eq!((first_byte(&images["data"], 0), first_byte(&images["data"], 1)), (3, 4));
    }
    assert_eq!(power.unflushed_changes(), 1, "the flush of one port touched another");
}

#[test]
fn a_prefix_has_no_gap() {
    let power = SimulatedPower::new(1);
    let (one, two) = (power.port("one", LEN), power.port("two", LEN));
    for number in 0..16u64 {
        let disk = if number % 2 == 0 { &one } else { &two };
        disk.write_at(number / 2 * BLOCK_SIZE, &block(1)).unwrap();
    }
    let mut counts = HashSet::new();
    for seed in 0..200 {
        let images = power.cut_with(seed, Survivors::Prefix, false);
        let survived = |number: u64| {
            let name = if number.is_multiple_of(2) { "one" } else { "two" };
            first_byte(&images[name], number / 2) == 1
        };
        let count = (0..16).filter(|number| survived(*number)).count() as u64;
        assert!((0..16).all(|number| survived(number) == (number < count)), "seed {seed}");
        counts.insert(count);
    }
    assert_eq!(counts.len(), 17);
}

#[test]
fn torn_blocks_have_an_earlier_tail() {
    let power = SimulatedPower::new(1);
    let disk = power.port("data", LEN);
    disk.write_at(0, &block(1)).unwrap();
    disk.flush().unwrap();
    disk.write_at(0, &block(2)).unwrap();
    let mut borders = HashSet::new();
    for seed in 0..2000 {
        let mut found = block(0);
        power.cut_with(seed, Survivors::Any, true)["data"].read(0, &mut found);
        let border = found.iter().position(|byte| *byte == 1).unwrap_or(BLOCK);
        assert!(found[border..].iter().all(|byte| *byte == 1), "seed {seed}");
        borders.insert(border);
    }
    assert!(borders.iter().all(|border| border % 512 == 0));
    assert_eq!(borders.len(), 9, "{borders:?}");
}

#[test]
fn lengths_are_changes_too() {
    let power = SimulatedPower::new(1);
    let disk = power.port("index", 0);
    disk.set_len(2 * BLOCK_SIZE).unwrap();
    disk.write_at(BLOCK_SIZE, &block(1)).unwrap();
    let lens: HashSet<u64> = (0..50).map(|seed| power.cut_with(seed, Survivors::Any, false)["index"].len()).collect();
    assert_eq!(lens, HashSet::from([0, 2 * BLOCK_SIZE]));
    disk.flush().unwrap();
    disk.set_len(BLOCK_SIZE).unwrap();
    disk.set_len(2 * BLOCK_SIZE).unwrap();
    let mut byte = [1];
    disk.read_at(BLOCK_SIZE, &mut byte).unwrap();
    assert_eq!(byte, [0], "what was cut off came back");
    let images: Vec<MemoryImage> = (0..50).map(|seed| power.cut_with(seed, Survivors::Any, false)["index"].clone()).collect();
    assert!(images.iter().any(|image| image.len() == BLOCK_SIZE));
    assert!(images.iter().any(|image| first_byte(image, 1) == 1) && images.iter().any(|image| first_byte(image, 1) == 0));
    disk.flush().unwrap();
    assert_eq!(first_byte(&power.cut(3)["index"], 1), 0);
}

#[test]
fn the_nth_operation_fails_once_or_for_good() {
    let power = SimulatedPower::new(1);
    let (data, journal) = (power.port("data", LEN), power.port("journal", LEN));
    power.fail(fault(Some("data"), Operation::Write, 2, false));
    journal.write_at(0, &block(1)).unwrap();
    data.write_at(0, &block(1)).unwrap();
    assert!(data.write_at(0, &block(2)).is_err());
    data.write_at(0, &block(3)).unwrap();
    power.fail(fault(None, Operation::Read, 1, true));
    assert!(data.read_at(0, &mut [0]).is_err() && journal.read_at(0, &mut [0]).is_err());
    power.clear_faults();
    data.read_at(0, &mut [0]).unwrap();
    power.fail(fault(None, Operation::Allocate, 1, false));
    assert!(matches!(data.allocate(0, BLOCK_SIZE), Err(Error::NoSpace)));
    assert_eq!(power.counts("data"), Counts { reads: 2, writes: 3, flushes: 0, others: 1 });
    assert_eq!(power.operations(), 5);
}

#[test]
fn what_a_failed_flush_lost_is_not_tried_again() {
    let mut lost = 0;
    for seed in 0..20 {
        let power = SimulatedPower::new(seed);
        let disk = power.port("data", LEN);
        for index in 0..16 {
            disk.write_at(index * BLOCK_SIZE, &block(1)).unwrap();
        }
        power.fail(fault(None, Operation::Flush, 1, false));
        assert!(disk.flush().is_err());
        disk.flush().unwrap();
        let mut found = vec![0; LEN as usize];
        disk.read_at(0, &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == 1), "reads go on showing it");
        let image = &power.cut(seed)["data"];
        lost += (0..16).filter(|index| first_byte(image, *index) == 0).count();
    }
    assert!(lost > 0 && lost < 320, "{lost}");
}

#[test]
fn a_stopped_machine_fails_everything() {
    let power = SimulatedPower::new(1);
    let disk = power.port("data", LEN);
    power.stop_after_flushes(2);
    for number in 1..=2 {
        disk.write_at(0, &block(number)).unwrap();
        disk.flush().unwrap();
    }
    assert!(power.is_stopped());
    assert!(disk.write_at(0, &block(9)).is_err() && disk.read_at(0, &mut [0]).is_err() && disk.flush().is_err());
    assert!(disk.set_len(0).is_err() && disk.allocate(0, 1).is_err() && disk.discard(0, 1).is_err());
    let images = power.cut_with(1, Survivors::Everything, false);
    assert_eq!(first_byte(&images["data"], 0), 2);

    let power = SimulatedPower::reopen(2, &images);
    let disk = power.port("data", 0);
    assert_eq!(disk.len().unwrap(), LEN);
    power.stop_before_flush(1);
    disk.write_at(0, &block(3)).unwrap();
    assert!(disk.flush().is_err() && power.is_stopped());
    assert_eq!(first_byte(&power.cut_with(1, Survivors::Flushed, false)["data"], 0), 2);

    let power = SimulatedPower::new(3);
    let disk = power.port("data", LEN);
    power.stop_after_operations(1);
    disk.write_at(0, &block(1)).unwrap();
    disk.read_at(0, &mut [0]).unwrap();
    assert!(disk.write_at(0, &block(2)).is_err() && power.is_stopped());
}

#[test]
fn the_hook_sees_each_flush_before_it_counts() {
    let power = SimulatedPower::new(1);
    let disk = power.port("data", LEN);
    let seen = Arc::new(Mutex::new(Vec::new()));
    power.on_flush(Some(Box::new({
        let seen = seen.clone();
        move |power, port| seen.lock().push((port.to_owned(), power.cut_with(1, Survivors::Flushed, false)))
    })));
    disk.write_at(0, &block(1)).unwrap();
    disk.flush().unwrap();
    power.on_flush(None);
    disk.flush().unwrap();
    let seen = seen.lock();
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].0.as_str(), first_byte(&seen[0].1["data"], 0)), ("data", 0));
}

#[test]
fn a_lying_port_keeps_nothing() {
    let power = SimulatedPower::new(1);
    let (data, journal) = (power.port("data", LEN), power.port("journal", LEN));
    power.lie_about_flushes(Some("data"));
    for disk in [&data, &journal] {
        disk.write_at(0, &block(1)).unwrap();
        disk.flush().unwrap();
    }
    let images = power.cut_with(1, Survivors::Flushed, false);
    assert_eq!((first_byte(&images["data"], 0), first_byte(&images["journal"], 0)), (0, 1));
}

#[test]
fn a_flipped_byte_stays_flipped() {
    let power = SimulatedPower::new(1);
    let disk = power.port("data", LEN);
    disk.write_at(0, &block(1)).unwrap();
    disk.flush().unwrap();
    disk.write_at(0, &block(2)).unwrap();
    power.flip_byte("data", 100);
    let read = |image: &MemoryImage| {
        let mut bytes = [0; 2];
        image.read(99, &mut bytes);
        bytes
    };
    assert_eq!(read(&power.cut_with(1, Survivors::Flushed, false)["data"]), [1, !1]);
    assert_eq!(read(&power.cut_with(1, Survivors::Everything, false)["data"]), [2, !2]);
    let mut bytes = [0; 2];
    disk.read_at(99, &mut bytes).unwrap();
    assert_eq!(bytes, [2, !2]);
}

/// 16 blocks that hold their numbers + 1, and a flaw in the next operation.
fn numbered(seed: u64, silent: Silent) -> (SimulatedPower, Arc<dyn Disk>) {
    let power = SimulatedPower::new(seed);
    let disk = power.port("data", LEN);
    for index in 0..16 {
        disk.write_at(index * BLOCK_SIZE, &block(index as u8 + 1)).unwrap();
    }
    disk.flush().unwrap();
    power.go_wrong(Flaw { port: Some("data".to_owned()), silent, nth: 1, for_good: false });
    (power, disk)
}

fn contents(disk: &dyn Disk) -> Vec<u8> {
    let mut found = vec![0; LEN as usize];
    disk.read_at(0, &mut found).unwrap();
    found
}

/// Blocks that differ.
fn changed(before: &[u8], after: &[u8]) -> Vec<usize> {
    let pairs = before.chunks(BLOCK).zip(after.chunks(BLOCK)).enumerate();
    pairs.filter(|(_, (before, after))| before != after).map(|(number, _)| number).collect()
}

fn flipped_bits(before: &[u8], after: &[u8]) -> u32 {
    before.iter().zip(after).map(|(before, after)| (before ^ after).count_ones()).sum()
}

#[test]
fn a_write_that_is_lost_or_misdirected_says_nothing() {
    let whole: Vec<u8> = (1..=16).flat_map(block).collect();
    let mut places = HashSet::new();
    for seed in 0..60 {
        let (power, disk) = numbered(seed, Silent::LostWrite);
        disk.write_at(3 * BLOCK_SIZE, &block(99)).unwrap();
        assert_eq!((contents(&*disk), power.failures()), (whole.clone(), 1));
        disk.write_at(3 * BLOCK_SIZE, &block(99)).unwrap();
        assert_eq!(changed(&whole, &contents(&*disk)), [3], "only the first is lost");

        let (power, disk) = numbered(seed, Silent::MisdirectedWrite);
        disk.write_at(3 * BLOCK_SIZE, &[block(98), block(99)].concat()).unwrap();
        let found = contents(&*disk);
        let hit = changed(&whole, &found);
        assert!(hit.len() == 2 && hit[1] == hit[0] + 1, "seed {seed}: {hit:?}");
        assert_eq!((found[hit[0] * BLOCK], found[hit[1] * BLOCK], power.failures()), (98, 99, 1));
        assert_eq!(power.unflushed_changes(), 2, "it is a change like any other");
        places.insert(hit[0]);
    }
    assert!(places.len() > 5 && !places.contains(&3), "{places:?}");
}

#[test]
fn a_flipped_write_stays_and_a_flawed_read_does_not() {
    let whole: Vec<u8> = (1..=16).flat_map(block).collect();
    for seed in 0..20 {
        let (_, disk) = numbered(seed, Silent::FlippedWrite);
        disk.write_at(3 * BLOCK_SIZE, &block(4)).unwrap();
        assert_eq!((flipped_bits(&whole, &contents(&*disk)), flipped_bits(&whole, &contents(&*disk))), (1, 1));

        let (_, disk) = numbered(seed, Silent::FlippedRead);
        assert_eq!((flipped_bits(&whole, &contents(&*disk)), flipped_bits(&whole, &contents(&*disk))), (1, 0));

        let (_, disk) = numbered(seed, Silent::MisdirectedRead);
        let mut found = block(0);
        disk.read_at(3 * BLOCK_SIZE, &mut found).unwrap();
        assert!(found[0] != 4 && (1..=16).contains(&found[0]), "seed {seed}: {}", found[0]);
        assert_eq!(contents(&*disk), whole);
    }
}

#[test]
fn a_discard_may_do_something_or_nothing_and_not_before_a_flush() {
    let power = SimulatedPower::new(1);
    let disk = power.port("data", LEN);
    disk.write_at(0, &vec![1; LEN as usize]).unwrap();
    disk.flush().unwrap();
    disk.discard(0, LEN).unwrap();
    let durable = power.cut_with(1, Survivors::Flushed, false);
    assert!((0..16).all(|index| first_byte(&durable["data"], index) == 1));
    disk.flush().unwrap();
    let durable = power.cut_with(1, Survivors::Flushed, false);
    let gone = (0..16).filter(|index| first_byte(&durable["data"], *index) == 0).count();
    assert!(gone > 0 && gone < 16, "{gone}");
}

#[test]
fn host_space_is_taken_and_given_back() {
    let power = SimulatedPower::new(1);
    let disk = power.port("data", LEN);
    disk.write_at(0, &block(1)).unwrap();
    power.limit_host_space("data", 4 * BLOCK_SIZE);
    disk.allocate(0, 4 * BLOCK_SIZE).unwrap();
    assert_eq!(disk.host_free_bytes(), Some(BLOCK_SIZE));
    assert!(matches!(disk.allocate(0, 8 * BLOCK_SIZE), Err(Error::NoSpace)));
    disk.write_at(8 * BLOCK_SIZE, &block(1)).unwrap();
    assert!(disk.write_at(9 * BLOCK_SIZE, &block(1)).is_err());
    disk.write_at(0, &vec![1; 4 * BLOCK]).unwrap();
    disk.discard(0, 2 * BLOCK_SIZE).unwrap();
    assert_eq!(disk.host_free_bytes(), Some(2 * BLOCK_SIZE));
    disk.set_len(BLOCK_SIZE).unwrap();
    assert_eq!(disk.host_free_bytes(), Some(5 * BLOCK_SIZE));
}

#[test]
fn the_same_seed_gives_the_same_machine() {
    let run = |seed: u64| {
        let power = SimulatedPower::new(seed);
        let disk = power.port("data", LEN);
        power.fail(fault(None, Operation::Write, 3, true));
        for number in 0..40u64 {
            disk.write_at(number % 16 * BLOCK_SIZE, &block(number as u8)).ok();
        }
        let image = power.cut(seed)["data"].clone();
        (0..16).map(|index| first_byte(&image, index)).collect::<Vec<u8>>()
    };
    assert_eq!(run(7), run(7));
    assert!((0..20).map(run).collect::<HashSet<_>>().len() > 1);
}

#[test]
fn past_the_end_is_an_error() {
    let power = SimulatedPower::new(1);
    let disk = power.port("data", 5000);
    assert!(disk.write_at(4999, &[1, 2]).is_err() && disk.read_at(5000, &mut [0]).is_err());
    assert!(disk.discard(4096, 4096).is_err());
}
