/* Ranks of tests on GPUs: in emulation threads; on GPUs processes, which exchange by NCCL and are started by tests/support/ranks.py: each runs a job
 * alone, and then with the others. */
#ifndef TESTS_CUDA_RANKS_UNDER_TEST_H
#define TESTS_CUDA_RANKS_UNDER_TEST_H

#include "backend/cuda/ranks.h"
#include "no_device.h"
#include "support/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct collective *processes; /* NULL: ranks are threads */

/* Returns whether there is no GPU for each of several ranks that are processes; in emulation they may be threads. */
static inline bool no_ranks(void) {
    struct terse_error error;
    struct collective *ranks;
    bool threads = false;
#ifdef TERSE_EMULATED_CUDA
    threads = true;
#endif
    if (no_device()) return true;
    enum terse_status status = collective_open(&ranks, &error);
    if (!status && ranks->ranks == 1 && !threads)
        status = status_fail(&error, TERSE_E_UNSUPPORTED, "ranks on GPUs are processes: tests/support/ranks.py starts them");
    if (!status && ranks->ranks > THREAD_RANKS_MOST)
        status =
            status_fail(&error, TERSE_E_UNSUPPORTED, "%u ranks, of which tests have room for %d", ranks->ranks, THREAD_RANKS_MOST);
    if (!status && ranks->ranks > 1) processes = ranks;
    if (processes) status = ranks_connect(processes, &error);
    if (status) fprintf(stderr, "skipped: %s\n", error.message);
    return status;
}

/* Returns how many ranks jobs are run with, where threads are given as `threads`. */
static inline uint32_t ranks_of(uint32_t threads) { return processes ? processes->ranks : threads; }

/* Calls run(ranks, job) on each of n ranks, which notes what it sees in seen[its rank], `bytes` of them; all have the notes of all at the end. */
static inline void run_ranks(uint32_t n, void (*run)(struct collective *ranks, void *job), void *job, void *seen, size_t bytes) {
    static struct collective_outcome outcome;
    struct collective alone = collective_local;
    struct terse_error error;
    alone.outcomes = &outcome;
    if (!processes) {
        thread_ranks_run(n, run, job);
        return;
    }
    run(n == 1 ? &alone : processes, job);
    if (n == 1) return;
    void *own = malloc(bytes);
    assert_non_null(own);
    memcpy(own, (char *)seen + processes->rank * bytes, bytes);
    if (collective_gather(processes, own, bytes, seen, &error)) fail_msg("%s", error.message);
    free(own);
}

#endif
