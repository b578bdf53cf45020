/* Chooses anchors, layer by layer: attention leaves what scores are computed from, and pages are decoded again, some at a time, for
 * their errors and then for the rows of sides that are no anchors. */
#include "backend/cuda/kv/anchors.h"

#include "backend/cuda/kv/anchor_rows.h"
#include "backend/cuda/kv/anchor_scores.h"
#include "backend/cuda/kv/encode.h"
#include "backend/cuda/kv/kept.h"
#include "backend/cuda/kv/views.h"
#include "backend/cuda/ranks.h"
#include "base/memory.h"
#include "base/size.h"
#include "kv/anchor_random.h"
#include "kv/deal.h"

#include <stdlib.h>

#define DECODED_PAGES 64 /* that are decoded at a time */

/* Returns whether the step chooses by scores. */
static bool chooses(const struct cache *cache) { return cache->base.plan.anchors && !cache->base.plan.ranked; }

/* ---- The memory of a step */

/* A work says where the parts of a step's memory lie. */
struct work {
    device_half *decoded[2], *halves;
    uint64_t *marks;
    float *norms, *log_sums, *scores;
    uint32_t splits;
    /* These are of pages that are dealt to ranks; else they take nothing. */
    uint32_t *order; /* as in struct anchor_union */
    float *blocks;   /* [ranks][Hk][keys, values][tokens of a part]: scores times errors */
};

static uint32_t queries_of(const struct plan *plan) { return (uint32_t)size_min(plan->n, ANCHOR_QUERIES); }

static size_t scores_bytes(const struct cache *cache, uint32_t splits) {
    return (size_t)splits * cache->base.shape.kv_heads * 2 * cache->base.plan.sealed * sizeof(float);
}
static size_t marks_bytes(const struct cache *cache) {
    return cache->base.shape.kv_heads * 2 * cache->base.plan.seal * sizeof(uint64_t);
}
static size_t decoded_bytes(const struct cache *cache, size_t pages) {
    return size_min(pages, DECODED_PAGES) * PAGE_TOKENS * cache_shape_kv_width(&cache->base.shape) * sizeof(device_half);
}

/* Returns the next `bytes` of memory, of which *at are taken. */
static void *take(uint8_t *memory, size_t *at, size_t bytes) {
    void *taken = memory ? memory + *at : NULL;
    *at += memory_round_up(bytes, 256);
    return taken;
}

static struct work work_at(const struct cache *cache, uint8_t *memory, size_t *bytes) {
    const struct plan *plan = &cache->base.plan;
    const size_t rows = (size_t)cache->base.shape.kv_heads * anchor_query_rows(&cache->heads, queries_of(plan)),
                 number = sizeof(float);
    struct work work = {.splits = anchor_score_splits(&cache->heads, (uint32_t)device_multiprocessors(), (uint32_t)plan->sealed)};
    *bytes = 0;
    for (int side = 0; side < 2; side++) work.decoded[side] = take(memory, bytes, decoded_bytes(cache, plan->seal));
    work.halves = take(memory, bytes, rows * cache->base.shape.head_dim * sizeof *work.halves);
    work.norms = take(memory, bytes, rows * number);
    work.log_sums = take(memory, bytes, rows * number);
    work.scores = take(memory, bytes, scores_bytes(cache, work.splits));
    work.marks = take(memory, bytes, marks_bytes(cache));
    if (cache->base.shape.ranks) {
        const size_t scores = 2 * cache->base.shape.kv_heads * size_min(plan->seal, DECODED_PAGES) * PAGE_TOKENS;
        work.order = take(memory, bytes, plan->seal * sizeof *work.order);
        work.blocks = take(memory, bytes, cache->base.shape.ranks->ranks * scores * number);
    }
    return work;
}

static struct work work_of(const struct cache *cache) { return work_at(cache, cache->choice, &(size_t){0}); }

