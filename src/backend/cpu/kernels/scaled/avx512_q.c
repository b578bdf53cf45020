/* Implements q8_0 and q4_0 with AVX-512, by products of bytes (lanes/avx512_i8.h): a query's numbers, and weights times scales, are
 * fixed point. Codes are multiplied as unsigned bytes, from 0 on; the surplus is subtracted by the sum of the numbers they are
 * multiplied by. */
#include "backend/cpu/kernels/lanes/avx512_i8.h"
#include "backend/cpu/kernels/limits.h"
#include "backend/cpu/kernels/scaled/init.h"

#define ZERO_Q8_0 128 /* the byte that is the code 0 */
#define ZERO_Q4_0 8

/* ---- Keys: the lanes are 16 tokens, the bytes four channels -------------------------------------------------------------- */

INLINE void prepare_codes(bool nibbles, const float *q, size_t G, size_t hd, float *tables) {
    for (size_t g = 0; g < G; g++, q += hd, tables += hd) {
        __m512 x[KERNELS_MOST_ROW / 16];
        for (size_t v = 0; v < hd / 16; v++) x[v] = _mm512_loadu_ps(q + 16 * v);
        if (nibbles)
            fill_coarse_table(x, hd, tables);
        else
            fill_table(x, hd, tables);
    }
}

static void prepare_q8_0_avx512(const float *q, size_t G, size_t hd, float *tables) { prepare_codes(false, q, G, hd, tables); }
static void prepare_q4_0_avx512(const float *q, size_t G, size_t hd, float *tables) { prepare_codes(true, q, G, hd, tables); }

/* Takes half of the 64 tokens from four channels' bytes: dword 4 l + e of to[i] has token 16 l + 8 half + 4 i + e. */
INLINE void four_channels(const uint8_t *rows, size_t half, __m512i *to) {
    __m512i x[4], low, high;
    UNROLL for (size_t i = 0; i < 4; i++) x[i] = _mm512_loadu_si512(rows + i * PAGE_TOKENS);
    low = half ? _mm512_unpackhi_epi8(x[0], x[1]) : _mm512_unpacklo_epi8(x[0], x[1]);
    high = half ? _mm512_unpackhi_epi8(x[2], x[3]) : _mm512_unpacklo_epi8(x[2], x[3]);
    to[0] = _mm512_unpacklo_epi16(low, high);
    to[1] = _mm512_unpackhi_epi16(low, high);
}

/* A half_logits has the logits of half the tokens, in the order of four_channels. */
typedef __m512 half_logits[TOGETHER][2];

/* Loads the scales of the same tokens in the same order. */
INLINE void token_scales(const uint16_t *scale, size_t half, __m512 *to) {
    const __m512i order = _mm512_add_epi64(_mm512_setr_epi64(0, 4, 8, 12, 1, 5, 9, 13), _mm512_set1_epi64(2 * (int)half));
    __m512i x = _mm512_permutex2var_epi64(_mm512_loadu_si512(scale), order, _mm512_loadu_si512(scale + 32));
    to[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(x));
    to[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1));
}

/* Stores logits in the order of tokens again. */
INLINE void store_logits(const __m512 *x, size_t half, float *logits) {
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    __m512d a = _mm512_castps_pd(x[0]), b = _mm512_castps_pd(x[1]);
    __m512 low = _mm512_castpd_ps(_mm512_permutex2var_pd(a, first, b)),
           high = _mm512_castpd_ps(_mm512_permutex2var_pd(a, second, b));
    _mm256_storeu_ps(logits + 8 * half, _mm512_castps512_ps256(low));
    _mm256_storeu_ps(logits + 8 * half + 16, _mm512_extractf32x8_ps(low, 1));
    _mm256_storeu_ps(logits + 8 * half + 32, _mm512_castps512_ps256(high));
    _mm256_storeu_ps(logits + 8 * half + 48, _mm512_extractf32x8_ps(high, 1));
}

