// Ranks on the host: their control blocks, and kernels as threads.
//
// A launch starts a thread for every thread of every block, in any order and with random delays, and ends when all of them have ended: what a
// kernel boundary orders is ordered by that. All blocks of all ranks run at once, as the engine makes sure on a device.
#pragma once
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "../multimem.cuh"
#include "../record.cuh"

// Room for ranks in the launch parameters.
constexpr u32 ROOM = 8;
constexpr u32 MAX_THREADS = 4;
// Payload bytes that one source may stage, and bytes of scratch: enough for the messages of operation.hpp.
constexpr u64 SLOT = 2048;
constexpr u64 SCRATCH = 2048;

// Ends the program at once: other threads may wait for ever.
[[noreturn]] inline void fail(const std::string& why) {
    std::fprintf(stderr, "wrong: %s\n", why.c_str());
    std::_Exit(1);
}

inline u64 mix(u64 value) {
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

class Random {
  public:
    explicit Random(u64 seed) : state(seed) {}
    u64 next() { return mix(state += 0x9e3779b97f4a7c15u); }
    u32 below(u32 end) { return (u32)(next() % end); }
    bool chance(u32 percent) { return below(100) < percent; }

  private:
    u64 state;
};

inline void nap(u32 microseconds) { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); }

struct Shape {
    u32 blocks, threads;
};

// Zeroed memory, aligned to a unit.
class Bytes {
  public:
    explicit Bytes(u64 bytes) : units(bytes / sizeof(Unit) + 1) {}
    char* at(u64 offset) { return (char*)units.data() + offset; }

  private:
    std::vector<Unit> units;
};

// An address range that stands for memory of every rank. Nothing is mapped there: whoever touches it but by multimem.cuh ends the program.
class Multicast {
  public:
    Multicast(std::vector<char*> memory, u64 bytes) : bytes(bytes) {
        void* range = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (range == MAP_FAILED) fail("there is no address range for multicast");
        base = (char*)range;
        host_multicasts.push_back({base, bytes, std::move(memory)});
    }
    ~Multicast() {
        std::erase_if(host_multicasts, [&](const HostMulticast& one) { return one.begin == base; });
        munmap(base, bytes);
    }
    Multicast(const Multicast&) = delete;
    char* at(u64 offset) { return base + offset; }

  private:
    char* base;
    u64 bytes;
};

// Runs body() as every thread of a kernel.
template <class Body>
void run_kernel(Shape shape, Random& random, Body body) {
    struct Block {
        std::barrier<> barrier;
        bool votes[ROOM] = {};
        float parts[2 * ROOM] = {};
        explicit Block(u32 threads) : barrier(threads) {}
    };
    std::vector<std::unique_ptr<Block>> blocks;
    for (u32 block = 0; block < shape.blocks; ++block) blocks.push_back(std::make_unique<Block>(shape.threads));
    std::vector<std::thread> threads;
    u32 count = shape.blocks * shape.threads, first = random.below(count);
    for (u32 at = 0; at < count; ++at) {
        u32 which = (first + at) % count, delay = random.chance(10) ? random.below(300) : 0;
        u32 block = which / shape.threads, thread = which % shape.threads;
        threads.emplace_back([&, block, thread, delay] {
            if (delay != 0) nap(delay);
            Block& own = *blocks[block];
            host_thread = {thread, shape.threads, block, shape.blocks, &own.barrier, own.votes, own.parts};
            body();
        });
    }
    for (std::thread& thread : threads) thread.join();
}

// The control and status blocks of a group: the layout of src/device/control.rs with smaller buffers.
class Group {
  public:
    const u32 world, lanes;
    // 0, or ONE_DEVICE: as if the ranks were on several devices, or on one.
    const u32 mode;
    // A ring of each rank for its records; none if they are not recorded.
    std::vector<std::vector<Record>> records;
    // Whether marks around kernels write them, instead of the kernels.
    bool is_marked = false;

    Group(u32 world, u32 lanes, u32 mode, u32 first_epoch, u64 milliseconds)
        : world(world), lanes(lanes), mode(mode), status_words(world) {
        for (u32 rank = 0; rank < world; ++rank) {
            control.push_back(std::make_unique<Bytes>(lane_at(lanes)));
            header(rank)->deadline = milliseconds * 1000000;
            header(rank)->lanes = lanes;
            header(rank)->first_lane = lane_at(0);
            header(rank)->lane_bytes = lane_at(1) - lane_at(0);
            for (u32 lane = 0; lane < lanes; ++lane)
                ((Lane*)control[rank]->at(lane_at(lane)))->entry = (u64)first_epoch << 32;
        }
        std::vector<char*> all;
        for (auto& one : control) all.push_back(one->at(0));
        multicast = std::make_unique<Multicast>(all, lane_at(lanes));
    }

    Launch<ROOM> launch(u32 rank, u32 lane) {
        Launch<ROOM> launch = {};
        launch.lane = lane_at(lane);
        launch.poison = &header(rank)->poison;
        launch.terms = FLAGS + flag_bytes();
        launch.staging = launch.terms + term_bytes();
        launch.scratch = launch.staging + staging_bytes();
        launch.parcels = 2 * SLOT;
        launch.status = &status_words[rank];
        launch.control_multicast = multicast->at(0);
        launch.rank = rank;
        launch.world = world;
        launch.mode = mode;
        if (!records.empty()) {
            if (!is_marked) launch.mode |= RECORDED;
            store_relaxed(&((Lane*)control[rank]->at(launch.lane))->records, (u64)records[rank].data());
        }
        for (u32 peer = 0; peer < world; ++peer) launch.lanes[peer] = control[peer]->at(launch.lane);
        return launch;
    }

    Header* header(u32 rank) { return (Header*)control[rank]->at(0); }
    Status& status(u32 rank) { return status_words[rank]; }
    // What the host of `rank` knows.
    u64 verdict(u32 rank) { return load_relaxed(&status_words[rank].verdict); }

  private:
    u64 flag_bytes() const { return 2 * PHASES * MAX_BLOCKS * world * sizeof(u64); }
    u64 term_bytes() const { return (2 * world * sizeof(u64) + sizeof(Unit) - 1) / sizeof(Unit) * sizeof(Unit); }
    u64 staging_bytes() const { return 4 * world * SLOT; }
    u64 lane_at(u32 lane) const {
        return sizeof(Header) + lane * (FLAGS + flag_bytes() + term_bytes() + staging_bytes() + SCRATCH);
    }

    std::vector<std::unique_ptr<Bytes>> control;
    std::vector<Status> status_words;
    std::unique_ptr<Multicast> multicast;
};

inline u32 cause_of(u64 verdict) { return (u8)verdict; }
inline u32 culprit_of(u64 verdict) { return (u8)(verdict >> 8); }
inline u32 reporter_of(u64 verdict) { return (u8)(verdict >> 16); }
