/* Implements the codec f16: half floats, the layout of sealed pages of method f16 and of every cache's recent window. */
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/codec/gather.h"
#include "backend/cpu/codec/transpose.h"
#include "backend/cpu/kernels/scaled/ops.h"
#include "backend/cpu/kernels/select/ops.h"
#include "backend/cpu/kernels/vector/ops.h"

#include <string.h>

static void encode(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *page) {
    size_t hd = shape.head_dim;
    uint16_t *half = page, row[CODEC_ROW_MAX];
    if (side == CODEC_VALUES) {
        vector_ops()->float_to_half(rows, half, n * hd);
        memset(half + n * hd, 0, (PAGE_TOKENS - n) * hd * sizeof *half);
        return;
    }
    if (n < PAGE_TOKENS) memset(half, 0, PAGE_BYTES_F16(hd));
    for (size_t t = 0; t < n; t++) {
        vector_ops()->float_to_half(rows + t * hd, row, hd);
        for (size_t c = 0; c < hd; c++) half[c * PAGE_TOKENS + t] = row[c];
    }
}

static void decode(struct codec_shape shape, enum codec_side side, const void *page, float *rows) {
    size_t hd = shape.head_dim;
    const uint16_t *half = page;
    if (side == CODEC_VALUES) {
        vector_ops()->half_to_float(half, rows, PAGE_TOKENS * hd);
        return;
    }
    float keys[SCALE_GROUP * PAGE_TOKENS];
    for (size_t c = 0; c < hd; c += SCALE_GROUP) {
        vector_ops()->half_to_float(half + c * PAGE_TOKENS, keys, SCALE_GROUP * PAGE_TOKENS);
        transpose_channels(keys, SCALE_GROUP, rows + c, hd);
    }
}

static void gather_tokens(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n,
                          void *to, size_t at) {
    if (side == CODEC_VALUES)
        gather_rows(from, shape.head_dim * sizeof(uint16_t), slots, n, to, at);
    else
        select_ops()->gather_codes(from, shape.head_dim, 16, slots, n, to, at);
}

static void channels(struct codec_shape shape, const void *page, float *to) {
    vector_ops()->half_to_float(page, to, shape.head_dim * PAGE_TOKENS);
}

static void score(struct codec_shape shape, const float *q, const float *tables, const void *page, float *logits) {
    (void)tables;
    scaled_ops()->score_f16(q, shape.group, shape.head_dim, page, logits);
}

static void accumulate_values(struct codec_shape shape, const float *weights, const void *page, float *acc) {
    scaled_ops()->accumulate_f16(weights, shape.group, shape.head_dim, page, acc);
}

const struct cpu_codec cpu_codec_f16 = {.format = &codec_f16,
                                        .encode = encode,
                                        .decode = decode,
                                        .score = score,
                                        .channels = channels,
                                        .accumulate_values = accumulate_values,
                                        .gather_tokens = gather_tokens};
