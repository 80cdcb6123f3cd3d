/* Loads a shim as the bench does and verifies every operation it claims, on every rank.
 *
 *     <launcher> check_shim SHIM
 *
 * Exits with 0 and prints the library's version (rank 0) if all is well. */
#include "peers.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 3000, MOST_RANKS = 64 };

static const char *op_names[] = { "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all" };
static const char *dtype_names[] = { "f32", "bf16" };

static void *shim;
static int rank, size;

static void fail(const char *what, const char *which)
{
    fprintf(stderr, "rank %d: %s %s\n", rank, what, which);
    exit(1);
}

static void *symbol(const char *name)
{
    void *found = dlsym(shim, name);
    if (!found)
        fail("the shim lacks", name);
    return found;
}

/* Small whole numbers: exact in bfloat16 even after a sum over eight ranks. */
static float value(int of_rank, size_t at) { return (float)((of_rank + at) % 16); }

static void put(void *buf, size_t at, int dtype, float number)
{
    uint32_t bits;
    memcpy(&bits, &number, 4);
    if (dtype == PEER_F32)
        ((float *)buf)[at] = number;
    else
        ((uint16_t *)buf)[at] = bits >> 16;
}

static float get(const void *buf, size_t at, int dtype)
{
    uint32_t bits;
    float number;
    if (dtype == PEER_F32)
        return ((const float *)buf)[at];
    bits = (uint32_t)((const uint16_t *)buf)[at] << 16;
    memcpy(&number, &bits, 4);
    return number;
}

static float sum(size_t at)
{
    float total = 0;
    for (int r = 0; r < size; r++)
        total += value(r, at);
    return total;
}

/* What rank `rank` must hold at `at` after `op` over blocks of COUNT elements. */
static float expected(int op, size_t at)
{
    size_t block = at / COUNT, inside = at % COUNT;
    switch (op) {
    case PEER_ALL_REDUCE: return sum(at);
    case PEER_ALL_GATHER: return value(block, inside);
    case PEER_REDUCE_SCATTER: return sum(rank * COUNT + at);
    case PEER_BROADCAST: return value(0, at);
    default: return value(block, rank * COUNT + inside);
    }
}

static int perform(int op, void *in, void *out, int dtype)
{
    int (*in_place)(void *, size_t, int) = symbol("peer_all_reduce");
    int (*from_root)(void *, size_t, int, int) = symbol("peer_broadcast");
    int (*gather)(const void *, void *, size_t, int) = symbol("peer_all_gather");
    int (*scatter)(const void *, void *, size_t, int) = symbol("peer_reduce_scatter");
    int (*exchange)(const void *, void *, size_t, int) = symbol("peer_all_to_all");
    switch (op) {
    case PEER_ALL_REDUCE: return in_place(out, COUNT, dtype);
    case PEER_ALL_GATHER: return gather(in, out, COUNT, dtype);
    case PEER_REDUCE_SCATTER: return scatter(in, out, COUNT, dtype);
    case PEER_BROADCAST: return from_root(out, COUNT, dtype, 0);
    default: return exchange(in, out, COUNT, dtype);
    }
}

static void check(int op, int dtype)
{
    static float in[COUNT * MOST_RANKS], out[COUNT * MOST_RANKS];
    int in_place = op == PEER_ALL_REDUCE || op == PEER_BROADCAST;
    size_t outputs = op == PEER_ALL_GATHER || op == PEER_ALL_TO_ALL ? COUNT * size : COUNT;
    for (size_t at = 0; at < (size_t)COUNT * size; at++) {
        put(in, at, dtype, value(rank, at));
        put(out, at, dtype, in_place ? value(rank, at) : -1);
    }
    if (perform(op, in, out, dtype))
        fail("an error from", op_names[op]);
    for (size_t at = 0; at < outputs; at++)
        if (get(out, at, dtype) != expected(op, at))
            fail("a wrong result from", op_names[op]);
}

static void check_samples(void)
{
    int (*gather)(const uint64_t *, uint64_t *, size_t) = symbol("peer_gather_samples");
    uint64_t mine[2] = { rank, ~(uint64_t)rank }, all[2 * MOST_RANKS];
    if (gather(mine, all, 2))
        fail("an error from", "gather_samples");
    for (int r = 0; r < size; r++)
        if (all[2 * r] != (uint64_t)r || all[2 * r + 1] != ~(uint64_t)r)
            fail("a wrong result from", "gather_samples");
}

int main(int count, char **arguments)
{
    if (count != 2) {
        fprintf(stderr, "usage: check_shim SHIM\n");
        return 2;
    }
    shim = dlopen(arguments[1], RTLD_LAZY | RTLD_LOCAL);
    if (!shim)
        fail("the shim cannot be loaded:", dlerror());
    if (((int (*)(void))symbol("peer_init"))())
        fail("an error from", "init");
    rank = ((int (*)(void))symbol("peer_rank"))();
    size = ((int (*)(void))symbol("peer_size"))();
    if (size < 2 || size > MOST_RANKS)
        fail("this check wants 2 to 64 ranks, not the number this", "launcher started");
    int (*supports)(int, int) = symbol("peer_supports");
    int (*barrier)(void) = symbol("peer_barrier");
    if (rank == 0)
        printf("%s;", ((const char *(*)(void))symbol("peer_version"))());
    for (int op = 0; op < 5; op++)
        for (int dtype = 0; dtype < 2; dtype++) {
            if (barrier())
                fail("an error from", "barrier");
            if (supports(op, dtype))
                check(op, dtype);
            else if (rank == 0)
                printf(" no %s of %s;", op_names[op], dtype_names[dtype]);
        }
    check_samples();
    if (((int (*)(void))symbol("peer_ping_pong"))())
        fail("an error from", "ping_pong");
    if (rank == 0)
        printf(" verified on %d ranks\n", size);
    ((void (*)(void))symbol("peer_finalize"))();
    return 0;
}
