//! Every wrong argument of every call that all ranks make: on one rank it is an error of all, at once, with
//! the same words, and the group goes on.
//!
//! The rank itself gets its own error, the others `Error::Rank` with its words. What only all ranks together
//! can judge (whether an output has room for what others send) is `Error::Rank` on all. Where a rank need not
//! hear from everybody it may return before it can know, and its *next* operation tells it.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use symmem::tuning::Algorithm;
use symmem::{Error, Group, MatrixView, ReduceOp, Result, Strided, SymmetricMemory};

use crate::common::{AT_ONCE, PATIENCE, config, same_ranks_with};

const RANKS: usize = 3;
/// The rank whose argument is wrong.
const WRONG: usize = 1;
/// Elements of the memory, all of them the rank's number.
const LEN: usize = 12;
const CHUNK: usize = LEN / RANKS;

/// The ways in which a call can be carried.
const ALGORITHMS: [&str; 5] = ["", "push", "staged", "direct,two_shot,pipelined", "pull"];
/// Calls with nothing in them that can be wrong by itself: what ranks may disagree on is `disagreement`'s.
#[cfg(feature = "faults")]
const WITHOUT_ARGUMENTS: [&str; 4] = ["group barrier", "all_gather", "close", "all_gather_fds"];
/// Calls in which a rank need not hear from all, unless they are carried directly.
const ONE_WAY: [&str; 2] = ["reduce", "broadcast of memory"];

struct Stage {
    group: Group,
    memory: SymmetricMemory<f32>,
}

/// A call of all ranks, with an argument that is wrong on the one for which `wrong` is true.
struct Row {
    /// The operation, as the library names it.
    op: &'static str,
    argument: &'static str,
    call: fn(&mut Stage, wrong: bool) -> Result<()>,
}

const fn row(
    op: &'static str,
    argument: &'static str,
    call: fn(&mut Stage, wrong: bool) -> Result<()>,
) -> Row {
    Row { op, argument, call }
}

/// An operation that floats do not have.
fn op(wrong: bool) -> ReduceOp {
    if wrong { ReduceOp::Xor } else { ReduceOp::Sum }
}

/// An operation that scans do not have.
fn without_avg(wrong: bool) -> ReduceOp {
    if wrong { ReduceOp::Avg } else { ReduceOp::Sum }
}

fn root(wrong: bool) -> usize {
    if wrong { usize::MAX } else { 0 }
}

/// An output of `len` elements, or of one more.
fn out(wrong: bool, len: usize) -> Vec<f32> {
    vec![-1.0; len + usize::from(wrong)]
}

impl Stage {
    fn new(group: &Group, forced: &str) -> Result<Self> {
        let group = same_ranks_with(group, config().algorithm(forced)?)?.within(PATIENCE);
        let mut memory = group.alloc::<f32>(LEN)?.rendezvous(&group)?;
        memory.fill(group.rank() as f32)?;
        Ok(Self { group, memory })
    }

    /// The memory, or a part of it that cannot be divided among the ranks.
    fn uneven(&self, wrong: bool) -> Result<SymmetricMemory<f32>> {
        self.memory.slice(..LEN - usize::from(wrong))
    }

    /// The memory, or the memory by an algorithm that carries no collective on it.
    fn forced(&self, wrong: bool) -> Result<SymmetricMemory<f32>> {
        if wrong { Ok(self.memory.using(Algorithm::Pipelined)) } else { self.memory.slice(..LEN) }
    }

    /// Makes a call to which the memory is a workspace: what it holds afterwards is of no meaning, also where
    /// the call was refused.
    fn as_workspace(&mut self, call: impl FnOnce(&mut SymmetricMemory<f32>) -> Result<()>) -> Result<()> {
        let told = call(&mut self.memory);
        // It cannot where this rank brought nothing.
        let _ = self.memory.fill(self.group.rank() as f32);
        told
    }

    /// Makes a call while this rank's memory is borrowed for reading.
    fn while_read(
        &mut self,
        wrong: bool,
        call: impl FnOnce(&mut SymmetricMemory<f32>) -> Result<()>,
    ) -> Result<()> {
        let twin = self.memory.slice(..LEN)?;
        let _guard = wrong.then(|| twin.local()).transpose()?;
        call(&mut self.memory)
    }

    /// Makes a call while this rank's memory is borrowed for writing.
    fn while_written(
        &mut self,
        wrong: bool,
        call: impl FnOnce(&mut SymmetricMemory<f32>) -> Result<()>,
    ) -> Result<()> {
        let mut twin = self.memory.slice(..LEN)?;
        let _guard = wrong.then(|| twin.local_mut()).transpose()?;
        call(&mut self.memory)
    }
}

