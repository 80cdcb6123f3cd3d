// All-reduce without a meeting, in one trip: every rank sends its elements to everybody in packets, and sums up what it receives.
//
// Works on any memory of the rank, symmetric or not. Each rank sends twice its bytes to each peer: for small messages.
#include "packets.cuh"

// Each thread has at most one unit, whole and aligned: nothing is computed or loaded twice, and the unit is on its way together with
// the turn, which spares the smallest messages a trip to memory.
template <class T, u32 W, u32 N>
SYMMEM_DEVICE void one_unit_each(const Launch<N>& launch) {
    const u32 at = (u32)first_unit();
    const bool mine = at < (u32)(launch.count * sizeof(T));
    Turn turn = take_turn(launch);
    Unit unit = {};
    if (mine) unit = load_unit(launch.input + at);
    if (mine && turn.whole) send_all<W>(launch, turn, at, unit);
    const bool began = sync_threads_and(turn.whole);
    draw(launch, turn);
    if (mine && began && gather<T, W>(launch, turn, at, &unit)) store_unit(launch.output + at, unit);
    leave(launch, turn, began);
}

template <class T, u32 W, u32 N>
SYMMEM_DEVICE void any_units(const Launch<N>& launch) {
    const u64 bytes = launch.count * sizeof(T), step = stride(), first = first_unit();
    Turn turn = take_turn(launch);
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
    leave(launch, turn, began);
}

template <class T, u32 W, u32 N>
SYMMEM_DEVICE void low_latency(const Launch<N>& launch) {
    const u64 bytes = launch.count * sizeof(T);
    if (bytes <= stride() && bytes % UNIT == 0 && is_aligned(launch.input) && is_aligned(launch.output))
        one_unit_each<T, W>(launch);
    else
        any_units<T, W>(launch);
}

#ifndef SYMMEM_HOST
#define ENTRY(T, suffix, W, N)                                                            \
    extern "C" __global__ void __launch_bounds__(256, W == 2 ? 3 : 2)                    \
        all_reduce_low_latency_##T##_##suffix(const __grid_constant__ Launch<N> launch) { \
        low_latency<T, W>(launch);                                                        \
    }
#include "entries.cuh"
#endif
