// All-gather into symmetric memory: every rank stores its `count` bytes at `input`, through multicast, where they belong in everybody's `data`.
//
// Two meetings: nobody uses the memory any more; everybody's bytes are there.
#include "multimem.cuh"

// A unit from an address of any alignment.
SYMMEM_COLD Unit load_bytes(const char* address) {
    u32 word[4] = {};
    for (u32 at = 0; at < UNIT; ++at) word[at / 4] |= (u32)(u8)address[at] << at % 4 * 8;
    return {word[0], word[1], word[2], word[3]};
}

// Stores the units of a part everywhere: `from` and `multicast` are the addresses of the first one.
SYMMEM_DEVICE void push_units(u64 bytes, const char* from, char* multicast) {
    constexpr u32 MANY = 4;
    auto several = [&](u64 at, u64 step) {
        Unit unit[MANY];
#pragma unroll
        for (u32 which = 0; which < MANY; ++which) unit[which] = load_unit(from + at + which * step);
#pragma unroll
        for (u32 which = 0; which < MANY; ++which) store_everywhere(multicast + at + which * step, unit[which]);
    };
    const bool aligned = is_aligned(from);
    auto one = [&](u64 at, u32) { store_everywhere(multicast + at, aligned ? load_unit(from + at) : load_bytes(from + at)); };
    for_units<MANY>({0, bytes}, aligned, several, one);
}

template <u32 N>
SYMMEM_DEVICE void multimem_all_gather(const Launch<N>& launch) {
    const u64 start = launch.rank * launch.count;
    const Cut cut(launch.data[launch.rank] + start, launch.count);
    Turn turn = take_turn(launch);
    const bool met = meet_everybody(launch, turn, 0, cut.bytes);
    if (met) {
        push_units(cut.units, launch.input + cut.head, launch.multicast + start + cut.head);
        for (u32 rank = 0; rank < launch.world && block_index() == 0; ++rank) {
            char* to = launch.data[rank] + start;
            for (u64 at = thread_index(); at < cut.bytes - cut.units; at += thread_count()) {
                u64 place = at < cut.head ? at : at + cut.units;
                to[place] = launch.input[place];
            }
        }
        meet_everybody(launch, turn, 1, cut.bytes);
    }
    leave(launch, turn, met);
}

#ifndef SYMMEM_HOST
#define GATHER(suffix, N)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(512, 2) all_gather_multimem##suffix(const __grid_constant__ Launch<N> launch) { \
        multimem_all_gather<N>(launch);                                                                                   \
    }
GATHER(, 8)
GATHER(_any, 72)
#endif
