//! `symmem bench-gpu-rank`: one rank of ours, led by the conductor over stdin and stdout.

mod case;
mod kernels;
mod norm;
mod pattern;
mod product;

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use symmem::cuda::bench_support;
use symmem::cuda::{Allocation, Device, Engine, Settings, Stream, SymmetricMemory};
use symmem::{Group, bf16};

use self::case::{Ordinary, Prepared};
use self::kernels::Kernels;
use super::super::cores;
use super::plan::{ELEMENT, Task};
use super::protocol::{Answer, Order};

/// How long kernels may wait for peers, and this rank for its stream: less than the conductor waits for
/// either.
const DEADLINE: Duration = Duration::from_secs(20);
/// Elements of the allocation whose start is timed: 1 MB, as with PyTorch.
const FIRST_ELEMENTS: usize = 1 << 19;

/// Obeys until it is told to quit, or nobody is left to tell.
pub(crate) fn run() -> Result<()> {
    let mut rank = match Rank::start() {
        Ok(rank) => rank,
        Err(error) => return say(&Answer::failed(format!("{error:#}"))),
    };
    say(&Answer { version: Some(env!("CARGO_PKG_VERSION").to_owned()), ..Answer::default() })?;
    for line in std::io::stdin().lock().lines() {
        let line = line.context("reading orders")?;
        let order = serde_json::from_str(&line).with_context(|| format!("{line} is not an order"))?;
        if matches!(order, Order::Quit) {
            break;
        }
        let answer = rank.obey(order).unwrap_or_else(|error| Answer::failed(format!("{error:#}")));
        say(&answer)?;
    }
    Ok(())
}

fn say(answer: &Answer) -> Result<()> {
    let line = serde_json::to_string(answer)? + "\n";
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())?;
    Ok(out.flush()?)
}

/// This rank.
struct Rank {
    // Before what it works on.
    prepared: BTreeMap<usize, Prepared>,
    lab: Option<Lab>,
    stream: Stream,
    device: Device,
    /// Whether all ranks have the same device, and so the same clock.
    one_device: bool,
}

/// What measurements need.
struct Lab {
    rank: u32,
    ranks: u32,
    engine: Engine,
    stream: Stream,
    device: Device,
    kernels: Kernels,
    arena: Allocation<bf16>,
    /// Keeps the arena mapped; barriers are its engine's.
    memory: SymmetricMemory<bf16>,
    /// Ordinary memory for inputs and for outputs, as large as anybody needed so far.
    inputs: Ordinary,
    outputs: Ordinary,
    one_device: bool,
}

impl Rank {
    /// With a context on its device, and nothing else.
    fn start() -> Result<Self> {
        let devices = Device::count()?;
        ensure!(devices > 0, "there is no CUDA device on this machine");
        let device = Device::new(Group::local_rank_from_env()? % devices)?;
        let stream = Stream::new(&device)?;
        Ok(Self { prepared: BTreeMap::new(), lab: None, stream, device, one_device: devices == 1 })
    }

    fn obey(&mut self, order: Order) -> Result<Answer> {
        match order {
            Order::Kernels { path } => self.compile(&path),
            Order::Open { kernels, arena, cores, .. } => {
                let opened = self.open(&kernels, arena)?;
                // This thread only: what came up with the context may run elsewhere.
                cores::pin(&cores, Group::local_rank_from_env()?);
                Ok(opened)
            }
            Order::Prepare(task) => self.prepare(task),
            Order::Round { slot, round } => self.of(slot)?.round(round),
            Order::Verify { slot } => self.of(slot)?.verify(),
            Order::Clear => {
                self.prepared.clear();
                Ok(Answer::default())
            }
            Order::Quit => Ok(Answer::default()),
        }
    }

    fn compile(&self, path: &Path) -> Result<Answer> {
        let image = bench_support::compile(&self.device)?;
        std::fs::write(path, image).with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(Answer::default())
    }

    fn open(&mut self, kernels: &Path, arena: usize) -> Result<Answer> {
        let group = Group::from_env()?;
        let kernels = Kernels::load(&self.device, kernels, &self.stream)?;
        let settings =
            Settings { deadline: Some(DEADLINE), ..Settings::from_config(group.context().config()) };
        group.all_gather(&0u8)?;
        let start = Instant::now();
        let engine = Engine::with(&group, &self.device, settings)?;
        let first = self.device.alloc::<bf16>(FIRST_ELEMENTS)?;
        let first = first.rendezvous(&engine)?;
        let startup = start.elapsed();
        drop(first);
        let arena = self.device.alloc::<bf16>(arena / ELEMENT)?;
        let memory = arena.rendezvous(&engine)?;
        engine.prepare()?;
        let kind = bench_support::kind_of(&engine);
        self.lab = Some(Lab {
            rank: u32::try_from(group.rank())?,
            ranks: u32::try_from(group.size())?,
            engine,
            stream: self.stream.clone(),
            device: self.device.clone(),
            kernels,
            arena,
            memory,
            inputs: None,
            outputs: None,
            one_device: self.one_device,
        });
        let us = startup.as_secs_f64() * 1e6;
        let device = Some(self.device.name().to_owned());
        Ok(Answer { device, kind: Some(kind), startup_us: Some(us), ..Answer::default() })
    }

    fn prepare(&mut self, task: Task) -> Result<Answer> {
        let lab = self.lab.as_mut().context("nothing was opened")?;
        let slot = task.slot;
        match Prepared::new(lab, task) {
            Ok((prepared, answer)) => {
                self.prepared.insert(slot, prepared);
                Ok(answer)
            }
            // What an operation refuses before it starts, it refuses on all ranks.
            Err(error) if matches!(error.downcast_ref(), Some(symmem::Error::Invalid { .. })) => {
                Ok(Answer { cannot: Some(format!("{error:#}")), ..Answer::default() })
            }
            Err(error) => Err(error),
        }
    }

    fn of(&mut self, slot: usize) -> Result<case::Running<'_>> {
        let lab = self.lab.as_ref().context("nothing was opened")?;
        let prepared = self.prepared.get(&slot).context("nothing was prepared there")?;
        Ok(case::Running { lab, prepared })
    }
}