enum terse_status kv_anchors_reserve(struct cache *cache, struct terse_error *error) {
    const struct plan *plan = &cache->base.plan;
    if (!chooses(cache)) return TERSE_OK;
    kept_release(cache);
    work_at(cache, NULL, &cache->choice_bytes);
    enum terse_status status =
        exact_new(cache, cache->base.n_anchors + plan->anchors, cache->base.pages.n_sealed + plan->seal, &cache->chosen, error);
    if (!status && !(cache->choice = device_alloc(NULL, cache->choice_bytes, "choosing anchors", error))) status = TERSE_E_MEMORY;
    if (status) kept_release(cache);
    return status;
}

/* ---- Pages that are decoded */

/* Lists those of n page sets from `first` on that are here, to be decoded DECODED_PAGES of the n at a time to rows in order of their tokens,
 * among which those of the others have room. */
static enum terse_status list_pages(struct cache *cache, size_t first, size_t n, device_half *const decoded[2],
                                    struct terse_error *error) {
    const struct page_set *sets = cache->base.pages.sets + first;
    size_t here = 0;
    enum terse_status status = item_list_reserve(&cache->decoded, n, error);
    if (status) return status;
    for (size_t i = 0; i < n; i++) {
        const size_t row = (size_t)(sets[i].first - sets[i / DECODED_PAGES * DECODED_PAGES].first),
                     at = row * cache_shape_kv_width(&cache->base.shape);
        if (!page_set_is_here(&sets[i])) continue;
        cache->decoded.host[here++] = (struct encode_item){.set = cache_page_view(&sets[i]),
                                                           .rows = {decoded[CODEC_KEYS] + at, decoded[CODEC_VALUES] + at},
                                                           .rate = cache_rate_view(cache, sets[i].rate)};
    }
    return item_list_upload(&cache->decoded, here, error);
}

/* Sends the order of the step's pages: those that are here before the others. */
static enum terse_status send_order(const struct cache *cache, uint32_t *to, struct terse_error *error) {
    const struct page_set *sets = cache->base.pages.sets + cache->base.pages.n_sealed;
    const size_t n = cache->base.plan.seal;
    uint32_t *order = memory_array(n, sizeof *order), here = 0, others = (uint32_t)cache->decoded.n;
    if (!order) return status_no_memory(error, n * sizeof *order, "a step's pages");
    for (uint32_t i = 0; i < n; i++) order[page_set_is_here(&sets[i]) ? here++ : others++] = i;
    const cudaError_t result = cudaMemcpyAsync(to, order, n * sizeof *order, cudaMemcpyHostToDevice, device_stream());
    memory_free(order); /* memory that is not pinned was copied before the call returned */
    return device_check(result, "sending a step's pages", error);
}

enum terse_status kv_anchors_list_pages(struct cache *cache, struct terse_error *error) {
    if (!chooses(cache)) return TERSE_OK;
    const struct work work = work_of(cache);
    enum terse_status status = list_pages(cache, cache->base.pages.n_sealed, cache->base.plan.seal, work.decoded, error);
    return status || !work.order ? status : send_order(cache, work.order, error);
}

/* A pages_part is some of the page sets of which the list has those that are here, and the tokens that they hold. Before the first one it has
 * the first page set alone. */
struct pages_part {
    const struct page_set *sets;
    size_t pages;
    size_t item, items; /* of the list */
    uint32_t first, count;
};

/* Goes on to the next part of the page sets before `end`; false: there is none. */
static bool next_part(struct pages_part *part, const struct page_set *end) {
    part->sets += part->pages;
    part->item += part->items;
    part->items = 0;
    part->pages = size_min((size_t)(end - part->sets), DECODED_PAGES);
    if (!part->pages) return false;
    const struct page_set *last = part->sets + part->pages - 1;
    for (const struct page_set *set = part->sets; set <= last; set++) part->items += page_set_is_here(set);
    part->first = (uint32_t)part->sets->first;
    part->count = (uint32_t)(last->first + last->count - part->sets->first);
    return true;
}

static cudaError_t decode_part(const struct cache *cache, uint32_t layer, const struct pages_part *part) {
    struct encode encode = cache_encode(cache, &cache->decoded, layer, 1);
    if (!part->items) return cudaSuccess;
    encode.items += part->item;
    encode.n = (uint32_t)part->items;
    encode.token_stride = cache_shape_kv_width(&cache->base.shape);
    encode.head_stride = cache->base.shape.head_dim;
    return decode_pages(&encode, device_stream());
}

