// All-reduce in place: each rank loads the sum of the slice that it owns through multicast, and stores it there, in everybody's memory.
//
// Two meetings: everybody's elements are there; everybody's slices are. No rank touches a slice that it does not own in between. One rank asks
// the switch for each unit, so all ranks get the same bits.
#include "multimem.cuh"

template <class T, u32 N>
SYMMEM_DEVICE void multimem_two_shot(const Launch<N>& launch) {
    const Cut cut(launch.data[launch.rank], launch.count * sizeof(T));
    Turn turn = take_turn(launch);
    const bool met = meet_everybody(launch, turn, 0, cut.bytes);
    if (met) {
        char* multicast = launch.multicast + cut.head;
        sum_units<T>(launch, slice(cut.units, launch.rank, launch.world), multicast,
                     [&](u64 at, const Unit& unit) { store_everywhere(multicast + at, unit); });
        if (launch.rank == 0)
            reduce_edges<T>(launch, cut, [&](u64 at, const Unit& unit, u32 left) {
                for (u32 rank = 0; rank < launch.world; ++rank) store_any<T>(launch.data[rank] + at, unit, left);
            });
        meet_everybody(launch, turn, 1, cut.bytes);
    }
    leave(launch, turn, met);
}

#ifndef SYMMEM_HOST
#define ENTRY(T, suffix, N)                                                                    \
    extern "C" __global__ void __launch_bounds__(512, 2)                                       \
        all_reduce_multimem_two_shot_##T##suffix(const __grid_constant__ Launch<N> launch) {   \
        multimem_two_shot<T>(launch);                                                          \
    }
#include "multimem_entries.cuh"
#endif
