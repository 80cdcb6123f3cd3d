//! The dispatcher: which kernel carries a message, and in which shape it is launched.
//!
//! Called by the operations and by `Engine::plan`. A pure function of what the ranks agreed on when the
//! engine was made and of what an operation's signature holds, so that every rank comes to the same answer
//! without asking.

use super::control::{MAX_BLOCKS, MAX_THREADS, SCRATCH};
pub(crate) use super::sources::Routine;
use super::sources::{ANY, BuiltInBounds, COLUMNS, MessageLimit, NORM, Traits, WORLDS, device_table};
use crate::named::{find_named, named};
use crate::numeric::DType;
use crate::operation::Op;
use crate::tuning::DeviceBounds;
use crate::{Error, Result};

/// Blocks of a launch unless the settings say otherwise.
pub(super) const DEFAULT_BLOCKS: u32 = 64;
/// Blocks up to which a message goes in small blocks: the more multiprocessors share it, the sooner it is
/// out. With more to do, large ones start sooner.
const SMALL_BLOCKS: u32 = 32;
/// A launch is small if it takes at most one in so many of the places that its limit allows.
const SMALL: u32 = 4;
/// One in so many places of a rank's multiprocessors is taken at most by launches of one engine that wait, on
/// all lanes together: kernels that peers wait for need room beside them. Small ones that are launched early
/// come on top ([`SMALL`]).
const FILLED: u32 = 2;

/// Bytes of a unit, as in `kernels/units.cuh`.
const UNIT: usize = 16;
const WARP: u32 = 32;

/// What is made of the table here: the algorithms.
macro_rules! algorithms {
    (
        {$($list:ident {$(#[$list_doc:meta])*} = {$(
            $(#[$doc:meta])*
            $algorithm:ident = $name:literal, $forms:expr $(, up to $together:expr, $apart:expr)? => {$($kernels:tt)*}
        )*})*}
        engine: $($others:tt)*
    ) => {
        named! {
            /// How an all-reduce is done. All but [`Algorithm::Multimem`] give the same bits.
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
            #[non_exhaustive]
            pub enum Algorithm read as "algorithm" {$(
                $(#[$list_doc])*
                $list: {$($(#[$doc])* $algorithm = $name,)*}
            )*}
        }

        impl Algorithm {
            /// The kernel of each form that it has, and of norms, and what limits it.
            const fn forms(self) -> [Option<(Routine, MessageLimit)>; COLUMNS] {
                use MessageLimit::*;
                use Routine::*;
                match self {
                    $($(Self::$algorithm => $forms,)*)*
                }
            }

            /// Up to how many KB it is chosen, where all ranks are on one device, and apart; for none if it
            /// never is. Measured on an H200; apart it is a guess: measured on one device, with kernels that
            /// do not know that it takes longer to publish what a block wrote.
            const fn bounds(self) -> &'static [BuiltInBounds; 2] {
                let all: &'static [[BuiltInBounds; 2]] = match self {
                    $($(Self::$algorithm => &[[[[0; COLUMNS]; WORLDS.len()]; 2], $([$together, $apart])?],)*)*
                };
                &all[all.len() - 1]
            }
        }
    };
}
device_table!(algorithms);

impl Algorithm {
    /// Every one, also those that are used only where they are asked for.
    pub const EVERY: &'static [Self] = Self::NAMED;

    /// Its kernel for norms, and what limits that; `None` where it has none.
    pub(crate) fn norm(self) -> Option<(Routine, MessageLimit)> {
        self.forms()[NORM]
    }

    /// Whether a kernel of it does.
    pub(super) fn needs_multicast(self) -> bool {
        self.forms().iter().flatten().any(|(kernel, _)| Routine::MULTIMEM.contains(kernel))
    }
}

named! {
    /// Where an all-reduce finds its elements, and where it leaves the result.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Form read as "form" {
        /// Every one.
        ALL: {
            /// Both in the symmetric memory.
            InPlace = "in_place",
            /// From the symmetric memory to memory of this rank's own.
            Out = "out",
            /// From and to memory of this rank's own; the symmetric memory is a place to work in.
            Private = "private",
        }
    }
}

/// How an all-reduce runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// How it is done.
    pub algorithm: Algorithm,
    /// Blocks.
    pub grid: u32,
    /// Threads of each block.
    pub threads: u32,
    /// Registers of each thread.
    pub registers: u32,
}

/// What a sweep sets instead of the table's values. All ranks must set the same.
#[doc(hidden)]
#[cfg_attr(not(feature = "bench-support"), allow(unreachable_pub))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tune {
    /// Up to how many bytes packets carry a message.
    pub low_latency_max: Option<usize>,
    /// Blocks at most, instead of the settings'. Forward progress still limits them.
    pub blocks: Option<u32>,
    /// Threads of a block.
    pub threads: Option<u32>,
}