/* ---- Scores */

cudaError_t kv_anchors_begin_layer(const struct cache *cache) {
    if (!chooses(cache)) return cudaSuccess;
    const struct work work = work_of(cache);
    cudaError_t result = cudaMemsetAsync(work.scores, 0, scores_bytes(cache, work.splits), device_stream());
    return result == cudaSuccess ? cudaMemsetAsync(work.marks, 0, marks_bytes(cache), device_stream()) : result;
}

/* Attends with at most ANCHOR_QUERIES queries. Their halves are made before attention, which may write over them. */
static cudaError_t attend_some(const struct cache *cache, const struct work *work, const struct attend_prefill *attend) {
    const struct plan *plan = &cache->base.plan;
    struct attend_prefill own = *attend;
    const struct anchor_scores scores = {.heads = attend->heads,
                                         .q = attend->q,
                                         .n = (uint32_t)attend->n,
                                         .first_query = (uint32_t)attend->first_query,
                                         .k = attend->k,
                                         .first = (uint32_t)plan_first_sealed(plan),
                                         .n_tokens = (uint32_t)plan->sealed,
                                         .halves = work->halves,
                                         .norms = work->norms,
                                         .log_sums = work->log_sums,
                                         .scores = work->scores,
                                         .splits = work->splits};
    own.log_sums = work->log_sums;
    own.log_stride = anchor_query_rows(&attend->heads, scores.n);
    cudaError_t result = prepare_anchor_queries(&scores, device_stream());
    if (result == cudaSuccess) result = attend_prefill_launch(&own, device_stream());
    return result == cudaSuccess ? add_anchor_scores(&scores, device_stream()) : result;
}

cudaError_t kv_anchors_attend(const struct cache *cache, const struct attend_prefill *attend) {
    if (!chooses(cache)) return attend_prefill_launch(attend, device_stream());
    const struct work work = work_of(cache);
    const size_t width = cache_shape_query_width(&cache->base.shape);
    cudaError_t result = cudaSuccess;
    for (size_t first = 0; first < attend->n && result == cudaSuccess; first += ANCHOR_QUERIES) {
        struct attend_prefill some = *attend;
        some.q += first * width;
        some.out += first * width;
        some.first_query += first;
        some.n = size_min(attend->n - first, ANCHOR_QUERIES);
        result = attend_some(cache, &work, &some);
    }
    return result;
}

/* ---- The choice */

/* Returns the view of a layer's anchors, of `layers` layers. */
static struct anchor_view view_of(const struct cache *cache, const struct exact_rows *exact, uint32_t layer, uint32_t layers) {
    const size_t at = (size_t)layer * cache->base.shape.kv_heads, hd = cache->base.shape.head_dim,
                 behind = exact->capacity - cache_first_exact(cache);
    if (!exact->counts) return (struct anchor_view){0};
    return (struct anchor_view){.kv_heads = layers * cache->base.shape.kv_heads,
                                .head_dim = (uint32_t)hd,
                                .first_exact = cache_first_exact(cache),
                                .capacity = exact->capacity,
                                .rows = exact->rows + at * 2 * exact->capacity * hd,
                                .tokens = exact->tokens + at * behind,
                                .sides = exact->sides + at * behind,
                                .counts = exact->counts + at,
                                .elsewhere = exact->elsewhere + at,
                                .pages = exact->pages + at * exact->n_pages,
                                .n_pages = exact->n_pages};
}

/* Takes `count` scores of each KV head and side from one array to another, in which heads and sides lie so many floats apart. */
static cudaError_t copy_scores(const struct cache *cache, float *to, size_t to_stride, const float *from, size_t from_stride,
                               size_t count) {
    return cudaMemcpy2DAsync(to, to_stride * sizeof *to, from, from_stride * sizeof *from, count * sizeof *to,
                             2 * cache->base.shape.kv_heads, cudaMemcpyDeviceToDevice, device_stream());
}

