// How blocks of ranks take turns, meet, and fail: the whole synchronisation of the CUDA engine.
//
// A launch takes a turn on its lane: all its blocks learn the same epoch, one more than the launch before. A meeting is between blocks
// of equal index: each tells every peer's block {epoch, signature} and hears the same from everybody. The words of a meeting are kept by
// parity of the epoch: a rank writes those of epoch e+2 only after it has heard everybody at e+1, and so after everybody's
// kernel of e has ended. That needs every operation of a lane to hear from every peer, kernels of a lane not to overlap (checked in
// `leave`), and a rank that gave up never to speak again (poison).
//
// Nothing here waits without end: each wait looks, now and then, at the poison word, the host's abort word, what the peer says it is
// doing, and the clock.
#pragma once
#include "record.cuh"

// Polls between two looks at what else may end a wait: a power of two.
constexpr u32 POLLS = 64;

// The turn of this launch on its lane, as one thread sees it.
struct Turn {
    u32 epoch;
    u32 parity;
    // Whether the group was whole when this thread looked. If not, it tells nobody anything and waits for nobody.
    bool whole;
    // What the block's first thread drew.
    u64 entry;
    u32 exited;
    // When it began, for launches that are recorded.
    u64 began;
};

// The first cause stands, for every rank: rank 0's verdict word arbitrates.
template <u32 N>
SYMMEM_COLD void convict(const Launch<N>& launch, u64 verdict) {
    u64 standing = compare_and_swap(&launch.header(0)->verdict, 0, verdict);
    if (standing == 0) standing = verdict;
    for (u32 rank = 0; rank < launch.world; ++rank) compare_and_swap(&launch.header(rank)->poison, 0, standing);
    store_release(&launch.status->verdict, standing);
    if (load_relaxed(&launch.header(launch.rank)->trap)) stop_kernel();
}

// Ends the wait of this rank for `peer` with a failure.
template <u32 N>
SYMMEM_COLD void blame(const Launch<N>& launch, Cause cause, u32 peer, u32 epoch) {
    convict(launch, verdict_of(cause, peer, launch.rank, launch.op, epoch));
}

// Whether `peer` is in this epoch with another operation: every operation says so in block 0's flag of phase 0. Signals have no epoch.
template <u32 N>
SYMMEM_COLD bool disagrees(const Launch<N>& launch, u32 epoch, u32 peer) {
    if (epoch == 0) return false;
    u64 said = load_acquire(launch.flag(launch.rank, peer, epoch & 1, 0, 0));
    if ((u32)(said >> 32) != epoch || (u32)said == launch.signature) return false;
    store_relaxed(&launch.status->signatures, (u64)launch.signature << 32 | (u32)said);
    store_relaxed(&launch.status->my_bytes, load_relaxed(launch.term(launch.rank, launch.rank, epoch & 1)));
    store_relaxed(&launch.status->their_bytes, load_relaxed(launch.term(launch.rank, peer, epoch & 1)));
    return true;
}

// What `arrive` adds to a peer's word: one operation, and which. Sums of signatures stay below the count.
template <u32 N>
SYMMEM_DEVICE u64 arrival(const Launch<N>& launch) {
    return 1ull << 40 | launch.signature;
}

// Makes sure that peers never hear of this rank by `arrive` again, on whichever lane: it tells before it has looked whether the group is whole.
template <u32 N>
SYMMEM_COLD void fall_silent(const Launch<N>& launch) {
#ifdef SYMMEM_MUTANT_NEVER_SILENT  // The run on the host must notice.
    return;
#endif
    // Elsewhere nobody arrives.
    if (!(launch.mode & ONE_DEVICE)) return;
    const Header* header = launch.header(launch.rank);
    const u64 lanes = load_relaxed(&header->lanes), bytes = load_relaxed(&header->lane_bytes);
    for (u64 lane = 0; lane < lanes; ++lane) {
        const u64 at = load_relaxed(&header->first_lane) + lane * bytes;
        // So far ahead that nobody takes it for one of the next operations, whatever is added.
        const u64 never = load_relaxed(&((const Lane*)((const char*)header + at))->told) + (1ull << 62);
        for (u32 peer = 0; peer < launch.world; ++peer)
            store_relaxed((u64*)((char*)launch.header(peer) + at + ARRIVALS) + launch.rank, never);
    }
}

// What `look` is, but for what follows from giving up.
template <u32 N>
SYMMEM_DEVICE u64 examine(const Launch<N>& launch, u32 epoch, u32 peer, u32 polls, u64 since) {
    yield_thread();
    const Header* header = launch.header(launch.rank);
    if (u64 poison = load_relaxed(&header->poison)) {
        store_release(&launch.status->verdict, poison);
        return 0;
    }
    if (disagrees(launch, epoch, peer)) {
        blame(launch, MISMATCH, peer, epoch);
        return 0;
    }
    u64 time = now(), deadline = load_relaxed(&header->deadline);
    if (since == 0) since = time;
    if (deadline != 0 && time - since > deadline) {
        blame(launch, TIMED_OUT, peer, epoch);
        return 0;
    }
    // Host memory is far away: now and then is enough.
    if ((polls & (POLLS * 64 - 1)) != 0) return since;
    u64 abort = load_relaxed(&launch.status->abort);
    if (abort == 0) return since;
    convict(launch, abort);
    return 0;
}

