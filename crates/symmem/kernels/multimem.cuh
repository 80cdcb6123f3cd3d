// Memory that is reached through a multicast address: one store reaches everybody's, one load brings the sum of everybody's.
//
// The only place with multimem instructions, and only they may touch a multicast address. Such an address is an alias of the addresses that
// everything else uses, and PTX orders accesses through aliases only where an alias fence lies between them on the way from one to the other: there
// is one at both ends of every meeting here (docs/gpu.md, "Multicast").
#pragma once
#include "protocol.cuh"
#include "reduce.cuh"

#ifdef SYMMEM_HOST
#include <cstdlib>
#include <vector>
#endif

#ifndef SYMMEM_HOST

SYMMEM_DEVICE void fence_aliases() { asm volatile("fence.proxy.alias;" ::: "memory"); }

// The sum of everybody's unit, in the order and with the rounding of the switch; it adds halves as floats.
template <class T>
SYMMEM_DEVICE Unit load_sum(const char* multicast);

template <>
SYMMEM_DEVICE Unit load_sum<f32>(const char* multicast) {
    float value[4];
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
                 : "l"(multicast)
                 : "memory");
    return {as_bits(value[0]), as_bits(value[1]), as_bits(value[2]), as_bits(value[3])};
}

template <>
SYMMEM_DEVICE Unit load_sum<bf16>(const char* multicast) {
    Unit unit;
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 {%0, %1, %2, %3}, [%4];"
                 : "=r"(unit.word[0]), "=r"(unit.word[1]), "=r"(unit.word[2]), "=r"(unit.word[3])
                 : "l"(multicast)
                 : "memory");
    return unit;
}

template <>
SYMMEM_DEVICE Unit load_sum<f16>(const char* multicast) {
    Unit unit;
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.f16x2 {%0, %1, %2, %3}, [%4];"
                 : "=r"(unit.word[0]), "=r"(unit.word[1]), "=r"(unit.word[2]), "=r"(unit.word[3])
                 : "l"(multicast)
                 : "memory");
    return unit;
}

SYMMEM_DEVICE void store_everywhere(char* multicast, const Unit& unit) {
    asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(multicast),
                 "f"(as_float(unit.word[0])), "f"(as_float(unit.word[1])), "f"(as_float(unit.word[2])),
                 "f"(as_float(unit.word[3]))
                 : "memory");
}

SYMMEM_DEVICE void store_relaxed_everywhere(char* multicast, u64 value) {
    asm volatile("multimem.st.relaxed.sys.global.u64 [%0], %1;" ::"l"(multicast), "l"(value) : "memory");
}

SYMMEM_DEVICE void store_release_everywhere(char* multicast, u64 value) {
    asm volatile("multimem.st.release.sys.global.u64 [%0], %1;" ::"l"(multicast), "l"(value) : "memory");
}

#else  // SYMMEM_HOST

// What a multicast address stands for on the host: memory of every rank. Nothing is mapped at the address itself.
struct HostMulticast {
    const char* begin;
    u64 bytes;
    std::vector<char*> memory;
};
// Changed only while no kernel runs.
inline std::vector<HostMulticast> host_multicasts;

// Calls body(address) for everybody's memory at `multicast`, beginning with another rank each time: nobody promises an order.
template <class Body>
void everywhere(const char* multicast, Body body) {
    static thread_local u32 first = 0;
    for (const HostMulticast& one : host_multicasts) {
        if (multicast < one.begin || multicast >= one.begin + one.bytes) continue;
        u32 ranks = (u32)one.memory.size();
        first += 1;
        for (u32 at = 0; at < ranks; ++at) body(one.memory[(first + at) % ranks] + (multicast - one.begin));
        return;
    }
    // As a device would: there is no such memory.
    std::abort();
}

SYMMEM_DEVICE void fence_aliases() {}
template <class T>
SYMMEM_DEVICE Unit load_sum(const char* multicast) {
    Sum<T> sum;
    bool is_first = true;
    everywhere(multicast, [&](const char* address) {
        if (is_first)
            sum.start(load_unit(address));
        else
            sum.add(load_unit(address));
        is_first = false;
    });
    return sum.finish(0.0f);
}
SYMMEM_DEVICE void store_everywhere(char* multicast, const Unit& unit) {
    everywhere(multicast, [&](char* address) { store_unit(address, unit); });
}
SYMMEM_DEVICE void store_relaxed_everywhere(char* multicast, u64 value) {
    everywhere(multicast, [&](char* address) { store_relaxed((u64*)address, value); });
}
SYMMEM_DEVICE void store_release_everywhere(char* multicast, u64 value) {
    everywhere(multicast, [&](char* address) { store_release((u64*)address, value); });
}

