/* Implements the codec sign (Self-Indexing KVCache, Yang et al. 2026, equations 5 and 9 to 13): one sign and two bits of magnitude
 * per channel of a key, after rotation. The signs are the pages of index_sign, so that the stored keys are their own index.
 *
 *     key = mean + sign * alpha * magnitude,   magnitude = zero + scale * code, as kivi-2 codes values: per token and 32 channels
 *
 * mean and the codes' centroids are index_sign's, alpha the largest |key - mean| of each channel, all from the first keys that are
 * sealed. Magnitudes beyond alpha do no harm, since each token has scales of its own. A channel's alpha is at least 1/1024 of the
 * largest channel's: one that hardly moved while it was looked at must not drown the 31 beside it when it does.
 *
 * The paper leaves the mean out of keys for good, as softmax allows when every key lacks it. Here `score` adds <q, mean> instead,
 * one number a query, so that logits mean the same in every codec, and exact keys, the window and other codecs' pages merge
 * unchanged.
 *
 * Values learn nothing and are kivi-2's. Bits per value, hd cancelling: keys 1 + 2 + 32/32, values 2 + 32/32. */
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/codec/index.h"
#include "backend/cpu/codec/query_tables.h"
#include "backend/cpu/kernels/scaled/ops.h"
#include "backend/cpu/kernels/select/ops.h"

#include <math.h>
#include <string.h>

#define LEAST_ALPHA (1.0f / 1024) /* of the largest */
#define MOST_MAGNITUDE 32768.0f   /* a half float, and so are its sums with zero */

static size_t sign_bytes(size_t hd) { return PAGE_BYTES_SIGNS(hd); }

/* Returns the part of a page of keys that kivi-2 serves. */
static const void *magnitudes_of(const void *page, size_t hd) { return (const uint8_t *)page + sign_bytes(hd); }

static const float *mean_of(struct codec_shape shape) { return index_sign_learned(shape.head_dim, shape.fitted).mean; }
static const float *alpha_of(struct codec_shape shape) {
    return (const float *)shape.fitted + index_learned_bytes(&index_sign, shape.head_dim) / sizeof(float);
}

/* ---- Learning */

static void fit(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, size_t stride,
                const struct index_options *options, void *fitted) {
    size_t hd = shape.head_dim;
    if (side == CODEC_VALUES) return;
    cpu_index_sign.fit(hd, rows, n, stride, options, fitted);
    const float *mean = index_sign_learned(hd, fitted).mean;
    float *alpha = (float *)fitted + index_learned_bytes(&index_sign, hd) / sizeof(float), largest = 0;
    for (size_t c = 0; c < hd; c++) alpha[c] = 0;
    for (size_t t = 0; t < n; t++) {
        for (size_t c = 0; c < hd; c++) {
            float x = fabsf(rows[t * stride + c] - mean[c]);
            alpha[c] = x > alpha[c] ? x : alpha[c];
        }
    }
    for (size_t c = 0; c < hd; c++) largest = alpha[c] > largest ? alpha[c] : largest;
    float least = largest > 0 && isfinite(largest) ? fmaxf(largest * LEAST_ALPHA, 1e-30f) : 1;
    for (size_t c = 0; c < hd; c++) alpha[c] = alpha[c] > least && isfinite(alpha[c]) ? alpha[c] : least;
}

/* ---- Pages */

static void encode(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *page) {
    size_t hd = shape.head_dim;
    float magnitudes[PAGE_TOKENS * CODEC_HEAD_DIM_MAX], inverse[CODEC_HEAD_DIM_MAX];
    if (side == CODEC_VALUES) {
        cpu_codec_kivi_2.encode(shape, CODEC_VALUES, rows, n, page);
        return;
    }
    const float *mean = mean_of(shape), *alpha = alpha_of(shape);
    for (size_t c = 0; c < hd; c++) inverse[c] = 1 / alpha[c];
    for (size_t t = 0; t < n; t++) {
        for (size_t c = 0; c < hd; c++) {
            float x = fabsf(rows[t * hd + c] - mean[c]) * inverse[c];
            magnitudes[t * hd + c] = x < MOST_MAGNITUDE ? x : MOST_MAGNITUDE; /* NaN too */
        }
    }
    cpu_index_sign.encode(hd, shape.fitted, rows, n, page);
    cpu_codec_kivi_2.encode(shape, CODEC_VALUES, magnitudes, n, (uint8_t *)page + sign_bytes(hd));
}

