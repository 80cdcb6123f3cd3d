// For kernels of one's own on symmetric memory: peers' pointers, signals, a barrier, and packets that carry their own flag.
//
// Compile it with NVRTC together with primitives.cuh (`symmem::cuda::device_headers()` has both), or put kernels/ on the include path. The
// tables come from a handle: `peer_ptrs_dev()`, `pad_ptrs_dev()`, `rank()`, `world()`. Pads follow PyTorch's protocol (slot = world * channel +
// source; 0 idle, 1 pending), so these calls meet kernels written for PyTorch's pads.
//
// Every wait takes nanoseconds after which it gives up (0: never) and says whether it succeeded; nothing traps.
#pragma once
#include "primitives.cuh"

namespace symmem {

struct Memory {
    const u64* data;
    const u64* pads;
    u32 rank;
    u32 world;

    template <class T>
    SYMMEM_DEVICE T* peer(u32 of) const {
        return (T*)data[of];
    }

    // Where `at` keeps the signals that `from` sends on `channel`.
    SYMMEM_DEVICE u32* slot(u32 at, u32 channel, u32 from) const { return (u32*)pads[at] + world * channel + from; }
};

// Waits until `*at` is `value`; what its writer wrote before is visible after. False: time is up.
SYMMEM_DEVICE bool wait_for(const u32* at, u32 value, u64 nanoseconds) {
    u64 start = 0;
    while (load_acquire(at) != value) {
        if (nanoseconds == 0) continue;
        if (start == 0) start = now();
        if (now() - start > nanoseconds) return false;
    }
    return true;
}

// One thread: tells `peer` on `channel` that all this thread did, and saw, is done. Waits while an earlier signal is not taken.
SYMMEM_DEVICE bool put_signal(const Memory& memory, u32 peer, u32 channel, u64 nanoseconds = 0) {
    u32* slot = memory.slot(peer, channel, memory.rank);
    if (!wait_for(slot, 0, nanoseconds)) return false;
    store_release(slot, 1);
    return true;
}

// One thread: takes the signal of `peer` on `channel`.
SYMMEM_DEVICE bool wait_signal(const Memory& memory, u32 peer, u32 channel, u64 nanoseconds = 0) {
    u32* slot = memory.slot(memory.rank, channel, peer);
    if (!wait_for(slot, 1, nanoseconds)) return false;
    store_release(slot, 0);
    return true;
}

// All threads of one block per rank, at least as many as ranks: everybody's stores before are visible to everybody after.
SYMMEM_DEVICE bool barrier(const Memory& memory, u32 channel, u64 nanoseconds = 0) {
    sync_threads();
    bool met = true;
    u32 peer = thread_index();
    if (peer < memory.world && peer != memory.rank)
        met = put_signal(memory, peer, channel, nanoseconds) && wait_signal(memory, peer, channel, nanoseconds);
    return sync_threads_and(met);
}

// Eight bytes that arrive together with `flag`, which must differ from what the place held before: for them no other synchronisation is needed. Nothing else is
// ordered by them; signals are for that.
SYMMEM_DEVICE void put_packet(Packet* at, u32 low, u32 high, u32 flag) { store_packet(at, {low, flag, high, flag}); }

SYMMEM_DEVICE bool take_packet(const Packet* at, u32 flag, u32* low, u32* high, u64 nanoseconds = 0) {
    u64 start = 0;
    Packet packet = load_packet(at);
    while (packet.low_flag != flag || packet.high_flag != flag) {
        if (nanoseconds != 0) {
            if (start == 0) start = now();
            if (now() - start > nanoseconds) return false;
        }
        packet = load_packet(at);
    }
    *low = packet.low;
    *high = packet.high;
    return true;
}

}  // namespace symmem
