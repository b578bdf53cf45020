/* Implements what caches of every backend do between steps: accounting, truncating, forking, and the map of tokens. */
#include "kv/cache.h"

#include "base/size.h"
#include "kv/deal.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- Life */

void cache_base_init(struct cache_base *base, const struct kv_storage *storage, const struct cache_shape *shape,
                     const struct method *method, uint32_t threads) {
    base->storage = storage;
    base->shape = *shape;
    base->method = *method;
    base->threads = threads;
    base->layer = NO_LAYER;
}

void cache_base_free(struct cache_base *base) {
    rates_leave(base);
    fitted_drop(base);
    fitted_forget_residual(base);
    recurrent_forget(base);
    block_table_free(&base->pages);
    read_lists_free(&base->reads);
}

enum terse_status cache_refuse(const struct kv_storage *storage, const struct method *method, const char *why,
                               struct terse_error *error) {
    return status_fail(error, TERSE_E_UNSUPPORTED, "%s %s %s: use --device cpu, or another --kv", method->name, why,
                       storage->where);
}

/* Checks what a cache whose pages are dealt to ranks requires: every rank must come to the same choices without the others' pages. */
static enum terse_status check_dealt(const struct method *method, struct terse_error *error) {
    const char *why = method->index                   ? "chooses the tokens that a step reads"
                      : policy_evicts(method->policy) ? "evicts tokens"
                      : method->least_rate > 0        ? "lowers pages to keep to a budget"
                                                      : NULL;
    if (!why) return TERSE_OK;
    return status_fail(error, TERSE_E_UNSUPPORTED,
                       "%s %s, which several ranks cannot do together: use another --kv, or start terse as one process",
                       method->name, why);
}

static enum terse_status check_abilities(const struct kv_storage *storage, const struct cache_shape *shape,
                                         const struct method *method, struct terse_error *error) {
    if (shape->ranks) {
        enum terse_status status = check_dealt(method, error);
        if (status) return status;
    }
    if (method->least_rate > 0 && !storage->lower)
        return cache_refuse(storage, method, "cannot be lowered to fewer bits for the budget", error);
    return TERSE_OK;
}

enum terse_status cache_supports(const struct kv_storage *storage, const struct cache_shape *shape, const struct method *method,
                                 struct terse_error *error) {
    const bool apart = method->policy->keep_selected_only || method->index;
    if (!shape->layers || !shape->kv_heads || !shape->query_heads || shape->query_heads % shape->kv_heads)
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "%u layers of %u query heads over %u KV heads: the query heads must be a multiple of the KV heads",
                           shape->layers, shape->query_heads, shape->kv_heads);
    enum terse_status status = method_check(method, shape->head_dim, shape->query_heads / shape->kv_heads, error);
    if (!status) status = check_abilities(storage, shape, method, error);
    if (!status && storage->supports) status = storage->supports(shape, method, error);
    if (status || !shape->slopes || !apart) return status;
    return status_fail(error, TERSE_E_UNSUPPORTED,
                       "%s reads tokens that lie apart, whose distances this model's ALiBi would have to know: use another --kv%s",
                       method->name, method->policy->keep_selected_only ? "" : ", or omit --top-k-tokens");
}

enum terse_status cache_limit(struct cache *cache, struct kv_budget *budget, struct terse_error *error) {
    struct cache_base *base = cache_base(cache);
    struct terse_cache_report report;
    cache_report(cache, &report);
    enum terse_status status = budget_take(budget, (size_t)report.resident, "the KV cache", error);
    if (status) return status;
    base->budget = base->pages.pool->budget = budget;
    rates_join(base);
    return TERSE_OK;
}

static void pages_changed(struct cache *cache, size_t first) {
    read_lists_changed(&cache_base(cache)->reads, first);
    cache_base(cache)->storage->pages_changed(cache, first);
}

static void drop_pages(struct cache *cache, size_t first, size_t n) {
    if (!n) return;
    block_table_drop(&cache_base(cache)->pages, first, n);
    pages_changed(cache, first);
}

/* Forgets what was fitted, since no page is left that goes by it. */
static void drop_fitted(struct cache *cache) {
    struct cache_base *base = cache_base(cache);
    base->fitted_ready = false;
    if (!base->fitted.layouts) return;
    fitted_drop(base);
    base->storage->layouts_changed(cache, NULL);
}

void cache_forget_ahead(struct cache *cache) {
    struct cache_base *base = cache_base(cache);
    base->storage->wait_ahead(cache);
    base->n_ahead = 0;
}