const ROWS: &[Row] = &[
    row("broadcast", "root", |on, wrong| on.group.broadcast(root(wrong), &7u32).map(drop)),
    row("broadcast", "root, of bytes", |on, wrong| on.group.broadcast_bytes(root(wrong), b"x").map(drop)),
    row("rendezvous", "offset", |on, wrong| {
        let offset = if wrong { 9 } else { 8 };
        on.group.alloc::<u16>(8)?.rendezvous_at(&on.group, offset).map(drop)
    }),
    row("rendezvous", "part", |on, wrong| {
        let start = if wrong { 1 } else { 4 };
        on.group.alloc::<u8>(8)?.rendezvous_as::<u32>(&on.group, start, 1).map(drop)
    }),
    row("atomics", "length", |on, wrong| {
        on.group.atomics::<u64>(if wrong { usize::MAX } else { 4 }).map(drop)
    }),
    row("pool.alloc", "length", |on, wrong| {
        on.group.pool().alloc::<f32>(if wrong { usize::MAX } else { 4 }).map(drop)
    }),
    row("all_gather_matmul", "out", |on, wrong| {
        let weights = [1.0; LEN];
        on.memory.all_gather_matmul(&[MatrixView::new(&weights, LEN, 1)?], &mut [&mut out(wrong, RANKS)])
    }),
    row("all_gather_matmul", "borrowed", |on, wrong| {
        on.while_written(wrong, |memory| {
            let weights = [1.0; LEN];
            memory.all_gather_matmul(&[MatrixView::new(&weights, LEN, 1)?], &mut [&mut [0.0; RANKS]])
        })
    }),
    row("all_gather_columns_matmul", "out", |on, wrong| {
        let weights = [1.0; LEN * RANKS];
        let weights = MatrixView::new(&weights, LEN * RANKS, 1)?;
        on.memory.all_gather_columns_matmul(&[weights], &mut [&mut out(wrong, 1)])
    }),
    row("matmul_reduce_scatter", "op", |on, wrong| {
        let (a, b) = (MatrixView::new(&[1.0f32; RANKS], RANKS, 1)?, MatrixView::new(&[1.0], 1, 1)?);
        on.as_workspace(|memory| memory.matmul_reduce_scatter(op(wrong), a, b, &mut [0.0]))
    }),
    row("matmul_reduce_scatter", "out", |on, wrong| {
        let (a, b) = (MatrixView::new(&[1.0f32; RANKS], RANKS, 1)?, MatrixView::new(&[1.0], 1, 1)?);
        on.as_workspace(|memory| memory.matmul_reduce_scatter(ReduceOp::Sum, a, b, &mut out(wrong, 1)))
    }),
    row("matmul_reduce_scatter", "borrowed", |on, wrong| {
        let told = on.while_read(wrong, |memory| {
            let (a, b) = (MatrixView::new(&[1.0f32; RANKS], RANKS, 1)?, MatrixView::new(&[1.0], 1, 1)?);
            memory.matmul_reduce_scatter(ReduceOp::Sum, a, b, &mut [0.0])
        });
        on.as_workspace(|_| told)
    }),
    row("matmul_reduce_scatter_columns", "out", |on, wrong| {
        let (a, b) = (MatrixView::new(&[1.0f32], 1, 1)?, MatrixView::new(&[1.0; RANKS], 1, RANKS)?);
        on.as_workspace(|memory| {
            memory.matmul_reduce_scatter_columns(ReduceOp::Sum, a, b, &mut out(wrong, 1))
        })
    }),
    row("all_reduce_rms_norm", "out", |on, wrong| {
        on.memory.all_reduce_rms_norm(&mut [0.0; LEN], &[1.0; CHUNK], 0.0, &mut out(wrong, LEN))
    }),
    row("all_reduce_rms_norm", "borrowed", |on, wrong| {
        on.while_written(wrong, |memory| {
            memory.all_reduce_rms_norm(&mut [0.0; LEN], &[1.0; CHUNK], 0.0, &mut [0.0; LEN])
        })
    }),
    row("barrier", "channel", |on, wrong| on.memory.barrier(root(wrong))),
    row("broadcast_fds", "root", |on, wrong| on.group.broadcast_fds(root(wrong), &[]).map(drop)),
    row("broadcast_fds", "descriptors", |on, wrong| {
        let file = std::fs::File::open("/dev/null").expect("every system has one");
        on.group.broadcast_fds(WRONG, &vec![file.as_fd(); 8 + usize::from(wrong)]).map(drop)
    }),
    row("all_reduce", "op", |on, wrong| on.memory.all_reduce(op(wrong))),
    row("all_reduce", "borrowed", |on, wrong| {
        on.while_read(wrong, |memory| memory.all_reduce(ReduceOp::Sum))
    }),
    row("all_reduce", "op, started", |on, wrong| on.memory.start().all_reduce(op(wrong))?.wait()),
    row("all_reduce", "borrowed, started", |on, wrong| {
        on.while_read(wrong, |memory| memory.start().all_reduce(ReduceOp::Sum)?.wait())
    }),
    row("all_reduce", "algorithm", |on, wrong| on.forced(wrong)?.all_reduce(ReduceOp::Sum)),
    row("all_reduce", "algorithm, started", |on, wrong| {
        on.forced(wrong)?.start().all_reduce(ReduceOp::Sum)?.wait()
    }),
    row("all_reduce_out", "algorithm", |on, wrong| {
        on.forced(wrong)?.all_reduce_out(ReduceOp::Sum, &mut [0.0; LEN])
    }),
    row("reduce", "algorithm", |on, wrong| on.forced(wrong)?.reduce(ReduceOp::Sum, 0, &mut [0.0; LEN])),
    row("reduce_scatter", "algorithm", |on, wrong| {
        on.forced(wrong)?.reduce_scatter(ReduceOp::Sum, &mut [0.0; CHUNK])
    }),
    row("all_gather of memory", "algorithm", |on, wrong| {
        on.forced(wrong)?.all_gather(&mut [0.0; LEN * RANKS])
    }),
    row("broadcast of memory", "algorithm", |on, wrong| on.forced(wrong)?.broadcast(0)),
    row("all_to_all", "algorithm", |on, wrong| on.forced(wrong)?.all_to_all(&mut [0.0; LEN])),
    row("all_reduce_out", "op", |on, wrong| on.memory.all_reduce_out(op(wrong), &mut [0.0; LEN])),
    row("all_reduce_out", "out", |on, wrong| on.memory.all_reduce_out(ReduceOp::Sum, &mut out(wrong, LEN))),
    row("all_reduce_out", "borrowed", |on, wrong| {
        on.while_written(wrong, |memory| memory.all_reduce_out(ReduceOp::Sum, &mut [0.0; LEN]))
    }),
    row("all_reduce_out", "out, started", |on, wrong| {
        on.memory.start().all_reduce_out(ReduceOp::Sum, out(wrong, LEN))?.wait().map(drop)
    }),
    row("all_reduce_out", "borrowed, started", |on, wrong| {
        on.while_written(wrong, |memory| {
            memory.start().all_reduce_out(ReduceOp::Sum, vec![0.0; LEN])?.wait().map(drop)
        })
    }),
    row("reduce", "op", |on, wrong| on.memory.reduce(op(wrong), 0, &mut [0.0; LEN])),
    row("reduce", "root", |on, wrong| on.memory.reduce(ReduceOp::Sum, root(wrong), &mut [0.0; LEN])),
    row("reduce", "out", |on, wrong| on.memory.reduce(ReduceOp::Sum, WRONG, &mut out(wrong, LEN))),
    row("reduce", "borrowed", |on, wrong| {
        on.while_written(wrong, |memory| memory.reduce(ReduceOp::Sum, 0, &mut [0.0; LEN]))
    }),
    row("reduce", "root, started", |on, wrong| {
        on.memory.start().reduce(ReduceOp::Sum, root(wrong), vec![0.0; LEN])?.wait().map(drop)
    }),
    row("reduce_scatter", "op", |on, wrong| on.memory.reduce_scatter(op(wrong), &mut [0.0; CHUNK])),
    row("reduce_scatter", "out", |on, wrong| on.memory.reduce_scatter(ReduceOp::Sum, &mut out(wrong, CHUNK))),
    row("reduce_scatter", "uneven", |on, wrong| {
        on.uneven(wrong)?.reduce_scatter(ReduceOp::Sum, &mut [0.0; CHUNK])
    }),
    row("reduce_scatter", "borrowed", |on, wrong| {
        on.while_written(wrong, |memory| memory.reduce_scatter(ReduceOp::Sum, &mut [0.0; CHUNK]))
    }),
    row("reduce_scatter", "out, started", |on, wrong| {
        on.memory.start().reduce_scatter(ReduceOp::Sum, out(wrong, CHUNK))?.wait().map(drop)
    }),
    row("all_gather of memory", "out", |on, wrong| on.memory.all_gather(&mut out(wrong, LEN * RANKS))),
    row("all_gather of memory", "borrowed", |on, wrong| {
        on.while_written(wrong, |memory| memory.all_gather(&mut [0.0; LEN * RANKS]))
    }),
    row("all_gather of memory", "out, started", |on, wrong| {
        on.memory.start().all_gather(out(wrong, LEN * RANKS))?.wait().map(drop)
    }),
    row("broadcast of memory", "root", |on, wrong| on.memory.broadcast(root(wrong))),
    row("broadcast of memory", "borrowed", |on, wrong| on.while_read(wrong, |memory| memory.broadcast(0))),
    row("broadcast of memory", "root, started", |on, wrong| on.memory.start().broadcast(root(wrong))?.wait()),
    row("broadcast of memory", "borrowed, started", |on, wrong| {
        on.while_read(wrong, |memory| memory.start().broadcast(0)?.wait())
    }),
    row("all_to_all", "out", |on, wrong| on.memory.all_to_all(&mut out(wrong, LEN))),
    row("all_to_all", "uneven", |on, wrong| on.uneven(wrong)?.all_to_all(&mut [0.0; LEN])),
    row("all_to_all", "borrowed", |on, wrong| {
        on.while_written(wrong, |memory| memory.all_to_all(&mut [0.0; LEN]))
    }),
    row("all_to_all", "out, started", |on, wrong| {
        on.memory.start().all_to_all(out(wrong, LEN))?.wait().map(drop)
    }),
    row("scan", "op", |on, wrong| on.memory.scan(op(wrong), &mut [0.0; LEN])),
    row("scan", "op that scans lack", |on, wrong| on.memory.scan(without_avg(wrong), &mut [0.0; LEN])),
    row("scan", "out", |on, wrong| on.memory.scan(ReduceOp::Sum, &mut out(wrong, LEN))),
    row("scan", "algorithm", |on, wrong| on.forced(wrong)?.scan(ReduceOp::Sum, &mut [0.0; LEN])),
    row("scan", "borrowed", |on, wrong| {
        on.while_written(wrong, |memory| memory.scan(ReduceOp::Sum, &mut [0.0; LEN]))
    }),
    row("scan", "out, started", |on, wrong| {
        on.memory.start().scan(ReduceOp::Sum, out(wrong, LEN))?.wait().map(drop)
    }),
    row("exclusive_scan", "op", |on, wrong| on.memory.exclusive_scan(op(wrong), &mut [0.0; LEN])),
    row("exclusive_scan", "op that scans lack", |on, wrong| {
        on.memory.exclusive_scan(without_avg(wrong), &mut [0.0; LEN])
    }),
    row("exclusive_scan", "out", |on, wrong| on.memory.exclusive_scan(ReduceOp::Sum, &mut out(wrong, LEN))),
    row("exclusive_scan", "algorithm", |on, wrong| {
        on.forced(wrong)?.exclusive_scan(ReduceOp::Sum, &mut [0.0; LEN])
    }),
    row("exclusive_scan", "borrowed", |on, wrong| {
        on.while_written(wrong, |memory| memory.exclusive_scan(ReduceOp::Sum, &mut [0.0; LEN]))
    }),
    row("exclusive_scan", "out, started", |on, wrong| {
        on.memory.start().exclusive_scan(ReduceOp::Sum, out(wrong, LEN))?.wait().map(drop)
    }),
    row("all_gather_v", "number of counts", |on, wrong| {
        on.memory.all_gather_v(&vec![1; RANKS - usize::from(wrong)], &mut [0.0; RANKS])
    }),
    row("all_gather_v", "sum of counts", |on, wrong| {
        on.memory.all_gather_v(&if wrong { [usize::MAX; RANKS] } else { [1; RANKS] }, &mut [0.0; RANKS])
    }),
    row("all_gather_v", "counts beyond the memory", |on, wrong| {
        let most = LEN + usize::from(wrong);
        on.memory.all_gather_v(&[1, most, 0], &mut vec![0.0; 1 + most])
    }),
    row("all_gather_v", "out", |on, wrong| on.memory.all_gather_v(&[1, 2, 0], &mut out(wrong, 3))),
    row("all_gather_v", "algorithm", |on, wrong| on.forced(wrong)?.all_gather_v(&[1, 2, 0], &mut [0.0; 3])),
    row("all_gather_v", "borrowed", |on, wrong| {
        on.while_written(wrong, |memory| memory.all_gather_v(&[1, 2, 0], &mut [0.0; 3]))
    }),
    row("all_gather_v", "out, started", |on, wrong| {
        on.memory.start().all_gather_v(vec![1, 2, 0], out(wrong, 3))?.wait().map(drop)
    }),
    row("gather_v", "root", |on, wrong| on.memory.gather_v(root(wrong), &[1, 2, 0], &mut [0.0; 3])),
    row("gather_v", "number of counts", |on, wrong| {
        on.memory.gather_v(0, &vec![1; RANKS - usize::from(wrong)], &mut [0.0; RANKS])
    }),
    row("gather_v", "counts beyond the memory", |on, wrong| {
        let most = LEN + usize::from(wrong);
        on.memory.gather_v(WRONG, &[1, most, 0], &mut vec![0.0; 1 + most])
    }),
    row("gather_v", "out", |on, wrong| on.memory.gather_v(WRONG, &[1, 2, 0], &mut out(wrong, 3))),
    row("gather_v", "algorithm", |on, wrong| on.forced(wrong)?.gather_v(0, &[1, 2, 0], &mut [0.0; 3])),
    row("gather_v", "borrowed", |on, wrong| {
        on.while_written(wrong, |memory| memory.gather_v(0, &[1, 2, 0], &mut [0.0; 3]))
    }),
    row("gather_v", "root, started", |on, wrong| {
        on.memory.start().gather_v(root(wrong), vec![1, 2, 0], vec![0.0; 3])?.wait().map(drop)
    }),
    row("scatter_v", "root", |on, wrong| on.memory.scatter_v(root(wrong), &[1; RANKS], &mut [0.0; 1])),
    row("scatter_v", "number of counts", |on, wrong| {
        on.memory.scatter_v(0, &vec![1; RANKS - usize::from(wrong)], &mut [0.0; 1])
    }),
    row("scatter_v", "counts beyond the memory", |on, wrong| {
        on.memory.scatter_v(
            0,
            &[1, 1, LEN - 2 + usize::from(wrong)],
            &mut [0.0; LEN][..[1, 1, LEN - 2][on.group.rank()]],
        )
    }),
    row("scatter_v", "out", |on, wrong| on.memory.scatter_v(0, &[1; RANKS], &mut out(wrong, 1))),
    row("scatter_v", "algorithm", |on, wrong| on.forced(wrong)?.scatter_v(0, &[1; RANKS], &mut [0.0; 1])),
    row("scatter_v", "borrowed", |on, wrong| {
        on.while_written(wrong, |memory| memory.scatter_v(0, &[1; RANKS], &mut [0.0; 1]))
    }),
    row("scatter_v", "out, started", |on, wrong| {
        on.memory.start().scatter_v(0, vec![1; RANKS], out(wrong, 1))?.wait().map(drop)
    }),
    row("all_to_all_v", "number of splits", |on, wrong| {
        let splits = vec![1; RANKS - usize::from(wrong)];
        on.memory.all_to_all_v(1, &splits, &mut [0.0; LEN]).map(drop)
    }),
    row("all_to_all_v", "sum of splits", |on, wrong| {
        let splits = if wrong { [usize::MAX; RANKS] } else { [1; RANKS] };
        on.memory.all_to_all_v(1, &splits, &mut [0.0; LEN]).map(drop)
    }),
    row("all_to_all_v", "splits beyond the memory", |on, wrong| {
        let splits = if wrong { [LEN; RANKS] } else { [1; RANKS] };
        on.memory.all_to_all_v(1, &splits, &mut [0.0; LEN]).map(drop)
    }),
    row("all_to_all_v", "out", |on, wrong| {
        let mut out = vec![0.0; if wrong { 2 } else { LEN }];
        on.memory.all_to_all_v(1, &[1; RANKS], &mut out).map(drop)
    }),
    row("all_to_all_v", "borrowed", |on, wrong| {
        on.while_written(wrong, |memory| memory.all_to_all_v(1, &[1; RANKS], &mut [0.0; LEN]).map(drop))
    }),
    row("all_to_all_2d", "align", |on, wrong| {
        on.memory.all_to_all_2d(1, &[1; RANKS], usize::from(!wrong), &mut [0.0; LEN]).map(drop)
    }),
    row("all_to_all_2d", "number of splits", |on, wrong| {
        let splits = vec![1; RANKS + usize::from(wrong)];
        on.memory.all_to_all_2d(1, &splits, 1, &mut [0.0; LEN]).map(drop)
    }),
    row("all_to_all_2d", "out", |on, wrong| {
        let mut out = vec![0.0; if wrong { 2 } else { LEN }];
        on.memory.all_to_all_2d(1, &[1; RANKS], 1, &mut out).map(drop)
    }),
    row("all_to_all_2d_offset", "number of splits", |on, wrong| {
        let splits = vec![1; RANKS + usize::from(wrong)];
        on.memory.all_to_all_2d_offset(1, &splits, &splits, &mut [0.0; LEN]).map(drop)
    }),
    row("all_to_all_2d_offset", "number of offsets", |on, wrong| {
        let offsets = vec![0; RANKS + usize::from(wrong)];
        on.memory.all_to_all_2d_offset(1, &[1; RANKS], &offsets, &mut [0.0; LEN]).map(drop)
    }),
    row("all_to_all_2d_offset", "offsets beyond the memory", |on, wrong| {
        let offsets = [if wrong { usize::MAX } else { 0 }; RANKS];
        on.memory.all_to_all_2d_offset(1, &[1; RANKS], &offsets, &mut [0.0; LEN]).map(drop)
    }),
    row("gather", "root", |on, wrong| on.memory.gather(root(wrong), &mut [0.0; LEN * RANKS])),
    row("gather", "out", |on, wrong| on.memory.gather(WRONG, &mut out(wrong, LEN * RANKS))),
    row("gather", "borrowed", |on, wrong| {
        on.while_written(wrong, |memory| memory.gather(0, &mut [0.0; LEN * RANKS]))
    }),
    row("scatter", "root", |on, wrong| on.memory.scatter(root(wrong), &mut [0.0; CHUNK])),
    row("scatter", "out", |on, wrong| on.memory.scatter(0, &mut out(wrong, CHUNK))),
    row("scatter", "uneven", |on, wrong| on.uneven(wrong)?.scatter(0, &mut [0.0; CHUNK])),
    row("scatter", "borrowed", |on, wrong| {
        on.while_written(wrong, |memory| memory.scatter(0, &mut [0.0; CHUNK]))
    }),
    row("reduce_scatter_columns", "op", |on, wrong| {
        on.memory.reduce_scatter_columns(op(wrong), RANKS, &mut [0.0; CHUNK])
    }),
    row("reduce_scatter_columns", "columns", |on, wrong| {
        let columns = if wrong { 0 } else { RANKS };
        on.memory.reduce_scatter_columns(ReduceOp::Sum, columns, &mut [0.0; CHUNK])
    }),
    row("reduce_scatter_columns", "uneven", |on, wrong| {
        let columns = if wrong { 4 } else { RANKS };
        on.memory.reduce_scatter_columns(ReduceOp::Sum, columns, &mut [0.0; CHUNK])
    }),
    row("reduce_scatter_columns", "out", |on, wrong| {
        on.memory.reduce_scatter_columns(ReduceOp::Sum, RANKS, &mut out(wrong, CHUNK))
    }),
    row("reduce_scatter_columns", "borrowed", |on, wrong| {
        on.while_written(wrong, |memory| {
            memory.reduce_scatter_columns(ReduceOp::Sum, RANKS, &mut [0.0; CHUNK])
        })
    }),
    row("low_contention_all_gather", "out", |on, wrong| {
        on.memory.low_contention_all_gather(&mut out(wrong, LEN * RANKS))
    }),
    row("low_contention_all_gather", "borrowed", |on, wrong| {
        on.while_written(wrong, |memory| memory.low_contention_all_gather(&mut [0.0; LEN * RANKS]))
    }),
    row("low_contention_reduce_scatter", "op", |on, wrong| {
        on.memory.low_contention_reduce_scatter(op(wrong), &mut [0.0; CHUNK])
    }),
    row("low_contention_reduce_scatter", "out", |on, wrong| {
        on.memory.low_contention_reduce_scatter(ReduceOp::Sum, &mut out(wrong, CHUNK))
    }),
    row("low_contention_reduce_scatter", "uneven", |on, wrong| {
        on.uneven(wrong)?.low_contention_reduce_scatter(ReduceOp::Sum, &mut [0.0; CHUNK])
    }),
    row("low_contention_reduce_scatter", "borrowed", |on, wrong| {
        on.while_written(wrong, |memory| {
            memory.low_contention_reduce_scatter(ReduceOp::Sum, &mut [0.0; CHUNK])
        })
    }),
    row("all_reduce of private memory", "op", |on, wrong| on.group.all_reduce(op(wrong), &mut [0f32; 4])),
    row("all_reduce of private memory", "op, started", |on, wrong| {
        on.group.start().all_reduce(op(wrong), vec![0f32; 4])?.wait().map(drop)
    }),
    row("all_reduce of private memory", "out", |on, wrong| {
        on.group.all_reduce_out(ReduceOp::Sum, &[0f32; 4], &mut out(wrong, 4))
    }),
    row("all_reduce of private memory", "strided", |on, wrong| {
        // More elements than can be counted in bytes: they are all the same one.
        let shape = [if wrong { usize::MAX } else { 4 }];
        let input = Strided::new(&[1.0f32], &shape, &[0])?;
        on.group.all_reduce_strided(ReduceOp::Sum, input, &mut [0.0; 4])
    }),
    row("reduce of private memory", "op", |on, wrong| on.group.reduce(op(wrong), 0, &mut [0f32; 4])),
    row("reduce of private memory", "root", |on, wrong| {
        on.group.reduce(ReduceOp::Sum, root(wrong), &mut [0f32; 4])
    }),
    row("reduce of private memory", "out", |on, wrong| {
        on.group.reduce_out(ReduceOp::Sum, WRONG, &[0f32; 4], &mut out(wrong, 4))
    }),
    row("reduce of private memory", "root, started", |on, wrong| {
        on.group.start().reduce(ReduceOp::Sum, root(wrong), vec![0f32; 4])?.wait().map(drop)
    }),
    row("reduce_scatter of private memory", "op", |on, wrong| {
        on.group.reduce_scatter(op(wrong), &[0f32; 6], &mut [0.0; 2])
    }),
    row("reduce_scatter of private memory", "out", |on, wrong| {
        on.group.reduce_scatter(ReduceOp::Sum, &[0f32; 6], &mut out(wrong, 2))
    }),
    row("reduce_scatter of private memory", "uneven", |on, wrong| {
        on.group.reduce_scatter(ReduceOp::Sum, &out(wrong, 6), &mut [0.0; 2])
    }),
    row("reduce_scatter of private memory", "out, started", |on, wrong| {
        on.group.start().reduce_scatter(ReduceOp::Sum, vec![0f32; 6], out(wrong, 2))?.wait().map(drop)
    }),
    row("all_gather of private memory", "out", |on, wrong| {
        on.group.all_gather_into(&[0f32; 2], &mut out(wrong, 6))
    }),
    row("all_gather of private memory", "out, started", |on, wrong| {
        on.group.start().all_gather_into(vec![0f32; 2], out(wrong, 6))?.wait().map(drop)
    }),
    row("broadcast of private memory", "root", |on, wrong| {
        on.group.broadcast_into(root(wrong), &mut [0f32; 4])
    }),
    row("broadcast of private memory", "root, started", |on, wrong| {
        on.group.start().broadcast_into(root(wrong), vec![0f32; 4])?.wait().map(drop)
    }),
    row("all_to_all of private memory", "out", |on, wrong| {
        on.group.all_to_all(&[0f32; 6], &mut out(wrong, 6))
    }),
    row("all_to_all of private memory", "uneven", |on, wrong| {
        on.group.all_to_all(&out(wrong, 6), &mut out(wrong, 6))
    }),
    row("all_to_all of private memory", "out, started", |on, wrong| {
        on.group.start().all_to_all(vec![0f32; 6], out(wrong, 6))?.wait().map(drop)
    }),
    row("scan of private memory", "op", |on, wrong| on.group.scan(op(wrong), &[0f32; 4], &mut [0.0; 4])),
    row("scan of private memory", "op that scans lack", |on, wrong| {
        on.group.scan(without_avg(wrong), &[0f32; 4], &mut [0.0; 4])
    }),
    row("scan of private memory", "out", |on, wrong| {
        on.group.scan(ReduceOp::Sum, &[0f32; 4], &mut out(wrong, 4))
    }),
    row("scan of private memory", "out, started", |on, wrong| {
        on.group.start().scan(ReduceOp::Sum, vec![0f32; 4], out(wrong, 4))?.wait().map(drop)
    }),
    row("exclusive_scan of private memory", "op", |on, wrong| {
        on.group.exclusive_scan(op(wrong), &[0f32; 4], &mut [0.0; 4])
    }),
    row("exclusive_scan of private memory", "op that scans lack", |on, wrong| {
        on.group.exclusive_scan(without_avg(wrong), &[0f32; 4], &mut [0.0; 4])
    }),
    row("exclusive_scan of private memory", "out", |on, wrong| {
        on.group.exclusive_scan(ReduceOp::Sum, &[0f32; 4], &mut out(wrong, 4))
    }),
    row("exclusive_scan of private memory", "out, started", |on, wrong| {
        on.group.start().exclusive_scan(ReduceOp::Sum, vec![0f32; 4], out(wrong, 4))?.wait().map(drop)
    }),
    row("all_gather_v of private memory", "number of counts", |on, wrong| {
        on.group.all_gather_v(&[0f32; 1], &vec![1; RANKS + usize::from(wrong)], &mut [0.0; RANKS])
    }),
    row("all_gather_v of private memory", "sum of counts", |on, wrong| {
        let counts = if wrong { [usize::MAX; RANKS] } else { [1; RANKS] };
        on.group.all_gather_v(&[0f32; 1], &counts, &mut [0.0; RANKS])
    }),
    row("all_gather_v of private memory", "input", |on, wrong| {
        let counts = [1, 2, 0];
        let input = vec![0f32; counts[on.group.rank()] + usize::from(wrong)];
        on.group.all_gather_v(&input, &counts, &mut [0.0; 3])
    }),
    row("all_gather_v of private memory", "out", |on, wrong| {
        let counts = [1, 2, 0];
        on.group.all_gather_v(&vec![0f32; counts[on.group.rank()]], &counts, &mut out(wrong, 3))
    }),
    row("all_gather_v of private memory", "out, started", |on, wrong| {
        let counts = vec![1, 2, 0];
        let input = vec![0f32; counts[on.group.rank()]];
        on.group.start().all_gather_v(input, counts, out(wrong, 3))?.wait().map(drop)
    }),
    row("gather_v of private memory", "root", |on, wrong| {
        on.group.gather_v(root(wrong), &[0f32; 1], &[1; RANKS], &mut [0.0; RANKS])
    }),
    row("gather_v of private memory", "number of counts", |on, wrong| {
        on.group.gather_v(0, &[0f32; 1], &vec![1; RANKS + usize::from(wrong)], &mut [0.0; RANKS])
    }),
    row("gather_v of private memory", "input", |on, wrong| {
        on.group.gather_v(0, &out(wrong, 1), &[1; RANKS], &mut [0.0; RANKS])
    }),
    row("gather_v of private memory", "out", |on, wrong| {
        on.group.gather_v(WRONG, &[0f32; 1], &[1; RANKS], &mut out(wrong, RANKS))
    }),
    row("gather_v of private memory", "input, started", |on, wrong| {
        on.group.start().gather_v(0, out(wrong, 1), vec![1; RANKS], vec![0.0; RANKS])?.wait().map(drop)
    }),
    row("scatter_v of private memory", "root", |on, wrong| {
        on.group.scatter_v(root(wrong), &[0f32; RANKS], &[1; RANKS], &mut [0.0; 1])
    }),
    row("scatter_v of private memory", "number of counts", |on, wrong| {
        on.group.scatter_v(0, &[0f32; RANKS], &vec![1; RANKS + usize::from(wrong)], &mut [0.0; 1])
    }),
    row("scatter_v of private memory", "input", |on, wrong| {
        on.group.scatter_v(WRONG, &out(wrong, RANKS), &[1; RANKS], &mut [0.0; 1])
    }),
    row("scatter_v of private memory", "out", |on, wrong| {
        on.group.scatter_v(0, &[0f32; RANKS], &[1; RANKS], &mut out(wrong, 1))
    }),
    row("scatter_v of private memory", "out, started", |on, wrong| {
        on.group.start().scatter_v(0, vec![0f32; RANKS], vec![1; RANKS], out(wrong, 1))?.wait().map(drop)
    }),
    row("all_to_all_v of private memory", "number of splits", |on, wrong| {
        let splits = vec![1; RANKS - usize::from(wrong)];
        on.group.all_to_all_v(&[0f32; 3], &splits, &mut [0.0; 3], &[1; 3])
    }),
    row("all_to_all_v of private memory", "out", |on, wrong| {
        on.group.all_to_all_v(&[0f32; 3], &[1; 3], &mut out(wrong, 3), &[1; 3])
    }),
    row("gather of private memory", "root", |on, wrong| {
        on.group.gather(root(wrong), &[0f32; 2], &mut [0.0; 6])
    }),
    row("gather of private memory", "out", |on, wrong| {
        on.group.gather(WRONG, &[0f32; 2], &mut out(wrong, 6))
    }),
    row("scatter of private memory", "root", |on, wrong| {
        on.group.scatter(root(wrong), &[0f32; 6], &mut [0.0; 2])
    }),
    row("scatter of private memory", "input", |on, wrong| {
        on.group.scatter(WRONG, &out(wrong, 6), &mut [0.0; 2])
    }),
];

