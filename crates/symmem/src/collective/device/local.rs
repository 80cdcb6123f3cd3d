//! One thread that drives the devices of a whole group.
//!
//! Public. Operations on devices only launch, so one thread can launch every rank's part. What ranks do
//! together on the host (making engines, rendezvous) waits for the others, so here each rank does it on a
//! thread that lives for the call.

use std::time::Duration;

use crate::cuda::{Device, Stream};
use crate::engine::cuda::Engine;
use crate::group::{Group, spawn};
use crate::memory::device;
use crate::numeric::Element;
use crate::{Error, Result};

/// All ranks of a group, one per device, in the hands of one thread.
///
/// Launch the same operations for every rank, in the same order, each on a stream of that rank; a launch
/// waits for nobody, so the ranks may take turns. Everything else is as with ranks of their own:
/// [`LocalRanks::engines`] are plain engines.
///
/// ```no_run
/// use symmem::cuda::Device;
/// use symmem::{Group, ReduceOp};
/// # fn main() -> symmem::Result<()> {
/// let devices = (0..Device::count()?).map(Device::new).collect::<symmem::Result<Vec<_>>>()?;
/// let ranks = Group::all_local(&devices)?;
/// let streams = ranks.streams()?;
/// let memories = ranks.alloc::<f32>(1 << 20)?;
/// for (memory, stream) in memories.iter().zip(&streams) {
///     memory.all_reduce(ReduceOp::Sum, stream)?; // returns at once
/// }
/// ranks.sync(&streams, std::time::Duration::from_secs(10))
/// # }
/// ```
#[derive(Debug)]
pub struct LocalRanks {
    engines: Vec<Engine>,
}

impl Group {
    /// A group with one rank per device, for one thread that drives them all. Not collective: it needs nobody
    /// else.
    pub fn all_local(devices: &[Device]) -> Result<LocalRanks> {
        let engines = spawn(devices.len(), |group| Engine::new(&group, &devices[group.rank()]))?;
        engines.iter().try_for_each(Engine::check_never_waits)?;
        Ok(LocalRanks { engines })
    }
}

impl LocalRanks {
    /// Every rank's engine, in rank order.
    pub fn engines(&self) -> &[Engine] {
        &self.engines
    }

    /// A new stream for every rank, in rank order.
    pub fn streams(&self) -> Result<Vec<Stream>> {
        self.engines.iter().map(Engine::stream).collect()
    }

    /// Allocates `len` elements for every rank and makes them symmetric.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Vec<device::SymmetricMemory<T>>> {
        let allocations: Result<Vec<_>> = self.engines.iter().map(|engine| engine.alloc::<T>(len)).collect();
        self.rendezvous(&allocations?)
    }

    /// Makes these allocations, one of each rank in rank order, symmetric.
    pub fn rendezvous<T: Element>(
        &self,
        allocations: &[device::Allocation<T>],
    ) -> Result<Vec<device::SymmetricMemory<T>>> {
        let ranks = self.check_number("allocations", allocations.len())?;
        on_each(ranks, |rank| allocations[rank].rendezvous(&self.engines[rank]))
    }

    /// Closes these memories, one of each rank in rank order, as
    /// [`SymmetricMemory::close`](device::SymmetricMemory::close) does, which waits for all ranks.
    pub fn close<T: Element>(&self, memories: Vec<device::SymmetricMemory<T>>) -> Result<()> {
        let ranks = self.check_number("memories", memories.len())?;
        on_each(ranks, |rank| memories[rank].clone().close()).map(drop)
    }

    /// The number of ranks, of which each must have brought one of `what`.
    fn check_number(&self, what: &'static str, number: usize) -> Result<usize> {
        let ranks = self.engines.len();
        if number == ranks {
            return Ok(ranks);
        }
        Err(Error::invalid(what, format!("there are {number}, but {ranks} ranks")))
    }

    /// Waits until the work on every rank's stream is done, as [`Engine::sync`] does: `within` is for each.
    pub fn sync(&self, streams: &[Stream], within: Duration) -> Result<()> {
        self.engines.iter().zip(streams).try_for_each(|(engine, stream)| engine.sync(stream, within))
    }
}

/// Runs `part` for every rank at once. What ranks do together they fail together, so the first error is
/// everybody's.
fn on_each<R: Send>(ranks: usize, part: impl Fn(usize) -> Result<R> + Sync) -> Result<Vec<R>> {
    std::thread::scope(|scope| {
        let part = &part;
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || part(rank))).collect();
        let lost = |_| Err(Error::invalid("rank", "its thread panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(lost)).collect()
    })
}
