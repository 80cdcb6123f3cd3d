//! Products and their collectives on the fake driver, whose cuBLASLt multiplies f32 and whose copy engine
//! copies, and whose kernels do nothing: so the gather by copies is seen whole, and of the reduction what is
//! made for it.

use symmem::cuda::{Buffer, Device, DeviceMatrix, Engine, FusedWay, Stream, SymmetricMemory};
use symmem::{Error, Group, ReduceOp, Result};

use crate::common::assert_error;
use crate::{DEVICES, engine, fake};

const RANKS: usize = 3;
const ROWS: usize = 2;
const INNER: usize = 5;
/// Of the two weights; the second is a part of a wider matrix.
const COLUMNS: [usize; 2] = [3, 4];
const WIDE: usize = 7;

/// The numbers of rank `rank` in `round`, so small that every order of sums gives the same.
fn numbers(rank: usize, round: usize, len: usize) -> Vec<f32> {
    (0..len).map(|at| ((at * 7 + rank * 3 + round * 5) % 11) as f32 - 5.0).collect()
}

/// `left`, of rows of `inner`, times columns `first` and on of rows of `stride`.
fn product(
    left: &[f32],
    inner: usize,
    right: &[f32],
    stride: usize,
    first: usize,
    columns: usize,
) -> Vec<f32> {
    let element = |row: &[f32], column: usize| {
        row.iter().enumerate().map(|(at, one)| one * right[at * stride + first + column]).sum()
    };
    left.chunks(inner).flat_map(|row| (0..columns).map(move |column| element(row, column))).collect()
}

/// One rank, and what it multiplies.
struct Seat<'a> {
    group: &'a Group,
    engine: Engine,
    stream: Stream,
    rows: SymmetricMemory<f32>,
    weights: [Buffer<f32>; 2],
    outs: [Buffer<f32>; 2],
    gathered: Buffer<f32>,
}

impl<'a> Seat<'a> {
    /// Collective.
    fn new(group: &'a Group) -> Result<Self> {
        let engine = engine(group)?;
        let (device, stream) = (Device::new(group.rank())?, engine.stream()?);
        let weights = [numbers(100, 0, INNER * COLUMNS[0]), numbers(200, 0, INNER * WIDE)];
        let weights = weights.map(|weights| Buffer::from_slice(&device, &weights, &stream).unwrap());
        let all = ROWS * RANKS;
        Ok(Self {
            rows: engine.alloc(ROWS * INNER)?.rendezvous(&engine)?,
            outs: [Buffer::new(&device, all * COLUMNS[0])?, Buffer::new(&device, all * COLUMNS[1])?],
            gathered: Buffer::new(&device, all * INNER)?,
            group,
            engine,
            stream,
            weights,
        })
    }

    fn weights(&self) -> [DeviceMatrix<'_, f32>; 2] {
        let wide = DeviceMatrix::new(&self.weights[1], INNER, WIDE).unwrap();
        [
            DeviceMatrix::new(&self.weights[0], INNER, COLUMNS[0]).unwrap(),
            wide.part(2..2 + COLUMNS[1]).unwrap(),
        ]
    }

    fn launch(&mut self, way: FusedWay, wants_rows: bool) -> Result<()> {
        let [one, other] = &mut self.outs;
        let wide = DeviceMatrix::new(&self.weights[1], INNER, WIDE)?;
        let weights =
            [DeviceMatrix::new(&self.weights[0], INNER, COLUMNS[0])?, wide.part(2..2 + COLUMNS[1])?];
        let gathered = wants_rows.then(|| self.gathered.as_slice_mut());
        let outs = &mut [one.as_slice_mut(), other.as_slice_mut()];
        self.rows.all_gather_matmul_by(way, &weights, outs, gathered, &self.stream)
    }

    /// Collective. Everybody's rows are those of `round`, and no result is there.
    fn fill(&self, round: usize) -> Result<()> {
        self.group.barrier()?;
        self.rows.write(&numbers(self.group.rank(), round, ROWS * INNER), &self.stream)?;
        self.outs.iter().try_for_each(|out| out.fill_bytes(0xff, &self.stream))?;
        self.gathered.fill_bytes(0xff, &self.stream)?;
        self.group.barrier()
    }

