// What follows an all-reduce in a transformer, row by row: the residual is added, the row is divided by the root of its mean square, weighed, and
// written as it is or as fp8.
//
// A block works on one row at a time, of which each thread has UNITS units at most, in registers. Squares are added up in an order that follows from the row's length
// alone: 32 neighbouring units by a warp, and those sums by every warp. So every rank, algorithm, grid and size of a block comes to the same bits. Each step rounds
// as an operation of its own would: the sum over ranks, the sum with the residual, and the result are rounded to T.
//
// A row is the work of one multiprocessor, which has to run its instructions one after the other: so they are few. Elements of short types are added two at a
// time, and whether a sum is NaN is asked once for a row, since then its squares are. What few rows need is out of line.
#pragma once
#include "control.cuh"
#include "units.cuh"

// Units of a row that a thread has, at most, and those of the longest row.
constexpr u32 UNITS = 2, MAX_ROW_UNITS = UNITS * 1024;
// The largest number of fp8 (e4m3).
constexpr float FP8_MAX = 448.0f;

enum Written : u32 {
    // As elements of T.
    PLAIN = 0,
    // As fp8, over a scale that is given.
    FP8_BY_TENSOR = 1,
    // As fp8, over a scale of the row, which is written too.
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
SYMMEM_DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
SYMMEM_DEVICE float root(float value) { return sqrtf(value); }
SYMMEM_DEVICE float larger(float a, float b) { return fmaxf(a, b); }

// The same bits in all threads of a warp: what lane i adds lane i ^ step adds too.
template <bool MAX>
SYMMEM_DEVICE float across_warp(float value) {
#pragma unroll
    for (u32 step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xFFFFFFFFu, value, step);
        value = MAX ? larger(value, other) : value + other;
    }
    return value;
}

// The sum or the largest of what all warps of a block have, COUNT numbers of each thread, in all of its threads; every thread calls it. `turn` alternates: whoever
// writes parts again has passed another of these meetings since the last thread read them.
template <bool MAX, u32 COUNT>
SYMMEM_DEVICE float across_block(const float (&mine)[COUNT], u32 turn) {
    __shared__ float parts[2][MAX_ROW_UNITS / 32];
    const u32 lane = thread_index() % 32, warp = thread_index() / 32, warps = thread_count() / 32;
    float of_warp[COUNT];
#pragma unroll
    for (u32 which = 0; which < COUNT; ++which) of_warp[which] = across_warp<MAX>(mine[which]);
#pragma unroll
    for (u32 which = 0; which < COUNT; ++which)
        if (lane == 0) parts[turn][which * warps + warp] = of_warp[which];
    sync_threads();
    const auto part = [&](u32 at) { return at < COUNT * warps ? parts[turn][at] : 0.0f; };
    const float low = part(lane), high = part(lane + 32);
    return across_warp<MAX>(MAX ? larger(low, high) : low + high);
}
#else
SYMMEM_DEVICE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
SYMMEM_DEVICE float root(float value) { return __builtin_sqrtf(value); }
SYMMEM_DEVICE float larger(float a, float b) { return a > b ? a : b; }

template <bool MAX, u32 COUNT>
SYMMEM_DEVICE float across_block(const float (&mine)[COUNT], u32) {
    const u32 threads = thread_count();
    for (u32 which = 0; which < COUNT; ++which) host_thread.parts[which * threads + thread_index()] = mine[which];
    sync_threads();
    float all = 0.0f;
    for (u32 at = 0; at < COUNT * threads; ++at) {
        const float part = host_thread.parts[at];
        all = MAX ? larger(all, part) : all + part;
    }
    sync_threads();
    return all;
}
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

