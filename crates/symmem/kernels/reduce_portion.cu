// Reductions of which a rank keeps a portion, or nothing: reduce_scatter and reduce.
//
// A portion is `peer` rows of `count` elements: the first begins at byte `input` of everybody's memory, the next one as many rows further as there are ranks.
// With IDLE a rank is read only. Two meetings: everybody's elements are there; everybody has read mine.
#include "protocol.cuh"
#include "reduce.cuh"

template <class T, u32 W, u32 N>
SYMMEM_DEVICE void reduce_portion(const Launch<N>& launch) {
    const u64 bytes = launch.count * sizeof(T);
    Turn turn = take_turn(launch);
    const bool met = meet(launch, turn, 0, bytes, EARLIER_KERNELS);
    if (met) {
        const bool aligned = all_aligned<W>(launch);
        for (u32 row = 0; !(launch.mode & IDLE) && row < launch.peer; ++row) {
            const u64 start = (u64)launch.input + row * bytes * launch.world;
            char* to = launch.output + row * bytes;
            reduce_span<T, W>(
                launch, Span{0, bytes}, aligned && start % UNIT == 0, [&](u32 rank) { return launch.data[rank] + start; },
                [&](u64 at, const Unit& unit, u32 left) { store_any<T>(to + at, unit, left); });
        }
        meet(launch, turn, 1, bytes, THIS_BLOCK);
    }
    leave(launch, turn, met);
}

#ifndef SYMMEM_HOST
#define ENTRY(T, suffix, W, N)                                                    \
    extern "C" __global__ void __launch_bounds__(512, 2)                          \
        reduce_portion_##T##_##suffix(const __grid_constant__ Launch<N> launch) { \
        reduce_portion<T, W>(launch);                                             \
    }
#include "entries.cuh"
#endif
