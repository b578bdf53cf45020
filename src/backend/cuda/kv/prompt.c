/* Computes steps of many tokens: makes a layer's keys and values rows of halves, in order of their tokens, those of sealed pages
 * decoded, then those of the window and the new ones; attends to them exactly; and seals the pages of new tokens.
 *
 * The row of token t is t itself while none was evicted. Otherwise evicted tokens have no row, so that rows follow one another as
 * positions do, but tokens that were kept of a prompt (SnapKV) stand in front of all pages, wherever they came from: attention does
 * not need their positions. Nor have tokens of sealed pages that other ranks hold a row. Once there are such pages, each rank attends
 * to its own sealed pages, rank 0 also to all else, and what they get is merged (exchange.h). */
#include "backend/cuda/kv/prompt.h"

#include "backend/cuda/kv/anchors.h"
#include "backend/cuda/kv/attend_prefill.h"
#include "backend/cuda/kv/encode_kernels.h"
#include "backend/cuda/kv/exchange.h"
#include "backend/cuda/kv/kept.h"
#include "backend/cuda/kv/replace.h"
#include "backend/cuda/kv/views.h"
#include "base/memory.h"
#include "base/size.h"
#include "kv/deal.h"

/* Counts the rows of the tokens before the step. */
static size_t rows_before(const struct cache *cache) { return (size_t)plan_kept(&cache->base.plan) - cache->rows_elsewhere; }
/* Returns the row of a token of the window or of the step. */
static int64_t row_of(const struct cache *cache, uint64_t token) {
    return (int64_t)rows_before(cache) - (int64_t)(cache->base.plan.before.length - token);
}

/* ---- Memory */

static size_t rows_bytes(const struct cache *cache, size_t rows) {
    return (rows + ROWS_IN_FRONT) * cache_shape_kv_width(&cache->base.shape) * sizeof(device_half);
}

static void release_places(struct cache *cache) {
    device_free(NULL, (void *)(uintptr_t)cache->places.spans, cache->span_capacity * sizeof *cache->places.spans);
    cache->places = (struct row_places){0};
    cache->span_capacity = 0;
}

void prompt_release(struct cache *cache) {
    release_places(cache);
    if (!cache->rows[CODEC_KEYS] && !cache->rows[CODEC_VALUES]) return;
    for (int side = 0; side < 2; side++) {
        device_free(NULL, cache->rows[side], rows_bytes(cache, cache->row_capacity));
        cache->rows[side] = NULL;
    }
    cache->row_capacity = 0;
}

static enum terse_status reserve_rows(struct cache *cache, struct terse_error *error) {
    size_t rows = rows_before(cache) + cache->base.plan.n;
    prompt_release(cache);
    cache->row_capacity = rows;
    for (int side = 0; side < 2; side++)
        if (!(cache->rows[side] = device_alloc(NULL, rows_bytes(cache, rows), "a layer's keys and values", error))) {
            prompt_release(cache);
            return TERSE_E_MEMORY;
        }
    return TERSE_OK;
}

static device_half *row_at(const struct cache *cache, int side, size_t row) {
    return cache->rows[side] + (ROWS_IN_FRONT + row) * cache_shape_kv_width(&cache->base.shape);
}

/* ---- Pages as items */

/* Returns a page as an item. The row of its first token is `row`: negative, but not below -ROWS_IN_FRONT, where the page's first
 * tokens are evicted. */
static struct encode_item item_of(const struct cache *cache, const struct page_set *set, int64_t row) {
    struct encode_item item = {.set = cache_page_view(set), .rate = cache_rate_view(cache, set->rate)};
    for (int side = 0; side < 2; side++)
        item.rows[side] = cache->rows[side] + (size_t)(ROWS_IN_FRONT + row) * cache_shape_kv_width(&cache->base.shape);
    return item;
}

static struct encode encode_of(const struct cache *cache, const struct item_list *list, uint32_t layer) {
    struct encode encode = cache_encode(cache, list, layer, 1);
    encode.token_stride = cache_shape_kv_width(&cache->base.shape);
    encode.head_stride = cache->base.shape.head_dim;
    return encode;
}

