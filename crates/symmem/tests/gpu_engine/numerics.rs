//! All-reduce against the reference, bit by bit: every algorithm and form, type, world, size and offset;
//! nothing outside the message changes. Items 55 and 56 of the reference's list, and more.

use std::time::Instant;

use symmem::cuda::{Algorithm, Allocation, Buffer, Form, Settings, SymmetricMemory};
use symmem::{DType, ReduceOp, Result, bf16, f16};

use crate::stage::{PATIENCE, Rank, device, on_threads, settings};
use crate::trial::{Number, Pattern, Random};

/// Bytes of messages, as far as whole elements fit: one element, odd, beyond 8 KiB, large, larger and odd.
const SIZES: [usize; 5] = [4, 22, 8196, 128 << 10, (1 << 20) + 6];
/// Elements beside a message that must stay as they are.
const MARGIN: usize = 64;
/// What they are filled with.
const PAINT: u8 = 0x5a;

/// One message, the same on all ranks.
#[derive(Clone, Copy, Debug)]
struct Message {
    len: usize,
    op: ReduceOp,
    seed: u64,
}

/// Where a message lies in the allocation of a rank; ranks may differ.
type Place = fn(usize) -> usize;

const PLACES: [Place; 4] = [|_| 0, |_| 1, |_| 8, |rank| 3 + 5 * rank];

/// One rank's memory for messages of `T`.
struct Memory<T: Number> {
    allocation: Allocation<T>,
    /// A handle for each of [`PLACES`].
    handles: Vec<SymmetricMemory<T>>,
    input: Buffer<T>,
    output: Buffer<T>,
    len: usize,
}

impl<T: Number> Memory<T> {
    fn new(rank: &Rank) -> Result<Self> {
        let len = SIZES[4] / size_of::<T>() + MARGIN;
        let allocation = rank.engine.alloc::<T>(len)?;
        let at = |place: &Place| allocation.rendezvous_at(&rank.engine, place(rank.rank()));
        let handles = PLACES.iter().map(at).collect::<Result<_>>()?;
        let (input, output) = (Buffer::new(&rank.device, len)?, Buffer::new(&rank.device, len)?);
        Ok(Self { allocation, handles, input, output, len })
    }
}

/// What one rank lays out and finds.
struct Trial<'a, T: Number> {
    rank: &'a Rank,
    memory: &'a mut Memory<T>,
    message: Message,
    own: Pattern<T>,
    expected: Pattern<T>,
}

impl<'a, T: Number> Trial<'a, T> {
    fn new(rank: &'a Rank, memory: &'a mut Memory<T>, message: Message) -> Self {
        let all: Vec<Pattern<T>> =
            (0..rank.group.size()).map(|rank| Pattern::new(message.seed, rank, message.len)).collect();
        let expected = Pattern::reduced(message.op, &all);
        let own = all[rank.rank()].clone();
        Self { rank, memory, message, own, expected }
    }

    /// The whole buffer: paint, and the message from `start` on.
    fn painted(&self, start: Option<usize>) -> Vec<T> {
        let paint = bytemuck::pod_read_unaligned::<T>(&vec![PAINT; size_of::<T>()]);
        let mut all = vec![paint; self.memory.len];
        if let Some(start) = start {
            self.own.write(0, &mut all[start..start + self.message.len]);
        }
        all
    }

    /// Asserts that `found` is paint but for the result, from `start` on.
    fn check(&self, found: &[T], start: usize, what: &str) {
        let end = start + self.message.len;
        let message = self.message;
        if let Err(problem) = self.expected.check(0, &found[start..end]) {
            panic!("{what}, {message:?} of {}: {problem}", T::DTYPE);
        }
        let outside = [&found[..start], &found[end..]];
        for part in outside {
            let same = bytemuck::cast_slice::<T, u8>(part).iter().all(|byte| *byte == PAINT);
            assert!(same, "{what}, {message:?} of {}: bytes outside changed", T::DTYPE);
        }
    }

