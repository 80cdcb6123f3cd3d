//! Every collective, on every type, by every operation and algorithm of the library's own tables, on elements
//! whose results are exact in every order. What a stage does not reduce it refuses on every rank, and nothing
//! has changed.

use symmem::collectives::ROWS;
use symmem::tuning::Collective;
use symmem::{DType, Error, ReduceOp, Result};

use crate::common::assert_error;
use crate::suite::any::rendezvous::unanimous;
use crate::suite::seat::{Block, Memory, Seat};
use crate::suite::value::{Value, assert_elements, assert_wholes, elements, number, wholes, with_type};

/// Elements per rank of what is cut into one part for each.
const CHUNK: usize = 17;

/// The names of all collectives that host and devices have. One that is new to the library fails in
/// [`move_all`] and [`reduce_all`] until it is tried there.
fn collectives() -> Vec<&'static str> {
    let everywhere = ROWS.iter().filter(|row| row.devices).map(|row| row.name);
    everywhere.chain([Collective::Private.name()]).collect()
}

fn is_reduction(collective: &str) -> bool {
    let row = ROWS.iter().find(|row| row.name == collective);
    row.map_or(collective == Collective::Private.name(), |row| row.reduces)
}

/// Collective. One movement of `memory`, whose length is one chunk for each rank.
fn move_by<S: Seat, T: Value>(
    seat: &S,
    memory: &mut S::Memory<T>,
    collective: &str,
    root: usize,
) -> Result<()> {
    let (len, world, me) = (memory.len(), seat.world(), seat.rank());
    let chunk = len / world;
    let mine = elements::<T>(len, |at| number(me, at));
    memory.write(&mine)?;
    seat.meet()?;
    match collective {
        "all_gather" => {
            let found = memory.all_gather()?;
            assert_eq!(found.len(), len * world);
            assert_elements(collective, &found, |at| number(at / len, at % len));
        }
        "all_to_all" => {
            let found = memory.all_to_all()?;
            assert_elements(collective, &found, |at| number(at / chunk, me * chunk + at % chunk));
        }
        "gather" => {
            let found = memory.gather(root)?;
            assert_eq!(found.is_some(), me == root);
            assert_elements(collective, &found.unwrap_or_default(), |at| number(at / len, at % len));
        }
        "scatter" => assert_elements(collective, &memory.scatter(root)?, |at| number(root, me * chunk + at)),
        "broadcast" => {
            memory.broadcast(root)?;
            assert_elements(collective, &memory.read()?, |at| number(root, at));
            return seat.meet();
        }
        other => panic!("the conformance suite does not move by {other}"),
    }
    assert!(memory.read()? == mine, "{collective} changed the memory");
    seat.meet()
}

/// What rank `rank` of `world` brings to a reduction by `op`, as small whole numbers.
fn operand(op: ReduceOp, rank: usize, world: usize, at: usize) -> usize {
    match op {
        ReduceOp::Sum => (rank + at) % 2,
        ReduceOp::Prod => 1 + (rank + at) % 2,
        // An average that comes out even, and whose sums are exact in the smallest type.
        ReduceOp::Avg => {
            if rank == 0 {
                world * (at % 2)
            } else {
                0
            }
        }
        ReduceOp::Min | ReduceOp::Max => (rank * 5 + at) % 7,
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => (rank * 3 + at) % 8,
        other => panic!("the conformance suite does not know the operation {other}"),
    }
}

fn reduced(op: ReduceOp, world: usize, at: usize) -> usize {
    let all = (0..world).map(|rank| operand(op, rank, world, at));
    let fold = |f: fn(usize, usize) -> usize| all.clone().reduce(f).unwrap_or(0);
    match op {
        ReduceOp::Sum => all.sum(),
        ReduceOp::Avg => all.sum::<usize>() / world,
        ReduceOp::Prod => all.product(),
        ReduceOp::Min => fold(usize::min),
        ReduceOp::Max => fold(usize::max),
        ReduceOp::And => fold(|a, b| a & b),
        ReduceOp::Or => fold(|a, b| a | b),
        ReduceOp::Xor => fold(|a, b| a ^ b),
        other => panic!("the conformance suite does not know the operation {other}"),
    }
}

