// All-reduce, residual and norm without a meeting: every rank sends its elements to everybody in packets, and sums up and normalises what it receives.
//
// Works on any memory of the rank, as all_reduce_low_latency does; for small messages. A block has whole rows.
#include "norm.cuh"
#include "packets.cuh"

template <class T, u32 W, u32 N>
SYMMEM_DEVICE void norm_low_latency(const Launch<N>& launch, const Norm& norm) {
    Turn turn = take_turn(launch);
    Rows<T> rows(norm, launch.output);
    // Of this thread's first unit.
    const u32 first = (u32)rows.place(block_index(), thread_index() * UNIT);
    order_earlier<TO_ALL>(launch, first);
#pragma unroll 1
    for (u32 row = block_index(); turn.whole && row < norm.rows; row += block_count())
        rows.each([&](u32 at) {
            const u64 place = rows.place(row, at);
            send_all<W>(launch, turn, (u32)place, load_unit(launch.input + place));
        });
    const bool began = sync_threads_and(turn.whole);
    draw(launch, turn);
    bool whole = began;
#pragma unroll 1
    for (u32 row = block_index(); row < norm.rows; row += block_count()) {
        // Who has given up goes on with the block, and writes nothing.
        rows.add(row, [&](u32 at) {
            const u64 place = rows.place(row, at);
            Unit unit = load_unit(launch.input + place);
            if (whole) whole = gather<T, W>(launch, turn, (u32)place, &unit);
            return unit;
        });
        rows.write(row, whole);
    }
    order_earlier<TO_ALL>(launch, first);
    leave(launch, turn, began);
}

#ifndef SYMMEM_HOST
#define ENTRY(T, suffix, W, N)                                                                              \
    extern "C" __global__ void __launch_bounds__(512, 1) norm_low_latency_##T##_##suffix(                  \
        const __grid_constant__ Launch<N> launch, const __grid_constant__ Norm norm) {                      \
        norm_low_latency<T, W>(launch, norm);                                                               \
    }
#include "entries.cuh"
#endif
