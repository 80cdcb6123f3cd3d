// All-reduce, residual and norm in which each rank reduces the rows that it owns into its scratch, and reads the rows of the others there.
//
// `data` is symmetric; an `input` elsewhere is copied there, but for the own rows, which nobody else reads. Two meetings, as in all_reduce_two_shot_out: everybody's
// elements are there; everybody's rows are, and nobody reads `data` any more. Every block has, of each owner's rows, those of its index, so meetings of equal blocks are enough.
#include "norm.cuh"
#include "protocol.cuh"

// Calls body(row, which of its owner's) for those of the rows from `first` on, `each` at most, that this block has.
template <class Body>
SYMMEM_DEVICE void for_rows(const Norm& norm, u32 first, u32 each, Body body) {
#pragma unroll 1
    for (u32 at = block_index(); at < each && first + at < norm.rows; at += block_count()) body(first + at, at);
}

template <class T, u32 W, u32 N>
SYMMEM_DEVICE void norm_two_shot(const Launch<N>& launch, const Norm& norm) {
    const u32 world = W ? W : launch.world, me = launch.rank, each = (norm.rows + world - 1) / world;
    char* own = launch.data[me];
    Turn turn = take_turn(launch);
    Rows<T> rows(norm, launch.output);
    const bool copies = launch.input != own;
#pragma unroll 1
    for (u32 next = 1; copies && turn.whole && next < world; ++next)
        for_rows(norm, after(me, next, world) * each, each, [&](u32 row, u32) {
            rows.each([&](u32 at) {
                const u64 place = rows.place(row, at);
                store_unit(own + place, load_unit(launch.input + place));
            });
        });
    const bool met = meet(launch, turn, 0, launch.count * sizeof(T), copies ? THIS_BLOCK : EARLIER_KERNELS);
    bool whole = met;
    if (whole) {
        for_rows(norm, me * each, each, [&](u32 row, u32 which) {
            rows.each([&](u32 at) {
                const u64 place = rows.place(row, at);
                store_unit(launch.lanes[me] + launch.scratch + rows.place(which, at), sum_of<T, W>(launch, place, launch.input));
            });
        });
        whole = meet(launch, turn, 1, launch.count * sizeof(T), THIS_BLOCK);
    }
#pragma unroll 1
    for (u32 next = 0; whole && next < world; ++next) {
        const u32 owner = after(me, next, world);
        for_rows(norm, owner * each, each, [&](u32 row, u32 which) {
            rows.add(row, [&](u32 at) { return load_unit(launch.lanes[owner] + launch.scratch + rows.place(which, at)); });
            rows.write(row, true);
        });
    }
    leave(launch, turn, met);
}

#ifndef SYMMEM_HOST
#define ENTRY(T, suffix, W, N)                                                                           \
    extern "C" __global__ void __launch_bounds__(512, 2) norm_two_shot_##T##_##suffix(                  \
        const __grid_constant__ Launch<N> launch, const __grid_constant__ Norm norm) {                   \
        norm_two_shot<T, W>(launch, norm);                                                               \
    }
#include "entries.cuh"
#endif
