// All-reduce without a meeting, in one trip: every rank sends its elements to everybody in packets, and sums up what it receives.
//
// Works on any memory of the rank, symmetric or not. Each rank sends twice its bytes to each peer: for small messages.
#include "packets.cuh"

template <class T, u32 W, u32 N>
SYMMEM_DEVICE void low_latency(const Launch<N>& launch) {
    const u32 world = W ? W : launch.world, me = launch.rank;
    const u64 bytes = launch.count * sizeof(T), step = stride(), first = first_unit();
    Turn turn = take_turn(launch);
    bool whole = turn.whole;
    for (u64 at = first; whole && at < bytes; at += step) {
        Unit unit = load_any<T>(launch.input + at, bytes_left(at, bytes));
        for (u32 next = 1; next < world; ++next) send(launch, turn, after(me, next, world), at, unit);
    }
    announce(launch, turn, bytes);
    const bool began = sync_threads_and(whole);
    draw(launch, turn);
    whole = began;
    for (u64 at = first; whole && at < bytes; at += step) {
        u32 left = bytes_left(at, bytes);
        Unit unit = load_any<T>(launch.input + at, left);
        whole = gather<T, W>(launch, turn, at, unit, &unit);
        if (whole) store_any<T>(launch.output + at, unit, left);
    }
    leave(launch, turn, began);
}

#ifndef SYMMEM_HOST
#define ENTRY(T, suffix, W, N)                                                            \
    extern "C" __global__ void __launch_bounds__(256, W == 8 ? 1 : 2)                    \
        all_reduce_low_latency_##T##_##suffix(const __grid_constant__ Launch<N> launch) { \
        low_latency<T, W>(launch);                                                        \
    }
#include "entries.cuh"
#endif