    fn check(&self, round: usize, wants_rows: bool) -> Result<()> {
        let all: Vec<f32> = (0..RANKS).flat_map(|rank| numbers(rank, round, ROWS * INNER)).collect();
        let [one, other] = self.weights.each_ref().map(|weights| weights.read(&self.stream).unwrap());
        assert_eq!(self.outs[0].read(&self.stream)?, product(&all, INNER, &one, COLUMNS[0], 0, COLUMNS[0]));
        assert_eq!(self.outs[1].read(&self.stream)?, product(&all, INNER, &other, WIDE, 2, COLUMNS[1]));
        if wants_rows {
            assert_eq!(self.gathered.read(&self.stream)?, all);
        }
        Ok(())
    }
}

#[test]
fn gathered_rows_are_multiplied_as_they_come() {
    fake::run("products::gathered_rows_are_multiplied_as_they_come", &[DEVICES], || {
        symmem::spawn(RANKS, |group| {
            let mut seat = Seat::new(&group)?;
            for (round, wants_rows) in [(0, false), (1, true), (2, false)] {
                seat.fill(round)?;
                seat.launch(FusedWay::Fused, wants_rows)?;
                assert!(fake::launched().starts_with("barrier"), "{}", fake::launched());
                seat.check(round, wants_rows)?;
            }
            group.barrier()
        })
        .unwrap();
    });
}

#[test]
fn a_graph_gathers_and_multiplies_what_is_there_when_it_is_launched() {
    const NAME: &str = "products::a_graph_gathers_and_multiplies_what_is_there_when_it_is_launched";
    fake::run(NAME, &[DEVICES], || {
        symmem::spawn(RANKS, |group| {
            let mut seat = Seat::new(&group)?;
            seat.engine.prepare()?;
            seat.rows.prepare_all_gather_matmul(&seat.weights(), &seat.stream)?;
            seat.stream.begin_capture()?;
            seat.launch(FusedWay::Fused, false)?;
            let graph = seat.stream.end_capture()?;
            for round in 0..3 {
                seat.fill(round)?;
                graph.launch(&seat.stream)?;
                seat.check(round, false)?;
            }
            group.barrier()
        })
        .unwrap();
    });
}

#[test]
fn what_was_not_prepared_is_refused_in_a_capture() {
    fake::run("products::what_was_not_prepared_is_refused_in_a_capture", &[DEVICES], || {
        symmem::spawn(RANKS, |group| {
            let mut seat = Seat::new(&group)?;
            seat.engine.prepare()?;
            for way in [FusedWay::Fused, FusedWay::Unfused] {
                seat.stream.begin_capture()?;
                let refused = seat.launch(way, false).unwrap_err();
                assert!(refused.to_string().contains("prepare_all_gather_matmul"), "{refused}");
                // What was captured is the refusal of all ranks.
                seat.stream.end_capture()?;
                let a = DeviceMatrix::new(&seat.weights[0], 3, 5)?;
                let b = DeviceMatrix::new(&seat.weights[0], 5, 3)?;
                seat.stream.begin_capture()?;
                let mut out = seat.outs[0].as_slice_mut();
                let out = out.slice_mut(..3)?;
                let refused =
                    seat.rows.matmul_reduce_scatter_by(way, ReduceOp::Sum, (a, b), out, &seat.stream);
                assert_error!(refused, Error::Invalid { .. });
                seat.stream.end_capture()?;
            }
            group.barrier()
        })
        .unwrap();
    });
}

/// Each call of a rank that is alone fails once: it is told, the next try works, and nothing is left behind.
#[test]
fn every_call_of_a_first_product_fails_once() {
    fake::run("products::every_call_of_a_first_product_fails_once", &[DEVICES], || {
        symmem::spawn(1, |group| {
            let try_once = |way, n| -> Result<bool> {
                let engine = engine(&group)?;
                let stream = engine.stream()?;
                let rows = engine.alloc::<f32>(4)?.rendezvous(&engine)?;
                rows.write(&[1.0, 2.0, 3.0, 4.0], &stream)?;
                let weights = Buffer::from_slice(engine.device(), &[10.0, 1.0], &stream)?;
                let weights = DeviceMatrix::new(&weights, 2, 1)?;
                let mut out = Buffer::new(engine.device(), 2)?;
                let mut launch = || {
                    let outs = &mut [out.as_slice_mut()];
                    rows.all_gather_matmul_by(way, &[weights], outs, None, &stream)
                };
                fake::fail(n);
                let failed = launch();
                let call = fake::failed();
                fake::fail(0);
                let Some(call) = call else { return Ok(false) };
                let is_told = failed.is_err() || GIVES_BACK.contains(&call.as_str());
                assert!(is_told, "{call} failed, and nobody cared");
                launch().unwrap_or_else(|error| panic!("after {call}: {error}"));
                if way == FusedWay::Fused {
                    assert_eq!(out.read(&stream)?, [12.0, 34.0], "after {call}");
                }
                Ok(true)
            };
            for way in [FusedWay::Fused, FusedWay::Unfused] {
                assert!(!try_once(way, 1_000_000)?, "the first time makes what stays");
                let before = fake::Live::now();
                let mut tries = 1;
                while try_once(way, tries)? {
                    tries += 1;
                }
                assert!(tries > 10, "{way:?}: {tries}");
                println!("{way:?}: {tries} calls");
                let after = fake::Live::now();
                assert!(after.is_as(&before, "a product"), "{way:?}: {before:?}, {after:?}");
            }
            Ok(())
        })
        .unwrap();
    });
}

