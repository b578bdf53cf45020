/* Sends a profile to the device: a side of a layer and KV head at a time, so that the host needs little memory for it. */
#include "backend/cuda/kv/transforms.h"

#include "backend/cuda/device.h"
#include "base/half.h"
#include "base/memory.h"
#include "format/codebook_layouts.h"
#include "format/transform_codes.h"
#include "format/transform_fit.h"

#include <math.h>
#include <string.h>

/* Return how many floats a view's numbers take: mean, mean before rotation, size, unit, step, the readers' words, of which a layout
 * has at most 2 for each of hd / 2 planes, and the basis in integers; a profile's view has the metric behind them, and four floats,
 * of which the first is its unit. */
static size_t reader_floats(size_t hd) { return hd; }
static size_t own_floats(size_t hd) { return 5 * hd + reader_floats(hd) + hd * hd / 2; }
static size_t view_floats(size_t hd) { return own_floats(hd) + hd * hd + 4; }

/* ---- Readers of planes */

static unsigned padded_planes(const struct transform_layout *layout) {
    return (layout->planes + TRANSFORM_READERS_STEP - 1u) / TRANSFORM_READERS_STEP * TRANSFORM_READERS_STEP;
}

size_t transform_reader_words(const struct transform_layout *layout) { return (size_t)padded_planes(layout) * 2; }

/* Returns the byte of a page in shared memory at which a nibble's 16 bytes from 0 on begin. Nibbles that lanes read together lie in
 * different banks. */
static uint32_t nibble_place(unsigned nibble, enum codec_side side) {
    return nibble * PAGE_TRANSFORM_NIBBLE + (side == CODEC_VALUES ? nibble % 2 * 64 : nibble % 4 * 32);
}

void transform_readers(const struct transform_layout *layout, enum codec_side side, uint32_t *words) {
    memset(words, 0, transform_reader_words(layout) * sizeof *words);
    for (unsigned p = 0; p < layout->planes; p++) {
        const struct transform_plane *plane = &layout->plane[p];
        words[2 * p] = nibble_place(plane->nibble, side);
        words[2 * p + 1] = (transform_most(plane->bits) << plane->shift) * UINT32_C(0x01010101);
    }
}

/* ---- Views */

/* A thread makes views in this memory of the host. */
struct work {
    float *parameters; /* [transform_parameter_floats(hd)] */
    float *floats;     /* [view_floats(hd)] */
    void *record;
};

void transform_quads(const struct transform_layout *layout, struct transform_quad *quads) {
    memset(quads, 0, layout->quads * sizeof *quads);
    for (unsigned p = 0; p < layout->planes; p++) {
        struct transform_quad *quad = &quads[layout->plane[p].quad];
        quad->plane[quad->planes++] = (uint8_t)p;
    }
}

void transform_set_scored(uint32_t head_dim, struct transform_view *view) {
    const struct transform_layout *layout = &view->layout;
    struct transform_layout first;
    unsigned end = 0;
    transform_layout_first(layout, TRANSFORM_RANK_BITS(head_dim), &first);
    for (unsigned p = 0; p < (first.planes + 3u) / 4 * 4 && p < layout->planes; p++) {
        const struct transform_plane *plane = &layout->plane[p];
        if (plane->nibble >= end) end = plane->nibble + 1u;
    }
    view->score_planes = first.planes;
    view->score_nibbles = (uint16_t)end;
}

/* Makes the view one of a layout, whose readers, written to words, will lie at `device`. */
static void set_layout(const struct transform_layout *layout, enum codec_side side, uint32_t hd, struct transform_view *view,
                       uint32_t *words, const void *device) {
    transform_readers(layout, side, words);
    view->layout = *layout;
    view->readers = device;
    memset(view->quad, 0, sizeof view->quad);
    transform_quads(layout, view->quad);
    transform_set_scored(hd, view);
}

