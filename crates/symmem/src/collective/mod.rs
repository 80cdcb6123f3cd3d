//! Collectives on symmetric memory: what they mean, what ranks must agree on, and which algorithm runs.
//!
//! Called by users through the handle. Every collective publishes a signature (operation, element type, reduce
//! operation, root, memory, bytes); disagreement is the same `Mismatch` on every rank before a byte changes. A rank's
//! memory is borrowed for the length of the call. A collective that fails midway poisons the memory.

mod direct;

use crate::group::{Running, signature};
use crate::memory::{Element, SymmetricMemory};
use crate::numeric::{Kernel, ReduceOp};
use crate::op::Op;
use crate::sync::protocol::Signature;
use crate::{DType, Error, Result};

use self::direct::Peers;

/// What all ranks of a collective must say alike.
struct Call {
    op: Op,
    root: usize,
    dtype: DType,
    reduce: Option<ReduceOp>,
    bytes: usize,
}

impl Call {
    fn signature(&self, memory: u64) -> Signature {
        let reduce = self.reduce.map_or(0, |reduce| reduce as usize + 1);
        let memory = memory as usize & 0xff_ffff;
        let number = self.root | (self.dtype as usize) << 16 | reduce << 24 | memory << 32;
        signature(self.op, number, self.bytes as u64)
    }
}

/// What a signature's number says, for people.
pub(crate) fn describe(number: u64) -> String {
    let dtype = DType::ALL.iter().find(|dtype| **dtype as u64 == number >> 16 & 0xff);
    let reduce = ReduceOp::ALL.iter().find(|reduce| **reduce as u64 + 1 == number >> 24 & 0xff);
    let name = |name: Option<String>| name.map(|name| format!("{name}, ")).unwrap_or_default();
    let (dtype, reduce) = (name(dtype.map(ToString::to_string)), name(reduce.map(ToString::to_string)));
    format!("{reduce}{dtype}root {}, memory {}", number & 0xffff, number >> 32)
}

