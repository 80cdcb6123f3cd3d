// The barrier whose telling is one store for all ranks.
#include "multimem.cuh"

template <u32 N>
SYMMEM_DEVICE void multimem_barrier(const Launch<N>& launch) {
    Turn turn = take_turn(launch);
    const bool met = meet_everybody(launch, turn, 0, 0);
    leave(launch, turn, met);
}

#ifndef SYMMEM_HOST
extern "C" __global__ void barrier_multimem(const __grid_constant__ Launch<8> launch) { multimem_barrier<8>(launch); }
extern "C" __global__ void barrier_multimem_any(const __grid_constant__ Launch<72> launch) { multimem_barrier<72>(launch); }
#endif
