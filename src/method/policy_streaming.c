/* Keeps attention sinks and a recent window (Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", section
 * 3.2): the first few tokens collect the attention that a softmax must put somewhere. With them and the newest tokens kept,
 * generation stays stable without end. Positions are those inside the cache, as the paper asks for. */
#include "method/policy.h"

static enum terse_status check(const struct policy_parameters *parameters, struct terse_error *error) {
    uint32_t least = 4 * parameters->exact;
    if (parameters->budget >= least) return TERSE_OK;
    return status_fail(error, TERSE_E_ARGUMENT, "streaming-%u keeps too few tokens: %u of them are sinks, use streaming-%u or more",
                       parameters->budget, parameters->exact, least);
}

struct policy_decision policy_retain_newest(const struct policy_parameters *parameters, uint64_t tokens) {
    uint64_t exact = parameters->exact < tokens ? parameters->exact : tokens;
    uint64_t recent = parameters->budget - parameters->exact;
    return (struct policy_decision){.exact = exact, .first = tokens > exact + recent ? tokens - recent : exact};
}

const struct policy policy_streaming = {
    .name = "streaming", .positions_by_index = true, .oldest_leave = true, .check = check, .retain = policy_retain_newest};
