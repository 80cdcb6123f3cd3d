//! The library's collectives.

use symmem::erased::Call;
use symmem::{
    Allocation, Bool, DType, Element, Error, F8E4M3, F8E5M2, Group, Result, SymmetricMemory, bf16, f16,
    tuning,
};

use super::case::{Case, Collective};
use super::contender::Contender;
use super::private::{ByHand, Private};
use crate::args::Memory;
use crate::bench::lab::gather_words;
use crate::bench::signal;

/// A collective on symmetric memory of `T`.
pub(in crate::bench) struct Ours<T: Element> {
    mem: SymmetricMemory<T>,
    out: Vec<T>,
    case: Case,
    call: Option<Call<'static>>,
}

/// What the rest of the bench needs to know of it, whatever its elements are.
pub(in crate::bench) trait OurContender: Contender {
    /// The algorithm that runs.
    fn algorithm(&self) -> String;

    /// Collective. Gives the memory back.
    fn close(self: Box<Self>) -> Result<()>;
}

/// Collective. Makes what `case` needs, with its elements in `memory`.
pub(in crate::bench) fn open(group: &Group, case: &Case, memory: Memory) -> Result<Box<dyn OurContender>> {
    match case.dtype {
        DType::U8 => open_as::<u8>(group, case, memory),
        DType::I8 => open_as::<i8>(group, case, memory),
        DType::U16 => open_as::<u16>(group, case, memory),
        DType::I16 => open_as::<i16>(group, case, memory),
        DType::U32 => open_as::<u32>(group, case, memory),
        DType::I32 => open_as::<i32>(group, case, memory),
        DType::U64 => open_as::<u64>(group, case, memory),
        DType::I64 => open_as::<i64>(group, case, memory),
        DType::F8E4M3 => open_as::<F8E4M3>(group, case, memory),
        DType::F8E5M2 => open_as::<F8E5M2>(group, case, memory),
        DType::F16 => open_as::<f16>(group, case, memory),
        DType::BF16 => open_as::<bf16>(group, case, memory),
        DType::F32 => open_as::<f32>(group, case, memory),
        DType::F64 => open_as::<f64>(group, case, memory),
        DType::Bool => open_as::<Bool>(group, case, memory),
        other => {
            Err(Error::Invalid { what: "dtype".to_owned(), problem: format!("{other} is not measured") })
        }
    }
}

fn open_as<T: Element>(group: &Group, case: &Case, memory: Memory) -> Result<Box<dyn OurContender>> {
    Ok(match memory {
        _ if case.op == Collective::Signal => {
            let mem = group.alloc::<u64>(1)?.rendezvous(group)?;
            Box::new(Ours { mem, out: Vec::new(), case: *case, call: None })
        }
        Memory::Symmetric => {
            let memory = group.alloc::<T>(case.input(group.size()))?;
            Box::new(Ours::over(&memory, group, case)?)
        }
        Memory::Private => Box::new(Private::<T>::open(group, case)?),
        Memory::ByHand => Box::new(ByHand::<T>::open(group, case)?),
    })
}

/// The name of the algorithm that `op` runs on `mem`.
pub(super) fn algorithm<T: Element>(mem: &SymmetricMemory<T>, op: Collective) -> String {
    let named = op.name().parse::<tuning::Collective>();
    let Ok(collective) = named else { return signal::WAY.to_owned() };
    mem.algorithm(collective).map_or_else(|error| error.to_string(), |algorithm| algorithm.to_string())
}

/// `call` on `mem`, or a signal where there is none; who gets something out of it gets it in `out`, if it is
/// not in place.
#[inline]
pub(super) fn operate<T: Element>(
    mem: &mut SymmetricMemory<T>,
    out: &mut [T],
    call: Option<Call<'static>>,
) -> Result<()> {
    match call {
        Some(call) => mem.run_call(call, (!out.is_empty()).then_some(out)),
        None => signal::round_trip(mem),
    }
}

impl<T: Element> Ours<T> {
    /// Collective. `case` on `memory`.
    pub(in crate::bench) fn over(memory: &Allocation<T>, group: &Group, case: &Case) -> Result<Self> {
        let out = vec![T::zeroed(); case.output(group.size())];
        Ok(Self { mem: memory.rendezvous(group)?, out, case: *case, call: case.call(group.size()) })
    }

    /// The same by `algorithm`.
    pub(in crate::bench) fn using(&self, algorithm: tuning::Algorithm) -> Self {
        let (mem, out) = (self.mem.using(algorithm), self.out.clone());
        Self { mem, out, case: self.case, call: self.call }
    }
}

impl<T: Element> OurContender for Ours<T> {
    fn algorithm(&self) -> String {
        algorithm(&self.mem, self.case.op)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.mem.close()
    }
}

impl<T: Element> Contender for Ours<T> {
    fn rank(&self) -> usize {
        self.mem.rank()
    }

    fn ranks(&self) -> usize {
        self.mem.world_size()
    }

    fn input(&mut self, fill: &dyn Fn(&mut [u8])) -> Result<()> {
        fill(bytemuck::cast_slice_mut(&mut self.mem.local_mut()?));
        Ok(())
    }

    fn barrier(&mut self) -> Result<()> {
        self.mem.barrier(0)
    }

    fn operate(&mut self) -> Result<()> {
        operate(&mut self.mem, &mut self.out, self.call)
    }

    fn output(&mut self, judge: &dyn Fn(&[u8]) -> bool) -> Result<bool> {
        if self.out.is_empty() {
            return Ok(judge(bytemuck::cast_slice(&self.mem.local()?)));
        }
        Ok(judge(bytemuck::cast_slice(&self.out)))
    }

    fn gather(&mut self, words: &[u64]) -> Result<Vec<u64>> {
        gather_words(self.mem.group(), words)
    }
}
