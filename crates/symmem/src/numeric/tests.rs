//! Every kernel against the reference, bit by bit; and the reference against the contract.

#![allow(unsafe_code, reason = "kernels over raw elements")]

use half::{bf16, f16};

use super::dispatch::Isa;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
use super::environment::control;
use super::op::check;
use super::testing::{Random, special_f32};
use super::{DType, F8E4M3, F8E5M2, ReduceKernel, ReduceOp};
use crate::sys::copy::Stores;

/// Bytes that must not change lie around every buffer.
const GUARD: usize = 64;
const POISON: u8 = 0xa5;

/// A buffer at a given offset from a cache line, with guards.
struct Buffer {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Buffer {
    fn new(bytes: usize, offset: usize) -> Self {
        let mut memory = vec![POISON; bytes + 4 * GUARD];
        let base = memory.as_mut_ptr().addr();
        let start = GUARD + (base + GUARD).next_multiple_of(64) - (base + GUARD) + offset;
        Self { memory, start, bytes }
    }

    fn data(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }

    fn pointer(&mut self) -> *mut u8 {
        // SAFETY: within the memory.
        unsafe { self.memory.as_mut_ptr().add(self.start) }
    }

    fn is_guarded(&self) -> bool {
        let (before, rest) = self.memory.split_at(self.start);
        before.iter().chain(&rest[self.bytes..]).all(|&byte| byte == POISON)
    }
}

/// An element of the type, special in half of the cases.
fn element(dtype: DType, random: &mut Random, specials: &[f32]) -> [u8; 8] {
    let any = random.next_u64();
    if !dtype.is_float() || any.is_multiple_of(2) {
        // Small integers as well, so that averages and products do not always wrap; and the ends of the
        // range.
        let any = random.next_u64();
        return match any % 4 {
            _ if dtype == DType::Bool => (any >> 8) & (any >> 16) & 3,
            0 => any >> 8,
            1 => (any >> 8) % 17,
            2 => u64::MAX << ((any >> 8) % 64),
            _ => (any >> 8) ^ (any << 32),
        }
        .to_le_bytes();
    }
    let value = specials[random.below(specials.len())];
    match dtype {
        DType::F64 if any % 4 == 1 => ((value.to_bits() as u64) << 32).to_le_bytes(),
        _ => float(dtype, value),
    }
}

/// A number of which all that an f32 could have is normal, with one of a few exponents from `lowest` on.
fn ordinary(dtype: DType, random: &mut Random, lowest: usize) -> [u8; 8] {
    let any = random.next_u64() as u32;
    let exponent = (lowest + random.below(9)) as u32;
    float(dtype, f32::from_bits(any & 0x807f_ffff | exponent << 23))
}

/// The nearest number of the type.
fn float(dtype: DType, value: f32) -> [u8; 8] {
    let mut bytes = [0; 8];
    match dtype {
        DType::F64 => bytes = f64::from(value).to_le_bytes(),
        DType::F32 => bytes[..4].copy_from_slice(&value.to_le_bytes()),
        DType::F16 => bytes[..2].copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        DType::BF16 => bytes[..2].copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        DType::F8E4M3 => bytes[0] = F8E4M3::from_f32(value).to_bits(),
        _ => bytes[0] = F8E5M2::from_f32(value).to_bits(),
    }
    bytes
}

/// What the ranks have.
#[derive(Clone, Copy, Debug)]
enum Values {
    /// Special ones, in half of the cases.
    Special,
    /// [`Ordinary`](ordinary) ones, but for a few in 128.
    Ordinary { lowest: usize, but: usize },
}

/// One comparison.
#[derive(Debug)]
struct Case {
    len: usize,
    values: Values,
    world: usize,
    /// For source `i`: `(offset + i * step) % 64`.
    offset: usize,
    step: usize,
    /// How many results go to sources, and how many elsewhere.
    in_place: usize,
    elsewhere: usize,
    stores: Stores,
}

fn compare(dtype: DType, op: ReduceOp, isa: Isa, case: &Case, random: &mut Random) {
    let size = dtype.size();
    let bytes = case.len * size;
    let offset = |i: usize| (case.offset + i * case.step) % 64;
    let mut srcs: Vec<Buffer> = (0..case.world).map(|rank| Buffer::new(bytes, offset(rank))).collect();
    let specials: Vec<f32> = special_f32().collect();
    let pick = |i: usize| match case.values {
        Values::Ordinary { lowest, but } if i >= but => ordinary(dtype, random, lowest),
        _ => element(dtype, random, &specials),
    };
    let pool: Vec<[u8; 8]> = (0..128).map(pick).collect();
    for src in &mut srcs {
        // Any element of one rank meets any of another.
        let (start, step) = (random.below(pool.len()), 2 * random.below(pool.len()) + 1);
        for (i, cell) in src.data().chunks_exact_mut(size).enumerate() {
            cell.copy_from_slice(&pool[(start + i * step) % pool.len()][..size]);
        }
    }
    let untouched: Vec<Vec<u8>> = srcs.iter_mut().map(|src| src.data().to_vec()).collect();
    let mut dsts: Vec<Buffer> =
        (0..case.elsewhere).map(|i| Buffer::new(bytes, offset(case.world + i))).collect();
    let mut expected = Buffer::new(bytes, 0);
    let from: Vec<*const u8> = srcs.iter_mut().map(|src| src.pointer().cast_const()).collect();
    // The last ranks are the ones in place, so that a kernel that writes too early is caught.
    let places = from.iter().rev().take(case.in_place).map(|src| src.cast_mut());
    let to: Vec<*mut u8> = places.chain(dsts.iter_mut().map(Buffer::pointer)).collect();
    let reference = ReduceKernel::for_isa(dtype, op, Isa::Scalar).unwrap();
    let kernel = ReduceKernel::for_isa(dtype, op, isa).unwrap();
    assert_eq!(kernel.isa(), isa);
    // SAFETY: all buffers are alive, of that size, and destinations are sources or overlap none.
    unsafe {
        reference.reduce(expected.pointer(), &from, case.len);
        kernel.reduce_to_many(&to, &from, case.len, case.stores);
    }
    let place = format!("{op} of {dtype} by {isa:?}, {case:?}");
    for (rank, src) in srcs.iter_mut().enumerate() {
        let changed = rank + case.in_place >= case.world;
        let wanted = if changed { expected.data() } else { &untouched[rank][..] };
        assert!(src.is_guarded() && src.data() == wanted, "source {rank}: {place}");
    }
    for dst in &mut dsts {
        assert!(dst.is_guarded() && dst.data() == expected.data(), "{place}");
    }
}

/// Those with code of their own for the type that this processor has, the reference first.
fn isas(dtype: DType) -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(move |isa| isa.own_code(dtype) == *isa).filter(|isa| {
        let available = isa.is_available();
        if !available {
            println!("skipped: {isa:?}: this processor does not have it");
        }
        available
    })
}

