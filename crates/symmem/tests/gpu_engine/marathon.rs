//! A thousand replays of one graph, each verified on the device: new values, a delay before every operation
//! that differs by rank and replay, another stream every time, eager operations in between, epochs that wrap
//! on the way. Item 31 of the reference's list.

use std::ffi::c_void;

use symmem::cuda::{Buffer, Function, Graph, Module, Settings, Stream, SymmetricMemory, bench_support};
use symmem::{ReduceOp, Result, bf16};

use crate::stage::{PATIENCE, Rank, device, on_threads, settings};

/// Elements of the messages of a graph: sizes that change algorithm and grid.
const LENS: [usize; 5] = [1, 1000, 8 << 10, 100_003, 400_000];
const EAGER: usize = 5000;
const REPLAYS: usize = 1000;
/// Values differ between the messages of a replay, and between replays.
const ROUNDS: u32 = LENS.len() as u32 + 1;
const BLOCKS: u32 = 8;
const THREADS: u32 = 256;

/// Waits for up to 200 us, which the counter, the rank and the place in the graph decide.
const DELAY: &str = r#"
extern "C" __global__ void delay(const unsigned* counter, unsigned rank, unsigned place) {
    unsigned x = (*counter + place) * 0x9E3779B1u ^ rank * 0x85EBCA77u;
    x ^= x >> 15;
    x *= 0x2C1B3C6Du;
    x ^= x >> 13;
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < x % 200000u);
}
"#;

/// The kernels around the operations.
struct Kernels {
    fill: Function,
    check: Function,
    bump: Function,
    delay: Function,
    counter: Buffer<u32>,
    wrong: Buffer<u64>,
}

fn at<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

impl Kernels {
    fn new(rank: &Rank) -> Result<Self> {
        let bench = Module::load(&rank.device, &bench_support::compile(&rank.device)?)?;
        let delay = Module::compile(&rank.device, "delay.cu", DELAY)?;
        Ok(Self {
            fill: bench.function("bench_fill")?,
            check: bench.function("bench_check")?,
            bump: bench.function("bench_bump")?,
            delay: delay.function("delay")?,
            counter: Buffer::from_slice(&rank.device, &[0], &rank.stream)?,
            wrong: Buffer::from_slice(&rank.device, &[0], &rank.stream)?,
        })
    }

    /// A delay, this rank's values, the operation, and a look at what came of it.
    fn around(&self, rank: &Rank, message: &mut Message, place: u32, stream: &Stream) -> Result<()> {
        let (counter, wrong) = (self.counter.device_ptr(), self.wrong.device_ptr());
        let (own, world) = (rank.rank() as u32, rank.group.size() as u32);
        let (to, count) = (message.memory.peer_ptr(rank.rank())?, message.memory.len() as u32);
        // SAFETY: the parameters of these kernels; the memory has so many elements and outlives the test's
        // last sync.
        unsafe {
            self.delay.launch(stream, 1, 1, &mut [at(&counter), at(&own), at(&place)])?;
            let mut params = [at(&to), at(&count), at(&own), at(&counter), at(&place)];
            self.fill.launch(stream, BLOCKS, THREADS, &mut params)?;
        }
        message.reduce(place, stream)?;
        let (got, first, back) = (message.result(place)?, 0u32, place.wrapping_neg());
        let mut params = [at(&got), at(&count), at(&first), at(&world), at(&counter), at(&back), at(&wrong)];
        // SAFETY: as above.
        unsafe { self.check.launch(stream, BLOCKS, THREADS, &mut params) }
    }

    fn bump(&self, stream: &Stream) -> Result<()> {
        let counter = self.counter.device_ptr();
        // SAFETY: the parameters of the kernel; the counter outlives the test's last sync.
        unsafe { self.bump.launch(stream, 1, 1, &mut [at(&counter), at(&ROUNDS)]) }
    }
}

struct Message {
    memory: SymmetricMemory<bf16>,
    out: Buffer<bf16>,
}

