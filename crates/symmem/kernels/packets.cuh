// Messages without a meeting: units that travel in packets which carry their own flags, so that the receiver polls the data itself.
//
// A packet's flags are the epoch, and the epoch mixed with the signature: a packet of an older turn or of another operation is never taken
// for one that is waited for. Its place in a staging, the receiver's or the sender's, depends on its source and its position in the message only.
// Staging is used by parity of the epoch; protocol.cuh says why that is enough.
#pragma once
#include "protocol.cuh"
#include "units.cuh"

template <u32 N>
SYMMEM_DEVICE void send(const Launch<N>& launch, const Turn& turn, u32 peer, u32 position, const Unit& unit) {
    const u32 other = turn.epoch ^ launch.signature;
    Packet* packet = (Packet*)(launch.control[peer] + launch.parcel(launch.rank, turn.parity, position));
    store_packet(&packet[0], {unit.word[0], turn.epoch, unit.word[1], other});
    store_packet(&packet[1], {unit.word[2], turn.epoch, unit.word[3], other});
}

// Sends a unit of this rank to everybody. On one device they all look for it in this rank's staging; on several each looks in its own, because a poll
// across the link takes longer than the packet did.
template <u32 W, u32 N>
SYMMEM_DEVICE void send_all(const Launch<N>& launch, const Turn& turn, u32 position, const Unit& unit) {
    if (launch.mode & ONE_DEVICE) return send(launch, turn, launch.rank, position, unit);
    const u32 world = W ? W : launch.world;
#pragma unroll (W ? W : 1)
    for (u32 peer = 0; peer < world; ++peer)
        if (peer != launch.rank) send(launch, turn, peer, position, unit);
}

// Two packets as they were at some moment, and whether they are what is waited for.
struct Parcel {
    Packet packet[2];

    SYMMEM_DEVICE void poll(const Packet* from) {
        packet[0] = load_packet(&from[0]);
        packet[1] = load_packet(&from[1]);
    }

    SYMMEM_DEVICE bool is_here(u32 epoch, u32 other) const {
        return packet[0].low_flag == epoch && packet[0].high_flag == other && packet[1].low_flag == epoch &&
               packet[1].high_flag == other;
    }

    SYMMEM_DEVICE Unit unit() const { return {packet[0].low, packet[0].high, packet[1].low, packet[1].high}; }
};

// To whom a unit was sent.
enum Sent { TO_ONE, TO_ALL };

// Waits for everybody's unit at `position`, some ranks at a time, and hands them to take(rank, unit) in order of rank, this
// rank's place included, whose unit means nothing. Only those for which `sends(rank)`. False: the group failed. `bytes`: of the message,
// if no meeting has told the others of this operation; else 0.
template <u32 W, Sent SENT = TO_ALL, u32 N, class Sends, class Take>
SYMMEM_DEVICE bool receive(const Launch<N>& launch, const Turn& turn, u32 position, Sends sends, u64 bytes, Take take) {
    const u32 world = W ? W : launch.world, other = turn.epoch ^ launch.signature;
    const auto packets = [&](u32 from) {
        const bool theirs = SENT == TO_ALL && launch.mode & ONE_DEVICE;
        return (const Packet*)(launch.control[theirs ? from : launch.rank] + launch.parcel(from, turn.parity, position));
    };
    // So many ranks are polled at once.
    constexpr u32 AT_ONCE = W == 2 ? 2 : W ? 4 : 1;
#pragma unroll 1
    for (u32 some = 0; some < world; some += AT_ONCE) {
        Parcel parcel[AT_ONCE];
        Patience<N> patience(launch, turn.epoch, some);
        for (;;) {
            bool here = true;
#pragma unroll
            for (u32 at = 0; at < AT_ONCE; ++at)
                if (some + at != launch.rank && sends(some + at)) parcel[at].poll(packets(some + at));
#pragma unroll
            for (u32 at = 0; at < AT_ONCE; ++at) {
                if (some + at == launch.rank || !sends(some + at) || parcel[at].is_here(turn.epoch, other)) continue;
                here = false;
                patience.peer = some + at;
            }
            if (here) break;
            // Without a meeting the thread of the first unit says in what it waits, if that takes long, so that those who wait for this rank
            // learn of a mismatch. It hears from everybody, and so waits whenever anybody disagrees.
            if (bytes != 0 && position == 0 && patience.polls == POLLS - 2) announce(launch, turn.epoch, turn.parity, bytes);
            if (!patience.still()) return false;
        }
#pragma unroll
        for (u32 at = 0; at < AT_ONCE; ++at)
            if (some + at == launch.rank || sends(some + at)) take(some + at, parcel[at].unit());
    }
    return true;
}

// Makes this rank's unit at `position` the sum, in order of rank, of everybody's. False: the group failed.
template <class T, u32 W, Sent SENT = TO_ALL, u32 N>
SYMMEM_DEVICE bool gather(const Launch<N>& launch, const Turn& turn, u32 position, Unit* mine) {
    const u32 world = W ? W : launch.world;
    Sum<T> sum;
    auto add = [&](u32 rank, const Unit& theirs) {
        const Unit unit = rank == launch.rank ? *mine : theirs;
        if (rank == 0)
            sum.start(unit);
        else
            sum.add(unit);
    };
    if (!receive<W, SENT>(launch, turn, position, [](u32) { return true; }, launch.count * sizeof(T), add)) return false;
    *mine = sum.finish(launch.mode & AVERAGE ? (float)world : 0.0f);
    return true;
}
