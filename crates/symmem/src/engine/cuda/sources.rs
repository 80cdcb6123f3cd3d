//! The one list of kernel sources: everything that names them follows from it.
//!
//! The engine compiles and loads what is here (`kernels.rs`). `cargo xtask kernels` compiles this file too: it checks that each `*.cu` of
//! the folder `kernels` is in one list, applies the rules of that list, and packs the PTX of `ENGINE` (`embedded.rs`).

/// A file: its name, and its text.
pub(crate) type Source = (&'static str, &'static str);

/// The file called `$name` in the folder `kernels`.
macro_rules! source {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../kernels/", $name)))
    };
}

/// What every engine has, each file compiled for itself. Its PTX is built in.
pub(crate) const ENGINE: [Source; 11] = [
    source!("all_reduce_low_latency.cu"),
    source!("all_reduce_low_latency_whole.cu"),
    source!("all_reduce_low_latency_together.cu"),
    source!("all_reduce_one_shot.cu"),
    source!("all_reduce_two_shot.cu"),
    source!("all_reduce_two_shot_out.cu"),
    source!("all_reduce_two_trip.cu"),
    source!("reduce_portion.cu"),
    source!("pull.cu"),
    source!("signals.cu"),
    source!("marks.cu"),
];

/// What is compiled where there is multicast: it may touch multicast addresses. Its PTX is not built in, for it is for few machines, which can
/// have the compiler.
pub(crate) const MULTIMEM: [Source; 4] = [
    source!("all_reduce_multimem_one_shot.cu"),
    source!("all_reduce_multimem_two_shot.cu"),
    source!("all_gather_multimem.cu"),
    source!("barrier_multimem.cu"),
];

/// The bench's own kernels: they touch memory of one rank only.
#[allow(dead_code, reason = "the library has no bench without its feature")]
pub(crate) const BENCH: Source = source!("bench.cu");

/// What [`ENGINE`] and [`MULTIMEM`] include.
pub(crate) const HEADERS: [Source; 12] = [
    source!("control.cuh"),
    source!("entries.cuh"),
    source!("multimem.cuh"),
    source!("multimem_entries.cuh"),
    source!("number.cuh"),
    source!("packets.cuh"),
    source!("primitives.cuh"),
    source!("protocol.cuh"),
    source!("record.cuh"),
    source!("reduce.cuh"),
    source!("units.cuh"),
    source!("whole.cuh"),
];