fn kernels() -> impl Iterator<Item = (DType, ReduceOp, Isa)> {
    let isas = |dtype| isas(dtype).skip(1);
    let ops = |dtype| ReduceOp::ALL.into_iter().filter(move |&op| check(op, dtype).is_ok());
    DType::ALL
        .into_iter()
        .flat_map(move |dtype| ops(dtype).flat_map(move |op| isas(dtype).map(move |isa| (dtype, op, isa))))
}

fn every_kernel(mut cases: impl FnMut(&mut Random, DType) -> Vec<Case>) {
    let mut random = Random::new(4);
    for (dtype, op, isa) in kernels() {
        for case in cases(&mut random, dtype) {
            compare(dtype, op, isa, &case, &mut random);
        }
    }
}

fn random_case(random: &mut Random, len: usize) -> Case {
    let world = 1 + random.below(9);
    let in_place = random.below(world + 1);
    Case {
        len,
        values: Values::Special,
        world,
        offset: random.below(64),
        step: random.below(64),
        in_place,
        elsewhere: if in_place == 0 { 1 + random.below(3) } else { random.below(2) },
        stores: Stores::Cached,
    }
}

#[test]
fn ragged_lengths() {
    // Up to a unit and more; and around whole numbers of the largest unit.
    let lens = || (0..=200).chain(250..=262).chain([319, 511, 512, 513, 769]);
    every_kernel(|random, _| lens().map(|len| random_case(random, len)).collect());
}

#[test]
fn two_ranks_at_every_offset() {
    every_kernel(|random, _| {
        let case = |offset| {
            let in_place = random.below(3);
            let elsewhere = if in_place == 0 { 1 + random.below(2) } else { 0 };
            let len = random.below(if offset % 2 == 0 { 150 } else { 600 });
            Case {
                len,
                world: 2,
                offset,
                step: random.below(2),
                in_place,
                elsewhere,
                ..random_case(random, len)
            }
        };
        (0..64).map(case).collect()
    });
}

#[test]
fn every_world_size() {
    every_kernel(|random, _| {
        (1..=9).map(|world| Case { world, in_place: world, ..random_case(random, 390) }).collect()
    });
}