impl Stage {
    /// Makes the call and checks what this rank is told; the words of the error.
    fn try_row(&mut self, row: &Row, forced: &str) -> String {
        let name = format!("{} with a wrong {} ({forced:?})", row.op, row.argument);
        let wrong = self.group.rank() == WRONG;
        let start = Instant::now();
        let told = match (row.call)(self, wrong) {
            // It waits for nobody in this call, and so for everybody in the next.
            Ok(()) if ONE_WAY.contains(&row.op) && !forced.starts_with("direct") && !wrong => {
                self.group.barrier()
            }
            told => told,
        };
        let elapsed = start.elapsed();
        assert!(elapsed < AT_ONCE, "{name}: after {elapsed:?}, {told:?}");
        match told {
            Err(Error::Rank { rank: WRONG, message, .. }) => message,
            Err(error) if wrong && !error.is_group_failure() => error.to_string(),
            other => panic!("{name}: {other:?} on rank {}", self.group.rank()),
        }
    }

    /// The memory is as it was, and the next operations of every kind come out right.
    fn go_on(&mut self, name: &str) -> Result<()> {
        let own = self.group.rank() as f32;
        // Who waits for the root of a broadcast alone has the root's bytes by then.
        if !name.starts_with("broadcast of memory") {
            assert_eq!(*self.memory.local()?, [own; LEN], "{name}");
        }
        self.memory.fill(own)?;
        let mut sums = [0.0; LEN];
        self.memory.all_reduce_out(ReduceOp::Sum, &mut sums)?;
        assert_eq!(sums, [3.0; LEN], "after {name}");
        let mut sum = [self.group.rank() as i64; 5];
        self.group.all_reduce(ReduceOp::Sum, &mut sum)?;
        assert_eq!(sum, [3; 5], "after {name}");
        self.memory.barrier(0)
    }
}

