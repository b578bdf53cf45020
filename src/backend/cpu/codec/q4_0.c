/* The codec q4_0: 32 channels of a token share a scale d = x_m / -8, x_m the value of largest magnitude; a code is x / d + 8
 * rounded. The numbers are those of ggml's quantize_row_q4_0_ref: codes come from the scale before it is rounded to half. */
#include "base/half.h"
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/codec/scale_group.h"
#include "backend/cpu/codec/query_tables.h"
#include "backend/cpu/codec/gather.h"
#include "backend/cpu/codec/transpose.h"
#include "backend/cpu/kernels/kernels.h"

#include <string.h>

#define HALF_GROUP (BLOCK_QK / 2) /* byte j holds channel j below and channel j + 16 above */

static size_t block_bytes(struct codec_shape shape, enum codec_side side) {
    (void)side;
    return BLOCK_BYTES_Q4_0(shape.head_dim);
}

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

static void encode(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *block) {
    size_t hd = shape.head_dim, groups = hd / BLOCK_QK;
    uint16_t *scale = block;
    uint8_t *bytes = (uint8_t *)(scale + groups * BLOCK_TOKENS);
    if (n < BLOCK_TOKENS) memset(block, 0, BLOCK_BYTES_Q4_0(hd));
    for (size_t t = 0; t < n; t++) {
        for (size_t b = 0; b < groups; b++) {
            uint8_t group[HALF_GROUP];
            scale[b * BLOCK_TOKENS + t] = encode_group(rows + t * hd + b * BLOCK_QK, group);
            if (side == CODEC_VALUES)
                memcpy(bytes + (t * groups + b) * HALF_GROUP, group, HALF_GROUP);
            else
                for (size_t j = 0; j < HALF_GROUP; j++) bytes[(b * HALF_GROUP + j) * BLOCK_TOKENS + t] = group[j];
        }
    }
}

/* keys[32][64] of the b-th group of channels, whose scales are d[64]. */
static void group_channels(const uint8_t *bytes, size_t b, const float *d, float *keys) {
    for (size_t j = 0; j < HALF_GROUP; j++) {
        const uint8_t *from = bytes + (b * HALF_GROUP + j) * BLOCK_TOKENS;
        float *low = keys + j * BLOCK_TOKENS, *high = low + HALF_GROUP * BLOCK_TOKENS;
        for (size_t t = 0; t < BLOCK_TOKENS; t++) {
            low[t] = (float)((from[t] & 15) - 8) * d[t];
            high[t] = (float)((from[t] >> 4) - 8) * d[t];
        }
    }
}

static void decode(struct codec_shape shape, enum codec_side side, const void *block, float *rows) {
    size_t hd = shape.head_dim, groups = hd / BLOCK_QK;
    const uint16_t *scale = block;
    const uint8_t *bytes = (const uint8_t *)(scale + groups * BLOCK_TOKENS);
    float scales[BLOCK_TOKENS * CODEC_HEAD_DIM_MAX / BLOCK_QK];
    kernels()->half_to_float(scale, scales, groups * BLOCK_TOKENS);
    for (size_t b = 0; b < groups; b++) {
        const float *d = scales + b * BLOCK_TOKENS;
        if (side == CODEC_VALUES) {
            for (size_t t = 0; t < BLOCK_TOKENS; t++) {
                const uint8_t *from = bytes + (t * groups + b) * HALF_GROUP;
                float *row = rows + t * hd + b * BLOCK_QK;
                for (size_t j = 0; j < HALF_GROUP; j++) {
                    row[j] = (float)((from[j] & 15) - 8) * d[t];
                    row[HALF_GROUP + j] = (float)((from[j] >> 4) - 8) * d[t];
                }
            }
            continue;
        }
        float keys[BLOCK_QK * BLOCK_TOKENS];
        group_channels(bytes, b, d, keys);
        transpose_channels(keys, BLOCK_QK, rows + b * BLOCK_QK, hd);
    }
}

static void take(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n, void *to,
                 size_t at) {
    take_scaled(shape.head_dim, shape.head_dim / 2, side, from, slots, n, to, at);
}

static void channels(struct codec_shape shape, const void *block, float *to) {
    size_t groups = shape.head_dim / BLOCK_QK;
    const uint16_t *scale = block;
    const uint8_t *bytes = (const uint8_t *)(scale + groups * BLOCK_TOKENS);
    for (size_t b = 0; b < groups; b++) {
        float d[BLOCK_TOKENS];
        kernels()->half_to_float(scale + b * BLOCK_TOKENS, d, BLOCK_TOKENS);
        group_channels(bytes, b, d, to + b * BLOCK_QK * BLOCK_TOKENS);
    }
}

static size_t prepared(struct codec_shape shape) { return (size_t)shape.group * shape.head_dim; }

static void prepare(struct codec_shape shape, const float *q, float *tables) {
    kernels()->prepare_q4_0(q, shape.group, shape.head_dim, tables);
}

static void score(struct codec_shape shape, const float *q, const float *tables, const void *block, float *logits) {
    tables_score(prepare, kernels()->score_q4_0, shape, q, tables, block, logits);
}

static void mix(struct codec_shape shape, const float *weights, const void *block, float *acc) {
    kernels()->mix_q4_0(weights, shape.group, shape.head_dim, block, acc);
}

static void mix_light(struct codec_shape shape, const float *weights, const void *block, float *acc) {
    kernels()->mix_light_q4_0(weights, shape.group, shape.head_dim, block, acc);
}

const struct codec codec_q4_0 = {.name = "q4_0",
                                 .rope = CODEC_ROPE_AFTER,
                                 .check = codec_check_head_dim,
                                 .block_bytes = block_bytes,
                                 .encode = encode,
                                 .decode = decode,
                                 .take = take,
                                 .prepared = prepared,
                                 .prepare = prepare,
                                 .score = score,
                                 .channels = channels,
                                 .mix = mix,
                                 .mix_light = mix_light};
