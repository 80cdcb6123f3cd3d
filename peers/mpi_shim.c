/* The functions of peers.h over MPI, so that the bench needs no MPI to compile. `cargo xtask peers` builds it
 * once per MPI, with that MPI's headers.
 *
 * Build with -DPEER_BF16_TYPE=<handle> where the headers do not name the library's bfloat16 type. */
#define _GNU_SOURCE /* RTLD_NOLOAD, dladdr */
#include "peers.h"

#include <dlfcn.h>
#include <limits.h>
#include <mpi.h>
#include <string.h>

#if !defined(PEER_BF16_TYPE) && defined(MPIX_BFLOAT16)
#define PEER_BF16_TYPE MPIX_BFLOAT16
#endif

/* MPI 4 takes counts beyond int; before it such a call has to be refused, or the count would be cut. */
#if MPI_VERSION >= 4
#define CALL(function, count, ...) function##_c(__VA_ARGS__)
#else
#define CALL(function, count, ...) ((count) > INT_MAX ? MPI_ERR_COUNT : function(__VA_ARGS__))
#endif

static int rank = -1, size;
static int reduces_bf16;
static char version[MPI_MAX_LIBRARY_VERSION_STRING];

/* The type in which bytes are only moved: every MPI has one of the right width. */
static MPI_Datatype moved(int dtype) { return dtype == PEER_BF16 ? MPI_UINT16_T : MPI_FLOAT; }

static MPI_Datatype summed(int dtype)
{
#ifdef PEER_BF16_TYPE
    return dtype == PEER_BF16 ? (MPI_Datatype)PEER_BF16_TYPE : MPI_FLOAT;
#else
    return dtype == PEER_BF16 ? MPI_DATATYPE_NULL : MPI_FLOAT;
#endif
}

/* Whether the library really adds bfloat16: a handle alone proves nothing. */
static int adds_bf16(void)
{
    uint16_t one = 0x3f80, sum = 0x3f80, two = 0x4000;
    if (summed(PEER_BF16) == MPI_DATATYPE_NULL)
        return 0;
    return MPI_Reduce_local(&one, &sum, 1, summed(PEER_BF16), MPI_SUM) == MPI_SUCCESS && sum == two;
}

/* The bench loads this shim privately, but an MPI's plug-ins expect its symbols to be visible to all. */
static void publish_symbols(void)
{
    Dl_info library;
    if (dladdr((void *)MPI_Init, &library))
        dlopen(library.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

int peer_init(void)
{
    int length, error;
    publish_symbols();
    if ((error = MPI_Init(NULL, NULL)))
        return error;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_library_version(version, &length);
    version[strcspn(version, "\n")] = 0;
    reduces_bf16 = adds_bf16();
    return 0;
}

int peer_rank(void) { return rank; }

int peer_size(void) { return size; }

const char *peer_version(void) { return version; }

int peer_supports(int op, int dtype)
{
    int reduces = op == PEER_ALL_REDUCE || op == PEER_REDUCE_SCATTER;
    if (op < PEER_ALL_REDUCE || op > PEER_ALL_TO_ALL || dtype < PEER_F32 || dtype > PEER_BF16)
        return 0;
    return dtype == PEER_F32 || !reduces || reduces_bf16;
}

int peer_barrier(void) { return MPI_Barrier(MPI_COMM_WORLD); }

int peer_all_reduce(void *buf, size_t count, int dtype)
{
    return CALL(MPI_Allreduce, count, MPI_IN_PLACE, buf, count, summed(dtype), MPI_SUM, MPI_COMM_WORLD);
}

int peer_all_gather(const void *in, void *out, size_t count, int dtype)
{
    MPI_Datatype type = moved(dtype);
    return CALL(MPI_Allgather, count, in, count, type, out, count, type, MPI_COMM_WORLD);
}

int peer_reduce_scatter(const void *in, void *out, size_t count, int dtype)
{
    return CALL(MPI_Reduce_scatter_block, count, in, out, count, summed(dtype), MPI_SUM, MPI_COMM_WORLD);
}

int peer_broadcast(void *buf, size_t count, int dtype, int root)
{
    return CALL(MPI_Bcast, count, buf, count, moved(dtype), root, MPI_COMM_WORLD);
}

int peer_all_to_all(const void *in, void *out, size_t count, int dtype)
{
    MPI_Datatype type = moved(dtype);
    return CALL(MPI_Alltoall, count, in, count, type, out, count, type, MPI_COMM_WORLD);
}

int peer_ping_pong(void)
{
    int partner = rank ^ 1, error;
    if (partner >= size)
        return 0;
    if (rank < partner && (error = MPI_Send(NULL, 0, MPI_BYTE, partner, 0, MPI_COMM_WORLD)))
        return error;
    if ((error = MPI_Recv(NULL, 0, MPI_BYTE, partner, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE)))
        return error;
    return rank > partner ? MPI_Send(NULL, 0, MPI_BYTE, partner, 0, MPI_COMM_WORLD) : 0;
}

int peer_gather_samples(const uint64_t *mine, uint64_t *all, size_t n)
{
    return CALL(MPI_Allgather, n, mine, n, MPI_UINT64_T, all, n, MPI_UINT64_T, MPI_COMM_WORLD);
}

void peer_finalize(void) { MPI_Finalize(); }
