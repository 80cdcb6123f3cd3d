//! Code over [`Symmetric`] knows no place: one function, by every collective that host and devices have.

use symmem::collectives::ROWS;
use symmem::{ReduceOp, Result, Symmetric};

use crate::suite::seat::{Memory, Seat};

/// Elements per rank of what is cut into one part for each.
const CHUNK: usize = 5;

/// What `rank` has at `at`: sums of a few are exact in every order.
fn value(rank: usize, at: usize) -> f32 {
    (rank * 100 + at) as f32
}

/// Collective. What the collective of this name gives to this rank, of memory with one chunk for each; `None`
/// where only a root gets something. One that is new to the library fails here until it is tried. `arrays`
/// are outputs of one, `world` and `world` times `world` chunks.
fn carry_out<M: Symmetric<Element = f32>>(
    memory: &mut M,
    collective: &str,
    root: usize,
    [chunk, whole, everything]: &mut [M::Array; 3],
) -> Result<Option<Vec<f32>>> {
    let is_root = memory.rank() == root;
    let found = match collective {
        "all_reduce" => {
            memory.all_reduce(ReduceOp::Sum)?;
            return memory.read().map(Some);
        }
        "all_reduce_out" => {
            memory.all_reduce_out(ReduceOp::Sum, whole)?;
            whole
        }
        "reduce" => {
            memory.reduce(ReduceOp::Sum, root, whole)?;
            whole
        }
        "reduce_scatter" => {
            memory.reduce_scatter(ReduceOp::Sum, chunk)?;
            chunk
        }
        "all_gather" => {
            memory.all_gather(everything)?;
            everything
        }
        "all_to_all" => {
            memory.all_to_all(whole)?;
            whole
        }
        "broadcast" => {
            memory.broadcast(root)?;
            return memory.read().map(Some);
        }
        "gather" => {
            memory.gather(root, everything)?;
            everything
        }
        "scatter" => {
            memory.scatter(root, chunk)?;
            chunk
        }
        other => panic!("{other} has not been tried by code that knows no place"),
    };
    memory.finish()?;
    let found = memory.read_array(found)?;
    Ok(Some(found).filter(|_| is_root || !matches!(collective, "reduce" | "gather")))
}

/// What [`carry_out`] has to give.
fn expected(collective: &str, me: usize, world: usize, root: usize) -> Option<Vec<f32>> {
    let len = CHUNK * world;
    let sum = |at: usize| (0..world).map(|rank| value(rank, at)).sum();
    let everybodys = || (0..world).flat_map(|rank| (0..len).map(move |at| value(rank, at))).collect();
    match collective {
        "reduce" | "gather" if me != root => None,
        "all_reduce" | "all_reduce_out" | "reduce" => Some((0..len).map(sum).collect()),
        "reduce_scatter" => Some((me * CHUNK..(me + 1) * CHUNK).map(sum).collect()),
        "all_gather" | "gather" => Some(everybodys()),
        "all_to_all" => Some((0..len).map(|at| value(at / CHUNK, me * CHUNK + at % CHUNK)).collect()),
        "broadcast" => Some((0..len).map(|at| value(root, at)).collect()),
        _ => Some((0..CHUNK).map(|at| value(root, me * CHUNK + at)).collect()),
    }
}

pub(crate) fn one_function_works_wherever_the_memory_is<S: Seat>(seat: &S) -> Result<()> {
    let (me, world) = (seat.rank(), seat.world());
    let root = world - 1;
    let mut memory = seat.memory::<f32>(CHUNK * world)?;
    let mut memory = memory.anywhere();
    assert_eq!((memory.rank(), memory.world_size(), memory.len()), (me, world, CHUNK * world));
    // Made before the first operation, and dropped after the last of all ranks: both may wait for the device.
    let sizes = [CHUNK, CHUNK * world, CHUNK * world * world];
    let [chunk, whole, everything] = sizes.map(|len| memory.array(len));
    let mut arrays = [chunk?, whole?, everything?];
    for collective in ROWS.iter().filter(|row| row.devices && row.carried).map(|row| row.name) {
        memory.write(&(0..CHUNK * world).map(|at| value(me, at)).collect::<Vec<_>>())?;
        seat.meet()?;
        let found = carry_out(&mut memory, collective, root, &mut arrays)?;
        assert_eq!(found, expected(collective, me, world, root), "{collective}");
        seat.meet()?;
    }
    memory.put_signal(seat.group().next(), 0)?;
    memory.wait_signal(seat.group().prev(), 0)?;
    memory.barrier(0)?;
    memory.finish()?;
    seat.meet()
}
