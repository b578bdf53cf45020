/* matmul of weights of four, six and eight bits with AVX2: weights/fixed_template.h by products and sums of words. */
#include "backend/cpu/kernels/weights/init.h"

#include "backend/cpu/kernels/compiler.h"

#include <immintrin.h>

#define ISA avx2
INLINE __m256i add_products(__m256i sum, __m256i codes, __m256i words) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(codes, words));
}

#include "backend/cpu/kernels/weights/fixed_template.h"

void weights_init_avx2_i16(struct weights_ops *ops) { FILL_FIXED(ops); }
