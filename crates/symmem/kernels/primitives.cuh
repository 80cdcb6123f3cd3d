// The instructions that the protocols are made of, and nothing else: loads, stores, fences and who a thread is.
//
// Two implementations. On the device every access to memory that another GPU or process may touch is an instruction of
// the PTX memory model with its order and scope spelled out (docs/gpu.md, "Memory model"). On the host (SYMMEM_HOST) the same
// protocols run as threads under ThreadSanitizer.
#pragma once

#ifdef SYMMEM_HOST
#include <barrier>
#include <chrono>
#include <cstring>
#include <thread>
#endif

namespace symmem {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// 16 bytes, moved by one instruction where the address allows it.
struct alignas(16) Unit {
    u32 word[4];
};

// Two words of payload, each with its flag in the same 8 bytes: PTX promises atomicity of 8 bytes, not of 16.
struct Packet {
    u32 low, low_flag, high, high_flag;
};

#ifndef SYMMEM_HOST

#define SYMMEM_DEVICE __device__ __forceinline__
// For what is rarely run: kept out of the loops that are.
#define SYMMEM_COLD __device__ __noinline__

SYMMEM_DEVICE u32 thread_index() { return threadIdx.x; }
SYMMEM_DEVICE u32 thread_count() { return blockDim.x; }
SYMMEM_DEVICE u32 block_index() { return blockIdx.x; }
SYMMEM_DEVICE u32 block_count() { return gridDim.x; }
SYMMEM_DEVICE void sync_threads() { __syncthreads(); }
SYMMEM_DEVICE bool sync_threads_and(bool mine) { return __syncthreads_and(mine); }
// The same for a block of one warp, sooner.
SYMMEM_DEVICE void sync_warp() { __syncwarp(); }
SYMMEM_DEVICE bool sync_warp_and(bool mine) {
    __syncwarp();
    return __all_sync(0xFFFFFFFFu, mine);
}

SYMMEM_DEVICE u64 load_relaxed(const u64* at) {
    u64 value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

SYMMEM_DEVICE u32 load_relaxed(const u32* at) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

SYMMEM_DEVICE void store_relaxed(u64* at, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

SYMMEM_DEVICE void store_relaxed(u32* at, u32 value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

SYMMEM_DEVICE void store_release(u64* at, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

SYMMEM_DEVICE void store_release(u32* at, u32 value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

// For threads of the same device, in whichever process: what was written need not leave the device, and nobody waits until it has.
SYMMEM_DEVICE void store_release_on_device(u64* at, u64 value) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

// Before a relaxed store it releases, after a relaxed load it acquires: for accesses that have no such form, as those of packets.
SYMMEM_DEVICE void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// What was published with a flag is visible after this load has seen it. A fence in its place costs a microsecond and more, because it also
// waits for every store that is on its way.
SYMMEM_DEVICE u64 load_acquire(const u64* at) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

SYMMEM_DEVICE u32 load_acquire(const u32* at) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

// Adds one; by the first thread of a block, between blocks of one launch, so device scope is enough. A number that the compiler takes for the same in all
// threads of a warp it would add once for all of them, and wait for the result to hand it out.
SYMMEM_DEVICE u64 draw_local(u64* at) {
    u64 old;
    asm volatile("{.reg .u32 lane; .reg .u64 one;\n\t"
                 "mov.u32 lane, %%laneid;\n\t"
                 "cvt.u64.u32 one, lane;\n\t"
                 "add.u64 one, one, 1;\n\t"
                 "atom.relaxed.gpu.global.add.u64 %0, [%1], one;}"
                 : "=l"(old)
                 : "l"(at)
                 : "memory");
    return old;
}

SYMMEM_DEVICE void add_local(u32* at, u32 value) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

// For threads of the same device, in whichever process. Says that kernels have ended, so it need not release anything.
SYMMEM_DEVICE void add_on_device(u64* at, u64 value) {
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

SYMMEM_DEVICE u64 compare_and_swap(u64* at, u64 expected, u64 value) {
    u64 old;
    asm volatile("atom.relaxed.sys.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(at), "l"(expected), "l"(value)
                 : "memory");
    return old;
}

SYMMEM_DEVICE void store_packet(Packet* at, Packet packet) {
    u64 low = packet.low | (u64)packet.low_flag << 32, high = packet.high | (u64)packet.high_flag << 32;
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(at), "l"(low), "l"(high) : "memory");
}

SYMMEM_DEVICE Packet load_packet(const Packet* at) {
    u64 low, high;
    asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(at) : "memory");
    return {(u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32)};
}

// Data, ordered by a meeting before and after: weak accesses, never through the read-only cache.
SYMMEM_DEVICE Unit load_unit(const void* at) {
    Unit unit;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(unit.word[0]), "=r"(unit.word[1]), "=r"(unit.word[2]), "=r"(unit.word[3])
                 : "l"(at)
                 : "memory");
    return unit;
}

SYMMEM_DEVICE void store_unit(void* at, Unit unit) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(unit.word[0]), "r"(unit.word[1]),
                 "r"(unit.word[2]), "r"(unit.word[3])
                 : "memory");
}

SYMMEM_DEVICE void store_pair(void* at, u32 low, u32 high) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(low), "r"(high) : "memory");
}

SYMMEM_DEVICE u32 load_half(const u16* at) {
    u16 value;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(value) : "l"(at) : "memory");
    return value;
}

SYMMEM_DEVICE void store_half(u16* at, u32 value) {
    asm volatile("st.global.u16 [%0], %1;" ::"l"(at), "h"((u16)value) : "memory");
}

