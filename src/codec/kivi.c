/* The codecs kivi-4 and kivi-2: asymmetric integers (KIVI, Liu et al. 2024), keys by channel and values by token, since outliers of
 * keys keep to their channels and those of values do not.
 *
 *     x = zero + scale * code,   zero = min, scale = (max - min) / (2^bits - 1), both as halves, over 32 numbers:
 *     keys    of one channel and 32 tokens      values    of one token and 32 channels
 *
 * One byte holds 8 / bits codes that lie n bits / 8 numbers apart in a row of n, so that a row unpacks by shifts alone. Reading
 * multiplies bare codes; the scales go into what meets them, the queries or the weights, and the zeros are a product of their own.
 */
#include "base/half.h"
#include "codec/codec.h"
#include "codec/transpose.h"
#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

#define GROUP BLOCK_QK
#define HALVES (BLOCK_TOKENS / GROUP) /* groups of tokens in a block of keys */
#define MOST_GROUPS (CODEC_HEAD_DIM_MAX / GROUP)
#define SOME_QUERIES 8 /* whose scaled queries or weights lie on the stack at once */

/* ---- Blocks. Keys: scale[2][hd], zero[2][hd], codes[hd][64 tokens]; values: scale[hd/32][64], zero[hd/32][64], codes[64][hd]. */

static size_t scales_of(size_t hd) { return hd * HALVES; } /* of either side */

static size_t block_bytes(unsigned bits, size_t hd) { return 2 * scales_of(hd) * sizeof(uint16_t) + hd * BLOCK_TOKENS / 8 * bits; }

static const uint8_t *codes_of(const void *block, size_t hd) {
    return (const uint8_t *)block + 2 * scales_of(hd) * sizeof(uint16_t);
}

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

/* All rows of a block. */
static void unpack_block(unsigned bits, enum codec_side side, size_t hd, const void *block, uint8_t *codes) {
    size_t row = side == CODEC_KEYS ? BLOCK_TOKENS : hd, rows = hd * BLOCK_TOKENS / row;
    const uint8_t *packed = codes_of(block, hd);
    for (size_t i = 0; i < rows; i++) unpack(bits, packed + i * row * bits / 8, row, codes + i * row);
}

/* ---- Encoding */

/* n numbers, `apart` from each other, to codes as far apart. Codes are the nearest to what the halves stand for. */
static void encode_group(unsigned bits, const float *x, size_t n, size_t apart, uint16_t *scale, uint16_t *zero, uint8_t *codes,
                         size_t codes_apart) {
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
        codes[i * codes_apart] = (uint8_t)(code > 0 ? (code < levels ? code : levels) : 0); /* NaN gives 0 */
    }
}

static void encode(unsigned bits, struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *block) {
    size_t hd = shape.head_dim;
    uint8_t codes[CODEC_HEAD_DIM_MAX * BLOCK_TOKENS];
    uint16_t *scale = block, *zero = scale + scales_of(hd);
    memset(block, 0, block_bytes(bits, hd));
    memset(codes, 0, hd * BLOCK_TOKENS);
    for (size_t t = 0; side == CODEC_KEYS && t < n; t += GROUP) {
        size_t count = n - t < GROUP ? n - t : GROUP, at = t / GROUP * hd;
        for (size_t c = 0; c < hd; c++)
            encode_group(bits, rows + t * hd + c, count, hd, &scale[at + c], &zero[at + c], codes + c * BLOCK_TOKENS + t, 1);
    }
    for (size_t t = 0; side == CODEC_VALUES && t < n; t++) {
        for (size_t b = 0; b < hd / GROUP; b++) {
            size_t at = b * BLOCK_TOKENS + t;
            encode_group(bits, rows + t * hd + b * GROUP, GROUP, 1, &scale[at], &zero[at], codes + t * hd + b * GROUP, 1);
        }
    }
    uint8_t *packed = (uint8_t *)block + 2 * scales_of(hd) * sizeof(uint16_t);
    size_t row = side == CODEC_KEYS ? BLOCK_TOKENS : hd;
    for (size_t i = 0; i < hd * BLOCK_TOKENS / row; i++) pack(bits, codes + i * row, row, packed + i * row * bits / 8);
}

/* ---- Decoding */

static void channels(unsigned bits, struct codec_shape shape, const void *block, float *to) {
    size_t hd = shape.head_dim;
    uint8_t codes[CODEC_HEAD_DIM_MAX * BLOCK_TOKENS];
    float scale[2 * CODEC_HEAD_DIM_MAX * HALVES], *zero = scale + scales_of(hd);
    kernels()->half_to_float(block, scale, 2 * scales_of(hd));
    unpack_block(bits, CODEC_KEYS, hd, block, codes);
    for (size_t c = 0; c < hd; c++) {
        for (size_t t = 0; t < BLOCK_TOKENS; t++) {
            size_t at = t / GROUP * hd + c, i = c * BLOCK_TOKENS + t;
            to[i] = zero[at] + scale[at] * (float)codes[i];
        }
    }
}

