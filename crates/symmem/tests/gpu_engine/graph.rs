//! Captured operations, replayed: new inputs each time, on another stream, with other operations in between,
//! and across the wrap of the epochs. Item 31 of the reference's list.

use std::time::Duration;

use symmem::cuda::{Buffer, Graph, Settings, Stream, SymmetricMemory};
use symmem::{ReduceOp, Result, bf16};

use crate::stage::{PATIENCE, Rank, device, on_threads, settings};
use crate::trial::{Pattern, Random};

/// Elements of the messages of a graph: sizes that change algorithm and grid.
const LENS: [usize; 5] = [1, 1000, 8 << 10, 100_003, 400_000];
const REPLAYS: usize = 30;

/// One message of the graph, in memory of its own.
struct Message {
    memory: SymmetricMemory<bf16>,
    out: Buffer<bf16>,
}

impl Message {
    fn new(rank: &Rank, len: usize) -> Result<Self> {
        let memory = rank.engine.alloc(len)?.rendezvous(&rank.engine)?;
        Ok(Self { memory, out: Buffer::new(&rank.device, len)? })
    }

    fn len(&self) -> usize {
        self.memory.len()
    }

    /// Lays out this rank's elements; returns what is expected.
    fn write(&self, rank: &Rank, seed: u64, stream: &Stream) -> Result<Pattern<bf16>> {
        let all: Vec<Pattern<bf16>> =
            (0..rank.group.size()).map(|rank| Pattern::new(seed, rank, self.len())).collect();
        self.memory.write(&all[rank.rank()].to_vec(0, self.len()), stream)?;
        Ok(Pattern::reduced(ReduceOp::Sum, &all))
    }

    /// Out of place for every other message, so that both kinds are in the graph.
    fn reduce(&mut self, number: usize, stream: &Stream) -> Result<()> {
        match number % 2 {
            0 => self.memory.all_reduce(ReduceOp::Sum, stream),
            _ => self.memory.all_reduce_out(ReduceOp::Sum, &mut self.out, stream),
        }
    }

    fn check(&self, number: usize, expected: &Pattern<bf16>, stream: &Stream) -> Result<()> {
        let found = match number % 2 {
            0 => self.memory.read(stream)?,
            _ => self.out.read(stream)?,
        };
        expected.check(0, &found).unwrap_or_else(|problem| panic!("message {number}: {problem}"));
        Ok(())
    }
}

/// Sleeps for up to 200 microseconds, differently on each rank.
fn dawdle(random: &mut Random) {
    std::thread::sleep(Duration::from_micros(random.below(200) as u64));
}

fn capture(rank: &Rank, messages: &mut [Message]) -> Result<Graph> {
    rank.engine.prepare()?;
    rank.stream.begin_capture()?;
    for (number, message) in messages.iter_mut().enumerate() {
        message.reduce(number, &rank.stream)?;
    }
    let graph = rank.stream.end_capture()?;
    assert_eq!(graph.kernel_count(), messages.len());
    Ok(graph)
}

fn replay(rank: &Rank) -> Result<()> {
    let mut messages = LENS.iter().map(|len| Message::new(rank, *len)).collect::<Result<Vec<_>>>()?;
    let mut eager = Message::new(rank, 5000)?;
    let graph = capture(rank, &mut messages)?;
    let other = rank.engine.stream()?;
    let mut common = Random::new(5);
    let mut own = Random::new(100 + rank.rank() as u64);
    rank.ready()?;
    for round in 0..REPLAYS {
        let stream = if round % 2 == 0 { &rank.stream } else { &other };
        let seeds: Vec<u64> = messages.iter().map(|_| common.next()).collect();
        let mut expected = Vec::new();
        for (message, seed) in messages.iter().zip(&seeds) {
            expected.push(message.write(rank, *seed, stream)?);
        }
        dawdle(&mut own);
        graph.launch(stream)?;
        // In the order of the same stream: replays and other operations of a lane must not overlap.
        let expected_eager = eager.write(rank, common.next(), stream)?;
        dawdle(&mut own);
        eager.reduce(0, stream)?;
        rank.engine.sync(stream, PATIENCE)?;
        for (number, message) in messages.iter().enumerate() {
            message.check(number, &expected[number], stream)?;
        }
        eager.check(0, &expected_eager, stream)?;
    }
    rank.end()
}

#[test]
fn replays_are_right_with_new_inputs_and_other_operations_in_between() {
    if device().is_none() {
        return;
    }
    for world in [2, 3, 4] {
        on_threads(world, &settings(), replay);
    }
}

#[test]
fn replays_are_right_across_the_wrap_of_the_epochs() {
    if device().is_none() {
        return;
    }
    let wraps = Settings { first_epoch: u64::from(u32::MAX) - 90, ..settings() };
    for world in [2, 4] {
        on_threads(world, &wraps, replay);
    }
}

#[test]
fn a_graph_keeps_engine_and_memory_alive() {
    if device().is_none() {
        return;
    }
    on_threads(2, &settings(), |rank| {
        let memory = rank.engine.alloc::<f32>(1000)?.rendezvous(&rank.engine)?;
        let address = memory.peer_ptr(rank.rank())?;
        memory.write(&vec![1.0; 1000], &rank.stream)?;
        rank.stream.begin_capture()?;
        memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
        let graph = rank.stream.end_capture()?;
        drop(memory);
        rank.ready()?;
        for _ in 0..3 {
            graph.launch(&rank.stream)?;
        }
        rank.sync()?;
        // SAFETY: the graph keeps the memory.
        let kept = unsafe { symmem::cuda::DeviceSlice::<f32>::from_raw(address, 1000, &rank.device) }?;
        let copy = rank.engine.alloc::<f32>(1000)?.rendezvous(&rank.engine)?;
        rank.ready()?;
        copy.put(rank.rank(), 0, kept, &rank.stream)?;
        rank.sync()?;
        assert_eq!(copy.read(&rank.stream)?, vec![8.0; 1000]);
        rank.end()
    });
}

#[test]
fn what_cannot_be_captured_says_so_and_drops_do_no_harm() {
    if device().is_none() {
        return;
    }
    on_threads(2, &settings(), |rank| {
        let spare = Buffer::<u8>::new(&rank.device, 1000)?;
        rank.stream.begin_capture()?;
        drop(spare);
        let error = rank.engine.alloc::<f32>(8).unwrap_err().to_string();
        assert!(error.contains("before begin_capture"), "{error}");
        rank.engine.barrier(&rank.stream)?;
        let graph = rank.stream.end_capture()?;
        rank.ready()?;
        graph.launch(&rank.stream)?;
        rank.end()
    });
}
