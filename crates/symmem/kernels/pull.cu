// Collectives that only move elements: every rank reads what it is due from the memory of its peers.
//
// `count` bytes, from byte `input` on, of the memory of rank `peer` go to `output`; if `peer` is the number of ranks, of everybody's memory, one behind
// the other. With IDLE a rank is read only. Two meetings: everybody's elements are there; everybody has read mine.
#include "protocol.cuh"
#include "units.cuh"

template <u32 N>
SYMMEM_DEVICE void pull(const Launch<N>& launch) {
    const u64 from = (u64)launch.input;
    Turn turn = take_turn(launch);
    const bool met = meet(launch, turn, 0, launch.count, EARLIER_KERNELS);
    if (met) {
        const bool everybody = launch.peer == launch.world;
        for (u32 next = 0; !(launch.mode & IDLE) && next < (everybody ? launch.world : 1); ++next) {
            const u32 source = everybody ? after(launch.rank, next, launch.world) : launch.peer;
            char* to = launch.output + (everybody ? source * launch.count : 0);
            copy_bytes(launch.count, launch.data[source] + from, to);
        }
        meet(launch, turn, 1, launch.count, THIS_BLOCK);
    }
    leave(launch, turn, met);
}

#ifndef SYMMEM_HOST
#define PULL(suffix, N)                                                                                             \
    extern "C" __global__ void __launch_bounds__(512, 2) pull##suffix(const __grid_constant__ Launch<N> launch) {   \
        pull<N>(launch);                                                                                            \
    }
#ifndef SYMMEM_ANY_ONLY
PULL(, 8)
#endif
PULL(_any, 72)
#endif
