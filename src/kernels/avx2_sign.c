/* Keys of codec sign with AVX2: as avx512_sign.c, eight tokens at a time. Products of bytes are added up in 16 bits, which hold those
 * of 32 channels: 8 times two products of at most 6 and 128. */
#include "kernels/avx2_lanes.h"

#include "kernels/sign_rows.h"
#include "kernels/sums_template.h"

#include <math.h>
#include <string.h>

#define FIXED_MOST 32639 /* 127 * 256 + 127: the high byte stays within a signed one */
#define TOGETHER 2       /* queries of a pass */
#define TOKENS 8

/* Tables of a query: int8 [2][hd], q alpha; int32 sums [hd/32] of those whole numbers; their step; <q, mean>. */
static void prepare_sign_avx2(const float *q, const float *mean, const float *alpha, size_t G, size_t hd, float *tables) {
    for (size_t g = 0; g < G; g++, q += hd, tables += kernels_sign_floats(hd)) {
        float x[KERNELS_MOST_CHANNELS], most = 0, sum = 0;
        for (size_t c = 0; c < hd; c++) {
            x[c] = q[c] * alpha[c];
            sum += q[c] * mean[c];
            most = fabsf(x[c]) > most ? fabsf(x[c]) : most;
        }
        float step = most > 1e-30f ? most / FIXED_MOST : 0, inverse = step > 0 ? 1 / step : 0;
        int8_t *high = (int8_t *)tables, *low = high + hd;
        int32_t totals[KERNELS_MOST_CHANNELS / BLOCK_QK] = {0};
        for (size_t c = 0; c < hd; c++) {
            int32_t whole = _mm_cvtss_si32(_mm_set_ss(x[c] * inverse));
            whole = whole > FIXED_MOST ? FIXED_MOST : whole < -FIXED_MOST ? -FIXED_MOST : whole; /* what is not finite */
            totals[c / BLOCK_QK] += whole;
            high[c] = (int8_t)((whole + 128) >> 8);
            low[c] = (int8_t)(whole & 255);
        }
        memcpy(tables + hd / 2, totals, hd / BLOCK_QK * sizeof *totals);
        tables[hd / 2 + hd / 32] = step;
        tables[hd / 2 + hd / 32 + 1] = sum;
    }
}

INLINE __m256i two_parts(const uint8_t *first, const uint8_t *second) {
    __m256i x = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)first));
    return _mm256_inserti128_si256(x, _mm_loadu_si128((const __m128i *)second), 1);
}

/* Dwords [0, 4) of eight tokens' rows: to[d] has dword d of all. */
INLINE void turn_over_four(const uint8_t *from, size_t length, __m256i *to) {
    __m256i a = two_parts(from, from + 4 * length), b = two_parts(from + length, from + 5 * length);
    __m256i c = two_parts(from + 2 * length, from + 6 * length), d = two_parts(from + 3 * length, from + 7 * length);
    __m256i e = _mm256_unpacklo_epi32(a, b), f = _mm256_unpackhi_epi32(a, b);
    __m256i g = _mm256_unpacklo_epi32(c, d), h = _mm256_unpackhi_epi32(c, d);
    to[0] = _mm256_unpacklo_epi64(e, g);
    to[1] = _mm256_unpackhi_epi64(e, g);
    to[2] = _mm256_unpacklo_epi64(f, h);
    to[3] = _mm256_unpackhi_epi64(f, h);
}

/* Pairs of eight tokens from the t-th on, to[4 + b] being the b-th. The last sixteen bytes of a row may begin within its codes. */
INLINE void turn_over_pairs(const struct rows *rows, size_t t, __m256i *to) {
    for (size_t from = rows->codes; from < rows->length; from += 16) {
        size_t at = SMALLER(from, rows->length - 16);
        turn_over_four(rows->at + t * rows->length + at, rows->length, to + (at + 16 - rows->codes) / 4);
    }
}

INLINE __m256i four_bytes(const int8_t *bytes) {
    int32_t four;
    memcpy(&four, bytes, sizeof four);
    return _mm256_set1_epi32(four);
}

INLINE __m256i add_products(__m256i sum, __m256i codes, __m256i weights) {
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, weights));
}

/* 256 high + low, each a sum of pairs of 16-bit numbers. */
INLINE __m256i whole_sums(__m256i high, __m256i low) {
    const __m256i one = _mm256_set1_epi16(1);
    return _mm256_add_epi32(_mm256_slli_epi32(_mm256_madd_epi16(high, one), 8), _mm256_madd_epi16(low, one));
}

/* The low halves of dwords, as floats. */
INLINE __m256 low_halves(__m256i x) {
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1, 0, 1, 4, 5, 8, 9, 12, 13, -1,
                                           -1, -1, -1, -1, -1, -1, -1);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_shuffle_epi8(x, order), 0x08)));
}

/* What is read of a block for eight tokens. */
struct eight {
    const uint8_t *signs;
    __m256i codes[KERNELS_MOST_CHANNELS / 16], pairs[4 + KERNELS_MOST_CHANNELS / BLOCK_QK];
};

