// All-reduce in place: each rank reduces the slice that it owns into its scratch, and reads everybody's slices there.
//
// Two meetings: everybody's elements are there; everybody's slices are, and nobody reads `data` any more. Scratch is read until the end: whoever writes it next has met everybody in a later operation.
#include "protocol.cuh"
#include "reduce.cuh"

template <class T, u32 W, u32 N>
SYMMEM_DEVICE void two_shot_read(const Launch<N>& launch) {
    const u32 world = W ? W : launch.world, me = launch.rank;
    const u64 bytes = launch.count * sizeof(T);
    Turn turn = take_turn(launch);
    const bool met = meet(launch, turn, 0, bytes, EARLIER_KERNELS);
    bool whole = met;
    if (whole) {
        Span mine = slice(bytes, me, world);
        // Scratch holds a slice from its first byte on.
        char* scratch = launch.lanes[me] + launch.scratch - mine.begin;
        reduce_span<T, W>(
            launch, mine, all_aligned<W>(launch), [&](u32 rank) { return launch.data[rank]; },
            [&](u64 at, const Unit& unit, u32 left) { store_any<T>(scratch + at, unit, left); });
        whole = meet(launch, turn, 1, bytes, THIS_BLOCK);
    }
    for (u32 next = 0; whole && next < world; ++next) {
        u32 owner = after(me, next, world);
        Span theirs = slice(bytes, owner, world);
        copy_span<T>(theirs, launch.lanes[owner] + launch.scratch - theirs.begin, launch.data[me]);
    }
    leave(launch, turn, met);
}

#ifndef SYMMEM_HOST
#define ENTRY(T, suffix, W, N)                                                              \
    extern "C" __global__ void __launch_bounds__(512, 2)                                    \
        all_reduce_two_shot_read_##T##_##suffix(const __grid_constant__ Launch<N> launch) { \
        two_shot_read<T, W>(launch);                                                        \
    }
#include "entries.cuh"
#endif
