/* Runs the work of a decoding step on all threads of a thread pool, some microseconds of work at a time.
 *
 * Owns the thread pool's workers. Between two pieces of work, and at barriers, a thread polls for as long as such waits have been
 * short, and sleeps where they have not: OpenMP's runtime polls for milliseconds, so that where other programs keep the processors
 * busy a thread that has nothing to do takes the time of the one that it waits for. Work that takes longer (prompts, learning)
 * stays with OpenMP.
 *
 * Threads: a struct parallel is driven by one thread at a time, the one that called parallel_drive. The other functions are for any
 * thread. */
#ifndef TERSE_BASE_PARALLEL_H
#define TERSE_BASE_PARALLEL_H

#include "base/status.h"

#include <stddef.h>

struct parallel;

/* Starts threads - 1 workers, which block all signals; the driver makes up the number. */
enum terse_status parallel_new(uint32_t threads, struct parallel **parallel, struct terse_error *error);
/* Accepts NULL. No work may be in progress. */
void parallel_free(struct parallel *parallel);
/* Sends the calling thread's work to these workers from now on; NULL: to none. */
void parallel_drive(struct parallel *parallel);

/* Runs body(user) on `threads` threads at once, the caller's among them, but on no more than the workers and their driver are, and
 * returns when all are done. On a thread that drives no workers, OpenMP's threads run it. Inside other parallel work it is a plain
 * call. */
void parallel_run(uint32_t threads, void (*body)(void *user), void *user);

/* Within a body they return the caller's number, from 0, and the number of threads. In a parallel region of OpenMP they return
 * OpenMP's. */
uint32_t parallel_thread(void);
uint32_t parallel_threads(void);
/* Waits until all threads of the body have called it. Either all of them call it or none does. */
void parallel_barrier(void);

/* A part holds the consecutive items that the calling thread takes of n; the parts of all threads are about equal. */
struct parallel_part {
    size_t begin, end;
};
struct parallel_part parallel_part_of(size_t n);

#endif
