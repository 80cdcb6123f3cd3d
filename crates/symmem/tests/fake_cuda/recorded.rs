//! What the methods of a handle on a device ask the engine to do, seen by an engine that only records it.

use symmem::collectives::ROWS;
use symmem::cuda::{
    Buffer, Device, DeviceMatrix, DeviceSliceMut, Engine, Normed, RmsNorm, Stream, SymmetricMemory,
};
use symmem::fault::{RecordedOperation, record_operations, recorded_operations};
use symmem::{DType, Error, ReduceOp, Result};

use crate::common::assert_error;
use crate::{DEVICES, fake};

const RANKS: usize = 4;
const LEN: usize = 64;
const BYTES: usize = 4 * LEN;

/// This rank's handle, with outputs of all lengths.
struct Place {
    memory: SymmetricMemory<f32>,
    stream: Stream,
    same: Buffer<f32>,
    whole: Buffer<f32>,
    share: Buffer<f32>,
}

fn asked(op: &'static str, bytes: usize) -> RecordedOperation {
    RecordedOperation { op, dtype: Some(DType::F32), bytes, gets: true, ..Default::default() }
}

/// Every collective of devices: its name, the call, and what rank `rank` asks for.
type Row = (&'static str, fn(&mut Place) -> Result<()>, fn(rank: usize) -> RecordedOperation);

const COLLECTIVES: [Row; 10] = [
    (
        "all_reduce",
        |place| place.memory.all_reduce(ReduceOp::Avg, &place.stream),
        |_| RecordedOperation { reduction: Some(ReduceOp::Avg), ..asked("all_reduce", BYTES) },
    ),
    (
        "all_reduce_out",
        |place| place.memory.all_reduce_out(ReduceOp::Sum, &mut place.same, &place.stream),
        |_| RecordedOperation { reduction: Some(ReduceOp::Sum), ..asked("all_reduce_out", BYTES) },
    ),
    (
        "reduce",
        |place| place.memory.reduce(ReduceOp::Sum, 1, Some(place.same.as_slice_mut()), &place.stream),
        |rank| RecordedOperation {
            reduction: Some(ReduceOp::Sum),
            rank: Some(1),
            gets: rank == 1,
            ..asked("reduce", BYTES)
        },
    ),
    (
        "reduce_scatter",
        |place| place.memory.reduce_scatter(ReduceOp::Sum, &mut place.share, &place.stream),
        |_| RecordedOperation { reduction: Some(ReduceOp::Sum), ..asked("reduce_scatter", BYTES / RANKS) },
    ),
    (
        "all_gather",
        |place| place.memory.all_gather(&mut place.whole, &place.stream),
        |_| asked("all_gather", BYTES),
    ),
    (
        "broadcast",
        |place| place.memory.broadcast(2, &place.stream),
        |rank| RecordedOperation { rank: Some(2), gets: rank != 2, ..asked("broadcast", BYTES) },
    ),
    (
        "all_to_all",
        |place| place.memory.all_to_all(&mut place.same, &place.stream),
        |_| asked("all_to_all", BYTES / RANKS),
    ),
    (
        "gather",
        |place| place.memory.gather(3, Some(place.whole.as_slice_mut()), &place.stream),
        |rank| RecordedOperation { rank: Some(3), gets: rank == 3, ..asked("gather", BYTES) },
    ),
    (
        "scatter",
        |place| place.memory.scatter(0, &mut place.share, &place.stream),
        |_| RecordedOperation { rank: Some(0), ..asked("scatter", BYTES / RANKS) },
    ),
    (
        "reduce_scatter_columns",
        |place| place.memory.reduce_scatter_columns(ReduceOp::Sum, 8, &mut place.share, &place.stream),
        |_| RecordedOperation {
            reduction: Some(ReduceOp::Sum),
            ..asked("reduce_scatter_columns", BYTES / RANKS)
        },
    ),
];

/// Runs `test` on a handle of each of four ranks whose engines record.
fn on_recorders(name: &str, test: fn(&mut Place) -> Result<()>) {
    fake::run(name, &[DEVICES], || {
        symmem::spawn(RANKS, move |group| {
            record_operations();
            let device = Device::new(group.rank())?;
            let (engine, stream) = (Engine::new(&group, &device)?, Stream::new(&device)?);
            let array = |len| Buffer::new(&device, len);
            let (same, whole, share) = (array(LEN)?, array(LEN * RANKS)?, array(LEN / RANKS)?);
            let memory = engine.alloc(LEN)?.rendezvous(&engine)?;
            assert_eq!(recorded_operations(), [], "making memory is no operation");
            test(&mut Place { memory, stream, same, whole, share })
        })
        .unwrap();
    });
}

#[test]
fn every_collective_asks_for_itself_once() {
    on_recorders("recorded::every_collective_asks_for_itself_once", |place| {
        let mut named: Vec<_> = ROWS.iter().filter(|row| row.devices).map(|row| row.name).collect();
        for (name, call, expected) in COLLECTIVES {
            call(place)?;
            assert_eq!(recorded_operations(), [expected(place.memory.rank())], "{name}");
            named.retain(|left| *left != name);
        }
        assert!(named.is_empty(), "without a row here: {named:?}");
        Ok(())
    });
}

#[test]
fn a_norm_asks_for_itself_once() {
    on_recorders("recorded::a_norm_asks_for_itself_once", |place| {
        let Place { memory, stream, same, .. } = place;
        let mut residual = Buffer::new(memory.device(), LEN)?;
        let weight = Buffer::new(memory.device(), 16)?;
        memory.all_reduce_rms_norm(&mut residual, &weight, 1e-5, &mut *same, stream)?;
        let norm = RmsNorm::new(32, 1e-5).reduce(ReduceOp::Avg);
        memory.all_reduce_rms_norm_with(norm, &mut *same, stream)?;
        let expected = [ReduceOp::Sum, ReduceOp::Avg]
            .map(|op| RecordedOperation { reduction: Some(op), ..asked("all_reduce_rms_norm", BYTES) });
        assert_eq!(recorded_operations(), expected);
        Ok(())
    });
}

/// What is wrong with a norm's arguments on one rank, and a word of the error.
type WrongNorm = (fn(&mut Place) -> Result<()>, &'static str);

#[test]
fn wrong_arguments_of_a_norm_are_told_to_the_others() {
    const WRONG: [WrongNorm; 9] = [
        (
            |place| {
                let norm = RmsNorm::new(16, 1e-5).reduce(ReduceOp::Max);
                place.memory.all_reduce_rms_norm_with(norm, &mut place.same, &place.stream)
            },
            "max",
        ),
        (|place| norm_of(place, 0), "no rows of 0"),
        (|place| norm_of(place, 48), "no rows of 48"),
        (|place| norm_of(place, 2), "multiple of 16"),
        (
            |place| {
                let norm = RmsNorm::new(16, 1e-5);
                place.memory.all_reduce_rms_norm_with(norm, &mut place.share, &place.stream)
            },
            "16 elements, 64 are needed",
        ),
        (
            |place| {
                let norm = RmsNorm::new(16, 1e-5).weight(&place.share);
                let mut whole = place.whole.as_slice_mut();
                let out = whole.slice_mut(2..LEN + 2)?;
                place.memory.all_reduce_rms_norm_with(norm, out, &place.stream)
            },
            "begin at a multiple of 16",
        ),
        (
            |place| {
                let memory = place.memory.clone();
                let norm = RmsNorm::new(16, 1e-5).weight(memory.local()?.slice(..16)?);
                place.memory.all_reduce_rms_norm_with(norm, &mut place.same, &place.stream)
            },
            "overlaps the symmetric memory",
        ),
        (
            |place| {
                let mut scales = Buffer::new(place.memory.device(), 3)?;
                let mut out = Buffer::new(place.memory.device(), LEN)?;
                let norm = RmsNorm::new(16, 1e-5);
                let out = Normed::fp8_by_row(&mut out, &mut scales);
                place.memory.all_reduce_rms_norm_with(norm, out, &place.stream)
            },
            "3 elements, 4 are needed",
        ),
        (
            |place| {
                // SAFETY: nothing is launched on it.
                let part = unsafe {
                    DeviceSliceMut::from_raw(place.same.device_ptr() + 64, LEN - 16, place.memory.device())
                }?;
                let norm = RmsNorm::new(16, 1e-5).weight(part.as_slice().slice(..16)?);
                place.memory.all_reduce_rms_norm_with(norm, &mut place.same, &place.stream)
            },
            "overlaps the weight",
        ),
    ];
    on_recorders("recorded::wrong_arguments_of_a_norm_are_told_to_the_others", |place| {
        for (call, word) in WRONG {
            let error = call(place).expect_err(word);
            assert!(error.to_string().contains(word), "{word}: {error}");
            let ops: Vec<_> = recorded_operations().into_iter().map(|recorded| recorded.op).collect();
            assert_eq!(ops, ["refusal"], "{word}");
        }
        Ok(())
    });
}

fn norm_of(place: &mut Place, columns: usize) -> Result<()> {
    let norm = RmsNorm::new(columns, 1e-5);
    place.memory.all_reduce_rms_norm_with(norm, &mut place.same, &place.stream)
}

#[test]
fn products_ask_for_themselves_once() {
    on_recorders("recorded::products_ask_for_themselves_once", |place| {
        let Place { memory, stream, same, share, .. } = place;
        let weights = Buffer::new(memory.device(), 16 * 4)?;
        let weights = DeviceMatrix::new(&weights, 16, 4)?;
        let rows = LEN / 16 * RANKS;
        memory.all_gather_matmul(&[weights], &mut [same.as_slice_mut().slice_mut(..rows * 4)?], stream)?;
        let b = weights.part(0..4)?;
        let a = Buffer::new(memory.device(), LEN / 4 * 16)?;
        let a = DeviceMatrix::new(&a, LEN / 4, 16)?;
        memory.matmul_reduce_scatter(ReduceOp::Avg, a, b, &mut *share, stream)?;
        let expected = [
            asked("all_gather_matmul", BYTES),
            RecordedOperation { reduction: Some(ReduceOp::Avg), ..asked("matmul_reduce_scatter", BYTES) },
        ];
        assert_eq!(recorded_operations(), expected);
        Ok(())
    });
}

/// Weights of 16 x 4, and a product of 16 x 16 and these, for what is wrong with one of the arguments.
fn gathered(place: &mut Place, weights: usize, out: usize) -> Result<()> {
    let buffer = Buffer::new(place.memory.device(), weights * 4)?;
    let weights = DeviceMatrix::new(&buffer, weights, 4)?;
    let mut whole = place.whole.as_slice_mut();
    place.memory.all_gather_matmul(&[weights], &mut [whole.slice_mut(..out)?], &place.stream)
}

fn scattered(place: &mut Place, op: ReduceOp, [rows, inner]: [usize; 2]) -> Result<()> {
    let (a, b) = (Buffer::new(place.memory.device(), rows * 16)?, Buffer::new(place.memory.device(), 64)?);
    let a = DeviceMatrix::strided(&a, rows, inner, 16)?;
    let b = DeviceMatrix::new(&b, 16, 4)?;
    place.memory.matmul_reduce_scatter(op, a, b, &mut place.share, &place.stream)
}

#[test]
fn wrong_arguments_of_products_are_told_to_the_others() {
    const WRONG: [WrongNorm; 9] = [
        (|place| gathered(place, 48, 64), "no rows of 48"),
        (|place| gathered(place, 16, 65), "65 elements, but 64 are needed"),
        (|place| place.memory.all_gather_matmul(&[], &mut [], &place.stream), "there must be some"),
        (
            |place| {
                let buffer = Buffer::new(place.memory.device(), 64)?;
                let weights = DeviceMatrix::new(&buffer, 16, 4)?;
                place.memory.all_gather_matmul(&[weights], &mut [], &place.stream)
            },
            "1 weights, but 0 outputs",
        ),
        (|place| scattered(place, ReduceOp::Max, [16, 16]), "there are sum and avg"),
        (|place| scattered(place, ReduceOp::Sum, [16, 15]), "16 x 15 elements times 16 x 4"),
        (|place| scattered(place, ReduceOp::Sum, [15, 16]), "cannot be divided among 4 ranks"),
        (|place| scattered(place, ReduceOp::Sum, [32, 16]), "a workspace of 64 elements"),
        (
            |place| {
                let (memory, b) = (place.memory.clone(), Buffer::new(place.memory.device(), 16)?);
                let a = DeviceMatrix::new(memory.local()?, 16, 4)?;
                let b = DeviceMatrix::new(&b, 4, 4)?;
                place.memory.matmul_reduce_scatter(ReduceOp::Sum, a, b, &mut place.share, &place.stream)
            },
            "overlaps the symmetric memory",
        ),
    ];
    on_recorders("recorded::wrong_arguments_of_products_are_told_to_the_others", |place| {
        for (call, word) in WRONG {
            let error = call(place).expect_err(word);
            assert!(error.to_string().contains(word), "{word}: {error}");
            let ops: Vec<_> = recorded_operations().into_iter().map(|recorded| recorded.op).collect();
            assert_eq!(ops, ["refusal"], "{word}");
        }
        Ok(())
    });
}

#[test]
fn matrices_stay_inside_their_memory() {
    on_recorders("recorded::matrices_stay_inside_their_memory", |place| {
        let matrix = |rows, columns, stride| DeviceMatrix::strided(&place.same, rows, columns, stride);
        assert_eq!(matrix(4, 16, 16)?.part(3..5)?.columns(), 2);
        assert!(matrix(4, 13, 17).is_ok() && matrix(0, 100, 100).is_ok());
        for [rows, columns, stride] in [[4, 14, 17], [4, 17, 16], [2, 1, usize::MAX], [1, 65, 65]] {
            assert_error!(matrix(rows, columns, stride), Error::Invalid { .. });
        }
        assert_error!(DeviceMatrix::new(&place.same, 3, 21), Error::Invalid { .. });
        assert_error!(matrix(4, 16, 16)?.part(3..17), Error::Invalid { .. });
        assert_error!(
            matrix(0, 100, 100)?.part(90..91).map(|_| ()).and(matrix(4, 1, 0)),
            Error::Invalid { .. }
        );
        Ok(())
    });
}

#[test]
fn a_norm_on_closed_memory_is_refused_and_not_told() {
    on_recorders("recorded::a_norm_on_closed_memory_is_refused_and_not_told", |place| {
        place.memory.clone().close()?;
        recorded_operations();
        assert_error!(norm_of(place, 16), Error::Closed { .. });
        let unfused = RmsNorm::new(16, 1e-5).unfused();
        let refused = place.memory.all_reduce_rms_norm_with(unfused, &mut place.same, &place.stream);
        assert_error!(refused, Error::Closed { .. });
        assert_eq!(recorded_operations(), []);
        Ok(())
    });
}

#[test]
fn signals_and_barriers_ask_with_rank_and_channel() {
    on_recorders("recorded::signals_and_barriers_ask_with_rank_and_channel", |place| {
        let Place { memory, stream, .. } = place;
        let next = (memory.rank() + 1) % RANKS;
        memory.put_signal(next, 1, stream)?;
        memory.wait_signal(next, 2, stream)?;
        memory.barrier(3, stream)?;
        let named = |op, rank, channel| RecordedOperation { op, rank, channel, ..Default::default() };
        let expected = [
            named("put_signal", Some(next), Some(1)),
            named("wait_signal", Some(next), Some(2)),
            named("barrier", None, Some(3)),
        ];
        assert_eq!(recorded_operations(), expected);
        Ok(())
    });
}

#[test]
fn what_is_wrong_here_alone_is_told_to_the_others() {
    on_recorders("recorded::what_is_wrong_here_alone_is_told_to_the_others", |place| {
        let Place { memory, stream, same, .. } = place;
        assert_error!(memory.all_gather(same, stream), Error::Invalid { .. });
        assert_error!(memory.broadcast(RANKS, stream), Error::RankOutOfRange { .. });
        let ops: Vec<_> = recorded_operations().into_iter().map(|recorded| recorded.op).collect();
        assert_eq!(ops, ["refusal", "refusal"]);
        Ok(())
    });
}
