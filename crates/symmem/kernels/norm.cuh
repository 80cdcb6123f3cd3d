// What follows an all-reduce in a transformer, row by row: the residual is added, the row is divided by the root of its mean square, weighed, and
// written as it is or as fp8.
//
// A block works on one row at a time. Sums over a row are made in an order that depends on nothing but the row's length
// (the block's size is `row_threads` of src/engine/cuda/ops/norm.rs), so that every rank, every algorithm and every grid comes to the same bits. Each step rounds as
// an operation of its own would: the sum over ranks, the sum with the residual, and the result are rounded to T.
//
// The code is short, and what few rows need is out of line: for few rows it takes longer to fetch code than to run it.
#pragma once
#include "reduce.cuh"

// Units of a row, at most.
constexpr u32 MAX_ROW_UNITS = 2048;
// The largest number of fp8 (e4m3).
constexpr float FP8_MAX = 448.0f;

enum Written : u32 {
    // As elements of T.
    PLAIN = 0,
    // As fp8, divided by a scale that is given.
    FP8_BY_TENSOR = 1,
    // As fp8, divided by a scale of the row, which is written too.
    FP8_BY_ROW = 2,
};

// The second parameter of kernels that normalise. Mirrored by src/engine/cuda/ops/norm.rs; change both.
struct Norm {
    // Added to the sum, and replaced by it; null: there is none.
    char* residual;
    // One element for each column; null: all are 1.
    const char* weight;
    // One scale, or one for each row.
    float* scales;
    u32 rows;
    // Bytes of a row.
    u32 row_bytes;
    // One over the number of columns.
    float share;
    float epsilon;
    u32 written;
    u32 unused;
};

#ifndef SYMMEM_HOST
// The same bits in all threads of a warp: what lane i adds lane i ^ step adds too.
template <bool MAX>
SYMMEM_DEVICE float across_warp(float value) {
#pragma unroll
    for (u32 step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xFFFFFFFFu, value, step);
        value = MAX ? fmaxf(value, other) : value + other;
    }
    return value;
}

// The sum or the largest of what the threads of a block have, in all of them; every thread calls it. `turn` alternates: whoever writes parts again has passed
// another of these meetings since the last thread read them.
template <bool MAX>
SYMMEM_DEVICE float across_block(float mine, u32 turn) {
    __shared__ float parts[2][32];
    const u32 lane = thread_index() % 32, warp = thread_index() / 32;
    mine = across_warp<MAX>(mine);
    if (lane == 0) parts[turn][warp] = mine;
    sync_threads();
    return across_warp<MAX>(lane < thread_count() / 32 ? parts[turn][lane] : 0.0f);
}

SYMMEM_DEVICE float root(float value) { return sqrtf(value); }

// The block's own memory for a row.
SYMMEM_DEVICE Unit* row_memory() {
    __shared__ Unit units[MAX_ROW_UNITS];
    return units;
}
#else
SYMMEM_DEVICE Unit* row_memory() { return host_thread.row; }
template <bool MAX>
SYMMEM_DEVICE float across_block(float mine, u32) {
    host_thread.parts[host_thread.thread] = mine;
    sync_threads();
    float all = 0.0f;
    for (u32 at = 0; at < host_thread.threads; ++at) {
        const float part = host_thread.parts[at];
        all = !MAX ? all + part : part > all ? part : all;
    }
    sync_threads();
    return all;
}
SYMMEM_DEVICE float root(float value) { return __builtin_sqrtf(value); }
#endif

SYMMEM_DEVICE float magnitude(float value) { return as_float(as_bits(value) & 0x7fffffffu); }

// The nearest number of fp8 (e4m3), ties to even, too large ones the largest; there is one NaN.
SYMMEM_DEVICE u32 to_fp8(float value) {
    const u32 sign = as_bits(value) >> 31 << 7;
    const float size = magnitude(value);
    if (size != size) return 0x7f;
    if (size >= FP8_MAX) return sign | 0x7e;
    // Below 2^-6 there are steps of 2^-9: the sum with 2^23 rounds to them.
    if (size < 0.015625f) return sign | (as_bits(size * 512.0f + 8388608.0f) & 0xff);
    u32 bits = as_bits(size);
    bits += 0x7ffff + (bits >> 20 & 1);
    return sign | ((bits >> 20) - (120 << 3));
}

