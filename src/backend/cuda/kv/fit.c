/* Fitting a sequence's transforms. The window, a few thousand rows, goes to the host, once for a sequence. */
#include "backend/cuda/kv/fit.h"

#include "backend/cuda/kv/transforms.h"
#include "base/half.h"
#include "base/memory.h"
#include "base/size.h"
#include "format/transform_fit.h"
#include "kv/pre_rope.h"

#include <string.h>

#define NIBBLES_TOGETHER 8 /* to which the largest page's are rounded up for a launch */

static const char what[] = "what the KV cache learns";

/* ---- The device's tables */

size_t kv_fitted_bytes(const struct cache_shape *shape, const struct method *method) {
    if (!method_fits_transforms(method)) return 0;
    return memory_round_up(cache_heads_of(shape) * sizeof(struct place_view), 256) + 2 * transforms_fitted_bytes(shape);
}

void kv_fitted_free(struct cache *cache) {
    device_free(cache->base.budget, cache->fitted.memory, kv_fitted_bytes(&cache->base.shape, &cache->base.method));
    memory_free(cache->fitted.places);
    cache->fitted = (struct fitted_tables){0};
}

/* Writes host[kv_fitted_bytes] as it will lie on the device: places, then the sides' views. */
static void write_tables(const struct cache *cache, uint8_t *host, uint8_t *device, struct fitted_tables *tables) {
    const struct cache_shape *shape = &cache->base.shape;
    const size_t n = cache_heads_of(shape), each = transforms_fitted_bytes(shape);
    size_t at = memory_round_up(n * sizeof(struct place_view), 256);
    page_addresses_set(shape, &cache->base.method, 0, tables->places);
    place_views_set(tables->places, n, (struct place_view *)(void *)host, tables->page_bytes);
    tables->view.places = (const struct place_view *)(const void *)device;
    for (int side = CODEC_KEYS; side <= CODEC_VALUES; side++, at += each) {
        const uint32_t nibbles = (tables->page_bytes[side] - PAGE_TOKENS) / PAGE_TRANSFORM_NIBBLE;
        /* Launches depend on the largest page: graphs of them serve many sequences. */
        tables->page_bytes[side] = (uint32_t)PAGE_BYTES_TRANSFORM(memory_round_up(nibbles, NIBBLES_TOGETHER));
        tables->view.transforms[side] = (const struct transform_view *)(const void *)(device + at);
        transforms_fitted_set(&cache->base, (enum codec_side)side, cache->tables->learned[side], host + at, device + at);
    }
}

enum terse_status kv_layouts_changed(struct cache *cache, struct terse_error *error) {
    const struct cache_shape *shape = &cache->base.shape;
    const size_t bytes = kv_fitted_bytes(shape, &cache->base.method), n = cache_heads_of(shape);
    kv_fitted_free(cache);
    cache->base.places = cache->tables->places;
    if (!cache->base.fitted.layouts) return TERSE_OK;
    struct fitted_tables tables = {.places = memory_array(n, sizeof *tables.places)};
    uint8_t *host = memory_zeros(bytes, 1);
    enum terse_status status = tables.places && host ? TERSE_OK : status_no_memory(error, bytes, what);
    if (!status && !(tables.memory = device_alloc(cache->base.budget, bytes, what, error))) status = TERSE_E_MEMORY;
    if (!status) {
        write_tables(cache, host, tables.memory, &tables);
        status = device_check(device_send(tables.memory, host, bytes), "sending what a KV cache learned", error);
    }
    memory_free(host);
    cache->fitted = tables;
    if (status)
        kv_fitted_free(cache);
    else
        cache->base.places = tables.places;
    return status;
}

/* ---- Fitting */

/* A thread works in this memory. */
struct work {
    float *rows;       /* [FIT_TOKENS][hd] */
    float *parameters; /* [transform_parameter_floats(hd)], of the profile */
    float *metric;     /* [hd][hd] */
    uint8_t *record;   /* the profile's */
};

static size_t work_floats(size_t hd) {
    return memory_round_up((size_t)FIT_TOKENS * hd + transform_parameter_floats((uint32_t)hd) + hd * hd +
                               TRANSFORM_RECORD_BYTES(hd) / sizeof(float) + 1,
                           16);
}

