/* Chooses anchors, layer by layer: attention leaves what scores are computed from, and pages are decoded again, some at a time, for
 * their errors and then for the rows of sides that are no anchors. */
#include "backend/cuda/kv/anchors.h"

#include "backend/cuda/kv/anchor_rows.h"
#include "backend/cuda/kv/anchor_scores.h"
#include "backend/cuda/kv/encode.h"
#include "backend/cuda/kv/kept.h"
#include "backend/cuda/kv/views.h"
#include "base/memory.h"
#include "base/size.h"
#include "kv/anchor_random.h"

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

/* Lists n page sets from `first` on, to be decoded DECODED_PAGES at a time to rows in order of their tokens. */
static enum terse_status list_pages(struct cache *cache, size_t first, size_t n, device_half *const decoded[2],
                                    struct terse_error *error) {
    const struct page_set *sets = cache->base.pages.sets + first;
    enum terse_status status = item_list_reserve(&cache->decoded, n, error);
    if (status) return status;
    for (size_t i = 0; i < n; i++) {
        const size_t row = (size_t)(sets[i].first - sets[i / DECODED_PAGES * DECODED_PAGES].first),
                     at = row * cache_shape_kv_width(&cache->base.shape);
        cache->decoded.host[i] = (struct encode_item){.set = cache_page_view(&sets[i]),
                                                      .rows = {decoded[CODEC_KEYS] + at, decoded[CODEC_VALUES] + at},
                                                      .rate = cache_rate_view(cache, sets[i].rate)};
    }
    return item_list_upload(&cache->decoded, n, error);
}

enum terse_status kv_anchors_list_pages(struct cache *cache, struct terse_error *error) {
    if (!chooses(cache)) return TERSE_OK;
    const struct work work = work_of(cache);
    return list_pages(cache, cache->base.pages.n_sealed, cache->base.plan.seal, work.decoded, error);
}

/* A pages_part is some pages of the list, and the tokens that they hold. */
struct pages_part {
    size_t page, pages;
    uint32_t first, count;
};

/* Returns the part that begins with a page of the list. */
static struct pages_part part_at(const struct cache *cache, size_t page) {
    const struct encode_item *items = cache->decoded.host;
    const size_t pages = size_min(cache->decoded.n - page, DECODED_PAGES);
    const struct page_set_view *first = &items[page].set, *last = &items[page + pages - 1].set;
    return (struct pages_part){page, pages, first->first, last->first + last->count - first->first};
}

static cudaError_t decode_part(const struct cache *cache, uint32_t layer, const struct pages_part *part) {
    struct encode encode = cache_encode(cache, &cache->decoded, layer, 1);
    encode.items += part->page;
    encode.n = (uint32_t)part->pages;
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
                                .pages = exact->pages + at * exact->n_pages,
                                .n_pages = exact->n_pages};
}

static cudaError_t scale_scores(const struct cache *cache, uint32_t layer, const struct work *work, const device_half *k,
                                const device_half *v) {
    const size_t width = cache_shape_kv_width(&cache->base.shape);
    const uint32_t first_token = (uint32_t)plan_first_sealed(&cache->base.plan);
    cudaError_t result = cudaSuccess;
    for (size_t page = 0; page < cache->decoded.n && result == cudaSuccess; page += DECODED_PAGES) {
        const struct pages_part part = part_at(cache, page);
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
        result = decode_part(cache, layer, &part);
        if (result == cudaSuccess) result = scale_anchor_scores(&errors, device_stream());
    }
    return result;
}

