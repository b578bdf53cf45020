/* Implements the codecs kivi-4 and kivi-2: asymmetric integers (KIVI, Liu et al. 2024), keys by channel and values by token, since
 * outliers of keys keep to their channels and those of values do not.
 *
 *     x = zero + scale * code,   zero = min, scale = (max - min) / (2^bits - 1), both as halves, over 32 numbers:
 *     keys    of one channel and 32 tokens      values    of one token and 32 channels
 *
 * One byte holds 8 / bits codes that lie n bits / 8 numbers apart in a row of n, so that a row unpacks by shifts alone. Readers
 * multiply bare codes; the scales go into the other factor, the queries or the weights, and the zeros give a product of their
 * own. */
#include "backend/cpu/codec/codec.h"
#include "backend/cpu/codec/gather.h"
#include "backend/cpu/codec/transpose.h"
#include "backend/cpu/kernels/scaled/ops.h"
#include "backend/cpu/kernels/vector/ops.h"
#include "base/half.h"

#include <math.h>
#include <string.h>

#define GROUP SCALE_GROUP
#define HALVES (PAGE_TOKENS / GROUP) /* groups of tokens in a page of keys */
#define MOST_GROUPS (CODEC_ROW_MAX / GROUP)

/* ---- Pages hold for keys scale[2][hd], zero[2][hd], codes[hd][64 tokens], and for values, token by token, codes[hd], {scale,
 * zero}[hd/32], so that a token can be taken out in one piece. */

static size_t scales_of(size_t hd) { return hd * HALVES; } /* of either side */

static size_t page_bytes(unsigned bits, size_t hd) { return PAGE_BYTES_KIVI(hd, bits); }

/* Returns the bytes of a value's codes. */
static size_t code_bytes(unsigned bits, size_t hd) { return hd * bits / 8; }
static size_t row_bytes(unsigned bits, size_t hd) { return page_bytes(bits, hd) / PAGE_TOKENS; }

static void pack(unsigned bits, const uint8_t *codes, size_t n, uint8_t *packed) {
    size_t bytes = n * bits / 8;
    for (size_t i = 0; i < bytes; i++) {
        unsigned byte = 0;
        for (unsigned k = 0; k < 8 / bits; k++) byte |= (unsigned)codes[i + k * bytes] << (k * bits);
        packed[i] = (uint8_t)byte;
    }
}

static void unpack(unsigned bits, const uint8_t *packed, size_t n, uint8_t *codes) {
    const uint8_t mask = (uint8_t)((1u << bits) - 1);
    size_t bytes = n * bits / 8;
    for (unsigned k = 0; k < 8 / bits; k++)
        for (size_t i = 0; i < bytes; i++) codes[i + k * bytes] = (uint8_t)(packed[i] >> (k * bits)) & mask;
}

/* Unpacks all codes of a page, and its scales and zeros as float: [2][hd] of keys, [hd/32][64] of values. */
static void unpack_page(unsigned bits, enum codec_side side, size_t hd, const void *page, uint8_t *codes, float *scale,
                        float *zero) {
    uint16_t halves[2 * CODEC_ROW_MAX * HALVES];
    const uint8_t *from = page;
    if (side == CODEC_KEYS) {
        memcpy(halves, page, 2 * scales_of(hd) * sizeof *halves);
        from += 2 * scales_of(hd) * sizeof *halves;
        for (size_t c = 0; c < hd; c++) unpack(bits, from + c * PAGE_TOKENS * bits / 8, PAGE_TOKENS, codes + c * PAGE_TOKENS);
    }
    for (size_t t = 0; side == CODEC_VALUES && t < PAGE_TOKENS; t++, from += row_bytes(bits, hd)) {
        const uint16_t *pairs = (const uint16_t *)(from + code_bytes(bits, hd));
        unpack(bits, from, hd, codes + t * hd);
        for (size_t b = 0; b < hd / GROUP; b++) {
            halves[b * PAGE_TOKENS + t] = pairs[2 * b];
            halves[scales_of(hd) + b * PAGE_TOKENS + t] = pairs[2 * b + 1];
        }
    }
    vector_ops()->half_to_float(halves, scale, scales_of(hd));
    vector_ops()->half_to_float(halves + scales_of(hd), zero, scales_of(hd));
}

