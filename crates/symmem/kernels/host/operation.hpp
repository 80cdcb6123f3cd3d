// The operations, with values that show a wrong element, and memory around it that nobody may touch.
#pragma once
#include <cmath>

#include "machine.hpp"

#include "kernels.hpp"

enum Kind : u32 {
#define KIND(kind, body, forms, owns) kind,
    SYMMEM_ALL_REDUCES(KIND)
#undef KIND
    PULLED,
    PORTION,
    NORM_ONE_SHOT,
    NORM_TWO_SHOT,
    BARRIER,
    MULTIMEM_ONE_SHOT,
    MULTIMEM_TWO_SHOT,
    MULTIMEM_REDUCE,
    MULTIMEM_GATHER,
    MULTIMEM_BARRIER,
    KINDS
};
// Where elements come from and the result goes.
enum Form : u32 { IN_PLACE, OUT, PRIVATE };

constexpr const char* KIND_NAMES[] = {
#define NAME(kind, body, forms, owns) #body,
    SYMMEM_ALL_REDUCES(NAME)
#undef NAME
    "pull",              "reduce_portion",    "norm_one_shot",
    "norm_two_shot",     "barrier",           "multimem_one_shot",
    "multimem_two_shot", "multimem_reduce",   "multimem_gather",  "multimem_barrier"};

// The forms that an all-reduce has, a bit for each.
inline u32 forms_of(Kind kind) {
    switch (kind) {
#define FORMS(kind, body, forms, owns) \
    case kind: return forms;
        SYMMEM_ALL_REDUCES(FORMS)
#undef FORMS
        default: return 0;
    }
}

// Whether each rank must own a part of the message.
inline bool must_own(Kind kind) {
    switch (kind) {
#define OWNS(kind, body, forms, owns) \
    case kind: return owns;
        SYMMEM_ALL_REDUCES(OWNS)
#undef OWNS
        default: return false;
    }
}

inline bool is_multimem(Kind kind) { return kind >= MULTIMEM_ONE_SHOT; }
inline bool is_norm(Kind kind) { return kind >= NORM_ONE_SHOT && kind <= NORM_TWO_SHOT; }
inline bool is_barrier(Kind kind) { return kind == BARRIER || kind == MULTIMEM_BARRIER; }

constexpr u32 MAX_COUNT = 300;
// Elements before and behind a buffer.
constexpr u32 MARGIN = 8;
constexpr u32 UNTOUCHED = 0xdeadbeef;

// What all ranks agree on.
struct Operation {
    Kind kind;
    Form form;
    u32 count;
    bool average;
    Shape shape;
    u64 seed;

    u32 signature() const {
        u64 hash = mix(kind | (u64)count << 8 | (u64)average << 32 | (u64)shape.blocks << 40 | (u64)shape.threads << 48);
        return (u32)hash | 1;
    }
};

inline Form random_form(Kind kind, Random& random) {
    if (const u32 forms = forms_of(kind)) {
        u32 form = random.below(3);
        while (!(forms >> form & 1)) form = (form + 1) % 3;
        return (Form)form;
    }
    switch (kind) {
        case MULTIMEM_TWO_SHOT: return IN_PLACE;
        case MULTIMEM_GATHER: return PRIVATE;
        case PULLED:
        case MULTIMEM_REDUCE:
        case PORTION: return OUT;
        default: return random.chance(50) ? OUT : PRIVATE;
    }
}

// Elements of a row for a block of this shape: some of its threads have two units, and some one.
inline u32 row_of(Shape shape) { return 4 * (shape.threads * UNITS - shape.threads / 2); }

