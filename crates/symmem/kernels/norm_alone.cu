// Residual and norm of rows that an all-reduce has left in `input`: the last step of what the other norms do at once, with the same bits. Waits for nobody.
#include "norm.cuh"

template <class T, u32 N>
SYMMEM_DEVICE void norm_alone(const Launch<N>& launch, const Norm& norm) {
    Rows<T> rows(norm, launch.output);
#pragma unroll 1
    for (u32 row = block_index(); row < norm.rows; row += block_count()) {
        rows.add(row, [&](u32 at) { return load_unit(launch.input + rows.place(row, at)); });
        rows.write(row, true);
    }
}

#ifndef SYMMEM_HOST
#define ENTRY(T, suffix, W, N)                                                                        \
    extern "C" __global__ void __launch_bounds__(512, 2) norm_alone_##T##_##suffix(                  \
        const __grid_constant__ Launch<N> launch, const __grid_constant__ Norm norm) {                \
        norm_alone<T>(launch, norm);                                                                  \
    }
// It does the same for groups of any size.
#undef SYMMEM_ANY_ONLY
#define SYMMEM_ANY_ONLY
#include "entries.cuh"
#endif
