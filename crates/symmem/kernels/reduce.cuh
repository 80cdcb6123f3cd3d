// The sum of everybody's elements over a span, for memory that is reached directly.
#pragma once
#include "control.cuh"
#include "units.cuh"

// Units in flight per thread and peer: six to eight loads of 16 bytes for each thread hide the latency of memory.
template <u32 W>
constexpr u32 UNITS_AT_ONCE = W == 2 ? 3 : W == 4 ? 2 : 1;

// Whether everybody's memory is aligned to units.
template <u32 W, u32 N>
SYMMEM_DEVICE bool all_aligned(const Launch<N>& launch) {
    bool aligned = true;
#pragma unroll (W ? W : 1)
    for (u32 rank = 0; rank < (W ? W : launch.world); ++rank) aligned &= is_aligned(launch.data[rank]);
    return aligned;
}

// For every unit of `span`: the sum of from(rank) + offset over all ranks goes to keep(offset, unit, bytes). W: number of ranks, 0 if only
// known at run time. `aligned`: all addresses of from() are multiples of a unit, so that units may be loaded at once.
template <class T, u32 W, u32 N, class From, class Keep>
SYMMEM_DEVICE void reduce_span(const Launch<N>& launch, Span span, bool aligned, From from, Keep keep) {
    const u32 world = W ? W : launch.world;
    const float divisor = launch.mode & AVERAGE ? (float)world : 0.0f;
    auto one = [&](u64 at, u32 bytes) {
        Sum<T> sum;
        sum.start(load_any<T>(from(0) + at, bytes));
        for (u32 rank = 1; rank < world; ++rank) sum.add(load_any<T>(from(rank) + at, bytes));
        keep(at, sum.finish(divisor), bytes);
    };
    if constexpr (W == 0) {
        for_units<1>(span, false, [](u64, u64) {}, one);
        return;
    }
    constexpr u32 MANY = UNITS_AT_ONCE<W>, RANKS = W ? W : 1;
    auto several = [&](u64 at, u64 step) {
        Unit unit[MANY][RANKS];
        // All loads first, then the sums in order of rank.
#pragma unroll
        for (u32 which = 0; which < MANY; ++which)
#pragma unroll
            for (u32 rank = 0; rank < RANKS; ++rank) unit[which][rank] = load_unit(from(rank) + at + which * step);
#pragma unroll
        for (u32 which = 0; which < MANY; ++which) {
            Sum<T> sum;
            sum.start(unit[which][0]);
#pragma unroll
            for (u32 rank = 1; rank < RANKS; ++rank) sum.add(unit[which][rank]);
            keep(at + which * step, sum.finish(divisor), UNIT);
        }
    };
    for_units<MANY>(span, aligned, several, one);
}

// The sum over all ranks of the unit at `at`, of which `bytes` belong to the message.
template <class T, u32 W, u32 N>
SYMMEM_DEVICE Unit reduce_unit(const Launch<N>& launch, u64 at, u32 bytes, bool aligned, float divisor) {
    Sum<T> sum;
    if (W == 0 || !aligned || bytes < UNIT) {
        sum.start(load_any<T>(launch.data[0] + at, bytes));
        for (u32 rank = 1; rank < launch.world; ++rank) sum.add(load_any<T>(launch.data[rank] + at, bytes));
        return sum.finish(divisor);
    }
    constexpr u32 RANKS = W ? W : 1;
    Unit unit[RANKS];
#pragma unroll
    for (u32 rank = 0; rank < RANKS; ++rank) unit[rank] = load_unit(launch.data[rank] + at);
    sum.start(unit[0]);
#pragma unroll
    for (u32 rank = 1; rank < RANKS; ++rank) sum.add(unit[rank]);
    return sum.finish(divisor);
}
