/* Says at which rates a cache of terse-N holds its pages where they may be lowered. */
#include "method/method.h"

/* Pages go from one rate to the next: each step gives back a quarter to a half of their bytes, and adds one error to those before. */
static const double ladder[] = {6, 4, 3, 2, 1.5, 1, 0.5};
#define STEPS (sizeof ladder / sizeof ladder[0])

_Static_assert(STEPS + 2 <= METHOD_RATES, "the method's own rate and the least come in addition");

size_t method_rates(const struct method *method, double bits[METHOD_RATES]) {
    size_t n = 0;
    bits[n++] = method->key.rate;
    if (!(method->least_rate > 0) || !(method->least_rate < method->key.rate)) return n;
    for (size_t i = 0; i < STEPS; i++)
        if (ladder[i] < method->key.rate && ladder[i] > method->least_rate) bits[n++] = ladder[i];
    bits[n++] = method->least_rate;
    return n;
}

struct method method_at_rate(const struct method *method, double bits, const struct codebook_layouts *layouts) {
    struct method own = *method;
    own.key.rate = bits;
    if (own.value.rate > 0) own.value.rate = bits; /* else keys end with the values */
    own.least_rate = 0;
    own.layouts = layouts;
    return own;
}

static bool is_alike(const struct method *method) {
    const struct coding *key = &method->key, *value = &method->value;
    return key->codec->id == CODEC_TRANSFORM && value->codec == key->codec && !(key->rate < value->rate) &&
           !(key->rate > value->rate);
}

enum terse_status method_check_least_rate(const struct method *method, struct terse_error *error) {
    const double least = method->least_rate, own = method->key.rate;
    if (least == 0) return TERSE_OK;
    if (!is_alike(method))
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "%s cannot be lowered to fewer bits, as only terse-N can, with keys and values alike: use terse-N, or "
                           "least_rate 0",
                           method->name);
    if (!(least >= METHOD_RATE_LEAST && least <= own))
        return status_fail(error, TERSE_E_ARGUMENT, "%s cannot be lowered to %g bits per value: use %g to %g", method->name, least,
                           METHOD_RATE_LEAST, own);
    if (method->policy == &policy_keep_all && !method->index) return TERSE_OK;
    return status_fail(error, TERSE_E_UNSUPPORTED,
                       "%s cannot be lowered to fewer bits while it chooses tokens: omit --evict, --anchors and --top-k-tokens, or "
                       "the least rate",
                       method->name);
}
