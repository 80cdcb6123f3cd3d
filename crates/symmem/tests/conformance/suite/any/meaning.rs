//! What host and device mean alike, as docs/memory-model.md decides it. Where the code means something else
//! today, `exceptions.rs` says so.

use symmem::{Error, Result};

use crate::common::assert_error;
use crate::suite::any::rendezvous::check;
use crate::suite::seat::{Block, Memory, Seat};
use crate::suite::value::{assert_elements, elements, number};

/// Only rank 0 does it a second time: anything collective would not come back.
pub(crate) fn a_second_rendezvous_is_local<S: Seat>(seat: &S) -> Result<()> {
    let x = seat.alloc::<u32>(8)?;
    let first = x.rendezvous(seat)?;
    if seat.rank() == 0 {
        let second = x.rendezvous(seat)?;
        assert_eq!((second.peer_ptr(0)?, second.pad_ptr(0)?), (first.peer_ptr(0)?, first.pad_ptr(0)?));
        assert_eq!(second.len(), first.len());
    }
    seat.meet()
}

/// Offsets are exchanged, so a rank alone cannot come back with a handle; who is alone is told at its
/// deadline.
pub(crate) fn a_rendezvous_at_an_offset_is_always_collective<S: Seat>(seat: &S) -> Result<()> {
    let doomed = seat.with_deadline(seat.soon())?;
    let x = doomed.alloc::<u32>(8)?;
    let first = x.rendezvous(&doomed)?;
    seat.meet()?;
    if seat.rank() == 0 {
        let alone = x.rendezvous_at(&doomed, 2).map(drop);
        assert!(alone.is_err(), "rank 0 alone came back with a handle");
    }
    seat.meet()?;
    drop((first, x, doomed));
    seat.meet()
}

/// Handles go, and the table stays with the allocation: the next rendezvous is local, and the same.
pub(crate) fn a_table_is_kept_until_the_allocation_goes<S: Seat>(seat: &S) -> Result<()> {
    let x = seat.alloc::<u32>(8)?;
    let first = x.rendezvous(seat)?;
    let pad = first.pad_ptr(seat.rank())?;
    drop(first);
    seat.meet()?;
    if seat.rank() == 0 {
        assert_eq!(x.rendezvous(seat)?.pad_ptr(0)?, pad);
    }
    seat.meet()
}

pub(crate) fn the_pads_size_is_fixed_when_memory_is_allocated<S: Seat>(seat: &S) -> Result<()> {
    let context = seat.group().context();
    let before = context.signal_pad_size();
    context.set_signal_pad_size(2 * before)?;
    let x = seat.alloc::<u8>(64);
    // Too late for `x`.
    context.set_signal_pad_size(before)?;
    let memory = x?.rendezvous(seat)?;
    assert_eq!(memory.signal_pad_size(), 2 * before);
    assert_eq!(memory.pad()?.len(), 2 * before / 4);
    seat.meet()
}

pub(crate) fn pads_whose_sizes_differ_are_a_mismatch<S: Seat>(seat: &S) -> Result<()> {
    let context = seat.group().context();
    let before = context.signal_pad_size();
    if seat.rank() == 0 {
        context.set_signal_pad_size(2 * before)?;
    }
    let x = seat.alloc::<u8>(64);
    let outcome = x.and_then(|x| x.rendezvous(seat)).map(drop);
    context.set_signal_pad_size(before)?;
    assert_error!(outcome, Error::Mismatch { values, .. } if values.len() == seat.world());
    check(seat, &mut seat.memory::<u8>(64)?)
}

/// Every rank's handle has as many elements as the one that begins last has behind it: what all of them have.
pub(crate) fn the_length_is_what_all_ranks_have_behind_their_offsets<S: Seat>(seat: &S) -> Result<()> {
    let x = seat.alloc::<u32>(50)?;
    let memory = x.rendezvous_at(seat, seat.rank() * 3)?;
    let farthest = (seat.world() - 1) * 3;
    assert_eq!(
        (memory.offset(), memory.len()),
        (seat.rank() * 3, 50 - farthest),
        "up to the farthest offset"
    );
    assert_eq!(memory.read()?.len(), 50 - farthest);
    seat.meet()
}

/// Two handles of one allocation, at other offsets on each rank: an operation goes by its own handle's.
pub(crate) fn offsets_are_the_handles<S: Seat>(seat: &S) -> Result<()> {
    let (me, world) = (seat.rank(), seat.world());
    let mut x = seat.alloc::<u32>(100)?;
    x.write(&elements(100, |at| number(me, at)))?;
    let mut handles = [x.rendezvous_at(seat, 3 * me)?, x.rendezvous_at(seat, 40 + (world - 1 - me))?];
    for (which, handle) in handles.iter_mut().enumerate() {
        let start = |rank: usize| if which == 0 { 3 * rank } else { 40 + (world - 1 - rank) };
        assert_eq!(handle.offset(), start(me));
        let found = handle.slice(0, 20)?.all_gather()?;
        assert_elements("all_gather", &found, |at| number(at / 20, start(at / 20) + at % 20));
    }
    seat.meet()
}