// The elements of a unit as numbers.
template <class T>
struct Numbers {
    static constexpr u32 COUNT = UNIT / sizeof(T), PER_WORD = Format<T>::PER_WORD;
    float value[COUNT];

    SYMMEM_DEVICE explicit Numbers(const Unit& unit) {
#pragma unroll
        for (u32 at = 0; at < 4; ++at) Format<T>::unpack(unit.word[at], &value[at * PER_WORD]);
    }

    // Rounded to T.
    SYMMEM_DEVICE Unit unit() const {
        Unit unit;
        bool has_nan = false;
#pragma unroll
        for (u32 at = 0; at < 4; ++at) unit.word[at] = Format<T>::pack(&value[at * PER_WORD]);
        // Two at a time: one instruction tells whether either is one.
#pragma unroll
        for (u32 at = 0; at < COUNT; at += 2) has_nan |= value[at] != value[at] || value[at + 1] != value[at + 1];
        return has_nan ? mended(*this, unit) : unit;
    }

    // The sum of the squares, by halves, so that few additions wait for each other.
    SYMMEM_DEVICE float squares() const {
        float part[COUNT];
#pragma unroll
        for (u32 at = 0; at < COUNT; ++at) part[at] = value[at] * value[at];
#pragma unroll
        for (u32 half = COUNT / 2; half > 0; half /= 2)
#pragma unroll
            for (u32 at = 0; at < half; ++at) part[at] += part[at + half];
        return part[0];
    }

  private:
    // There is one NaN, whatever the conversions make of others.
    static SYMMEM_COLD Unit mended(Numbers numbers, Unit unit) {
        constexpr u32 BITS = 32 / PER_WORD, MASK = 0xffffffffu >> (32 - BITS);
#pragma unroll
        for (u32 at = 0; at < COUNT; ++at) {
            const u32 shift = at % PER_WORD * BITS;
            u32& word = unit.word[at / PER_WORD];
            if (numbers.value[at] != numbers.value[at]) word = (word & ~(MASK << shift)) | Format<T>::NAN_BITS << shift;
        }
        return unit;
    }
};

template <class T>
SYMMEM_DEVICE Unit added(const Unit& unit, const Unit& residual) {
    Numbers<T> sum(unit);
    const Numbers<T> more(residual);
#pragma unroll
    for (u32 at = 0; at < Numbers<T>::COUNT; ++at) sum.value[at] += more.value[at];
    return sum.unit();
}

// What a row with this sum of squares is multiplied by.
SYMMEM_DEVICE float factor_of(const Norm& norm, float squares) { return 1.0f / root(squares * norm.share + norm.epsilon); }

// `weight` is there if the norm has one.
template <class T>
SYMMEM_DEVICE Unit weighed(const Norm& norm, const Unit& unit, float factor, const Unit& weight) {
    Numbers<T> numbers(unit);
    const Numbers<T> by(weight);
#pragma unroll
    for (u32 at = 0; at < Numbers<T>::COUNT; ++at) {
        numbers.value[at] *= factor;
        if (norm.weight) numbers.value[at] *= by.value[at];
    }
    return numbers.unit();
}

template <class T>
SYMMEM_DEVICE float largest(const Unit& unit) {
    const Numbers<T> numbers(unit);
    float found = 0.0f;
#pragma unroll
    for (u32 at = 0; at < Numbers<T>::COUNT; ++at)
        if (magnitude(numbers.value[at]) > found) found = magnitude(numbers.value[at]);
    return found;
}

// What a row is divided by of which `size` is the largest; a row of zeros, or with an infinity, is divided by 1.
SYMMEM_DEVICE float scale_of(float size) { return size > 0.0f && size < as_float(0x7f800000u) ? size / FP8_MAX : 1.0f; }

// Writes a unit as fp8 to `to`.
template <class T>
SYMMEM_COLD void store_fp8(char* to, Unit unit, float scale) {
    const Numbers<T> numbers(unit);
    u32 word[Numbers<T>::COUNT / 4] = {};
#pragma unroll
    for (u32 at = 0; at < Numbers<T>::COUNT; ++at) word[at / 4] |= to_fp8(numbers.value[at] / scale) << at % 4 * 8;
#pragma unroll
    for (u32 at = 0; at < Numbers<T>::COUNT / 4; ++at) store_word((u32*)to + at, word[at]);
}