/* Decodes the listed pages once more, for the rows of sides that are no anchors. */
static cudaError_t fill_rows(const struct cache *cache, uint32_t layer, const struct anchor_view *anchors,
                             device_half *const decoded[2]) {
    const device_half *const rows[2] = {decoded[CODEC_KEYS], decoded[CODEC_VALUES]};
    cudaError_t result = cudaSuccess;
    for (size_t page = 0; page < cache->decoded.n && result == cudaSuccess; page += DECODED_PAGES) {
        const struct pages_part part = part_at(cache, page);
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
    const cudaError_t result = cudaMemcpy(work->scores, scores, bytes, cudaMemcpyHostToDevice);
    memory_free(scores);
    return result;
}

static cudaError_t choose_by_scores(const struct cache *cache, uint32_t layer, const struct work *work, const device_half *k,
                                    const device_half *v) {
    const struct anchor_choice choice = {.kv_heads = cache->base.shape.kv_heads,
                                         .n = (uint32_t)cache->base.plan.sealed,
                                         .keep = (uint32_t)cache->base.plan.anchors,
                                         .scores = work->scores,
                                         .marks = work->marks};
    const bool random = cache->base.method.parameters.anchor_score == TERSE_ANCHORS_RANDOM;
    const cudaError_t result = random ? random_scores(cache, layer, work) : scale_scores(cache, layer, work, k, v);
    return result == cudaSuccess ? choose_anchors(&choice, device_stream()) : result;
}

cudaError_t kv_anchors_choose(const struct cache *cache, uint32_t layer, const device_half *k, const device_half *v) {
    const struct plan *plan = &cache->base.plan;
    const bool by_scores = chooses(cache);
    if (!plan->anchors || !anchors_have_codes(&cache->base.method)) return cudaSuccess;
    const struct work work = work_of(cache);
    struct anchor_union anchors = {.to = view_of(cache, &cache->chosen, layer, 1),
                                   .marks = by_scores ? work.marks : kept_marks(cache),
                                   .first_page = (uint32_t)cache->base.pages.n_sealed,
                                   .pages = (uint32_t)plan->seal,
                                   .first = (uint32_t)plan_first_sealed(plan),
                                   .rows = {k, v}};
    if (cache->base.n_anchors) anchors.from = view_of(cache, &cache->exact, layer, 1);
    cudaError_t result = by_scores ? choose_by_scores(cache, layer, &work, k, v) : cudaSuccess;
    if (result == cudaSuccess) result = unite_anchors(&anchors, device_stream());
    return result == cudaSuccess && by_scores ? fill_rows(cache, layer, &anchors.to, work.decoded) : result;
}

cudaError_t kv_anchors_spread(const struct cache *cache, uint32_t layer, device_half *const rows[2]) {
    const struct anchor_view anchors = view_of(cache, &cache->exact, layer, 1);
    return cache->base.n_anchors && anchors.counts ? spread_anchors(&anchors, rows, device_stream()) : cudaSuccess;
}

cudaError_t kv_anchors_spread_chosen(const struct cache *cache, uint32_t layer, device_half *const rows[2]) {
    const struct anchor_view anchors = view_of(cache, &cache->chosen, layer, 1);
    return spread_anchors(&anchors, rows, device_stream());
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
        status = device_check(fill_rows(cache, layer, &anchors, decoded), "reading a saved KV cache", error);
    }
    device_free(NULL, memory, 2 * bytes);
    return status;
}

void kv_anchors_forget(struct cache *cache) {
    const struct block_table *table = &cache->base.pages;
    const struct anchor_view anchors = view_of(cache, &cache->exact, 0, cache->base.shape.layers);
    const struct page_set *last = table->n_sealed ? &table->sets[table->n_sealed - 1] : NULL;
    if (!anchors.counts) return;
    (void)forget_anchors(&anchors, last ? (uint32_t)(last->first + last->count) : 0, (uint32_t)table->n_sealed, device_stream());
    (void)cache_written(cache, NULL);
}

/* Fetches the tokens and sides of a layer's KV head to memory[2][rows], and how many there are. */
static bool fetch(const struct cache *cache, size_t head, uint32_t *memory, uint32_t *count) {
    const struct exact_rows *exact = &cache->exact;
    const size_t behind = exact->capacity - cache_first_exact(cache), bytes = behind * sizeof *memory;
    return device_fetch(memory, exact->tokens + head * behind, bytes) == cudaSuccess &&
           device_fetch(memory + behind, exact->sides + head * behind, bytes) == cudaSuccess &&
           device_fetch(count, exact->counts + head, sizeof *count) == cudaSuccess;
}

bool kv_anchors_fetch(const struct cache *cache, uint32_t layer, uint32_t head, enum codec_side side, uint32_t *tokens) {
    const size_t behind = cache->exact.capacity - cache_first_exact(cache);
    uint32_t *memory = memory_array(2 * behind, sizeof *memory), count;
    const bool good = memory && fetch(cache, (size_t)layer * cache->base.shape.kv_heads + head, memory, &count);
    for (uint32_t i = 0; good && i < count; i++)
        if (memory[behind + i] >> side & 1) *tokens++ = memory[i];
    memory_free(memory);
    return good;
}

bool kv_anchors_before(const struct cache *cache, uint64_t end, size_t *n) {
    const size_t behind = cache->exact.capacity - cache_first_exact(cache);
    uint32_t *memory = memory_array(2 * behind + 1, sizeof *memory), count = 0;
    bool good = memory;
    *n = 0;
    for (size_t head = 0; good && head < cache_heads_of(&cache->base.shape); head++) {
        size_t before[2] = {0};
        good = fetch(cache, head, memory, &count);
        for (uint32_t i = 0; good && i < count && memory[i] < end; i++)
            for (int side = 0; side < 2; side++) before[side] += memory[behind + i] >> side & 1;
        if (head == 0) *n = before[0];
        good = good && before[0] == *n && before[1] == *n;
    }
    memory_free(memory);
    return good;
}
