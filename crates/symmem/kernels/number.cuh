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

// How a 32-bit word holds elements.
template <class T>
struct Format;

template <>
struct Format<f32> {
    static constexpr u32 PER_WORD = 1;
    static SYMMEM_DEVICE void unpack(u32 word, float* value) { value[0] = as_float(word); }
    static SYMMEM_DEVICE u32 pack(const float* value) { return value[0] == value[0] ? as_bits(value[0]) : 0x7fc00000u; }
};

#ifndef SYMMEM_HOST
template <>
struct Format<bf16> {
    static constexpr u32 PER_WORD = 2;
    static SYMMEM_DEVICE void unpack(u32 word, float* value) {
        value[0] = as_float(word << 16);
        value[1] = as_float(word & 0xffff0000u);
    }
    static SYMMEM_DEVICE u32 pack(const float* value) {
        u32 word;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(value[1]), "f"(value[0]));
        if (value[0] != value[0]) word = (word & 0xffff0000u) | 0x7fc0u;
        if (value[1] != value[1]) word = (word & 0x0000ffffu) | 0x7fc00000u;
        return word;
    }
};

template <>
struct Format<f16> {
    static constexpr u32 PER_WORD = 2;
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
        if (value[0] != value[0]) word = (word & 0xffff0000u) | 0x7e00u;
        if (value[1] != value[1]) word = (word & 0x0000ffffu) | 0x7e000000u;
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
        Unit unit;
        if (divisor != 0.0f) {
#pragma unroll
            for (u32 at = 0; at < 4 * PER_WORD; ++at) value[at] = value[at] / divisor;
        }
#pragma unroll
        for (u32 at = 0; at < 4; ++at) unit.word[at] = Format<T>::pack(&value[at * PER_WORD]);
        return unit;
    }
};
