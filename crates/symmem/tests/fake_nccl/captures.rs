//! Captured operations keep what they were given: whoever drops it, and whoever makes something else at its
//! address, a replay works on what was captured.
//!
//! Every operation of the crate that takes a stream has a row in [`ROWS`]; the sources are searched for those
//! that have none. The fake driver replays with the addresses of the capture, and counts what was given back
//! in between.

use std::path::Path;

use symmem::cuda::{
    Algorithm, Allocation, Buffer, Device, DeviceMatrix, DeviceSlice, DeviceSliceMut, Engine, Event,
    Function, FusedWay, Graph, Module, Provider, RmsNorm, Settings, Stream, SymmetricMemory,
};
use symmem::nccl::Communicator;
use symmem::{Group, ReduceOp, Result};

use self::On::{Carried, Direct, Itself, Multicast, Nccl};
use self::Row::{Captured, Nothing, Refused};
use crate::{DEVICES, communicator, cuda, fake};

const SUM: ReduceOp = ReduceOp::Sum;
/// Ranks of the list.
const WORLD: usize = 2;
/// Elements of a part, and of everything.
const PART: usize = 32;
const WHOLE: usize = WORLD * PART;
/// What nobody writes.
const INNOCENT: f32 = 77.0;

/// Who does an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    /// Kernels of this crate, or the copy engine.
    Direct,
    /// The same through multicast.
    Multicast,
    /// An engine whose work NCCL carries.
    Carried,
    /// NCCL.
    Nccl,
    /// The thing itself: no group is needed.
    Itself,
}

/// What is said of an operation.
enum Row {
    /// It can be captured, and its graph keeps what it was given.
    Captured(&'static [On], fn(&Stage, &mut Given) -> Result<()>),
    /// It is refused in a capture.
    Refused(fn(&Stage, &mut Given) -> Result<()>),
    /// There is nothing to keep; why.
    Nothing(&'static str),
}

/// Private memory of either kind.
enum Private {
    Buffer(Buffer<f32>),
    Allocation(Allocation<f32>),
}

impl Private {
    fn new(device: &Device, as_allocation: bool) -> Result<Self> {
        Ok(match as_allocation {
            false => Self::Buffer(Buffer::new(device, WHOLE)?),
            true => Self::Allocation(Allocation::with(device, WHOLE, Provider::Vmm)?),
        })
    }

    fn address(&self) -> u64 {
        match self {
            Self::Buffer(buffer) => buffer.device_ptr(),
            Self::Allocation(allocation) => allocation.device_ptr(),
        }
    }

    fn write(&self, value: f32, stream: &Stream) -> Result<()> {
        match self {
            Self::Buffer(buffer) => buffer.write(&[value; WHOLE], stream),
            Self::Allocation(allocation) => allocation.write(&[value; WHOLE], stream),
        }
    }

    fn read(&self, stream: &Stream) -> Result<Vec<f32>> {
        match self {
            Self::Buffer(buffer) => buffer.read(stream),
            Self::Allocation(allocation) => allocation.read(stream),
        }
    }

    fn salvage(&self, stream: &Stream) -> Result<Vec<f32>> {
        match self {
            Self::Buffer(buffer) => buffer.read(stream),
            Self::Allocation(allocation) => allocation.salvage(stream),
        }
    }

    /// The first `len` elements.
    fn first(&self, len: usize) -> DeviceSlice<'_, f32> {
        let all = match self {
            Self::Buffer(buffer) => buffer.as_slice(),
            Self::Allocation(allocation) => allocation.as_slice().expect("its own memory"),
        };
        all.slice(..len).expect("a part of it")
    }

    fn all_mut(&mut self) -> DeviceSliceMut<'_, f32> {
        match self {
            Self::Buffer(buffer) => buffer.as_slice_mut(),
            Self::Allocation(allocation) => allocation.as_slice_mut().expect("its own memory"),
        }
    }
}

/// What operations are given, all of which is dropped when it was captured.
struct Given {
    input: Private,
    out: Private,
    residual: Buffer<f32>,
    words: Buffer<u32>,
    memory: Option<SymmetricMemory<f32>>,
    nccl: Option<Communicator>,
    event: Event,
    function: Function,
    graph: Option<Graph>,
}

