//! One rank's part in the trials: a group, memory of every element type on it, and the calls.

use std::fmt;
use std::time::Duration;

use symmem::{
    Allocation, Bool, DType, Error, F8E4M3, F8E5M2, Group, ReduceOp, Result, Strided, SymmetricMemory, bf16,
    f16,
};

use super::pattern::same;
use super::{Case, Kind, Number, Pattern, Random};

/// How long a call may take before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(20);
/// Elements around what a call may touch.
const GUARDS: usize = 64;

/// What can come of a call that does not come out right.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The library said so.
    Failed(Error),
    /// It did not, and something is wrong.
    Wrong(String),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<String> for Trouble {
    fn from(problem: String) -> Self {
        Self::Wrong(problem)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::Wrong(problem) => problem.fmt(f),
        }
    }
}

/// A group with memory of some element types.
pub(crate) struct Stage {
    group: Group,
    /// By number of the type.
    actors: Vec<Option<Box<dyn Actor>>>,
}

impl Stage {
    /// Collective. Memory of every type for calls on at most `bytes` bytes.
    pub(crate) fn new(group: &Group, bytes: usize) -> Result<Self> {
        Self::of(group, bytes, &DType::ALL)
    }

    /// Collective. Memory of these types only, which is made sooner.
    pub(crate) fn of(group: &Group, bytes: usize, dtypes: &[DType]) -> Result<Self> {
        let group = group.within(PATIENCE);
        let actor = |dtype: &DType| dtypes.contains(dtype).then(|| actor(*dtype, &group, bytes)).transpose();
        let actors = DType::ALL.iter().map(actor).collect::<Result<_>>()?;
        Ok(Self { group, actors })
    }

    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    /// Collective. Does what `case` says and panics unless it comes out right, guards included.
    pub(crate) fn act(&mut self, case: &Case) {
        if let Err(problem) = self.try_act(case) {
            let (rank, world) = (self.group.rank(), self.group.size());
            panic!("rank {rank} of {world}, {}: {case:?}: {problem}", self.group.name());
        }
    }

    /// Collective. As [`Stage::act`], for those who expect an error.
    pub(crate) fn try_act(&mut self, case: &Case) -> Result<(), Trouble> {
        let actor = self.actors[case.dtype as usize].as_mut().expect("memory of that type");
        actor.act(&self.group, case)
    }

    /// Collective. Ends the use of the memory.
    pub(crate) fn close(self) -> Result<()> {
        self.actors.into_iter().flatten().try_for_each(|actor| actor.close())
    }
}

/// What a [`Memory`] of any element type does.
trait Actor {
    fn act(&mut self, group: &Group, case: &Case) -> Result<(), Trouble>;
    fn close(self: Box<Self>) -> Result<()>;
}

fn actor(dtype: DType, group: &Group, bytes: usize) -> Result<Box<dyn Actor>> {
    Ok(match dtype {
        DType::U8 => Box::new(Memory::<u8>::new(group, bytes)?),
        DType::I8 => Box::new(Memory::<i8>::new(group, bytes)?),
        DType::U16 => Box::new(Memory::<u16>::new(group, bytes)?),
        DType::I16 => Box::new(Memory::<i16>::new(group, bytes)?),
        DType::U32 => Box::new(Memory::<u32>::new(group, bytes)?),
        DType::I32 => Box::new(Memory::<i32>::new(group, bytes)?),
        DType::U64 => Box::new(Memory::<u64>::new(group, bytes)?),
        DType::I64 => Box::new(Memory::<i64>::new(group, bytes)?),
        DType::F8E4M3 => Box::new(Memory::<F8E4M3>::new(group, bytes)?),
        DType::F8E5M2 => Box::new(Memory::<F8E5M2>::new(group, bytes)?),
        DType::F16 => Box::new(Memory::<f16>::new(group, bytes)?),
        DType::BF16 => Box::new(Memory::<bf16>::new(group, bytes)?),
        DType::F32 => Box::new(Memory::<f32>::new(group, bytes)?),
        DType::F64 => Box::new(Memory::<f64>::new(group, bytes)?),
        DType::Bool => Box::new(Memory::<Bool>::new(group, bytes)?),
        other => unreachable!("{other} has no reference"),
    })
}

/// One allocation, all of it guards between calls, and two handles of it.
struct Memory<T: Number> {
    block: Allocation<T>,
    handles: [SymmetricMemory<T>; 2],
    guard: T,
}