impl Routine {
    /// Threads of a block, at most: what the kernel is compiled for.
    pub(crate) const fn most_threads(self) -> u32 {
        match self.traits() {
            Traits { narrow: true, .. } => MAX_THREADS / 2,
            Traits { wide: true, .. } => 2 * MAX_THREADS,
            _ => MAX_THREADS,
        }
    }

    /// Threads of a block for `units` units of work, in at most `blocks` blocks of each of `world` ranks.
    fn threads(self, units: u32, blocks: u32, world: usize) -> u32 {
        let most = self.most_threads();
        // Sizes, and up to how many blocks of each there may be.
        let few = if world == 2 { SMALL_BLOCKS } else { SMALL_BLOCKS / 4 };
        let sizes = [(most / 4, few), (most / 2, SMALL_BLOCKS)];
        let sizes = &sizes[sizes.len() - self.traits().halvings as usize..];
        let fits = |(threads, most): &&(u32, u32)| units <= threads * blocks.min(*most);
        units.min(sizes.iter().find(fits).map_or(most, |(threads, _)| *threads))
    }
}

/// The element types that kernels know, in the order of their tables.
pub(crate) const REDUCED_DTYPES: [DType; 3] = [DType::BF16, DType::F16, DType::F32];

/// Where `dtype` is in [`REDUCED_DTYPES`].
pub(crate) fn dtype_index_of(dtype: DType) -> Result<usize> {
    REDUCED_DTYPES.iter().position(|one| *one == dtype).ok_or_else(|| {
        let problem = format!(
            "{dtype} is not reduced on devices. Hint: bf16, f16 and f32 are; convert, or reduce in host memory"
        );
        Error::invalid("element type", problem)
    })
}

/// Blocks that one launch of each kernel may have: by [`Routine`], then by [`REDUCED_DTYPES`].
pub(crate) type Limits = [[u32; REDUCED_DTYPES.len()]; Routine::COUNT];

/// Up to how many bytes each of [`Algorithm::ALL`] is chosen, in each [`Form`], and for norms.
pub(crate) type Crossovers = [[usize; COLUMNS]; Algorithm::ALL.len()];

const _: () = assert!(Form::ALL.len() == NORM);

/// Those that are built in.
pub(crate) fn built_in(world: usize, one_device: bool) -> Crossovers {
    let class = WORLDS.iter().position(|most| world <= *most).unwrap_or(WORLDS.len() - 1);
    let of = |algorithm: Algorithm| algorithm.bounds()[usize::from(!one_device)][class].map(|kib| kib << 10);
    Algorithm::ALL.map(of)
}

/// `crossovers` with what was measured in their place. An error where that is about what the dispatcher does
/// not know, or must not choose.
pub(crate) fn measured(mut crossovers: Crossovers, bounds: &DeviceBounds) -> Result<Crossovers> {
    for (column, algorithms) in bounds {
        let column = column_of(column)?;
        for (algorithm, bytes) in algorithms {
            let algorithm = find_named(&Algorithm::ALL, Algorithm::name, algorithm, "algorithm")?;
            crossovers[algorithm as usize][column] = *bytes;
        }
    }
    Ok(crossovers)
}

