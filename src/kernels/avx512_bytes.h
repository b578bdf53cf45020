/* Products of bytes with AVX-512 (VNNI): a product of four codes is one instruction when what they are weighed with is fixed point,
 * whole multiples of a step as two signed bytes each, so that a sum is 256 high + low. And how codes come to lie in fours, the
 * lanes being tokens of keys or channels of values. Included once by each avx512_*.c that reads codes so. */
#include "kernels/avx512_lanes.h"

#include "kernels/kernels.h"
#include "kernels/sums_template.h"

#include <string.h>

#define FIXED_MOST 32639   /* 127 * 256 + 127: the high byte stays within a signed one */
#define FIXED_LEAST 1e-30f /* numbers up to this are 0, so that inverses of steps are finite */
#define TOGETHER 4         /* queries of a pass */
#define MOST_GROUPS (KERNELS_MOST_CHANNELS / BLOCK_QK)

/* Adds up four products of a byte of `codes` and a signed one of `weights`. Of the intrinsic gcc 12 makes two more moves each. */
INLINE __m512i add_products(__m512i sum, __m512i codes, __m512i weights) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(weights));
    return sum;
}

INLINE __m512i four_bytes(const int8_t *bytes) {
    int32_t four;
    memcpy(&four, bytes, sizeof four);
    return _mm512_set1_epi32(four);
}

/* The step for numbers up to `largest`. */
INLINE float fixed_step(float largest) { return largest > FIXED_LEAST ? largest / FIXED_MOST : 0; }

/* The larger magnitudes of two. */
INLINE __m512 larger_of(__m512 a, __m512 b) { return _mm512_range_ps(a, b, 0x0b); }

INLINE __m512 whole_floats(__m512i high, __m512i low) {
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
}

/* ---- A query that is the same for all blocks ---------------------------------------------------------------------------------
 *
 * Tables of hd numbers: int8 [2][hd], the high bytes first; int32 sums [hd/32] of those whole numbers; their step. */

INLINE const int8_t *table_bytes(const float *table) { return (const int8_t *)table; }

/* Of channels [32 b, 32 b + 32). */
INLINE int32_t table_sum(const float *table, size_t hd, size_t b) {
    int32_t sum;
    memcpy(&sum, table + hd / 2 + b, sizeof sum);
    return sum;
}

INLINE float table_step(const float *table, size_t hd) { return table[hd / 2 + hd / BLOCK_QK]; }

/* Numbers to whole multiples of a step, as two signed bytes each: high[16 v ...], low[16 v ...]. */
INLINE __m512i to_bytes(__m512 x, __m512 inverse, int8_t *high, int8_t *low) {
    const __m512 most = _mm512_set1_ps(FIXED_MOST), least = _mm512_set1_ps(-FIXED_MOST); /* for what is not finite */
    __m512i whole = _mm512_cvtps_epi32(_mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(x, inverse), least), most));
    __m512i above = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
    _mm_storeu_si128((__m128i *)high, _mm512_cvtepi32_epi8(above));
    _mm_storeu_si128((__m128i *)low, _mm512_cvtepi32_epi8(whole));
    return whole;
}

/* x[hd/16] to a table. */
INLINE void fill_table(const __m512 *x, size_t hd, float *table) {
    __m512 most = _mm512_setzero_ps();
    for (size_t v = 0; v < hd / 16; v++) most = larger_of(most, x[v]);
    float step = fixed_step(_mm512_reduce_max_ps(most));
    __m512 inverse = _mm512_set1_ps(step > 0 ? 1 / step : 0);
    int8_t *high = (int8_t *)table, *low = high + hd;
    for (size_t v = 0; v < hd / 16; v += 2) {
        __m512i first = to_bytes(x[v], inverse, high + 16 * v, low + 16 * v);
        __m512i second = to_bytes(x[v + 1], inverse, high + 16 * v + 16, low + 16 * v + 16);
        int32_t sum = _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
        memcpy(table + hd / 2 + v / 2, &sum, sizeof sum);
    }
    table[hd / 2 + hd / BLOCK_QK] = step;
}

/* ---- Numbers that are made for one block, of all queries of a pass ------------------------------------------------------------- */

