// Residual and norm of rows that an all-reduce has left in `input`: the last step of what the other norms do at once, with the same bits. Waits for nobody. `output` may
// be `input`: a thread reads a unit before it writes it.
#include "norm.cuh"

// Whether the group has not failed, for all threads of the block alike. What a failed group has reduced is not added to anything, and the host's status word must not
// say that it was.
template <u32 N>
SYMMEM_DEVICE bool is_whole(const Launch<N>& launch) {
    u64 failure = load_relaxed(launch.poison);
    // Kernels of NCCL look at no word of ours, so its sum may not be one: what the host says of it counts before it ends them.
    if (failure == 0 && launch.mode & BY_NCCL && thread_index() == 0) failure = load_relaxed(&launch.status->abort);
    if (failure != 0 && thread_index() == 0) store_release(&launch.status->verdict, failure);
    return sync_threads_and(failure == 0);
}

template <class T, u32 N>
SYMMEM_DEVICE void norm_alone(const Launch<N>& launch, const Norm& norm) {
    const bool whole = is_whole(launch);
    Rows<T> rows(norm, launch.output);
#pragma unroll 1
    for (u32 row = block_index(); row < norm.rows; row += block_count()) {
        Unit x[UNITS];
        rows.load(launch.input, row, x);
        rows.expect(row);
        rows.add(x);
        rows.expect_weight();
        rows.measure(x);
        rows.write(row, x, whole);
    }
}

#ifndef SYMMEM_HOST
#define ENTRY(T, suffix, W, N)                                                          \
    extern "C" __global__ void __launch_bounds__(1024, 1) norm_alone_##T##_##suffix(    \
        const __grid_constant__ Launch<N> launch, const __grid_constant__ Norm norm) {  \
        norm_alone<T>(launch, norm);                                                    \
    }
// It does the same for groups of any size.
#undef SYMMEM_ANY_ONLY
#define SYMMEM_ANY_ONLY
#include "entries.cuh"
#endif
