// Every call of symmem.cuh, as a kernel of a user's would make it: the header is under the rules of the library's own kernels.
#include "symmem.cuh"

using namespace symmem;

extern "C" __global__ void user_signals(Memory memory, u32 peer, u64 limit, u32* failed) {
    if (!put_signal(memory, peer, 0, limit) || !wait_signal(memory, peer, 0, limit)) *failed = 1;
}

extern "C" __global__ void user_barrier(Memory memory, u64 limit, u32* failed) {
    if (!barrier(memory, 1, limit)) *failed = 1;
}

extern "C" __global__ void user_packets(Memory memory, u32 peer, const Packet* mine, u32 flag, u64 limit, u32* failed) {
    u32 low, high;
    put_packet(memory.peer<Packet>(peer), 1, 2, flag);
    if (!take_packet(mine, flag, &low, &high, limit) || low + high != 3) *failed = 1;
}
