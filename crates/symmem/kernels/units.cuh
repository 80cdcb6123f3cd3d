// A message as 16-byte units, and which thread works on which.
//
// Unit u of a span belongs to thread u modulo the number of threads of the launch, whatever the alignment, the unrolling or the element
// type: so the block that wrote a unit on one rank is the block of equal index that reads it on another, and a meeting of these
// two is enough.
#pragma once
#include "number.cuh"

constexpr u32 UNIT = sizeof(Unit);

// Bytes [begin, end) of a message; begin is a multiple of UNIT.
struct Span {
    u64 begin, end;
};

// Bytes of the largest slice.
SYMMEM_DEVICE u64 slice_bytes(u64 bytes, u32 world) {
    u64 units = (bytes + UNIT - 1) / UNIT;
    return (units + world - 1) / world * UNIT;
}

// The part of the message that `rank` reduces for everybody.
SYMMEM_DEVICE Span slice(u64 bytes, u32 rank, u32 world) {
    u64 each = slice_bytes(bytes, world), begin = rank * each, end = begin + each;
    return {begin < bytes ? begin : bytes, end < bytes ? end : bytes};
}

// The rank that is `next` after `rank`: every rank begins its round with another peer.
SYMMEM_DEVICE u32 after(u32 rank, u32 next, u32 world) { return rank + next < world ? rank + next : rank + next - world; }

// Offset of this thread's first unit in a span, and from one of its units to the next.
SYMMEM_DEVICE u64 first_unit() { return ((u64)block_index() * thread_count() + thread_index()) * UNIT; }
SYMMEM_DEVICE u64 stride() { return (u64)block_count() * thread_count() * UNIT; }

SYMMEM_DEVICE bool is_aligned(const void* address) { return ((u64)address & (UNIT - 1)) == 0; }

// The unit at an address that suits T, of which `bytes` belong to the message; the rest reads as zero. Element by element, and out of line: code that
// a kernel seldom runs must not make the rest of it longer.
template <class T>
SYMMEM_COLD Unit load_ragged(const char* address, u32 bytes) {
    u32 word[4] = {};
#pragma unroll
    for (u32 at = 0; at < UNIT; at += sizeof(T)) {
        if (at >= bytes) continue;
        u32 element = sizeof(T) == 4 ? load_word((const u32*)(address + at)) : load_half((const u16*)(address + at));
        word[at / 4] |= element << at % 4 * 8;
    }
    return {word[0], word[1], word[2], word[3]};
}

template <class T>
SYMMEM_COLD void store_ragged(char* address, Unit unit, u32 bytes) {
#pragma unroll
    for (u32 at = 0; at < UNIT; at += sizeof(T)) {
        u32 word = unit.word[at / 4];
        if (at >= bytes) continue;
        if (sizeof(T) == 4)
            store_word((u32*)(address + at), word);
        else
            store_half((u16*)(address + at), word >> at % 4 * 8);
    }
}

// The same at any address, at once where that is possible.
template <class T>
SYMMEM_DEVICE Unit load_any(const char* address, u32 bytes) {
    return bytes >= UNIT && is_aligned(address) ? load_unit(address) : load_ragged<T>(address, bytes);
}

template <class T>
SYMMEM_DEVICE void store_any(char* address, const Unit& unit, u32 bytes) {
    if (bytes >= UNIT && is_aligned(address))
        store_unit(address, unit);
    else
        store_ragged<T>(address, unit, bytes);
}

SYMMEM_DEVICE u32 bytes_left(u64 at, u64 end) { return end - at < UNIT ? (u32)(end - at) : UNIT; }

// Calls body(offset, step) for `MANY` whole units at a time (their offsets `step` apart), and rest(offset, bytes) for what is left of this
// thread's part of `span`. With `whole` false everything goes to rest.
template <u32 MANY, class Body, class Rest>
SYMMEM_DEVICE void for_units(Span span, bool whole, Body body, Rest rest) {
    u64 step = stride(), at = span.begin + first_unit();
    while (whole && at + (MANY - 1) * step + UNIT <= span.end) {
        body(at, step);
        at += MANY * step;
    }
    for (; at < span.end; at += step) rest(at, bytes_left(at, span.end));
}

// Copies a span of a message from `from` to `to`, both addresses of the message's first byte.
template <class T>
SYMMEM_DEVICE void copy_span(Span span, const char* from, char* to) {
    constexpr u32 MANY = 4;
    auto several = [&](u64 at, u64 step) {
        Unit unit[MANY];
#pragma unroll
        for (u32 which = 0; which < MANY; ++which) unit[which] = load_unit(from + at + which * step);
#pragma unroll
        for (u32 which = 0; which < MANY; ++which) store_unit(to + at + which * step, unit[which]);
    };
    auto one = [&](u64 at, u32 bytes) { store_any<T>(to + at, load_any<T>(from + at, bytes), bytes); };
    for_units<MANY>(span, is_aligned(from) && is_aligned(to), several, one);
}

// Copies `count` bytes between any addresses.
SYMMEM_DEVICE void copy_bytes(u64 count, const char* from, char* to) {
    u64 head = (UNIT - ((u64)to & (UNIT - 1))) & (UNIT - 1);
    if (head > count) head = count;
    if ((((u64)from ^ (u64)to) & (UNIT - 1)) != 0) head = count;
    u64 index = (u64)block_index() * thread_count() + thread_index(), step = (u64)block_count() * thread_count();
    for (u64 at = index; at < head; at += step) to[at] = from[at];
    u64 whole = head + (count - head) / UNIT * UNIT;
    if (whole > head) copy_span<float>({0, whole - head}, from + head, to + head);
    for (u64 at = whole + index; at < count; at += step) to[at] = from[at];
}