/// The column that a tuning calls `name`: a form of all-reduces, or norms.
fn column_of(name: &str) -> Result<usize> {
    let names = Form::ALL.map(Form::name).into_iter().chain([Op::AllReduceRmsNorm.name()]);
    let names: Vec<_> = names.collect();
    let problem = || Error::invalid("form", format!("{name:?} is none of {}", names.join(", ")));
    names.iter().position(|known| *known == name).ok_or_else(problem)
}

/// What devices of that name are called in a tuning: where ranks share one, other algorithms are the best.
pub(crate) fn kind(name: &str, one_device: bool) -> String {
    format!("{name}, {}", if one_device { "all ranks on one" } else { "ranks on several" })
}

/// What all ranks agreed on when the engine was made.
#[derive(Clone, Debug)]
pub(crate) struct AgreedEngine {
    pub(crate) world: usize,
    /// Whether all ranks are on the same device.
    pub(crate) one_device: bool,
    /// Payload bytes that packets can carry.
    pub(crate) slot: usize,
    pub(crate) max_blocks: u32,
    /// What comes before the table, wherever it can carry a message.
    pub(crate) preferred: Option<Algorithm>,
    /// The table: built in, or rank 0's. [`AgreedEngine::first`] asks it.
    pub(crate) crossovers: Crossovers,
    /// For forward progress; the smallest of all ranks.
    pub(crate) limits: Limits,
}

/// Blocks of a kernel that are sure to run at once beside those of the other `lanes`: `occupancy` blocks fit
/// a multiprocessor, and the rank has `multiprocessors` of them.
pub(crate) fn limit(occupancy: u32, multiprocessors: u32, lanes: u32) -> u32 {
    (occupancy * multiprocessors / (lanes.max(1) * FILLED)).clamp(1, MAX_BLOCKS as u32)
}

impl AgreedEngine {
    /// The algorithm for a message of `bytes`, and its kernel: the `forced` one, or the table's.
    pub(crate) fn choose(
        &self,
        form: Form,
        bytes: usize,
        forced: Option<Algorithm>,
        tune: &Tune,
    ) -> Result<(Algorithm, Routine)> {
        let algorithm = forced.unwrap_or_else(|| self.table(form, bytes, tune));
        match self.kernel_of(algorithm, form, bytes) {
            Ok(kernel) => Ok((algorithm, kernel)),
            Err(problem) => Err(Error::invalid(format!("algorithm {algorithm}"), problem)),
        }
    }

    /// The algorithm that the table has for a message.
    fn table(&self, form: Form, bytes: usize, tune: &Tune) -> Algorithm {
        let may = |algorithm: Algorithm| match (algorithm, tune.low_latency_max) {
            (Algorithm::LowLatency, Some(most)) => bytes <= most,
            (algorithm, _) => bytes <= self.crossovers[algorithm as usize][form as usize],
        };
        self.first(may, |algorithm| match self.kernel_of(algorithm, form, bytes) {
            // Alone there is nobody to share the work with.
            Ok(kernel) => self.world > 1 || form == Form::InPlace || !kernel.traits().sliced,
            Err(_) => false,
        })
    }

    /// The preferred algorithm if it can, else the first one that may and can; else the last one that can.
    fn first(&self, may: impl Fn(Algorithm) -> bool, can: impl Fn(Algorithm) -> bool) -> Algorithm {
        if let Some(preferred) = self.preferred.filter(|preferred| can(*preferred)) {
            return preferred;
        }
        let chosen = Algorithm::ALL.iter().find(|algorithm| may(**algorithm) && can(**algorithm));
        let last = || Algorithm::ALL.iter().rfind(|algorithm| can(**algorithm));
        *chosen.or_else(last).unwrap_or(&Algorithm::TwoShot)
    }

    /// The algorithm for a norm of `bytes`, of those that `can`.
    pub(crate) fn norm_algorithm(&self, bytes: usize, can: impl Fn(Algorithm) -> bool) -> Algorithm {
        self.first(|algorithm| bytes <= self.crossovers[algorithm as usize][NORM], can)
    }

