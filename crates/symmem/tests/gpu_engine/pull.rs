//! Collectives in which ranks read what they are due, bit by bit: every one, for several types, worlds, sizes
//! and offsets; nothing beside the output changes.

use std::cell::RefCell;

use symmem::cuda::{Buffer, DeviceSliceMut, SymmetricMemory};
use symmem::{ReduceOp, Result, bf16, f16};

use crate::stage::{Rank, device, on_threads, settings};
use crate::trial::{Number, Pattern};

/// Elements of a chunk.
const CHUNKS: [usize; 4] = [1, 7, 1000, 30_011];
/// Elements around an output that must stay as they are.
const MARGIN: usize = 3;
const PAINT: u8 = 0x5a;

struct Trial<'a, T: Number> {
    rank: &'a Rank,
    memory: SymmetricMemory<T>,
    /// Everybody's elements.
    all: Vec<Pattern<T>>,
    /// Outputs, kept to the end: freeing memory may wait for the device, on which kernels of other ranks wait
    /// for this one.
    outputs: RefCell<Vec<Buffer<T>>>,
}

impl<'a, T: Number> Trial<'a, T> {
    /// Collective. Memory of `len` elements that starts at an offset of the rank's own.
    fn new(rank: &'a Rank, len: usize, seed: u64) -> Result<Self> {
        let allocation = rank.engine.alloc::<T>(len + 8 * rank.group.size())?;
        let memory = allocation.rendezvous_at(&rank.engine, 3 * rank.rank())?.slice(..len)?;
        let all: Vec<_> = (0..rank.group.size()).map(|rank| Pattern::new(seed, rank, len)).collect();
        memory.write(&all[rank.rank()].to_vec(0, len), &rank.stream)?;
        Ok(Self { rank, memory, all, outputs: RefCell::default() })
    }

    fn world(&self) -> usize {
        self.all.len()
    }