impl Given {
    /// Collective, where there are ranks.
    fn new(stage: &Stage, on: On, as_allocation: bool) -> Result<Self> {
        let device = &stage.device;
        let engine = stage.engine(on);
        let memory = engine.map(|engine| engine.alloc::<f32>(WHOLE)?.rendezvous(engine)).transpose()?;
        let given = Self {
            input: Private::new(device, as_allocation)?,
            out: Private::new(device, as_allocation)?,
            residual: Buffer::new(device, WHOLE)?,
            words: Buffer::new(device, WHOLE)?,
            memory,
            nccl: (on == Nccl).then(|| communicator(&stage.group)).transpose()?,
            event: Event::new(device)?,
            function: Module::compile(device, "mine.cu", "")?.function("mine")?,
            graph: None,
        };
        given.input.write(1.0, &stage.stream)?;
        given.out.write(1.0, &stage.stream)?;
        if let Some(memory) = &given.memory {
            let (a, b) = sides(&given.input)?;
            rows_of(memory)?.prepare_all_gather_matmul(&[weights(&given.input)?], &stage.stream)?;
            memory.prepare_matmul_reduce_scatter(a, b, &stage.stream)?;
        }
        Ok(given)
    }

    /// Symmetric memory, and what goes in and out.
    fn engine(&mut self) -> (&SymmetricMemory<f32>, &Private, &mut Private) {
        (self.memory.as_ref().expect("symmetric memory"), &self.input, &mut self.out)
    }

    /// A communicator, and what goes in and out.
    fn nccl(&mut self) -> (&Communicator, &Private, &mut Private) {
        (self.nccl.as_ref().expect("a communicator"), &self.input, &mut self.out)
    }

    /// Fresh things of the same sizes, with the same addresses if those are free.
    fn innocents(stage: &Stage, as_allocation: bool) -> Result<[Private; 2]> {
        let made = [Private::new(&stage.device, as_allocation)?, Private::new(&stage.device, as_allocation)?];
        made.iter().try_for_each(|one| one.write(INNOCENT, &stage.stream))?;
        Ok(made)
    }
}

/// One rank, and what outlives a row.
struct Stage {
    group: Group,
    device: Device,
    stream: Stream,
    direct: Engine,
    carried: Engine,
}

impl Stage {
    /// Collective.
    fn new(group: Group) -> Result<Self> {
        let device = Device::new(group.rank())?;
        let settings = |provider, unreachable| Settings { provider, unreachable, ..Settings::default() };
        let direct = Engine::with(&group, &device, settings(Some(Provider::Vmm), Vec::new()))?;
        let far = (0..group.size()).collect();
        let carried = Engine::with(&group, &device, settings(Some(Provider::Nccl), far))?;
        Ok(Self { stream: Stream::new(&device)?, group, device, direct, carried })
    }

    fn engine(&self, on: On) -> Option<&Engine> {
        match on {
            Direct | Multicast => Some(&self.direct),
            Carried => Some(&self.carried),
            Nccl | Itself => None,
        }
    }

    fn peer(&self) -> usize {
        1 - self.group.rank()
    }