inline Operation operation_of(Kind kind, Random& random) {
    // Mostly more than a few units for each thread, sometimes less than one for each rank.
    u32 count = 1 + (random.chance(30) ? random.below(8) : random.below(MAX_COUNT));
    // A gather's elements are of one rank, of five at most.
    if (kind == MULTIMEM_GATHER) count = 1 + (count - 1) % (MAX_COUNT / 5);
    // With so many each of five ranks owns a part.
    if (must_own(kind) && count < 68) count += 68;
    Shape shape = {1 + random.below(4), 1 + random.below(MAX_THREADS)};
    // Whole rows, one for each block at least.
    if (is_norm(kind)) {
        const u32 row = row_of(shape), rows = 1 + random.below(MAX_COUNT / row);
        count = row * rows;
        if (shape.blocks > rows) shape.blocks = rows;
    }
    // Sometimes a unit for each thread, or less.
    if (kind == LOW_LATENCY && random.chance(40)) count = 4 * (1 + random.below(shape.blocks * shape.threads));
    return {kind, random_form(kind, random), count, random.chance(30), shape, random.next()};
}

inline Operation random_operation(Random& random) { return operation_of((Kind)random.below(KINDS), random); }

// Whole and small, so that sums are exact, and different for every element, rank and operation.
inline float value_of(u64 seed, u32 rank, u32 index) {
    return (float)(mix(seed ^ (u64)rank << 40 ^ index) % 2001) - 1000.0f;
}

// The rank whose elements a pull brings, or that a reduction is for.
inline u32 root_of(const Operation& op, u32 world) { return (u32)(mix(op.seed + 1) % world); }

inline float result_of(const Operation& op, u32 world, u32 index) {
    if (op.kind == PULLED) return value_of(op.seed, root_of(op, world), index);
    if (op.kind == MULTIMEM_GATHER) return value_of(op.seed, index / op.count, index % op.count);
    float sum = value_of(op.seed, 0, index);
    for (u32 rank = 1; rank < world; ++rank) sum += value_of(op.seed, rank, index);
    return op.average ? sum / (float)world : sum;
}

// What a norm adds to the sum, and what it keeps of both.
inline float residual_of(const Operation& op, u32 index) { return value_of(op.seed + 2, 0, index); }
inline float kept_of(const Operation& op, u32 world, u32 index) { return result_of(op, world, index) + residual_of(op, index); }

// What it makes of that: in double, so nearly.
inline double normed_of(const Operation& op, u32 world, u32 index) {
    const u32 row = row_of(op.shape), first = index / row * row;
    double squares = 0;
    for (u32 at = first; at < first + row; ++at) squares += std::pow((double)kept_of(op, world, at), 2);
    return kept_of(op, world, index) / std::sqrt(squares / row + 1.0);
}

// The memory that one rank uses on one lane.
struct Buffers {
    Bytes symmetric, input, output, residual;
    Buffers() : symmetric(bytes()), input(bytes()), output(bytes()), residual(bytes()) {}

    static u64 bytes() { return (MAX_COUNT + 2 * MARGIN) * sizeof(float); }

    // Of an operation: each rank has another alignment.
    static u64 offset(const Operation& op, u32 rank) {
        u32 shift = is_norm(op.kind) || mix(op.seed) % 2 ? 0 : (u32)(mix(op.seed + rank) % 4);
        return (MARGIN - shift) * sizeof(float);
    }

    // Of its symmetric memory: multicast reaches one place only.
    static u64 symmetric_offset(const Operation& op, u32 rank) { return offset(op, is_multimem(op.kind) ? 0 : rank); }
};

// One lane of a group, with the buffers of every rank.
struct Track {
    Group& group;
    u32 lane;
    std::vector<std::unique_ptr<Buffers>> buffers;
    std::unique_ptr<Multicast> multicast;

    Track(Group& group, u32 lane) : group(group), lane(lane) {
        for (u32 rank = 0; rank < group.world; ++rank) buffers.push_back(std::make_unique<Buffers>());
        std::vector<char*> all;
        for (auto& one : buffers) all.push_back(one->symmetric.at(0));
        multicast = std::make_unique<Multicast>(all, Buffers::bytes());
    }
};