    /// The kernel by which `algorithm` carries a message of `bytes` in this form, or why it cannot.
    fn kernel_of(&self, algorithm: Algorithm, form: Form, bytes: usize) -> Result<Routine, String> {
        let (kernel, room) = algorithm.forms()[form as usize].ok_or(match form {
            Form::InPlace => "it does not work in place. Hint: all_reduce_out gives the result elsewhere",
            _ => "it works in place only",
        })?;
        let slice = self.slice(bytes);
        match room {
            MessageLimit::Slot if bytes > self.slot => Err(format!(
                "packets carry at most {} bytes in a group of {}, not {bytes}",
                self.slot, self.world
            )),
            MessageLimit::Scratch if slice > SCRATCH => {
                Err(format!("its slices have at most {SCRATCH} bytes, not {slice}"))
            }
            MessageLimit::HalfSlots => self.two_trip_problem(bytes).map_or(Ok(kernel), Err),
            _ => Ok(kernel),
        }
    }

    /// Why a message cannot go in slices by packets. There are two trips in one staging; and each rank must
    /// own a part, because it hears from the others only about that.
    fn two_trip_problem(&self, bytes: usize) -> Option<String> {
        let slice = self.slice(bytes);
        if 2 * slice > self.slot {
            return Some(format!("its slices have at most {} bytes, not {slice}", self.slot / 2));
        }
        let is_shared = (self.world - 1) * slice < bytes;
        (!is_shared).then(|| format!("{bytes} bytes do not give a slice to each of {} ranks", self.world))
    }

    /// Bytes of the largest slice of a message.
    fn slice(&self, bytes: usize) -> usize {
        bytes.div_ceil(UNIT).div_ceil(self.world) * UNIT
    }

    /// Blocks, and threads of each, for `kernel` on the element type at `dtype_index`.
    pub(crate) fn shape(&self, kernel: Routine, dtype_index: usize, bytes: usize, tune: &Tune) -> (u32, u32) {
        let units = if kernel.traits().sliced { self.slice(bytes) / UNIT } else { bytes.div_ceil(UNIT) };
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        // A thread for each peer spares the meetings a second round.
        let least = (self.world as u32).next_multiple_of(WARP);
        let most = tune.blocks.unwrap_or(self.max_blocks).clamp(1, MAX_BLOCKS as u32);
        let most = most.min(self.limits[kernel as usize][dtype_index]);
        let wanted = tune.threads.unwrap_or_else(|| kernel.threads(units, most, self.world));
        let threads = wanted.min(kernel.most_threads()).next_multiple_of(WARP).max(least);
        (units.div_ceil(threads).clamp(1, most), threads)
    }

    /// The kernel that a rank runs for `kernel` in this shape, if its elements lie at `places`: they may lie
    /// otherwise elsewhere, so this is no matter of agreement, and what peers see is the same.
    #[inline]
    pub(crate) fn kernel_for(
        &self,
        kernel: Routine,
        bytes: usize,
        (grid, threads): (u32, u32),
        places: [u64; 2],
    ) -> Routine {
        let is_whole = [bytes as u64, places[0], places[1]].iter().all(|at| at.is_multiple_of(UNIT as u64));
        match kernel {
            Routine::LowLatency if is_whole && bytes <= (grid * threads) as usize * UNIT => {
                if self.one_device { Routine::LowLatencyTogether } else { Routine::LowLatencyWhole }
            }
            other => other,
        }
    }

    /// Whether a launch in this shape takes so little of what it may that another one beside it leaves peers
    /// their room ([`FILLED`]).
    #[inline]
    pub(crate) fn is_small(&self, kernel: Routine, dtype_index: usize, (grid, threads): (u32, u32)) -> bool {
        let most = u64::from(self.limits[kernel as usize][dtype_index]) * u64::from(kernel.most_threads());
        u64::from(grid * threads) * u64::from(SMALL) <= most
    }
}