static void decode(unsigned bits, struct codec_shape shape, enum codec_side side, const void *block, float *rows) {
    size_t hd = shape.head_dim;
    if (side == CODEC_KEYS) {
        float keys[CODEC_HEAD_DIM_MAX * BLOCK_TOKENS];
        channels(bits, shape, block, keys);
        transpose_channels(keys, hd, rows, hd);
        return;
    }
    uint8_t codes[CODEC_HEAD_DIM_MAX * BLOCK_TOKENS];
    float scale[2 * BLOCK_TOKENS * MOST_GROUPS], *zero = scale + scales_of(hd);
    kernels()->half_to_float(block, scale, 2 * scales_of(hd));
    unpack_block(bits, CODEC_VALUES, hd, block, codes);
    for (size_t t = 0; t < BLOCK_TOKENS; t++) {
        for (size_t c = 0; c < hd; c++) {
            size_t at = c / GROUP * BLOCK_TOKENS + t;
            rows[t * hd + c] = zero[at] + scale[at] * (float)codes[t * hd + c];
        }
    }
}

/* ---- Reading */

static void score(unsigned bits, struct codec_shape shape, const float *q, const void *block, float *logits) {
    size_t hd = shape.head_dim;
    uint8_t codes[CODEC_HEAD_DIM_MAX * BLOCK_TOKENS];
    float scale[2 * CODEC_HEAD_DIM_MAX * HALVES], *zero = scale + scales_of(hd), scaled[SOME_QUERIES * CODEC_HEAD_DIM_MAX];
    kernels()->half_to_float(block, scale, 2 * scales_of(hd));
    unpack_block(bits, CODEC_KEYS, hd, block, codes);
    for (size_t first = 0, G; first < shape.group; first += G, q += G * hd, logits += G * BLOCK_TOKENS) {
        G = shape.group - first < SOME_QUERIES ? shape.group - first : SOME_QUERIES;
        for (size_t h = 0; h < HALVES; h++) {
            for (size_t g = 0; g < G; g++) {
                float base = kernels()->dot(q + g * hd, zero + h * hd, hd), *to = logits + g * BLOCK_TOKENS + h * GROUP;
                for (size_t c = 0; c < hd; c++) scaled[g * hd + c] = q[g * hd + c] * scale[h * hd + c];
                for (size_t t = 0; t < GROUP; t++) to[t] = base;
            }
            kernels()->add_bytes(scaled, G, hd, codes + h * GROUP, BLOCK_TOKENS, logits + h * GROUP, BLOCK_TOKENS);
        }
    }
}

static void mix(unsigned bits, struct codec_shape shape, const float *weights, const void *block, float *acc) {
    size_t hd = shape.head_dim;
    uint8_t codes[CODEC_HEAD_DIM_MAX * BLOCK_TOKENS];
    float scale[2 * BLOCK_TOKENS * MOST_GROUPS], *zero = scale + scales_of(hd), scaled[SOME_QUERIES * BLOCK_TOKENS];
    kernels()->half_to_float(block, scale, 2 * scales_of(hd));
    unpack_block(bits, CODEC_VALUES, hd, block, codes);
    for (size_t first = 0, G; first < shape.group; first += G, weights += G * BLOCK_TOKENS, acc += G * hd) {
        G = shape.group - first < SOME_QUERIES ? shape.group - first : SOME_QUERIES;
        for (size_t b = 0; b < hd / GROUP; b++) {
            const float *s = scale + b * BLOCK_TOKENS, *z = zero + b * BLOCK_TOKENS;
            for (size_t g = 0; g < G; g++) {
                const float *w = weights + g * BLOCK_TOKENS;
                float base = kernels()->dot(w, z, BLOCK_TOKENS), *to = acc + g * hd + b * GROUP;
                for (size_t t = 0; t < BLOCK_TOKENS; t++) scaled[g * BLOCK_TOKENS + t] = w[t] * s[t];
                for (size_t c = 0; c < GROUP; c++) to[c] += base;
            }
            kernels()->add_bytes(scaled, G, BLOCK_TOKENS, codes + b * GROUP, hd, acc + b * GROUP, hd);
        }
    }
}

/* ---- The rows of the table */

/* clang-format off */
#define KIVI(name_, suffix, bits) \
    static size_t block_bytes_##suffix(struct codec_shape shape, enum codec_side side) { \
        (void)side; \
        return block_bytes(bits, shape.head_dim); \
    } \
    static void encode_##suffix(struct codec_shape shape, enum codec_side side, const float *rows, size_t n, void *block) { \
        encode(bits, shape, side, rows, n, block); \
    } \
    static void decode_##suffix(struct codec_shape shape, enum codec_side side, const void *block, float *rows) { \
        decode(bits, shape, side, block, rows); \
    } \
    static void channels_##suffix(struct codec_shape shape, const void *block, float *to) { channels(bits, shape, block, to); } \
    static void score_##suffix(struct codec_shape shape, const float *q, const float *tables, const void *block, float *logits) { \
        (void)tables; \
        score(bits, shape, q, block, logits); \
    } \
    static void mix_##suffix(struct codec_shape shape, const float *weights, const void *block, float *acc) { \
        mix(bits, shape, weights, block, acc); \
    } \
    const struct codec codec_kivi_##suffix = {.name = name_, .rope = CODEC_ROPE_AFTER, .check = codec_check_head_dim, \
                                              .block_bytes = block_bytes_##suffix, .encode = encode_##suffix, \
                                              .decode = decode_##suffix, .score = score_##suffix, .channels = channels_##suffix, \
                                              .mix = mix_##suffix};
KIVI("kivi-4", 4, 4)
KIVI("kivi-2", 2, 2)
/* clang-format on */
