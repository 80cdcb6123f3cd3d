// What norms with meetings share: the elements of all ranks, and meetings of which each half is by itself.
#pragma once
#include "norm.cuh"
#include "protocol.cuh"

// Tells the same block of every rank that this one has come to `phase`.
template <u32 N>
SYMMEM_DEVICE void tell_all(const Launch<N>& launch, const Turn& turn, u32 phase, Publishes what) {
    for (u32 peer = thread_index(); peer < launch.world; peer += thread_count()) tell(launch, turn, phase, peer, what);
}

// Waits until that of every rank has, by threads that have a rank each. False: the group failed.
template <u32 N>
SYMMEM_DEVICE bool hear_all(const Launch<N>& launch, const Turn& turn, u32 phase) {
    bool whole = true;
    for (u32 peer = thread_index(); whole && peer < launch.world; peer += thread_count()) whole = hear(launch, turn, phase, peer);
    return whole;
}

// Copies rows `first`, `first` + `step`, ... below `end` from private memory to this rank's.
template <class T, u32 N>
SYMMEM_DEVICE void copy_rows(const Launch<N>& launch, const Rows<T>& rows, u32 first, u32 step, u32 end) {
#pragma unroll 1
    for (u32 row = first; row < end; row += step) {
        Unit units[UNITS];
        rows.load(launch.input, row, units);
        rows.each([&](u32 which, u32 at) { store_unit(launch.data[launch.rank] + rows.place(row, at), units[which]); });
    }
}

// Makes `x` the sum over all ranks of the units of `row` that this thread has, rounded once. The rows of a rank are at from(rank).
template <class T, u32 W, u32 N, class From>
SYMMEM_DEVICE void sum_row(const Launch<N>& launch, const Rows<T>& rows, u32 row, From from, Unit (&x)[UNITS]) {
    const u32 world = W ? W : launch.world;
    const auto unit_of = [&](u32 rank, u32 at) { return load_unit(from(rank) + rows.place(row, at)); };
    if constexpr (W == 2 || W == 4) {
        // All loads first.
        Unit units[UNITS][W];
        rows.all([&](u32 which, u32 at, bool) {
#pragma unroll
            for (u32 rank = 0; rank < W; ++rank) units[which][rank] = unit_of(rank, at);
        });
#pragma unroll
        for (u32 which = 0; which < UNITS; ++which) x[which] = sum_of<T>(units[which], launch.mode);
    } else {
        // As many at once as registers have room for.
        constexpr u32 AT_ONCE = W ? 4 : 1;
        rows.all([&](u32 which, u32 at, bool) {
            Sum<T> sum;
#pragma unroll 1
            for (u32 some = 0; some < world; some += AT_ONCE) {
                Unit unit[AT_ONCE];
#pragma unroll
                for (u32 rank = 0; rank < AT_ONCE; ++rank) unit[rank] = unit_of(some + rank, at);
#pragma unroll
                for (u32 rank = 0; rank < AT_ONCE; ++rank) some + rank == 0 ? sum.start(unit[rank]) : sum.add(unit[rank]);
            }
            x[which] = finished<T, W>(sum, launch.mode, world);
        });
    }
}
