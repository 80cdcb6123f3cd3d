//! Signals between two ranks: one pending per channel and pair.

use symmem::{Error, Result};

use crate::common::assert_error;
use crate::suite::seat::{Memory, Seat};
use crate::suite::value::assert_elements;

pub(crate) fn signals_run_around_a_ring<S: Seat>(seat: &S) -> Result<()> {
    let memory = seat.memory::<u32>(64)?;
    let channels = seat.channels(memory.signal_pad_size()).min(3);
    for round in 0..30 {
        memory.put_signal(seat.group().next(), round % channels)?;
        memory.wait_signal(seat.group().prev(), round % channels)?;
    }
    seat.meet()
}

pub(crate) fn a_signal_makes_earlier_writes_visible<S: Seat>(seat: &S) -> Result<()> {
    let (next, prev) = (seat.group().next(), seat.group().prev());
    let mut memory = seat.memory::<u32>(1024)?;
    for round in 0..10 {
        memory.write(&[round * 100 + seat.rank() as u32; 1024])?;
        memory.put_signal(next, 0)?;
        memory.wait_signal(prev, 0)?;
        // Who is out of reach is waited for all the same.
        if seat.reaches(prev) {
            assert_elements("a peer", &memory.get(prev, 0, 1024)?, |_| round as usize * 100 + prev);
        }
        // Read: the writer may go on.
        memory.barrier(0)?;
    }
    seat.meet()
}

pub(crate) fn channels_and_sources_do_not_mix<S: Seat>(seat: &S) -> Result<()> {
    let (memory, other) = (seat.memory::<u32>(64)?, seat.memory::<u32>(64)?);
    // Everybody signals everybody, itself too, on two channels of two memories; they are consumed in another
    // order.
    for peer in 0..seat.world() {
        for channel in [2, 5] {
            memory.put_signal(peer, channel)?;
            other.put_signal(peer, channel)?;
        }
    }
    for peer in (0..seat.world()).rev() {
        for channel in [5, 2] {
            other.wait_signal(peer, channel)?;
            memory.wait_signal(peer, channel)?;
        }
    }
    seat.meet()?;
    assert_elements("the pad", &memory.pad()?, |_| 0);
    seat.meet()
}

pub(crate) fn channels_end_with_the_pad<S: Seat>(seat: &S) -> Result<()> {
    let memory = seat.memory::<f32>(64)?;
    let beyond = seat.channels(memory.signal_pad_size());
    for channel in [beyond, memory.signal_pad_size(), usize::MAX] {
        assert_error!(memory.put_signal(seat.group().next(), channel), Error::ChannelOutOfRange { .. });
        assert_error!(memory.wait_signal(seat.group().prev(), channel), Error::ChannelOutOfRange { .. });
    }
    seat.meet()?;
    memory.put_signal(seat.group().next(), beyond - 1)?;
    memory.wait_signal(seat.group().prev(), beyond - 1)?;
    seat.meet()
}

pub(crate) fn ranks_out_of_range_are_refused<S: Seat>(seat: &S) -> Result<()> {
    let memory = seat.memory::<f32>(64)?;
    // The last one is -1 of those who count with signs.
    for wrong in [seat.world(), usize::MAX] {
        let told = memory.put_signal(wrong, 0).unwrap_err().to_string();
        assert!(told.contains("must be in [0"), "{told}");
        assert_error!(memory.put_signal(wrong, 0), Error::RankOutOfRange { .. });
        assert_error!(memory.wait_signal(wrong, 0), Error::RankOutOfRange { .. });
        assert_error!(memory.pad_ptr(wrong), Error::RankOutOfRange { .. });
    }
    seat.meet()
}
