// all_reduce_low_latency for a message of whole units, at addresses that are multiples of one, of which each thread has one at most.
//
// The packets are the same. Nothing is computed or loaded twice, the unit is on its way together with the turn, and the code is short: this is what the
// smallest messages spend their time on.
#include "packets.cuh"

template <class T, u32 W, u32 N>
SYMMEM_DEVICE void low_latency_whole(const Launch<N>& launch) {
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

#ifndef SYMMEM_HOST
#define ENTRY(T, suffix, W, N)                                                                  \
    extern "C" __global__ void __launch_bounds__(256, W == 2 ? 3 : 2)                          \
        all_reduce_low_latency_whole_##T##_##suffix(const __grid_constant__ Launch<N> launch) { \
        low_latency_whole<T, W>(launch);                                                        \
    }
#include "entries.cuh"
#endif