/* Makes items of the sealed pages, and of those that the step seals, that are here. */
static enum terse_status make_items(struct cache *cache, struct terse_error *error) {
    const struct plan *plan = &cache->base.plan;
    size_t sealed = cache->base.pages.n_sealed, stored = 0, seals = 0;
    enum terse_status status = item_list_reserve(&cache->stored, sealed, error);
    if (!status) status = item_list_reserve(&cache->sealed, plan->seal, error);
    if (status) return status;
    int64_t row = row_of(cache, plan->before.window_first); /* which follows the last page */
    for (size_t i = sealed; i-- > 0;) {
        const struct page_set *set = &cache->base.pages.sets[i];
        if (!page_set_is_here(set)) continue;
        row -= (int64_t)set->count;
        cache->stored.host[stored++] = item_of(cache, set, row);
    }
    for (size_t i = 0; i < plan->seal; i++) {
        const struct page_set *set = &cache->base.pages.sets[sealed + i];
        if (page_set_is_here(set)) cache->sealed.host[seals++] = item_of(cache, set, row_of(cache, set->first));
    }
    if ((status = item_list_upload(&cache->stored, stored, error))) return status;
    return item_list_upload(&cache->sealed, seals, error);
}

static size_t count_elsewhere(const struct cache *cache) {
    const struct block_table *pages = &cache->base.pages;
    size_t rows = 0;
    for (size_t i = 0; i < pages->n_sealed; i++) rows += page_set_is_here(&pages->sets[i]) ? 0 : pages->sets[i].count;
    return rows;
}

/* Returns whether pages that the step's queries attend to are dealt to ranks. */
static bool exchanges(const struct cache *cache) { return cache->base.shape.ranks && cache->base.pages.n_sealed; }
/* Returns whether the step's new tokens are read from their pages, their own queries included. */
static bool reads_pages(const struct cache *cache) { return cache->base.plan.kind == CACHE_STEP_PAPER; }
/* Returns whether queries read decoded rows of the step's own pages that other ranks have. */
static bool shares_codes(const struct cache *cache) {
    return cache->base.shape.ranks && reads_pages(cache) && cache->base.plan.seal;
}

/* ---- Places of rows */

/* Adds a span, unless its rows go on as those of the last one do. */
static size_t add_span(struct row_span *spans, size_t n, size_t row, uint64_t token) {
    const struct row_span span = {(uint32_t)row, (uint32_t)token};
    if (n && span.token - span.row == spans[n - 1].token - spans[n - 1].row) return n;
    spans[n] = span;
    return n + 1;
}

/* Writes which tokens the rows are: the first exact ones, then those of the pages that are here, the window's and the step's. */
static size_t list_spans(const struct cache *cache, struct row_span *spans) {
    const struct plan *plan = &cache->base.plan;
    size_t n = add_span(spans, 0, 0, 0), row = (size_t)plan->before.exact;
    for (size_t i = 0; i < cache->base.pages.n_sealed; i++) {
        const struct page_set *set = &cache->base.pages.sets[i];
        if (!page_set_is_here(set)) continue;
        n = add_span(spans, n, row, set->first);
        row += set->count;
    }
    return add_span(spans, n, row, plan->before.window_first);
}

/* Sends the places of rows, where pages are dealt and ALiBi or anchors ask for them. */
static enum terse_status place_rows(struct cache *cache, struct terse_error *error) {
    const size_t most = cache->base.pages.n_sealed + 2, bytes = most * sizeof(struct row_span);
    if (!exchanges(cache) || (!cache->base.shape.slopes && !cache->base.n_anchors)) return TERSE_OK;
    struct row_span *spans = memory_array(most, sizeof *spans), *to;
    if (!spans) return status_no_memory(error, bytes, "a prompt's rows");
    const size_t n = list_spans(cache, spans);
    enum terse_status status = TERSE_E_MEMORY;
    if ((to = device_alloc(NULL, bytes, "a prompt's rows", error))) {
        cache->places = (struct row_places){to, (uint32_t)n};
        cache->span_capacity = most;
        status = device_check(device_send(to, spans, n * sizeof *spans), "sending a prompt's rows", error);
    }
    memory_free(spans);
    return status;
}

void prompt_pages_changed(struct cache *cache) {
    if (!cache->base.in_step || !cache->rows[CODEC_KEYS]) return;
    (void)make_items(cache, NULL); /* it has the memory already */
    (void)kv_anchors_list_pages(cache, NULL);
}

