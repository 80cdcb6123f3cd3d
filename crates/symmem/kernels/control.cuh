// The control block of a rank, and what a launch is told. Mirrored by src/device/control.rs; change both.
#pragma once
#include "primitives.cuh"

using namespace symmem;

// Ranks of a group, at most.
constexpr u32 MAX_WORLD = 72;
// Blocks of a launch, at most: flags are per block.
constexpr u32 MAX_BLOCKS = 128;
// Meetings of one operation, at most.
constexpr u32 PHASES = 2;

// At byte 0 of every control block.
struct Header {
    u64 magic;
    // Of rank 0: the first cause of failure of the group; 0 while it is whole. Set once, by compare-and-swap.
    u64 verdict;
    // The verdict as it has reached this rank.
    u64 poison;
    // Nanoseconds that a kernel may wait; 0: for ever.
    u64 deadline;
    // Whether a failure also traps, which kills the context.
    u64 trap;
    // How many lanes there are, where the first one begins, and the bytes of each.
    u64 lanes;
    u64 first_lane;
    u64 lane_bytes;
    u64 unused[8];
};

// At the head of each lane: the unit of order. Only this rank touches it.
struct Lane {
    // epoch << 32 | blocks of all earlier launches, modulo 2^16, << 16 | blocks of this launch that have entered.
    u64 entry;
    // Blocks that have left, of all launches.
    u32 exited;
    // Steps that were recorded: see record.cuh.
    u32 steps;
    // What this rank has told every peer by `arrive`, all in all.
    u64 told;
    // Where launches that are recorded write.
    u64 records;
    u64 unused_too[12];
};

// Why a group failed. In the low byte of a verdict.
enum Cause : u32 {
    TIMED_OUT = 1,
    MISMATCH = 2,
    ABORTED = 3,
    OVERLAP = 4,
};

// cause | culprit << 8 | reporter << 16 | operation << 24 | epoch << 32. Never 0.
SYMMEM_DEVICE u64 verdict_of(Cause cause, u32 culprit, u32 reporter, u32 op, u32 epoch) {
    return (u64)cause | (u64)culprit << 8 | (u64)reporter << 16 | (u64)op << 24 | (u64)epoch << 32;
}

// In host memory that the device maps; written on failure only, read by the host at any time.
struct Status {
    u64 verdict;
    // For a mismatch: both sides' signature (mine << 32 | theirs) and bytes.
    u64 signatures;
    u64 my_bytes;
    u64 their_bytes;
    // Written by the host: a verdict that waiting kernels take over; 0: none.
    u64 abort;
    u64 unused[11];
};

// What is known of one operation: see record.cuh.
struct Record {
    u64 begin, end, what, unused;
};

enum Mode : u32 {
    // The average instead of the sum.
    AVERAGE = 1,
    // This rank lets others read, and reads nothing itself.
    IDLE = 2,
    // All ranks are on one device, the memory of all of them too.
    ONE_DEVICE = 4,
    // The next kernel of the stream may be launched while this one runs.
    NEXT_EARLY = 8,
    // What it does is recorded: see record.cuh.
    RECORDED = 16,
    // What it works on was made by NCCL.
    BY_NCCL = 32,
};

// Bytes from the head of a lane to the words of `arrive`, and to those of meetings.
constexpr u32 ARRIVALS = sizeof(Lane);
constexpr u32 FLAGS = ARRIVALS + MAX_WORLD * sizeof(u64) + 64;

// Parameters of every kernel, by value. N: for how many ranks there is room.
//
// The smallest operations spend their time on single instructions, one after the other: what a thread needs to find its way is here as it needs it, rather
// than computed.
template <u32 N>
struct Launch {
    // Where a lane begins in every control block.
    u64 lane;
    // This rank's word in its header.
    const u64* poison;
    // Bytes from the head of a lane.
    u64 terms;
    u64 staging;
    u64 scratch;
    // Bytes that the packets of one source take in one parity.
    u64 parcels;
    // Elements; bytes of a copy; the index of a slot in a signal pad.
    u64 count;
    // Where elements come from; in kernels that read peers only, an offset.
    const char* input;
    char* output;
    Status* status;
    // The address that reaches everybody's data, and everybody's control block, at once; null where there is none. Only multimem.cuh may
    // use them.
    char* multicast;
    char* control_multicast;
    u32 rank;
    u32 world;
    u32 op;
    u32 signature;
    // The rank that a signal goes to or comes from; what else it is, kernels say.
    u32 peer;
    // A set of Mode.
    u32 mode;
    // The lane of everybody.
    char* lanes[N];
    char* data[N];

    SYMMEM_DEVICE Header* header(u32 rank) const { return (Header*)(lanes[rank] - lane); }
    SYMMEM_DEVICE Lane* own_lane() const { return (Lane*)lanes[rank]; }

    // Where `at` looks for what `from` says at a meeting: epoch << 32 | signature.
    SYMMEM_DEVICE u64* flag(u32 at, u32 from, u32 parity, u32 phase, u32 block) const {
        u64* words = (u64*)(lanes[at] + FLAGS);
        return &words[((parity * PHASES + phase) * MAX_BLOCKS + block) * world + from];
    }

    // Where `at` looks for the bytes of the operation that `from` is in; for the words of a mismatch.
    SYMMEM_DEVICE u64* term(u32 at, u32 from, u32 parity) const {
        return (u64*)(lanes[at] + terms) + parity * world + from;
    }

    // Where `at` finds all that `from` has told it by `arrive`.
    SYMMEM_DEVICE u64* arrivals(u32 at, u32 from) const { return (u64*)(lanes[at] + ARRIVALS) + from; }

    // Where `at` has the packets of the unit at `position` of a message of `from`: nothing else decides on it. A lane is never larger than 32 bits
    // can tell.
    SYMMEM_DEVICE Packet* parcel(u32 at, u32 from, u32 parity, u32 position) const {
        return (Packet*)(lanes[at] + ((u32)staging + parity * world * (u32)parcels + position * 2 + from * (u32)parcels));
    }
};
