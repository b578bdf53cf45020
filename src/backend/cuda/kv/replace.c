/* Replaces exact rows: finds where the tokens lie that leave the window. A token that leaves a sealed page is read from the page
 * decoded, which is done once for all 64 of them. */
#include "backend/cuda/kv/replace.h"

#include "backend/cuda/kv/encode.h"
#include "backend/cuda/kv/kept.h"
#include "backend/cuda/kv/victims.h"
#include "backend/cuda/kv/views.h"
#include "base/size.h"

_Static_assert(FRESH_LOGITS >= DECODE_TOKENS_MOST, "logits of a step lie apart");

#define NO_PAGE UINT64_MAX

/* ---- Memory */

static size_t moves_bytes(const struct cache_shape *shape, const struct method *method) {
    return cache_heads_of(shape) * ((size_t)method->parameters.exact + 1) * sizeof(uint32_t);
}
static size_t fresh_bytes(const struct cache_shape *shape) {
    return (size_t)shape->layers * shape->query_heads * FRESH_LOGITS * sizeof(float);
}
static size_t page_bytes(const struct cache_shape *shape) {
    return cache_heads_of(shape) * 2 * PAGE_TOKENS * shape->head_dim * sizeof(device_half);
}

size_t replacing_bytes(const struct cache_shape *shape, const struct method *method) {
    return replaces_rows(method) ? moves_bytes(shape, method) + fresh_bytes(shape) + page_bytes(shape) : 0;
}

enum terse_status replacing_new(struct cache *cache, struct terse_error *error) {
    const struct cache_shape *shape = &cache->base.shape;
    const struct method *method = &cache->base.method;
    struct replacing *r = &cache->replacing;
    static const char what[] = "what takes the place of exact tokens";
    if (!replaces_rows(method)) return TERSE_OK;
    r->page_first = NO_PAGE;
    if (!(r->moves = device_alloc(cache->base.budget, moves_bytes(shape, method), what, error)) ||
        !(r->fresh = device_alloc(cache->base.budget, fresh_bytes(shape), what, error)) ||
        !(r->page = device_alloc(cache->base.budget, page_bytes(shape), what, error)))
        return TERSE_E_MEMORY;
    enum terse_status status = item_list_reserve(&r->item, 1, error); /* a commit must not be refused memory */
    return status ? status
                  : device_check(cudaMemsetAsync(r->fresh, 0, fresh_bytes(shape), device_stream()), "clearing the KV cache", error);
}

void replacing_free(struct cache *cache) {
    const struct cache_shape *shape = &cache->base.shape;
    struct replacing *r = &cache->replacing;
    device_free(cache->base.budget, r->moves, moves_bytes(shape, &cache->base.method));
    device_free(cache->base.budget, r->fresh, fresh_bytes(shape));
    device_free(cache->base.budget, r->page, page_bytes(shape));
    item_list_free(&r->item);
}

void replacing_forget(struct cache *cache) { cache->replacing.page_first = NO_PAGE; }

/* ---- The choice */

uint64_t replacing_first(const struct plan *plan) {
    return plan->before.first > plan->after.exact ? plan->before.first : plan->after.exact;
}

/* Returns the choice in layers [layer, layer + n) of these rows, without the tokens that leave. */
static struct victims victims_of(const struct cache *cache, const struct exact_rows *exact, uint32_t layer, uint32_t n) {
    const struct plan *plan = &cache->base.plan;
    const struct policy_parameters *parameters = &cache->base.method.parameters;
    const size_t at = (size_t)layer * cache->base.shape.kv_heads, hd = cache->base.shape.head_dim, rows = parameters->exact;
    return (struct victims){.heads = cache->heads,
                            .rotary = cache->tables->rotary,
                            .first_layer = layer,
                            .n_layers = n,
                            .exact = parameters->exact,
                            .budget = parameters->budget,
                            .shallow = parameters->shallow,
                            .sinks = SINKS,
                            .rows = exact->rows + at * 2 * rows * hd,
                            .unrotated = exact->unrotated + at * rows * hd,
                            .logits = exact->logits + at * parameters->budget,
                            .moves = cache->replacing.moves + at * (rows + 1),
                            .first_new = (uint32_t)plan->before.length,
                            .filled = (uint32_t)plan->before.exact,
                            .fills = (uint32_t)plan->after.exact,
                            .note = (uint32_t)(plan->before.length > plan->after.first ? plan->before.length : plan->after.first),
                            .note_end = (uint32_t)plan->after.length};
}

/* ---- Decoding */

/* Decodes a page set in all layers, unless that was done already. */
static enum terse_status decode_page(struct cache *cache, const struct page_set *set, struct terse_error *error) {
    const size_t hd = cache->base.shape.head_dim;
    struct replacing *r = &cache->replacing;
    if (r->page_first == set->first) return TERSE_OK;
    r->item.host[0] = (struct encode_item){
        .set = cache_page_view(set), .rows = {r->page, r->page + PAGE_TOKENS * hd}, .rate = cache_rate_view(cache, set->rate)};
    enum terse_status status = item_list_upload(&r->item, 1, error);
    if (status) return status;
    struct encode encode = cache_encode(cache, &r->item, 0, cache->base.shape.layers);
    encode.token_stride = hd;
    encode.head_stride = 2 * PAGE_TOKENS * hd;
    encode.layer_stride = cache->base.shape.kv_heads * encode.head_stride;
    status = device_check(decode_pages(&encode, device_stream()), "reading a token that leaves", error);
    r->page_first = status ? NO_PAGE : set->first;
    return status;
}

