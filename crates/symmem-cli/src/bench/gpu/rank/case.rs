//! A prepared case of ours: its memory, its graphs, a round, a check.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use symmem::cuda::bench_support;
use symmem::cuda::{
    Algorithm, Buffer, DeviceSlice, DeviceSliceMut, Engine, Event, Graph, SymmetricMemory, Tune,
};
use symmem::{DType, ReduceOp, bf16};

use super::norm::NormMemory;
use super::product::ProductCase;
use super::{DEADLINE, Lab};
use crate::args::Form;
use crate::bench::gpu::plan::{BenchedWork, ELEMENT, Task};
use crate::bench::gpu::protocol::Answer;

/// How long the stream is kept busy while a round is put into it.
const DELAY_NS: u64 = 200_000;

/// Memory that is not symmetric, where there is any.
pub(super) type Ordinary = Option<Arc<Buffer<bf16>>>;

/// What was prepared. The memory it works on lives as long as this.
pub(super) struct Prepared {
    // Graphs before what they work on.
    graphs: Option<[Graph; 2]>,
    task: Task,
    /// One for each operation of a graph, one for all otherwise.
    operations: Vec<Operation>,
    /// What the fill fills.
    filled: u64,
    events: [Event; 4],
    inputs: Ordinary,
    outputs: Ordinary,
    /// Of norms.
    norm: Option<NormMemory>,
    /// The matrices, where some are multiplied.
    product: Option<ProductCase>,
}

/// One operation: from where to where.
struct Operation {
    memory: SymmetricMemory<bf16>,
    /// The first element of its input, which is what its values are made of.
    first: usize,
    input: u64,
    output: u64,
}

/// A prepared case, and what it needs to run.
pub(super) struct Running<'a> {
    pub(super) lab: &'a Lab,
    pub(super) prepared: &'a Prepared,
}

impl Prepared {
    /// Collective. Everything that is not measured.
    pub(super) fn new(lab: &mut Lab, task: Task) -> Result<(Self, Answer)> {
        let (inputs, outputs) = lab.ordinary(&task)?;
        let memory = lab.memory_for(&task)?;
        let filled = inputs.as_ref().map_or(lab.arena.device_ptr(), |inputs| inputs.device_ptr());
        let norm = task.norm.map(|norm| NormMemory::new(norm, task.elements, &lab.device, &lab.stream));
        let norm = norm.transpose()?;
        let count = if is_filled(&task) { task.nodes } else { 1 };
        let to = outputs.as_ref().map(|outputs| outputs.device_ptr());
        // What is checked of a norm: the sum, which the rest is worked out from.
        let to = norm.as_ref().map(NormMemory::residual).or(to);
        let operations = (0..count).map(|node| operation(&memory, &task, node, filled, to));
        let events = || Event::timed(&lab.device);
        let product = ProductCase::new(lab, &task)?;
        let mut prepared = Self {
            graphs: None,
            operations: operations.collect::<Result<_>>()?,
            filled,
            events: [events()?, events()?, events()?, events()?],
            inputs,
            outputs,
            norm,
            product,
            task,
        };
        if let Some(product) = &prepared.product {
            product.prepare(&prepared.task, &memory, &lab.stream)?;
        }
        let answer = Running { lab, prepared: &prepared }.describe(memory.engine())?;
        let graphs = Running { lab, prepared: &prepared }.capture()?;
        prepared.graphs = graphs;
        Ok((prepared, answer))
    }
}

/// Whether graphs of it have fills.
fn is_filled(task: &Task) -> bool {
    matches!(task.work, BenchedWork::AllReduce | BenchedWork::Norm)
}

/// Microseconds between two events.
fn elapsed([start, end]: [&Event; 2]) -> Result<f64> {
    Ok(f64::from(end.elapsed_ms_since(start)?) * 1e3)
}

fn operation(
    memory: &SymmetricMemory<bf16>,
    task: &Task,
    node: usize,
    filled: u64,
    outputs: Option<u64>,
) -> Result<Operation> {
    let first = task.offset + node * task.stride;
    let begin = if task.form == Form::Private { 0 } else { first };
    let input = filled + (first * ELEMENT) as u64;
    let output = outputs.map_or(input, |outputs| outputs + (node * task.out_stride * ELEMENT) as u64);
    Ok(Operation { memory: memory.slice(begin..begin + task.elements)?, first, input, output })
}

