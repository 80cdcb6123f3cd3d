// One kernel per element type and number of ranks, by the macro ENTRY(T, suffix, W, N) of the file that includes this: sums over 2, 4 and 8 ranks
// are unrolled, any other number is a loop.
// SYMMEM_WORLD: only those of this number, 0 being any other; an engine compiles and loads those of its own.
// SYMMEM_ANY_ONLY: only the loops, for the PTX that is embedded.
#ifdef SYMMEM_ANY_ONLY
#undef SYMMEM_WORLD
#define SYMMEM_WORLD 0
#endif
#if !defined(SYMMEM_WORLD) || SYMMEM_WORLD == 2
ENTRY(bf16, w2, 2, 8)
ENTRY(f16, w2, 2, 8)
ENTRY(f32, w2, 2, 8)
#endif
#if !defined(SYMMEM_WORLD) || SYMMEM_WORLD == 4
ENTRY(bf16, w4, 4, 8)
ENTRY(f16, w4, 4, 8)
ENTRY(f32, w4, 4, 8)
#endif
#if !defined(SYMMEM_WORLD) || SYMMEM_WORLD == 8
ENTRY(bf16, w8, 8, 8)
ENTRY(f16, w8, 8, 8)
ENTRY(f32, w8, 8, 8)
#endif
#if !defined(SYMMEM_WORLD) || SYMMEM_WORLD == 0
ENTRY(bf16, any, 0, 72)
ENTRY(f16, any, 0, 72)
ENTRY(f32, any, 0, 72)
#endif
