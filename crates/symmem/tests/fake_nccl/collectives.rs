//! Every collective, by NCCL's own operation and by sends and receives; and what is checked before NCCL is
//! called.

use symmem::cuda::{Buffer, Device, DeviceSliceMut, Stream};
use symmem::nccl::{Communicator, UniqueId};
use symmem::{Bool, Error, F8E5M2, ReduceOp, Result, bf16, f16};

use crate::common::assert_error;
use crate::nccl_cases::{Rank, try_all, try_moves};
use crate::{DEVICES, communicator, fake};

fn try_everything() {
    symmem::spawn(3, |group| {
        let rank = Rank::new(communicator(&group)?)?;
        try_all(&rank, 6, |number| number as f32)?;
        try_all(&rank, 6, f64::from)?;
        try_all(&rank, 6, |number| f16::from_f32(number as f32))?;
        try_all(&rank, 6, |number| bf16::from_f32(number as f32))?;
        try_all(&rank, 6, |number| number as i8)?;
        try_all(&rank, 6, |number| number as u8)?;
        try_all(&rank, 6, |number| number)?;
        try_all(&rank, 6, |number| number as u32)?;
        try_all(&rank, 6, i64::from)?;
        try_all(&rank, 6, |number| number as u64)?;
        // What NCCL does not have moves as bytes.
        try_moves(&rank, 6, |number| number as i16)?;
        try_moves(&rank, 6, |number| number as u16)?;
        try_moves(&rank, 6, |number| Bool::from(number % 2 == 0))?;
        try_moves(&rank, 6, |number| bytemuck::cast::<u8, F8E5M2>(number as u8))?;
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
