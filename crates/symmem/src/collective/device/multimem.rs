//! The collective that nothing but multicast does.

use crate::cuda::{DeviceSlice, Stream};
use crate::memory::device::SymmetricMemory;
use crate::numeric::Element;
use crate::operation::Op;
use crate::{Error, Result};

impl<T: Element> SymmetricMemory<T> {
    /// Collective, in the order of `stream`. This memory becomes everybody's `input`, in rank order, on every
    /// rank. With [`Algorithm::Multimem`](crate::cuda::Algorithm::Multimem) only
    /// ([`SymmetricMemory::using`]); [`SymmetricMemory::all_gather`] is for all machines.
    ///
    /// `input` may be this rank's own part of the memory.
    pub fn all_gather_from<'a>(&self, input: impl Into<DeviceSlice<'a, T>>, stream: &Stream) -> Result<()> {
        const OP: Op = Op::AllGatherMemory;
        let launch = || {
            let input = input.into();
            if input.len() * self.world_size() != self.len() {
                let problem =
                    format!("{} elements of each rank do not make the memory's {}", input.len(), self.len());
                return Err(Error::invalid(OP.name(), problem));
            }
            self.engine().check_memory("input", input.device())?;
            let (from, bytes) = (input.device_ptr(), input.len() * size_of::<T>());
            self.check_source(from, bytes)?;
            if !self.engine().uses_multimem() {
                let problem = "only multicast writes the result into symmetric memory. Hint: choose it with using(Algorithm::Multimem), or take all_gather, whose output is this rank's own";
                return Err(Error::invalid(OP.name(), problem));
            }
            self.region().gather_by_multimem(input.place(), bytes, stream)
        };
        self.told(OP, stream, launch)
    }

    /// An error if `bytes` bytes at `from` are part of this memory, unless they are the part that this rank
    /// brings.
    fn check_source(&self, from: u64, bytes: usize) -> Result<()> {
        let (own, bytes) = (self.region().own_address(), bytes as u64);
        let place = own + bytes * self.rank() as u64;
        if from == place || from + bytes <= own || own + self.region().bytes as u64 <= from {
            return Ok(());
        }
        Err(Error::invalid("input", "it overlaps the symmetric memory, which peers write meanwhile"))
    }
}
