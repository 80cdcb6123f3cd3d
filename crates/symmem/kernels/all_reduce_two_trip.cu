// All-reduce in slices that travel in packets: each rank reduces the slice that it owns, and sends it to everybody.
//
// From symmetric memory the elements are read where they are, after a meeting; from elsewhere they come in packets too. Either way whoever
// sends a unit of the result has read everybody's elements that it is made of: so who has received it may overwrite its own, and no
// meeting ends the operation. On one device nothing is ever released, which is what a meeting that publishes spends its time on.
#include "packets.cuh"
#include "reduce.cuh"

// Sends everybody the units of its slice, from private memory.
template <class T, u32 W, u32 N>
SYMMEM_DEVICE void scatter(const Launch<N>& launch, const Turn& turn, u64 bytes) {
    const u32 world = W ? W : launch.world;
    for (u32 next = 1; turn.whole && next < world; ++next) {
        const u32 owner = after(launch.rank, next, world);
        const Span span = slice(bytes, owner, world);
        for (u64 at = first_unit(); at < span.end - span.begin; at += stride())
            send(launch, turn, owner, (u32)at, load_any<T>(launch.input + span.begin + at, bytes_left(span.begin + at, span.end)));
    }
}

template <class T, u32 W, u32 N>
SYMMEM_DEVICE void two_trip(const Launch<N>& launch) {
    Turn turn = take_turn(launch);
    const u32 world = W ? W : launch.world, me = launch.rank;
    const u64 bytes = launch.count * sizeof(T);
    const u32 each = (u32)slice_bytes(bytes, world);
    const Span mine = slice(bytes, me, world);
    const bool direct = launch.input == launch.data[me], aligned = all_aligned<W>(launch);
    const float divisor = launch.mode & AVERAGE ? (float)world : 0.0f;
    bool began;
    if (direct) {
        began = meet(launch, turn, 0, bytes, EARLIER_KERNELS);
    } else {
        order_earlier<TO_ONE>(launch, (u32)first_unit());
        scatter<T, W>(launch, turn, bytes);
        began = sync_threads_and(turn.whole);
        draw(launch, turn);
    }
    bool whole = began;
    for (u32 at = (u32)first_unit(); whole && mine.begin + at < mine.end; at += (u32)stride()) {
        const u64 from = mine.begin + at;
        const u32 left = bytes_left(from, mine.end);
        Unit unit;
        if (direct) {
            unit = reduce_unit<T, W>(launch, from, left, aligned, divisor);
        } else {
            unit = load_any<T>(launch.input + from, left);
            whole = gather<T, W, TO_ONE>(launch, turn, at, &unit);
            order_earlier<TO_ONE>(launch, at);
        }
        if (!whole) break;
        send_all<W>(launch, turn, each + at, unit);
        store_any<T>(launch.output + from, unit, left);
    }
    // All slices but the last one are as long as the first.
    for (u32 at = (u32)first_unit(); whole && at < each; at += (u32)stride()) {
        const auto place = [&](u32 owner) { return owner * (u64)each + at; };
        const auto sends = [&](u32 owner) { return owner != me && place(owner) < bytes; };
        const auto take = [&](u32 owner, const Unit& unit) {
            if (sends(owner)) store_any<T>(launch.output + place(owner), unit, bytes_left(place(owner), bytes));
        };
        whole = receive<W>(launch, turn, each + at, sends, 0, take);
    }
    leave(launch, turn, began);
}

#ifndef SYMMEM_HOST
#define ENTRY(T, suffix, W, N)                                                         \
    extern "C" __global__ void __launch_bounds__(256, W == 2 ? 3 : 2)                  \
        all_reduce_two_trip_##T##_##suffix(const __grid_constant__ Launch<N> launch) { \
        two_trip<T, W>(launch);                                                        \
    }
#include "entries.cuh"
#endif