#[test]
fn a_wrong_argument_of_one_rank_is_an_error_of_all_at_once_and_the_group_goes_on() {
    symmem::spawn(RANKS, |group| {
        for forced in ALGORITHMS {
            let mut stage = Stage::new(&group, forced)?;
            for row in ROWS {
                let words = stage.try_row(row, forced);
                let name = format!("{} with a wrong {}", row.op, row.argument);
                stage.go_on(&name)?;
                let all = stage.group.all_gather_bytes(words.as_bytes())?;
                assert!(all.iter().all(|theirs| *theirs == words.as_bytes()), "{name}: {all:?}");
            }
        }
        Ok(())
    })
    .unwrap();
}

/// Calls that are no collectives on symmetric memory.
const NOT_ON_MEMORY: [&str; 6] =
    ["broadcast", "rendezvous", "barrier", "broadcast_fds", "atomics", "pool.alloc"];

/// Where a rank brought nothing, every collective on the memory is the same error on all ranks, and changes
/// nothing.
#[test]
fn every_collective_is_refused_on_all_ranks_where_one_brought_nothing() {
    symmem::spawn(RANKS, |group| {
        let group = group.within(PATIENCE);
        let mut memory = match group.rank() {
            WRONG => group.rendezvous_nothing()?.cast::<f32>()?,
            _ => group.alloc::<f32>(LEN)?.rendezvous(&group)?,
        };
        if group.rank() != WRONG {
            memory.fill(group.rank() as f32)?;
        }
        let mut stage = Stage { group, memory };
        let on_memory = |row: &&Row| !row.op.ends_with("private memory") && !NOT_ON_MEMORY.contains(&row.op);
        for row in ROWS.iter().filter(on_memory) {
            let name = format!("{} ({})", row.op, row.argument);
            let start = Instant::now();
            // Also where an argument of a rank would be wrong: there is no call that it could be wrong for.
            for wrong in [false, stage.group.rank() == 0] {
                match (row.call)(&mut stage, wrong) {
                    Err(Error::NothingBrought { op, ranks }) => {
                        let called = row.op.trim_end_matches(" of memory");
                        assert_eq!((op, ranks), (called, vec![WRONG]), "{name}");
                    }
                    other => panic!("{name}: {other:?} on rank {}", stage.group.rank()),
                }
            }
            assert!(start.elapsed() < AT_ONCE, "{name}");
        }
        if stage.group.rank() != WRONG {
            assert_eq!(*stage.memory.local()?, [stage.group.rank() as f32; LEN]);
        }
        stage.group.barrier()?;
        stage.memory.close()
    })
    .unwrap();
}

