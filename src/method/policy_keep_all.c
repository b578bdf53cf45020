/* The policy that evicts nothing. */
#include "method/policy.h"

static enum terse_status check(const struct policy_parameters *parameters, struct terse_error *error) {
    (void)parameters;
    (void)error;
    return TERSE_OK;
}

static struct policy_decision retain(const struct policy_parameters *parameters, uint64_t tokens) {
    (void)parameters;
    (void)tokens;
    return (struct policy_decision){0, 0};
}

const struct policy policy_keep_all = {.name = "keep all", .keeps_all = true, .check = check, .retain = retain};