/* Finds where token `from` lies, and as many up to `end` as lie there with it. */
static enum terse_status find_leaving(struct cache *cache, uint64_t from, uint64_t end, struct leaving_tokens *leave,
                                      struct terse_error *error) {
    const struct block_table *table = &cache->base.pages;
    const size_t hd = cache->base.shape.head_dim, heads = cache->base.shape.kv_heads;
    const struct page_set *set = table->sets;
    *leave = (struct leaving_tokens){.from = (uint32_t)from, .token_stride = hd};
    if (from >= cache->base.plan.before.window_first) {
        leave->count = (uint32_t)(end - from);
        leave->source[CODEC_KEYS] = cache->window;
        leave->source[CODEC_VALUES] = cache->window + window_side_halves(cache);
        leave->origin = (uint32_t)cache->window_origin;
        leave->capacity = cache->window_capacity;
        leave->head_stride = 2 * window_side_halves(cache);
    } else {
        while (set->first + set->count <= from) set++;
        leave->count = (uint32_t)(size_min((size_t)end, (size_t)(set->first + set->count)) - from);
        leave->source[CODEC_KEYS] = cache->replacing.page;
        leave->source[CODEC_VALUES] = cache->replacing.page + PAGE_TOKENS * hd;
        leave->origin = (uint32_t)set->first;
        leave->capacity = PAGE_TOKENS;
        leave->head_stride = 2 * PAGE_TOKENS * hd;
    }
    leave->layer_stride = heads * leave->head_stride;
    return from < cache->base.plan.before.window_first ? decode_page(cache, set, error) : TERSE_OK;
}

enum terse_status replacing_commit(struct cache *cache, struct terse_error *error) {
    const struct plan *plan = &cache->base.plan;
    uint64_t from = replacing_first(plan);
    const uint64_t end = plan->after.first;
    if (!plan->replaces) return TERSE_OK;
    struct victims victims = victims_of(cache, &cache->exact, 0, cache->base.shape.layers);
    const uint32_t note_end = victims.note_end;
    victims.fresh = cache->replacing.fresh;
    victims.fresh_capacity = FRESH_LOGITS;
    do {
        enum terse_status status = from < end ? find_leaving(cache, from, end, &victims.leave, error) : TERSE_OK;
        from += victims.leave.count;
        victims.note_end = from < end ? victims.note : note_end; /* they take the places of those of tokens that leave */
        if (!status) status = device_check(replace_victims(&victims, device_stream()), "replacing exact tokens", error);
        if (status) return status;
        victims.filled = victims.fills;
    } while (from < end);
    return TERSE_OK;
}

/* ---- Prompts: logits[Hq][plan.n] of a layer's queries to token 0 are the step's scratch. */

enum terse_status replacing_reserve(struct cache *cache, struct terse_error *error) {
    if (!cache->base.plan.replaces) return TERSE_OK;
    kept_release(cache);
    cache->choice_bytes = cache->base.plan.n * cache->base.shape.query_heads * sizeof(float);
    if (!(cache->choice = device_alloc(NULL, cache->choice_bytes, "logits to the first token", error))) return TERSE_E_MEMORY;
    return exact_copy(cache, &cache->chosen, error);
}

cudaError_t replacing_begin_layer(const struct cache *cache) {
    return cache->base.plan.replaces ? cudaMemsetAsync(cache->choice, 0, cache->choice_bytes, device_stream()) : cudaSuccess;
}

cudaError_t replacing_observe(const struct cache *cache, const float *q, size_t first, size_t count) {
    const struct plan *plan = &cache->base.plan;
    const size_t exact = cache_first_exact(cache), at = (size_t)cache->base.layer * cache->base.shape.kv_heads * exact;
    if (!plan->replaces) return cudaSuccess;
    const struct first_logits logits = {.heads = cache->heads,
                                        .rotary = cache->tables->rotary,
                                        .q = q,
                                        .n = (uint32_t)count,
                                        .exact = (uint32_t)exact,
                                        .moved = (uint32_t)plan_evicted(plan),
                                        .unrotated = cache->chosen.unrotated + at * cache->base.shape.head_dim,
                                        .logits = cache->choice,
                                        .at = (uint32_t)first,
                                        .capacity = (uint32_t)plan->n};
    return find_first_logits(&logits, device_stream());
}

cudaError_t replacing_seal(const struct cache *cache, uint32_t layer, const device_half *k, const device_half *v) {
    const struct plan *plan = &cache->base.plan;
    const uint64_t from = replacing_first(plan);
    if (!plan->replaces) return cudaSuccess;
    struct victims victims = victims_of(cache, &cache->chosen, layer, 1);
    victims.fresh = cache->choice;
    victims.fresh_origin = (uint32_t)plan->before.length;
    victims.fresh_capacity = (uint32_t)plan->n;
    victims.leave = (struct leaving_tokens){.from = (uint32_t)from,
                                            .count = plan->after.first > from ? (uint32_t)(plan->after.first - from) : 0,
                                            .source = {k, v},
                                            .origin = (uint32_t)from,
                                            .capacity = UINT32_MAX,
                                            .head_stride = cache->base.shape.head_dim,
                                            .token_stride = cache_shape_kv_width(&cache->base.shape)};
    return replace_victims(&victims, device_stream());
}
