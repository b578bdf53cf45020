/* Exchanges between processes of one machine that a program has started with sockets between them, without MPI: rank 0 has one to each
 * other rank, through which all goes. Rank 0's environment names the sockets of ranks 1, 2, ... as TERSE_RANK_SOCKETS=5,6,...; another
 * rank's names its own. TERSE_RANK and TERSE_RANKS say which rank of how many the process is. collective.c makes a collective of this. */
#ifndef TERSE_DIST_HOST_H
#define TERSE_DIST_HOST_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Returns whether this process is one of such ranks. */
bool host_ranks_given(void);
/* Takes the sockets of a process that is, once. */
enum terse_status host_ranks_open(uint32_t rank, uint32_t ranks, struct terse_error *error);
/* These do what collective_gather and collective_broadcast do. */
enum terse_status host_ranks_gather(const void *own, size_t bytes, void *all, struct terse_error *error);
enum terse_status host_ranks_broadcast(void *data, size_t bytes, struct terse_error *error);

#endif
