/* Policy: which tokens stay exact, which are compressed, which are evicted.
 *
 * A policy names token indices; only the cache moves data. It is asked in `retain` at the end of a prefill and after each decode
 * step. Later policies add `observe` (attention statistics) and `read` (which blocks a step reads) as further hooks.
 */
#ifndef TERSE_POLICY_POLICY_H
#define TERSE_POLICY_POLICY_H

#include "base/status.h"

/* Parameters of a policy, from the method's name ("streaming-512") and options. */
struct policy_parameters {
    uint32_t budget; /* tokens kept per layer and KV head; 0: all */
    uint32_t sinks;  /* first tokens that always stay */
};

/* What a policy decides after a step. The kept tokens are: exact rows [0, sinks) and the newest ones. */
struct policy_decision {
    uint64_t sinks; /* tokens [0, sinks) live in exact rows */
    uint64_t first; /* tokens [sinks, first) are evicted; first >= sinks */
};

struct policy {
    const char *name;
    /* Keys are read at positions by index in the cache instead of their own: position of a kept token = number of kept tokens
     * before it. Then generation is not bounded by the model's context. */
    bool positions_by_index;
    enum terse_status (*check)(const struct policy_parameters *parameters, struct terse_error *error);
    /* `tokens`: tokens seen so far, the newest step included. */
    struct policy_decision (*retain)(const struct policy_parameters *parameters, uint64_t tokens);
};

/* Keeps every token. */
extern const struct policy policy_keep_all;
/* Attention sinks and a recent window (Xiao et al. 2023, StreamingLLM): the first `sinks` tokens and the newest budget - sinks. */
extern const struct policy policy_streaming;

#endif
