// whole.cuh for ranks on several devices.
#include "whole.cuh"

#ifndef SYMMEM_HOST
#define ENTRY(T, suffix, W, N)                                                                  \
    extern "C" __global__ void __launch_bounds__(256, W == 2 ? 3 : 2)                          \
        all_reduce_low_latency_whole_##T##_##suffix(const __grid_constant__ Launch<N> launch) { \
        low_latency_whole<T, W, TO_ALL_APART>(launch);                                                \
    }
#include "entries.cuh"
#endif
