/* Implements kivi of 4 and 2 bits with AVX2, by products of int16 (lanes/avx2_i16.h): a query times a channel's scales, and a
 * weight times a token's, are fixed point, made for each page. Codes count from 0; the zero points contribute a sum of their
 * own. */
#include "backend/cpu/kernels/lanes/avx2_i16.h"
#include "backend/cpu/kernels/limits.h"
#include "backend/cpu/kernels/scaled/init.h"

#include "backend/cpu/kernels/scaled/avx2_rows.h"

/* ---- Keys: the lanes are 16 tokens, a dword has two channels ------------------------------------------------------------- */

#define HALVES (PAGE_TOKENS / SCALE_GROUP) /* groups of tokens that share scales */

/* A `scaled` holds queries times the scales of a group of tokens, and <query, zeros>. */
struct scaled {
    int16_t i16[TOGETHER][KERNELS_MOST_ROW];
    float step[TOGETHER], base[TOGETHER];
};

INLINE void scale_queries(size_t G, const float *q, const float *scale, const float *zero, size_t hd, struct scaled *s) {
    __m256 most[TOGETHER], sum[TOGETHER];
    float inverse[TOGETHER];
    UNROLL for (size_t g = 0; g < G; g++) most[g] = sum[g] = _mm256_setzero_ps();
    for (size_t c = 0; c < hd; c += LANES) {
        UNROLL for (size_t g = 0; g < G; g++) {
            __m256 of = vec_load(q + g * hd + c);
            most[g] = _mm256_max_ps(most[g], magnitude(_mm256_mul_ps(of, vec_load(scale + c))));
            sum[g] = _mm256_fmadd_ps(of, vec_load(zero + c), sum[g]);
        }
    }
    fixed_steps(largest_of(G, most), FIXED_MOST, s->step, inverse);
    _mm_storeu_ps(s->base, sum_of(G, sum));
    for (size_t c = 0; c < hd; c += 2 * LANES) {
        UNROLL for (size_t g = 0; g < G; g++) {
            __m256 a = _mm256_mul_ps(vec_load(q + g * hd + c), vec_load(scale + c));
            __m256 b = _mm256_mul_ps(vec_load(q + g * hd + c + LANES), vec_load(scale + c + LANES));
            _mm256_storeu_si256((__m256i *)(s->i16[g] + c), to_i16(a, b, _mm256_set1_ps(inverse[g])));
        }
    }
}

/* Scores 16 tokens whose codes begin at bit `shift` of bytes: of 4 bits in 32 bytes of a row, in two parts, the first eight from
 * token `at` on; of 2 bits in the pairs of rows. */
INLINE void score_sixteen(size_t G, int bits, int shift, const struct scaled *s, size_t hd, const uint8_t *codes,
                          const __m256i *pairs, size_t at, float *logits) {
    pair_sums sum;
    pair_sums_clear(G, sum);
    for (size_t c = 0; c < hd; c += 2) {
        const uint8_t *row = codes + c * 32;
        __m256i x[2];
        if (bits == 4) prefetch_step(row + 4 * at, 0, 32);
        split(bits, shift, bits == 4 ? pair_rows_32(row, row + 32, at % 16 / 8) : pairs[c / 2], x);
        pair_sums_add(G, x, s->i16[0] + c, KERNELS_MOST_ROW, sum);
    }
    UNROLL for (size_t g = 0; g < G; g++)
        pair_sums_store(sum[g], s->step[g], s->base[g], false, bits == 4 ? 16 : 8, logits + g * PAGE_TOKENS + at);
}