enum terse_status prompt_reserve(struct cache *cache, struct terse_error *error) {
    cache->rows_elsewhere = count_elsewhere(cache);
    enum terse_status status = reserve_rows(cache, error); /* which gives up what another step has left */
    if (!status) status = place_rows(cache, error);
    if (!status && (exchanges(cache) || shares_codes(cache)))
        status =
            rank_exchange_reserve(&cache->exchange, &cache->base.shape,
                                  shares_codes(cache) ? EXCHANGE_ROWS : size_min(cache->base.plan.n, EXCHANGE_ROWS), NULL, error);
    if (!status) status = kept_reserve(cache, cache->row_capacity, error);
    if (!status) status = kv_anchors_reserve(cache, error);
    if (!status) status = make_items(cache, error);
    if (!status) status = kv_anchors_list_pages(cache, error);
    if (!status) status = replacing_reserve(cache, error);
    if (status) {
        kept_release(cache);
        return status;
    }
    struct sequence_view view = cache_view(cache);
    if (cache->base.plan.replaces) { /* until the step is committed */
        view.exact = cache->chosen.rows;
        view.unrotated = cache->chosen.unrotated;
    }
    return device_check(cudaMemcpyAsync(cache->view, &view, sizeof view, cudaMemcpyHostToDevice, device_stream()),
                        "sending a prompt's step", error);
}

/* ---- A layer */

static struct layer_rows layer_rows(const struct cache *cache, uint32_t layer) {
    return (struct layer_rows){.heads = cache->heads,
                               .rotary = cache->tables->rotary,
                               .layer = layer,
                               .k = row_at(cache, CODEC_KEYS, 0),
                               .v = row_at(cache, CODEC_VALUES, 0),
                               .sequence = cache->view};
}

/* Returns whether no query sees the exact rows any more, as in layers that slide: other tokens' rows are not moved next to them. */
static bool slid_on(const struct plan *plan) { return plan_evicted(plan) && !plan->by_index; }

/* Copies what the sequence has stored to rows, including evicted tokens of the first page and of the window, since sealing them
 * reads numbers. The exact rows come last, since evicted tokens may lie where they belong; where they are not seen, evicted tokens
 * stay there, by which kivi's scales are the CPU's. */
static cudaError_t read_stored(const struct cache *cache, uint32_t layer) {
    const struct plan *plan = &cache->base.plan;
    const uint64_t window = plan->before.window_first;
    const bool beside = anchors_have_codes(&cache->base.method);
    struct layer_rows rows = layer_rows(cache, layer);
    struct encode encode = encode_of(cache, &cache->stored, layer);
    cudaError_t result = encode.n ? decode_pages(&encode, device_stream()) : cudaSuccess;
    if (result == cudaSuccess)
        result = rows_from_window(&rows, window, (size_t)(plan->before.length - window), row_of(cache, window), device_stream());
    if (result == cudaSuccess && !slid_on(plan))
        result = rows_from_exact(&rows, (size_t)plan->before.exact + (beside ? 0 : cache->base.n_anchors), plan_evicted(plan),
                                 device_stream());
    return result == cudaSuccess && beside ? kv_anchors_spread(cache, layer, (device_half *[2]){rows.k, rows.v}) : result;
}

/* Fits codec sign and index sign to the keys of the step's sealed tokens that are new, or where they are less than a page to those of the
 * first page, as the CPU does. */
static cudaError_t learn_layer(const struct cache *cache, uint32_t layer) {
    const struct plan *plan = &cache->base.plan;
    const uint64_t first = plan_first_sealed(plan), end = first + plan->sealed, length = plan->before.length;
    uint64_t from = first > length ? first : length, n = end - from;
    if (end < from + PAGE_TOKENS) from = first, n = size_min((size_t)plan->sealed, PAGE_TOKENS);
    const struct fit_sign fit = cache_fit_sign(
        cache, layer, 1, row_at(cache, CODEC_KEYS, 0) + row_of(cache, from) * (int64_t)cache_shape_kv_width(&cache->base.shape),
        (size_t)n, cache_shape_kv_width(&cache->base.shape), cache->base.shape.head_dim, 0);
    return fit_sign(&fit, device_stream());
}

static cudaError_t seal_layer(struct cache *cache, uint32_t layer) {
    struct encode encode = encode_of(cache, &cache->sealed, layer);
    if (!cache->base.plan.seal) return cudaSuccess;
    const cudaError_t result = cache_fit_pending(&cache->base) ? learn_layer(cache, layer) : cudaSuccess;
    return result == cudaSuccess ? encode_pages(&encode, device_stream()) : result;
}