static void synchronize(struct cache *cache) {
    cache_forget_ahead(cache);
    if (cache_base(cache)->storage->synchronize) cache_base(cache)->storage->synchronize(cache);
}

void cache_reset(struct cache *cache) {
    struct cache_base *base = cache_base(cache);
    synchronize(cache);
    base->extent = (struct extent){0};
    drop_pages(cache, 0, base->pages.n_sealed);
    if (base->storage->reset) base->storage->reset(cache);
    drop_fitted(cache);
    fitted_forget_residual(base);
    recurrent_forget(base);
    base->pages.rate = 0;
    base->n_anchors = 0;
    base->prompt_end = 0;
    base->in_step = false;
    rates_end_step(base);
    base->layer = NO_LAYER;
}

uint64_t cache_length(const struct cache *cache) { return cache_base_of(cache)->extent.length; }

uint64_t cache_prompt_end(const struct cache *cache) { return cache_base_of(cache)->prompt_end; }

size_t cache_prompt_part(const struct cache *cache, size_t n) {
    return plan_part(&cache_base_of(cache)->method, &cache_base_of(cache)->extent, n);
}

size_t cache_shortest_part(const struct cache *cache, size_t n) {
    return plan_shortest_part(&cache_base_of(cache)->method, &cache_base_of(cache)->extent, n);
}

uint64_t cache_exact_tokens(const struct cache *cache) { return cache_base_of(cache)->extent.exact; }

struct token_range cache_window(const struct cache *cache) {
    const struct extent *extent = &cache_base_of(cache)->extent;
    return (struct token_range){extent->window_first, extent->length};
}

size_t cache_window_pages(const struct cache *cache) { return extent_window_pages(&cache_base_of(cache)->extent); }

struct fill_plan cache_plan_fill(const struct cache *cache, size_t n, size_t step) {
    const struct cache_base *base = cache_base_of(cache);
    const struct method *method = &base->method;
    const struct plan first = plan_step(method, &base->extent, CACHE_STEP_PREFILL, cache_prompt_part(cache, n));
    const bool alike = !base->extent.length && !policy_evicts(method->policy); /* else layers may be treated differently */
    if (first.waits) step = size_max(first.n, step);
    /* A number of anchors is that of a prompt, so the last step stands for it; what is kept of a prompt, for which all of it counts. */
    return (struct fill_plan){.step = n < step || method->policy->keep_selected_only ? n : step,
                              .kind = method->parameters.anchor_count ? CACHE_STEP_CHUNK : CACHE_STEP_PREFILL,
                              .pages = alike && rates_of(base) == 1 ? plan_prompt(method, n).seal : 0,
                              .layers_alike = alike && !first.waits, /* to which layers are fitted each for itself */
                              .pages_alike = alike && method->policy->keeps_all && rates_of(base) == 1};
}

void cache_counters(struct cache *cache, struct cache_counters *counters, bool clear) {
    struct cache_base *base = cache_base(cache);
    *counters = base->counters;
    if (clear) base->counters = (struct cache_counters){0};
}

/* ---- Steps */

/* Returns how many pages are encoded ahead. None is where the window is shorter than a page, since there is no time for it, where
 * tokens are evicted, since there is no need, or before its codec was fitted. A window that waited holds more pages than others do:
 * the first of them are enough. */
size_t cache_pages_ahead(const struct cache_base *base, const struct plan *plan) {
    const size_t most = base->method.tail_tokens / PAGE_TOKENS + 1;
    bool wanted = plan->kind == CACHE_STEP_DECODE && plan->n <= base->ahead_most_tokens && base->method.tail_tokens >= PAGE_TOKENS;
    bool unfitted = (cache_fit_pending(base) && !plan->seal) || fitted_waits(base); /* even after this step */
    if (!wanted || base->method.policy->oldest_leave || unfitted) return 0;
    return size_min((size_t)((plan->after.length - plan->after.window_first) / PAGE_TOKENS), most);
}

/* Refuses to choose anchors by attention to pages of which other ranks have some. */
static enum terse_status check_anchors(const struct cache_base *base, struct terse_error *error) {
    if (!base->plan.anchors || !base->shape.ranks || !base->pages.n_sealed) return TERSE_OK;
    return status_fail(
        error, TERSE_E_UNSUPPORTED,
        "%s chooses exact tokens of a later prompt by their attention to earlier pages, which several ranks cannot do "
        "together: give the text as one prompt, keep no anchors, or use another --kv",
        base->method.name);
}

