// The protocols of the CUDA kernels as host threads, for ThreadSanitizer: that every result is right, that nothing but flags and packets is
// touched by two ranks without an order, and that groups fail as one.
//
//     protocol [MILLISECONDS]
//
// The argument is how long a kernel waits for a peer in the runs that should not fail. Ends with 1 and a line on what is wrong, or with 0.
#define SYMMEM_RECORDED
#include <functional>

#include "../symmem.cuh"
#include "operation.hpp"

// As if the ranks were on several devices, and on one.
constexpr u32 MODES[] = {0, ONE_DEVICE};

// Calls body(rank) for every rank at once.
template <class Body>
void each_rank(u32 world, Body body) {
    std::vector<std::thread> threads;
    for (u32 rank = 0; rank < world; ++rank) threads.emplace_back([&, rank] { body(rank); });
    for (std::thread& thread : threads) thread.join();
}

// Everybody's verdict is the same and has this cause. Kernels that were not waiting learn of it when they come.
u64 expect_verdict(Group& group, Cause cause) {
    u64 verdict = group.verdict(0);
    if (cause_of(verdict) != cause)
        fail("the cause is " + std::to_string(cause_of(verdict)) + ", not " + std::to_string(cause));
    for (u32 rank = 1; rank < group.world; ++rank)
        if (group.verdict(rank) != verdict) fail("rank " + std::to_string(rank) + " has another verdict");
    return verdict;
}

// A rank's part of `count` random operations, the same on all ranks.
void run_sequence(Track& track, u32 rank, u64 seed, u32 count) {
    Random shared(seed), own(seed + rank + 1);
    for (u32 at = 0; at < count; ++at) {
        Operation op = random_operation(shared);
        Call call(track, op, rank);
        if (own.chance(15)) nap(own.below(400));
        call.fill();
        call.run(own);
        if (u64 verdict = track.group.verdict(rank))
            fail("the group failed with cause " + std::to_string(cause_of(verdict)) + " in operation " +
                 std::to_string(at) + ", " + KIND_NAMES[op.kind]);
        call.check();
    }
}

// Random operations of random shapes, on every lane at once. 2^32 operations do not fit a test: some begin where epochs wrap.
void mixed(u32 world, u32 lanes, u32 mode, u32 first_epoch, u32 count, u64 deadline) {
    Group group(world, lanes, mode, first_epoch, deadline);
    std::vector<std::unique_ptr<Track>> tracks;
    for (u32 lane = 0; lane < lanes; ++lane) tracks.push_back(std::make_unique<Track>(group, lane));
    each_rank(world * lanes, [&](u32 which) {
        u32 lane = which / world;
        run_sequence(*tracks[lane], which % world, mix(world * 100 + lane) ^ first_epoch, count);
    });
}

// Record `number` is of an operation that was called so and ended well.
void expect_record(const Record& record, u32 number, u64 what) {
    const u64 tag = (u16)record.begin;
    if (tag != tagged(0, number)) fail("record " + std::to_string(number) + " is of another operation");
    for (u64 word : {record.end, record.what})
        if ((u16)word != tag) fail("a word of record " + std::to_string(number) + " is of another operation");
    const u64 begin = record.begin >> 16 & ((1ull << 47) - 1), end = record.end >> 17;
    if (begin == 0 || end < begin) fail("record " + std::to_string(number) + " ends before it begins");
    if (record.end >> 16 & 1) fail("record " + std::to_string(number) + " says that it failed");
    if (record.what >> 16 != what) fail("record " + std::to_string(number) + " is of something else");
}

// Operations that are recorded, by their kernels or by marks around those, leave a record each, where their epoch says, and steps behind them.
void recorded(u32 world, u32 mode, u32 first_epoch, bool is_marked) {
    const u32 count = 20;
    Group group(world, 1, mode, first_epoch, 60000);
    group.records.assign(world, std::vector<Record>(2 * RECORDS));
    group.is_marked = is_marked;
    Track track(group, 0);
    each_rank(world, [&](u32 rank) {
        run_sequence(track, rank, world, count);
        Bytes pad(64);
        *(u32*)pad.at(0) = 1;
        Random own(rank);
        Launch<ROOM> launch = group.launch(rank, 0);
        launch.data[rank] = pad.at(0);
        launch.op = 99;
        launch.signature = 7;
        if (is_marked) run_kernel({1, 1}, own, [&] { begin_step(launch); });
        run_kernel({1, 2}, own, [&] { pass_signal(launch, pad_slot(launch, rank), 1, 0); });
        if (is_marked) run_kernel({1, 1}, own, [&] { end_step(launch, true); });
        const std::vector<Record>& ring = group.records[rank];
        Random shared(world);
        u32 epoch = first_epoch;
        for (u32 at = 0; at < count; ++at) {
            const Operation op = random_operation(shared);
            expect_record(ring[epoch % RECORDS], epoch, (u64)op.signature() << 8 | op.kind);
            epoch = epoch + 1 == 0 ? 2 : epoch + 1;
        }
        if (ring[epoch % RECORDS].begin != 0) fail("there are more records than operations");
        expect_record(ring[RECORDS], 0, 7 << 8 | 99);
    });
}

