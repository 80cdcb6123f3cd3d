// What `symmem bench` puts around the operations it times. Every system that is compared runs these same kernels, so
// they know nothing of any: plain pointers to bf16, a counter of rounds, and no header.
//
// Values are whole numbers of at most 15, made of element, rank and round; sums over up to 17 ranks are exact in bf16
// whatever the order and however often they are rounded. `pattern.rs` of the bench is the same function on the host.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

static __device__ __forceinline__ int value_of(u32 index, u32 rank, u32 round) {
    u32 x = (index * 0x9E3779B1u) ^ (rank * 0x85EBCA77u + round * 0xC2B2AE3Du);
    x ^= x >> 15;
    x *= 0x2C1B3C6Du;
    x ^= x >> 12;
    x *= 0x297A2D39u;
    return (int)(((x >> 16) * 31u) >> 16) - 15;
}

// Exact: a number of at most 8 bits fits the upper half of its float.
static __device__ __forceinline__ u16 bf16_of(int value) { return (u16)(__float_as_uint((float)value) >> 16); }

static __device__ __forceinline__ u32 pair_of(u32 index, u32 rank, u32 round) {
    u32 low = bf16_of(value_of(index, rank, round));
    u32 high = bf16_of(value_of(index + 1, rank, round));
    return low | high << 16;
}

static __device__ __forceinline__ u32 thread_of_grid() { return blockIdx.x * blockDim.x + threadIdx.x; }

// Gives `count` elements at `to` (aligned to 16 bytes) the values of round `*counter + node`. Goes upwards through
// memory, so that what is written last, and stays in the cache, is the end.
extern "C" __global__ void bench_fill(u16* to, u32 count, u32 rank, const u32* counter, u32 node) {
    const u32 round = *counter + node;
    const u32 stride = gridDim.x * blockDim.x;
    const u32 vectors = count / 8;
    uint4* wide = (uint4*)to;
    for (u32 at = thread_of_grid(); at < vectors; at += stride) {
        const u32 index = at * 8;
        uint4 four;
        four.x = pair_of(index, rank, round);
        four.y = pair_of(index + 2, rank, round);
        four.z = pair_of(index + 4, rank, round);
        four.w = pair_of(index + 6, rank, round);
        wide[at] = four;
    }
    for (u32 at = vectors * 8 + thread_of_grid(); at < count; at += stride) {
        to[at] = bf16_of(value_of(at, rank, round));
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
        for (u32 rank = 0; rank < ranks; ++rank) sum += value_of(first + at, rank, round);
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
