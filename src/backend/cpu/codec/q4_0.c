/* Implements the codec q4_0: 32 channels of a token share a scale d = x_m / -8, x_m the value of largest magnitude; a code is x / d
 * + 8 rounded. The numbers are those of ggml's quantize_row_q4_0_ref: codes come from the scale before it is rounded to half. */
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/codec/gather.h"
#include "backend/cpu/codec/query_tables.h"
#include "backend/cpu/codec/scale_group.h"
#include "backend/cpu/codec/transpose.h"
#include "backend/cpu/kernels/scaled/ops.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "base/half.h"

#include <string.h>

#define HALF_GROUP (SCALE_GROUP / 2) /* byte j holds channel j below and channel j + 16 above */

/* The reference leaves to its compiler whether x / d + 8.5 is rounded once or twice; with doubles it is once, as in the builds that
 * people use and in gguf-py. NaN gives some code rather than undefined behaviour. */
static unsigned round_code(float x, float inverse) {
    float code = (float)((double)x * (double)inverse + 8.5);
    return code < 15.0f ? (unsigned)(int)(code > 0 ? code : 0) : 15;
}

static uint16_t encode_group(const float *x, uint8_t *bytes) {
    float d = group_extreme(x) / -8, inverse = d != 0 ? 1 / d : 0;
    for (size_t j = 0; j < HALF_GROUP; j++)
        bytes[j] = (uint8_t)(round_code(x[j], inverse) | round_code(x[j + HALF_GROUP], inverse) << 4);
    return half_from_float(d);
}

static void encode(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *page) {
    size_t hd = shape.head_dim, groups = hd / SCALE_GROUP;
    uint16_t *scale = page;
    uint8_t *bytes = (uint8_t *)(scale + groups * PAGE_TOKENS);
    if (n < PAGE_TOKENS) memset(page, 0, PAGE_BYTES_Q4_0(hd));
    for (size_t t = 0; t < n; t++) {
        for (size_t b = 0; b < groups; b++) {
            uint8_t group[HALF_GROUP];
            scale[b * PAGE_TOKENS + t] = encode_group(rows + t * hd + b * SCALE_GROUP, group);
            if (side == CODEC_VALUES)
                memcpy(bytes + (t * groups + b) * HALF_GROUP, group, HALF_GROUP);
            else
                for (size_t j = 0; j < HALF_GROUP; j++) bytes[(b * HALF_GROUP + j) * PAGE_TOKENS + t] = group[j];
        }
    }
}

/* Computes keys[32][64] of the b-th group of channels, whose scales are d[64]. */
static void group_channels(const uint8_t *bytes, size_t b, const float *d, float *keys) {
    for (size_t j = 0; j < HALF_GROUP; j++) {
        const uint8_t *from = bytes + (b * HALF_GROUP + j) * PAGE_TOKENS;
        float *low = keys + j * PAGE_TOKENS, *high = low + HALF_GROUP * PAGE_TOKENS;
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            low[t] = (float)((from[t] & 15) - 8) * d[t];
            high[t] = (float)((from[t] >> 4) - 8) * d[t];
        }
    }
}

static void decode(struct codec_shape shape, enum codec_side side, const void *page, float *rows) {
    size_t hd = shape.head_dim, groups = hd / SCALE_GROUP;
    const uint16_t *scale = page;
    const uint8_t *bytes = (const uint8_t *)(scale + groups * PAGE_TOKENS);
    float scales[PAGE_TOKENS * CODEC_ROW_MAX / SCALE_GROUP];
    vector_ops()->half_to_float(scale, scales, groups * PAGE_TOKENS);
    for (size_t b = 0; b < groups; b++) {
        const float *d = scales + b * PAGE_TOKENS;
        if (side == CODEC_VALUES) {
            for (size_t t = 0; t < PAGE_TOKENS; t++) {
                const uint8_t *from = bytes + (t * groups + b) * HALF_GROUP;
                float *row = rows + t * hd + b * SCALE_GROUP;
                for (size_t j = 0; j < HALF_GROUP; j++) {
                    row[j] = (float)((from[j] & 15) - 8) * d[t];
                    row[HALF_GROUP + j] = (float)((from[j] >> 4) - 8) * d[t];
                }
            }
            continue;
        }
        float keys[SCALE_GROUP * PAGE_TOKENS];
        group_channels(bytes, b, d, keys);
        transpose_channels(keys, SCALE_GROUP, rows + b * SCALE_GROUP, hd);
    }
}

static void gather_tokens(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n,
                          void *to, size_t at) {
    gather_scaled(shape.head_dim, shape.head_dim / 2, side, from, slots, n, to, at);
}

static void channels(struct codec_shape shape, const void *page, float *to) {
    size_t groups = shape.head_dim / SCALE_GROUP;
    const uint16_t *scale = page;
    const uint8_t *bytes = (const uint8_t *)(scale + groups * PAGE_TOKENS);
    for (size_t b = 0; b < groups; b++) {
        float d[PAGE_TOKENS];
        vector_ops()->half_to_float(scale + b * PAGE_TOKENS, d, PAGE_TOKENS);
        group_channels(bytes, b, d, to + b * SCALE_GROUP * PAGE_TOKENS);
    }
}

static size_t query_floats(struct codec_shape shape) { return (size_t)shape.group * shape.head_dim; }

static void prepare_queries(struct codec_shape shape, const float *q, float *tables) {
    scaled_ops()->prepare_q4_0(q, shape.group, shape.head_dim, tables);
}

static void score(struct codec_shape shape, const float *q, const float *tables, const void *page, float *logits) {
    tables_score(prepare_queries, scaled_ops()->score_q4_0, shape, q, tables, page, logits);
}

static void accumulate_values(struct codec_shape shape, const float *weights, const void *page, float *acc) {
    scaled_ops()->accumulate_q4_0(weights, shape.group, shape.head_dim, page, acc);
}

static void accumulate_values_int8(struct codec_shape shape, const float *weights, const void *page, float *acc) {
    scaled_ops()->accumulate_int8_q4_0(weights, shape.group, shape.head_dim, page, acc);
}

const struct cpu_codec cpu_codec_q4_0 = {.format = &codec_q4_0,
                                         .encode = encode,
                                         .decode = decode,
                                         .score = score,
                                         .channels = channels,
                                         .accumulate_values = accumulate_values,
                                         .gather_tokens = gather_tokens,
                                         .queries =
                                             &(const struct codec_queries){.floats = query_floats, .prepare = prepare_queries},
                                         .accumulate_values_int8 = accumulate_values_int8};
