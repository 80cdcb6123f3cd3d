//! What everybody sees of everybody: parts, offsets, elements, pads.

use symmem::{Error, Result};

use crate::common::assert_error;
use crate::suite::seat::{Block, Memory, Seat};
use crate::suite::value::{Value, assert_elements, elements, number};

/// Collective. Memory of `len` elements, of which each rank has its own numbers.
fn numbered<S: Seat, T: Value>(seat: &S, len: usize) -> Result<S::Memory<T>> {
    let mut memory = seat.memory::<T>(len)?;
    memory.write(&elements(len, |at| number(seat.rank(), at)))?;
    seat.meet()?;
    Ok(memory)
}

fn read_parts<S: Seat, T: Value>(seat: &S) -> Result<()> {
    let memory = numbered::<S, T>(seat, 301)?;
    for peer in (0..seat.world()).filter(|peer| seat.reaches(*peer)) {
        for (start, len) in [(0, 301), (0, 1), (300, 1), (7, 200), (291, 10), (301, 0)] {
            let found = memory.get(peer, start, len)?;
            assert_eq!(found.len(), len);
            assert_elements("a part", &found, |at| number(peer, start + at));
        }
    }
    seat.meet()
}

pub(crate) fn get_reads_whole_buffers_and_parts<S: Seat>(seat: &S) -> Result<()> {
    read_parts::<S, u8>(seat)?;
    read_parts::<S, u16>(seat)?;
    read_parts::<S, f64>(seat)
}

pub(crate) fn get_beyond_the_end_or_from_nobody_is_refused<S: Seat>(seat: &S) -> Result<()> {
    let memory = numbered::<S, u32>(seat, 64)?;
    for peer in (0..seat.world()).filter(|peer| seat.reaches(*peer)) {
        for start in [55, 64, 65, usize::MAX - 1, usize::MAX] {
            assert_error!(memory.get(peer, start, 10), Error::OutOfBounds { .. });
        }
        assert_eq!(memory.get(peer, 54, 10)?.len(), 10);
    }
    for nobody in [seat.world(), usize::MAX] {
        let told = memory.get(nobody, 0, 10).unwrap_err();
        assert!(told.to_string().contains("must be in [0"), "{told}");
        assert_error!(Err::<(), _>(told), Error::RankOutOfRange { .. });
    }
    seat.meet()
}

pub(crate) fn what_is_written_is_read<S: Seat>(seat: &S) -> Result<()> {
    let mut x = seat.alloc::<u16>(301)?;
    x.write(&elements(301, |at| number(seat.rank(), at)))?;
    let mut memory = x.rendezvous(seat)?;
    assert_elements("memory", &memory.read()?, |at| number(seat.rank(), at));
    memory.write(&elements(301, |at| number(seat.rank() + 1, at)))?;
    assert_elements("the allocation", &x.read()?, |at| number(seat.rank() + 1, at));
    seat.meet()
}

pub(crate) fn slices_are_parts_of_the_same_memory<S: Seat>(seat: &S) -> Result<()> {
    let memory = numbered::<S, u32>(seat, 100)?;
    let mut slice = memory.slice(40, 20)?;
    assert_eq!((slice.len(), slice.offset(), slice.buffer_size()), (20, 40, 400));
    assert_eq!(slice.slice(5, 3)?.offset(), 45);
    assert_elements("a slice", &slice.read()?, |at| number(seat.rank(), 40 + at));
    for peer in (0..seat.world()).filter(|peer| seat.reaches(*peer)) {
        assert_eq!(slice.peer_ptr(peer)?, memory.peer_ptr(peer)? + 160);
        assert_elements("a slice", &slice.get(peer, 1, 19)?, |at| number(peer, 41 + at));
    }
    assert_error!(slice.get(seat.rank(), 1, 20), Error::OutOfBounds { .. });
    assert_error!(memory.slice(81, 20), Error::OutOfBounds { .. });
    assert_error!(memory.slice(usize::MAX, 2), Error::OutOfBounds { .. });
    seat.meet()?;
    slice.write(&[7; 20])?;
    let expected = |at: usize| if (40..60).contains(&at) { 7 } else { number(seat.rank(), at) };
    assert_elements("the whole", &memory.read()?, expected);
    seat.meet()
}

pub(crate) fn ranks_may_differ_in_offset<S: Seat>(seat: &S) -> Result<()> {
    let (me, world) = (seat.rank(), seat.world());
    let x = seat.alloc::<u32>(100)?;
    let (whole, mut memory) = (x.rendezvous(seat)?, x.rendezvous_at(seat, me * 3)?);
    assert_eq!((memory.offset(), memory.buffer_size()), (me * 3, 400));
    // What all ranks have behind their offsets.
    let common = 100 - (world - 1) * 3;
    let len = memory.len();
    assert!(len >= common);
    memory.write(&elements(len, |at| number(me, at)))?;
    assert_elements("the start", &whole.read()?[..me * 3], |_| 0);
    assert_elements("the rest", &whole.read()?[me * 3..][..common], |at| number(me, at));
    // Collectives take everybody's memory from its own offset on.
    if seat.works() {
        let found = memory.slice(0, common)?.all_gather()?;
        assert_elements("all_gather", &found, |at| number(at / common, at % common));
    }
    seat.meet()
}

pub(crate) fn bytes_meet_as_elements<S: Seat>(seat: &S) -> Result<()> {
    let me = seat.rank();
    let x = seat.alloc::<u8>(200)?;
    let mut memory = x.rendezvous_as::<f32>(seat, 16, 5)?;
    assert_eq!((memory.offset(), memory.len(), memory.buffer_size()), (4, 5, 200));
    memory.write(&elements(5, |at| number(me, at)))?;
    seat.meet()?;
    for peer in (0..seat.world()).filter(|peer| seat.reaches(*peer)) {
        assert_elements("a peer", &memory.get(peer, 0, 5)?, |at| number(peer, at));
    }
    seat.meet()
}

pub(crate) fn pads_are_apart_from_the_data<S: Seat>(seat: &S) -> Result<()> {
    let mut memory = seat.memory::<u8>(5000)?;
    memory.write(&[0xff; 5000])?;
    seat.meet()?;
    assert_elements("the pad", &memory.pad()?, |_| 0);
    assert_eq!(memory.read()?, [0xff; 5000]);
    seat.meet()
}

pub(crate) fn who_is_out_of_reach_is_named<S: Seat>(seat: &S) -> Result<()> {
    let me = seat.rank();
    let memory = seat.memory::<u32>(64)?;
    let far: Vec<usize> = (0..seat.world()).filter(|peer| !seat.reaches(*peer)).collect();
    let anybody = seat.group().all_gather(&far.len())?;
    assert!(anybody.iter().sum::<usize>() > 0, "nobody is out of reach");
    for far in far {
        let refused = [
            memory.get(far, 0, 10).map(drop),
            memory.peer_ptr(far).map(drop),
            memory.slice(5, 5)?.peer_ptr(far).map(drop),
        ];
        for refused in refused {
            assert_error!(refused, Error::NoPeerAccess { rank, peer, .. } if (rank, peer) == (me, far));
        }
    }
    seat.meet()
}