enum terse_status cache_plan_step(struct cache *cache, enum cache_step_kind kind, size_t n, struct terse_error *error) {
    struct cache_base *base = cache_base(cache);
    const uint64_t most = base->storage->most_tokens;
    if (!n) return status_fail(error, TERSE_E_ARGUMENT, "no tokens: a step needs at least one");
    if (n > most || base->extent.length > most - n)
        return status_fail(error, TERSE_E_CONTEXT, "more than the %" PRIu64 " tokens that a cache of this backend counts", most);
    base->in_step = false;
    base->layer = NO_LAYER;
    base->layers_ended = 0;
    base->plan = plan_step(&base->method, &base->extent, kind, n);
    base->step_sets = base->plan.seal + cache_pages_ahead(base, &base->plan);
    enum terse_status status = check_anchors(base, error);
    if (!status) status = fitted_begin_step(base, error);
    if (!status) status = recurrent_begin_step(base, error);
    if (status) return status;
    if (kind != CACHE_STEP_DECODE || n > base->ahead_most_tokens) cache_forget_ahead(cache);
    base->plan.ready = base->n_ahead < base->plan.seal ? base->n_ahead : base->plan.seal;
    rates_begin_step(base);
    status = base->shape.ranks
                 ? block_table_deal(&base->pages, &base->shape, plan_first_sealed(&base->plan), base->step_sets, error)
                 : block_table_reserve(&base->pages, base->pages.n_sealed + base->step_sets, error);
    if (status) return status;
    block_table_assign(&base->pages, &base->plan, base->prompt_end);
    return read_lists_begin(&base->reads, &base->pages, &base->plan, &base->method, base->n_anchors, error);
}

struct page_set *cache_next_ahead(struct cache *cache) {
    struct cache_base *base = cache_base(cache);
    if (base->n_ahead >= cache_pages_ahead(base, &base->plan)) return NULL;
    struct page_set *set = &base->pages.sets[base->pages.n_sealed + base->n_ahead];
    set->first = base->extent.window_first + base->n_ahead * PAGE_TOKENS;
    set->count = PAGE_TOKENS;
    set->generated = set->first >= base->prompt_end;
    base->n_ahead++;
    return set;
}

enum terse_status cache_check_layer(const struct cache *cache, uint32_t layer, struct terse_error *error) {
    const struct cache_base *base = cache_base_of(cache);
    if (base->in_step && layer >= base->layers_ended && layer < base->shape.layers) return TERSE_OK;
    return status_fail(error, TERSE_E_ARGUMENT, "layer %" PRIu32 " of %" PRIu32 " out of order", layer, base->shape.layers);
}

enum terse_status cache_check_queries(const struct cache *cache, size_t first, size_t count, struct terse_error *error) {
    const struct cache_base *base = cache_base_of(cache);
    if (!base->in_step || base->layer == NO_LAYER)
        return status_fail(error, TERSE_E_ARGUMENT, "queries of a layer without its keys and values");
    if (first <= base->plan.n && count <= base->plan.n - first) return TERSE_OK;
    return status_fail(error, TERSE_E_ARGUMENT, "queries %zu to %zu of a step of %zu tokens", first, first + count, base->plan.n);
}

enum terse_status cache_check_commit(const struct cache *cache, struct terse_error *error) {
    const struct cache_base *base = cache_base_of(cache);
    if (base->in_step && base->layers_ended >= base->shape.layers) return TERSE_OK;
    return status_fail(error, TERSE_E_ARGUMENT, "the end of a step after %" PRIu32 " of %" PRIu32 " layers", base->layers_ended,
                       base->shape.layers);
}

void cache_advance(struct cache *cache) {
    struct cache_base *base = cache_base(cache);
    const struct plan *plan = &base->plan;
    base->n_ahead -= plan->ready;
    base->in_step = false;
    rates_end_step(base);
    fitted_end_step(base);
    recurrent_end_step(base);
    base->fitted_ready |= plan->seal > 0;
    base->pages.n_sealed += plan->seal;
    base->n_anchors += plan->anchors;
    base->extent = plan->after;
    if (plan->kind != CACHE_STEP_DECODE) base->prompt_end = base->extent.length;
    drop_pages(cache, 0, block_table_evicted(&base->pages, base->extent.first));
}

/* ---- Accounting */

/* Counts the page sets that are held, their bytes, those of them that others hold too, and the entries of the block table. */
struct page_counts {
    uint64_t sets, bytes, shared, table;
};

