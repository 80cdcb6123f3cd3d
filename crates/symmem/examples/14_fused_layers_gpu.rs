//! An MLP block on a GPU whose weights are split over ranks: gather the rows and multiply, multiply and
//! scatter the sums; in a graph, which is replayed with other rows.
//!
//! Ranks are processes that share GPU 0. Without a GPU or without cuBLASLt it says so and ends.

use std::time::Duration;

use symmem::cuda::{Buffer, Device, DeviceMatrix, Engine, Stream};
use symmem::{Error, Group, ProcessSpawner, ReduceOp, Result, bf16};

const RANKS: usize = 2;
/// Rows of all ranks, their width, and the width between the two products.
const BLOCK: [usize; 3] = [64, 256, 512];
const REPLAYS: usize = 3;

fn main() -> Result<()> {
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("SYMMEM_ALLOW_OVERLAPPING_DEVICES", "1") };
    let results = ProcessSpawner::new("block", RANKS).run(|group| match block(&group) {
        Err(error @ (Error::NoCuda { .. } | Error::NoLibrary { .. } | Error::LibraryTooOld { .. })) => {
            Ok(error.to_string())
        }
        other => other,
    })?;
    println!("{}", results[0]);
    Ok(())
}

/// `y = (x @ up) @ down`, with the rows of `x` and `y` divided among the ranks, and the columns of `up`, and
/// the rows of `down`.
fn block(group: &Group) -> Result<String> {
    let ([rows, width, between], world, rank) = (BLOCK, group.size(), group.rank());
    let (own, part) = (rows / world, between / world);
    let device = Device::new(0)?;
    let (engine, stream) = (Engine::new(group, &device)?, Stream::new(&device)?);
    let x = engine.alloc::<bf16>(own * width)?.rendezvous(&engine)?;
    // Everybody's product is made in it.
    let workspace = engine.alloc::<bf16>(rows * width)?.rendezvous(&engine)?;
    let weights = |seed, len| Buffer::from_slice(&device, &numbers(seed + rank, len), &stream);
    let (up, down) = (weights(100, width * part)?, weights(200, part * width)?);
    let up = DeviceMatrix::new(&up, width, part)?;
    let down = DeviceMatrix::new(&down, part, width)?;
    let mut hidden = Buffer::<bf16>::new(&device, rows * part)?;
    let mut y = Buffer::<bf16>::new(&device, own * width)?;

    // Memory and algorithms cannot be made in a capture.
    engine.prepare()?;
    x.prepare_all_gather_matmul(&[up], &stream)?;
    workspace.prepare_matmul_reduce_scatter(DeviceMatrix::new(&hidden, rows, part)?, down, &stream)?;
    stream.begin_capture()?;
    let on_stream = (x.on(&stream), workspace.on(&stream));
    on_stream.0.all_gather_matmul(&[up], &mut [hidden.as_slice_mut()])?;
    let hidden = DeviceMatrix::new(&hidden, rows, part)?;
    on_stream.1.matmul_reduce_scatter(ReduceOp::Sum, hidden, down, &mut y)?;
    let graph = stream.end_capture()?;

    let mut first = Vec::new();
    for replay in 0..REPLAYS {
        x.write(&numbers(300 + 10 * replay + rank, own * width), &stream)?;
        // Everybody has written.
        group.barrier()?;
        graph.launch(&stream)?;
        engine.sync(&stream, Duration::from_secs(10))?;
        let found = y.read(&stream)?[0].to_f64();
        let expected = expected(300 + 10 * replay + rank, world);
        // What is between the products, and each rank's sum, are rounded to bf16.
        assert!((found - expected).abs() <= 0.02 * expected.abs() + 1.0, "{found} is not {expected}");
        first.push(found);
    }
    Ok(format!("a block of {rows} x {width} by {between} on {world} ranks: {first:?}"))
}

/// The first element of this rank's part, whose rows are those of `seed`, in f64.
fn expected(seed: usize, world: usize) -> f64 {
    let [_, width, between] = BLOCK;
    let (x, part) = (numbers(seed, width), between / world);
    let of_rank = |rank: usize| {
        let (up, down) = (numbers(100 + rank, width * part), numbers(200 + rank, part * width));
        let hidden = |column: usize| {
            let terms = x.iter().enumerate().map(|(at, x)| x.to_f64() * up[at * part + column].to_f64());
            terms.sum::<f64>()
        };
        (0..part).map(|column| hidden(column) * down[column * width].to_f64()).sum::<f64>()
    };
    (0..world).map(of_rank).sum()
}

/// Numbers from -1 to 1, the same for the same seed.
fn numbers(seed: usize, len: usize) -> Vec<bf16> {
    let number = |at: usize| ((at * 37 + seed * 101 + at * at / 13) % 33) as f32 / 16.0 - 1.0;
    (0..len).map(|at| bf16::from_f32(number(at))).collect()
}
