// Messages without a meeting: units that travel in packets which carry their own flags, so that the receiver polls the data itself.
//
// A packet's flags are the epoch, and the epoch mixed with the signature: a packet of an older turn or of another operation is never taken
// for one that is waited for. Its place in a staging, the receiver's or the sender's, depends on its source and its position in the message only.
// Staging is used by parity of the epoch; protocol.cuh says why that is enough.
//
// A packet orders no memory but its own eight bytes. That an operation orders what all ranks did before it with what they do after it is, between devices, a matter
// of the first unit (`order_earlier`).
#pragma once
#include "protocol.cuh"
#include "units.cuh"

// Two packets as they were at some moment, or as they will be.
struct Parcel {
    Packet packet[2];

    SYMMEM_DEVICE Parcel() {}
    SYMMEM_DEVICE Parcel(const Unit& unit, u32 epoch, u32 other)
        : packet{{unit.word[0], epoch, unit.word[1], other}, {unit.word[2], epoch, unit.word[3], other}} {}

    SYMMEM_DEVICE void store(Packet* to) const {
        store_packet(&to[0], packet[0]);
        store_packet(&to[1], packet[1]);
    }

    SYMMEM_DEVICE void poll(const Packet* from) {
        packet[0] = load_packet(&from[0]);
        packet[1] = load_packet(&from[1]);
    }

    // Whether they are what is waited for. Without branches: every poll comes by here.
    SYMMEM_DEVICE bool is_here(u32 epoch, u32 other) const {
        return ((packet[0].low_flag ^ epoch) | (packet[0].high_flag ^ other) | (packet[1].low_flag ^ epoch) |
                (packet[1].high_flag ^ other)) == 0;
    }

    SYMMEM_DEVICE Unit unit() const { return {packet[0].low, packet[0].high, packet[1].low, packet[1].high}; }
};

// To whom a unit is sent, and so where its packets are. On one device everybody looks for them in the sender's staging; on several each rank looks in its
// own, because a poll across the link takes longer than the packet did.
enum Sent {
    // One rank.
    TO_ONE,
    // Everybody: by the mode of the launch, on one device, or on several.
    TO_ALL,
    TO_ALL_TOGETHER,
    TO_ALL_APART,
};

// Whether packets lie with who sent them.
template <Sent SENT, u32 N>
SYMMEM_DEVICE bool lie_with_sender(const Launch<N>& launch) {
    return SENT == TO_ALL_TOGETHER || (SENT == TO_ALL && launch.mode & ONE_DEVICE);
}

// Between devices the thread of the first unit, whose packets go to everybody and come from everybody, releases what earlier kernels of this rank did before it sends
// them, and acquires what those of the others did when it has received theirs. On one device the ends of kernels have done so.
template <Sent SENT, u32 N>
SYMMEM_DEVICE void order_earlier(const Launch<N>& launch, u32 position) {
    const bool apart = SENT == TO_ALL_APART || (SENT != TO_ALL_TOGETHER && !(launch.mode & ONE_DEVICE));
    if (apart && position == 0) fence();
}

template <u32 N>
SYMMEM_DEVICE void send(const Launch<N>& launch, const Turn& turn, u32 peer, u32 position, const Unit& unit) {
    const Parcel parcel(unit, turn.epoch, turn.epoch ^ launch.signature);
    parcel.store(launch.parcel(peer, launch.rank, turn.parity, position));
}

// Sends a unit of this rank to everybody.
template <u32 W, Sent SENT = TO_ALL, u32 N>
SYMMEM_DEVICE void send_all(const Launch<N>& launch, const Turn& turn, u32 position, const Unit& unit) {
    if (lie_with_sender<SENT>(launch)) return send(launch, turn, launch.rank, position, unit);
    const u32 world = W ? W : launch.world;
#pragma unroll (W ? W : 1)
    for (u32 peer = 0; peer < world; ++peer)
        if (peer != launch.rank) send(launch, turn, peer, position, unit);
}

