// All-reduce, residual and norm in which every rank reads everybody's elements.
//
// `data` is symmetric; an `input` elsewhere is copied there first. Two meetings: everybody's elements are there; everybody has read mine. The second one is told as
// soon as a block has what it read, and heard when it has written its last row: nothing that it writes is for others. So it publishes nothing: that the loads
// are done follows from the block's sum, which is made of what they brought.
#include "norm.cuh"
#include "protocol.cuh"

// Tells the same block of every rank that this one has read what it needs.
template <u32 N>
SYMMEM_DEVICE void tell_all(const Launch<N>& launch, const Turn& turn) {
    for (u32 peer = thread_index(); peer < launch.world; peer += thread_count()) tell(launch, turn, 1, peer, EARLIER_KERNELS);
}

template <class T, u32 W, u32 N>
SYMMEM_DEVICE void norm_one_shot(const Launch<N>& launch, const Norm& norm) {
    char* own = launch.data[launch.rank];
    Turn turn = take_turn(launch);
    Rows<T> rows(norm, launch.output);
    const bool copies = launch.input != own;
#pragma unroll 1
    for (u32 row = block_index(); copies && turn.whole && row < norm.rows; row += block_count())
        rows.each([&](u32 at) {
            const u64 place = rows.place(row, at);
            store_unit(own + place, load_unit(launch.input + place));
        });
    const bool met = meet(launch, turn, 0, launch.count * sizeof(T), copies ? THIS_BLOCK : EARLIER_KERNELS);
#pragma unroll 1
    for (u32 row = block_index(); met && row < norm.rows; row += block_count()) {
        rows.add(row, [&](u32 at) { return sum_of<T, W>(launch, rows.place(row, at)); });
        if (norm.rows - row <= block_count()) tell_all(launch, turn);
        rows.write(row, true);
    }
    // A block without rows has read nothing.
    if (met && block_index() >= norm.rows) tell_all(launch, turn);
    for (u32 peer = thread_index(); met && peer < launch.world; peer += thread_count())
        if (!hear(launch, turn, 1, peer)) break;
    leave(launch, turn, met);
}

#ifndef SYMMEM_HOST
#define ENTRY(T, suffix, W, N)                                                                           \
    extern "C" __global__ void __launch_bounds__(512, 2) norm_one_shot_##T##_##suffix(                  \
        const __grid_constant__ Launch<N> launch, const __grid_constant__ Norm norm) {                   \
        norm_one_shot<T, W>(launch, norm);                                                               \
    }
#include "entries.cuh"
#endif
