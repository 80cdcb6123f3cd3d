/* What a shim around a message-passing library offers to the bench, whatever the library is called.
 *
 * Every int function returns 0 on success, except peer_rank, peer_size and peer_supports. Reductions are
 * sums. Counts are in elements. */
#ifndef SYMMEM_PEERS_H
#define SYMMEM_PEERS_H

#include <stddef.h>
#include <stdint.h>

enum peer_op { PEER_ALL_REDUCE, PEER_ALL_GATHER, PEER_REDUCE_SCATTER, PEER_BROADCAST, PEER_ALL_TO_ALL };
enum peer_dtype { PEER_F32, PEER_BF16 };

int peer_init(void);
int peer_rank(void);
int peer_size(void);
const char *peer_version(void);
/* 1 if the library can do it. */
int peer_supports(int op, int dtype);
int peer_barrier(void);
/* In place. */
int peer_all_reduce(void *buf, size_t count, int dtype);
/* `count` is what one rank contributes. */
int peer_all_gather(const void *in, void *out, size_t count, int dtype);
/* `count` is what one rank receives. */
int peer_reduce_scatter(const void *in, void *out, size_t count, int dtype);
int peer_broadcast(void *buf, size_t count, int dtype, int root);
/* `count` is what goes to one rank. */
int peer_all_to_all(const void *in, void *out, size_t count, int dtype);
/* A message without a byte from the even rank of a pair to the odd one, and one back; a rank without a partner sits
 * out. A library without messages has no such function. */
int peer_ping_pong(void);
/* Gathers `n` values of every rank on every rank. */
int peer_gather_samples(const uint64_t *mine, uint64_t *all, size_t n);
void peer_finalize(void);

#endif
