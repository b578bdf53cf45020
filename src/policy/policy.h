/* Policy: which tokens stay exact, which are compressed, which are evicted.
 *
 * A policy names token indices; only the cache moves data. It is asked in `retain` at the end of a prefill and after each decode
 * step, and in `anchors` when a prefill seals tokens. Later policies add `read` (which blocks a step reads) as a further hook.
 */
#ifndef TERSE_POLICY_POLICY_H
#define TERSE_POLICY_POLICY_H

#include "base/status.h"

/* Parameters of a policy, from the method's name ("streaming-512") and options. */
struct policy_parameters {
    uint32_t budget;       /* tokens kept per layer and KV head; 0: all */
    uint32_t sinks;        /* first tokens that always stay */
    double anchor_percent; /* of a prefill's tokens that stay exact, per layer, KV head and side */
    uint32_t anchor_count; /* so many instead, when not 0 */
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
    /* How many of the `sealed` tokens that a prefill of n tokens seals are to stay exact; NULL: none, and attention is not observed.
     * Which: those of highest Anchor Score times error (cache/anchors.h). */
    size_t (*anchors)(const struct policy_parameters *parameters, size_t n, size_t sealed);
};

/* Keeps every token. */
extern const struct policy policy_keep_all;
/* Keeps every token, the anchors exact (AnTKV, section 3.3). */
extern const struct policy policy_anchors;
/* Attention sinks and a recent window (Xiao et al. 2023, StreamingLLM): the first `sinks` tokens and the newest budget - sinks. */
extern const struct policy policy_streaming;

#endif
