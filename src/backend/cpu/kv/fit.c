/* Fits codecs and indexes to the keys and values of a sequence. */
#include "backend/cpu/kv/fit.h"

#include "backend/cpu/codec/transform.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "backend/cpu/kv/segment.h"
#include "base/memory.h"
#include "base/size.h"
#include "format/transform_fit.h"
#include "kv/fit_records.h"

#include <string.h>

#define FIT_ROWS 4096 /* keys of a layer and head that are fitted to, where they must be rotated first */

/* ---- Sizes */

struct index_layout fit_index_layout(const struct method *method, uint32_t head_dim) {
    struct index_layout layout = {0};
    if (!method->index) return layout;
    /* A codec's pages of keys, and what it fits, may begin with those of an index (sign's do). */
    layout.in_keys = method->key.codec->index == method->index;
    layout.page_bytes = index_page_bytes_of(method, head_dim);
    return layout;
}

/* ---- Memory */

enum terse_status fit_reserve(struct cache *cache, const struct plan *plan, struct terse_error *error) {
    /* The rows are [Hk][FIT_ROWS][hd] of keys. */
    size_t floats = (size_t)cache->base.shape.kv_heads * FIT_ROWS * cache->base.shape.head_dim;
    if (!cache_fit_pending(&cache->base) || !plan->seal || cache->fit_rows || cache->keys_rotated) return TERSE_OK;
    if (!(cache->fit_rows = memory_array(floats, sizeof *cache->fit_rows)))
        return status_no_memory(error, floats * sizeof *cache->fit_rows, "rows that the KV cache learns from");
    cache->fit_floats = floats;
    return TERSE_OK;
}

void fit_release(struct cache *cache) {
    memory_free(cache->fit_rows);
    cache->fit_rows = NULL;
    cache->fit_floats = 0;
}

/* ---- Fitting and encoding */

static void fit_rows(struct cache *cache, uint32_t head, const float *rows, size_t n, size_t stride) {
    const struct method *method = &cache->base.method;
    uint32_t hd = cache->base.shape.head_dim;
    struct index_options options = index_options_defaults();
    if (cache->codec[CODEC_KEYS]->format->fitted)
        cache->codec[CODEC_KEYS]->fit(
            method_shape(method, CODEC_KEYS, cache_shape_number(&cache->base.shape, cache->base.layer), head, hd, cache->group),
            CODEC_KEYS, rows, n, stride, &options, fitted_data(cache, cache->base.layer, head));
    if (method->index && !cache->index_in_keys && index_learned_bytes(method->index, hd))
        cache->index->fit(hd, rows, n, stride, &options, index_learned(cache, cache->base.layer, head));
}

/* Rotates rows[n][hd] of tokens `token`, token + step, ... if they are not rotated yet: codecs and indexes both fit to keys as
 * queries are multiplied by them. */
static void rotate_rows(const struct cache *cache, uint64_t token, size_t step, float *rows, size_t n) {
    if (cache->keys_rotated) return;
    for (size_t i = 0; i < n; i++)
        rotary_rotate_at(&cache->rotary, (int64_t)(token + i * step), rows + i * cache->base.shape.head_dim, 1,
                         cache->base.shape.head_dim);
}

static void fit_page(struct cache *cache, uint32_t head, const float *page, float *some) {
    size_t n = size_min(cache->base.plan.sealed, PAGE_TOKENS), hd = cache->base.shape.head_dim;
    if (!cache->keys_rotated) {
        memcpy(some, page, n * hd * sizeof *some);
        rotate_rows(cache, plan_first_sealed(&cache->base.plan), 1, some, n);
    }
    fit_rows(cache, head, cache->keys_rotated ? page : some, n, hd);
}

void fit_head(struct cache *cache, uint32_t head, const float *page) {
    const struct plan *plan = &cache->base.plan;
    size_t hd = cache->base.shape.head_dim, width = cache->base.shape.kv_heads * hd;
    uint64_t first = plan_first_sealed(plan), end = first + plan->sealed, length = plan->before.length;
    uint64_t from = first > length ? first : length;
    float *some = cache->keys_rotated ? NULL : cache->fit_rows + head * FIT_ROWS * hd;
    if (end < from + PAGE_TOKENS) {
        fit_page(cache, head, page, some);
        return;
    }
    const float *rows = cache->k + (size_t)(from - length) * width + head * hd;
    size_t n = (size_t)(end - from), step = (n + FIT_ROWS - 1) / FIT_ROWS, count = (n + step - 1) / step;
    if (cache->keys_rotated) {
        fit_rows(cache, head, rows, n, width);
        return;
    }
    for (size_t i = 0; i < count; i++) memcpy(some + i * hd, rows + i * step * width, hd * sizeof *some);
    rotate_rows(cache, from, step, some, count);
    fit_rows(cache, head, some, count, hd);
}

