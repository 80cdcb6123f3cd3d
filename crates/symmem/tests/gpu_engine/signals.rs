//! Signals and their bounds. Items 49 to 51 of the reference's list; the timeouts, 46 to 48, are in
//! `failure.rs`.

use symmem::Error;
use symmem::cuda::Buffer;

use crate::common::assert_error;
use crate::stage::{device, on_threads, settings};

#[test]
fn a_signal_carries_what_was_written_before_it() {
    if device().is_none() {
        return;
    }
    on_threads(4, &settings(), |rank| {
        let memory = rank.engine.alloc::<u32>(1024)?.rendezvous(&rank.engine)?;
        let mut seen = Buffer::<u32>::new(&rank.device, 1024)?;
        rank.ready()?;
        for round in 0..20 {
            memory.memset32(0, i64::from(round) * 100 + rank.rank() as i64, 1024, &rank.stream)?;
            memory.put_signal(rank.group.next(), 3, &rank.stream)?;
            memory.wait_signal(rank.group.prev(), 3, &rank.stream)?;
            memory.get(rank.group.prev(), 0, &mut seen, &rank.stream)?;
            rank.sync()?;
            let expected = round as u32 * 100 + rank.group.prev() as u32;
            assert!(seen.read(&rank.stream)?.iter().all(|word| *word == expected), "round {round}");
            memory.barrier(0, &rank.stream)?;
        }
        rank.end()
    });
}

#[test]
fn channels_and_ranks_have_bounds() {
    if device().is_none() {
        return;
    }
    on_threads(2, &settings(), |rank| {
        let (stream, world) = (&rank.stream, rank.group.size());
        let memory = rank.engine.alloc::<f32>(64)?.rendezvous(&rank.engine)?;
        let beyond = memory.signal_pad_size() / 4 / world;
        let told = memory.barrier(beyond, stream).unwrap_err().to_string();
        assert!(told.contains("maximum supported number of channels"), "{told}");
        assert_error!(memory.put_signal(0, beyond, stream), Error::ChannelOutOfRange { .. });
        assert_error!(memory.wait_signal(0, beyond, stream), Error::ChannelOutOfRange { .. });
        for wrong in [world, usize::MAX] {
            let told = memory.put_signal(wrong, 0, stream).unwrap_err().to_string();
            assert!(told.contains("must be in [0"), "{told}");
            assert_error!(memory.wait_signal(wrong, 0, stream), Error::RankOutOfRange { .. });
            assert_error!(memory.pad_ptr(wrong), Error::RankOutOfRange { .. });
        }
        let last = beyond - 1;
        memory.barrier(last, stream)?;
        memory.put_signal(rank.group.next(), last, stream)?;
        memory.wait_signal(rank.group.prev(), last, stream)?;
        rank.end()
    });
}

#[test]
fn many_barriers_keep_ranks_in_step() {
    if device().is_none() {
        return;
    }
    for world in [1, 2, 5] {
        on_threads(world, &settings(), |rank| {
            for _ in 0..500 {
                rank.engine.barrier(&rank.stream)?;
                rank.engine.lane(1)?.barrier(&rank.stream)?;
            }
            rank.end()
        });
    }
}