// Waits for the units at `position` of COUNT ranks from `first` on for which `sends(rank)`. False: the group failed. `bytes`: of the message, if no meeting
// has told the others of this operation; else 0.
template <u32 COUNT, Sent SENT, u32 N, class Sends>
SYMMEM_DEVICE bool await(const Launch<N>& launch, const Turn& turn, u32 position, u32 first, Sends sends, u64 bytes, Parcel* parcel) {
    const u32 other = turn.epoch ^ launch.signature;
    const Packet* place[COUNT];
#pragma unroll
    for (u32 at = 0; at < COUNT; ++at)
        place[at] = launch.parcel(lie_with_sender<SENT>(launch) ? first + at : launch.rank, first + at, turn.parity, position);
    const auto is_missing = [&](u32 at) { return sends(first + at) && !parcel[at].is_here(turn.epoch, other); };
    Patience<N> patience(launch, turn.epoch, first);
    for (;;) {
        bool missing = false;
#pragma unroll
        for (u32 at = 0; at < COUNT; ++at)
            if (sends(first + at)) parcel[at].poll(place[at]);
#pragma unroll
        for (u32 at = 0; at < COUNT; ++at) missing |= is_missing(at);
        if (!missing) return true;
        if (!patience.is_due()) continue;
#pragma unroll
        for (u32 at = 0; at < COUNT; ++at)
            if (is_missing(at)) patience.peer = first + at;
        // Without a meeting the thread of the first unit says in what it waits, if that takes long, so that those who wait for this rank
        // learn of a mismatch. It hears from everybody, and so waits whenever anybody disagrees.
        if (bytes != 0 && position == 0 && patience.is_first()) announce(launch, turn.epoch, turn.parity, bytes);
        if (!patience.looks()) return false;
    }
}

// Waits for everybody's unit at `position`, some ranks at a time, and hands them to take(rank, unit) in order of rank. Only those for which
// `sends(rank)`; otherwise as `await`.
template <u32 W, Sent SENT = TO_ALL, u32 N, class Sends, class Take>
SYMMEM_DEVICE bool receive(const Launch<N>& launch, const Turn& turn, u32 position, Sends sends, u64 bytes, Take take) {
    const u32 world = W ? W : launch.world;
    // So many ranks are polled at once.
    constexpr u32 AT_ONCE = W == 2 ? 2 : W ? 4 : 1;
#pragma unroll 1
    for (u32 some = 0; some < world; some += AT_ONCE) {
        Parcel parcel[AT_ONCE];
        if (!await<AT_ONCE, SENT>(launch, turn, position, some, sends, bytes, parcel)) return false;
#pragma unroll
        for (u32 at = 0; at < AT_ONCE; ++at) take(some + at, parcel[at].unit());
    }
    return true;
}

// Makes this rank's unit at `position` the sum, in order of rank, of everybody's. False: the group failed.
template <class T, u32 W, Sent SENT = TO_ALL, u32 N>
SYMMEM_DEVICE bool gather(const Launch<N>& launch, const Turn& turn, u32 position, Unit* mine) {
    const u32 world = W ? W : launch.world, me = launch.rank;
    const u64 bytes = launch.count * sizeof(T);
    Sum<T> sum;
    if constexpr (W == 2) {
        // Two may be added in any order.
        Parcel theirs;
        if (!await<1, SENT>(launch, turn, position, 1 - me, [](u32) { return true; }, bytes, &theirs)) return false;
        sum.start(*mine);
        sum.add(theirs.unit());
    } else {
        // Where this rank's own packets lie with everybody's, it takes them from there: nothing need tell its own from others.
        constexpr bool OWN_TOO = SENT == TO_ALL_TOGETHER;
        const auto sends = [&](u32 rank) { return OWN_TOO || rank != me; };
        const auto add = [&](u32 rank, const Unit& theirs) {
            const Unit unit = sends(rank) ? theirs : *mine;
            rank == 0 ? sum.start(unit) : sum.add(unit);
        };
        if (!receive<W, SENT>(launch, turn, position, sends, bytes, add)) return false;
    }
    if (launch.mode & AVERAGE) sum = Sum<T>::divided(sum, (float)world);
    *mine = sum.finish(0.0f);
    return true;
}