/// Calls whose failure nothing depends on.
const GIVES_BACK: [&str; 5] = [
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuEventQuery",
    "cuThreadExchangeStreamCaptureMode",
    "cuEventDestroy_v2",
];

/// Rows of the product for each rank, and its other sides: parts of one row and of two.
const PRODUCT: [usize; 3] = [3, 4, 2];

#[test]
fn a_product_is_made_for_all_ranks_before_it_is_reduced() {
    fake::run("products::a_product_is_made_for_all_ranks_before_it_is_reduced", &[DEVICES], || {
        symmem::spawn(RANKS, |group| {
            let [part, inner, columns] = PRODUCT;
            let rows = part * RANKS;
            let (engine, device) = (engine(&group)?, Device::new(group.rank())?);
            let stream = engine.stream()?;
            // The rows of the left side lie further apart than they are long.
            let (wide, right) = (numbers(1, 0, rows * (inner + 1)), numbers(2, 0, inner * columns));
            let left = Buffer::from_slice(&device, &wide, &stream)?;
            let b = Buffer::from_slice(&device, &right, &stream)?;
            let a = DeviceMatrix::strided(&left, rows, inner, inner + 1)?;
            let b = DeviceMatrix::new(&b, inner, columns)?;
            let memory = engine.alloc::<f32>(rows * columns + 8)?.rendezvous(&engine)?;
            let mut out = Buffer::new(&device, part * columns)?;
            let left: Vec<f32> = wide.chunks(inner + 1).flat_map(|row| row[..inner].to_vec()).collect();
            let whole = product(&left, inner, &right, columns, 0, columns);
            let row = |row: usize| &whole[row * columns..][..columns];
            memory.prepare_matmul_reduce_scatter(a, b, &stream)?;
            for way in [FusedWay::Unfused, FusedWay::Fused] {
                memory.write(&vec![-1.0; rows * columns + 8], &stream)?;
                memory.matmul_reduce_scatter_by(way, ReduceOp::Avg, (a, b), &mut out, &stream)?;
                assert!(fake::launched().contains("reduce"), "{}", fake::launched());
                let made = memory.read(&stream)?;
                let expected = match way {
                    FusedWay::Unfused => whole.clone(),
                    // The first row of every rank, and then the other two of every rank.
                    _ => [0, 3, 6, 1, 2, 4, 5, 7, 8].into_iter().flat_map(|at| row(at).to_vec()).collect(),
                };
                assert_eq!(made[..rows * columns], expected, "{way:?}");
                assert_eq!(made[rows * columns..], [-1.0; 8]);
            }
            group.barrier()
        })
        .unwrap();
    });
}

#[test]
fn without_cublaslt_the_error_says_where_it_was_looked_for() {
    let missing = ("SYMMEM_CUBLASLT_LIBRARY", "/no/such/libcublasLt.so.13");
    fake::run(
        "products::without_cublaslt_the_error_says_where_it_was_looked_for",
        &[DEVICES, missing],
        || {
            symmem::spawn(RANKS, |group| {
                let mut seat = Seat::new(&group)?;
                let error = seat.launch(FusedWay::ByShape, false).unwrap_err();
                let text = error.to_string();
                assert!(matches!(error, Error::NoLibrary { .. }), "{text}");
                for word in [missing.0, missing.1, "Hint"] {
                    assert!(text.contains(word), "{text}");
                }
                group.barrier()
            })
            .unwrap();
        },
    );
}
