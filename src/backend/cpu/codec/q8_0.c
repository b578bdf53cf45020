/* Implements the codec q8_0: 32 channels of a token share a scale d = max|x| / 127; a code is x / d rounded, halves away from zero.
 * The numbers are those of ggml's quantize_row_q8_0_ref: codes come from the scale before it is rounded to half. */
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/codec/gather.h"
#include "backend/cpu/codec/query_tables.h"
#include "backend/cpu/codec/scale_group.h"
#include "backend/cpu/codec/transpose.h"
#include "backend/cpu/kernels/scaled/ops.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "base/half.h"

#include <math.h>
#include <string.h>

/* Does as roundf, in operations that every compiler turns into vector code. NaN gives some code rather than undefined behaviour. */
static int8_t round_code(float x) {
    float magnitude = fabsf(x) <= 127.0f ? fabsf(x) : 127.0f;
    int whole = (int)magnitude;
    whole += magnitude - (float)whole >= 0.5f;
    return (int8_t)(x < 0 ? -whole : whole);
}

static uint16_t encode_group(const float *x, int8_t *codes) {
    float d = fabsf(group_extreme(x)) / 127, inverse = d != 0 ? 1 / d : 0;
    for (size_t j = 0; j < SCALE_GROUP; j++) codes[j] = round_code(x[j] * inverse);
    return half_from_float(d);
}

static void encode(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *page) {
    size_t hd = shape.head_dim, groups = hd / SCALE_GROUP;
    uint16_t *scale = page;
    int8_t *codes = (int8_t *)(scale + groups * PAGE_TOKENS);
    if (n < PAGE_TOKENS) memset(page, 0, PAGE_BYTES_Q8_0(hd));
    for (size_t t = 0; t < n; t++) {
        for (size_t b = 0; b < groups; b++) {
            int8_t group[SCALE_GROUP];
            scale[b * PAGE_TOKENS + t] = encode_group(rows + t * hd + b * SCALE_GROUP, group);
            if (side == CODEC_VALUES)
                memcpy(codes + t * hd + b * SCALE_GROUP, group, SCALE_GROUP);
            else
                for (size_t j = 0; j < SCALE_GROUP; j++) codes[(b * SCALE_GROUP + j) * PAGE_TOKENS + t] = group[j];
        }
    }
}

/* Computes keys[32][64] of the b-th group of channels, whose scales are d[64]. */
static void group_channels(const int8_t *codes, size_t b, const float *d, float *keys) {
    const int8_t *from = codes + b * SCALE_GROUP * PAGE_TOKENS;
    for (size_t j = 0; j < SCALE_GROUP; j++)
        for (size_t t = 0; t < PAGE_TOKENS; t++) keys[j * PAGE_TOKENS + t] = (float)from[j * PAGE_TOKENS + t] * d[t];
}

static void decode(struct codec_shape shape, enum codec_side side, const void *page, float *rows) {
    size_t hd = shape.head_dim, groups = hd / SCALE_GROUP;
    const uint16_t *scale = page;
    const int8_t *codes = (const int8_t *)(scale + groups * PAGE_TOKENS);
    float scales[PAGE_TOKENS * CODEC_ROW_MAX / SCALE_GROUP];
    vector_ops()->half_to_float(scale, scales, groups * PAGE_TOKENS);
    for (size_t b = 0; b < groups; b++) {
        const float *d = scales + b * PAGE_TOKENS;
        if (side == CODEC_VALUES) {
            for (size_t t = 0; t < PAGE_TOKENS; t++)
                for (size_t j = 0; j < SCALE_GROUP; j++) {
                    size_t at = t * hd + b * SCALE_GROUP + j;
                    rows[at] = (float)codes[at] * d[t];
                }
            continue;
        }
        float keys[SCALE_GROUP * PAGE_TOKENS];
        group_channels(codes, b, d, keys);
        transpose_channels(keys, SCALE_GROUP, rows + b * SCALE_GROUP, hd);
    }
}

static void gather_tokens(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n,
                          void *to, size_t at) {
    gather_scaled(shape.head_dim, shape.head_dim, side, from, slots, n, to, at);
}

static void channels(struct codec_shape shape, const void *page, float *to) {
    size_t groups = shape.head_dim / SCALE_GROUP;
    const uint16_t *scale = page;
    const int8_t *codes = (const int8_t *)(scale + groups * PAGE_TOKENS);
    for (size_t b = 0; b < groups; b++) {
        float d[PAGE_TOKENS];
        vector_ops()->half_to_float(scale + b * PAGE_TOKENS, d, PAGE_TOKENS);
        group_channels(codes, b, d, to + b * SCALE_GROUP * PAGE_TOKENS);
    }
}

static size_t query_floats(struct codec_shape shape) { return (size_t)shape.group * shape.head_dim; }

static void prepare_queries(struct codec_shape shape, const float *q, float *tables) {
    scaled_ops()->prepare_q8_0(q, shape.group, shape.head_dim, tables);
}

static void score(struct codec_shape shape, const float *q, const float *tables, const void *page, float *logits) {
    tables_score(prepare_queries, scaled_ops()->score_q8_0, shape, q, tables, page, logits);
}

static void accumulate_values(struct codec_shape shape, const float *weights, const void *page, float *acc) {
    scaled_ops()->accumulate_q8_0(weights, shape.group, shape.head_dim, page, acc);
}

const struct cpu_codec cpu_codec_q8_0 = {.format = &codec_q8_0,
                                         .encode = encode,
                                         .decode = decode,
                                         .score = score,
                                         .channels = channels,
                                         .accumulate_values = accumulate_values,
                                         .gather_tokens = gather_tokens,
                                         .queries =
                                             &(const struct codec_queries){.floats = query_floats, .prepare = prepare_queries}};