#[test]
fn more_than_a_block() {
    every_kernel(|random, dtype| {
        // A block of accumulators, and one more than two of them.
        let accumulator = if dtype.is_float() { dtype.size().max(4) } else { dtype.size() };
        let block = 4096 / accumulator;
        let case = |len| Case { world: 3, in_place: 2, ..random_case(random, len) };
        [block, 2 * block + 1].map(case).into()
    });
}

#[test]
fn seventeen_ranks() {
    every_kernel(|random, _| vec![Case { world: 17, in_place: 1, elsewhere: 1, ..random_case(random, 301) }]);
}

#[test]
fn streamed_results() {
    every_kernel(|random, dtype| {
        let streaming = |case| Case { stores: Stores::Streaming, ..case };
        let ragged = streaming(random_case(random, 517));
        // All destinations equally far from a cache line.
        let even = |(offset, len)| Case { offset, step: 0, ..streaming(random_case(random, len)) };
        let size = dtype.size();
        let offsets =
            [(0, 1031), (0, 3), (16, 1031), (64 - size, 517), (8, 2), (size, 64 / size), (size - 1, 300)];
        offsets.into_iter().map(even).chain([ragged]).collect()
    });
}

/// Where a whole unit is ordinary, some kernels take a shorter way. So here are such units beside those with
/// something special in a place or two; and sums of ordinary numbers that are subnormal or infinite.
#[test]
fn few_special_values() {
    let lowest = [1, 105, 120, 246];
    every_kernel(|random, dtype| {
        if !dtype.is_float() || dtype.size() == 1 {
            return Vec::new();
        }
        let cases = (1..=9).flat_map(|world| lowest.map(|lowest| (world, lowest)));
        let mut case = |(world, lowest), stores| {
            let values = Values::Ordinary { lowest, but: random.below(3) };
            let in_place = random.below(world + 1);
            let len = 300 + random.below(400);
            Case { values, world, in_place, elsewhere: 1, step: 0, stores, ..random_case(random, len) }
        };
        cases.flat_map(|at| [Stores::Cached, Stores::Streaming].map(|stores| case(at, stores))).collect()
    });
}

#[test]
fn a_thousand_ranks() {
    let mut random = Random::new(5);
    for (dtype, op) in [(DType::BF16, ReduceOp::Avg), (DType::I8, ReduceOp::Avg), (DType::F32, ReduceOp::Max)]
    {
        let case = Case { world: 1024, in_place: 1024, elsewhere: 1, ..random_case(&mut random, 77) };
        compare(dtype, op, ReduceKernel::select(dtype, op).unwrap().isa(), &case, &mut random);
    }
}

/// What `world` ranks give of which the first has `first` and the others have `rest`, by every instruction
/// set.
fn agree(dtype: DType, op: ReduceOp, first: &[u8], rest: &[u8], world: usize) {
    let mut srcs = vec![rest.as_ptr(); world];
    srcs[0] = first.as_ptr();
    let results: Vec<Vec<u8>> = isas(dtype)
        .map(|isa| {
            let mut out = vec![0; first.len()];
            let kernel = ReduceKernel::for_isa(dtype, op, isa).unwrap();
            // SAFETY: all buffers have that many elements, and the destination is none of the sources.
            unsafe { kernel.reduce(out.as_mut_ptr(), &srcs, first.len() / dtype.size()) };
            out
        })
        .collect();
    assert!(results.iter().all(|result| *result == results[0]), "{op} of {dtype}, {world} ranks");
}

/// Averages of every 8-bit sum, and of many larger ones: no division by way of floats or products is off by
/// one.
#[test]
fn integer_averages_are_exact() {
    let bytes: Vec<u8> = (0..=u8::MAX).collect();
    let halves: Vec<u8> = (0..=u16::MAX).step_by(5).flat_map(u16::to_le_bytes).collect();
    let mut random = Random::new(6);
    let random = (0..2000).flat_map(|_| (random.next_u64() as u32).to_le_bytes());
    let multiples = (0..2000u32).flat_map(|i| (i * 0x20_0d0d - i % 3).to_le_bytes());
    let words: Vec<u8> = random.chain(multiples).collect();
    let zeros = vec![0; words.len().max(halves.len())];
    for world in [1, 2, 3, 7, 127, 128, 255, 256, 257] {
        agree(DType::I8, ReduceOp::Avg, &bytes, &zeros, world);
        agree(DType::U8, ReduceOp::Avg, &bytes, &zeros, world);
    }
    for world in [2, 3, 7, 255, 300] {
        for dtype in [DType::I16, DType::U16] {
            agree(dtype, ReduceOp::Avg, &halves, &zeros, world);
        }
        for dtype in [DType::I32, DType::U32, DType::I64, DType::U64] {
            agree(dtype, ReduceOp::Avg, &words, &zeros, world);
        }
    }
}

