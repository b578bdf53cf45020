/* Keys of codec sign with AVX-512 and its products of bytes: a query times alpha is fixed point. The lanes are 16 tokens, the bytes four
 * channels. */
#include "kernels/avx512_bytes.h"

#include "kernels/avx512_rows.h"

/* Tables of a query: of q alpha, and after the step <q, mean>. */
static void prepare_sign_avx512(const float *q, const float *mean, const float *alpha, size_t G, size_t hd, float *tables) {
    for (size_t g = 0; g < G; g++, q += hd, tables += kernels_sign_floats(hd)) {
        __m512 x[KERNELS_MOST_CHANNELS / 16], sum = _mm512_setzero_ps();
        for (size_t v = 0; v < hd / 16; v++) {
            __m512 of = _mm512_loadu_ps(q + 16 * v);
            x[v] = _mm512_mul_ps(of, _mm512_loadu_ps(alpha + 16 * v));
            sum = _mm512_fmadd_ps(of, _mm512_loadu_ps(mean + 16 * v), sum);
        }
        fill_table(x, hd, tables);
        tables[hd / 2 + hd / 32 + 1] = _mm512_reduce_add_ps(sum);
    }
}

#define MOST_DWORDS (KERNELS_MOST_CHANNELS / 16) /* of a token's packed codes */

/* What is read of a block for 16 tokens. */
struct sixteen {
    const uint8_t *signs;
    __m512i codes[MOST_DWORDS], pairs[4 + MOST_GROUPS];
};

/* Of 32 channels: logits += step (scale (sum of sign code q) + zero (sum of sign q)). A code enters as 3 + sign code, a sign as 0 or
 * 1, and what that adds is taken away by the sum of q. */
INLINE void add_group(size_t G, const struct sixteen *s, size_t b, size_t hd, const float *tables, __m512 *logits) {
    const __m512i three = _mm512_set1_epi8(3), one = _mm512_set1_epi8(1);
    const __m512i fours =
        _mm512_setr_epi32(0, 0x01010101, 0x02020202, 0x03030303, 0x04040404, 0x05050505, 0x06060606, 0x07070707, 0x08080808,
                          0x09090909, 0x0a0a0a0a, 0x0b0b0b0b, 0x0c0c0c0c, 0x0d0d0d0d, 0x0e0e0e0e, 0x0f0f0f0f);
    const size_t row = hd / 16, stride = kernels_sign_floats(hd);
    __m512i sum[TOGETHER][4];
    UNROLL for (size_t g = 0; g < G; g++) sum[g][0] = sum[g][1] = sum[g][2] = sum[g][3] = _mm512_setzero_si512();
    size_t d = 8 * b % row, shift = 8 * b / row * 2; /* of the next dword */
    for (size_t j = 4 * b; j < 4 * b + 4; j++) {
        __m512i signs = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(s->signs + j * BLOCK_TOKENS)));
        signs = _mm512_permutexvar_epi8(fours, signs);
        UNROLL for (size_t half = 0; half < 2; half++) {
            size_t i = 2 * j + half;
            __mmask64 positive = _mm512_test_epi8_mask(signs, _mm512_set1_epi32(half ? (int)0x80402010u : 0x08040201));
            __m512i code = _mm512_srlv_epi32(s->codes[d], _mm512_set1_epi32((int)shift));
            if (++d == row) d = 0, shift += 2;
            code = _mm512_and_si512(code, three);
            __m512i sign = _mm512_maskz_mov_epi8(positive, one);
            code = _mm512_mask_add_epi8(_mm512_sub_epi8(three, code), positive, three, code);
            UNROLL for (size_t g = 0; g < G; g++) {
                const int8_t *q = table_bytes(tables + g * stride) + 4 * i;
                __m512i high = four_bytes(q), low = four_bytes(q + hd);
                sum[g][0] = add_products(sum[g][0], code, high);
                sum[g][1] = add_products(sum[g][1], code, low);
                sum[g][2] = add_products(sum[g][2], sign, high);
                sum[g][3] = add_products(sum[g][3], sign, low);
            }
        }
    }
    __m512 scale = scale_of(s->pairs[4 + b]), zero = zero_of(s->pairs[4 + b]);
    UNROLL for (size_t g = 0; g < G; g++) {
        const float *table = tables + g * stride;
        int32_t all = table_sum(table, hd, b);
        __m512 codes = whole_floats(sum[g][0], _mm512_sub_epi32(sum[g][1], _mm512_set1_epi32(3 * all)));
        __m512i signs = _mm512_add_epi32(_mm512_slli_epi32(sum[g][2], 9), _mm512_slli_epi32(sum[g][3], 1));
        __m512 both = _mm512_mul_ps(zero, _mm512_cvtepi32_ps(_mm512_sub_epi32(signs, _mm512_set1_epi32(all))));
        both = _mm512_fmadd_ps(scale, codes, both);
        logits[g] = _mm512_fmadd_ps(_mm512_set1_ps(table_step(table, hd)), both, logits[g]);
    }
}

INLINE void score_sign(size_t G, const float *tables, size_t hd, const void *block, float *logits) {
    uint8_t padded[BLOCK_TOKENS * PADDED_ROW];
    const struct rows rows = rows_of((const uint8_t *)block + BLOCK_BYTES_SIGNS(hd), hd, 2, padded);
    for (size_t t = 0; t < BLOCK_TOKENS; t += 16) {
        struct sixteen s; /* too large to be cleared */
        s.signs = (const uint8_t *)block + t;
        __m512 logit[TOGETHER];
        for (size_t at = 0; at < rows.codes; at += 16)
            turn_over_four(rows.at + t * rows.length + at, rows.length, s.codes + at / 4);
        turn_over_pairs(&rows, t, s.pairs);
        UNROLL for (size_t g = 0; g < G; g++) logit[g] = _mm512_set1_ps(tables[g * kernels_sign_floats(hd) + hd / 2 + hd / 32 + 1]);
        for (size_t b = 0; b < hd / 32; b++) add_group(G, &s, b, hd, tables, logit);
        UNROLL for (size_t g = 0; g < G; g++) _mm512_storeu_ps(logits + g * BLOCK_TOKENS + t, logit[g]);
    }
}

SLOT(score_sign, kernels_sign_floats(hd), BLOCK_TOKENS)

void kernels_fill_avx512_sign(struct kernels *k) {
    k->prepare_sign = prepare_sign_avx512;
    k->score_sign = score_sign_avx512;
}