INLINE void score_kivi(size_t G, int bits, const float *q, size_t hd, const void *page, float *logits) {
    struct scaled s[HALVES]; /* too large to be cleared */
    __m256i pairs[KERNELS_MOST_ROW / 2];
    float scale[2 * HALVES * KERNELS_MOST_ROW], *zero = scale + HALVES * hd;
    const uint16_t *halves = page;
    const uint8_t *codes = (const uint8_t *)(halves + 2 * HALVES * hd);
    for (size_t i = 0; i < 2 * HALVES * hd; i += LANES) {
        prefetch_step(halves + i, 0, 2 * LANES);
        vec_store(scale + i, vec_halves(halves + i));
    }
    for (size_t h = 0; h < HALVES; h++) scale_queries(G, q, scale + h * hd, zero + h * hd, hd, &s[h]);
    if (bits == 2) pair_rows(codes, 16, hd, codes, pairs);
    UNROLL for (size_t i = 0; i < 4; i++) {
        if (bits == 4)
            score_sixteen(G, 4, i / 2 ? 4 : 0, &s[i / 2], hd, codes, pairs, i / 2 * 32 + i % 2 * 8, logits);
        else
            score_sixteen(G, 2, 2 * (int)i, &s[i / 2], hd, codes, pairs, 16 * i, logits);
    }
}

INLINE void score_kivi_4(size_t G, const float *q, size_t hd, const void *page, float *logits) {
    score_kivi(G, 4, q, hd, page, logits);
}
INLINE void score_kivi_2(size_t G, const float *q, size_t hd, const void *page, float *logits) {
    score_kivi(G, 2, q, hd, page, logits);
}

PAGE_KERNELS_4(score_kivi_4)
static void score_kivi_4_avx2(const float *q, size_t G, size_t hd, const void *page, float *logits) {
    call_page_kernels(score_kivi_4_of, TOGETHER, q, hd, G, hd, page, logits, PAGE_TOKENS);
}
PAGE_KERNELS_4(score_kivi_2)
static void score_kivi_2_avx2(const float *q, size_t G, size_t hd, const void *page, float *logits) {
    call_page_kernels(score_kivi_2_of, TOGETHER, q, hd, G, hd, page, logits, PAGE_TOKENS);
}

/* ---- Values: the lanes are 16 channels, a dword has two tokens ----------------------------------------------------------- */

/* A group holds weights times scales of 32 channels, and the sums of weights times zeros. */
struct group {
    struct scaled_weights weights;
    float base[TOGETHER];
};

/* A scales holds the scales and zeros of 64 tokens as floats. */
struct scales {
    __m256 scale[MOST_GROUPS][PAGE_TOKENS / LANES], zero[MOST_GROUPS][PAGE_TOKENS / LANES];
};

INLINE void load_scales(const struct rows *rows, size_t groups, struct scales *s) {
    __m256i pairs[4 + MOST_GROUPS];
    for (size_t v = 0; v < PAGE_TOKENS / LANES; v++) {
        prefetch_step(rows->at, v, LANES * rows->length);
        transpose_pairs(rows, LANES * v, pairs);
        for (size_t b = 0; b < groups; b++) {
            s->scale[b][v] = low_halves(pairs[4 + b]);
            s->zero[b][v] = low_halves(_mm256_srli_epi32(pairs[4 + b], 16));
        }
    }
}

INLINE void scale_groups(size_t G, const float *weights, const struct rows *rows, size_t groups, struct group *to) {
    struct scales s; /* too large to be cleared */
    load_scales(rows, groups, &s);
    for (size_t b = 0; b < groups; b++) {
        __m256 sum[TOGETHER];
        UNROLL for (size_t g = 0; g < G; g++) {
            sum[g] = _mm256_setzero_ps();
            UNROLL for (size_t v = 0; v < PAGE_TOKENS / LANES; v++) sum[g] =
                _mm256_fmadd_ps(vec_load(weights + g * PAGE_TOKENS + LANES * v), s.zero[b][v], sum[g]);
        }
        _mm_storeu_ps(to[b].base, sum_of(G, sum));
        scale_and_quantize(G, false, weights, s.scale[b], &to[b].weights);
    }
}