/* Exchanges the decoded rows of the step's tokens, so that this rank has those of the others' pages, too. */
static enum terse_status exchange_codes(const struct cache *cache, struct terse_error *error) {
    const uint64_t first = plan_first_sealed(&cache->base.plan), end = first + cache->base.plan.sealed;
    enum terse_status status = TERSE_OK;
    for (uint64_t t = first; t < end && !status; t += EXCHANGE_ROWS)
        for (int side = 0; side < 2 && !status; side++)
            status = rank_exchange_rows(&cache->exchange, &cache->base.shape, t, size_min((size_t)(end - t), EXCHANGE_ROWS),
                                        row_at(cache, side, (size_t)row_of(cache, t)), error);
    return status;
}

/* Encodes the step's pages and decodes them again over the rows that attention reads, but for anchors. */
static enum terse_status code_rows(struct cache *cache, uint32_t layer, struct terse_error *error) {
    const struct encode encode = encode_of(cache, &cache->sealed, layer);
    const size_t sealed = (size_t)row_of(cache, plan_first_sealed(&cache->base.plan));
    const struct layer_rows rows = layer_rows(cache, layer);
    if (!cache->base.plan.seal) return TERSE_OK;
    enum terse_status status = device_check(seal_layer(cache, layer), "sealing a prompt's layer", error);
    if (!status)
        status = kv_anchors_choose(cache, layer, row_at(cache, CODEC_KEYS, sealed), row_at(cache, CODEC_VALUES, sealed), error);
    if (status) return status;
    cudaError_t result = encode.n ? decode_pages(&encode, device_stream()) : cudaSuccess;
    if (result == cudaSuccess && cache->base.plan.anchors)
        result = kv_anchors_spread_chosen(cache, layer, (device_half *[2]){rows.k, rows.v});
    status = device_check(result, "reading a prompt's codes", error);
    return !status && shares_codes(cache) ? exchange_codes(cache, error) : status;
}

enum terse_status prompt_append(struct cache *cache, const struct kv_rows *rows, struct terse_error *error) {
    const struct layer_rows to = layer_rows(cache, rows->layer);
    const size_t first = rows->first, count = rows->count;
    bool last = first + count == cache->base.plan.n;
    if (!cache->base.in_step || first + count > cache->base.plan.n)
        return status_fail(error, TERSE_E_ARGUMENT, "tokens %zu to %zu of a step of %zu", first, first + count, cache->base.plan.n);
    enum terse_status status = first ? TERSE_OK : cache_check_layer(cache, rows->layer, error);
    if (status) return status;
    cache->base.layer = rows->layer;
    cudaError_t result = first ? cudaSuccess : read_stored(cache, rows->layer);
    if (result == cudaSuccess && !first) result = kv_anchors_begin_layer(cache);
    if (result == cudaSuccess && !first) result = replacing_begin_layer(cache);
    if (result == cudaSuccess)
        result = append_rows(&to, rows->k, rows->v, count, cache->base.plan.before.length + first, rows_before(cache) + first,
                             device_stream());
    status = device_check(result, "storing a prompt's keys and values", error);
    return !status && last && reads_pages(cache) && !cache->base.plan.anchors ? code_rows(cache, rows->layer, error) : status;
}

/* Returns the attention of rotated queries, whose outputs go to `out`. */
static struct attend_prefill attention_of(const struct cache *cache, const struct kv_rows *rows, float *out) {
    const struct plan *plan = &cache->base.plan;
    return (struct attend_prefill){.heads = cache->heads,
                                   .layer = rows->layer,
                                   .q = rows->q,
                                   .n = rows->count,
                                   .first_query = rows_before(cache) + rows->first,
                                   .k = row_at(cache, CODEC_KEYS, 0),
                                   .v = row_at(cache, CODEC_VALUES, 0),
                                   .begin = slid_on(plan) ? (size_t)plan->before.exact : 0,
                                   .places = cache->places,
                                   .out = out,
                                   .parts = cache->tables->prefill_parts};
}

/* Rotates queries in place and shows them to the choices that follow from queries alone: by rank, and of exact rows. */
static enum terse_status take_queries(const struct cache *cache, const struct kv_rows *rows, struct terse_error *error) {
    enum terse_status status = cache_check_queries(cache, rows->first, rows->count, error);
    if (status) return status;
    cudaError_t result = rotate_rows(&cache->heads, &cache->tables->rotary, cache->base.shape.query_heads, rows->q, rows->count,
                                     cache->base.plan.before.length + rows->first, device_stream());
    if (result == cudaSuccess) result = kept_observe(cache, rows->q, rows->first, rows->count);
    if (result == cudaSuccess) result = replacing_observe(cache, rows->q, rows->first, rows->count);
    return device_check(result, "a prompt's queries", error);
}