/// Every rank may be the one, and several at once: each has its own error, the others that of the first.
#[test]
fn several_ranks_with_wrong_arguments_are_told_apart() {
    symmem::spawn(4, |group| {
        let group = group.within(PATIENCE);
        for set in 1u32..16 {
            let wrong = set >> group.rank() & 1 == 1;
            let first = set.trailing_zeros() as usize;
            let len = if wrong { 10 + group.rank() } else { 8 };
            match group.all_gather_into(&[1u8; 2], &mut vec![0; len]) {
                Err(Error::Invalid { problem, .. }) if wrong => {
                    assert!(problem.contains(&format!("{len} elements")), "{problem}");
                }
                Err(Error::Rank { rank, message, .. }) if !wrong && rank == first => {
                    assert!(message.contains(&format!("{} elements", 10 + first)), "{message}");
                }
                other => panic!("{set:b}: {other:?}"),
            }
            assert_eq!(group.all_gather(&group.rank())?, [0, 1, 2, 3]);
        }
        Ok(())
    })
    .unwrap();
}

/// The words of a refusal may be longer than what a rank can lay out at once.
#[test]
fn long_words_are_cut() {
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        match group.rank() {
            0 => group.refuse(&format!("x: {}", "ä".repeat(1 << 20)))?,
            _ => match group.barrier() {
                Err(Error::Rank { rank: 0, message, .. }) => {
                    assert!(message.starts_with("x: ää") && message.len() < 1 << 20, "{}", message.len());
                }
                other => panic!("{other:?}"),
            },
        }
        match group.rank() {
            0 => group.start().refuse("not now")?.wait()?,
            _ => {
                let told = group.start().barrier()?.wait();
                assert!(matches!(told, Err(Error::Rank { rank: 0, message, .. }) if message == "not now"));
            }
        }
        group.barrier()
    })
    .unwrap();
}