template <u32 W>
void run_body(Kind kind, bool takes_whole, const Launch<ROOM>& launch, const Norm& norm) {
    if (kind == LOW_LATENCY && takes_whole)
        return launch.mode & ONE_DEVICE ? low_latency_whole<f32, W, TO_ALL_TOGETHER>(launch)
                                        : low_latency_whole<f32, W, TO_ALL_APART>(launch);
    switch (kind) {
#define BODY(kind, body, forms, owns) \
    case kind: return body<f32, W>(launch);
        SYMMEM_ALL_REDUCES(BODY)
#undef BODY
        case NORM_ONE_SHOT: return norm_one_shot<f32, W>(launch, norm);
        case NORM_TWO_SHOT: return norm_two_shot<f32, W>(launch, norm);
        case PULLED: return pull(launch);
        case PORTION: return reduce_portion<f32, W>(launch);
        case MULTIMEM_REDUCE:
        case MULTIMEM_ONE_SHOT: return multimem_one_shot<f32>(launch);
        case MULTIMEM_TWO_SHOT: return multimem_two_shot<f32>(launch);
        case MULTIMEM_GATHER: return multimem_all_gather(launch);
        case MULTIMEM_BARRIER: return multimem_barrier(launch);
        default: return launch.mode & ONE_DEVICE ? barrier_together(launch) : barrier(launch);
    }
}

// One operation of one rank.
class Call {
  public:
    Call(Track& track, const Operation& op, u32 rank) : track(track), op(op), rank(rank) {
        Buffers& own = *track.buffers[rank];
        u64 offset = Buffers::offset(op, rank);
        symmetric = own.symmetric.at(Buffers::symmetric_offset(op, rank));
        input = op.form == PRIVATE ? own.input.at(offset) : symmetric;
        output = op.form == IN_PLACE ? input : own.output.at(MARGIN * sizeof(float));
        if (op.kind == MULTIMEM_GATHER) output = symmetric;
        residual = own.residual.at(0);
        results = op.kind == MULTIMEM_GATHER ? op.count * track.group.world : op.count;
    }

    void fill() {
        Buffers& own = *track.buffers[rank];
        for (u64 at = 0; at < Buffers::bytes(); at += sizeof(u32)) store_word((u32*)own.output.at(at), UNTOUCHED);
        for (u32 at = 0; output == symmetric && at < results; ++at) store_word((u32*)output + at, UNTOUCHED);
        for (u32 at = 0; at < op.count; ++at) store_word((u32*)input + at, as_bits(value_of(op.seed, rank, at)));
        for (u32 at = 0; at < op.count; ++at) store_word((u32*)residual + at, as_bits(residual_of(op, at)));
        store_word((u32*)output + results, UNTOUCHED);
        store_word((u32*)output - 1, UNTOUCHED);
    }

