//! Views, slices, casts, pads, and copies from one side.

use symmem::cuda::{Buffer, DeviceSlice, DeviceSliceMut, SymmetricMemory};
use symmem::{Element, Error, ReduceOp, Result};

use crate::common::assert_error;
use crate::suite::device::rank::Rank;
use crate::suite::value::{Value, assert_elements, elements, number};

pub(crate) fn what_is_written_has_the_right_length(rank: &Rank) -> Result<()> {
    let memory = rank.memory::<u16>(301)?;
    memory.write(&elements(301, |at| number(rank.rank(), at)), &rank.stream)?;
    assert_elements("memory", &memory.read(&rank.stream)?, |at| number(rank.rank(), at));
    assert_eq!(memory.local()?.len(), 301);
    assert!(memory.write(&[1], &rank.stream).is_err(), "another length");
    rank.end()
}

pub(crate) fn slices_and_casts_are_parts_of_the_same_memory(rank: &Rank) -> Result<()> {
    let memory = rank.memory::<u8>(400)?;
    let slice = memory.slice(40..200)?;
    let words = slice.slice(8..88)?.cast::<u32>()?;
    assert_eq!((slice.len(), slice.offset(), slice.buffer_size()), (160, 40, 400));
    assert_eq!((words.len(), words.offset(), words.buffer_size()), (20, 12, 400));
    assert_eq!(words.peer_ptr(rank.rank())?, memory.peer_ptr(rank.rank())? + 48);
    assert_eq!(words.cast::<u8>()?.len(), 80);
    assert_error!(memory.slice(390..401), Error::OutOfBounds { .. });
    assert_error!(memory.slice(2..6)?.cast::<u32>(), Error::Invalid { .. });
    assert_error!(memory.slice(4..7)?.cast::<u32>(), Error::Invalid { .. });
    rank.ready()?;
    words.memset32(0, 0x0101_0101, 20, &rank.stream)?;
    let expected: Vec<u8> = (0..400).map(|at| u8::from((48..128).contains(&at))).collect();
    assert_eq!(memory.read(&rank.stream)?, expected);
    // An operation works on what the handle covers.
    let numbers = memory.slice(200..400)?.cast::<f32>()?;
    numbers.write(&[1.0; 50], &rank.stream)?;
    rank.ready()?;
    numbers.slice(10..40)?.all_reduce(ReduceOp::Sum, &rank.stream)?;
    rank.sync()?;
    let sum = |at: usize| if (10..40).contains(&at) { rank.world() } else { 1 };
    assert_elements("all_reduce of a slice", &numbers.read(&rank.stream)?, sum);
    rank.end()
}

pub(crate) fn ranks_may_differ_in_offset(rank: &Rank) -> Result<()> {
    let (me, world) = (rank.rank(), rank.world());
    let x = rank.engine.alloc::<f32>(100)?;
    let whole = x.rendezvous(&rank.engine)?;
    let memory = x.rendezvous_at(&rank.engine, me * 3)?;
    assert_eq!((memory.offset(), memory.len()), (me * 3, 100 - (world - 1) * 3));
    for peer in (0..world).filter(|peer| rank.reaches(*peer)) {
        assert_eq!(memory.peer_ptr(peer)?, whole.peer_ptr(peer)? + 12 * peer as u64);
    }
    memory.write(&elements(memory.len(), |at| number(me, at)), &rank.stream)?;
    let beside = whole.read(&rank.stream)?;
    assert!(beside[..me * 3].iter().all(|number| *number == 0.0));
    assert_elements("memory", &beside[me * 3..][..memory.len()], |at| number(me, at));
    rank.end()
}

