/* Sending a profile to the device: a side of a layer and KV head at a time, so that the host needs little memory for it. */
#include "backend/cuda/kv/transforms.h"

#include "backend/cuda/device.h"
#include "base/half.h"
#include "base/inverse.h"
#include "base/memory.h"
#include "format/codebook_layouts.h"
#include "format/transform_codes.h"

#include <string.h>

/* Floats of a view's numbers: mean, size, basis, inverse, and the basis in halves; then room for the readers' words, of which a layout has at
 * most 6 for each of hd / 2 planes. */
static size_t number_floats(size_t hd) { return 2 * hd + 2 * hd * hd + hd * hd / 2; }
static size_t view_floats(size_t hd) { return number_floats(hd) + 3 * hd; }

/* ---- Readers of planes */

static unsigned padded_planes(const struct transform_layout *layout) {
    return (layout->planes + TRANSFORM_READERS_STEP - 1u) / TRANSFORM_READERS_STEP * TRANSFORM_READERS_STEP;
}

size_t transform_reader_words(const struct transform_layout *layout) { return (size_t)padded_planes(layout) * 6; }

/* Returns the byte of a page in shared memory at which a nibble's 16 bytes from 0 on begin. Nibbles that lanes read together lie in different
 * banks. */
static uint32_t nibble_place(unsigned nibble, enum codec_side side) {
    return nibble * PAGE_TRANSFORM_NIBBLE + (side == CODEC_VALUES ? nibble % 2 * 64 : nibble % 4 * 32);
}

static void set_table(const struct transform_plane *plane, uint32_t *words) {
    const unsigned table = transform_table_of(plane), written = transform_written(plane);
    for (unsigned v = 0; v < 16; v++) {
        const unsigned place = v < 8 ? v : 23 - v;
        const unsigned level = (unsigned)(transform_levels[table][transform_window(v, written)] + TRANSFORM_LEVEL_MAX);
        words[place / 4] |= (uint32_t)level << place % 4 * 8;
    }
}

void transform_readers(const struct transform_layout *layout, enum codec_side side, uint32_t *words) {
    const unsigned padded = padded_planes(layout);
    memset(words, 0, transform_reader_words(layout) * sizeof *words);
    for (unsigned p = 0; p < padded; p++) {
        uint32_t *table = words + 4 * p, *entry = words + 4 * padded + 2 * p;
        if (p >= layout->planes) {
            for (int i = 0; i < 4; i++) table[i] = TRANSFORM_LEVEL_MAX * UINT32_C(0x01010101);
            entry[1] = UINT32_MAX;
            continue;
        }
        const struct transform_plane *plane = &layout->plane[p];
        const unsigned written = transform_written(plane);
        bool wraps = false;
        const unsigned before = written == 4 ? plane->nibble : transform_before(layout, plane->nibble, &wraps);
        set_table(plane, table);
        entry[0] = nibble_place(plane->nibble, side) | nibble_place(before, side) << 16 | (uint32_t)wraps << 31;
        entry[1] = (16 - (16u >> written)) * UINT32_C(0x11111111);
    }
}

uint32_t transform_wraps(const struct transform_layout *layout, enum codec_side side) {
    uint32_t groups = 0;
    for (unsigned p = 0; p < layout->planes; p++) {
        bool wraps = false;
        if (transform_written(&layout->plane[p]) < 4) transform_before(layout, layout->plane[p].nibble, &wraps);
        if (wraps) groups |= UINT32_C(1) << p / (side == CODEC_VALUES ? 8 : 4);
    }
    return groups;
}

/* ---- Views */

/* The host's memory for making a view. */
struct work {
    float *parameters; /* [transform_parameter_floats(hd)] */
    float *floats;     /* [view_floats(hd)] */
    double *inversion; /* [hd][2 hd] */
};

