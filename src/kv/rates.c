/* Keeps the rates of a cache, and the list of caches whose pages may be lowered. */
#include "kv/rates.h"

#include "format/codebook_layouts.h"

struct method rates_method(const struct cache_base *base, uint32_t rate) {
    const struct cache_rates *rates = &base->rates;
    if (!rate) return base->method;
    const struct codebook_layouts *layouts = rates->fitted[rate] ? rates->fitted[rate] : rates->profile[rate];
    return method_at_rate(&base->method, rates->bits[rate], layouts);
}

enum terse_status rates_init(struct cache_base *base, struct terse_error *error) {
    struct cache_rates *rates = &base->rates;
    enum terse_status status = TERSE_OK;
    rates->n = method_rates(&base->method, rates->bits);
    for (uint32_t rate = 0; rate < rates->n && !status; rate++) {
        const double both[2] = {rates->bits[rate], rates->bits[rate]};
        if (rate && base->method.learned) status = codebook_layouts(base->method.learned, both, &rates->profile[rate], error);
        const struct method method = rates_method(base, rate);
        rates->page_set_bytes[rate] = (size_t)page_set_bytes_of(&base->shape, &method, base->index_page_bytes);
    }
    return status;
}

void rates_join(struct cache_base *base) {
    base->next_of_budget = base->budget->caches;
    base->budget->caches = base;
}

void rates_leave(struct cache_base *base) {
    struct cache_base **link = base->budget ? &base->budget->caches : NULL;
    while (link && *link && *link != base) link = &(*link)->next_of_budget;
    if (link && *link) *link = base->next_of_budget;
}