impl<T: Number> Memory<T> {
    fn new(group: &Group, bytes: usize) -> Result<Self> {
        let mut block = group.alloc::<T>(bytes / size_of::<T>() + 3 * GUARDS)?;
        let guard = T::any(&mut Random::new(group.rank() as u64));
        block.fill(guard)?;
        // Offsets differ by rank, type and handle, odd ones among them.
        let start = (group.rank() * 5 + T::DTYPE as usize * 3) % GUARDS;
        let handle = |offset| block.rendezvous_at(group, offset);
        let handles = [handle(start)?, handle(GUARDS + group.rank())?];
        Ok(Self { block, handles, guard })
    }

    /// Checks the elements around those of the call, and makes all of them guards again.
    fn check_guards(&mut self, window: std::ops::Range<usize>) -> Result<(), Trouble> {
        let mut all = self.block.local_mut()?;
        all[window.clone()].fill(self.guard);
        let around = window.start.saturating_sub(GUARDS)..(window.end + GUARDS).min(all.len());
        Ok(check_guards(self.guard, &all[around])?)
    }
}

fn check_guards<T: Number>(guard: T, found: &[T]) -> Result<(), String> {
    same(&vec![guard; found.len()], found).map_err(|(at, what)| format!("guard {at}: {what}"))
}

impl<T: Number> Actor for Memory<T> {
    fn act(&mut self, group: &Group, case: &Case) -> Result<(), Trouble> {
        let inputs: Vec<_> = (0..group.size()).map(|rank| Pattern::new(case.seed, rank, case.len)).collect();
        let part = Part { case, inputs, guard: self.guard, rank: group.rank(), world: group.size() };
        if case.kind.is_private() {
            return part.act_on_private(group);
        }
        let handle = &self.handles[case.handle];
        let handle = match case.algorithm {
            Some(algorithm) => handle.using(algorithm),
            None => handle.within(PATIENCE),
        };
        let mut memory = handle.slice(..case.len)?;
        part.inputs[part.rank].write(0, &mut memory.local_mut()?);
        match memory.algorithm(case.kind.collective()) {
            Ok(_) => part.act(&mut memory)?,
            Err(told) => part.act_in_vain(&mut memory, &told)?,
        }
        let start = memory.offset();
        drop(memory);
        self.check_guards(start..start + case.len)
    }

    fn close(self: Box<Self>) -> Result<()> {
        let [first, second] = self.handles;
        drop(second);
        first.close()
    }
}

/// One rank's part in one call.
struct Part<'a, T> {
    case: &'a Case,
    inputs: Vec<Pattern<T>>,
    guard: T,
    rank: usize,
    world: usize,
}

