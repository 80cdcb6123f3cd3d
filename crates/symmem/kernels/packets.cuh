// Messages without a meeting: units that travel in packets which carry their own flags, so that the receiver polls the data itself.
//
// A packet's flags are the epoch, and the epoch mixed with the signature: a packet of an older turn or of another operation is never taken
// for one that is waited for. Its place in the receiver's staging depends on its source and its position in the message only. Staging
// is used by parity of the epoch; protocol.cuh says why that is enough.
#pragma once
#include "protocol.cuh"
#include "units.cuh"

template <u32 N>
SYMMEM_DEVICE void send(const Launch<N>& launch, const Turn& turn, u32 peer, u64 position, const Unit& unit) {
    Packet* packet = launch.packets(peer, launch.rank, turn.parity) + position / 8;
    u32 other = turn.epoch ^ launch.signature;
    store_packet(&packet[0], {unit.word[0], turn.epoch, unit.word[1], other});
    store_packet(&packet[1], {unit.word[2], turn.epoch, unit.word[3], other});
}

// Two packets as they were at some moment, and whether they are what is waited for.
struct Parcel {
    Packet packet[2];

    template <u32 N>
    SYMMEM_DEVICE void poll(const Launch<N>& launch, const Turn& turn, u32 peer, u64 position) {
        const Packet* from = launch.packets(launch.rank, peer, turn.parity) + position / 8;
        packet[0] = load_packet(&from[0]);
        packet[1] = load_packet(&from[1]);
    }

    SYMMEM_DEVICE bool is_here(u32 epoch, u32 other) const {
        return packet[0].low_flag == epoch && packet[0].high_flag == other && packet[1].low_flag == epoch &&
               packet[1].high_flag == other;
    }

    SYMMEM_DEVICE Unit unit() const { return {packet[0].low, packet[0].high, packet[1].low, packet[1].high}; }
};

// The sum, in order of rank, of `own` and everybody's unit at `position`. False: the group failed.
template <class T, u32 W, u32 N>
SYMMEM_DEVICE bool gather(const Launch<N>& launch, const Turn& turn, u64 position, const Unit& own, Unit* result) {
    const u32 world = W ? W : launch.world, other = turn.epoch ^ launch.signature;
    // So many ranks are polled at once.
    constexpr u32 AT_ONCE = W == 2 ? 2 : W ? 4 : 1;
    Sum<T> sum;
    for (u32 some = 0; some < world; some += AT_ONCE) {
        Parcel parcel[AT_ONCE];
        Patience<N> patience(launch, turn.epoch, some);
        for (;;) {
            bool here = true;
#pragma unroll
            for (u32 at = 0; at < AT_ONCE; ++at)
                if (some + at != launch.rank) parcel[at].poll(launch, turn, some + at, position);
#pragma unroll
            for (u32 at = 0; at < AT_ONCE; ++at) {
                if (some + at == launch.rank || parcel[at].is_here(turn.epoch, other)) continue;
                here = false;
                patience.peer = some + at;
            }
            if (here) break;
            if (!patience.still()) return false;
        }
#pragma unroll
        for (u32 at = 0; at < AT_ONCE; ++at) {
            Unit unit = some + at == launch.rank ? own : parcel[at].unit();
            if (some + at == 0)
                sum.start(unit);
            else
                sum.add(unit);
        }
    }
    *result = sum.finish(launch.mode & AVERAGE ? (float)world : 0.0f);
    return true;
}
