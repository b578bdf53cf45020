/* Reads keys of codec sign with AVX-512, by products of bytes (lanes/avx512_i8.h): a query times alpha is fixed point. The lanes
 * are 16 tokens, the bytes four channels. */
#include "backend/cpu/kernels/lanes/avx512_i8.h"
#include "backend/cpu/kernels/limits.h"
#include "backend/cpu/kernels/scaled/init.h"

#include "backend/cpu/kernels/scaled/avx512_rows.h"

INLINE float mean_of(const float *table, size_t hd) { return table[hd / 2]; }

/* Makes the tables of a query: of q alpha, a byte each, and in the middle <q, mean>. */
static void prepare_sign_avx512(const float *q, const float *mean, const float *alpha, size_t G, size_t hd, float *tables) {
    for (size_t g = 0; g < G; g++, q += hd, tables += sign_table_floats(hd)) {
        __m512 x[KERNELS_MOST_CHANNELS / 16], sum = _mm512_setzero_ps();
        for (size_t v = 0; v < hd / 16; v++) {
            __m512 of = _mm512_loadu_ps(q + 16 * v);
            x[v] = _mm512_mul_ps(of, _mm512_loadu_ps(alpha + 16 * v));
            sum = _mm512_fmadd_ps(of, _mm512_loadu_ps(mean + 16 * v), sum);
        }
        fill_coarse_table(x, hd, tables);
        tables[hd / 2] = _mm512_reduce_add_ps(sum);
    }
}

#define MOST_DWORDS (KERNELS_MOST_CHANNELS / 16) /* of a token's packed codes */

/* A `sixteen` is the part of a page that is read for 16 tokens. */
struct sixteen {
    const uint8_t *signs;
    __m512i codes[MOST_DWORDS], pairs[4 + MOST_GROUPS];
};

/* Adds the part of 32 channels: logits += step (scale (sum of sign code q) + zero (sum of sign q)). A sign enters as 3 or 4, that is 3.5 + sign /
 * 2, and changes a code's two bits to 3.5 + sign (code + 0.5). */
INLINE void add_group(size_t G, const struct sixteen *s, size_t b, size_t hd, const float *tables, __m512 *logits) {
    const __m512i three = _mm512_set1_epi8(3), four = _mm512_set1_epi8(4);
    const __m512i fours =
        _mm512_setr_epi32(0, 0x01010101, 0x02020202, 0x03030303, 0x04040404, 0x05050505, 0x06060606, 0x07070707, 0x08080808,
                          0x09090909, 0x0a0a0a0a, 0x0b0b0b0b, 0x0c0c0c0c, 0x0d0d0d0d, 0x0e0e0e0e, 0x0f0f0f0f);
    const size_t row = hd / 16, stride = sign_table_floats(hd);
    __m512i codes[TOGETHER], signs[TOGETHER];
    UNROLL for (size_t g = 0; g < G; g++) codes[g] = signs[g] = _mm512_setzero_si512();
    size_t d = 8 * b % row, shift = 8 * b / row * 2; /* of the next dword */
    for (size_t j = 4 * b; j < 4 * b + 4; j++) {
        __m512i eight = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(s->signs + j * PAGE_TOKENS)));
        eight = _mm512_permutexvar_epi8(fours, eight);
        UNROLL for (size_t half = 0; half < 2; half++) {
            size_t i = 2 * j + half;
            __mmask64 positive = _mm512_test_epi8_mask(eight, _mm512_set1_epi32(half ? (int)0x80402010u : 0x08040201));
            __m512i sign = _mm512_mask_blend_epi8(positive, three, four);
            __m512i code = _mm512_srlv_epi32(s->codes[d], _mm512_set1_epi32((int)shift));
            if (++d == row) d = 0, shift += 2;
            code = _mm512_ternarylogic_epi32(code, three, sign, 0x6a); /* (code & three) ^ sign */
            UNROLL for (size_t g = 0; g < G; g++) {
                __m512i q = four_bytes(table_bytes(tables + g * stride) + 4 * i);
                codes[g] = add_products(codes[g], code, q);
                signs[g] = add_products(signs[g], sign, q);
            }
        }
    }
    __m512 scale = scale_of(s->pairs[4 + b]), half = _mm512_set1_ps(0.5f);
    __m512 zero = _mm512_fnmadd_ps(scale, half, zero_of(s->pairs[4 + b])); /* less half a step */
    UNROLL for (size_t g = 0; g < G; g++) {
        const struct coarse c = coarse_of(tables + g * stride, hd, b);
        const __m512i middle = _mm512_set1_epi32(7 * c.sum);
        __m512 by_sign = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_slli_epi32(signs[g], 1), middle));
        __m512 by_code = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_slli_epi32(codes[g], 1), middle)); /* twice */
        __m512 both = _mm512_fmadd_ps(_mm512_mul_ps(scale, half), by_code, _mm512_mul_ps(zero, by_sign));
        logits[g] = _mm512_fmadd_ps(_mm512_set1_ps(c.step), both, logits[g]);
    }
}

INLINE void score_sign(size_t G, const float *tables, size_t hd, const void *page, float *logits) {
    uint8_t padded[PAGE_TOKENS * PADDED_ROW];
    const struct rows rows = rows_of((const uint8_t *)page + PAGE_BYTES_SIGNS(hd), hd, 2, padded);
    for (size_t t = 0; t < PAGE_TOKENS; t += 16) {
        struct sixteen s; /* too large to be cleared */
        s.signs = (const uint8_t *)page + t;
        __m512 logit[TOGETHER];
        prefetch_step(page, t / 16, (PAGE_BYTES_SIGNS(hd) + PAGE_BYTES_KIVI(hd, 2)) / 4);
        for (size_t at = 0; at < rows.codes; at += 16)
            transpose_four(rows.at + t * rows.length + at, rows.length, s.codes + at / 4);
        transpose_pairs(&rows, t, s.pairs);
        UNROLL for (size_t g = 0; g < G; g++) logit[g] = _mm512_set1_ps(mean_of(tables + g * sign_table_floats(hd), hd));
        for (size_t b = 0; b < hd / 32; b++) add_group(G, &s, b, hd, tables, logit);
        UNROLL for (size_t g = 0; g < G; g++) _mm512_storeu_ps(logits + g * PAGE_TOKENS + t, logit[g]);
    }
}

PAGE_KERNELS_4(score_sign)
static void score_sign_avx512(const float *tables, size_t G, size_t hd, const void *page, float *logits) {
    call_page_kernels(score_sign_of, TOGETHER, tables, sign_table_floats(hd), G, hd, page, logits, PAGE_TOKENS);
}

void scaled_init_avx512_sign(struct scaled_ops *ops) {
    ops->prepare_sign = prepare_sign_avx512;
    ops->score_sign = score_sign_avx512;
}