    /// Collective. Captures an operation, drops all it was given, and replays it. Says what is wrong.
    fn try_row(&self, on: On, as_allocation: bool, run: Run) -> Result<Option<String>> {
        let mut given = Given::new(self, on, as_allocation)?;
        let addresses = [given.input.address(), given.out.address()];
        self.direct.prepare()?;
        self.carried.prepare()?;
        self.stream.begin_capture()?;
        let captured = run(self, &mut given);
        let graph = self.stream.end_capture()?;
        captured?;
        drop(given);
        let innocents = Given::innocents(self, as_allocation)?;
        self.group.barrier()?;
        let before = cuda::stale();
        self.group.barrier()?;
        let launched = graph.launch(&self.stream);
        self.group.barrier()?;
        let stale = cuda::stale() - before;
        let mut is_harmed = false;
        for innocent in &innocents {
            is_harmed |= innocent.read(&self.stream)?.iter().any(|one| *one != INNOCENT);
        }
        // A graph that is gone keeps nothing: the same places come up again.
        drop((graph, innocents));
        let more: Vec<_> = (0..8).map(|_| Given::innocents(self, as_allocation)).collect::<Result<_>>()?;
        // The ranks are threads of one process, so the other one may be faster at them.
        let mine: Vec<u8> = more.iter().flatten().flat_map(|one| one.address().to_le_bytes()).collect();
        let places = self.group.all_gather_bytes(&mine)?.concat();
        let is_there = |address: &u64| places.as_chunks::<8>().0.contains(&address.to_le_bytes());
        let is_leaked = !as_allocation && !addresses.iter().any(is_there);
        self.group.barrier()?;
        let problem = match (launched, is_harmed) {
            (Err(error), _) => format!("the replay failed: {error}"),
            (Ok(()), true) => "the replay wrote into memory that was not captured".to_owned(),
            (Ok(()), false) if stale > 0 => {
                format!("the replay used {stale} things that had been given back")
            }
            (Ok(()), false) if is_leaked => "what the graph kept is kept for ever".to_owned(),
            (Ok(()), false) => return Ok(None),
        };
        Ok(Some(problem))
    }
}

/// Columns of rows that are gathered, and of what they are multiplied with.
const COLUMNS: [usize; 2] = [8, 4];

/// Half of the memory, as such rows.
fn rows_of(memory: &SymmetricMemory<f32>) -> Result<SymmetricMemory<f32>> {
    memory.slice(..PART)
}

/// What they are multiplied with.
fn weights(input: &Private) -> Result<DeviceMatrix<'_, f32>> {
    DeviceMatrix::new(input.first(COLUMNS[0] * COLUMNS[1]), COLUMNS[0], COLUMNS[1])
}

/// Both sides of a product of [`WHOLE`] elements.
fn sides(input: &Private) -> Result<(DeviceMatrix<'_, f32>, DeviceMatrix<'_, f32>)> {
    let columns = COLUMNS[1];
    let rows = WHOLE / columns;
    let a = DeviceMatrix::new(input.first(rows * 2), rows, 2)?;
    let b = DeviceMatrix::new(input.first(2 * columns), 2, columns)?;
    Ok((a, b))
}

type Run = fn(&Stage, &mut Given) -> Result<()>;