/* Replaces the scores of a part's tokens, scores[Hk][keys, values][plan.sealed] from its first one on, whose pages other ranks have by those
 * ranks' scores: so all choose by the same numbers. */
static enum terse_status exchange_scores(const struct cache *cache, float *blocks, float *scores, const struct pages_part *part,
                                         struct terse_error *error) {
    const struct cache_shape *shape = &cache->base.shape;
    const size_t count = part->count, block = 2 * shape->kv_heads * count, n = (size_t)cache->base.plan.sealed;
    cudaError_t result = copy_scores(cache, blocks + shape->ranks->rank * block, count, scores, n, count);
    enum terse_status status = device_check(result, "scores of anchors", error);
    if (!status) status = ranks_gather(shape->ranks, blocks, block * sizeof *blocks, error);
    for (size_t i = 0, run; i < part->pages && !status; i += run) {
        uint32_t owner;
        run = deal_run(shape, part->sets[i].first, part->pages - i, &owner);
        if (owner == shape->ranks->rank) continue;
        const size_t at = i * PAGE_TOKENS, tokens = size_min(run * PAGE_TOKENS, count - at);
        result = copy_scores(cache, scores + at, n, blocks + owner * block + at, count, tokens);
        status = device_check(result, "scores of anchors", error);
    }
    return status;
}

/* Multiplies scores by errors. */
static enum terse_status scale_scores(const struct cache *cache, uint32_t layer, const struct work *work, const device_half *k,
                                      const device_half *v, struct terse_error *error) {
    const size_t width = cache_shape_kv_width(&cache->base.shape);
    const uint32_t first_token = (uint32_t)plan_first_sealed(&cache->base.plan);
    const struct block_table *table = &cache->base.pages;
    struct pages_part part = {.sets = table->sets + table->n_sealed};
    const struct page_set *end = part.sets + cache->base.plan.seal;
    enum terse_status status = TERSE_OK;
    while (!status && next_part(&part, end)) {
        const uint32_t first = part.first - first_token;
        const struct anchor_errors errors = {.l1 = cache->base.method.parameters.anchor_score == TERSE_ANCHORS_L1,
                                             .kv_heads = cache->base.shape.kv_heads,
                                             .head_dim = cache->base.shape.head_dim,
                                             .first = first,
                                             .count = part.count,
                                             .n_tokens = (uint32_t)cache->base.plan.sealed,
                                             .splits = work->splits,
                                             .rows = {k + first * width, v + first * width},
                                             .decoded = {work->decoded[CODEC_KEYS], work->decoded[CODEC_VALUES]},
                                             .scores = work->scores};
        cudaError_t result = decode_part(cache, layer, &part);
        if (result == cudaSuccess) result = scale_anchor_scores(&errors, device_stream());
        status = device_check(result, "scores of anchors", error);
        if (!status && work->blocks) status = exchange_scores(cache, work->blocks, work->scores + first, &part, error);
    }
    return status;
}

/* Decodes the listed pages of n page sets once more, for the rows of sides that are no anchors. */
static cudaError_t fill_rows(const struct cache *cache, uint32_t layer, const struct page_set *sets, size_t n,
                             const struct anchor_view *anchors, device_half *const decoded[2]) {
    const device_half *const rows[2] = {decoded[CODEC_KEYS], decoded[CODEC_VALUES]};
    cudaError_t result = cudaSuccess;
    for (struct pages_part part = {.sets = sets}; result == cudaSuccess && next_part(&part, sets + n);) {
        result = decode_part(cache, layer, &part);
        if (result == cudaSuccess) result = fill_anchors(anchors, rows, part.first, part.count, device_stream());
    }
    return result;
}

/* Scores that have nothing to do with the tokens come from the host, where both backends' are made. */
static cudaError_t random_scores(const struct cache *cache, uint32_t layer, const struct work *work) {
    const size_t n = cache->base.plan.sealed, heads = cache->base.shape.kv_heads, bytes = heads * 2 * n * sizeof(float);
    float *scores = memory_array(heads * 2 * n, sizeof *scores);
    if (!scores) return cudaErrorMemoryAllocation;
    for (size_t i = 0; i < heads * 2 * n; i++)
        scores[i] = anchor_random_score(layer * heads + i / n / 2, (int)(i / n % 2), plan_first_sealed(&cache->base.plan) + i % n);
    const cudaError_t result = device_send(work->scores, scores, bytes);
    memory_free(scores); /* memory that is not pinned was copied before the call returned */
    return result;
}

