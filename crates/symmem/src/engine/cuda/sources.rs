//! The one table of device algorithms and of their kernels: everything that names either follows from it.
//!
//! The dispatcher chooses from it (`plan.rs`), and so do `SYMMEM_DEVICE_ALGORITHM`, the bench,
//! `symmem tune` and Python; the engine compiles and loads its kernels (`kernels.rs`).
//! `cargo xtask kernels` compiles this file too: it checks that each `*.cu` of the folder `kernels` is here,
//! that its code has the steps that its row says, and packs its PTX (`embedded.rs`). A new algorithm is a
//! file there, a row here, and `cargo xtask kernels --write`.

/// A file: its name, and its text.
pub(crate) type KernelSource = (&'static str, &'static str);

/// What algorithms are chosen for, each by bounds of its own: all-reduces in place, out of place and from
/// private memory (in the order of `cuda::Form`), and norms.
pub(crate) const COLUMNS: usize = NORM + 1;

/// The column of norms.
pub(crate) const NORM: usize = 3;

/// Up to how many KB an algorithm is chosen, in groups of at most [`WORLDS`] ranks.
pub(crate) type BuiltInBounds = [[usize; COLUMNS]; WORLDS.len()];

/// The sizes of groups that have bounds of their own.
pub(crate) const WORLDS: [usize; 4] = [2, 4, 8, usize::MAX];

/// Whatever the size.
#[allow(dead_code, reason = "who checks the kernels chooses none")]
pub(crate) const ANY: usize = usize::MAX >> 10;

/// What limits the messages that a kernel can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageLimit {
    /// Nothing does.
    Any,
    /// The message must fit the slots of packets.
    Slot,
    /// A slice must fit half of a slot, and each rank must own one.
    HalfSlots,
    /// A slice must fit the scratch of a lane.
    Scratch,
}

/// What holds of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    /// How often its blocks are halved for small messages.
    pub(crate) halvings: u32,
    /// Whether its blocks have at most half of the threads that others have.
    pub(crate) narrow: bool,
    /// Whether they have at most twice as many.
    pub(crate) wide: bool,
    /// Whether each rank works on a slice of the message only.
    pub(crate) sliced: bool,
    /// Whether it knows bytes, and no element types.
    pub(crate) bytes: bool,
}