/// Every operation that takes a stream, by where it is.
const ROWS: &[(&str, Row)] = &[
    ("memory/device/allocation.rs write", Refused(|stage, given| given.input.write(1.0, &stage.stream))),
    ("memory/device/allocation.rs read", Refused(|stage, given| given.input.read(&stage.stream).map(drop))),
    (
        "memory/device/allocation.rs salvage",
        Refused(|stage, given| given.input.salvage(&stage.stream).map(drop)),
    ),
    ("engine/cuda/bench_support.rs copy", Nothing("unsafe: its caller keeps the memory")),
    (
        "cuda/buffer.rs from_slice",
        Refused(|stage, _| Buffer::from_slice(&stage.device, &[1.0f32], &stage.stream).map(drop)),
    ),
    ("cuda/buffer.rs write", Refused(|stage, given| given.words.write(&[1; WHOLE], &stage.stream))),
    ("cuda/buffer.rs read", Refused(|stage, given| given.words.read(&stage.stream).map(drop))),
    (
        "cuda/buffer.rs fill_bytes",
        Captured(&[Itself], |stage, given| match &given.out {
            Private::Buffer(buffer) => buffer.fill_bytes(5, &stage.stream),
            Private::Allocation(_) => given.words.fill_bytes(5, &stage.stream),
        }),
    ),
    ("cuda/event.rs record", Nothing("in a capture it is an edge of the graph")),
    (
        "cuda/event.rs record_in_graph",
        Captured(&[Itself], |stage, given| given.event.record_in_graph(&stage.stream)),
    ),
    (
        "cuda/graph.rs launch",
        Captured(&[Itself], |stage, given| {
            let inner = Stream::new(&stage.device)?;
            inner.begin_capture()?;
            let captured = given.words.fill_bytes(5, &inner);
            let graph = given.graph.insert(inner.end_capture()?);
            captured?;
            graph.launch(&stage.stream)
        }),
    ),
    (
        "memory/device/handle.rs write",
        Refused(|stage, given| given.engine().0.write(&[1.0; WHOLE], &stage.stream)),
    ),
    ("memory/device/handle.rs read", Refused(|stage, given| given.engine().0.read(&stage.stream).map(drop))),
    (
        "memory/device/handle.rs salvage",
        Refused(|stage, given| given.engine().0.salvage(&stage.stream).map(drop)),
    ),
    (
        "cuda/module.rs launch",
        // SAFETY: it takes no parameters and does nothing.
        Captured(&[Itself], |stage, given| unsafe { given.function.launch(&stage.stream, 1, 32, &mut []) }),
    ),
    (
        "engine/cuda/sync.rs sync",
        Refused(|stage, _| stage.direct.sync(&stage.stream, crate::common::AT_ONCE)),
    ),
    (
        "collective/device/all_reduce.rs all_reduce",
        Captured(&[Direct, Carried], |stage, given| given.engine().0.all_reduce(SUM, &stage.stream)),
    ),
    (
        "collective/device/all_reduce.rs all_reduce_out",
        Captured(&[Direct, Carried], |stage, given| {
            let (memory, _, out) = given.engine();
            memory.all_reduce_out(SUM, out.all_mut(), &stage.stream)
        }),
    ),
    (
        "collective/device/all_reduce.rs all_reduce_from",
        Captured(&[Direct, Carried], |stage, given| {
            let (memory, input, out) = given.engine();
            memory.all_reduce_from(SUM, input.first(WHOLE), out.all_mut(), &stage.stream)
        }),
    ),
    (
        "engine/cuda/ops/barrier.rs barrier",
        Captured(&[Direct, Carried], |stage, given| given.engine().0.engine().barrier(&stage.stream)),
    ),
    (
        "collective/device/barrier.rs barrier",
        Captured(&[Direct, Carried], |stage, given| given.engine().0.barrier(0, &stage.stream)),
    ),
    (
        "engine/cuda/route.rs refuse",
        Captured(&[Direct], |stage, given| given.engine().0.engine().refuse(&stage.stream)),
    ),
    (
        "collective/device/copy.rs get",
        Captured(&[Direct], |stage, given| {
            let (memory, _, out) = given.engine();
            memory.get(stage.peer(), 0, out.all_mut(), &stage.stream)
        }),
    ),
    (
        "collective/device/copy.rs copy",
        Captured(&[Direct], |stage, given| {
            let (memory, _, out) = given.engine();
            memory.copy(stage.peer(), 0, out.all_mut(), &stage.stream)
        }),
    ),
    (
        "collective/device/copy.rs copy_in",
        Captured(&[Direct, Carried], |stage, given| {
            let (memory, input, _) = given.engine();
            memory.copy_in(0, input.first(WHOLE), &stage.stream)
        }),
    ),
    (
        "collective/device/copy.rs copy_out",
        Captured(&[Direct, Carried], |stage, given| {
            let (memory, _, out) = given.engine();
            memory.copy_out(0, out.all_mut(), &stage.stream)
        }),
    ),
    (
        "collective/device/copy.rs order_behind",
        Captured(&[Direct, Carried], |stage, given| {
            let (memory, _, _) = given.engine();
            memory.order_behind(&stage.stream)
        }),
    ),
    (
        "collective/device/copy.rs put",
        Captured(&[Direct], |stage, given| {
            let (memory, input, _) = given.engine();
            memory.put(stage.peer(), 0, input.first(WHOLE), &stage.stream)
        }),
    ),
    (
        "collective/device/multimem.rs all_gather_from",
        Captured(&[Multicast], |stage, given| {
            let (memory, input, _) = given.engine();
            memory.using(Algorithm::Multimem).all_gather_from(input.first(PART), &stage.stream)
        }),
    ),
    (
        "collective/device/norm.rs all_reduce_rms_norm",
        Captured(&[Direct, Carried], |stage, given| {
            let Given { memory, residual, input, out, .. } = given;
            let memory = memory.as_ref().expect("symmetric memory");
            memory.all_reduce_rms_norm(residual, input.first(PART), 1e-5, out.all_mut(), &stage.stream)
        }),
    ),
    (
        "collective/device/norm.rs all_reduce_rms_norm_with",
        Captured(&[Direct, Carried], |stage, given| {
            let (memory, input, out) = given.engine();
            let norm = RmsNorm::new(PART, 1e-5).input(input.first(WHOLE)).unfused();
            memory.all_reduce_rms_norm_with(norm, out.all_mut(), &stage.stream)
        }),
    ),
    (
        "collective/device/products.rs all_gather_matmul",
        Captured(&[Direct, Carried], |stage, given| {
            let (memory, input, out) = given.engine();
            let (weights, mut out) = (weights(input)?, out.all_mut());
            rows_of(memory)?.all_gather_matmul(&[weights], &mut [out.slice_mut(..PART)?], &stage.stream)
        }),
    ),
    (
        "collective/device/products.rs all_gather_matmul_and_rows",
        Captured(&[Direct, Carried], |stage, given| {
            let Given { memory, residual, input, out, .. } = given;
            let memory = rows_of(memory.as_ref().expect("symmetric memory"))?;
            let (weights, mut out) = (weights(input)?, out.all_mut());
            let outs = &mut [out.slice_mut(..PART)?];
            memory.all_gather_matmul_and_rows(&[weights], outs, residual, &stage.stream)
        }),
    ),
    (
        "collective/device/products.rs all_gather_matmul_by",
        Captured(&[Direct, Carried], |stage, given| {
            let (memory, input, out) = given.engine();
            let (weights, mut out) = (weights(input)?, out.all_mut());
            let outs = &mut [out.slice_mut(..PART)?];
            rows_of(memory)?.all_gather_matmul_by(FusedWay::Unfused, &[weights], outs, None, &stage.stream)
        }),
    ),
    (
        "collective/device/products.rs matmul_reduce_scatter",
        Captured(&[Direct, Carried], |stage, given| {
            let (memory, input, out) = given.engine();
            let (a, b) = sides(input)?;
            memory.matmul_reduce_scatter(SUM, a, b, out.all_mut().slice_mut(..PART)?, &stage.stream)
        }),
    ),
    (
        "collective/device/products.rs matmul_reduce_scatter_by",
        Captured(&[Direct, Carried], |stage, given| {
            let (memory, input, out) = given.engine();
            let (sides, mut out) = (sides(input)?, out.all_mut());
            let out = out.slice_mut(..PART)?;
            memory.matmul_reduce_scatter_by(FusedWay::Fused, SUM, sides, out, &stage.stream)
        }),
    ),
    (
        "collective/device/products.rs prepare_all_gather_matmul",
        Refused(|stage, given| {
            let (memory, input, _) = given.engine();
            rows_of(memory)?.prepare_all_gather_matmul(&[weights(input)?], &stage.stream)
        }),
    ),
    (
        "collective/device/products.rs prepare_matmul_reduce_scatter",
        Refused(|stage, given| {
            let (memory, input, _) = given.engine();
            let (a, b) = sides(input)?;
            memory.prepare_matmul_reduce_scatter(a, b, &stage.stream)
        }),
    ),
    (
        "collective/device/products.rs product_alone",
        Nothing("for the bench alone; it keeps what matmul_reduce_scatter keeps"),
    ),
    (
        "collective/device/pull.rs all_gather",
        Captured(&[Direct, Carried], |stage, given| {
            let (memory, _, out) = given.engine();
            memory.slice(..PART)?.all_gather(out.all_mut(), &stage.stream)
        }),
    ),
    (
        "collective/device/pull.rs all_to_all",
        Captured(&[Direct, Carried], |stage, given| {
            let (memory, _, out) = given.engine();
            memory.all_to_all(out.all_mut(), &stage.stream)
        }),
    ),
    (
        "collective/device/pull.rs broadcast",
        Captured(&[Direct, Carried], |stage, given| given.engine().0.broadcast(0, &stage.stream)),
    ),
    (
        "collective/device/pull.rs gather",
        Captured(&[Direct, Carried], |stage, given| {
            let (memory, _, out) = given.engine();
            memory.slice(..PART)?.gather(0, Some(out.all_mut()), &stage.stream)
        }),
    ),
    (
        "collective/device/pull.rs scatter",
        Captured(&[Direct, Carried], |stage, given| {
            let (memory, _, out) = given.engine();
            memory.scatter(0, out.all_mut().slice_mut(..PART)?, &stage.stream)
        }),
    ),
    (
        "collective/device/pull.rs reduce",
        Captured(&[Direct, Multicast, Carried], |stage, given| {
            let (memory, _, out) = given.engine();
            memory.reduce(SUM, 0, Some(out.all_mut()), &stage.stream)
        }),
    ),
    (
        "collective/device/pull.rs reduce_scatter",
        Captured(&[Direct, Carried], |stage, given| {
            let (memory, _, out) = given.engine();
            memory.reduce_scatter(SUM, out.all_mut().slice_mut(..PART)?, &stage.stream)
        }),
    ),
    (
        "collective/device/pull.rs reduce_scatter_columns",
        Captured(&[Direct], |stage, given| {
            let (memory, _, out) = given.engine();
            memory.reduce_scatter_columns(SUM, 8, out.all_mut().slice_mut(..PART)?, &stage.stream)
        }),
    ),
    (
        "collective/device/signal.rs put_signal",
        Captured(&[Direct, Carried], |stage, given| {
            given.engine().0.put_signal(stage.peer(), 0, &stage.stream)
        }),
    ),
    (
        "collective/device/signal.rs wait_signal",
        Captured(&[Direct, Carried], |stage, given| {
            given.engine().0.wait_signal(stage.peer(), 0, &stage.stream)
        }),
    ),
    (
        "engine/cuda/ops/words.rs memset32",
        Captured(&[Itself], |stage, given| {
            given.words.as_slice_mut().memset32(0, 7, WHOLE as i64, &stage.stream)
        }),
    ),
    (
        "collective/device/words.rs memset32",
        Captured(&[Direct], |stage, given| {
            given.engine().0.cast::<u32>()?.memset32(0, 7, WHOLE as i64, &stage.stream)
        }),
    ),
    (
        "engine/cuda/ops/words.rs stream_write_value32",
        Refused(|stage, given| given.words.as_slice_mut().stream_write_value32(0, 7, &stage.stream)),
    ),
    (
        "collective/device/words.rs stream_write_value32",
        Refused(|stage, given| given.engine().0.cast::<u32>()?.stream_write_value32(0, 7, &stage.stream)),
    ),
    (
        "nccl/collectives.rs all_reduce",
        Captured(&[Nccl], |stage, given| {
            let (nccl, input, out) = given.nccl();
            nccl.all_reduce(input.first(WHOLE), out.all_mut(), SUM, &stage.stream)
        }),
    ),
    (
        "nccl/collectives.rs all_reduce_in_place",
        Captured(&[Nccl], |stage, given| {
            let (nccl, _, out) = given.nccl();
            nccl.all_reduce_in_place(out.all_mut(), SUM, &stage.stream)
        }),
    ),
    (
        "nccl/collectives.rs reduce",
        Captured(&[Nccl], |stage, given| {
            let (nccl, input, out) = given.nccl();
            nccl.reduce(input.first(WHOLE), Some(out.all_mut()), SUM, 0, &stage.stream)
        }),
    ),
    (
        "nccl/collectives.rs broadcast",
        Captured(&[Nccl], |stage, given| {
            let (nccl, _, out) = given.nccl();
            nccl.broadcast(out.all_mut(), 0, &stage.stream)
        }),
    ),
    (
        "nccl/collectives.rs all_gather",
        Captured(&[Nccl], |stage, given| {
            let (nccl, input, out) = given.nccl();
            nccl.all_gather(input.first(PART), out.all_mut(), &stage.stream)
        }),
    ),
    (
        "nccl/collectives.rs reduce_scatter",
        Captured(&[Nccl], |stage, given| {
            let (nccl, input, out) = given.nccl();
            nccl.reduce_scatter(input.first(WHOLE), out.all_mut().slice_mut(..PART)?, SUM, &stage.stream)
        }),
    ),
    (
        "nccl/collectives.rs all_to_all",
        Captured(&[Nccl], |stage, given| {
            let (nccl, input, out) = given.nccl();
            nccl.all_to_all(input.first(WHOLE), out.all_mut(), &stage.stream)
        }),
    ),
    (
        "nccl/collectives.rs send",
        Captured(&[Nccl], |stage, given| {
            let (nccl, input, _) = given.nccl();
            nccl.send(input.first(WHOLE), stage.peer(), &stage.stream)
        }),
    ),
    (
        "nccl/collectives.rs recv",
        Captured(&[Nccl], |stage, given| {
            let (nccl, _, out) = given.nccl();
            nccl.recv(out.all_mut(), stage.peer(), &stage.stream)
        }),
    ),
    (
        "nccl/collectives.rs gather",
        Captured(&[Nccl], |stage, given| {
            let (nccl, input, out) = given.nccl();
            nccl.gather(input.first(PART), Some(out.all_mut()), 0, &stage.stream)
        }),
    ),
    (
        "nccl/collectives.rs scatter",
        Captured(&[Nccl], |stage, given| {
            let (nccl, input, out) = given.nccl();
            nccl.scatter(Some(input.first(WHOLE)), out.all_mut().slice_mut(..PART)?, 0, &stage.stream)
        }),
    ),
    ("nccl/raw.rs all_reduce_raw", Nothing(UNSAFE)),
    ("nccl/raw.rs reduce_raw", Nothing(UNSAFE)),
    ("nccl/raw.rs reduce_scatter_raw", Nothing(UNSAFE)),
    ("nccl/raw.rs broadcast_raw", Nothing(UNSAFE)),
    ("nccl/raw.rs all_gather_raw", Nothing(UNSAFE)),
    ("nccl/raw.rs send_raw", Nothing(UNSAFE)),
    ("nccl/raw.rs recv_raw", Nothing(UNSAFE)),
    ("nccl/raw.rs all_to_all_raw", Nothing(UNSAFE)),
    ("nccl/raw.rs gather_raw", Nothing(UNSAFE)),
    ("nccl/raw.rs scatter_raw", Nothing(UNSAFE)),
    (
        "nccl/raw.rs signal",
        Captured(&[Nccl], |stage, given| given.nccl().0.signal(stage.peer(), &stage.stream)),
    ),
    (
        "nccl/raw.rs wait_signal",
        Captured(&[Nccl], |stage, given| given.nccl().0.wait_signal(stage.peer(), &stage.stream)),
    ),
];