// A look at what else may end a wait that began at `since` (0: this is the first look). When it began, or 0: give up.
template <u32 N>
SYMMEM_COLD u64 look(const Launch<N>& launch, u32 epoch, u32 peer, u32 polls, u64 since) {
    // It takes long, perhaps for ever: so it is said now that it has begun.
    if (is_recorded(launch) && since == 0 && epoch != 0) record_begin(launch, 0, epoch, now());
    since = examine(launch, epoch, peer, polls, since);
    if (since == 0) fall_silent(launch);
    return since;
}

// What a wait for `peer` looks at beside what it waits for.
template <u32 N>
struct Patience {
    const Launch<N>& launch;
    u32 epoch, peer;
    u32 polls = 0;
    u64 since = 0;

    SYMMEM_DEVICE Patience(const Launch<N>& launch, u32 epoch, u32 peer) : launch(launch), epoch(epoch), peer(peer) {}

    // Whether it is time for a look.
    SYMMEM_DEVICE bool is_due() { return (++polls & (POLLS - 1)) == 0; }
    // Whether it is the first one: this takes long, so others should know in what this rank waits.
    SYMMEM_DEVICE bool is_first() const { return polls == POLLS; }

    // False: give up.
    SYMMEM_DEVICE bool looks() {
        since = look(launch, epoch, peer, polls, since);
        return since != 0;
    }

    // Both, for those whom others hear anyway.
    SYMMEM_DEVICE bool still() { return !is_due() || looks(); }
};

// The first thing that a launch does: nothing is touched before.
template <u32 N>
SYMMEM_DEVICE void begin(const Launch<N>& launch) {
    wait_for_kernel_before();
    // Others' kernels may come as early as ours, and take the room of those that peers wait for: so not always.
    if (launch.mode & NEXT_EARLY) let_next_kernel_come();
}

// The turn of a launch that has begun. Every thread that needs it looks for itself, which costs nobody a wait for anybody.
template <u32 N>
SYMMEM_DEVICE Turn turn_of(const Launch<N>& launch) {
    const u64 began = is_recorded(launch) ? now() : 0;
    u64 entry = load_relaxed(&launch.own_lane()->entry), poison = load_relaxed(launch.poison);
    u32 epoch = (u32)(entry >> 32);
#ifdef SYMMEM_MUTANT_ONE_PARITY  // The run on the host must notice.
    return {epoch, 0, poison == 0, 0, 0, began};
#endif
    return {epoch, epoch & 1, poison == 0, 0, 0, began};
}

template <u32 N>
SYMMEM_DEVICE Turn take_turn(const Launch<N>& launch) {
    begin(launch);
    return turn_of(launch);
}

// Says why a block works in vain: the group has failed, or two launches overlap.
template <u32 N>
SYMMEM_COLD void explain(const Launch<N>& launch, u32 epoch, bool whole) {
    fall_silent(launch);
    if (whole)
        blame(launch, OVERLAP, launch.rank, epoch);
    else
        store_release(&launch.status->verdict, load_relaxed(&launch.header(launch.rank)->poison));
}

// Draws this block's ticket, after all its threads have taken their turn and synchronised. What it gives is looked at in `leave`: until then
// it may be on its way while the block works.
template <u32 N>
SYMMEM_DEVICE void draw(const Launch<N>& launch, Turn& turn) {
    if (thread_index() != 0) return;
    Lane* lane = launch.own_lane();
    turn.entry = draw_local(&lane->entry);
    turn.exited = load_relaxed(&lane->exited);
}

// Ends this block's turn; the last block gives the lane to the next launch. Each block calls it once, after it has drawn. `whole`: all its threads
// found the group whole; if one did not, the host must learn that the block's work is not done.
template <u32 N>
SYMMEM_DEVICE void leave(const Launch<N>& launch, const Turn& turn, bool whole) {
    // The first thread may be done while others of its block wait for their packets. A recorded operation ends when all of them are done, so they meet here;
    // kernels that are not recorded have no such meeting, which would slow them down.
    if (is_recorded(launch)) sync_threads();
    if (thread_index() != 0) return;
    Lane* lane = launch.own_lane();
    u32 epoch = (u32)(turn.entry >> 32);
    u16 due = (u16)(turn.entry >> 16), ticket = (u16)turn.entry;
    if (ticket == block_count() - 1) {
        // Epochs 0 and 1 are skipped when the count wraps, in a pair, to keep the parity alternating.
        u32 next = epoch + 1 == 0 ? 2 : epoch + 1;
        store_relaxed(&lane->entry, (u64)next << 32 | (u64)(u16)(due + block_count()) << 16);
    }
    add_local(&lane->exited, 1);
    // Blocks of an earlier launch that had not left, an epoch that is not this launch's, or more blocks than it has: two launches share the
    // lane without an order.
    bool alone = (short)((u16)turn.exited - due) >= 0 && epoch == turn.epoch && ticket < block_count();
    if (!alone || !whole) explain(launch, turn.epoch, whole);
    if (is_recorded(launch)) record_turn(launch, turn.epoch, turn.began, due + block_count(), whole);
}

