/* Ranks that are threads of this process: a collective for tests without MPI. */
#ifndef TESTS_SUPPORT_THREAD_RANKS_H
#define TESTS_SUPPORT_THREAD_RANKS_H

#include "dist/collective.h"

#define THREAD_RANKS_MOST 8

/* Calls run(ranks, user) on `n` threads, each with the collective of a rank, and returns when all have returned. They must make the
 * same exchanges. cmocka's assertions are for the caller alone. */
void thread_ranks_run(uint32_t n, void (*run)(struct collective *ranks, void *user), void *user);

#endif