const UNSAFE: &str = "unsafe: its caller keeps the memory";

/// Public functions that take a stream, in the sources below `folder`, by file and name.
fn operations(folder: &Path, root: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("sources") {
        let path = entry.expect("sources").path();
        if path.is_dir() {
            operations(&path, root, found);
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let file = path.strip_prefix(root).expect("below it").display().to_string();
        for (at, _) in code.match_indices("pub ") {
            let rest = code[at + 4..].trim_start_matches("unsafe ");
            let Some(head) = rest.strip_prefix("fn ").and_then(|rest| rest.split('{').next()) else {
                continue;
            };
            let name = head.split(['(', '<']).next().unwrap_or_default();
            if head.contains("&Stream") {
                found.push(format!("{file} {name}"));
            }
        }
    }
}

#[test]
fn every_operation_that_takes_a_stream_is_in_the_list() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    for folder in ["collective/device", "cuda", "engine/cuda", "memory/device", "nccl"] {
        operations(&root.join(folder), &root, &mut found);
    }
    let mut listed: Vec<_> = ROWS.iter().map(|(name, _)| (*name).to_owned()).collect();
    found.sort();
    listed.sort();
    assert_eq!(found, listed, "an operation has no row, or a row no operation");
    for (name, row) in ROWS {
        if let Nothing(why) = row {
            assert!(!why.is_empty(), "{name}");
        }
    }
}

