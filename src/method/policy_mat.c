/* Anchor tokens (MAT, algorithm 1): tokens on which all later ones spend attention are those that spend little of their own on the first
 * token, itself such a token. The rule is that of a cache of `budget` tokens in order of age, of which one must go whenever a new
 * one comes: among the indices 1 to `exact` the one with the highest logit to token 0. The token at index `exact` is the one that
 * leaves the window, so it competes with the anchors; token 0 never goes. The exact tokens of a shallow layer change by the same
 * move: the token after the sinks goes, so that they extend the window (StreamingLLM).
 *
 * The paper says "the i-th column is removed" and leaves candidates, the shallow layers and their sinks open: two layers and four
 * sinks, as its figures and StreamingLLM have them. */
#include "method/policy.h"

static enum terse_status check(const struct policy_parameters *parameters, struct terse_error *error) {
    if (parameters->budget < 16)
        return status_fail(error, TERSE_E_ARGUMENT, "mat-%u keeps too few tokens: use mat-16 or more", parameters->budget);
    if (parameters->exact < parameters->budget) return TERSE_OK;
    return status_fail(error, TERSE_E_ARGUMENT, "%u anchors leave mat-%u no recent tokens: use --mat-anchors %u or fewer",
                       parameters->exact, parameters->budget, parameters->budget / 2);
}

static size_t pick_victim(const struct policy_parameters *parameters, uint32_t layer, const float *logits, size_t n) {
    if (layer < parameters->shallow) return n - 1 < SINKS ? n - 1 : SINKS;
    size_t most = 1;
    for (size_t i = 2; i < n; i++)
        if (logits[i] > logits[most]) most = i;
    return most;
}

const struct policy policy_mat = {.name = "mat",
                                  .positions_by_index = true,
                                  .oldest_leave = true,
                                  .check = check,
                                  .retain = policy_retain_newest,
                                  .pick_victim = pick_victim};