    /// Runs `op` with an output of `len` elements and returns what is in it; what is around it must be
    /// untouched.
    fn run(&self, len: usize, op: impl FnOnce(DeviceSliceMut<'_, T>) -> Result<()>) -> Result<Vec<T>> {
        let stream = &self.rank.stream;
        let mut buffer = Buffer::<T>::new(&self.rank.device, len + 2 * MARGIN)?;
        buffer.fill_bytes(PAINT, stream)?;
        self.rank.ready()?;
        op(buffer.as_slice_mut().slice_mut(MARGIN..MARGIN + len)?)?;
        self.rank.sync()?;
        let found = buffer.read(stream)?;
        let beside = [&found[..MARGIN], &found[MARGIN + len..]].concat();
        assert!(
            bytemuck::cast_slice::<T, u8>(&beside).iter().all(|byte| *byte == PAINT),
            "bytes beside changed"
        );
        let own = self.memory.read(stream)?;
        self.all[self.rank.rank()].check(0, &own).expect("the input stays as it is");
        self.outputs.borrow_mut().push(buffer);
        self.rank.ready()?;
        Ok(found[MARGIN..MARGIN + len].to_vec())
    }

    fn expect(&self, what: &str, source: usize, start: usize, found: &[T]) {
        if let Err(problem) = self.all[source].check(start, found) {
            panic!("{what} on rank {} of {}: {problem}", self.rank.rank(), self.world());
        }
    }

    fn moves(&self) -> Result<()> {
        let (len, world, rank) = (self.memory.len(), self.world(), self.rank.rank());
        let (chunk, root, stream) = (len / world, world - 1, &self.rank.stream);
        let gathered = self.run(len * world, |out| self.memory.all_gather(out, stream))?;
        for source in 0..world {
            self.expect("all_gather", source, 0, &gathered[source * len..][..len]);
        }
        let taken = self.run(len, |out| self.memory.all_to_all(out, stream))?;
        for source in 0..world {
            self.expect("all_to_all", source, rank * chunk, &taken[source * chunk..][..chunk]);
        }
        let part = self.run(chunk, |out| self.memory.scatter(root, out, stream))?;
        self.expect("scatter", root, rank * chunk, &part);
        let is_root = rank == root;
        let gathered =
            self.run(len * world, |out| self.memory.gather(root, is_root.then_some(out), stream))?;
        for source in (0..world).filter(|_| is_root) {
            self.expect("gather", source, 0, &gathered[source * len..][..len]);
        }
        self.memory.broadcast(root, stream)?;
        self.rank.sync()?;
        self.expect("broadcast", root, 0, &self.memory.read(stream)?);
        self.memory.write(&self.all[rank].to_vec(0, len), stream)?;
        self.rank.ready()
    }

    fn reduces(&self, op: ReduceOp) -> Result<()> {
        let (len, world, rank) = (self.memory.len(), self.world(), self.rank.rank());
        let (chunk, root, stream) = (len / world, world / 2, &self.rank.stream);
        let whole = Pattern::reduced(op, &self.all);
        let found = self.run(chunk, |out| self.memory.reduce_scatter(op, out, stream))?;
        whole.check(rank * chunk, &found).unwrap_or_else(|problem| panic!("reduce_scatter {op}: {problem}"));
        let is_root = rank == root;
        let found = self.run(len, |out| self.memory.reduce(op, root, is_root.then_some(out), stream))?;
        if is_root {
            whole.check(0, &found).unwrap_or_else(|problem| panic!("reduce {op}: {problem}"));
        }
        // Rows of one chunk per rank; the memory has as many as fit.
        let width = [16, 5, 1].into_iter().find(|width| chunk.is_multiple_of(*width)).unwrap_or(1);
        let found =
            self.run(chunk, |out| self.memory.reduce_scatter_columns(op, width * world, out, stream))?;
        for (row, found) in found.chunks(width).enumerate() {
            let start = (row * world + rank) * width;
            whole.check(start, found).unwrap_or_else(|problem| panic!("columns, row {row}, {op}: {problem}"));
        }
        Ok(())
    }
}

fn all_of<T: Number>(rank: &Rank, reduces: bool) -> Result<()> {
    for (seed, chunk) in (1..).zip(CHUNKS) {
        let trial = Trial::<T>::new(rank, chunk * rank.group.size(), seed)?;
        rank.ready()?;
        trial.moves()?;
        if reduces {
            trial.reduces(ReduceOp::Sum)?;
            trial.reduces(ReduceOp::Avg)?;
        }
        rank.end()?;
    }
    Ok(())
}

#[test]
fn ranks_read_what_they_are_due() {
    if device().is_none() {
        return;
    }
    for world in [1, 2, 3, 4, 5, 8] {
        on_threads(world, &settings(), |rank| {
            all_of::<bf16>(rank, true)?;
            all_of::<f16>(rank, true)?;
            all_of::<f32>(rank, true)?;
            all_of::<u8>(rank, false)?;
            all_of::<f64>(rank, false)
        });
    }
}

#[test]
fn wrong_outputs_and_roots_are_told_before_anything_runs() {
    if device().is_none() {
        return;
    }
    on_threads(2, &settings(), |rank| {
        let memory = rank.engine.alloc::<f32>(10)?.rendezvous(&rank.engine)?;
        let mut out = Buffer::<f32>::new(&rank.device, 10)?;
        let stream = &rank.stream;
        let text = |result: Result<()>| result.unwrap_err().to_string();
        assert!(text(memory.all_gather(&mut out, stream)).contains("20 are needed"));
        assert!(text(memory.slice(..9)?.all_to_all(&mut out, stream)).contains("9 are needed"));
        assert!(text(memory.broadcast(2, stream)).contains("must be in [0, 2)"));
        assert!(
            text(memory.reduce_scatter_columns(ReduceOp::Sum, 3, &mut out, stream)).contains("3 columns")
        );
        // SAFETY: the handle's own memory, which the operation refuses to write.
        let own = unsafe { DeviceSliceMut::from_raw(memory.peer_ptr(rank.rank())?, 5, &rank.device) }?;
        assert!(text(memory.reduce_scatter(ReduceOp::Sum, own, stream)).contains("overlaps"));
        let words = rank.engine.alloc::<u64>(10)?.rendezvous(&rank.engine)?;
        let mut out = Buffer::<u64>::new(&rank.device, 5)?;
        assert!(text(words.reduce_scatter(ReduceOp::Sum, &mut out, stream)).contains("Hint"));
        rank.ready()?;
        memory.barrier(0, stream)?;
        rank.end()
    });
}
