//! Captured operations and their replays. Each is run once before it is captured: whoever carries it may have
//! something to set up.

use symmem::cuda::{Buffer, Event, Graph, Stream, SymmetricMemory};
use symmem::{ReduceOp, Result, bf16};

use crate::suite::device::rank::{PATIENCE, Rank};
use crate::suite::value::{addend, assert_elements, elements};

/// Elements of the messages of a graph: sizes that change algorithm and grid.
const LENS: [usize; 5] = [1, 1000, 8 << 10, 100_003, 400_000];
const REPLAYS: usize = 6;

/// One message of the graph, in memory of its own.
struct Message {
    memory: SymmetricMemory<bf16>,
    out: Buffer<bf16>,
    is_in_place: bool,
}

impl Message {
    fn new(rank: &Rank, len: usize, is_in_place: bool) -> Result<Self> {
        Ok(Self { memory: rank.memory(len)?, out: rank.buffer(len)?, is_in_place })
    }

    /// What `rank` brings in a round.
    fn input(round: usize, rank: usize, at: usize) -> usize {
        addend(rank + round, at + 3 * round)
    }

    fn write(&self, rank: &Rank, round: usize, stream: &Stream) -> Result<()> {
        self.memory.write(&elements(self.memory.len(), |at| Self::input(round, rank.rank(), at)), stream)
    }

    fn reduce(&mut self, stream: &Stream) -> Result<()> {
        match self.is_in_place {
            true => self.memory.all_reduce(ReduceOp::Sum, stream),
            false => self.memory.all_reduce_out(ReduceOp::Sum, &mut self.out, stream),
        }
    }

    fn check(&self, rank: &Rank, round: usize, stream: &Stream) -> Result<()> {
        let found = if self.is_in_place { self.memory.read(stream)? } else { self.out.read(stream)? };
        let sum = |at: usize| (0..rank.world()).map(|rank| Self::input(round, rank, at)).sum();
        assert_elements(&format!("round {round}, {} elements", found.len()), &found, sum);
        Ok(())
    }
}

/// Collective. Captures what `give` gives this rank's stream, after it has run once.
fn capture(rank: &Rank, mut give: impl FnMut() -> Result<()>) -> Result<Graph> {
    rank.ready()?;
    give()?;
    rank.end()?;
    rank.engine.prepare()?;
    rank.stream.begin_capture()?;
    let given = give();
    let graph = rank.stream.end_capture()?;
    given?;
    rank.ready()?;
    Ok(graph)
}

pub(crate) fn replays_are_right_with_other_operations_in_between(rank: &Rank) -> Result<()> {
    let message = |(number, len): (usize, usize)| Message::new(rank, len, number % 2 == 0);
    let mut messages = LENS.into_iter().enumerate().map(message).collect::<Result<Vec<_>>>()?;
    let mut eager = Message::new(rank, 5000, true)?;
    let graph = capture(rank, || messages.iter_mut().try_for_each(|message| message.reduce(&rank.stream)))?;
    if rank.is_direct() {
        assert_eq!(graph.kernel_count(), LENS.len());
    }
    for round in 0..REPLAYS {
        // On another stream than it was captured on, too.
        let stream = if round % 2 == 0 { &rank.stream } else { &rank.others[0] };
        for message in &messages {
            message.write(rank, round, stream)?;
        }
        graph.launch(stream)?;
        eager.write(rank, round, stream)?;
        eager.reduce(stream)?;
        rank.engine.sync(stream, PATIENCE)?;
        for message in messages.iter().chain([&eager]) {
            message.check(rank, round, stream)?;
        }
    }
    rank.end_all()
}

pub(crate) fn a_fill_and_a_barrier_are_replayed(rank: &Rank) -> Result<()> {
    let stream = &rank.stream;
    let memory = rank.memory::<u32>(256)?;
    let mut seen = rank.buffer::<u32>(256 * rank.world())?;
    let graph = capture(rank, || {
        memory.memset32(0, 200 + rank.rank() as i64, 256, stream)?;
        memory.barrier(0, stream)
    })?;
    for round in 0..3 {
        memory.memset32(0, round, 256, stream)?;
        memory.barrier(0, stream)?;
        graph.launch(stream)?;
        memory.all_gather(&mut seen, stream)?;
        rank.sync()?;
        assert_elements("all_gather", &seen.read(stream)?, |at| 200 + at / 256);
    }
    rank.end()
}

