//! Options of `symmem bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum, value_parser};
use serde::{Deserialize, Serialize};
use symmem::DType;
use symmem::cuda::{PlaceKind, Provider};

use super::compare::BenchCommand;
use super::gpu::GpuArgs;
use super::preset::Preset;
use super::size;
use super::terms::{Memory, TermsArgs};

/// Bytes of collectives where nothing else is said; a quick run leaves the last one out.
const SIZES: [usize; 6] = [8, 1 << 10, 8 << 10, 64 << 10, 1 << 20, 16 << 20];
/// The same on GPUs.
const GPU_SIZES: [usize; 8] = [2 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20];
/// Rows of norms there.
const GPU_ROWS: [usize; 4] = [1, 16, 64, 256];
/// The largest size of a full sweep.
const LARGEST: usize = 256 << 20;

/// What can be measured on GPUs. Products come last, and are measured where they are asked for: they need
/// cuBLASLt.
const OF_GPUS: [Op; 9] = [
    Op::Startup,
    Op::Barrier,
    Op::Eager,
    Op::AllReduce,
    Op::AllReduceRmsNorm,
    Op::Misaligned,
    Op::Bandwidth,
    Op::AllGatherMatmul,
    Op::MatmulReduceScatter,
];
const WITHOUT_PRODUCTS: usize = 7;

/// Options of `symmem bench`.
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Presets (options that are given win over them):
  quick      everything, few repetitions: the same as --quick
  inference  8 KB to 1 MB, bf16 and f32, symmetric and private: all_reduce, all_gather, reduce_scatter, broadcast
  training   1 MB to 256 MB, f32 and bf16: all_reduce, broadcast (DDP), all_gather, reduce_scatter (FSDP)

Examples:
  symmem bench --quick                                         does everything work here, and about how fast?
  symmem bench --preset inference --ranks 2 --html bench.html  a report to send around
  symmem bench --ops all_reduce --sizes 64K,1M --peers all     beside other systems
  symmem bench --json old.json                                 keep it; after a change to new.json, and then
  symmem bench compare old.json new.json                       what got slower?"
)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,
    /// What the bench is for: a choice of operations, sizes, types and memory; options that are given win.
    #[arg(long, value_name = "NAME")]
    preset: Option<Preset>,
    /// Numbers of ranks to run with, one after the other.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "2,4")]
    #[arg(value_parser = value_parser!(u16).range(2..=64))]
    pub(crate) ranks: Vec<u16>,
    /// Where the memory comes from: shm is the host's, vmm and nccl that of GPUs, by the driver or in windows
    /// of NCCL.
    #[arg(long, default_value = Provider::ALL[0].name(), value_parser = provider_names())]
    pub(crate) provider: Provider,
    /// What to measure [default: everything that the provider has].
    #[arg(long, value_name = "OP,...", value_delimiter = ',')]
    ops: Vec<Op>,
    /// Bytes of the collectives: K, KB and KiB are 1024 each, M and G 1024 of the one before [default:
    /// 8,1K,8K,64K,1M,16M; vmm: 2K to 32M].
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', value_parser = size::parse)]
    sizes: Vec<usize>,
    /// Every power of four of bytes up to 256M, and 8.
    #[arg(long, conflicts_with_all = ["sizes", "quick"])]
    full: bool,
    /// Element types of the collectives, which sum them (bool: or), as f32 or float32 [default: f32].
    #[arg(long, value_name = "TYPE,...", value_delimiter = ',', value_parser = dtype)]
    dtypes: Vec<DType>,
    /// Also write the results as JSON; "-" is stdout, and the table then goes to stderr.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Also write a report with tables and plots as one HTML file.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Also draw latency and bus bandwidth of the collectives over their size, as SVG.
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Print all columns, however wide the table gets.
    #[arg(long)]
    pub(crate) wide: bool,
    /// Measure quickly: this shows that everything works, and gives rough times.
    #[arg(long)]
    quick: bool,
    /// Compare with these systems, or with "all" that are installed (see `cargo xtask peers`; on GPUs: torch,
    /// nccl, and vmm beside --provider nccl).
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) peers: Vec<String>,
    /// The folder that peers are installed in [default: .peers here, in a folder above, or above the
    /// program].
    #[arg(long, value_name = "DIR")]
    pub(crate) peers_dir: Option<PathBuf>,
    /// Launches of every system in a comparison [default: 11, vmm 9, with --quick 2].
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Give up a launch after this many seconds.
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = value_parser!(u32).range(1..))]
    peer_timeout: u32,
    /// Blocks of operations per measurement [default: 21, collectives up to 11, with --quick 3].
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1000))]
    blocks: Option<u32>,
    /// Operations in a block [default: 20000, collectives by size, with --quick fewer].
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1_000_000))]
    iters: Option<u32>,
    #[command(flatten)]
    pub(crate) terms: TermsArgs,
    #[command(flatten)]
    pub(crate) gpu: GpuArgs,
}