/* ---- Encoding */

/* Encodes n numbers, `apart` from each other. Codes are nearest with the scale and zero as rounded to halves. */
static void encode_group(unsigned bits, const float *x, size_t n, size_t apart, uint16_t *scale, uint16_t *zero, uint8_t *codes) {
    float least = x[0], most = x[0], levels = (float)((1u << bits) - 1);
    for (size_t i = 1; i < n; i++) {
        least = fminf(least, x[i * apart]);
        most = fmaxf(most, x[i * apart]);
    }
    *zero = half_from_float(least);
    *scale = half_from_float((most - least) / levels);
    float z = half_to_float(*zero), s = half_to_float(*scale), inverse = s > 0 ? 1 / s : 0;
    for (size_t i = 0; i < n; i++) {
        float code = (x[i * apart] - z) * inverse + 0.5f;
        codes[i] = (uint8_t)(code > 0 ? (code < levels ? code : levels) : 0); /* NaN gives 0 */
    }
}

static void encode_keys(unsigned bits, size_t hd, const float *rows, size_t n, void *page) {
    uint8_t codes[CODEC_ROW_MAX * PAGE_TOKENS];
    uint16_t *scale = page, *zero = scale + scales_of(hd);
    memset(codes, 0, hd * PAGE_TOKENS);
    for (size_t t = 0; t < n; t += GROUP) {
        size_t count = n - t < GROUP ? n - t : GROUP, at = t / GROUP * hd;
        for (size_t c = 0; c < hd; c++)
            encode_group(bits, rows + t * hd + c, count, hd, &scale[at + c], &zero[at + c], codes + c * PAGE_TOKENS + t);
    }
    uint8_t *packed = (uint8_t *)(zero + scales_of(hd));
    for (size_t c = 0; c < hd; c++) pack(bits, codes + c * PAGE_TOKENS, PAGE_TOKENS, packed + c * PAGE_TOKENS * bits / 8);
}

static void encode_values(unsigned bits, size_t hd, const float *rows, size_t n, void *page) {
    uint8_t codes[CODEC_ROW_MAX], *to = page;
    for (size_t t = 0; t < n; t++, to += row_bytes(bits, hd)) {
        uint16_t *pairs = (uint16_t *)(to + code_bytes(bits, hd));
        for (size_t b = 0; b < hd / GROUP; b++)
            encode_group(bits, rows + t * hd + b * GROUP, GROUP, 1, &pairs[2 * b], &pairs[2 * b + 1], codes + b * GROUP);
        pack(bits, codes, hd, to);
    }
}

static void encode(unsigned bits, struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *page) {
    memset(page, 0, page_bytes(bits, shape.head_dim));
    (side == CODEC_KEYS ? encode_keys : encode_values)(bits, shape.head_dim, rows, n, page);
}

/* ---- Decoding */

static void channels(unsigned bits, struct codec_shape shape, const void *page, float *to) {
    size_t hd = shape.head_dim;
    uint8_t codes[CODEC_ROW_MAX * PAGE_TOKENS];
    float scale[2 * CODEC_ROW_MAX * HALVES], *zero = scale + scales_of(hd);
    unpack_page(bits, CODEC_KEYS, hd, page, codes, scale, zero);
    for (size_t c = 0; c < hd; c++) {
        for (size_t t = 0; t < PAGE_TOKENS; t++) {
            size_t at = t / GROUP * hd + c, i = c * PAGE_TOKENS + t;
            to[i] = zero[at] + scale[at] * (float)codes[i];
        }
    }
}

static void decode(unsigned bits, struct codec_shape shape, enum codec_side side, const void *page, float *rows) {
    size_t hd = shape.head_dim;
    if (side == CODEC_KEYS) {
        float keys[CODEC_ROW_MAX * PAGE_TOKENS];
        channels(bits, shape, page, keys);
        transpose_channels(keys, hd, rows, hd);
        return;
    }
    uint8_t codes[CODEC_ROW_MAX * PAGE_TOKENS];
    float scale[2 * PAGE_TOKENS * MOST_GROUPS], *zero = scale + scales_of(hd);
    unpack_page(bits, CODEC_VALUES, hd, page, codes, scale, zero);
    for (size_t t = 0; t < PAGE_TOKENS; t++) {
        for (size_t c = 0; c < hd; c++) {
            size_t at = c / GROUP * PAGE_TOKENS + t;
            rows[t * hd + c] = zero[at] + scale[at] * (float)codes[t * hd + c];
        }
    }
}

