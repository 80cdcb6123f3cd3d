//! `symmem bench --provider vmm` and `--provider nccl`: verifies and times symmetric memory of GPUs, beside
//! other systems.
//!
//! This process is the conductor. It starts the ranks of every system, all at once for one number of ranks,
//! and leads them through races over pipes ([`protocol`]); it makes no CUDA call but the question whether
//! there is a device. A round of an operation is a graph of fills with new values and operations, less the
//! graph of the fills alone; the slowest rank counts, and ratios are those of medians over all rounds
//! ([`tally`]). Rows that were not right on every rank are not printed.

mod conductor;
mod fleet;
mod mps;
mod plan;
mod protocol;
mod rank;
mod report;
mod scratch;
mod system;
mod tally;
mod tune;

use anyhow::{Result, bail, ensure};
use indicatif::ProgressBar;
use symmem::DType;
use symmem::cuda::Device;

use self::conductor::{Conductor, Limits, Terms};
use self::mps::Mps;
use self::plan::{Race, Wanted};
pub(crate) use self::rank::run as run_rank;
use self::report::Report;
use self::scratch::ScratchFolder;
use self::system::{Launch, System};
pub(super) use self::tune::{Finding as Tuned, has_devices, run as tune, table as table_of_tuned};
use super::cores;
use super::progress::Progress;
use crate::args::{BenchArgs, Op, short};

/// Runs the whole bench and prints what it found.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let wanted = wanted(args)?;
    ensure!(Device::count()? > 0, "there is no CUDA device on this machine");
    let scratch = ScratchFolder::open("gpu")?;
    let mps = Mps::start(&scratch.0);
    eprintln!("with {}", mps.words());
    let mut report = Report::new(mps.words());
    let all_ranks = || args.ranks.iter().map(|ranks| usize::from(*ranks));
    let steps: usize = all_ranks().map(|ranks| wanted.races(ranks).len()).sum();
    let bar = Progress::new(steps * args.gpu.share.len()).bar("GPU".to_owned());
    for ranks in all_ranks() {
        for share in &args.gpu.share {
            let (share, bar) = (share.percent(ranks), bar.clone());
            let stage = Stage { args, wanted: &wanted, scratch: &scratch, mps: &mps, ranks, share, bar };
            stage.run(&mut report)?;
            report.save(args.json.as_deref())?;
        }
    }
    bar.finish_and_clear();
    drop(mps);
    report.print(args)?;
    let ours = System::Symmem.name();
    match report.left_out.iter().filter(|out| out.system == ours).count() {
        0 => Ok(()),
        failed => bail!("symmem could not do, or did wrong, {failed} of what was asked for"),
    }
}

fn wanted(args: &BenchArgs) -> Result<Wanted> {
    let odd = args.dtypes().iter().find(|dtype| ![DType::BF16, DType::F32].contains(dtype));
    ensure!(odd.is_none(), "a bench on GPUs is about bf16; leave --dtypes out");
    ensure!(!args.terms.is_of_hosts(), "--memory, --load and --pin yes,no are for host memory only");
    ensure!(args.plot.is_none(), "--plot draws benches of host memory only");
    let sizes = args.sizes();
    let odd = sizes.iter().find(|bytes| **bytes < 16 || !bytes.is_multiple_of(16));
    ensure!(odd.is_none(), "--sizes: on GPUs a size is a multiple of 16 bytes");
    let norms = args.norm_sizes(plan::NORM_ROW);
    ensure!(
        !args.names(Op::AllReduceRmsNorm) || !norms.is_empty(),
        "--sizes: of all_reduce_rms_norm a size is a multiple of {}, a row",
        short(plan::NORM_ROW)
    );
    let or_default = |list: &[u32]| match list {
        [] => vec![None],
        list => list.iter().copied().map(Some).collect(),
    };
    Ok(Wanted {
        ops: args.ops().to_vec(),
        forms: args.gpu.forms.clone(),
        sizes,
        norms,
        cold: args.gpu.cold,
        algorithms: args.gpu.algorithm.clone(),
        grids: or_default(&args.gpu.grid),
        threads: or_default(&args.gpu.threads),
        peers: System::peers(&args.peers)?,
        is_quick: args.is_quick(),
    })
}

/// One number of ranks with one share of the GPU.
struct Stage<'a> {
    args: &'a BenchArgs,
    wanted: &'a Wanted,
    scratch: &'a ScratchFolder,
    mps: &'a Mps,
    ranks: usize,
    share: Option<u32>,
    bar: ProgressBar,
}

impl Stage<'_> {
    fn run(&self, report: &mut Report) -> Result<()> {
        let races = self.wanted.races(self.ranks);
        self.bar.set_prefix(format!("{} ranks", self.ranks));
        self.bar.set_message("start");
        let mut conductor = Conductor::start(self.terms(&races), self.systems()?)?;
        report.know(conductor.known());
        if let Some(startup) = self.wanted.startup() {
            let rows = conductor.startup(&startup);
            self.tell(&startup, 0, races.len(), &rows);
            report.results.extend(rows);
        }
        for (at, race) in races.iter().enumerate() {
            self.bar.set_message(race.case.to_string());
            let rows = conductor.race(race);
            self.bar.inc(1);
            self.tell(race, at + 1, races.len(), &rows);
            report.results.extend(rows);
        }
        report.left_out.extend(conductor.end());
        Ok(())
    }

    fn terms(&self, races: &[Race]) -> Terms {
        Terms {
            ranks: self.ranks,
            share: self.share,
            rounds: self.args.rounds(),
            arena: Wanted::arena_bytes(races),
            cores: if self.args.terms.conditions().iter().any(|one| one.pin) {
                cores::apart(self.ranks)
            } else {
                Vec::new()
            },
            kernels: self.scratch.0.join("kernels.cubin"),
            folder: self.scratch.0.clone(),
            limits: Limits::default(),
            bar: self.bar.clone(),
        }
    }

    /// Ours first: it makes what the others need too.
    fn systems(&self) -> Result<Vec<(System, Launch)>> {
        let systems = [System::Symmem].into_iter().chain(self.wanted.peers.iter().copied());
        let launch = |system| {
            let mut launch =
                Launch::of(system, self.args.provider, &self.scratch.0, self.args.gpu.python.as_deref())?;
            launch.env.extend(self.mps.env(self.share));
            Ok((system, launch))
        };
        systems.map(launch).collect()
    }

    fn tell(&self, race: &Race, at: usize, all: usize, rows: &[tally::Row]) {
        let share = self.share.map(|share| format!(" at {share} %")).unwrap_or_default();
        let line = format!("[{at}/{all}] {} ranks{share}, {}: {}", self.ranks, race.case, report::line(rows));
        self.bar.suspend(|| eprintln!("{line}"));
    }
}