    /// One all-reduce of the message at place `which`.
    fn run(&mut self, form: Form, algorithm: Option<Algorithm>, which: usize) -> Result<()> {
        let stream = &self.rank.stream;
        let start = PLACES[which](self.rank.rank());
        let mut handle = self.memory.handles[which].slice(..self.message.len)?;
        if let Some(algorithm) = algorithm {
            handle = handle.using(algorithm);
        }
        let what = format!("rank {} {form} {algorithm:?} at {start}", self.rank.rank());
        let symmetric = self.painted((form != Form::Private).then_some(start));
        self.memory.allocation.write(&symmetric, stream)?;
        self.memory.input.write(&self.painted((form == Form::Private).then_some(which)), stream)?;
        self.memory.output.write(&self.painted(None), stream)?;
        let (op, len) = (self.message.op, self.message.len);
        let mut output = self.memory.output.as_slice_mut();
        let output = output.slice_mut(1..1 + len)?;
        match form {
            Form::InPlace => handle.all_reduce(op, stream)?,
            Form::Out => handle.all_reduce_out(op, output, stream)?,
            Form::Private => {
                let input = self.memory.input.as_slice().slice(which..which + len)?;
                handle.all_reduce_from(op, input, output, stream)?;
            }
        }
        self.rank.sync()?;
        let symmetric_after = self.memory.allocation.read(stream)?;
        match form {
            Form::InPlace => self.check(&symmetric_after, start, &what),
            _ => self.check(&self.memory.output.read(stream)?, 1, &what),
        }
        if form == Form::Out {
            let same =
                bytemuck::cast_slice::<T, u8>(&symmetric_after) == bytemuck::cast_slice::<T, u8>(&symmetric);
            assert!(same, "{what}: the input changed");
        }
        Ok(())
    }
}

/// Every way to reduce a message of `bytes`: the dispatcher's, and all that can be forced.
fn ways(rank: &Rank, form: Form, dtype: DType, bytes: usize) -> Vec<Option<Algorithm>> {
    let can = |algorithm: &Algorithm| rank.engine.using(*algorithm).plan(form, dtype, bytes).is_ok();
    [None].into_iter().chain(Algorithm::ALL.into_iter().filter(can).map(Some)).collect()
}

fn try_all<T: Number>(rank: &Rank, sizes: &[usize]) -> Result<()> {
    let mut memory = Memory::<T>::new(rank)?;
    let mut random = Random::new(rank.group.size() as u64);
    rank.ready()?;
    for (number, bytes) in sizes.iter().enumerate() {
        let op = if number % 2 == 0 { ReduceOp::Sum } else { ReduceOp::Avg };
        let len = (bytes / size_of::<T>()).max(1);
        let message = Message { len, op, seed: random.next() };
        let mut trial = Trial::new(rank, &mut memory, message);
        for form in Form::ALL {
            for algorithm in ways(rank, form, T::DTYPE, len * size_of::<T>()) {
                for which in 0..PLACES.len() {
                    trial.run(form, algorithm, which)?;
                }
            }
        }
    }
    rank.end()
}

/// All types on one engine.
pub(crate) fn try_types(rank: &Rank, sizes: &[usize]) -> Result<()> {
    try_all::<bf16>(rank, sizes)?;
    try_all::<f16>(rank, sizes)?;
    try_all::<f32>(rank, sizes)
}

#[test]
fn every_algorithm_gives_the_bits_of_the_reference_in_worlds_with_kernels_of_their_own() {
    if device().is_none() {
        return;
    }
    for world in [2, 4, 8] {
        on_threads(world, &settings(), |rank| try_types(rank, &SIZES));
    }
}

#[test]
fn every_algorithm_gives_the_bits_of_the_reference_in_other_worlds() {
    if device().is_none() {
        return;
    }
    for world in [1, 3, 5, 7] {
        on_threads(world, &settings(), |rank| try_types(rank, &SIZES[..4]));
        on_threads(world, &settings(), |rank| try_all::<bf16>(rank, &SIZES[4..]));
    }
}

/// What ranks on several devices run, as far as one device can show it.
#[test]
fn every_algorithm_gives_the_bits_of_the_reference_where_ranks_count_as_apart() {
    if device().is_none() {
        return;
    }
    let apart = Settings { apart: true, ..settings() };
    for world in [2, 3, 4] {
        on_threads(world, &apart, |rank| try_all::<bf16>(rank, &SIZES));
    }
}