/* ---- The rows of the table */

static void encode_4(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *page) {
    encode(4, shape, side, rows, n, page);
}

static void decode_4(struct codec_shape shape, enum codec_side side, const void *page, float *rows) {
    decode(4, shape, side, page, rows);
}

static void gather_tokens_4(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n,
                            void *to, size_t at) {
    (void)side;
    gather_rows(from, row_bytes(4, shape.head_dim), slots, n, to, at);
}

static void prefetch_tokens_4(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n) {
    (void)side;
    prefetch_rows(from, row_bytes(4, shape.head_dim), slots, n);
}

static void channels_4(struct codec_shape shape, const void *page, float *to) { channels(4, shape, page, to); }

static void score_4(struct codec_shape shape, const float *q, const float *tables, const void *page, float *logits) {
    (void)tables;
    scaled_ops()->score_kivi_4(q, shape.group, shape.head_dim, page, logits);
}

static void accumulate_values_4(struct codec_shape shape, const float *weights, const void *page, float *acc) {
    scaled_ops()->accumulate_kivi_4(weights, shape.group, shape.head_dim, page, acc);
}

static void accumulate_values_int8_4(struct codec_shape shape, const float *weights, const void *page, float *acc) {
    scaled_ops()->accumulate_int8_kivi_4(weights, shape.group, shape.head_dim, page, acc);
}

const struct cpu_codec cpu_codec_kivi_4 = {.format = &codec_kivi_4,
                                           .encode = encode_4,
                                           .decode = decode_4,
                                           .gather_tokens = gather_tokens_4,
                                           .prefetch_tokens = prefetch_tokens_4,
                                           .score = score_4,
                                           .channels = channels_4,
                                           .accumulate_values = accumulate_values_4,
                                           .accumulate_values_int8 = accumulate_values_int8_4};

static void encode_2(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *page) {
    encode(2, shape, side, rows, n, page);
}

static void decode_2(struct codec_shape shape, enum codec_side side, const void *page, float *rows) {
    decode(2, shape, side, page, rows);
}

static void gather_tokens_2(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n,
                            void *to, size_t at) {
    (void)side;
    gather_rows(from, row_bytes(2, shape.head_dim), slots, n, to, at);
}

static void prefetch_tokens_2(struct codec_shape shape, enum codec_side side, const void *from, const uint8_t *slots, size_t n) {
    (void)side;
    prefetch_rows(from, row_bytes(2, shape.head_dim), slots, n);
}

static void channels_2(struct codec_shape shape, const void *page, float *to) { channels(2, shape, page, to); }

static void score_2(struct codec_shape shape, const float *q, const float *tables, const void *page, float *logits) {
    (void)tables;
    scaled_ops()->score_kivi_2(q, shape.group, shape.head_dim, page, logits);
}

static void accumulate_values_2(struct codec_shape shape, const float *weights, const void *page, float *acc) {
    scaled_ops()->accumulate_kivi_2(weights, shape.group, shape.head_dim, page, acc);
}

static void accumulate_values_int8_2(struct codec_shape shape, const float *weights, const void *page, float *acc) {
    scaled_ops()->accumulate_int8_kivi_2(weights, shape.group, shape.head_dim, page, acc);
}

const struct cpu_codec cpu_codec_kivi_2 = {.format = &codec_kivi_2,
                                           .encode = encode_2,
                                           .decode = decode_2,
                                           .gather_tokens = gather_tokens_2,
                                           .prefetch_tokens = prefetch_tokens_2,
                                           .score = score_2,
                                           .channels = channels_2,
                                           .accumulate_values = accumulate_values_2,
                                           .accumulate_values_int8 = accumulate_values_int8_2};