/// Every pair of f8, with results that overflow, tie, and become subnormal or zero.
#[test]
fn every_pair_of_f8() {
    let first: Vec<u8> = (0..=u16::MAX).map(|pair| pair as u8).collect();
    let second: Vec<u8> = (0..=u16::MAX).map(|pair| (pair >> 8) as u8).collect();
    for dtype in [DType::F8E4M3, DType::F8E5M2] {
        for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Min, ReduceOp::Max, ReduceOp::Prod] {
            agree(dtype, op, &first, &second, 2);
        }
        agree(dtype, ReduceOp::Avg, &first, &second, 7);
        // Up to beyond what an f32 can hold, and down to its subnormals.
        for world in [3, 7, 8, 12] {
            agree(dtype, ReduceOp::Prod, &first[..4096], &second[..4096], world);
            agree(dtype, ReduceOp::Prod, &second[0x7000..0x8000], &first[0x7000..0x8000], world);
        }
    }
}

/// Every f16 and bf16 beside some others: in order, so that neighbours are of one kind, and mixed.
#[test]
fn every_half_with_some_others() {
    let in_order: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let mixed: Vec<u8> = (0..=u16::MAX).flat_map(|i| i.wrapping_mul(40503).to_le_bytes()).collect();
    let others = [0x8000u16, 1, 0x3c01, 0x3f81, 0x7bff, 0xfc01];
    let ops = [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Min, ReduceOp::Max, ReduceOp::Prod];
    for dtype in [DType::F16, DType::BF16] {
        for (all, op) in [&in_order, &mixed].into_iter().flat_map(|all| ops.map(|op| (all, op))) {
            agree(dtype, op, all, all, 1);
            for other in others {
                agree(dtype, op, all, &other.to_le_bytes().repeat(1 << 16), 2);
            }
        }
    }
}

/// The result of an operation on one element of each rank, which every instruction set must agree on.
fn of<T: bytemuck::Pod>(dtype: DType, op: ReduceOp, values: &[T]) -> T {
    let srcs: Vec<*const u8> = values.iter().map(|value| (&raw const *value).cast()).collect();
    let results: Vec<T> = isas(dtype)
        .map(|isa| {
            let mut result = T::zeroed();
            let kernel = ReduceKernel::for_isa(dtype, op, isa).unwrap();
            // SAFETY: one element each.
            unsafe { kernel.reduce((&raw mut result).cast(), &srcs, 1) };
            result
        })
        .collect();
    let bytes = |value: &T| bytemuck::bytes_of(value).to_vec();
    assert!(results.iter().all(|result| bytes(result) == bytes(&results[0])));
    results[0]
}

fn of_f32(op: ReduceOp, values: &[f32]) -> u32 {
    of(DType::F32, op, values).to_bits()
}

#[test]
fn one_nan_and_ordered_zeros() {
    let odd_nan = f32::from_bits(0xffc0_1234);
    let nan = f32::NAN.to_bits();
    assert_eq!(nan, 0x7fc0_0000);
    for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Min, ReduceOp::Max, ReduceOp::Prod] {
        assert_eq!(of_f32(op, &[odd_nan]), nan, "{op} of one rank");
        for values in [[odd_nan, 1.0], [1.0, odd_nan], [f32::INFINITY, odd_nan], [odd_nan, f32::NEG_INFINITY]]
        {
            assert_eq!(of_f32(op, &values), nan, "{op} {values:?}");
        }
    }
    assert_eq!(of_f32(ReduceOp::Sum, &[f32::INFINITY, f32::NEG_INFINITY]), nan);
    for zeros in [[0.0, -0.0], [-0.0, 0.0]] {
        assert_eq!(of_f32(ReduceOp::Min, &zeros), (-0.0f32).to_bits());
        assert_eq!(of_f32(ReduceOp::Max, &zeros), 0.0f32.to_bits());
    }
    assert_eq!(of(DType::F64, ReduceOp::Min, &[f64::NAN, 1.0]).to_bits(), 0x7ff8_0000_0000_0000);
    assert_eq!(of(DType::F16, ReduceOp::Sum, &[-f16::NAN, f16::ONE]).to_bits(), 0x7e00);
    assert_eq!(of(DType::BF16, ReduceOp::Max, &[-bf16::NAN, bf16::ONE]).to_bits(), 0x7fc0);
    assert_eq!(of(DType::F8E4M3, ReduceOp::Min, &[F8E4M3::from_bits(0xff)]).to_bits(), 0x7f);
    assert_eq!(of(DType::F8E5M2, ReduceOp::Min, &[F8E5M2::from_bits(0xfd)]).to_bits(), 0x7f);
}