uint64_t fit_tokens(const struct cache *cache) {
    const struct cache_base *base = &cache->base;
    if (!base->pages.n_sealed) return 0;
    if (cache->fitted_bytes) return UINT64_MAX;
    return base->fitted.layouts ? base->method.parameters.exact + FIT_TOKENS : 0;
}

/* ---- Transforms */

/* Reads rows[n][width] of the window's first n tokens as pages will hold them: of a slice where rows are cut into slices. page[64][hd] is
 * scratch. */
static void read_window(const struct cache *cache, uint32_t layer, uint32_t head, enum codec_side side, size_t n, uint32_t slice,
                        float *page, float *rows) {
    const size_t hd = cache->base.shape.head_dim, width = method_slice_width(&cache->base.method, (uint32_t)hd);
    for (size_t first = 0; first < n; first += PAGE_TOKENS) {
        size_t count = size_min(n - first, PAGE_TOKENS);
        cpu_codec_f16.decode(window_shape(cache, 1), side,
                             window_page(cache, cache->window_sets[first / PAGE_TOKENS], side, layer, head), page);
        if (side == CODEC_KEYS && cache->keys_in_rope_runs)
            segment_rotate_to_run(cache, cache->base.plan.grid + first, count, page);
        for (size_t t = 0; t < count; t++) memcpy(rows + (first + t) * width, page + t * hd + slice * width, width * sizeof *rows);
    }
}

/* fit_side works on this: the cache, and for each thread a page and the rows. */
struct fitting {
    const struct cache *cache;
    size_t n, floats; /* rows of a side; of a thread's */
    float *rows;
};

static enum terse_status fit_side(void *user, size_t thread, uint32_t layer, uint32_t head, enum codec_side side, void *record,
                                  struct terse_error *error) {
    const struct fitting *f = user;
    const struct cache *cache = f->cache;
    const uint32_t slices = method_slices(&cache->base.method), slice = head % slices;
    const uint32_t width = method_slice_width(&cache->base.method, cache->base.shape.head_dim);
    struct codec_shape shape = side_shape(cache, side, layer, head / slices, 1);
    if (shape.slices) shape = transform_slice(shape, slice);
    const struct transform_learned *profile = shape.learned;
    const bool turns = side == CODEC_KEYS && slice == 0;
    float *page = f->rows + thread * f->floats, *rows = page + PAGE_TOKENS * cache->base.shape.head_dim, mean[CODEC_HEAD_DIM_MAX];
    read_window(cache, layer, head / slices, side, f->n, slice, page, rows);
    if (turns) pre_rope_take(&cache->positions.pre_rope, cache->base.plan.grid, rows, f->n, width, mean);
    return transform_fit_rows(vector_ops()->multiply, profile->record, profile->metric, width, rows, f->n, turns ? mean : NULL,
                              record, error);
}

enum terse_status fit_transforms(struct cache *cache, struct terse_error *error) {
    struct cache_base *base = &cache->base;
    struct fitting f = {.cache = cache, .n = fitted_tokens(base)};
    f.floats = memory_round_up(f.n * method_slice_width(&base->method, base->shape.head_dim), PAGE_TOKENS) +
               PAGE_TOKENS * base->shape.head_dim;
    f.rows = memory_array(base->threads * f.floats, sizeof *f.rows);
    enum terse_status status =
        f.rows ? TERSE_OK
               : status_no_memory(error, base->threads * f.floats * sizeof *f.rows, "rows that the KV cache learns from");
    status = fit_records(cache, status, fit_side, &f, error);
    memory_free(f.rows);
    return status;
}

void fit_encode_index(const struct cache *cache, const struct page_set *set, uint32_t layer, uint32_t head, const float *rows,
                      size_t n, float *scratch) {
    size_t hd = cache->base.shape.head_dim;
    if (!cache->base.index_page_bytes) return;
    if (!cache->keys_rotated) {
        memcpy(scratch, rows, n * hd * sizeof *scratch);
        rotate_rows(cache, set->first, 1, scratch, n);
    }
    cache->index->encode(hd, index_learned(cache, layer, head), cache->keys_rotated ? rows : scratch, n,
                         own_index_page(cache, set, layer, head));
}