#[cfg(test)]
mod tests {
    use super::super::control::ControlLayout;
    use super::*;

    fn agreed(world: usize) -> AgreedEngine {
        let slot = ControlLayout::new(world, 1).slot;
        AgreedEngine {
            world,
            one_device: false,
            slot,
            max_blocks: DEFAULT_BLOCKS,
            preferred: None,
            crossovers: built_in(world, false),
            limits: [[128; 3]; Routine::COUNT],
        }
    }

    const KIB: usize = 1 << 10;
    const PLAIN: Tune = Tune { low_latency_max: None, blocks: None, threads: None };

    /// What the table says must be so: up to where each form goes in packets, by one trip and by two, and up
    /// to where it is read by everybody.
    fn check_table(agreed: &AgreedEngine, one_trip: [usize; 3], two_trips: [usize; 3], one_shot: usize) {
        let world = agreed.world;
        for form in Form::ALL {
            let (one, two) = (one_trip[form as usize] * KIB, two_trips[form as usize] * KIB);
            let choose = |bytes| agreed.choose(form, bytes, None, &PLAIN).unwrap().0;
            assert_eq!(choose(1), Algorithm::LowLatency);
            assert_eq!(choose(one), Algorithm::LowLatency, "{world}");
            if two > 0 {
                assert_eq!((choose(one + 1), choose(two)), (Algorithm::TwoTrip, Algorithm::TwoTrip));
            }
            let read = if form == Form::Out { one_shot * KIB } else { 0 };
            if read > 0 {
                assert_eq!(
                    (choose(one.max(two) + 1), choose(read)),
                    (Algorithm::OneShot, Algorithm::OneShot)
                );
            }
            assert_eq!(choose(one.max(two).max(read) + 1), Algorithm::TwoShot, "{world}");
            let beyond = if form == Form::InPlace { Algorithm::TwoShot } else { Algorithm::OneShot };
            assert_eq!(choose(world * SCRATCH), Algorithm::TwoShot);
            assert_eq!(choose(world * SCRATCH + 1), beyond);
        }
    }

    #[test]
    fn small_messages_go_in_packets_and_large_ones_in_slices() {
        for (world, one_trip, two_trips) in [
            (2, [512, 512, 512], [0, 0, 0]),
            (3, [128, 128, 128], [256, 512, 512]),
            (4, [128, 128, 128], [256, 512, 512]),
            (8, [32, 32, 128], [0, 0, 0]),
            (9, [32, 32, 32], [0, 0, 0]),
            (72, [32, 32, 32], [0, 0, 0]),
        ] {
            check_table(&agreed(world), one_trip, two_trips, 0);
        }
        assert_eq!(agreed(1).choose(Form::Out, 1 << 20, None, &PLAIN).unwrap().0, Algorithm::OneShot);
        let tune = Tune { low_latency_max: Some(0), ..PLAIN };
        assert_eq!(agreed(2).choose(Form::InPlace, 1, None, &tune).unwrap().0, Algorithm::TwoShot);
    }

    #[test]
    fn ranks_of_one_device_have_a_table_of_their_own() {
        for (world, one_trip, two_trips, one_shot) in [
            (2, [256, 512, 512], [0, 0, 0], 0),
            (4, [128, 128, 256], [0, 0, 512], 512),
            (8, [64, 64, 64], [0, 0, 256], 256),
            (9, [32, 32, 32], [0, 0, 0], 0),
        ] {
            let crossovers = built_in(world, true);
            let agreed = AgreedEngine { one_device: true, crossovers, ..agreed(world) };
            check_table(&agreed, one_trip, two_trips, one_shot);
        }
    }

