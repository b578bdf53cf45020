/* Small matrix products and rotations with AVX2. */
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

/* Even lanes take the difference, odd ones the sum. */
INLINE vec rotate_adjacent(vec x, const float *cosine, const float *sine) {
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    vec c = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(cosine)), twice);
    vec s = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(sine)), twice);
    return _mm256_fmaddsub_ps(x, c, vec_mul(_mm256_permute_ps(x, 0xb1), s));
}

#include "backend/cpu/kernels/vector/rotate_template.h"

void vector_init_avx2_multiply(struct vector_ops *ops) {
    ops->multiply = multiply_avx2;
    ops->multiply_i16 = multiply_i16_avx2;
    ops->rotate = rotate_avx2;
}
