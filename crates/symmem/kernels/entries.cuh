// One kernel per element type and number of ranks, by the macro ENTRY(T, suffix, W, N) of the file that includes this: sums over 2, 4 and 8 ranks
// are unrolled, any other number is a loop.
// SYMMEM_ANY_ONLY: only the loops, for the PTX that is embedded.
#ifndef SYMMEM_ANY_ONLY
ENTRY(bf16, w2, 2, 8)
ENTRY(bf16, w4, 4, 8)
ENTRY(bf16, w8, 8, 8)
ENTRY(f16, w2, 2, 8)
ENTRY(f16, w4, 4, 8)
ENTRY(f16, w8, 8, 8)
ENTRY(f32, w2, 2, 8)
ENTRY(f32, w4, 4, 8)
ENTRY(f32, w8, 8, 8)
#endif
ENTRY(bf16, any, 0, 72)
ENTRY(f16, any, 0, 72)
ENTRY(f32, any, 0, 72)