/* Adds to the logits of q8_0 those of the b-th 32 channels, rows[32][64], for half the tokens: sums of high and of low bytes. */
INLINE void score_bytes(size_t G, const uint8_t *rows, const uint16_t *scale, size_t half, const float *tables, size_t b, size_t hd,
                        half_logits logit) {
    const __m512i sign = _mm512_set1_epi8((char)ZERO_Q8_0);
    __m512i sum[TOGETHER][2][2], x[2];
    __m512 scales[2];
    UNROLL for (size_t g = 0; g < G; g++) {
        sum[g][0][0] = sum[g][1][0] = _mm512_setzero_si512();
        sum[g][0][1] = sum[g][1][1] = _mm512_set1_epi32(-ZERO_Q8_0 * table_sum(tables + g * hd, hd, b));
    }
    for (size_t c = 0; c < SCALE_GROUP; c += 4, rows += 4 * PAGE_TOKENS) {
        if (!half) prefetch_step(rows, 0, 4 * PAGE_TOKENS);
        four_channels(rows, half, x);
        UNROLL for (size_t i = 0; i < 2; i++) x[i] = _mm512_xor_si512(x[i], sign);
        UNROLL for (size_t g = 0; g < G; g++) {
            const int8_t *q = table_bytes(tables + g * hd) + b * SCALE_GROUP + c;
            __m512i high = four_bytes(q), low = four_bytes(q + hd);
            UNROLL for (size_t i = 0; i < 2; i++) {
                sum[g][i][0] = add_products(sum[g][i][0], x[i], high);
                sum[g][i][1] = add_products(sum[g][i][1], x[i], low);
            }
        }
    }
    token_scales(scale, half, scales);
    UNROLL for (size_t g = 0; g < G; g++) {
        const __m512 step = _mm512_set1_ps(table_step(tables + g * hd, hd));
        UNROLL for (size_t i = 0; i < 2; i++) {
            __m512 part = _mm512_mul_ps(whole_floats(sum[g][i][0], sum[g][i][1]), step);
            logit[g][i] = _mm512_fmadd_ps(part, scales[i], logit[g][i]);
        }
    }
}

/* Scores q4_0, rows[16][64], for all tokens: a query's numbers are one byte each. */
INLINE void score_nibbles(size_t G, const uint8_t *rows, const uint16_t *scale, const float *tables, size_t b, size_t hd,
                          half_logits *logit) {
    const __m512i fifteen = _mm512_set1_epi8(15);
    __m512i sum[TOGETHER][4], x[4], y[4];
    struct coarse of[TOGETHER];
    UNROLL for (size_t g = 0; g < G; g++) {
        of[g] = coarse_of(tables + g * hd, hd, b);
        UNROLL for (size_t i = 0; i < 4; i++) sum[g][i] = _mm512_set1_epi32(-ZERO_Q4_0 * of[g].sum);
    }
    for (size_t c = 0; c < SCALE_GROUP / 2; c += 4, rows += 4 * PAGE_TOKENS) {
        prefetch_step(rows, 0, 4 * PAGE_TOKENS);
        four_channels(rows, 0, x);
        four_channels(rows, 1, x + 2);
        UNROLL for (size_t i = 0; i < 4; i++) {
            y[i] = _mm512_and_si512(_mm512_srli_epi32(x[i], 4), fifteen);
            x[i] = _mm512_and_si512(x[i], fifteen);
        }
        UNROLL for (size_t g = 0; g < G; g++) {
            const int8_t *q = table_bytes(tables + g * hd) + b * SCALE_GROUP + c;
            __m512i low = four_bytes(q), high = four_bytes(q + SCALE_GROUP / 2);
            UNROLL for (size_t i = 0; i < 4; i++) sum[g][i] = add_products(add_products(sum[g][i], x[i], low), y[i], high);
        }
    }
    UNROLL for (size_t half = 0; half < 2; half++) {
        __m512 scales[2];
        token_scales(scale, half, scales);
        UNROLL for (size_t g = 0; g < G; g++) {
            UNROLL for (size_t i = 0; i < 2; i++) {
                __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[g][2 * half + i]), _mm512_set1_ps(of[g].step));
                logit[half][g][i] = _mm512_fmadd_ps(part, scales[i], logit[half][g][i]);
            }
        }
    }
}