impl<T: Element> SymmetricMemory<T> {
    /// Collective. Every rank's memory becomes the reduction of all ranks' memory, with the same bits on every rank.
    ///
    /// ```
    /// use symmem::ReduceOp;
    /// symmem::spawn(4, |group| {
    ///     let mut x = group.alloc::<f32>(1000)?;
    ///     x.fill(group.rank() as f32)?;
    ///     let mut mem = x.rendezvous(&group)?;
    ///     mem.all_reduce(ReduceOp::Sum)?;
    ///     assert!(mem.local()?.iter().all(|value| *value == 6.0));
    ///     mem.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn all_reduce(&mut self, op: ReduceOp) -> Result<()> {
        let kernel = Kernel::select(T::DTYPE, op)?;
        tracing::trace!(algorithm = "direct", isa = ?kernel.isa(), bytes = self.len() * size_of::<T>(), "all_reduce");
        let call = self.call(Op::AllReduce, 0, Some(op));
        self.write_all(call, |peers| {
            // Each rank owns a slice: it alone reads and writes it, in everybody's memory.
            let slice = slice_of(self.len(), self.world_size(), self.rank());
            peers.reduce_everywhere(&kernel, slice);
        })
    }

    /// Collective. `out` becomes the reduction of all ranks' memory, which stays as it is. `out` is as long as the memory.
    pub fn all_reduce_out(&self, op: ReduceOp, out: &mut [T]) -> Result<()> {
        let kernel = Kernel::select(T::DTYPE, op)?;
        self.check_out(Op::AllReduceOut, out.len(), self.len())?;
        let call = self.call(Op::AllReduceOut, 0, Some(op));
        self.read_all(call, |peers| peers.reduce(&kernel, 0, out))
    }

    /// Collective. `out` of rank `root` becomes the reduction of all ranks' memory; the others' `out` is ignored.
    pub fn reduce(&self, op: ReduceOp, root: usize, out: &mut [T]) -> Result<()> {
        let kernel = Kernel::select(T::DTYPE, op)?;
        self.group().check_rank(Op::Reduce.name(), root)?;
        let is_root = self.rank() == root;
        if is_root {
            self.check_out(Op::Reduce, out.len(), self.len())?;
        }
        let call = self.call(Op::Reduce, root, Some(op));
        self.read_all(call, |peers| {
            if is_root {
                peers.reduce(&kernel, 0, out);
            }
        })
    }

    /// Collective. The memory is one chunk per rank; `out` becomes the reduction of everybody's chunk for this rank.
    pub fn reduce_scatter(&self, op: ReduceOp, out: &mut [T]) -> Result<()> {
        let kernel = Kernel::select(T::DTYPE, op)?;
        let chunk = self.chunk(Op::ReduceScatter)?;
        self.check_out(Op::ReduceScatter, out.len(), chunk)?;
        let start = chunk * self.rank();
        let call = self.call(Op::ReduceScatter, 0, Some(op));
        self.read_all(call, |peers| peers.reduce(&kernel, start, out))
    }

    /// Collective. `out` becomes everybody's memory, in rank order: as long as the memory times the number of ranks.
    pub fn all_gather(&self, out: &mut [T]) -> Result<()> {
        self.check_out(Op::AllGatherMemory, out.len(), self.len() * self.world_size())?;
        let call = self.call(Op::AllGatherMemory, 0, None);
        let len = self.len();
        self.read_all(call, |peers| {
            for rank in self.ranks_from_own() {
                peers.copy(rank, 0, &mut out[rank * len..][..len]);
            }
        })
    }

    /// Collective. Everybody's memory becomes that of rank `root`.
    pub fn broadcast(&mut self, root: usize) -> Result<()> {
        self.group().check_rank(Op::BroadcastMemory.name(), root)?;
        let call = self.call(Op::BroadcastMemory, root, None);
        self.write_all(call, |peers| peers.copy_to_own(root))
    }

    /// Collective. The memory is one chunk per rank; `out` becomes, in rank order, everybody's chunk for this rank.
    pub fn all_to_all(&self, out: &mut [T]) -> Result<()> {
        let chunk = self.chunk(Op::AllToAll)?;
        self.check_out(Op::AllToAll, out.len(), self.len())?;
        let start = chunk * self.rank();
        let call = self.call(Op::AllToAll, 0, None);
        self.read_all(call, |peers| {
            for rank in self.ranks_from_own() {
                peers.copy(rank, start, &mut out[rank * chunk..][..chunk]);
            }
        })
    }

    fn call(&self, op: Op, root: usize, reduce: Option<ReduceOp>) -> Call {
        Call { op, root, dtype: T::DTYPE, reduce, bytes: self.len() * size_of::<T>() }
    }

    /// All ranks, each rank starting with itself, so that not everybody reads the same one at once.
    fn ranks_from_own(&self) -> impl Iterator<Item = usize> {
        let (rank, world) = (self.rank(), self.world_size());
        (0..world).map(move |step| (rank + step) % world)
    }

    /// Elements per rank, if they come out even.
    fn chunk(&self, op: Op) -> Result<usize> {
        if self.len().is_multiple_of(self.world_size()) {
            return Ok(self.len() / self.world_size());
        }
        let problem = format!("{} elements are not divisible by {} ranks", self.len(), self.world_size());
        Err(Error::invalid(op.name(), problem))
    }

    fn check_out(&self, op: Op, len: usize, expected: usize) -> Result<()> {
        if len == expected {
            return Ok(());
        }
        Err(Error::invalid(op.name(), format!("the output has {len} elements, but {expected} are needed")))
    }

    /// Runs `work`, which reads everybody's memory and writes into it.
    fn write_all(&self, call: Call, work: impl FnOnce(&Peers<'_, T>)) -> Result<()> {
        let _borrow = self.borrow_exclusive(call.op.name())?;
        self.run(call, work)
    }

    /// Runs `work`, which only reads everybody's memory.
    fn read_all(&self, call: Call, work: impl FnOnce(&Peers<'_, T>)) -> Result<()> {
        let _borrow = self.local()?;
        self.run(call, work)
    }

    /// Meets, works, meets again: the first meeting says that everybody's memory is ready, the second that nobody
    /// works on it any more.
    fn run(&self, call: Call, work: impl FnOnce(&Peers<'_, T>)) -> Result<()> {
        let running = self.begin(call.op, None)?;
        let signature = call.signature(self.number());
        let met = self.seal(self.enter(&running, signature))?;
        work(&met);
        // From here on a failure may leave anybody's memory half written, whatever the error is.
        let left = running.meet(signature);
        if let Err(error) = &left {
            self.poison(error);
        }
        left.map(drop)
    }

    fn enter<'a>(&'a self, running: &Running<'_>, signature: Signature) -> Result<Peers<'a, T>> {
        let epoch = running.meet_with(signature, self.offset() as u64)?;
        Peers::new(self, |rank| running.note(rank, epoch) as usize)
    }
}

/// The slice of `len` elements that `rank` of `world` owns: contiguous, cache-line sized pieces where possible.
fn slice_of(len: usize, world: usize, rank: usize) -> std::ops::Range<usize> {
    // Whole lines of 64 elements keep two ranks from writing into one cache line.
    let lines = len.div_ceil(64);
    let edge = |rank: usize| (lines * rank / world * 64).min(len);
    edge(rank)..edge(rank + 1)
}
