/* Ranks tokens by the attention of a prompt's last queries (Li et al. 2024, SnapKV, section 4), summed over each token and its
 * neighbours. The first stay exact beside a cache of codes (Self-Indexing, section 4), or they are all that stays of a prompt but
 * its end (SnapKV). backend/cpu/kv/anchor_scores.h computes the ranking. */
#include "method/policy.h"

#define SNAPKV_BUDGET_MIN 128 /* the window, of up to 95 tokens, and as many again */

static enum terse_status check_ranked(const struct policy_parameters *parameters, struct terse_error *error) {
    return policy_anchors.check(parameters, error);
}

static size_t ranked_count(const struct policy_parameters *parameters, size_t n, size_t sealed) {
    return policy_anchors.anchors(parameters, n, sealed);
}

static enum terse_status check_snapkv(const struct policy_parameters *parameters, struct terse_error *error) {
    if (parameters->budget >= SNAPKV_BUDGET_MIN) return TERSE_OK;
    return status_fail(error, TERSE_E_ARGUMENT, "snapkv-%u keeps too few tokens of a prompt: use snapkv-%d or more",
                       parameters->budget, SNAPKV_BUDGET_MIN);
}

/* Returns how many tokens of the prompt are kept. Its end, which stays in the window, and the sinks are a part of the budget. */
static size_t kept_of_prompt(const struct policy_parameters *parameters, size_t n, size_t sealed) {
    size_t others = n > sealed ? n - sealed : 0, budget = parameters->budget;
    if (n <= budget || others >= budget) return 0;
    return budget - others < sealed ? budget - others : sealed;
}

const struct policy policy_attention_rank = {.name = "attention rank",
                                             .rank_by_attention = true,
                                             .check = check_ranked,
                                             .retain = policy_retain_all,
                                             .anchors = ranked_count};
const struct policy policy_snapkv = {.name = "snapkv",
                                     .rank_by_attention = true,
                                     .keep_selected_only = true,
                                     .check = check_snapkv,
                                     .retain = policy_retain_all,
                                     .anchors = kept_of_prompt};