    void run(Random& random) {
        Launch<ROOM> launch = track.group.launch(rank, track.lane);
        launch.count = op.count;
        launch.input = input;
        launch.output = output;
        // What these read begins where everybody's memory does. A pull counts bytes, a portion is one row.
        if (op.kind == PULLED || op.kind == PORTION) launch.input = nullptr;
        if (op.kind == PULLED || op.kind == MULTIMEM_GATHER) launch.count = op.count * sizeof(float);
        launch.peer = op.kind == PULLED ? root_of(op, launch.world) : 1;
        launch.op = op.kind;
        launch.signature = op.signature();
        if (op.average) launch.mode |= AVERAGE;
        if (is_idle()) launch.mode |= IDLE;
        for (u32 peer = 0; peer < launch.world; ++peer)
            launch.data[peer] = track.buffers[peer]->symmetric.at(Buffers::symmetric_offset(op, peer));
        if (is_multimem(op.kind)) launch.multicast = track.multicast->at(Buffers::symmetric_offset(op, 0));
        // Whether sums are unrolled is the rank's own affair, and whether it runs the kernel for whole messages where it can.
        u32 unrolled = random.chance(50) ? launch.world : 0;
        bool takes_whole = op.kind == LOW_LATENCY && is_whole() && random.chance(70);
        const u32 row = row_of(op.shape);
        const Norm norm = {residual, nullptr, nullptr, op.count / row, row * (u32)sizeof(float), 1.0f / (float)row, 1.0f, PLAIN, 0};
        // Where all ranks are on one device the barrier has one block, and a thread for each of them.
        bool is_together = op.kind == BARRIER && launch.mode & ONE_DEVICE;
        if (track.group.is_marked) run_kernel({1, 1}, random, [&] { mark_begin(launch); });
        run_kernel(is_together ? Shape{1, launch.world} : op.shape, random, [&] {
            if (unrolled == 2) return run_body<2>(op.kind, takes_whole, launch, norm);
            if (unrolled == 4) return run_body<4>(op.kind, takes_whole, launch, norm);
            run_body<0>(op.kind, takes_whole, launch, norm);
        });
        if (track.group.is_marked) run_kernel({1, 1}, random, [&] { mark_end(launch); });
    }

    // The result is right, and nothing else has changed.
    void check() const {
        if (is_barrier(op.kind) || is_idle()) return check_untouched();
        if (is_norm(op.kind)) return check_rows();
        for (u32 at = 0; at < results; ++at) expect(output, at, as_bits(result_of(op, track.group.world, at)));
        expect_margin();
        if (op.form != IN_PLACE) check_input();
    }

    // Not a byte of the user's has changed.
    void check_untouched() const {
        check_input();
        if (op.form == IN_PLACE) return;
        for (u32 at = 0; at < results; ++at) expect(output, at, UNTOUCHED);
        for (u32 at = 0; is_norm(op.kind) && at < results; ++at) expect(residual, at, as_bits(residual_of(op, at)));
        expect_margin();
    }

  private:
    // Whether the message is as whole.cuh needs it.
    bool is_whole() const {
        u64 bytes = op.count * sizeof(float);
        bool fits = bytes % UNIT == 0 && bytes <= (u64)op.shape.blocks * op.shape.threads * UNIT;
        return fits && is_aligned(input) && is_aligned(output);
    }

    // Whether this rank is read only.
    bool is_idle() const { return op.kind == MULTIMEM_REDUCE && rank != root_of(op, track.group.world); }

    void check_rows() const {
        for (u32 at = 0; at < results; ++at) {
            expect(residual, at, as_bits(kept_of(op, track.group.world, at)));
            const double wanted = normed_of(op, track.group.world, at), found = as_float(load_word((const u32*)output + at));
            if (!(std::abs(found - wanted) <= 1e-5 * (1 + std::abs(wanted)))) expect(output, at, as_bits((float)wanted));
        }
        expect_margin();
        check_input();
    }

    void check_input() const {
        for (u32 at = 0; at < op.count; ++at) expect(input, at, as_bits(value_of(op.seed, rank, at)));
    }

    void expect_margin() const {
        expect(output, results, UNTOUCHED);
        expect(output, (u32)-1, UNTOUCHED);
    }

    void expect(const char* from, u32 index, u32 wanted) const {
        u32 found = load_word((const u32*)from + (i64)(int)index);
        if (found == wanted) return;
        fail(std::string(KIND_NAMES[op.kind]) + " form " + std::to_string(op.form) + " of " + std::to_string(op.count) +
             " on rank " + std::to_string(rank) + " of " + std::to_string(track.group.world) + ": element " +
             std::to_string((int)index) + " is " + std::to_string(as_float(found)) + ", not " +
             std::to_string(as_float(wanted)));
    }

    Track& track;
    const Operation op;
    const u32 rank;
    char *symmetric, *input, *output, *residual;
    // Elements of the result.
    u32 results;
};