pub(crate) fn parts_are_replayed(rank: &Rank) -> Result<()> {
    let (world, me, stream) = (rank.world(), rank.rank(), &rank.stream);
    let len = 300 * world;
    let memory = rank.memory::<f32>(len)?;
    let (mut whole, mut part) = (rank.buffer::<f32>(len * world)?, rank.buffer::<f32>(300)?);
    let graph = capture(rank, || {
        memory.all_gather(&mut whole, stream)?;
        memory.reduce_scatter(ReduceOp::Sum, &mut part, stream)?;
        memory.broadcast(0, stream)
    })?;
    for round in 0..3 {
        let input = |rank: usize, at: usize| addend(rank + round, at);
        memory.write(&elements(len, |at| input(me, at)), stream)?;
        rank.ready()?;
        graph.launch(stream)?;
        rank.sync()?;
        assert_elements("all_gather", &whole.read(stream)?, |at| input(at / len, at % len));
        let sum = |at: usize| (0..world).map(|rank| input(rank, me * 300 + at)).sum();
        assert_elements("reduce_scatter", &part.read(stream)?, sum);
        assert_elements("broadcast", &memory.read(stream)?, |at| input(0, at));
    }
    rank.end()
}

pub(crate) fn a_graph_keeps_what_it_works_on(rank: &Rank) -> Result<()> {
    let (len, stream) = (10_000, &rank.stream);
    let memory = rank.memory::<f32>(len)?;
    let mut out = rank.buffer::<f32>(len)?;
    memory.write(&elements(len, |at| addend(rank.rank(), at)), stream)?;
    let graph = capture(rank, || memory.all_reduce_out(ReduceOp::Sum, &mut out, stream))?;
    drop(memory);
    // Room that would be taken if it were free.
    let _other = rank.memory::<f32>(len)?;
    out.fill_bytes(0, stream)?;
    rank.ready()?;
    graph.launch(stream)?;
    rank.sync()?;
    let sum = |at: usize| (0..rank.world()).map(|rank| addend(rank, at)).sum();
    assert_elements("all_reduce_out", &out.read(stream)?, sum);
    rank.end()
}

pub(crate) fn a_capture_that_is_never_replayed_changes_nothing(rank: &Rank) -> Result<()> {
    let [first, second] = &rank.others;
    rank.ready()?;
    rank.engine.barrier(first)?;
    rank.engine.sync(first, PATIENCE)?;
    rank.ready()?;
    second.begin_capture()?;
    let captured = rank.engine.barrier(second);
    drop(second.end_capture()?);
    captured?;
    rank.ready()?;
    rank.engine.barrier(second)?;
    rank.engine.barrier(first)?;
    rank.end_all()
}

/// Branches of a graph run on queues of the driver's choice, which ranks that are threads share: so this
/// needs processes.
pub(crate) fn a_capture_orders_its_forked_streams(rank: &Rank) -> Result<()> {
    let memory = rank.memory::<u32>(256)?;
    let mut seen = rank.buffer::<u32>(256 * rank.world())?;
    let (first, second) = (&rank.stream, &rank.others[0]);
    let (fork, join) = (Event::new(&rank.device)?, Event::new(&rank.device)?);
    let graph = capture(rank, || {
        fork.record(first)?;
        second.wait(&fork)?;
        memory.memset32(0, 100 + rank.rank() as i64, 256, first)?;
        memory.barrier(0, first)?;
        memory.barrier(0, second)?;
        memory.memset32(0, 200 + rank.rank() as i64, 256, second)?;
        memory.barrier(0, second)?;
        join.record(second)?;
        first.wait(&join)
    })?;
    for _ in 0..4 {
        graph.launch(first)?;
    }
    memory.all_gather(&mut seen, first)?;
    rank.sync()?;
    assert_elements("the last write", &seen.read(first)?, |at| 200 + at / 256);
    rank.end_all()
}
