/* Codec sign and 2-bit values with AVX-512 and its products of bytes (VNNI): what codes are weighed with is fixed point, two bytes, so
 * that a product of four numbers is one instruction. */
#include "kernels/avx512_lanes.h"

#include "kernels/sign_rows.h"
#include "kernels/sums_template.h"

#include <string.h>

#define FIXED_MOST 32639 /* 127 * 256 + 127: the high byte stays within a signed one */
#define TOGETHER 4       /* queries of a pass */

/* Adds up four products of a byte of `codes` and a signed one of `weights`. */
INLINE __m512i add_products(__m512i sum, __m512i codes, __m512i weights) { return _mm512_dpbusd_epi32(sum, codes, weights); }

INLINE __m512i four_bytes(const int8_t *bytes) {
    int32_t four;
    memcpy(&four, bytes, sizeof four);
    return _mm512_set1_epi32(four);
}

/* Numbers to whole multiples of a step, as two signed bytes each: high[16 v ...], low[16 v ...]. */
INLINE __m512i to_bytes(__m512 x, __m512 inverse, int8_t *high, int8_t *low) {
    const __m512 most = _mm512_set1_ps(FIXED_MOST), least = _mm512_set1_ps(-FIXED_MOST); /* for what is not finite */
    __m512i whole = _mm512_cvtps_epi32(_mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(x, inverse), least), most));
    __m512i above = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
    _mm_storeu_si128((__m128i *)high, _mm512_cvtepi32_epi8(above));
    _mm_storeu_si128((__m128i *)low, _mm512_cvtepi32_epi8(whole));
    return whole;
}

/* The step for numbers up to `largest`; 0 where its inverse would not be finite. */
static float fixed_step(float largest) { return largest > 1e-30f ? largest / FIXED_MOST : 0; }

INLINE __m512 whole_floats(__m512i high, __m512i low) {
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
}

/* ---- Keys: the lanes are 16 tokens, the bytes four channels ------------------------------------------------------------------
 *
 * Tables of a query: int8 [2][hd], q alpha; int32 sums [hd/32] of those whole numbers; their step; <q, mean>. */

static int32_t *totals_of(float *table, size_t hd) { return (int32_t *)(void *)(table + hd / 2); }

static void prepare_sign_avx512(const float *q, const float *mean, const float *alpha, size_t G, size_t hd, float *tables) {
    for (size_t g = 0; g < G; g++, q += hd, tables += kernels_sign_floats(hd)) {
        __m512 x[KERNELS_MOST_CHANNELS / 16], most = _mm512_setzero_ps(), sum = _mm512_setzero_ps();
        for (size_t v = 0; v < hd / 16; v++) {
            __m512 of = _mm512_loadu_ps(q + 16 * v);
            x[v] = _mm512_mul_ps(of, _mm512_loadu_ps(alpha + 16 * v));
            most = _mm512_max_ps(most, _mm512_abs_ps(x[v]));
            sum = _mm512_fmadd_ps(of, _mm512_loadu_ps(mean + 16 * v), sum);
        }
        float step = fixed_step(_mm512_reduce_max_ps(most));
        __m512 inverse = _mm512_set1_ps(step > 0 ? 1 / step : 0);
        int8_t *high = (int8_t *)tables, *low = high + hd;
        int32_t *totals = totals_of(tables, hd);
        for (size_t v = 0; v < hd / 16; v += 2) {
            __m512i first = to_bytes(x[v], inverse, high + 16 * v, low + 16 * v);
            __m512i second = to_bytes(x[v + 1], inverse, high + 16 * v + 16, low + 16 * v + 16);
            totals[v / 2] = _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
        }
        tables[hd / 2 + hd / 32] = step;
        tables[hd / 2 + hd / 32 + 1] = _mm512_reduce_add_ps(sum);
    }
}

#define MOST_DWORDS (KERNELS_MOST_CHANNELS / 16) /* of a token's packed codes */

#define MOST_PAIRS (KERNELS_MOST_CHANNELS / BLOCK_QK)

