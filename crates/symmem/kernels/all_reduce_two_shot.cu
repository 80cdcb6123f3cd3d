// All-reduce in place: each rank reduces the slice that it owns, and writes it into everybody's memory.
//
// Two meetings: everybody's elements are there; everybody's slices are. No rank touches a slice that it does not own in between.
#include "protocol.cuh"
#include "reduce.cuh"

template <class T, u32 W, u32 N>
SYMMEM_DEVICE void two_shot(const Launch<N>& launch) {
    const u32 world = W ? W : launch.world;
    const u64 bytes = launch.count * sizeof(T);
    Turn turn = take_turn(launch);
    const bool met = meet(launch, turn, 0, bytes, EARLIER_KERNELS);
    if (met) {
        reduce_span<T, W>(
            launch, slice(bytes, launch.rank, world), all_aligned<W>(launch),
            [&](u32 rank) { return launch.data[rank]; },
            [&](u64 at, const Unit& unit, u32 left) {
#pragma unroll (W ? W : 1)
                for (u32 rank = 0; rank < world; ++rank) store_any<T>(launch.data[rank] + at, unit, left);
            });
        meet(launch, turn, 1, bytes, THIS_BLOCK);
    }
    leave(launch, turn, met);
}

#ifndef SYMMEM_HOST
#define ENTRY(T, suffix, W, N)                                                         \
    extern "C" __global__ void __launch_bounds__(512, 2)                               \
        all_reduce_two_shot_##T##_##suffix(const __grid_constant__ Launch<N> launch) { \
        two_shot<T, W>(launch);                                                        \
    }
#include "entries.cuh"
#endif
