/* A team of threads that works for one owner, and hands calls back to the thread that waits for it.
 *
 * Owns one driver thread, whose OpenMP parallel regions and matrix products use the team's number of threads, as does its parallel_run
 * (base/parallel.h); nothing outside the team changes its own. The driver and the threads it starts block all signals. Work is given to the driver by team_run, which
 * returns when the work is done. What the work wants done on the caller's thread (progress reports, rows of logits) it asks for by
 * team_call.
 *
 * Threads: team_run may be called by any thread, by one at a time. team_call is for the driver thread alone, outside parallel
 * regions or on their master thread.
 */
#ifndef TERSE_BASE_TEAM_H
#define TERSE_BASE_TEAM_H

#include "base/status.h"

#define TEAM_THREADS_MAX 1024

struct team;

/* threads: 1 to TEAM_THREADS_MAX, or 0 for one per processor. */
enum terse_status team_new(uint32_t threads, struct team **team, struct terse_error *error);
/* Accepts NULL. No work may be in progress. */
void team_free(struct team *team);

uint32_t team_threads(const struct team *team);

/* Runs work(user) on the driver thread; meanwhile the caller's thread runs what team_call asks for. */
void team_run(struct team *team, void (*work)(void *user), void *user);

/* Runs call(user) on the thread that waits in team_run. On a thread that drives no team it is a plain call. */
void team_call(void (*call)(void *user), void *user);

/* `progress` with reports led through team_call; `progress` must outlive the result. An absent callback stays absent. */
struct terse_progress team_progress(const struct terse_progress *progress);

#endif