static void fill_report(const struct cache_shape *shape, const struct cache_bytes *bytes, const struct extent *extent,
                        const struct page_counts *pages, uint64_t recurrent, struct terse_cache_report *report) {
    *report = (struct terse_cache_report){.tokens = extent->length, .kept = extent_kept(extent)};
    report->codes = pages->bytes;
    report->shared = pages->shared;
    report->window = bytes->window;
    report->exact = bytes->exact;
    report->tables = bytes->tables + pages->table * sizeof(struct page_set) + pages->sets * sizeof(uint32_t);
    report->codebook = bytes->codebook;
    report->recurrent = recurrent;
    report->resident = report->codes + report->exact + report->window + report->tables + report->recurrent;
    double values = (double)extent->length * (double)cache_token_values(shape);
    report->bits_per_value = values > 0 ? (double)report->resident * 8 / values : 0;
}

/* Counts the tokens that are held at each rate. */
static void report_rates(const struct cache_base *base, struct terse_cache_report *report) {
    if (rates_of(base) == 1) return;
    report->n_rates = rates_of(base);
    for (uint32_t rate = 0; rate < report->n_rates; rate++) report->rates[rate] = (float)base->rates.bits[rate];
    for (size_t i = 0; i < base->pages.n_sealed; i++) report->rate_tokens[base->pages.sets[i].rate] += base->pages.sets[i].count;
}

void cache_report(const struct cache *cache, struct terse_cache_report *report) {
    const struct cache_base *base = cache_base_of(cache);
    const struct block_table *table = &base->pages;
    struct cache_bytes bytes = {0};
    base->storage->bytes(cache, &bytes);
    const struct page_counts pages = {block_table_here(table), block_table_bytes(table), block_table_shared_bytes(table),
                                      table->capacity};
    fill_report(&base->shape, &bytes, &base->extent, &pages, recurrent_held_bytes(base), report);
    report_rates(base, report);
}

void cache_predict(const struct kv_storage *storage, const struct cache_shape *shape, const struct method *method, uint64_t tokens,
                   struct terse_cache_report *report) {
    cache_predict_parts(storage, shape, method, plan_part(method, &(struct extent){0}, (size_t)tokens), tokens, report);
}

void cache_predict_parts(const struct kv_storage *storage, const struct cache_shape *shape, const struct method *method,
                         uint64_t first, uint64_t tokens, struct terse_cache_report *report) {
    struct plan plan = plan_step(method, &(struct extent){0}, CACHE_STEP_PREFILL, (size_t)first);
    struct cache_bytes bytes = {0};
    size_t pages = plan.seal, here = deal_pages(shape, plan_first_sealed(&plan), plan.seal);
    if (first < tokens) {
        plan = plan_step(method, &plan.after, CACHE_STEP_PREFILL, (size_t)(tokens - first));
        pages += plan.seal; /* those that the second step evicts stay allocated */
        here += deal_pages(shape, plan_first_sealed(&plan), plan.seal);
    }
    storage->bytes_after(shape, method, &plan, &bytes);
    fill_report(shape, &bytes, &plan.after, &(struct page_counts){here, here * bytes.page_set, 0, pages},
                recurrent_count(method->parameters.exact, tokens) * recurrent_bytes(shape), report);
}

/* ---- Truncating */

/* Returns the first token from which on none was evicted. */
static uint64_t first_complete(const struct cache_base *base) {
    const struct extent *extent = &base->extent;
    uint64_t first = extent->window_first;
    if (!extent->dropped && !extent_evicted(extent)) return 0;
    if (extent_evicted(extent)) return extent->length; /* and the policy counts on what has left */
    for (size_t i = base->pages.n_sealed; i-- > 0 && base->pages.sets[i].first + base->pages.sets[i].count == first;)
        first = base->pages.sets[i].first;
    return first;
}

/* Returns whether the next query after n tokens would find all that it sees. */
static bool window_held(const struct cache_base *base, uint64_t n) {
    return base->method.policy->retain(&base->method.parameters, n).first >= block_table_first(&base->pages, &base->extent);
}