static void decode(struct codec_shape shape, enum codec_side side, const void *page, float *rows) {
    size_t hd = shape.head_dim;
    if (side == CODEC_VALUES) {
        cpu_codec_kivi_2.decode(shape, CODEC_VALUES, page, rows);
        return;
    }
    const float *mean = mean_of(shape), *alpha = alpha_of(shape);
    const uint8_t *planes = page;
    cpu_codec_kivi_2.decode(shape, CODEC_VALUES, magnitudes_of(page, hd), rows);
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        for (size_t c = 0; c < hd; c++) {
            float x = alpha[c] * rows[t * hd + c];
            rows[t * hd + c] = mean[c] + (planes[c / 8 * PAGE_TOKENS + t] >> c % 8 & 1 ? x : -x);
        }
    }
}

static void channels(struct codec_shape shape, const void *page, float *to) {
    float rows[PAGE_TOKENS * CODEC_HEAD_DIM_MAX];
    decode(shape, CODEC_KEYS, page, rows);
    for (size_t t = 0; t < PAGE_TOKENS; t++)
        for (size_t c = 0; c < shape.head_dim; c++) to[c * PAGE_TOKENS + t] = rows[t * shape.head_dim + c];
}

static void gather_tokens(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n,
                          void *to, size_t at) {
    size_t hd = shape.head_dim, signs = side == CODEC_KEYS ? sign_bytes(hd) : 0;
    if (signs) select_ops()->gather_codes(from, hd / 8, 8, slots, n, to, at);
    cpu_codec_kivi_2.gather_tokens(shape, CODEC_VALUES, (const uint8_t *)from + signs, slots, n, (uint8_t *)to + signs, at);
}

static void prefetch_tokens(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n) {
    size_t signs = side == CODEC_KEYS ? sign_bytes(shape.head_dim) : 0;
    for (size_t b = 0; b < signs; b += 64) __builtin_prefetch((const char *)from + b);
    cpu_codec_kivi_2.prefetch_tokens(shape, CODEC_VALUES, (const uint8_t *)from + signs, slots, n);
}

/* ---- Reading */

static size_t query_floats(struct codec_shape shape) { return shape.group * sign_table_floats(shape.head_dim); }

static void prepare_queries(struct codec_shape shape, const float *q, float *tables) {
    scaled_ops()->prepare_sign(q, mean_of(shape), alpha_of(shape), shape.group, shape.head_dim, tables);
}

static void score(struct codec_shape shape, const float *q, const float *tables, const void *page, float *logits) {
    tables_score(prepare_queries, scaled_ops()->score_sign, shape, q, tables, page, logits);
}

static void accumulate_values(struct codec_shape shape, const float *weights, const void *page, float *acc) {
    cpu_codec_kivi_2.accumulate_values(shape, weights, page, acc);
}

static void accumulate_values_int8(struct codec_shape shape, const float *weights, const void *page, float *acc) {
    cpu_codec_kivi_2.accumulate_values_int8(shape, weights, page, acc);
}

const struct cpu_codec cpu_codec_sign = {.format = &codec_sign,
                                         .encode = encode,
                                         .decode = decode,
                                         .score = score,
                                         .channels = channels,
                                         .accumulate_values = accumulate_values,
                                         .gather_tokens = gather_tokens,
                                         .fit = fit,
                                         .queries =
                                             &(const struct codec_queries){.floats = query_floats, .prepare = prepare_queries},
                                         .accumulate_values_int8 = accumulate_values_int8,
                                         .prefetch_tokens = prefetch_tokens};