/// Every rank knows where the others' handles begin, since the rendezvous said so.
pub(crate) fn peers_are_seen_from_their_own_offsets_on<S: Seat>(seat: &S) -> Result<()> {
    let x = seat.alloc::<u32>(100)?;
    let (whole, mut memory) = (x.rendezvous(seat)?, x.rendezvous_at(seat, 3 * seat.rank())?);
    memory.slice(0, 50)?.write(&elements(50, |at| number(seat.rank(), at)))?;
    seat.meet()?;
    for peer in (0..seat.world()).filter(|peer| seat.reaches(*peer)) {
        let place = memory.peer_ptr(peer)? - whole.peer_ptr(peer)?;
        assert_eq!(place, 12 * peer as u64, "rank {peer} is seen from this rank's offset on");
        assert_elements("a peer", &memory.get(peer, 0, 50)?, |at| number(peer, at));
    }
    let bytes = seat.alloc::<u8>(200)?;
    memory = bytes.rendezvous_as::<u32>(seat, 8 * seat.rank(), 5)?;
    assert_eq!((memory.offset(), memory.len()), (2 * seat.rank(), 5));
    memory.write(&elements(5, |at| number(seat.rank(), at)))?;
    seat.meet()?;
    for peer in (0..seat.world()).filter(|peer| seat.reaches(*peer)) {
        assert_elements("a peer", &memory.get(peer, 0, 5)?, |at| number(peer, at));
    }
    seat.meet()
}

pub(crate) fn close_ends_all_handles_and_the_memory_can_rendezvous_again<S: Seat>(seat: &S) -> Result<()> {
    let mut x = seat.alloc::<u32>(8)?;
    x.write(&[1; 8])?;
    let (first, second) = (x.rendezvous(seat)?, x.rendezvous_at(seat, 4)?);
    first.close()?;
    assert_error!(second.barrier(0), Error::Closed { .. });
    assert_error!(second.put_signal(0, 0), Error::Closed { .. });
    assert_error!(second.get(seat.rank(), 0, 1), Error::Closed { .. });
    assert_error!(second.close(), Error::Closed { .. });
    // The memory itself is as it was.
    assert_eq!(x.read()?, [1; 8]);
    let mut again = x.rendezvous(seat)?;
    check(seat, &mut again)?;
    again.close()
}

pub(crate) fn memory_of_a_failed_group_is_poisoned<S: Seat>(seat: &S) -> Result<()> {
    let doomed = seat.again()?;
    let mut x = seat.alloc::<u32>(16)?;
    x.write(&[seat.rank() as u32 + 5; 16])?;
    let mut memory = x.rendezvous(&doomed)?;
    doomed.meet()?;
    if seat.rank() == 0 {
        doomed.group().abort("spoilt");
    }
    if !seat.works() {
        // Nobody waits for rank 0 in a barrier that is not carried out, so it comes later.
        seat.meet()?;
    }
    assert!(memory.barrier(0).is_err_and(|error| error.is_group_failure()));
    assert_error!(memory.read(), Error::Poisoned { cause, .. } if cause.contains("spoilt"));
    assert_error!(memory.write(&[0; 16]), Error::Poisoned { .. });
    assert_error!(x.read(), Error::Poisoned { .. });
    assert_error!(x.rendezvous(seat).map(drop), Error::Rank { message, .. } if message.contains("poisoned"));
    let bytes = [seat.rank() as u32 + 5; 16];
    assert_eq!((x.salvage()?, memory.salvage()?), (bytes.to_vec(), bytes.to_vec()));
    // Other memory is untouched by that.
    check(seat, &mut seat.memory::<u32>(16)?)
}

/// No other algorithm is taken in its place, and all ranks are told before anything changes.
pub(crate) fn an_algorithm_that_cannot_be_had_is_an_error_on_every_rank<S: Seat>(seat: &S) -> Result<()> {
    let mut memory = seat.memory::<f32>(64)?;
    memory.write(&[1.0; 64])?;
    seat.meet()?;
    let mut refused = 0;
    for algorithm in seat.algorithms() {
        let mut forced = memory.using(algorithm);
        if !forced.carries(algorithm, "all_reduce") {
            let told = forced.all_reduce(symmem::ReduceOp::Sum);
            assert!(
                told.is_err(),
                "all_reduce by {algorithm}, which cannot carry it, went by another algorithm"
            );
            refused += 1;
            seat.meet()?;
            assert_eq!(memory.read()?, [1.0; 64], "told, and changed");
        }
    }
    assert!(refused > 0, "there is no algorithm that all_reduce cannot have here");
    seat.meet()
}
