/* Attention sinks and a recent window (Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", section 3.2):
 * the first few tokens collect the attention that a softmax must put somewhere; keep them, and the newest, and generation stays
 * stable without end. Positions are those inside the cache, as the paper asks for. */
#include "policy/policy.h"

static enum terse_status check(const struct policy_parameters *parameters, struct terse_error *error) {
    uint32_t least = 4 * parameters->sinks;
    if (parameters->budget >= least) return TERSE_OK;
    return status_fail(error, TERSE_E_ARGUMENT, "streaming-%u keeps too few tokens: %u of them are sinks, use streaming-%u or more",
                       parameters->budget, parameters->sinks, least);
}

static struct policy_decision retain(const struct policy_parameters *parameters, uint64_t tokens) {
    uint64_t sinks = parameters->sinks < tokens ? parameters->sinks : tokens;
    uint64_t recent = parameters->budget - parameters->sinks;
    return (struct policy_decision){.sinks = sinks, .first = tokens > sinks + recent ? tokens - recent : sinks};
}

const struct policy policy_streaming = {.name = "streaming", .positions_by_index = true, .check = check, .retain = retain};
