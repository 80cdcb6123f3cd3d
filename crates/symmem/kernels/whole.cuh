// all_reduce_low_latency for a message of whole units, at addresses that are multiples of one, of which each thread has one at most.
//
// The packets are the same. Nothing is computed or loaded twice, the unit is on its way together with the turn, and the code is short: this is what the
// smallest messages spend their time on. SENT: how the ranks lie, known when it is compiled.
#pragma once
#include "packets.cuh"

template <class T, u32 W, Sent SENT, u32 N>
SYMMEM_DEVICE void low_latency_whole(const Launch<N>& launch) {
    const u32 at = (u32)first_unit();
    const bool mine = at < (u32)(launch.count * sizeof(T));
    Turn turn = take_turn(launch);
    Unit unit = {};
    if (mine) unit = load_unit(launch.input + at);
    order_earlier<SENT>(launch, at);
    if (mine && turn.whole) send_all<W, SENT>(launch, turn, at, unit);
    const bool began = sync_threads_and(turn.whole);
    draw(launch, turn);
    if (mine && began && gather<T, W, SENT>(launch, turn, at, &unit)) {
        order_earlier<SENT>(launch, at);
        store_unit(launch.output + at, unit);
    }
    leave(launch, turn, began);
}
