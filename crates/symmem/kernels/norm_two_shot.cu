// All-reduce, residual and norm in which each rank reduces the rows that it owns into its scratch, and reads the rows of the others there.
//
// `data` is symmetric; an `input` elsewhere is copied there, but for the own rows, which nobody else reads. Two meetings, as in all_reduce_two_shot_out: everybody's
// elements are there; everybody's rows are, and nobody reads `data` any more. Every block has, of each owner's rows, those of its index, so meetings of equal blocks
// are enough. It normalises the rows that it owns between telling the others of them and hearing of theirs.
#include "norm_meeting.cuh"

// The rows of `owner` that this block has, of those that scratch holds from its first byte on.
struct Owned {
    u32 begin, first, end;

    SYMMEM_DEVICE Owned(const Norm& norm, u32 owner, u32 world) {
        const u32 each = (norm.rows + world - 1) / world, last = (owner + 1) * each;
        begin = owner * each, first = begin + block_index(), end = last < norm.rows ? last : norm.rows;
    }
};

// Adds the residual to rows that are reduced, normalises and writes them.
template <class T, u32 N>
SYMMEM_DEVICE void finish_rows(const Launch<N>& launch, Rows<T>& rows, u32 owner, const Owned& owned) {
    const char* scratch = launch.lanes[owner] + launch.scratch;
#pragma unroll 1
    for (u32 row = owned.first; row < owned.end; row += block_count()) {
        Unit x[UNITS];
        rows.load(scratch, row - owned.begin, x);
        rows.expect(row);
        rows.add(x);
        rows.expect_weight();
        rows.measure(x);
        rows.write(row, x, true);
    }
}

template <class T, u32 W, u32 N>
SYMMEM_DEVICE void norm_two_shot(const Launch<N>& launch, const Norm& norm) {
    const u32 world = W ? W : launch.world, me = launch.rank;
    Turn turn = take_turn(launch);
    Rows<T> rows(norm, launch.output);
    const Owned mine(norm, me, world);
    const bool copies = launch.input != launch.data[me];
#pragma unroll 1
    for (u32 next = 1; copies && turn.whole && next < world; ++next) {
        const Owned theirs(norm, after(me, next, world), world);
        copy_rows(launch, rows, theirs.first, block_count(), theirs.end);
    }
    const bool met = meet(launch, turn, 0, launch.count * sizeof(T), copies ? THIS_BLOCK : EARLIER_KERNELS);
    bool whole = met;
    if (whole) {
#pragma unroll 1
        for (u32 row = mine.first; row < mine.end; row += block_count()) {
            Unit x[UNITS];
            sum_row<T, W>(launch, rows, row, [&](u32 rank) { return rank == me ? launch.input : launch.data[rank]; }, x);
            rows.each([&](u32 which, u32 at) {
                store_unit(launch.lanes[me] + launch.scratch + rows.place(row - mine.begin, at), x[which]);
            });
        }
        sync_threads();
        tell_all(launch, turn, 1, THIS_BLOCK);
    }
#pragma unroll 1
    for (u32 next = 0; whole && next < world; ++next) {
        if (next == 1) whole = sync_threads_and(hear_all(launch, turn, 1));
        if (!whole) break;
        const u32 owner = after(me, next, world);
        finish_rows(launch, rows, owner, Owned(norm, owner, world));
    }
    leave(launch, turn, met);
}

#ifndef SYMMEM_HOST
#define ENTRY(T, suffix, W, N)                                                             \
    extern "C" __global__ void __launch_bounds__(1024, 1) norm_two_shot_##T##_##suffix(    \
        const __grid_constant__ Launch<N> launch, const __grid_constant__ Norm norm) {     \
        norm_two_shot<T, W>(launch, norm);                                                 \
    }
#include "entries.cuh"
#endif