static enum terse_status choose_by_scores(const struct cache *cache, uint32_t layer, const struct work *work, const device_half *k,
                                          const device_half *v, struct terse_error *error) {
    const struct anchor_choice choice = {.kv_heads = cache->base.shape.kv_heads,
                                         .n = (uint32_t)cache->base.plan.sealed,
                                         .keep = (uint32_t)cache->base.plan.anchors,
                                         .scores = work->scores,
                                         .marks = work->marks};
    const bool random = cache->base.method.parameters.anchor_score == TERSE_ANCHORS_RANDOM;
    enum terse_status status = random ? device_check(random_scores(cache, layer, work), "choosing anchors", error)
                                      : scale_scores(cache, layer, work, k, v, error);
    return status ? status : device_check(choose_anchors(&choice, device_stream()), "choosing anchors", error);
}

enum terse_status kv_anchors_choose(const struct cache *cache, uint32_t layer, const device_half *k, const device_half *v,
                                    struct terse_error *error) {
    const struct plan *plan = &cache->base.plan;
    const struct block_table *table = &cache->base.pages;
    const bool by_scores = chooses(cache);
    if (!plan->anchors || !anchors_have_codes(&cache->base.method)) return TERSE_OK;
    const struct work work = work_of(cache);
    struct anchor_union anchors = {.to = view_of(cache, &cache->chosen, layer, 1),
                                   .marks = by_scores ? work.marks : kept_marks(cache),
                                   .first_page = (uint32_t)table->n_sealed,
                                   .pages = (uint32_t)plan->seal,
                                   .first = (uint32_t)plan_first_sealed(plan),
                                   .order = by_scores ? work.order : NULL,
                                   .here = (uint32_t)(by_scores ? cache->decoded.n : plan->seal),
                                   .rows = {k, v}};
    if (cache->base.n_anchors) anchors.from = view_of(cache, &cache->exact, layer, 1);
    enum terse_status status = by_scores ? choose_by_scores(cache, layer, &work, k, v, error) : TERSE_OK;
    if (status) return status;
    cudaError_t result = unite_anchors(&anchors, device_stream());
    if (result == cudaSuccess && by_scores)
        result = fill_rows(cache, layer, table->sets + table->n_sealed, plan->seal, &anchors.to, work.decoded);
    return device_check(result, "choosing anchors", error);
}

cudaError_t kv_anchors_spread(const struct cache *cache, uint32_t layer, device_half *const rows[2]) {
    const struct anchor_view anchors = view_of(cache, &cache->exact, layer, 1);
    return cache->base.n_anchors && anchors.counts ? spread_anchors(&anchors, rows, &cache->places, device_stream()) : cudaSuccess;
}

cudaError_t kv_anchors_spread_chosen(const struct cache *cache, uint32_t layer, device_half *const rows[2]) {
    const struct anchor_view anchors = view_of(cache, &cache->chosen, layer, 1);
    return spread_anchors(&anchors, rows, &cache->places, device_stream());
}

/* ---- Between steps */

enum terse_status kv_anchors_complete(struct cache *cache, struct terse_error *error) {
    const size_t pages = cache->base.pages.n_sealed, bytes = decoded_bytes(cache, pages);
    if (!cache->base.n_anchors || !chooses_apart(&cache->base.method)) return TERSE_OK;
    device_half *memory = device_alloc(NULL, 2 * bytes, "reading a saved KV cache", error);
    if (!memory) return TERSE_E_MEMORY;
    device_half *const decoded[2] = {memory, memory + bytes / sizeof *memory};
    enum terse_status status = list_pages(cache, 0, pages, decoded, error);
    for (uint32_t layer = 0; layer < cache->base.shape.layers && !status; layer++) {
        const struct anchor_view anchors = view_of(cache, &cache->exact, layer, 1);
        status = device_check(fill_rows(cache, layer, cache->base.pages.sets, pages, &anchors, decoded), "reading a saved KV cache",
                              error);
    }
    device_free(NULL, memory, 2 * bytes);
    return status;
}

