/* q8_0 and q4_0 with AVX-512 and its products of bytes: a query's numbers, and a weight times a scale, are fixed point. Codes are met
 * as bytes from 0 on, and what that adds is taken away by the sum of the numbers that meet them. */
#include "kernels/avx512_bytes.h"

#define ZERO_Q8_0 128 /* the byte that is the code 0 */
#define ZERO_Q4_0 8

/* ---- Keys: the lanes are 16 tokens, the bytes four channels ---------------------------------------------------------------- */

static void prepare_codes_avx512(const float *q, size_t G, size_t hd, float *tables) {
    for (size_t g = 0; g < G; g++, q += hd, tables += hd) {
        __m512 x[KERNELS_MOST_CHANNELS / 16];
        for (size_t v = 0; v < hd / 16; v++) x[v] = _mm512_loadu_ps(q + 16 * v);
        fill_table(x, hd, tables);
    }
}

/* Of four channels' bytes of 64 tokens those of half the tokens: dword 4 l + e of to[i] has token 16 l + 8 half + 4 i + e. */
INLINE void four_channels(const uint8_t *rows, size_t half, __m512i *to) {
    __m512i x[4], low, high;
    UNROLL for (size_t i = 0; i < 4; i++) x[i] = _mm512_loadu_si512(rows + i * BLOCK_TOKENS);
    low = half ? _mm512_unpackhi_epi8(x[0], x[1]) : _mm512_unpacklo_epi8(x[0], x[1]);
    high = half ? _mm512_unpackhi_epi8(x[2], x[3]) : _mm512_unpacklo_epi8(x[2], x[3]);
    to[0] = _mm512_unpacklo_epi16(low, high);
    to[1] = _mm512_unpackhi_epi16(low, high);
}

/* Scales of the same tokens in the same order. */
INLINE void token_scales(const uint16_t *scale, size_t half, __m512 *to) {
    const __m512i order = _mm512_add_epi64(_mm512_setr_epi64(0, 4, 8, 12, 1, 5, 9, 13), _mm512_set1_epi64(2 * (int)half));
    __m512i x = _mm512_permutex2var_epi64(_mm512_loadu_si512(scale), order, _mm512_loadu_si512(scale + 32));
    to[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(x));
    to[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1));
}

/* And logits back in the order of tokens. */
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

typedef __m512i key_sums[TOGETHER][2][2]; /* of high and low bytes, for two vectors of tokens */

/* Adds up the products of four channels, whose bytes in a query are at q. */
INLINE void add_channels(size_t G, const __m512i *codes, const float *tables, size_t at, size_t hd, key_sums sum) {
    UNROLL for (size_t g = 0; g < G; g++) {
        const int8_t *q = table_bytes(tables + g * hd) + at;
        __m512i high = four_bytes(q), low = four_bytes(q + hd);
        UNROLL for (size_t i = 0; i < 2; i++) {
            sum[g][i][0] = add_products(sum[g][i][0], codes[i], high);
            sum[g][i][1] = add_products(sum[g][i][1], codes[i], low);
        }
    }
}

/* Rows of 32 channels, or of 16 pairs of them, for half the tokens. */
INLINE void add_rows(size_t G, bool nibbles, const uint8_t *rows, size_t half, const float *tables, size_t at, size_t hd,
                     key_sums sum) {
    const __m512i fifteen = _mm512_set1_epi8(15), sign = _mm512_set1_epi8((char)ZERO_Q8_0);
    for (size_t c = 0; c < (nibbles ? BLOCK_QK / 2 : BLOCK_QK); c += 4, rows += 4 * BLOCK_TOKENS) {
        __m512i x[2], y[2];
        if (!half) prefetch_step(rows, 0, 4 * BLOCK_TOKENS);
        four_channels(rows, half, x);
        UNROLL for (size_t i = 0; i < 2; i++) {
            y[i] = _mm512_and_si512(_mm512_srli_epi32(x[i], 4), fifteen);
            x[i] = nibbles ? _mm512_and_si512(x[i], fifteen) : _mm512_xor_si512(x[i], sign);
        }
        add_channels(G, x, tables, at + c, hd, sum);
        if (nibbles) add_channels(G, y, tables, at + c + BLOCK_QK / 2, hd, sum);
    }
}

/* The part of 32 channels in the logits of half the tokens. */
INLINE void score_group(size_t G, bool nibbles, const float *tables, size_t hd, const uint16_t *scale, const uint8_t *rows, size_t b,
                        size_t half, __m512 (*logit)[TOGETHER][2]) {
    key_sums sum;
    __m512 scales[2];
    UNROLL for (size_t g = 0; g < G; g++) {
        sum[g][0][0] = sum[g][1][0] = _mm512_setzero_si512();
        sum[g][0][1] = sum[g][1][1] =
            _mm512_set1_epi32((nibbles ? -ZERO_Q4_0 : -ZERO_Q8_0) * table_sum(tables + g * hd, hd, b));
    }
    if (!half) prefetch_step(scale, 0, BLOCK_TOKENS * sizeof *scale);
    add_rows(G, nibbles, rows, half, tables, b * BLOCK_QK, hd, sum);
    token_scales(scale, half, scales);
    UNROLL for (size_t g = 0; g < G; g++) {
        UNROLL for (size_t i = 0; i < 2; i++) {
            __m512 part = whole_floats(sum[g][i][0], sum[g][i][1]);
            logit[half][g][i] = b ? _mm512_fmadd_ps(part, scales[i], logit[half][g][i]) : _mm512_mul_ps(part, scales[i]);
        }
    }
}

