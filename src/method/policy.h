/* A policy decides which tokens stay exact, which are compressed and which are evicted.
 *
 * A policy names token indices; only the cache moves data. `retain` is asked at the end of a prefill and after each decode step,
 * `pick_victim` for every token that leaves the window, and `anchors` when a prefill seals tokens.
 */
#ifndef TERSE_METHOD_POLICY_H
#define TERSE_METHOD_POLICY_H

#include "base/status.h"

#include <stddef.h>

/* Parameters of a policy come from the method's name ("streaming-512") and options. */
struct policy_parameters {
    uint32_t budget;       /* tokens kept per layer and KV head; 0: all */
    uint32_t exact;        /* of them as exact tokens, the oldest: attention sinks, and what MAT's window's end is held against */
    uint32_t shallow;      /* MAT: the first layers, whose exact tokens are the oldest sinks and the youngest others */
    double anchor_percent; /* of a prefill's tokens that stay exact, per layer, KV head and side */
    uint32_t anchor_count; /* so many instead, when not 0 */
    enum terse_anchor_score anchor_score;
    uint32_t window;     /* policy_window: tokens that a query sees, its own included */
    double read_percent; /* of a prompt's tokens that a step reads, where the method has an index */
    uint32_t read_count; /* so many instead, when not 0 */
};

/* A policy that ranks tokens by attention counts so many newest queries of a prompt (SnapKV's window), and averages a token's score with those of
 * so many tokens on either side (its pooling of 5). */
#define RANKING_QUERIES 32
#define RANKING_NEIGHBOURS 2

/* A decision says which tokens a policy keeps after a step: as many as [0, exact) as exact tokens, and those from `first` on. */
struct policy_decision {
    uint64_t exact; /* these tokens themselves, unless the policy has `pick_victim`: then what took their place */
    uint64_t first; /* tokens [exact, first) have left; first >= exact */
};

struct policy {
    const char *name;
    bool keeps_all; /* every token, none of them singled out: neither anchors nor eviction */
    /* Keys are read at positions by index in the cache instead of their own: the position of a kept token is the number of kept
     * tokens before it. Generation is then not bounded by the model's context. */
    bool positions_by_index;
    bool oldest_leave; /* a step may evict tokens that are in pages, the oldest first, or before they come there */
    enum terse_status (*check)(const struct policy_parameters *parameters, struct terse_error *error);
    /* Decides what is kept; `tokens` counts the tokens seen so far, the newest step included. */
    struct policy_decision (*retain)(const struct policy_parameters *parameters, uint64_t tokens);
    /* Returns which of n tokens of a layer and KV head is evicted, 0 < result < n. The tokens are the n - 1 exact tokens, in order
     * of age, and as the last the one that leaves the window now. logits[n] are those of each token's own queries to token 0, the
     * mean over the group. NULL: the last is always evicted, and logits are not observed. */
    size_t (*pick_victim)(const struct policy_parameters *parameters, uint32_t layer, const float *logits, size_t n);
    /* Returns how many of the `sealed` tokens that a prefill of n tokens seals are to stay exact; NULL: none, and attention is not observed.
     * The cache takes those of highest Anchor Score times error, keys and values apart, or with rank_by_attention those that the last queries
     * attend to most (backend/cpu/kv/anchor_scores.h). */
    size_t (*anchors)(const struct policy_parameters *parameters, size_t n, size_t sealed);
    bool rank_by_attention;
    bool keep_selected_only; /* where there are anchors, they are all that stays of what the prefill would seal */
};

/* Returns whether the policy evicts tokens for good. */
static inline bool policy_evicts(const struct policy *policy) { return policy->positions_by_index || policy->keep_selected_only; }

/* Returns whether a long prompt has tokens that an exact prefill chooses to keep exact: anchors, or those that SnapKV leaves. */
static inline bool policy_chooses_tokens(const struct policy *policy, const struct policy_parameters *parameters) {
    const size_t long_prompt = (size_t)1 << 24;
    return policy->anchors && policy->anchors(parameters, long_prompt, long_prompt) > 0;
}

/* Keeps every token. */
extern const struct policy policy_keep_all;
/* Keeps every token, the anchors exact (AnTKV, section 3.3). */
extern const struct policy policy_anchors;
/* Keeps attention sinks and a recent window (Xiao et al. 2023, StreamingLLM): the first `exact` tokens and the newest budget - exact. */
extern const struct policy policy_streaming;
/* Keeps anchor tokens and a recent window (MAT, section 4): the newest budget - exact tokens, and of the others those whose own
 * queries attend to token 0 least. In the first `shallow` layers it does as policy_streaming. */
extern const struct policy policy_mat;
/* Keeps every token, and exact those to which a prompt's last queries attend most. */
extern const struct policy policy_attention_rank;
/* Keeps of a prompt only the tokens to which its last queries attend most, at their own positions, and its newest ones, `budget` in all, and
 * everything after the prompt (SnapKV). */
extern const struct policy policy_snapkv;
/* Serves layers whose queries see the newest `window` keys alone: evicts the tokens that no further query will see, and with the last of its
 * tokens a page. */
extern const struct policy policy_window;
/* On the first tokens of a sequence models of a few billion parameters and more spend about half of their attention whatever the
 * text (StreamingLLM, section 3.1), and their keys and values look like no others. They are exact tokens of every method whose
 * codecs are not exact, and of those that evict. */
#define SINKS 4

/* Each of these is a `retain`. policy_retain_all keeps every token, the first `exact` of them as exact tokens; policy_retain_newest
 * keeps `exact` tokens, the first ones or those that replaced them, and the newest budget - exact. */
struct policy_decision policy_retain_all(const struct policy_parameters *parameters, uint64_t tokens);
struct policy_decision policy_retain_newest(const struct policy_parameters *parameters, uint64_t tokens);

#endif