/* Dwords [0, 4) of 16 tokens' rows: to[d] has dword d of all. */
INLINE void turn_over_four(const uint8_t *rows, size_t length, __m512i *to) {
    __m512i x[4], y[4];
    UNROLL for (size_t i = 0; i < 4; i++) { /* tokens i, i + 4, ... */
        const uint8_t *from = rows + i * length;
        x[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)from));
        x[i] = _mm512_inserti32x4(x[i], _mm_loadu_si128((const __m128i *)(from + 4 * length)), 1);
        x[i] = _mm512_inserti32x4(x[i], _mm_loadu_si128((const __m128i *)(from + 8 * length)), 2);
        x[i] = _mm512_inserti32x4(x[i], _mm_loadu_si128((const __m128i *)(from + 12 * length)), 3);
    }
    y[0] = _mm512_unpacklo_epi32(x[0], x[1]);
    y[1] = _mm512_unpackhi_epi32(x[0], x[1]);
    y[2] = _mm512_unpacklo_epi32(x[2], x[3]);
    y[3] = _mm512_unpackhi_epi32(x[2], x[3]);
    to[0] = _mm512_unpacklo_epi64(y[0], y[2]);
    to[1] = _mm512_unpackhi_epi64(y[0], y[2]);
    to[2] = _mm512_unpacklo_epi64(y[1], y[3]);
    to[3] = _mm512_unpackhi_epi64(y[1], y[3]);
}

/* Pairs of 16 tokens from the t-th on, to[4 + b] being the b-th. The last sixteen bytes of a row may begin within its codes. */
INLINE void turn_over_pairs(const struct rows *rows, size_t t, __m512i *to) {
    for (size_t from = rows->codes; from < rows->length; from += 16) {
        size_t at = SMALLER(from, rows->length - 16);
        turn_over_four(rows->at + t * rows->length + at, rows->length, to + (at + 16 - rows->codes) / 4);
    }
}

INLINE __m512 scale_of(__m512i pair) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pair)); }
INLINE __m512 zero_of(__m512i pair) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pair, 16))); }

/* What is read of a block for 16 tokens. */
struct sixteen {
    const uint8_t *signs;
    __m512i codes[MOST_DWORDS], pairs[4 + MOST_PAIRS];
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
                const int8_t *q = (const int8_t *)(tables + g * stride) + 4 * i;
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
        int32_t all;
        memcpy(&all, table + hd / 2 + b, sizeof all);
        __m512 codes = whole_floats(sum[g][0], _mm512_sub_epi32(sum[g][1], _mm512_set1_epi32(3 * all)));
        __m512i signs = _mm512_add_epi32(_mm512_slli_epi32(sum[g][2], 9), _mm512_slli_epi32(sum[g][3], 1));
        __m512 both = _mm512_mul_ps(zero, _mm512_cvtepi32_ps(_mm512_sub_epi32(signs, _mm512_set1_epi32(all))));
        both = _mm512_fmadd_ps(scale, codes, both);
        logits[g] = _mm512_fmadd_ps(_mm512_set1_ps(table[hd / 2 + hd / 32]), both, logits[g]);
    }
}

INLINE void score_some(size_t G, const float *tables, size_t hd, const void *block, const struct rows *rows, float *logits) {
    for (size_t t = 0; t < BLOCK_TOKENS; t += 16) {
        struct sixteen s; /* too large to be cleared */
        s.signs = (const uint8_t *)block + t;
        __m512 logit[TOGETHER];
        for (size_t at = 0; at < rows->codes; at += 16)
            turn_over_four(rows->at + t * rows->length + at, rows->length, s.codes + at / 4);
        turn_over_pairs(rows, t, s.pairs);
        UNROLL for (size_t g = 0; g < G; g++) logit[g] = _mm512_set1_ps(tables[g * kernels_sign_floats(hd) + hd / 2 + hd / 32 + 1]);
        for (size_t b = 0; b < hd / 32; b++) add_group(G, &s, b, hd, tables, logit);
        UNROLL for (size_t g = 0; g < G; g++) _mm512_storeu_ps(logits + g * BLOCK_TOKENS + t, logit[g]);
    }
}

typedef void special_sign(const float *in, size_t hd, const void *block, const struct rows *rows, float *out);

/* clang-format off */
#define SPECIAL_SIGN(name, number) \
    static __attribute__((noinline)) void name##_##number(const float *in, size_t hd, const void *block, const struct rows *rows, \
                                                          float *out) { \
        name(number, in, hd, block, rows, out); \
    }