// The sum over all ranks of the unit at `place`; with `own`, this rank's elements are there.
template <class T, u32 W, u32 N>
SYMMEM_DEVICE Unit sum_of(const Launch<N>& launch, u64 place, const char* own = nullptr) {
    const u32 world = W ? W : launch.world;
    Sum<T> sum;
    const auto from = [&](u32 rank) { return (own && rank == launch.rank ? own : launch.data[rank]) + place; };
    if constexpr (W != 0) {
        Unit unit[W];
#pragma unroll
        for (u32 rank = 0; rank < W; ++rank) unit[rank] = load_unit(from(rank));
        sum.start(unit[0]);
#pragma unroll
        for (u32 rank = 1; rank < W; ++rank) sum.add(unit[rank]);
    } else {
        sum.start(load_unit(from(0)));
#pragma unroll 1
        for (u32 rank = 1; rank < world; ++rank) sum.add(load_unit(from(rank)));
    }
    if (launch.mode & AVERAGE) sum = Sum<T>::divided(sum, (float)world);
    return sum.finish(0.0f);
}

// A thread's part of the rows that its block works on: from its first unit on, every so manieth. The sums with the residual wait in the block's own memory until the
// row's factor is known.
template <class T>
class Rows {
  public:
    SYMMEM_DEVICE Rows(const Norm& norm, char* out) : norm(norm), out(out), sums(row_memory()) {}

    // Where the unit at `at` of `row` is.
    SYMMEM_DEVICE u64 place(u32 row, u32 at) const { return (u64)row * norm.row_bytes + at; }

    // Calls body(at) for every unit of a row that this thread has.
    template <class Body>
    SYMMEM_DEVICE void each(Body body) const {
#pragma unroll 1
        for (u32 at = thread_index() * UNIT; at < norm.row_bytes; at += thread_count() * UNIT) body(at);
    }

    // Makes `row` of what take(at) gives, the sums over all ranks, and finds its factor. Every thread of the block calls it; when it returns, all of them have
    // what they took.
    template <class Take>
    SYMMEM_DEVICE void add(u32 row, Take take) {
        float sum = 0.0f;
        each([&](u32 at) {
            Unit unit = take(at);
            if (norm.residual) unit = added<T>(unit, load_unit(norm.residual + place(row, at)));
            sums[at / UNIT] = unit;
            sum += Numbers<T>(unit).squares();
        });
        factor = factor_of(norm, across_block<false>(sum, next_turn()));
    }

    // Writes a row that `add` has made. Every thread of the block calls it; `whole`: what the thread has is right.
    SYMMEM_DEVICE void write(u32 row, bool whole) {
        if (norm.written != PLAIN) return write_fp8(row, whole);
        each([&](u32 at) {
            if (!whole) return;
            store_unit(out + place(row, at), result(at));
            keep(row, at);
        });
    }

  private:
    SYMMEM_DEVICE u32 next_turn() { return turn ^= 1; }

    SYMMEM_DEVICE void keep(u32 row, u32 at) const {
        if (norm.residual) store_unit(norm.residual + place(row, at), sums[at / UNIT]);
    }

    SYMMEM_DEVICE Unit result(u32 at) const {
        const Unit weight = norm.weight ? load_unit(norm.weight + at) : Unit{};
        return weighed<T>(norm, sums[at / UNIT], factor, weight);
    }

    SYMMEM_DEVICE void write_fp8(u32 row, bool whole) {
        float scale = norm.written == FP8_BY_TENSOR ? as_float(load_word((const u32*)norm.scales)) : 1.0f;
        if (norm.written == FP8_BY_ROW) {
            float size = 0.0f;
            each([&](u32 at) {
                const float one = largest<T>(result(at));
                size = one > size ? one : size;
            });
            scale = scale_of(across_block<true>(size, next_turn()));
            if (whole && thread_index() == 0) store_word((u32*)norm.scales + row, as_bits(scale));
        }
        each([&](u32 at) {
            if (!whole) return;
            store_fp8<T>(out + place(row, at) / sizeof(T), result(at), scale);
            keep(row, at);
        });
    }

    const Norm& norm;
    char* out;
    Unit* sums;
    float factor = 0.0f;
    u32 turn = 0;
};