// The last rank does not come: the others name it, and when it comes its kernels leave at once.
void absent(Kind kind, u32 mode, u32 world) {
    Group group(world, 1, mode, 2, 500);
    Track track(group, 0);
    Random shared(kind);
    Operation op = operation_of(kind, shared);
    each_rank(world - 1, [&](u32 rank) {
        Random own(rank);
        Call call(track, op, rank);
        call.fill();
        call.run(own);
        call.check_untouched();
    });
    Random own(world);
    for (u32 at = 0; at < 20; ++at) {
        Call late(track, op, world - 1);
        late.fill();
        late.run(own);
        late.check_untouched();
    }
    u64 verdict = expect_verdict(group, TIMED_OUT);
    if (culprit_of(verdict) != world - 1) fail("the wrong rank is blamed for a timeout");
}

// One rank is in another operation: everybody hears so before a byte has changed.
void mismatch(Kind kind, u32 mode, u32 world, const std::function<void(Operation&)>& change) {
    Group group(world, 1, mode, 2, 20000);
    Track track(group, 0);
    Random shared(kind + 10 * world);
    Operation common = operation_of(kind, shared);
    if (shared.chance(30)) common.shape = {1, 1};
    Operation other = common;
    change(other);
    auto of = [&](u32 rank) -> const Operation& { return rank == world - 1 ? other : common; };
    each_rank(world, [&](u32 rank) {
        Random own(rank);
        Call call(track, of(rank), rank);
        call.fill();
        call.run(own);
        call.check_untouched();
    });
    u64 verdict = expect_verdict(group, MISMATCH);
    u32 culprit = culprit_of(verdict), reporter = reporter_of(verdict);
    const Status& status = group.status(reporter);
    if (status.signatures != ((u64)of(reporter).signature() << 32 | of(culprit).signature()))
        fail("the signatures of a mismatch are not those of the two ranks");
    auto bytes = [&](u32 rank) { return is_barrier(of(rank).kind) ? 0 : of(rank).count * sizeof(float); };
    if (status.their_bytes != bytes(culprit)) fail("their bytes of a mismatch are wrong");
    // Its own are stored by a thread that may come later than the one that reports, unless there is only one.
    bool alone = of(reporter).shape.blocks * of(reporter).shape.threads == 1;
    if (alone && status.my_bytes != bytes(reporter)) fail("my bytes of a mismatch are wrong");
}

// Two launches of one rank share a lane without an order.
void overlap(u32 attempt) {
    Group group(2, 1, MODES[attempt % 2], 2, 1000);
    Track track(group, 0), second(group, 0);
    Operation op = {BARRIER, OUT, 1, false, {1 + attempt % 3, 2}, attempt};
    std::thread pair([&] {
        each_rank(2, [&](u32 which) {
            Random own(which + attempt);
            Call(which == 0 ? track : second, op, 0).run(own);
        });
    });
    nap(20000);
    Random own(attempt);
    Call(track, op, 1).run(own);
    pair.join();
    each_rank(2, [&](u32 rank) {
        Random own(rank);
        Call(track, op, rank).run(own);
    });
    u64 verdict = expect_verdict(group, OVERLAP);
    if (culprit_of(verdict) != 0) fail("the wrong rank is blamed for an overlap");
}

// The host of one rank gives up while kernels wait without a deadline, on both lanes.
void aborted(u32 mode) {
    Group group(3, 2, mode, 2, 0);
    Track first(group, 0), second(group, 1);
    const u64 word = verdict_of(ABORTED, 2, 1, 0, 0);
    std::thread host([&] {
        nap(20000);
        store_relaxed(&group.status(1).abort, word);
    });
    Random shared(1);
    Operation op = random_operation(shared);
    each_rank(4, [&](u32 which) {
        Random own(which);
        Call call(which < 2 ? first : second, op, which % 2);
        call.fill();
        call.run(own);
        call.check_untouched();
    });
    host.join();
    Random own(9);
    Call(first, op, 2).run(own);
    if (expect_verdict(group, ABORTED) != word) fail("the word of an abort is not the verdict");
}