pub(crate) fn bytes_meet_as_elements(rank: &Rank) -> Result<()> {
    let x = rank.engine.alloc::<u8>(200)?;
    let memory = x.rendezvous_as::<f32>(&rank.engine, rank.rank() * 8, 5)?;
    assert_eq!((memory.offset(), memory.len(), memory.buffer_size()), (rank.rank() * 2, 5, 200));
    assert_eq!(memory.cast::<u8>()?.offset(), rank.rank() * 8);
    memory.write(&[2.0; 5], &rank.stream)?;
    rank.ready()?;
    memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
    rank.sync()?;
    assert_elements("all_reduce", &memory.read(&rank.stream)?, |_| 2 * rank.world());
    rank.end()
}

/// This rank's pad as elements of `T`, by way of symmetric memory, which alone can be read.
fn read_pad<T: Element>(
    rank: &Rank,
    memory: &SymmetricMemory<u32>,
    room: &SymmetricMemory<T>,
) -> Result<Vec<T>> {
    let len = memory.signal_pad_size() / size_of::<T>();
    assert_eq!(room.len(), len);
    // SAFETY: this rank's own pad, of that many bytes.
    let pad = unsafe { DeviceSlice::<T>::from_raw(memory.pad_ptr(rank.rank())?, len, &rank.device) }?;
    room.put(rank.rank(), 0, pad, &rank.stream)?;
    room.read(&rank.stream)
}

pub(crate) fn pads_are_apart_from_the_data(rank: &Rank) -> Result<()> {
    let (x, other) = (rank.engine.alloc::<u32>(64)?, rank.engine.alloc::<u32>(64)?);
    let (memory, other) = (x.rendezvous(&rank.engine)?, other.rendezvous(&rank.engine)?);
    let bytes = memory.signal_pad_size();
    let (words, longs) = (rank.memory::<u32>(bytes / 4)?, rank.memory::<u64>(bytes / 8)?);
    assert_eq!(memory.pad_ptr(rank.rank())?, memory.pad_ptrs()[rank.rank()]);
    assert!(read_pad(rank, &memory, &words)?.iter().all(|word| *word == 0));
    rank.ready()?;
    // SAFETY: this rank's own pad, of that many bytes, while nobody signals.
    let mut pad =
        unsafe { DeviceSliceMut::<u32>::from_raw(memory.pad_ptr(rank.rank())?, bytes / 4, &rank.device) }?;
    pad.memset32(0, 42, bytes as i64 / 4, &rank.stream)?;
    memory.memset32(0, 7, 64, &rank.stream)?;
    assert!(read_pad(rank, &memory, &words)?.iter().all(|word| *word == 42));
    assert!(read_pad(rank, &memory, &longs)?.iter().all(|long| *long == 42 << 32 | 42));
    assert!(read_pad(rank, &other, &words)?.iter().all(|word| *word == 0), "another pad");
    assert_eq!(memory.read(&rank.stream)?, [7; 64]);
    // Signals of their own, so barriers and collectives are not disturbed.
    memory.barrier(0, &rank.stream)?;
    rank.sync()?;
    assert!(read_pad(rank, &memory, &words)?.iter().all(|word| *word == 42));
    rank.end()
}

/// Parts of memory of 10,000 elements: from where, how many, to where.
const PARTS: [(usize, usize, usize); 5] =
    [(0, 10_000, 0), (7, 100, 3), (1, 9_001, 1), (9_999, 1, 9_999), (5, 0, 0)];

/// Reads parts of everybody in reach, by the copy engine or by threads.
fn read_parts<T: Value>(rank: &Rank, by_threads: bool) -> Result<()> {
    let (stream, len) = (&rank.stream, 10_000);
    let memory = rank.memory::<T>(len)?;
    memory.write(&elements(len, |at| number(rank.rank(), at)), stream)?;
    let mut out = Buffer::<T>::new(&rank.device, len)?;
    rank.ready()?;
    memory.barrier(0, stream)?;
    for peer in (0..rank.world()).filter(|peer| rank.reaches(*peer)) {
        for (start, count, at) in PARTS {
            out.fill_bytes(1, stream)?;
            let rest = out.read(stream)?;
            let mut whole = out.as_slice_mut();
            let part = whole.slice_mut(at..at + count)?;
            match by_threads {
                true => memory.copy(peer, start, part, stream)?,
                false => memory.get(peer, start, part, stream)?,
            }
            rank.sync()?;
            let found = out.read(stream)?;
            assert_elements("a part", &found[at..at + count], |at| number(peer, start + at));
            assert!(
                found[..at] == rest[..at] && found[at + count..] == rest[at + count..],
                "the rest changed"
            );
        }
    }
    rank.end()
}

