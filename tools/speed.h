/* Times calls that read tokens behind caches of some depth, for `terse bench` and `terse tune`: filling the caches, repeats of a
 * test, and what they add up to. */
#ifndef TERSE_TOOLS_SPEED_H
#define TERSE_TOOLS_SPEED_H

#include <terse.h>

enum { SPEED_MOST_REPEATS = 1000 };

/* A batch is the sessions that are decoded together. */
struct speed_batch {
    struct terse_engine *engine;
    struct terse_step_item *items; /* [n], of which the sessions are set */
    size_t n;
};

/* These are the results of one kind of test over its repeats. */
struct speed_samples {
    double rate[SPEED_MOST_REPEATS]; /* tokens per second, of all sessions */
    size_t n;
    double seconds;
    double attention;                /* seconds of the repeat with the fastest */
    struct terse_counters counters;  /* sums over the repeats and sessions */
    struct terse_cache_report cache; /* of a session after the last repeat, */
    uint64_t resident;               /* and the bytes of all sessions' */
};

/* Empties the session and fills its cache with `depth` random tokens. Returns an exit status. */
int speed_fill(struct terse_session *session, uint32_t depth, uint64_t seed);

/* Decodes tokens[n] one by one, each session the same ones. Returns an exit status. */
int speed_decode(const struct speed_batch *batch, const int32_t *tokens, uint32_t n);

/* Begins a repeat, and returns the time; the next call notes that each session has read n tokens since then. */
double speed_begin(const struct speed_batch *batch);
void speed_end(const struct speed_batch *batch, double begin, uint32_t n, struct speed_samples *samples);

double speed_fastest(const struct speed_samples *samples); /* of the repeats, tokens per second */
void speed_mean(const struct speed_samples *samples, double *mean, double *deviation);

/* Writes tokens drawn from the whole vocabulary to tokens[n]: the same in each run. */
void speed_tokens(uint32_t vocabulary, int32_t *tokens, size_t n);

#endif
