/* Keeps anchor tokens (MAT, algorithm 1): the tokens that all later ones attend to are those that attend little to the first token,
 * itself such a token. A cache holds `budget` tokens in order of age, of which one must go whenever a new one comes: among the
 * indices 1 to `exact` the one with the highest logit to token 0. The token at index `exact` is the one that leaves the window, so
 * it competes with the anchors; token 0 never goes. In a shallow layer the token after the sinks goes instead, so that the exact
 * tokens extend the window (StreamingLLM).
 *
 * The paper says "the i-th column is removed" and leaves candidates, the shallow layers and their sinks open. Here they are two
 * layers and four sinks, as in its figures and StreamingLLM. */
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