SYMMEM_DEVICE u32 load_word(const u32* at) {
    u32 value;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

SYMMEM_DEVICE void store_word(u32* at, u32 value) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

SYMMEM_DEVICE u64 now() {
    u64 nanoseconds;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
    return nanoseconds;
}

SYMMEM_DEVICE void stop_kernel() { asm volatile("trap;"); }
SYMMEM_DEVICE void yield_thread() {}

// A kernel may be launched before the one ahead of it in its stream has ended, which hides what a launch takes. It must wait before it touches
// memory, until that one has ended and all it wrote is there; after that it may let the next one come.
SYMMEM_DEVICE void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
SYMMEM_DEVICE void let_next_kernel_come() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#else  // SYMMEM_HOST

#define SYMMEM_DEVICE inline
#define SYMMEM_COLD inline

// What the launch tells a host thread about itself.
struct HostThread {
    u32 thread, threads, block, blocks;
    std::barrier<>* barrier;
    bool* votes;
    // Of the block's own memory.
    float* parts;
};
inline thread_local HostThread host_thread;

SYMMEM_DEVICE u32 thread_index() { return host_thread.thread; }
SYMMEM_DEVICE u32 thread_count() { return host_thread.threads; }
SYMMEM_DEVICE u32 block_index() { return host_thread.block; }
SYMMEM_DEVICE u32 block_count() { return host_thread.blocks; }
SYMMEM_DEVICE void sync_threads() { host_thread.barrier->arrive_and_wait(); }
SYMMEM_DEVICE bool sync_threads_and(bool mine) {
    host_thread.votes[host_thread.thread] = mine;
    sync_threads();
    bool all = true;
    for (u32 at = 0; at < host_thread.threads; ++at) all &= host_thread.votes[at];
    sync_threads();
    return all;
}
SYMMEM_DEVICE void sync_warp() { sync_threads(); }
SYMMEM_DEVICE bool sync_warp_and(bool mine) { return sync_threads_and(mine); }

SYMMEM_DEVICE u64 load_relaxed(const u64* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
SYMMEM_DEVICE u32 load_relaxed(const u32* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
SYMMEM_DEVICE void store_relaxed(u64* at, u64 value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
SYMMEM_DEVICE void store_relaxed(u32* at, u32 value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
#ifdef SYMMEM_MUTANT_RELAXED_FLAGS  // The run on the host must notice.
constexpr int RELEASE = __ATOMIC_RELAXED;
#else
constexpr int RELEASE = __ATOMIC_RELEASE;
#endif
SYMMEM_DEVICE void store_release(u64* at, u64 value) { __atomic_store_n(at, value, RELEASE); }
SYMMEM_DEVICE void store_release(u32* at, u32 value) { __atomic_store_n(at, value, RELEASE); }
SYMMEM_DEVICE void store_release_on_device(u64* at, u64 value) { store_release(at, value); }
// Packets are released and acquired here, and a tool for threads knows no fences.
SYMMEM_DEVICE void fence() {}
SYMMEM_DEVICE u64 load_acquire(const u64* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
SYMMEM_DEVICE u32 load_acquire(const u32* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
SYMMEM_DEVICE u64 draw_local(u64* at) { return __atomic_fetch_add(at, 1, __ATOMIC_RELAXED); }
SYMMEM_DEVICE void add_local(u32* at, u32 value) { __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
// Here there is no end of a kernel that a tool for threads would know.
SYMMEM_DEVICE void add_on_device(u64* at, u64 value) { __atomic_fetch_add(at, value, RELEASE); }
SYMMEM_DEVICE u64 compare_and_swap(u64* at, u64 expected, u64 value) {
    __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
SYMMEM_DEVICE void store_packet(Packet* at, Packet packet) {
    // A tool for threads knows no dependencies: what the packet's values were computed from is released with them.
    u64* words = (u64*)at;
    __atomic_store_n(&words[0], packet.low | (u64)packet.low_flag << 32, __ATOMIC_RELEASE);
    __atomic_store_n(&words[1], packet.high | (u64)packet.high_flag << 32, __ATOMIC_RELEASE);
}
SYMMEM_DEVICE Packet load_packet(const Packet* at) {
    const u64* words = (const u64*)at;
    u64 low = load_acquire(&words[0]), high = load_acquire(&words[1]);
    return {(u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32)};
}
SYMMEM_DEVICE Unit load_unit(const void* at) {
    Unit unit;
    std::memcpy(&unit, at, sizeof unit);
    return unit;
}
SYMMEM_DEVICE void store_unit(void* at, Unit unit) { std::memcpy(at, &unit, sizeof unit); }
SYMMEM_DEVICE void store_pair(void* at, u32 low, u32 high) {
    const u32 pair[2] = {low, high};
    std::memcpy(at, pair, sizeof pair);
}
SYMMEM_DEVICE u32 load_half(const u16* at) { return *at; }
SYMMEM_DEVICE void store_half(u16* at, u32 value) { *at = (u16)value; }
SYMMEM_DEVICE u32 load_word(const u32* at) { return *at; }
SYMMEM_DEVICE void store_word(u32* at, u32 value) { *at = value; }
SYMMEM_DEVICE u64 now() {
    auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}
SYMMEM_DEVICE void stop_kernel() {}
SYMMEM_DEVICE void yield_thread() { std::this_thread::yield(); }
SYMMEM_DEVICE void wait_for_kernel_before() {}
SYMMEM_DEVICE void let_next_kernel_come() {}

#endif

}  // namespace symmem