/* All ones in the bytes of dword t whose channel is negative in token t; bits: of the plane's channels. */
INLINE __m256i negative(const uint8_t *plane, int32_t bits) {
    const __m256i fours = _mm256_setr_epi32(0, 0x01010101, 0x02020202, 0x03030303, 0x04040404, 0x05050505, 0x06060606, 0x07070707);
    __m256i signs = _mm256_broadcastsi128_si256(_mm_loadl_epi64((const __m128i *)plane));
    signs = _mm256_and_si256(_mm256_shuffle_epi8(signs, fours), _mm256_set1_epi32(bits));
    return _mm256_cmpeq_epi8(signs, _mm256_setzero_si256());
}

/* Of 32 channels: logits += step (scale (sum of sign code q) + zero (sum of sign q)). */
INLINE void add_group(size_t G, const struct eight *e, size_t b, size_t hd, const float *tables, __m256 *logits) {
    const __m256i three = _mm256_set1_epi8(3), one = _mm256_set1_epi8(1);
    const size_t row = hd / 16, stride = kernels_sign_floats(hd);
    __m256i sum[TOGETHER][4];
    UNROLL for (size_t g = 0; g < G; g++) sum[g][0] = sum[g][1] = sum[g][2] = sum[g][3] = _mm256_setzero_si256();
    size_t d = 8 * b % row, shift = 8 * b / row * 2; /* of the next dword */
    for (size_t i = 8 * b; i < 8 * b + 8; i++) {
        __m256i minus = negative(e->signs + i / 2 * BLOCK_TOKENS, i % 2 ? (int32_t)0x80402010u : 0x08040201);
        __m256i code = _mm256_srlv_epi32(e->codes[d], _mm256_set1_epi32((int)shift));
        if (++d == row) d = 0, shift += 2;
        code = _mm256_sign_epi8(_mm256_and_si256(code, three), _mm256_or_si256(minus, one));
        code = _mm256_add_epi8(code, three);
        __m256i sign = _mm256_andnot_si256(minus, one);
        UNROLL for (size_t g = 0; g < G; g++) {
            const int8_t *q = (const int8_t *)(tables + g * stride) + 4 * i;
            __m256i high = four_bytes(q), low = four_bytes(q + hd);
            sum[g][0] = add_products(sum[g][0], code, high);
            sum[g][1] = add_products(sum[g][1], code, low);
            sum[g][2] = add_products(sum[g][2], sign, high);
            sum[g][3] = add_products(sum[g][3], sign, low);
        }
    }
    __m256 scale = low_halves(e->pairs[4 + b]), zero = low_halves(_mm256_srli_epi32(e->pairs[4 + b], 16));
    UNROLL for (size_t g = 0; g < G; g++) {
        const float *table = tables + g * stride;
        int32_t all;
        memcpy(&all, table + hd / 2 + b, sizeof all);
        __m256i codes = _mm256_sub_epi32(whole_sums(sum[g][0], sum[g][1]), _mm256_set1_epi32(3 * all));
        __m256i signs = _mm256_sub_epi32(_mm256_slli_epi32(whole_sums(sum[g][2], sum[g][3]), 1), _mm256_set1_epi32(all));
        __m256 both = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(codes), _mm256_mul_ps(zero, _mm256_cvtepi32_ps(signs)));
        logits[g] = _mm256_fmadd_ps(_mm256_set1_ps(table[hd / 2 + hd / 32]), both, logits[g]);
    }
}

INLINE void score_some(size_t G, const float *tables, size_t hd, const uint8_t *block, const struct rows *rows, float *logits) {
    for (size_t t = 0; t < BLOCK_TOKENS; t += TOKENS) {
        struct eight e; /* too large to be cleared */
        e.signs = block + t;
        __m256 logit[TOGETHER];
        for (size_t at = 0; at < rows->codes; at += 16)
            turn_over_four(rows->at + t * rows->length + at, rows->length, e.codes + at / 4);
        turn_over_pairs(rows, t, e.pairs);
        UNROLL for (size_t g = 0; g < G; g++) logit[g] = _mm256_set1_ps(tables[g * kernels_sign_floats(hd) + hd / 2 + hd / 32 + 1]);
        for (size_t b = 0; b < hd / 32; b++) add_group(G, &e, b, hd, tables, logit);
        UNROLL for (size_t g = 0; g < G; g++) _mm256_storeu_ps(logits + g * BLOCK_TOKENS + t, logit[g]);
    }
}

/* A function of its own for each number of queries, or their sums are kept in memory. */
static __attribute__((noinline)) void score_one(const float *tables, size_t hd, const uint8_t *block, const struct rows *rows,
                                                float *logits) {
    score_some(1, tables, hd, block, rows, logits);
}
static __attribute__((noinline)) void score_two(const float *tables, size_t hd, const uint8_t *block, const struct rows *rows,
                                                float *logits) {
    score_some(TOGETHER, tables, hd, block, rows, logits);
}

static void score_sign_avx2(const float *tables, size_t G, size_t hd, const void *block, float *logits) {
    uint8_t padded[BLOCK_TOKENS * PADDED_ROW];
    const struct rows rows = rows_of((const uint8_t *)block + BLOCK_BYTES_SIGNS(hd), hd, 2, padded);
    for (; G >= TOGETHER; G -= TOGETHER, tables += TOGETHER * kernels_sign_floats(hd), logits += TOGETHER * BLOCK_TOKENS)
        score_two(tables, hd, block, &rows, logits);
    if (G) score_one(tables, hd, block, &rows, logits);
}

void kernels_fill_avx2_sign(struct kernels *k) {
    k->prepare_sign = prepare_sign_avx2;
    k->score_sign = score_sign_avx2;
}