#[test]
fn a_wrong_argument_of_another_process_is_told_in_its_words() {
    let name = "refusals::a_wrong_argument_of_another_process_is_told_in_its_words";
    symmem::ProcessSpawner::new(name, RANKS)
        .env("SYMMEM_TIMEOUT", 30)
        .run(|group| {
            let mut stage = Stage::new(&group, "")?;
            for row in ROWS.iter().filter(|row| row.argument == "out") {
                let words = stage.try_row(row, "");
                stage.go_on(row.op)?;
                let all = stage.group.all_gather_bytes(words.as_bytes())?;
                assert!(all.iter().all(|theirs| *theirs == words.as_bytes()), "{}: {all:?}", row.op);
            }
            Ok(())
        })
        .unwrap();
}

/// A rank that refuses twice in a row, and one that refuses what others wait for late.
#[test]
fn a_refusal_of_a_slow_rank_is_told_when_it_comes() {
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        for _ in 0..2 {
            if group.rank() == 1 {
                std::thread::sleep(Duration::from_millis(100));
            }
            let len = if group.rank() == 1 { 3 } else { 2 };
            let told = group.all_gather_into(&[1u8], &mut vec![0; len]);
            assert!(told.is_err(), "{told:?}");
        }
        group.barrier()
    })
    .unwrap();
}

#[cfg(feature = "faults")]
#[test]
fn every_call_of_all_ranks_has_a_row() {
    let calls = symmem::fault::calls_of_all();
    for call in &calls {
        let rows = ROWS.iter().filter(|row| row.op == *call).count();
        assert_eq!(rows == 0, WITHOUT_ARGUMENTS.contains(call), "{call} has {rows} rows");
    }
    for row in ROWS {
        assert!(calls.contains(&row.op), "{} is no call", row.op);
    }
}