#[test]
fn a_private_message_may_be_reduced_in_its_own_place() {
    if device().is_none() {
        return;
    }
    on_threads(3, &settings(), |rank| {
        let len = 70_001;
        let memory = rank.engine.alloc::<f32>(len)?.rendezvous(&rank.engine)?;
        let mut own = Buffer::<f32>::new(&rank.device, len)?;
        let all: Vec<Pattern<f32>> = (0..3).map(|rank| Pattern::new(7, rank, len)).collect();
        let expected = Pattern::reduced(ReduceOp::Sum, &all);
        rank.ready()?;
        for algorithm in [Algorithm::OneShot, Algorithm::TwoShot, Algorithm::TwoTrip] {
            own.write(&all[rank.rank()].to_vec(0, len), &rank.stream)?;
            let (address, device) = (own.device_ptr(), &rank.device);
            // SAFETY: the buffer outlives the operation, and only it uses the buffer.
            let input = unsafe { symmem::cuda::DeviceSlice::from_raw(address, len, device) }?;
            memory.using(algorithm).all_reduce_from(ReduceOp::Sum, input, &mut own, &rank.stream)?;
            rank.sync()?;
            expected.check(0, &own.read(&rank.stream)?).unwrap();
        }
        rank.end()
    });
}

#[test]
fn wrong_arguments_are_told_and_empty_messages_do_nothing() {
    if device().is_none() {
        return;
    }
    on_threads(2, &settings(), |rank| {
        let stream = &rank.stream;
        let memory = rank.engine.alloc::<f32>(1000)?.rendezvous(&rank.engine)?;
        let integers = rank.engine.alloc::<i32>(8)?.rendezvous(&rank.engine)?;
        let mut short = Buffer::<f32>::new(&rank.device, 999)?;
        rank.ready()?;
        let problem = |result: Result<()>, text: &str| {
            let error = result.expect_err(text).to_string();
            assert!(error.contains(text), "{error}");
        };
        problem(memory.all_reduce_out(ReduceOp::Sum, &mut short, stream), "999 elements");
        problem(memory.all_reduce(ReduceOp::Max, stream), "Hint: sum and avg");
        problem(memory.using(Algorithm::OneShot).all_reduce(ReduceOp::Sum, stream), "in place");
        let half = memory.slice(..500)?;
        // SAFETY: refused before anything is launched.
        let own = unsafe {
            symmem::cuda::DeviceSliceMut::from_raw(memory.peer_ptr(rank.rank())?, 500, &rank.device)
        }?;
        problem(half.all_reduce_out(ReduceOp::Sum, own, stream), "overlaps the symmetric memory");
        problem(integers.all_reduce(ReduceOp::Sum, stream), "i32 is not reduced");
        // Of no elements, on all ranks.
        memory.slice(3..3)?.all_reduce(ReduceOp::Sum, stream)?;
        memory.all_reduce(ReduceOp::Sum, stream)?;
        rank.end()
    });
}

#[test]
fn a_wrong_argument_of_one_rank_fails_all_ranks_at_once() {
    if device().is_none() {
        return;
    }
    for len in [999, 0] {
        on_threads(2, &settings(), |rank| {
            let memory = rank.engine.alloc::<f32>(1000)?.rendezvous(&rank.engine)?;
            let mut out = Buffer::<f32>::new(&rank.device, if rank.rank() == 0 { len } else { 1000 })?;
            rank.ready()?;
            let started = Instant::now();
            let launched = memory.all_reduce_out(ReduceOp::Sum, &mut out, &rank.stream);
            assert_eq!(launched.is_err(), rank.rank() == 0, "{launched:?}");
            let error = rank.sync().expect_err("the ranks disagree").to_string();
            assert!(started.elapsed() < PATIENCE / 2, "told at the deadline only: {error}");
            Ok(())
        });
    }
}

#[test]
fn the_plan_is_the_same_everywhere_and_can_be_seen() {
    if device().is_none() {
        return;
    }
    let plans = on_threads(2, &settings(), |rank| {
        let sizes = [2usize, 8 << 10, 2 << 20, 256 << 20];
        let plans = sizes.map(|bytes| rank.engine.plan(Form::Out, DType::BF16, bytes).unwrap());
        rank.end()?;
        Ok(plans)
    });
    assert_eq!(plans[0], plans[1]);
    assert_eq!(plans[0][0].algorithm, Algorithm::LowLatency);
    assert_eq!(plans[0][3].algorithm, Algorithm::OneShot);
    assert!(plans[0].iter().all(|plan| plan.grid >= 1 && plan.registers > 0));
}
