//! The library's collectives on memory that is not symmetric: given to it as it is, or copied in and out by
//! the caller.
//!
//! The memory is a `Vec` like any other, as users have it: where the allocator put it, on pages of the size
//! that the kernel gave.

use symmem::erased::Call;
use symmem::{Element, Group, Result, SymmetricMemory, tuning};

use super::case::{Case, Collective, ROOT};
use super::contender::Contender;
use super::ours::OurContender;
use crate::bench::lab::gather_words;

/// A collective on private memory of `T`.
pub(super) struct Private<T: Element> {
    /// For the barrier, which is the same for all of ours, and for its group.
    bell: SymmetricMemory<u64>,
    data: Vec<T>,
    out: Vec<T>,
    call: Option<Call<'static>>,
    algorithm: tuning::Algorithm,
}

impl<T: Element> Private<T> {
    /// Collective. Makes the memory for `case`.
    pub(super) fn open(group: &Group, case: &Case) -> Result<Self> {
        let (data, out) = buffers(group, case);
        // A handle as long knows what the group's table says.
        let handle = group.alloc::<T>(data.len())?.rendezvous(group)?;
        let goes_everywhere = case.op.row().is_some_and(|row| !row.root && !row.reduces);
        let algorithm = match handle.algorithm(tuning::Collective::Private)? {
            // It is for those in which everybody gives to everybody.
            tuning::Algorithm::Pull if !goes_everywhere => tuning::Algorithm::Pipelined,
            algorithm => algorithm,
        };
        handle.close()?;
        let bell = group.alloc::<u64>(1)?.rendezvous(group)?;
        Ok(Self { bell, data, out, call: case.call(group.size()), algorithm })
    }
}

fn buffers<T: Element>(group: &Group, case: &Case) -> (Vec<T>, Vec<T>) {
    let of = |elements| vec![T::zeroed(); elements];
    (of(case.input(group.size())), of(case.output(group.size())))
}

impl<T: Element> OurContender for Private<T> {
    fn algorithm(&self) -> String {
        self.algorithm.to_string()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.bell.close()
    }
}

impl<T: Element> Contender for Private<T> {
    fn rank(&self) -> usize {
        self.bell.rank()
    }

    fn ranks(&self) -> usize {
        self.bell.world_size()
    }

    fn input(&mut self, fill: &dyn Fn(&mut [u8])) -> Result<()> {
        fill(bytemuck::cast_slice_mut(&mut self.data));
        Ok(())
    }

    fn barrier(&mut self) -> Result<()> {
        self.bell.barrier(0)
    }

    fn operate(&mut self) -> Result<()> {
        let (group, data, out) = (self.bell.group(), &mut self.data, &mut self.out);
        // What has no elements is measured in symmetric memory only.
        let Some(call) = self.call else { return Ok(()) };
        match out.is_empty() {
            true => group.run_call(call, None, data),
            false => group.run_call(call, Some(data), out),
        }
    }

    fn output(&mut self, judge: &dyn Fn(&[u8]) -> bool) -> Result<bool> {
        Ok(judge(bytemuck::cast_slice(if self.out.is_empty() { &self.data } else { &self.out })))
    }

    fn gather(&mut self, words: &[u64]) -> Result<Vec<u64>> {
        gather_words(self.bell.group(), words)
    }
}

/// A collective on symmetric memory, with private memory copied in before and out after it, wherever it does
/// not itself write into private memory.
pub(super) struct ByHand<T: Element> {
    mem: SymmetricMemory<T>,
    data: Vec<T>,
    out: Vec<T>,
    case: Case,
    call: Option<Call<'static>>,
}

impl<T: Element> ByHand<T> {
    /// Collective. Makes the memory for `case`.
    pub(super) fn open(group: &Group, case: &Case) -> Result<Self> {
        let (data, out) = buffers(group, case);
        let mem = group.alloc::<T>(data.len())?.rendezvous(group)?;
        Ok(Self { mem, data, out, case: *case, call: case.call(group.size()) })
    }
}

impl<T: Element> OurContender for ByHand<T> {
    fn algorithm(&self) -> String {
        super::ours::algorithm(&self.mem, self.case.op)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.mem.close()
    }
}

impl<T: Element> Contender for ByHand<T> {
    fn rank(&self) -> usize {
        self.mem.rank()
    }

    fn ranks(&self) -> usize {
        self.mem.world_size()
    }

    fn input(&mut self, fill: &dyn Fn(&mut [u8])) -> Result<()> {
        fill(bytemuck::cast_slice_mut(&mut self.data));
        Ok(())
    }

    fn barrier(&mut self) -> Result<()> {
        self.mem.barrier(0)
    }

    fn operate(&mut self) -> Result<()> {
        let mem = &mut self.mem;
        let gives = self.case.op != Collective::Broadcast || mem.rank() == ROOT;
        if gives {
            mem.local_mut()?.copy_from_slice(&self.data);
        }
        super::ours::operate(mem, &mut self.out, self.call)?;
        // What the root of a broadcast has it had before.
        let takes = self.out.is_empty() && (self.case.op != Collective::Broadcast || mem.rank() != ROOT);
        if takes {
            self.data.copy_from_slice(&mem.local()?);
        }
        Ok(())
    }

    fn output(&mut self, judge: &dyn Fn(&[u8]) -> bool) -> Result<bool> {
        Ok(judge(bytemuck::cast_slice(if self.out.is_empty() { &self.data } else { &self.out })))
    }

    fn gather(&mut self, words: &[u64]) -> Result<Vec<u64>> {
        gather_words(self.mem.group(), words)
    }
}
