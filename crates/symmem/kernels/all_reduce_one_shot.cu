// All-reduce in which every rank reads everybody's elements and keeps the sum.
//
// `data` is symmetric; an `input` elsewhere is copied there first. Two meetings: everybody's elements are there; everybody has read mine.
#include "protocol.cuh"
#include "reduce.cuh"

template <class T, u32 W, u32 N>
SYMMEM_DEVICE void one_shot(const Launch<N>& launch) {
    const u64 bytes = launch.count * sizeof(T);
    const Span all = {0, bytes};
    char* own = launch.data[launch.rank];
    Turn turn = take_turn(launch);
    bool copies = turn.whole && launch.input != own;
    if (copies) copy_span<T>(all, launch.input, own);
    const bool met = meet(launch, turn, 0, bytes, launch.input != own ? THIS_BLOCK : EARLIER_KERNELS);
    if (met) {
        reduce_span<T, W>(
            launch, all, all_aligned<W>(launch), [&](u32 rank) { return launch.data[rank]; },
            [&](u64 at, const Unit& unit, u32 left) { store_any<T>(launch.output + at, unit, left); });
        meet(launch, turn, 1, bytes, THIS_BLOCK);
    }
    leave(launch, turn, met);
}

#ifndef SYMMEM_HOST
#define ENTRY(T, suffix, W, N)                                                         \
    extern "C" __global__ void __launch_bounds__(512, 2)                               \
        all_reduce_one_shot_##T##_##suffix(const __grid_constant__ Launch<N> launch) { \
        one_shot<T, W>(launch);                                                        \
    }
#include "entries.cuh"
#endif