static enum terse_status check_truncate(const struct cache *cache, uint64_t n, size_t *anchors, struct terse_error *error) {
    const struct cache_base *base = cache_base_of(cache);
    uint64_t length = base->extent.length;
    *anchors = 0;
    if (n > length)
        return status_fail(error, TERSE_E_ARGUMENT, "a sequence of %" PRIu64 " tokens cannot be cut at %" PRIu64, length, n);
    if (recurrent_restorable(base, n) != n)
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "the states of recurrent layers after %" PRIu64 " tokens are not kept, but after %" PRIu64, n,
                           recurrent_restorable(base, n));
    if (!n || (base->shape.window && window_held(base, n))) return TERSE_OK;
    if (base->shape.window && n < length)
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "layers of this model hold only what their sliding window of %" PRIu32
                           " tokens still sees, so the sequence cannot go back from %" PRIu64 " tokens to %" PRIu64
                           ": reset the session and read the text again",
                           base->shape.window, length, n);
    if (n < first_complete(base))
        return status_fail(error, TERSE_E_UNSUPPORTED,
                           "%s has evicted tokens, so the sequence cannot go back from %" PRIu64 " tokens to %" PRIu64
                           ": reset the session and read the text again",
                           base->method.name, length, n);
    if (!base->n_anchors || base->storage->anchors_before(cache, n, anchors)) return TERSE_OK;
    return status_fail(error, TERSE_E_UNSUPPORTED,
                       "%s has chosen its exact tokens among all of a prompt's, so the sequence cannot end at %" PRIu64
                       " among them: cut behind them, or reset the session and read the text again",
                       base->method.name, n);
}

/* Drops the sealed pages from token n on, and cuts a page in which n lies to the tokens before n. */
static void cut_pages(struct cache *cache, uint64_t n) {
    struct cache_base *base = cache_base(cache);
    size_t kept = base->pages.n_sealed;
    while (kept && base->pages.sets[kept - 1].first >= n) kept--;
    drop_pages(cache, kept, base->pages.n_sealed - kept);
    if (!kept) return;
    struct page_set *last = &base->pages.sets[kept - 1];
    if (last->first + last->count > n) last->count = (uint32_t)(n - last->first);
    pages_changed(cache, kept - 1);
}

enum terse_status cache_check_truncate(const struct cache *cache, uint64_t n, struct terse_error *error) {
    size_t anchors;
    return check_truncate(cache, n, &anchors, error);
}

enum terse_status cache_truncate(struct cache *cache, uint64_t n, struct terse_error *error) {
    struct cache_base *base = cache_base(cache);
    struct extent *extent = &base->extent;
    size_t anchors;
    enum terse_status status = check_truncate(cache, n, &anchors, error);
    if (status || n == extent->length) return status;
    if (!n) {
        cache_reset(cache);
        return TERSE_OK;
    }
    synchronize(cache);
    base->in_step = false;
    rates_end_step(base);
    if (n < extent->window_first) {
        cut_pages(cache, n);
        extent->window_first = n;
    }
    if (!base->pages.n_sealed) {
        drop_fitted(cache);
        base->pages.rate = 0;
    }
    if (n < extent->exact) extent->exact = extent->first = n;
    recurrent_restore(base, n);
    if (base->shape.window) extent->first = base->method.policy->retain(&base->method.parameters, n).first;
    extent->length = n;
    base->n_anchors = anchors;
    if (base->prompt_end > n) base->prompt_end = n;
    return TERSE_OK;
}

static uint64_t common_prefix(const struct cache *cache, uint64_t n, uint64_t prompt) {
    const struct cache_base *base = cache_base_of(cache);
    return block_table_common_prefix(&base->pages, &base->method, &base->extent, base->storage->fit_tokens(cache), n, prompt);
}

/* Returns whether another sequence may begin with the first n tokens, which it has in common with this one: whether the state of
 * recurrent layers is there, and pages end there as the other's would. */
static bool may_begin_at(const struct cache *cache, uint64_t n, uint64_t prompt) {
    const struct cache_base *base = cache_base_of(cache);
    if (recurrent_restorable(base, n) != n) return false;
    return !recurrent_bytes(&base->shape) || block_table_ends_at(&base->pages, n) || common_prefix(cache, n, prompt) == n;
}

uint64_t cache_common_prefix(const struct cache *cache, uint64_t n, uint64_t prompt) {
    const struct cache_base *base = cache_base_of(cache);
    uint64_t common = common_prefix(cache, n, prompt);
    while (common && common < base->extent.length && !may_begin_at(cache, common, prompt))
        common = recurrent_restorable(base, common - 1);
    return common;
}

/* ---- Forking */

