// Every kernel, and the all-reduces that every engine has: written by `cargo xtask kernels --write` from the table in src/engine/cuda/sources.rs.
#pragma once

#include "../all_gather_multimem.cu"
#include "../all_reduce_low_latency.cu"
#include "../all_reduce_low_latency_together.cu"
#include "../all_reduce_low_latency_whole.cu"
#include "../all_reduce_multimem_one_shot.cu"
#include "../all_reduce_multimem_two_shot.cu"
#include "../all_reduce_one_shot.cu"
#include "../all_reduce_two_shot.cu"
#include "../all_reduce_two_shot_out.cu"
#include "../all_reduce_two_trip.cu"
#include "../barrier_multimem.cu"
#include "../marks.cu"
#include "../norm_alone.cu"
#include "../norm_one_shot.cu"
#include "../norm_two_shot.cu"
#include "../pull.cu"
#include "../reduce_portion.cu"
#include "../signals.cu"

// X(kind, body, forms as bits, whether each rank must own a part) for each of them.
#define SYMMEM_ALL_REDUCES(X) \
    X(LOW_LATENCY, low_latency, 7, false) \
    X(TWO_TRIP, two_trip, 7, true) \
    X(ONE_SHOT, one_shot, 6, false) \
    X(TWO_SHOT, two_shot, 1, false) \
    X(TWO_SHOT_OUT, two_shot_out, 6, false)