/* Scores both halves of 32 channels of q8_0 before the next 32, so that bytes that are read twice are near and memory is read in
 * order. */
INLINE void score_codes(size_t G, bool nibbles, const float *tables, size_t hd, const void *page, float *logits) {
    const uint16_t *scale = page;
    const uint8_t *rows = (const uint8_t *)(scale + hd / SCALE_GROUP * PAGE_TOKENS);
    half_logits logit[2];
    UNROLL for (size_t g = 0; g < G; g++) logit[0][g][0] = logit[0][g][1] = logit[1][g][0] = logit[1][g][1] = _mm512_setzero_ps();
    for (size_t b = 0; b < hd / SCALE_GROUP; b++, scale += PAGE_TOKENS) {
        prefetch_step(scale, 0, PAGE_TOKENS * sizeof *scale);
        if (nibbles) {
            score_nibbles(G, rows, scale, tables, b, hd, logit);
            rows += SCALE_GROUP / 2 * PAGE_TOKENS;
            continue;
        }
        score_bytes(G, rows, scale, 0, tables, b, hd, logit[0]);
        score_bytes(G, rows, scale, 1, tables, b, hd, logit[1]);
        rows += SCALE_GROUP * PAGE_TOKENS;
    }
    UNROLL for (size_t half = 0; half < 2; half++) {
        UNROLL for (size_t g = 0; g < G; g++) store_logits(logit[half][g], half, logits + g * PAGE_TOKENS);
    }
}

INLINE void score_q8_0(size_t G, const float *q, size_t hd, const void *page, float *logits) {
    score_codes(G, false, q, hd, page, logits);
}
INLINE void score_q4_0(size_t G, const float *q, size_t hd, const void *page, float *logits) {
    score_codes(G, true, q, hd, page, logits);
}

PAGE_KERNELS_4(score_q8_0)
static void score_q8_0_avx512(const float *tables, size_t G, size_t hd, const void *page, float *logits) {
    call_page_kernels(score_q8_0_of, TOGETHER, tables, hd, G, hd, page, logits, PAGE_TOKENS);
}
PAGE_KERNELS_4(score_q4_0)
static void score_q4_0_avx512(const float *tables, size_t G, size_t hd, const void *page, float *logits) {
    call_page_kernels(score_q4_0_of, TOGETHER, tables, hd, G, hd, page, logits, PAGE_TOKENS);
}

/* ---- Values: the lanes are 16 channels, the bytes four tokens ------------------------------------------------------------ */

/* Adds to acc[G][32 of hd] the products of rows `length` apart. `ahead` is the part of the page that these rows would fill if they
 * lay together. */
INLINE void accumulate_group(size_t G, bool nibbles, size_t planes, const struct scaled_weights *w, const uint8_t *rows,
                             size_t length, const uint8_t *ahead, size_t hd, float *acc) {
    const __m512i fifteen = _mm512_set1_epi8(15), sign = _mm512_set1_epi8((char)ZERO_Q8_0);
    const size_t step = nibbles ? SCALE_GROUP / 2 : SCALE_GROUP, last = planes - 1;
    __m512i sum[TOGETHER][2][2];
    UNROLL for (size_t g = 0; g < G; g++) {
        sum[g][0][0] = sum[g][0][1] = sum[g][1][0] = sum[g][1][1] = _mm512_setzero_si512();
        /* The product is computed without a sign, so that it may wrap: weights that are not finite, of a damaged page, make sums of
         * any size. */
        sum[g][0][last] = _mm512_set1_epi32((int)((nibbles ? -(uint32_t)ZERO_Q4_0 : -(uint32_t)ZERO_Q8_0) * (uint32_t)w->sum[g]));
        sum[g][1][last] = nibbles ? _mm512_slli_epi32(sum[g][0][last], 4) : sum[g][0][last];
    }
    for (size_t t = 0; t < PAGE_TOKENS; t += 4, rows += 4 * length) {
        __m512i x[2];
        prefetch_step(ahead + t * step, 0, 4 * step);
        x[0] = four_rows(rows, length);
        if (nibbles) {
            x[1] = _mm512_andnot_si512(fifteen, x[0]); /* 16 times the codes */
            x[0] = _mm512_and_si512(x[0], fifteen);
        } else {
            x[1] = _mm512_xor_si512(four_rows(rows + 16, length), sign);
            x[0] = _mm512_xor_si512(x[0], sign);
        }
        UNROLL for (size_t g = 0; g < G; g++) {
            UNROLL for (size_t i = 0; i < 2; i++) add_planes(planes, x[i], w->bytes[g], t, sum[g][i]);
        }
    }
    UNROLL for (size_t g = 0; g < G; g++) {
        UNROLL for (size_t i = 0; i < 2; i++) {
            const int times = nibbles && i ? 16 : 1;
            float *to = acc + g * hd + 16 * i;
            __m512 step_of = _mm512_set1_ps(w->step[g] / (float)times);
            _mm512_storeu_ps(to, _mm512_fmadd_ps(step_of, plane_floats(planes, sum[g][i][0], sum[g][i][1]), _mm512_loadu_ps(to)));
        }
    }
}

