/* Memory of keys and values and the writing of it: keys are rotated, attention is over; tokens go where the plan says. */
#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/exact.h"
#include "backend/cpu/kv/select.h"

#include "backend/cpu/kernels/vector/ops.h"
#include "base/memory.h"

#include <string.h>

#define GROWTH 32      /* generation allocates at most this part of the spans there are in advance ... */
#define GROWTH_MOST 16 /* ... and never more than these */

/* ---- Memory */

static size_t heads(const struct cache *cache) { return (size_t)cache->shape.layers * cache->shape.kv_heads; }

enum terse_status pool_reserve_page_sets(struct cache *cache, size_t n, struct terse_error *error) {
    if (n <= cache->n_page_sets) return TERSE_OK;
    size_t more = n - cache->n_page_sets, ahead = cache->n_page_sets / GROWTH;
    if (ahead > GROWTH_MOST) ahead = GROWTH_MOST;
    if (more < ahead) more = ahead;
    size_t bytes = heads(cache) * (cache->key_bytes + cache->value_bytes + cache->index_bytes), total = cache->n_page_sets + more;
    struct set *page_sets = memory_array(total, sizeof *page_sets);
    uint8_t *chunk = memory_array(more, bytes);
    if (!page_sets || !chunk || more > UINT32_MAX) {
        memory_free(page_sets);
        memory_free(chunk);
        return status_no_memory(error, (uint64_t)more * bytes, "the KV cache");
    }
    if (cache->n_page_sets) memcpy(page_sets, cache->page_sets, cache->n_page_sets * sizeof *page_sets);
    for (size_t i = 0; i < more; i++)
        page_sets[cache->n_page_sets + i] = (struct set){.chunk = chunk, .of = (uint32_t)more, .index = (uint32_t)i};
    memory_free(cache->page_sets);
    cache->page_sets = page_sets;
    cache->n_page_sets = total;
    return TERSE_OK;
}

enum terse_status pool_reserve_windows(struct cache *cache, size_t n, struct terse_error *error) {
    if (n <= cache->n_windows) return TERSE_OK;
    size_t bytes = 2 * cache->half_bytes, done = cache->n_windows;
    uint8_t **windows = memory_array(n, sizeof *windows);
    if (!windows) goto refused;
    if (done) memcpy(windows, cache->windows, done * sizeof *windows);
    for (; done < n; done++)
        if (!(windows[done] = memory_array(heads(cache), bytes))) goto refused;
    memory_free(cache->windows);
    cache->windows = windows;
    cache->n_windows = n;
    return TERSE_OK;
refused:
    for (size_t i = cache->n_windows; windows && i < done; i++) memory_free(windows[i]);
    memory_free(windows);
    return status_no_memory(error, (uint64_t)(n - cache->n_windows) * heads(cache) * bytes, "the KV cache's recent window");
}

/* ---- Writing a layer */

/* Token `first` and the `count` - 1 after it, as far as they are new, to rows[64][hd] of one side. */
static void gather_new(const struct cache *cache, const float *from, uint32_t head, uint64_t first, size_t count, float *rows) {
    size_t hd = cache->shape.head_dim, width = cache->shape.kv_heads * hd;
    uint64_t length = cache->plan.before.length;
    for (size_t t = first < length ? (size_t)(length - first) : 0; t < count; t++)
        memcpy(rows + t * hd, from + (size_t)(first + t - length) * width + head * hd, hd * sizeof *rows);
}

/* One side of the i-th block that the step seals, rows[64][hd]. Blocks are cut where window blocks are, so a block's older tokens are
 * the beginning of one window block. */
static void gather_page(const struct cache *cache, size_t i, uint32_t head, enum codec_side side, float *rows) {
    const struct plan *plan = &cache->plan;
    const struct set *set = &cache->page_sets[cache->sealed + i];
    if (set->first < plan->before.length) {
        const uint8_t *waited = window_page(cache, cache->windows[plan->skip + i], cache->layer, head);
        codec_f16.decode(window_shape(cache, 1), side, waited + (side == CODEC_VALUES ? cache->half_bytes : 0), rows);
    }
    gather_new(cache, side == CODEC_KEYS ? cache->k : cache->v, head, set->first, set->count, rows);
}

void seal_page(const struct cache *cache, const struct set *set, uint32_t layer, uint32_t head, enum codec_side side, float *rows) {
    const struct codec *codec = side == CODEC_KEYS ? cache->method.key.codec : cache->method.value.codec;
    codec->encode(side_shape(cache, side, layer, head, cache->group), side, rows, set->count,
                  page_at(cache, set, side, layer, head));
    if (side == CODEC_KEYS)
        select_encode_index(cache, set, layer, head, rows, set->count, rows + PAGE_TOKENS * cache->shape.head_dim);
}

