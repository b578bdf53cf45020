/* Counts what the server has done since it began, for Prometheus. Any thread may add to the counters. */
#ifndef TERSE_SERVE_METRICS_H
#define TERSE_SERVE_METRICS_H

#include "buffer.h"

#include <pthread.h>
#include <stdint.h>
#include <terse.h>

enum { METRICS_BOUNDS = 14 };

struct histogram {
    uint64_t count[METRICS_BOUNDS + 1]; /* of values up to each bound; above all of them */
    double sum;
};

enum metrics_latency {
    METRICS_REQUEST,     /* from a request's arrival to the end of its replies */
    METRICS_QUEUE,       /* from there until its first prompt begins */
    METRICS_FIRST_TOKEN, /* from there to the first token of a reply */
    METRICS_NEXT_TOKEN,  /* between two tokens of a reply */
    METRICS_LATENCIES
};

struct metrics {
    pthread_mutex_t lock;
    uint64_t prompt_tokens, cached_tokens, written_tokens;
    uint64_t prompts, prefix_hits; /* prompts begun; those that began with what was read before */
    uint64_t answers[600];         /* by HTTP's status */
    uint64_t cancelled;            /* requests whose clients went away */
    uint64_t preempted;            /* replies whose caches the budget needed for others */
    struct histogram latency[METRICS_LATENCIES];
};

void metrics_begin(struct metrics *metrics);
void metrics_end(struct metrics *metrics);
void metrics_add(struct metrics *metrics, uint64_t *counter, uint64_t n);
void metrics_observe(struct metrics *metrics, enum metrics_latency latency, double seconds);

/* A metrics_state is the server's state at the time of a scrape. */
struct metrics_state {
    uint32_t slots, busy, waiting;
    uint64_t kv_bytes, kv_budget;    /* of the engine, prefixes included; 0: no limit */
    struct terse_cache_report cache; /* of the busy slots together */
    double bits_per_value;           /* theirs, by what they hold */
};
/* Adds the metrics to `text` in Prometheus' text format. */
void metrics_write(struct metrics *metrics, const struct metrics_state *state, struct buffer *text);

#endif