impl BenchArgs {
    /// Whether times may be rough.
    pub(crate) fn is_quick(&self) -> bool {
        self.quick || self.preset == Some(Preset::Quick)
    }

    /// Whether it is about memory of GPUs.
    pub(crate) fn is_of_gpus(&self) -> bool {
        self.provider.place() == PlaceKind::Device
    }

    /// What can be measured on the provider's memory.
    pub(crate) fn measurable(&self) -> &'static [Op] {
        if self.is_of_gpus() {
            return &OF_GPUS;
        }
        // What is for GPUs alone comes last.
        let all = Op::value_variants();
        let of_hosts = all.iter().position(|op| *op == Op::Startup).unwrap_or(all.len());
        &all[..of_hosts]
    }

    /// What to measure.
    pub(crate) fn ops(&self) -> &[Op] {
        let of_preset = || self.preset.and_then(|preset| preset.ops(self.is_of_gpus()));
        let default = if self.is_of_gpus() { &OF_GPUS[..WITHOUT_PRODUCTS] } else { self.measurable() };
        if self.ops.is_empty() { of_preset().unwrap_or(default) } else { &self.ops }
    }

    /// Whether it was asked for by its name.
    pub(crate) fn names(&self, op: Op) -> bool {
        self.ops.contains(&op)
    }

    /// Element types of the collectives.
    pub(crate) fn dtypes(&self) -> &[DType] {
        let of_preset = || self.preset.and_then(Preset::dtypes);
        if self.dtypes.is_empty() { of_preset().unwrap_or(&[DType::F32]) } else { &self.dtypes }
    }

    /// Blocks per measurement.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.unwrap_or(if self.is_quick() { 3 } else { 21 }) as usize
    }

    /// Operations in a block.
    pub(crate) fn iters(&self) -> usize {
        self.iters.unwrap_or(if self.is_quick() { 300 } else { 20_000 }) as usize
    }

    /// How long to measure each system beside `load` busy loops, where that and not a number of operations
    /// was asked for.
    pub(crate) fn timed(&self, load: usize) -> Option<Duration> {
        (load > 0 && self.iters.is_none() && !self.is_quick()).then_some(Duration::from_millis(500))
    }

    /// Blocks of a collective of `bytes` bytes, and operations in each.
    pub(crate) fn plan(&self, bytes: usize) -> (usize, usize) {
        let total = if self.is_quick() {
            ((1 << 20) / bytes).clamp(9, 60)
        } else {
            (LARGEST / bytes).clamp(21, 2200)
        };
        let most = if self.is_quick() { 3 } else { 11 };
        let blocks = self.blocks.map_or((total / 3).min(most), |blocks| blocks as usize);
        (blocks, self.iters.map_or((total / blocks).max(3), |iters| iters as usize))
    }

    /// How long one collective of one size may take; it may be late by a block. A plain run is for having a
    /// look.
    pub(crate) fn case_limit(&self) -> Option<Duration> {
        if self.blocks.is_some() {
            return None;
        }
        let has_chosen = self.full || !self.sizes.is_empty();
        Some(Duration::from_millis(if has_chosen && !self.is_quick() { 10_000 } else { 400 }))
    }

    /// Operations of a collective of `bytes` bytes in one launch of a comparison.
    pub(crate) fn launch_iters(&self, bytes: usize) -> usize {
        let default = if self.is_quick() { 10 } else { ((128 << 20) / bytes.max(1)).clamp(7, 1000) };
        self.iters.map_or(default, |iters| iters as usize)
    }

    /// Bytes of the collectives.
    pub(crate) fn sizes(&self) -> Vec<usize> {
        if self.full {
            let powers = (2..).map(|exponent| 1 << (2 * exponent)).take_while(|bytes| *bytes <= LARGEST);
            return [8].into_iter().chain(powers).collect();
        }
        if let Some(sizes) = self.preset.and_then(Preset::sizes).filter(|_| self.sizes.is_empty()) {
            return sizes.to_vec();
        }
        match (self.sizes.is_empty(), self.is_quick()) {
            (false, _) => self.sizes.clone(),
            (true, _) if self.is_of_gpus() => GPU_SIZES.to_vec(),
            (true, false) => SIZES.to_vec(),
            (true, true) => SIZES[..SIZES.len() - 1].to_vec(),
        }
    }

    /// Bytes of norms on GPUs, of rows of `row` bytes: some that layers have, or what was asked for of whole
    /// rows.
    pub(crate) fn norm_sizes(&self, row: usize) -> Vec<usize> {
        if !self.full && self.sizes.is_empty() {
            return GPU_ROWS.map(|rows| rows * row).to_vec();
        }
        self.sizes().into_iter().filter(|bytes| *bytes > 0 && bytes.is_multiple_of(row)).collect()
    }

    /// Launches of every system in a comparison.
    pub(crate) fn rounds(&self) -> usize {
        let full = if self.is_of_gpus() { 9 } else { 11 };
        self.rounds.unwrap_or(if self.is_quick() { 2 } else { full }) as usize
    }

    /// How long a launch may take.
    pub(crate) fn peer_timeout(&self) -> Duration {
        Duration::from_secs(self.peer_timeout.into())
    }

    /// Which memory holds the elements of collectives.
    pub(crate) fn memories(&self) -> Vec<Memory> {
        let all = if self.peers.is_empty() { 1 } else { 2 };
        let default = &[Memory::Symmetric, Memory::Private][..all];
        self.terms.memories(self.preset.and_then(Preset::memories).unwrap_or(default))
    }
}

