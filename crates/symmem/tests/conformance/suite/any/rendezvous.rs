//! What a rendezvous gives, and what it refuses: the same on every rank, and the ranks go on.

use symmem::{Error, Result};

use crate::common::assert_error;
use crate::suite::seat::{Block, Memory, Seat};
use crate::suite::value::{Value, assert_elements, elements, number};

/// Collective. What all ranks say of their outcome, which must be the same.
pub(crate) fn unanimous<T>(seat: &impl Seat, outcome: &Result<T>) -> Result<String> {
    let mine = match outcome {
        Ok(_) => "fine".to_owned(),
        Err(Error::Rank { rank, message, .. }) => format!("rank {rank}: {message}"),
        Err(Error::Mismatch { what, values, .. }) => format!("mismatch of {what}: {values:?}"),
        Err(other) => other.to_string(),
    };
    let all = seat.group().all_gather_bytes(mine.as_bytes())?;
    let all: Vec<String> = all.into_iter().map(|said| String::from_utf8_lossy(&said).into_owned()).collect();
    assert!(all.iter().all(|said| *said == all[0]), "ranks disagree: {all:?}");
    Ok(mine)
}

/// Collective. Everybody in reach has in its memory what it wrote.
pub(crate) fn check<S: Seat, T: Value>(seat: &S, memory: &mut S::Memory<T>) -> Result<()> {
    let len = memory.len();
    memory.write(&elements(len, |at| number(seat.rank(), at)))?;
    seat.meet()?;
    for peer in (0..seat.world()).filter(|peer| seat.reaches(*peer)) {
        assert_elements("a peer's memory", &memory.get(peer, 0, len)?, |at| number(peer, at));
    }
    // Who is out of reach is seen all the same, where operations are carried out.
    if seat.works() {
        let found = memory.all_gather()?;
        assert_elements("everybody's memory", &found, |at| number(at / len.max(1), at % len.max(1)));
    }
    seat.meet()
}

pub(crate) fn every_rank_sees_every_ranks_values<S: Seat>(seat: &S) -> Result<()> {
    check(seat, &mut seat.memory::<u8>(1)?)?;
    check(seat, &mut seat.memory::<f32>(1000)?)?;
    check(seat, &mut seat.memory::<u64>(5001)?)
}

pub(crate) fn memory_starts_as_zeros<S: Seat>(seat: &S) -> Result<()> {
    for len in [1, 1000, 1 << 17] {
        let x = seat.alloc::<u64>(len)?;
        assert_elements("an allocation", &x.read()?, |_| 0);
        let memory = x.rendezvous(seat)?;
        for peer in (0..seat.world()).filter(|peer| seat.reaches(*peer)) {
            assert_elements("a peer's memory", &memory.get(peer, 0, len)?, |_| 0);
        }
        assert_elements("a pad", &memory.pad()?, |_| 0);
        seat.meet()?;
    }
    Ok(())
}

pub(crate) fn an_empty_allocation_works_like_any_other<S: Seat>(seat: &S) -> Result<()> {
    let x = seat.alloc::<f64>(0)?;
    let memory = x.rendezvous(seat)?;
    assert_eq!((x.len(), memory.len(), memory.offset(), memory.buffer_size()), (0, 0, 0, 0));
    assert!(x.read()?.is_empty() && memory.read()?.is_empty());
    assert!(memory.get(seat.rank(), 0, 0)?.is_empty());
    assert_error!(memory.get(seat.rank(), 0, 1), Error::OutOfBounds { .. });
    assert!(memory.signal_pad_size() > 0 && memory.pad()?.len() == memory.signal_pad_size() / 4);
    seat.meet()
}

pub(crate) fn a_handle_knows_its_rank_sizes_and_pointers<S: Seat>(seat: &S) -> Result<()> {
    let x = seat.alloc::<u32>(100)?;
    let (whole, memory) = (x.rendezvous(seat)?, x.rendezvous_at(seat, 30)?);
    assert_eq!((memory.rank(), memory.world_size()), (seat.rank(), seat.world()));
    assert_eq!((memory.offset(), memory.len(), memory.buffer_size()), (30, 70, 400));
    assert_eq!((whole.offset(), whole.len(), whole.buffer_size()), (0, 100, 400));
    assert_eq!(memory.signal_pad_size(), seat.group().context().signal_pad_size());
    for peer in 0..seat.world() {
        assert_eq!(memory.peer_ptr(peer).is_ok(), seat.reaches(peer), "rank {peer}");
        assert_eq!(memory.reaches(peer)?, seat.reaches(peer), "rank {peer}");
        assert_eq!(memory.pad_ptr(peer).is_ok(), seat.reaches_pad(peer), "the pad of rank {peer}");
        if seat.reaches(peer) {
            assert_eq!(memory.peer_ptr(peer)?, whole.peer_ptr(peer)? + 120);
        }
        if seat.reaches(peer) && seat.reaches_pad(peer) {
            assert_ne!(memory.pad_ptr(peer)?, memory.peer_ptr(peer)?);
            assert_eq!(memory.pad_ptr(peer)?, whole.pad_ptr(peer)?);
        }
    }
    for nobody in [seat.world(), usize::MAX] {
        assert_error!(memory.peer_ptr(nobody), Error::RankOutOfRange { .. });
        assert_error!(memory.pad_ptr(nobody), Error::RankOutOfRange { .. });
        assert_error!(memory.reaches(nobody), Error::RankOutOfRange { .. });
    }
    seat.meet()
}

