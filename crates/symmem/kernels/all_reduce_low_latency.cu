// All-reduce without a meeting, in one trip: every rank sends its elements to everybody in packets, and sums up what it receives.
//
// Works on any memory of the rank, symmetric or not. Each rank stores twice its bytes, for each peer or once for all of them: for small messages. A rank whose
// message allows it runs all_reduce_low_latency_whole instead, whatever the others run.
#include "packets.cuh"

template <class T, u32 W, u32 N>
SYMMEM_DEVICE void low_latency(const Launch<N>& launch) {
    const u64 bytes = launch.count * sizeof(T), step = stride(), first = first_unit();
    Turn turn = take_turn(launch);
    order_earlier<TO_ALL>(launch, (u32)first);
    for (u64 at = first; turn.whole && at < bytes; at += step)
        send_all<W>(launch, turn, (u32)at, load_any<T>(launch.input + at, bytes_left(at, bytes)));
    const bool began = sync_threads_and(turn.whole);
    draw(launch, turn);
    bool whole = began;
    for (u64 at = first; whole && at < bytes; at += step) {
        u32 left = bytes_left(at, bytes);
        Unit unit = load_any<T>(launch.input + at, left);
        whole = gather<T, W>(launch, turn, (u32)at, &unit);
        if (whole) store_any<T>(launch.output + at, unit, left);
    }
    // Not in the loop, whose loads it would keep apart: what it orders is for kernels behind this one.
    order_earlier<TO_ALL>(launch, (u32)first);
    leave(launch, turn, began);
}

#ifndef SYMMEM_HOST
#define ENTRY(T, suffix, W, N)                                                            \
    extern "C" __global__ void __launch_bounds__(256, W == 2 ? 3 : 2)                    \
        all_reduce_low_latency_##T##_##suffix(const __grid_constant__ Launch<N> launch) { \
        low_latency<T, W>(launch);                                                        \
    }
#include "entries.cuh"
#endif