/* rows[2][64][hd]. */
static void seal_side(struct cache *cache, size_t i, uint32_t head, enum codec_side side, float *rows) {
    const struct set *set = &cache->page_sets[cache->sealed + i];
    const struct codec *codec = side == CODEC_KEYS ? cache->method.key.codec : cache->method.value.codec;
    gather_page(cache, i, head, side, rows);
    seal_page(cache, set, cache->layer, head, side, rows);
    if (!cache->plan.anchors) return;
    float *decoded = rows + PAGE_TOKENS * cache->shape.head_dim;
    codec->decode(side_shape(cache, side, cache->layer, head, cache->group), side, page_at(cache, set, side, cache->layer, head),
                  decoded);
    anchors_weigh(cache, head, side, i * PAGE_TOKENS, set->count, rows, decoded);
}

static void fit_head(struct cache *cache, uint32_t head, float *rows) {
    gather_page(cache, 0, head, CODEC_KEYS, rows);
    select_fit(cache, head, rows);
}

static void seal_window(struct cache *cache, uint32_t head) {
    const struct plan *plan = &cache->plan;
    size_t hd = cache->shape.head_dim, width = cache->shape.kv_heads * hd;
    uint64_t start = plan->after.window_first, token = plan->before.length > start ? plan->before.length : start;
    for (; token < plan->after.length; token++) {
        size_t slot = (size_t)(token - start), row = (size_t)(token - plan->before.length) * width + head * hd;
        size_t t = slot % PAGE_TOKENS;
        uint8_t *memory = cache->windows[(plan->shift + slot / PAGE_TOKENS) % cache->n_windows];
        uint16_t *keys = (uint16_t *)window_page(cache, memory, cache->layer, head), half[CODEC_HEAD_DIM_MAX];
        uint16_t *values = keys + PAGE_TOKENS * hd;
        if (t == 0) memset(keys, 0, 2 * cache->half_bytes); /* a weight of 0 must meet a number */
        vector_ops()->float_to_half(cache->k + row, half, hd);
        for (size_t c = 0; c < hd; c++) keys[c * PAGE_TOKENS + t] = half[c];
        vector_ops()->float_to_half(cache->v + row, values + t * hd, hd);
    }
}

void seal_layer(struct cache *cache) {
    const struct plan *plan = &cache->plan;
    uint32_t kv_heads = cache->shape.kv_heads;
    bool fits = unfitted(cache) && plan->seal;
    bool much = plan->n >= PAGE_TOKENS || plan->seal > plan->ready; /* a token's rows are not worth waking the threads */
#pragma omp parallel num_threads(cache->threads) if (much)
    {
        float *rows = attend_thread_scratch(cache);
        if (fits) {
#pragma omp for schedule(static)
            for (uint32_t head = 0; head < kv_heads; head++) fit_head(cache, head, rows);
        }
#pragma omp for schedule(static)
        for (size_t i = 2 * plan->ready * kv_heads; i < 2 * plan->seal * kv_heads; i++)
            seal_side(cache, i / 2 / kv_heads, (uint32_t)(i / 2 % kv_heads), i % 2 ? CODEC_VALUES : CODEC_KEYS, rows);
        anchors_choose(cache);
        /* Here ends the reading of window blocks that may now be written again. */
#pragma omp for schedule(static)
        for (uint32_t head = 0; head < kv_heads; head++) {
            exact_replace(cache, head, rows);
            seal_window(cache, head);
        }
    }
}

/* ---- After the last layer */

/* Moves the first `n` of spans[count] behind the others. */
static void rotate_page_sets(struct set *page_sets, size_t count, size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct set first = page_sets[0];
        memmove(page_sets, page_sets + 1, (count - 1) * sizeof *page_sets);
        page_sets[count - 1] = first;
    }
}

static void rotate_windows(uint8_t **windows, size_t count, size_t n) {
    for (size_t i = 0; count && i < n % count; i++) {
        uint8_t *first = windows[0];
        memmove(windows, windows + 1, (count - 1) * sizeof *windows);
        windows[count - 1] = first;
    }
}

void seal_commit(struct cache *cache) {
    cache->fitted_ready |= cache->plan.seal > 0;
    cache->sealed += cache->plan.seal;
    cache->anchors.count += cache->plan.anchors;
    rotate_windows(cache->windows, cache->n_windows, cache->plan.shift);
    cache->extent = cache->plan.after;
    size_t evicted = 0;
    while (evicted < cache->sealed && cache->page_sets[evicted].first + cache->page_sets[evicted].count <= cache->extent.first)
        evicted++;
    rotate_page_sets(cache->page_sets, cache->n_page_sets, evicted);
    cache->sealed -= evicted;
}