enum terse_status cache_fork(const struct cache *cache, struct cache **copy, struct terse_error *error) {
    const struct cache_base *from = cache_base_of(cache);
    const struct method method = fitted_method_without(from);
    struct cache *made;
    *copy = NULL;
    if (from->in_step && from->layers_ended)
        return status_fail(error, TERSE_E_ARGUMENT, "a cache in the middle of a step cannot be forked");
    enum terse_status status = from->storage->create(&from->shape, &method, from->threads, &made, error);
    if (status) return status;
    struct cache_base *base = cache_base(made);
    if (from->budget) status = cache_limit(made, from->budget, error);
    if (!status) status = block_table_share(&base->pages, &from->pages, error);
    if (!status) status = fitted_copy(base, from, error);
    if (!status && base->fitted.layouts) status = base->storage->layouts_changed(made, error);
    if (!status) {
        base->extent = from->extent;
        base->prompt_end = from->prompt_end;
        recurrent_share(base, from);
        base->fitted_ready = from->fitted_ready;
        status = from->storage->copy(made, cache, error);
    }
    if (status) {
        from->storage->destroy(made);
        return status;
    }
    *copy = made;
    return TERSE_OK;
}

/* ---- The map of tokens: which share of each part of the sequence is exact, compressed, evicted */

#define ADD(map, member, begin, end, share) token_map_add(map, offsetof(struct terse_token_share, member), begin, end, share)

/* Returns which share of a token in a sealed page is exact: a half for each side whose codec is exact. */
static double exact_sides(const struct cache_base *base) {
    const bool keys = base->method.key.codec->exact, values = base->shape.latents ? keys : base->method.value.codec->exact;
    return 0.5 * keys + 0.5 * values;
}

static void add_sealed(const struct cache_base *base, double weight, const struct token_map *map) {
    double exact = exact_sides(base);
    for (size_t i = 0; i < base->pages.n_sealed; i++) {
        const struct page_set *set = &base->pages.sets[i];
        uint64_t end = set->first + set->count, begin = set->first < base->extent.first ? base->extent.first : set->first;
        ADD(map, exact, begin, end, weight * exact);
        ADD(map, compressed, begin, end, weight * (1 - exact));
    }
}

/* Adds anchors, which are exact in place of their codes, or are all that is left of a prompt. */
static void add_anchors(const struct cache *cache, double weight, const struct token_map *map) {
    const struct cache_base *base = cache_base_of(cache);
    const double share = 0.5 * weight / (double)cache_heads_of(&base->shape);
    const bool alone = base->method.policy->keep_selected_only;
    uint32_t *tokens = base->n_anchors ? malloc(base->n_anchors * sizeof *tokens) : NULL;
    for (size_t i = 0; tokens && i < 2 * cache_heads_of(&base->shape); i++) {
        uint32_t head = (uint32_t)(i / 2);
        if (!base->storage->anchor_tokens(cache, head / base->shape.kv_heads, head % base->shape.kv_heads,
                                          i % 2 ? CODEC_VALUES : CODEC_KEYS, tokens))
            break;
        for (size_t a = 0; a < base->n_anchors; a++) {
            uint64_t token = tokens[a];
            if (!alone && token < base->extent.first) continue; /* evicted with its page */
            ADD(map, exact, token, token + 1, share);
            if (!alone) ADD(map, compressed, token, token + 1, -share);
        }
    }
    free(tokens);
}

void cache_map_add(const struct cache *cache, double weight, const struct token_map *map) {
    const struct cache_base *base = cache_base_of(cache);
    const struct extent *extent = &base->extent;
    ADD(map, exact, 0, extent->exact, weight);
    add_sealed(base, weight, map);
    ADD(map, exact, extent->window_first > extent->first ? extent->window_first : extent->first, extent->length, weight);
    add_anchors(cache, weight, map);
}

void cache_map_end(const struct cache *cache, double weight, const struct token_map *map) {
    const struct kv_storage *storage = cache_base_of(cache)->storage;
    for (size_t i = 0; i < map->n; i++) map->shares[i].read = map->shares[i].exact + map->shares[i].compressed;
    if (storage->add_skipped) storage->add_skipped(cache, weight, map);
    token_map_end(map);
}

bool cache_map_begin(const struct cache *cache, struct terse_token_share *shares, size_t n, struct token_map *map) {
    const struct cache_base *base = cache_base_of(cache);
    *map = (struct token_map){shares, n, base->extent.length};
    memset(shares, 0, n * sizeof *shares);
    return map->length && n && !base->in_step;
}

void cache_map(const struct cache *cache, struct terse_token_share *shares, size_t n) {
    struct token_map map;
    if (!cache_map_begin(cache, shares, n, &map)) return;
    cache_map_add(cache, 1, &map);
    cache_map_end(cache, 1, &map);
}
