//! An MLP block whose weights are split over ranks, fused and unfused: gather the rows and multiply, multiply
//! and scatter the sums, add and normalise.
//!
//! `cargo run --release --example 13_fused_layers -- 2048` also says how long the fused products take for
//! matrices of that size, and their parts by themselves.

use std::time::Instant;

use symmem::tuning::Algorithm;
use symmem::{Group, MatrixView, Pin, ProcessSpawner, ReduceOp, Result};

const RANKS: usize = 2;
const TURNS: usize = 15;
/// Of the block: rows of all ranks, their width, and the width between the two products.
const BLOCK: [usize; 3] = [256, 512, 1024];

fn main() -> Result<()> {
    let size = std::env::args().nth(1).and_then(|size| size.parse::<usize>().ok());
    ProcessSpawner::new("layers", RANKS).pin(Pin::Cores).run(move |group| {
        block(&group)?;
        for columns in size.map(|size| [64, 128, size]).into_iter().flatten() {
            products(&group, size.unwrap_or_default(), columns)?;
        }
        Ok(())
    })?;
    Ok(())
}

/// The block: `y = norm(x + relu(norm(x) @ up) @ down)`, with the rows of `x` divided among the ranks.
fn block(group: &Group) -> Result<()> {
    let ([rows, width, hidden], world) = (BLOCK, group.size());
    let part = hidden / world;
    let (up, down) = (numbers(width * part, group.rank()), numbers(part * width, group.rank()));
    let mut x = group.alloc::<f32>(rows / world * width)?.rendezvous(group)?;
    let workspace = group.alloc::<f32>(rows * width)?.rendezvous(group)?;
    let mut results = [Vec::new(), Vec::new()];
    for (way, result) in [Algorithm::Pipelined, Algorithm::Direct].into_iter().zip(&mut results) {
        x.local_mut()?.copy_from_slice(&numbers(rows / world * width, group.rank()));
        let (mut between, mut y) = (vec![0.0; rows * part], vec![0.0; rows / world * width]);
        x.using(way).all_gather_matmul(&[MatrixView::new(&up, width, part)?], &mut [&mut between])?;
        between.iter_mut().for_each(|value| *value = value.max(0.0));
        let (between, down) = (MatrixView::new(&between, rows, part)?, MatrixView::new(&down, part, width)?);
        workspace.using(way).matmul_reduce_scatter(ReduceOp::Sum, between, down, &mut y)?;
        *result = y;
    }
    assert!(results[0] == results[1], "fused and unfused have the same bits");
    if group.rank() == 0 {
        println!("a block of {rows} x {width} by {hidden} on {world} ranks: {:?} ...", &results[0][..3]);
    }
    x.close()?;
    workspace.close()
}

/// Prints how long products take of `size` rows by `size`, times `columns` columns.
fn products(group: &Group, size: usize, columns: usize) -> Result<()> {
    let (world, rank) = (group.size(), group.rank());
    let (rows, alone) = (size / world, group.subgroup(&[rank], "alone")?);
    // Products without communication are those of a group of one.
    let (own, all) = (group.alloc::<f32>(rows * size)?, alone.alloc::<f32>(size * size)?);
    let (x, mut all) = (own.rendezvous(group)?, all.rendezvous(&alone)?);
    let part = alone.alloc::<f32>(size * rows)?.rendezvous(&alone)?;
    let mut sums = group.alloc::<f32>(size * columns)?.rendezvous(group)?;
    let mut unfused = sums.using(Algorithm::Direct);
    let (wide, narrow, a) = (numbers(size * columns, 1), numbers(rows * columns, 2), numbers(size * rows, 3));
    let wide = MatrixView::new(&wide, size, columns)?;
    let (a, narrow) = (MatrixView::new(&a, size, rows)?, MatrixView::new(&narrow, rows, columns)?);
    let (mut out, mut scattered) = (vec![0.0; size * columns], vec![0.0; rows * columns]);
    let mut gathered = vec![0.0; size * size];
    let mut times = [const { Vec::new() }; 8];
    for turn in 0..TURNS {
        // In turns forwards and backwards: what comes first finds less in the caches.
        for at in (0..times.len()).map(|at| if turn % 2 == 0 { at } else { 7 - at }) {
            times[at].push(time(group, || match at {
                0 => x.all_gather_matmul(&[wide], &mut [&mut out]),
                1 => {
                    x.all_gather(&mut all.local_mut()?)?;
                    all.all_gather_matmul(&[wide], &mut [&mut out])
                }
                2 => all.all_gather_matmul(&[wide], &mut [&mut out]),
                3 => x.all_gather(&mut gathered),
                4 => sums.matmul_reduce_scatter(ReduceOp::Sum, a, narrow, &mut scattered),
                5 => unfused.matmul_reduce_scatter(ReduceOp::Sum, a, narrow, &mut scattered),
                6 => part.all_gather_matmul(&[narrow], &mut [&mut out]),
                _ => sums.reduce_scatter(ReduceOp::Sum, &mut scattered),
            })?);
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let medians = times.map(median);
    for (what, times) in ["all_gather, product", "product, reduce_scatter"].iter().zip(medians.chunks(4)) {
        let [fused, unfused, product, moved] = times else { continue };
        if rank == 0 {
            println!(
                "{size} x {size} x {columns}, {what}: fused {fused:.3} ms, unfused {unfused:.3} ms; \
                 alone the product {product:.3} ms, the other {moved:.3} ms",
            );
        }
    }
    all.close()?;
    part.close()?;
    sums.close()?;
    x.close()
}

/// Milliseconds that `work` takes this rank, from when all are ready, and what it reads is in the caches as
/// its own last run left it.
fn time(group: &Group, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    work()?;
    group.barrier()?;
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// Numbers between -0.5 and 0.5.
fn numbers(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|at| ((at * 37 + seed * 11) % 64) as f32 / 64.0 - 0.5).collect()
}
