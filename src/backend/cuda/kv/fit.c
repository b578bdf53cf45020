/* Fits a sequence's transforms, once for a sequence: the device finds the moments of the window's rows, the host their
 * eigenvectors. */
#include "backend/cuda/kv/fit.h"

#include "backend/cuda/kv/transforms.h"
#include "backend/cuda/kv/window.h"
#include "base/memory.h"
#include "base/size.h"
#include "format/transform_fit.h"
#include "kv/fit_records.h"

static const char what[] = "what the KV cache learns";

/* ---- The device's tables */

size_t kv_fitted_bytes(const struct cache_shape *shape, const struct method *method) {
    if (!method_fits_transforms(method)) return 0;
    double bits[METHOD_RATES];
    return place_views_bytes(shape) + 2 * transforms_fitted_bytes(shape) + (method_rates(method, bits) - 1) * kv_rate_bytes(shape);
}

void kv_fitted_free(struct cache *cache) {
    device_free(cache->base.budget, cache->fitted.memory, kv_fitted_bytes(&cache->base.shape, &cache->base.method));
    memory_free(cache->fitted.places);
    cache->fitted = (struct fitted_tables){0};
}

/* Writes host[kv_fitted_bytes] with the contents that the device gets: places, then the sides' views, then the same of lower rates. */
static void write_tables(const struct cache *cache, uint8_t *host, uint8_t *device, struct fitted_tables *tables) {
    const struct cache_shape *shape = &cache->base.shape;
    const size_t n = cache_heads_of(shape), each = transforms_fitted_bytes(shape);
    size_t at = place_views_bytes(shape);
    page_addresses_set(shape, &cache->base.method, cache->base.index_page_bytes, tables->places);
    place_views_set(tables->places, n, (struct place_view *)(void *)host);
    tables->rates[0].places = (const struct place_view *)(const void *)device;
    const struct transform_view *own[2];
    for (int side = CODEC_KEYS; side <= CODEC_VALUES; side++, at += each) {
        tables->rates[0].transforms[side] = (const struct transform_view *)(const void *)(device + at);
        own[side] = (const struct transform_view *)(const void *)(host + at);
        transforms_fitted_set(&cache->base, (enum codec_side)side, cache->tables->learned[side], host + at, device + at);
    }
    for (uint32_t rate = 1; rate < rates_of(&cache->base); rate++, at += kv_rate_bytes(shape)) {
        const struct method at_rate = rates_method(&cache->base, rate);
        tables->rates[rate] = kv_rate_set(shape, &at_rate, own, tables->places + rate * n, host + at, device + at);
    }
}

enum terse_status kv_layouts_changed(struct cache *cache, struct terse_error *error) {
    const struct cache_shape *shape = &cache->base.shape;
    const size_t bytes = kv_fitted_bytes(shape, &cache->base.method), n = cache_heads_of(shape);
    kv_fitted_free(cache);
    cache->base.places = cache->tables->places;
    if (!cache->base.fitted.layouts) return TERSE_OK;
    struct fitted_tables tables = {.places = memory_array(rates_of(&cache->base) * n, sizeof *tables.places)};
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
    float *parameters; /* [transform_parameter_floats(hd)], of the profile */
    uint8_t *record;   /* the profile's */
    double *products;  /* [hd][hd] */
};

static size_t work_floats(size_t hd) {
    return memory_round_up(transform_parameter_floats((uint32_t)hd), 16) +
           memory_round_up(TRANSFORM_RECORD_BYTES(hd) / sizeof(float) + 1, 16) + 2 * hd * hd;
}

static struct work work_at(float *floats, size_t hd) {
    float *record = floats + memory_round_up(transform_parameter_floats((uint32_t)hd), 16),
          *products = record + memory_round_up(TRANSFORM_RECORD_BYTES(hd) / sizeof(float) + 1, 16);
    return (struct work){floats, (uint8_t *)record, (double *)(void *)products};
}

/* A fitting is the work of fit_side: the moments of the rows of both sides in some layers, and memory for each thread. */
struct fitting {
    const struct cache *cache;
    struct encode_sides sides;
    struct layer_range layers;
    const float *moments; /* [layers.end - layers.first][Hk][sides.n] */
    float *floats;
};

static enum terse_status fit_side(void *user, size_t thread, uint32_t layer, uint32_t head, enum codec_side side, void *record,
                                  struct terse_error *error) {
    const struct fitting *f = user;
    const struct cache_shape *shape = &f->cache->base.shape;
    const size_t hd = shape->head_dim, layer_head = (size_t)layer * shape->kv_heads + head;
    const struct work work = work_at(f->floats + thread * work_floats(hd), hd);
    const size_t own = layer_head - (size_t)f->layers.first * shape->kv_heads;
    const float *from = f->moments + (own * (size_t)f->sides.n + (size_t)((int)side - f->sides.first)) * ENCODE_MOMENTS_FLOATS(hd),
                *mean = from + hd * hd, *numbers = mean + 2 * hd;
    codebook_parameters(f->cache->base.method.learned, side, cache_shape_set(shape, layer_head), work.parameters);
    transform_record_set(transform_parameters_at(work.parameters, (uint32_t)hd), (uint32_t)hd, work.record);
    for (size_t i = 0; i < hd * hd; i++) work.products[i] = (double)from[i];
    const struct transform_row_moments moments = {.mean = mean,
                                                  .pre_rope_mean = mean + hd,
                                                  .products = work.products,
                                                  .used = (size_t)numbers[MOMENTS_USED],
                                                  .gain = numbers[MOMENTS_GAIN],
                                                  .least = numbers[MOMENTS_LEAST],
                                                  .most = numbers[MOMENTS_MOST]};
    return transform_fit_moments(work.record, (uint32_t)hd, &moments, record, error);
}

/* Returns the sides whose codec is transform. */
static struct encode_sides sides_of(const struct cache *cache) {
    const bool keys = cache->codec[CODEC_KEYS] == CODEC_TRANSFORM, values = cache->codec[CODEC_VALUES] == CODEC_TRANSFORM;
    return (struct encode_sides){keys ? CODEC_KEYS : CODEC_VALUES, keys + values};
}

enum terse_status kv_fit_transforms(struct cache *cache, struct terse_error *error) {
    struct cache_base *base = &cache->base;
    const size_t hd = base->shape.head_dim, n = fitted_tokens(base);
    struct fitting f = {.cache = cache, .sides = sides_of(cache), .layers = fit_layers(base)};
    const size_t heads = (size_t)(f.layers.end - f.layers.first) * base->shape.kv_heads,
                 floats = heads * (size_t)f.sides.n * ENCODE_MOMENTS_FLOATS(hd), own = base->threads * work_floats(hd);
    float *memory = memory_array(floats + own, sizeof *memory);
    enum terse_status status =
        memory ? TERSE_OK : status_no_memory(error, (floats + own) * sizeof *memory, "what a KV cache learns from");
    f.floats = memory; /* first: its doubles are aligned */
    f.moments = memory + own;
    if (!status) status = window_moments(cache, n, f.sides, f.layers, memory + own, error);
    status = fit_records(cache, status, fit_side, &f, error);
    memory_free(memory);
    return status;
}
