/* Writes a layer of a step, and moves the cache on after the last layer. */
#include "backend/cpu/kv/seal.h"

#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kv/anchor_scores.h"
#include "backend/cpu/kv/exact.h"
#include "backend/cpu/kv/fit.h"
#include "backend/cpu/kv/page_pool.h"
#include "backend/cpu/kv/scratch.h"
#include "backend/cpu/kv/segment.h"
#include "backend/cpu/kv/side.h"
#include "base/size.h"

#include <string.h>

#define SEAL_ROWS 1024 /* that seal_some encodes on each thread, about: of the codec that takes longest, a piece (piece.h) */

static size_t rows_floats(const struct cache *cache) { return 2 * PAGE_TOKENS * (size_t)cache->base.shape.head_dim; }

size_t seal_thread_floats(const struct cache *cache) {
    const size_t page = cache->base.shape.ranks ? size_max(cache->largest_page[0], cache->largest_page[1]) : 0;
    return rows_floats(cache) + (page + sizeof(float) - 1) / sizeof(float);
}

/* ---- Writing a layer */

/* Copies token `first` and the `count` - 1 after it, as far as they are new, to rows[64][hd] of one side. */
static void copy_new(const struct cache *cache, const float *from, uint32_t head, uint64_t first, size_t count, float *rows) {
    size_t hd = cache->base.shape.head_dim, width = cache->base.shape.kv_heads * hd;
    uint64_t length = cache->base.plan.before.length;
    for (size_t t = first < length ? (size_t)(length - first) : 0; t < count; t++)
        memcpy(rows + t * hd, from + (size_t)(first + t - length) * width + head * hd, hd * sizeof *rows);
}

/* Loads one side of the i-th page from the first that the step seals to rows[64][hd], and returns the number of rows. Pages are cut
 * where those of the window are, so a page's older tokens are the beginning of one page of the window. */
static size_t load_page(const struct cache *cache, size_t i, uint32_t head, enum codec_side side, float *rows) {
    const struct plan *plan = &cache->base.plan;
    uint64_t first = plan_first_sealed(plan) + i * PAGE_TOKENS, left = plan->before.length + plan->n - first;
    size_t count = left < PAGE_TOKENS ? (size_t)left : PAGE_TOKENS;
    if (first < plan->before.length) {
        const uint8_t *page = window_page(cache, cache->window_sets[plan->skip + i], side, cache->base.layer, head);
        cpu_codec_f16.decode(window_shape(cache, 1), side, page, rows);
    }
    copy_new(cache, side == CODEC_KEYS ? cache->k : cache->v, head, first, count, rows);
    return count;
}

void seal_page(const struct cache *cache, const struct page_set *set, uint32_t layer, uint32_t head, enum codec_side side,
               float *rows) {
    const struct cpu_codec *codec = side_codec(cache, side);
    const uint32_t hd = cache->base.shape.head_dim;
    const float *mean = side == CODEC_KEYS ? side_pre_rope_mean(cache, layer, head) : NULL;
    if (side == CODEC_KEYS) fit_encode_index(cache, set, layer, head, rows, set->count, rows + PAGE_TOKENS * (size_t)hd);
    if (side == CODEC_KEYS && cache->keys_in_rope_runs) segment_rotate_to_run(cache, set->first, set->count, rows);
    if (mean) pre_rope_add(&cache->positions.pre_rope, -1, mean, set->first, rows, set->count, hd);
    codec->encode(side_shape_at(cache, set->rate, side, layer, head, cache->group), side, rows, set->count,
                  page_at(cache, set, side, layer, head));
}

/* Returns a page set that has one page alone, in memory, of the same tokens as a set of another rank. */
static struct page_set set_at(const struct page_set *set, void *memory) {
    struct page_set at = *set;
    at.chunk = memory;
    return at;
}

/* Seals one side of the i-th page that the step seals; rows[2][64][hd] is scratch, with the largest page behind it where pages are
 * dealt to ranks: a page of another rank is encoded for its errors alone, by which anchors are chosen. */
static void seal_side(struct cache *cache, size_t i, uint32_t head, enum codec_side side, float *rows) {
    const struct page_set *set = &cache->base.pages.sets[cache->base.pages.n_sealed + i];
    const struct cpu_codec *codec = side_codec(cache, side);
    const struct page_set elsewhere = set_at(set, rows + rows_floats(cache));
    if (!page_set_is_here(set)) {
        if (!cache->base.plan.anchors) return;
        set = &elsewhere;
    }
    load_page(cache, i, head, side, rows);
    seal_page(cache, set, cache->base.layer, head, side, rows);
    if (!cache->base.plan.anchors) return;
    float *decoded = rows + PAGE_TOKENS * cache->base.shape.head_dim;
    codec->decode(side_shape_at(cache, set->rate, side, cache->base.layer, head, cache->group), side,
                  page_at(cache, set, side, cache->base.layer, head), decoded);
    anchor_scores_scale(cache, head, side, i * PAGE_TOKENS, set->count, rows, decoded);
}

