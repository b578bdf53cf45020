/* A thread pool works for one owner, and hands calls back to the thread that waits for it.
 *
 * Owns one driver thread, whose OpenMP parallel regions and matrix products use the thread pool's number of threads, as does its
 * parallel_run (base/parallel.h); nothing outside the thread pool changes its own. The driver and the threads it starts block all
 * signals. thread_pool_run gives work to the driver and returns when it is done. The work calls thread_pool_call to have something
 * done on the caller's thread (progress reports, rows of logits).
 *
 * Threads: thread_pool_run may be called by any thread, by one at a time. thread_pool_call is for the driver thread alone, outside
 * parallel regions or on their master thread. */
#ifndef TERSE_BASE_THREAD_POOL_H
#define TERSE_BASE_THREAD_POOL_H

#include "base/status.h"

#define TEAM_THREADS_MAX 1024

struct thread_pool;

/* Starts a pool. `threads` is 1 to TEAM_THREADS_MAX, or 0 for one per processor. */
enum terse_status thread_pool_new(uint32_t threads, struct thread_pool **pool, struct terse_error *error);
/* Accepts NULL. No work may be in progress. */
void thread_pool_free(struct thread_pool *pool);

uint32_t thread_pool_threads(const struct thread_pool *pool);

/* Runs work(user) on the driver thread; meanwhile the caller's thread runs the calls that thread_pool_call hands to it. */
void thread_pool_run(struct thread_pool *pool, void (*work)(void *user), void *user);

/* Runs call(user) on the thread that waits in thread_pool_run. On a thread that drives no thread pool it is a plain call. */
void thread_pool_call(void (*call)(void *user), void *user);

/* Returns a progress whose reports reach `progress` through thread_pool_call; `progress` must outlive it. An absent callback stays
 * absent. */
struct terse_progress thread_pool_progress(const struct terse_progress *progress);

#endif
