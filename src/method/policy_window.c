/* Serves a model's own sliding windows (Beltagy et al. 2020, Longformer, section 3.1). */
#include "method/policy.h"

static enum terse_status check(const struct policy_parameters *parameters, struct terse_error *error) {
    if (parameters->window) return TERSE_OK;
    return status_fail(error, TERSE_E_ARGUMENT, "a sliding window of 0 tokens sees nothing");
}

/* Keeps window - 1 tokens, since the next query sees itself and as many others. */
static struct policy_decision retain(const struct policy_parameters *parameters, uint64_t tokens) {
    struct policy_decision all = policy_retain_all(parameters, tokens);
    if (tokens + 1 > all.exact + parameters->window) all.first = tokens + 1 - parameters->window;
    return all;
}

const struct policy policy_window = {.name = "window", .oldest_leave = true, .check = check, .retain = retain};