#[test]
fn every_operation_keeps_what_it_was_captured_with() {
    const NAME: &str = "captures::every_operation_keeps_what_it_was_captured_with";
    fake::run(NAME, &[DEVICES, ("FAKECUDA_MULTICAST", "1")], || {
        symmem::spawn(WORLD, |group| {
            let stage = Stage::new(group)?;
            let mut problems = Vec::new();
            for (name, row) in ROWS {
                let Captured(kinds, run) = row else { continue };
                for (on, as_allocation) in kinds.iter().flat_map(|on| [(*on, false), (*on, true)]) {
                    let found = stage.try_row(on, as_allocation, *run)?;
                    let memory = if as_allocation { "allocations" } else { "buffers" };
                    problems.extend(found.map(|problem| format!("{name}, {on:?}, {memory}: {problem}")));
                }
            }
            stage.group.barrier()?;
            assert!(problems.is_empty(), "{}", problems.join("\n"));
            Ok(())
        })
        .unwrap();
        assert_eq!(cuda::stale(), 0);
    });
}

#[test]
fn what_cannot_be_captured_is_refused() {
    fake::run("captures::what_cannot_be_captured_is_refused", &[DEVICES], || {
        symmem::spawn(WORLD, |group| {
            let stage = Stage::new(group)?;
            let mut given = Given::new(&stage, Direct, false)?;
            stage.stream.begin_capture()?;
            for (name, row) in ROWS {
                if let Refused(run) = row {
                    assert!(run(&stage, &mut given).is_err(), "{name} in a capture");
                }
            }
            let graph = stage.stream.end_capture()?;
            graph.launch(&stage.stream)?;
            assert_eq!(graph.kernel_count(), 0);
            stage.group.barrier()
        })
        .unwrap();
    });
}

