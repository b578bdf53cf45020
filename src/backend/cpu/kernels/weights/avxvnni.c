/* matmul of weights of four, six and eight bits with AVX-VNNI: weights/fixed_template.h with products of words that add themselves
 * to a sum. */
#include "backend/cpu/kernels/weights/init.h"

#include "backend/cpu/kernels/compiler.h"

#include <immintrin.h>

#define ISA avxvnni
INLINE __m256i add_products(__m256i sum, __m256i codes, __m256i words) { return _mm256_dpwssd_avx_epi32(sum, codes, words); }

#include "backend/cpu/kernels/weights/fixed_template.h"

void weights_init_avxvnni(struct weights_ops *ops) { FILL_FIXED(ops); }
