// The barrier, the user's signal pads, a copy by threads instead of the copy engine, and what records work that is not ours.
#include "protocol.cuh"
#include "units.cuh"

// A thread for each rank, and no more than the warp that this takes.
template <u32 N>
SYMMEM_DEVICE void barrier(const Launch<N>& launch) {
    Turn turn = take_turn(launch);
    const bool met = meet<N <= 32>(launch, turn, 0, 0, EARLIER_KERNELS);
    leave(launch, turn, met);
}

// The same where all ranks are on one device: one block, with a thread for each of them.
template <u32 N>
SYMMEM_DEVICE void barrier_together(const Launch<N>& launch) {
    const u32 peer = thread_index();
    const bool is_peer = peer < launch.world && peer != launch.rank;
    begin(launch);
    if (is_peer) arrive(launch, peer);
    Turn turn = turn_of(launch);
    const u64 told = load_relaxed(&launch.own_lane()->told);
    // No other block gives the lane away, so this one need not be synchronised before.
    draw(launch, turn);
    bool whole = turn.whole;
    if (is_peer && whole) whole = hear_arrival(launch, turn, told, peer);
    whole = N <= 32 ? sync_warp_and(whole) : sync_threads_and(whole);
    if (thread_index() == 0) store_relaxed(&launch.own_lane()->told, told + arrival(launch));
    leave(launch, turn, whole);
}

// Slot `count` of a pad: 0 idle, 1 pending. One writer and one reader, so no compare-and-swap is needed; kernels that use one fit.
template <u32 N>
SYMMEM_DEVICE u32* pad_slot(const Launch<N>& launch, u32 rank) {
    return (u32*)launch.data[rank] + launch.count;
}

// Waits for `value` in a slot, then puts `next` there. Everything before a put is visible after the wait that takes it.
template <u32 N>
SYMMEM_DEVICE bool exchange_slot(const Launch<N>& launch, u32* slot, u32 value, u32 next) {
    if (u64 poison = load_relaxed(&launch.header(launch.rank)->poison)) {
        store_release(&launch.status->verdict, poison);
        fall_silent(launch);
        return false;
    }
    Patience<N> patience(launch, 0, launch.peer);
    while (load_relaxed(slot) != value)
        if (!patience.still()) return false;
    load_acquire(slot);
    store_release(slot, next);
    return true;
}

// The same as a step that may be recorded.
template <u32 N>
SYMMEM_DEVICE void pass_signal(const Launch<N>& launch, u32* slot, u32 value, u32 next) {
    if (thread_index() != 0) return;
    if (is_recorded(launch)) begin_step(launch);
    const bool done = exchange_slot(launch, slot, value, next);
    if (is_recorded(launch)) end_step(launch, done);
}

#ifndef SYMMEM_HOST
// `begin_work` and `end_work`: one thread before and after work of another library, which is recorded so. `open_records`: tells a lane of its ring.
#define SIGNALS(suffix, N)                                                                         \
    extern "C" __global__ void barrier##suffix(const __grid_constant__ Launch<N> launch) {         \
        barrier<N>(launch);                                                                        \
    }                                                                                              \
    extern "C" __global__ void barrier_together##suffix(const __grid_constant__ Launch<N> launch) {\
        barrier_together<N>(launch);                                                               \
    }                                                                                              \
    extern "C" __global__ void put_signal##suffix(const __grid_constant__ Launch<N> launch) {      \
        pass_signal(launch, pad_slot(launch, launch.peer), 0, 1);                                  \
    }                                                                                              \
    extern "C" __global__ void wait_signal##suffix(const __grid_constant__ Launch<N> launch) {     \
        pass_signal(launch, pad_slot(launch, launch.rank), 1, 0);                                  \
    }                                                                                              \
    extern "C" __global__ void begin_work##suffix(const __grid_constant__ Launch<N> launch) {      \
        begin_step(launch);                                                                        \
    }                                                                                              \
    extern "C" __global__ void end_work##suffix(const __grid_constant__ Launch<N> launch) {        \
        end_step(launch, load_relaxed(launch.poison) == 0);                                        \
    }                                                                                              \
    extern "C" __global__ void open_records##suffix(const __grid_constant__ Launch<N> launch) {    \
        open_ring(launch);                                                                         \
    }
SIGNALS(, 8)
SIGNALS(_any, 72)

// `count` bytes from `input` to `output`, at any addresses.
extern "C" __global__ void __launch_bounds__(512, 2) copy(const __grid_constant__ Launch<8> launch) {
    copy_bytes(launch.count, launch.input, launch.output);
}
#endif