impl Lab {
    /// Ordinary memory for a case, where its form has any. What is too small is replaced; cases that use it
    /// keep it.
    fn ordinary(&mut self, task: &Task) -> Result<(Ordinary, Ordinary)> {
        let device = &self.device;
        let at_least = |known: &mut Ordinary, elements: usize| -> Result<_> {
            match known {
                Some(buffer) if buffer.len() >= elements => {}
                _ => *known = Some(Arc::new(Buffer::new(device, elements)?)),
            }
            Ok(known.clone())
        };
        let is_reduced = matches!(task.work, BenchedWork::AllReduce | BenchedWork::Eager);
        let has_own = |form: bool| task.work == BenchedWork::Copy || (is_reduced && form);
        // Where norms go is in memory of their own.
        let is_read = task.form == Form::Private && (is_reduced || task.norm.is_some());
        let inputs = match is_read || task.work == BenchedWork::Copy {
            true => at_least(&mut self.inputs, task.input_elements())?,
            false => None,
        };
        let outputs = match has_own(task.form != Form::InPlace) {
            true => at_least(&mut self.outputs, task.out_stride * task.nodes + task.elements)?,
            false => None,
        };
        Ok((inputs, outputs))
    }

    /// The arena, for an engine that does as the task says.
    fn memory_for(&self, task: &Task) -> Result<SymmetricMemory<bf16>> {
        let algorithm = task.variant.parse::<Algorithm>().ok();
        if algorithm.is_none() && task.grid.is_none() && task.threads.is_none() {
            return Ok(self.memory.clone());
        }
        let tune = Tune { blocks: task.grid, threads: task.threads, ..Tune::default() };
        let engine = self.engine.tuned(tune);
        let engine = algorithm.map_or(engine.clone(), |algorithm| engine.using(algorithm));
        // Collective, but maps nothing: the arena's own handle is alive.
        Ok(self.arena.rendezvous(&engine)?)
    }
}

