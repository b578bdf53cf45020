/* Computes small matrix products and rotations with AVX-512. */
#include "backend/cpu/kernels/lanes/avx512.h"

#include <math.h>
#include <string.h>

#define MULTIPLY_VECS 4
#include "backend/cpu/kernels/vector/multiply_template.h"

typedef __m512i ints;
static inline ints ints_zero(void) { return _mm512_setzero_si512(); }
static inline vec ints_to_vec(ints x) { return _mm512_cvtepi32_ps(x); }
static inline ints ints_add_pairs(ints sums, const int16_t *row, const int16_t *b) {
    int32_t pair;
    memcpy(&pair, row, sizeof pair);
    return _mm512_dpwssd_epi32(sums, _mm512_set1_epi32(pair), _mm512_loadu_si512(b));
}
#define MULTIPLY_I16_VECS 4
#include "backend/cpu/kernels/vector/multiply_i16_template.h"

/* Rotates neighbours: even lanes take the difference, odd ones the sum. */
INLINE vec rotate_adjacent(vec x, const float *cosine, const float *sine) {
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    vec c = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(cosine)));
    vec s = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(sine)));
    return _mm512_fmaddsub_ps(x, c, vec_mul(_mm512_permute_ps(x, 0xb1), s));
}

#include "backend/cpu/kernels/vector/rotate_template.h"

static inline vec vec_reverse(vec x) {
    return _mm512_permutexvar_ps(_mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), x);
}
static inline void sum_four(const vec *x, float *to) {
    __m256 half[4];
    UNROLL for (size_t m = 0; m < 4; m++) half[m] = _mm256_add_ps(_mm512_castps512_ps256(x[m]), _mm512_extractf32x8_ps(x[m], 1));
    __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(half[0], half[1]), _mm256_hadd_ps(half[2], half[3]));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}
#define POSITION_ROWS 4
#define POSITION_VECS 2
#include "backend/cpu/kernels/vector/positions_template.h"

void vector_init_avx512_multiply(struct vector_ops *ops) {
    ops->multiply = multiply_avx512;
    ops->multiply_i16 = multiply_i16_avx512;
    ops->rotate = rotate_avx512;
    ops->score_positions = score_positions_avx512;
    ops->score_position_slots = score_position_slots_avx512;
}