/* Appends tokens to the window that follows the step. */
static void append_to_window(struct cache *cache, uint32_t head) {
    const struct plan *plan = &cache->base.plan;
    size_t hd = cache->base.shape.head_dim, width = cache->base.shape.kv_heads * hd;
    uint64_t start = plan->after.window_first, token = plan->before.length > start ? plan->before.length : start;
    for (; token < plan->after.length; token++) {
        size_t slot = (size_t)(token - start), row = (size_t)(token - plan->before.length) * width + head * hd;
        size_t t = slot % PAGE_TOKENS;
        uint8_t *memory = cache->window_sets[(plan->shift + slot / PAGE_TOKENS) % cache->n_window_sets];
        uint16_t *keys = (uint16_t *)window_keys(cache, memory, cache->base.layer, head), half[CODEC_ROW_MAX];
        uint16_t *values = keys + PAGE_TOKENS * hd;
        if (t == 0) memset(keys, 0, window_bytes(cache)); /* weights of 0 must meet numbers in slots without tokens */
        vector_ops()->float_to_half(cache->k + row, half, hd);
        for (size_t c = 0; c < hd; c++) keys[c * PAGE_TOKENS + t] = half[c];
        if (!cache->base.shape.latents) vector_ops()->float_to_half(cache->v + row, values + t * hd, hd);
    }
}

/* Fits the codecs of a layer to the sequence. */
static void fit_layer(struct cache *cache) {
#pragma omp parallel for schedule(static) num_threads(cache->base.threads)
    for (uint32_t head = 0; head < cache->base.shape.kv_heads; head++) {
        float *rows = scratch_of_thread(cache);
        load_page(cache, 0, head, CODEC_KEYS, rows);
        fit_head(cache, head, rows);
    }
}

bool seal_some(struct cache *cache) {
    const struct plan *plan = &cache->base.plan;
    const uint32_t kv_heads = cache->base.shape.kv_heads, sides = cache_sides_of(&cache->base.shape);
    size_t first = size_max(cache->layer_sealed, plan->ready),
           more = size_max(SEAL_ROWS * cache->base.threads / (sides * PAGE_TOKENS * kv_heads), 1);
    if (first >= plan->seal) return false;
    size_t end = size_min(first + more, plan->seal);
    if (!cache->layer_sealed && cache_fit_pending(&cache->base)) fit_layer(cache);
#pragma omp parallel for schedule(static) num_threads(cache->base.threads)
    for (size_t i = sides * first * kv_heads; i < sides * end * kv_heads; i++)
        seal_side(cache, i / sides / kv_heads, (uint32_t)(i / sides % kv_heads), i % sides ? CODEC_VALUES : CODEC_KEYS,
                  scratch_of_thread(cache));
    cache->layer_sealed = end;
    return true;
}

void seal_layer(struct cache *cache) {
    while (seal_some(cache)) continue;
        /* One token's rows are not worth waking the threads for. */
#pragma omp parallel num_threads(cache->base.threads) if (cache->base.plan.n >= PAGE_TOKENS)
    {
        float *rows = scratch_of_thread(cache);
        anchors_choose(cache);
        /* From here on, pages of the window that were sealed are no longer read and may be written again. */
#pragma omp for schedule(static)
        for (uint32_t head = 0; head < cache->base.shape.kv_heads; head++) {
            exact_replace(cache, head, rows);
            append_to_window(cache, head);
        }
    }
}

/* ---- After the last layer */

static void recycle_window_sets(uint8_t **sets, size_t count, size_t n) {
    for (size_t i = 0; count && i < n % count; i++) {
        uint8_t *first = sets[0];
        memmove(sets, sets + 1, (count - 1) * sizeof *sets);
        sets[count - 1] = first;
    }
}

void seal_commit(struct cache *cache) {
    recycle_window_sets(cache->window_sets, cache->n_window_sets, cache->base.plan.shift);
    cache_advance(cache);
    if (cache->base.fitted_ready) fit_release(cache);
    pool_trim_window(cache, cache_window_pages(cache));
}