impl Running<'_> {
    /// How the operation runs.
    fn describe(&self, engine: &Engine) -> Result<Answer> {
        let task = &self.prepared.task;
        if let Some(norm) = task.norm.filter(|norm| norm.fused) {
            let row = norm.columns * ELEMENT;
            let (algorithm, grid, threads) =
                bench_support::norm_plan(engine, (task.elements / norm.columns, row))?;
            let (algorithm, grid, threads) = (Some(algorithm.name().to_owned()), Some(grid), Some(threads));
            return Ok(Answer { algorithm, grid, threads, ..Answer::default() });
        }
        if task.norm.is_some() {
            return Ok(Answer { algorithm: Some("two steps".to_owned()), ..Answer::default() });
        }
        if !matches!(task.work, BenchedWork::AllReduce | BenchedWork::Eager) {
            return Ok(Answer { algorithm: Some(task.variant.clone()), ..Answer::default() });
        }
        let plan = engine.plan(task.form.into(), DType::BF16, task.elements * ELEMENT)?;
        Ok(Answer {
            algorithm: Some(plan.algorithm.name().to_owned()),
            grid: Some(plan.grid),
            threads: Some(plan.threads),
            registers: Some(plan.registers),
            ..Answer::default()
        })
    }

    /// Runs everything once, then captures the graph with operations and that without.
    fn capture(&self) -> Result<Option<[Graph; 2]>> {
        let task = &self.prepared.task;
        if task.work == BenchedWork::Copy {
            return Ok(None);
        }
        if task.work != BenchedWork::Barrier && !task.work.multiplies() {
            self.fill(0)?;
        }
        self.operate(0)?;
        self.bump()?;
        self.sync()?;
        if task.work == BenchedWork::Eager {
            return Ok(None);
        }
        Ok(Some([self.graph(true)?, self.graph(false)?]))
    }

    fn graph(&self, operates: bool) -> Result<Graph> {
        let stream = &self.lab.stream;
        stream.begin_capture()?;
        let put = self.put(operates);
        // Ends the capture even if something in it failed.
        let graph = stream.end_capture();
        put?;
        Ok(graph?)
    }

    /// What is in a graph. The time is taken between two events of its own, behind a barrier: how far apart
    /// the ranks' graphs start is no part of it.
    fn put(&self, operates: bool) -> Result<()> {
        let task = &self.prepared.task;
        let [start, end] = self.events(operates);
        self.lab.engine.barrier(&self.lab.stream)?;
        start.record_in_graph(&self.lab.stream)?;
        let fills = is_filled(task);
        if fills && !task.fill_each {
            self.fill(0)?;
        }
        for node in 0..task.nodes {
            if fills && task.fill_each {
                self.fill(node)?;
            }
            if operates {
                self.operate(node)?;
            }
        }
        self.bump()?;
        Ok(end.record_in_graph(&self.lab.stream)?)
    }

    /// Those that a graph's time is taken between.
    fn events(&self, operates: bool) -> [&Event; 2] {
        let [first, second, third, fourth] = &self.prepared.events;
        if operates { [first, second] } else { [third, fourth] }
    }

    fn fill(&self, node: usize) -> Result<()> {
        let (task, lab) = (&self.prepared.task, self.lab);
        let (count, blocks) = (u32::try_from(task.fill_elements)?, u32::try_from(task.fill_blocks)?);
        let to = self.prepared.filled;
        // SAFETY: the arena, or ordinary memory of at least so many elements; both outlive what was prepared,
        // and it is dropped when its work is done. Allocations begin at multiples of far more than 16 bytes.
        unsafe { lab.kernels.fill(&lab.stream, to, count, lab.rank, u32::try_from(node)?, blocks) }
    }

    fn bump(&self) -> Result<()> {
        self.lab.kernels.bump(&self.lab.stream, u32::try_from(self.prepared.task.nodes)?)
    }

    /// Puts operation `node` on the stream.
    fn operate(&self, node: usize) -> Result<()> {
        let (task, stream) = (&self.prepared.task, &self.lab.stream);
        if task.work == BenchedWork::Barrier {
            return Ok(self.lab.engine.barrier(stream)?);
        }
        let first = if task.work.multiplies() { 0 } else { node };
        let operation = self.prepared.operations.get(first).context("there is no such operation")?;
        let Operation { memory, input, output, .. } = operation;
        if let Some(norm) = &self.prepared.norm {
            let inputs = self.prepared.inputs.as_ref();
            let input = inputs.map(|inputs| inputs.as_slice().slice(..task.elements)).transpose()?;
            return norm.operate(memory, input, stream);
        }
        if let Some(product) = &self.prepared.product {
            return product.operate(task, memory, stream);
        }
        if task.work == BenchedWork::Copy {
            // SAFETY: both are ordinary memory of so many elements, kept as in `fill`.
            return Ok(unsafe { bench_support::copy(*output, *input, task.elements * ELEMENT, stream) }?);
        }
        // SAFETY: ordinary memory of so many elements, kept as in `fill`; nothing else works on the output.
        let out = || unsafe { DeviceSliceMut::from_raw(*output, task.elements, &self.lab.device) };
        match task.form {
            Form::InPlace => memory.all_reduce(ReduceOp::Sum, stream)?,
            Form::Out => memory.all_reduce_out(ReduceOp::Sum, out()?, stream)?,
            Form::Private => {
                // SAFETY: as above.
                let from = unsafe { DeviceSlice::from_raw(*input, task.elements, &self.lab.device) }?;
                memory.all_reduce_from(ReduceOp::Sum, from, out()?, stream)?;
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(self.lab.engine.sync(&self.lab.stream, DEADLINE)?)
    }

    /// One timed run.
    pub(super) fn round(&self, round: usize) -> Result<Answer> {
        let (with, without) = match self.prepared.task.work {
            BenchedWork::Eager => (self.eager()?, 0.0),
            BenchedWork::Copy => (self.copies()?, 0.0),
            _ => self.replays(round)?,
        };
        Ok(Answer { with_us: Some(with), without_us: Some(without), ..Answer::default() })
    }

    /// Both graphs, one after the other; odd rounds begin with the other one. Another system or graph has
    /// just had its turn, so a replay that nobody times brings code and translations back to where they are
    /// in steady use.
    fn replays(&self, round: usize) -> Result<(f64, f64)> {
        let Some([with, without]) = &self.prepared.graphs else { bail!("there are no graphs") };
        let stream = &self.lab.stream;
        for graph in if round.is_multiple_of(2) { [with, without] } else { [without, with] } {
            graph.launch(stream)?;
            // Hides how long the host takes to put the next one there, whose events then stand.
            self.lab.kernels.delay(stream, DELAY_NS)?;
            graph.launch(stream)?;
        }
        self.sync()?;
        Ok((elapsed(self.events(true))?, elapsed(self.events(false))?))
    }

    /// All ranks at the same time, between two events.
    fn copies(&self) -> Result<f64> {
        let (stream, [start, end]) = (&self.lab.stream, self.events(true));
        self.lab.kernels.delay(stream, DELAY_NS)?;
        self.lab.engine.barrier(stream)?;
        start.record(stream)?;
        (0..self.prepared.task.nodes).try_for_each(|_| self.operate(0))?;
        end.record(stream)?;
        self.sync()?;
        elapsed([start, end])
    }

    /// By the host's clock, until the last one is done.
    fn eager(&self) -> Result<f64> {
        let stream = &self.lab.stream;
        self.fill(0)?;
        self.lab.engine.barrier(stream)?;
        self.sync()?;
        let start = Instant::now();
        for _ in 0..self.prepared.task.nodes {
            self.operate(0)?;
        }
        stream.synchronize()?;
        let elapsed = start.elapsed();
        self.sync()?;
        Ok(elapsed.as_secs_f64() * 1e6)
    }

    /// One run on values that are known, of which every element is checked.
    pub(super) fn verify(&self) -> Result<Answer> {
        let (lab, task) = (self.lab, &self.prepared.task);
        if task.work == BenchedWork::Barrier {
            return self.verify_barrier();
        }
        if let Some(norm) = &self.prepared.norm {
            return self.verify_norm(norm);
        }
        if let (Some(product), Some([with, _])) = (&self.prepared.product, &self.prepared.graphs) {
            product.poison(&lab.stream)?;
            with.launch(&lab.stream)?;
            self.sync()?;
            return Ok(Answer { wrong: Some(product.wrong(lab, task)?), ..Answer::default() });
        }
        if let Some(outputs) = &self.prepared.outputs {
            // SAFETY: the memory is that long, and kept as in `fill`.
            unsafe { lab.kernels.poison(&lab.stream, outputs.device_ptr(), u32::try_from(outputs.len())?) }?;
        }
        let nodes = task.nodes;
        match task.work {
            BenchedWork::Eager | BenchedWork::Copy => {
                self.fill(0)?;
                self.operate(0)?;
                self.check(0, 0)?;
                self.bump()?;
            }
            _ => {
                let Some([with, _]) = &self.prepared.graphs else { bail!("there are no graphs") };
                with.launch(&lab.stream)?;
                // The graph has moved the counter on.
                match task.fill_each {
                    true => self.check(nodes - 1, 1)?,
                    false => (0..nodes).try_for_each(|node| self.check(node, nodes))?,
                }
            }
        }
        self.sync()?;
        Ok(Answer { wrong: Some(lab.kernels.wrong(&lab.stream)?), ..Answer::default() })
    }

    /// The sum by the kernel that checks sums, and the rest on the host. Not what a graph leaves, in which
    /// every operation adds to the residual.
    fn verify_norm(&self, norm: &NormMemory) -> Result<Answer> {
        let lab = self.lab;
        norm.clear(&lab.stream)?;
        self.fill(0)?;
        self.operate(0)?;
        self.check(0, 0)?;
        self.bump()?;
        self.sync()?;
        let wrong = lab.kernels.wrong(&lab.stream)? + norm.wrong(&lab.stream)?;
        Ok(Answer { wrong: Some(wrong), ..Answer::default() })
    }

    fn check(&self, node: usize, back: usize) -> Result<()> {
        let (lab, task) = (self.lab, &self.prepared.task);
        let operation = self.prepared.operations.get(node).context("there is no such operation")?;
        let (count, first) = (u32::try_from(task.elements)?, u32::try_from(operation.first)?);
        if task.work == BenchedWork::Copy {
            // A copy has one rank's values, which is the sum over ranks for the first one only.
            return self.check_copy(operation);
        }
        // SAFETY: the result of an operation is memory of so many elements, kept as in `fill`.
        unsafe {
            lab.kernels.check(&lab.stream, operation.output, count, first, lab.ranks, u32::try_from(back)?)
        }
    }

    /// Copies back where it came from: both must be equal, which one look at the host tells.
    fn check_copy(&self, operation: &Operation) -> Result<()> {
        let (lab, task) = (self.lab, &self.prepared.task);
        let (Some(from), Some(to)) = (&self.prepared.inputs, &self.prepared.outputs) else {
            bail!("a copy has memory of its own");
        };
        debug_assert_eq!((operation.input, operation.output), (from.device_ptr(), to.device_ptr()));
        let (from, to) = (from.read(&lab.stream)?, to.read(&lab.stream)?);
        let differ =
            from.iter().zip(&to).take(task.elements).any(|(from, to)| from.to_bits() != to.to_bits());
        if differ { bail!("a copy within the device is not right") } else { Ok(()) }
    }

    /// Nobody may leave before the last one came: ranks come one after the other, and note both times.
    fn verify_barrier(&self) -> Result<Answer> {
        let (lab, stream) = (self.lab, &self.lab.stream);
        let Some([with, _]) = &self.prepared.graphs else { bail!("there are no graphs") };
        with.launch(stream)?;
        self.sync()?;
        lab.kernels.delay(stream, u64::from(lab.rank) * DELAY_NS)?;
        lab.kernels.stamp(stream, 0)?;
        lab.engine.barrier(stream)?;
        lab.kernels.stamp(stream, 1)?;
        self.sync()?;
        let [came, left] = lab.kernels.stamps(stream)?;
        let tell = |time| lab.one_device.then_some(time);
        Ok(Answer { wrong: Some(0), came_ns: tell(came), left_ns: tell(left), ..Answer::default() })
    }
}
