/* Memory of keys and values and the writing of it: keys are rotated, attention is over; tokens go where the plan says. */
#include "backend/cpu/kv/anchors.h"
#include "backend/cpu/kv/exact.h"
#include "backend/cpu/kv/select.h"

#include "base/memory.h"
#include "backend/cpu/kernels/kernels.h"

#include <string.h>

#define GROWTH 32      /* generation allocates at most this part of the spans there are in advance ... */
#define GROWTH_MOST 16 /* ... and never more than these */

/* ---- Memory */

static size_t heads(const struct cache *cache) { return (size_t)cache->shape.layers * cache->shape.kv_heads; }

enum terse_status store_reserve_spans(struct cache *cache, size_t n, struct terse_error *error) {
    if (n <= cache->n_spans) return TERSE_OK;
    size_t more = n - cache->n_spans, ahead = cache->n_spans / GROWTH;
    if (ahead > GROWTH_MOST) ahead = GROWTH_MOST;
    if (more < ahead) more = ahead;
    size_t bytes = heads(cache) * (cache->key_bytes + cache->value_bytes + cache->index_bytes), total = cache->n_spans + more;
    struct span *spans = memory_array(total, sizeof *spans);
    uint8_t *chunk = memory_array(more, bytes);
    if (!spans || !chunk || more > UINT32_MAX) {
        memory_free(spans);
        memory_free(chunk);
        return status_no_memory(error, (uint64_t)more * bytes, "the KV cache");
    }
    if (cache->n_spans) memcpy(spans, cache->spans, cache->n_spans * sizeof *spans);
    for (size_t i = 0; i < more; i++)
        spans[cache->n_spans + i] = (struct span){.chunk = chunk, .of = (uint32_t)more, .index = (uint32_t)i};
    memory_free(cache->spans);
    cache->spans = spans;
    cache->n_spans = total;
    return TERSE_OK;
}

enum terse_status store_reserve_windows(struct cache *cache, size_t n, struct terse_error *error) {
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
static void gather_block(const struct cache *cache, size_t i, uint32_t head, enum codec_side side, float *rows) {
    const struct plan *plan = &cache->plan;
    const struct span *span = &cache->spans[cache->sealed + i];
    if (span->first < plan->before.length) {
        const uint8_t *waited = window_block(cache, cache->windows[plan->skip + i], cache->layer, head);
        codec_f16.decode(window_shape(cache, 1), side, waited + (side == CODEC_VALUES ? cache->half_bytes : 0), rows);
    }
    gather_new(cache, side == CODEC_KEYS ? cache->k : cache->v, head, span->first, span->count, rows);
}

void store_encode(const struct cache *cache, const struct span *span, uint32_t layer, uint32_t head, enum codec_side side,
                  float *rows) {
    const struct codec *codec = side == CODEC_KEYS ? cache->method.key.codec : cache->method.value.codec;
    codec->encode(side_shape(cache, side, layer, head, cache->group), side, rows, span->count,
                  span_block(cache, span, side, layer, head));
    if (side == CODEC_KEYS) read_index(cache, span, layer, head, rows, span->count, rows + BLOCK_TOKENS * cache->shape.head_dim);
}

/* rows[2][64][hd]. */
static void seal_side(struct cache *cache, size_t i, uint32_t head, enum codec_side side, float *rows) {
    const struct span *span = &cache->spans[cache->sealed + i];
    const struct codec *codec = side == CODEC_KEYS ? cache->method.key.codec : cache->method.value.codec;
    gather_block(cache, i, head, side, rows);
    store_encode(cache, span, cache->layer, head, side, rows);
    if (!cache->plan.anchors) return;
    float *decoded = rows + BLOCK_TOKENS * cache->shape.head_dim;
    codec->decode(side_shape(cache, side, cache->layer, head, cache->group), side,
                  span_block(cache, span, side, cache->layer, head), decoded);
    anchors_weigh(cache, head, side, i * BLOCK_TOKENS, span->count, rows, decoded);
}

static void fit_head(struct cache *cache, uint32_t head, float *rows) {
    gather_block(cache, 0, head, CODEC_KEYS, rows);
    read_fit(cache, head, rows);
}

static void store_window(struct cache *cache, uint32_t head) {
    const struct plan *plan = &cache->plan;
    size_t hd = cache->shape.head_dim, width = cache->shape.kv_heads * hd;
    uint64_t start = plan->after.window_first, token = plan->before.length > start ? plan->before.length : start;
    for (; token < plan->after.length; token++) {
        size_t slot = (size_t)(token - start), row = (size_t)(token - plan->before.length) * width + head * hd;
        size_t t = slot % BLOCK_TOKENS;
        uint8_t *memory = cache->windows[(plan->shift + slot / BLOCK_TOKENS) % cache->n_windows];
        uint16_t *keys = (uint16_t *)window_block(cache, memory, cache->layer, head), half[CODEC_HEAD_DIM_MAX];
        uint16_t *values = keys + BLOCK_TOKENS * hd;
        if (t == 0) memset(keys, 0, 2 * cache->half_bytes); /* a weight of 0 must meet a number */
        kernels()->float_to_half(cache->k + row, half, hd);
        for (size_t c = 0; c < hd; c++) keys[c * BLOCK_TOKENS + t] = half[c];
        kernels()->float_to_half(cache->v + row, values + t * hd, hd);
    }
}

void store_layer(struct cache *cache) {
    const struct plan *plan = &cache->plan;
    uint32_t kv_heads = cache->shape.kv_heads;
    bool fits = unfitted(cache) && plan->seal;
    bool much = plan->n >= BLOCK_TOKENS || plan->seal > plan->ready; /* a token's rows are not worth waking the threads */
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
            store_window(cache, head);
        }
    }
}

/* ---- After the last layer */

/* Moves the first `n` of spans[count] behind the others. */
static void rotate_spans(struct span *spans, size_t count, size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct span first = spans[0];
        memmove(spans, spans + 1, (count - 1) * sizeof *spans);
        spans[count - 1] = first;
    }
}

static void rotate_windows(uint8_t **windows, size_t count, size_t n) {
    for (size_t i = 0; count && i < n % count; i++) {
        uint8_t *first = windows[0];
        memmove(windows, windows + 1, (count - 1) * sizeof *windows);
        windows[count - 1] = first;
    }
}

void store_commit(struct cache *cache) {
    cache->fitted_ready |= cache->plan.seal > 0;
    cache->sealed += cache->plan.seal;
    cache->anchors.count += cache->plan.anchors;
    rotate_windows(cache->windows, cache->n_windows, cache->plan.shift);
    cache->extent = cache->plan.after;
    size_t evicted = 0;
    while (evicted < cache->sealed && cache->spans[evicted].first + cache->spans[evicted].count <= cache->extent.first) evicted++;
    rotate_spans(cache->spans, cache->n_spans, evicted);
    cache->sealed -= evicted;
}