impl<T: Number> Part<'_, T> {
    fn reduced(&self) -> Pattern<T> {
        Pattern::reduced(self.case.op, &self.inputs)
    }

    /// The reduction of the ranks up to this one.
    fn scanned(&self) -> Pattern<T> {
        Pattern::reduced(self.case.op, &self.inputs[..=self.rank])
    }

    /// How many elements each rank has: up to as many as the case has, which one of them has; sometimes all
    /// have as many.
    fn counts(&self) -> Vec<usize> {
        let mut random = Random::new(self.case.seed ^ 0x5eed);
        let all_alike = random.below(4) == 0;
        let (most, whole) = (self.case.len, random.below(self.world));
        let count = |rank| if all_alike || rank == whole { most } else { random.below(most + 1) };
        (0..self.world).map(count).collect()
    }

    /// How the elements of one rank are divided among all; sometimes evenly.
    fn parts(&self) -> Vec<usize> {
        let (len, world) = (self.case.len, self.world);
        match len.is_multiple_of(world) && self.case.seed.is_multiple_of(3) {
            true => vec![len / world; world],
            false => splits(self.case.seed, 0, len, world),
        }
    }

    /// Whether `out` is everybody's elements, packed.
    fn is_packed(&self, counts: &[usize], out: &[T]) -> Result<(), String> {
        let mut rest = out;
        counts.iter().zip(&self.inputs).try_for_each(|(count, input)| {
            let (part, after) = rest.split_at(*count);
            rest = after;
            input.check(0, part)
        })
    }

    /// Whether `out` is the reduction of the ranks before this one; of none, what changes no value.
    fn is_scanned_before(&self, out: &[T]) -> Result<(), String> {
        let op = self.case.op;
        if self.rank > 0 {
            return Pattern::reduced(op, &self.inputs[..self.rank]).check(0, out);
        }
        let mut random = Random::new(self.case.seed);
        let bytes = |value: T| bytemuck::bytes_of(&value).to_vec();
        let changes = |none: T| match op {
            // Not even -0.0 changes when a zero is added, but into +0.0.
            ReduceOp::Sum => bytes(none).iter().any(|byte| *byte != 0),
            _ => (0..9)
                .map(|_| T::any(&mut random))
                .any(|value| bytes(T::reduce(op, &[none, value])) != bytes(T::reduce(op, &[value]))),
        };
        match out.first().copied().is_some_and(changes) {
            true => Err(format!("{:02x?} changes what it is reduced with", bytes(out[0]))),
            false => same(&vec![*out.first().unwrap_or(&T::zeroed()); out.len()], out)
                .map_err(|(at, what)| format!("element {at}: {what}")),
        }
    }

    fn act(&self, memory: &mut SymmetricMemory<T>) -> Result<(), Trouble> {
        let Case { kind, op, root, len, .. } = *self.case;
        let (rank, world) = (self.rank, self.world);
        let chunk = len / world;
        // What the memory is afterwards.
        let mut memory_after = &self.inputs[rank];
        let reduced;
        match kind {
            Kind::AllReduce => {
                memory.all_reduce(op)?;
                reduced = self.reduced();
                memory_after = &reduced;
            }
            Kind::Broadcast => {
                memory.broadcast(root)?;
                memory_after = &self.inputs[root];
            }
            Kind::AllReduceOut => {
                self.with_output(
                    len,
                    |out| memory.all_reduce_out(op, out),
                    |out| self.reduced().check(0, out),
                )?;
            }
            Kind::Scan => {
                self.with_output(len, |out| memory.scan(op, out), |out| self.scanned().check(0, out))?;
            }
            Kind::ExclusiveScan => {
                let right = |out: &[T]| self.is_scanned_before(out);
                self.with_output(len, |out| memory.exclusive_scan(op, out), right)?;
            }
            Kind::AllGatherV => {
                let counts = self.counts();
                let right = |out: &[T]| self.is_packed(&counts, out);
                self.with_output(counts.iter().sum(), |out| memory.all_gather_v(&counts, out), right)?;
            }
            Kind::GatherV => {
                let counts = self.counts();
                let right = |out: &[T]| match rank == root {
                    true => self.is_packed(&counts, out),
                    false => check_guards(self.guard, out),
                };
                let len = if rank == root { counts.iter().sum() } else { 5 };
                self.with_output(len, |out| memory.gather_v(root, &counts, out), right)?;
            }
            Kind::ScatterV => {
                let counts = self.parts();
                let right = |out: &[T]| self.inputs[root].check(counts[..rank].iter().sum(), out);
                self.with_output(counts[rank], |out| memory.scatter_v(root, &counts, out), right)?;
            }
            Kind::Reduce if rank == root => {
                self.with_output(
                    len,
                    |out| memory.reduce(op, root, out),
                    |out| self.reduced().check(0, out),
                )?;
            }
            Kind::Reduce => {
                let kept = |out: &[T]| check_guards(self.guard, out);
                self.with_output(len, |out| memory.reduce(op, root, out), kept)?;
            }
            Kind::ReduceScatter => {
                let right = |out: &[T]| self.reduced().check(rank * chunk, out);
                self.with_output(chunk, |out| memory.reduce_scatter(op, out), right)?;
            }
            Kind::AllGather => {
                let right = |out: &[T]| {
                    (0..world).try_for_each(|rank| self.inputs[rank].check(0, &out[rank * len..][..len]))
                };
                self.with_output(len * world, |out| memory.all_gather(out), right)?;
            }
            Kind::AllToAll => {
                let right = |out: &[T]| {
                    let from = |rank: usize| &out[rank * chunk..][..chunk];
                    (0..world).try_for_each(|peer| self.inputs[peer].check(rank * chunk, from(peer)))
                };
                self.with_output(len, |out| memory.all_to_all(out), right)?;
            }
            _ => unreachable!("has no handle"),
        }
        let local = memory.local()?;
        Ok(memory_after.check(0, &local).map_err(|problem| format!("the memory afterwards: {problem}"))?)
    }

    /// The call by an algorithm that cannot carry it, as `told`: the call says the same, and the memory is
    /// what it was.
    fn act_in_vain(&self, memory: &mut SymmetricMemory<T>, told: &Error) -> Result<(), Trouble> {
        match self.act(memory) {
            Err(Trouble::Failed(error @ Error::Invalid { .. })) if error.to_string() == told.to_string() => {}
            Err(other) => return Err(other),
            Ok(()) => return Err(format!("it was carried, in spite of: {told}").into()),
        }
        let kept = self.inputs[self.rank].check(0, &memory.local()?);
        Ok(kept.map_err(|problem| format!("refused, and changed: {problem}"))?)
    }

    fn act_on_private(&self, group: &Group) -> Result<(), Trouble> {
        let Case { kind, op, len, root, .. } = *self.case;
        let input = &self.inputs[self.rank];
        let (at_root, chunk) = (self.rank == root, len / self.world);
        let right = |out: &[T]| self.reduced().check(0, out);
        let kept = |out: &[T]| check_guards(self.guard, out);
        let elements = || input.to_vec(0, len);
        match kind {
            Kind::Private => {
                let call = |out: &mut [T]| {
                    input.write(0, out);
                    group.all_reduce(op, out)
                };
                self.with_output(len, call, right)
            }
            Kind::PrivateOut => {
                self.with_output(len, |out| group.all_reduce_out(op, &elements(), out), right)
            }
            Kind::PrivateStrided => {
                self.with_output(len, |out| all_reduce_strided(group, op, input, out), right)
            }
            Kind::PrivateReduce => {
                let call = |out: &mut [T]| {
                    input.write(0, out);
                    group.reduce(op, root, out)
                };
                let right = |out: &[T]| if at_root { right(out) } else { input.check(0, out) };
                self.with_output(len, call, right)
            }
            Kind::PrivateReduceOut => {
                let right = |out: &[T]| if at_root { right(out) } else { kept(out) };
                let len = if at_root { len } else { 7 };
                self.with_output(len, |out| group.reduce_out(op, root, &elements(), out), right)
            }
            Kind::PrivateReduceScatter => {
                let right = |out: &[T]| self.reduced().check(self.rank * chunk, out);
                self.with_output(chunk, |out| group.reduce_scatter(op, &elements(), out), right)
            }
            Kind::PrivateScan => {
                let right = |out: &[T]| self.scanned().check(0, out);
                self.with_output(len, |out| group.scan(op, &elements(), out), right)
            }
            Kind::PrivateExclusiveScan => {
                let right = |out: &[T]| self.is_scanned_before(out);
                self.with_output(len, |out| group.exclusive_scan(op, &elements(), out), right)
            }
            _ => self.move_private(group),
        }
    }

    /// The private collectives that do not reduce.
    fn move_private(&self, group: &Group) -> Result<(), Trouble> {
        let Case { kind, len, root, seed, .. } = *self.case;
        let (rank, world, inputs) = (self.rank, self.world, &self.inputs);
        let (at_root, chunk) = (rank == root, len / world);
        let elements = || inputs[rank].to_vec(0, len);
        let gathered =
            |out: &[T]| (0..world).try_for_each(|rank| inputs[rank].check(0, &out[rank * len..][..len]));
        match kind {
            Kind::PrivateAllGather => {
                self.with_output(len * world, |out| group.all_gather_into(&elements(), out), gathered)
            }
            Kind::PrivateAllGatherV => {
                let counts = self.counts();
                let input = inputs[rank].to_vec(0, counts[rank]);
                let right = |out: &[T]| self.is_packed(&counts, out);
                let call = |out: &mut [T]| group.all_gather_v(&input, &counts, out);
                self.with_output(counts.iter().sum(), call, right)
            }
            Kind::PrivateGatherV => {
                let counts = self.counts();
                let input = inputs[rank].to_vec(0, counts[rank]);
                let right = |out: &[T]| match at_root {
                    true => self.is_packed(&counts, out),
                    false => check_guards(self.guard, out),
                };
                let len = if at_root { counts.iter().sum() } else { 5 };
                self.with_output(len, |out| group.gather_v(root, &input, &counts, out), right)
            }
            Kind::PrivateScatterV => {
                let counts = self.parts();
                let input = if at_root { elements() } else { Vec::new() };
                let right = |out: &[T]| inputs[root].check(counts[..rank].iter().sum(), out);
                self.with_output(counts[rank], |out| group.scatter_v(root, &input, &counts, out), right)
            }
            Kind::PrivateBroadcast => {
                let call = |out: &mut [T]| {
                    inputs[rank].write(0, out);
                    group.broadcast_into(root, out)
                };
                self.with_output(len, call, |out| inputs[root].check(0, out))
            }
            Kind::PrivateAllToAll => {
                let from =
                    |out: &[T], peer: usize| inputs[peer].check(rank * chunk, &out[peer * chunk..][..chunk]);
                let right = |out: &[T]| (0..world).try_for_each(|peer| from(out, peer));
                self.with_output(len, |out| group.all_to_all(&elements(), out), right)
            }
            Kind::PrivateAllToAllV => {
                let splits: Vec<_> = (0..world).map(|rank| splits(seed, rank, len, world)).collect();
                let receives: Vec<_> = splits.iter().map(|splits| splits[rank]).collect();
                let call = |out: &mut [T]| group.all_to_all_v(&elements(), &splits[rank], out, &receives);
                let right = |out: &[T]| {
                    let mut at = 0;
                    (0..world).try_for_each(|peer| {
                        let start = splits[peer][..rank].iter().sum();
                        let found = &out[at..at + receives[peer]];
                        at += receives[peer];
                        inputs[peer].check(start, found)
                    })
                };
                self.with_output(receives.iter().sum(), call, right)
            }
            Kind::PrivateGather if at_root => {
                self.with_output(len * world, |out| group.gather(root, &elements(), out), gathered)
            }
            Kind::PrivateGather => {
                let kept = |out: &[T]| check_guards(self.guard, out);
                self.with_output(5, |out| group.gather(root, &elements(), out), kept)
            }
            _ => {
                let input = if at_root { elements() } else { Vec::new() };
                let right = |out: &[T]| inputs[root].check(rank * chunk, out);
                self.with_output(chunk, |out| group.scatter(root, &input, out), right)
            }
        }
    }

    /// Gives `call` an output of `len` elements, lets `right` judge it, and looks at what is around it.
    fn with_output(
        &self,
        len: usize,
        call: impl FnOnce(&mut [T]) -> Result<()>,
        right: impl FnOnce(&[T]) -> Result<(), String>,
    ) -> Result<(), Trouble> {
        let mut all = vec![self.guard; len + 2 * GUARDS];
        call(&mut all[GUARDS..GUARDS + len])?;
        right(&all[GUARDS..GUARDS + len]).map_err(|problem| format!("the output: {problem}"))?;
        check_guards(self.guard, &all[..GUARDS])?;
        Ok(check_guards(self.guard, &all[GUARDS + len..])?)
    }
}