/* The largest of each of x[G]. */
INLINE __m128 largest_of(size_t G, const __m512 *x) {
    const __m512 *y = x + (G > 1 ? 1 : 0), *z = x + (G > 2 ? 2 : 0), *w = x + (G > 3 ? 3 : 0);
    __m512 a = _mm512_max_ps(_mm512_unpacklo_ps(*x, *y), _mm512_unpackhi_ps(*x, *y));
    __m512 b = G > 2 ? _mm512_max_ps(_mm512_unpacklo_ps(*z, *w), _mm512_unpackhi_ps(*z, *w)) : a;
    a = _mm512_max_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    __m256 half = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    return _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

/* The sum of each of x[G]. */
INLINE __m128 sum_of(size_t G, const __m512 *x) {
    const __m512 *y = x + (G > 1 ? 1 : 0), *z = x + (G > 2 ? 2 : 0), *w = x + (G > 3 ? 3 : 0);
    __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(*x, *y), _mm512_unpackhi_ps(*x, *y));
    __m512 b = G > 2 ? _mm512_add_ps(_mm512_unpacklo_ps(*z, *w), _mm512_unpackhi_ps(*z, *w)) : a;
    a = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

INLINE __m128i whole_sum_of(size_t G, const __m512i *x) {
    const __m512i *y = x + (G > 1 ? 1 : 0), *z = x + (G > 2 ? 2 : 0), *w = x + (G > 3 ? 3 : 0);
    __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(*x, *y), _mm512_unpackhi_epi32(*x, *y));
    __m512i b = G > 2 ? _mm512_add_epi32(_mm512_unpacklo_epi32(*z, *w), _mm512_unpackhi_epi32(*z, *w)) : a;
    a = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

/* Steps as fixed_step's. */
INLINE void fixed_steps(__m128 largest, float *step, float *inverse) {
    const __mmask8 some = _mm_cmp_ps_mask(largest, _mm_set1_ps(FIXED_LEAST), _CMP_GT_OQ);
    _mm_storeu_ps(step, _mm_maskz_mul_ps(some, largest, _mm_set1_ps(1.0f / FIXED_MOST)));
    _mm_storeu_ps(inverse, _mm_maskz_div_ps(some, _mm_set1_ps(FIXED_MOST), largest));
}

/* Where the number of a token, or of a channel, lies among the 64 bytes of a plane: dword 4 l + v has numbers 16 v + 4 l to 16 v + 4 l
 * + 3, the order that packing leaves. */
INLINE size_t place_of(size_t i) { return i % 16 * 4 + i / 16 * 4; }

/* 64 numbers as two signed bytes each, of which the low one is what the high one, rounded, leaves. Returns the whole numbers' sums by
 * lane, plus 4 * PLANES_BIAS each. */
#define PLANES_BIAS 128
INLINE __m512i to_planes(const __m512 *x, float inverse, int8_t (*bytes)[BLOCK_TOKENS]) {
    const __m512i bias = _mm512_set1_epi8((char)PLANES_BIAS), byte = _mm512_set1_epi16(255);
    __m512i whole[4];
    UNROLL for (size_t v = 0; v < 4; v++) whole[v] =
        _mm512_cvtps_epi32(_mm512_fmadd_ps(x[v], _mm512_set1_ps(inverse), _mm512_set1_ps(PLANES_BIAS)));
    __m512i a = _mm512_packs_epi32(whole[0], whole[1]), b = _mm512_packs_epi32(whole[2], whole[3]);
    _mm512_store_si512(bytes[0], _mm512_packs_epi16(_mm512_srai_epi16(a, 8), _mm512_srai_epi16(b, 8)));
    __m512i low = _mm512_packus_epi16(_mm512_and_si512(a, byte), _mm512_and_si512(b, byte));
    _mm512_store_si512(bytes[1], _mm512_xor_si512(low, bias));
    return _mm512_add_epi32(_mm512_add_epi32(whole[0], whole[1]), _mm512_add_epi32(whole[2], whole[3]));
}

/* Weights times scales of 64 tokens for 32 channels, tokens by place_of; the sums of the whole numbers. */
struct weighed {
    _Alignas(64) int8_t bytes[TOGETHER][2][BLOCK_TOKENS];
    float step[TOGETHER];
    int32_t sum[TOGETHER];
};

INLINE void weigh(size_t G, const float *weights, const __m512 *scale, struct weighed *to) {
    __m512 x[TOGETHER][4], most[TOGETHER];
    __m512i sum[TOGETHER];
    float inverse[TOGETHER];
    UNROLL for (size_t g = 0; g < G; g++) {
        UNROLL for (size_t v = 0; v < 4; v++) x[g][v] =
            _mm512_mul_ps(_mm512_loadu_ps(weights + g * BLOCK_TOKENS + 16 * v), scale[v]);
        most[g] = larger_of(larger_of(x[g][0], x[g][1]), larger_of(x[g][2], x[g][3]));
    }
    fixed_steps(largest_of(G, most), to->step, inverse);
    UNROLL for (size_t g = 0; g < G; g++) sum[g] = to_planes(x[g], inverse[g], to->bytes[g]);
    __m128i all = _mm_sub_epi32(whole_sum_of(G, sum), _mm_set1_epi32(BLOCK_TOKENS * PLANES_BIAS));
    _mm_storeu_si128((__m128i *)to->sum, all);
}

/* ---- Codes ------------------------------------------------------------------------------------------------------------------------ */

/* Sixteen bytes of each of four rows that follow one another: dword j has the j-th of each. */
INLINE __m512i by_fours(__m512i rows) {
    const __m512i order =
        _mm512_setr_epi32(0x30201000, 0x31211101, 0x32221202, 0x33231303, 0x34241404, 0x35251505, 0x36261606, 0x37271707,
                          0x38281808, 0x39291909, 0x3a2a1a0a, 0x3b2b1b0b, 0x3c2c1c0c, 0x3d2d1d0d, 0x3e2e1e0e, 0x3f2f1f0f);
    return _mm512_permutexvar_epi8(order, rows);
}

/* Of rows that lie `length` apart. */
INLINE __m512i four_rows(const uint8_t *rows, size_t length) {
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)rows));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(rows + length)), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(rows + 2 * length)), 2);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(rows + 3 * length)), 3);
    return by_fours(x);
}

/* ---- One specialisation for each number of queries of a pass ---------------------------------------------------------------------- */

/* clang-format off */
/* A function of its own for each number, or clang keeps the sums in memory. */
#define SPECIAL(name, number) \
    static __attribute__((noinline)) void name##_##number(const float *in, size_t hd, const void *block, float *out) { \
        name(number, in, hd, block, out); \
    }
#define SLOT(name, in_row, out_row) \
    SPECIAL(name, 1) SPECIAL(name, 2) SPECIAL(name, 3) SPECIAL(name, 4) \
    static void name##_avx512(const float *in, size_t G, size_t hd, const void *block, float *out) { \
        static special *const of[] = {name##_1, name##_2, name##_3, name##_4}; \
        serve(of, TOGETHER, in, in_row, G, hd, block, out, out_row); \
    }
/* clang-format on */