fn dtype(name: &str) -> Result<DType, String> {
    let names = || DType::ALL.map(|dtype| format!("{dtype} ({})", dtype.long_name())).join(", ");
    let is_it = |dtype: &DType| [dtype.name(), dtype.long_name()].contains(&name);
    DType::ALL.into_iter().find(is_it).ok_or_else(|| format!("types are {}", names()))
}

/// Providers by their names.
fn provider_names() -> impl TypedValueParser<Value = Provider> {
    let names = Provider::ALL.iter().map(|provider| provider.name());
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Provider>())
}

/// Makes the enum of what `symmem bench` can measure, and that of the collectives among it, by their names in
/// the library's table, and the one other thing that peers have a match for.
macro_rules! measured {
    (
        {$($(#[$before_doc:meta])* $before:ident,)*}
        collectives and $other:ident = $other_name:literal: {$($(#[$doc:meta])* $collective:ident = $name:literal,)*}
        {$($(#[$after_doc:meta])* $after:ident,)*}
    ) => {
        /// What `symmem bench` can measure.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
        #[value(rename_all = "snake_case")]
        pub(crate) enum Op {
            $($(#[$before_doc])* $before,)*
            $($(#[$doc])* $collective,)*
            $($(#[$after_doc])* $after,)*
        }

        /// The collectives, and the one other thing that peers have a match for. What a collective is says
        /// the library's table.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub(crate) enum Collective {
            $($(#[$doc])* $collective,)*
            /// See [`Op`].
            $other,
        }

        impl Collective {
            /// The collectives.
            pub(crate) const ALL: &[Self] = &[$(Self::$collective),*];

            /// Its name in reports and jobs.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$collective => $name,)*
                    Self::$other => $other_name,
                }
            }
        }
    };
}

measured! {
    {
        /// The handle's barrier, beside the barest possible one.
        Barrier,
        /// put_signal and wait_signal, there and back.
        Signal,
        /// Reading a peer's buffer.
        Copy,
    }
    collectives and Signal = "signal": {
        /// Everybody's memory becomes the sum of all (f32: beside the barest possible loop).
        AllReduce = "all_reduce",
        /// Everybody gets the sum of all in private memory.
        AllReduceOut = "all_reduce_out",
        /// The first rank gets the sum of all.
        Reduce = "reduce",
        /// Everybody gets its part of the sum of all.
        ReduceScatter = "reduce_scatter",
        /// Everybody gets everybody's memory.
        AllGather = "all_gather",
        /// Everybody's memory becomes the first rank's.
        Broadcast = "broadcast",
        /// Everybody gets everybody's part for it.
        AllToAll = "all_to_all",
        /// Every rank gets the sum of those up to it.
        Scan = "scan",
        /// Every rank gets the sum of those before it.
        ExclusiveScan = "exclusive_scan",
        /// Everybody gets everybody's memory, as much of each as counts say (here as much).
        AllGatherV = "all_gather_v",
        /// The first rank gets everybody's memory, as much of each as counts say (here as much).
        GatherV = "gather_v",
        /// Everybody gets its part of the first rank's memory, as much as counts say (here as much).
        ScatterV = "scatter_v",
    }
    {
        /// Everybody's rows are gathered and multiplied, fused and unfused, beside the product alone (vmm:
        /// where it is asked for).
        AllGatherMatmul,
        /// A product, of which everybody gets its rows of the sum of all, fused and unfused (vmm: where it is
        /// asked for).
        MatmulReduceScatter,
        /// Everybody's memory is summed, added to a residual and normalised, beside the all_reduce alone
        /// (vmm: as bf16 and as fp8, beside two steps too).
        AllReduceRmsNorm,
        /// vmm: from the first allocation to the end of its rendezvous.
        Startup,
        /// vmm: small all-reduces that are launched one by one, not by a graph.
        Eager,
        /// vmm: an all-reduce of memory that is aligned to one element only, beside an aligned one.
        Misaligned,
        /// vmm: an all-reduce of 512 MB on two ranks, beside copies of as much.
        Bandwidth,
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}
