// What records a launch of a kernel that was not compiled to record: one thread before it and one after it, in the order of its stream. So a job that runs
// already can be recorded, without a kernel that would have to be loaded beside others that wait.
//
// Nothing of the lane runs between the two but that launch: neither comes early, and the launch between them does not either.
#include "record.cuh"

// A launch that takes a turn is about to.
template <u32 N>
SYMMEM_DEVICE void mark_begin(const Launch<N>& launch) {
    const u64 time = now();
    const u32 epoch = (u32)(load_relaxed(&launch.own_lane()->entry) >> 32);
    record_begin(launch, 0, epoch, time);
}

// It has given the lane to the next one.
template <u32 N>
SYMMEM_DEVICE void mark_end(const Launch<N>& launch) {
    const u32 next = (u32)(load_relaxed(&launch.own_lane()->entry) >> 32);
    // As `leave` counts.
    const u32 epoch = next == 2 ? ~0u : next - 1;
    record_end(launch, 0, epoch, load_relaxed(launch.poison) == 0);
}

#ifndef SYMMEM_HOST
#define MARKS(suffix, N)                                                                           \
    extern "C" __global__ void mark_begin##suffix(const __grid_constant__ Launch<N> launch) {      \
        mark_begin<N>(launch);                                                                     \
    }                                                                                              \
    extern "C" __global__ void mark_end##suffix(const __grid_constant__ Launch<N> launch) {        \
        mark_end<N>(launch);                                                                       \
    }
MARKS(, 8)
MARKS(_any, 72)
#endif