// A failure while operations are under way: what a rank holds for done is right, and everybody learns the same cause.
void failure_at_any_time(u32 attempt) {
    Group group(3, 2, MODES[attempt % 2], 2, 20000);
    Track first(group, 0), second(group, 1);
    each_rank(7, [&](u32 which) {
        Random own(which + attempt * 10), shared(attempt * 10 + which / 3);
        if (which == 6) {
            nap(own.below(6000));
            // As a kernel on a third lane would.
            Launch<ROOM> launch = group.launch(own.below(3), 0);
            return convict(launch, verdict_of(ABORTED, launch.rank, launch.rank, 0, 0));
        }
        u32 rank = which % 3;
        while (group.verdict(rank) == 0) {
            Call call(which < 3 ? first : second, random_operation(shared), rank);
            call.fill();
            call.run(own);
            // As the host reads it, once the kernel has ended.
            if (group.verdict(rank) == 0) call.check();
        }
    });
    expect_verdict(group, ABORTED);
}

// Where all ranks are on one device a barrier tells before it looks whether the group is whole. A rank that finds it is not must not be heard at later ones:
// what it should have done before is not done.
void silenced(const std::function<void(Group&, Track&)>& fails) {
    Group group(2, 2, ONE_DEVICE, 2, 200);
    Track track(group, 0);
    const auto meet = [&](u32 rank) {
        Random own(rank);
        Call(track, {BARRIER, OUT, 1, false, {1, 2}, 0}, rank).run(own);
    };
    each_rank(2, meet);
    fails(group, track);
    // As if that had not reached rank 0 yet.
    store_relaxed(&group.header(0)->poison, 0);
    store_relaxed(&group.status(0).verdict, 0);
    meet(1);
    meet(0);
    if (group.verdict(0) == 0) fail("a rank that has failed was heard");
}

// The ways in which rank 1 can fail before.
void silenced_in_any_case() {
    const auto poison = [](Group& group) { store_relaxed(&group.header(1)->poison, verdict_of(ABORTED, 1, 1, 0, 0)); };
    const auto run = [](Track& track, Kind kind) {
        Random own(1);
        Call call(track, {kind, OUT, 68, false, {1, 2}, 0}, 1);
        call.fill();
        call.run(own);
    };
    // On another lane than the barrier.
    const auto wait = [](Group& group) {
        Bytes pad(64);
        Random own(1);
        Launch<ROOM> launch = group.launch(1, 1);
        launch.data[1] = pad.at(0);
        run_kernel({1, 1}, own, [&] { pass_signal(launch, pad_slot(launch, 1), 1, 0); });
    };
    silenced([&](Group& group, Track& track) { poison(group), run(track, BARRIER); });
    silenced([&](Group&, Track& track) { run(track, LOW_LATENCY); });
    silenced([&](Group&, Track& track) { run(track, ONE_SHOT); });
    silenced([&](Group& group, Track&) { wait(group); });
    silenced([&](Group& group, Track&) { poison(group), wait(group); });
}

// A ring of ranks hands a word on through the pads: what was written before a put is there after the wait, and the place is free
// again after the wait for the answer.
void signals(u32 world, u64 deadline) {
    Group group(world, 1, 0, 2, deadline);
    Bytes words(world * sizeof(u32)), pads(2 * world * world * sizeof(u32));
    auto pad = [&](u32 rank) { return pads.at(rank * 2 * world * sizeof(u32)); };
    each_rank(world, [&](u32 rank) {
        u32 next = (rank + 1) % world, before = (rank + world - 1) % world;
        Random own(rank);
        // On `channel`, from `from` to `to`: this rank is one of them.
        auto signal = [&](u32 to, u32 from, u32 channel) {
            Launch<ROOM> launch = group.launch(rank, 0);
            for (u32 peer = 0; peer < world; ++peer) launch.data[peer] = pad(peer);
            launch.peer = to == rank ? from : to;
            launch.count = channel * world + from;
            run_kernel({1, 1 + own.below(2)}, own, [&] {
                if (to == rank) return pass_signal(launch, pad_slot(launch, rank), 1, 0);
                pass_signal(launch, pad_slot(launch, to), 0, 1);
            });
        };
        for (u32 round = 1; round <= 30; ++round) {
            *(u32*)words.at(rank * sizeof(u32)) = round * world + rank;
            signal(next, rank, 0);
            signal(rank, before, 0);
            if (*(u32*)words.at(before * sizeof(u32)) != round * world + before) fail("a signal came before its data");
            signal(before, rank, 1);
            signal(rank, next, 1);
        }
        if (group.verdict(rank) != 0) fail("a wait for a signal gave up");
    });
}