#endif

// A word of this rank's control block, in everybody's.
template <u32 N>
SYMMEM_DEVICE char* in_every_control(const Launch<N>& launch, const u64* word) {
    return launch.control_multicast + ((const char*)word - (const char*)launch.header(launch.rank));
}

// What `tell` says to every peer, in one store for all of them: where a rank looks for it depends on who says it only.
template <u32 N>
SYMMEM_DEVICE void tell_everybody(const Launch<N>& launch, const Turn& turn, u32 phase, u64 bytes) {
    const u32 me = launch.rank;
    if (phase == 0 && block_index() == 0)
        store_relaxed_everywhere(in_every_control(launch, launch.term(me, me, turn.parity)), bytes);
    store_release_everywhere(in_every_control(launch, launch.flag(me, me, turn.parity, phase, block_index())),
                             (u64)turn.epoch << 32 | launch.signature);
    // Before this thread looks at its own copy of these words, and before a later kernel writes them through other addresses.
    fence_aliases();
}

// `meet`, by a telling through multicast; ranks that meet so and ranks that meet otherwise would understand each other. Between the meetings of an
// operation the same bytes may be touched through multicast that were touched otherwise before, and the other way round after.
template <u32 N>
SYMMEM_DEVICE bool meet_everybody(const Launch<N>& launch, Turn& turn, u32 phase, u64 bytes) {
    fence_aliases();
    sync_threads();
    bool whole = turn.whole;
    if (whole && thread_index() == 0) tell_everybody(launch, turn, phase, bytes);
    if (phase == 0) draw(launch, turn);
    for (u32 peer = thread_index(); whole && peer < launch.world; peer += thread_count())
        whole = hear(launch, turn, phase, peer);
    whole = sync_threads_and(whole);
    fence_aliases();
    return whole;
}

// A message in symmetric memory, cut where multicast can carry it: whole aligned units, and the edges before and behind them, which one thread
// of block 0 handles without multicast.
struct Cut {
    u64 bytes, head, units;

    SYMMEM_DEVICE Cut(const char* address, u64 bytes) : bytes(bytes) {
        head = (UNIT - ((u64)address & (UNIT - 1))) & (UNIT - 1);
        if (head > bytes) head = bytes;
        units = (bytes - head) / UNIT * UNIT;
    }

    SYMMEM_DEVICE Span before() const { return {0, head}; }
    SYMMEM_DEVICE Span behind() const { return {head + units, bytes}; }
};

// The copy of a message, by the threads that `sum_units` and `reduce_edges` give its parts to.
template <class T>
SYMMEM_DEVICE void copy_cut(const Cut& cut, const char* from, char* to) {
    copy_span<T>(cut.before(), from, to);
    copy_span<T>({0, cut.units}, from + cut.head, to + cut.head);
    copy_span<T>(cut.behind(), from, to);
}

// For every unit of `span`: the sum of everybody's, at `multicast` + offset, goes to keep(offset, unit).
template <class T, u32 N, class Keep>
SYMMEM_DEVICE void sum_units(const Launch<N>& launch, Span span, const char* multicast, Keep keep) {
    const float divisor = launch.mode & AVERAGE ? (float)launch.world : 0.0f;
    // Only the average is looked into, and rounded a second time.
    auto finish = [&](const Unit& unit) {
        if (divisor == 0.0f) return unit;
        Sum<T> sum;
        sum.start(unit);
        return sum.finish(divisor);
    };
    constexpr u32 MANY = 4;
    auto several = [&](u64 at, u64 step) {
        Unit unit[MANY];
#pragma unroll
        for (u32 which = 0; which < MANY; ++which) unit[which] = load_sum<T>(multicast + at + which * step);
#pragma unroll
        for (u32 which = 0; which < MANY; ++which) keep(at + which * step, finish(unit[which]));
    };
    for_units<MANY>(span, true, several, [&](u64 at, u32) { keep(at, finish(load_sum<T>(multicast + at))); });
}

// The sums of what is before and behind the units go to keep(offset, unit, bytes).
template <class T, u32 N, class Keep>
SYMMEM_DEVICE void reduce_edges(const Launch<N>& launch, const Cut& cut, Keep keep) {
    auto from = [&](u32 rank) { return launch.data[rank]; };
    reduce_span<T, 0>(launch, cut.before(), false, from, keep);
    reduce_span<T, 0>(launch, cut.behind(), false, from, keep);
}
