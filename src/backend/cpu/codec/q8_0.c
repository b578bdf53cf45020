/* The codec q8_0: 32 channels of a token share a scale d = max|x| / 127; a code is x / d rounded, halves away from zero.
 * The numbers are those of ggml's quantize_row_q8_0_ref: codes come from the scale before it is rounded to half. */
#include "base/half.h"
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/codec/scale_group.h"
#include "backend/cpu/codec/query_tables.h"
#include "backend/cpu/codec/gather.h"
#include "backend/cpu/codec/transpose.h"
#include "backend/cpu/kernels/kernels.h"

#include <math.h>
#include <string.h>

static size_t block_bytes(struct codec_shape shape, enum codec_side side) {
    (void)side;
    return BLOCK_BYTES_Q8_0(shape.head_dim);
}

/* roundf, in operations that every compiler turns into vector code. NaN gives some code rather than undefined behaviour. */
static int8_t round_code(float x) {
    float magnitude = fabsf(x) <= 127.0f ? fabsf(x) : 127.0f;
    int whole = (int)magnitude;
    whole += magnitude - (float)whole >= 0.5f;
    return (int8_t)(x < 0 ? -whole : whole);
}

static uint16_t encode_group(const float *x, int8_t *codes) {
    float d = fabsf(group_extreme(x)) / 127, inverse = d != 0 ? 1 / d : 0;
    for (size_t j = 0; j < BLOCK_QK; j++) codes[j] = round_code(x[j] * inverse);
    return half_from_float(d);
}

static void encode(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *block) {
    size_t hd = shape.head_dim, groups = hd / BLOCK_QK;
    uint16_t *scale = block;
    int8_t *codes = (int8_t *)(scale + groups * BLOCK_TOKENS);
    if (n < BLOCK_TOKENS) memset(block, 0, BLOCK_BYTES_Q8_0(hd));
    for (size_t t = 0; t < n; t++) {
        for (size_t b = 0; b < groups; b++) {
            int8_t group[BLOCK_QK];
            scale[b * BLOCK_TOKENS + t] = encode_group(rows + t * hd + b * BLOCK_QK, group);
            if (side == CODEC_VALUES)
                memcpy(codes + t * hd + b * BLOCK_QK, group, BLOCK_QK);
            else
                for (size_t j = 0; j < BLOCK_QK; j++) codes[(b * BLOCK_QK + j) * BLOCK_TOKENS + t] = group[j];
        }
    }
}

/* keys[32][64] of the b-th group of channels, whose scales are d[64]. */
static void group_channels(const int8_t *codes, size_t b, const float *d, float *keys) {
    const int8_t *from = codes + b * BLOCK_QK * BLOCK_TOKENS;
    for (size_t j = 0; j < BLOCK_QK; j++)
        for (size_t t = 0; t < BLOCK_TOKENS; t++) keys[j * BLOCK_TOKENS + t] = (float)from[j * BLOCK_TOKENS + t] * d[t];
}

static void decode(struct codec_shape shape, enum codec_side side, const void *block, float *rows) {
    size_t hd = shape.head_dim, groups = hd / BLOCK_QK;
    const uint16_t *scale = block;
    const int8_t *codes = (const int8_t *)(scale + groups * BLOCK_TOKENS);
    float scales[BLOCK_TOKENS * CODEC_HEAD_DIM_MAX / BLOCK_QK];
    kernels()->half_to_float(scale, scales, groups * BLOCK_TOKENS);
    for (size_t b = 0; b < groups; b++) {
        const float *d = scales + b * BLOCK_TOKENS;
        if (side == CODEC_VALUES) {
            for (size_t t = 0; t < BLOCK_TOKENS; t++)
                for (size_t j = 0; j < BLOCK_QK; j++) {
                    size_t at = t * hd + b * BLOCK_QK + j;
                    rows[at] = (float)codes[at] * d[t];
                }
            continue;
        }
        float keys[BLOCK_QK * BLOCK_TOKENS];
        group_channels(codes, b, d, keys);
        transpose_channels(keys, BLOCK_QK, rows + b * BLOCK_QK, hd);
    }
}

static void take(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n, void *to,
                 size_t at) {
    take_scaled(shape.head_dim, shape.head_dim, side, from, slots, n, to, at);
}

static void channels(struct codec_shape shape, const void *block, float *to) {
    size_t groups = shape.head_dim / BLOCK_QK;
    const uint16_t *scale = block;
    const int8_t *codes = (const int8_t *)(scale + groups * BLOCK_TOKENS);
    for (size_t b = 0; b < groups; b++) {
        float d[BLOCK_TOKENS];
        kernels()->half_to_float(scale + b * BLOCK_TOKENS, d, BLOCK_TOKENS);
        group_channels(codes, b, d, to + b * BLOCK_QK * BLOCK_TOKENS);
    }
}

static size_t prepared(struct codec_shape shape) { return (size_t)shape.group * shape.head_dim; }

static void prepare(struct codec_shape shape, const float *q, float *tables) {
    kernels()->prepare_q8_0(q, shape.group, shape.head_dim, tables);
}

static void score(struct codec_shape shape, const float *q, const float *tables, const void *block, float *logits) {
    tables_score(prepare, kernels()->score_q8_0, shape, q, tables, block, logits);
}

static void mix(struct codec_shape shape, const float *weights, const void *block, float *acc) {
    kernels()->mix_q8_0(weights, shape.group, shape.head_dim, block, acc);
}

const struct codec codec_q8_0 = {.name = "q8_0",
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
                                 .mix = mix};
