//! Copies from and to peers. Item 22 of the reference's list.

use symmem::Error;
use symmem::cuda::Buffer;

use crate::common::assert_error;
use crate::stage::{device, on_threads, settings};

#[test]
fn elements_travel_by_copy_engine_and_by_threads() {
    if device().is_none() {
        return;
    }
    on_threads(2, &settings(), |rank| {
        let (stream, len) = (&rank.stream, 10_000);
        let value = |rank: usize, at: usize| (rank * 50_000 + at) as u16;
        let memory = rank.engine.alloc::<u16>(len)?.rendezvous(&rank.engine)?;
        memory.write(&(0..len).map(|at| value(rank.rank(), at)).collect::<Vec<_>>(), stream)?;
        let mut out = Buffer::<u16>::new(&rank.device, len)?;
        rank.ready()?;
        memory.barrier(0, stream)?;
        let peer = rank.group.next();
        for (start, count, at) in [(0, len, 0), (7, 100, 3), (1, 9_001, 1), (9_999, 1, 9_999), (5, 0, 0)] {
            for by_threads in [false, true] {
                out.fill_bytes(0xff, stream)?;
                let mut whole = out.as_slice_mut();
                let part = whole.slice_mut(at..at + count)?;
                match by_threads {
                    true => memory.copy(peer, start, part, stream)?,
                    false => memory.get(peer, start, part, stream)?,
                }
                rank.sync()?;
                let found = out.read(stream)?;
                let copied = |index: usize| value(peer, start + index - at);
                let expected =
                    |index: usize| if (at..at + count).contains(&index) { copied(index) } else { u16::MAX };
                assert!(
                    (0..len).all(|index| found[index] == expected(index)),
                    "{start} {count} {at} {by_threads}"
                );
            }
        }
        assert_error!(memory.get(2, 0, &mut out, stream), Error::RankOutOfRange { .. });
        assert_error!(memory.get(0, 1, &mut out, stream), Error::OutOfBounds { .. });
        rank.end()
    });
}

#[test]
fn what_is_put_is_there_after_a_barrier() {
    if device().is_none() {
        return;
    }
    on_threads(3, &settings(), |rank| {
        let (stream, len) = (&rank.stream, 300);
        let memory = rank.engine.alloc::<u32>(len)?.rendezvous(&rank.engine)?;
        let own = Buffer::from_slice(&rank.device, &[rank.rank() as u32 + 1; 100], stream)?;
        rank.ready()?;
        for peer in 0..3 {
            memory.put(peer, rank.rank() * 100, &own, stream)?;
        }
        memory.barrier(0, stream)?;
        rank.sync()?;
        let expected: Vec<u32> = (0..len).map(|at| at as u32 / 100 + 1).collect();
        assert_eq!(memory.read(stream)?, expected);
        assert_error!(memory.put(0, 201, &own, stream), Error::OutOfBounds { .. });
        rank.end()
    });
}
