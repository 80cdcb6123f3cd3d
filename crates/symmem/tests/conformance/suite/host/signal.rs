//! Signals: one pending per channel and pair of ranks.

use std::time::Duration;

use symmem::{Error, Group, Result, SymmetricMemory};

use crate::common::assert_error;

const SHORT: Duration = Duration::from_millis(60);

fn memory(group: &Group) -> Result<SymmetricMemory<u64>> {
    group.alloc(32)?.rendezvous(group)
}

pub(crate) fn a_put_waits_until_the_previous_signal_was_consumed(group: &Group) -> Result<()> {
    let mem = memory(group)?;
    assert!(mem.try_put_signal(group.next(), 0)?);
    assert!(!mem.try_put_signal(group.next(), 0)?);
    mem.barrier(0)?;
    // The pad's words are the reference's: slot world * channel + source is 1 while pending.
    assert_eq!(mem.signal_pad(group.rank())?.read(group.prev())?, 1);
    assert!(mem.try_wait_signal(group.prev(), 0)?);
    assert!(!mem.try_wait_signal(group.prev(), 0)?);
    assert_eq!(mem.signal_pad(group.rank())?.read(group.prev())?, 0);
    mem.barrier(0)?;
    assert!(mem.try_put_signal(group.next(), 0)?);
    mem.wait_signal(group.prev(), 0)?;
    mem.close()
}

pub(crate) fn a_put_that_is_not_consumed_times_out_and_harms_nobody(group: &Group) -> Result<()> {
    let mem = memory(group)?;
    let next = group.next();
    mem.put_signal(next, 4)?;
    // So that no rank consumes before all have waited in vain.
    assert_error!(mem.within(SHORT).put_signal(next, 4), Error::Timeout { context, missing }
        if missing == [next] && context.op == "put_signal" && context.channel == Some(4));
    mem.barrier(0)?;
    mem.wait_signal(group.prev(), 4)?;
    mem.barrier(0)?;
    mem.put_signal(next, 4)?;
    mem.wait_signal(group.prev(), 4)?;
    mem.close()
}

pub(crate) fn a_wait_without_a_put_times_out_and_harms_nobody(group: &Group) -> Result<()> {
    let mem = memory(group)?;
    let prev = group.prev();
    assert_error!(mem.within(SHORT).wait_signal(prev, 0), Error::Timeout { context, missing }
        if missing == [prev] && context.op == "wait_signal" && context.elapsed >= SHORT);
    mem.barrier(0)?;
    assert_eq!(group.failure(), None);
    mem.put_signal(group.next(), 0)?;
    mem.wait_signal(prev, 0)?;
    mem.close()
}

pub(crate) fn channels_and_sources_do_not_mix(group: &Group) -> Result<()> {
    let mem = memory(group)?;
    // Everybody signals everybody (itself too) on a channel of its own.
    for rank in 0..group.size() {
        mem.put_signal(rank, 2 + group.rank())?;
    }
    mem.barrier(0)?;
    for rank in 0..group.size() {
        for channel in 0..group.size() {
            assert_eq!(mem.try_wait_signal(rank, 2 + channel)?, rank == channel);
        }
    }
    mem.close()
}

fn channels(mem: &SymmetricMemory<u64>) -> usize {
    mem.signal_pad_size() / (4 * mem.world_size())
}

pub(crate) fn channels_end_with_the_pad(group: &Group) -> Result<()> {
    let mem = memory(group)?;
    for channel in [channels(&mem), channels(&mem) + 1, usize::MAX / 4, usize::MAX] {
        let next = group.next();
        assert_error!(mem.barrier(channel), Error::ChannelOutOfRange { channel: named, channels: end, .. }
            if named == channel && end == channels(&mem));
        assert_error!(mem.put_signal(next, channel), Error::ChannelOutOfRange { .. });
        assert_error!(mem.wait_signal(next, channel), Error::ChannelOutOfRange { .. });
        assert_error!(mem.try_put_signal(next, channel), Error::ChannelOutOfRange { .. });
        assert_error!(mem.try_wait_signal(next, channel), Error::ChannelOutOfRange { .. });
    }
    let text = mem.barrier(channels(&mem)).unwrap_err().to_string();
    assert!(text.contains("maximum supported"), "{text}");
    mem.close()
}

pub(crate) fn ranks_out_of_range_are_refused(group: &Group) -> Result<()> {
    let mem = memory(group)?;
    for rank in [group.size(), usize::MAX] {
        assert_error!(mem.put_signal(rank, 0), Error::RankOutOfRange { .. });
        assert_error!(mem.wait_signal(rank, 0), Error::RankOutOfRange { .. });
        assert_error!(mem.try_put_signal(rank, 0), Error::RankOutOfRange { .. });
        assert_error!(mem.try_wait_signal(rank, 0), Error::RankOutOfRange { .. });
        assert_error!(mem.signal_pad(rank), Error::RankOutOfRange { .. });
        assert_error!(mem.peer(rank), Error::RankOutOfRange { .. });
    }
    let text = mem.put_signal(group.size(), 0).unwrap_err().to_string();
    assert!(text.contains("must be in [0"), "{text}");
    mem.close()
}