/* Accumulates codes from bit `shift` on of pairs, or of rows of bytes; of channels c to c + 7 and those `apart` more on. */
INLINE void accumulate_sixteen(size_t G, int bits, int shift, const struct group *w, const uint8_t *bytes, const __m256i *pairs,
                               size_t hd, size_t c, float *acc) {
    const struct group *group = w + c / SCALE_GROUP;
    pair_sums sum;
    pair_sums_clear(G, sum);
    for (size_t t = 0; t < PAGE_TOKENS; t += 2) {
        __m256i x[2];
        if (bits == 8)
            split(8, 0, pair_rows_32(bytes + t * hd, bytes + (t + 1) * hd, c % 16 / 8), x);
        else
            split(bits, shift, pairs[t / 2], x);
        pair_sums_add(G, x, group->weights.i16[0] + t, PAGE_TOKENS, sum);
    }
    UNROLL for (size_t g = 0; g < G; g++)
        pair_sums_store(sum[g], group->weights.step[g], group->base[g], true, bits == 8 ? 16 : 8, acc + g * hd + c);
}

/* Accumulates 2-bit codes whose sixteen bytes would reach beyond 32 channels: unpacks them to bytes [64][hd] first. */
INLINE void accumulate_bytes(size_t G, const struct group *w, const struct rows *rows, size_t hd, float *acc) {
    uint8_t bytes[PAGE_TOKENS * KERNELS_MOST_CHANNELS];
    spread_codes(rows, hd, bytes);
    for (size_t c = 0; c < hd; c += SCALE_GROUP) {
        accumulate_sixteen(G, 8, 0, w, bytes + c, NULL, hd, c, acc);
        accumulate_sixteen(G, 8, 0, w, bytes + c, NULL, hd, c + 8, acc);
    }
}

INLINE void accumulate_kivi(size_t G, int bits, const float *weights, size_t hd, const void *page, float *acc) {
    uint8_t padded[PAGE_TOKENS * PADDED_ROW];
    __m256i pairs[PAGE_TOKENS / 2];
    struct group w[MOST_GROUPS];
    const struct rows rows = rows_of(page, hd, (unsigned)bits, padded);
    scale_groups(G, weights, &rows, hd / SCALE_GROUP, w);
    if (bits == 2 && hd % 64) {
        accumulate_bytes(G, w, &rows, hd, acc);
        return;
    }
    for (size_t at = 0; at < rows.codes; at += 16) {
        for (size_t t = 0; t < PAGE_TOKENS; t += 2) {
            const uint8_t *row = rows.at + t * rows.length + at;
            pairs[t / 2] = pair_rows_16(row, row + rows.length);
        }
        accumulate_sixteen(G, bits, 0, w, NULL, pairs, hd, at, acc);
        accumulate_sixteen(G, bits, bits, w, NULL, pairs, hd, at + rows.codes, acc);
        if (bits == 2) accumulate_sixteen(G, bits, 4, w, NULL, pairs, hd, at + 2 * rows.codes, acc);
        if (bits == 2) accumulate_sixteen(G, bits, 6, w, NULL, pairs, hd, at + 3 * rows.codes, acc);
    }
}

INLINE void accumulate_kivi_4(size_t G, const float *weights, size_t hd, const void *page, float *acc) {
    accumulate_kivi(G, 4, weights, hd, page, acc);
}
INLINE void accumulate_kivi_2(size_t G, const float *weights, size_t hd, const void *page, float *acc) {
    accumulate_kivi(G, 2, weights, hd, page, acc);
}

PAGE_KERNELS_4(accumulate_kivi_4)
static void accumulate_kivi_4_avx2(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    call_page_kernels(accumulate_kivi_4_of, TOGETHER, weights, PAGE_TOKENS, G, hd, page, acc, hd);
}
PAGE_KERNELS_4(accumulate_kivi_2)
static void accumulate_kivi_2_avx2(const float *weights, size_t G, size_t hd, const void *page, float *acc) {
    call_page_kernels(accumulate_kivi_2_of, TOGETHER, weights, PAGE_TOKENS, G, hd, page, acc, hd);
}

void scaled_init_avx2_kivi(struct scaled_ops *ops) {
    ops->score_kivi_4 = score_kivi_4_avx2;
    ops->score_kivi_2 = score_kivi_2_avx2;
    ops->accumulate_kivi_4 = accumulate_kivi_4_avx2;
    ops->accumulate_kivi_2 = accumulate_kivi_2_avx2;
    ops->accumulate_int8_kivi_4 = accumulate_kivi_4_avx2;
    ops->accumulate_int8_kivi_2 = accumulate_kivi_2_avx2;
}