/// Collective. One reduction; the outcome is the library's, and what it gave is checked.
fn reduce_by<S: Seat, T: Value>(
    seat: &S,
    memory: &mut S::Memory<T>,
    collective: &str,
    op: ReduceOp,
    root: usize,
) -> Result<()> {
    let (len, world, me) = (memory.len(), seat.world(), seat.rank());
    let chunk = len / world;
    let whole = |at: usize| reduced(op, world, at);
    let what = &format!("{collective} by {op}");
    let found = match collective {
        "all_reduce" => {
            memory.all_reduce(op)?;
            assert_wholes(what, &memory.read()?, whole);
            return Ok(());
        }
        "all_reduce_out" => memory.all_reduce_out(op)?,
        "private" => memory.all_reduce_private(op, &wholes(len, |at| operand(op, me, world, at)))?,
        "reduce" => {
            let found = memory.reduce(op, root)?;
            assert_eq!(found.is_some(), me == root);
            found.unwrap_or_default()
        }
        "reduce_scatter" => {
            assert_wholes(what, &memory.reduce_scatter(op)?, |at| whole(me * chunk + at));
            return Ok(());
        }
        "reduce_scatter_columns" => {
            // Rows of one column for each rank.
            let found = memory.reduce_scatter_columns(op, world)?;
            assert_wholes(what, &found, |at| whole(at * world + me));
            return Ok(());
        }
        other => panic!("the conformance suite does not reduce by {other}"),
    };
    assert_wholes(what, &found, whole);
    Ok(())
}

/// Collective. The same from new operands; or the refusal, if this stage has none.
fn try_reduce<S: Seat, T: Value>(
    seat: &S,
    memory: &mut S::Memory<T>,
    collective: &str,
    op: ReduceOp,
    root: usize,
) -> Result<()> {
    let Some(reduces) = seat.reduces(T::DTYPE, op) else { return Ok(()) };
    let (len, world) = (memory.len(), seat.world());
    let mine = wholes::<T>(len, |at| operand(op, seat.rank(), world, at));
    memory.write(&mine)?;
    seat.meet()?;
    let is_columns = collective == "reduce_scatter_columns";
    let can = reduces && (!is_columns || seat.reduces_columns());
    let outcome = reduce_by(seat, memory, collective, op, root);
    match can {
        true => outcome?,
        // Told before anything runs, by every rank.
        false => assert_error!(outcome, Error::Invalid { .. } | Error::Rank { .. }),
    }
    if !can || collective != "all_reduce" {
        assert!(memory.read()? == mine, "{collective} by {op} changed the memory");
    }
    seat.meet()
}

pub(crate) fn every_type_is_moved_by_every_collective<S: Seat>(seat: &S) -> Result<()> {
    for dtype in DType::ALL {
        with_type!(dtype, T => {
            let mut memory = seat.memory::<T>(CHUNK * seat.world())?;
            for collective in collectives().into_iter().filter(|name| !is_reduction(name)) {
                for root in 0..seat.world() {
                    move_by(seat, &mut memory, collective, root)?;
                }
            }
        });
    }
    Ok(())
}

pub(crate) fn every_type_is_reduced_or_refused_by_every_collective<S: Seat>(seat: &S) -> Result<()> {
    for dtype in DType::ALL {
        with_type!(dtype, T => {
            let mut memory = seat.memory::<T>(CHUNK * seat.world())?;
            for collective in collectives().into_iter().filter(|name| is_reduction(name)) {
                let op = if dtype == DType::Bool { ReduceOp::Or } else { ReduceOp::Sum };
                try_reduce(seat, &mut memory, collective, op, seat.world() - 1)?;
            }
        });
    }
    Ok(())
}

pub(crate) fn every_type_is_reduced_or_refused_by_every_operation<S: Seat>(seat: &S) -> Result<()> {
    for dtype in DType::ALL {
        with_type!(dtype, T => {
            let mut memory = seat.memory::<T>(CHUNK * seat.world())?;
            for op in ReduceOp::ALL {
                try_reduce(seat, &mut memory, "all_reduce", op, 0)?;
            }
        });
    }
    Ok(())
}