void kv_anchors_forget(struct cache *cache) {
    const struct block_table *table = &cache->base.pages;
    const struct anchor_view anchors = view_of(cache, &cache->exact, 0, cache->base.shape.layers);
    const struct page_set *last = table->n_sealed ? &table->sets[table->n_sealed - 1] : NULL;
    uint32_t here = 0;
    if (!anchors.counts) return;
    for (size_t i = 0; i < table->n_sealed; i++) here += page_set_is_here(&table->sets[i]);
    (void)forget_anchors(&anchors, last ? (uint32_t)(last->first + last->count) : 0, here, device_stream());
    (void)cache_written(cache, NULL);
}

struct anchor_walk anchors_walk(const struct cache *cache, const struct exact_rows *exact, size_t head) {
    const uint32_t places = exact->capacity - cache_first_exact(cache);
    return (struct anchor_walk){.tokens = exact->tokens + head * places,
                                .front_end = exact->counts[head],
                                .back = places,
                                .back_end = places - exact->elsewhere[head]};
}

bool anchors_next(struct anchor_walk *walk, uint32_t *place) {
    const bool front = walk->front != walk->front_end, back = walk->back != walk->back_end;
    if (!front && !back) return false;
    *place = front && (!back || walk->tokens[walk->front] < walk->tokens[walk->back - 1]) ? walk->front++ : --walk->back;
    return true;
}

/* Fetches the tokens and sides of a layer's KV head to memory[2 places + 2], and begins a walk through them. */
static bool fetch(const struct cache *cache, size_t head, uint32_t *memory, struct anchor_walk *walk) {
    const struct exact_rows *exact = &cache->exact;
    const size_t places = exact->capacity - cache_first_exact(cache), bytes = places * sizeof *memory;
    uint32_t *const counts = memory + 2 * places;
    const struct exact_rows fetched = {.tokens = memory, .counts = counts, .elsewhere = counts + 1, .capacity = exact->capacity};
    if (device_fetch(memory, exact->tokens + head * places, bytes) != cudaSuccess ||
        device_fetch(memory + places, exact->sides + head * places, bytes) != cudaSuccess ||
        device_fetch(counts, exact->counts + head, sizeof *counts) != cudaSuccess ||
        device_fetch(counts + 1, exact->elsewhere + head, sizeof *counts) != cudaSuccess)
        return false;
    *walk = anchors_walk(cache, &fetched, 0);
    return true;
}

bool kv_anchors_fetch(const struct cache *cache, uint32_t layer, uint32_t head, enum codec_side side, uint32_t *tokens) {
    const size_t places = cache->exact.capacity - cache_first_exact(cache);
    uint32_t *memory = memory_array(2 * places + 2, sizeof *memory), at;
    struct anchor_walk walk;
    const bool good = memory && fetch(cache, (size_t)layer * cache->base.shape.kv_heads + head, memory, &walk);
    while (good && anchors_next(&walk, &at))
        if (memory[places + at] >> side & 1) *tokens++ = memory[at];
    memory_free(memory);
    return good;
}

bool kv_anchors_before(const struct cache *cache, uint64_t end, size_t *n) {
    const size_t places = cache->exact.capacity - cache_first_exact(cache);
    uint32_t *memory = memory_array(2 * places + 2, sizeof *memory), at;
    struct anchor_walk walk;
    bool good = memory;
    *n = 0;
    for (size_t head = 0; good && head < cache_heads_of(&cache->base.shape); head++) {
        size_t before[2] = {0};
        good = fetch(cache, head, memory, &walk);
        while (good && anchors_next(&walk, &at) && memory[at] < end)
            for (int side = 0; side < 2; side++) before[side] += memory[places + at] >> side & 1;
        if (head == 0) *n = before[0];
        good = good && before[0] == *n && before[1] == *n;
    }
    memory_free(memory);
    return good;
}
