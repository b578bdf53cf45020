/* The codec f16: half floats, the layout of sealed blocks of method f16 and of every cache's recent window. */
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/codec/gather.h"
#include "backend/cpu/codec/transpose.h"
#include "backend/cpu/kernels/kernels.h"

#include <string.h>

static size_t block_bytes(struct codec_shape shape, enum codec_side side) {
    (void)side;
    return BLOCK_BYTES_F16(shape.head_dim);
}

static void encode(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *block) {
    size_t hd = shape.head_dim;
    uint16_t *half = block, row[CODEC_HEAD_DIM_MAX];
    if (side == CODEC_VALUES) {
        kernels()->float_to_half(rows, half, n * hd);
        memset(half + n * hd, 0, (BLOCK_TOKENS - n) * hd * sizeof *half);
        return;
    }
    if (n < BLOCK_TOKENS) memset(half, 0, BLOCK_BYTES_F16(hd));
    for (size_t t = 0; t < n; t++) {
        kernels()->float_to_half(rows + t * hd, row, hd);
        for (size_t c = 0; c < hd; c++) half[c * BLOCK_TOKENS + t] = row[c];
    }
}

static void decode(struct codec_shape shape, enum codec_side side, const void *block, float *rows) {
    size_t hd = shape.head_dim;
    const uint16_t *half = block;
    if (side == CODEC_VALUES) {
        kernels()->half_to_float(half, rows, BLOCK_TOKENS * hd);
        return;
    }
    float keys[BLOCK_QK * BLOCK_TOKENS];
    for (size_t c = 0; c < hd; c += BLOCK_QK) {
        kernels()->half_to_float(half + c * BLOCK_TOKENS, keys, BLOCK_QK * BLOCK_TOKENS);
        transpose_channels(keys, BLOCK_QK, rows + c, hd);
    }
}

static void take(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n, void *to,
                 size_t at) {
    if (side == CODEC_VALUES)
        take_rows(from, shape.head_dim * sizeof(uint16_t), slots, n, to, at);
    else
        kernels()->take_codes(from, shape.head_dim, 16, slots, n, to, at);
}

static void channels(struct codec_shape shape, const void *block, float *to) {
    kernels()->half_to_float(block, to, shape.head_dim * BLOCK_TOKENS);
}

static void score(struct codec_shape shape, const float *q, const float *tables, const void *block, float *logits) {
    (void)tables;
    kernels()->score_f16(q, shape.group, shape.head_dim, block, logits);
}

static void mix(struct codec_shape shape, const float *weights, const void *block, float *acc) {
    kernels()->mix_f16(weights, shape.group, shape.head_dim, block, acc);
}

const struct codec codec_f16 = {.name = "f16",
                                .rope = CODEC_ROPE_AFTER,
                                .check = codec_check_head_dim,
                                .block_bytes = block_bytes,
                                .encode = encode,
                                .decode = decode,
                                .take = take,
                                .score = score,
                                .channels = channels,
                                .mix = mix};