    #[test]
    fn what_was_measured_moves_the_crossovers_and_never_beyond_what_can_be_carried() {
        let mut agreed = agreed(2);
        let row = |form: &str, algorithm: &str, bytes| {
            DeviceBounds::from([(form.to_owned(), [(algorithm.to_owned(), bytes)].into())])
        };
        for (form, algorithm, bytes) in
            [("out", "low_latency", 100), ("out", "one_shot", 1000), ("private", "low_latency", usize::MAX)]
        {
            agreed.crossovers = measured(agreed.crossovers, &row(form, algorithm, bytes)).unwrap();
        }
        let choose = |form, bytes| agreed.choose(form, bytes, None, &PLAIN).unwrap().0;
        let chosen = [100, 101, 1000, 1001].map(|bytes| choose(Form::Out, bytes));
        let (packets, all) = (Algorithm::LowLatency, Algorithm::OneShot);
        assert_eq!(chosen, [packets, all, all, Algorithm::TwoShot]);
        assert_eq!((choose(Form::Private, agreed.slot), choose(Form::InPlace, 101)), (packets, packets));
        assert_eq!(choose(Form::Private, agreed.slot + 1), Algorithm::TwoShot);
    }

    #[test]
    fn blocks_grow_with_what_there_is_to_do() {
        let shape = |kernel, bytes| agreed(4).shape(kernel, 0, bytes, &PLAIN);
        for (bytes, expected) in
            [(1, (1, 64)), (2, (2, 64)), (8, (8, 64)), (32, (16, 128)), (64, (32, 128)), (128, (32, 256))]
        {
            assert_eq!(shape(Routine::LowLatency, bytes * KIB), expected, "{bytes} KB");
        }
        assert_eq!(shape(Routine::LowLatency, 16), (1, 32));
        let of_two = |bytes| agreed(2).shape(Routine::LowLatency, 0, bytes, &PLAIN);
        assert_eq!([2 * KIB, 8 * KIB, 32 * KIB].map(of_two), [(2, 64), (8, 64), (32, 64)]);
        assert_eq!(shape(Routine::TwoShot, 512 * KIB), (32, 256));
        assert_eq!(shape(Routine::TwoShot, 1024 * KIB), (32, 512));
        assert_eq!(shape(Routine::Pull, 16 * KIB), (2, 512));
        // Where there may be few blocks they are larger.
        let few = AgreedEngine { limits: [[8; 3]; Routine::COUNT], ..agreed(4) };
        assert_eq!(few.shape(Routine::LowLatency, 0, 16 * KIB, &PLAIN), (8, 128));
    }

    #[test]
    fn only_whole_messages_have_the_kernel_for_them() {
        let agreed = AgreedEngine { one_device: false, ..agreed(4) };
        let kernel_for = |bytes, places| agreed.kernel_for(Routine::LowLatency, bytes, (8, 64), places);
        assert_eq!(kernel_for(8 * KIB, [32, 48]), Routine::LowLatencyWhole);
        assert_eq!(kernel_for(16, [0, 0]), Routine::LowLatencyWhole);
        for (bytes, places) in [(8 * KIB + 16, [0, 0]), (24, [0, 0]), (16, [2, 0]), (16, [0, 8])] {
            assert_eq!(kernel_for(bytes, places), Routine::LowLatency, "{bytes} at {places:?}");
        }
        assert_eq!(agreed.kernel_for(Routine::TwoShot, 16, (8, 64), [0, 0]), Routine::TwoShot);
        let together = AgreedEngine { one_device: true, ..agreed };
        assert_eq!(
            together.kernel_for(Routine::LowLatency, 16, (8, 64), [0, 0]),
            Routine::LowLatencyTogether
        );
    }

    #[test]
    fn small_is_what_leaves_most_of_its_limit() {
        let agreed = AgreedEngine { limits: [[32; 3]; Routine::COUNT], ..agreed(4) };
        let is_small = |grid, threads| agreed.is_small(Routine::LowLatency, 0, (grid, threads));
        assert!(is_small(8, 64) && is_small(8, 256) && is_small(32, 64));
        assert!(!is_small(9, 256) && !is_small(33, 64));
    }