// What a flag stands for.
enum Publishes {
    // Memory that kernels before this one wrote. The end of a kernel has performed its stores for all threads of its device, which no fence could add
    // to; to another device PTX promises them by a release only.
    EARLIER_KERNELS,
    // Memory that this block wrote as well.
    THIS_BLOCK,
};

template <u32 N>
SYMMEM_DEVICE void tell(const Launch<N>& launch, const Turn& turn, u32 phase, u32 peer, Publishes what) {
    u64* flag = launch.flag(peer, launch.rank, turn.parity, phase, block_index());
    u64 word = (u64)turn.epoch << 32 | launch.signature;
#ifdef SYMMEM_HOST
    // There is no kernel boundary that a tool for threads would know. Between devices none is relied on.
    if (launch.mode & ONE_DEVICE) what = THIS_BLOCK;
#endif
#ifdef SYMMEM_MUTANT_RELAXED_EARLIER  // The run on the host must notice.
    if (what == EARLIER_KERNELS) return store_relaxed(flag, word);
#endif
    if (!(launch.mode & ONE_DEVICE))
        store_release(flag, word);
    else if (what == EARLIER_KERNELS)
        store_relaxed(flag, word);
    else
        store_release_on_device(flag, word);
}

// Tells every peer, without waiting, which operation this rank is in: for operations that have no meeting. Any thread may. Nobody takes it for more: who would
// hear it, in a meeting, is in another operation. So nothing is released.
template <u32 N>
SYMMEM_COLD void announce(const Launch<N>& launch, u32 epoch, u32 parity, u64 bytes) {
    u64 word = (u64)epoch << 32 | launch.signature;
    for (u32 peer = 0; peer < launch.world; ++peer) {
        store_relaxed(launch.term(peer, launch.rank, parity), bytes);
        store_relaxed(launch.flag(peer, launch.rank, parity, 0, 0), word);
    }
}

// Waits for what `peer` says in this phase to this block.
template <u32 N>
SYMMEM_DEVICE bool hear(const Launch<N>& launch, const Turn& turn, u32 phase, u32 peer) {
    const u64* flag = launch.flag(launch.rank, peer, turn.parity, phase, block_index());
    u64 expected = (u64)turn.epoch << 32 | launch.signature;
    Patience<N> patience(launch, turn.epoch, peer);
    // Each poll acquires: a fence, or another load, after relaxed polling costs a trip to memory more.
    while (load_acquire(flag) != expected)
        if (!patience.still()) return false;
    return true;
}

// Meets the block of the same index on every rank: what they published is visible to all of them after. False: the group failed. Every thread of
// the block calls it. The first meeting of an operation also draws. ONE_WARP: the block is no larger.
template <bool ONE_WARP = false, u32 N>
SYMMEM_DEVICE bool meet(const Launch<N>& launch, Turn& turn, u32 phase, u64 bytes, Publishes what) {
    const auto sync = [] { ONE_WARP ? sync_warp() : sync_threads(); };
    if (what == THIS_BLOCK) sync();
    bool whole = turn.whole;
    for (u32 peer = thread_index(); whole && peer < launch.world; peer += thread_count()) {
        if (phase == 0 && block_index() == 0) store_relaxed(launch.term(peer, launch.rank, turn.parity), bytes);
        tell(launch, turn, phase, peer, what);
    }
    if (phase == 0) {
        if (what != THIS_BLOCK) sync();
        draw(launch, turn);
    }
    for (u32 peer = thread_index(); whole && peer < launch.world; peer += thread_count())
        whole = hear(launch, turn, phase, peer);
    return ONE_WARP ? sync_warp_and(whole) : sync_threads_and(whole);
}

// Tells `peer` that this rank has come to this operation, before it knows its turn: a meeting takes as long as its flag, and not as the look at the epoch
// before it. Only on one device, and only what earlier kernels wrote is published.
template <u32 N>
SYMMEM_DEVICE void arrive(const Launch<N>& launch, u32 peer) {
    add_on_device(launch.arrivals(peer, launch.rank), arrival(launch));
}

// Waits until `peer` has come to the operation in which this rank, before it, had told `told`.
template <u32 N>
SYMMEM_DEVICE bool hear_arrival(const Launch<N>& launch, const Turn& turn, u64 told, u32 peer) {
    const u64 mine = arrival(launch), two = 2ull << 40;
    Patience<N> patience(launch, turn.epoch, peer);
    for (;;) {
        const u64 theirs = load_acquire(launch.arrivals(launch.rank, peer)) - told;
        // A peer that is at the next operation already has seen that this one is the same.
        if (theirs == mine || theirs - two < two / 2) return true;
        if (!patience.is_due()) continue;
        if (patience.is_first()) announce(launch, turn.epoch, turn.parity, 0);
        if (!patience.looks()) return false;
    }
}