enum terse_status prompt_observe(struct cache *cache, const struct kv_rows *rows, struct terse_error *error) {
    enum terse_status status = take_queries(cache, rows, error);
    if (status || !rows->count || !cache->base.plan.anchors || cache->base.plan.ranked) return status;
    const struct attend_prefill attend = attention_of(cache, rows, rows->q); /* the choice of anchors looks at all weights */
    status = device_check(kv_anchors_attend(cache, &attend), "a prompt's queries", error);
    const bool last = rows->first + rows->count == cache->base.plan.n;
    return !status && last && reads_pages(cache) ? code_rows(cache, rows->layer, error) : status;
}

/* Attends to what this rank reads, and exchanges it. */
static enum terse_status attend_dealt(const struct cache *cache, const struct kv_rows *rows, struct terse_error *error) {
    const struct cache_shape *shape = &cache->base.shape;
    const struct plan *plan = &cache->base.plan;
    struct attend_prefill attend = attention_of(cache, rows, rank_exchange_outputs(&cache->exchange, shape, rows->count));
    attend.log_sums = rank_exchange_log_sums(&cache->exchange, shape, rows->count);
    attend.log_stride = rows->count * (shape->query_heads / shape->kv_heads);
    if (shape->ranks->rank) { /* its sealed pages, behind the rows of exact tokens */
        attend.begin = (size_t)plan->before.exact;
        attend.ends = true;
        attend.end = (size_t)row_of(cache, plan->before.window_first);
        attend.heads.sinks = NULL;
    }
    enum terse_status status = device_check(attend_prefill_launch(&attend, device_stream()), "a prompt's attention", error);
    return status ? status : rank_exchange_finish(&cache->exchange, shape, rows->count, true, rows->out, error);
}

enum terse_status prompt_attend(struct cache *cache, const struct kv_rows *rows, struct terse_error *error) {
    const struct attend_prefill attend = attention_of(cache, rows, rows->out);
    if (!rows->count) return TERSE_OK;
    enum terse_status status = take_queries(cache, rows, error);
    if (status || !exchanges(cache))
        return status ? status : device_check(kv_anchors_attend(cache, &attend), "a prompt's attention", error);
    const size_t end = rows->first + rows->count;
    for (size_t first = rows->first; first < end && !status; first += EXCHANGE_ROWS) {
        const struct kv_rows some = kv_rows_within(rows, first, size_min(first + EXCHANGE_ROWS, end), &cache->base.shape);
        status = attend_dealt(cache, &some, error);
    }
    return status;
}

/* Copies new tokens that stay to the window. */
static cudaError_t keep_window(const struct cache *cache, uint32_t layer) {
    const struct plan *plan = &cache->base.plan;
    const uint64_t before = plan->before.length, end = plan->after.length,
                   first = plan->after.window_first > before ? plan->after.window_first : before;
    struct layer_rows rows = layer_rows(cache, layer);
    return first < end ? rows_to_window(&rows, first, (size_t)(end - first), row_of(cache, first), device_stream()) : cudaSuccess;
}

enum terse_status prompt_seal(struct cache *cache, uint32_t layer, struct terse_error *error) {
    if (cache->base.layer != layer) return status_fail(error, TERSE_E_ARGUMENT, "the end of a layer without its keys and values");
    const size_t leaving = (size_t)row_of(cache, replacing_first(&cache->base.plan));
    const int64_t sealed = row_of(cache, plan_first_sealed(&cache->base.plan));
    cudaError_t result = reads_pages(cache) ? cudaSuccess : seal_layer(cache, layer);
    if (result == cudaSuccess)
        result = kept_choose(cache, layer, row_at(cache, CODEC_KEYS, 0), row_at(cache, CODEC_VALUES, 0), rows_before(cache),
                             (size_t)sealed);
    enum terse_status status = device_check(result, "sealing a prompt's layer", error);
    if (!status && !reads_pages(cache))
        status = kv_anchors_choose(cache, layer, row_at(cache, CODEC_KEYS, (size_t)sealed),
                                   row_at(cache, CODEC_VALUES, (size_t)sealed), error);
    if (status) return status;
    result = replacing_seal(cache, layer, row_at(cache, CODEC_KEYS, leaving), row_at(cache, CODEC_VALUES, leaving));
    if (result == cudaSuccess) result = keep_window(cache, layer);
    cache->base.layer = NO_LAYER;
    cache->base.layers_ended = layer + 1;
    return device_check(result, "sealing a prompt's layer", error);
}