/// An all_reduce of `input`, laid out as three columns where that comes out even, else with holes.
fn all_reduce_strided<T: Number>(
    group: &Group,
    op: ReduceOp,
    input: &Pattern<T>,
    out: &mut [T],
) -> Result<()> {
    let len = out.len();
    let elements = input.to_vec(0, len);
    let (shape, strides) = match len.is_multiple_of(3) {
        true => (vec![len / 3, 3], vec![1, len / 3]),
        false => (vec![len], vec![2]),
    };
    let mut data = vec![T::zeroed(); 2 * len];
    for (index, element) in elements.into_iter().enumerate() {
        let at = if strides.len() == 2 { index / 3 + index % 3 * strides[1] } else { 2 * index };
        data[at] = element;
    }
    group.all_reduce_strided(op, Strided::new(&data, &shape, &strides)?, out)
}

/// How `rank` divides its `len` elements among all: anything, often nothing for some.
fn splits(seed: u64, rank: usize, len: usize, world: usize) -> Vec<usize> {
    let mut random = Random::new(seed ^ (rank as u64 + 7) << 40);
    let mut edges: Vec<usize> = (1..world).map(|_| random.below(len + 1)).collect();
    if random.below(3) == 0 {
        edges.fill(random.below(len + 1));
    }
    edges.sort_unstable();
    let starts = [0].into_iter().chain(edges.clone());
    starts.zip(edges.iter().copied().chain([len])).map(|(start, end)| end - start).collect()
}