/* Both halves of 32 channels before the next 32, so that what is read twice is near, and memory is read in order. */
INLINE void score_codes(size_t G, bool nibbles, const float *tables, size_t hd, const void *block, float *logits) {
    const size_t group = nibbles ? BLOCK_QK / 2 * BLOCK_TOKENS : BLOCK_QK * BLOCK_TOKENS;
    const uint16_t *scale = block;
    const uint8_t *codes = (const uint8_t *)(scale + hd / BLOCK_QK * BLOCK_TOKENS);
    __m512 logit[2][TOGETHER][2];
    for (size_t b = 0; b < hd / BLOCK_QK; b++) {
        for (size_t half = 0; half < 2; half++)
            score_group(G, nibbles, tables, hd, scale + b * BLOCK_TOKENS, codes + b * group, b, half, logit);
    }
    for (size_t half = 0; half < 2; half++) {
        UNROLL for (size_t g = 0; g < G; g++) {
            __m512 step = _mm512_set1_ps(table_step(tables + g * hd, hd));
            UNROLL for (size_t i = 0; i < 2; i++) logit[half][g][i] = _mm512_mul_ps(logit[half][g][i], step);
            store_logits(logit[half][g], half, logits + g * BLOCK_TOKENS);
        }
    }
}

FOR_ONE(score_q8_0, score_codes, false)
FOR_ONE(score_q4_0, score_codes, true)

SLOT(score_q8_0, hd, BLOCK_TOKENS)
SLOT(score_q4_0, hd, BLOCK_TOKENS)

/* ---- Values: the lanes are 16 channels, the bytes four tokens --------------------------------------------------------------- */

/* acc[G][32 of hd] += of rows `length` apart. `ahead` is the part of the block that these rows would fill if they lay together. */
INLINE void mix_group(size_t G, bool nibbles, const struct weighed *w, const uint8_t *rows, size_t length, const uint8_t *ahead,
                      size_t hd, float *acc) {
    const __m512i fifteen = _mm512_set1_epi8(15), sign = _mm512_set1_epi8((char)ZERO_Q8_0);
    const size_t step = nibbles ? BLOCK_QK / 2 : BLOCK_QK;
    __m512i sum[TOGETHER][2][2];
    UNROLL for (size_t g = 0; g < G; g++) {
        sum[g][0][0] = sum[g][1][0] = _mm512_setzero_si512();
        sum[g][0][1] = _mm512_set1_epi32((nibbles ? -ZERO_Q4_0 : -ZERO_Q8_0) * w->sum[g]);
        sum[g][1][1] = nibbles ? _mm512_slli_epi32(sum[g][0][1], 4) : sum[g][0][1];
    }
    for (size_t t = 0; t < BLOCK_TOKENS; t += 4, rows += 4 * length) {
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
            __m512i high = four_bytes(w->bytes[g][0] + place_of(t)), low = four_bytes(w->bytes[g][1] + place_of(t));
            UNROLL for (size_t i = 0; i < 2; i++) {
                sum[g][i][0] = add_products(sum[g][i][0], x[i], high);
                sum[g][i][1] = add_products(sum[g][i][1], x[i], low);
            }
        }
    }
    UNROLL for (size_t g = 0; g < G; g++) {
        UNROLL for (size_t i = 0; i < 2; i++) {
            const int times = nibbles && i ? 16 : 1;
            float *to = acc + g * hd + 16 * i;
            __m512 step_of = _mm512_set1_ps(w->step[g] / (float)times);
            _mm512_storeu_ps(to, _mm512_fmadd_ps(step_of, whole_floats(sum[g][i][0], sum[g][i][1]), _mm512_loadu_ps(to)));
        }
    }
}

INLINE void mix_codes(size_t G, bool nibbles, const float *weights, size_t hd, const void *block, float *acc) {
    const size_t step = nibbles ? BLOCK_QK / 2 : BLOCK_QK, length = hd / BLOCK_QK * step;
    const uint16_t *scale = block;
    const uint8_t *codes = (const uint8_t *)(scale + hd / BLOCK_QK * BLOCK_TOKENS);
    struct weighed w[MOST_GROUPS]; /* too large to be cleared */
    for (size_t b = 0; b < hd / BLOCK_QK; b++) {
        __m512 scales[4];
        prefetch_step(scale + b * BLOCK_TOKENS, 0, BLOCK_TOKENS * 2);
        UNROLL for (size_t v = 0; v < 4; v++) scales[v] = vec_halves(scale + b * BLOCK_TOKENS + 16 * v);
        weigh(G, weights, scales, &w[b]);
    }
    for (size_t b = 0; b < hd / BLOCK_QK; b++)
        mix_group(G, nibbles, &w[b], codes + b * step, length, codes + b * step * BLOCK_TOKENS, hd, acc + b * BLOCK_QK);
}

FOR_ONE(mix_q8_0, mix_codes, false)
FOR_ONE(mix_q4_0, mix_codes, true)

SLOT(mix_q8_0, BLOCK_TOKENS, hd)
SLOT(mix_q4_0, BLOCK_TOKENS, hd)

void kernels_fill_avx512_codes(struct kernels *k) {
    k->prepare_q8_0 = prepare_codes_avx512;
    k->prepare_q4_0 = prepare_codes_avx512;
    k->score_q8_0 = score_q8_0_avx512;
    k->score_q4_0 = score_q4_0_avx512;
    k->mix_q8_0 = mix_q8_0_avx512;
    k->mix_q4_0 = mix_q4_0_avx512;
}
