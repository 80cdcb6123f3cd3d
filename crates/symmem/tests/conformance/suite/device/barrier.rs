//! The barrier.

use std::time::{Duration, Instant};

use symmem::Result;

use crate::suite::device::rank::Rank;
use crate::suite::value::assert_elements;

pub(crate) fn a_barrier_makes_every_write_visible(rank: &Rank) -> Result<()> {
    let stream = &rank.stream;
    let memory = rank.memory::<u32>(256)?;
    let mut seen = rank.buffer::<u32>(256)?;
    rank.ready()?;
    for round in 0..10 {
        memory.memset32(0, 100 * round + rank.rank() as i64, 256, stream)?;
        memory.barrier(0, stream)?;
        for peer in (0..rank.world()).filter(|peer| rank.reaches(*peer)) {
            memory.get(peer, 0, &mut seen, stream)?;
            rank.sync()?;
            assert_elements("get", &seen.read(stream)?, |_| 100 * round as usize + peer);
        }
        rank.engine.barrier(stream)?;
    }
    rank.end()
}

pub(crate) fn many_barriers_keep_ranks_in_step(rank: &Rank) -> Result<()> {
    rank.ready()?;
    for _ in 0..100 {
        rank.engine.barrier(&rank.stream)?;
        rank.engine.lane(1)?.barrier(&rank.stream)?;
    }
    rank.end()
}

pub(crate) fn a_late_rank_is_waited_for(rank: &Rank) -> Result<()> {
    const LATE: Duration = Duration::from_millis(50);
    for late in 0..rank.world() {
        rank.ready()?;
        let start = Instant::now();
        if rank.rank() == late {
            std::thread::sleep(LATE);
        }
        rank.engine.barrier(&rank.stream)?;
        rank.sync()?;
        // Others may have come to the host's barrier a little later, and left it a little earlier.
        assert!(start.elapsed() > LATE / 2, "nobody waited: {:?}", start.elapsed());
    }
    rank.end()
}
