// All-reduce in which every rank loads the sum of everybody's elements through multicast, and keeps it; with IDLE a rank is read only.
//
// `data` is symmetric; an `input` elsewhere is copied there first. Two meetings: everybody's elements are there; everybody has read mine.
// Ranks may get different bits: each asks the switch for itself.
#include "multimem.cuh"

template <class T, u32 N>
SYMMEM_DEVICE void multimem_one_shot(const Launch<N>& launch) {
    char* own = launch.data[launch.rank];
    const Cut cut(own, launch.count * sizeof(T));
    Turn turn = take_turn(launch);
    if (turn.whole && launch.input != own) copy_cut<T>(cut, launch.input, own);
    const bool met = meet_everybody(launch, turn, 0, cut.bytes);
    if (met) {
        if (!(launch.mode & IDLE)) {
            char* output = launch.output + cut.head;
            sum_units<T>(launch, {0, cut.units}, launch.multicast + cut.head,
                         [&](u64 at, const Unit& unit) { store_any<T>(output + at, unit, UNIT); });
            reduce_edges<T>(launch, cut, [&](u64 at, const Unit& unit, u32 left) {
                store_any<T>(launch.output + at, unit, left);
            });
        }
        meet_everybody(launch, turn, 1, cut.bytes);
    }
    leave(launch, turn, met);
}

#ifndef SYMMEM_HOST
#define ENTRY(T, suffix, N)                                                                    \
    extern "C" __global__ void __launch_bounds__(512, 2)                                       \
        all_reduce_multimem_one_shot_##T##suffix(const __grid_constant__ Launch<N> launch) {   \
        multimem_one_shot<T>(launch);                                                          \
    }
#include "multimem_entries.cuh"
#endif
