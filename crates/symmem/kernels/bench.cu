// What `symmem bench` puts around the operations it times. Every system that is compared runs these same kernels, so
// they know nothing of any: plain pointers to bf16, a counter of rounds, and no header.
//
// Values are eighths, from 1 to 15/8 and their negatives, made of element, rank and round; sums over up to 17 ranks are exact in bf16
// whatever the order and however often they are rounded. They cost next to nothing to make, so that filling is as short as it can be beside
// what is timed. `pattern.rs` of the bench is the same function on the host.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

static __device__ __forceinline__ u32 seed_of(u32 rank, u32 round) { return rank * 0x85EBCA77u + round * 0xC2B2AE3Du; }

// What the eight elements from 8 * group on are made of.
static __device__ __forceinline__ u32 mixed(u32 group, u32 seed) {
    u32 x = group * 0x9E3779B1u ^ seed;
    x ^= x >> 15;
    x *= 0x2C1B3C6Du;
    return x ^ x >> 13;
}

// The two elements of pair `which` of a group: sign and three bits of each are drawn.
static __device__ __forceinline__ u32 pair_of(u32 mixed, u32 which) {
    const u32 factor[4] = {0x297A2D39u, 0x85EBCA6Bu, 0xC2B2AE35u, 0x27D4EB2Fu};
    return 0x3F803F80u | (mixed * factor[which] & 0x80708070u);
}

// The value of an element, in eighths.
static __device__ __forceinline__ int eighths_of(u32 index, u32 rank, u32 round) {
    const u32 pair = pair_of(mixed(index / 8, seed_of(rank, round)), index / 2 % 4);
    const u32 half = index % 2 == 0 ? pair : pair >> 16;
    const int size = 8 + (int)(half >> 4 & 7);
    return half & 0x8000 ? -size : size;
}

// Exact: a number of at most 8 bits fits the upper half of its float.
static __device__ __forceinline__ u16 bf16_of(int eighths) {
    return (u16)(__float_as_uint((float)eighths * 0.125f) >> 16);
}

static __device__ __forceinline__ u32 thread_of_grid() { return blockIdx.x * blockDim.x + threadIdx.x; }

// Gives `count` elements at `to` (aligned to 16 bytes) the values of round `*counter + node`. Goes upwards through
// memory, so that what is written last, and stays in the cache, is the end.
extern "C" __global__ void bench_fill(u16* to, u32 count, u32 rank, const u32* counter, u32 node) {
    const u32 round = *counter + node, seed = seed_of(rank, round);
    const u32 stride = gridDim.x * blockDim.x;
    const u32 vectors = count / 8;
    uint4* wide = (uint4*)to;
    for (u32 at = thread_of_grid(); at < vectors; at += stride) {
        const u32 x = mixed(at, seed);
        wide[at] = make_uint4(pair_of(x, 0), pair_of(x, 1), pair_of(x, 2), pair_of(x, 3));
    }
    for (u32 at = vectors * 8 + thread_of_grid(); at < count; at += stride) {
        to[at] = bf16_of(eighths_of(at, rank, round));
    }
}

// Lets the next graph have other values.
extern "C" __global__ void bench_bump(u32* counter, u32 by) { *counter += by; }

// Makes `count` elements something that no operation may leave.
extern "C" __global__ void bench_poison(u16* to, u32 count) {
    for (u32 at = thread_of_grid(); at < count; at += gridDim.x * blockDim.x) to[at] = 0xFFFF;
}

// Counts the elements at `got` that are not the sum over `ranks` ranks of elements `first` and up, in the round that
// was `*counter - back`.
extern "C" __global__ void bench_check(const u16* got, u32 count, u32 first, u32 ranks, const u32* counter, u32 back,
                                       u64* wrong) {
    const u32 round = *counter - back;
    u64 mine = 0;
    for (u32 at = thread_of_grid(); at < count; at += gridDim.x * blockDim.x) {
        int sum = 0;
        for (u32 rank = 0; rank < ranks; ++rank) sum += eighths_of(first + at, rank, round);
        mine += got[at] != bf16_of(sum);
    }
    if (mine != 0) atomicAdd(wrong, mine);
}

static __device__ __forceinline__ u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Keeps the stream busy while the host puts into it what comes behind.
extern "C" __global__ void bench_delay(u64 duration) {
    const u64 start = nanoseconds();
    while (nanoseconds() - start < duration) {
    }
}

// The device's time when the stream came here.
extern "C" __global__ void bench_stamp(u64* to) { *to = nanoseconds(); }