pub(crate) fn get_reads_whole_buffers_and_parts(rank: &Rank) -> Result<()> {
    read_parts::<u8>(rank, false)?;
    read_parts::<u16>(rank, false)?;
    read_parts::<f64>(rank, false)
}

pub(crate) fn threads_read_whole_buffers_and_parts(rank: &Rank) -> Result<()> {
    read_parts::<u8>(rank, true)?;
    read_parts::<u16>(rank, true)?;
    read_parts::<f64>(rank, true)
}

pub(crate) fn what_is_put_is_there_after_a_barrier(rank: &Rank) -> Result<()> {
    let (stream, world) = (&rank.stream, rank.world());
    let memory = rank.memory::<u32>(100 * world)?;
    let own = Buffer::from_slice(&rank.device, &[rank.rank() as u32 + 1; 100], stream)?;
    rank.ready()?;
    for peer in (0..world).filter(|peer| rank.reaches(*peer)) {
        memory.put(peer, rank.rank() * 100, &own, stream)?;
    }
    memory.barrier(0, stream)?;
    rank.sync()?;
    let from = |at: usize| if rank.reaches(at / 100) { at / 100 + 1 } else { 0 };
    assert_elements("what was put", &memory.read(stream)?, from);
    assert_error!(memory.put(rank.rank(), 100 * world - 99, &own, stream), Error::OutOfBounds { .. });
    rank.end()
}

pub(crate) fn copies_and_puts_beyond_the_end_are_refused(rank: &Rank) -> Result<()> {
    let (stream, me) = (&rank.stream, rank.rank());
    let memory = rank.memory::<u32>(64)?;
    let mut out = rank.buffer::<u32>(10)?;
    let own = rank.buffer::<u32>(10)?;
    rank.ready()?;
    for start in [55, 64, usize::MAX] {
        assert_error!(memory.get(me, start, &mut out, stream), Error::OutOfBounds { .. });
        assert_error!(memory.copy(me, start, &mut out, stream), Error::OutOfBounds { .. });
        assert_error!(memory.put(me, start, &own, stream), Error::OutOfBounds { .. });
    }
    for nobody in [rank.world(), usize::MAX] {
        let told = memory.get(nobody, 0, &mut out, stream).unwrap_err().to_string();
        assert!(told.contains("must be in [0"), "{told}");
        assert_error!(memory.copy(nobody, 0, &mut out, stream), Error::RankOutOfRange { .. });
        assert_error!(memory.put(nobody, 0, &own, stream), Error::RankOutOfRange { .. });
    }
    memory.get(me, 54, &mut out, stream)?;
    rank.end()
}

pub(crate) fn who_is_out_of_reach_is_named(rank: &Rank) -> Result<()> {
    let (stream, me) = (&rank.stream, rank.rank());
    let memory = rank.memory::<u32>(64)?;
    let mut out = rank.buffer::<u32>(10)?;
    let own = rank.buffer::<u32>(10)?;
    rank.ready()?;
    for far in (0..rank.world()).filter(|peer| !rank.reaches(*peer)) {
        let refused = [
            memory.get(far, 0, &mut out, stream),
            memory.copy(far, 0, &mut out, stream),
            memory.put(far, 0, &own, stream),
            memory.peer_ptr(far).map(drop),
            memory.slice(5..)?.peer_ptr(far).map(drop),
        ];
        for refused in refused {
            assert_error!(refused, Error::NoPeerAccess { rank: who, peer, .. } if (who, peer) == (me, far));
        }
    }
    rank.end()
}
