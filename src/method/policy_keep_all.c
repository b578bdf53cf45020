/* Implements the policy that evicts nothing. */
#include "method/policy.h"

static enum terse_status check(const struct policy_parameters *parameters, struct terse_error *error) {
    (void)parameters;
    (void)error;
    return TERSE_OK;
}

struct policy_decision policy_retain_all(const struct policy_parameters *parameters, uint64_t tokens) {
    uint64_t exact = parameters->exact < tokens ? parameters->exact : tokens;
    return (struct policy_decision){exact, exact};
}

const struct policy policy_keep_all = {.name = "keep all", .keeps_all = true, .check = check, .retain = policy_retain_all};
