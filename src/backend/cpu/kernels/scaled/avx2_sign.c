/* Reads keys of codec sign with AVX2, by products of int16 (lanes/avx2_i16.h): a query times alpha is fixed point. The lanes are
 * eight tokens; a dword holds two channels. */
#include "backend/cpu/kernels/lanes/avx2_i16.h"
#include "backend/cpu/kernels/limits.h"
#include "backend/cpu/kernels/scaled/init.h"

#include "backend/cpu/kernels/scaled/avx2_rows.h"

#define TOKENS 8

/* Makes the tables of a query: of q alpha, of each four channels the even ones first, as unpacking bytes gives them; and after the
 * step <q, mean>. */
static void prepare_sign_avx2(const float *q, const float *mean, const float *alpha, size_t G, size_t hd, float *tables) {
    for (size_t g = 0; g < G; g++, q += hd, tables += sign_table_floats(hd)) {
        __m256 x[KERNELS_MOST_CHANNELS / LANES], sum = _mm256_setzero_ps();
        for (size_t v = 0; v < hd / LANES; v++) {
            __m256 of = vec_load(q + LANES * v);
            x[v] = _mm256_permute_ps(_mm256_mul_ps(of, vec_load(alpha + LANES * v)), 0xd8);
            sum = _mm256_fmadd_ps(of, vec_load(mean + LANES * v), sum);
        }
        fill_table(x, hd, tables);
        tables[hd / 2 + hd / 32 + 1] = _mm_cvtss_f32(sum_of(1, &sum));
    }
}

/* An `eight` is the part of a page that is read for eight tokens. */
struct eight {
    const uint8_t *signs;
    __m256i codes[KERNELS_MOST_CHANNELS / 16], pairs[4 + MOST_GROUPS];
    size_t dword; /* where the next four channels' codes are, and from which bit of each byte on */
    int shift;
};

/* Turns channels' bits of a plane, of which dword t has token t's as four equal bytes, into -1 or 1 for each of two channels, by
 * their place in 16 bits. */
INLINE __m256i signs_of(__m256i plane, int32_t bits) {
    __m256i minus = _mm256_cmpeq_epi16(_mm256_and_si256(plane, _mm256_set1_epi32(bits)), _mm256_setzero_si256());
    return _mm256_or_si256(minus, _mm256_set1_epi16(1));
}

/* Adds four channels: `even` has the bits of the even ones, and those of the odd ones follow. */
INLINE void add_four(size_t G, __m256i plane, __m256i codes, int32_t even, const int16_t *q, size_t apart, pair_sums sum) {
    UNROLL for (size_t odd = 0; odd < 2; odd++) {
        __m256i x[2];
        x[1] = signs_of(plane, even << odd);
        x[0] = _mm256_and_si256(odd ? _mm256_srli_epi32(codes, 8) : codes, _mm256_set1_epi16(3));
        x[0] = _mm256_sign_epi16(x[0], x[1]);
        pair_sums_add(G, x, q + 2 * odd, apart, sum);
    }
}

/* Adds the part of 32 channels: logits += step (scale (sum of sign code q) + zero (sum of sign q)). */
INLINE void add_group(size_t G, struct eight *e, size_t b, size_t hd, const float *tables, __m256 *logits) {
    const __m256i fours = _mm256_setr_epi32(0, 0x01010101, 0x02020202, 0x03030303, 0x04040404, 0x05050505, 0x06060606, 0x07070707);
    const size_t row = hd / 16, stride = sign_table_floats(hd);
    pair_sums sum;
    pair_sums_clear(G, sum);
    for (size_t i = 8 * b; i < 8 * b + 8; i += 2) {
        __m256i plane = _mm256_broadcastsi128_si256(_mm_loadl_epi64((const __m128i *)(e->signs + i / 2 * PAGE_TOKENS)));
        plane = _mm256_shuffle_epi8(plane, fours);
        UNROLL for (size_t half = 0; half < 2; half++) {
            __m256i codes = _mm256_srl_epi32(e->codes[e->dword], _mm_cvtsi32_si128(e->shift));
            if (++e->dword == row) e->dword = 0, e->shift += 2;
            add_four(G, plane, codes, half ? 0x00400010 : 0x00040001, table_i16(tables) + 4 * (i + half), 2 * stride, sum);
        }
    }
    __m256 scale = low_halves(e->pairs[4 + b]), zero = low_halves(_mm256_srli_epi32(e->pairs[4 + b], 16));
    UNROLL for (size_t g = 0; g < G; g++) {
        __m256 both = _mm256_mul_ps(zero, _mm256_cvtepi32_ps(sum[g][1]));
        both = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sum[g][0]), both);
        logits[g] = _mm256_fmadd_ps(_mm256_set1_ps(table_step(tables + g * stride, hd)), both, logits[g]);
    }
}

INLINE void score_sign(size_t G, const float *tables, size_t hd, const void *page, float *logits) {
    uint8_t padded[PAGE_TOKENS * PADDED_ROW];
    const struct rows rows = rows_of((const uint8_t *)page + PAGE_BYTES_SIGNS(hd), hd, 2, padded);
    for (size_t t = 0; t < PAGE_TOKENS; t += TOKENS) {
        struct eight e; /* too large to be cleared */
        e.signs = (const uint8_t *)page + t;
        e.dword = 0;
        e.shift = 0;
        __m256 logit[TOGETHER];
        for (size_t at = 0; at < rows.codes; at += 16)
            transpose_four(rows.at + t * rows.length + at, rows.length, e.codes + at / 4);
        transpose_pairs(&rows, t, e.pairs);
        UNROLL for (size_t g = 0; g < G; g++) logit[g] = _mm256_set1_ps(tables[g * sign_table_floats(hd) + hd / 2 + hd / 32 + 1]);
        for (size_t b = 0; b < hd / 32; b++) add_group(G, &e, b, hd, tables, logit);
        UNROLL for (size_t g = 0; g < G; g++) vec_store(logits + g * PAGE_TOKENS + t, logit[g]);
    }
}

PAGE_KERNELS_4(score_sign)
static void score_sign_avx2(const float *tables, size_t G, size_t hd, const void *page, float *logits) {
    call_page_kernels(score_sign_of, TOGETHER, tables, sign_table_floats(hd), G, hd, page, logits, PAGE_TOKENS);
}

void scaled_init_avx2_sign(struct scaled_ops *ops) {
    ops->prepare_sign = prepare_sign_avx2;
    ops->score_sign = score_sign_avx2;
}