#define EACH_SIGN(name) \
    SPECIAL_SIGN(name, 1) SPECIAL_SIGN(name, 2) SPECIAL_SIGN(name, 3) SPECIAL_SIGN(name, 4) \
    static special_sign *const name##_of[] = {name##_1, name##_2, name##_3, name##_4};
/* clang-format on */

EACH_SIGN(score_some)

static void score_sign_avx512(const float *tables, size_t G, size_t hd, const void *block, float *logits) {
    uint8_t padded[BLOCK_TOKENS * PADDED_ROW];
    const struct rows rows = rows_of((const uint8_t *)block + BLOCK_BYTES_SIGNS(hd), hd, padded);
    for (size_t g = 0, n; g < G; g += n) {
        n = SMALLER(G - g, TOGETHER);
        score_some_of[n - 1](tables + g * kernels_sign_floats(hd), hd, block, &rows, logits + g * BLOCK_TOKENS);
    }
}

/* ---- Values: the lanes are 16 channels, the bytes four tokens ------------------------------------------------------------------- */

/* Of a query: weights times scales as bytes, dword 4 l + v being tokens 16 v + 4 l to 16 v + 4 l + 3, and the sums of weights times
 * zeros. */
struct weighed {
    int8_t bytes[MOST_PAIRS][2][BLOCK_TOKENS];
    float step[MOST_PAIRS], base[MOST_PAIRS];
};

/* Scales and zeros of 64 tokens as floats. */
struct scales {
    __m512 scale[MOST_PAIRS][4], zero[MOST_PAIRS][4];
};

INLINE void load_scales(const struct rows *rows, size_t groups, struct scales *s) {
    __m512i pairs[4 + MOST_PAIRS];
    for (size_t v = 0; v < 4; v++) {
        turn_over_pairs(rows, 16 * v, pairs);
        for (size_t b = 0; b < groups; b++) {
            s->scale[b][v] = scale_of(pairs[4 + b]);
            s->zero[b][v] = zero_of(pairs[4 + b]);
        }
    }
}

/* Whole multiples of a step of 64 numbers as two signed bytes each, of which the low one is what the high one, rounded, leaves. */
INLINE void to_planes(const __m512 *x, float step, int8_t (*bytes)[BLOCK_TOKENS]) {
    const __m512 inverse = _mm512_set1_ps(step > 0 ? 1 / step : 0);
    __m512i whole[4];
    UNROLL for (size_t v = 0; v < 4; v++) whole[v] = _mm512_cvtps_epi32(_mm512_mul_ps(x[v], inverse));
    __m512i a = _mm512_packs_epi32(whole[0], whole[1]), b = _mm512_packs_epi32(whole[2], whole[3]);
    const __m512i half = _mm512_set1_epi16(128);
    __m512i high =
        _mm512_packs_epi16(_mm512_srai_epi16(_mm512_add_epi16(a, half), 8), _mm512_srai_epi16(_mm512_add_epi16(b, half), 8));
    __m512i low = _mm512_packs_epi16(_mm512_srai_epi16(_mm512_slli_epi16(a, 8), 8), _mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8));
    _mm512_storeu_si512(bytes[0], high);
    _mm512_storeu_si512(bytes[1], low);
}

INLINE void weigh(const float *weights, const struct scales *s, size_t groups, struct weighed *w) {
    __m512 weight[4];
    UNROLL for (size_t v = 0; v < 4; v++) weight[v] = _mm512_loadu_ps(weights + 16 * v);
    for (size_t b = 0; b < groups; b++) {
        __m512 x[4], most = _mm512_setzero_ps(), sum = _mm512_setzero_ps();
        UNROLL for (size_t v = 0; v < 4; v++) {
            x[v] = _mm512_mul_ps(weight[v], s->scale[b][v]);
            sum = _mm512_fmadd_ps(weight[v], s->zero[b][v], sum);
            most = _mm512_max_ps(most, _mm512_abs_ps(x[v]));
        }
        w->step[b] = fixed_step(_mm512_reduce_max_ps(most));
        w->base[b] = _mm512_reduce_add_ps(sum);
        to_planes(x, w->step[b], w->bytes[b]);
    }
}

