//! Every collective, by NCCL's own operation and by sends and receives; and what is checked before NCCL is called.

use symmem::cuda::{Buffer, Device, DeviceSliceMut, Stream};
use symmem::nccl::{Communicator, GroupCall, UniqueId};
use symmem::{Bool, Element, Error, F8E5M2, ReduceOp, Result, bf16, f16};

use crate::common::assert_error;
use crate::{DEVICES, communicator, fake};

/// One rank: its communicator and stream.
struct Rank {
    nccl: Communicator,
    stream: Stream,
}

impl Rank {
    fn buffer<T: Element>(&self, elements: &[T]) -> Result<Buffer<T>> {
        Buffer::from_slice(self.nccl.device(), elements, &self.stream)
    }
}

/// `len` numbers that differ by rank and place, small enough for every type.
fn numbers<T>(rank: usize, len: usize, from: impl Fn(i32) -> T) -> Vec<T> {
    (0..len).map(|at| from(((rank * 3 + at) % 7) as i32 + 1)).collect()
}

/// Collective. Tries everything with elements that `from` makes of small integers.
fn try_type<T: Element + PartialEq + std::fmt::Debug>(rank: &Rank, from: fn(i32) -> T) -> Result<()> {
    let (me, world, len) = (rank.nccl.rank(), rank.nccl.size(), 6);
    let (nccl, stream) = (&rank.nccl, &rank.stream);
    let whole = |rank: usize| numbers(rank, len * world, from);
    let part = |rank: usize, at: usize| whole(rank)[at * len..(at + 1) * len].to_vec();
    let input = rank.buffer(&whole(me))?;
    let mut small = rank.buffer(&part(me, 0))?;

    let mut out = Buffer::new(nccl.device(), len * world)?;
    nccl.all_gather(&small, &mut out, stream)?;
    let gathered: Vec<T> = (0..world).flat_map(|rank| part(rank, 0)).collect();
    assert_eq!(out.read(stream)?, gathered);

    nccl.all_to_all(&input, &mut out, stream)?;
    let exchanged: Vec<T> = (0..world).flat_map(|rank| part(rank, me)).collect();
    assert_eq!(out.read(stream)?, exchanged);

    out.fill_bytes(0, stream)?;
    let is_root = me == 1;
    nccl.gather(&small, is_root.then(|| out.as_slice_mut()), 1, stream)?;
    assert_eq!(out.read(stream)? == gathered, is_root);

    nccl.scatter(is_root.then(|| input.as_slice()), &mut small, 1, stream)?;
    assert_eq!(small.read(stream)?, part(1, me));

    nccl.broadcast(&mut small, 0, stream)?;
    assert_eq!(small.read(stream)?, part(1, 0));

    let (next, last) = ((me + 1) % world, (me + world - 1) % world);
    let group = GroupCall::start()?;
    nccl.send(&input, next, stream)?;
    nccl.recv(&mut out, last, stream)?;
    group.end()?;
    assert_eq!(out.read(stream)?, whole(last));
    Ok(())
}

/// Collective. Tries every reduction with elements that `from` makes of small integers.
fn try_reductions<T: Element + PartialEq + std::fmt::Debug>(rank: &Rank, from: fn(i32) -> T) -> Result<()> {
    let (me, world, len) = (rank.nccl.rank(), rank.nccl.size(), 6);
    let (nccl, stream) = (&rank.nccl, &rank.stream);
    let numbers_of = |rank: usize| numbers(rank, len * world, |number| number);
    let input = rank.buffer(&numbers(me, len * world, from))?;
    let ops = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg];
    for op in ops {
        let at = |place: usize| {
            let all = (0..world).map(|rank| numbers_of(rank)[place]);
            match op {
                ReduceOp::Sum => all.sum::<i32>(),
                ReduceOp::Prod => all.product(),
                ReduceOp::Max => all.max().unwrap_or_default(),
                ReduceOp::Min => all.min().unwrap_or_default(),
                _ => all.sum::<i32>(),
            }
        };
        // An average of two is a whole number where the sum is even; others are seen to by the GPU tests.
        let whole = op != ReduceOp::Avg || world == 1;
        let expected: Vec<T> = (0..len * world).map(|place| from(at(place))).collect();
        let mut out = Buffer::new(nccl.device(), len * world)?;
        nccl.all_reduce(&input, &mut out, op, stream)?;
        assert!(!whole || out.read(stream)? == expected, "{op}");
        out.fill_bytes(0, stream)?;
        nccl.reduce(&input, Some(out.as_slice_mut()).filter(|_| me == 0), op, 0, stream)?;
        assert!(!whole || (out.read(stream)? == expected) == (me == 0), "{op}");
        let mut part = Buffer::new(nccl.device(), len)?;
        nccl.reduce_scatter(&input, &mut part, op, stream)?;
        assert!(!whole || part.read(stream)? == expected[me * len..(me + 1) * len], "{op}");
        let mut data = rank.buffer(&numbers(me, len * world, from))?;
        nccl.all_reduce_in_place(&mut data, op, stream)?;
        assert!(!whole || data.read(stream)? == expected, "{op}");
    }
    Ok(())
}

