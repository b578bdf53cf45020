/* Implements the codec gain-shape: vector quantization of a row's shape, and a gain that is fitted once the shape is known.
 *
 *     row = mean + gain * shape,   shape = the sub-vectors' centroids, learned from rows (x - mean) / rms(x - mean)
 *
 * Where codes are coarse, learning leaves the mean at zero (method.c).
 *
 * Rows of one head differ in size far more than in shape, so codes are better spent on the shape; and quantization shrinks what it
 * rounds, which the gain undoes. For keys the gain keeps the row's norm (a shrunken key evens attention out), for values it is the
 * best in least squares. Gersho and Gray 1992, section 12.10, with the gain last. Measured on the built-in model, KL divergence
 * falls by half at 4 bits and by two fifths at 1 bit against the same codes without gain; bench/experiments/quality.py equal-terms measures it.
 *
 * A gain takes one byte, backend/cpu/codec/normalization.h says how. Parameters: those of codec vq, then mean[hd], then scale. */
#include "backend/cpu/codec/codec.h"

#include "backend/cpu/codec/normalization.h"
#include "backend/cpu/codec/pq.h"
#include "backend/cpu/kernels/select/ops.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

#define GAIN_BYTES PAGE_TOKENS

struct learned {
    void *shapes; /* codec vq's */
    float mean[CODEC_HEAD_DIM_MAX];
    float scale;
    float gain[256]; /* of each code */
};

/* Returns the shape that codec vq takes. */
static struct codec_shape inner(struct codec_shape shape) {
    const struct learned *learned = shape.learned;
    shape.learned = learned ? learned->shapes : NULL;
    return shape;
}

static const uint8_t *codes_of(const void *page) { return (const uint8_t *)page + GAIN_BYTES; }

/* ---- What is learned */

static void learned_free(void *opened) {
    struct learned *learned = opened;
    if (!learned) return;
    cpu_codec_vq.learned->free(learned->shapes);
    memory_free(learned);
}

static size_t learned_bytes(const void *opened) {
    const struct learned *learned = opened;
    return sizeof *learned + cpu_codec_vq.learned->bytes(learned->shapes);
}

static size_t predict_learned_bytes(struct codec_shape shape, enum codec_side side, const uint16_t *halves) {
    return sizeof(struct learned) + cpu_codec_vq.learned->predict_bytes(shape, side, halves);
}

static enum terse_status learned_new(struct codec_shape shape, enum codec_side side, const float *floats, void **opened,
                                     struct terse_error *error) {
    const float *mean = floats + codec_parameters(&codec_vq, shape), *scale = mean + shape.head_dim;
    *opened = NULL;
    struct learned *learned = memory_zeros(1, sizeof *learned);
    if (!learned) return status_no_memory(error, sizeof *learned, "a codebook");
    enum terse_status status = cpu_codec_vq.learned->make(shape, side, floats, &learned->shapes, error);
    if (status) {
        memory_free(learned);
        return status;
    }
    memcpy(learned->mean, mean, shape.head_dim * sizeof *mean);
    learned->scale = *scale;
    gain_table(*scale, learned->gain);
    *opened = learned;
    return TERSE_OK;
}

/* ---- Pages */

/* Returns the gain of a centred row x[hd], given the shape[hd] that stands for it. */
static float fit_gain(enum codec_side side, const float *x, const float *shape, size_t hd) {
    float square = vector_ops()->dot(shape, shape, hd);
    if (!(square > 0)) return 0;
    if (side == CODEC_KEYS) return sqrtf(vector_ops()->dot(x, x, hd) / square);
    return vector_ops()->dot(x, shape, hd) / square;
}

static void encode(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *page) {
    const struct learned *learned = shape.learned;
    size_t hd = shape.head_dim;
    float unit[PAGE_TOKENS * CODEC_HEAD_DIM_MAX], centred[CODEC_HEAD_DIM_MAX];
    uint8_t *gains = page;
    for (size_t t = 0; t < n; t++) normalization_apply(rows + t * hd, learned->mean, hd, unit + t * hd);
    cpu_codec_vq.encode(inner(shape), side, unit, n, gains + GAIN_BYTES);
    cpu_codec_vq.decode(inner(shape), side, codes_of(page), unit);
    memset(gains, 0, GAIN_BYTES);
    for (size_t t = 0; t < n; t++) {
        normalization_centre(rows + t * hd, learned->mean, hd, centred);
        gains[t] = gain_code(learned->scale, fit_gain(side, centred, unit + t * hd, hd));
    }
}

static void decode(struct codec_shape shape, enum codec_side side, const void *page, float *rows) {
    const struct learned *learned = shape.learned;
    const uint8_t *gains = page;
    size_t hd = shape.head_dim;
    cpu_codec_vq.decode(inner(shape), side, codes_of(page), rows);
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        float gain = learned->gain[gains[t]];
        for (size_t c = 0; c < hd; c++) rows[t * hd + c] = learned->mean[c] + gain * rows[t * hd + c];
    }
}

