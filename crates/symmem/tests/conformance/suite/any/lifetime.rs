//! How long memory lives, and that nothing of it stays.

use std::time::{Duration, Instant};

use symmem::Result;

use crate::common::Random;
use crate::suite::any::rendezvous::check;
use crate::suite::run::patience;
use crate::suite::seat::{Block, Memory, Seat};
use crate::suite::value::{assert_elements, elements, number};

pub(crate) fn the_handle_outlives_its_allocation<S: Seat>(seat: &S) -> Result<()> {
    let x = seat.alloc::<u32>(64)?;
    let mut memory = x.rendezvous(seat)?;
    drop(x);
    assert_eq!((memory.offset(), memory.buffer_size()), (0, 256));
    check(seat, &mut memory)?;
    check(seat, &mut memory)
}

pub(crate) fn the_handle_outlives_group_and_engine<S: Seat>(seat: &S) -> Result<()> {
    let own = seat.again()?;
    let mut memory = own.memory::<u32>(64)?;
    memory.write(&elements(64, |at| number(seat.rank(), at)))?;
    drop(own);
    seat.meet()?;
    assert_elements("memory", &memory.read()?, |at| number(seat.rank(), at));
    for peer in (0..seat.world()).filter(|peer| seat.reaches(*peer)) {
        assert_elements("a peer", &memory.get(peer, 0, 64)?, |at| number(peer, at));
    }
    seat.meet()?;
    drop(memory);
    seat.meet()
}

pub(crate) fn handles_are_dropped_in_any_order<S: Seat>(seat: &S) -> Result<()> {
    let mut random = Random::new(7 + seat.rank() as u64);
    for _ in 0..4 {
        let x = seat.alloc::<u32>(64)?;
        let whole = x.rendezvous(seat)?;
        let mut last = whole.same();
        let parts = [whole.slice(3, 20)?, whole.same(), x.rendezvous(seat)?, x.rendezvous_at(seat, 5)?];
        // Each rank has an order of its own.
        let mut order = [0, 1, 2, 3, 4, 5];
        random.shuffle(&mut order);
        let (mut x, mut whole, mut parts) = (Some(x), Some(whole), parts.map(Some));
        for which in order {
            match which {
                0 => drop(x.take()),
                1 => drop(whole.take()),
                part => drop(parts[part - 2].take()),
            }
        }
        check(seat, &mut last)?;
        drop(last);
        seat.meet()?;
    }
    Ok(())
}

pub(crate) fn memory_comes_and_goes<S: Seat>(seat: &S) -> Result<()> {
    for round in 0..10 {
        let mut memory = seat.memory::<f32>(1000 + round)?;
        check(seat, &mut memory)?;
        drop(memory);
        seat.meet()?;
    }
    Ok(())
}

pub(crate) fn many_allocations_are_kept_apart<S: Seat>(seat: &S) -> Result<()> {
    const MANY: usize = 24;
    let mut all = Vec::new();
    for which in 0..MANY {
        let mut x = seat.alloc::<u32>(10 + which)?;
        x.write(&elements(10 + which, |at| 1000 * which + number(seat.rank(), at)))?;
        let memory = x.rendezvous(seat)?;
        all.push((x, memory));
    }
    seat.meet()?;
    for (which, (_, memory)) in all.iter().enumerate() {
        for peer in (0..seat.world()).filter(|peer| seat.reaches(*peer)) {
            let found = memory.get(peer, 0, 10 + which)?;
            assert_elements("a peer", &found, |at| 1000 * which + number(peer, at));
        }
        assert_elements("a pad", &memory.pad()?, |_| 0);
    }
    seat.meet()
}

/// Descriptors, threads and shared memory files of this process, which is all of the run for ranks that are
/// threads.
fn belongings() -> [usize; 3] {
    let count = |folder: &str| std::fs::read_dir(folder).map_or(0, Iterator::count);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let shared = maps.lines().filter(|line| line.contains("memfd:") || line.contains("/dev/shm/")).count();
    [count("/proc/self/fd"), count("/proc/self/task"), shared]
}

/// After memory, groups and engines have gone everything is as before, and nothing ever was in the file
/// system.
pub(crate) fn nothing_stays_behind<S: Seat>(seat: &S) -> Result<()> {
    let named = || -> Vec<String> {
        let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.contains("symmem"))
            .collect()
    };
    let round = || -> Result<()> {
        let own = seat.again()?;
        let memories = [own.memory::<u32>(1000)?, own.memory::<u32>(20_000)?];
        seat.meet()?;
        assert_eq!(named(), Vec::<String>::new());
        drop(memories);
        seat.meet()?;
        drop(own);
        seat.meet()
    };
    // What is made once is made by then.
    round()?;
    round()?;
    let before = belongings();
    for _ in 0..5 {
        round()?;
    }
    let start = Instant::now();
    // Threads that end, and what waits for a device to be idle, take a moment.
    while belongings().iter().zip(before).any(|(now, before)| *now > before + seat.slack()) {
        let now = belongings();
        assert!(start.elapsed() < patience(), "descriptors, threads, mappings: {before:?}, then {now:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(named(), Vec::<String>::new());
    seat.meet()
}
