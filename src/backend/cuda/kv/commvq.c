/* Makes what kernels read of CommVQ: integers of the tables and rows here, what the searches need on the device. */
#include "backend/cuda/kv/commvq.h"

#include "backend/cuda/device.h"
#include "backend/cuda/kv/encode_kernels.h"
#include "backend/cuda/kv/learned.h"
#include "base/memory.h"
#include "format/codebook.h"

#include <string.h>

static struct codec_shape shape_of(const struct coding *coding, uint32_t hd) {
    return (struct codec_shape){.head_dim = hd, .width = coding->width, .bits = coding->bits};
}

/* ---- Keys */

/* Counts the rows of a set, then its bytes: rows, steps and mean, halves, coarse halves, limits. */
struct key_numbers {
    size_t subvectors, pairs, rounds, rows, row_bytes, floats, half_floats, coarse_words, limits;
};

static struct key_numbers key_numbers_of(struct codec_shape shape) {
    struct key_numbers n = {commvq_subvectors(shape), shape.width / 2, commvq_rounds(shape), 0, 0, 0, 0, 0, 0};
    n.rows = n.subvectors * n.rounds * COMMVQ_ENTRIES;
    n.row_bytes = n.rows * COMMVQ_ROW;
    n.floats = memory_round_up(shape.head_dim / 2 + shape.head_dim, 4);
    n.half_floats = n.rows * COMMVQ_ENTRIES;
    n.coarse_words = n.half_floats / 2;
    n.limits = n.subvectors * n.rounds * COMMVQ_LIMITS;
    return n;
}

size_t commvq_bytes(const struct coding *coding, uint32_t head_dim) {
    const struct key_numbers n = key_numbers_of(shape_of(coding, head_dim));
    return n.row_bytes + (n.floats + n.half_floats + n.coarse_words + n.limits) * sizeof(float);
}

/* Puts rows[rows][2][pairs] into units, as struct commvq_view says. */
static void set_rows(const struct key_numbers *n, const int8_t *from, uint8_t *to) {
    for (size_t row = 0; row < n->rows; row++, from += 2 * n->pairs, to += COMMVQ_ROW)
        for (size_t copy = 0; copy < COMMVQ_ROW; copy += 2 * n->pairs)
            for (uint32_t j = 0; j < n->pairs; j++) {
                to[copy + commvq_place(j)] = (uint8_t)(COMMVQ_MIDDLE + from[j]);
                to[copy + commvq_place(j) + 8] = (uint8_t)(COMMVQ_MIDDLE + from[n->pairs + j]);
            }
}

/* Makes the integers of a set: rows in units, steps[hd / 2]. */
static void set_integers(const struct key_numbers *n, const float *tables, int8_t *rows, uint8_t *units, float *steps) {
    float inverses[COMMVQ_MOST_PAIRS];
    const size_t each = n->rounds * COMMVQ_ENTRIES * 2 * n->pairs;
    for (size_t k = 0; k < n->subvectors; k++)
        commvq_integers(n->pairs, n->rounds, tables + k * each, n->pairs, rows + k * each, steps + k * n->pairs, inverses);
    set_rows(n, rows, units);
}

enum terse_status commvq_send(const struct coding *coding, uint32_t head_dim, const float *parameters, void *device, void *view,
                              struct terse_error *error) {
    const struct codec_shape shape = shape_of(coding, head_dim);
    const struct key_numbers n = key_numbers_of(shape);
    const struct commvq_pairing pairing = commvq_pairing_of(shape, parameters);
    const float *normalization = parameters + commvq_table_numbers(shape) + COMMVQ_PAIRING_FLOATS;
    const size_t sent = n.row_bytes + n.floats * sizeof(float);
    uint8_t *host = memory_zeros(sent, 1), *to = device;
    int8_t *rows = memory_array(n.rows, 2 * n.pairs);
    enum terse_status status = host && rows ? TERSE_OK : status_no_memory(error, sent, "a codebook");
    if (!status) {
        float *steps = (float *)(void *)(host + n.row_bytes), *there = (float *)(void *)(to + n.row_bytes);
        struct commvq_view *own = view;
        *own = (struct commvq_view){.subvectors = (uint32_t)n.subvectors,
                                    .rounds = (uint32_t)n.rounds,
                                    .rotated_pairs = (uint32_t)pairing.pairs,
                                    .adjacent = pairing.adjacent,
                                    .rows = device,
                                    .steps = there,
                                    .half = there + n.floats,
                                    .coarse = (uint32_t *)(void *)(there + n.floats + n.half_floats),
                                    .limits = there + n.floats + n.half_floats + n.coarse_words,
                                    .gain_scale = normalization[head_dim],
                                    .mean = there + head_dim / 2};
        set_integers(&n, parameters, rows, host, steps);
        memcpy(steps + head_dim / 2, normalization, head_dim * sizeof *normalization);
        status = device_check(device_send(device, host, sent), "sending a codebook", error);
        if (!status)
            status = device_check(commvq_find_halves(own, (uint32_t)n.pairs, device_stream()), "preparing a codebook", error);
    }
    memory_free(rows);
    memory_free(host);
    return status;
}