static void gather_tokens(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n,
                          void *to, size_t at) {
    select_ops()->gather_codes(from, 1, 8, slots, n, to, at);
    cpu_codec_vq.gather_tokens(shape, side, codes_of(from), slots, n, (uint8_t *)to + GAIN_BYTES, at);
}

static void prefetch_codebook(struct codec_shape shape, enum codec_side side, size_t pages) {
    cpu_codec_vq.learned->prefetch(inner(shape), side, pages);
}

static void gains_of(const struct learned *learned, const void *page, float *gains) {
    vector_ops()->look_up_gains(learned->gain, page, gains);
}

static void channels(struct codec_shape shape, const void *page, float *to) {
    const struct learned *learned = shape.learned;
    float gains[PAGE_TOKENS];
    gains_of(learned, page, gains);
    cpu_codec_vq.channels(inner(shape), codes_of(page), to);
    for (size_t c = 0; c < shape.head_dim; c++) {
        float mean = learned->mean[c], *row = to + c * PAGE_TOKENS;
        for (size_t t = 0; t < PAGE_TOKENS; t++) row[t] = mean + gains[t] * row[t];
    }
}

/* Returns how many floats prepare_queries writes: those of codec vq, then [G] inner products with the mean. */
static size_t query_floats(struct codec_shape shape) { return cpu_codec_vq.queries->floats(inner(shape)) + shape.group; }

static void prepare_queries(struct codec_shape shape, const float *q, float *tables) {
    const struct learned *learned = shape.learned;
    size_t floats = cpu_codec_vq.queries->floats(inner(shape)), hd = shape.head_dim;
    if (floats) cpu_codec_vq.queries->prepare(inner(shape), q, tables);
    for (size_t g = 0; g < shape.group; g++) tables[floats + g] = vector_ops()->dot(q + g * hd, learned->mean, hd);
}

static void score(struct codec_shape shape, const float *q, const float *tables, const void *page, float *logits) {
    const struct learned *learned = shape.learned;
    float gains[PAGE_TOKENS];
    size_t floats = tables ? cpu_codec_vq.queries->floats(inner(shape)) : 0, hd = shape.head_dim;
    gains_of(learned, page, gains);
    cpu_codec_vq.score(inner(shape), q, floats ? tables : NULL, codes_of(page), logits);
    for (size_t g = 0; g < shape.group; g++) {
        float mean = tables ? tables[floats + g] : vector_ops()->dot(q + g * hd, learned->mean, hd);
        for (size_t t = 0; t < PAGE_TOKENS; t++) logits[g * PAGE_TOKENS + t] = mean + gains[t] * logits[g * PAGE_TOKENS + t];
    }
}

#define MOST_TOGETHER 16 /* queries whose scaled weights lie on the stack */

static void accumulate_gained(bool int8_weights, struct codec_shape shape, const float *weights, const void *page, float *acc) {
    const struct learned *learned = shape.learned;
    size_t hd = shape.head_dim;
    float gains[PAGE_TOKENS], scaled[MOST_TOGETHER * PAGE_TOKENS];
    struct codec_shape some = inner(shape);
    gains_of(learned, page, gains);
    for (size_t first = 0; first < shape.group; first += some.group) {
        some.group = (uint32_t)(shape.group - first < MOST_TOGETHER ? shape.group - first : MOST_TOGETHER);
        for (size_t g = 0; g < some.group; g++) {
            float sum = vector_ops()->scale_weights(weights + (first + g) * PAGE_TOKENS, gains, scaled + g * PAGE_TOKENS);
            vector_ops()->axpy(sum, learned->mean, acc + (first + g) * hd, hd);
        }
        (int8_weights ? cpu_codec_vq.accumulate_values_int8 : cpu_codec_vq.accumulate_values)(some, scaled, codes_of(page),
                                                                                              acc + first * hd);
    }
}

static void accumulate_values(struct codec_shape shape, const float *weights, const void *page, float *acc) {
    accumulate_gained(false, shape, weights, page, acc);
}

static void accumulate_values_int8(struct codec_shape shape, const float *weights, const void *page, float *acc) {
    accumulate_gained(true, shape, weights, page, acc);
}

const struct cpu_codec cpu_codec_gain_shape = {
    .format = &codec_gain_shape,
    .encode = encode,
    .decode = decode,
    .score = score,
    .channels = channels,
    .accumulate_values = accumulate_values,
    .gather_tokens = gather_tokens,
    .learned = &(const struct codec_learned){.make = learned_new,
                                             .free = learned_free,
                                             .bytes = learned_bytes,
                                             .predict_bytes = predict_learned_bytes,
                                             .prefetch = prefetch_codebook},
    .queries = &(const struct codec_queries){.floats = query_floats, .prepare = prepare_queries},
    .accumulate_values_int8 = accumulate_values_int8};
