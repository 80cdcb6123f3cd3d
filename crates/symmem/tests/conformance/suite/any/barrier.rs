//! The barrier.

use std::time::{Duration, SystemTime};

use symmem::{Error, Result};

use crate::common::assert_error;
use crate::suite::seat::{Memory, Seat};
use crate::suite::value::assert_elements;

pub(crate) fn a_barrier_makes_every_write_visible<S: Seat>(seat: &S) -> Result<()> {
    let mut memory = seat.memory::<u32>(256)?;
    for round in 0..10 {
        memory.write(&[100 * round + seat.rank() as u32; 256])?;
        memory.barrier(0)?;
        for peer in (0..seat.world()).filter(|peer| seat.reaches(*peer)) {
            assert_elements("a peer", &memory.get(peer, 0, 256)?, |_| 100 * round as usize + peer);
        }
        // Before anybody writes the next round.
        memory.barrier(0)?;
    }
    seat.meet()
}

pub(crate) fn many_barriers_keep_ranks_in_step<S: Seat>(seat: &S) -> Result<()> {
    let memory = seat.memory::<u32>(1)?;
    (0..50).try_for_each(|_| memory.barrier(0))?;
    seat.meet()
}

fn nanoseconds() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64)
}

pub(crate) fn a_late_rank_is_waited_for<S: Seat>(seat: &S) -> Result<()> {
    const LATE: Duration = Duration::from_millis(40);
    let memory = seat.memory::<u32>(1)?;
    for late in 0..seat.world() {
        seat.meet()?;
        if seat.rank() == late {
            std::thread::sleep(LATE);
        }
        // The ranks are on one machine, so they have one clock; when they came here is nobody's promise.
        let came = nanoseconds();
        memory.barrier(0)?;
        let all = seat.group().all_gather(&[came, nanoseconds()])?;
        let last = all.iter().map(|[came, _]| *came).max().unwrap_or_default();
        assert!(all.iter().all(|[_, left]| *left >= last), "somebody did not wait for rank {late}: {all:?}");
    }
    seat.meet()
}

pub(crate) fn channels_end_with_the_pad<S: Seat>(seat: &S) -> Result<()> {
    let memory = seat.memory::<f32>(64)?;
    let beyond = memory.signal_pad_size() / 4 / seat.world();
    for channel in [beyond, beyond + 1, usize::MAX] {
        let told = memory.barrier(channel).unwrap_err();
        assert!(told.to_string().contains("maximum supported"), "{told}");
        assert_error!(Err::<(), _>(told), Error::ChannelOutOfRange { channel: named, channels, .. }
            if named == channel && channels == beyond);
    }
    memory.barrier(beyond - 1)?;
    memory.barrier(0)?;
    seat.meet()
}
