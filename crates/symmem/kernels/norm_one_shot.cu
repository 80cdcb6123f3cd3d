// All-reduce, residual and norm in which every rank reads everybody's elements.
//
// `data` is symmetric; an `input` elsewhere is copied there first. Two meetings: everybody's elements are there; everybody has read mine. The second one is told as
// soon as a block has what it read, and heard when it has written its last row: nothing that it writes is for others. So it publishes nothing: that the loads
// are done follows from the block's sum, which is made of what they brought. Every block has a row.
#include "norm_meeting.cuh"

template <class T, u32 W, u32 N>
SYMMEM_DEVICE void norm_one_shot(const Launch<N>& launch, const Norm& norm) {
    Turn turn = take_turn(launch);
    const u32 first = block_index();
    Rows<T> rows(norm, launch.output);
    const bool copies = launch.input != launch.data[launch.rank];
    if (copies && turn.whole) copy_rows(launch, rows, first, block_count(), norm.rows);
    const bool met = meet(launch, turn, 0, launch.count * sizeof(T), copies ? THIS_BLOCK : EARLIER_KERNELS);
    if (met) {
        u32 row = first;
#pragma unroll 1
        do {
            Unit x[UNITS];
            rows.expect(row);
            sum_row<T, W>(launch, rows, row, [&](u32 rank) { return launch.data[rank]; }, x);
            rows.add(x);
            // Registers have no room for four ranks' f32 and the weight.
            constexpr bool IS_FULL = W == 4 && sizeof(T) == 4;
            if (!IS_FULL) rows.expect_weight();
            rows.measure(x);
            if (IS_FULL) rows.expect_weight();
            if (norm.rows - row <= block_count()) tell_all(launch, turn, 1, EARLIER_KERNELS);
            rows.write(row, x, true);
            row += block_count();
        } while (row < norm.rows);
        hear_all(launch, turn, 1);
    }
    leave(launch, turn, met);
}

#ifndef SYMMEM_HOST
#define ENTRY(T, suffix, W, N)                                                             \
    extern "C" __global__ void __launch_bounds__(1024, 1) norm_one_shot_##T##_##suffix(    \
        const __grid_constant__ Launch<N> launch, const __grid_constant__ Norm norm) {     \
        norm_one_shot<T, W>(launch, norm);                                                 \
    }
#include "entries.cuh"
#endif
