// Records of operations, for `symmem trace`: when each began and ended on this device. Read by src/sync/record/device.rs; change both.
//
// A lane knows a ring in host memory, and a launch whether it is recorded. Kernels of engines that were not made to be recorded hold nothing of it
// (SYMMEM_RECORDED): a test alone costs the smallest of them some percent. No word is fenced, which would take longer than what is measured: every word says in
// its low bits of which operation it is, so the reader knows what belongs together, in whatever order the words arrive.
#pragma once
#include "control.cuh"

#ifdef SYMMEM_RECORDED
constexpr bool RECORDABLE = true;
#else
constexpr bool RECORDABLE = false;
#endif

template <u32 N>
SYMMEM_DEVICE bool is_recorded(const Launch<N>& launch) {
    return RECORDABLE && launch.mode & RECORDED;
}

// A ring has so many records of operations that take a turn, by their epoch, and as many behind them of steps, which have no epoch.
constexpr u32 RECORDS = 1 << 16;

// `value`, of which 48 bits count, for record `number`: below it how often the ring was full before that. Never 0.
SYMMEM_DEVICE u64 tagged(u64 value, u32 number) { return value << 16 | ((number / RECORDS & 0x7FFF) + 1); }

// Record `number` of those of turns (place 0) or of steps (place RECORDS).
template <u32 N>
SYMMEM_DEVICE Record* record_at(const Launch<N>& launch, u32 place, u32 number) {
    return (Record*)load_relaxed(&launch.own_lane()->records) + place + number % RECORDS;
}

// An operation began at `time`.
template <u32 N>
SYMMEM_DEVICE void record_begin(const Launch<N>& launch, u32 place, u32 number, u64 time) {
    Record* record = record_at(launch, place, number);
    store_relaxed(&record->begin, tagged(time, number));
    store_relaxed(&record->what, tagged((u64)launch.signature << 8 | (u8)launch.op, number));
}

// It ends now.
template <u32 N>
SYMMEM_DEVICE void record_end(const Launch<N>& launch, u32 place, u32 number, bool whole) {
    store_relaxed(&record_at(launch, place, number)->end, tagged(now() << 1 | (whole ? 0 : 1), number));
}

// A block of an operation that took a turn has left, and began at `time`. Said by the first thread of every block, when all of its threads are done and it was
// counted: who finds that all blocks, `due`, have left says that the operation ends. All at once, because on the way there a test would make threads wait for
// each other, which takes a hundred times as long as the test.
template <u32 N>
SYMMEM_COLD void record_turn(const Launch<N>& launch, u32 epoch, u64 time, u32 due, bool whole) {
    if (block_index() == 0) record_begin(launch, 0, epoch, time);
    const u32 exited = load_relaxed(&launch.own_lane()->exited);
    if ((short)((u16)exited - (u16)due) >= 0) record_end(launch, 0, epoch, whole);
}

// A step of a lane begins: something that takes no turn, and so has no epoch. One thread calls it.
template <u32 N>
SYMMEM_COLD void begin_step(const Launch<N>& launch) {
    const u64 time = now();
    record_begin(launch, RECORDS, load_relaxed(&launch.own_lane()->steps), time);
}

// It ends. Steps of a lane do not overlap, so nobody else has changed the count.
template <u32 N>
SYMMEM_COLD void end_step(const Launch<N>& launch, bool whole) {
    u32* steps = &launch.own_lane()->steps;
    const u32 number = load_relaxed(steps);
    record_end(launch, RECORDS, number, whole);
    store_relaxed(steps, number + 1);
}

// The lane's ring is at `input` from now on; what the clock shows goes to `output`. One thread calls it.
template <u32 N>
SYMMEM_DEVICE void open_ring(const Launch<N>& launch) {
    store_relaxed(&launch.own_lane()->records, (u64)launch.input);
    store_release((u64*)launch.output, now());
}