#[test]
fn symmetric_memory_that_was_given_as_private_is_kept() {
    fake::run("captures::symmetric_memory_that_was_given_as_private_is_kept", &[DEVICES], || {
        symmem::spawn(WORLD, |group| {
            let stage = Stage::new(group)?;
            let memory = stage.direct.alloc::<f32>(WHOLE)?.rendezvous(&stage.direct)?;
            let other = stage.direct.alloc::<f32>(WHOLE)?.rendezvous(&stage.direct)?;
            stage.stream.begin_capture()?;
            let captured = memory.put(stage.peer(), 0, other.local()?, &stage.stream);
            let graph = stage.stream.end_capture()?;
            captured?;
            drop((memory, other));
            stage.group.barrier()?;
            let _others = stage.direct.alloc::<f32>(WHOLE)?.rendezvous(&stage.direct)?;
            graph.launch(&stage.stream)?;
            stage.group.barrier()
        })
        .unwrap();
        assert_eq!(cuda::stale(), 0);
    });
}

#[test]
fn a_graph_keeps_the_communicator_of_its_operations() {
    fake::run("captures::a_graph_keeps_the_communicator_of_its_operations", &[DEVICES], || {
        let device = Device::new(0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let id = symmem::nccl::UniqueId::new().unwrap();
        let nccl = Communicator::with_id(&id, 0, 1, &device).unwrap();
        let mut buffer = Buffer::<f32>::new(&device, 16).unwrap();
        stream.begin_capture().unwrap();
        nccl.all_reduce_in_place(&mut buffer, SUM, &stream).unwrap();
        let graph = stream.end_capture().unwrap();
        drop((nccl, buffer));
        let _makes_room = Buffer::<u8>::new(&device, 1).unwrap();
        assert_eq!(fake::live()[0], 1, "the graph's communicator");
        graph.launch(&stream).unwrap();
        drop(graph);
        let _makes_room = Buffer::<u8>::new(&device, 1).unwrap();
        assert_eq!((fake::live()[0], fake::violations(), cuda::stale()), (0, 0, 0));
    });
}