fn try_everything() {
    symmem::spawn(3, |group| {
        let nccl = communicator(&group)?;
        let stream = Stream::new(nccl.device())?;
        let rank = Rank { nccl, stream };
        try_type(&rank, |number| number as f32)?;
        try_type(&rank, |number| number as f64)?;
        try_type(&rank, |number| f16::from_f32(number as f32))?;
        try_type(&rank, |number| number as i16)?;
        try_type(&rank, |number| number as u64)?;
        try_type(&rank, |number| Bool::from(number % 2 == 0))?;
        try_type(&rank, |number| bytemuck::cast::<u8, F8E5M2>(number as u8))?;
        try_reductions(&rank, |number| number as f32)?;
        try_reductions(&rank, |number| number as f64)?;
        try_reductions(&rank, |number| f16::from_f32(number as f32))?;
        try_reductions(&rank, |number| bf16::from_f32(number as f32))?;
        try_reductions(&rank, |number| number)?;
        try_reductions(&rank, |number| number as u32)?;
        try_reductions(&rank, i64::from)?;
        try_reductions(&rank, |number| number as u64)?;
        group.barrier()
    })
    .unwrap();
    assert_eq!((fake::live(), fake::violations()), ([0; 3], 0));
}

#[test]
fn everything_is_right_by_nccls_own_operations() {
    fake::run("collectives::everything_is_right_by_nccls_own_operations", &[DEVICES], || {
        try_everything();
        let log = fake::log();
        assert!(log.iter().any(|call| call == "ncclAlltoAll") && log.iter().any(|call| call == "ncclGather"));
    });
}

#[test]
fn everything_is_right_by_sends_and_receives() {
    let vars = [DEVICES, ("FAKENCCL_VERSION", "2.27.7")];
    fake::run("collectives::everything_is_right_by_sends_and_receives", &vars, || {
        try_everything();
        let log = fake::log();
        assert!(!log.iter().any(|call| call == "ncclAlltoAll"), "this version has none");
    });
}

#[test]
fn signals_are_raised_and_consumed() {
    fake::run("collectives::signals_are_raised_and_consumed", &[DEVICES], || {
        symmem::spawn(3, |group| {
            let nccl = communicator(&group)?;
            let stream = Stream::new(nccl.device())?;
            for _ in 0..3 {
                nccl.signal(group.next(), &stream)?;
                nccl.wait_signal(group.prev(), &stream)?;
            }
            assert_error!(nccl.signal(3, &stream), Error::RankOutOfRange { .. });
            group.barrier()
        })
        .unwrap();
    });
}

#[test]
fn what_is_wrong_is_told_before_nccl_is_called() {
    fake::run("collectives::what_is_wrong_is_told_before_nccl_is_called", &[DEVICES], || {
        let (device, other) = (Device::new(0).unwrap(), Device::new(1).unwrap());
        let nccl = Communicator::with_id(&UniqueId::new().unwrap(), 0, 1, &device).unwrap();
        let (stream, elsewhere) = (Stream::new(&device).unwrap(), Stream::new(&other).unwrap());
        let four = Buffer::from_slice(&device, &[1.0f32; 4], &stream).unwrap();
        let foreign = Buffer::from_slice(&other, &[1.0f32; 4], &elsewhere).unwrap();
        let mut three = Buffer::<f32>::new(&device, 3).unwrap();
        let mut out = Buffer::<f32>::new(&device, 4).unwrap();
        let mut shorts = Buffer::<i16>::new(&device, 4).unwrap();
        let mut truths = Buffer::<Bool>::new(&device, 4).unwrap();
        fake::log();
        let sum = ReduceOp::Sum;
        let wrong: Vec<(&str, Result<()>)> = vec![
            ("must have 4", nccl.all_reduce(&four, &mut three, sum, &stream)),
            ("the communicator on", nccl.all_reduce(&foreign, &mut out, sum, &stream)),
            ("the communicator on", nccl.all_reduce(&four, &mut out, sum, &elsewhere)),
            ("NCCL has no xor", nccl.all_reduce(&four, &mut out, ReduceOp::Xor, &stream)),
            ("does not reduce i16", nccl.all_reduce_in_place(&mut shorts, sum, &stream)),
            ("does not reduce bool", nccl.all_reduce_in_place(&mut truths, ReduceOp::Max, &stream)),
            ("must have 4", nccl.all_gather(&four, &mut three, &stream)),
            ("not 3 for each of 1 ranks", nccl.reduce_scatter(&four, &mut three, sum, &stream)),
            ("must have 4", nccl.all_to_all(&four, &mut three, &stream)),
            ("rank 1 must be in [0, 1)", nccl.broadcast(&mut out, 1, &stream)),
            ("rank 1 must be in [0, 1)", nccl.reduce(&four, None, sum, 1, &stream)),
            ("the root must have one", nccl.reduce(&four, None, sum, 0, &stream)),
            ("the root must have one", nccl.gather(&four, None, 0, &stream)),
            ("the root must have one", nccl.scatter(None, &mut out, 0, &stream)),
            ("not 3 for each of 1 ranks", nccl.scatter(Some(four.as_slice()), &mut three, 0, &stream)),
            ("rank 7 must be in [0, 1)", nccl.scatter(None, &mut out, 7, &stream)),
            ("rank 2 must be in [0, 1)", nccl.send(&four, 2, &stream)),
            ("rank 2 must be in [0, 1)", nccl.recv(&mut out, 2, &stream)),
        ];
        for (words, result) in wrong {
            let text = result.unwrap_err().to_string();
            assert!(text.contains(words), "{words} is not in: {text}");
        }
        assert_eq!(fake::log(), Vec::<String>::new(), "NCCL was not called");
        let empty = Buffer::<f32>::new(&device, 0).unwrap();
        let mut nothing = Buffer::<f32>::new(&device, 0).unwrap();
        nccl.all_reduce(&empty, DeviceSliceMut::from(&mut nothing), sum, &stream).unwrap();
        assert_eq!(fake::log(), ["ncclAllReduce"], "a transfer of nothing is still one");
    });
}
