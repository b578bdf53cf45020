/* Letters by which tests write sequences of steps: RUN(&setup, {P, 130, 0}, {D, 1, 0}) is a prompt of 130 tokens and a decoding step, all queries of
 * each asked at once. */
#ifndef TESTS_ORACLE_RUNS_H
#define TESTS_ORACLE_RUNS_H

#include "support/cache_oracle.h"

/* A step of a sequence: oracle_run takes such steps from the first token to its end, and compares all outputs. */
struct oracle_run_step {
    enum cache_step_kind kind;
    size_t n, piece;
};
void oracle_run(const struct oracle_setup *setup, const struct oracle_run_step *steps, size_t n);

#define D CACHE_STEP_DECODE
#define P CACHE_STEP_PREFILL
#define C CACHE_STEP_CHUNK
#define Q CACHE_STEP_PAPER

#define RUN(setup, ...) \
    oracle_run(setup, (const struct oracle_run_step[]){__VA_ARGS__}, \
               sizeof((const struct oracle_run_step[]){__VA_ARGS__}) / sizeof(struct oracle_run_step))

/* Writes named[n], {method, key, value}, to methods[n + CODEC_COUNT], and behind them each codec that needs neither a codebook nor fitting, that is
 * served (NULL: all are) and that none of them names, so that a new codec is tried without an entry of its own. Returns the number of both. */
size_t oracle_methods(const char *const (*named)[3], size_t n, bool (*served)(const struct codec *codec),
                      const char *(*methods)[3]);

/* Returns the setup with a method of such a list. */
struct oracle_setup oracle_setup_of(const struct oracle_setup *setup, const char *const method[3], uint32_t tail, uint64_t seed);

#endif