/* Finds whether the first set of parameters pairs the channels that the model rotates together. */
static enum terse_status pairs_as_rotated(const struct cache_shape *shape, const struct method *method, bool *as_rotated,
                                          struct terse_error *error) {
    const struct codec_shape own = codebook_shape(codebook_info(method->learned), CODEC_KEYS);
    const size_t n = codec_parameters(method->key.codec, own);
    float *parameters = memory_array(n, sizeof *parameters);
    if (!parameters) return status_no_memory(error, n * sizeof *parameters, "a codebook");
    codebook_parameters(method->learned, CODEC_KEYS, 0, parameters);
    const struct commvq_pairing pairing = commvq_pairing_of(own, parameters);
    const size_t pairs = shape->rope ? shape->rope->n_rot / 2 : 0;
    *as_rotated = pairing.pairs == pairs && (!pairs || pairing.adjacent == (shape->rope->pairing == ROPE_ADJACENT));
    memory_free(parameters);
    return TERSE_OK;
}

enum terse_status commvq_new(const struct cache_shape *shape, const struct method *method, enum codec_side side, void **views,
                             struct terse_error *error) {
    static const struct learned_form form = {sizeof(struct commvq_view), commvq_bytes, commvq_send};
    bool as_rotated;
    *views = NULL;
    enum terse_status status = pairs_as_rotated(shape, method, &as_rotated, error);
    if (!status && !as_rotated)
        status =
            status_fail(error, TERSE_E_UNSUPPORTED,
                        "the codebook of %s pairs other channels than the model rotates: make it again with terse calibrate, or "
                        "use --device cpu",
                        method->name);
    return status ? status : learned_views_new(&form, shape, method, side, views, error);
}

/* ---- Values */

/* Counts the bytes of a set: levels, then floats: low, step, mean, offset, couplings. */
struct value_numbers {
    size_t codes, level_bytes, sent_floats, floats;
};

static struct value_numbers value_numbers_of(struct codec_shape shape) {
    struct value_numbers n = {.codes = shape.bits, .level_bytes = (size_t)shape.bits * shape.head_dim};
    n.sent_floats = 3 * (size_t)shape.head_dim;
    n.floats = n.sent_floats + n.codes + n.codes * n.codes;
    return n;
}

size_t additive_bytes(const struct coding *coding, uint32_t head_dim) {
    const struct value_numbers n = value_numbers_of(shape_of(coding, head_dim));
    return n.level_bytes + n.floats * sizeof(float);
}

enum terse_status additive_send(const struct coding *coding, uint32_t head_dim, const float *parameters, void *device, void *view,
                                struct terse_error *error) {
    const struct value_numbers n = value_numbers_of(shape_of(coding, head_dim));
    const float *normalization = parameters + n.level_bytes;
    const size_t sent = n.level_bytes + n.sent_floats * sizeof(float);
    uint8_t *host = memory_zeros(sent, 1), *to = device;
    float *C = memory_array(n.level_bytes, sizeof *C);
    enum terse_status status = host && C ? TERSE_OK : status_no_memory(error, sent, "a codebook");
    if (!status) {
        float *low = (float *)(void *)(host + n.level_bytes), *there = (float *)(void *)(to + n.level_bytes);
        struct additive_view *own = view;
        memcpy(C, parameters, n.level_bytes * sizeof *C);
        additive_levels(n.codes, head_dim, C, host, low, low + head_dim);
        memcpy(low + 2 * (size_t)head_dim, normalization, head_dim * sizeof *normalization);
        *own = (struct additive_view){.codes = (uint32_t)n.codes,
                                      .levels = device,
                                      .low = there,
                                      .step = there + head_dim,
                                      .mean = there + 2 * (size_t)head_dim,
                                      .gain_scale = normalization[head_dim],
                                      .couplings = there + n.sent_floats + n.codes,
                                      .offset = there + n.sent_floats};
        status = device_check(device_send(device, host, sent), "sending a codebook", error);
        if (!status) status = device_check(additive_find_couplings(own, head_dim, device_stream()), "preparing a codebook", error);
    }
    memory_free(C);
    memory_free(host);
    return status;
}

enum terse_status additive_new(const struct cache_shape *shape, const struct method *method, enum codec_side side, void **views,
                               struct terse_error *error) {
    static const struct learned_form form = {sizeof(struct additive_view), additive_bytes, additive_send};
    return learned_views_new(&form, shape, method, side, views, error);
}