/* Returns the view of a record and a layout, whose numbers, written to floats[own_floats(hd)], will lie at `device`. */
static struct transform_view make_view(const void *record, const struct transform_layout *layout, enum codec_side side, uint32_t hd,
                                       float *floats, float *device) {
    const struct transform_fitted own = transform_fitted_at(record, hd);
    float *step = floats + 4 * hd;
    int16_t *basis = (int16_t *)(void *)(floats + 5 * hd + reader_floats(hd));
    memcpy(floats, own.mean, hd * sizeof *floats);
    memcpy(floats + hd, own.size, hd * sizeof *floats);
    memcpy(floats + 2 * hd, own.unit, hd * sizeof *floats);
    memcpy(floats + 3 * hd, own.pre_rope_mean, hd * sizeof *floats);
    for (size_t c = 0; c < hd; c++) {
        step[c] = own.size[c] * own.unit[c];
        transform_record_integers(&own, hd, c, basis + c * hd);
    }
    struct transform_view view = {.gain_zero = transform_gain_zero(&own),
                                  .gain_step = transform_gain_step(&own),
                                  .gain = own.gain,
                                  .mean = device,
                                  .size = device + hd,
                                  .unit = device + 2 * hd,
                                  .pre_rope_mean = device + 3 * hd,
                                  .step = device + 4 * hd,
                                  .basis = (const int16_t *)(const void *)(device + 5 * hd + reader_floats(hd)),
                                  .metric = (const uint32_t *)(const void *)(device + own_floats(hd))};
    set_layout(layout, side, hd, &view, (uint32_t *)(void *)(step + hd), device + 5 * hd);
    return view;
}

/* Turns metric[hd][hd] into halves and writes their unit behind them, as struct transform_view has them. */
static void split_metric(size_t hd, float *metric) {
    float rows[METRIC_BLOCK * CODEC_HEAD_DIM_MAX], most = 0;
    int exponent = 0;
    for (size_t i = 0; i < hd * hd; i++) most = fmaxf(most, fabsf(metric[i]));
    if (most > 0 && isfinite(most)) frexpf(most, &exponent);
    for (size_t first = 0; first < hd; first += METRIC_BLOCK) {
        memcpy(rows, metric + first * hd, METRIC_BLOCK * hd * sizeof *rows);
        for (size_t i = 0; i < METRIC_BLOCK * hd; i++) {
            const size_t place = metric_place(hd, first + i / hd, i % hd);
            const float x = ldexpf(rows[i], 14 - exponent);
            const uint16_t own = half_from_float(x), rest = half_from_float(x - half_to_float(own));
            memcpy((uint16_t *)(void *)metric + place, &own, sizeof own);
            memcpy((uint16_t *)(void *)metric + place + METRIC_REST, &rest, sizeof rest);
        }
    }
    metric[hd * hd] = ldexpf(1, exponent - 14);
}

static enum terse_status make_views(const struct cache_shape *shape, const struct method *method, enum codec_side side,
                                    struct work *work, float *device, struct transform_view *views, struct terse_error *error) {
    const size_t hd = shape->head_dim, heads = cache_heads_of(shape);
    const bool shared = codebook_info(method->learned)->shared;
    enum terse_status status = TERSE_OK;
    for (size_t i = 0; i < heads && !status; i++, device += view_floats(hd)) {
        const size_t set = shared ? 0 : cache_shape_set(shape, i);
        codebook_parameters(method->learned, side, set, work->parameters);
        const struct transform_parameters own = transform_parameters_at(work->parameters, shape->head_dim);
        transform_record_set(own, shape->head_dim, work->record);
        views[i] = make_view(work->record, &method->layouts->layout[side][set], side, shape->head_dim, work->floats, device);
        status = transform_metric(own.basis, shape->head_dim, work->floats + own_floats(hd), error);
        if (!status) split_metric(hd, work->floats + own_floats(hd));
        if (!status)
            status = device_check(device_send(device, work->floats, view_floats(hd) * sizeof *device), "sending a profile", error);
    }
    return status;
}