static struct work work_at(float *floats, size_t hd) {
    struct work work = {.rows = floats, .parameters = floats + (size_t)FIT_TOKENS * hd};
    work.metric = work.parameters + transform_parameter_floats((uint32_t)hd);
    work.record = (uint8_t *)(work.metric + hd * hd);
    return work;
}

/* Reads rows[n][hd] of the window's first n tokens, of its copy ring[layers][Hk][2][capacity][hd], as pages will hold them. */
static void read_window(const struct cache *cache, const uint16_t *ring, size_t layer_head, enum codec_side side, size_t n,
                        float *rows) {
    const struct rope *rope = cache->base.shape.rope;
    const size_t hd = cache->base.shape.head_dim, capacity = cache->window_capacity;
    const uint16_t *from = ring + (2 * layer_head + (size_t)side) * capacity * hd;
    float cosine[CODEC_HEAD_DIM_MAX / 2], sine[CODEC_HEAD_DIM_MAX / 2];
    for (size_t t = 0; t < n; t++) {
        const uint64_t token = cache->base.plan.grid + t;
        const uint16_t *row = from + (size_t)((token - cache->window_origin) % capacity) * hd;
        for (size_t c = 0; c < hd; c++) rows[t * hd + c] = half_to_float(row[c]);
        if (side == CODEC_VALUES || !rope || !rope->n_rot) continue;
        if (t % PAGE_TOKENS == 0) rope_angles(rope, -(int64_t)(token / ROPE_RUN_TOKENS * ROPE_RUN_TOKENS), cosine, sine);
        struct rope turn = *rope;
        turn.magnitude = 1;
        rope_rotate(&turn, cosine, sine, rows + t * hd, 1, (uint32_t)hd);
    }
}

/* fit_side works on this: the cache, a copy of its window, and memory for each thread. */
struct fitting {
    const struct cache *cache;
    const uint16_t *ring;
    struct pre_rope pre_rope;
    size_t n; /* rows of a side */
    float *floats;
};

static enum terse_status fit_side(void *user, size_t thread, uint32_t layer, uint32_t head, enum codec_side side, void *record,
                                  struct terse_error *error) {
    const struct fitting *f = user;
    const struct cache_shape *shape = &f->cache->base.shape;
    const uint32_t hd = shape->head_dim;
    const size_t layer_head = (size_t)layer * shape->kv_heads + head;
    const struct work work = work_at(f->floats + thread * work_floats(hd), hd);
    codebook_parameters(f->cache->base.method.learned, side, layer_head, work.parameters);
    const struct transform_parameters profile = transform_parameters_at(work.parameters, hd);
    enum terse_status status = transform_metric(profile.basis, hd, work.metric, error);
    if (status) return status;
    transform_record_set(profile, hd, work.record);
    read_window(f->cache, f->ring, layer_head, side, f->n, work.rows);
    float mean[CODEC_HEAD_DIM_MAX];
    if (side == CODEC_KEYS) pre_rope_take(&f->pre_rope, f->cache->base.plan.grid, work.rows, f->n, hd, mean);
    return transform_fit_rows(transform_multiply, work.record, work.metric, hd, work.rows, f->n, side == CODEC_KEYS ? mean : NULL,
                              record, error);
}

enum terse_status kv_fit_transforms(struct cache *cache, struct terse_error *error) {
    struct cache_base *base = &cache->base;
    const size_t floats = base->threads * work_floats(base->shape.head_dim);
    const size_t bytes = cache_heads_of(&base->shape) * 2 * window_side_halves(cache) * sizeof(uint16_t);
    uint16_t *ring = memory_array(bytes, 1);
    struct fitting f = {.cache = cache,
                        .ring = ring,
                        .n = size_min((size_t)(base->extent.length - base->plan.grid), FIT_TOKENS),
                        .floats = memory_array(floats, sizeof *f.floats)};
    enum terse_status status = f.floats && ring ? TERSE_OK : status_no_memory(error, bytes, "rows that the KV cache learns from");
    if (!status) status = pre_rope_new(base->shape.rope, &f.pre_rope, error);
    if (!status) status = device_check(device_fetch(ring, cache->window, bytes), "reading the KV cache's recent window", error);
    if (!status) status = fitted_find(base, fit_side, &f, error);
    if (!status && (status = kv_layouts_changed(cache, error))) fitted_drop(base);
    pre_rope_free(&f.pre_rope);
    memory_free(f.floats);
    memory_free(ring);
    return status;
}