/// Gives the table to the macro `$make`.
///
/// An algorithm has a list (`ALL`: the dispatcher chooses from those, by their bounds, the first that may;
/// `ASKED_FOR`: it does not), a name, the kernel of each of the [`COLUMNS`] with its room, up to which KB it
/// is chosen (ranks on one device, and apart), and kernels. A kernel has
/// its source, which is the head of its entries' names, the steps of its protocol in their order
/// (`xtask/src/commands/kernels/rules.rs`), and [`Traits`].
macro_rules! device_table {
    ($make:ident) => { $make! { {
        ALL {
            /// Every one that the dispatcher chooses from; they give the same bits.
        } = {
            /// Every rank sends its elements to everybody in packets that carry their own flag. One trip,
            /// twice the bytes.
            LowLatency = "low_latency", [Some((LowLatency, Slot)), Some((LowLatency, Slot)), Some((LowLatency, Slot)), None],
            // Private memory goes in packets for longer, since the other algorithms must copy it first.
            up to [[256, 512, 512, 0], [128, 128, 256, 0], [64, 64, 64, 0], [32, 32, 32, 0]], [[512, 512, 512, 0], [128, 128, 128, 0], [32, 32, 128, 0], [32, 32, 32, 0]] => {
                LowLatency = "all_reduce_low_latency" [fence packets fence] {narrow: true, halvings: 2},
                /// The same for messages that a rank finds whole: see `Agreed::kernel_for` of `plan.rs`.
                LowLatencyWhole = "all_reduce_low_latency_whole" [fence packets fence] {narrow: true, halvings: 2},
                /// The same where all ranks are on one device.
                LowLatencyTogether = "all_reduce_low_latency_together" [packets] {narrow: true, halvings: 2},
            }
            /// Every rank reduces a slice, and sends it to everybody in packets.
            TwoTrip = "two_trip", [Some((TwoTrip, HalfSlots)), Some((TwoTrip, HalfSlots)), Some((TwoTrip, HalfSlots)), None],
            up to [[0, 0, 0, 0], [0, 0, 512, 0], [0, 0, 256, 0], [0, 0, 0, 0]], [[0, 0, 0, 0], [256, 512, 512, 0], [0, 0, 0, 0], [0, 0, 0, 0]] => {
                TwoTrip = "all_reduce_two_trip" [tell hear packets] {narrow: true, halvings: 1, sliced: true},
            }
            /// Every rank reads everybody's elements. Not in place.
            OneShot = "one_shot", [None, Some((OneShot, Any)), Some((OneShot, Any)), Some((NormOneShot, Any))],
            // Norms were measured where two and four ranks share an H200.
            up to [[0, 0, 0, ANY], [0, 512, 0, 1024], [0, 256, 0, 256], [0, 0, 0, 256]], [[0, 0, 0, ANY], [0, 0, 0, 1024], [0, 0, 0, 256], [0, 0, 0, 256]] => {
                OneShot = "all_reduce_one_shot" [publish hear publish hear] {halvings: 1},
            }
            /// Every rank reduces a slice for everybody.
            TwoShot = "two_shot", [Some((TwoShot, Any)), Some((TwoShotOut, Scratch)), Some((TwoShotOut, Scratch)), Some((NormTwoShot, Scratch))],
            up to [[ANY; COLUMNS]; 4], [[ANY; COLUMNS]; 4] => {
                TwoShot = "all_reduce_two_shot" [tell hear publish hear] {halvings: 1, sliced: true},
                TwoShotOut = "all_reduce_two_shot_out" [publish hear publish hear] {halvings: 1, sliced: true},
            }
        }
        ASKED_FOR {
            /// Those that are used only where they are asked for.
        } = {
            /// The NVLink switch adds and copies, through multicast: in place every rank asks it for the sum
            /// of a slice and gives that to everybody, else every rank asks it for all sums.
            ///
            /// Only where it is asked for (`Engine::using`), and only where all ranks have mapped the memory
            /// for multicast; else [`Error::NoMulticast`]. The dispatcher never chooses it: the order and
            /// rounding of the sums are the switch's, not those of `docs/numerics.md` (in place, all ranks
            /// still get the same bits; otherwise they may differ between ranks), and it has not been
            /// measured.
            Multimem = "multimem", [Some((MultimemTwoShot, Any)), Some((MultimemOneShot, Any)), Some((MultimemOneShot, Any)), None] => {}
        } }
        // What every engine has beside those of its algorithms. Its PTX is built in.
        engine: {
            /// All-reduce, residual and norm: see `ops/norm.rs`. Algorithms above name the first two.
            NormOneShot = "norm_one_shot" [publish hear tell listen] {wide: true},
            NormTwoShot = "norm_two_shot" [publish hear publish hear] {wide: true},
            /// Waits for nobody: what is left when an all-reduce is done.
            NormAlone = "norm_alone" [] {wide: true},
            Portion = "reduce_portion" [tell hear publish hear] {},
            Pull = "pull" [tell hear publish hear] {bytes: true},
        } "signals" "marks"
        // What is compiled where there is multicast: it may touch multicast addresses. Its PTX is not built
        // in, for it is for few machines, which can have the compiler.
        multimem: {
            MultimemOneShot = "all_reduce_multimem_one_shot" [meet_all sum meet_all] {},
            MultimemTwoShot = "all_reduce_multimem_two_shot" [meet_all sum copy meet_all] {sliced: true},
            MultimemGather = "all_gather_multimem" [meet_all copy meet_all] {bytes: true},
        } "barrier_multimem"
    } };
}
#[allow(unused_imports, reason = "who checks the kernels makes no algorithms")]
pub(crate) use device_table;

/// The file called `$name$end` in the folder `kernels`.
macro_rules! source {
    ($name:literal $end:literal) => {
        (concat!($name, $end), include_str!(concat!("../../../kernels/", $name, $end)))
    };
}