static size_t views_bytes(size_t n) { return memory_round_up(n * sizeof(struct transform_view), 256); }

enum terse_status transforms_new(const struct cache_shape *shape, const struct method *method, enum codec_side side, void **views,
                                 struct terse_error *error) {
    size_t hd = shape->head_dim, n = cache_heads_of(shape), bytes = views_bytes(n) + n * view_floats(hd) * sizeof(float);
    struct work work = {.parameters = memory_array(transform_parameter_floats(shape->head_dim), sizeof(float)),
                        .floats = memory_zeros(view_floats(hd), sizeof(float)),
                        .record = memory_array(TRANSFORM_RECORD_BYTES(hd), 1)};
    struct transform_view *host = memory_zeros(n, sizeof *host);
    enum terse_status status = TERSE_OK;
    uint8_t *device = NULL;
    *views = NULL;
    if (!work.parameters || !work.floats || !work.record || !host)
        status = status_no_memory(error, n * sizeof *host, "a profile");
    else if (!(device = device_alloc(NULL, bytes, "a profile", error)))
        status = TERSE_E_MEMORY;
    if (!status) status = make_views(shape, method, side, &work, (float *)(void *)(device + views_bytes(n)), host, error);
    if (!status) status = device_check(device_send(device, host, n * sizeof *host), "sending a profile", error);
    memory_free(work.parameters);
    memory_free(work.floats);
    memory_free(work.record);
    memory_free(host);
    if (status)
        device_free(NULL, device, bytes);
    else
        *views = device;
    return status;
}

/* ---- Lower rates */

size_t transforms_rate_bytes(const struct cache_shape *shape) {
    const size_t n = cache_heads_of(shape);
    return memory_round_up(views_bytes(n) + n * reader_floats(shape->head_dim) * sizeof(float), 256);
}

void transforms_rate_set(const struct cache_shape *shape, const struct method *at_rate, enum codec_side side,
                         const struct transform_view *own, uint8_t *host, uint8_t *device) {
    const size_t n = cache_heads_of(shape), each = reader_floats(shape->head_dim) * sizeof(float);
    const bool shared = codebook_info(at_rate->learned)->shared;
    struct transform_view *views = (struct transform_view *)(void *)host;
    for (size_t i = 0; i < n; i++) {
        const size_t at = views_bytes(n) + i * each;
        views[i] = own[i];
        set_layout(&at_rate->layouts->layout[side][shared ? 0 : cache_shape_set(shape, i)], side, shape->head_dim, &views[i],
                   (uint32_t *)(void *)(host + at), device + at);
    }
}

/* ---- A sequence's own */

size_t transforms_fitted_bytes(const struct cache_shape *shape) {
    const size_t n = cache_heads_of(shape);
    return memory_round_up(views_bytes(n) + n * own_floats(shape->head_dim) * sizeof(float), 256);
}

void transforms_fitted_set(const struct cache_base *base, enum codec_side side, const void *profile, uint8_t *host,
                           uint8_t *device) {
    const struct cache_shape *shape = &base->shape;
    const uint32_t hd = shape->head_dim;
    const size_t n = cache_heads_of(shape), numbers = view_floats(hd) * sizeof(float);
    struct transform_view *views = (struct transform_view *)(void *)host;
#pragma omp parallel for num_threads(base->threads)
    for (size_t i = 0; i < n; i++) {
        const uint32_t layer = (uint32_t)(i / shape->kv_heads), head = (uint32_t)(i % shape->kv_heads);
        const size_t at = views_bytes(n) + i * own_floats(hd) * sizeof(float);
        const struct transform_layout *layout = &base->method.layouts->layout[side][cache_shape_set(shape, i)];
        views[i] = make_view(fitted_record(base, layer, head, side), layout, side, hd, (float *)(void *)(host + at),
                             (float *)(void *)(device + at));
        views[i].metric =
            (const uint32_t *)(const void *)((const uint8_t *)profile + views_bytes(n) + i * numbers) + own_floats(hd);
    }
}
