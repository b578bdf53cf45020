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
        const struct method own = method_at_rate(&base->method, rates->bits[rate], NULL);
        const double both[2] = {own.key.rate, own.value.rate};
        if (rate && base->method.learned) status = codebook_layouts(base->method.learned, both, &rates->profile[rate], error);
        const struct method method = rates_method(base, rate);
        rates->page_set_bytes[rate] = (size_t)page_set_bytes_of(&base->shape, &method, base->index_page_bytes);
    }
    return status;
}

void rates_begin_step(struct cache_base *base) {
    const struct kv_budget *budget = base->budget;
    const uint64_t bytes = base->step_sets * (uint64_t)base->rates.page_set_bytes[0];
    const uint64_t free = budget ? budget->most - budget->used : UINT64_MAX, spare = budget ? budget->most / RATES_FREE : 0;
    if (rates_of(base) == 1 || base->step_lowered || free < bytes || free - bytes < spare) return;
    base->pages.rate = 0;
    base->pages.lower = 0;
}

void rates_end_step(struct cache_base *base) {
    base->step_sets = base->pages.lower = 0;
    base->step_lowered = false;
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