    #[test]
    fn a_forced_algorithm_that_cannot_carry_a_message_is_refused() {
        let agreed = agreed(2);
        let forced = |algorithm, form, bytes| agreed.choose(form, bytes, Some(algorithm), &PLAIN);
        assert!(forced(Algorithm::LowLatency, Form::Out, 512 * KIB).is_ok());
        assert!(forced(Algorithm::LowLatency, Form::Out, 512 * KIB + 1).is_err());
        assert!(forced(Algorithm::OneShot, Form::InPlace, 1).is_err());
        assert!(forced(Algorithm::OneShot, Form::Private, 1 << 30).is_ok());
        assert!(forced(Algorithm::TwoShot, Form::InPlace, 1 << 30).is_ok());
        assert!(forced(Algorithm::TwoShot, Form::Out, 1 << 30).is_err());
        assert!(forced(Algorithm::TwoTrip, Form::InPlace, 512 * KIB).is_ok());
        assert!(forced(Algorithm::TwoTrip, Form::InPlace, 512 * KIB + 1).is_err());
        assert!(forced(Algorithm::TwoTrip, Form::Private, 17).is_ok());
        assert!(forced(Algorithm::TwoTrip, Form::Private, 16).is_err());
        for form in Form::ALL {
            assert_eq!(forced(Algorithm::Multimem, form, 1 << 30).unwrap().0, Algorithm::Multimem);
        }
    }

    #[test]
    fn a_preferred_algorithm_carries_what_it_can() {
        for algorithm in Algorithm::EVERY.iter().filter(|algorithm| !algorithm.needs_multicast()) {
            let agreed = AgreedEngine { preferred: Some(*algorithm), ..agreed(2) };
            for (form, bytes) in Form::ALL.into_iter().flat_map(|form| [(form, 4 * KIB), (form, 1 << 30)]) {
                let (chosen, kernel) = agreed.choose(form, bytes, None, &PLAIN).unwrap();
                match agreed.kernel_of(*algorithm, form, bytes) {
                    Ok(own) => assert_eq!((chosen, kernel), (*algorithm, own), "{form} {bytes}"),
                    Err(_) => assert_ne!(chosen, *algorithm, "{form} {bytes}"),
                }
            }
        }
    }

    #[test]
    fn shapes_keep_to_every_limit() {
        for world in [1, 2, 3, 8, 33, 72] {
            let mut agreed = agreed(world);
            agreed.limits[Routine::TwoShot as usize][2] = 5;
            for kernel in Routine::ALL.iter().chain(Routine::MULTIMEM).copied() {
                for bytes in [1, 16, 17, 8196, 128 * KIB, 1 << 20, 1 << 40] {
                    let (grid, threads) = agreed.shape(kernel, 2, bytes, &PLAIN);
                    assert!((1..=DEFAULT_BLOCKS).contains(&grid), "{world} {kernel:?} {bytes}");
                    assert!(kernel != Routine::TwoShot || grid <= 5);
                    assert!(
                        threads.is_multiple_of(WARP)
                            && threads <= kernel.most_threads()
                            && threads >= world as u32
                    );
                }
            }
        }
        let agreed = agreed(2);
        assert_eq!(agreed.shape(Routine::TwoShot, 0, 128 * KIB, &PLAIN), (16, 256));
        assert_eq!(agreed.shape(Routine::TwoShot, 0, 1 << 20, &PLAIN), (64, 512));
        let tune = Tune { blocks: Some(4), threads: Some(100), ..PLAIN };
        assert_eq!(agreed.shape(Routine::TwoShot, 0, 1 << 20, &tune), (4, 128));
    }

    #[test]
    fn a_launch_leaves_room_for_others() {
        assert_eq!([1, 2, 4].map(|lanes| limit(1, 132, lanes)), [66, 33, 16]);
        assert_eq!(limit(0, 132, 1), 1);
        assert_eq!(limit(1, 3, 4), 1);
    }

    #[test]
    fn types_that_kernels_do_not_know_are_told() {
        assert_eq!(dtype_index_of(DType::F16).unwrap(), 1);
        assert!(dtype_index_of(DType::F64).unwrap_err().to_string().contains("Hint"));
    }
}
