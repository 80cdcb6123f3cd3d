//! Kernels as PTX, for machines without NVRTC and for devices that are newer than theirs.
//!
//! Made by `cargo xtask kernels --write`, which a test keeps true to the sources: the kernels for groups of any size, for compute capability 8.0
//! and up. The driver compiles them when they are loaded; it must know PTX 9.0, that is, be of release 580 or later.

/// What is built in, by the name of its source.
const PTX: [(&str, &str); 10] = [
    ("all_reduce_low_latency.cu", include_str!("../../../kernels/ptx/all_reduce_low_latency.ptx")),
    (
        "all_reduce_low_latency_whole.cu",
        include_str!("../../../kernels/ptx/all_reduce_low_latency_whole.ptx"),
    ),
    (
        "all_reduce_low_latency_together.cu",
        include_str!("../../../kernels/ptx/all_reduce_low_latency_together.ptx"),
    ),
    ("all_reduce_one_shot.cu", include_str!("../../../kernels/ptx/all_reduce_one_shot.ptx")),
    ("all_reduce_two_shot.cu", include_str!("../../../kernels/ptx/all_reduce_two_shot.ptx")),
    ("all_reduce_two_shot_out.cu", include_str!("../../../kernels/ptx/all_reduce_two_shot_out.ptx")),
    ("all_reduce_two_trip.cu", include_str!("../../../kernels/ptx/all_reduce_two_trip.ptx")),
    ("pull.cu", include_str!("../../../kernels/ptx/pull.ptx")),
    ("reduce_portion.cu", include_str!("../../../kernels/ptx/reduce_portion.ptx")),
    ("signals.cu", include_str!("../../../kernels/ptx/signals.ptx")),
];

/// The PTX of the source called `name`.
pub(super) fn ptx(name: &str) -> Option<&'static [u8]> {
    PTX.iter().find(|(known, _)| *known == name).map(|(_, text)| text.as_bytes())
}