pub(crate) fn every_root_reduces<S: Seat>(seat: &S) -> Result<()> {
    let mut memory = seat.memory::<f32>(CHUNK * seat.world())?;
    (0..seat.world()).try_for_each(|root| try_reduce(seat, &mut memory, "reduce", ReduceOp::Sum, root))
}

/// Every algorithm of the engine's table, where it can carry the collective on this memory: something at
/// least, and refuses the rest. Not each has every form: nobody reads everything in place.
pub(crate) fn every_algorithm_gives_the_same<S: Seat>(seat: &S) -> Result<()> {
    let memory = seat.memory::<f32>(1024 * seat.world())?;
    let mut carried = 0;
    for algorithm in seat.algorithms() {
        let before = carried;
        let mut collectives: Vec<_> = collectives().into_iter().collect();
        collectives.retain(|name| memory.carries(algorithm, name));
        for collective in &collectives {
            for len in [4, 64, 1024].map(|chunk| chunk * seat.world()) {
                let mut forced = memory.slice(0, len)?.using(algorithm);
                let outcome = match is_reduction(collective) {
                    true => try_reduce(seat, &mut forced, collective, ReduceOp::Sum, 0),
                    false => move_by(seat, &mut forced, collective, 0),
                };
                // All or none.
                unanimous(seat, &outcome)?;
                match outcome {
                    Err(Error::Invalid { .. }) if seat.is_choosy() => continue,
                    outcome => outcome?,
                }
                carried += 1;
            }
        }
        assert!(carried > before || collectives.is_empty(), "{algorithm} carried none of {collectives:?}");
    }
    assert!(carried > 0, "no algorithm carried anything");
    Ok(())
}

pub(crate) fn collectives_are_right_where_offsets_differ<S: Seat>(seat: &S) -> Result<()> {
    let len = CHUNK * seat.world();
    let x = seat.alloc::<f32>(len + 64)?;
    let mut memory = x.rendezvous_at(seat, 1 + 5 * seat.rank())?.slice(0, len)?;
    for collective in collectives() {
        match is_reduction(collective) {
            true => try_reduce(seat, &mut memory, collective, ReduceOp::Sum, 0)?,
            false => move_by(seat, &mut memory, collective, 0)?,
        }
    }
    let (start, all) = (1 + 5 * seat.rank(), x.read()?);
    let beside = all[..start].iter().chain(&all[start + len..]);
    assert!(beside.copied().all(|value| value == 0.0), "something changed beside the message");
    seat.meet()
}

pub(crate) fn nothing_can_be_moved_and_reduced<S: Seat>(seat: &S) -> Result<()> {
    let mut memory = seat.memory::<f32>(64)?.slice(64, 0)?;
    for collective in collectives().into_iter().filter(|name| *name != "reduce_scatter_columns") {
        match is_reduction(collective) {
            true => try_reduce(seat, &mut memory, collective, ReduceOp::Sum, 0)?,
            false => move_by(seat, &mut memory, collective, 0)?,
        }
    }
    memory.barrier(0)?;
    seat.meet()
}

pub(crate) fn wrong_roots_and_lengths_are_told_before_anything_changes<S: Seat>(seat: &S) -> Result<()> {
    let world = seat.world();
    let mut memory = seat.memory::<f32>(10 * world)?;
    memory.write(&vec![1.0; 10 * world])?;
    seat.meet()?;
    let told = |outcome: Result<()>, words: &str| {
        let error = outcome.expect_err(words).to_string();
        assert!(error.contains(words), "{words} is not in: {error}");
    };
    told(memory.broadcast(world), "must be in [0");
    told(memory.gather(world).map(drop), "must be in [0");
    told(memory.scatter(world).map(drop), "must be in [0");
    told(memory.reduce(ReduceOp::Sum, world).map(drop), "must be in [0");
    if world > 1 {
        let mut odd = memory.slice(0, 10 * world - 1)?;
        told(odd.all_to_all().map(drop), "divisible");
        told(odd.reduce_scatter(ReduceOp::Sum).map(drop), "divisible");
    }
    assert_eq!(memory.read()?, vec![1.0; 10 * world]);
    seat.meet()
}