static enum terse_status set_floats(struct transform_parameters own, size_t hd, struct work *work, struct terse_error *error) {
    float *mean = work->floats, *size = mean + hd, *basis = size + hd, *inverse = basis + hd * hd;
    uint16_t *half = (uint16_t *)(void *)(inverse + hd * hd);
    memcpy(mean, own.mean, hd * sizeof *mean);
    memcpy(size, own.size, hd * sizeof *size);
    memcpy(basis, own.basis, hd * hd * sizeof *basis);
    for (size_t i = 0; i < hd * hd; i++) half[i] = half_from_float(basis[i]);
    if (invert_transposed(basis, hd, work->inversion, inverse)) return TERSE_OK;
    return status_fail(error, TERSE_E_FORMAT,
                       "the basis of a transform is singular: the profile is damaged, make it again with terse calibrate");
}

/* The view of a set, whose numbers are sent to device[view_floats(hd)]. */
static enum terse_status make_view(const struct method *method, enum codec_side side, size_t set, size_t hd, struct work *work,
                                   float *device, struct transform_view *view, struct terse_error *error) {
    codebook_parameters(method->learned, side, set, work->parameters);
    struct transform_parameters own = transform_parameters_at(work->parameters, (uint32_t)hd);
    enum terse_status status = set_floats(own, hd, work, error);
    if (status) return status;
    const float *size = device + hd, *basis = size + hd, *inverse = basis + hd * hd;
    const struct transform_layout *layout = &method->layouts->layout[side][set];
    transform_readers(layout, side, (uint32_t *)(void *)(work->floats + number_floats(hd)));
    *view = (struct transform_view){.layout = *layout,
                                    .gain_least = own.gain_least,
                                    .gain_step = (own.gain_most - own.gain_least) / 255,
                                    .mean = device,
                                    .size = size,
                                    .basis = basis,
                                    .inverse = inverse,
                                    .basis_half = (const device_half *)(const void *)(inverse + hd * hd),
                                    .readers = (const uint32_t *)(const void *)(device + number_floats(hd)),
                                    .wraps = transform_wraps(layout, side)};
    return device_check(device_send(device, work->floats, view_floats(hd) * sizeof *device), "sending a profile", error);
}

static enum terse_status make_views(const struct cache_shape *shape, const struct method *method, enum codec_side side,
                                    struct work *work, float *device, struct transform_view *views, struct terse_error *error) {
    size_t hd = shape->head_dim, heads = cache_heads_of(shape);
    const bool shared = codebook_info(method->learned)->shared;
    for (size_t i = 0; i < heads; i++) {
        enum terse_status status = make_view(method, side, shared ? 0 : i, hd, work, device, &views[i], error);
        if (status) return status;
        device += view_floats(hd);
    }
    return TERSE_OK;
}

enum terse_status transforms_new(const struct cache_shape *shape, const struct method *method, enum codec_side side, void **views,
                                 struct terse_error *error) {
    size_t hd = shape->head_dim, n = cache_heads_of(shape);
    size_t head = memory_round_up(n * sizeof(struct transform_view), 256), bytes = head + n * view_floats(hd) * sizeof(float);
    struct work work = {.parameters = memory_array(transform_parameter_floats(shape->head_dim), sizeof(float)),
                        .floats = memory_array(view_floats(hd), sizeof(float)),
                        .inversion = memory_array(2 * hd * hd, sizeof(double))};
    struct transform_view *host = memory_zeros(n, sizeof *host);
    enum terse_status status = TERSE_OK;
    uint8_t *device = NULL;
    *views = NULL;
    if (!work.parameters || !work.floats || !work.inversion || !host)
        status = status_no_memory(error, n * sizeof *host, "a profile");
    else if (!(device = device_alloc(NULL, bytes, "a profile", error)))
        status = TERSE_E_MEMORY;
    if (!status) status = make_views(shape, method, side, &work, (float *)(void *)(device + head), host, error);
    if (!status) status = device_check(device_send(device, host, n * sizeof *host), "sending a profile", error);
    memory_free(work.parameters);
    memory_free(work.floats);
    memory_free(work.inversion);
    memory_free(host);
    if (status)
        device_free(NULL, device, bytes);
    else
        *views = device;
    return status;
}
