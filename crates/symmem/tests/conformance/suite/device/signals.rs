//! Signals between two ranks.

use symmem::{Error, Result};

use crate::common::assert_error;
use crate::suite::device::rank::{PATIENCE, Rank};
use crate::suite::value::assert_elements;

pub(crate) fn signals_are_queued_around_a_ring(rank: &Rank) -> Result<()> {
    let memory = rank.memory::<u32>(64)?;
    rank.ready()?;
    for _ in 0..20 {
        memory.put_signal(rank.group.next(), 0, &rank.stream)?;
        memory.wait_signal(rank.group.prev(), 0, &rank.stream)?;
    }
    rank.end()
}

pub(crate) fn a_signal_makes_earlier_writes_visible(rank: &Rank) -> Result<()> {
    let (stream, next, prev) = (&rank.stream, rank.group.next(), rank.group.prev());
    let memory = rank.memory::<u32>(1024)?;
    let mut seen = rank.buffer::<u32>(1024)?;
    rank.ready()?;
    for round in 0..10 {
        memory.memset32(0, round * 100 + rank.rank() as i64, 1024, stream)?;
        memory.put_signal(next, 0, stream)?;
        memory.wait_signal(prev, 0, stream)?;
        // Who is out of reach is waited for all the same.
        if rank.reaches(prev) {
            memory.get(prev, 0, &mut seen, stream)?;
            rank.sync()?;
            assert_elements("get", &seen.read(stream)?, |_| round as usize * 100 + prev);
        }
        memory.barrier(0, stream)?;
    }
    rank.end()
}

pub(crate) fn a_put_waits_until_the_previous_signal_was_consumed(rank: &Rank) -> Result<()> {
    let memory = rank.memory::<u32>(64)?;
    let last = rank.world() - 1;
    rank.ready()?;
    if rank.rank() == 0 {
        memory.put_signal(last, 1, &rank.stream)?;
        memory.put_signal(last, 1, &rank.stream)?;
        let early = rank.engine.sync(&rank.stream, std::time::Duration::from_millis(30));
        assert_error!(early, Error::Timeout { .. });
    }
    rank.group.barrier()?;
    if rank.rank() == last {
        memory.wait_signal(0, 1, &rank.stream)?;
        memory.wait_signal(0, 1, &rank.stream)?;
    }
    rank.end()
}

pub(crate) fn channels_and_sources_do_not_mix(rank: &Rank) -> Result<()> {
    let memory = rank.memory::<u32>(64)?;
    let other = rank.memory::<u32>(64)?;
    rank.ready()?;
    // Everybody signals everybody on two channels of two memories; they are consumed in another order.
    for peer in 0..rank.world() {
        for channel in [2, 5] {
            memory.put_signal(peer, channel, &rank.stream)?;
            other.put_signal(peer, channel, &rank.stream)?;
        }
    }
    for peer in (0..rank.world()).rev() {
        for channel in [5, 2] {
            other.wait_signal(peer, channel, &rank.stream)?;
            memory.wait_signal(peer, channel, &rank.stream)?;
        }
    }
    rank.end()
}

pub(crate) fn channels_end_with_the_pad(rank: &Rank) -> Result<()> {
    let stream = &rank.stream;
    let memory = rank.memory::<f32>(64)?;
    let beyond = memory.signal_pad_size() / 4 / rank.world();
    rank.ready()?;
    assert_error!(memory.put_signal(0, beyond, stream), Error::ChannelOutOfRange { .. });
    assert_error!(memory.wait_signal(0, beyond, stream), Error::ChannelOutOfRange { .. });
    // NCCL has one channel, so that is the last one where it carries signals.
    let last = if rank.is_direct() { beyond - 1 } else { 0 };
    if !rank.is_direct() {
        assert_error!(memory.put_signal(0, 1, stream), Error::ChannelOutOfRange { channels: 1, .. });
        assert_error!(memory.wait_signal(0, 1, stream), Error::ChannelOutOfRange { channels: 1, .. });
    }
    memory.put_signal(rank.group.next(), last, stream)?;
    memory.wait_signal(rank.group.prev(), last, stream)?;
    rank.engine.sync(stream, PATIENCE)?;
    rank.end()
}