/// What is made of the table here: the kernels.
macro_rules! kernels {
    (
        {$($list:ident $about:tt = {$(
            $(#[$doc:meta])*
            $algorithm:ident = $name:literal, $forms:expr $(, up to $together:expr, $apart:expr)? =>
            {$($(#[$k_doc:meta])* $kernel:ident = $stem:literal $steps:tt {$($is:ident: $value:expr),*},)*}
        )*})*}
        engine: {$($(#[$e_doc:meta])* $e_kernel:ident = $e_stem:literal $e_steps:tt {$($e_is:ident: $e_value:expr),*},)*} $($plain:literal)*
        multimem: {$($(#[$m_doc:meta])* $m_kernel:ident = $m_stem:literal $m_steps:tt {$($m_is:ident: $m_value:expr),*},)*} $($m_plain:literal)*
    ) => {
        /// A kernel that waits for peers and moves or reduces elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(dead_code, reason = "who checks the kernels runs none")]
        pub(crate) enum Routine {
            $($($($(#[$k_doc])* $kernel,)*)*)*
            $($(#[$e_doc])* $e_kernel,)*
            $($(#[$m_doc])* $m_kernel,)*
        }

        #[allow(dead_code, reason = "who checks the kernels runs none")]
        impl Routine {
            /// Those that every engine has.
            pub(crate) const ALL: &[Self] = &[$($($(Self::$kernel,)*)*)* $(Self::$e_kernel,)*];
            /// Those that need multicast; they come after all others.
            pub(crate) const MULTIMEM: &[Self] = &[$(Self::$m_kernel,)*];
            /// How many there are.
            pub(crate) const COUNT: usize = Self::ALL.len() + Self::MULTIMEM.len();

            /// That of its source, and the head of the names of its kernels.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $($($(Self::$kernel => $stem,)*)*)*
                    $(Self::$e_kernel => $e_stem,)*
                    $(Self::$m_kernel => $m_stem,)*
                }
            }

            /// The steps of its protocol.
            pub(crate) const fn steps(self) -> &'static str {
                match self {
                    $($($(Self::$kernel => stringify!($steps),)*)*)*
                    $(Self::$e_kernel => stringify!($e_steps),)*
                    $(Self::$m_kernel => stringify!($m_steps),)*
                }
            }

            pub(crate) const fn traits(self) -> Traits {
                const PLAIN: Traits =
                    Traits { halvings: 0, narrow: false, wide: false, sliced: false, bytes: false };
                match self {
                    $($($(Self::$kernel => Traits { $($is: $value,)* ..PLAIN },)*)*)*
                    $(Self::$e_kernel => Traits { $($e_is: $e_value,)* ..PLAIN },)*
                    $(Self::$m_kernel => Traits { $($m_is: $m_value,)* ..PLAIN },)*
                }
            }
        }

        /// What every engine has, each file compiled for itself. Its PTX is built in.
        pub(crate) const ENGINE: &[KernelSource] =
            &[$($($(source!($stem ".cu"),)*)*)* $(source!($e_stem ".cu"),)* $(source!($plain ".cu"),)*];

        /// What is compiled where there is multicast.
        pub(crate) const MULTIMEM: &[KernelSource] = &[$(source!($m_stem ".cu"),)* $(source!($m_plain ".cu"),)*];

        /// The name of each algorithm, and the kernel and room of each column that it has.
        #[allow(dead_code, reason = "the engine has them by their enum")]
        pub(crate) const FORMS: &[(&str, [Option<(Routine, MessageLimit)>; COLUMNS])] = {
            use MessageLimit::*;
            use Routine::*;
            &[$($(($name, $forms),)*)*]
        };
    };
}
device_table!(kernels);

/// The bench's own kernels: they touch memory of one rank only.
#[allow(dead_code, reason = "the library has no bench without its feature")]
pub(crate) const BENCH: KernelSource = source!("bench" ".cu");

/// What [`ENGINE`] and [`MULTIMEM`] include.
pub(crate) const HEADERS: [KernelSource; 14] = [
    source!("control" ".cuh"),
    source!("entries" ".cuh"),
    source!("multimem" ".cuh"),
    source!("multimem_entries" ".cuh"),
    source!("norm" ".cuh"),
    source!("norm_meeting" ".cuh"),
    source!("number" ".cuh"),
    source!("packets" ".cuh"),
    source!("primitives" ".cuh"),
    source!("protocol" ".cuh"),
    source!("record" ".cuh"),
    source!("reduce" ".cuh"),
    source!("units" ".cuh"),
    source!("whole" ".cuh"),
];