#[test]
fn small_floats_are_rounded_once() {
    // 256 + 1 + 1: rounding to bf16 after each addition would stay at 256.
    let [big, one] = [256.0, 1.0].map(bf16::from_f32);
    assert_eq!(of(DType::BF16, ReduceOp::Sum, &[big, one, one]).to_f32(), 258.0);
    // 2048 + 1 + 1 likewise in f16, and past its largest number and back.
    let [big, one] = [2048.0, 1.0].map(f16::from_f32);
    assert_eq!(of(DType::F16, ReduceOp::Sum, &[big, one, one]).to_f32(), 2050.0);
    assert_eq!(of(DType::F16, ReduceOp::Avg, &[f16::MAX, f16::MAX]), f16::MAX);
    let max = F8E4M3::MAX;
    assert_eq!(of(DType::F8E4M3, ReduceOp::Avg, &[max, max]), max);
    assert!(of(DType::F8E4M3, ReduceOp::Sum, &[max, max]).to_f32().is_nan(), "no infinity to go to");
    assert_eq!(of(DType::F8E5M2, ReduceOp::Sum, &[F8E5M2::MAX, F8E5M2::MAX]), F8E5M2::INFINITY);
}

#[test]
fn integers_wrap_and_truncate() {
    assert_eq!(of(DType::I8, ReduceOp::Sum, &[127i8, 1]), -128);
    assert_eq!(of(DType::I8, ReduceOp::Avg, &[127i8, 1]), -64, "of the wrapped sum");
    assert_eq!(of(DType::I32, ReduceOp::Avg, &[-3i32, 0]), -1, "towards zero");
    assert_eq!(of(DType::U64, ReduceOp::Avg, &[u64::MAX, 0]), u64::MAX / 2);
    assert_eq!(of(DType::U32, ReduceOp::Prod, &[1u32 << 31, 3]), 1 << 31);
    assert_eq!(of(DType::Bool, ReduceOp::And, &[2u8, 1]), 1, "any byte but zero is true");
    assert_eq!(of(DType::Bool, ReduceOp::Xor, &[2u8, 1]), 0);
}

#[test]
fn subnormals_are_kept_whatever_the_thread_has_set() {
    let tiny = f32::from_bits(1);
    assert_eq!(of_f32(ReduceOp::Sum, &[tiny, tiny]), 2);
    let smallest = bf16::from_bits(1);
    assert_eq!(of(DType::BF16, ReduceOp::Sum, &[smallest, smallest]).to_bits(), 2);
    assert_eq!(of(DType::F16, ReduceOp::Max, &[f16::from_bits(1), f16::from_bits(2)]).to_bits(), 2);
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
    {
        /// Flush subnormals (FTZ and DAZ of MXCSR; FZ of FPCR), and the sticky exception flags of the same
        /// word.
        const FLUSH: control::Word = if cfg!(target_arch = "x86_64") { 0x8040 } else { 1 << 24 };
        const FLAGS: control::Word = if cfg!(target_arch = "x86_64") { 0x3f } else { 0 };
        let own = control::read();
        let flushing = own | FLUSH;
        control::write(flushing);
        let flushed = std::hint::black_box(tiny) + std::hint::black_box(tiny);
        let bits = of_f32(ReduceOp::Sum, &[tiny, tiny]);
        let small = of(DType::BF16, ReduceOp::Sum, &[smallest, smallest]).to_bits();
        let after = control::read();
        control::write(own);
        assert_eq!(flushed.to_bits(), 0, "this thread does flush");
        assert_eq!((bits, small, after & !FLAGS), (2, 2, flushing & !FLAGS));
    }
}

#[test]
fn a_kernel_is_refused_where_the_operation_makes_no_sense_and_does_nothing_without_sources() {
    assert!(ReduceKernel::select(DType::F32, ReduceOp::Xor).is_err());
    let mut value = 1.0f32;
    let place = (&raw mut value).cast::<u8>();
    // SAFETY: one element, in place; and none.
    unsafe {
        let kernel = ReduceKernel::select(DType::F32, ReduceOp::Sum).unwrap();
        kernel.reduce(place, &[place.cast_const()], 1);
        kernel.reduce(place, &[], 1);
    }
    assert_eq!(value, 1.0);
}