// Four of them, the first one lowest.
#if __CUDA_ARCH__ >= 890
SYMMEM_DEVICE u32 to_fp8_word(float a, float b, float c, float d) {
    u32 word;
    asm("{.reg .b16 low, high;\n\t"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n\t"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n\t"
        "mov.b32 %0, {low, high};}"
        : "=r"(word)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return word;
}
#else
SYMMEM_COLD u32 to_fp8_word(float a, float b, float c, float d) {
    return to_fp8(a) | to_fp8(b) << 8 | to_fp8(c) << 16 | to_fp8(d) << 24;
}
#endif

template <class T>
constexpr u32 ELEMENTS = UNIT / sizeof(T);

// There is one NaN, whatever conversions and sums make of others.
template <class T>
SYMMEM_COLD Unit with_one_nan(Unit unit) {
    constexpr u32 BITS = 8 * sizeof(T), MASK = 0xffffffffu >> (32 - BITS), SIZE = MASK >> 1;
    constexpr u32 INFINITE = Format<T>::NAN_BITS & Format<T>::NAN_BITS << 1;
#pragma unroll
    for (u32 at = 0; at < ELEMENTS<T>; ++at) {
        const u32 shift = at % Format<T>::PER_WORD * BITS;
        u32& word = unit.word[at / Format<T>::PER_WORD];
        if ((word >> shift & SIZE) > INFINITE) word = (word & ~(MASK << shift)) | Format<T>::NAN_BITS << shift;
    }
    return unit;
}

// Elements as T has them, each sum rounded once. Of a NaN the pattern is any.
template <class T>
SYMMEM_DEVICE Unit added(const Unit& a, const Unit& b) {
    Unit sum;
#pragma unroll
    for (u32 at = 0; at < 4; ++at) sum.word[at] = Format<T>::add(a.word[at], b.word[at]);
    return sum;
}

// `sum`, or the average of W ranks that it is the sum of, rounded once. W is 0 if only known at run time; else it is a power of two, by which a product divides.
template <class T, u32 W>
SYMMEM_DEVICE Unit finished(Sum<T>& sum, u32 mode, u32 world) {
    if (!(mode & AVERAGE)) return sum.rounded();
    if constexpr (W == 0) {
        return Sum<T>::divided(sum, (float)world).rounded();
    } else {
#pragma unroll
        for (u32 at = 0; at < ELEMENTS<T>; ++at) sum.value[at] *= 1.0f / W;
        return sum.rounded();
    }
}

// The sum over W ranks of the units that they have in one place, rounded once. Of a NaN the pattern is any.
template <class T, u32 W>
SYMMEM_DEVICE Unit sum_of(const Unit (&unit)[W], u32 mode) {
    if (W == 2 && !(mode & AVERAGE)) return added<T>(unit[0], unit[W - 1]);
    Sum<T> sum;
    sum.start(unit[0]);
#pragma unroll
    for (u32 rank = 1; rank < W; ++rank) sum.add(unit[rank]);
    return finished<T, W>(sum, mode, W);
}

template <class T>
SYMMEM_DEVICE float squares(const Unit& unit) {
    Sum<T> x;
    x.start(unit);
    // Two chains, so that few additions wait for each other.
    float even = x.value[0] * x.value[0], odd = x.value[1] * x.value[1];
#pragma unroll
    for (u32 at = 2; at < ELEMENTS<T>; at += 2) {
        even = fused(x.value[at], x.value[at], even);
        odd = fused(x.value[at + 1], x.value[at + 1], odd);
    }
    return even + odd;
}

// The scale of a row of which `size` is the largest; that of a row of zeros, or with an infinity, is 1. Never subnormal: one over it would be infinite.
SYMMEM_DEVICE float scale_of(float size) {
    return size > 0.0f && size < as_float(0x7f800000u) ? larger(size / FP8_MAX, as_float(0x00800000u)) : 1.0f;
}

// Writes a unit times `factor` as fp8 to `to`.
template <class T>
SYMMEM_DEVICE void store_fp8(char* to, const Unit& unit, float factor) {
    Sum<T> x;
    x.start(unit);
    u32 word[ELEMENTS<T> / 4];
#pragma unroll
    for (u32 at = 0; at < ELEMENTS<T>; at += 4)
        word[at / 4] = to_fp8_word(x.value[at] * factor, x.value[at + 1] * factor, x.value[at + 2] * factor, x.value[at + 3] * factor);
    if (ELEMENTS<T> == 8)
        store_pair(to, word[0], word[ELEMENTS<T> / 4 - 1]);
    else
        store_word((u32*)to, word[0]);
}

// The rows that a block works on, one after the other, as one thread sees them: units `thread`, `thread` + threads of each row.
template <class T>
class Rows {
  public:
    // Made once the launch has begun.
    SYMMEM_DEVICE Rows(const Norm& norm, char* out) : norm(norm), out(out) {
        if (norm.written == FP8_BY_TENSOR) scale = as_float(load_word((const u32*)norm.scales));
    }

    // Where the unit at byte `at` of `row` is.
    SYMMEM_DEVICE u64 place(u32 row, u32 at) const { return (u64)row * norm.row_bytes + at; }

    // Calls body(which, at) for every unit of a row that this thread has, `at` being its place in the row.
    template <class Body>
    SYMMEM_DEVICE void each(Body body) const {
        all([&](u32 which, u32 at, bool is_there) {
            if (is_there) body(which, at);
        });
    }

    // Calls body(which, at, is_there) for as many units as a thread may have. In place of one that is not there it takes the first one of the row, so that loads and sums
    // need not ask. Nothing is made of what is loaded so, which may still be under way when a peer writes there.
    template <class Body>
    SYMMEM_DEVICE void all(Body body) const {
#pragma unroll
        for (u32 which = 0; which < UNITS; ++which) {
            const u32 at = (thread_index() + which * thread_count()) * UNIT;
            const bool is_there = at < norm.row_bytes;
            body(which, is_there ? at : 0, is_there);
        }
    }

    // The units of `row`, at `from`. Without an address they are zero.
    SYMMEM_DEVICE void load(const char* from, u32 row, Unit (&units)[UNITS]) const {
        all([&](u32 which, u32 at, bool) { units[which] = from ? load_unit(from + place(row, at)) : Unit{}; });
    }

    // Loads what `row` is added to.
    SYMMEM_DEVICE void expect(u32 row) { load(norm.residual, row, residual); }

    // Loads what rows are multiplied by.
    SYMMEM_DEVICE void expect_weight() { load(norm.weight, 0, weight); }

    // Adds to the sum over all ranks what was expected.
    SYMMEM_DEVICE void add(Unit (&x)[UNITS]) const {
        if (!norm.residual) return;
#pragma unroll
        for (u32 which = 0; which < UNITS; ++which) x[which] = added<T>(x[which], residual[which]);
    }

    // Finds what a row is multiplied by. Every thread of the block calls it; when it returns, all of them have what the row is made of.
    SYMMEM_DEVICE void measure(const Unit (&x)[UNITS]) {
        float mine[UNITS];
        all([&](u32 which, u32, bool is_there) { mine[which] = is_there ? squares<T>(x[which]) : 0.0f; });
        factor = 1.0f / root(across_block<false>(mine, next_turn()) * norm.share + norm.epsilon);
    }

    // Writes a row that was measured. Every thread of the block calls it; `whole`: what the thread has is right.
    SYMMEM_DEVICE void write(u32 row, Unit (&x)[UNITS], bool whole) {
        if (norm.residual && whole) keep(row, x);
        bool has_nan = false;
        all([&](u32 which, u32, bool) { x[which] = weighed(x[which], weight[which], has_nan); });
        if (has_nan) mend(x);
        if (norm.written != PLAIN) return write_fp8(row, x, whole);
        if (whole) each([&](u32 which, u32 at) { store_unit(out + place(row, at), x[which]); });
    }

  private:
    SYMMEM_DEVICE u32 next_turn() { return turn ^= 1; }

    static SYMMEM_DEVICE void mend(Unit (&x)[UNITS]) {
#pragma unroll
        for (u32 which = 0; which < UNITS; ++which) x[which] = with_one_nan<T>(x[which]);
    }

    // The residual becomes the row.
    SYMMEM_DEVICE void keep(u32 row, Unit (&x)[UNITS]) const {
        // Where an element is NaN, so is the sum of squares.
        if (factor != factor) mend(x);
        each([&](u32 which, u32 at) { store_unit(norm.residual + place(row, at), x[which]); });
    }

    SYMMEM_DEVICE Unit weighed(const Unit& unit, const Unit& by_unit, bool& has_nan) const {
        Sum<T> x;
        x.start(unit);
#pragma unroll
        for (u32 at = 0; at < ELEMENTS<T>; ++at) x.value[at] *= factor;
        if (norm.weight) {
            Sum<T> by;
            by.start(by_unit);
#pragma unroll
            for (u32 at = 0; at < ELEMENTS<T>; ++at) x.value[at] *= by.value[at];
        }
        // Two at a time: one instruction tells whether either is one.
#pragma unroll
        for (u32 at = 0; at < ELEMENTS<T>; at += 2) has_nan |= x.value[at] != x.value[at] || x.value[at + 1] != x.value[at + 1];
        return x.rounded();
    }

    SYMMEM_DEVICE void write_fp8(u32 row, const Unit (&x)[UNITS], bool whole) {
        if (norm.written == FP8_BY_ROW) {
            scale = scale_of(largest(x));
            if (whole && thread_index() == 0) store_word((u32*)norm.scales + row, as_bits(scale));
        }
        const float inverse = 1.0f / scale;
        if (whole) each([&](u32 which, u32 at) { store_fp8<T>(out + place(row, at) / sizeof(T), x[which], inverse); });
    }

    // The largest magnitude of a row; NaN is none.
    SYMMEM_DEVICE float largest(const Unit (&x)[UNITS]) {
        float mine[1] = {};
        each([&](u32 which, u32) {
            Sum<T> numbers;
            numbers.start(x[which]);
#pragma unroll
            for (u32 at = 0; at < ELEMENTS<T>; ++at) mine[0] = larger(mine[0], magnitude(numbers.value[at]));
        });
        return across_block<true>(mine, next_turn());
    }

    const Norm& norm;
    char* out;
    Unit weight[UNITS], residual[UNITS];
    float scale = 1.0f, factor = 0.0f;
    u32 turn = 0;
};