INLINE void accumulate_codes(size_t G, bool nibbles, size_t planes, const float *weights, size_t hd, const void *page, float *acc) {
    const size_t step = nibbles ? SCALE_GROUP / 2 : SCALE_GROUP, length = hd / SCALE_GROUP * step;
    const uint16_t *scale = page;
    const uint8_t *codes = (const uint8_t *)(scale + hd / SCALE_GROUP * PAGE_TOKENS);
    struct scaled_weights w[MOST_GROUPS]; /* too large to be cleared */
    for (size_t b = 0; b < hd / SCALE_GROUP; b++) {
        __m512 scales[4];
        prefetch_step(scale + b * PAGE_TOKENS, 0, PAGE_TOKENS * 2);
        UNROLL for (size_t v = 0; v < 4; v++) scales[v] = vec_halves(scale + b * PAGE_TOKENS + 16 * v);
        scale_and_quantize(G, planes, weights, scales, &w[b]);
    }
    for (size_t b = 0; b < hd / SCALE_GROUP; b++)
        accumulate_group(G, nibbles, planes, &w[b], codes + b * step, length, codes + b * step * PAGE_TOKENS, hd,
                         acc + b * SCALE_GROUP);
}

INLINE void accumulate_q8_0(size_t G, const float *weights, size_t hd, const void *page, float *acc) {
    accumulate_codes(G, false, 2, weights, hd, page, acc);
}
INLINE void accumulate_q4_0(size_t G, const float *weights, size_t hd, const void *page, float *acc) {
    accumulate_codes(G, true, 2, weights, hd, page, acc);
}
INLINE void accumulate_int8_q4_0(size_t G, const float *weights, size_t hd, const void *page, float *acc) {
    accumulate_codes(G, true, 1, weights, hd, page, acc);
}

PAGE_KERNELS_4(accumulate_q8_0)
static void accumulate_q8_0_avx512(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    call_page_kernels(accumulate_q8_0_of, TOGETHER, weights, PAGE_TOKENS, G, hd, page, acc, hd);
}
PAGE_KERNELS_4(accumulate_q4_0)
static void accumulate_q4_0_avx512(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    call_page_kernels(accumulate_q4_0_of, TOGETHER, weights, PAGE_TOKENS, G, hd, page, acc, hd);
}
PAGE_KERNELS_4(accumulate_int8_q4_0)
static void accumulate_int8_q4_0_avx512(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    call_page_kernels(accumulate_int8_q4_0_of, TOGETHER, weights, PAGE_TOKENS, G, hd, page, acc, hd);
}

void scaled_init_avx512_q(struct scaled_ops *ops) {
    ops->prepare_q8_0 = prepare_q8_0_avx512;
    ops->prepare_q4_0 = prepare_q4_0_avx512;
    ops->score_q8_0 = score_q8_0_avx512;
    ops->score_q4_0 = score_q4_0_avx512;
    ops->accumulate_q8_0 = accumulate_q8_0_avx512;
    ops->accumulate_q4_0 = accumulate_q4_0_avx512;
    ops->accumulate_int8_q4_0 = accumulate_int8_q4_0_avx512;
}