impl Message {
    fn new(rank: &Rank, len: usize) -> Result<Self> {
        let memory = rank.engine.alloc(len)?.rendezvous(&rank.engine)?;
        Ok(Self { memory, out: Buffer::new(&rank.device, len)? })
    }

    /// Out of place for every other message, so that both kinds are in the graph.
    fn reduce(&mut self, place: u32, stream: &Stream) -> Result<()> {
        match place % 2 {
            0 => self.memory.all_reduce(ReduceOp::Sum, stream),
            _ => self.memory.all_reduce_out(ReduceOp::Sum, &mut self.out, stream),
        }
    }

    fn result(&self, place: u32) -> Result<u64> {
        match place % 2 {
            0 => self.memory.peer_ptr(self.memory.rank()),
            _ => Ok(self.out.device_ptr()),
        }
    }
}

fn capture(rank: &Rank, kernels: &Kernels, messages: &mut [Message]) -> Result<Graph> {
    rank.engine.prepare()?;
    rank.stream.begin_capture()?;
    for (place, message) in (0..).zip(messages) {
        kernels.around(rank, message, place, &rank.stream)?;
    }
    rank.stream.end_capture()
}

pub(crate) fn run(rank: &Rank) -> Result<()> {
    let mut messages = LENS.iter().map(|len| Message::new(rank, *len)).collect::<Result<Vec<_>>>()?;
    let mut eager = Message::new(rank, EAGER)?;
    let kernels = Kernels::new(rank)?;
    let other = rank.engine.stream()?;
    // What another thread makes meanwhile may break a capture.
    rank.ready()?;
    let graph = capture(rank, &kernels, &mut messages)?;
    rank.ready()?;
    for replay in 0..REPLAYS {
        let stream = if replay % 2 == 0 { &rank.stream } else { &other };
        graph.launch(stream)?;
        kernels.around(rank, &mut eager, ROUNDS - 1, stream)?;
        kernels.bump(stream)?;
        // The next replay is on the other stream; replays of a lane are ordered by the caller.
        rank.engine.sync(stream, PATIENCE)?;
    }
    let wrong = kernels.wrong.read(&rank.stream)?[0];
    assert_eq!(kernels.counter.read(&rank.stream)?, [REPLAYS as u32 * ROUNDS]);
    assert_eq!(wrong, 0, "elements that were wrong");
    rank.end()
}

/// A check that finds nothing proves something only if it can find something.
fn finds_what_is_wrong(rank: &Rank) -> Result<()> {
    let kernels = Kernels::new(rank)?;
    let mut message = Message::new(rank, 1000)?;
    rank.ready()?;
    kernels.around(rank, &mut message, 0, &rank.stream)?;
    rank.sync()?;
    assert_eq!(kernels.wrong.read(&rank.stream)?, [0]);
    kernels.bump(&rank.stream)?;
    let (counter, wrong) = (kernels.counter.device_ptr(), kernels.wrong.device_ptr());
    let (got, count, first, world, back) =
        (message.result(0)?, 1000u32, 0u32, rank.group.size() as u32, 0u32);
    let mut params = [at(&got), at(&count), at(&first), at(&world), at(&counter), at(&back), at(&wrong)];
    // SAFETY: as in `around`.
    unsafe { kernels.check.launch(&rank.stream, BLOCKS, THREADS, &mut params) }?;
    assert!(kernels.wrong.read(&rank.stream)?[0] > 500, "values of another round pass");
    rank.end()
}

#[test]
fn a_thousand_replays_are_right_across_the_wrap_of_the_epochs() {
    if device().is_none() {
        return;
    }
    let operations = (REPLAYS * (LENS.len() + 1)) as u64;
    let deadline = Some(PATIENCE / 4);
    let first_epoch = u64::from(u32::MAX) - operations / 2;
    let wraps = Settings { first_epoch, deadline, ..settings() };
    for world in [2, 3, 4] {
        on_threads(world, &wraps, run);
    }
    on_threads(4, &Settings { apart: true, ..wraps }, run);
}

#[test]
fn the_check_of_the_replays_can_fail() {
    if device().is_none() {
        return;
    }
    on_threads(2, &settings(), finds_what_is_wrong);
}