pub(crate) fn a_second_rendezvous_is_the_same<S: Seat>(seat: &S) -> Result<()> {
    let x = seat.alloc::<u32>(64)?;
    let (mut memory, again) = (x.rendezvous(seat)?, x.rendezvous(seat)?);
    for peer in (0..seat.world()).filter(|peer| seat.reaches(*peer)) {
        assert_eq!(again.peer_ptr(peer)?, memory.peer_ptr(peer)?);
    }
    for peer in (0..seat.world()).filter(|peer| seat.reaches_pad(*peer)) {
        assert_eq!(again.pad_ptr(peer)?, memory.pad_ptr(peer)?);
    }
    memory.write(&[5; 64])?;
    assert_eq!(again.read()?, [5; 64]);
    seat.meet()
}

pub(crate) fn sizes_that_differ_are_the_same_mismatch_on_every_rank<S: Seat>(seat: &S) -> Result<()> {
    let last = seat.rank() == seat.world() - 1;
    let x = seat.alloc::<f32>(if last { 11 } else { 10 })?;
    let outcome = x.rendezvous(seat);
    let said = unanimous(seat, &outcome)?;
    assert_error!(outcome, Error::Mismatch { values, .. } if values.len() == seat.world());
    assert!(said.contains("44 bytes") || said.contains("11 x f32"), "{said}");
    assert!((0..seat.world()).all(|rank| said.contains(&format!("rank {rank}"))), "who said what: {said}");
    // It can be mended.
    check(seat, &mut seat.memory::<f32>(10)?)
}

pub(crate) fn types_that_differ_are_the_same_mismatch_on_every_rank<S: Seat>(seat: &S) -> Result<()> {
    let (floats, words) = (seat.alloc::<f32>(10)?, seat.alloc::<u32>(10)?);
    let said = match seat.rank() == 0 {
        true => unanimous(seat, &floats.rendezvous(seat))?,
        false => unanimous(seat, &words.rendezvous(seat))?,
    };
    assert!(said.starts_with("mismatch") && said.contains("u32") && said.contains("f32"), "{said}");
    check(seat, &mut floats.rendezvous(seat)?)
}

pub(crate) fn an_offset_beyond_the_end_on_one_rank_fails_on_all<S: Seat>(seat: &S) -> Result<()> {
    let last = seat.world() - 1;
    let x = seat.alloc::<f32>(10)?;
    for beyond in [11, usize::MAX / 2, usize::MAX] {
        let offset = if seat.rank() == last { beyond } else { 0 };
        // Where memory has met before, host memory need not ask the others; here it has not.
        let outcome = x.rendezvous_at(seat, offset);
        assert_error!(&outcome, Error::Rank { rank, .. } if *rank == last);
        unanimous(seat, &outcome)?;
    }
    // The very end is inside.
    let end = x.rendezvous_at(seat, 10)?;
    assert_eq!(end.len(), 0);
    check(seat, &mut x.rendezvous(seat)?)
}

pub(crate) fn pads_have_the_size_that_was_set<S: Seat>(seat: &S) -> Result<()> {
    let context = seat.group().context();
    let before = context.signal_pad_size();
    seat.meet()?;
    context.set_signal_pad_size(2 * before)?;
    let memory = seat.memory::<u8>(16);
    context.set_signal_pad_size(before)?;
    let memory = memory?;
    assert_eq!(memory.signal_pad_size(), 2 * before);
    assert_eq!(memory.pad()?.len(), 2 * before / 4);
    assert_eq!(seat.memory::<u8>(16)?.signal_pad_size(), before);
    seat.meet()
}

/// A rank that has nothing to bring says so, and why, in place of its rendezvous.
pub(crate) fn a_rank_whose_allocation_failed_is_named_by_all_with_the_cause<S: Seat>(seat: &S) -> Result<()> {
    let last = seat.world() - 1;
    if seat.rank() == last {
        let Err(cause) = seat.alloc::<u64>(1 << 50) else { panic!("there is no such memory") };
        seat.group().refuse(&cause.to_string())?;
    } else {
        let said = seat.alloc::<u64>(8)?.rendezvous(seat).map(drop);
        assert_error!(said, Error::Rank { rank, message, .. } if rank == last && message.contains("memory"));
    }
    check(seat, &mut seat.memory::<u64>(8)?)
}

/// Below the provider: the first calls of each rank's rendezvous, one at a time.
pub(crate) fn a_call_that_fails_on_one_rank_is_the_same_error_on_all_and_passes<S: Seat>(
    seat: &S,
) -> Result<()> {
    const CALLS: u64 = 12;
    let mut refused = 0;
    for victim in 0..seat.world() {
        for number in 1..=CALLS {
            let x = seat.alloc::<u32>(100)?;
            // Connections stay open, so that only a new group makes new ones.
            seat.meet()?;
            if seat.rank() == victim {
                seat.fail_call(number);
            }
            let outcome = x.rendezvous(seat);
            seat.fail_no_more();
            let said = unanimous(seat, &outcome)?;
            drop(outcome);
            if said != "fine" {
                assert!(
                    said.starts_with(&format!("rank {victim}: ")),
                    "call {number} of rank {victim}: {said}"
                );
                refused += 1;
            }
            check(seat, &mut x.rendezvous(seat)?)?;
        }
    }
    assert!(refused >= seat.world(), "hardly any call counts: {refused}");
    Ok(())
}

/// Asking is no error where there is none, and all ranks get one answer.
pub(crate) fn multicast_is_everybodys_or_nobodys<S: Seat>(seat: &S) -> Result<()> {
    let answers = seat.group().all_gather(&u8::from(seat.has_multicast()))?;
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    let memory = seat.memory::<f32>(256)?;
    let addresses = seat.group().all_gather(&u8::from(memory.multicast_ptr().is_some()))?;
    assert!(addresses.iter().all(|answer| *answer == answers[0]), "{addresses:?}, {answers:?}");
    seat.meet()
}
