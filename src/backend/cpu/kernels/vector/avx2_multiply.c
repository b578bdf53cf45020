/* Computes small matrix products and rotations with AVX2. */
#include "backend/cpu/kernels/lanes/avx2.h"

#include <math.h>
#include <string.h>

#define MULTIPLY_VECS 3
#include "backend/cpu/kernels/vector/multiply_template.h"

typedef __m256i ints;
static inline ints ints_zero(void) { return _mm256_setzero_si256(); }
static inline vec ints_to_vec(ints x) { return _mm256_cvtepi32_ps(x); }
static inline ints ints_add_pairs(ints sums, const int16_t *row, const int16_t *b) {
    int32_t pair;
    memcpy(&pair, row, sizeof pair);
    __m256i products = _mm256_madd_epi16(_mm256_set1_epi32(pair), _mm256_loadu_si256((const __m256i *)b));
    __asm__("vpaddd %1, %0, %0" : "+x"(sums) : "x"(products)); /* from an intrinsic, gcc 12 copies every sum once more */
    return sums;
}
#define MULTIPLY_I16_VECS 2
#include "backend/cpu/kernels/vector/multiply_i16_template.h"

/* Transposes x[8][8] of 32 bits. */
INLINE void transpose_pairs(__m256i *x) {
    __m256i y[8];
    UNROLL for (size_t i = 0; i < 8; i += 2) {
        y[i] = _mm256_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm256_unpackhi_epi32(x[i], x[i + 1]);
    }
    UNROLL for (size_t i = 0; i < 8; i += 4) {
        UNROLL for (size_t j = 0; j < 2; j++) {
            x[i + 2 * j] = _mm256_unpacklo_epi64(y[i + j], y[i + 2 + j]);
            x[i + 2 * j + 1] = _mm256_unpackhi_epi64(y[i + j], y[i + 2 + j]);
        }
    }
    UNROLL for (size_t i = 0; i < 4; i++) {
        __m256i low = x[i], high = x[i + 4];
        x[i] = _mm256_permute2x128_si256(low, high, 0x20);
        x[i + 4] = _mm256_permute2x128_si256(low, high, 0x31);
    }
}

/* Reads eight columns of a strip; pairs of neighbours lie 16 words apart. */
INLINE void eight_columns(const int16_t *b, size_t k, const float *scales, float *out, size_t ldo) {
    size_t i = 0;
    for (; i + 16 <= k; i += 16) {
        __m256i x[8];
        UNROLL for (size_t pair = 0; pair < 8; pair++) x[pair] =
            _mm256_loadu_si256((const __m256i *)(b + (i / 2 + pair) * 2 * I16_STRIP));
        transpose_pairs(x);
        UNROLL for (size_t c = 0; c < 8; c++) {
            const vec scale = vec_set(scales[c]);
            const __m256i low = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(x[c])),
                          high = _mm256_cvtepi16_epi32(_mm256_extracti128_si256(x[c], 1));
            vec_store(out + c * ldo + i, vec_mul(scale, _mm256_cvtepi32_ps(low)));
            vec_store(out + c * ldo + i + LANES, vec_mul(scale, _mm256_cvtepi32_ps(high)));
        }
    }
    for (; i < k; i++)
        for (size_t c = 0; c < 8; c++) out[c * ldo + i] = scales[c] * (float)b[(i / 2 * I16_STRIP + c) * 2 + i % 2];
}

static void columns_to_float_avx2(const int16_t *b, size_t k, size_t n, const float *scales, float *out, size_t ldo) {
    for (size_t c = 0; c < n; c += 8)
        eight_columns(b + c / I16_STRIP * I16_STRIP * k + 2 * (c % I16_STRIP), k, scales + c, out + c * ldo, ldo);
}

/* Rotates neighbours: even lanes take the difference, odd ones the sum. */
INLINE vec rotate_adjacent(vec x, const float *cosine, const float *sine) {
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    vec c = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(cosine)), twice);
    vec s = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(sine)), twice);
    return _mm256_fmaddsub_ps(x, c, vec_mul(_mm256_permute_ps(x, 0xb1), s));
}

#include "backend/cpu/kernels/vector/rotate_template.h"

static inline vec vec_reverse(vec x) { return _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0)); }
static inline void sum_four(const vec *x, float *to) {
    vec all = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}
#define POSITION_ROWS 4
#define POSITION_VECS 2
#include "backend/cpu/kernels/vector/positions_template.h"

void vector_init_avx2_multiply(struct vector_ops *ops) {
    ops->multiply = multiply_avx2;
    ops->multiply_i16 = multiply_i16_avx2;
    ops->columns_to_float = columns_to_float_avx2;
    ops->rotate = rotate_avx2;
    ops->score_positions = score_positions_avx2;
    ops->score_position_slots = score_position_slots_avx2;
}
