// Element types and the sum over ranks: f32 accumulators, ranks in order, one rounding, one NaN (docs/numerics.md).
#pragma once
#include "primitives.cuh"

using namespace symmem;

struct bf16 {
    u16 bits;
};
struct f16 {
    u16 bits;
};
typedef float f32;

SYMMEM_DEVICE float as_float(u32 bits) {
#ifdef SYMMEM_HOST
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
#else
    return __uint_as_float(bits);
#endif
}

SYMMEM_DEVICE u32 as_bits(float value) {
#ifdef SYMMEM_HOST
    u32 bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
#else
    return __float_as_uint(value);
#endif
}

// How a 32-bit word holds elements. `add` gives, but for what a NaN looks like, the bits of a sum in f32 that is rounded to T: f32 has more than twice the digits
// of the short types and two, so that rounding twice is rounding once.
template <class T>
struct Format;

template <>
struct Format<f32> {
    static constexpr u32 PER_WORD = 1;
    static SYMMEM_DEVICE void unpack(u32 word, float* value) { value[0] = as_float(word); }
    static constexpr u32 NAN_BITS = 0x7fc00000u;
    static SYMMEM_DEVICE u32 pack(const float* value) { return as_bits(value[0]); }
    static SYMMEM_DEVICE u32 add(u32 a, u32 b) { return as_bits(as_float(a) + as_float(b)); }
};

#ifndef SYMMEM_HOST
template <>
struct Format<bf16> {
    static constexpr u32 PER_WORD = 2;
    static constexpr u32 NAN_BITS = 0x7fc0u;
    static SYMMEM_DEVICE void unpack(u32 word, float* value) {
        value[0] = as_float(word << 16);
        value[1] = as_float(word & 0xffff0000u);
    }
    static SYMMEM_DEVICE u32 pack(const float* value) {
        u32 word;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(value[1]), "f"(value[0]));
        return word;
    }
    // Times one, since older devices have no addition: the product is exact.
    static SYMMEM_DEVICE u32 add(u32 a, u32 b) {
        u32 word;
        asm("fma.rn.bf16x2 %0, %1, %3, %2;" : "=r"(word) : "r"(a), "r"(b), "r"(0x3f803f80u));
        return word;
    }
};

template <>
struct Format<f16> {
    static constexpr u32 PER_WORD = 2;
    static constexpr u32 NAN_BITS = 0x7e00u;
    static SYMMEM_DEVICE void unpack(u32 word, float* value) {
        asm("{.reg .f16 low, high;\n\t"
            "mov.b32 {low, high}, %2;\n\t"
            "cvt.f32.f16 %0, low;\n\t"
            "cvt.f32.f16 %1, high;}"
            : "=f"(value[0]), "=f"(value[1])
            : "r"(word));
    }
    static SYMMEM_DEVICE u32 pack(const float* value) {
        u32 word;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(value[1]), "f"(value[0]));
        return word;
    }
    static SYMMEM_DEVICE u32 add(u32 a, u32 b) {
        u32 word;
        asm("add.rn.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
        return word;
    }
};
#endif

// The sum of the units of rank 0, 1, 2, ..., added in that order.
template <class T>
struct Sum {
    static constexpr u32 PER_WORD = Format<T>::PER_WORD;
    float value[4 * PER_WORD];

    SYMMEM_DEVICE void start(const Unit& unit) {
#pragma unroll
        for (u32 at = 0; at < 4; ++at) Format<T>::unpack(unit.word[at], &value[at * PER_WORD]);
    }

    SYMMEM_DEVICE void add(const Unit& unit) {
#pragma unroll
        for (u32 at = 0; at < 4; ++at) {
            float more[PER_WORD];
            Format<T>::unpack(unit.word[at], more);
#pragma unroll
            for (u32 lane = 0; lane < PER_WORD; ++lane) value[at * PER_WORD + lane] += more[lane];
        }
    }

    // The sum, or with a `divisor` the average, rounded once.
    SYMMEM_DEVICE Unit finish(float divisor) {
        if (divisor != 0.0f) divide(divisor);
        Unit unit = rounded();
        bool has_nan = false;
        // Two at a time: one instruction tells whether either is one.
#pragma unroll
        for (u32 at = 0; at < 4 * PER_WORD; at += 2) has_nan |= is_nan(at) || is_nan(at + 1);
        if (has_nan) mend(&unit);
        return unit;
    }

    // The sum, rounded once. A NaN looks as the conversion makes it.
    SYMMEM_DEVICE Unit rounded() const {
        Unit unit;
#pragma unroll
        for (u32 at = 0; at < 4; ++at) unit.word[at] = Format<T>::pack(&value[at * PER_WORD]);
        return unit;
    }

    // What `sum` is divided by `divisor`, out of line, for kernels that are over before they would have fetched so much code: an exact division is long.
    static SYMMEM_COLD Sum divided(Sum sum, float divisor) {
        sum.divide(divisor);
        return sum;
    }

  private:
    SYMMEM_DEVICE bool is_nan(u32 at) const { return value[at] != value[at]; }

    // There is one NaN, whatever the conversions make of others.
    SYMMEM_DEVICE void mend(Unit* unit) const {
        constexpr u32 BITS = 32 / PER_WORD, MASK = 0xffffffffu >> (32 - BITS);
#pragma unroll
        for (u32 at = 0; at < 4 * PER_WORD; ++at) {
            const u32 shift = at % PER_WORD * BITS;
            u32& word = unit->word[at / PER_WORD];
            if (is_nan(at)) word = (word & ~(MASK << shift)) | Format<T>::NAN_BITS << shift;
        }
    }

    SYMMEM_DEVICE void divide(float divisor) {
#pragma unroll
        for (u32 at = 0; at < 4 * PER_WORD; ++at) value[at] = value[at] / divisor;
    }
};