/* Bytes [at, at + 16) of four tokens' rows: dword j has the j-th of each. */
INLINE __m512i four_rows(const uint8_t *rows, size_t length) {
    const __m512i order =
        _mm512_setr_epi32(0x30201000, 0x31211101, 0x32221202, 0x33231303, 0x34241404, 0x35251505, 0x36261606, 0x37271707,
                          0x38281808, 0x39291909, 0x3a2a1a0a, 0x3b2b1b0b, 0x3c2c1c0c, 0x3d2d1d0d, 0x3e2e1e0e, 0x3f2f1f0f);
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)rows));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(rows + length)), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(rows + 2 * length)), 2);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(rows + 3 * length)), 3);
    return _mm512_permutexvar_epi8(order, x);
}

/* Two of the four channels that the bits of 16 bytes hold: places k and k + 1 of them. */
INLINE void mix_pairs(size_t G, const struct weighed *w, const struct rows *rows, size_t at, size_t k, size_t hd, float *acc) {
    const __m512i three = _mm512_set1_epi8(3), shift = _mm512_set1_epi32((int)(2 * k));
    const size_t first = at + k * rows->codes, second = first + rows->codes;
    __m512i sum[TOGETHER][4];
    UNROLL for (size_t g = 0; g < G; g++) sum[g][0] = sum[g][1] = sum[g][2] = sum[g][3] = _mm512_setzero_si512();
    for (size_t t = 0; t < BLOCK_TOKENS; t += 4) {
        __m512i packed = _mm512_srlv_epi32(four_rows(rows->at + t * rows->length + at, rows->length), shift);
        __m512i a = _mm512_and_si512(packed, three), b = _mm512_and_si512(_mm512_srli_epi32(packed, 2), three);
        const size_t place = t % 16 * 4 + t / 16 * 4;
        UNROLL for (size_t g = 0; g < G; g++) {
            sum[g][0] = add_products(sum[g][0], a, four_bytes(w[g].bytes[first / BLOCK_QK][0] + place));
            sum[g][1] = add_products(sum[g][1], a, four_bytes(w[g].bytes[first / BLOCK_QK][1] + place));
            sum[g][2] = add_products(sum[g][2], b, four_bytes(w[g].bytes[second / BLOCK_QK][0] + place));
            sum[g][3] = add_products(sum[g][3], b, four_bytes(w[g].bytes[second / BLOCK_QK][1] + place));
        }
    }
    UNROLL for (size_t g = 0; g < G; g++) {
        UNROLL for (size_t i = 0; i < 2; i++) {
            size_t c = i ? second : first, group = c / BLOCK_QK;
            float *to = acc + g * hd + c;
            __m512 x = _mm512_add_ps(_mm512_loadu_ps(to), _mm512_set1_ps(w[g].base[group]));
            x = _mm512_fmadd_ps(_mm512_set1_ps(w[g].step[group]), whole_floats(sum[g][2 * i], sum[g][2 * i + 1]), x);
            _mm512_storeu_ps(to, x);
        }
    }
}

INLINE void mix_some(size_t G, const float *weights, size_t hd, const void *block, const struct rows *rows, float *acc) {
    struct weighed w[TOGETHER];
    struct scales scales;
    (void)block;
    load_scales(rows, hd / BLOCK_QK, &scales);
    for (size_t g = 0; g < G; g++) weigh(weights + g * BLOCK_TOKENS, &scales, hd / BLOCK_QK, &w[g]);
    for (size_t at = 0; at < rows->codes; at += 16)
        for (size_t k = 0; k < 4; k += 2) mix_pairs(G, w, rows, at, k, hd, acc);
}

EACH_SIGN(mix_some)

static void mix_kivi_2_avx512(const float *weights, size_t G, size_t hd, const void *block, float *acc) {
    const struct rows rows = {block, 3 * hd / 8, hd / 4};
    for (size_t g = 0, n; g < G; g += n) {
        n = SMALLER(G - g, TOGETHER);
        mix_some_of[n - 1](weights + g * BLOCK_TOKENS, hd, block, &rows, acc + g * hd);
    }
}

void kernels_fill_avx512_sign(struct kernels *k) {
    k->prepare_sign = prepare_sign_avx512;
    k->score_sign = score_sign_avx512;
    k->mix_kivi_2 = mix_kivi_2_avx512;
}
