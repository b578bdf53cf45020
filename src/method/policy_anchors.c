/* Keeps anchor tokens exact (AnTKV, section 3.3): every token is kept, and those of a prefill whose quantization error would hurt
 * most stay exact. This file decides how many; backend/cpu/kv/anchors.c measures which ones. */
#include "method/policy.h"

#include <math.h>

static enum terse_status check(const struct policy_parameters *parameters, struct terse_error *error) {
    double percent = parameters->anchor_percent;
    if (percent >= 0 && percent <= 100) return TERSE_OK;
    return status_fail(error, TERSE_E_ARGUMENT, "%g %% of the tokens cannot be anchors: use 0 to 100", percent);
}

static size_t anchors(const struct policy_parameters *parameters, size_t n, size_t sealed) {
    double wanted = parameters->anchor_count ? parameters->anchor_count : round((double)n * parameters->anchor_percent / 100);
    return wanted < (double)sealed ? (size_t)wanted : sealed;
}

const struct policy policy_anchors = {.name = "anchors", .check = check, .retain = policy_retain_all, .anchors = anchors};