// The same by a kernel of the user's, with symmem.cuh: words behind a barrier, and in packets.
void header(u32 world) {
    Bytes words(world * sizeof(u32)), pads(2 * world * world * sizeof(u32)), packets(world * world * sizeof(Packet));
    std::vector<u64> data(world), slots(world);
    for (u32 rank = 0; rank < world; ++rank) {
        data[rank] = (u64)words.at(rank * sizeof(u32));
        slots[rank] = (u64)pads.at(rank * 2 * world * sizeof(u32));
    }
    each_rank(world, [&](u32 rank) {
        symmem::Memory memory = {data.data(), slots.data(), rank, world};
        Random own(rank);
        auto packet = [&](u32 at, u32 from) { return (Packet*)packets.at((at * world + from) * sizeof(Packet)); };
        run_kernel({1, world}, own, [&] {
            u32 peer = thread_index();
            // Few: these waits yield to nobody.
            for (u32 round = 1; round <= 6; ++round) {
                if (peer == rank) *memory.peer<u32>(rank) = round * world + rank;
                if (!symmem::barrier(memory, 0)) fail("a barrier without a deadline gave up");
                if (*memory.peer<u32>(peer) != round * world + peer) fail("a barrier came before its data");
                put_packet(packet(peer, rank), round, rank, round);
                u32 low = 0, high = 0;
                if (!take_packet(packet(rank, peer), round, &low, &high) || low != round || high != peer)
                    fail("a packet is not what was sent");
                symmem::barrier(memory, 1);
            }
        });
    });
    symmem::Memory alone = {data.data(), slots.data(), 0, world};
    if (wait_signal(alone, 1, 0, 1000000)) fail("a signal that nobody sent has come");
}

void timed(const char* name, const std::function<void()>& body) {
    auto start = std::chrono::steady_clock::now();
    body();
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("%-20s %5.1f s\n", name, took.count());
    std::fflush(stdout);
}

int main(int count, char** arguments) {
    u64 deadline = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 0;
    if (deadline == 0) deadline = 60000;
    timed("mixed", [&] {
        for (u32 world = 1; world <= 5; ++world)
            for (u32 mode : MODES) mixed(world, 1, mode, 2, 125, deadline);
    });
    timed("wrap", [&] {
        for (u32 world = 1; world <= 5; ++world)
            for (u32 mode : MODES) mixed(world, 1, mode, 0xffffffff - 7 - world, 24, deadline);
    });
    timed("lanes", [&] {
        for (u32 mode : MODES) mixed(3, 3, mode, 0xfffffff0, 60, deadline);
    });
    timed("recorded", [&] {
        for (u32 world = 1; world <= 3; ++world)
            for (u32 mode : MODES)
                for (bool is_marked : {false, true}) recorded(world, mode, world == 1 ? 2 : 0xffffffff - 7, is_marked);
    });
    timed("signals", [&] {
        for (u32 world = 2; world <= 4; ++world) signals(world, deadline);
    });
    timed("header", [&] {
        for (u32 world = 2; world <= MAX_THREADS; ++world) header(world);
    });
    timed("absent", [&] {
        for (u32 kind = 0; kind < KINDS; ++kind)
            for (u32 mode : MODES) absent((Kind)kind, mode, 2 + kind % 3);
    });
    timed("mismatch", [&] {
        for (u32 which = 0; which < 2 * KINDS; ++which) {
            const Kind kind = (Kind)(which / 2);
            const u32 mode = MODES[which % 2];
            mismatch(kind, mode, 2 + kind % 2, [](Operation& op) { op.count += 1; });
            mismatch(kind, mode, 3, [](Operation& op) { op.shape.blocks += 1; });
            mismatch(kind, mode, 2, [](Operation& op) { op.average = !op.average; });
            mismatch(kind, mode, 2, [](Operation& op) { op.kind = is_barrier(op.kind) ? TWO_SHOT : BARRIER; });
        }
    });
    timed("overlap", [&] {
        for (u32 attempt = 0; attempt < 12; ++attempt) overlap(attempt);
    });
    timed("abort", [&] {
        for (u32 mode : MODES) aborted(mode);
    });
    timed("silence", [&] { silenced_in_any_case(); });
    timed("failure", [&] {
        for (u32 attempt = 0; attempt < 120; ++attempt) failure_at_any_time(attempt);
    });
    return 0;
}
