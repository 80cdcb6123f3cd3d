//! The limit of an all_reduce in place: a plain loop over one's own slice of everybody's memory, between two
//! exchanges of flags. What the library costs beside it is the price of everything else.

use symmem::{Group, Result, SymmetricMemory};

use super::contender::Contender;
use super::kernel::{Stores, sum_everywhere};
use crate::bench::futex::{Form, Lines};
use crate::bench::lab::gather_words;
use crate::bench::limit::{Limit, STRIDE};

/// Elements in a slice are a multiple of this, so that no two ranks write into one line.
const LINE: usize = 64;

/// The limit with one kind of stores.
pub(super) struct LimitReduce<'a> {
    mem: SymmetricMemory<f32>,
    flags: Limit<'a>,
    /// This rank's slice in everybody's memory.
    slices: Vec<*mut f32>,
    len: usize,
    stores: Stores,
}

impl<'a> LimitReduce<'a> {
    /// Works on all of `mem`, a handle that starts where its allocation does.
    pub(super) fn new(mem: SymmetricMemory<f32>, flags: Limit<'a>, stores: Stores) -> Self {
        assert_eq!(mem.offset(), 0);
        let lines = mem.len().div_ceil(LINE);
        let edge = |rank: usize| (lines * rank / mem.world_size() * LINE).min(mem.len());
        let (start, end) = (edge(mem.rank()), edge(mem.rank() + 1));
        // SAFETY: every rank's allocation has as many elements.
        let slice = |buffer: *mut u8| unsafe { buffer.cast::<f32>().add(start) };
        let slices = mem.base_ptrs().into_iter().map(slice).collect();
        Self { slices, len: end - start, mem, flags, stores }
    }
}

impl Contender for LimitReduce<'_> {
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
        self.flags.meet_all()
    }

    #[inline]
    fn operate(&mut self) -> Result<()> {
        self.flags.meet_all()?;
        // SAFETY: the slices are in range, start on a cache line, and are this rank's alone between the two
        // exchanges; nobody holds a borrow meanwhile.
        unsafe { sum_everywhere(&self.slices, self.len, self.stores) };
        self.flags.meet_all()
    }

    fn output(&mut self, judge: &dyn Fn(&[u8]) -> bool) -> Result<bool> {
        Ok(judge(bytemuck::cast_slice(&self.mem.local()?)))
    }

    fn gather(&mut self, words: &[u64]) -> Result<Vec<u64>> {
        gather_words(self.mem.group(), words)
    }
}

/// The library's barrier alone, to see what an operation costs above it.
pub(super) struct Meeting(pub(super) SymmetricMemory<f32>);

impl Contender for Meeting {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn ranks(&self) -> usize {
        self.0.world_size()
    }

    fn input(&mut self, _fill: &dyn Fn(&mut [u8])) -> Result<()> {
        Ok(())
    }

    fn barrier(&mut self) -> Result<()> {
        self.0.barrier(0)
    }

    fn operate(&mut self) -> Result<()> {
        self.0.barrier(0)
    }

    fn output(&mut self, _judge: &dyn Fn(&[u8]) -> bool) -> Result<bool> {
        Ok(true)
    }

    fn gather(&mut self, words: &[u64]) -> Result<Vec<u64>> {
        gather_words(self.0.group(), words)
    }
}

/// Collective. Memory for [`Telling`].
pub(in crate::bench) fn futex_memory(group: &Group) -> Result<SymmetricMemory<u64>> {
    group.alloc::<u64>(STRIDE * group.size())?.rendezvous(group)
}

/// Telling and being told by futex, to see what a rank that sleeps while it waits costs beside busy loops.
///
/// It carries no elements, but fills as many before each operation as who does: of two ranks on one core the
/// one waits while the other fills, and that is in the time of whoever is slower.
pub(in crate::bench) struct Telling<'a> {
    mem: &'a SymmetricMemory<u64>,
    lines: Lines<'a>,
    form: Form,
    filled: Vec<u8>,
}

impl<'a> Telling<'a> {
    /// In `mem`, which [`futex_memory`] made; fills `bytes`.
    pub(in crate::bench) fn new(mem: &'a SymmetricMemory<u64>, form: Form, bytes: usize) -> Self {
        Self { mem, lines: Lines::new(mem), form, filled: vec![0; bytes] }
    }
}

impl Contender for Telling<'_> {
    fn rank(&self) -> usize {
        self.mem.rank()
    }

    fn ranks(&self) -> usize {
        self.mem.world_size()
    }

    fn input(&mut self, fill: &dyn Fn(&mut [u8])) -> Result<()> {
        if !self.filled.is_empty() {
            fill(&mut self.filled);
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result<()> {
        self.lines.exchange()
    }

    fn operate(&mut self) -> Result<()> {
        match self.form {
            Form::PingPong => self.lines.ping_pong(),
            Form::Exchange => self.lines.exchange(),
        }
    }

    fn output(&mut self, _judge: &dyn Fn(&[u8]) -> bool) -> Result<bool> {
        Ok(true)
    }

    fn gather(&mut self, words: &[u64]) -> Result<Vec<u64>> {
        gather_words(self.mem.group(), words)
    }
}
