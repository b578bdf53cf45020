/* Writes a method in words that tell any two methods apart. */
#include "method/method.h"

#include <inttypes.h>
#include <stdio.h>

static int put_coding(char *text, size_t capacity, const char *side, const struct coding *coding) {
    return snprintf(text, capacity, ", %s %s %" PRIu32 "x%" PRIu32 " %.17g", side, coding->codec->name, coding->width, coding->bits,
                    coding->rate);
}

void method_identity(const struct method *method, char text[METHOD_IDENTITY]) {
    const struct policy_parameters *p = &method->parameters;
    int n = snprintf(text, METHOD_IDENTITY, "%s", method->name);
    n += put_coding(text + n, METHOD_IDENTITY - (size_t)n, "keys", &method->key);
    n += put_coding(text + n, METHOD_IDENTITY - (size_t)n, "values", &method->value);
    n += snprintf(text + n, METHOD_IDENTITY - (size_t)n,
                  ", policy %s, budget %" PRIu32 ", exact %" PRIu32 ", shallow %" PRIu32 ", anchors %.17g %%, anchors %" PRIu32
                  ", index %s, reads %.17g %%, reads %" PRIu32 ", tail %" PRIu32 ", %s",
                  method->policy->name, p->budget, p->exact, p->shallow, p->anchor_percent, p->anchor_count,
                  method->index ? method->index->name : "none", p->read_percent, p->read_count, method->tail_tokens,
                  method->of_weights ? METHOD_OWN_TRANSFORMS : "given codebook or none");
    static const char *const scores[] = {[TERSE_ANCHORS_L1] = "L1", [TERSE_ANCHORS_RANDOM] = "random"};
    if (p->anchor_score) snprintf(text + n, METHOD_IDENTITY - (size_t)n, ", anchors by %s", scores[p->anchor_score]);
}
